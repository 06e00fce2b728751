// The largest product of a row with a head, without most of the products.
#include "screen.h"

#include "choose.h"
#include "ops.h"
#include "quantise.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr float kLimit = 127;
// One thread computes those of a row. With more it is cheaper to compute all products, on all threads.
int64_t most_panels(int64_t num_panels) { return 4 + num_panels / 16; }

int64_t rotated(int64_t k) {
    int64_t size = 1;
    while (size < kMaxRotated && k % (2 * size) == 0) size *= 2;
    return size;
}

// R of screen.h for `lanes` rows side by side: x[k][lanes].
template <int LANES>
void rotate(float* x, int64_t k) {
    const int64_t size = rotated(k);
    const float scale = 1.0f / std::sqrt(float(size));
    for (int64_t begin = 0; begin < k; begin += size) {
        float* part = x + begin * LANES;
        for (int64_t half = 1; half < size; half *= 2)
            for (int64_t first = 0; first < size; first += 2 * half)
                for (int64_t i = first * LANES; i < (first + half) * LANES; ++i) {
                    const float a = part[i], b = part[i + half * LANES];
                    part[i] = a + b;
                    part[i + half * LANES] = a - b;
                }
        for (int64_t i = 0; i < size * LANES; ++i) part[i] *= scale;
    }
}

// --- making one ------------------------------------------------------------------------------------------------------

constexpr int kLanes = 16;  // columns at a time
static_assert(kScreenColumns % kLanes == 0);

struct MakeJob {
    const ScreenArgs* args;
    int32_t refused = 0;
};

// Columns [first, first + kLanes) of a panel, whose rows of the head are x[k][kLanes]. False if one is not finite, or
// too large.
bool round_columns(const ScreenArgs& args, int64_t panel, int64_t first, float* x) {
    uint8_t* out = static_cast<uint8_t*>(args.screen) + panel * screen_panel_bytes(args.k);
    float* const scale = reinterpret_cast<float*>(out) + first;
    float *const norm = scale + kScreenColumns, *const lost = norm + kScreenColumns;
    float top[kLanes], inverse[kLanes];
    for (int c = 0; c < kLanes; c += VF::W) {
        VF sum = VF::zero();
        for (int64_t i = 0; i < args.k; ++i) {
            const VF element = VF::load(x + i * kLanes + c);
            sum = fma(element, element, sum);
        }
        sum.store(norm + c);
    }
    rotate<kLanes>(x, args.k);
    for (int c = 0; c < kLanes; c += VF::W) {
        VF size = VF::zero();
        for (int64_t i = 0; i < args.k; ++i) {
            const VF element = VF::load(x + i * kLanes + c);
            size = max(max(element, VF::zero() - element), size);
        }
        size.store(top + c);
    }
    for (int c = 0; c < kLanes; ++c) {
        scale[c] = top[c] / kLimit;
        inverse[c] = scale[c] > kTiny ? 1.0f / scale[c] : 0.0f;
    }
    out += (3 * kScreenColumns + first) * 4;
    const VF limit = VF::set1(kLimit), least = VF::set1(-kLimit);
    for (int c = 0; c < kLanes; c += VF::W) {
        const VF by = VF::load(inverse + c), each = VF::load(scale + c);
        VF sum = VF::zero();
        for (int64_t quad = 0; quad < quads_of(args.k); ++quad) {
            uint32_t codes[VF::W] = {};
            for (int i = 0; i < 4 && quad * 4 + i < args.k; ++i) {
                const VF element = VF::load(x + (quad * 4 + i) * kLanes + c);
                const VF whole = min(max(round(element * by), least), limit);
                const VF off = element - each * whole;
                sum = fma(off, off, sum);
                int32_t code[VF::W];
                whole.store_i32(code);
                for (int j = 0; j < VF::W; ++j) codes[j] |= uint32_t(code[j] + kScreenZero) << (8 * i);
            }
            std::memcpy(out + (quad * kScreenColumns + c) * 4, codes, sizeof codes);
        }
        sum.store(lost + c);
    }
    bool good = true;
    for (int c = 0; c < kLanes; ++c) {
        good &= norm[c] < kMostNorm * kMostNorm;  // not so a NaN
        norm[c] = std::sqrt(norm[c]), lost[c] = std::sqrt(lost[c]);
    }
    return good;
}

// Rows [first, first + kLanes) of the head side by side, columns[k][kLanes]; zeros past the last one.
void read_columns(const ScreenArgs& args, int64_t first, float* rows, float* columns) {
#if defined(OCTAVO_ISA_avx512)
    if (args.format.kind == WeightFormat::Kind::kBFloat16 && args.k % 2 == 0) {  // they lie like that, in pairs
        const auto* pairs = static_cast<const uint16_t*>(args.weight) +
                            first / COLUMNS * Bf16Weights::panel_elements(args.k) + first % COLUMNS * 2;
        for (int64_t i = 0; i < args.k; i += 2) {
            const __m512i pair = _mm512_loadu_si512(pairs + i * COLUMNS);
            VF{_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16))}.store(columns + i * kLanes);
            VF{_mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(-65536)))}.store(columns +
                                                                                             (i + 1) * kLanes);
        }
        return;
    }
