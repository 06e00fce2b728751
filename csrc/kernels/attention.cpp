// Paged attention (Kwon et al. 2023, section 4.1) over blocks laid out as kv_layout.h says.
//
// Arithmetic. A row (one query head of one new token) reduces over absolute pieces of kPiece tokens: each piece gives
// a maximum, a sum and weighted values relative to that maximum; pieces are joined in ascending order. Prefill and
// decode, any chunking, block size, batch and number of threads go through the same steps with the same operands, so a
// row's bits depend on its query and its sequence's KV alone.
//
// Work. A *tile* is a stretch of a sequence's new tokens for one KV head. Threads take *entries*: a tile for some KV
// heads, or, where tiles are too few or too uneven for the threads, one head and some of its pieces; those leave their
// pieces unjoined in scratch memory, and whoever computes the last of a tile's entries joins them.
#include "attention_values.h"
#include "ops.h"
#include "quantise.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kTileRows = 96;  // rows that share one pass over keys and values
// Evenness wanted. Heads are taken apart, which costs nothing, until no entry is above 1 / (32 * threads) of the work;
// pieces, which then have to be joined, until none is much above 1 / (8 * threads).
constexpr int kHeadEntriesPerThread = 32;
constexpr int kEntriesPerThread = 8;

struct Entry {
    int seq;
    int first_token, num_tokens;  // of the step
    int first_position;           // of first_token
    int head_begin, head_end;
    int piece_begin, piece_end;
    int64_t partial;  // first slot of its tile's unjoined pieces, or -1
    int64_t split;    // its tile among the splits, if the pieces are unjoined
    int tile_piece;   // the tile's first piece
    int64_t cost;
};

// One thread's memory.
struct Workspace {
    float* query;         // [rows, query_units]: see prepare_query
    float* query_scales;  // [rows], with int8
    float* out;           // [rows, head_dim]
    float* row_max;       // [rows]
    float* row_sum;       // [rows]
    float* scores;        // [kRows, kPiece]
    uint8_t* gathered;    // keys of one piece, for blocks shorter than a vector
    float* scales;        // int8: those of one piece's keys, then of its values
};

struct Job {
    const AttentionArgs* args;
    int group;      // query heads per KV head
    int tile_rows;  // most rows of a tile
    uint8_t* workspaces;
    int64_t workspace_bytes;
    Entry* entries;
    int64_t num_entries;
    Entry* splits;  // whole tiles whose pieces are computed apart
    int64_t num_splits;
    int32_t* unfinished;  // of each split, its entries that are not computed yet; several threads count it down
    float* partials;      // slots of slot_floats: maximum, sum, padding, values
    int64_t slot_floats;
    int64_t num_slots;
};

constexpr int kSlotHeader = 16;  // floats before a slot's values, so that these are aligned
constexpr int64_t kMaxPartialBytes = 32 << 20;

int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int tile_rows_of(int group) { return max_int(kTileRows, group); }

// 32-bit units kept for a query: one for each dim at most, and whole vectors, as it is written in such.
int64_t query_units(const KVPool& kv) { return div_up(kv.head_dim, 16) * 16; }

// Lays a workspace out at `base`, or only measures it when base is null.
int64_t lay_out(const KVPool& kv, int tile_rows, uint8_t* base, Workspace* w) {
    const int64_t query = align64(int64_t{tile_rows} * query_units(kv) * 4);
    const int64_t out = align64(int64_t{tile_rows} * kv.head_dim * 4);
    const int64_t per_row = align64(int64_t{tile_rows} * 4);
    const int64_t scores = int64_t{kRows} * kPiece * 4;
    const int64_t scales = kv.dtype == KVDtype::kInt8 ? 2 * int64_t{kPiece} * 4 : 0;
    if (base) {
        w->query = reinterpret_cast<float*>(base);
        w->out = reinterpret_cast<float*>(base + query);
        w->row_max = reinterpret_cast<float*>(base + query + out);
        w->row_sum = reinterpret_cast<float*>(base + query + out + per_row);
        w->query_scales = reinterpret_cast<float*>(base + query + out + 2 * per_row);
        w->scores = reinterpret_cast<float*>(base + query + out + 3 * per_row);
        w->scales = reinterpret_cast<float*>(base + query + out + 3 * per_row + scores);
        w->gathered = base + query + out + 3 * per_row + scores + scales;
    }
    const int64_t gathered = kv.block_size < VF::W ? align64(int64_t{kPiece} * (kv.head_dim + 1) * 4) : 0;
    return query + out + 3 * per_row + scores + scales + gathered;
}

