// The second inner loop of attention: values of one piece of tokens, weighted by the softmax numerators of a few rows.
// Private to attention.cpp.
//
// Each row takes the tokens it sees and nothing else: what lies beyond is not even multiplied by 0, for it may be
// infinite. Rows that see different tokens of a piece go together for those that all of them see.
#pragma once

#include "attention_rows.h"

namespace octavo::OCTAVO_ISA {

// Tokens [lo, hi) of a piece that each row of a row block sees.
struct Sight {
    int lo[kRows], hi[kRows];
    int all_lo, all_hi;  // what all of them see; empty if all_hi <= all_lo
    int any_lo, any_hi;  // what one of them sees

    void add(int row, int row_lo, int row_hi) {
        lo[row] = row_lo;
        hi[row] = row_hi;
        all_lo = row == 0 ? row_lo : max_int(all_lo, row_lo);
        all_hi = row == 0 ? row_hi : min_int(all_hi, row_hi);
        any_lo = row == 0 ? row_lo : min_int(any_lo, row_lo);
        any_hi = row == 0 ? row_hi : max_int(any_hi, row_hi);
    }
    bool sees(int row, int t) const { return t >= lo[row] && t < hi[row]; }
    bool all_see(int t) const { return t >= all_lo && t < all_hi; }
};

// Where the weighted values of a row block go.
struct Target {
    float* out;  // row r at out + r * stride
    int64_t stride;
    const float* keep;  // factors per row, or null: store the piece's own sums
    const float* add;
};

// The values that attention reads: rows of head_dim elements.
struct ValueShape {
    int run_length;
    int head_dim;
};

// Puts the sum of lanes from dim `d` on, `count` of them, where it belongs.
[[gnu::always_inline]] inline void put(const Target& target, int row, int d, VF x, int count) {
    float* out = target.out + row * target.stride + d;
    if (count >= VF::W) {
        if (target.keep) x = join_value(VF::load(out), x, target.keep[row], target.add[row]);
        x.store(out);
    } else if (count > 0) {
        if (target.keep) x = join_value(VF::load_n(out, count), x, target.keep[row], target.add[row]);
        x.store_n(out, count);
    }
}

// C vectors of one token's dims.
template <KVDtype D, bool TAIL, int C>
[[gnu::always_inline]] inline void load_value(const uint8_t* from, int tail, VF (&v)[C]) {
    for (int c = 0; c < C; ++c) {
        const uint8_t* p = from + c * VF::W * element_bytes(D);
        v[c] = TAIL ? load_element_n<D>(p, tail) : load_element<D>(p);
    }
}

// Sums of values weighted by p (row r at p + r * kPiece), for C vectors of dims from dim `d` on; with TAIL, C is 1 and
// only the first head_dim - d lanes exist.
template <KVDtype D, bool PREFETCH, bool TAIL, int C, int R>
void weigh(const PieceView& view, const PieceView* next, const ValueShape& shape, const Sight& sight, const float* p,
           int d, const Target& target) {
    constexpr int64_t kItem = element_bytes(D);
    const int64_t row_bytes = shape.head_dim * kItem;
    const int tail = shape.head_dim - d;
    VF sum[R][C], v[C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = VF::zero();
    for (int run = sight.any_lo / shape.run_length; run * shape.run_length < sight.any_hi; ++run) {
        int t = max_int(sight.any_lo, run * shape.run_length);
        const int end = min_int(sight.any_hi, (run + 1) * shape.run_length);
        const int64_t offset = (t - run * shape.run_length) * row_bytes + d * kItem;
        const uint8_t* from = view.value_runs[run] + offset;
        const uint8_t* fetch = PREFETCH ? next->value_runs[run] + offset : nullptr;
        while (t < end) {
            for (; t < end && !sight.all_see(t); ++t, from += row_bytes, fetch += row_bytes) {
                load_value<D, TAIL>(from, tail, v);
                for (int r = 0; r < R; ++r)
                    if (sight.sees(r, t))
                        for (int c = 0; c < C; ++c) sum[r][c] = fma(VF::set1(p[r * kPiece + t]), v[c], sum[r][c]);
            }
            const float* weights = p + t;
            for (const int stop = min_int(end, sight.all_hi); t < stop; ++t, ++weights) {
                if constexpr (PREFETCH)
                    for (int64_t b = 0; b < C * VF::W * kItem; b += 64) prefetch_l2(fetch + b);
                load_value<D, TAIL>(from, tail, v);
                for (int r = 0; r < R; ++r) {
                    const VF weight = VF::set1(weights[r * kPiece]);
                    for (int c = 0; c < C; ++c) sum[r][c] = fma(weight, v[c], sum[r][c]);
                }
                from += row_bytes;
                fetch += row_bytes;
            }
        }
    }
#pragma GCC unroll 8  // an index that is not constant would keep the sums in memory
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) put(target, r, d + c * VF::W, sum[r][c], TAIL ? tail : VF::W);
}

#if defined(OCTAVO_ISA_avx512)
// Values of two tokens as the dot instruction takes them, C times 32 dims: of each 32, a vector with the pairs of dims
// 0 to 3, 8 to 11, 16 to 19 and 24 to 27, then one with the others.
template <bool TAIL, int C>
[[gnu::always_inline]] inline void load_pair(const uint8_t* first, const uint8_t* second, __mmask32 exists,
                                             __m512i (&v)[C]) {
    for (int c = 0; c < C; c += 2) {
        const __m512i x = TAIL ? _mm512_maskz_loadu_epi16(exists, first + c * 32) : _mm512_loadu_si512(first + c * 32);
        const __m512i y =
            TAIL ? _mm512_maskz_loadu_epi16(exists, second + c * 32) : _mm512_loadu_si512(second + c * 32);
        v[c] = _mm512_unpacklo_epi16(x, y);
        v[c + 1] = _mm512_unpackhi_epi16(x, y);
    }
}

// Dims of sums that load_pair() leaves out of order: the first and the second 16.
[[gnu::always_inline]] inline VF order_dims(VF low, VF high, bool second) {
    const __m512i from = second ? _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31)
                                : _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    return {_mm512_permutex2var_ps(low.v, from, high.v)};
}

