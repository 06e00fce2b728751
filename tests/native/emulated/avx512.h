// What the AVX512 instructions that the kernels use do, with the AVX2 ones on both halves of a vector where these do
// the same to each lane, and lane by lane where they do not.
//
// Semantics: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. Where it leaves an order open
// (a compiler's reductions), gcc's. vdpbf16ps takes denormals as zero, gives none, rounds to nearest even whatever
// MXCSR says, and adds the odd product of a pair before the even one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo_emulated {

template <class T, class S>
inline T as(const S& s) {
    static_assert(sizeof(T) == sizeof(S));
    T t;
    std::memcpy(&t, &s, sizeof t);
    return t;
}

// A vector as its two halves, lanes 0 to 7 first, or as the lanes of one type.
struct Floats {
    __m256 half[2];
    Floats(__m256 low, __m256 high) : half{low, high} {}
    Floats(__m512 v) { std::memcpy(half, &v, 64); }
    operator __m512() const { return as<__m512>(half); }
};
struct Ints {
    __m256i half[2];
    Ints(__m256i low, __m256i high) : half{low, high} {}
    Ints(__m512i v) { std::memcpy(half, &v, 64); }
    Ints(__m512bh v) { std::memcpy(half, &v, 64); }
    operator __m512i() const { return as<__m512i>(half); }
    operator __m512bh() const { return as<__m512bh>(half); }
};
template <class Lane>
struct Lanes {
    static constexpr int kCount = 64 / sizeof(Lane);
    Lane lane[kCount];
    Lanes() = default;
    template <class Vector>
    Lanes(const Vector& v) {
        static_assert(sizeof v == 64);
        std::memcpy(lane, &v, 64);
    }
    template <class Vector>
    Vector to() const {
        return as<Vector>(lane);
    }
};

template <class Of>
inline __m512 floats(Of of) {
    return Floats(of(0), of(1));
}
template <class Of>
inline __m512i ints(Of of) {
    return Ints(of(0), of(1));
}

// All ones in the lanes whose bit of the mask is set.
inline __m256i lanes_of(unsigned mask) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(mask)), bit), bit);
}

// Moves of memory.

inline __m512 loadu_ps(const void* p) {
    __m512 v;
    std::memcpy(&v, p, 64);
    return v;
}
inline __m512i loadu_si512(const void* p) {
    __m512i v;
    std::memcpy(&v, p, 64);
    return v;
}
inline void storeu_ps(void* p, __m512 v) { std::memcpy(p, &v, 64); }
inline void storeu_si512(void* p, __m512i v) { std::memcpy(p, &v, 64); }
inline __m512 maskz_loadu_ps(unsigned mask, const void* p) {
    return floats(
        [&](int h) { return _mm256_maskload_ps(static_cast<const float*>(p) + 8 * h, lanes_of(mask >> 8 * h)); });
}
inline void mask_storeu_ps(void* p, unsigned mask, __m512 v) {
    const Floats x = v;
    for (int h = 0; h < 2; ++h) _mm256_maskstore_ps(static_cast<float*>(p) + 8 * h, lanes_of(mask >> 8 * h), x.half[h]);
}
// Lanes whose bit is not set are neither read nor written: they may lie past the end of what is mapped.
template <class Vector, class Lane>
inline Vector maskz_load(uint32_t mask, const void* p) {
    constexpr int count = sizeof(Vector) / sizeof(Lane);
    Lane lanes[count] = {};
    if (mask == (count == 32 ? ~0u : (1u << count % 32) - 1)) {
        std::memcpy(lanes, p, sizeof lanes);
    } else {
        for (int i = 0; i < count; ++i)
            if (mask >> i & 1) std::memcpy(lanes + i, static_cast<const Lane*>(p) + i, sizeof(Lane));
    }
    return as<Vector>(lanes);
}
inline __m512i maskz_loadu_epi16_512(uint32_t mask, const void* p) { return maskz_load<__m512i, uint16_t>(mask, p); }
inline __m256i maskz_loadu_epi16_256(uint32_t mask, const void* p) { return maskz_load<__m256i, uint16_t>(mask, p); }
inline __m128i maskz_loadu_epi8_128(uint32_t mask, const void* p) { return maskz_load<__m128i, uint8_t>(mask, p); }
inline void mask_storeu_epi16_256(void* p, unsigned mask, __m256i v) {
    uint16_t lanes[16];
    std::memcpy(lanes, &v, 32);
    for (int i = 0; i < 16; ++i)
        if (mask >> i & 1) std::memcpy(static_cast<uint16_t*>(p) + i, lanes + i, 2);
}
inline __m512i maskz_mov_epi16(uint32_t mask, __m512i v) {
    if (mask == ~0u) return v;
    Lanes<uint16_t> x = v;
    for (int i = 0; i < 32; ++i)
        if (!(mask >> i & 1)) x.lane[i] = 0;
    return x.to<__m512i>();
}

