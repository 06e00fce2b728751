// IEEE half precision. Private to csrc/kernels.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

// Written without branches, so that loops over it vectorise on any CPU.
inline float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 31u;
    const uint32_t mantissa = half & 1023u;
    const float tiny = float(int32_t(mantissa)) * 0x1p-24f;  // subnormal: exponent 0
    uint32_t tiny_bits;
    std::memcpy(&tiny_bits, &tiny, 4);
    const uint32_t normal = ((exponent + 112u) << 23) | (mantissa << 13);
    const uint32_t special = 0x7f800000u | (mantissa << 13);  // infinity and NaN: exponent 31
    const uint32_t bits = sign | (exponent == 0 ? tiny_bits : exponent == 31 ? special : normal);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// The half of a float that is one exactly; of others, one near it. NaN stays NaN.
inline uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return uint16_t(sign | 0x7e00u);
    if (rest >= 0x47800000u) return uint16_t(sign | 0x7c00u);
    if (rest >= 0x38800000u) return uint16_t(sign | ((rest >> 13) - (112u << 10)));
    return uint16_t(sign | uint32_t((value < 0 ? -value : value) * 0x1p24f));  // subnormal
}

inline VF load_half(const uint16_t* p) {
#if defined(OCTAVO_ISA_avx512)
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
#elif defined(OCTAVO_ISA_avx2)
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
#else
    VF r;
    for (int i = 0; i < VF::W; ++i) r.v[i] = half_to_float(p[i]);
    return r;
#endif
}

}  // namespace octavo::OCTAVO_ISA
