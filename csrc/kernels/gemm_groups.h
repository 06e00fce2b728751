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

// The same group of some rows of activations.
template <int ROWS>
struct RowPointers {
    const uint8_t* at[ROWS];

    [[gnu::always_inline]] RowPointers(const uint8_t* a, int64_t a_stride) {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) at[r] = a + r * a_stride;
    }
    [[gnu::always_inline]] void advance(int64_t bytes) {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            at[r] += bytes;
            asm("" : "+r"(at[r]));  // or gcc keeps an offset for every row and quad, most of them on the stack
        }
    }
    const uint8_t* operator[](int row) const { return at[row]; }
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

constexpr int kGroupRows = 6;

// sum + the products of 16 quads of unsigned bytes with quads of signed bytes.
[[gnu::always_inline]] inline __m512i dot_quads(__m512i codes, __m512i quads, __m512i sum) {
#if defined(OCTAVO_EMULATED_AVX512)
    return _mm512_dpbusd_epi32(sum, codes, quads);
#else
    // Not the intrinsic: with it gcc 12 copies sums to and from memory in every step of a loop.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(quads));
    return sum;
#endif
}

// sums += a quad's products for 2 x 16 columns and all rows.
template <int GROUP, int ROWS>
[[gnu::always_inline]] inline void add_quad(const RowPointers<ROWS>& rows, int quad, __m512i left, __m512i right,
                                            __m512i (&sums)[ROWS][2]) {
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
        const __m512i x = _mm512_set1_epi32(Activations<GROUP>::quad(rows[r], quad));
        sums[r][0] = dot_quads(left, x, sums[r][0]);
        sums[r][1] = dot_quads(right, x, sums[r][1]);
    }
}

template <int BITS, int GROUP, bool MINIMUM, bool HALF, int ROWS>
[[gnu::always_inline]] inline void add_group(const RowPointers<ROWS>& rows, const uint8_t* values,
                                             const uint8_t* stored, VF (&sum)[ROWS][2]) {
    using X = Activations<GROUP>;
    constexpr int kStored = GROUP / 4 * BITS / 8;
    const __m512i low = _mm512_set1_epi8(15);
    __m512i dot[ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
        dot[r][0] = dot[r][1] = MINIMUM ? _mm512_setzero_si512() : _mm512_set1_epi32(X::start(rows[r]));
#pragma GCC unroll 8
    for (int i = 0; i < kStored; ++i) {
        const __m512i left = _mm512_loadu_si512(stored + 128 * i), right = _mm512_loadu_si512(stored + 128 * i + 64);
        if constexpr (BITS == 4) {
            add_quad<GROUP, ROWS>(rows, i, _mm512_and_si512(left, low), _mm512_and_si512(right, low), dot);
            add_quad<GROUP, ROWS>(rows, i + kStored, _mm512_and_si512(_mm512_srli_epi16(left, 4), low),
                                  _mm512_and_si512(_mm512_srli_epi16(right, 4), low), dot);
        } else {
            add_quad<GROUP, ROWS>(rows, i, left, right, dot);
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
        const VF scale = load_values<HALF>(values, v);
        const VF minimum = MINIMUM ? load_values<HALF>(values + kGroupColumns * (HALF ? 2 : 4), v) : VF::zero();
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const uint8_t* x = rows[r];
            sum[r][v] = fma(VF{_mm512_cvtepi32_ps(dot[r][v])}, scale * VF::set1(X::scale(x)), sum[r][v]);
            if (MINIMUM) sum[r][v] = fma(minimum, VF::set1(X::scaled_sum(x)), sum[r][v]);
        }
    }
}

#elif defined(OCTAVO_ISA_avx2)

constexpr int kGroupRows = 4;

inline __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// sum += products of unsigned codes and signed bytes, neighbours added, in 16 bits. As one with the sum: gcc would
// compute many products first and keep them on the stack, or, told to keep the sums in order, copy them about between
// registers.
[[gnu::always_inline]] inline void add_bytes(__m256i codes, __m256i x, __m256i& sum) {
    __m256i product;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(codes), "x"(x));
}

// The same of 16-bit numbers, in 32 bits.
[[gnu::always_inline]] inline void add_words(__m256i codes, __m256i x, __m256i& sum) {
    __m256i product;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(codes), "x"(x));
}

// sums += a quad's products for 2 x 8 columns and all rows, in 16 bits: 8 quads of 15 * 127 fit.
template <int GROUP, int ROWS>
[[gnu::always_inline]] inline void add_quad(const RowPointers<ROWS>& rows, int quad, __m256i left, __m256i right,
                                            __m256i (&sums)[ROWS][2]) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const __m256i x = _mm256_set1_epi32(Activations<GROUP>::quad(rows[r], quad));
        add_bytes(left, x, sums[r][0]);
        add_bytes(right, x, sums[r][1]);
    }
}

// The same for a pair of k of 16-bit numbers, in 32 bits.
template <int GROUP, int ROWS>
[[gnu::always_inline]] inline void add_pair(const RowPointers<ROWS>& rows, int pair, __m256i left, __m256i right,
                                            __m256i (&sums)[ROWS][2]) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const __m256i x = _mm256_set1_epi32(Activations<GROUP>::quad(rows[r], pair));
        add_words(left, x, sums[r][0]);
        add_words(right, x, sums[r][1]);
    }
}

