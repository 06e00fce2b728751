// The largest product of a row with a head in groups, without most of the products.
#include "sketch.h"

#include "half.h"
#include "ops.h"

namespace octavo::OCTAVO_ISA {
namespace {

// So many panels cost less than the sketch saves, on all threads.
int64_t most_panels(int64_t num_panels) { return 4 + num_panels / 4; }

// Sums of k products are made of sums of this many.
constexpr int64_t kSummed = 64;

// `rounding`, and of both sides the reflections': a dot product, its multiple, and a subtraction each, of numbers that
// are at most as large as the row; and that the vectors' lengths are rounded. Twice that.
float sketch_rounding(int64_t k) {
    const float each = float(4 * (kSummed + 2 + k / kSummed) + 16);
    return rounding(k) + float(1 + num_directions(k)) * each * (1.0f / (1 << 23));
}

// --- making one ------------------------------------------------------------------------------------------------------

constexpr int kLanes = 16;  // columns at a time
static_assert(kGroupColumns % kLanes == 0);
constexpr int kGroup = kSketchFormat.group;

struct MakeJob {
    const SketchArgs* args;
    int32_t refused = 0;
};

// x[k][kLanes], all columns side by side.
void reflect_columns(const float* reflector, int64_t k, float* x) {
    for (int c = 0; c < kLanes; c += VF::W) {
        VF dot = VF::zero();
        for (int64_t begin = 0; begin < k; begin += kSummed) {
            const int64_t end = begin + kSummed < k ? begin + kSummed : k;
            VF parts[4] = {VF::zero(), VF::zero(), VF::zero(), VF::zero()};
            const auto add = [&](int64_t i, VF& part) {
                part = fma(VF::set1(reflector[i]), VF::load(x + i * kLanes + c), part);
            };
            int64_t i = begin;
            for (; i + 3 < end; i += 4)
                add(i, parts[0]), add(i + 1, parts[1]), add(i + 2, parts[2]), add(i + 3, parts[3]);
            for (; i < end; ++i) add(i, parts[0]);
            dot = dot + ((parts[0] + parts[1]) + (parts[2] + parts[3]));
        }
        for (int64_t i = 0; i < k; ++i) {
            float* at = x + i * kLanes + c;
            fma(VF::set1(-reflector[i]), dot, VF::load(at)).store(at);
        }
    }
}

struct PanelParts {
    int8_t* directions;
    float* values;   // [4][kGroupColumns]
    uint8_t* codes;  // [kGroupColumns][rest]
    float* scales;   // [kGroupColumns][groups]
};

// Rounds VF::W columns of x[count][kLanes] to multiples of their steps from least to most, gives each to put(i, codes),
// and returns the sum of the squares of what they are off.
template <class Put>
VF round_columns(const float* x, int64_t count, VF step, VF inverse, float least, float most, const Put& put) {
    VF off = VF::zero();
    for (int64_t i = 0; i < count; ++i) {
        const VF element = VF::load(x + i * kLanes);
        const VF whole = min(max(round(element * inverse), VF::set1(least)), VF::set1(most));
        const VF left = element - step * whole;
        off = fma(left, left, off);
        int32_t codes[VF::W];
        whole.store_i32(codes);
        put(i, codes);
    }
    return off;
}

// 1 / steps, or zeros for what is too small.
VF inverses(const float (&steps)[VF::W]) {
    float inverse[VF::W];
    for (int j = 0; j < VF::W; ++j) inverse[j] = std::fabs(steps[j]) > kTiny ? 1.0f / steps[j] : 0.0f;
    return VF::load(inverse);
}

// Columns [c, c + VF::W) of a panel, lanes of x[k][kLanes], reflected. False if one is too large.
bool put_columns(const SketchArgs& args, const PanelParts& parts, int64_t c, const float* x) {
    const int64_t count = num_directions(args.k), rest = rest_of(args.k), groups = kSketchFormat.groups_of(rest);
    VF::load(x).store(parts.values + c);

    const float* along = x + kLanes;
    VF top = VF::zero();
    for (int64_t d = 0; d < count; ++d) {
        const VF element = VF::load(along + d * kLanes);
        top = max(max(element, VF::zero() - element), top);
    }
    float steps[VF::W];
    (top * VF::set1(1.0f / 127)).store(steps);
    std::memcpy(parts.values + kGroupColumns + c, steps, sizeof steps);
    const VF off = round_columns(along, count, VF::load(steps), inverses(steps), -127, 127,
                                 [&](int64_t d, const int32_t (&codes)[VF::W]) {
                                     for (int j = 0; j < VF::W; ++j)
                                         parts.directions[d * kGroupColumns + c + j] = int8_t(codes[j]);
                                 });

    VF lost = VF::zero();
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = g * kGroup, left = rest - begin < kGroup ? rest - begin : kGroup;
        const float* group = x + (1 + count + begin) * kLanes;
        VF most = VF::zero(), least = VF::zero();
        for (int64_t i = 0; i < left; ++i) {
            most = max(most, VF::load(group + i * kLanes));
            least = min(least, VF::load(group + i * kLanes));
        }
        float highest[VF::W], lowest[VF::W];
        most.store(highest), least.store(lowest);
        for (int j = 0; j < VF::W; ++j) {  // the largest becomes -8, which there is no 8 for
            const float largest = highest[j] > -lowest[j] ? highest[j] : lowest[j];
            steps[j] = half_to_float(float_to_half(largest / -float(kSketchFormat.zero)));
            parts.scales[(c + j) * groups + g] = steps[j];
        }
        lost = lost + round_columns(group, left, VF::load(steps), inverses(steps), -8, 7,
                                    [&](int64_t i, const int32_t (&codes)[VF::W]) {
                                        for (int j = 0; j < VF::W; ++j)
                                            parts.codes[(c + j) * rest + begin + i] =
                                                uint8_t(codes[j] + kSketchFormat.zero);
                                    });
    }
    float losts[VF::W], offs[VF::W];
    lost.store(losts), off.store(offs);
    bool good = true;
    for (int j = 0; j < VF::W; ++j) {
        good &= losts[j] < kMostNorm * kMostNorm;  // not so a NaN
        parts.values[3 * kGroupColumns + c + j] = std::fmax(std::sqrt(losts[j]), kDirectionsFor * std::sqrt(offs[j]));
    }
    return good;
}

void make_panel(void* context, int64_t index, int thread) {
    MakeJob& job = *static_cast<MakeJob*>(context);
    const SketchArgs& args = *job.args;
    const int64_t k = args.k, rest = rest_of(k), groups = kSketchFormat.groups_of(rest);
    const int64_t panel = args.first_panel + index;
    auto* out = static_cast<uint8_t*>(args.sketch) + panel * sketch_panel_bytes(k);
    float* rows = args.buffer + thread * int64_t(make_sketch_buffer_bytes(k, 1) / sizeof(float));
    float* columns = rows + kLanes * k;
    PanelParts parts{};
    parts.directions = reinterpret_cast<int8_t*>(out + sketched_codes_bytes(k));
    parts.values = reinterpret_cast<float*>(parts.directions + num_directions(k) * kGroupColumns);
    parts.scales = columns + kLanes * k;
    parts.codes = reinterpret_cast<uint8_t*>(parts.scales + kGroupColumns * groups);
    bool good = true;
    for (int64_t first = 0; first < kGroupColumns; first += kLanes) {
        int32_t ids[kLanes];
        int count = 0;
        for (int64_t row = panel * kGroupColumns + first; count < kLanes && row < args.n; ++row)
            ids[count++] = int32_t(row);
        embedding_rows({args.weight, args.format, k, ids, rows, count});
        for (int64_t i = 0; i < k; ++i)
            for (int c = 0; c < kLanes; ++c) columns[i * kLanes + c] = c < count ? rows[c * k + i] : 0.0f;
        for (int c = 0; c < kLanes; c += VF::W) {
            VF squares = VF::zero();
            for (int64_t i = 0; i < k; ++i) {
                const VF element = VF::load(columns + i * kLanes + c);
                squares = fma(element, element, squares);
            }
            squares.store(parts.values + 2 * kGroupColumns + first + c);
        }
        for (int64_t v = 0; v <= num_directions(k); ++v) reflect_columns(args.reflectors + v * k, k, columns);
        for (int c = 0; c < kLanes; c += VF::W) good &= put_columns(args, parts, first + c, columns + c);
    }
    for (int c = 0; c < kGroupColumns; ++c) {
        float& norm = parts.values[2 * kGroupColumns + c];
        good &= norm < kMostNorm * kMostNorm;
        norm = std::sqrt(norm);
    }
    pack_panel_of_groups({parts.codes, parts.scales, nullptr, 0, kGroupColumns, rest, kSketchFormat, out}, 0);
    if (!good) __atomic_store_n(&job.refused, 1, __ATOMIC_RELAXED);
}

// --- asking it -------------------------------------------------------------------------------------------------------

struct AskJob {
    const GreedyArgs* args;
    ProductRows exact;
    float* values;  // for each row [k]
    uint8_t* rows;  // for each row sketch_row_bytes
};

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

float dot(const float* a, const float* b, int64_t k) {
    float sum = 0;
    for (int64_t begin = 0; begin < k; begin += kSummed) {
        VF part = VF::zero();
        for (int64_t i = begin; i < begin + kSummed && i < k; i += VF::W) {
            const int count = k - i < VF::W ? int(k - i) : VF::W;
            part = fma(VF::load_n(a + i, count), VF::load_n(b + i, count), part);
        }
        sum += lanes_sum(part);
    }
    return sum;
}

float size_of(const float* x, int64_t count) { return std::sqrt(dot(x, x, count)); }

void reflect(const float* reflector, int64_t k, float* x) {
    const VF product = VF::set1(-dot(reflector, x, k));
    for (int64_t i = 0; i < k; i += VF::W) {
        const int count = k - i < VF::W ? int(k - i) : VF::W;
        fma(product, VF::load_n(reflector + i, count), VF::load_n(x + i, count)).store_n(x + i, count);
    }
}

void prepare_row(void* context, int64_t row, int) {
    const AskJob& job = *static_cast<const AskJob*>(context);
    const LinearArgs& product = job.args->product;
    const int64_t k = product.k, count = num_directions(k), rest = rest_of(k);
    float* x = job.values + row * aligned(2 * k * int64_t(sizeof(float))) / int64_t(sizeof(float));
    values_of_row(product, job.exact.row(row), x);
    const float norm = size_of(x, k);
    for (int64_t v = 0; v <= count; ++v) reflect(job.args->reflectors + v * k, k, x);
    uint8_t* out = job.rows + row * aligned(sketch_row_bytes(k));
    uint8_t* quantised = out + sketch_row_head_bytes(k);
    const float* left = x + 1 + count;
    float* rounded = x + k;
    quantise_row(left, rest, kSketchFormat, quantised);
    values_of_quantised_row(quantised, rest, kSketchFormat, rounded);
    const float size = size_of(rounded, rest), along = size_of(x + 1, count);
    for (int64_t i = 0; i < rest; ++i) rounded[i] = left[i] - rounded[i];
    const float loose = loosened(k), rounds = sketch_rounding(k);
    const SketchRow head{x[0], loose * (size_of(rounded, rest) + rounds * (norm + size)),
                         loose * (size + along / kDirectionsFor) * (1 + rounds)};
    std::memcpy(out, &head, sizeof head);
    std::memcpy(out + sizeof head, x + 1, size_t(count) * sizeof(float));
    job.args->token_ids[row] = norm > kLeastNorm && norm < kMostNorm ? kAsked : kUndecided;
}

}  // namespace

