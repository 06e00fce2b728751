// Which experts a token chooses, and the sum of what they give.
#include "kernels.h"
#include "ops.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kRowsPerTile = 8;

template <class Args>
struct RowsJob {
    const Args* args;
    void (*row)(const Args&, int);
};

template <class Args>
void rows_tile(void* context, int64_t tile, int) {
    const RowsJob<Args>& job = *static_cast<RowsJob<Args>*>(context);
    const int begin = int(tile) * kRowsPerTile;
    const int end = begin + kRowsPerTile < job.args->num_rows ? begin + kRowsPerTile : job.args->num_rows;
    for (int row = begin; row < end; ++row) job.row(*job.args, row);
}

template <class Args>
void each_row(const Args& args, void (*row)(const Args&, int), ThreadPool& pool) {
    RowsJob<Args> job{&args, row};
    pool.parallel_for((args.num_rows + kRowsPerTile - 1) / kRowsPerTile, rows_tile<Args>, &job);
}

// The `count` largest, in descending order, the lower index first among equals. False if there is a NaN.
bool choose(const float* logits, int num_experts, int count, int32_t* chosen) {
    int have = 0;
    for (int e = 0; e < num_experts; ++e) {
        const float logit = logits[e];
        if (logit != logit) return false;
        if (have == count && !(logit > logits[chosen[have - 1]])) continue;
        int place = have < count ? have++ : count - 1;
        for (; place > 0 && logit > logits[chosen[place - 1]]; --place) chosen[place] = chosen[place - 1];
        chosen[place] = e;
    }
    return true;
}

// The sum of e^(x[i] - max).
float sum_exp(const float* x, int n, float max) {
    const VF top = VF::set1(max);
    const int whole = n / VF::W * VF::W;
    VF sum = VF::zero();
    for (int i = 0; i < whole; i += VF::W) sum = sum + exp(VF::load(x + i) - top);
    if (whole < n) {
        float rest[VF::W];
        for (int i = 0; i < VF::W; ++i) rest[i] = whole + i < n ? x[whole + i] : -INFINITY;  // nothing beside the 1
        sum = sum + exp(VF::load(rest) - top);
    }
    return reduce_add(sum);
}

void route_row(const RouteArgs& args, int row) {
    const float* logits = args.logits + row * args.logits_stride;
    int32_t* chosen = args.experts + int64_t{row} * args.top_k;
    float* shares = args.shares + int64_t{row} * args.top_k;
    float* out = args.out + row * args.out_stride;
    if (!choose(logits, args.num_experts, args.top_k, chosen) || std::isinf(logits[chosen[0]])) {
        for (int i = 0; i < args.top_k; ++i) chosen[i] = -1;
        for (int i = 0; i < args.width; ++i) out[i] = NAN;
        return;
    }
    const float max = logits[chosen[0]];
    float total = 0.0f;
    for (int i = 0; i < args.top_k; ++i) {
        float lanes[VF::W];
        exp(VF::set1(logits[chosen[i]] - max)).store(lanes);
        shares[i] = lanes[0];
        total += lanes[0];
    }
    if (!args.normalise) total = sum_exp(logits, args.num_experts, max);
    for (int i = 0; i < args.top_k; ++i) shares[i] /= total;
    std::memset(out, 0, size_t(args.width) * sizeof(float));
}

void add_share(const SharesArgs& args, int row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + args.rows[row] * args.out_stride;
    const VF share = VF::set1(args.shares[row]);
    const int whole = args.width / VF::W * VF::W, rest = args.width - whole;
    for (int i = 0; i < whole; i += VF::W) fma(share, VF::load(x + i), VF::load(out + i)).store(out + i);
    if (rest) fma(share, VF::load_n(x + whole, rest), VF::load_n(out + whole, rest)).store_n(out + whole, rest);
}

}  // namespace

void route(const RouteArgs& args, ThreadPool& pool) { each_row(args, route_row, pool); }
void add_shares(const SharesArgs& args, ThreadPool& pool) { each_row(args, add_share, pool); }

}  // namespace octavo::OCTAVO_ISA