// Visible tokens [begin, end) of the token at `position`.
int visible_begin(const AttentionArgs& a, int position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}
int visible_end(int position) { return position + 1; }

// --- One piece ---------------------------------------------------------------------------------------------------

// Finds the runs of tokens [lo, hi) of a piece, and, unless blocks are shorter than a vector, its vectors.
void locate(const AttentionArgs& a, int seq, int head, int piece, int lo, int hi, PieceView* view) {
    const KVPool& kv = *a.kv;
    const int32_t* table = table_row(kv, a.layer, a.batch_rows[seq]);
    const int run_length = min_int(kv.block_size, kPiece);
    const int64_t item = element_bytes(kv.dtype);
    const int64_t run_offset = int64_t{piece} * kPiece % kv.block_size;  // 0 unless blocks are longer than a piece
    const int first_run = lo / run_length, last_run = (hi - 1) / run_length;
    view->lo = lo;
    view->hi = hi;
    for (int i = first_run; i <= last_run; ++i) {
        const int64_t token = int64_t{piece} * kPiece + i * run_length;
        const uint8_t* keys = head_keys(kv, table[token / kv.block_size], a.layer, head);
        view->key_runs[i] = keys;
        view->value_runs[i] = keys + (head_elements(kv) + run_offset * kv.head_dim) * item;
        view->scale_runs[i] = keys - scale_bytes(kv) + run_offset * 4;
    }
    const int num_runs = kPiece / run_length;
    for (int i = 0; i < first_run; ++i) view->value_runs[i] = view->value_runs[first_run];
    for (int i = last_run + 1; i < num_runs; ++i) view->value_runs[i] = view->value_runs[last_run];
    if (kv.block_size < VF::W) return;

    const int64_t strip = strip_length(kv), step_item = step_item_bytes(kv.dtype);
    view->step_bytes = strip * step_item;
    for (int v = 0; v < kVectors; ++v) {
        const int t = min_int(max_int(v, lo / VF::W), (hi - 1) / VF::W) * VF::W;
        const int64_t offset = run_offset + t % run_length, place = offset % strip;
        const uint8_t* keys = view->key_runs[t / run_length] + (offset - place) * kv.head_dim * item;
        view->keys[v] = keys + place * step_item;
        view->tails[v] = keys + kv.head_dim / 2 * view->step_bytes + place * step_item / 2;
    }
}

// Fetches the scales of a piece into L2; its keys and values follow bit by bit while the piece before is computed.
void prefetch_scales(const KVPool& kv, const PieceView& view) {
    const int run_length = min_int(kv.block_size, kPiece);
    for (int i = view.lo / run_length; i * run_length < view.hi; ++i)
        for (int which = 0; which < 2; ++which)
            for (int b = 0; b < run_length * 4; b += 64)
                prefetch_l2(view.scale_runs[i] + int64_t{which} * kv.block_size * 4 + b);
}

// Copies the scales of a piece into `to`, the keys' and then the values'.
void gather_scales(const KVPool& kv, PieceView* view, float* to) {
    const int run_length = min_int(kv.block_size, kPiece);
    for (int i = view->lo / run_length; i * run_length < view->hi; ++i)
        for (int64_t which = 0; which < 2; ++which)
            std::memcpy(to + which * kPiece + i * run_length, view->scale_runs[i] + which * kv.block_size * 4,
                        size_t(run_length) * 4);
    view->key_scales = to;
    view->value_scales = to + kPiece;
}

