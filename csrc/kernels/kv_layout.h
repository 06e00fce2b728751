// Where a key or value element lies inside a block. Private to write_kv.cpp and attention.cpp.
//
// A block holds, per layer slot and KV head, block_size * head_dim key elements and then as many value elements, with
// int8 the scales of both before them:
//   scales, int8:   [2][block_size] float32, the keys' and the values'. Before the data, as one walks a block forward;
//                   both together, so that keys and values begin at whole cache lines for the usual shapes
//   keys:           in strips of 16 neighbouring tokens (all, in a shorter block), one strip after the other, so that a
//                   piece of the sequence is read forward whatever the size of blocks. Within a strip
//     float32:      [head_dim][strip]: one vector holds one dim of neighbouring tokens
//     bfloat16:     [head_dim / 2][strip][2]: the same for a pair of dims, as the bf16 dot instruction wants them; the
//                   last dim of an odd head_dim follows as [strip]
//     int8:         as in bfloat16
//   values:         [block_size][head_dim]
// So a score is computed for a vector of tokens at once without adding lanes, and a weighted value for a vector of
// dims.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t element_bytes(KVDtype dtype) {
    return dtype == KVDtype::kInt8 ? 1 : dtype == KVDtype::kBFloat16 ? 2 : 4;
}

// Keys of neighbouring dims lie in pairs.
constexpr bool pairs_dims(KVDtype dtype) { return dtype != KVDtype::kFloat32; }

// A *step* of the keys is a dim, or a pair of dims: this many bytes per token.
constexpr int64_t step_item_bytes(KVDtype dtype) { return dtype == KVDtype::kInt8 ? 2 : 4; }

// Tokens of a strip of keys; at least the lanes of a vector, unless blocks are shorter.
inline int strip_length(const KVPool& kv) { return kv.block_size < 16 ? kv.block_size : 16; }

// Scales of one head of one block, in bytes.
inline int64_t scale_bytes(const KVPool& kv) {
    return kv.dtype == KVDtype::kInt8 ? 2 * int64_t{kv.block_size} * int64_t(sizeof(float)) : 0;
}

// Elements of one head's keys (or values) in one block.
inline int64_t head_elements(const KVPool& kv) { return int64_t{kv.block_size} * kv.head_dim; }

// First byte of the keys of `head` in `block`; its values lie head_elements() further on, its scales just before.
inline uint8_t* head_keys(const KVPool& kv, int32_t block, int layer, int head) {
    const int64_t index = int64_t{kv.layer_slot[layer]} * kv.num_kv_heads + head;
    const int64_t scales = scale_bytes(kv), elements = 2 * head_elements(kv) * element_bytes(kv.dtype);
    return kv.base + int64_t{block} * int64_t(kv.block_bytes) + index * (scales + elements) + scales;
}

// The block-table row of `layer`'s group.
inline const int32_t* table_row(const KVPool& kv, int layer, int32_t row) {
    return kv.tables + (int64_t{kv.layer_group[layer]} * kv.max_num_seqs + row) * kv.max_blocks_per_seq;
}

}  // namespace octavo::OCTAVO_ISA