#endif
    int32_t ids[kLanes];
    int count = 0;
    for (int64_t row = first; count < kLanes && row < args.n; ++row) ids[count++] = int32_t(row);
    embedding_rows({args.weight, args.format, args.k, ids, rows, count});
    for (int64_t i = 0; i < args.k; ++i)
        for (int c = 0; c < kLanes; ++c) columns[i * kLanes + c] = c < count ? rows[c * args.k + i] : 0.0f;
}

void make_panel(void* context, int64_t panel, int thread) {
    MakeJob& job = *static_cast<MakeJob*>(context);
    const ScreenArgs& args = *job.args;
    float* rows = args.buffer + thread * 2 * args.k * kLanes;
    float* columns = rows + args.k * kLanes;
    for (int64_t first = 0; first < kScreenColumns; first += kLanes) {
        read_columns(args, panel * kScreenColumns + first, rows, columns);
        if (!round_columns(args, panel, first, columns)) __atomic_store_n(&job.refused, 1, __ATOMIC_RELAXED);
    }
}

// --- asking it -------------------------------------------------------------------------------------------------------

struct AskJob {
    const GreedyArgs* args;
    ProductRows exact;
    float* values;  // for each row [k]
    uint8_t* rows;  // for each row screen_row_bytes
};

void prepare_row(void* context, int64_t row, int) {
    const AskJob& job = *static_cast<const AskJob*>(context);
    const LinearArgs& product = job.args->product;
    const int64_t k = product.k;
    float* x = job.values + row * k;
    values_of_row(product, job.exact.row(row), x);
    float norm = 0;
    for (int64_t i = 0; i < k; ++i) norm += x[i] * x[i];
    rotate<1>(x, k);
    const float scale = integer_scale(x, int(k), kLimit);
    uint8_t* out = job.rows + row * screen_row_bytes(k);
    float lost = 0;
    int64_t sum = 0, squares = 0;
    for (int64_t quad = 0; quad < quads_of(k); ++quad) {
        int32_t codes[4] = {};
        for (int i = 0; i < 4 && quad * 4 + i < k && scale > 0; ++i) {
            const float element = x[quad * 4 + i];
            const float ratio = std::nearbyint(element / scale);
            codes[i] = int32_t(ratio < -kLimit ? -kLimit : ratio > kLimit ? kLimit : ratio);
            const float off = element - scale * float(codes[i]);
            lost += off * off;
            sum += codes[i], squares += codes[i] * codes[i];
        }
        put_quad(codes, quad, out);
    }
    norm = std::sqrt(norm);
    const float rounded = scale * std::sqrt(float(squares)), loose = loosened(k), rounds = rounding(k);
    const ScreenRow head{scale, int32_t(-kScreenZero * sum), loose * (std::sqrt(lost) + rounds * (norm + rounded)),
                         loose * rounded * (1 + rounds)};
    std::memcpy(out, &head, sizeof head);
    job.args->token_ids[row] = norm > kLeastNorm && norm < kMostNorm ? kAsked : kUndecided;
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

size_t screen_bytes(int64_t n, int64_t k) { return size_t(screen_panels(n) * screen_panel_bytes(k)); }

bool make_screen(const ScreenArgs& args, ThreadPool& pool) {
    MakeJob job{&args};
    pool.parallel_for(screen_panels(args.n), make_panel, &job);
    return !job.refused;
}

size_t make_screen_buffer_bytes(int64_t k, int num_threads) {
    return size_t(num_threads) * 2 * size_t(k) * kLanes * sizeof(float);
}

size_t greedy_scratch_bytes(int64_t k) {
    return sizeof(Choice) + size_t(aligned(k * int64_t(sizeof(float))) + aligned(screen_row_bytes(k)));
}

bool greedy(GreedyArgs& args, ThreadPool& pool) {
    const LinearArgs& product = args.product;
    const int64_t count = product.num_tokens, k = product.k;
    AskJob job{};
    job.args = &args;
    job.exact = convert_input(product, pool);
    auto* scratch = static_cast<uint8_t*>(args.scratch);
    auto* choices = reinterpret_cast<Choice*>(scratch);
    scratch += count * int64_t(sizeof(Choice));
    job.values = reinterpret_cast<float*>(scratch), scratch += count * aligned(k * int64_t(sizeof(float)));
    job.rows = scratch;
    pool.parallel_for(count, prepare_row, &job);

    LinearArgs screen{};
    screen.weight = args.screen;
    screen.n = product.n, screen.k = k;
    screen.out = product.out, screen.out_stride = product.out_stride;
    screen.num_tokens = product.num_tokens;
    run_linear<ScreenWeights>(screen, job.rows, screen_row_bytes(k), pool);

    return choose_tokens({&product, job.exact, most_panels(screen_panels(product.n)), choices, args.token_ids},
                         &args.num_left, pool);
}

}  // namespace octavo::OCTAVO_ISA
