// The stored formats of dequantize.cpp: plain ones, ggml's blocks of 32, and its K formats. Private to csrc/kernels.
//
// A plain format's `decode` turns one block into kElements floats. The others' `unpack` turns a block into kElements
// codes and, for each group of them, a scale and, where the format has one, a minimum.
#pragma once

#include <limits>

#include "dequantize.h"
#include "half.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

inline uint16_t load_u16(const uint8_t* p) {
    uint16_t value;
    std::memcpy(&value, p, 2);
    return value;
}

inline float load_half(const uint8_t* p) { return half_to_float(load_u16(p)); }

// 2^exponent, for exponents of -149 to 127.
inline float power_of_two(int exponent) {
    const uint32_t bits = exponent < -126 ? 1u << (exponent + 149) : uint32_t(exponent + 127) << 23;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

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

// Eight-bit floats of machine learning. E4M3 has no infinities: only 0x7f and 0xff are no numbers.
inline float e4m3_to_float(uint8_t byte) {
    const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
    const float size = exponent == 0 ? float(mantissa) * 0x1p-9f : power_of_two(exponent - 10) * float(8 + mantissa);
    const float value = (byte & 127) == 127 ? std::numeric_limits<float>::quiet_NaN() : size;
    return byte & 128 ? -value : value;
}

struct F8_E4M3 : Plain {
    static constexpr const char* kName = "f8_e4m3";
    static constexpr int kElements = 32, kBytes = 32, kUnit = 1;
    static void decode(const uint8_t* in, float* out) {
        for (int i = 0; i < 32; ++i) out[i] = e4m3_to_float(in[i]);
    }
};

struct F8_E5M2 : Plain {  // the upper half of a float16
    static constexpr const char* kName = "f8_e5m2";
    static constexpr int kElements = 32, kBytes = 32, kUnit = 1;
    static void decode(const uint8_t* in, float* out) {
        for (int i = 0; i < 32; ++i) out[i] = half_to_float(uint16_t(in[i] << 8));
    }
};

struct F64 : Plain {
    static constexpr const char* kName = "f64";
    static constexpr int kElements = 32, kBytes = 256, kUnit = 1;
    static void decode(const uint8_t* in, float* out) {
        double values[32];
        std::memcpy(values, in, kBytes);
        for (int i = 0; i < 32; ++i) out[i] = float(values[i]);
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

struct Q2_K {
    static constexpr const char* kName = "q2_k";
    static constexpr int kElements = 256, kBytes = 84, kUnit = 256;
    static constexpr GroupLayout kGroups{4, 16, 0, true, false};
    // A byte for each sub-block, scale below minimum; then the codes, 2 bits each.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float* minimums) {
        const float d = load_half(in + 80), dmin = load_half(in + 82);
        for (int g = 0; g < 16; ++g) {
            scales[g] = d * float(in[g] & 15);
            minimums[g] = -(dmin * float(in[g] >> 4));
        }
        for (int j = 0; j < 8; ++j)
            for (int i = 0; i < 32; ++i) codes[32 * j + i] = (in[16 + 32 * (j / 4) + i] >> (2 * (j & 3))) & 3;
    }
};

struct Q3_K {
    static constexpr const char* kName = "q3_k";
    static constexpr int kElements = 256, kBytes = 110, kUnit = 256;
    static constexpr GroupLayout kGroups{4, 16, 4, false, false};
    // High bits of the codes in 32 bytes, low 2 bits in 64; then sixteen 6-bit scales that count from 32, the low
    // halves of 0-7 and 8-15 in the halves of 8 bytes, the high 2 bits of g in bits 2 (g / 4) and above of byte g % 4
    // of the last 4.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const uint8_t *low = in + 32, *packed = in + 96;
        const float d = load_half(in + 108);
        for (int g = 0; g < 16; ++g) {
            const int scale = ((packed[g % 8] >> (4 * (g / 8))) & 15) | ((packed[8 + g % 4] >> (2 * (g / 4))) & 3) << 4;
            scales[g] = d * float(scale - 32);
        }
        for (int j = 0; j < 8; ++j)
            for (int i = 0; i < 32; ++i)
                codes[32 * j + i] = uint8_t(((low[32 * (j / 4) + i] >> (2 * (j & 3))) & 3) | ((in[i] >> j) & 1) << 2);
    }
};

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

}  // namespace octavo::OCTAVO_ISA
