// The inner loops of attention: scores, softmax and weighted values of a few query rows against one piece of tokens.
// Private to attention.cpp.
//
// A *row* is one query head of one new token. Rows that read the same KV head share its keys and values, so loops run
// over up to kRows rows at once, with one accumulator per row and vector. What a row computes never depends on which
// rows stand beside it: keys of a vector of tokens are multiplied dim by dim in ascending order, values are added
// token by token in ascending order.
#pragma once

#include "exp2.h"
#include "kv_layout.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int kPiece = 128;  // tokens per piece; part of the arithmetic, so the same on every machine
constexpr int kVectors = kPiece / VF::W;
#if defined(OCTAVO_ISA_avx512)
constexpr int kRows = 6;  // 6 rows x 4 vectors of accumulators in 32 registers
constexpr int kKeyVectors = 4;
constexpr int kValueVectors = 4;
#else
constexpr int kRows = 4;  // 4 x 2 in 16 registers
constexpr int kKeyVectors = 2;
constexpr int kValueVectors = 2;
#endif

// Where one piece's keys and values of one KV head lie. A *run* is a stretch of tokens inside one block.
// Entries outside the piece's visible tokens repeat the nearest visible one, so that loops may go to full groups.
struct PieceView {
    int lo, hi;                       // visible tokens, counted from the piece's first
    const uint8_t* keys[kVectors];    // first step (dim, or pair of dims) of each vector of tokens
    const uint8_t* tails[kVectors];   // the last dim of an odd head_dim where dims lie in pairs
    const uint8_t* key_runs[kPiece];  // first step of each run
    const uint8_t* value_runs[kPiece];
    const uint8_t* scale_runs[kPiece];  // int8: the keys' scales of each run; the values' are block_size floats on
    int64_t step_bytes;                 // from a step to the next in `keys`
    const float* key_scales;            // int8: [kPiece]; meaningful for visible tokens only
    const float* value_scales;          // int8: as key_scales
};

inline int min_int(int a, int b) { return a < b ? a : b; }
inline int max_int(int a, int b) { return a > b ? a : b; }

// Neighbouring elements of keys or values.
template <KVDtype D>
[[gnu::always_inline]] inline VF load_element(const uint8_t* p) {
    if constexpr (D == KVDtype::kInt8) return VF::load_i8(reinterpret_cast<const int8_t*>(p));
    if constexpr (D == KVDtype::kBFloat16) return VF::load_bf16(reinterpret_cast<const uint16_t*>(p));
    if constexpr (D == KVDtype::kFloat32) return VF::load(reinterpret_cast<const float*>(p));
}

// The first n of them, the other lanes zero.
template <KVDtype D>
[[gnu::always_inline]] inline VF load_element_n(const uint8_t* p, int n) {
    if constexpr (D == KVDtype::kInt8) return VF::load_i8_n(reinterpret_cast<const int8_t*>(p), n);
    if constexpr (D == KVDtype::kBFloat16) return VF::load_bf16_n(reinterpret_cast<const uint16_t*>(p), n);
    if constexpr (D == KVDtype::kFloat32) return VF::load_n(reinterpret_cast<const float*>(p), n);
}

inline void prefetch_l2(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

#if defined(OCTAVO_ISA_avx512)
// Queries are bf16 pairs in 32-bit units.
template <int R>
[[gnu::always_inline]] inline void multiply_pairs(const uint8_t* const* keys, int64_t offset, const float* q,
                                                  VF (&sum)[R][kKeyVectors]) {
    __m512bh k[kKeyVectors];
    for (int v = 0; v < kKeyVectors; ++v) k[v] = (__m512bh)_mm512_loadu_si512(keys[v] + offset);
    for (int r = 0; r < R; ++r) {
        const __m512bh pair = (__m512bh)_mm512_set1_ps(q[r]);
        for (int v = 0; v < kKeyVectors; ++v) sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, k[v], pair);
    }
}

