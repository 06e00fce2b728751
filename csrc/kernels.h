// The table of kernels: one per instruction set, chosen once at run time.
//
// Arguments are plain structs, declared here, so that the callers (program.cpp, sample.cpp) never include an
// instruction set's headers. Each kernel does one *tile*: threads take tiles from a counter, and no sum is ever split
// over tiles, so results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kv_pool.h"
#include "parallel.h"

namespace octavo {

struct Dequantizer;  // dequantize.h
// Keys and values of the step's new tokens, to be stored in their blocks. Strides are in floats.
struct WriteKVArgs {
    const KVPool* kv;
    int layer;
    const float* key;  // row t at key + t * key_stride, num_kv_heads * head_dim wide
    int64_t key_stride;
    const float* value;
    int64_t value_stride;
    const int32_t* positions;   // [num_tokens]
    const int32_t* token_rows;  // [num_tokens], block-table row of each token
    int num_tokens;
};

// Causal attention of the step's new tokens over their sequences' blocks; the new tokens' KV is already written.
struct AttentionArgs {
    const KVPool* kv;
    int layer;
    const float* query;  // row t at query + t * query_stride, num_heads * head_dim wide
    int64_t query_stride;
    float* out;
    int64_t out_stride;
    int num_heads;
    float scale;                     // positive
    int window;                      // tokens a query sees, itself included; 0 for all
    const int32_t* batch_rows;       // [num_seqs]
    const int32_t* query_start_loc;  // [num_seqs + 1]
    const int32_t* seq_lens;         // [num_seqs], new tokens included
    int num_seqs;
    void* scratch;  // attention_scratch_bytes() long, aligned to 64
    size_t scratch_bytes;
};

struct Kernels {
    const char* name;  // "portable", "avx2" or "avx512"
    int lanes;         // float32 lanes of a vector
    const Dequantizer* dequantizers;  // [kNumDequantizers], one per stored format
    void (*write_kv)(const WriteKVArgs&, ThreadPool&);
    size_t (*attention_scratch_bytes)(const KVPool&, int num_heads, int max_num_tokens, int max_num_seqs,
                                      int num_threads);
    void (*attention)(const AttentionArgs&, ThreadPool&);
};

namespace portable {
extern const Kernels table;
}
#ifdef OCTAVO_X86
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

// Names of the paths this CPU can run, best first.
std::vector<std::string> supported_paths();

// The table called `name`. Throws std::invalid_argument when this CPU cannot run it.
const Kernels& kernels_for(const std::string& name);

}  // namespace octavo
