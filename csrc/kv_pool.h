// The KV memory: blocks of one size in one range of memory, and the block tables.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

enum class KVDtype : uint8_t { kFloat32, kBFloat16, kInt8 };

// Block-major across layers: block b occupies bytes [b * block_bytes, (b + 1) * block_bytes), so copying, erasing or
// exporting a block is one range. Inside a block the layout belongs to the attention kernels
// (csrc/kernels/attention.cpp): first by layer slot, then by KV head.
struct KVPool {
    uint8_t* base;
    size_t block_bytes;
    int32_t num_blocks;
    int32_t block_size;  // tokens
    int32_t num_layers;
    int32_t num_groups;
    int32_t num_kv_heads;
    int32_t head_dim;
    KVDtype dtype;
    const int32_t* layer_group;  // [num_layers], group of each layer
    const int32_t* layer_slot;   // [num_layers], index of the layer inside its group's page
    int32_t layers_per_page;
    int32_t* tables;  // [num_groups, max_num_seqs, max_blocks_per_seq]
    int32_t max_num_seqs;
    int32_t max_blocks_per_seq;
};

}  // namespace octavo
