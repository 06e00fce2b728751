// Products of activations with packed weights.
//
// A weight [N, K] is packed into panels of `NV` vectors of columns (of the product; rows of the weight). Inside a
// panel k runs outermost, so that one panel is one forward stream. Every element of the product has one accumulator
// of its own, and k runs from 0 to K with the same instruction whatever the number of rows is: the register blocks
// below differ only in how many rows they carry along. So the bits of a row depend on nothing but the row.
#include "kernels.h"
#include "ops.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

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

// Rows of one tile: their activations stay in the second-level cache while the panels stream by.
constexpr int64_t kTileBytes = 512 << 10;
// Weights of one tile at least, so that taking a tile costs nothing against computing it.
constexpr int64_t kPanelBytes = 32 << 10;

// Asks for BYTES of the next panel, into the second-level cache. Done by the last of several blocks of rows: its own
// panel is in the cache already, so memory has nothing else to do. Only if the block is full, as with few rows it
// would wait for memory itself. May pass the end of the weight: a prefetch never faults.
template <int BYTES>
inline void fetch_ahead(const void* p) {
    for (int i = 0; i < BYTES; i += 64) __builtin_prefetch(static_cast<const char*>(p) + i, 0, 2);
}

// --- float32 weights: panel [K][COLUMNS] ---------------------------------------------------------------------------

struct FloatWeights {
    using Activation = float;
    using Stored = float;
    static int64_t panel_elements(int64_t k) { return k * COLUMNS; }

