// The stored formats of dequantize.cpp whose codes name entries of a table, and the ternary ones. Private to
// csrc/kernels.
//
// What the tables hold are small integers, so these formats become groups of 8 bits that count from 128, and lose
// nothing.
#pragma once

#include <array>

#include "dequantize_blocks.h"
#include "dequantize_grids.h"

namespace octavo::OCTAVO_ISA {

constexpr int kTableZero = 128;

// ---- tables of 16 ------------------------------------------------------------------------------------------------

// Entry i counts from kTableZero.
using Table16 = std::array<uint8_t, 16>;

constexpr Table16 table_of(const int (&values)[16]) {
    Table16 table{};
    for (int i = 0; i < 16; ++i) table[size_t(i)] = uint8_t(kTableZero + values[i]);
    return table;
}

constexpr Table16 kNonLinear = table_of({-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113});
constexpr Table16 kE2M1Doubled = table_of({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});

// 2 * HALF elements: the low halves of the bytes, then the high ones.
template <int HALF>
void look_up(const Table16& table, const uint8_t* in, uint8_t* codes) {
    for (int i = 0; i < HALF; ++i) {
        codes[i] = table[in[i] & 15];
        codes[i + HALF] = table[in[i] >> 4];
    }
}

struct IQ4_NL {
    static constexpr const char* kName = "iq4_nl";
    static constexpr int kElements = 32, kBytes = 18, kUnit = 32;
    static constexpr GroupLayout kGroups{8, 32, kTableZero, false, true};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        scales[0] = load_half(in);
        look_up<16>(kNonLinear, in + 2, codes);
    }
};

struct IQ4_XS {
    static constexpr const char* kName = "iq4_xs";
    static constexpr int kElements = 256, kBytes = 136, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 32, kTableZero, false, false};
    // Scales of 6 bits that count from 32: the high 2 bits in 16 bits, the low 4 in 4 bytes.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in);
        const int high = load_u16(in + 2);
        for (int g = 0; g < 8; ++g) {
            const int low = (in[4 + g / 2] >> (4 * (g & 1))) & 15;
            scales[g] = d * float((low | ((high >> (2 * g)) & 3) << 4) - 32);
            look_up<16>(kNonLinear, in + 8 + 16 * g, codes + 32 * g);
        }
    }
};

struct MXFP4 {
    static constexpr const char* kName = "mxfp4";
    static constexpr int kElements = 32, kBytes = 17, kUnit = 32;
    static constexpr GroupLayout kGroups{8, 32, kTableZero, false, false};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        scales[0] = power_of_two(int(in[0]) - 128);  // the codes are doubled
        look_up<16>(kE2M1Doubled, in + 1, codes);
    }
};

struct NVFP4 {
    static constexpr const char* kName = "nvfp4";
    static constexpr int kElements = 64, kBytes = 36, kUnit = 64;
    static constexpr GroupLayout kGroups{8, 16, kTableZero, false, false};
    // Scales are E4M3 without a sign: the highest bit counts for nothing, and 0x7f is 0.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        for (int g = 0; g < 4; ++g) {
            const int exponent = (in[g] >> 3) & 15, mantissa = in[g] & 7;
            scales[g] = in[g] == 127    ? 0.0f
                        : exponent == 0 ? float(mantissa) * 0x1p-10f
                                        : power_of_two(exponent - 11) * float(8 + mantissa);
            look_up<8>(kE2M1Doubled, in + 4 + 8 * g, codes + 16 * g);
        }
    }
};

// ---- ternary -----------------------------------------------------------------------------------------------------

struct TQ1_0 {
    static constexpr const char* kName = "tq1_0";
    static constexpr int kElements = 256, kBytes = 54, kUnit = 256;
    static constexpr GroupLayout kGroups{4, 32, 1, false, true};
    // A byte is 256/243 times a number of five ternary digits, the first one highest.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
        const float d = load_half(in + 52);
        for (int g = 0; g < 8; ++g) scales[g] = d;
        const auto digits = [&](const uint8_t* bytes, int count, int places) {
            for (int p = 0; p < places; ++p)
                for (int i = 0; i < count; ++i) *codes++ = uint8_t(uint8_t(bytes[i] * kPowers[p]) * 3 >> 8);
        };
        digits(in, 32, 5);
        digits(in + 32, 16, 5);
        digits(in + 48, 4, 4);
    }
};

