// The inner loops of attention: scores and softmax of a few query rows against one piece of tokens; the weighted values
// are in attention_values.h. Private to attention.cpp.
//
// A *row* is one query head of one new token. Rows that read the same KV head share its keys and values, so loops run
// over up to kRows rows at once, with one accumulator per row and vector. What a row computes never depends on which
// rows stand beside it: keys of a vector of tokens are multiplied dim by dim in ascending order, values are added
// token by token (bfloat16 on avx512: pair by pair of tokens) in ascending order.
#pragma once

#include "activate.h"
#include "exp2.h"
#include "kv_layout.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int kPiece = 128;  // tokens per piece; part of the arithmetic, so the same on every machine
constexpr int kVectors = kPiece / VF::W;
constexpr int kVectorsPerLine = 16 / VF::W;  // vectors of a step of one strip of keys

// Accumulators stay in registers: rows x vectors of tokens (scores) or of dims (values).
#if defined(OCTAVO_ISA_avx512)
constexpr int kRows = 6;  // 6 x 4 in 32 registers
constexpr int vectors_of(int) { return 4; }
#else
#if defined(OCTAVO_ISA_avx2)
constexpr int kRows = 6;  // 6 x 2 in 16 registers
#else
constexpr int kRows = 4;
#endif
// One or two rows alone need more sums than two each, or every multiply-add waits for the one before.
constexpr int vectors_of(int rows) { return rows <= 2 ? 4 : 2; }
#endif

// The dot instruction takes pairs of tokens: numerators are rounded to bfloat16, values stay as they are stored.
constexpr bool dots_values(KVDtype dtype) {
#if defined(OCTAVO_ISA_avx512)
    return dtype == KVDtype::kBFloat16;
#else
    (void)dtype;
    return false;
#endif
}

// Where one piece's keys and values of one KV head lie. A *run* is a stretch of tokens inside one block.
// Entries outside the piece's visible tokens repeat the nearest visible one, so that loops may go to full groups.
struct PieceView {
    int lo, hi;                       // visible tokens, counted from the piece's first
    const uint8_t* keys[kVectors];    // first step (dim, or pair of dims) of each vector of tokens
    const uint8_t* tails[kVectors];   // the last dim of an odd head_dim where dims lie in pairs
    const uint8_t* key_runs[kPiece];  // first key of the block of each run
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

#if defined(OCTAVO_ISA_avx512)
// Queries are bf16 pairs in 32-bit units.
template <int R, int V>
[[gnu::always_inline]] inline void multiply_pairs(const uint8_t* const* keys, int64_t offset, const float* q,
                                                  int64_t stride, VF (&sum)[R][V]) {
    __m512bh k[V];
    for (int v = 0; v < V; ++v) k[v] = (__m512bh)_mm512_loadu_si512(keys[v] + offset);
    for (int r = 0; r < R; ++r) {
        const __m512bh pair = (__m512bh)_mm512_set1_ps(q[r * stride]);
        for (int v = 0; v < V; ++v) sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, k[v], pair);
    }
}

template <int R, int V>
[[gnu::always_inline]] inline void multiply_tail(const uint8_t* const* tails, const float* q, int64_t stride,
                                                 VF (&sum)[R][V]) {
    for (int v = 0; v < V; ++v) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tails[v]));
        const __m512bh k = (__m512bh)_mm512_cvtepu16_epi32(half);
        for (int r = 0; r < R; ++r)
            sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, k, (__m512bh)_mm512_set1_ps(q[r * stride]));
    }
}
#else
// The first and the second elements of pairs, as float32.
[[gnu::always_inline]] inline VF load_low(const uint8_t* p) {
#if defined(OCTAVO_ISA_avx2)
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16))};
#else
    VF r;
    for (int i = 0; i < VF::W; ++i) {
        uint16_t x[2];
        std::memcpy(x, p + 4 * i, 4);
        r.v[i] = bf16_to_float(x[0]);
    }
    return r;
#endif
}
[[gnu::always_inline]] inline VF load_high(const uint8_t* p) {
#if defined(OCTAVO_ISA_avx2)
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000u))))};
#else
    VF r;
    for (int i = 0; i < VF::W; ++i) {
        uint16_t x[2];
        std::memcpy(x, p + 4 * i, 4);
        r.v[i] = bf16_to_float(x[1]);
    }
    return r;
#endif
}

template <int R, int V>
[[gnu::always_inline]] inline void multiply_vectors(const VF (&k)[V], const float* q, int64_t stride, VF (&sum)[R][V]) {
    for (int r = 0; r < R; ++r) {
        const VF x = VF::set1(q[r * stride]);
        for (int v = 0; v < V; ++v) sum[r][v] = fma(x, k[v], sum[r][v]);
    }
}