template <int R>
[[gnu::always_inline]] inline void multiply_tail(const uint8_t* const* tails, const float* q,
                                                 VF (&sum)[R][kKeyVectors]) {
    for (int v = 0; v < kKeyVectors; ++v) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tails[v]));
        const __m512bh k = (__m512bh)_mm512_cvtepu16_epi32(half);
        for (int r = 0; r < R; ++r) sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, k, (__m512bh)_mm512_set1_ps(q[r]));
    }
}
#else
[[gnu::always_inline]] inline void load_pairs(const uint8_t* p, VF& low, VF& high) {
#if defined(OCTAVO_ISA_avx2)
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    low.v = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    high.v = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000u))));
#else
    uint16_t x[2 * VF::W];
    std::memcpy(x, p, sizeof x);
    for (int i = 0; i < VF::W; ++i) {
        low.v[i] = bf16_to_float(x[2 * i]);
        high.v[i] = bf16_to_float(x[2 * i + 1]);
    }
#endif
}

// Queries are float32: the pair's first dim, and `rows` further on its second.
template <int R>
[[gnu::always_inline]] inline void multiply_pairs(const uint8_t* const* keys, int64_t offset, const float* q,
                                                  int64_t rows, VF (&sum)[R][kKeyVectors]) {
    for (int v = 0; v < kKeyVectors; ++v) {
        VF low, high;
        load_pairs(keys[v] + offset, low, high);
        for (int r = 0; r < R; ++r) {
            sum[r][v] = fma(VF::set1(q[r]), low, sum[r][v]);
            sum[r][v] = fma(VF::set1(q[rows + r]), high, sum[r][v]);
        }
    }
}

template <int R>
[[gnu::always_inline]] inline void multiply_tail(const uint8_t* const* tails, const float* q,
                                                 VF (&sum)[R][kKeyVectors]) {
    for (int v = 0; v < kKeyVectors; ++v) {
        const VF k = VF::load_bf16(reinterpret_cast<const uint16_t*>(tails[v]));
        for (int r = 0; r < R; ++r) sum[r][v] = fma(VF::set1(q[r]), k, sum[r][v]);
    }
}
#endif

template <int R>
[[gnu::always_inline]] inline void multiply_dim(const uint8_t* const* keys, int64_t offset, const float* q,
                                                VF (&sum)[R][kKeyVectors]) {
    VF k[kKeyVectors];
    for (int v = 0; v < kKeyVectors; ++v) k[v] = VF::load(reinterpret_cast<const float*>(keys[v] + offset));
    for (int r = 0; r < R; ++r) {
        const VF x = VF::set1(q[r]);
        for (int v = 0; v < kKeyVectors; ++v) sum[r][v] = fma(x, k[v], sum[r][v]);
    }
}

// The queries of a row block, as prepare_query leaves them.
struct QueryRows {
    const float* units;   // for each step one 32-bit unit per row (two in bfloat16 without dot instruction)
    const float* scales;  // int8: of each row
    int64_t stride;       // units from a step to the next
};

// Dot products of R query rows with kKeyVectors vectors of tokens from vector `first` on.
// With PREFETCH the same part of `next` is fetched into L2 (into L1 is worse: too few misses can be outstanding).
template <KVDtype D, bool PREFETCH, int R>
void score(const PieceView& view, const PieceView* next, int first, int head_dim, const QueryRows& query,
           float* scores) {
    VF sum[R][kKeyVectors];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < kKeyVectors; ++v) sum[r][v] = VF::zero();
    const uint8_t* const* keys = view.keys + first;
    const float* q = query.units;
    const int steps = pairs_dims(D) ? head_dim / 2 : head_dim;
    int64_t offset = 0;
    for (int i = 0; i < steps; ++i, offset += view.step_bytes) {
        if constexpr (PREFETCH)
            for (int v = 0; v < kKeyVectors; ++v) prefetch_l2(next->keys[first + v] + offset);
        if constexpr (!pairs_dims(D)) {
            multiply_dim<R>(keys, offset, q, sum);
            q += query.stride;
        } else {
#if defined(OCTAVO_ISA_avx512)
            multiply_pairs<R>(keys, offset, q, sum);
            q += query.stride;
#else
            multiply_pairs<R>(keys, offset, q, query.stride, sum);
            q += 2 * query.stride;
#endif
        }
    }
    if (pairs_dims(D) && head_dim % 2) multiply_tail<R>(view.tails + first, q, sum);
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < kKeyVectors; ++v) sum[r][v].store(scores + r * kPiece + (first + v) * VF::W);
}