// The same as weigh() for bfloat16 numerators and pairs of tokens, for C times 32 dims; with TAIL, C is 1 and only
// the first head_dim - d dims exist.
template <bool PREFETCH, bool TAIL, int C, int R>
void weigh_pairs(const PieceView& view, const PieceView* next, const ValueShape& shape, const Sight& sight,
                 const float* p, int d, const Target& target) {
    const int64_t row_bytes = int64_t{shape.head_dim} * 2;
    const int tail = shape.head_dim - d;
    const __mmask32 exists = tail >= 32 ? ~__mmask32{0} : (__mmask32{1} << tail) - 1;
    VF sum[R][2 * C];
    __m512i v[2 * C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < 2 * C; ++c) sum[r][c] = VF::zero();
    // Tokens of a pair are neighbours in one run, unless runs are of one token.
    const int pairs_per_step = max_int(1, shape.run_length / 2), runs_per_step = max_int(1, 2 / shape.run_length);
    const int any_begin = sight.any_lo / 2, any_end = (sight.any_hi + 1) / 2;
    for (int step = any_begin / pairs_per_step; step * pairs_per_step < any_end; ++step) {
        const int run = step * runs_per_step;
        int pair = max_int(any_begin, step * pairs_per_step);
        const int end = min_int(any_end, (step + 1) * pairs_per_step);
        const int64_t offset = (pair - step * pairs_per_step) * 2 * row_bytes + d * 2;
        const uint8_t* first = view.value_runs[run] + offset;
        const uint8_t* fetch = PREFETCH ? next->value_runs[run] + offset : nullptr;
        // From a token to its partner, and from a pair to the next.
        const int64_t partner = runs_per_step == 2 ? view.value_runs[run + 1] - view.value_runs[run] : row_bytes;
        const auto advance = [&] {
            ++pair;
            first += 2 * row_bytes;
            fetch += 2 * row_bytes;
        };
        while (pair < end) {
            for (; pair < end && !(sight.all_see(2 * pair) && sight.all_see(2 * pair + 1)); advance()) {
                load_pair<TAIL>(first, first + partner, exists, v);
                for (int r = 0; r < R; ++r) {
                    const __mmask32 seen =
                        (sight.sees(r, 2 * pair) ? 0x55555555u : 0u) | (sight.sees(r, 2 * pair + 1) ? 0xaaaaaaaau : 0u);
                    if (!seen) continue;
                    const __m512bh weight = (__m512bh)_mm512_set1_ps(p[r * kPiece + pair]);
                    for (int c = 0; c < 2 * C; ++c)
                        sum[r][c].v =
                            _mm512_dpbf16_ps(sum[r][c].v, (__m512bh)_mm512_maskz_mov_epi16(seen, v[c]), weight);
                }
            }
            const float* weights = p + pair;
            for (const int stop = min_int(end, sight.all_hi / 2); pair < stop; ++weights, advance()) {
                if constexpr (PREFETCH)
                    for (int64_t b = 0; b < C * 64; b += 64) {
                        prefetch_l2(fetch + b);
                        prefetch_l2(fetch + row_bytes + b);
                    }
                load_pair<TAIL>(first, first + partner, exists, v);
                for (int r = 0; r < R; ++r) {
                    const __m512bh weight = (__m512bh)_mm512_set1_ps(weights[r * kPiece]);
                    for (int c = 0; c < 2 * C; ++c) sum[r][c].v = _mm512_dpbf16_ps(sum[r][c].v, (__m512bh)v[c], weight);
                }
            }
        }
    }
#pragma GCC unroll 8  // as in weigh()
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c)
            for (int half = 0; half < 2; ++half) {
                const int at = c * 32 + half * VF::W;
                put(target, r, d + at, order_dims(sum[r][2 * c], sum[r][2 * c + 1], half), TAIL ? tail - at : VF::W);
            }
}
#endif

