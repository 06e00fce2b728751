// Stored tensors to floats: ggml's block formats, and the plain ones, to float32 or bfloat16.
//
// Every format multiplies and adds in the order of the `gguf` package's dequantiser, each step rounded to float32, so
// the results are the same bits on every path. bfloat16 is that float32 rounded to nearest even.
// The block formats are read through their integers, so a tensor read as groups stands for the same bits.
// Plain loops that the compiler vectorises for each instruction set: this runs once, when a model is loaded.
#include "dequantize.h"

#include "dequantize_blocks.h"
#include "dequantize_codebooks.h"
#include "kernels.h"

namespace octavo {
namespace OCTAVO_ISA {
namespace {

// One block as floats.
template <class Format>
void decode(const uint8_t* in, float* out) {
    constexpr GroupLayout layout = Format::kGroups;
    if constexpr (layout.bits == 0) {
        Format::decode(in, out);
    } else {
        constexpr int kCount = Format::kElements / layout.group;
        uint8_t codes[Format::kElements];
        float scales[kCount], minimums[kCount];
        Format::unpack(in, codes, scales, minimums);
        for (int g = 0; g < kCount; ++g) {
            const uint8_t* code = codes + g * layout.group;
            float* value = out + g * layout.group;
            for (int i = 0; i < layout.group; ++i) {
                value[i] = scales[g] * float(int(code[i]) - layout.zero);
                if constexpr (layout.minimum) value[i] += minimums[g];
            }
        }
    }
}

// ---- ranges ------------------------------------------------------------------------------------------------------

inline void put(const float* from, float* to, int count) { std::memcpy(to, from, size_t(count) * 4); }
inline void put(const float* from, uint16_t* to, int count) {
    for (int i = 0; i < count; ++i) to[i] = float_to_bf16(from[i]);
}

// Elements [begin, end) of a tensor; begin is a multiple of kElements, end of kUnit.
template <class Format, class Out>
void convert(const uint8_t* in, int64_t begin, int64_t end, Out* out) {
    float block[Format::kElements];
    const int64_t whole = end - (end - begin) % Format::kElements;
    for (int64_t i = begin; i < whole; i += Format::kElements) {
        decode<Format>(in + i / Format::kElements * Format::kBytes, block);
        put(block, out + i, Format::kElements);
    }
    if (whole == end) return;
    uint8_t last[Format::kBytes] = {};  // the plain formats may end anywhere: pad the tail
    const int left = int(end - whole);
    std::memcpy(last, in + whole / Format::kElements * Format::kBytes,
                size_t(left) * (Format::kBytes / Format::kElements));
    decode<Format>(last, block);
    put(block, out + whole, left);
}

// Both ends are multiples of kElements.
template <class Format>
void read_groups(const uint8_t* in, int64_t begin, int64_t end, uint8_t* codes, float* scales, float* minimums) {
    constexpr GroupLayout layout = Format::kGroups;
    for (int64_t i = begin; i < end; i += Format::kElements)
        Format::unpack(in + i / Format::kElements * Format::kBytes, codes + i, scales + i / layout.group,
                       layout.minimum ? minimums + i / layout.group : nullptr);
}

template <class Format>
constexpr Dequantizer dequantizer() {
    Dequantizer made{Format::kName,          Format::kUnit,
                     Format::kElements,      Format::kBytes,
                     convert<Format, float>, convert<Format, uint16_t>,
                     Format::kGroups,        nullptr};
    if constexpr (Format::kGroups.bits != 0) made.to_groups = read_groups<Format>;
    return made;
}

}  // namespace

extern const Dequantizer dequantizers[kNumDequantizers] = {
    dequantizer<F64>(),     dequantizer<F32>(),     dequantizer<F16>(),     dequantizer<BF16>(),
    dequantizer<F8_E4M3>(), dequantizer<F8_E5M2>(), dequantizer<Q4_0>(),    dequantizer<Q4_1>(),
    dequantizer<Q5_0>(),    dequantizer<Q5_1>(),    dequantizer<Q8_0>(),    dequantizer<Q2_K>(),
    dequantizer<Q3_K>(),    dequantizer<Q4_K>(),    dequantizer<Q5_K>(),    dequantizer<Q6_K>(),
    dequantizer<IQ1_S>(),   dequantizer<IQ1_M>(),   dequantizer<IQ2_XXS>(), dequantizer<IQ2_XS>(),
    dequantizer<IQ2_S>(),   dequantizer<IQ3_XXS>(), dequantizer<IQ3_S>(),   dequantizer<IQ4_NL>(),
    dequantizer<IQ4_XS>(),  dequantizer<TQ1_0>(),   dequantizer<TQ2_0>(),   dequantizer<MXFP4>(),
    dequantizer<NVFP4>(),
};

}  // namespace OCTAVO_ISA
}  // namespace octavo
