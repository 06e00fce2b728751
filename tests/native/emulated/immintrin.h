// The AVX512 intrinsics that the kernels use, lane by lane in plain C++, so that the avx512 path can be tested on a
// machine without AVX512. Found instead of the compiler's own header when OCTAVO_EMULATE_AVX512 is on (CMakeLists.txt).
// For results only: it is hundreds of times slower.
//
// Semantics: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. vdpbf16ps takes denormals as zero,
// gives none, rounds to nearest even whatever MXCSR says, and adds the odd product of a pair before the even one.
#pragma once
#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi"

namespace octavo_emulated {
struct F {
    float v[16];
};
struct I {
    int32_t v[16];
};
struct H {
    uint16_t v[32];
};
struct B {
    uint8_t v[64];
};
template <class T, class S>
inline T as(const S& s) {
    static_assert(sizeof(T) == sizeof(S));
    T t;
    std::memcpy(&t, &s, sizeof t);
    return t;
}
template <class Fn>
inline __m512 each(Fn f) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return as<__m512>(r);
}
template <class Fn>
inline __m512i each32(Fn f) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return as<__m512i>(r);
}
inline float wide(uint16_t h) {
    uint32_t b = uint32_t(h) << 16;
    float f;
    std::memcpy(&f, &b, 4);
    return f;
}
inline float daz(float f) { return std::fabs(f) < 1.17549435e-38f ? std::copysign(0.0f, f) : f; }
inline uint16_t narrow(float f) {
    f = daz(f);
    uint32_t b;
    std::memcpy(&b, &f, 4);
    if ((b & 0x7fffffffu) > 0x7f800000u) return uint16_t((b >> 16) | 0x40u);
    return uint16_t((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
inline __m512 set1_ps(float x) {
    return each([&](int) { return x; });
}
inline __m512 setzero_ps() { return set1_ps(0); }
inline __m512i setzero_si512() {
    return each32([](int) { return 0; });
}
inline __m512i set1_epi32(int x) {
    return each32([&](int) { return x; });
}
template <class... A>
inline __m512i setr_epi32(A... a) {
    I r{{int32_t(a)...}};
    static_assert(sizeof...(a) == 16);
    return as<__m512i>(r);
}
inline __m512 loadu_ps(const void* p) {
    __m512 r;
    std::memcpy(&r, p, 64);
    return r;
}
inline __m512i loadu_si512(const void* p) {
    __m512i r;
    std::memcpy(&r, p, 64);
    return r;
}
inline void storeu_ps(void* p, __m512 v) { std::memcpy(p, &v, 64); }
inline void storeu_si512(void* p, __m512i v) { std::memcpy(p, &v, 64); }
inline __m512 maskz_loadu_ps(unsigned m, const void* p) {
    F r{};
    for (int i = 0; i < 16; ++i)
        if (m >> i & 1) std::memcpy(r.v + i, (const char*)p + 4 * i, 4);
    return as<__m512>(r);
}
inline void mask_storeu_ps(void* p, unsigned m, __m512 v) {
    F r = as<F>(v);
    for (int i = 0; i < 16; ++i)
        if (m >> i & 1) std::memcpy((char*)p + 4 * i, r.v + i, 4);
}
inline __m512i maskz_loadu_epi16_512(uint32_t m, const void* p) {
    H r{};
    for (int i = 0; i < 32; ++i)
        if (m >> i & 1) std::memcpy(r.v + i, (const char*)p + 2 * i, 2);
    return as<__m512i>(r);
}
inline __m512i maskz_mov_epi16(uint32_t m, __m512i v) {
    H r = as<H>(v);
    for (int i = 0; i < 32; ++i)
        if (!(m >> i & 1)) r.v[i] = 0;
    return as<__m512i>(r);
}
inline __m256i maskz_loadu_epi16_256(unsigned m, const void* p) {
    uint16_t r[16] = {};
    for (int i = 0; i < 16; ++i)
        if (m >> i & 1) std::memcpy(r + i, (const char*)p + 2 * i, 2);
    __m256i o;
    std::memcpy(&o, r, 32);
    return o;
}
inline void mask_storeu_epi16_256(void* p, unsigned m, __m256i v) {
    uint16_t r[16];
    std::memcpy(r, &v, 32);
    for (int i = 0; i < 16; ++i)
        if (m >> i & 1) std::memcpy((char*)p + 2 * i, r + i, 2);
}
inline __m128i maskz_loadu_epi8_128(unsigned m, const void* p) {
    uint8_t r[16] = {};
    for (int i = 0; i < 16; ++i)
        if (m >> i & 1) r[i] = ((const uint8_t*)p)[i];
    __m128i o;
    std::memcpy(&o, r, 16);
    return o;
}
inline __m512 castsi512_ps(__m512i x) { return as<__m512>(x); }
inline __m512i castps_si512(__m512 x) { return as<__m512i>(x); }
inline __m512i slli_epi32(__m512i x, int n) {
    I a = as<I>(x);
    return each32([&](int i) { return int32_t(uint32_t(a.v[i]) << n); });
}
inline __m512i srli_epi32(__m512i x, int n) {
    I a = as<I>(x);
    return each32([&](int i) { return int32_t(uint32_t(a.v[i]) >> n); });
}
inline __m512i and_si512(__m512i x, __m512i y) {
    I a = as<I>(x), b = as<I>(y);
    return each32([&](int i) { return a.v[i] & b.v[i]; });
}
inline __m512i add_epi32(__m512i x, __m512i y) {
    I a = as<I>(x), b = as<I>(y);
    return each32([&](int i) { return int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); });
}
inline __m512i cvtepu16_epi32(__m256i x) {
    uint16_t r[16];
    std::memcpy(r, &x, 32);
    return each32([&](int i) { return int32_t(r[i]); });
}
inline __m512i cvtepi16_epi32(__m256i x) {
    int16_t r[16];
    std::memcpy(r, &x, 32);
    return each32([&](int i) { return int32_t(r[i]); });
}
inline __m512i cvtepi8_epi32(__m128i x) {
    int8_t r[16];
    std::memcpy(r, &x, 16);
    return each32([&](int i) { return int32_t(r[i]); });
}
inline __m512i cvtepi8_epi16(__m256i x) {
    int8_t r[32];
    std::memcpy(r, &x, 32);
    H h;
    for (int i = 0; i < 32; ++i) h.v[i] = uint16_t(int16_t(r[i]));
    return as<__m512i>(h);
}
inline __m512 cvtepi32_ps(__m512i x) {
    I a = as<I>(x);
    return each([&](int i) { return float(a.v[i]); });
}
inline __m512i cvtps_epi32(__m512 x) {
    F a = as<F>(x);
    return each32([&](int i) {
        float f = std::nearbyint(a.v[i]);
        return f >= -2147483648.0f && f < 2147483648.0f ? int32_t(f) : INT32_MIN;
    });
}
inline __m512 add_ps(__m512 x, __m512 y) {
    F a = as<F>(x), b = as<F>(y);
    return each([&](int i) -> float { return a.v[i] + b.v[i]; });
}
inline __m512 sub_ps(__m512 x, __m512 y) {
    F a = as<F>(x), b = as<F>(y);
    return each([&](int i) -> float { return a.v[i] - b.v[i]; });
}
inline __m512 mul_ps(__m512 x, __m512 y) {
    F a = as<F>(x), b = as<F>(y);
    return each([&](int i) -> float { return a.v[i] * b.v[i]; });
}
inline __m512 div_ps(__m512 x, __m512 y) {
    F a = as<F>(x), b = as<F>(y);
    return each([&](int i) -> float { return a.v[i] / b.v[i]; });
}
inline __m512 max_ps(__m512 x, __m512 y) {
    F a = as<F>(x), b = as<F>(y);
    return each([&](int i) -> float { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline __m512 min_ps(__m512 x, __m512 y) {
    F a = as<F>(x), b = as<F>(y);
    return each([&](int i) -> float { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline __m512 scalef_ps(__m512 x, __m512 y) {
    F a = as<F>(x), b = as<F>(y);
    return each([&](int i) -> float {
        if (a.v[i] != a.v[i]) return a.v[i];
        if (b.v[i] != b.v[i]) return b.v[i];
        const float exponent = b.v[i] < -1000 ? -1000 : b.v[i] > 1000 ? 1000 : b.v[i];
        return float(std::ldexp(double(a.v[i]), int(std::floor(exponent))));
    });
}
inline __m512 fmadd_ps(__m512 x, __m512 y, __m512 z) {
    F a = as<F>(x), b = as<F>(y), c = as<F>(z);
    return each([&](int i) { return std::fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline __m512 fnmadd_ps(__m512 x, __m512 y, __m512 z) {
    F a = as<F>(x), b = as<F>(y), c = as<F>(z);
    return each([&](int i) { return std::fmaf(-a.v[i], b.v[i], c.v[i]); });
}
inline __m512 abs_ps(__m512 x) {
    F a = as<F>(x);
    return each([&](int i) { return std::fabs(a.v[i]); });
}
inline __m128i cvtepi32_epi8(__m512i x) {
    I a = as<I>(x);
    int8_t bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = int8_t(uint8_t(a.v[i]));
    __m128i r;
    std::memcpy(&r, bytes, 16);
    return r;
}
inline int reduce_add_epi32(__m512i x) {
    I a = as<I>(x);
    uint32_t sum = 0;
    for (int v : a.v) sum += uint32_t(v);
    return int(sum);
}
inline __m512 roundscale_ps(__m512 x, int) {
    F a = as<F>(x);
    return each([&](int i) { return std::nearbyintf(a.v[i]); });
}
inline float reduce_add_ps(__m512 x) {
    F a = as<F>(x);
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; ++i) a.v[i] += a.v[i + h];
    return a.v[0];
}
inline float reduce_max_ps(__m512 x) {
    F a = as<F>(x);
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; ++i) a.v[i] = a.v[i] > a.v[i + h] ? a.v[i] : a.v[i + h];
    return a.v[0];
}
inline __m512 dpbf16_ps(__m512 s, __m512bh x, __m512bh y) {
    F c = as<F>(s);
    H a = as<H>(x), b = as<H>(y);
    return each([&](int i) {
        float t = std::fmaf(daz(wide(a.v[2 * i + 1])), daz(wide(b.v[2 * i + 1])), daz(c.v[i]));
        t = daz(t);
        return daz(std::fmaf(daz(wide(a.v[2 * i])), daz(wide(b.v[2 * i])), t));
    });
}
inline __m512bh cvtne2ps_pbh(__m512 hi, __m512 lo) {
    F a = as<F>(hi), b = as<F>(lo);
    H r;
    for (int i = 0; i < 16; ++i) r.v[i] = narrow(b.v[i]), r.v[16 + i] = narrow(a.v[i]);
    return as<__m512bh>(r);
}
inline __m256bh cvtneps_pbh(__m512 x) {
    F a = as<F>(x);
    uint16_t r[16];
    for (int i = 0; i < 16; ++i) r[i] = narrow(a.v[i]);
    __m256bh o;
    std::memcpy(&o, r, 32);
    return o;
}
inline __m512i unpack16(__m512i x, __m512i y, int high) {
    H a = as<H>(x), b = as<H>(y), r;
    for (int q = 0; q < 4; ++q)
        for (int i = 0; i < 4; ++i)
            r.v[q * 8 + 2 * i] = a.v[q * 8 + 4 * high + i], r.v[q * 8 + 2 * i + 1] = b.v[q * 8 + 4 * high + i];
    return as<__m512i>(r);
}
inline __m512 permutex2var_ps(__m512 x, __m512i idx, __m512 y) {
    F a = as<F>(x), b = as<F>(y);
    I k = as<I>(idx);
    return each([&](int i) { return k.v[i] & 16 ? b.v[k.v[i] & 15] : a.v[k.v[i] & 15]; });
}
inline unsigned cmp_ps_mask(__m512 x, __m512 y, int op) {
    F a = as<F>(x), b = as<F>(y);
    unsigned m = 0;
    for (int i = 0; i < 16; ++i) {
        bool t = op == _CMP_UNORD_Q ? a.v[i] != a.v[i] || b.v[i] != b.v[i]
                 : op == _CMP_GT_OQ ? a.v[i] > b.v[i]
                                    : (__builtin_trap(), false);
        m |= unsigned(t) << i;
    }
    return m;
}
inline __m512i dpwssd(__m512i s, __m512i x, __m512i y) {
    I c = as<I>(s);
    H a = as<H>(x), b = as<H>(y);
    return each32([&](int i) {
        return int32_t(uint32_t(c.v[i]) + uint32_t(int16_t(a.v[2 * i])) * uint32_t(int16_t(b.v[2 * i])) +
                       uint32_t(int16_t(a.v[2 * i + 1])) * uint32_t(int16_t(b.v[2 * i + 1])));
    });
}
inline __m512i dpbusd(__m512i s, __m512i x, __m512i y) {
    I c = as<I>(s);
    B a = as<B>(x), b = as<B>(y);
    return each32([&](int i) {
        int32_t t = c.v[i];
        for (int k = 0; k < 4; ++k) t += int32_t(a.v[4 * i + k]) * int32_t(int8_t(b.v[4 * i + k]));
        return t;
    });
}
inline __m512i set1_epi8(int x) { return set1_epi32(int32_t(uint32_t(uint8_t(x)) * 0x01010101u)); }
inline __m512i srli_epi16(__m512i x, int n) {
    H a = as<H>(x);
    for (uint16_t& h : a.v) h = uint16_t(h >> n);
    return as<__m512i>(a);
}
inline __m512i or_si512(__m512i x, __m512i y) {
    I a = as<I>(x), b = as<I>(y);
    return each32([&](int i) { return a.v[i] | b.v[i]; });
}
inline int reduce_or_epi32(__m512i x) {
    I a = as<I>(x);
    int all = 0;
    for (int v : a.v) all |= v;
    return all;
}
inline __m512 cvtph_ps(__m256i x) {
    __m128i half[2];
    std::memcpy(half, &x, 32);
    __m256 wide[2] = {_mm256_cvtph_ps(half[0]), _mm256_cvtph_ps(half[1])};
    return as<__m512>(wide);
}
}  // namespace octavo_emulated

#undef _mm512_set1_ps
#define _mm512_set1_ps octavo_emulated::set1_ps
#undef _mm512_setzero_ps
#define _mm512_setzero_ps octavo_emulated::setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 octavo_emulated::setzero_si512
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 octavo_emulated::set1_epi32
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 octavo_emulated::setr_epi32
#undef _mm512_loadu_ps
#define _mm512_loadu_ps octavo_emulated::loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 octavo_emulated::loadu_si512
#undef _mm512_storeu_ps
#define _mm512_storeu_ps octavo_emulated::storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 octavo_emulated::storeu_si512
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps octavo_emulated::maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps octavo_emulated::mask_storeu_ps
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16 octavo_emulated::maskz_loadu_epi16_512
#undef _mm512_maskz_mov_epi16
#define _mm512_maskz_mov_epi16 octavo_emulated::maskz_mov_epi16
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16 octavo_emulated::maskz_loadu_epi16_256
#undef _mm256_mask_storeu_epi16
#define _mm256_mask_storeu_epi16 octavo_emulated::mask_storeu_epi16_256
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8 octavo_emulated::maskz_loadu_epi8_128
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps octavo_emulated::castsi512_ps
#undef _mm512_castps_si512
#define _mm512_castps_si512 octavo_emulated::castps_si512
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 octavo_emulated::slli_epi32
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 octavo_emulated::srli_epi32
#undef _mm512_and_si512
#define _mm512_and_si512 octavo_emulated::and_si512
#undef _mm512_add_epi32
#define _mm512_add_epi32 octavo_emulated::add_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 octavo_emulated::cvtepu16_epi32
#undef _mm512_cvtepi16_epi32
#define _mm512_cvtepi16_epi32 octavo_emulated::cvtepi16_epi32
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 octavo_emulated::cvtepi8_epi32
#undef _mm512_cvtepi8_epi16
#define _mm512_cvtepi8_epi16 octavo_emulated::cvtepi8_epi16
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps octavo_emulated::cvtepi32_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 octavo_emulated::cvtps_epi32
#undef _mm512_add_ps
#define _mm512_add_ps octavo_emulated::add_ps
#undef _mm512_sub_ps
#define _mm512_sub_ps octavo_emulated::sub_ps
#undef _mm512_mul_ps
#define _mm512_mul_ps octavo_emulated::mul_ps
#undef _mm512_div_ps
#define _mm512_div_ps octavo_emulated::div_ps
#undef _mm512_max_ps
#define _mm512_max_ps octavo_emulated::max_ps
#undef _mm512_min_ps
#define _mm512_min_ps octavo_emulated::min_ps
#undef _mm512_scalef_ps
#define _mm512_scalef_ps octavo_emulated::scalef_ps
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps octavo_emulated::fmadd_ps
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps octavo_emulated::fnmadd_ps
#undef _mm512_abs_ps
#define _mm512_abs_ps octavo_emulated::abs_ps
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 octavo_emulated::cvtepi32_epi8
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32 octavo_emulated::reduce_add_epi32
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps octavo_emulated::roundscale_ps
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps octavo_emulated::reduce_add_ps
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps octavo_emulated::reduce_max_ps
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps octavo_emulated::dpbf16_ps
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh octavo_emulated::cvtne2ps_pbh
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh octavo_emulated::cvtneps_pbh
#undef _mm512_unpacklo_epi16
#define _mm512_unpacklo_epi16(a, b) octavo_emulated::unpack16(a, b, 0)
#undef _mm512_unpackhi_epi16
#define _mm512_unpackhi_epi16(a, b) octavo_emulated::unpack16(a, b, 1)
#undef _mm512_permutex2var_ps
#define _mm512_permutex2var_ps octavo_emulated::permutex2var_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask octavo_emulated::cmp_ps_mask
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 octavo_emulated::dpbusd
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 octavo_emulated::set1_epi8
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 octavo_emulated::srli_epi16
#undef _mm512_or_si512
#define _mm512_or_si512 octavo_emulated::or_si512
#undef _mm512_reduce_or_epi32
#define _mm512_reduce_or_epi32 octavo_emulated::reduce_or_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps octavo_emulated::cvtph_ps
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32 octavo_emulated::dpwssd