    template <int ROWS, bool AHEAD>
    static void block(const float* a, int64_t a_stride, const float* w, int64_t k, VF (&sum)[ROWS][NV]) {
        for (int64_t i = 0; i < k; ++i, w += COLUMNS) {
            if (AHEAD) fetch_ahead<COLUMNS * 4>(w + k * COLUMNS);
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
    static int64_t panel_elements(int64_t k) { return (k + 1) / 2 * 2 * COLUMNS; }

    template <int ROWS, bool AHEAD>
    static void block(const uint16_t* a, int64_t a_stride, const uint16_t* w, int64_t k, VF (&sum)[ROWS][NV]) {
        const int64_t pairs = (k + 1) / 2;
        for (int64_t i = 0; i < pairs; ++i, w += 2 * COLUMNS) {
            if (AHEAD) fetch_ahead<COLUMNS * 4>(w + pairs * 2 * COLUMNS);
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
    static int64_t panel_elements(int64_t k) { return k * COLUMNS; }

    template <int ROWS, bool AHEAD>
    static void block(const float* a, int64_t a_stride, const uint16_t* w, int64_t k, VF (&sum)[ROWS][NV]) {
        for (int64_t i = 0; i < k; ++i, w += COLUMNS) {
            if (AHEAD) fetch_ahead<COLUMNS * 2>(w + k * COLUMNS);
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

// --- tiles -----------------------------------------------------------------------------------------------------------

template <class W>
struct Job {
    const LinearArgs* args;
    const typename W::Activation* a;
    int64_t a_stride;
    int64_t num_panels;
    int64_t panels_per_tile;
    int64_t tiles_per_chunk;
    int rows_per_chunk;
};

template <class W, int ROWS, bool AHEAD>
void compute_block(const Job<W>& job, int row, int64_t panel) {
    const LinearArgs& args = *job.args;
    const auto* w = static_cast<const typename W::Stored*>(args.weight) + panel * W::panel_elements(args.k);
    VF sum[ROWS][NV];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < NV; ++v) sum[r][v] = VF::zero();
    W::template block<ROWS, AHEAD>(job.a + row * job.a_stride, job.a_stride, w, args.k, sum);
    for (int v = 0; v < NV; ++v) {
        const int64_t column = panel * COLUMNS + v * VF::W;
        const int count = args.n - column < VF::W ? int(args.n - column) : VF::W;
        if (count <= 0) return;
        const VF bias = args.bias ? VF::load_n(args.bias + column, count) : VF::zero();
        for (int r = 0; r < ROWS; ++r) {
            const VF value = args.bias ? sum[r][v] + bias : sum[r][v];
            float* out = args.out + (row + r) * args.out_stride + column;
            if (count == VF::W)
                value.store(out);
            else
                value.store_n(out, count);
        }
    }
}

template <class W, int ROWS = MAX_ROWS>
void compute_rows(const Job<W>& job, int row, int count, int64_t panel, bool ahead) {
    if constexpr (ROWS > 0) {
        if (count != ROWS)
            compute_rows<W, ROWS - 1>(job, row, count, panel, ahead);
        else if (ROWS == MAX_ROWS && ahead)
            compute_block<W, ROWS, ROWS == MAX_ROWS>(job, row, panel);
        else
            compute_block<W, ROWS, false>(job, row, panel);
    }
}

template <class W>
void linear_tile(void* context, int64_t tile, int) {
    const Job<W>& job = *static_cast<const Job<W>*>(context);
    const int begin = int(tile / job.tiles_per_chunk) * job.rows_per_chunk;
    const int end =
        begin + job.rows_per_chunk < job.args->num_tokens ? begin + job.rows_per_chunk : job.args->num_tokens;
    const int64_t first = tile % job.tiles_per_chunk * job.panels_per_tile;
    const int64_t last = first + job.panels_per_tile < job.num_panels ? first + job.panels_per_tile : job.num_panels;
    const int blocks = (end - begin + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t panel = first; panel < last; ++panel) {
        int row = begin;
        for (int b = 0; b < blocks; ++b) {  // equal blocks: 9 rows are 5 + 4, not 8 + 1
            const int count = (end - row + (blocks - b) - 1) / (blocks - b);
            compute_rows<W>(job, row, count, panel, b > 0 && b == blocks - 1);
            row += count;
        }
    }
}

template <class W>
void run_linear(const LinearArgs& args, const typename W::Activation* a, int64_t a_stride, ThreadPool& pool) {
    Job<W> job{};
    job.args = &args;
    job.a = a;
    job.a_stride = a_stride;
    job.num_panels = (args.n + COLUMNS - 1) / COLUMNS;
    const int64_t row_bytes = args.k * int64_t(sizeof(typename W::Activation));
    const int64_t rows = kTileBytes / (row_bytes > 0 ? row_bytes : 1) / MAX_ROWS * MAX_ROWS;
    job.rows_per_chunk = int(rows < MAX_ROWS ? MAX_ROWS : rows < args.num_tokens ? rows : args.num_tokens);
    const int64_t panel_bytes = W::panel_elements(args.k) * int64_t(sizeof(typename W::Stored));
    const int64_t at_least = (kPanelBytes + panel_bytes - 1) / panel_bytes;
    const int64_t at_most = job.num_panels / (4 * pool.size());  // some tiles for each thread
    job.panels_per_tile = at_least < at_most ? at_least : at_most > 1 ? at_most : 1;
    job.tiles_per_chunk = (job.num_panels + job.panels_per_tile - 1) / job.panels_per_tile;
    const int64_t chunks = (args.num_tokens + job.rows_per_chunk - 1) / job.rows_per_chunk;
    pool.parallel_for(chunks * job.tiles_per_chunk, linear_tile<W>, &job);
}

// --- packing ---------------------------------------------------------------------------------------------------------

struct PackJob {
    const PackArgs* args;
};

template <class T>
void pack_panel(const PackArgs& args, int64_t panel, int64_t group) {
    // `group` elements of k lie together per column: 2 for bfloat16 pairs, else 1.
    const int64_t k_padded = (args.k + group - 1) / group * group;
    T* out = static_cast<T*>(args.packed) + panel * k_padded * COLUMNS;
    const T* in = static_cast<const T*>(args.rows);
    for (int64_t c = 0; c < COLUMNS; ++c) {
        const int64_t row = panel * COLUMNS + c - args.first_row;
        if (row < 0 || row >= args.num_rows) continue;
        const T* source = in + row * args.k;
        T* column = out + c * group;
        for (int64_t k = 0; k < args.k; ++k) column[k / group * group * COLUMNS + k % group] = source[k];
    }
}

#if defined(OCTAVO_ISA_avx512)
// The common case of bfloat16 pairs: whole 32-bit pairs move, 16 k-pairs at a time so that the panel's lines stay
// close.
void pack_pairs(const PackArgs& args, int64_t panel) {
    const int64_t pairs = args.k / 2;
    auto* out = static_cast<uint8_t*>(args.packed) + panel * pairs * COLUMNS * 4;
    const auto* in = static_cast<const uint8_t*>(args.rows);
    for (int64_t begin = 0; begin < pairs; begin += 16) {
        const int64_t end = begin + 16 < pairs ? begin + 16 : pairs;
        for (int64_t c = 0; c < COLUMNS; ++c) {
            const int64_t row = panel * COLUMNS + c - args.first_row;
            if (row < 0 || row >= args.num_rows) continue;
            const uint8_t* source = in + row * args.k * 2;
            for (int64_t i = begin; i < end; ++i) std::memcpy(out + (i * COLUMNS + c) * 4, source + i * 4, 4);
        }
    }
}
#endif

void pack_tile(void* context, int64_t tile, int) {
    const PackArgs& args = *static_cast<PackJob*>(context)->args;
    const int64_t panel = args.first_row / COLUMNS + tile;
    if (!args.bf16) return pack_panel<float>(args, panel, 1);
#if defined(OCTAVO_ISA_avx512)
    if (args.k % 2 == 0) return pack_pairs(args, panel);
    return pack_panel<uint16_t>(args, panel, 2);
#else
    pack_panel<uint16_t>(args, panel, 1);
#endif
}

// --- rounding activations --------------------------------------------------------------------------------------------

#if defined(OCTAVO_ISA_avx512)
constexpr int kRowsPerTile = 8;

void round_rows(void* context, int64_t tile, int) {
    const LinearArgs& args = *static_cast<LinearArgs*>(context);
    const int begin = int(tile) * kRowsPerTile;
    const int end = begin + kRowsPerTile < args.num_tokens ? begin + kRowsPerTile : args.num_tokens;
    const int64_t width = (args.k + 1) / 2 * 2;
    for (int row = begin; row < end; ++row) {
        const float* x = args.x + row * args.x_stride;
        uint16_t* out = static_cast<uint16_t*>(args.scratch) + row * width;
        int64_t i = 0;
        for (; i + VF::W <= args.k; i += VF::W) VF::load(x + i).store_bf16(out + i);
        if (i < args.k) VF::load_n(x + i, int(args.k - i)).store_bf16_n(out + i, int(args.k - i));
        if (width > args.k) out[args.k] = 0;
    }
}
#endif

}  // namespace

int64_t packed_bytes(int64_t n, int64_t k, bool bf16) {
    const int64_t panels = (n + COLUMNS - 1) / COLUMNS;
    return bf16 ? panels * Bf16Weights::panel_elements(k) * 2 : panels * FloatWeights::panel_elements(k) * 4;
}

size_t linear_scratch_bytes(int64_t k, int max_num_tokens, bool bf16) {
#if defined(OCTAVO_ISA_avx512)
    return bf16 ? size_t((k + 1) / 2 * 2) * size_t(max_num_tokens) * 2 : 0;
#else
    (void)k, (void)max_num_tokens, (void)bf16;
    return 0;
#endif
}

void pack(const PackArgs& args, ThreadPool& pool) {
    if (args.num_rows == 0) return;
    const int64_t first = args.first_row / COLUMNS, last = (args.first_row + args.num_rows - 1) / COLUMNS;
    PackJob job{&args};
    pool.parallel_for(last - first + 1, pack_tile, &job);
}

void linear(const LinearArgs& args, ThreadPool& pool) {
    if (args.num_tokens == 0) return;
    if (!args.bf16) return run_linear<FloatWeights>(args, args.x, args.x_stride, pool);
#if defined(OCTAVO_ISA_avx512)
    pool.parallel_for((args.num_tokens + kRowsPerTile - 1) / kRowsPerTile, round_rows, const_cast<LinearArgs*>(&args));
    run_linear<Bf16Weights>(args, static_cast<const uint16_t*>(args.scratch), (args.k + 1) / 2 * 2, pool);
#else
    run_linear<Bf16Weights>(args, args.x, args.x_stride, pool);
#endif
}

void embedding(const EmbeddingArgs& args, ThreadPool&) {
    for (int t = 0; t < args.num_tokens; ++t) {
        const int64_t row = args.token_ids[t], panel = row / COLUMNS, column = row % COLUMNS;
        float* out = args.out + t * args.k;
        if (!args.bf16) {
            const float* w = static_cast<const float*>(args.weight) + panel * FloatWeights::panel_elements(args.k);
            for (int64_t i = 0; i < args.k; ++i) out[i] = w[i * COLUMNS + column];
            continue;
        }
        const uint16_t* w = static_cast<const uint16_t*>(args.weight) + panel * Bf16Weights::panel_elements(args.k);
#if defined(OCTAVO_ISA_avx512)
        for (int64_t i = 0; i < args.k; ++i) out[i] = bf16_to_float(w[(i / 2 * COLUMNS + column) * 2 + i % 2]);
#else
        for (int64_t i = 0; i < args.k; ++i) out[i] = bf16_to_float(w[i * COLUMNS + column]);
#endif
    }
}

}  // namespace octavo::OCTAVO_ISA
