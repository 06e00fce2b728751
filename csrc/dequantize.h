// The table of dequantisers, one entry per format, that every instruction set provides.
#pragma once

#include <cstdint>

namespace octavo {

struct Dequantizer {
    const char* name;  // as in a GGUF file, in lower case: "q4_1", "bf16", ...
    int unit;          // a tensor holds a multiple of so many elements
    int elements;      // so many of them are stored in `bytes`
    int bytes;
    // Elements [begin, end) of the tensor whose stored bytes start at `in`, to the same places of `out`. `begin` is a
    // multiple of `elements`, `end` of `unit`.
    void (*to_float32)(const uint8_t* in, int64_t begin, int64_t end, float* out);
    void (*to_bfloat16)(const uint8_t* in, int64_t begin, int64_t end, uint16_t* out);
};

constexpr int kNumDequantizers = 11;

}  // namespace octavo
