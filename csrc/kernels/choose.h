// The largest products of rows, once something bounds them from above: what a screen and a sketch have in common.
// Private to csrc/kernels.
#pragma once

#include "products.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

// Outside these nothing is said about sizes whose squares overflow, or products that round to nothing.
constexpr float kLeastNorm = 1e-15f, kMostNorm = 1e15f;
constexpr float kTiny = 1e-30f;  // more than what vanishes where numbers are too small for their squares

// The sizes that bounds are made of are sums of k squares in float32, one after the other.
inline float loosened(int64_t k) { return 1.0f + float(k + 8192) * (1.0f / (1 << 23)); }

// What rounding can do: at most k + some additions and as many products in `linear`, the stages of two rotations, and
// the conversion of a sum of integers, each half a unit in the last place of what is at most |x| |w|; twice that.
inline float rounding(int64_t k) { return float(k + 64) * (1.0f / (1 << 23)); }

// Instead of a token, of a row that is to be chosen for, or cannot be.
constexpr int32_t kUndecided = -2, kAsked = -3;

// What the threads that share a row have found.
struct Choice {
    static constexpr int kMostThreads = 8;
    float best[kMostThreads];
    int32_t token[kMostThreads];
    int64_t num_left;  // panels that matter after the first one
};

struct ChooseArgs {
    const LinearArgs* product;  // out: for each row what no product with each panel is larger than
    ProductRows exact;
    int64_t most_panels;  // that may have to be computed for a row
    Choice* choices;      // one for each row
    int32_t* token_ids;   // kAsked or kUndecided
};

// False if a row is undecided, or has too many panels that matter; token_ids mean nothing then. In num_left, how many
// panels matter, of the rows together.
bool choose_tokens(const ChooseArgs& args, int64_t* num_left, ThreadPool& pool);

}  // namespace octavo::OCTAVO_ISA
