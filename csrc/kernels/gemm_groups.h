// Weights in groups, for the loop of gemm_tiles.h. Layout: groups.h. Private to csrc/kernels.
//
// For each group, on every path: the products of codes are added as integers, beginning at the activations' `start`;
// the sum becomes a float32, exactly; sum = fma(integer, scale * activation scale, sum), then, if there are minimums,
// sum = fma(minimum, scaled_sum, sum). (The portable fma rounds twice.) Groups follow in their order.
#pragma once

#include "gemm_tiles.h"
#include "groups.h"
#include "half.h"

namespace octavo::OCTAVO_ISA {

template <int GROUP>
struct Activations {
    static constexpr int64_t kBytes = int64_t(sizeof(ActivationGroup)) + GROUP;
    static float number(const uint8_t* group, size_t offset) {
        float value;
        std::memcpy(&value, group + offset, 4);
        return value;
    }
    static float scale(const uint8_t* group) { return number(group, offsetof(ActivationGroup, scale)); }
    static float scaled_sum(const uint8_t* group) { return number(group, offsetof(ActivationGroup, scaled_sum)); }
    static int32_t start(const uint8_t* group) {
        int32_t value;
        std::memcpy(&value, group + offsetof(ActivationGroup, start), 4);
        return value;
    }
    static const int8_t* codes(const uint8_t* group) {
        return reinterpret_cast<const int8_t*>(group + sizeof(ActivationGroup));
    }
    static int32_t quad(const uint8_t* group, int q) {
        int32_t value;
        std::memcpy(&value, group + sizeof(ActivationGroup) + 4 * q, 4);
        return value;
    }
};

// A group's scales or minimums of VF::W columns.
template <bool HALF>
inline VF load_values(const uint8_t* values, int vector) {
    if constexpr (HALF) {
        return load_half(reinterpret_cast<const uint16_t*>(values) + vector * VF::W);
    } else {
        return VF::load(reinterpret_cast<const float*>(values) + vector * VF::W);
    }
}

#if defined(OCTAVO_ISA_avx512)

constexpr int kGroupRows = 8;
using Quad [[gnu::may_alias]] = int32_t;

// sum + the products of 16 quads of unsigned bytes with one quad of signed bytes.
[[gnu::always_inline]] inline __m512i dot_quads(__m512i codes, const uint8_t* quad, __m512i sum) {
    // Not the intrinsic: with it gcc 12 copies sums to and from memory in every step of a loop.
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*reinterpret_cast<const Quad*>(quad)));
    return sum;
}

template <int BITS, int GROUP>
struct Codes {
    static constexpr int kQuads = GROUP / 4;
    __m512i quads[kQuads];

    // All of a group, unpacked once for all rows of the block.
    [[gnu::always_inline]] static Codes load(const uint8_t* p) {
        Codes c;
        constexpr int stored = kQuads * BITS / 8;
#pragma GCC unroll 8
        for (int i = 0; i < stored; ++i) {
            const __m512i bytes = _mm512_loadu_si512(p + 64 * i);
            if constexpr (BITS == 4) {
                const __m512i low = _mm512_set1_epi8(15);
                c.quads[i] = _mm512_and_si512(bytes, low);
                c.quads[i + stored] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
            } else {
                c.quads[i] = bytes;
            }
        }
        return c;
    }
};