// Queries are float32. All first dims of the pairs, then all second ones, read anew: both at once with the sums are
// more than fit the registers.
template <int R, int V>
[[gnu::always_inline]] inline void multiply_pairs(const uint8_t* const* keys, int64_t offset, const float* q,
                                                  int64_t stride, VF (&sum)[R][V]) {
    VF k[V];
    for (int v = 0; v < V; ++v) k[v] = load_low(keys[v] + offset);
    multiply_vectors(k, q, stride, sum);
    asm("" : "+r"(offset));  // not the same loads to the compiler
    for (int v = 0; v < V; ++v) k[v] = load_high(keys[v] + offset);
    multiply_vectors(k, q + 1, stride, sum);
}

template <int R, int V>
[[gnu::always_inline]] inline void multiply_tail(const uint8_t* const* tails, const float* q, int64_t stride,
                                                 VF (&sum)[R][V]) {
    for (int v = 0; v < V; ++v) {
        const VF k = VF::load_bf16(reinterpret_cast<const uint16_t*>(tails[v]));
        for (int r = 0; r < R; ++r) sum[r][v] = fma(VF::set1(q[r * stride]), k, sum[r][v]);
    }
}
#endif

template <int R, int V>
[[gnu::always_inline]] inline void multiply_dim(const uint8_t* const* keys, int64_t offset, const float* q,
                                                int64_t stride, VF (&sum)[R][V]) {
    VF k[V];
    for (int v = 0; v < V; ++v) k[v] = VF::load(reinterpret_cast<const float*>(keys[v] + offset));
    for (int r = 0; r < R; ++r) {
        const VF x = VF::set1(q[r * stride]);
        for (int v = 0; v < V; ++v) sum[r][v] = fma(x, k[v], sum[r][v]);
    }
}

// The queries of a row block, as prepare_query leaves them.
struct QueryRows {
    const float* units;   // of a row one 32-bit unit for each step (two in bfloat16 without dot instruction)
    const float* scales;  // int8: of each row
    int64_t stride;       // units from a row to the next
};

// Dot products of R query rows with vectors_of(R) vectors of tokens from vector `first` on.
// With PREFETCH the same part of `next` is fetched into L2 (into L1 is worse: too few misses can be outstanding).
template <KVDtype D, bool PREFETCH, int R>
void score(const PieceView& view, const PieceView* next, int first, int head_dim, const QueryRows& query,
           float* scores) {
    constexpr int V = vectors_of(R);
    VF sum[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = VF::zero();
    const uint8_t* const* keys = view.keys + first;
    const float* q = query.units;
    const int steps = pairs_dims(D) ? head_dim / 2 : head_dim;
    int64_t offset = 0;
    for (int i = 0; i < steps; ++i, offset += view.step_bytes) {
        if constexpr (PREFETCH)
            for (int v = 0; v < V; v += kVectorsPerLine) prefetch_l2(next->keys[first + v] + offset);
        if constexpr (!pairs_dims(D)) {
            multiply_dim(keys, offset, q, query.stride, sum);
            ++q;
        } else {
            multiply_pairs(keys, offset, q, query.stride, sum);
#if defined(OCTAVO_ISA_avx512)
            ++q;
#else
            q += 2;
#endif
        }
    }
    if (pairs_dims(D) && head_dim % 2) multiply_tail(view.tails + first, q, query.stride, sum);
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v].store(scores + r * kPiece + (first + v) * VF::W);
}

template <int R, int V>
[[gnu::always_inline]] inline void multiply_integers(const VPairs (&keys)[V], const float* q, int64_t stride,
                                                     VI (&sum)[R][V]) {
    for (int r = 0; r < R; ++r) {
        int32_t pair;
        std::memcpy(&pair, q + r * stride, 4);
        const VPairs x = VPairs::set1(pair);
        for (int v = 0; v < V; ++v) sum[r][v] = dot_pairs(keys[v], x, sum[r][v]);
    }
}

