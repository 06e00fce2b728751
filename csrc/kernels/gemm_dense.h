// Weights kept as float32 or bfloat16, for the loop of gemm_tiles.h. Private to csrc/kernels.
#pragma once

#include "gemm_tiles.h"

namespace octavo::OCTAVO_ISA {

#if defined(OCTAVO_ISA_avx512)
constexpr int NV = 3;  // vectors of columns in a panel: 8 x 3 accumulators of 32 registers
constexpr int MAX_ROWS = 8;
#elif defined(OCTAVO_ISA_avx2)
constexpr int NV = 2;  // 6 x 2 accumulators of 16 registers
constexpr int MAX_ROWS = 6;
#else
constexpr int NV = 2;
constexpr int MAX_ROWS = 2;
#endif
constexpr int COLUMNS = NV * VF::W;

// --- float32 weights: panel [K][COLUMNS] ---------------------------------------------------------------------------

struct FloatWeights {
    using Activation = float;
    using Stored = float;
    static constexpr bool kLargestOnly = false;
    static constexpr int kVectors = NV, kMaxRows = MAX_ROWS, kFetchRows = MAX_ROWS;
    static constexpr int64_t kFetchedAtOnce = kStretchBytes;
    static int64_t panel_elements(int64_t k) { return k * COLUMNS; }
    static int64_t panel_elements(const LinearArgs& args) { return panel_elements(args.k); }

    template <int ROWS>
    static void block(const LinearArgs& args, const float* a, int64_t a_stride, const float* w, Stream& stream,
                      KVAhead::Cursor*, VF (&sum)[ROWS][NV]) {
        Sums<ROWS, NV> sums;
        stream_steps<COLUMNS * 4>(stream, w, args.k, [&](int64_t i) {
            VF column[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) column[v] = VF::load(w + i * COLUMNS + v * VF::W);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) {
                const VF x = VF::set1(a[r * a_stride + i]);
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) sums.at[r][v] = fma(x, column[v], sums.at[r][v]);
            }
        });
        sums.store(sum);
    }
};

// --- bfloat16 weights ------------------------------------------------------------------------------------------------

#if defined(OCTAVO_ISA_avx512)

// Panel [(K + 1) / 2][COLUMNS][2]: vdpbf16ps multiplies pairs of bfloat16 and adds both products to a float32.
// Activations are rounded to bfloat16, always; an odd K is filled up with a zero on both sides.
struct Bf16Weights {
    using Activation = uint16_t;
    using Stored = uint16_t;
    static constexpr bool kLargestOnly = false;
    static constexpr int kVectors = NV, kMaxRows = MAX_ROWS, kFetchRows = MAX_ROWS;
    static constexpr int64_t kFetchedAtOnce = kStretchBytes;
    static int64_t panel_elements(int64_t k) { return (k + 1) / 2 * 2 * COLUMNS; }
    static int64_t panel_elements(const LinearArgs& args) { return panel_elements(args.k); }

    template <int ROWS>
    static void block(const LinearArgs& args, const uint16_t* a, int64_t a_stride, const uint16_t* w, Stream& stream,
                      KVAhead::Cursor*, VF (&sum)[ROWS][NV]) {
        Sums<ROWS, NV> sums;
        stream_steps<COLUMNS * 4>(stream, w, (args.k + 1) / 2, [&](int64_t i) {
            __m512bh column[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) column[v] = (__m512bh)_mm512_loadu_si512(w + 2 * (i * COLUMNS + v * VF::W));
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) {
                int32_t pair;
                std::memcpy(&pair, a + r * a_stride + 2 * i, 4);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) sums.at[r][v].v = _mm512_dpbf16_ps(sums.at[r][v].v, column[v], x);
            }
        });
        sums.store(sum);
    }
};

#else

// Panel [K][COLUMNS], widened to float32 as it is read; activations are never rounded.
struct Bf16Weights {
    using Activation = float;
    using Stored = uint16_t;
    static constexpr bool kLargestOnly = false;
    static constexpr int kVectors = NV, kMaxRows = MAX_ROWS, kFetchRows = MAX_ROWS;
    static constexpr int64_t kFetchedAtOnce = kStretchBytes;
    static int64_t panel_elements(int64_t k) { return k * COLUMNS; }
    static int64_t panel_elements(const LinearArgs& args) { return panel_elements(args.k); }

    template <int ROWS>
    static void block(const LinearArgs& args, const float* a, int64_t a_stride, const uint16_t* w, Stream& stream,
                      KVAhead::Cursor*, VF (&sum)[ROWS][NV]) {
        Sums<ROWS, NV> sums;
        stream_steps<COLUMNS * 2>(stream, w, args.k, [&](int64_t i) {
            VF column[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) column[v] = VF::load_bf16(w + i * COLUMNS + v * VF::W);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) {
                const VF x = VF::set1(a[r * a_stride + i]);
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) sums.at[r][v] = fma(x, column[v], sums.at[r][v]);
            }
        });
        sums.store(sum);
    }
};

#endif

}  // namespace octavo::OCTAVO_ISA
