#include "kv_ahead.h"

#include <algorithm>

namespace octavo {
namespace {

// More would push out of the third-level cache what was fetched first.
constexpr int64_t kMostBytes = 6 << 20;
// Of a sequence that decodes, perhaps with guessed tokens.
constexpr int kMostNewTokens = 8;

}  // namespace

int64_t attention_cost(int64_t num_visible, int64_t num_rows) { return num_visible * (4 + num_rows); }

int share_of(int64_t before, int64_t cost, int64_t total, int num_shares) {
    return total > 0 ? int((before + cost / 2) * num_shares / total) : 0;
}

KVAhead::KVAhead(const KVPool& kv, int num_threads) : kv_(kv), cursors_(size_t(num_threads)) {}

KVAhead::Cursor* KVAhead::cursor(int thread) { return &cursors_[size_t(thread)]; }

void KVAhead::begin(int layer, int window, int group, const int32_t* batch_rows, const int32_t* query_start_loc,
                    const int32_t* seq_lens, int num_seqs) {
    batch_rows_ = batch_rows, query_start_loc_ = query_start_loc, seq_lens_ = seq_lens, window_ = window;
    tables_ = kv_.tables + int64_t{kv_.layer_group[layer]} * kv_.max_num_seqs * kv_.max_blocks_per_seq;
    bytes_ = int64_t(kv_.block_bytes) / kv_.layers_per_page;
    offset_ = kv_.layer_slot[layer] * bytes_;
    const int threads = int(cursors_.size());
    int64_t total = 0, before = 0;
    for (int seq = 0; seq < num_seqs; ++seq) total += cost_of(seq, group);
    int seq = 0;
    for (int t = 0; t < threads; ++t) {
        Cursor& cursor = cursors_[size_t(t)];
        cursor = {};
        cursor.seq = seq;
        for (; seq < num_seqs; ++seq) {
            const int64_t cost = cost_of(seq, group);
            if (share_of(before, cost, total, threads) > t) break;
            before += cost;
        }
        cursor.last_seq = seq;
        cursor.bytes_left = kMostBytes;
        if (cursor.seq < cursor.last_seq) cursor.block = first_block(cursor.seq);
    }
}

// As if all new tokens saw what the last one sees: a hint.
int64_t KVAhead::cost_of(int seq, int group) const {
    const int64_t length = seq_lens_[seq], new_tokens = query_start_loc_[seq + 1] - query_start_loc_[seq];
    return attention_cost(window_ > 0 && length > window_ ? window_ : length, new_tokens * group);
}

void KVAhead::end() { std::fill(cursors_.begin(), cursors_.end(), Cursor{}); }

int KVAhead::first_block(int seq) const {
    const int first_new = seq_lens_[seq] - (query_start_loc_[seq + 1] - query_start_loc_[seq]);
    return window_ > 0 && first_new >= window_ ? (first_new - window_ + 1) / kv_.block_size : 0;
}

void KVAhead::next_block(Cursor* cursor) const {
    while (cursor->seq < cursor->last_seq) {
        const int seq = cursor->seq, new_tokens = query_start_loc_[seq + 1] - query_start_loc_[seq];
        const bool decodes = new_tokens > 0 && new_tokens <= kMostNewTokens;
        if (decodes && cursor->bytes_left >= bytes_ && int64_t{cursor->block} * kv_.block_size < seq_lens_[seq]) {
            const int32_t block = tables_[int64_t{batch_rows_[seq]} * kv_.max_blocks_per_seq + cursor->block];
            cursor->at = kv_.base + int64_t{block} * int64_t(kv_.block_bytes) + offset_;
            cursor->end = cursor->at + bytes_;
            cursor->bytes_left -= bytes_;
            ++cursor->block;
            return;
        }
        ++cursor->seq;
        if (cursor->seq < cursor->last_seq) cursor->block = first_block(cursor->seq);
    }
}

}  // namespace octavo
