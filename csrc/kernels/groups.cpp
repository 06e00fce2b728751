// Weights in groups: packing, reading rows back, and rounding activations.
#include "groups.h"

#include <type_traits>

#include "half.h"
#include "quantise.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr float kLimit = 127;

void put_value(const GroupLayout& layout, uint8_t* values, int64_t column, float value) {
    if (!layout.half) return void(std::memcpy(values + column * 4, &value, 4));
    const uint16_t half = float_to_half(value);
    std::memcpy(values + column * 2, &half, 2);
}

float get_value(const GroupLayout& layout, const uint8_t* values, int64_t column) {
    if (layout.half) {
        uint16_t half;
        std::memcpy(&half, values + column * 2, 2);
        return half_to_float(half);
    }
    float value;
    std::memcpy(&value, values + column * 4, 4);
    return value;
}

// One column's codes of one group; codes past the row's end are 0.
void put_codes(const GroupLayout& layout, uint8_t* to, int64_t column, const uint8_t* codes, int64_t count) {
    uint8_t padded[32] = {};
    if (count < layout.group) {
        std::memcpy(padded, codes, size_t(count));
        codes = padded;
    }
    const int quads = layout.group * layout.bits / 32;  // stored ones
    for (int q = 0; q < quads; ++q) {
        uint32_t quad;
        std::memcpy(&quad, codes + 4 * q, 4);
        if (layout.bits == 4) {
            uint32_t high;
            std::memcpy(&high, codes + 4 * (q + quads), 4);
            quad |= high << 4;
        }
        std::memcpy(to + (q * kGroupColumns + column) * 4, &quad, 4);
    }
}

// One column's codes of one group.
void get_codes(const GroupLayout& layout, const uint8_t* from, int64_t column, uint8_t (&codes)[32]) {
    const int stored = layout.group * layout.bits / 8;  // bytes
    for (int i = 0; i < stored; ++i) {
        const uint8_t byte = from[(i / 4 * kGroupColumns + column) * 4 + i % 4];
        codes[i] = layout.bits == 4 ? byte & 15 : byte;
        if (layout.bits == 4) codes[i + stored] = byte >> 4;
    }
}

// See GroupLayout::wide.
constexpr int place_in_wide(int element) { return element / 4 * 4 + element % 2 * 2 + element % 4 / 2; }

// Codes of GROUP activations, those from `count` on zero, and their sum. WIDE: see GroupLayout::wide.
template <int GROUP, bool WIDE>
int32_t put_activations(const float* x, int count, float scale, uint8_t* out) {
    using Code = std::conditional_t<WIDE, int16_t, int8_t>;
    Code codes[GROUP];
    for (int i = 0; i < GROUP; i += VF::W)
        quantise(x + i, count - i < 0 ? 0 : count - i, scale, kLimit, *reinterpret_cast<Code(*)[VF::W]>(codes + i));
    int32_t sum = 0;
    for (int i = 0; i < GROUP; ++i) sum += codes[i];
    if (!WIDE) std::memcpy(out, codes, sizeof codes);
    for (int i = 0; WIDE && i < GROUP; ++i) std::memcpy(out + 2 * place_in_wide(i), codes + i, 2);
    return sum;
}

#if defined(OCTAVO_ISA_avx512) || defined(OCTAVO_ISA_avx2)
// What put_group takes besides simd.h.
#if defined(OCTAVO_ISA_avx512)
using Ints = __m512i;
constexpr int kIntsTogether = 1;

inline VF absolute(VF x) { return {_mm512_abs_ps(x.v)}; }
inline bool has_nan(VF x) { return _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q) != 0; }
inline VF minus_product(VF a, VF b, VF c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
inline Ints to_ints(VF x) { return _mm512_cvtps_epi32(x.v); }
inline Ints no_ints() { return _mm512_setzero_si512(); }
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline int32_t sum_ints(Ints x) { return _mm512_reduce_add_epi32(x); }

template <bool WIDE>
void store_codes(const Ints (&codes)[kIntsTogether], uint8_t* out) {
    static_assert(!WIDE);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(codes[0]));
}
#else
using Ints = __m256i;
constexpr int kIntsTogether = 2;

