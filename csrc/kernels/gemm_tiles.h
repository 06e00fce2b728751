// The loop around every product: chunks of rows, tiles of panels, shared by all weight formats. Private to
// csrc/kernels.
//
// A weight [N, K] is packed into panels of `W::kVectors` vectors of columns (of the product; rows of the weight).
// Inside a panel k runs outermost, so that one panel is one forward stream. Every element of the product has one
// accumulator of its own, and k runs from 0 to K with the same instructions whatever the number of rows is: register
// blocks differ only in how many rows they carry along. So the bits of a row depend on nothing but the row.
//
// A format W has
//   kVectors, kMaxRows      the largest register block
//   kFetchRows              least rows of a block that is to fetch ahead
//   kLargestOnly            of each panel the largest product is stored, [rows, panels], instead of all
//   Activation, Stored      what rows of activations and panels are made of
//   panel_elements(args)    Stored elements of one panel
//   block<ROWS, FETCH>(args, a, a_stride, panel, stream, ahead, sum)
//                           sum[r][v] = rows a + r * a_stride times the panel; FETCH: the weights that `stream` says
//                           are fetched meanwhile, and what `ahead` has, unless it is null
#pragma once

#include "kernels.h"
#include "rows.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

// Rows taken at once: their activations stay in the second-level cache while the panels stream by.
constexpr int64_t kTileBytes = 512 << 10;
// Panels that a block of rows meets one after the other: they and the block stay in the first-level cache, so that the
// block is read from the second once for all of them.
constexpr int64_t kTogetherBytes = 24 << 10;
// Weights of one tile at least, so that taking a tile costs nothing against computing it.
constexpr int64_t kPanelBytes = 32 << 10;

// Fetches weights kFetchDistance ahead into the second-level cache. The first block of rows finds a panel in memory,
// and if it has many rows it computes so long on each line that the processor does not look ahead to the next ones by
// itself. With few rows it does, and is bound by memory anyway. May pass the end of the weight: a prefetch never
// faults.
constexpr int64_t kFetchDistance = 8 << 10;
struct Stream {
    const uint8_t* end;  // of the panel
    int64_t jump;        // bytes from there to the panel that comes after it

    template <int BYTES>
    [[gnu::always_inline]] void fetch(const void* w) const {
        const uint8_t* at = static_cast<const uint8_t*>(w) + kFetchDistance;
        if (at >= end) at += jump;
        for (int i = 0; i < BYTES; i += 64) prefetch_l2(at + i);
    }
};

// Fetches a few lines of the KV that attention will read, and moves on. For loops that compute longer than they read.
template <int LINES>
[[gnu::always_inline]] inline void fetch_kv(const uint8_t** at, const uint8_t* end) {
    if (*at >= end) return;
    for (int i = 0; i < LINES; ++i, *at += 64) prefetch_l2(*at);
}

template <class W>
struct LinearJob {
    const LinearArgs* args;
    const typename W::Activation* a;
    int64_t a_stride;
    int64_t num_panels;  // with kGated those of the gate; as many of up follow
    int64_t panels_per_tile;
    int64_t panels_together;
    int begin, end;  // rows
};

// Not inline: twice in the gated product, and a call is nothing beside a block. `after`: the panel that comes next.
template <class W, int ROWS, bool FETCH>
[[gnu::noinline]] void multiply_panel(const LinearJob<W>& job, int row, int64_t panel, int64_t after,
                                      KVAhead::Cursor* ahead, VF (&sum)[ROWS][W::kVectors]) {
    const LinearArgs& args = *job.args;
    const int64_t elements = W::panel_elements(args);
    const auto* w = static_cast<const typename W::Stored*>(args.weight) + panel * elements;
    const Stream stream{reinterpret_cast<const uint8_t*>(w + elements),
                        (after - panel - 1) * elements * int64_t(sizeof(typename W::Stored))};
    VF total[ROWS][W::kVectors];  // the compiler would keep sums of somebody else's in memory
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < W::kVectors; ++v) total[r][v] = VF::zero();
    if (FETCH && ahead && ahead->at >= ahead->end && ahead->seq < ahead->last_seq) args.ahead->next_block(ahead);
    W::template block<ROWS, FETCH>(args, job.a + row * job.a_stride, job.a_stride, w, stream, ahead, total);
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < W::kVectors; ++v) sum[r][v] = total[r][v];
    if (!args.bias) return;
    for (int v = 0; v < W::kVectors; ++v) {
        const int64_t column = (panel * W::kVectors + v) * VF::W;
        const int count = args.n - column < VF::W ? int(args.n - column) : VF::W;
        if (count <= 0) return;
        const VF bias = VF::load_n(args.bias + column, count);
        for (int r = 0; r < ROWS; ++r) sum[r][v] = sum[r][v] + bias;
    }
}

