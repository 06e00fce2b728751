// A mixture of experts: each row goes through the gated MLPs that it chose. See backends/protocol.py Ops.experts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv_ahead.h"
#include "matrix.h"

namespace octavo {

// What one step brings. Rows of x, logits and out belong to each other; out holds none of the others' memory.
struct ExpertsStep {
    const float* x;
    int64_t x_stride;
    const float* logits;  // of the router
    int64_t logits_stride;
    float* out;
    int64_t out_stride;
    int num_rows;
    void* scratch;         // Experts::scratch_bytes()
    void* linear_scratch;  // Experts::linear_scratch_bytes() for each row
    KVAhead* ahead;
};

// The step's rows are sorted by expert. Then one expert after another, in ascending order, takes the rows that chose
// it through the same products as any other weight, and adds its shares to their sums. A weight that no row chose is
// not read. A row's products have the same bits in any company and its sum follows its experts' numbers, so its bits
// depend on nothing but the row.
class Experts {
  public:
    // Throws std::invalid_argument naming what does not fit.
    Experts(const Kernels& kernels, std::vector<Pieces> gate_up, std::vector<Pieces> down, int top_k, bool normalise,
            Activation activation);

    int64_t width() const { return width_; }
    int num_experts() const { return int(gate_up_.size()); }
    size_t scratch_bytes(int64_t max_rows) const;
    size_t linear_scratch_bytes() const;
    void run(const ExpertsStep& step, ThreadPool& pool) const;
    std::string shape() const;  // for people

  private:
    struct Scratch;

    Scratch scratch(void* memory, int64_t num_rows) const;
    void sort_by_expert(const Scratch& scratch, int num_rows) const;
    void multiply(const Pieces& weight, LinearArgs args, const ExpertsStep& step, ThreadPool& pool) const;
    void mlp(int expert, const Scratch& scratch, int num_rows, const ExpertsStep& step, ThreadPool& pool) const;

    const Kernels& kernels_;
    std::vector<Pieces> gate_up_;
    std::vector<Pieces> down_;
    int top_k_;
    bool normalise_;
    Activation activation_;
    int64_t width_;
    int64_t inner_;
};

}  // namespace octavo
