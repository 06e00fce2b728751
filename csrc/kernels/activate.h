// Activation functions of vectors. Private to csrc/kernels.
//
// Functions of one element: a NaN stays NaN, and lanes do not see each other. Relative errors are below 3e-7 for
// positive elements; for negative ones that of the exponent is added, x^2 or (of gelu_tanh) x^3 times as much.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

inline VF magnitude(const VF& x) { return max(x, VF::zero() - x); }

// Relative error below 3e-7; odd, 1 at infinity. From e^(-2|x|) - 1 = 2^n (2^r - 1) + (2^n - 1), with the Taylor
// polynomial of (2^r - 1) / r on [-1/2, 1/2].
inline VF tanh(const VF& x) {
    const VF c = max(VF::set1(-40.0f), magnitude(x) * VF::set1(-2.885390082f));  // in this order a NaN comes through
    const VF n = round(c);
    const VF r = c - n;
    VF p = VF::set1(1.52527338e-5f);
    p = fma(p, r, VF::set1(1.54035304e-4f));
    p = fma(p, r, VF::set1(1.33335581e-3f));
    p = fma(p, r, VF::set1(9.61812911e-3f));
    p = fma(p, r, VF::set1(5.55041087e-2f));
    p = fma(p, r, VF::set1(2.40226507e-1f));
    p = fma(p, r, VF::set1(6.93147181e-1f));
    const VF power = scale_pow2(VF::set1(1.0f), max(n, VF::set1(-40.0f)));  // a NaN becomes a harmless exponent
    const VF e = fma(p * r, power, power - VF::set1(1.0f));
    const VF t = (VF::zero() - e) / (VF::set1(2.0f) + e);
    return min(max(x * VF::set1(0x1p64f), VF::zero() - t), t);  // t with the sign of x, for t <= |x|
}

inline VF silu(const VF& x) { return x / (VF::set1(1.0f) + exp(VF::zero() - x)); }

// x (1 + erf(x / sqrt 2)) / 2 = max(0, x) - |x| erfc(|x| / sqrt 2) / 2. The last factor is e^(-x^2 / 2) w times a
// polynomial in w = 1 / (1 + 0.35 |x|), the one with the least largest relative error on [0, 15]: 3.2e-8.
inline VF gelu(const VF& x) {
    const VF a = min(VF::set1(15.0f), magnitude(x));  // in this order a NaN comes through
    const VF w = VF::set1(1.0f) / fma(VF::set1(0.35f), a, VF::set1(1.0f));
    VF p = VF::set1(-2.916349098e-2f);
    p = fma(p, w, VF::set1(1.440588385e-1f));
    p = fma(p, w, VF::set1(-2.558981180e-1f));
    p = fma(p, w, VF::set1(1.593889743e-1f));
    p = fma(p, w, VF::set1(-2.326135710e-2f));
    p = fma(p, w, VF::set1(1.055738479e-1f));
    p = fma(p, w, VF::set1(1.198157147e-1f));
    p = fma(p, w, VF::set1(1.398643106e-1f));
    p = fma(p, w, VF::set1(1.396212578e-1f));
    const VF beyond = exp(a * a * VF::set1(-0.5f)) * (p * w);
    return max(VF::zero(), x) - a * beyond;
}

// x (1 + tanh(u)) / 2 = x / (1 + e^(-2u)).
inline VF gelu_tanh(const VF& x) {
    const VF u2 = x * fma(x * x, VF::set1(7.135481282e-2f), VF::set1(1.595769122f));
    return x / (VF::set1(1.0f) + exp(VF::zero() - u2));
}

template <Activation A>
[[gnu::always_inline]] inline VF activated(const VF& x) {
    if constexpr (A == Activation::kSilu) return silu(x);
    if constexpr (A == Activation::kGelu) return gelu(x);
    if constexpr (A == Activation::kGeluTanh) return gelu_tanh(x);
    if constexpr (A == Activation::kRelu) return max(VF::zero(), x);  // in this order a NaN comes through
}

// Calls f(a type whose `value` is `activation`).
template <Activation A>
struct ActivationIs {
    static constexpr Activation value = A;
};
template <class F>
[[gnu::always_inline]] inline void with_activation(Activation activation, F f) {
    switch (activation) {
        case Activation::kSilu:
            return f(ActivationIs<Activation::kSilu>{});
        case Activation::kGelu:
            return f(ActivationIs<Activation::kGelu>{});
        case Activation::kGeluTanh:
            return f(ActivationIs<Activation::kGeluTanh>{});
        case Activation::kRelu:
            return f(ActivationIs<Activation::kRelu>{});
    }
}

}  // namespace octavo::OCTAVO_ISA