// The largest of the first `count` columns of a panel.
template <int NV>
float largest(const VF (&sum)[NV], int64_t count) {
    VF top = sum[0];
    if (count >= NV * VF::W) {
        for (int v = 1; v < NV; ++v) top = max(top, sum[v]);
        return lanes_max(top);
    }
    top = VF::set1(-INFINITY);
    for (int v = 0; v < NV && count > v * VF::W; ++v) {
        float lanes[VF::W];
        sum[v].store(lanes);
        for (int64_t i = count - v * VF::W; i < VF::W; ++i) lanes[i] = -INFINITY;
        top = max(top, VF::load(lanes));
    }
    return lanes_max(top);
}

template <class W, int ROWS, bool FETCH>
void compute_block(const LinearJob<W>& job, int row, int64_t panel, KVAhead::Cursor* ahead) {
    const LinearArgs& args = *job.args;
    constexpr int NV = W::kVectors;
    VF sum[ROWS][NV];
    const bool gated = args.output == LinearArgs::Output::kGated;
    multiply_panel<W, ROWS, FETCH>(job, row, panel, gated ? job.num_panels + panel : panel + 1, ahead, sum);
    if constexpr (W::kLargestOnly) {
        for (int r = 0; r < ROWS; ++r)
            args.out[(row + r) * args.out_stride + panel] = largest<NV>(sum[r], args.n - panel * NV * VF::W);
        return;
    }
    if (gated) {
        VF up[ROWS][NV];
        multiply_panel<W, ROWS, FETCH>(job, row, job.num_panels + panel, panel + 1, ahead, up);
        gate_vectors(args.activation, sum[0], up[0], ROWS * NV);
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < NV; ++v)
                sum[r][v].store(args.out + (row + r) * args.out_stride + (panel * NV + v) * VF::W);
        return;
    }
    for (int v = 0; v < NV; ++v) {
        const int64_t column = (panel * NV + v) * VF::W;
        const int count = args.n - column < VF::W ? int(args.n - column) : VF::W;
        if (count <= 0) return;
        for (int r = 0; r < ROWS; ++r) {
            float* out = args.out + (row + r) * args.out_stride + column;
            VF value = sum[r][v];
            if (args.output == LinearArgs::Output::kAdd) value = VF::load_n(out, count) + value;
            if (count == VF::W)
                value.store(out);
            else
                value.store_n(out, count);
        }
    }
}

template <class W, int ROWS = W::kMaxRows>
void compute_rows(const LinearJob<W>& job, int row, int count, int64_t panel, bool first, KVAhead::Cursor* ahead) {
    if constexpr (ROWS > 0) {
        if (count != ROWS)
            compute_rows<W, ROWS - 1>(job, row, count, panel, first, ahead);
        else if (first)
            compute_block<W, ROWS, (ROWS >= W::kFetchRows)>(job, row, panel, ahead);
        else
            compute_block<W, ROWS, false>(job, row, panel, nullptr);
    }
}