template <int R>
[[gnu::always_inline]] inline void multiply_integers(const VPairs (&keys)[kKeyVectors], const float* q,
                                                     VI (&sum)[R][kKeyVectors]) {
    for (int r = 0; r < R; ++r) {
        int32_t pair;
        std::memcpy(&pair, q + r, 4);
        const VPairs x = VPairs::set1(pair);
        for (int v = 0; v < kKeyVectors; ++v) sum[r][v] = dot_pairs(keys[v], x, sum[r][v]);
    }
}

// The same for int8 keys: queries are pairs of 16-bit integers, sums are integers (portable: float32), then times both
// scales.
template <bool PREFETCH, int R>
void score_int8(const PieceView& view, const PieceView* next, int first, int head_dim, const QueryRows& query,
                float* scores) {
    VI sum[R][kKeyVectors];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < kKeyVectors; ++v) sum[r][v] = VI::zero();
    const int steps = head_dim / 2;
    VPairs k[kKeyVectors];
    if (head_dim % 2) {
        for (int v = 0; v < kKeyVectors; ++v)
            k[v] = VPairs::load_i8_low(reinterpret_cast<const int8_t*>(view.tails[first + v]));
        multiply_integers<R>(k, query.units + steps * query.stride, sum);
    }
    const float* q = query.units;
    int64_t offset = 0;
    for (int i = 0; i < steps; ++i, offset += view.step_bytes, q += query.stride) {
        if constexpr (PREFETCH)
            for (int v = 0; v < kKeyVectors; ++v) prefetch_l2(next->keys[first + v] + offset);
        for (int v = 0; v < kKeyVectors; ++v)
            k[v] = VPairs::load_i8(reinterpret_cast<const int8_t*>(view.keys[first + v] + offset));
        multiply_integers<R>(k, q, sum);
    }
    for (int v = 0; v < kKeyVectors; ++v) {
        const int t = (first + v) * VF::W;
        const VF key_scale = VF::load(view.key_scales + t);
        for (int r = 0; r < R; ++r)
            (sum[r][v].to_float() * (key_scale * VF::set1(query.scales[r]))).store(scores + r * kPiece + t);
    }
}

// Turns a row's scores of tokens [lo, hi) into softmax numerators relative to their own maximum; lanes beyond become
// exactly 0. `factor` is the score's factor times log2(e). Sets the maximum (as a power of two) and the sum. With int8
// what is left in `scores` are the numerators times the values' scales, those beyond [lo, hi) undefined.
template <KVDtype D>
void softmax(const PieceView& view, float* scores, int lo, int hi, float factor, float& row_max, float& row_sum) {
    const int begin = lo / VF::W * VF::W;
    const int end = (hi + VF::W - 1) / VF::W * VF::W;
    for (int t = begin; t < lo; ++t) scores[t] = -INFINITY;
    for (int t = hi; t < end; ++t) scores[t] = -INFINITY;
    const VF f = VF::set1(factor);
    VF top = VF::set1(-INFINITY);
    for (int t = begin; t < end; t += VF::W) top = max(top, VF::load(scores + t) * f);
    row_max = lanes_max(top);
    const VF m = VF::set1(row_max);
    VF sum = VF::zero();
    for (int t = begin; t < end; t += VF::W) {
        const VF p = exp2_nonpositive(VF::load(scores + t) * f - m);
        if constexpr (D == KVDtype::kInt8)
            (p * VF::load(view.value_scales + t)).store(scores + t);
        else
            p.store(scores + t);
        sum = sum + p;
    }
    row_sum = lanes_sum(sum);
}

// How a piece's sums join those of the pieces before it: out = out * keep + piece * add.
struct Joint {
    float keep[VF::W];
    float add[VF::W];
};

// Merges the maxima and sums of `count` rows, at most VF::W, with those of one more piece, and gives the factors.
inline Joint join(float* row_max, float* row_sum, const float* piece_max, const float* piece_sum, int count) {
    Joint joint;
    float old_max[VF::W] = {}, new_max[VF::W] = {}, next_max[VF::W] = {};
    for (int r = 0; r < count; ++r) {
        old_max[r] = row_max[r];
        next_max[r] = piece_max[r];
        new_max[r] = piece_max[r] > row_max[r] ? piece_max[r] : row_max[r];
    }
    const VF m = VF::load(new_max);
    exp2_nonpositive(VF::load(old_max) - m).store(joint.keep);
    exp2_nonpositive(VF::load(next_max) - m).store(joint.add);
    for (int r = 0; r < count; ++r) {
        row_max[r] = new_max[r];
        row_sum[r] = row_sum[r] * joint.keep[r] + piece_sum[r] * joint.add[r];
    }
    return joint;
}

