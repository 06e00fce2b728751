#include "sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace octavo {
namespace {

constexpr float kGreedyTemperature = 1e-5f;  // messages.GREEDY_TEMPERATURE
constexpr size_t kBins = 512;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
    float logit;
    float p;  // exp((logit - largest) / temperature)
    int32_t id;
};

// Best first; the lower id among equals.
bool better(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

int64_t num_blocks_of(int64_t n) { return (n + kSampleBlock - 1) / kSampleBlock; }

// Where `top` is first in x, given the largest of each block.
int32_t first_of(float top, const float* x, int64_t n, const float* block_max) {
    const int64_t block = std::find(block_max, block_max + num_blocks_of(n), top) - block_max;
    return int32_t(std::find(x + block * kSampleBlock, x + std::min<int64_t>((block + 1) * kSampleBlock, n), top) - x);
}

// One thread's memory, kept from call to call.
struct Space {
    std::vector<float> edited, p, block_max, edited_block_max, block_sum;
    std::vector<int32_t> count;  // all zero between rows
    std::vector<Candidate> candidates, selection;

    void resize(size_t vocab_size) {
        const size_t blocks = size_t(num_blocks_of(int64_t(vocab_size)));
        for (auto* v : {&edited, &p}) v->resize(vocab_size);
        for (auto* v : {&block_max, &edited_block_max, &block_sum}) v->resize(blocks);
        count.resize(vocab_size);
        candidates.resize(vocab_size + 1);
        selection.reserve(vocab_size);
    }
};

// Sampling of one row.
class RowSampler {
  public:
    RowSampler(const SampleArgs& args, const Kernels& kernels, Space& space, int64_t row)
        : a_(args), kernels_(kernels), s_(space), row_(row), size_(args.vocab_size) {}

    void run(const SampleResult& result);

  private:
    int64_t num_blocks() const { return num_blocks_of(size_); }
    int32_t block_end(int64_t block) const { return int32_t(std::min<int64_t>((block + 1) * kSampleBlock, size_)); }
    bool in_vocab(int32_t id) const { return id >= 0 && id < size_; }

    bool has_edits() const;
    void edit(float* x);
    void penalize(float* x);
    void mask(float* x, const uint32_t* words);
    int32_t choose(const float* x, const float* block_max, float top);
    int32_t draw(const float* x, const float* block_max, float top);
    int32_t draw_filtered(const float* x, const float* block_max, float top, float factor, double total);
    int32_t draw_unfiltered(double total);
    void collect(const float* x, const float* block_max, float floor, float min_p);
    template <class Weight>
    Candidate select(double target, Weight weight);
    float kth_bound(const float* block_max, int64_t k);
    double wanted_share() const { return uniform(a_.seed[row_], a_.sequence_index[row_], a_.position[row_]); }
    void report(const float* raw, float top, int32_t token, const SampleResult& result);

    const SampleArgs& a_;
    const Kernels& kernels_;
    Space& s_;
    const int64_t row_;
    const int32_t size_;
    size_t num_candidates_ = 0;
};

bool RowSampler::has_edits() const {
    return a_.history_start[row_ + 1] > a_.history_start[row_] || a_.bias_start[row_ + 1] > a_.bias_start[row_] ||
           a_.banned_start[row_ + 1] > a_.banned_start[row_] || a_.mask_index[row_] >= 0;
}

// Penalties: repetition over prompt and answer, then frequency and presence over the answer.
void RowSampler::penalize(float* x) {
    const int64_t begin = a_.history_start[row_], end = a_.history_start[row_ + 1];
    const int64_t answer = std::min(end, begin + a_.num_prompt[row_]);
    const float repetition = a_.repetition_penalty[row_];
    // count: 1 + occurrences in the answer, for tokens of prompt or answer not treated yet.
    for (int64_t i = begin; i < end; ++i) {
        const int32_t id = a_.history[i];
        if (!in_vocab(id)) continue;
        if (s_.count[size_t(id)] == 0) s_.count[size_t(id)] = 1;
        if (i >= answer) ++s_.count[size_t(id)];
    }
    for (int64_t i = begin; i < end; ++i) {
        const int32_t id = a_.history[i];
        if (!in_vocab(id) || s_.count[size_t(id)] == 0) continue;
        const int32_t occurrences = s_.count[size_t(id)] - 1;
        s_.count[size_t(id)] = 0;
        if (repetition != 1.0f) x[id] = x[id] > 0 ? x[id] / repetition : x[id] * repetition;
        x[id] -= a_.frequency_penalty[row_] * float(occurrences);
        if (occurrences > 0) x[id] -= a_.presence_penalty[row_];
    }
}

// Ids outside the vocabulary are ignored: a stop token may well be one.
void RowSampler::edit(float* x) {
    penalize(x);
    for (int64_t i = a_.bias_start[row_]; i < a_.bias_start[row_ + 1]; ++i)
        if (in_vocab(a_.bias_ids[i])) x[a_.bias_ids[i]] += a_.bias_values[i];
    for (int64_t i = a_.banned_start[row_]; i < a_.banned_start[row_ + 1]; ++i)
        if (in_vocab(a_.banned_ids[i])) x[a_.banned_ids[i]] = -kInfinity;
    if (a_.mask_index[row_] >= 0) mask(x, a_.masks + a_.mask_index[row_] * a_.mask_words);
}

// Leaves the tokens whose bit is set; those past the end of the mask go, too.
void RowSampler::mask(float* x, const uint32_t* words) {
    const int64_t covered = std::min<int64_t>(size_, a_.mask_words * 32);
    for (int64_t begin = 0; begin < covered; begin += 32) {
        const uint32_t word = words[begin / 32];
        const int64_t count = std::min<int64_t>(covered - begin, 32);
        if (word == 0) {
            std::fill_n(x + begin, count, -kInfinity);
        } else if (word != ~uint32_t{0}) {
            for (int64_t i = 0; i < count; ++i) x[begin + i] = (word >> i & 1) ? x[begin + i] : -kInfinity;
        }
    }
    std::fill(x + covered, x + size_, -kInfinity);
}

void RowSampler::run(const SampleResult& result) {
    const float* raw = a_.logits + row_ * a_.logits_stride;
    bool has_nan = false;
    const float raw_top = kernels_.row_max(raw, size_, s_.block_max.data(), &has_nan);
    int32_t token = -1;
    if (!has_nan && std::isfinite(raw_top)) {
        if (has_edits()) {
            std::memcpy(s_.edited.data(), raw, size_t(size_) * 4);
            edit(s_.edited.data());
            const float top = kernels_.row_max(s_.edited.data(), size_, s_.edited_block_max.data(), &has_nan);
            if (!has_nan) token = choose(s_.edited.data(), s_.edited_block_max.data(), top);
        } else {
            token = choose(raw, s_.block_max.data(), raw_top);
        }
    }
    result.token_ids[row_] = token;
    if (result.logprobs) report(raw, raw_top, token, result);
}

int32_t RowSampler::choose(const float* x, const float* block_max, float top) {
    if (!std::isfinite(top)) return -1;
    if (a_.temperature[row_] > kGreedyTemperature) return draw(x, block_max, top);
    return first_of(top, x, size_, block_max);
}

int32_t RowSampler::draw(const float* x, const float* block_max, float top) {
    const float factor = 1.44269504f / a_.temperature[row_];
    const double total = kernels_.row_exp(x, size_, top, factor, s_.p.data(), s_.block_sum.data());
    const bool filtered = a_.min_p[row_] > 0 || (a_.top_k[row_] > 0 && a_.top_k[row_] < size_) || a_.top_p[row_] < 1;
    return filtered ? draw_filtered(x, block_max, top, factor, total) : draw_unfiltered(total);
}

// Walks the tokens by ascending id to the first at which the running mass exceeds the noise's share of it all.
int32_t RowSampler::draw_unfiltered(double total) {
    const double wanted = total * wanted_share();
    double sum = 0;
    int64_t block = 0;
    for (; block + 1 < num_blocks(); ++block) {
        const double next = sum + double(s_.block_sum[size_t(block)]);
        if (next > wanted) break;
        sum = next;
    }
    // A block's sum may round above the sum of its tokens one by one; then the last of them is meant.
    int32_t last = -1;
    for (int32_t i = int32_t(block * kSampleBlock); i < block_end(block); ++i) {
        if (s_.p[size_t(i)] <= 0) continue;
        sum += double(s_.p[size_t(i)]);
        last = i;
        if (sum > wanted) break;
    }
    return last;
}

// The same over the tokens that min_p, top_k and top_p leave. Every filter keeps the tokens from the best to some
// worst one, so one token stands for all that are applied.
int32_t RowSampler::draw_filtered(const float* x, const float* block_max, float top, float factor, double total) {
    const double top_p = a_.top_p[row_];
    const int32_t top_k = a_.top_k[row_] < size_ ? a_.top_k[row_] : 0;
    // Without other filters, tokens this unlikely hold less than 1 - top_p of the mass together: none is needed.
    const bool only_top_p = top_k == 0 && a_.min_p[row_] <= 0;
    const float min_p = only_top_p ? float((1.0 - top_p) * total / size_ * 0.99) : a_.min_p[row_];
    // The logit at which p falls below min_p, a little lower than rounding could put it.
    float floor = top + (std::log2(min_p) - 0.01f) / factor;
    if (top_k > 0) floor = std::max(floor, kth_bound(block_max, top_k));
    collect(x, block_max, floor, min_p);

    const auto candidates = s_.candidates.begin();
    const auto end = candidates + ptrdiff_t(num_candidates_);
    s_.selection.assign(candidates, end);
    Candidate worst{-kInfinity, 0, std::numeric_limits<int32_t>::max()};
    if (top_k > 0) worst = select(top_k, [](const Candidate&) { return 1.0; });
    const auto mass = [&] {
        double sum = 0;
        for (auto it = candidates; it != end; ++it) sum += better(worst, *it) ? 0.0 : double(it->p);
        return sum;
    };
    if (top_p < 1) {
        const double target = top_p * (only_top_p ? total : mass());
        worst = select(target, [&](const Candidate& c) { return better(worst, c) ? 0.0 : double(c.p); });
    }
    const double wanted = mass() * wanted_share();
    double sum = 0;
    int32_t last = -1;
    for (auto it = candidates; it != end; ++it) {
        if (better(worst, *it) || it->p <= 0) continue;
        sum += double(it->p);
        last = it->id;
        if (sum > wanted) break;
    }
    return last;
}

// Puts into `candidates`, by ascending id, the finite tokens with x >= floor and p >= min_p.
void RowSampler::collect(const float* x, const float* block_max, float floor, float min_p) {
    floor = std::max(floor, std::numeric_limits<float>::lowest());
    Candidate* out = s_.candidates.data();
    for (int64_t block = 0; block < num_blocks(); ++block) {
        if (block_max[block] < floor) continue;
        for (int32_t i = int32_t(block * kSampleBlock); i < block_end(block); ++i) {
            const float p = s_.p[size_t(i)];
            *out = {x[i], p, i};  // always written, kept by moving on: no branch to mispredict
            out += int(x[i] >= floor) & int(p >= min_p);
        }
    }
    num_candidates_ = size_t(out - s_.candidates.data());
}

// A logit that at least k tokens reach: the k-th largest of the blocks' largest.
float RowSampler::kth_bound(const float* block_max, int64_t k) {
    if (k > num_blocks()) return -kInfinity;
    std::copy(block_max, block_max + num_blocks(), s_.block_sum.begin());
    std::nth_element(s_.block_sum.begin(), s_.block_sum.begin() + (k - 1), s_.block_sum.begin() + num_blocks(),
                     std::greater<float>());
    return s_.block_sum[size_t(k - 1)];
}

// The one of `selection` at which the weights, added up best first, reach `target`; the last one if they never do.
// A histogram over the logits finds the stretch in which that happens; only that stretch is halved further and sorted.
template <class Weight>
Candidate RowSampler::select(double target, Weight weight) {
    double low = s_.selection[0].logit, top = low;
    for (const Candidate& c : s_.selection) {
        low = std::min(low, double(c.logit));
        top = std::max(top, double(c.logit));
    }
    const double scale = top > low ? kBins / (top - low) : 0;
    const auto bin_of = [&](const Candidate& c) {
        return std::min(size_t((top - double(c.logit)) * scale), kBins - 1);  // the worst is in the last bin
    };
    std::array<double, kBins> bins{};
    for (const Candidate& c : s_.selection) bins[bin_of(c)] += weight(c);
    size_t bin = 0;
    double before = 0;
    while (bin + 1 < kBins && before + bins[bin] < target) before += bins[bin++];

    auto begin = s_.selection.begin();
    auto end = std::partition(begin, s_.selection.end(), [&](const Candidate& c) { return bin_of(c) == bin; });
    while (end - begin > 32) {
        const auto middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end, better);
        double half = 0;
        for (auto it = begin; it != middle; ++it) half += weight(*it);
        if (before + half >= target) {
            end = middle;
        } else {
            before += half;
            begin = middle;
        }
    }
    std::sort(begin, end, better);
    for (; end - begin > 1; ++begin) {
        before += weight(*begin);
        if (before >= target) break;
    }
    return *begin;
}