template <class W>
void linear_tile(void* context, int64_t tile, int thread) {
    const LinearJob<W>& job = *static_cast<const LinearJob<W>*>(context);
    const int begin = job.begin, end = job.end;
    const int64_t first = tile * job.panels_per_tile;
    const int64_t last = first + job.panels_per_tile < job.num_panels ? first + job.panels_per_tile : job.num_panels;
    const int blocks = (end - begin + W::kMaxRows - 1) / W::kMaxRows;
    // With one block the weights themselves keep the memory busy.
    KVAhead::Cursor* ahead = job.args->ahead && blocks > 1 ? job.args->ahead->cursor(thread) : nullptr;
    for (int64_t next = first; next < last; next += job.panels_together) {
        const int64_t stop = next + job.panels_together < last ? next + job.panels_together : last;
        int row = begin;
        for (int b = 0; b < blocks; ++b) {  // equal blocks: 9 rows are 5 + 4, not 8 + 1
            const int count = (end - row + (blocks - b) - 1) / (blocks - b);
            for (int64_t panel = next; panel < stop; ++panel) compute_rows<W>(job, row, count, panel, b == 0, ahead);
            row += count;
        }
    }
}

// Equal chunks of whole register blocks, none larger than kTileBytes if one block is not.
template <class W>
int rows_per_chunk(int num_rows, int64_t a_stride) {
    constexpr int64_t max_rows = W::kMaxRows;
    const int64_t row_bytes = a_stride * int64_t(sizeof(typename W::Activation));
    const int64_t most = kTileBytes / (row_bytes > 0 ? row_bytes : 1) / max_rows * max_rows;
    const int64_t at_most = most < max_rows ? max_rows : most;
    const int64_t chunks = (num_rows + at_most - 1) / at_most;
    const int64_t blocks = (num_rows + chunks * max_rows - 1) / (chunks * max_rows);
    return int(blocks * max_rows);
}

// As many as have kPanelBytes, but some tiles for each thread; of the sizes from there down to half of it the one that
// leaves the threads most even.
inline int64_t panels_per_tile(int64_t num_panels, int64_t panel_bytes, int64_t num_threads) {
    const int64_t at_least = (kPanelBytes + panel_bytes - 1) / panel_bytes;
    const int64_t at_most = num_panels / (4 * num_threads);
    const int64_t most = at_least < at_most ? at_least : at_most > 1 ? at_most : 1;
    int64_t best = most, least_time = INT64_MAX;
    for (int64_t panels = most; panels >= 1 && 2 * panels >= most; --panels) {
        const int64_t tiles = (num_panels + panels - 1) / panels;
        const int64_t time = (tiles + num_threads - 1) / num_threads * panels;  // of the thread with most, in panels
        if (time < least_time) best = panels, least_time = time;
    }
    return best;
}

// One row, as W has it, times one panel.
template <class W>
void multiply_row_by(const LinearArgs& args, const void* row, int64_t panel, float* out) {
    LinearJob<W> job{};
    job.args = &args;
    job.a = static_cast<const typename W::Activation*>(row);
    VF sum[1][W::kVectors];
    multiply_panel<W, 1, false>(job, 0, panel, panel + 1, nullptr, sum);
    for (int v = 0; v < W::kVectors; ++v) sum[0][v].store(out + v * VF::W);
}

template <class W>
void run_linear(const LinearArgs& args, const typename W::Activation* a, int64_t a_stride, ThreadPool& pool) {
    LinearJob<W> job{};
    job.args = &args;
    job.a = a;
    job.a_stride = a_stride;
    constexpr int columns = W::kVectors * VF::W;
    const bool gated = args.output == LinearArgs::Output::kGated;
    job.num_panels = gated ? args.n / columns / 2 : (args.n + columns - 1) / columns;
    const int64_t panel_bytes = (gated ? 2 : 1) * W::panel_elements(args) * int64_t(sizeof(typename W::Stored));
    job.panels_per_tile = panels_per_tile(job.num_panels, panel_bytes, pool.size());
    job.panels_together = panel_bytes < kTogetherBytes ? kTogetherBytes / panel_bytes : 1;
    const int64_t tiles = (job.num_panels + job.panels_per_tile - 1) / job.panels_per_tile;
    const int rows = rows_per_chunk<W>(args.num_tokens, a_stride);
    for (; job.begin < args.num_tokens; job.begin = job.end) {
        job.end = job.begin + rows < args.num_tokens ? job.begin + rows : args.num_tokens;
        pool.parallel_for(tiles, linear_tile<W>, &job);
    }
}

}  // namespace octavo::OCTAVO_ISA