// Copies the keys of a piece in blocks shorter than a vector into one stretch of kPiece tokens per step.
void gather(const KVPool& kv, PieceView* view, uint8_t* to) {
    const int run_length = kv.block_size;
    const int64_t item = step_item_bytes(kv.dtype);
    const bool pairs = pairs_dims(kv.dtype);
    const int steps = pairs ? kv.head_dim / 2 : kv.head_dim;
    view->step_bytes = kPiece * item;
    uint8_t* tails = to + steps * view->step_bytes;
    for (int i = view->lo / run_length; i * run_length < view->hi; ++i) {
        const uint8_t* from = view->key_runs[i];
        for (int s = 0; s < steps; ++s)
            std::memcpy(to + s * view->step_bytes + i * run_length * item, from + s * run_length * item,
                        size_t(run_length * item));
        if (pairs && kv.head_dim % 2)
            std::memcpy(tails + i * run_length * item / 2, from + steps * run_length * item,
                        size_t(run_length * item / 2));
    }
    for (int v = 0; v < kVectors; ++v) {
        const int t = min_int(max_int(v, view->lo / VF::W), (view->hi - 1) / VF::W) * VF::W;
        view->keys[v] = to + t * item;
        view->tails[v] = tails + t * item / 2;
    }
}

// --- Rows of a tile ----------------------------------------------------------------------------------------------

// What an entry computes for one KV head.
struct HeadTile {
    const Job* job;
    const Entry* entry;
    int head;
    int num_rows;
    Workspace w;

    int position(int row) const { return entry->first_position + row / job->group; }
    int lo(int row, int piece) const { return max_int(0, visible_begin(*job->args, position(row)) - piece * kPiece); }
    int hi(int row, int piece) const { return min_int(kPiece, visible_end(position(row)) - piece * kPiece); }
    const float* query(int row) const {
        const AttentionArgs& a = *job->args;
        const int64_t query_head = int64_t{head} * job->group + row % job->group;
        return a.query + (entry->first_token + row / job->group) * a.query_stride + query_head * a.kv->head_dim;
    }
    float* out(int row) const {
        const AttentionArgs& a = *job->args;
        const int64_t query_head = int64_t{head} * job->group + row % job->group;
        return a.out + (entry->first_token + row / job->group) * a.out_stride + query_head * a.kv->head_dim;
    }
    float* slot(int row, int piece) const {
        const int64_t index = entry->partial + int64_t{piece - entry->tile_piece} * num_rows + row;
        return job->partials + index * job->slot_floats;
    }
};

// Largest integer that a query is made of against int8 keys: 16 bits, or what keeps sums within 32.
int query_limit(int head_dim) { return min_int(INT16_MAX, INT32_MAX / 127 / head_dim); }

// One query as pairs of 16-bit integers, up to a whole number of vectors. Returns their scale; NaN if the query is not
// finite.
float quantise_query(const float* q, int head_dim, int16_t* to) {
    const float limit = float(query_limit(head_dim));
    const float scale = integer_scale(q, head_dim, limit);
    for (int d = 0; d < head_dim; d += VF::W)
        quantise(q + d, min_int(VF::W, head_dim - d), scale, limit, *reinterpret_cast<int16_t (*)[VF::W]>(to + d));
    return scale;
}

// Writes the queries as score() wants them: float32; rounded to bf16 for the bf16 dot instruction; as 16-bit integers
// against int8 keys.
void prepare_query(const HeadTile& tile) {
    const KVPool& kv = *tile.job->args->kv;
    for (int row = 0; row < tile.num_rows; ++row) {
        const float* q = tile.query(row);
        float* to = tile.w.query + row * query_units(kv);
        if (kv.dtype == KVDtype::kInt8) {
            tile.w.query_scales[row] = quantise_query(q, kv.head_dim, reinterpret_cast<int16_t*>(to));
            continue;
        }
#if defined(OCTAVO_ISA_avx512)
        if (kv.dtype == KVDtype::kBFloat16) {
            auto* rounded = reinterpret_cast<uint16_t*>(to);
            for (int d = 0; d < kv.head_dim; d += VF::W)
                VF::load_n(q + d, min_int(VF::W, kv.head_dim - d)).store_bf16(rounded + d);
            continue;
        }
#endif
        std::memcpy(to, q, size_t(kv.head_dim) * 4);
    }
}