struct TQ2_0 {
    static constexpr const char* kName = "tq2_0";
    static constexpr int kElements = 256, kBytes = 66, kUnit = 256;
    static constexpr GroupLayout kGroups{4, 32, 1, false, true};
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in + 64);
        for (int j = 0; j < 8; ++j) {
            scales[j] = d;
            for (int i = 0; i < 32; ++i) codes[32 * j + i] = (in[32 * (j / 4) + i] >> (2 * (j & 3))) & 3;
        }
    }
};

// ---- codebooks of patterns ---------------------------------------------------------------------------------------

// Patterns of WIDTH numbers, one byte each, from their packed form (dequantize_grids.h).
template <int COUNT, int WIDTH>
struct Codebook {
    int8_t numbers[COUNT][WIDTH];

    template <size_t VALUES>
    constexpr Codebook(const uint16_t (&packed)[COUNT], const int (&values)[VALUES]) : numbers{} {
        constexpr int bits = 16 / WIDTH;
        for (int p = 0; p < COUNT; ++p)
            for (int i = 0; i < WIDTH; ++i)
                numbers[p][i] = int8_t(values[(packed[p] >> (bits * i)) & ((1 << bits) - 1)]);
    }
};

constexpr int kMagnitudes2[] = {8, 25, 43}, kMagnitudes3Xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int kMagnitudes3S[] = {1, 3, 5, 7, 9, 11, 13, 15}, kTernary[] = {-1, 0, 1};
constexpr Codebook<256, 8> kBook2Xxs{kPatternsIq2Xxs, kMagnitudes2};
constexpr Codebook<512, 8> kBook2Xs{kPatternsIq2Xs, kMagnitudes2};
constexpr Codebook<1024, 8> kBook2S{kPatternsIq2S, kMagnitudes2};
constexpr Codebook<256, 4> kBook3Xxs{kPatternsIq3Xxs, kMagnitudes3Xxs};
constexpr Codebook<512, 4> kBook3S{kPatternsIq3S, kMagnitudes3S};
constexpr Codebook<2048, 8> kBook1{kPatternsIq1, kTernary};

// WIDTH numbers; those whose bit in `signs` is set are negative.
template <int WIDTH>
void put_signed(const int8_t* numbers, int signs, uint8_t* codes) {
    for (int i = 0; i < WIDTH; ++i) {
        const int negative = -((signs >> i) & 1);
        codes[i] = uint8_t(kTableZero + ((numbers[i] ^ negative) - negative));
    }
}

// Seven signs are stored; the eighth makes the number of negative ones even.
inline int eight_signs(uint32_t seven) {
    seven &= 127;
    return int(seven | uint32_t(__builtin_parity(seven)) << 7);
}

inline uint32_t load_u32(const uint8_t* p) {
    uint32_t value;
    std::memcpy(&value, p, 4);
    return value;
}

struct IQ2_XXS {
    static constexpr const char* kName = "iq2_xxs";
    static constexpr int kElements = 256, kBytes = 66, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 32, kTableZero, false, false};
    // For each group four indices of a byte, then 32 bits: four times seven signs, and the scale.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in);
        for (int g = 0; g < 8; ++g) {
            const uint8_t* index = in + 2 + 8 * g;
            const uint32_t word = load_u32(index + 4);
            scales[g] = d * (0.5f + float(word >> 28)) * 0.25f;
            for (int i = 0; i < 4; ++i)
                put_signed<8>(kBook2Xxs.numbers[index[i]], eight_signs(word >> (7 * i)), codes + 32 * g + 8 * i);
        }
    }
};

struct IQ2_XS {
    static constexpr const char* kName = "iq2_xs";
    static constexpr int kElements = 256, kBytes = 74, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 16, kTableZero, false, false};
    // 16 bits for 8 elements: an index of 9 and seven signs. Scales of 4 bits.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in);
        for (int g = 0; g < 16; ++g) scales[g] = d * (0.5f + float((in[66 + g / 2] >> (4 * (g & 1))) & 15)) * 0.25f;
        for (int i = 0; i < 32; ++i) {
            const uint32_t word = load_u16(in + 2 + 2 * i);
            put_signed<8>(kBook2Xs.numbers[word & 511], eight_signs(word >> 9), codes + 8 * i);
        }
    }
};

