// A screen: what a head's rows are about, in 8 bits, and how far off that can be. Private to csrc/kernels.
//
// A greedy step wants the largest of some ten thousand products of a row x with the head's rows w, and none of the
// others. With R an orthogonal matrix, x . w = Rx . Rw; with Rx and Rw rounded to integers times a scale each, a and b,
//
//     |x . w - a . b|  =  |(Rx - a) . Rw + a . (Rw - b)|  <=  |Rx - a| |w| + |a| |Rw - b|     (Cauchy-Schwarz)
//
// so that the products of integers bound all of them, and only those that could be the largest are computed. R spreads
// what is large over its neighbours, so that one scale is enough for a row and no sum is broken by another one: it is
// the Hadamard matrix of the largest power of two up to kMaxRotated that divides k, on one stretch of the row after
// the other.
//
// A panel has kScreenColumns rows of the head: for each, as float32, b's scale, |w| and |Rw - b|, as [3][column], then
// the codes, + kScreenZero, [quads of k][column][4].
#pragma once

#include "choose.h"
#include "gemm_dense.h"
#include "gemm_groups.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t kScreenColumns = COLUMNS;
constexpr int kScreenRows = VF::W == 16 ? 8 : 4;
constexpr int64_t kMaxRotated = 64;
constexpr int kScreenZero = 128;

// A row of activations: a is scale * code. The codes follow, those past k zero.
struct ScreenRow {
    float scale;
    int32_t start;   // -kScreenZero * sum of the codes
    float per_norm;  // |Rx - a|, and more for what rounds: times |w|
    float per_lost;  // |a|, and more: times |Rw - b|
};

inline int64_t quads_of(int64_t k) { return (k + 3) / 4; }
inline int64_t screen_panels(int64_t n) { return (n + kScreenColumns - 1) / kScreenColumns; }
inline int64_t screen_panel_bytes(int64_t k) { return (3 + quads_of(k)) * kScreenColumns * 4; }
inline int64_t screen_row_bytes(int64_t k) {
    return int64_t(sizeof(ScreenRow)) + 4 * quads_of(k) * (GroupLayout::kWide8 ? 2 : 1);
}

// Puts 4 codes of activations in their place.
inline void put_quad(const int32_t (&codes)[4], int64_t quad, uint8_t* row) {
    uint8_t* to = row + sizeof(ScreenRow);
    for (int i = 0; i < 4; ++i) {
        if (GroupLayout::kWide8) {  // 0, 2, 1, 3: see GroupLayout
            const int16_t code = int16_t(codes[i % 2 * 2 + i / 2]);
            std::memcpy(to + (quad * 4 + i) * 2, &code, 2);
        } else {
            const int8_t code = int8_t(codes[i]);
            std::memcpy(to + quad * 4 + i, &code, 1);
        }
    }
}

// What no product with a row of the head is larger than, for the loop of gemm_tiles.h. Of each panel only the largest
// is kept.
struct ScreenWeights {
    using Activation = uint8_t;
    using Stored = uint8_t;
    static constexpr bool kLargestOnly = true;
    static constexpr int kVectors = NV, kMaxRows = kScreenRows, kFetchRows = kMaxRows;
    static constexpr int64_t kFetchedAtOnce = kScreenColumns * 4;
    static int64_t panel_elements(const LinearArgs& args) { return screen_panel_bytes(args.k); }

