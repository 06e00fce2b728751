// What lets a greedy step compute only what could be the largest product with a head.
#pragma once

#include <atomic>
#include <memory>

#include "matrix.h"
#include "sketch.h"

namespace octavo {

// Of a head that is not in groups a screen of 8 bits, made at once: kernels/screen.h. Of one in groups of 8 bits a
// sketch, made once there is something to learn from: kernels/sketch.h.
class Screen {
  public:
    Screen(const Matrix& head, Arena& arena, ThreadPool& pool);

    static bool fits(const WeightFormat& format, int64_t k) {
        return format.in_groups() ? Sketch::fits(format, k) : k <= kMaxScreened;
    }
    static size_t bytes(const Matrix& head);

    // As Kernels::greedy; `screen` of args is set here.
    Found greedy(GreedyArgs args, ThreadPool& pool) const;
    size_t scratch_bytes(int64_t max_num_rows) const;

    // Steps whose tokens were found.
    int64_t num_found() const { return num_found_; }

    const Matrix* head;
    bool usable = true;  // otherwise all products are computed

  private:
    mutable std::atomic<int64_t> num_found_{0};
    Arena::Piece memory_;
    std::unique_ptr<Sketch> sketch_;
};

}  // namespace octavo