inline VF join_value(const VF& out, const VF& piece, float keep, float add) {
    return fma(piece, VF::set1(add), out * VF::set1(keep));
}

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

// Sums of values of tokens [lo, hi) weighted by p (row r at p + r * kPiece), for C vectors of dims from dim `d` on;
// with TAIL, C is 1 and only the first head_dim - d lanes exist.
template <KVDtype D, bool PREFETCH, bool TAIL, int C, int R>
void weigh(const PieceView& view, const PieceView* next, const ValueShape& shape, int lo, int hi, const float* p, int d,
           const Target& target) {
    constexpr int64_t kItem = element_bytes(D);
    const int64_t row_bytes = shape.head_dim * kItem;
    const int tail = shape.head_dim - d;
    VF sum[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = VF::zero();
    for (int run = lo / shape.run_length; run * shape.run_length < hi; ++run) {
        const int begin = max_int(lo, run * shape.run_length);
        const int end = min_int(hi, (run + 1) * shape.run_length);
        int64_t offset = (begin - run * shape.run_length) * row_bytes + d * kItem;
        for (int t = begin; t < end; ++t, offset += row_bytes) {
            if constexpr (PREFETCH)
                for (int64_t b = 0; b < C * VF::W * kItem; b += 64) prefetch_l2(next->value_runs[run] + offset + b);
            VF v[C];
            for (int c = 0; c < C; ++c) {
                const uint8_t* from = view.value_runs[run] + offset + c * VF::W * kItem;
                v[c] = TAIL ? load_element_n<D>(from, tail) : load_element<D>(from);
            }
            for (int r = 0; r < R; ++r) {
                const VF weight = VF::set1(p[r * kPiece + t]);
                for (int c = 0; c < C; ++c) sum[r][c] = fma(weight, v[c], sum[r][c]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            float* out = target.out + r * target.stride + d + c * VF::W;
            VF x = sum[r][c];
            if (target.keep)
                x = join_value(TAIL ? VF::load_n(out, tail) : VF::load(out), x, target.keep[r], target.add[r]);
            if (TAIL)
                x.store_n(out, tail);
            else
                x.store(out);
        }
}

template <KVDtype D, bool PREFETCH, int R>
void weigh_all(const PieceView& view, const PieceView* next, const ValueShape& shape, int lo, int hi, const float* p,
               const Target& target) {
    int d = 0;
    for (; d + kValueVectors * VF::W <= shape.head_dim; d += kValueVectors * VF::W)
        weigh<D, PREFETCH, false, kValueVectors, R>(view, next, shape, lo, hi, p, d, target);
    for (; d + VF::W <= shape.head_dim; d += VF::W)
        weigh<D, PREFETCH, false, 1, R>(view, next, shape, lo, hi, p, d, target);
    if (d < shape.head_dim) weigh<D, PREFETCH, true, 1, R>(view, next, shape, lo, hi, p, d, target);
}

// The instantiation for `count` rows, 1 to R.
template <KVDtype D, bool PREFETCH, int R = kRows>
void score_rows(int count, const PieceView& view, const PieceView* next, int first, int head_dim,
                const QueryRows& query, float* scores) {
    if (count == R) {
        if constexpr (D == KVDtype::kInt8)
            return score_int8<PREFETCH, R>(view, next, first, head_dim, query, scores);
        else
            return score<D, PREFETCH, R>(view, next, first, head_dim, query, scores);
    }
    if constexpr (R > 1) score_rows<D, PREFETCH, R - 1>(count, view, next, first, head_dim, query, scores);
}

template <KVDtype D, bool PREFETCH, int R = kRows>
void weigh_rows(int count, const PieceView& view, const PieceView* next, const ValueShape& shape, int lo, int hi,
                const float* p, const Target& target) {
    if (count == R) return weigh_all<D, PREFETCH, R>(view, next, shape, lo, hi, p, target);
    if constexpr (R > 1) weigh_rows<D, PREFETCH, R - 1>(count, view, next, shape, lo, hi, p, target);
}

}  // namespace octavo::OCTAVO_ISA
