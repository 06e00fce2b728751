// The steps of a product one by one, for who wants some of its elements only; of weights that are not in groups, or in
// groups of 8 bits. Private to csrc/kernels.
#pragma once

#include "kernels.h"
#include "ops.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

// Rows as the format of the weight takes them.
struct ProductRows {
    const void* data;
    int64_t stride;  // bytes

    const void* row(int64_t index) const { return static_cast<const uint8_t*>(data) + index * stride; }
};

// Of all rows of `args`; they lie in its scratch, or in x itself.
ProductRows convert_input(const LinearArgs& args, ThreadPool& pool);

// One of them as float32 [k].
void values_of_row(const LinearArgs& args, const void* row, float* out);

// One of them times a panel of the weight: panel_columns() sums, to the bit those of `linear`. Those of columns past n
// mean nothing.
constexpr int kMostPanelColumns = 3 * VF::W;
void multiply_row(const LinearArgs& args, const void* row, int64_t panel, float* out);

// `embedding`, on the calling thread.
void embedding_rows(const EmbeddingArgs& args);

}  // namespace octavo::OCTAVO_ISA
