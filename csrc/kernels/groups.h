// Weights in groups: how they lie in memory, and the activations beside them. Private to csrc/kernels.
//
// A panel has two vectors of columns of the product (rows of the weight), so that what is read of the activations
// serves twice. It is a list of records, each a scale (and a minimum) for each column and then the codes of one group,
// or of two where the scales of one would leave the codes off a cache line. Scales come before what they scale, so that
// the panel is one forward stream.
//
//   int8 codes of a group: [group / 4][columns][4], that is, quads of k side by side for the columns.
//   int4: [group / 8][columns][4] bytes; quad j is in the low halves of bytes [j], quad j + group / 8 in the high
//   halves.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int kGroupColumns = 2 * VF::W;

// A group of a row of activations: x is about scale * code. The codes follow.
struct ActivationGroup {
    float scale;       // max |x| / 127; NaN if something in the group is not finite, and then the codes are 0
    float scaled_sum;  // scale * sum of the codes: what a minimum of 1 adds to the product
    int32_t start;     // -zero * sum of the codes: what is missing in a sum of products with codes that count from 0
    int32_t unused;
};

struct GroupLayout {
    int group, bits;
    bool minimum, half;

    constexpr GroupLayout(int group, int bits, bool minimum, bool half)
        : group(group), bits(bits), minimum(minimum), half(half) {}
    explicit GroupLayout(const WeightFormat& format)
        : GroupLayout(format.group, format.kind == WeightFormat::Kind::kInt4 ? 4 : 8, format.minimum,
                      format.half_scales) {}

    constexpr int value_bytes() const { return half ? 2 : 4; }  // of a scale or minimum
    constexpr int values_bytes() const { return kGroupColumns * value_bytes(); }
    constexpr int scales_bytes() const { return (minimum ? 2 : 1) * values_bytes(); }
    constexpr int codes_bytes() const { return kGroupColumns * group * bits / 8; }
    constexpr int record_groups() const { return scales_bytes() % 64 == 0 ? 1 : 2; }
    constexpr int record_bytes() const { return record_groups() * (scales_bytes() + codes_bytes()); }
    constexpr int codes_at() const { return record_groups() * scales_bytes(); }  // in a record

    // AVX2 multiplies 8-bit codes as 16-bit numbers: activations are kept as such, of a quad the elements 0, 2, 1, 3.
#if defined(OCTAVO_ISA_avx2)
    static constexpr bool kWide8 = true;
#else
    static constexpr bool kWide8 = false;
#endif
    constexpr bool wide() const { return kWide8 && bits == 8; }
    constexpr int activation_bytes() const { return int(sizeof(ActivationGroup)) + group * (wide() ? 2 : 1); }

    int64_t records(int64_t k) const { return (k + record_groups() * group - 1) / (record_groups() * group); }
    int64_t panel_bytes(int64_t k) const { return records(k) * record_bytes(); }
    int64_t padded_groups(int64_t k) const { return records(k) * record_groups(); }
};

// Bytes that quantise_row writes.
int64_t quantised_row_bytes(int64_t k, const WeightFormat& format);
// Rounds k floats to an ActivationGroup and codes for each padded group, those past k zero.
void quantise_row(const float* x, int64_t k, const WeightFormat& format, void* out);
// What such a row stands for: float32 [k].
void values_of_quantised_row(const void* row, int64_t k, const WeightFormat& format, float* out);

void pack_groups(const PackArgs& args, ThreadPool& pool);
void pack_panel_of_groups(const PackArgs& args, int64_t panel);  // what of the rows is in it
void embedding_groups(const EmbeddingArgs& args);
// `rows`: num_tokens quantised rows.
void linear_groups(const LinearArgs& args, const uint8_t* rows, ThreadPool& pool);
// One of them times a panel of a weight of 8 bits.
void multiply_row_int8(const LinearArgs& args, const uint8_t* row, int64_t panel, float* out);

}  // namespace octavo::OCTAVO_ISA
