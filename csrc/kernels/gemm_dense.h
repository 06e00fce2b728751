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
    static int64_t panel_elements(int64_t k) { return k * COLUMNS; }
    static int64_t panel_elements(const LinearArgs& args) { return panel_elements(args.k); }

    template <int ROWS, bool FETCH>
    static void block(const LinearArgs& args, const float* a, int64_t a_stride, const float* w, const Stream& stream,
                      KVAhead::Cursor*, VF (&sum)[ROWS][NV]) {
        const int64_t k = args.k;
        for (int64_t i = 0; i < k; ++i, w += COLUMNS) {
            if (FETCH) stream.fetch<COLUMNS * 4>(w);
            VF column[NV];
            for (int v = 0; v < NV; ++v) column[v] = VF::load(w + v * VF::W);
            for (int r = 0; r < ROWS; ++r) {
                const VF x = VF::set1(a[r * a_stride + i]);
                for (int v = 0; v < NV; ++v) sum[r][v] = fma(x, column[v], sum[r][v]);
            }
        }
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
    static int64_t panel_elements(int64_t k) { return (k + 1) / 2 * 2 * COLUMNS; }
    static int64_t panel_elements(const LinearArgs& args) { return panel_elements(args.k); }

    template <int ROWS, bool FETCH>
    static void block(const LinearArgs& args, const uint16_t* a, int64_t a_stride, const uint16_t* w,
                      const Stream& stream, KVAhead::Cursor*, VF (&sum)[ROWS][NV]) {
        const int64_t pairs = (args.k + 1) / 2;
        for (int64_t i = 0; i < pairs; ++i, w += 2 * COLUMNS) {
            if (FETCH) stream.fetch<COLUMNS * 4>(w);
            __m512bh column[NV];
            for (int v = 0; v < NV; ++v) column[v] = (__m512bh)_mm512_loadu_si512(w + 2 * v * VF::W);
            for (int r = 0; r < ROWS; ++r) {
                int32_t pair;
                std::memcpy(&pair, a + r * a_stride + 2 * i, 4);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                for (int v = 0; v < NV; ++v) sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, column[v], x);
            }
        }
    }
};

#else

// Panel [K][COLUMNS], widened to float32 as it is read; activations are never rounded.
struct Bf16Weights {
    using Activation = float;
    using Stored = uint16_t;
    static constexpr bool kLargestOnly = false;
    static constexpr int kVectors = NV, kMaxRows = MAX_ROWS, kFetchRows = MAX_ROWS;
    static int64_t panel_elements(int64_t k) { return k * COLUMNS; }
    static int64_t panel_elements(const LinearArgs& args) { return panel_elements(args.k); }

    template <int ROWS, bool FETCH>
    static void block(const LinearArgs& args, const float* a, int64_t a_stride, const uint16_t* w, const Stream& stream,
                      KVAhead::Cursor*, VF (&sum)[ROWS][NV]) {
        const int64_t k = args.k;
        for (int64_t i = 0; i < k; ++i, w += COLUMNS) {
            if (FETCH) stream.fetch<COLUMNS * 2>(w);
            VF column[NV];
            for (int v = 0; v < NV; ++v) column[v] = VF::load_bf16(w + v * VF::W);
            for (int r = 0; r < ROWS; ++r) {
                const VF x = VF::set1(a[r * a_stride + i]);
                for (int v = 0; v < NV; ++v) sum[r][v] = fma(x, column[v], sum[r][v]);
            }
        }
    }
};

#endif

}  // namespace octavo::OCTAVO_ISA