// The raw logits' logprobs: the chosen token's and the likeliest tokens'. Nothing (-inf, rank 0) for a row without.
void RowSampler::report(const float* raw, float top, int32_t token, const SampleResult& result) {
    int32_t* top_ids = result.top_ids + row_ * result.num_top;
    float* top_logprobs = result.top_logprobs + row_ * result.num_top;
    std::fill_n(top_ids, result.num_top, -1);
    std::fill_n(top_logprobs, result.num_top, -kInfinity);
    result.logprobs[row_] = -kInfinity;
    result.ranks[row_] = 0;
    if (a_.num_logprobs[row_] < 0 || token < 0) return;

    const double log_sum = std::log(kernels_.row_exp(raw, size_, top, 1.44269504f, nullptr, nullptr));
    const auto logprob = [&](float logit) { return float(double(logit) - double(top) - log_sum); };
    result.logprobs[row_] = logprob(raw[token]);
    result.ranks[row_] = int32_t(1 + kernels_.count_above(raw, size_, raw[token]));
    const int64_t k = std::min<int64_t>(a_.num_logprobs[row_], size_);
    if (k == 0) return;
    const float floor = kth_bound(s_.block_max.data(), k);
    s_.selection.clear();
    for (int64_t block = 0; block < num_blocks(); ++block)
        if (s_.block_max[size_t(block)] >= floor)
            for (int32_t i = int32_t(block * kSampleBlock); i < block_end(block); ++i)
                if (raw[i] >= floor) s_.selection.push_back({raw[i], 0, i});
    std::partial_sort(s_.selection.begin(), s_.selection.begin() + k, s_.selection.end(), better);
    for (int64_t i = 0; i < k; ++i) {
        top_ids[i] = s_.selection[size_t(i)].id;
        top_logprobs[i] = logprob(s_.selection[size_t(i)].logit);
    }
}

