// Stored tensors to floats: ggml's block formats, and the plain ones, to float32 or bfloat16.
//
// Every format multiplies and adds in the order of the `gguf` package's dequantiser, each step rounded to float32, so
// the results are the same bits on every path. bfloat16 is that float32 rounded to nearest even.
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

// ---- formats: `decode` turns one block into kElements floats -------------------------------------------------------

struct F32 {
    static constexpr const char* kName = "f32";
    static constexpr int kElements = 32, kBytes = 128;  // grouped, so that a block is worth a call
    static constexpr int kUnit = 1;                     // elements that may be stored alone
    static void decode(const uint8_t* in, float* out) { std::memcpy(out, in, kBytes); }
};

struct F16 {
    static constexpr const char* kName = "f16";
    static constexpr int kElements = 32, kBytes = 64, kUnit = 1;
    static void decode(const uint8_t* in, float* out) {
        for (int i = 0; i < 32; ++i) out[i] = load_half(in + 2 * i);
    }
};

struct BF16 {
    static constexpr const char* kName = "bf16";
    static constexpr int kElements = 32, kBytes = 64, kUnit = 1;
    static void decode(const uint8_t* in, float* out) {
        for (int i = 0; i < 32; ++i) out[i] = bf16_to_float(load_u16(in + 2 * i));
    }
};

// The 32-element formats hold element i in the low, and element i + 16 in the high half of byte i.

struct Q4_0 {
    static constexpr const char* kName = "q4_0";
    static constexpr int kElements = 32, kBytes = 18, kUnit = 32;
    static void decode(const uint8_t* in, float* out) {
        const float d = load_half(in);
        for (int i = 0; i < 16; ++i) {
            out[i] = d * float(int(in[2 + i] & 15) - 8);
            out[i + 16] = d * float(int(in[2 + i] >> 4) - 8);
        }
    }
};

struct Q4_1 {
    static constexpr const char* kName = "q4_1";
    static constexpr int kElements = 32, kBytes = 20, kUnit = 32;
    static void decode(const uint8_t* in, float* out) {
        const float d = load_half(in), m = load_half(in + 2);
        for (int i = 0; i < 16; ++i) {
            out[i] = d * float(int(in[4 + i] & 15)) + m;
            out[i + 16] = d * float(int(in[4 + i] >> 4)) + m;
        }
    }
};

// The fifth bits of the 5-bit formats stand together: bit i of a 32-bit word belongs to element i.
inline void five_bits(const uint8_t* high, const uint8_t* low, int* out) {
    uint32_t bits;
    std::memcpy(&bits, high, 4);
    for (int i = 0; i < 16; ++i) {
        out[i] = int(low[i] & 15) | int((bits >> i) & 1u) << 4;
        out[i + 16] = int(low[i] >> 4) | int((bits >> (i + 16)) & 1u) << 4;
    }
}

struct Q5_0 {
    static constexpr const char* kName = "q5_0";
    static constexpr int kElements = 32, kBytes = 22, kUnit = 32;
    static void decode(const uint8_t* in, float* out) {
        const float d = load_half(in);
        int q[32];
        five_bits(in + 2, in + 6, q);
        for (int i = 0; i < 32; ++i) out[i] = d * float(q[i] - 16);
    }
};

struct Q5_1 {
    static constexpr const char* kName = "q5_1";
    static constexpr int kElements = 32, kBytes = 24, kUnit = 32;
    static void decode(const uint8_t* in, float* out) {
        const float d = load_half(in), m = load_half(in + 2);
        int q[32];
        five_bits(in + 4, in + 8, q);
        for (int i = 0; i < 32; ++i) out[i] = d * float(q[i]) + m;
    }
};

struct Q8_0 {
    static constexpr const char* kName = "q8_0";
    static constexpr int kElements = 32, kBytes = 34, kUnit = 32;
    static void decode(const uint8_t* in, float* out) {
        const float d = load_half(in);
        for (int i = 0; i < 32; ++i) out[i] = float(int8_t(in[2 + i])) * d;
    }
};

// The K formats: 256 elements in sub-blocks, whose scales are themselves quantised.

