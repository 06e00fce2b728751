// Vectors as integers and a float32 scale. Private to write_kv.cpp and attention.cpp.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

// max |x| / limit over n elements; NaN if one of them is not finite, so that whatever reads the vector becomes NaN.
inline float integer_scale(const float* x, int n, float limit) {
    VF top = VF::zero(), broken = VF::zero();
    for (int i = 0; i < n; i += VF::W) {
        const VF v = VF::load_n(x + i, n - i);
        top = max(max(v, VF::zero() - v), top);
        broken = fma(v, VF::zero(), broken);  // 0 * infinity and 0 * NaN are NaN
    }
    return lanes_max(top) / limit + lanes_sum(broken);
}

// `count` elements, at most VF::W, as x / scale rounded half to even, the other lanes of `to` zero; all zero if the
// scale is 0 or NaN. Int has room for limit.
template <class Int>
inline void quantise(const float* x, int count, float scale, float limit, Int (&to)[VF::W]) {
    int32_t codes[VF::W] = {};
    if (scale > 0.0f) {
        // A subnormal scale has few digits: quotients may then exceed the limit.
        const VF q = round(VF::load_n(x, count) / VF::set1(scale));
        min(max(q, VF::set1(-limit)), VF::set1(limit)).store_i32(codes);
    }
    for (int i = 0; i < VF::W; ++i) to[i] = Int(codes[i]);
}

}  // namespace octavo::OCTAVO_ISA