    template <int ROWS>
    [[gnu::always_inline]] static void block(const LinearArgs& args, const uint8_t* a, int64_t a_stride,
                                             const uint8_t* w, Stream& stream, KVAhead::Cursor*, VF (&sum)[ROWS][NV]) {
        RowPointers<ROWS> rows(a, a_stride);
        const auto* scales = reinterpret_cast<const float*>(w);
        const float *norms = scales + kScreenColumns, *losts = norms + kScreenColumns;
        ScreenRow head[ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) std::memcpy(&head[r], rows[r], sizeof(ScreenRow));
        rows.advance(sizeof(ScreenRow));
        w += 3 * kScreenColumns * 4;
        Dots<ROWS> dots(head);
        for (int64_t quads = quads_of(args.k); quads > 0; --quads, w += kScreenColumns * 4) {
            if (w >= stream.due) {
                stream.fetch<int(kFetchedAtOnce)>();
                stream.fetched(w, kFetchedAtOnce);
            }
            dots.add(rows, w);
            rows.advance(GroupLayout::kWide8 ? 8 : 4);
        }
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                const VF room = fma(VF::load(norms + v * VF::W), VF::set1(head[r].per_norm), VF::set1(kTiny));
                const VF most = fma(VF::load(losts + v * VF::W), VF::set1(head[r].per_lost), room);
                sum[r][v] = fma(dots.number(r, v), VF::set1(head[r].scale) * VF::load(scales + v * VF::W), most);
            }
    }

#if defined(OCTAVO_ISA_avx512)
    template <int ROWS>
    struct Dots {
        __m512i dot[ROWS][NV];
        [[gnu::always_inline]] explicit Dots(const ScreenRow (&head)[ROWS]) {
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) dot[r][v] = _mm512_set1_epi32(head[r].start);
        }
        [[gnu::always_inline]] void add(const RowPointers<ROWS>& rows, const uint8_t* w) {
            __m512i column[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) column[v] = _mm512_loadu_si512(w + 64 * v);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) {
                int32_t quad;
                std::memcpy(&quad, rows[r], 4);
                const __m512i x = _mm512_set1_epi32(quad);
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) dot[r][v] = dot_quads(column[v], x, dot[r][v]);
            }
        }
        [[gnu::always_inline]] VF number(int r, int v) const { return {_mm512_cvtepi32_ps(dot[r][v])}; }
    };
#elif defined(OCTAVO_ISA_avx2)
    template <int ROWS>
    struct Dots {
        __m256i dot[ROWS][NV];
        [[gnu::always_inline]] explicit Dots(const ScreenRow (&head)[ROWS]) {
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < NV; ++v) dot[r][v] = _mm256_set1_epi32(head[r].start);
        }
        [[gnu::always_inline]] void add(const RowPointers<ROWS>& rows, const uint8_t* w) {
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                const __m256i column = load_bytes(w + 32 * v);
                const __m256i even = _mm256_and_si256(column, _mm256_set1_epi16(255));
                const __m256i odd = _mm256_srli_epi16(column, 8);
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r) {
                    int32_t pairs[2];
                    std::memcpy(pairs, rows[r], 8);
                    add_words(even, _mm256_set1_epi32(pairs[0]), dot[r][v]);
                    add_words(odd, _mm256_set1_epi32(pairs[1]), dot[r][v]);
                }
            }
        }
        [[gnu::always_inline]] VF number(int r, int v) const { return {_mm256_cvtepi32_ps(dot[r][v])}; }
    };
#else
    template <int ROWS>
    struct Dots {
        int32_t dot[ROWS][COLUMNS];
        explicit Dots(const ScreenRow (&head)[ROWS]) {
            for (int r = 0; r < ROWS; ++r)
                for (int32_t& d : dot[r]) d = head[r].start;
        }
        void add(const RowPointers<ROWS>& rows, const uint8_t* w) {
            for (int r = 0; r < ROWS; ++r) {
                int8_t x[4];
                std::memcpy(x, rows[r], 4);
                for (int c = 0; c < COLUMNS; ++c)
                    for (int i = 0; i < 4; ++i) dot[r][c] += int32_t{w[c * 4 + i]} * x[i];
            }
        }
        VF number(int r, int v) const {
            VF numbers;
            for (int i = 0; i < VF::W; ++i) numbers.v[i] = float(dot[r][v * VF::W + i]);
            return numbers;
        }
    };
#endif
};

}  // namespace octavo::OCTAVO_ISA
