// The sketch of a head (kernels/sketch.h) and what it learns from: rows that the head is multiplied with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "matrix.h"

namespace octavo {

// Rows of activations to learn from.
class SampledRows {
  public:
    static constexpr int64_t kRows = 64;

    explicit SampledRows(int64_t k) : k_(k), rows_(size_t(kRows * k)) {}

    float* place() { return rows_.data() + num_seen_ * k_; }  // where the next row goes
    bool next() { return ++num_seen_ == kRows; }              // that row has come; whether it was the last
    const float* data() const { return rows_.data(); }

    // They are of somebody's text: what was learned from is not kept.
    void forget() {
        num_seen_ = 0;
        std::fill(rows_.begin(), rows_.end(), 0.0f);
    }

  private:
    int64_t k_;
    int64_t num_seen_ = 0;
    std::vector<float> rows_;
};

// Vectors v with |v|^2 = 2, or 0, as [1 + num_directions(k)][k], for which one reflection x - (v . x) v after the other
// turns `common` to the first axis and what is most of the rows besides to the next ones.
std::vector<float> learn_reflectors(const std::vector<double>& common, const float* rows, int64_t num_rows, int64_t k);

// What became of the question for a step's tokens: the last two leave them to whoever computes all products.
enum class Found : uint8_t { kAll, kTooMuch, kNotAsked };

// Nothing is known at first. Once enough rows were seen, the sketch is made, a part in each step so that none takes
// long. If then it leaves much to compute, as other rows come than it learned from, it learns again, from other rows.
class Sketch {
  public:
    Sketch(const Matrix& head, Arena& arena, ThreadPool& pool);

    // Of so few rows at most. More would need too many panels of the head, each row others.
    static constexpr int kMostRows = 2;

    static bool fits(const WeightFormat& format, int64_t k);
    static size_t bytes(const Matrix& head);

    // As Kernels::greedy; `screen` and `reflectors` of args are set here. Calls from several threads wait for one
    // another.
    Found greedy(GreedyArgs args, ThreadPool& pool);
    size_t scratch_bytes() const { return size_t(kMostRows) * head_->kernels->sketched_greedy_scratch_bytes(head_->k); }

  private:
    void see(const LinearArgs& product, ThreadPool& pool);
    void make_some(ThreadPool& pool);
    void review(int64_t num_rows, int64_t num_left);

    const Matrix* head_;
    Arena::Piece memory_;
    std::mutex asking_;
    std::vector<double> common_;  // of the head's rows
    SampledRows sample_;
    std::vector<float> reflectors_;
    int64_t num_panels_;
    Memory buffer_;  // while it is made
    int64_t num_made_ = 0;
    int64_t num_asked_ = 0, num_left_ = 0;  // rows of late, and the panels that it left to compute
    int64_t patience_ = 16;                 // heads' worth of panels
    enum class State : uint8_t { kSeeing, kMaking, kMade, kBroken } state_ = State::kSeeing;
};

}  // namespace octavo