// Joins the pieces of rows [first, first + count) to what the tile holds, or stores them apart.
template <KVDtype D, bool PREFETCH>
void weigh_and_join(const HeadTile& tile, const PieceView& view, const PieceView* next, const Sight& sight, int piece,
                    int first, int count, const float* piece_max, const float* piece_sum) {
    const KVPool& kv = *tile.job->args->kv;
    const ValueShape shape{min_int(kv.block_size, kPiece), kv.head_dim};
    if (tile.entry->partial >= 0) {
        for (int r = 0; r < count; ++r) {
            tile.slot(first + r, piece)[0] = piece_max[r];
            tile.slot(first + r, piece)[1] = piece_sum[r];
        }
        const Target target{tile.slot(first, piece) + kSlotHeader, tile.job->slot_floats, nullptr, nullptr};
        weigh_rows<D, PREFETCH>(count, view, next, shape, sight, tile.w.scores, target);
    } else {
        const Joint joint = join(tile.w.row_max + first, tile.w.row_sum + first, piece_max, piece_sum, count);
        const Target target{tile.w.out + int64_t{first} * kv.head_dim, kv.head_dim, joint.keep, joint.add};
        weigh_rows<D, PREFETCH>(count, view, next, shape, sight, tile.w.scores, target);
    }
}

// Rows [first, first + count) of a tile, at most kRows, against one piece.
template <KVDtype D, bool PREFETCH>
void attend_rows(const HeadTile& tile, const PieceView& view, const PieceView* next, int piece, int first, int count) {
    const AttentionArgs& a = *tile.job->args;
    Sight sight;
    for (int r = 0; r < count; ++r) sight.add(r, tile.lo(first + r, piece), tile.hi(first + r, piece));
    const int64_t stride = query_units(*a.kv);
    const QueryRows query{tile.w.query + first * stride, tile.w.query_scales + first, stride};
    score_rows<D, PREFETCH>(count, view, next, sight.any_lo, sight.any_hi, a.kv->head_dim, query, tile.w.scores);
    float piece_max[kRows], piece_sum[kRows];
    float factor = a.scale * 1.44269504f;
    if (a.soft_cap > 0) {
        cap_scores(tile.w.scores, count, sight.lo, sight.hi, a.scale / a.soft_cap);
        factor = a.soft_cap * 1.44269504f;
    }
    softmax<D>(view, tile.w.scores, count, sight.lo, sight.hi, factor, piece_max, piece_sum);
    weigh_and_join<D, PREFETCH>(tile, view, next, sight, piece, first, count, piece_max, piece_sum);
}

// All rows that see something of a piece; the first few fetch the next piece.
template <KVDtype D>
void attend_piece(const HeadTile& tile, const PieceView& view, const PieceView* next, int piece) {
    int begin = 0, end = tile.num_rows;
    while (begin < end && tile.hi(begin, piece) <= 0) begin += tile.job->group;
    while (end > begin && tile.lo(end - 1, piece) >= kPiece) end -= tile.job->group;
    const int blocks = int(div_up(end - begin, kRows));
    if (blocks == 0) return;
    const int count = int(div_up(end - begin, blocks));
    for (int first = begin; first < end; first += count) {
        const int n = min_int(count, end - first);
        if (next && first == begin)
            attend_rows<D, true>(tile, view, next, piece, first, n);
        else
            attend_rows<D, false>(tile, view, nullptr, piece, first, n);
    }
}

void divide_rows(const HeadTile& tile) {
    const int head_dim = tile.job->args->kv->head_dim;
    for (int row = 0; row < tile.num_rows; ++row) {
        const float* from = tile.w.out + int64_t{row} * head_dim;
        float* to = tile.out(row);
        for (int d = 0; d < head_dim; ++d) to[d] = from[d] / tile.w.row_sum[row];
    }
}

// --- Entries -----------------------------------------------------------------------------------------------------

