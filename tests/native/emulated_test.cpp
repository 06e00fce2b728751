// The AVX512 intrinsics that the kernels use, against what each of them does to one lane, in plain C++. With the
// emulated header before the compiler's it tests the emulation; without it and on a machine that has AVX512 it tests
// these definitions:
//   g++ -std=c++17 -O2 -Itests/native/emulated -mavx2 -mfma -mf16c tests/native/emulated_test.cpp
//   g++ -std=c++17 -O2 -march=native tests/native/emulated_test.cpp
#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
std::mt19937 random_bits(1);
int failures = 0;

template <class Lane, int BYTES = 64>
struct Lanes {
    static constexpr int kCount = BYTES / int(sizeof(Lane));
    Lane at[kCount];
    Lanes() = default;
    template <class Vector>
    Lanes(const Vector& v) {
        static_assert(sizeof v == BYTES);
        std::memcpy(at, &v, BYTES);
    }
    template <class Vector>
    operator Vector() const {
        static_assert(sizeof(Vector) == BYTES);
        Vector v;
        std::memcpy(&v, at, BYTES);
        return v;
    }
};
using F = Lanes<float>;
using I = Lanes<int32_t>;
using U = Lanes<uint32_t>;
using H = Lanes<uint16_t>;
using B = Lanes<uint8_t>;

template <class To, class From>
To bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// Equal to the bit; any NaN equals any, as which one an operation on two of them gives depends on a compiler's order.
bool same(float a, float b) { return (a != a && b != b) || bits<uint32_t>(a) == bits<uint32_t>(b); }
template <class T>
bool same(T a, T b) {
    return a == b;
}

