#include "sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace octavo {
namespace {

constexpr float kGreedyTemperature = 1e-5f;  // messages.GREEDY_TEMPERATURE
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
    float logit;
    int32_t id;
};

// Best first; the lower id among equals.
bool better(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

// One thread's memory, kept from call to call.
struct Space {
    std::vector<float> edited, p, block_max, edited_block_max, block_sum;
    std::vector<double> kept_mass;
    std::vector<int32_t> count;  // all zero between rows
    std::vector<Candidate> candidates;

    void resize(size_t vocab_size) {
        const size_t blocks = (vocab_size + kSampleBlock - 1) / kSampleBlock;
        for (auto* v : {&edited, &p}) v->resize(vocab_size);
        for (auto* v : {&block_max, &edited_block_max, &block_sum}) v->resize(blocks);
        kept_mass.resize(blocks);
        count.resize(vocab_size);
        candidates.reserve(vocab_size);
    }
};

// What is left to draw from. Every filter keeps the tokens above some point of the order "best first", so all of them
// together are one such point: the worst token kept.
struct Limit {
    Candidate worst{-kInfinity, std::numeric_limits<int32_t>::max()};
    float min_p = 0;           // of exp((logit - largest) / temperature)
    float floor = -kInfinity;  // no kept logit is below; only for skipping blocks

    bool keeps(float logit, int32_t id, float p) const {
        return p >= min_p && (logit > worst.logit || (logit == worst.logit && id <= worst.id));
    }
    bool keeps_all() const { return min_p <= 0 && worst.logit == -kInfinity; }
};

// Sampling of one row.
class RowSampler {
  public:
    RowSampler(const SampleArgs& args, const Kernels& kernels, Space& space, int64_t row)
        : a_(args), kernels_(kernels), s_(space), row_(row), size_(args.vocab_size) {}

    void run(const SampleResult& result);

  private:
    int64_t num_blocks() const { return (size_ + kSampleBlock - 1) / kSampleBlock; }
    int32_t block_end(int64_t block) const { return int32_t(std::min<int64_t>((block + 1) * kSampleBlock, size_)); }
    bool in_vocab(int32_t id) const { return id >= 0 && id < size_; }

    bool has_edits() const;
    void edit(float* x);
    void penalize(float* x);
    int32_t choose(const float* x, const float* block_max, float top);
    int32_t draw(const float* x, const float* block_max, float top);
    int32_t pick(const float* x, const float* block_max, const Limit& limit, double total);
    void collect(const float* x, const float* block_max, const Limit& limit);
    float kth_bound(const float* block_max, int64_t k);
    void limit_top_k(const float* x, const float* block_max, Limit* limit);
    void limit_top_p(const float* x, const float* block_max, float top, float factor, double total, Limit* limit);
    void report(const float* raw, float top, int32_t token, const SampleResult& result);

    const SampleArgs& a_;
    const Kernels& kernels_;
    Space& s_;
    const int64_t row_;
    const int32_t size_;
};

bool RowSampler::has_edits() const {
    return a_.history_start[row_ + 1] > a_.history_start[row_] || a_.bias_start[row_ + 1] > a_.bias_start[row_] ||
           a_.banned_start[row_ + 1] > a_.banned_start[row_];
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
    const int64_t block = std::find(block_max, block_max + num_blocks(), top) - block_max;
    return int32_t(std::find(x + block * kSampleBlock, x + block_end(block), top) - x);
}

int32_t RowSampler::draw(const float* x, const float* block_max, float top) {
    const float factor = 1.44269504f / a_.temperature[row_];
    const double total = kernels_.row_exp(x, size_, top, factor, s_.p.data(), s_.block_sum.data());
    Limit limit;
    limit.min_p = a_.min_p[row_];
    // The logit at which p falls below min_p, a little lower than rounding could put it.
    if (limit.min_p > 0) limit.floor = top + (std::log2(limit.min_p) - 0.01f) / factor;
    if (a_.top_k[row_] > 0 && a_.top_k[row_] < size_) limit_top_k(x, block_max, &limit);
    if (a_.top_p[row_] < 1.0f) limit_top_p(x, block_max, top, factor, total, &limit);
    return pick(x, block_max, limit, total);
}

// Puts into `candidates`, by ascending id, the tokens that `limit` keeps.
void RowSampler::collect(const float* x, const float* block_max, const Limit& limit) {
    s_.candidates.clear();
    const float floor = std::max(limit.floor, limit.worst.logit);
    for (int64_t block = 0; block < num_blocks(); ++block) {
        if (block_max[block] < floor) continue;
        for (int32_t i = int32_t(block * kSampleBlock); i < block_end(block); ++i)
            if (x[i] >= floor && limit.keeps(x[i], i, s_.p[size_t(i)])) s_.candidates.push_back({x[i], i});
    }
}

// A logit that at least k tokens reach: the k-th largest of the blocks' largest.
float RowSampler::kth_bound(const float* block_max, int64_t k) {
    if (k > num_blocks()) return -kInfinity;
    std::copy(block_max, block_max + num_blocks(), s_.kept_mass.begin());
    std::nth_element(s_.kept_mass.begin(), s_.kept_mass.begin() + (k - 1), s_.kept_mass.begin() + num_blocks(),
                     std::greater<double>());
    return float(s_.kept_mass[size_t(k - 1)]);
}

void RowSampler::limit_top_k(const float* x, const float* block_max, Limit* limit) {
    limit->floor = std::max(limit->floor, kth_bound(block_max, a_.top_k[row_]));
    collect(x, block_max, *limit);
    const auto last = s_.candidates.begin() + (std::min<int64_t>(a_.top_k[row_], int64_t(s_.candidates.size())) - 1);
    std::nth_element(s_.candidates.begin(), last, s_.candidates.end(), better);
    limit->worst = *last;
}

void RowSampler::limit_top_p(const float* x, const float* block_max, float top, float factor, double total,
                             Limit* limit) {
    const double top_p = a_.top_p[row_];
    Limit wide = *limit;
    const bool all = limit->keeps_all();
    if (all) {
        // Tokens this unlikely hold less than 1 - top_p of the mass together, so none of them is needed.
        wide.min_p = float((1.0 - top_p) * total / size_ * 0.99);
        wide.floor = top + (std::log2(wide.min_p) - 0.01f) / factor;
    }
    collect(x, block_max, wide);
    const auto mass_of = [&](const Candidate& c) { return double(s_.p[size_t(c.id)]); };
    double mass = 0;
    for (const Candidate& c : s_.candidates) mass += mass_of(c);
    const double target = top_p * (all ? total : mass);
    // Selection by mass: halve the range in which the sum reaches the target until it is short, then walk it.
    auto begin = s_.candidates.begin(), end = s_.candidates.end();
    double before = 0;
    while (end - begin > 32) {
        const auto middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end, better);
        double half = 0;
        for (auto it = begin; it != middle; ++it) half += mass_of(*it);
        if (before + half >= target) {
            end = middle;
        } else {
            before += half;
            begin = middle;
        }
    }
    std::sort(begin, end, better);
    for (auto it = begin; it != end; ++it) {
        before += mass_of(*it);
        limit->worst = *it;
        if (before >= target) break;
    }
}

