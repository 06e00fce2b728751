// The table of dequantisers, one entry per format, that every instruction set provides.
#pragma once

#include <cstdint>

namespace octavo {

// How a format's integers are kept when it is read as they are: the fields of WeightFormat (kernels.h), the scales
// and minimums those of the format itself. bits is 0 where a format has no integers.
struct GroupLayout {
    int bits, group, zero;
    bool minimum, half_scales;
};

struct Dequantizer {
    const char* name;  // as in a GGUF file, in lower case: "q4_1", "bf16", ...
    int unit;          // a tensor holds a multiple of so many elements
    int elements;      // so many of them are stored in `bytes`
    int bytes;
    // Elements [begin, end) of the tensor whose stored bytes start at `in`, to the same places of `out`. `begin` is a
    // multiple of `elements`, `end` of `unit`.
    void (*to_float32)(const uint8_t* in, int64_t begin, int64_t end, float* out);
    void (*to_bfloat16)(const uint8_t* in, int64_t begin, int64_t end, uint16_t* out);
    GroupLayout groups;
    // The same elements as codes, and their groups' scales and minimums (null without), each to their place in the
    // whole tensor; null for a format without integers. Both ends are multiples of `elements`. Computed from these,
    // scale * (code - zero) + minimum is what to_float32 gives, bit by bit.
    void (*to_groups)(const uint8_t* in, int64_t begin, int64_t end, uint8_t* codes, float* scales, float* minimums);
};

constexpr int kNumDequantizers = 29;

}  // namespace octavo
