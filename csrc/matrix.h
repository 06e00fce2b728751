// Weights, packed for one instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace octavo {

// A weight [n, k] in the panels of one instruction set.
class Matrix {
  public:
    Matrix(const Kernels& kernels, Arena& arena, int64_t n, int64_t k, const WeightFormat& format);

    // Puts `rows` [num_rows, k] (float32, bfloat16 bits, or codes) at row `first_row`. Group formats have a scale, and
    // if the format says so a minimum, for each group of each row.
    void pack(const void* rows, const float* scales, const float* minimums, int64_t first_row, int64_t num_rows,
              ThreadPool& pool);

    // Whether both halves of its rows begin at panels, as linear_gated wants it.
    bool has_halves() const { return n % (2 * int64_t{kernels->panel_columns(format)}) == 0; }

    const Kernels* kernels;
    int64_t n;
    int64_t k;
    WeightFormat format;
    size_t bytes;
    Arena::Piece memory;
};

// A weight whose rows are kept in one matrix or several, one below the other.
using Pieces = std::vector<const Matrix*>;

}  // namespace octavo