void locate_unit(const HeadTile& tile, int head, int piece, PieceView* view) {
    const int lo = tile.lo(0, piece), hi = tile.hi(tile.num_rows - 1, piece);
    locate(*tile.job->args, tile.entry->seq, head, piece, lo, hi, view);
}

void start_rows(const HeadTile& tile) {
    for (int row = 0; row < tile.num_rows; ++row) {
        tile.w.row_max[row] = -INFINITY;
        tile.w.row_sum[row] = 0.0f;
    }
    std::memset(tile.w.out, 0, size_t(tile.num_rows) * size_t(tile.job->args->kv->head_dim) * 4);
}

// `after`, or null: what this thread probably takes next; its first piece is fetched while the last one here is
// computed.
template <KVDtype D>
void attend_entry(const Job& job, const Entry& entry, const Entry* after, const Workspace& w) {
    const KVPool& kv = *job.args->kv;
    const bool gathers = kv.block_size < VF::W;
    PieceView views[2];
    HeadTile tile{&job, &entry, entry.head_begin, entry.num_tokens * job.group, w};
    int unit = 0;
    locate_unit(tile, entry.head_begin, entry.piece_begin, &views[0]);
    for (; tile.head < entry.head_end; ++tile.head) {
        prepare_query(tile);
        start_rows(tile);
        for (int piece = entry.piece_begin; piece < entry.piece_end; ++piece, unit ^= 1) {
            PieceView* next = &views[unit ^ 1];
            const bool last = piece + 1 == entry.piece_end;
            if (!last || tile.head + 1 < entry.head_end) {
                locate_unit(tile, last ? tile.head + 1 : tile.head, last ? entry.piece_begin : piece + 1, next);
            } else if (after) {
                const HeadTile other{&job, after, after->head_begin, after->num_tokens * job.group, w};
                locate_unit(other, after->head_begin, after->piece_begin, next);
            } else {
                next = nullptr;
            }
            if constexpr (D == KVDtype::kInt8) {
                gather_scales(kv, &views[unit], w.scales);
                if (next) prefetch_scales(kv, *next);
            }
            if (gathers) gather(kv, &views[unit], w.gathered);
            attend_piece<D>(tile, views[unit], gathers ? nullptr : next, piece);
        }
        if (entry.partial < 0) divide_rows(tile);
    }
}

// Joins the pieces of a split tile as attend_rows would have.
void join_pieces(const Job& job, const Entry& entry, const Workspace& w) {
    const int head_dim = job.args->kv->head_dim;
    const HeadTile tile{&job, &entry, entry.head_begin, entry.num_tokens * job.group, w};
    start_rows(tile);
    for (int row = 0; row < tile.num_rows; ++row) {
        float* out = tile.w.out + int64_t{row} * head_dim;
        for (int piece = entry.piece_begin; piece < entry.piece_end; ++piece) {
            if (tile.hi(row, piece) <= 0 || tile.lo(row, piece) >= kPiece) continue;
            const float* slot = tile.slot(row, piece);
            const Joint joint = join(tile.w.row_max + row, tile.w.row_sum + row, slot, slot + 1, 1);
            for (int d = 0; d < head_dim; d += VF::W) {
                const int n = min_int(VF::W, head_dim - d);
                const VF values = VF::load_n(slot + kSlotHeader + d, n);
                join_value(VF::load_n(out + d, n), values, joint.keep[0], joint.add[0]).store_n(out + d, n);
            }
        }
    }
    divide_rows(tile);
}

void run_entry(void* context, int64_t index, int thread) {
    const Job& job = *static_cast<const Job*>(context);
    const Entry& entry = job.entries[index];
    const Entry* after = index + 1 < job.num_entries ? &entry + 1 : nullptr;
    Workspace w;
    lay_out(*job.args->kv, job.tile_rows, job.workspaces + thread * job.workspace_bytes, &w);
    switch (job.args->kv->dtype) {
        case KVDtype::kFloat32:
            attend_entry<KVDtype::kFloat32>(job, entry, after, w);
            break;
        case KVDtype::kBFloat16:
            attend_entry<KVDtype::kBFloat16>(job, entry, after, w);
            break;
        case KVDtype::kInt8:
            attend_entry<KVDtype::kInt8>(job, entry, after, w);
            break;
    }
    if (entry.partial < 0) return;
    // Releases the pieces computed here; the last one acquires everybody's. (Not std::atomic: see simd.h.)
    if (__atomic_sub_fetch(&job.unfinished[entry.split], 1, __ATOMIC_ACQ_REL) == 0)
        join_pieces(job, job.splits[entry.split], w);
}