template <int BITS, int GROUP, bool MINIMUM, bool HALF, int ROWS>
[[gnu::always_inline]] inline void add_group(const uint8_t* a, int64_t a_stride, const uint8_t* values,
                                             const uint8_t* stored, VF (&sum)[ROWS][1]) {
    using X = Activations<GROUP>;
    const auto codes = Codes<BITS, GROUP>::load(stored);
    const VF scale = load_values<HALF>(values, 0);
    const VF minimum = MINIMUM ? load_values<HALF>(values + (HALF ? 32 : 64), 0) : VF::zero();
    constexpr int kTogether = 4;  // chains of dots at once, as one waits for itself
#pragma GCC unroll 16
    for (int first = 0; first < ROWS; first += kTogether) {
        __m512i dot[kTogether];
        const int rows = ROWS - first < kTogether ? ROWS - first : kTogether;
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r)
            dot[r] = MINIMUM ? _mm512_setzero_si512() : _mm512_set1_epi32(X::start(a + (first + r) * a_stride));
#pragma GCC unroll 16
        for (int q = 0; q < GROUP / 4; ++q)
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r)
                dot[r] =
                    dot_quads(codes.quads[q], a + (first + r) * a_stride + sizeof(ActivationGroup) + 4 * q, dot[r]);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const uint8_t* x = a + (first + r) * a_stride;
            VF& s = sum[first + r][0];
            s = fma(VF{_mm512_cvtepi32_ps(dot[r])}, scale * VF::set1(X::scale(x)), s);
            if (MINIMUM) s = fma(minimum, VF::set1(X::scaled_sum(x)), s);
        }
    }
}

#elif defined(OCTAVO_ISA_avx2)

constexpr int kGroupRows = 4;

// The integer sums of 8 columns, whose quads lie 64 bytes apart. 15 * 127 * 32 fits a 16-bit sum in two parts.
template <int GROUP, int ROWS>
[[gnu::always_inline]] inline void dot_int4(const uint8_t* a, int64_t a_stride, const uint8_t* stored,
                                            __m256i (&dot)[ROWS]) {
    constexpr int vectors = GROUP / 8;
    const __m256i low = _mm256_set1_epi8(15);
    __m256i pairs[ROWS];
    for (int r = 0; r < ROWS; ++r) pairs[r] = _mm256_setzero_si256();
    for (int i = 0; i < vectors; ++i) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stored + 64 * i));
        const __m256i first = _mm256_and_si256(bytes, low);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
        for (int r = 0; r < ROWS; ++r) {
            const __m256i x = _mm256_set1_epi32(Activations<GROUP>::quad(a + r * a_stride, i));
            const __m256i y = _mm256_set1_epi32(Activations<GROUP>::quad(a + r * a_stride, i + vectors));
            const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(first, x), _mm256_maddubs_epi16(second, y));
            pairs[r] = _mm256_add_epi16(pairs[r], products);
        }
    }
    for (int r = 0; r < ROWS; ++r) dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1)));
}

// Bytes of a quad as 16-bit numbers, the even and the odd ones apart: products of 8-bit codes do not fit 16 bits.
template <int GROUP, int ROWS>
[[gnu::always_inline]] inline void dot_int8(const uint8_t* a, int64_t a_stride, const uint8_t* stored,
                                            __m256i (&dot)[ROWS]) {
    for (int q = 0; q < GROUP / 4; ++q) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stored + 64 * q));
        const __m256i even = _mm256_and_si256(bytes, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(bytes, 8);
        for (int r = 0; r < ROWS; ++r) {
            const __m256i x = _mm256_set1_epi32(Activations<GROUP>::quad(a + r * a_stride, q));
            dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(even, _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8)));
            dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(odd, _mm256_srai_epi16(x, 8)));
        }
    }
}

template <int BITS, int GROUP, bool MINIMUM, bool HALF, int ROWS>
[[gnu::always_inline]] inline void add_group(const uint8_t* a, int64_t a_stride, const uint8_t* values,
                                             const uint8_t* stored, VF (&sum)[ROWS][2]) {
    using X = Activations<GROUP>;
    for (int v = 0; v < 2; ++v) {
        __m256i dot[ROWS];
        for (int r = 0; r < ROWS; ++r) dot[r] = _mm256_set1_epi32(X::start(a + r * a_stride));
        if constexpr (BITS == 4)
            dot_int4<GROUP, ROWS>(a, a_stride, stored + 32 * v, dot);
        else
            dot_int8<GROUP, ROWS>(a, a_stride, stored + 32 * v, dot);
        const VF scale = load_values<HALF>(values, v);
        const VF minimum = MINIMUM ? load_values<HALF>(values + (HALF ? 32 : 64), v) : VF::zero();
        for (int r = 0; r < ROWS; ++r) {
            const uint8_t* x = a + r * a_stride;
            sum[r][v] = fma(VF{_mm256_cvtepi32_ps(dot[r])}, scale * VF::set1(X::scale(x)), sum[r][v]);
            if (MINIMUM) sum[r][v] = fma(minimum, VF::set1(X::scaled_sum(x)), sum[r][v]);
        }
    }
}

