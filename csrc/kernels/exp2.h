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

// The powers of two whose exponents, plus 127, are the low bits of `t`'s; see exp2_weight.
inline VF power_of_low_bits(const VF& t) {
#if defined(OCTAVO_ISA_avx512)
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t.v), 23))};
#elif defined(OCTAVO_ISA_avx2)
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t.v), 23))};
#else
    VF r;
    for (int i = 0; i < VF::W; ++i) {
        uint32_t bits;
        std::memcpy(&bits, t.v + i, 4);
        bits <<= 23;
        std::memcpy(r.v + i, &bits, 4);
    }
    return r;
#endif
}

// The same for numerators of softmax, in fewer instructions: exactly 1 at 0, exactly 0 below -126.5 and at -inf; NaN
// stays NaN. Polynomials with the least largest relative error on [-1/2, 1/2] of those that are 1 at 0: 9.2e-8, or
// 2.8e-6 where the result is rounded to bfloat16 anyway (COARSE).
template <bool COARSE>
[[gnu::always_inline]] inline VF exp2_weight(const VF& x) {
    // Adding 1.5 * 2^23 rounds to an integer, and leaves it, here with the bias of exponents, in the sum's low bits.
    const VF shift = VF::set1(12582912.0f + 127.0f);
    const VF c = max(VF::set1(-127.0f), x);  // in this order a NaN comes through; the power of -127 becomes 0
    const VF t = c + shift;
    const VF r = c - (t - shift);
    VF p;
    if constexpr (COARSE) {
        p = VF::set1(9.5828532e-3f);
        p = fma(p, r, VF::set1(5.5906425e-2f));
        p = fma(p, r, VF::set1(2.4024099e-1f));
        p = fma(p, r, VF::set1(6.9312419e-1f));
    } else {
        p = VF::set1(1.3264727e-3f);
        p = fma(p, r, VF::set1(9.6715127e-3f));
        p = fma(p, r, VF::set1(5.5507337e-2f));
        p = fma(p, r, VF::set1(2.4022242e-1f));
        p = fma(p, r, VF::set1(6.9314698e-1f));
    }
    return fma(p, r, VF::set1(1.0f)) * power_of_low_bits(t);
}

}  // namespace octavo::OCTAVO_ISA