// The same for int8 keys: queries are pairs of 16-bit integers, sums are integers (portable: float32), then times both
// scales.
template <bool PREFETCH, int R>
void score_int8(const PieceView& view, const PieceView* next, int first, int head_dim, const QueryRows& query,
                float* scores) {
    constexpr int V = vectors_of(R);
    VI sum[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = VI::zero();
    const int steps = head_dim / 2;
    VPairs k[V];
    if (head_dim % 2) {
        for (int v = 0; v < V; ++v) k[v] = VPairs::load_i8_low(reinterpret_cast<const int8_t*>(view.tails[first + v]));
        multiply_integers(k, query.units + steps, query.stride, sum);
    }
    const float* q = query.units;
    int64_t offset = 0;
    for (int i = 0; i < steps; ++i, offset += view.step_bytes, ++q) {
        if constexpr (PREFETCH)
            for (int v = 0; v < V; v += kVectorsPerLine) prefetch_l2(next->keys[first + v] + offset);
        for (int v = 0; v < V; ++v)
            k[v] = VPairs::load_i8(reinterpret_cast<const int8_t*>(view.keys[first + v] + offset));
        multiply_integers(k, q, query.stride, sum);
    }
    for (int v = 0; v < V; ++v) {
        const int t = (first + v) * VF::W;
        const VF key_scale = VF::load(view.key_scales + t);
        for (int r = 0; r < R; ++r)
            (sum[r][v].to_float() * (key_scale * VF::set1(query.scales[r]))).store(scores + r * kPiece + t);
    }
}

inline void hide_beyond(float* scores, int begin, int lo, int hi, int end) {
    for (int t = begin; t < lo; ++t) scores[t] = -INFINITY;
    for (int t = hi; t < end; ++t) scores[t] = -INFINITY;
}

// Makes each score that a row sees, and perhaps a few more, the hyperbolic tangent of `factor` times it.
[[gnu::noinline]] inline void cap_scores(float* scores, int count, const int* lo, const int* hi, float factor) {
    const VF f = VF::set1(factor);
    for (int r = 0; r < count; ++r) {
        float* row = scores + r * kPiece;
        for (int t = lo[r] / VF::W * VF::W; t < hi[r]; t += VF::W) tanh(VF::load(row + t) * f).store(row + t);
    }
}

// Softmax of the scores of a few rows, row r at scores + r * kPiece and seeing tokens [lo[r], hi[r]): numerators
// relative to the row's own maximum, lanes beyond exactly 0. `factor` is the score's factor times log2(e). Sets the
// maxima (as powers of two) and the sums. With int8 what is left in `scores` are the numerators times the values'
// scales, those beyond [lo, hi) undefined. With dots_values numerators are left as bfloat16, neighbours in 32 bits,
// from the row's first byte on; the sum is that of the rounded numerators, so that the weights of all values add to
// one. One pass over all rows after the other: a row's own maximum, exponentials and sum wait for each other.
template <KVDtype D>
void softmax(const PieceView& view, float* scores, int count, const int* lo, const int* hi, float factor,
             float* row_max, float* row_sum) {
    constexpr int kStep = dots_values(D) ? 2 * VF::W : VF::W;
    VF lanes[kRows];
    for (int r = 0; r < count; ++r) {
        float* row = scores + r * kPiece;
        const int begin = lo[r] / kStep * kStep, end = (hi[r] + kStep - 1) / kStep * kStep;
        hide_beyond(row, begin, lo[r], hi[r], end);
        VF top = VF::load(row + begin);
        for (int t = begin + VF::W; t < end; t += VF::W) top = max(top, VF::load(row + t));
        lanes[r] = top;
    }
    for (int r = 0; r < count; ++r) row_max[r] = lanes_max(lanes[r]) * factor;
    const VF f = VF::set1(factor);
    for (int r = 0; r < count; ++r) {
        float* row = scores + r * kPiece;
        const int begin = lo[r] / kStep * kStep;
        const VF m = VF::set1(row_max[r]);
        VF sum = VF::zero();
        for (int t = begin; t < hi[r]; t += kStep) {
#if defined(OCTAVO_ISA_avx512)
            if constexpr (dots_values(D)) {
                const VF first = exp2_weight<true>(VF::load(row + t) * f - m);
                const VF second = exp2_weight<true>(VF::load(row + t + VF::W) * f - m);
                const __m512bh p = _mm512_cvtne2ps_pbh(second.v, first.v);
                // Ahead of it in the same bytes all scores are read already.
                _mm512_storeu_si512(reinterpret_cast<uint8_t*>(row) + t * 2, (__m512i)p);
                sum.v = _mm512_dpbf16_ps(sum.v, p, (__m512bh)_mm512_set1_epi32(0x3f803f80));
                continue;
            }
#endif
            const VF p = exp2_weight<false>(VF::load(row + t) * f - m);
            if constexpr (D == KVDtype::kInt8)
                (p * VF::load(view.value_scales + t)).store(row + t);
            else
                p.store(row + t);
            sum = sum + p;
        }
        lanes[r] = sum;
    }
    for (int r = 0; r < count; ++r) row_sum[r] = lanes_sum(lanes[r]);
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

// Scores of `count` rows, 1 to R, for all vectors of tokens that hold one of [lo, hi), and perhaps a few more.
template <KVDtype D, bool PREFETCH, int R = kRows>
void score_rows(int count, const PieceView& view, const PieceView* next, int lo, int hi, int head_dim,
                const QueryRows& query, float* scores) {
    if (count == R) {
        constexpr int V = vectors_of(R);
        for (int v = lo / VF::W / V * V; v * VF::W < hi; v += V) {
            if constexpr (D == KVDtype::kInt8)
                score_int8<PREFETCH, R>(view, next, v, head_dim, query, scores);
            else
                score<D, PREFETCH, R>(view, next, v, head_dim, query, scores);
        }
        return;
    }
    if constexpr (R > 1) score_rows<D, PREFETCH, R - 1>(count, view, next, lo, hi, head_dim, query, scores);
}

}  // namespace octavo::OCTAVO_ISA
