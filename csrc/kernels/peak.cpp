// The most arithmetic this instruction set can do: the roof beside which benchmarks state their figures.
#include "kernels.h"
#include "ops.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

// Sums at once: enough to hide the latency, few enough to stay in registers in an unrolled loop.
#if defined(OCTAVO_ISA_avx512) || defined(OCTAVO_ISA_avx2)
constexpr int kChains = 12;
#else
constexpr int kChains = 4;
#endif

float float_chains(int64_t steps) {
    VF sum[kChains];
    for (int c = 0; c < kChains; ++c) sum[c] = VF::set1(float(c));
    const VF a = VF::set1(0.5f), b = VF::set1(0.25f);
    for (int64_t i = 0; i < steps; ++i)
        for (int c = 0; c < kChains; ++c) sum[c] = fma(sum[c], a, b);
    for (int c = 1; c < kChains; ++c) sum[0] = sum[0] + sum[c];
    return reduce_add(sum[0]);
}

#if defined(OCTAVO_ISA_avx512)
float bf16_chains(int64_t steps) {
    __m512 sum[kChains];
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_ps(float(c));
    const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f003f00), b = (__m512bh)_mm512_set1_epi32(0x3e803e80);
    for (int64_t i = 0; i < steps; ++i)
        for (int c = 0; c < kChains; ++c) sum[c] = _mm512_dpbf16_ps(sum[c], a, b);
    for (int c = 1; c < kChains; ++c) sum[0] = _mm512_add_ps(sum[0], sum[c]);
    return reduce_add({sum[0]});
}
#endif

}  // namespace

double dot_chains(bool bf16, int64_t steps, float* result) {
#if defined(OCTAVO_ISA_avx512)
    if (bf16) {
        *result = bf16_chains(steps);
        return double(steps) * kChains * VF::W * 4;
    }
#endif
    (void)bf16;  // elsewhere bfloat16 weights are widened and the arithmetic is float32
    *result = float_chains(steps);
    return double(steps) * kChains * VF::W * 2;
}

}  // namespace octavo::OCTAVO_ISA
