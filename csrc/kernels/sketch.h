// A sketch: what a head's rows are about, in 4 bits and in few directions exactly, and how far off that can be. Private
// to csrc/kernels.
//
// As a screen (screen.h) it bounds products of a row x with the head's rows w, for heads that a screen of 8 bits would
// not be smaller than. 4 bits alone leave too much open, but neither w nor x are just anything. All w have a part in
// common, in a language model often half of their squares; and most of x lies in few directions, which are learned
// from rows that came before (csrc/sketch.h). With H an orthogonal matrix that turns the common part to the first axis
// and those directions to the next ones, x . w = Hx . Hw, of which
//
//     the first product        is known, but for rounding;
//     those in the directions  nearly: Hw has 8 bits there, and a scale for each row;
//     the rest                 is a product of integers, a of 8 and b of 4 bits in groups. It is off by at most
//                              |x' - a| |w'| + |a| |w' - b|, where x' and w' are the rest of Hx and Hw.
//
// H is a product of reflections x - (v . x) v, |v|^2 = 2, so that it is orthogonal whatever was learned.
//
// A panel has the columns of those of the head: the rest as weights in groups (groups.h), kSketchFormat; the codes of
// the directions, [direction][column]; and as float32 [4][column] the first of Hw, the directions' scale, |w|, and the
// larger of |w' - b| and kDirectionsFor times what the directions are off.
#pragma once

#include "choose.h"
#include "gemm_groups.h"

namespace octavo::OCTAVO_ISA {

constexpr WeightFormat kSketchFormat{WeightFormat::Kind::kInt4, 32, 8, false, true};
// Codes of the directions are so much finer that this many times their error is mostly below that of the rest.
constexpr float kDirectionsFor = 16;

// A row of activations: x' is about the quantised row that follows after the directions, as float32.
struct SketchRow {
    float first;
    float per_norm;  // |x' - a|, and more for what rounds: times |w|
    float per_lost;  // |a| and the size in the directions, and more: times what is lost
};

inline int64_t rest_of(int64_t k) { return k - 1 - num_directions(k); }
inline int64_t sketch_panels(int64_t n) { return (n + kGroupColumns - 1) / kGroupColumns; }
inline int64_t sketched_codes_bytes(int64_t k) { return GroupLayout(kSketchFormat).panel_bytes(rest_of(k)); }
inline int64_t sketch_panel_bytes(int64_t k) {
    return (sketched_codes_bytes(k) + (num_directions(k) + 16) * kGroupColumns + 63) / 64 * 64;
}
inline int64_t sketch_row_head_bytes(int64_t k) { return int64_t(sizeof(SketchRow)) + 4 * num_directions(k); }
inline int64_t sketch_row_bytes(int64_t k) {
    return sketch_row_head_bytes(k) + quantised_row_bytes(rest_of(k), kSketchFormat);
}

// What no product with a row of the head is larger than, for the loop of gemm_tiles.h. Of each panel only the largest
// is kept.
struct SketchWeights {
    using Codes = GroupWeights<4, 32, false, true>;
    using Activation = uint8_t;
    using Stored = uint8_t;
    static constexpr bool kLargestOnly = true;
    // What is known of the directions keeps the processor from looking ahead over the end of a panel.
    static constexpr int kVectors = Codes::kVectors, kMaxRows = Codes::kMaxRows, kFetchRows = 1;
    static constexpr int64_t kFetchedAtOnce = Codes::kFetchedAtOnce;
    static int64_t panel_elements(const LinearArgs& args) { return sketch_panel_bytes(args.k); }

    template <int ROWS>
    static void block(const LinearArgs& args, const uint8_t* a, int64_t a_stride, const uint8_t* w, Stream& stream,
                      KVAhead::Cursor*, VF (&sum)[ROWS][kVectors]) {
        const int64_t k = args.k, count = num_directions(k);
        LinearArgs rest = args;
        rest.k = rest_of(k);
        Codes::block<ROWS>(rest, a + sketch_row_head_bytes(k), a_stride, w, stream, nullptr, sum);
        const auto* codes = reinterpret_cast<const int8_t*>(w + sketched_codes_bytes(k));
        const auto* values = reinterpret_cast<const float*>(codes + count * kGroupColumns);
        for (int r = 0; r < ROWS; ++r, a += a_stride) {
            SketchRow head;
            std::memcpy(&head, a, sizeof head);
            VF known[kVectors][2] = {{VF::zero(), VF::zero()}, {VF::zero(), VF::zero()}};
            const auto add = [&](int64_t d, int which) {
                float x;
                std::memcpy(&x, a + sizeof head + 4 * d, 4);
#pragma GCC unroll 2
                for (int v = 0; v < kVectors; ++v)
                    known[v][which] =
                        fma(VF::set1(x), VF::load_i8(codes + d * kGroupColumns + v * VF::W), known[v][which]);
            };
            int64_t d = 0;
            for (; d + 1 < count; d += 2) add(d, 0), add(d + 1, 1);
            if (d < count) add(d, 0);
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
                const auto value = [&](int which) { return VF::load(values + which * kGroupColumns + v * VF::W); };
                const VF room = fma(value(2), VF::set1(head.per_norm), VF::set1(kTiny));
                const VF most = fma(value(3), VF::set1(head.per_lost), room);
                const VF directions = fma(known[v][0] + known[v][1], value(1), most);
                sum[r][v] = sum[r][v] + fma(VF::set1(head.first), value(0), directions);
            }
        }
    }
};

}  // namespace octavo::OCTAVO_ISA
