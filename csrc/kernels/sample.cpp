// Vector passes over a row of logits.
#include "exp2.h"
#include "kernels.h"
#include "ops.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

int64_t block_end(int64_t begin, int64_t n) { return begin + kSampleBlock < n ? begin + kSampleBlock : n; }

// Whether any of the first n <= VF::W lanes is NaN, and how many are above `value`.
#if defined(OCTAVO_ISA_avx512)
bool any_nan(VF x) { return _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q) != 0; }
int lanes_above(VF x, float value) {
    return __builtin_popcount(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(value), _CMP_GT_OQ));
}
#elif defined(OCTAVO_ISA_avx2)
bool any_nan(VF x) { return _mm256_movemask_ps(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q)) != 0; }
int lanes_above(VF x, float value) {
    return __builtin_popcount(unsigned(_mm256_movemask_ps(_mm256_cmp_ps(x.v, _mm256_set1_ps(value), _CMP_GT_OQ))));
}
#else
bool any_nan(const VF& x) {
    bool found = false;
    for (float e : x.v) found |= e != e;
    return found;
}
int lanes_above(const VF& x, float value) {
    int count = 0;
    for (float e : x.v) count += e > value;
    return count;
}
#endif

// The lanes of x[i .. end), the others `fill`.
VF load_filled(const float* x, int64_t i, int64_t end, float fill) {
    if (i + VF::W <= end) return VF::load(x + i);
    float lanes[VF::W];
    for (int j = 0; j < VF::W; ++j) lanes[j] = i + j < end ? x[i + j] : fill;
    return VF::load(lanes);
}

}  // namespace

float row_max(const float* x, int64_t n, float* block_max, bool* has_nan) {
    bool nan = false;
    float best = -INFINITY;
    for (int64_t begin = 0; begin < n; begin += kSampleBlock) {
        const int64_t end = block_end(begin, n);
        VF top = VF::set1(-INFINITY);
        for (int64_t i = begin; i < end; i += VF::W) {
            const VF v = load_filled(x, i, end, -INFINITY);
            nan |= any_nan(v);
            top = max(top, v);
        }
        const float m = reduce_max(top);
        *block_max++ = m;
        best = m > best ? m : best;
    }
    *has_nan = nan;
    return best;
}

double row_exp(const float* x, int64_t n, float max, float factor, float* p, float* block_sum) {
    const VF m = VF::set1(max), f = VF::set1(factor);
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += kSampleBlock) {
        const int64_t end = block_end(begin, n);
        VF sum = VF::zero();
        for (int64_t i = begin; i < end; i += VF::W) {
            const VF e = exp2_nonpositive((load_filled(x, i, end, -INFINITY) - m) * f);
            sum = sum + e;
            if (p) e.store_n(p + i, end - i < VF::W ? int(end - i) : VF::W);
        }
        const float s = reduce_add(sum);
        if (block_sum) *block_sum++ = s;
        total += double(s);
    }
    return total;
}

int64_t count_above(const float* x, int64_t n, float value) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += VF::W) count += lanes_above(load_filled(x, i, n, -INFINITY), value);
    return count;
}

}  // namespace octavo::OCTAVO_ISA
