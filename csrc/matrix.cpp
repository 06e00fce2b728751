#include "matrix.h"

#include <string>

#include "refuse.h"

namespace octavo {
namespace {

// Elements of a matrix, so that no size in bytes overflows.
constexpr int64_t kMaxElements = int64_t{1} << 40;

}  // namespace

Matrix::Matrix(const Kernels& kernels, Arena& arena, int64_t n, int64_t k, const WeightFormat& format)
    : kernels(&kernels), n(n), k(k), format(format) {
    if (n < 1 || k < 1 || n > INT32_MAX || k > INT32_MAX || n * k > kMaxElements)
        refuse("shape", std::to_string(n) + " x " + std::to_string(k) +
                            ": a matrix needs rows and columns, and at most 2^40 elements");
    if (!format.is_known())
        refuse("format", "there are no kernels for this combination of bits, group, zero, minimum and half_scales");
    bytes = size_t(kernels.packed_bytes(n, k, format));
    memory = arena.take(bytes);
}

void Matrix::pack(const void* rows, const float* scales, const float* minimums, int64_t first_row, int64_t num_rows,
                  ThreadPool& pool) {
    if (first_row < 0 || num_rows < 0 || first_row > n - num_rows)
        refuse("first_row", "the rows do not fit the matrix's " + std::to_string(n));
    kernels->pack({rows, scales, minimums, first_row, num_rows, k, format, memory.data}, pool);
}

}  // namespace octavo