// Constants and casts.

inline __m512 set1_ps(float x) {
    return floats([&](int) { return _mm256_set1_ps(x); });
}
inline __m512 setzero_ps() { return set1_ps(0); }
inline __m512i set1_epi32(int x) {
    return ints([&](int) { return _mm256_set1_epi32(x); });
}
inline __m512i set1_epi8(int x) {
    return ints([&](int) { return _mm256_set1_epi8(char(x)); });
}
inline __m512i setzero_si512() { return set1_epi32(0); }
template <class... A>
inline __m512i setr_epi32(A... a) {
    static_assert(sizeof...(a) == 16);
    const int32_t lanes[] = {int32_t(a)...};
    return as<__m512i>(lanes);
}
inline __m512 castsi512_ps(__m512i x) { return as<__m512>(x); }
inline __m512i castps_si512(__m512 x) { return as<__m512i>(x); }

// Integers. What does not fit is cut off.

inline __m512i slli_epi32(__m512i v, int n) {
    const Ints x = v;
    return ints([&](int h) { return _mm256_slli_epi32(x.half[h], n); });
}
inline __m512i srli_epi32(__m512i v, int n) {
    const Ints x = v;
    return ints([&](int h) { return _mm256_srli_epi32(x.half[h], n); });
}
inline __m512i srli_epi16(__m512i v, int n) {
    const Ints x = v;
    return ints([&](int h) { return _mm256_srli_epi16(x.half[h], n); });
}
inline __m512i and_si512(__m512i v, __m512i w) {
    const Ints x = v, y = w;
    return ints([&](int h) { return _mm256_and_si256(x.half[h], y.half[h]); });
}
inline __m512i or_si512(__m512i v, __m512i w) {
    const Ints x = v, y = w;
    return ints([&](int h) { return _mm256_or_si256(x.half[h], y.half[h]); });
}
inline __m512i add_epi32(__m512i v, __m512i w) {
    const Ints x = v, y = w;
    return ints([&](int h) { return _mm256_add_epi32(x.half[h], y.half[h]); });
}
inline int reduce_add_epi32(__m512i v) {
    const Lanes<uint32_t> x = v;
    uint32_t sum = 0;
    for (uint32_t lane : x.lane) sum += lane;
    return int(sum);
}
inline int reduce_or_epi32(__m512i v) {
    const Lanes<int32_t> x = v;
    int all = 0;
    for (int lane : x.lane) all |= lane;
    return all;
}
inline __m128i half_of(__m256i v, int h) { return h ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v); }
inline __m512i cvtepu16_epi32(__m256i x) {
    return ints([&](int h) { return _mm256_cvtepu16_epi32(half_of(x, h)); });
}
inline __m512i cvtepi16_epi32(__m256i x) {
    return ints([&](int h) { return _mm256_cvtepi16_epi32(half_of(x, h)); });
}
inline __m512i cvtepi8_epi32(__m128i x) {
    return ints([&](int h) { return _mm256_cvtepi8_epi32(h ? _mm_srli_si128(x, 8) : x); });
}
inline __m512i cvtepi8_epi16(__m256i x) {
    return ints([&](int h) { return _mm256_cvtepi8_epi16(half_of(x, h)); });
}
inline __m128i cvtepi32_epi8(__m512i v) {
    const Lanes<uint32_t> x = v;
    uint8_t bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = uint8_t(x.lane[i]);
    return as<__m128i>(bytes);
}
// Within each quarter of 128 bits.
inline __m512i unpacklo_epi16(__m512i v, __m512i w) {
    const Ints x = v, y = w;
    return ints([&](int h) { return _mm256_unpacklo_epi16(x.half[h], y.half[h]); });
}
inline __m512i unpackhi_epi16(__m512i v, __m512i w) {
    const Ints x = v, y = w;
    return ints([&](int h) { return _mm256_unpackhi_epi16(x.half[h], y.half[h]); });
}
inline __m512i dpwssd_epi32(__m512i sum, __m512i v, __m512i w) {
    const Ints s = sum, x = v, y = w;
    return ints([&](int h) { return _mm256_add_epi32(s.half[h], _mm256_madd_epi16(x.half[h], y.half[h])); });
}
// Unsigned bytes times signed ones. vpmaddubsw would saturate, so even and odd bytes are widened.
inline __m512i dpbusd_epi32(__m512i sum, __m512i v, __m512i w) {
    const Ints s = sum, x = v, y = w;
    return ints([&](int h) {
        const __m256i low = _mm256_set1_epi16(255);
        const __m256i even =
            _mm256_madd_epi16(_mm256_and_si256(x.half[h], low), _mm256_srai_epi16(_mm256_slli_epi16(y.half[h], 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x.half[h], 8), _mm256_srai_epi16(y.half[h], 8));
        return _mm256_add_epi32(s.half[h], _mm256_add_epi32(even, odd));
    });
}

// Floats.

inline __m512 add_ps(__m512 v, __m512 w) {
    const Floats x = v, y = w;
    return floats([&](int h) { return _mm256_add_ps(x.half[h], y.half[h]); });
}
inline __m512 sub_ps(__m512 v, __m512 w) {
    const Floats x = v, y = w;
    return floats([&](int h) { return _mm256_sub_ps(x.half[h], y.half[h]); });
}
inline __m512 mul_ps(__m512 v, __m512 w) {
    const Floats x = v, y = w;
    return floats([&](int h) { return _mm256_mul_ps(x.half[h], y.half[h]); });
}
inline __m512 div_ps(__m512 v, __m512 w) {
    const Floats x = v, y = w;
    return floats([&](int h) { return _mm256_div_ps(x.half[h], y.half[h]); });
}
inline __m512 max_ps(__m512 v, __m512 w) {
    const Floats x = v, y = w;
    return floats([&](int h) { return _mm256_max_ps(x.half[h], y.half[h]); });
}
inline __m512 min_ps(__m512 v, __m512 w) {
    const Floats x = v, y = w;
    return floats([&](int h) { return _mm256_min_ps(x.half[h], y.half[h]); });
}
inline __m512 fmadd_ps(__m512 v, __m512 w, __m512 sum) {
    const Floats x = v, y = w, s = sum;
    return floats([&](int h) { return _mm256_fmadd_ps(x.half[h], y.half[h], s.half[h]); });
}
inline __m512 fnmadd_ps(__m512 v, __m512 w, __m512 sum) {
    const Floats x = v, y = w, s = sum;
    return floats([&](int h) { return _mm256_fnmadd_ps(x.half[h], y.half[h], s.half[h]); });
}
inline __m512 abs_ps(__m512 v) {
    const Floats x = v;
    return floats([&](int h) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.half[h]); });
}
// To integers only: the upper half of vrndscaleps's immediate, a number of fraction bits, has no AVX2 counterpart.
template <int ROUNDING>
inline __m512 roundscale_ps(__m512 v) {
    static_assert(ROUNDING >= 0 && ROUNDING < 16);
    const Floats x = v;
    return floats([&](int h) { return _mm256_round_ps(x.half[h], ROUNDING); });
}
// x * 2^floor(y). A quiet NaN times 2^infinity is infinity, times 2^-infinity 0: so says the manual's table.
inline float scaled(float x, float y) {
    const bool quiet = x != x && (as<uint32_t>(x) & 1u << 22);
    if (quiet && std::isinf(y)) return y > 0 ? y : 0.0f;
    if (x != x) return x + 0.0f;
    if (y != y) return y + 0.0f;
    if (std::isinf(y)) return y > 0 ? x * y : x * 0.0f;
    // 2^500 makes infinity of every float and 2^-500 makes 0; between these the double is exact.
    return float(std::ldexp(double(x), int(std::floor(y < -500 ? -500 : y > 500 ? 500 : y))));
}
inline __m512 scalef_ps(__m512 v, __m512 w) {
    const Floats x = v, y = w;
    return floats([&](int h) {
        const __m256 down = _mm256_floor_ps(y.half[h]);
        const __m256 normal = _mm256_and_ps(_mm256_cmp_ps(down, _mm256_set1_ps(-126), _CMP_GE_OQ),
                                            _mm256_cmp_ps(down, _mm256_set1_ps(127), _CMP_LE_OQ));
        if (_mm256_movemask_ps(normal) == 255) {
            const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(down), _mm256_set1_epi32(127));
            return _mm256_mul_ps(x.half[h], _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
        }
        float a[8], b[8];
        _mm256_storeu_ps(a, x.half[h]), _mm256_storeu_ps(b, y.half[h]);
        for (int i = 0; i < 8; ++i) a[i] = scaled(a[i], b[i]);
        return _mm256_loadu_ps(a);
    });
}
// In gcc's order: the upper half comes first, which decides what becomes of NaNs and signs of zero.
inline float reduce_add_ps(__m512 v) {
    const Floats x = v;
    const __m256 eight = _mm256_add_ps(x.half[1], x.half[0]);
    const __m128 four = _mm_add_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max_ps(__m512 v) {
    const Floats x = v;
    const __m256 eight = _mm256_max_ps(x.half[1], x.half[0]);
    const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline __m512 permutex2var_ps(__m512 v, __m512i index, __m512 w) {
    const Lanes<float> x = v, y = w;
    const Lanes<uint32_t> from = index;
    Lanes<float> r;
    for (int i = 0; i < 16; ++i) r.lane[i] = (from.lane[i] & 16 ? y : x).lane[from.lane[i] & 15];
    return r.to<__m512>();
}
template <int PREDICATE>
inline __mmask16 cmp_ps_mask(__m512 v, __m512 w) {
    const Floats x = v, y = w;
    unsigned mask = 0;
    for (int h = 0; h < 2; ++h)
        mask |= unsigned(_mm256_movemask_ps(_mm256_cmp_ps(x.half[h], y.half[h], PREDICATE))) << 8 * h;
    return __mmask16(mask);
}

// Between floats and other numbers.

inline __m512 cvtepi32_ps(__m512i v) {
    const Ints x = v;
    return floats([&](int h) { return _mm256_cvtepi32_ps(x.half[h]); });
}
inline __m512i cvtps_epi32(__m512 v) {
    const Floats x = v;
    return ints([&](int h) { return _mm256_cvtps_epi32(x.half[h]); });
}
inline __m512 cvtph_ps(__m256i x) {
    return floats([&](int h) { return _mm256_cvtph_ps(half_of(x, h)); });
}
inline __m256 denormals_as_zero(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 keep = _mm256_cmp_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(0x1p-126f), _CMP_NLT_UQ);
    return _mm256_and_ps(x, _mm256_or_ps(sign, keep));
}
// The upper 16 bits, rounded to nearest even, of 8 floats; NaNs become quiet. In the low halves of 32 bits.
inline __m256i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(denormals_as_zero(x)), one = _mm256_set1_epi32(1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(1 << 22));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
}
inline __m256i narrow(__m512 v) {
    const Floats x = v;
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow(x.half[0]), narrow(x.half[1])), 0xd8);
}
inline __m512bh cvtne2ps_pbh(__m512 high, __m512 low) { return Ints(narrow(low), narrow(high)); }
inline __m256bh cvtneps_pbh(__m512 x) { return as<__m256bh>(narrow(x)); }
inline __m512 dpbf16_ps(__m512 sum, __m512bh v, __m512bh w) {
    const Floats s = sum;
    const Ints x = v, y = w;
    const auto odd = [](__m256i pairs) {
        return denormals_as_zero(_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536))));
    };
    const auto even = [](__m256i pairs) {
        return denormals_as_zero(_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
    };
    return floats([&](int h) {
        const __m256 first = _mm256_fmadd_ps(odd(x.half[h]), odd(y.half[h]), denormals_as_zero(s.half[h]));
        return denormals_as_zero(_mm256_fmadd_ps(even(x.half[h]), even(y.half[h]), denormals_as_zero(first)));
    });
}

}  // namespace octavo_emulated