template <class Lane, int BYTES, class Expected>
void expect(const char* name, const Lanes<Lane, BYTES>& found, Expected expected) {
    for (int i = 0; i < Lanes<Lane, BYTES>::kCount; ++i) {
        const Lane wanted = Lane(expected(i));
        if (same(found.at[i], wanted)) continue;
        if (++failures <= 20)
            std::printf("%s: lane %d is %.9g, not %.9g\n", name, i, double(found.at[i]), double(wanted));
        return;
    }
}
#define EXPECT(Type, intrinsic, arguments, lane) \
    expect<>(#intrinsic, Type(intrinsic arguments), [&]([[maybe_unused]] int i) { return lane; })

// Any bits; common numbers; edges.
float any_float() {
    static const float kEdges[] = {0.0f,          -0.0f,
                                   1.0f,          -1.0f,
                                   kInf,          -kInf,
                                   kNan,          0x1p-126f,
                                   -0x1p-126f,    0x1.fffffcp-127f,
                                   0x1p-149f,     0x1.fffffep127f,
                                   0.5f,          1.5f,
                                   2.5f,          -2.5f,
                                   0x1p31f,       -0x1p31f,
                                   127.0f,        0x1.fep127f,
                                   0x1.01p0f,     0x1.03p0f,
                                   0x1.010002p0f, -126.5f,
                                   128.0f};
    const uint32_t draw = random_bits();
    if (draw % 4 == 0) return bits<float>(uint32_t(random_bits()));
    if (draw % 4 == 1) return kEdges[random_bits() % (sizeof kEdges / sizeof *kEdges)];
    return std::ldexp(float(int32_t(random_bits())), -int(random_bits() % 40));
}
F any_floats() {
    F x;
    for (float& lane : x.at) lane = any_float();
    return x;
}
template <class Lane, int BYTES = 64>
Lanes<Lane, BYTES> any() {
    Lanes<Lane, BYTES> x;
    for (Lane& lane : x.at) lane = Lane(random_bits() % 8 ? random_bits() : random_bits() % 2 ? ~0u : 1u << 31);
    return x;
}

float as_zero_if_denormal(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
float widened(uint16_t bf16) { return as_zero_if_denormal(bits<float>(uint32_t(bf16) << 16)); }
uint16_t narrowed(float x) {
    const uint32_t b = bits<uint32_t>(as_zero_if_denormal(x));
    if (x != x) return uint16_t(b >> 16 | 0x40);
    return uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
float dot_of_pair(float sum, const uint16_t* x, const uint16_t* y) {
    const float first = std::fmaf(widened(x[1]), widened(y[1]), as_zero_if_denormal(sum));
    return as_zero_if_denormal(std::fmaf(widened(x[0]), widened(y[0]), as_zero_if_denormal(first)));
}
float scaled(float x, float y) {
    if (x != x && std::isinf(y)) return bits<uint32_t>(x) & 1u << 22 ? (y > 0 ? y : 0.0f) : x;
    if (x != x || y != y) return kNan;
    const double power = std::isinf(y) ? double(y) : std::floor(std::fmin(std::fmax(double(y), -500.0), 500.0));
    return float(double(x) * std::exp2(power));
}
int32_t rounded(float x) {
    return x >= -0x1p31f && x < 0x1p31f ? int32_t(std::nearbyint(double(x))) : std::numeric_limits<int32_t>::min();
}

void test_floats() {
    const F a = any_floats(), b = any_floats(), c = any_floats();
    EXPECT(F, _mm512_add_ps, (a, b), a.at[i] + b.at[i]);
    EXPECT(F, _mm512_sub_ps, (a, b), a.at[i] - b.at[i]);
    EXPECT(F, _mm512_mul_ps, (a, b), a.at[i] * b.at[i]);
    EXPECT(F, _mm512_div_ps, (a, b), a.at[i] / b.at[i]);
    EXPECT(F, _mm512_max_ps, (a, b), a.at[i] > b.at[i] ? a.at[i] : b.at[i]);
    EXPECT(F, _mm512_min_ps, (a, b), a.at[i] < b.at[i] ? a.at[i] : b.at[i]);
    EXPECT(F, _mm512_fmadd_ps, (a, b, c), std::fmaf(a.at[i], b.at[i], c.at[i]));
    EXPECT(F, _mm512_fnmadd_ps, (a, b, c), std::fmaf(-a.at[i], b.at[i], c.at[i]));
    EXPECT(F, _mm512_abs_ps, (a), std::fabs(a.at[i]));
    EXPECT(F, _mm512_scalef_ps, (a, b), scaled(a.at[i], b.at[i]));
    F whole;
    for (int i = 0; i < 16; ++i) whole.at[i] = float(int(random_bits() % 300) - 150);
    EXPECT(F, _mm512_scalef_ps, (a, whole), scaled(a.at[i], whole.at[i]));
    EXPECT(F, _mm512_roundscale_ps, (a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), std::nearbyintf(a.at[i]));
    EXPECT(F, _mm512_roundscale_ps, (a, _MM_FROUND_TO_NEG_INF), std::floor(a.at[i]));
    EXPECT(I, _mm512_cvtps_epi32, (a), rounded(a.at[i]));
    EXPECT(F, _mm512_set1_ps, (a.at[3]), a.at[3]);
    EXPECT(F, _mm512_setzero_ps, (), 0.0f);
    EXPECT(I, _mm512_castps_si512, (a), bits<int32_t>(a.at[i]));
    EXPECT(F, _mm512_castsi512_ps, (I(__m512i(U(__m512(a))))), a.at[i]);
    const U from = any<uint32_t>();
    EXPECT(F, _mm512_permutex2var_ps, (a, from, b), (from.at[i] & 16 ? b : a).at[from.at[i] & 15]);

    const unsigned unordered = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), more = _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
    EXPECT(I, _mm512_set1_epi32, (int(unordered)), [&] {
        unsigned mask = 0;
        for (int k = 0; k < 16; ++k) mask |= unsigned(a.at[k] != a.at[k] || b.at[k] != b.at[k]) << k;
        return int32_t(mask);
    }());
    EXPECT(I, _mm512_set1_epi32, (int(more)), [&] {
        unsigned mask = 0;
        for (int k = 0; k < 16; ++k) mask |= unsigned(a.at[k] > b.at[k]) << k;
        return int32_t(mask);
    }());
    // The upper half is the first operand of each step, as in gcc's header.
    F sums = a, tops = a;
    for (int h = 8; h > 0; h /= 2)
        for (int i = 0; i < h; ++i) {
            const bool first = h < 4;  // gcc turns the last two steps round: lane 0 comes first
            const float x = tops.at[first ? i : i + h], y = tops.at[first ? i + h : i];
            tops.at[i] = x > y ? x : y;
            sums.at[i] += sums.at[i + h];
        }
    EXPECT(F, _mm512_set1_ps, (_mm512_reduce_add_ps(a)), sums.at[0]);
    EXPECT(F, _mm512_set1_ps, (_mm512_reduce_max_ps(a)), tops.at[0]);
}

void test_bfloat16() {
    const F a = any_floats(), b = any_floats();
    const Lanes<uint16_t, 32> one = _mm512_cvtneps_pbh(a);
    expect("_mm512_cvtneps_pbh", one, [&](int i) { return narrowed(a.at[i]); });
    EXPECT(H, _mm512_cvtne2ps_pbh, (a, b), narrowed(i < 16 ? b.at[i] : a.at[i - 16]));
    H x = any<uint16_t>(), y = any<uint16_t>();
    for (int i = 0; i < 32; ++i) {
        if (random_bits() % 2) x.at[i] = narrowed(any_float());
        if (random_bits() % 2) y.at[i] = narrowed(any_float());
    }
    EXPECT(F, _mm512_dpbf16_ps, (a, __m512bh(x), __m512bh(y)), dot_of_pair(a.at[i], x.at + 2 * i, y.at + 2 * i));
}

void test_integers() {
    const U a = any<uint32_t>(), b = any<uint32_t>(), c = any<uint32_t>();
    const H ah = __m512i(a), bh = __m512i(b);
    const B ab = __m512i(a), bb = __m512i(b);
    EXPECT(U, _mm512_add_epi32, (a, b), a.at[i] + b.at[i]);
    EXPECT(U, _mm512_and_si512, (a, b), a.at[i] & b.at[i]);
    EXPECT(U, _mm512_or_si512, (a, b), a.at[i] | b.at[i]);
    EXPECT(U, _mm512_slli_epi32, (a, 16), a.at[i] << 16);
    EXPECT(U, _mm512_slli_epi32, (a, 23), a.at[i] << 23);
    EXPECT(U, _mm512_slli_epi32, (a, 32), 0u);
    EXPECT(U, _mm512_srli_epi32, (a, 7), a.at[i] >> 7);
    EXPECT(H, _mm512_srli_epi16, (a, 4), ah.at[i] >> 4);
    EXPECT(U, _mm512_set1_epi32, (-5), uint32_t(-5));
    EXPECT(B, _mm512_set1_epi8, (-5), uint8_t(-5));
    EXPECT(U, _mm512_setzero_si512, (), 0u);
    EXPECT(I, _mm512_setr_epi32, (8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, -1, 29, 30, 31),
           (i < 4     ? 8 + i
            : i < 8   ? 20 + i
            : i < 12  ? 4 + i
            : i == 12 ? -1
                      : 16 + i));
    EXPECT(F, _mm512_cvtepi32_ps, (a), float(int32_t(a.at[i])));
    EXPECT(U, _mm512_cvtepu16_epi32, (_mm256_loadu_si256((const __m256i*)&a)), ah.at[i]);
    EXPECT(I, _mm512_cvtepi16_epi32, (_mm256_loadu_si256((const __m256i*)&a)), int16_t(ah.at[i]));
    EXPECT(I, _mm512_cvtepi8_epi32, (_mm_loadu_si128((const __m128i*)&a)), int8_t(ab.at[i]));
    EXPECT(Lanes<int16_t>, _mm512_cvtepi8_epi16, (_mm256_loadu_si256((const __m256i*)&a)), int8_t(ab.at[i]));
    const Lanes<uint8_t, 16> cut = _mm512_cvtepi32_epi8(a);
    expect("_mm512_cvtepi32_epi8", cut, [&](int i) { return uint8_t(a.at[i]); });
    EXPECT(H, _mm512_unpacklo_epi16, (a, b), (i & 1 ? bh : ah).at[(i & ~7) + (i & 7) / 2]);
    EXPECT(H, _mm512_unpackhi_epi16, (a, b), (i & 1 ? bh : ah).at[(i & ~7) + 4 + (i & 7) / 2]);
    EXPECT(U, _mm512_dpwssd_epi32, (c, a, b), [&] {
        uint32_t sum = c.at[i];
        for (int k = 2 * i; k < 2 * i + 2; ++k) sum += uint32_t(int32_t(int16_t(ah.at[k])) * int16_t(bh.at[k]));
        return sum;
    }());
    EXPECT(U, _mm512_dpbusd_epi32, (c, a, b), [&] {
        uint32_t sum = c.at[i];
        for (int k = 4 * i; k < 4 * i + 4; ++k) sum += uint32_t(int32_t(ab.at[k]) * int8_t(bb.at[k]));
        return sum;
    }());
    uint32_t sum = 0, all = 0;
    for (uint32_t lane : a.at) sum += lane, all |= lane;
    EXPECT(U, _mm512_set1_epi32, (_mm512_reduce_add_epi32(a)), sum);
    EXPECT(U, _mm512_set1_epi32, (_mm512_reduce_or_epi32(a)), all);
    Lanes<uint16_t, 32> quarter;
    std::memcpy(&quarter, &a, 32);
    const __m256i halves = quarter;
    EXPECT(F, _mm512_cvtph_ps, (halves), _cvtsh_ss(quarter.at[i]));
    const uint32_t mask = random_bits() % 8 ? random_bits() : ~0u;
    EXPECT(H, _mm512_maskz_mov_epi16, (mask, a), (mask >> i & 1 ? ah.at[i] : 0));
}

// Memory that ends at a page which may not be touched, and lanes whose bit is not set that lie on that page.
class Edge {
  public:
    Edge() {
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        auto* pages =
            static_cast<uint8_t*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE) != 0) std::abort();
        end_ = pages + page;
    }
    // `size` bytes of these, which are the last there are.
    uint8_t* last(const uint8_t* from, int size) const {
        if (size > 0) std::memcpy(end_ - size, from, size_t(size));
        return end_ - size;
    }

  private:
    uint8_t* end_;
};

