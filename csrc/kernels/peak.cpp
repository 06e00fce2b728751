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
#pragma GCC unroll 16  // or sums behind asm lie in memory
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
#pragma GCC unroll 16  // or sums behind asm lie in memory
        for (int c = 0; c < kChains; ++c) sum[c] = _mm512_dpbf16_ps(sum[c], a, b);
    for (int c = 1; c < kChains; ++c) sum[0] = _mm512_add_ps(sum[0], sum[c]);
    return reduce_add({sum[0]});
}

// Loops over chains are unrolled by name, or sums that go through asm lie in memory.
float integer_chains(int64_t steps) {
    __m512i sum[kChains];
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_epi32(c);
    const __m512i a = _mm512_set1_epi8(1);
    for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < kChains; ++c)
#if defined(OCTAVO_EMULATED_AVX512)
            sum[c] = _mm512_dpbusd_epi32(sum[c], a, a);
#else
            asm("vpdpbusd %1, %1, %0" : "+v"(sum[c]) : "v"(a));
#endif
    }
#pragma GCC unroll 16
    for (int c = 1; c < kChains; ++c) sum[0] = _mm512_or_si512(sum[0], sum[c]);
    return 1.0f + float(_mm512_reduce_or_epi32(sum[0]) & 1);
}
#elif defined(OCTAVO_ISA_avx2)
template <bool BYTES>
float integer_chains(int64_t steps) {
    __m256i sum[kChains];
    for (int c = 0; c < kChains; ++c) sum[c] = _mm256_set1_epi32(c);
    __m256i a = _mm256_set1_epi8(1);
    for (int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 16  // or sums behind asm lie in memory
        for (int c = 0; c < kChains; ++c) {
            asm("" : "+x"(a));  // as if it changed, or its product would be computed once
            if constexpr (BYTES)
                sum[c] = _mm256_add_epi16(sum[c], _mm256_maddubs_epi16(a, a));
            else
                sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(a, a));
        }
    for (int c = 1; c < kChains; ++c) sum[0] = _mm256_or_si256(sum[0], sum[c]);
    return 1.0f + float(_mm256_extract_epi32(sum[0], 0) & 1);
}
#endif

}  // namespace

double dot_chains(WeightFormat::Kind kind, int64_t steps, float* result) {
    const double chains = double(steps) * kChains;
#if defined(OCTAVO_ISA_avx512)
    if (kind == WeightFormat::Kind::kBFloat16) return *result = bf16_chains(steps), chains * 64;
    if (kind != WeightFormat::Kind::kFloat32) return *result = integer_chains(steps), chains * 128;
#elif defined(OCTAVO_ISA_avx2)
    if (kind == WeightFormat::Kind::kInt8) return *result = integer_chains<false>(steps), chains * 32;
    if (kind == WeightFormat::Kind::kInt4) return *result = integer_chains<true>(steps), chains * 64;
#endif
    (void)kind;  // the arithmetic is float32, whatever the weights are
    return *result = float_chains(steps), chains * VF::W * 2;
}

}  // namespace octavo::OCTAVO_ISA
