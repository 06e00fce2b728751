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
//   kFetchRows              least rows of a block that is to fetch ahead if it is the only one
//   kFetchedAtOnce          bytes of weights, between which a block looks whether more is due
//   kLargestOnly            of each panel the largest product is stored, [rows, panels], instead of all
//   Activation, Stored      what rows of activations and panels are made of
//   panel_elements(args)    Stored elements of one panel
//   block<ROWS>(args, a, a_stride, panel, stream, ahead, sum)
//                           sum[r][v] = rows a + r * a_stride times the panel; meanwhile fetches what is due in
//                           `stream`, and beside it what `ahead` has, unless it is null
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

// Fetches weights ahead of their use into the second-level cache. The first block of rows finds a panel in memory, and
// if it has many rows it computes so long on each line that the processor does not look ahead to the next ones by
// itself. Blocks after it find the panel in the cache and would leave the memory idle; so all blocks share in fetching
// what comes next, each as many bytes as make up its part. With very many of them the first one alone does: the time is
// hardly more, and the cache is left to the rows. May pass the end of the weight: a prefetch never faults.
constexpr int64_t kFetchDistance = 8 << 10;
constexpr int kMostSharing = 16;
struct Stream {
    const uint8_t* front;  // fetched so far
    const uint8_t* due;    // where in the panel to fetch more
    int64_t sharing;       // for each byte that is fetched so many are computed on, unless the front is near; 0: idle

    // For a panel at w, by one of `blocks` blocks.
    static Stream begin(const uint8_t* w, const uint8_t* front, int blocks, int64_t at_once) {
        Stream stream{front, nullptr, blocks <= kMostSharing ? blocks : kNever};
        stream.set_due(w + at_once * stream.sharing / 2);
        return stream;
    }
    static Stream idle(const uint8_t* w) { return {w + kNever, w + kNever, 0}; }

    template <int BYTES>
    [[gnu::always_inline]] void fetch() {
        for (int i = 0; i < BYTES; i += 64) prefetch_l2(front + i);
        front += BYTES;
    }
    // After `bytes` were fetched from when the product was at w.
    [[gnu::always_inline]] void fetched(const uint8_t* w, int64_t bytes) { set_due(w + bytes * sharing); }

  private:
    static constexpr int64_t kNever = int64_t{1} << 30;  // more bytes, and more sharing, than any panel has room for
    [[gnu::always_inline]] void set_due(const uint8_t* at) {
        due = at < front - kFetchDistance ? at : front - kFetchDistance;
    }
};

// Calls step(i) for i in [0, count), each of which reads BYTES of weights, the first at `weights`. Two loops, so that
// the one that does not fetch, which most are, has nothing but the steps.
constexpr int64_t kStretchBytes = 1 << 10;
template <int BYTES, class Step>
[[gnu::always_inline]] inline void stream_steps(Stream& stream, const void* weights, int64_t count, Step step) {
    const auto* w = static_cast<const uint8_t*>(weights);
    for (int64_t i = 0; i < count;) {
        const int64_t quiet = (stream.due - w + BYTES - 1) / BYTES;
        for (const int64_t stop = quiet < count ? quiet : count; i < stop; ++i) step(i);
        const int64_t first = i, stop = count - i < kStretchBytes / BYTES ? count : i + kStretchBytes / BYTES;
        for (; i < stop; ++i) {
            stream.fetch<BYTES>();
            step(i);
        }
        stream.fetched(w + first * BYTES, (i - first) * BYTES);
    }
}

// The sums of a block in registers: arrays of the caller's, read later with a variable row, lie in memory.
template <int ROWS, int NV>
struct Sums {
    VF at[ROWS][NV];

    [[gnu::always_inline]] Sums() {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) at[r][v] = VF::zero();
    }
    [[gnu::always_inline]] void store(VF (&sum)[ROWS][NV]) const {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) sum[r][v] = at[r][v];
    }
};

// How far this thread has fetched a weight, and the second half of one. What another product left is known by its
// being elsewhere; nothing but speed depends on it.
struct Fronts {
    const uint8_t* half[2];
};
inline Fronts& fronts() {
    static thread_local Fronts fronts;
    return fronts;
}

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
    int64_t most_ahead;  // bytes: a front further on is that of another product
    int blocks;          // of rows
    int begin, end;      // rows
};