void test_memory(const Edge& edge) {
    const U a = any<uint32_t>();
    const H ah = __m512i(a);
    const B ab = __m512i(a);
    const __m512 af = __m512(a);
    for (int n = 0; n <= 16; ++n) {
        const auto mask = __mmask16(random_bits() & ((1u << n) - 1));
        EXPECT(U, _mm512_maskz_loadu_ps, (mask, edge.last(ab.at, 4 * n)), (mask >> i & 1 ? a.at[i] : 0u));
        const Lanes<uint16_t, 32> words = _mm256_maskz_loadu_epi16(mask, edge.last(ab.at, 2 * n));
        expect("_mm256_maskz_loadu_epi16", words, [&](int i) { return mask >> i & 1 ? ah.at[i] : 0; });
        const Lanes<uint8_t, 16> bytes = _mm_maskz_loadu_epi8(mask, edge.last(ab.at, n));
        expect("_mm_maskz_loadu_epi8", bytes, [&](int i) { return mask >> i & 1 ? ab.at[i] : 0; });

        uint8_t before[64], stored[64] = {};
        for (uint8_t& byte : before) byte = uint8_t(random_bits());
        uint8_t* at = edge.last(before, 4 * n);
        _mm512_mask_storeu_ps(at, mask, af);
        std::memcpy(stored, at, size_t(4 * n));
        EXPECT(B, _mm512_loadu_si512, (stored), (i >= 4 * n ? 0 : mask >> i / 4 & 1 ? ab.at[i] : before[i]));
        at = edge.last(before, 2 * n);
        _mm256_mask_storeu_epi16(at, mask, _mm256_loadu_si256((const __m256i*)&a));
        std::memset(stored, 0, sizeof stored);
        std::memcpy(stored, at, size_t(2 * n));
        EXPECT(B, _mm512_loadu_si512, (stored), (i >= 2 * n ? 0 : mask >> i / 2 & 1 ? ab.at[i] : before[i]));
    }
    for (int n = 0; n <= 32; ++n) {
        const auto mask = __mmask32(random_bits() % 2 || n < 32 ? random_bits() & ((uint64_t{1} << n) - 1) : ~0u);
        EXPECT(H, _mm512_maskz_loadu_epi16, (mask, edge.last(ab.at, 2 * n)), (mask >> i & 1 ? ah.at[i] : 0));
    }
    uint8_t bytes[80];
    _mm512_storeu_ps(bytes + 5, af);
    EXPECT(U, _mm512_loadu_ps, (bytes + 5), a.at[i]);
    _mm512_storeu_si512(bytes + 3, __m512i(a));
    EXPECT(U, _mm512_loadu_si512, (bytes + 3), a.at[i]);
}

}  // namespace

int main() {
    const Edge edge;
    for (int round = 0; round < 20000; ++round) {
        test_floats(), test_bfloat16(), test_integers();
        if (round % 20 == 0) test_memory(edge);
    }
    if (failures) std::printf("%d failures\n", failures);
    return failures != 0;
}