inline VF absolute(VF x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.v)}; }
inline bool has_nan(VF x) { return _mm256_movemask_ps(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q)) != 0; }
inline VF minus_product(VF a, VF b, VF c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
inline Ints to_ints(VF x) { return _mm256_cvtps_epi32(x.v); }
inline Ints no_ints() { return _mm256_setzero_si256(); }
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline int32_t sum_ints(Ints x) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0b01001110));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0b10110001)));
}

// WIDE: of a quad the elements 0, 2, 1, 3, see GroupLayout::wide.
template <bool WIDE>
void store_codes(const Ints (&codes)[kIntsTogether], uint8_t* out) {
    // Packing works on the halves of vectors apart: it leaves the codes' quads in the order 0, 2, 1, 3.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes[0], codes[1]), 0b11011000);
    if constexpr (WIDE) {
        const __m256i pairs = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                               0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_shuffle_epi8(words, pairs));
    } else {
        const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
    }
}
#endif

// A whole group at once: the same scale, codes and sum. False if the scale is extreme, or none.
template <int GROUP, bool WIDE>
bool put_group(const float* x, float* scale, int32_t* sum, uint8_t* out) {
    constexpr int vectors = GROUP / VF::W, stored = kIntsTogether * VF::W * (WIDE ? 2 : 1);
    VF v[vectors], top = VF::zero(), broken = VF::zero();
    for (int i = 0; i < vectors; ++i) {
        v[i] = VF::load(x + i * VF::W);
        top = max(absolute(v[i]), top);
        broken = fma(v[i], VF::zero(), broken);  // 0 * infinity and 0 * NaN are NaN
    }
    *scale = lanes_max(top) / kLimit;
    if (has_nan(broken) || !(*scale > 1e-30f && *scale < 1e30f)) return false;
    const VF step = VF::set1(*scale), inverse = VF::set1(1.0f / *scale);
    Ints total = no_ints();
    for (int i = 0; i < vectors; i += kIntsTogether, out += stored) {
        Ints codes[kIntsTogether];
        for (int j = 0; j < kIntsTogether; ++j) {
            // The quotient, rounded as a division rounds it (Markstein 1990): a division takes three times as long.
            const VF q = v[i + j] * inverse;
            codes[j] = to_ints(fma(minus_product(q, step, v[i + j]), inverse, q));
            total = add_ints(total, codes[j]);
        }
        store_codes<WIDE>(codes, out);
    }
    *sum = sum_ints(total);
    return true;
}
#endif

template <int GROUP, bool WIDE>
void quantise_groups(const float* x, int64_t k, const GroupLayout& layout, int zero, uint8_t* to) {
    for (int64_t g = 0; g < layout.padded_groups(k); ++g, to += layout.activation_bytes()) {
        const int64_t begin = g * GROUP, left = k - begin;
        const int count = left <= 0 ? 0 : left < GROUP ? int(left) : GROUP;
        float scale = 0.0f;
        int32_t sum = 0;
        bool done = false;
#if defined(OCTAVO_ISA_avx512) || defined(OCTAVO_ISA_avx2)
        if (count == GROUP) done = put_group<GROUP, WIDE>(x + begin, &scale, &sum, to + sizeof(ActivationGroup));
#endif
        if (!done) {
            scale = integer_scale(x + begin, count, kLimit);
            sum = put_activations<GROUP, WIDE>(x + begin, count, scale, to + sizeof(ActivationGroup));
        }
        const ActivationGroup head{scale, scale * float(sum), -zero * sum, 0};
        std::memcpy(to, &head, sizeof head);
    }
}

void pack_tile(void* context, int64_t tile, int) {
    const PackArgs& args = *static_cast<const PackArgs*>(context);
    pack_panel_of_groups(args, args.first_row / kGroupColumns + tile);
}

}  // namespace

