// The sketch of a head (kernels/sketch.h) and what it learns from: rows that the head is multiplied with.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "matrix.h"

namespace octavo {

// Of few rows of activations, spread over all that came: as many of each time, though it is not known how many come.
class SampledRows {
  public:
    static constexpr int64_t kRows = 64;

    explicit SampledRows(int64_t k) : k_(k), rows_(size_t(kRows * k)) {}

    // Where the next row goes, or null if it is not wanted.
    float* place() { return num_seen_ % stride_ == 0 ? rows_.data() + num_seen_ / stride_ % kRows * k_ : nullptr; }
    // That row has come. True if it is time to learn from the rows: with the 64th, the 256th, the 1024th, and so on.
    bool next();

    const float* data() const { return rows_.data(); }

  private:
    int64_t k_;
    int64_t num_seen_ = 0;
    int64_t stride_ = 1;
    std::vector<float> rows_;
};

// Vectors v with |v|^2 = 2, or 0, as [1 + num_directions(k)][k], for which one reflection x - (v . x) v after the other
// turns `common` to the first axis and what is most of the rows besides to the next ones.
std::vector<float> learn_reflectors(const std::vector<double>& common, const float* rows, int64_t num_rows, int64_t k);

// What became of the question for a step's tokens: the last two leave them to whoever computes all products.
enum class Found : uint8_t { kAll, kTooMuch, kNotAsked };

// Nothing is known at first. Once enough rows were seen, the sketch is made, a part in each step so that none takes
// long. It is made anew when four times as many were, if it leaves so much to compute that this may pay.
class Sketch {
  public:
    Sketch(const Matrix& head, Arena& arena, ThreadPool& pool);

    // Of so few rows at most. More would need too many panels of the head, each row others.
    static constexpr int kMostRows = 2;

    static bool fits(const WeightFormat& format, int64_t k);
    static size_t bytes(const Matrix& head);

    // As Kernels::greedy; `screen`, `reflectors` and `values` of args are set here. Calls from several threads wait for
    // one another.
    Found greedy(GreedyArgs args, ThreadPool& pool);
    size_t scratch_bytes() const { return size_t(kMostRows) * head_->kernels->sketched_greedy_scratch_bytes(head_->k); }

  private:
    void make_some(ThreadPool& pool);
    void learn();

    const Matrix* head_;
    Arena::Piece memory_;
    std::mutex asking_;
    std::vector<double> common_;  // of the head's rows
    SampledRows sample_;
    std::vector<float> reflectors_;
    int64_t num_panels_;
    Memory buffer_;  // while it is made
    int64_t num_made_ = 0;
    int64_t num_asked_ = 0, num_left_ = 0;  // rows since it was made, and the panels that it left to compute
    bool learned_ = false;
    bool broken_ = false;  // something in the head is not finite, or too large
};

}  // namespace octavo