size_t sketch_bytes(int64_t n, int64_t k) { return size_t(sketch_panels(n) * sketch_panel_bytes(k)); }

size_t make_sketch_buffer_bytes(int64_t k, int num_threads) {
    const int64_t groups = kSketchFormat.groups_of(rest_of(k));
    const int64_t bytes =
        (2 * kLanes * k + kGroupColumns * groups) * int64_t(sizeof(float)) + kGroupColumns * rest_of(k);
    return size_t(num_threads) * size_t(aligned(bytes));
}

bool make_sketch(const SketchArgs& args, ThreadPool& pool) {
    MakeJob job{&args};
    pool.parallel_for(args.num_panels, make_panel, &job);
    return !job.refused;
}

size_t sketched_greedy_scratch_bytes(int64_t k) {
    return sizeof(Choice) + size_t(aligned(2 * k * int64_t(sizeof(float))) + aligned(sketch_row_bytes(k)));
}

void head_input(const LinearArgs& product, float* values, ThreadPool& pool) {
    values_of_row(product, convert_input(product, pool).row(0), values);
}

bool sketched_greedy(GreedyArgs& args, ThreadPool& pool) {
    const LinearArgs& product = args.product;
    const int64_t count = product.num_tokens, k = product.k;
    AskJob job{};
    job.args = &args;
    job.exact = convert_input(product, pool);
    auto* scratch = static_cast<uint8_t*>(args.scratch);
    auto* choices = reinterpret_cast<Choice*>(scratch);
    scratch += count * int64_t(sizeof(Choice));
    job.values = reinterpret_cast<float*>(scratch), scratch += count * aligned(2 * k * int64_t(sizeof(float)));
    job.rows = scratch;
    pool.parallel_for(count, prepare_row, &job);

    LinearArgs sketch{};
    sketch.weight = args.screen;
    sketch.n = product.n, sketch.k = k;
    sketch.out = product.out, sketch.out_stride = product.out_stride;
    sketch.num_tokens = product.num_tokens;
    run_linear<SketchWeights>(sketch, job.rows, aligned(sketch_row_bytes(k)), pool);

    return choose_tokens({&product, job.exact, most_panels(sketch_panels(product.n)), choices, args.token_ids},
                         &args.num_left, pool);
}

}  // namespace octavo::OCTAVO_ISA
