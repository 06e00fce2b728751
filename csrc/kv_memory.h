// The KV memory as Python sees it: owns the blocks and the block tables.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "first_touch.h"
#include "kv_pool.h"

namespace octavo {

// Blocks live in one anonymous mapping: zero, huge pages where the system gives them, resident only once written or
// expected to be.
// Not thread-safe: the worker changes blocks and tables between steps.
class KVMemory {
  public:
    // As backends/protocol.py KVShape. Throws std::invalid_argument naming the field, std::bad_alloc when the address
    // space cannot be had.
    KVMemory(std::vector<int32_t> layer_groups, int64_t num_kv_heads, int64_t head_dim, const std::string& dtype,
             int64_t block_size, int64_t num_blocks, int64_t max_num_seqs, int64_t max_blocks_per_seq);
    ~KVMemory();
    KVMemory(const KVMemory&) = delete;
    KVMemory& operator=(const KVMemory&) = delete;

    const KVPool& pool() const { return pool_; }

    void copy_blocks(const std::vector<std::pair<int64_t, int64_t>>& pairs);
    void erase_blocks(const std::vector<int64_t>& blocks);
    const uint8_t* block(int64_t index) const;  // throws std::out_of_range
    // Throw std::out_of_range, and std::invalid_argument on another size than a block's.
    void export_to(int64_t index, void* data, size_t size) const;
    void import_block(int64_t index, const void* data, size_t size);

    // Blocks up to this one are in use, or will be at once: memory for some more is made ready meanwhile.
    void expect(int64_t index);
    size_t ready_bytes() const { return first_touch_->ready(); }

  private:
    void check_block(int64_t index) const;
    void check_size(size_t size) const;

    std::vector<int32_t> layer_group_;
    std::vector<int32_t> layer_slot_;
    std::vector<int32_t> tables_;
    size_t mapped_bytes_ = 0;
    KVPool pool_{};
    std::unique_ptr<FirstTouch> first_touch_;
};

}  // namespace octavo
