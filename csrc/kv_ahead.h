// KV that the next attention will read, for loops to fetch meanwhile that leave the memory idle.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_pool.h"

namespace octavo {

// About what attention of some rows (query heads of new tokens) over the tokens they see takes for one KV head: a
// token's keys and values cost as much to fetch as four rows to compute.
int64_t attention_cost(int64_t num_visible, int64_t num_rows);

// Whose share something of this cost is, after others of the cost `before` and of `total` in all.
int share_of(int64_t before, int64_t cost, int64_t total, int num_shares);

// One layer's blocks of the sequences that decode. Each thread has some neighbouring sequences: attention deals its
// work out in the same order, so what a thread fetches it will probably read itself. Sequences with many new tokens are
// left out, as their attention is bound by arithmetic.
class KVAhead {
  public:
    // Where one thread is. It moves `at` forward as it fetches, and calls next_block() when nothing is left before
    // `end`.
    struct alignas(64) Cursor {
        const uint8_t* at = nullptr;
        const uint8_t* end = nullptr;
        int seq = 0, last_seq = 0;
        int block = 0;           // of seq, to come next
        int64_t bytes_left = 0;  // that are worth fetching
    };

    KVAhead(const KVPool& kv, int num_threads);

    // From now on the blocks of `layer`, of which attention will see `window` tokens, or all with 0, with `group` query
    // heads for each KV head.
    void begin(int layer, int window, int group, const int32_t* batch_rows, const int32_t* query_start_loc,
               const int32_t* seq_lens, int num_seqs);
    void end();

    Cursor* cursor(int thread);

    // The next block, if there is one. Nothing is left when `seq` is `last_seq`.
    void next_block(Cursor* cursor) const;

  private:
    int first_block(int seq) const;
    int64_t cost_of(int seq, int group) const;

    const KVPool& kv_;
    std::vector<Cursor> cursors_;
    const int32_t* batch_rows_ = nullptr;
    const int32_t* query_start_loc_ = nullptr;
    const int32_t* seq_lens_ = nullptr;
    const int32_t* tables_ = nullptr;  // of the layer's group
    int64_t offset_ = 0;               // of the layer in a block
    int64_t bytes_ = 0;
    int window_ = 0;
};

}  // namespace octavo