// Not inline: twice in the gated product, and a call is nothing beside a block.
template <class W, int ROWS>
[[gnu::noinline]] void multiply_panel(const LinearJob<W>& job, int row, int64_t panel, const uint8_t** front,
                                      KVAhead::Cursor* ahead, VF (&sum)[ROWS][W::kVectors]) {
    const LinearArgs& args = *job.args;
    const int64_t elements = W::panel_elements(args);
    const auto* w = static_cast<const typename W::Stored*>(args.weight) + panel * elements;
    const auto* bytes = reinterpret_cast<const uint8_t*>(w);
    Stream stream = Stream::idle(bytes);
    if (job.blocks > 1 || ROWS >= W::kFetchRows) {
        const bool known = *front >= bytes && *front <= bytes + job.most_ahead;
        stream = Stream::begin(bytes, known ? *front : bytes + kFetchDistance, job.blocks, W::kFetchedAtOnce);
    }
    if (ahead && ahead->at >= ahead->end && ahead->seq < ahead->last_seq) args.ahead->next_block(ahead);
    W::template block<ROWS>(args, job.a + row * job.a_stride, job.a_stride, w, stream, ahead, sum);
    if (stream.sharing) *front = stream.front;
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

template <class W, int ROWS>
void compute_block(const LinearJob<W>& job, int row, int64_t panel, KVAhead::Cursor* ahead) {
    const LinearArgs& args = *job.args;
    constexpr int NV = W::kVectors;
    VF sum[ROWS][NV];
    const bool gated = args.output == LinearArgs::Output::kGated;
    multiply_panel<W, ROWS>(job, row, panel, &fronts().half[0], ahead, sum);
    if constexpr (W::kLargestOnly) {
        for (int r = 0; r < ROWS; ++r)
            args.out[(row + r) * args.out_stride + panel] = largest<NV>(sum[r], args.n - panel * NV * VF::W);
        return;
    }
    if (gated) {
        VF up[ROWS][NV];
        multiply_panel<W, ROWS>(job, row, job.num_panels + panel, &fronts().half[1], ahead, up);
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
void compute_rows(const LinearJob<W>& job, int row, int count, int64_t panel, KVAhead::Cursor* ahead) {
    if constexpr (ROWS > 0) {
        if (count != ROWS)
            compute_rows<W, ROWS - 1>(job, row, count, panel, ahead);
        else
            compute_block<W, ROWS>(job, row, panel, ahead);
    }
}

template <class W>
void linear_tile(void* context, int64_t tile, int thread) {
    const LinearJob<W>& job = *static_cast<const LinearJob<W>*>(context);
    const int begin = job.begin, end = job.end;
    const int64_t first = tile * job.panels_per_tile;
    const int64_t last = first + job.panels_per_tile < job.num_panels ? first + job.panels_per_tile : job.num_panels;
    const int blocks = job.blocks;
    // With one block the weights themselves keep the memory busy.
    KVAhead::Cursor* ahead = job.args->ahead && blocks > 1 ? job.args->ahead->cursor(thread) : nullptr;
    for (int64_t next = first; next < last; next += job.panels_together) {
        const int64_t stop = next + job.panels_together < last ? next + job.panels_together : last;
        int row = begin;
        for (int b = 0; b < blocks; ++b) {  // equal blocks: 9 rows are 5 + 4, not 8 + 1
            const int count = (end - row + (blocks - b) - 1) / (blocks - b);
            for (int64_t panel = next; panel < stop; ++panel) compute_rows<W>(job, row, count, panel, ahead);
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
    multiply_panel<W, 1>(job, 0, panel, &fronts().half[0], nullptr, sum);
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
    job.most_ahead = 2 * kFetchDistance + 2 * job.panels_together * panel_bytes;
    const int64_t tiles = (job.num_panels + job.panels_per_tile - 1) / job.panels_per_tile;
    const int rows = rows_per_chunk<W>(args.num_tokens, a_stride);
    for (; job.begin < args.num_tokens; job.begin = job.end) {
        job.end = job.begin + rows < args.num_tokens ? job.begin + rows : args.num_tokens;
        job.blocks = (job.end - job.begin + W::kMaxRows - 1) / W::kMaxRows;
        pool.parallel_for(tiles, linear_tile<W>, &job);
    }
}

}  // namespace octavo::OCTAVO_ISA