#else

constexpr int kGroupRows = 4;

// Integers in float32, which compilers make vectors of: below 2^24 nothing is rounded.
template <int BITS, int GROUP, bool MINIMUM, bool HALF, int ROWS>
inline void add_group(const uint8_t* a, int64_t a_stride, const uint8_t* values, const uint8_t* stored,
                      VF (&sum)[ROWS][2]) {
    using X = Activations<GROUP>;
    float codes[GROUP][kGroupColumns];
    constexpr int quads = GROUP * BITS / 32;  // stored ones
    for (int q = 0; q < quads; ++q)
        for (int c = 0; c < kGroupColumns; ++c)
            for (int i = 0; i < 4; ++i) {
                const uint8_t byte = stored[(q * kGroupColumns + c) * 4 + i];
                codes[4 * q + i][c] = float(BITS == 4 ? byte & 15 : byte);
                if (BITS == 4) codes[(4 * (q + quads) + i) % GROUP][c] = float(byte >> 4);
            }
    for (int v = 0; v < 2; ++v) {
        const VF scale = load_values<HALF>(values, v);
        const VF minimum = MINIMUM ? load_values<HALF>(values + (HALF ? 32 : 64), v) : VF::zero();
        for (int r = 0; r < ROWS; ++r) {
            const uint8_t* x = a + r * a_stride;
            VF dot = VF::set1(float(X::start(x)));
            for (int i = 0; i < GROUP; ++i)
                dot = fma(VF::set1(float(X::codes(x)[i])), VF::load(codes[i] + v * VF::W), dot);
            sum[r][v] = fma(dot, scale * VF::set1(X::scale(x)), sum[r][v]);
            if (MINIMUM) sum[r][v] = fma(minimum, VF::set1(X::scaled_sum(x)), sum[r][v]);
        }
    }
}

#endif

template <int BITS, int GROUP, bool MINIMUM, bool HALF>
struct GroupWeights {
    using Activation = uint8_t;
    using Stored = uint8_t;
    static constexpr int kVectors = kGroupColumns / VF::W, kMaxRows = kGroupRows;
    static constexpr GroupLayout kLayout{GROUP, BITS, MINIMUM, HALF};
    static int64_t panel_elements(const LinearArgs& args) { return kLayout.panel_bytes(args.k); }

    template <int ROWS, bool AHEAD>
    [[gnu::always_inline]] static void block(const LinearArgs& args, const uint8_t* a, int64_t a_stride,
                                             const uint8_t* w, VF (&sum)[ROWS][kVectors]) {
        const int64_t panel = kLayout.panel_bytes(args.k);
        for (int64_t records = kLayout.records(args.k); records > 0; --records, w += kLayout.record_bytes()) {
            if (AHEAD) fetch_ahead<kLayout.record_bytes()>(w + panel);
            const auto add = [&](int part) [[gnu::always_inline]] {
                add_group<BITS, GROUP, MINIMUM, HALF, ROWS>(a, a_stride, w + part * kLayout.scales_bytes(),
                                                            w + kLayout.codes_at() + part * kLayout.codes_bytes(), sum);
                a += Activations<GROUP>::kBytes;
            };
            add(0);
            if constexpr (kLayout.record_groups() == 2) add(1);
        }
    }
};

}  // namespace octavo::OCTAVO_ISA
