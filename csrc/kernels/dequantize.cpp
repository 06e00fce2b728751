// Stored tensors to floats: ggml's block formats, and the plain ones, to float32 or bfloat16.
//
// Every format multiplies and adds in the order of the `gguf` package's dequantiser, each step rounded to float32, so
// the results are the same bits on every path. bfloat16 is that float32 rounded to nearest even.
// The block formats are read through their integers, so a tensor read as groups stands for the same bits.
// Plain loops that the compiler vectorises for each instruction set: this runs once, when a model is loaded.
#include "dequantize.h"
#include "half.h"
#include "kernels.h"
#include "simd.h"

namespace octavo {
namespace OCTAVO_ISA {
namespace {

inline uint16_t load_u16(const uint8_t* p) {
    uint16_t value;
    std::memcpy(&value, p, 2);
    return value;
}

inline float load_half(const uint8_t* p) { return half_to_float(load_u16(p)); }

// ---- formats ----------------------------------------------------------------------------------------------------
//
// A plain format's `decode` turns one block into kElements floats. The others' `unpack` turns a block into kElements
// codes and, for each group of them, a scale and, where the format has one, a minimum.

struct Plain {
    static constexpr GroupLayout kGroups{};
};

struct F32 : Plain {
    static constexpr const char* kName = "f32";
    static constexpr int kElements = 32, kBytes = 128;  // grouped, so that a block is worth a call
    static constexpr int kUnit = 1;                     // elements that may be stored alone
    static void decode(const uint8_t* in, float* out) { std::memcpy(out, in, kBytes); }
};

struct F16 : Plain {
    static constexpr const char* kName = "f16";
    static constexpr int kElements = 32, kBytes = 64, kUnit = 1;
    static void decode(const uint8_t* in, float* out) {
        for (int i = 0; i < 32; ++i) out[i] = load_half(in + 2 * i);
    }
};

struct BF16 : Plain {
    static constexpr const char* kName = "bf16";
    static constexpr int kElements = 32, kBytes = 64, kUnit = 1;
    static void decode(const uint8_t* in, float* out) {
        for (int i = 0; i < 32; ++i) out[i] = bf16_to_float(load_u16(in + 2 * i));
    }
};

// The 32-element formats hold element i in the low, and element i + 16 in the high half of byte i.
inline void halves_of_bytes(const uint8_t* in, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = in[i] & 15;
        codes[i + 16] = in[i] >> 4;
    }
}

struct Q4_0 {
    static constexpr const char* kName = "q4_0";
    static constexpr int kElements = 32, kBytes = 18, kUnit = 32;
    static constexpr GroupLayout kGroups{4, 32, 8, false, true};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        scales[0] = load_half(in);
        halves_of_bytes(in + 2, codes);
    }
};

struct Q4_1 {
    static constexpr const char* kName = "q4_1";
    static constexpr int kElements = 32, kBytes = 20, kUnit = 32;
    static constexpr GroupLayout kGroups{4, 32, 0, true, true};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float* minimums) {
        scales[0] = load_half(in), minimums[0] = load_half(in + 2);
        halves_of_bytes(in + 4, codes);
    }
};

// The fifth bits of the 5-bit formats stand together: bit i of a 32-bit word belongs to element i.
inline void five_bits(const uint8_t* high, const uint8_t* low, uint8_t* codes) {
    uint32_t bits;
    std::memcpy(&bits, high, 4);
    for (int i = 0; i < 16; ++i) {
        codes[i] = uint8_t((low[i] & 15) | ((bits >> i) & 1u) << 4);
        codes[i + 16] = uint8_t((low[i] >> 4) | ((bits >> (i + 16)) & 1u) << 4);
    }
}

struct Q5_0 {
    static constexpr const char* kName = "q5_0";
    static constexpr int kElements = 32, kBytes = 22, kUnit = 32;
    static constexpr GroupLayout kGroups{8, 32, 16, false, true};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        scales[0] = load_half(in);
        five_bits(in + 2, in + 6, codes);
    }
};