struct IQ2_S {
    static constexpr const char* kName = "iq2_s";
    static constexpr int kElements = 256, kBytes = 82, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 16, kTableZero, false, false};
    // Low bytes of the indices, all signs, the indices' high 2 bits, scales of 4 bits.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in);
        for (int g = 0; g < 16; ++g) scales[g] = d * (0.5f + float((in[74 + g / 2] >> (4 * (g & 1))) & 15)) * 0.25f;
        for (int i = 0; i < 32; ++i) {
            const int index = in[2 + i] | ((in[66 + i / 4] >> (2 * (i & 3))) & 3) << 8;
            put_signed<8>(kBook2S.numbers[index], in[34 + i], codes + 8 * i);
        }
    }
};

struct IQ3_XXS {
    static constexpr const char* kName = "iq3_xxs";
    static constexpr int kElements = 256, kBytes = 98, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 32, kTableZero, false, false};
    // Indices of a byte for 4 elements; for each group 32 bits as in IQ2_XXS.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in);
        for (int g = 0; g < 8; ++g) {
            const uint32_t word = load_u32(in + 66 + 4 * g);
            scales[g] = d * (0.5f + float(word >> 28)) * 0.5f;
            for (int i = 0; i < 8; ++i) {
                const int signs = eight_signs(word >> (7 * (i / 2))) >> (4 * (i & 1));
                put_signed<4>(kBook3Xxs.numbers[in[2 + 8 * g + i]], signs, codes + 32 * g + 4 * i);
            }
        }
    }
};

struct IQ3_S {
    static constexpr const char* kName = "iq3_s";
    static constexpr int kElements = 256, kBytes = 110, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 32, kTableZero, false, false};
    // Low bytes of the indices for 4 elements, their ninth bits, all signs, scales of 4 bits.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in);
        for (int g = 0; g < 8; ++g) scales[g] = d * float(1 + 2 * ((in[106 + g / 2] >> (4 * (g & 1))) & 15));
        for (int i = 0; i < 64; ++i) {
            const int index = in[2 + i] | ((in[66 + i / 8] >> (i & 7)) & 1) << 8;
            put_signed<4>(kBook3S.numbers[index], in[74 + i / 2] >> (4 * (i & 1)), codes + 4 * i);
        }
    }
};

// The IQ1 formats add 1/8, or -1/8, to a pattern of -1, 0 and 1: codes and scales here are 8 times, and 1/8.
inline void put_shifted(int index, bool down, uint8_t* codes) {
    const int8_t* numbers = kBook1.numbers[index];
    for (int i = 0; i < 8; ++i) codes[i] = uint8_t(kTableZero + 8 * numbers[i] + (down ? -1 : 1));
}

struct IQ1_S {
    static constexpr const char* kName = "iq1_s";
    static constexpr int kElements = 256, kBytes = 50, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 32, kTableZero, false, false};
    // Low bytes of the indices; for each group 16 bits: four times the high 3 bits, the scale, which way to shift.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        const float d = load_half(in);
        for (int g = 0; g < 8; ++g) {
            const int word = load_u16(in + 34 + 2 * g);
            scales[g] = d * float(2 * ((word >> 12) & 7) + 1) * 0.125f;
            for (int i = 0; i < 4; ++i)
                put_shifted(in[2 + 4 * g + i] | ((word >> (3 * i)) & 7) << 8, word >> 15, codes + 32 * g + 8 * i);
        }
    }
};

struct IQ1_M {
    static constexpr const char* kName = "iq1_m";
    static constexpr int kElements = 256, kBytes = 56, kUnit = 256;
    static constexpr GroupLayout kGroups{8, 16, kTableZero, false, false};
    // Low bytes of the indices; for each 4 bits, the high 3 and which way to shift; then four times 16 bits: four
    // scales of 3 bits, and a fourth of the scale of scales.
    static void unpack(const uint8_t* in, uint8_t* codes, float* scales, float*) {
        int half = 0;
        for (int w = 0; w < 4; ++w) half |= load_u16(in + 48 + 2 * w) >> 12 << (4 * w);
        const float d = half_to_float(uint16_t(half));
        for (int g = 0; g < 16; ++g)
            scales[g] = d * float(2 * ((load_u16(in + 48 + 2 * (g / 4)) >> (3 * (g & 3))) & 7) + 1) * 0.125f;
        for (int i = 0; i < 32; ++i) {
            const int high = in[32 + i / 2] >> (4 * (i & 1));
            put_shifted(in[i] | (high & 7) << 8, high & 8, codes + 8 * i);
        }
    }
};

}  // namespace octavo::OCTAVO_ISA
