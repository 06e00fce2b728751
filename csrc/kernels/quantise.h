// One key or value of a head as int8 and a scale. Private to write_kv.cpp.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

// max |x| / 127 over n elements; NaN if one of them is not finite, so that whatever reads the vector becomes NaN.
inline float int8_scale(const float* x, int n) {
    VF top = VF::zero(), broken = VF::zero();
    for (int i = 0; i < n; i += VF::W) {
        const VF v = VF::load_n(x + i, n - i);
        top = max(max(v, VF::zero() - v), top);
        broken = fma(v, VF::zero(), broken);  // 0 * infinity and 0 * NaN are NaN
    }
    return reduce_max(top) / 127.0f + reduce_add(broken);
}

// Stores `count` elements, at most VF::W, as x / scale rounded half to even; zeros if the scale is 0 or NaN.
inline void quantise(const float* x, int count, float scale, int8_t* to) {
    if (!(scale > 0.0f)) {
        std::memset(to, 0, size_t(count));
        return;
    }
    float quotient[VF::W];
    round(VF::load_n(x, count) / VF::set1(scale)).store(quotient);
    for (int i = 0; i < count; ++i) {
        // A subnormal scale has few digits: quotients may then exceed 127.
        const float q = quotient[i];
        to[i] = int8_t(q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q);
    }
}

}  // namespace octavo::OCTAVO_ISA