// --- Plan --------------------------------------------------------------------------------------------------------

// Calls visit(entry, cost of one KV head) for each tile, as an entry over all heads and pieces.
template <class Visit>
void for_each_tile(const AttentionArgs& a, int group, Visit visit) {
    const int tokens_per_tile = max_int(1, kTileRows / group);
    for (int seq = 0; seq < a.num_seqs; ++seq) {
        const int end = a.query_start_loc[seq + 1];
        for (int token = a.query_start_loc[seq]; token < end; token += tokens_per_tile) {
            Entry e{};
            e.seq = seq;
            e.first_token = token;
            e.num_tokens = min_int(tokens_per_tile, end - token);
            e.first_position = a.seq_lens[seq] - (end - token);
            e.head_end = a.kv->num_kv_heads;
            const int first = visible_begin(a, e.first_position);
            const int last = visible_end(e.first_position + e.num_tokens - 1);
            e.piece_begin = e.tile_piece = first / kPiece;
            e.piece_end = int(div_up(last, kPiece));
            e.partial = -1;
            visit(e, attention_cost(last - first, int64_t{e.num_tokens} * group));
        }
    }
}

// Adds one head of a tile, its pieces shared out so that an entry costs about `target`.
void add_head(Job* job, Entry e, int64_t cost, int64_t target, int64_t* used_slots) {
    const int pieces = e.piece_end - e.piece_begin;
    const int parts = int(cost / target < pieces ? div_up(cost, target) : pieces);
    const int64_t slots = int64_t{pieces} * e.num_tokens * job->group;
    e.cost = cost;
    if (parts <= 1 || *used_slots + slots > job->num_slots) {
        job->entries[job->num_entries++] = e;
        return;
    }
    e.partial = *used_slots;
    *used_slots += slots;
    e.split = job->num_splits++;
    job->splits[e.split] = e;
    job->unfinished[e.split] = parts;
    for (int part = 0; part < parts; ++part) {
        Entry piece = e;
        piece.piece_begin = e.tile_piece + int(int64_t{pieces} * part / parts);
        piece.piece_end = e.tile_piece + int(int64_t{pieces} * (part + 1) / parts);
        piece.cost = cost * (piece.piece_end - piece.piece_begin) / pieces;
        job->entries[job->num_entries++] = piece;
    }
}

void plan(Job* job, int num_threads) {
    const AttentionArgs& a = *job->args;
    int64_t total = 0;
    for_each_tile(a, job->group, [&](const Entry& e, int64_t cost) { total += cost * e.head_end; });
    const int64_t target = 1 + total / (int64_t{num_threads} * kEntriesPerThread);
    const int64_t fine = 1 + total / (int64_t{num_threads} * kHeadEntriesPerThread);
    int64_t used_slots = 0;
    for_each_tile(a, job->group, [&](Entry e, int64_t cost) {
        const int heads = e.head_end;
        if (num_threads == 1 || cost * heads <= fine) {
            e.cost = cost * heads;
            job->entries[job->num_entries++] = e;
            return;
        }
        for (int head = 0; head < heads; ++head) {
            e.head_begin = head;
            e.head_end = head + 1;
            add_head(job, e, cost, target, &used_slots);
        }
    });
}

