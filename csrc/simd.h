// Float vectors for one instruction set.
//
// Every file in csrc/kernels is compiled once per instruction set with OCTAVO_ISA set to `portable`,
// `avx2` or `avx512`, and puts its code in `namespace octavo::OCTAVO_ISA`. The functions below mean
// the same on all of them; only the number of lanes `VF::W` differs. Nothing here depends on memory
// alignment. Reductions add lanes in one fixed tree order, so a result never depends on its neighbours.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(OCTAVO_ISA_avx2) || defined(OCTAVO_ISA_avx512)
#include <immintrin.h>
#endif

#ifndef OCTAVO_ISA
#error "simd.h is for csrc/kernels only: OCTAVO_ISA is not set"
#endif

// Inline functions live inside the instruction set's namespace: one outside it would be compiled several times with
// different instructions, and the linker may keep any of them. For the same reason kernels use no std:: containers
// or algorithms.
namespace octavo {
namespace OCTAVO_ISA {

// bfloat16 is the upper half of a float32; stored as its 16 bits.
inline float bf16_to_float(uint16_t value) {
    uint32_t bits = uint32_t{value} << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// Round to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if defined(OCTAVO_ISA_avx512)

struct VF {
    static constexpr int W = 16;
    __m512 v;
    static VF zero() { return {_mm512_setzero_ps()}; }
    static VF set1(float x) { return {_mm512_set1_ps(x)}; }
    static VF load(const float* p) { return {_mm512_loadu_ps(p)}; }
    // First n lanes from memory, the others zero. Reads nothing past p + n.
    static VF load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
    static VF load_bf16(const uint16_t* p) {
        return {_mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
    }
    static VF load_bf16_n(const uint16_t* p, int n) {
        return {
            _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(n), p)), 16))};
    }
    static VF load_i8(const int8_t* p) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
    }
    static VF load_i8_n(const int8_t* p, int n) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask(n), p)))};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    void store_n(float* p, int n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
    void store_bf16(uint16_t* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
    }
    void store_bf16_n(uint16_t* p, int n) const {
        _mm256_mask_storeu_epi16(p, mask(n), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
    }
    void store_i32(int32_t* p) const { _mm512_storeu_si512(p, _mm512_cvtps_epi32(v)); }  // integral lanes
    static __mmask16 mask(int n) { return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1u); }
};