// Scale and minimum, 6 bits each, of the eight sub-blocks of Q4_K and Q5_K, packed in 12 bytes: bytes 0-3 and 4-7 hold
// scales and minima 0-3 in their low 6 bits; bytes 8-11 hold the low 4 bits of scales and minima 4-7, whose high 2
// bits are the high bits of bytes 0-3 and 4-7.
inline void scale_and_min(const uint8_t* packed, int j, float* scale, float* min) {
    int s, m;
    if (j < 4) {
        s = packed[j] & 63;
        m = packed[j + 4] & 63;
    } else {
        s = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        m = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
    }
    *scale = float(s);
    *min = float(m);
}

struct Q4_K {
    static constexpr const char* kName = "q4_k";
    static constexpr int kElements = 256, kBytes = 144, kUnit = 256;
    static void decode(const uint8_t* in, float* out) {
        const float d = load_half(in), dmin = load_half(in + 2);
        for (int j = 0; j < 8; ++j) {
            float scale, min;
            scale_and_min(in + 4, j, &scale, &min);
            const float a = d * scale, b = dmin * min;
            const uint8_t* q = in + 16 + 32 * (j / 2);
            const int shift = 4 * (j & 1);
            for (int i = 0; i < 32; ++i) out[32 * j + i] = a * float((q[i] >> shift) & 15) - b;
        }
    }
};

struct Q5_K {
    static constexpr const char* kName = "q5_k";
    static constexpr int kElements = 256, kBytes = 176, kUnit = 256;
    static void decode(const uint8_t* in, float* out) {
        const float d = load_half(in), dmin = load_half(in + 2);
        const uint8_t* high = in + 16;
        for (int j = 0; j < 8; ++j) {
            float scale, min;
            scale_and_min(in + 4, j, &scale, &min);
            const float a = d * scale, b = dmin * min;
            const uint8_t* q = in + 48 + 32 * (j / 2);
            const int shift = 4 * (j & 1);
            for (int i = 0; i < 32; ++i) {
                const int value = ((q[i] >> shift) & 15) | ((high[i] >> j) & 1) << 4;
                out[32 * j + i] = a * float(value) - b;
            }
        }
    }
};

struct Q6_K {
    static constexpr const char* kName = "q6_k";
    static constexpr int kElements = 256, kBytes = 210, kUnit = 256;
    // Low 4 bits in 128 bytes, high 2 bits in 64, sixteen int8 scales, and the scale of scales.
    static void decode(const uint8_t* in, float* out) {
        const float d = load_half(in + 208);
        for (int j = 0; j < 8; ++j) {  // 32 elements of two scales
            const uint8_t* low = in + 64 * (j / 4) + 32 * (j & 1);
            const uint8_t* high = in + 128 + 32 * (j / 4);
            const int low_shift = 4 * ((j / 2) & 1), high_shift = 2 * (j & 3);
            for (int half = 0; half < 2; ++half) {
                const float a = d * float(int8_t(in[192 + 2 * j + half]));
                for (int i = 16 * half; i < 16 * half + 16; ++i) {
                    const int q = ((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4;
                    out[32 * j + i] = a * float(q - 32);
                }
            }
        }
    }
};

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
        Format::decode(in + i / Format::kElements * Format::kBytes, block);
        put(block, out + i, Format::kElements);
    }
    if (whole == end) return;
    uint8_t last[Format::kBytes] = {};  // the plain formats may end anywhere: pad the tail
    const int left = int(end - whole);
    std::memcpy(last, in + whole / Format::kElements * Format::kBytes,
                size_t(left) * (Format::kBytes / Format::kElements));
    Format::decode(last, block);
    put(block, out + whole, left);
}

template <class Format>
constexpr Dequantizer dequantizer() {
    return {Format::kName,  Format::kUnit,          Format::kElements,
            Format::kBytes, convert<Format, float>, convert<Format, uint16_t>};
}

}  // namespace

extern const Dequantizer dequantizers[kNumDequantizers] = {
    dequantizer<F32>(),  dequantizer<F16>(),  dequantizer<BF16>(), dequantizer<Q4_0>(),
    dequantizer<Q4_1>(), dequantizer<Q5_0>(), dequantizer<Q5_1>(), dequantizer<Q8_0>(),
    dequantizer<Q4_K>(), dequantizer<Q5_K>(), dequantizer<Q6_K>(),
};

}  // namespace OCTAVO_ISA
}  // namespace octavo