void pack_panel_of_groups(const PackArgs& args, int64_t panel) {
    const GroupLayout layout(args.format);
    const int64_t groups = args.format.groups_of(args.k);
    uint8_t* records = static_cast<uint8_t*>(args.packed) + panel * layout.panel_bytes(args.k);
    for (int64_t g = 0; g < groups; ++g) {  // outermost, so that the panel is written from front to back
        uint8_t* record = records + g / layout.record_groups() * layout.record_bytes();
        const int64_t part = g % layout.record_groups(), left = args.k - g * layout.group;
        uint8_t* values = record + part * layout.scales_bytes();
        uint8_t* codes = record + layout.codes_at() + part * layout.codes_bytes();
        for (int64_t c = 0; c < kGroupColumns; ++c) {
            const int64_t row = panel * kGroupColumns + c - args.first_row;
            if (row < 0 || row >= args.num_rows) continue;
            put_value(layout, values, c, args.scales[row * groups + g]);
            if (layout.minimum) put_value(layout, values + layout.values_bytes(), c, args.minimums[row * groups + g]);
            put_codes(layout, codes, c, static_cast<const uint8_t*>(args.rows) + row * args.k + g * layout.group,
                      left < layout.group ? left : layout.group);
        }
    }
}

void pack_groups(const PackArgs& args, ThreadPool& pool) {
    const int64_t first = args.first_row / kGroupColumns, last = (args.first_row + args.num_rows - 1) / kGroupColumns;
    pool.parallel_for(last - first + 1, pack_tile, const_cast<PackArgs*>(&args));
}

void embedding_groups(const EmbeddingArgs& args) {
    const GroupLayout layout(args.format);
    for (int t = 0; t < args.num_tokens; ++t) {
        const int64_t panel = args.token_ids[t] / kGroupColumns, column = args.token_ids[t] % kGroupColumns;
        const uint8_t* records = static_cast<const uint8_t*>(args.weight) + panel * layout.panel_bytes(args.k);
        float* out = args.out + t * args.k;
        for (int64_t begin = 0; begin < args.k; begin += layout.group) {
            const int64_t g = begin / layout.group, part = g % layout.record_groups();
            const uint8_t* record = records + g / layout.record_groups() * layout.record_bytes();
            const uint8_t* values = record + part * layout.scales_bytes();
            const float scale = get_value(layout, values, column);
            uint8_t codes[32];
            get_codes(layout, record + layout.codes_at() + part * layout.codes_bytes(), column, codes);
            const int count = args.k - begin < layout.group ? int(args.k - begin) : layout.group;
            for (int i = 0; i < count; ++i) out[begin + i] = scale * float(codes[i] - args.format.zero);
            if (!layout.minimum) continue;
            const float minimum = get_value(layout, values + layout.values_bytes(), column);
            for (int i = 0; i < count; ++i) out[begin + i] = out[begin + i] + minimum;
        }
    }
}

int64_t quantised_row_bytes(int64_t k, const WeightFormat& format) {
    const GroupLayout layout(format);
    return layout.padded_groups(k) * layout.activation_bytes();
}

void quantise_row(const float* x, int64_t k, const WeightFormat& format, void* out) {
    const GroupLayout layout(format);
    auto* to = static_cast<uint8_t*>(out);
    if (layout.bits == 8)
        return layout.group == 16 ? quantise_groups<16, GroupLayout::kWide8>(x, k, layout, format.zero, to)
                                  : quantise_groups<32, GroupLayout::kWide8>(x, k, layout, format.zero, to);
    return layout.group == 16 ? quantise_groups<16, false>(x, k, layout, format.zero, to)
                              : quantise_groups<32, false>(x, k, layout, format.zero, to);
}

void values_of_quantised_row(const void* row, int64_t k, const WeightFormat& format, float* out) {
    const GroupLayout layout(format);
    const auto* from = static_cast<const uint8_t*>(row);
    for (int64_t begin = 0; begin < k; begin += layout.group, from += layout.activation_bytes()) {
        ActivationGroup head;
        std::memcpy(&head, from, sizeof head);
        const uint8_t* codes = from + sizeof head;
        const int count = k - begin < layout.group ? int(k - begin) : layout.group;
        const VF scale = VF::set1(head.scale);
        for (int i = 0; !layout.wide() && i < count; i += VF::W) {
            const int some = count - i < VF::W ? count - i : VF::W;
            (scale * VF::load_i8_n(reinterpret_cast<const int8_t*>(codes + i), some)).store_n(out + begin + i, some);
        }
        for (int i = 0; layout.wide() && i < count; ++i) {
            int16_t code;
            std::memcpy(&code, codes + 2 * place_in_wide(i), 2);
            out[begin + i] = head.scale * float(code);
        }
    }
}

}  // namespace octavo::OCTAVO_ISA