template <KVDtype D, bool PREFETCH, int R>
void weigh_all(const PieceView& view, const PieceView* next, const ValueShape& shape, const Sight& sight,
               const float* p, const Target& target) {
    int d = 0;
#if defined(OCTAVO_ISA_avx512)
    if constexpr (dots_values(D)) {
        for (; d + 64 <= shape.head_dim; d += 64)
            weigh_pairs<PREFETCH, false, 2, R>(view, next, shape, sight, p, d, target);
        for (; d < shape.head_dim; d += 32) weigh_pairs<PREFETCH, true, 1, R>(view, next, shape, sight, p, d, target);
        return;
    }
#endif
    constexpr int C = vectors_of(R);
    for (; d + C * VF::W <= shape.head_dim; d += C * VF::W)
        weigh<D, PREFETCH, false, C, R>(view, next, shape, sight, p, d, target);
    for (; d + VF::W <= shape.head_dim; d += VF::W)
        weigh<D, PREFETCH, false, 1, R>(view, next, shape, sight, p, d, target);
    if (d < shape.head_dim) weigh<D, PREFETCH, true, 1, R>(view, next, shape, sight, p, d, target);
}

// Values for `count` rows, 1 to R.
template <KVDtype D, bool PREFETCH, int R = kRows>
void weigh_rows(int count, const PieceView& view, const PieceView* next, const ValueShape& shape, const Sight& sight,
                const float* p, const Target& target) {
    if (count == R) return weigh_all<D, PREFETCH, R>(view, next, shape, sight, p, target);
    if constexpr (R > 1) weigh_rows<D, PREFETCH, R - 1>(count, view, next, shape, sight, p, target);
}

}  // namespace octavo::OCTAVO_ISA