template <int GROUP, int ROWS>
[[gnu::always_inline]] inline void dot_int4(const RowPointers<ROWS>& rows, const uint8_t* stored,
                                            __m256i (&dot)[ROWS][2]) {
    constexpr int vectors = GROUP / 8;
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) {
        const __m256i left = load_bytes(stored + 64 * i), right = load_bytes(stored + 64 * i + 32);
        add_quad<GROUP, ROWS>(rows, i, _mm256_and_si256(left, low), _mm256_and_si256(right, low), dot);
        add_quad<GROUP, ROWS>(rows, i + vectors, _mm256_and_si256(_mm256_srli_epi16(left, 4), low),
                              _mm256_and_si256(_mm256_srli_epi16(right, 4), low), dot);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < 2; ++v) dot[r][v] = _mm256_madd_epi16(dot[r][v], _mm256_set1_epi16(1));
}

// Products of 8-bit codes do not fit 16 bits: even and odd bytes are widened, and the activations are wide already.
template <int GROUP, int ROWS>
[[gnu::always_inline]] inline void dot_int8(const RowPointers<ROWS>& rows, const uint8_t* stored,
                                            __m256i (&dot)[ROWS][2]) {
    const __m256i low = _mm256_set1_epi16(255);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < GROUP / 4; ++i) {
        const __m256i left = load_bytes(stored + 64 * i), right = load_bytes(stored + 64 * i + 32);
        add_pair<GROUP, ROWS>(rows, 2 * i, _mm256_and_si256(left, low), _mm256_and_si256(right, low), dot);
        add_pair<GROUP, ROWS>(rows, 2 * i + 1, _mm256_srli_epi16(left, 8), _mm256_srli_epi16(right, 8), dot);
    }
}

template <int BITS, int GROUP, bool MINIMUM, bool HALF, int ROWS>
[[gnu::always_inline]] inline void add_group(const RowPointers<ROWS>& rows, const uint8_t* values,
                                             const uint8_t* stored, VF (&sum)[ROWS][2]) {
    using X = Activations<GROUP>;
    __m256i dot[ROWS][2];
    if constexpr (BITS == 4)
        dot_int4<GROUP, ROWS>(rows, stored, dot);
    else
        dot_int8<GROUP, ROWS>(rows, stored, dot);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
        const VF scale = load_values<HALF>(values, v);
        const VF minimum = MINIMUM ? load_values<HALF>(values + kGroupColumns * (HALF ? 2 : 4), v) : VF::zero();
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const uint8_t* x = rows[r];
            __m256i whole = dot[r][v];
            if (!MINIMUM) whole = _mm256_add_epi32(whole, _mm256_set1_epi32(X::start(x)));
            sum[r][v] = fma(VF{_mm256_cvtepi32_ps(whole)}, scale * VF::set1(X::scale(x)), sum[r][v]);
            if (MINIMUM) sum[r][v] = fma(minimum, VF::set1(X::scaled_sum(x)), sum[r][v]);
        }
    }
}

#else

constexpr int kGroupRows = 4;

// Integers in float32, which compilers make vectors of: below 2^24 nothing is rounded.
template <int BITS, int GROUP, bool MINIMUM, bool HALF, int ROWS>
inline void add_group(const RowPointers<ROWS>& rows, const uint8_t* values, const uint8_t* stored, VF (&sum)[ROWS][2]) {
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
        const VF minimum = MINIMUM ? load_values<HALF>(values + kGroupColumns * (HALF ? 2 : 4), v) : VF::zero();
        for (int r = 0; r < ROWS; ++r) {
            const uint8_t* x = rows[r];
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
    static constexpr bool kLargestOnly = false;
    static constexpr int kVectors = kGroupColumns / VF::W, kMaxRows = kGroupRows;
    static constexpr int kFetchRows = kMaxRows * (BITS == 4 ? 2 : 3) / 4;
    static constexpr int kFetchLines = BITS == 4 ? 4 : 2;  // of KV, beside a record
    static constexpr GroupLayout kLayout{GROUP, BITS, MINIMUM, HALF};
    static constexpr int64_t kFetchedAtOnce = kLayout.record_bytes();
    static int64_t panel_elements(const LinearArgs& args) { return kLayout.panel_bytes(args.k); }

    template <int ROWS>
    [[gnu::always_inline]] static void block(const LinearArgs& args, const uint8_t* a, int64_t a_stride,
                                             const uint8_t* w, Stream& stream, KVAhead::Cursor* ahead,
                                             VF (&sum)[ROWS][kVectors]) {
        const uint8_t* kv = ahead ? ahead->at : nullptr;
        const uint8_t* const kv_end = ahead ? ahead->end : nullptr;
        RowPointers<ROWS> rows(a, a_stride);
        Sums<ROWS, kVectors> sums;
        for (int64_t records = kLayout.records(args.k); records > 0; --records, w += kLayout.record_bytes()) {
            if (w >= stream.due) {
                stream.fetch<kLayout.record_bytes()>();
                stream.fetched(w, kLayout.record_bytes());
            }
            fetch_kv<kFetchLines>(&kv, kv_end);
            add_group<BITS, GROUP, MINIMUM, HALF, ROWS>(rows, w, w + kLayout.codes_at(), sums.at);
            rows.advance(kLayout.activation_bytes());
            if constexpr (kLayout.record_groups() == 2) {
                add_group<BITS, GROUP, MINIMUM, HALF, ROWS>(rows, w + kLayout.scales_bytes(),
                                                            w + kLayout.codes_at() + kLayout.codes_bytes(), sums.at);
                rows.advance(kLayout.activation_bytes());
            }
        }
        sums.store(sum);
        if (ahead) ahead->at = kv;
    }
};

}  // namespace octavo::OCTAVO_ISA