// Where shares of about equal cost end, none without an entry if there are enough. KVAhead::begin deals alike.
void deal(const Job& job, int num_shares, int64_t* ends) {
    int64_t total = 0, before = 0;
    for (int64_t i = 0; i < job.num_entries; ++i) total += job.entries[i].cost;
    int share = 0;
    for (int64_t i = 0; i < job.num_entries; before += job.entries[i++].cost) {
        const int owner = share_of(before, job.entries[i].cost, total, num_shares);
        while (share < owner) ends[share++] = i;
    }
    while (share < num_shares) ends[share++] = job.num_entries;
    if (job.num_entries < num_shares) return;
    for (int s = 0; s < num_shares; ++s) {
        if (ends[s] < s + 1) ends[s] = s + 1;
        const int64_t most = job.num_entries - (num_shares - 1 - s);
        if (ends[s] > most) ends[s] = most;
    }
}

// Most tiles, over KV heads, that a step can have.
int64_t max_head_tiles(const KVPool& kv, int group, int64_t num_tokens, int64_t num_seqs) {
    const int64_t tokens_per_tile = max_int(1, kTileRows / group);
    return (num_tokens / tokens_per_tile + num_seqs) * kv.num_kv_heads;
}

int64_t slot_floats_of(const KVPool& kv) { return kSlotHeader + div_up(kv.head_dim, 16) * 16; }

// Splitting shares out cost / target per tile, rounded up, and the targets add up to about the total.
int64_t max_entries(int64_t head_tiles, int num_threads) {
    return 2 * head_tiles + int64_t{num_threads} * kEntriesPerThread;
}

// Bytes of the entries, the splits and the counts of a step's job.
int64_t list_bytes(int64_t entries, int64_t head_tiles) {
    return align64((entries + head_tiles) * int64_t(sizeof(Entry)) + head_tiles * int64_t(sizeof(int32_t)));
}

}  // namespace

size_t attention_scratch_bytes(const KVPool& kv, int num_heads, int max_num_tokens, int max_num_seqs, int num_threads) {
    const int group = num_heads / kv.num_kv_heads;
    const int64_t head_tiles = max_head_tiles(kv, group, max_num_tokens, max_num_seqs);
    const int64_t lists = list_bytes(max_entries(head_tiles, num_threads), head_tiles);
    // Room to split one sequence of the greatest length with a few new tokens; more is computed unsplit.
    const int64_t pieces = div_up(int64_t{kv.max_blocks_per_seq} * kv.block_size, kPiece);
    const int64_t slots = pieces * num_heads * min_int(max_num_tokens, 4);
    const int64_t slot_bytes = slot_floats_of(kv) * 4;
    const int64_t partials =
        num_threads > 1 ? (slots * slot_bytes < kMaxPartialBytes ? slots * slot_bytes : kMaxPartialBytes) : 0;
    return size_t(num_threads * align64(lay_out(kv, tile_rows_of(group), nullptr, nullptr)) + lists + partials);
}

void attention(const AttentionArgs& args, ThreadPool& pool) {
    const KVPool& kv = *args.kv;
    Job job{};
    job.args = &args;
    job.group = args.num_heads / kv.num_kv_heads;
    job.tile_rows = tile_rows_of(job.group);
    job.slot_floats = slot_floats_of(kv);
    job.workspace_bytes = align64(lay_out(kv, job.tile_rows, nullptr, nullptr));

    uint8_t* at = static_cast<uint8_t*>(args.scratch);
    job.workspaces = at;
    at += pool.size() * job.workspace_bytes;
    const int64_t head_tiles = max_head_tiles(kv, job.group, args.query_start_loc[args.num_seqs], args.num_seqs);
    job.entries = reinterpret_cast<Entry*>(at);
    const int64_t entries = max_entries(head_tiles, pool.size());
    job.splits = job.entries + entries;
    job.unfinished = reinterpret_cast<int32_t*>(job.splits + head_tiles);
    at += list_bytes(entries, head_tiles);
    job.partials = reinterpret_cast<float*>(at);
    const int64_t left = int64_t(args.scratch_bytes) - (at - static_cast<uint8_t*>(args.scratch));
    job.num_slots = left > 0 ? left / (job.slot_floats * 4) : 0;

    plan(&job, pool.size());
    int64_t ends[ThreadPool::kMaxShares];
    deal(job, pool.num_shares(), ends);
    pool.parallel_for(ends, run_entry, &job);
}

}  // namespace octavo::OCTAVO_ISA