struct Job {
    const SampleArgs* args;
    const SampleResult* result;
    const Kernels* kernels;
    Space* spaces;  // one per thread
};

void sample_row(void* context, int64_t row, int thread) {
    const Job& job = *static_cast<const Job*>(context);
    RowSampler(*job.args, *job.kernels, job.spaces[thread], row).run(*job.result);
}

struct LargestJob {
    const float* logits;
    int64_t stride, n;
    int32_t* token_ids;
    const Kernels* kernels;
    float* block_max;  // num_blocks_of(n) for each thread
};

void find_largest_of_row(void* context, int64_t row, int thread) {
    const LargestJob& job = *static_cast<const LargestJob*>(context);
    const float* x = job.logits + row * job.stride;
    float* block_max = job.block_max + thread * num_blocks_of(job.n);
    bool has_nan = false;
    const float top = job.kernels->row_max(x, job.n, block_max, &has_nan);
    job.token_ids[row] = has_nan || !std::isfinite(top) ? -1 : first_of(top, x, job.n, block_max);
}

uint64_t mix(uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

}  // namespace

float uniform(int64_t seed, int64_t sequence_index, int64_t position) {
    const uint64_t h = mix(mix(mix(uint64_t(seed)) ^ uint64_t(sequence_index)) ^ uint64_t(position));
    return float(h >> 40) / float(1 << 24);
}

void sample(const SampleArgs& args, const SampleResult& result, const Kernels& kernels, ThreadPool& pool) {
    // Memory is taken here, where running out of it can be reported, and kept: a megabyte per thread for 50,000 tokens.
    static thread_local std::vector<Space> spaces;
    if (spaces.size() < size_t(pool.size())) spaces.resize(size_t(pool.size()));
    for (Space& space : spaces) space.resize(size_t(args.vocab_size));
    Job job{&args, &result, &kernels, spaces.data()};
    pool.parallel_for(args.num_rows, sample_row, &job);
}

void find_largest(const float* logits, int64_t stride, int64_t num_rows, int64_t n, int32_t* token_ids,
                  const Kernels& kernels, ThreadPool& pool) {
    std::vector<float> block_max(size_t(num_blocks_of(n)) * size_t(pool.size()));
    LargestJob job{logits, stride, n, token_ids, &kernels, block_max.data()};
    pool.parallel_for(num_rows, find_largest_of_row, &job);
}

}  // namespace octavo
