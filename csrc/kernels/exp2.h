// The exponential of softmax: exactly 0 where nothing may be left.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

// 2^x for x <= 0: relative error below 3e-7, exactly 1 at 0, exactly 0 below -199 and at -inf; NaN stays NaN.
// Taylor polynomial of degree 6 in x * ln 2 on [-1/2, 1/2].
inline VF exp2_nonpositive(const VF& x) {
    const VF c = max(VF::set1(-200.0f), x);  // in this order a NaN comes through
    const VF n = round(c);
    const VF r = c - n;
    VF p = VF::set1(1.5403530393381609e-4f);
    p = fma(p, r, VF::set1(1.3333558146428443e-3f));
    p = fma(p, r, VF::set1(9.6181291076284772e-3f));
    p = fma(p, r, VF::set1(5.5504108664821580e-2f));
    p = fma(p, r, VF::set1(2.4022650695910071e-1f));
    p = fma(p, r, VF::set1(6.9314718055994531e-1f));
    p = fma(p, r, VF::set1(1.0f));
#if defined(OCTAVO_ISA_avx512)
    return scale_pow2(p, n);
#else
    // Two factors, as 2^-200 is not a float. In this order a NaN becomes a harmless exponent; p is NaN already.
    const VF half = max(round(n * VF::set1(0.5f)), VF::set1(-100.0f));
    return scale_pow2(scale_pow2(p, half), max(n - half, VF::set1(-100.0f)));
#endif
}

}  // namespace octavo::OCTAVO_ISA