// Walks the kept tokens by ascending id to the first at which the running mass exceeds the noise's share of it.
int32_t RowSampler::pick(const float* x, const float* block_max, const Limit& limit, double total) {
    const bool all = limit.keeps_all();
    const float floor = std::max(limit.floor, limit.worst.logit);
    double mass = all ? total : 0;
    for (int64_t block = 0; block < num_blocks(); ++block) {
        double& kept = s_.kept_mass[size_t(block)];
        kept = all ? double(s_.block_sum[size_t(block)]) : 0;
        if (all || block_max[block] < floor) continue;
        for (int32_t i = int32_t(block * kSampleBlock); i < block_end(block); ++i)
            if (limit.keeps(x[i], i, s_.p[size_t(i)])) kept += double(s_.p[size_t(i)]);
        mass += kept;
    }
    const double wanted = mass * double(uniform(a_.seed[row_], a_.sequence_index[row_], a_.position[row_]));
    double sum = 0;
    int32_t last = -1;
    for (int64_t block = 0; block < num_blocks(); ++block) {
        const double kept = s_.kept_mass[size_t(block)];
        if (sum + kept <= wanted) {
            sum += kept;
            continue;
        }
        // A block's sum may round above the sum of its tokens one by one; then the last of them is meant.
        for (int32_t i = int32_t(block * kSampleBlock); i < block_end(block); ++i) {
            const float p = s_.p[size_t(i)];
            if (p <= 0 || !limit.keeps(x[i], i, p)) continue;
            sum += double(p);
            last = i;
            if (sum > wanted) break;
        }
        break;
    }
    return last;
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
    s_.candidates.clear();
    for (int64_t block = 0; block < num_blocks(); ++block)
        if (s_.block_max[size_t(block)] >= floor)
            for (int32_t i = int32_t(block * kSampleBlock); i < block_end(block); ++i)
                if (raw[i] >= floor) s_.candidates.push_back({raw[i], i});
    std::partial_sort(s_.candidates.begin(), s_.candidates.begin() + k, s_.candidates.end(), better);
    for (int64_t i = 0; i < k; ++i) {
        top_ids[i] = s_.candidates[size_t(i)].id;
        top_logprobs[i] = logprob(s_.candidates[size_t(i)].logit);
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

}  // namespace octavo