// W 32-bit integers, or, without such instructions, numbers.
struct VI {
    __m512i v;
    static VI zero() { return {_mm512_setzero_si512()}; }
    VF to_float() const { return {_mm512_cvtepi32_ps(v)}; }
};
// W pairs of 16-bit integers.
struct VPairs {
    __m512i v;
    static VPairs set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
    static VPairs load_i8(const int8_t* p) {
        return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    // W int8, each as the low half of a pair whose high half is undefined.
    static VPairs load_i8_low(const int8_t* p) {
        return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
};
// sum + a.low * b.low + a.high * b.high; exact in integers.
[[gnu::always_inline]] inline VI dot_pairs(VPairs a, VPairs b, VI sum) {
#if defined(OCTAVO_EMULATED_AVX512)
    return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
#else
    // Not the intrinsic: with it gcc 12 copies sums to and from memory in every step of a loop.
    asm("vpdpwssd %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
    return sum;
#endif
}

inline VF operator+(VF a, VF b) { return {_mm512_add_ps(a.v, b.v)}; }
inline VF operator-(VF a, VF b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline VF operator*(VF a, VF b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline VF operator/(VF a, VF b) { return {_mm512_div_ps(a.v, b.v)}; }
inline VF max(VF a, VF b) { return {_mm512_max_ps(a.v, b.v)}; }
inline VF min(VF a, VF b) { return {_mm512_min_ps(a.v, b.v)}; }
inline VF fma(VF a, VF b, VF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline VF round(VF a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline VF scale_pow2(VF a, VF n) { return {_mm512_scalef_ps(a.v, n.v)}; }

#elif defined(OCTAVO_ISA_avx2)

struct VF {
    static constexpr int W = 8;
    __m256 v;
    static VF zero() { return {_mm256_setzero_ps()}; }
    static VF set1(float x) { return {_mm256_set1_ps(x)}; }
    static VF load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static VF load_n(const float* p, int n) { return {_mm256_maskload_ps(p, mask(n))}; }
    static VF load_bf16(const uint16_t* p) {
        return {_mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16))};
    }
    static VF load_bf16_n(const uint16_t* p, int n) {
        if (n >= 8) return load_bf16(p);
        uint16_t t[8] = {};
        std::memcpy(t, p, size_t(n) * 2);
        return load_bf16(t);
    }
    static VF load_i8(const int8_t* p) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
    }
    static VF load_i8_n(const int8_t* p, int n) {
        int8_t t[8] = {};
        std::memcpy(t, p, size_t(n < 8 ? n : 8));
        return load_i8(t);
    }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
    void store_n(float* p, int n) const { _mm256_maskstore_ps(p, mask(n), v); }
    void store_bf16(uint16_t* p) const {
        float t[8];
        _mm256_storeu_ps(t, v);
        for (int i = 0; i < 8; ++i) p[i] = float_to_bf16(t[i]);
    }
    void store_bf16_n(uint16_t* p, int n) const {
        float t[8];
        _mm256_storeu_ps(t, v);
        for (int i = 0; i < n && i < 8; ++i) p[i] = float_to_bf16(t[i]);
    }
    void store_i32(int32_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvtps_epi32(v)); }
    static __m256i mask(int n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
};

struct VI {
    __m256i v;
    static VI zero() { return {_mm256_setzero_si256()}; }
    VF to_float() const { return {_mm256_cvtepi32_ps(v)}; }
};
struct VPairs {
    __m256i v;
    static VPairs set1(int32_t x) { return {_mm256_set1_epi32(x)}; }
    static VPairs load_i8(const int8_t* p) {
        return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    static VPairs load_i8_low(const int8_t* p) {
        return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
    }
};
inline VI dot_pairs(VPairs a, VPairs b, VI sum) { return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(a.v, b.v))}; }

inline VF operator+(VF a, VF b) { return {_mm256_add_ps(a.v, b.v)}; }
inline VF operator-(VF a, VF b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline VF operator*(VF a, VF b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline VF operator/(VF a, VF b) { return {_mm256_div_ps(a.v, b.v)}; }
inline VF max(VF a, VF b) { return {_mm256_max_ps(a.v, b.v)}; }
inline VF min(VF a, VF b) { return {_mm256_min_ps(a.v, b.v)}; }
inline VF fma(VF a, VF b, VF c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline VF round(VF a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for integral n in [-126, 127].
inline VF scale_pow2(VF a, VF n) {
    __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23);
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(e))};
}

#else  // portable

struct VF {
    static constexpr int W = 8;
    float v[8];
    static VF zero() { return set1(0.0f); }
    static VF set1(float x) {
        VF r;
        for (float& e : r.v) e = x;
        return r;
    }
    static VF load(const float* p) {
        VF r;
        std::memcpy(r.v, p, sizeof r.v);
        return r;
    }
    static VF load_n(const float* p, int n) {
        VF r = zero();
        for (int i = 0; i < n && i < 8; ++i) r.v[i] = p[i];
        return r;
    }
    static VF load_bf16(const uint16_t* p) {
        VF r;
        for (int i = 0; i < 8; ++i) r.v[i] = bf16_to_float(p[i]);
        return r;
    }
    static VF load_bf16_n(const uint16_t* p, int n) {
        VF r = zero();
        for (int i = 0; i < n && i < 8; ++i) r.v[i] = bf16_to_float(p[i]);
        return r;
    }
    static VF load_i8(const int8_t* p) {
        VF r;
        for (int i = 0; i < 8; ++i) r.v[i] = float(p[i]);
        return r;
    }
    static VF load_i8_n(const int8_t* p, int n) {
        VF r = zero();
        for (int i = 0; i < n && i < 8; ++i) r.v[i] = float(p[i]);
        return r;
    }
    void store(float* p) const { std::memcpy(p, v, sizeof v); }
    void store_n(float* p, int n) const {
        for (int i = 0; i < n && i < 8; ++i) p[i] = v[i];
    }
    void store_bf16(uint16_t* p) const {
        for (int i = 0; i < 8; ++i) p[i] = float_to_bf16(v[i]);
    }
    void store_bf16_n(uint16_t* p, int n) const {
        for (int i = 0; i < n && i < 8; ++i) p[i] = float_to_bf16(v[i]);
    }
    void store_i32(int32_t* p) const {
        for (int i = 0; i < 8; ++i) p[i] = int32_t(v[i]);
    }
};

// In float32, which compilers make vectors of: products are exact, sums are rounded.
struct VI {
    VF v;
    static VI zero() { return {VF::zero()}; }
    VF to_float() const { return v; }
};
struct VPairs {
    float low[8], high[8];
    static VPairs set1(int32_t x) {
        VPairs r;
        for (int i = 0; i < 8; ++i) r.low[i] = float(int16_t(x)), r.high[i] = float(x >> 16);
        return r;
    }
    static VPairs load_i8(const int8_t* p) {
        int16_t x[8];
        std::memcpy(x, p, sizeof x);
        VPairs r;
        for (int i = 0; i < 8; ++i) r.low[i] = float(int8_t(x[i])), r.high[i] = float(x[i] >> 8);
        return r;
    }
    static VPairs load_i8_low(const int8_t* p) {
        VPairs r = {};
        for (int i = 0; i < 8; ++i) r.low[i] = float(p[i]);
        return r;
    }
};
inline VI dot_pairs(const VPairs& a, const VPairs& b, VI sum) {
    for (int i = 0; i < 8; ++i) sum.v.v[i] = sum.v.v[i] + a.low[i] * b.low[i] + a.high[i] * b.high[i];
    return sum;
}

#define OCTAVO_LANEWISE(expression)                  \
    VF r;                                            \
    for (int i = 0; i < 8; ++i) r.v[i] = expression; \
    return r;
inline VF operator+(const VF& a, const VF& b) { OCTAVO_LANEWISE(a.v[i] + b.v[i]) }
inline VF operator-(const VF& a, const VF& b) { OCTAVO_LANEWISE(a.v[i] - b.v[i]) }
inline VF operator*(const VF& a, const VF& b) { OCTAVO_LANEWISE(a.v[i] * b.v[i]) }
inline VF operator/(const VF& a, const VF& b) { OCTAVO_LANEWISE(a.v[i] / b.v[i]) }
inline VF max(const VF& a, const VF& b) { OCTAVO_LANEWISE(a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }
inline VF min(const VF& a, const VF& b) { OCTAVO_LANEWISE(a.v[i] < b.v[i] ? a.v[i] : b.v[i]) }
inline VF fma(const VF& a, const VF& b, const VF& c) { OCTAVO_LANEWISE(a.v[i] * b.v[i] + c.v[i]) }
inline VF round(const VF& a) { OCTAVO_LANEWISE(std::nearbyint(a.v[i])) }
inline VF scale_pow2(const VF& a, const VF& n) {
    VF r;
    for (int i = 0; i < 8; ++i) {
        uint32_t bits = uint32_t(int32_t(n.v[i]) + 127) << 23;
        float p;
        std::memcpy(&p, &bits, 4);
        r.v[i] = a.v[i] * p;
    }
    return r;
}
#undef OCTAVO_LANEWISE

#endif

// Asks for a cache line, into the second-level cache. Always inline: a function that only prefetches returns nothing,
// and gcc 12 drops calls of it.
[[gnu::always_inline]] inline void prefetch_l2(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

// Sum of the lanes: halves are added until one is left.
inline float reduce_add(const VF& a) {
#if defined(OCTAVO_ISA_avx2)
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
#else
    float t[VF::W];
    a.store(t);
    for (int half = VF::W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) t[i] += t[i + half];
    return t[0];
#endif
}

inline float reduce_max(const VF& a) {
#if defined(OCTAVO_ISA_avx2)
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
#else
    float t[VF::W];
    a.store(t);
    for (int half = VF::W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
    return t[0];
#endif
}

// As above, with the instruction set's own reductions.
inline float lanes_max(const VF& a) {
#if defined(OCTAVO_ISA_avx512)
    return _mm512_reduce_max_ps(a.v);
#else
    return reduce_max(a);
#endif
}

inline float lanes_sum(const VF& a) {
#if defined(OCTAVO_ISA_avx512)
    return _mm512_reduce_add_ps(a.v);
#else
    return reduce_add(a);
#endif
}

// e^x, relative error below 2e-7 for x in [-87, 88]; inputs outside are clamped (so e^-inf is 1.2e-38, not 0: mask
// first). Cody-Waite reduction to |r| <= ln2/2 and a degree-6 polynomial (coefficients: Taylor, error 1.3e-8).
inline VF exp(const VF& x) {
    VF c = min(max(x, VF::set1(-87.3f)), VF::set1(88.0f));
    VF n = round(c * VF::set1(1.44269504f));
    VF r = fma(n, VF::set1(-0.693359375f), c);
    r = fma(n, VF::set1(2.12194440e-4f), r);
    VF p = VF::set1(1.0f / 720);
    p = fma(p, r, VF::set1(1.0f / 120));
    p = fma(p, r, VF::set1(1.0f / 24));
    p = fma(p, r, VF::set1(1.0f / 6));
    p = fma(p, r, VF::set1(0.5f));
    p = fma(p, r, VF::set1(1.0f));
    p = fma(p, r, VF::set1(1.0f));
    return scale_pow2(p, n);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