struct Q5_1 {
    static constexpr const char* kName = "q5_1";
    static constexpr int kElements = 32, kBytes = 24, kUnit = 32;
    static constexpr GroupLayout kGroups{8, 32, 0, true, true};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float* minimums) {
        scales[0] = load_half(in), minimums[0] = load_half(in + 2);
        five_bits(in + 4, in + 8, codes);
    }
};

struct Q8_0 {
    static constexpr const char* kName = "q8_0";
    static constexpr int kElements = 32, kBytes = 34, kUnit = 32;
    static constexpr GroupLayout kGroups{8, 32, 128, false, true};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        scales[0] = load_half(in);
        for (int i = 0; i < 32; ++i) codes[i] = in[2 + i] ^ 128;  // signed, so this adds 128
    }
};

// The K formats: 256 elements in sub-blocks, whose scales are themselves quantised.

// Scale and minimum, 6 bits each, of the eight sub-blocks of Q4_K and Q5_K, packed in 12 bytes: bytes 0-3 and 4-7 hold
// scales and minima 0-3 in their low 6 bits; bytes 8-11 hold the low 4 bits of scales and minima 4-7, whose high 2
// bits are the high bits of bytes 0-3 and 4-7. The formats subtract the minimum; here it is negated instead.
inline void scale_and_min(const uint8_t* in, float* scales, float* minimums) {
    const float d = load_half(in), dmin = load_half(in + 2);
    const uint8_t* packed = in + 4;
    for (int j = 0; j < 8; ++j) {
        int s, m;
        if (j < 4) {
            s = packed[j] & 63;
            m = packed[j + 4] & 63;
        } else {
            s = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
            m = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
        }
        scales[j] = d * float(s);
        minimums[j] = -(dmin * float(m));
    }
}

struct Q4_K {
    static constexpr const char* kName = "q4_k";
    static constexpr int kElements = 256, kBytes = 144, kUnit = 256;
    static constexpr GroupLayout kGroups{4, 32, 0, true, false};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float* minimums) {
        scale_and_min(in, scales, minimums);
        for (int j = 0; j < 8; ++j) {
            const uint8_t* q = in + 16 + 32 * (j / 2);
            const int shift = 4 * (j & 1);
            for (int i = 0; i < 32; ++i) codes[32 * j + i] = (q[i] >> shift) & 15;
        }
    }
};

struct Q5_K {
    static constexpr const char* kName = "q5_k";
    static constexpr int kElements = 256, kBytes = 176, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 32, 0, true, false};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float* minimums) {
        scale_and_min(in, scales, minimums);
        const uint8_t* high = in + 16;
        for (int j = 0; j < 8; ++j) {
            const uint8_t* q = in + 48 + 32 * (j / 2);
            const int shift = 4 * (j & 1);
            for (int i = 0; i < 32; ++i)
                codes[32 * j + i] = uint8_t(((q[i] >> shift) & 15) | ((high[i] >> j) & 1) << 4);
        }
    }
};

struct Q6_K {
    static constexpr const char* kName = "q6_k";
    static constexpr int kElements = 256, kBytes = 210, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 16, 32, false, false};
    // Low 4 bits in 128 bytes, high 2 bits in 64, sixteen int8 scales, and the scale of scales.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in + 208);
        for (int j = 0; j < 16; ++j) scales[j] = d * float(int8_t(in[192 + j]));
        for (int j = 0; j < 8; ++j) {  // 32 elements of two scales
            const uint8_t* low = in + 64 * (j / 4) + 32 * (j & 1);
            const uint8_t* high = in + 128 + 32 * (j / 4);
            const int low_shift = 4 * ((j / 2) & 1), high_shift = 2 * (j & 3);
            for (int i = 0; i < 32; ++i)
                codes[32 * j + i] = uint8_t(((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4);
        }
    }
};

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
    dequantizer<F32>(),  dequantizer<F16>(),  dequantizer<BF16>(), dequantizer<Q4_0>(),
    dequantizer<Q4_1>(), dequantizer<Q5_0>(), dequantizer<Q5_1>(), dequantizer<Q8_0>(),
    dequantizer<Q4_K>(), dequantizer<Q5_K>(), dequantizer<Q6_K>(),
};

}  // namespace OCTAVO_ISA
}  // namespace octavo
