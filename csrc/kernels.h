// The table of kernels: one per instruction set, chosen once at run time.
//
// Arguments are plain structs, declared here, so that the callers (replay.cpp, sample.cpp) never include an
// instruction set's headers. Work is cut into *tiles* that threads take (parallel.h), and no sum is ever split
// over tiles, so results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kv_ahead.h"
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
    float soft_cap;                  // a score s becomes soft_cap * tanh(s / soft_cap); 0 for no cap
    const int32_t* batch_rows;       // [num_seqs]
    const int32_t* query_start_loc;  // [num_seqs + 1]
    const int32_t* seq_lens;         // [num_seqs], new tokens included
    int num_seqs;
    void* scratch;  // attention_scratch_bytes() long, aligned to 64
    size_t scratch_bytes;
};

// As backends/protocol.py.
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

// Passes over a row of logits work in blocks of this many, the last one shorter.
constexpr int kSampleBlock = 256;

// How a weight is kept. In the group formats a row is cut into groups of `group` elements, the last one maybe shorter;
// an element is a code c, and stands for scale * (c - zero) + minimum of its group, each step rounded to float32.
struct WeightFormat {
    enum class Kind : uint8_t { kFloat32, kBFloat16, kInt8, kInt4 } kind;
    int group = 0;             // 16 or 32
    int zero = 0;              // 0 to 255; with kInt4 to 15
    bool minimum = false;      // without, it is 0
    bool half_scales = false;  // scales and minimums are float16 numbers exactly; else any float32

    bool in_groups() const { return kind == Kind::kInt8 || kind == Kind::kInt4; }
    // Whether there are kernels for it. Those in groups are what model files have: a zero or a minimum, not both.
    bool is_known() const {
        if (!in_groups()) return true;
        if (minimum && zero != 0) return false;
        return group == 32 || (group == 16 && !half_scales && !(kind == Kind::kInt8 && minimum));
    }
    int64_t groups_of(int64_t k) const { return (k + group - 1) / group; }
};

// Rows of a weight, [n, k], to be rounded to groups of kQuantizeGroup; group g of the whole belongs to row
// g / groups of a row, and so on along the row. With 8 bits the zero is 128, with 4 bits there are minimums. Scales and
// minimums are float16 numbers.
struct QuantizeArgs {
    const void* rows;  // float32, or bfloat16 bits
    bool bf16;
    int64_t k;
    int bits;         // 4 or 8
    uint8_t* codes;   // [n, k]
    float* scales;    // [n, groups of a row]
    float* minimums;  // the same with 4 bits, else null
};
constexpr int kQuantizeGroup = 32;

// Rows of a weight, [num_rows, k], to be put in their place of a packed one. Rows may come in several parts; packing a
// part touches only its own elements.
struct PackArgs {
    const void* rows;       // float32, bfloat16 bits, or codes of one byte each
    const float* scales;    // group formats: [num_rows, groups_of(k)]
    const float* minimums;  // the same, or null
    int64_t first_row;
    int64_t num_rows;
    int64_t k;
    WeightFormat format;
    void* packed;  // packed_bytes() long, zero at first
};

// out = input @ weight.T (+ bias), float32 [num_tokens, n], or out + that. With bfloat16 weights a path may round x to
// bfloat16, always or never. With group formats each group of x is rounded to integers of 8 bits times a float32 scale;
// products are added as integers within a group, and as float32 over the groups in their order.
struct LinearArgs {
    const float* x;  // [num_tokens, k]
    int64_t x_stride;
    const void* weight;  // packed
    WeightFormat format;
    int64_t n;
    int64_t k;
    const float* bias;  // [n], or null
    float* out;
    int64_t out_stride;
    int num_tokens;
    void* scratch;  // linear_scratch_bytes() long

    // The input: x itself, or what the op of that name makes of x, bit by bit, while it is converted for the product.
    enum class Input : uint8_t { kRows, kRmsNorm, kLayerNorm, kGated, kActivation } input = Input::kRows;
    const float* norm = nullptr;       // kRmsNorm, kLayerNorm: [k]
    const float* norm_bias = nullptr;  // kLayerNorm: [k], or null
    float eps = 0.0f;                  // kRmsNorm, kLayerNorm
    const float* up = nullptr;         // kGated: [num_tokens, k]; x is the gate
    int64_t up_stride = 0;

    // What becomes of the product: out itself; added to what is in out; or, if its two halves of columns begin at
    // panels (panel_columns), the first ones activated times the second, [num_tokens, n / 2], as the op would make it.
    enum class Output : uint8_t { kStore, kAdd, kGated } output = Output::kStore;

    Activation activation = Activation::kSilu;  // of kGated or kActivation, input or output

    KVAhead* ahead = nullptr;  // may be fetched meanwhile
};

// A screen to be made of a head, that is, of a packed weight [n, k]: see kernels/screen.h.
struct ScreenArgs {
    const void* weight;
    WeightFormat format;  // not in groups
    int64_t n;
    int64_t k;      // at most kMaxScreened
    void* screen;   // screen_bytes() long, aligned to 64
    float* buffer;  // make_screen_buffer_bytes() long
};
constexpr int64_t kMaxScreened = 1 << 16;  // so that sums of products of codes fit 32 bits

// Panels of a sketch to be made of a head, that is, of a packed weight [n, k] in groups of 8 bits: see
// kernels/sketch.h.
struct SketchArgs {
    const void* weight;
    WeightFormat format;
    int64_t n;
    int64_t k;                // at least kLeastSketched
    const float* reflectors;  // [1 + num_directions(k)][k], the squares of each adding up to 2, or to 0
    int64_t first_panel;
    int64_t num_panels;
    void* sketch;   // sketch_bytes() long, aligned to 64, zero at first
    float* buffer;  // make_sketch_buffer_bytes() long
};
constexpr int64_t kLeastSketched = 16;
inline int64_t num_directions(int64_t k) { return k >= 128 ? 31 : k / 4 - 1; }

// For each row of a product without a bias, at least one, the column where it is largest, the first among equals.
struct GreedyArgs {
    LinearArgs product;       // out: room for n numbers in each row, for whatever
    const void* screen;       // or sketch
    const float* reflectors;  // of the sketch
    void* scratch;            // greedy_scratch_bytes(), or sketched_greedy_scratch_bytes(), for each row
    int32_t* token_ids;       // [num_tokens]
    int64_t num_left = 0;     // of panels that had to be computed, or would have to be, for all rows together
};

// Rows of a packed weight, as float32 [num_tokens, k].
struct EmbeddingArgs {
    const void* weight;
    WeightFormat format;
    int64_t k;
    const int32_t* token_ids;
    float* out;
    int num_tokens;
};

// Adds the rows positions[t] + offset of a packed weight [.., k] to those of out.
struct PositionArgs {
    const void* weight;
    WeightFormat format;
    int64_t k;
    const int32_t* positions;  // [num_tokens]
    int offset;
    float* out;
    int64_t out_stride;
    int num_tokens;
    float* buffer;  // [num_tokens, k]
};

// Ops that treat each row by itself; each uses the fields it needs. Strides are in floats.
struct RowArgs {
    const float* x;
    int64_t x_stride;
    const float* y;
    int64_t y_stride;
    float* out;
    int64_t out_stride;
    int num_rows;
    int width;
    const float* weight;    // rms_norm: [run], layer_norm: [width]
    const float* bias;      // layer_norm: [width], or null
    int run;                // rms_norm: columns that are normalised together; width is a multiple
    float eps;              // rms_norm, layer_norm
    float number;           // scale: the factor; soft_cap: the cap
    Activation activation;  // gated, activation
    const int32_t* index;   // select: source row of each row; rotary: position of each row
    int head_dim;           // rotary
    int rotary_half;        // rotary: pairs rotated in a head
};

// Which experts each row chooses: the top_k largest of its logits, the lower index first among equals. A share is the
// expert's part of softmax over all experts, or with `normalise` over those chosen.
struct RouteArgs {
    const float* logits;  // [num_rows, num_experts]
    int64_t logits_stride;
    int num_rows;
    int num_experts;
    int top_k;
    bool normalise;
    int32_t* experts;  // [num_rows, top_k]; all -1 if a logit is NaN or the largest is not finite
    float* shares;     // [num_rows, top_k]
    float* out;        // [num_rows, width]: becomes 0, for the sum to come; NaN in rows without experts
    int64_t out_stride;
    int width;
};

// Adds each row times its share to a row of the sum, float32 [.., width].
struct SharesArgs {
    const float* x;  // [num_rows, width]
    int64_t x_stride;
    const float* shares;  // [num_rows]
    const int32_t* rows;  // [num_rows], of out, no row twice
    float* out;
    int64_t out_stride;
    int num_rows;
    int width;
};

struct Kernels {
    const char* name;                 // "portable", "avx2" or "avx512"
    int lanes;                        // float32 lanes of a vector
    const Dequantizer* dequantizers;  // [kNumDequantizers], one per stored format
    void (*quantize_groups)(const QuantizeArgs&, int64_t begin, int64_t end);  // groups [begin, end)
    void (*write_kv)(const WriteKVArgs&, ThreadPool&);
    size_t (*attention_scratch_bytes)(const KVPool&, int num_heads, int max_num_tokens, int max_num_seqs,
                                      int num_threads);
    void (*attention)(const AttentionArgs&, ThreadPool&);

    // Passes over one row of n floats; sampling is built from them (sample.cpp).
    // The largest value, and that of each block. Sets has_nan; with a NaN the values mean nothing.
    float (*row_max)(const float* x, int64_t n, float* block_max, bool* has_nan);
    // p[i] = 2^((x[i] - max) * factor), exactly 0 for -inf and exactly 1 for max; each block's sum, and all. p and
    // block_sum may be null. No x is above max, factor is positive.
    double (*row_exp)(const float* x, int64_t n, float max, float factor, float* p, float* block_sum);
    int64_t (*count_above)(const float* x, int64_t n, float value);
    int64_t (*packed_bytes)(int64_t n, int64_t k, const WeightFormat& format);
    int (*panel_columns)(const WeightFormat& format);  // rows of the weight that lie together
    size_t (*linear_scratch_bytes)(int64_t k, int max_num_tokens, const WeightFormat& format);
    void (*pack)(const PackArgs&, ThreadPool&);
    void (*linear)(const LinearArgs&, ThreadPool&);
    void (*embedding)(const EmbeddingArgs&, ThreadPool&);
    void (*rms_norm)(const RowArgs&, ThreadPool&);
    void (*layer_norm)(const RowArgs&, ThreadPool&);
    void (*gated)(const RowArgs&, ThreadPool&);  // x: the gate, y: up
    // In these out may be x.
    void (*activation)(const RowArgs&, ThreadPool&);
    void (*scale)(const RowArgs&, ThreadPool&);
    void (*soft_cap)(const RowArgs&, ThreadPool&);
    void (*sigmoid_gate)(const RowArgs&, ThreadPool&);  // y: [num_rows, 1]
    void (*add)(const RowArgs&, ThreadPool&);
    void (*add_positions)(const PositionArgs&, ThreadPool&);
    void (*select)(const RowArgs&, ThreadPool&);
    // x: cosines and sines [positions][2][rotary_half]; out is rotated in place.
    void (*rotary)(const RowArgs&, ThreadPool&);
    // Runs independent chains of the multiply-add that `linear` uses with such weights, and returns the operations
    // done. `result` becomes positive.
    double (*dot_chains)(WeightFormat::Kind kind, int64_t steps, float* result);
    // `rotary` of query and key, then `write_kv`, token by token.
    void (*rotary_write_kv)(const RowArgs& query, const RowArgs& key, const WriteKVArgs& kv, ThreadPool&);
    size_t (*screen_bytes)(int64_t n, int64_t k);
    size_t (*make_screen_buffer_bytes)(int64_t k, int num_threads);
    // False if the weight has something that is not finite, or too large: then there is none.
    bool (*make_screen)(const ScreenArgs&, ThreadPool&);
    size_t (*greedy_scratch_bytes)(int64_t k);
    // False if too much would have to be computed, or a row has something that is not finite, or too large; token_ids
    // mean nothing then.
    bool (*greedy)(GreedyArgs&, ThreadPool&);
    // The same with a sketch instead of a screen.
    size_t (*sketch_bytes)(int64_t n, int64_t k);
    size_t (*make_sketch_buffer_bytes)(int64_t k, int num_threads);
    bool (*make_sketch)(const SketchArgs&, ThreadPool&);
    size_t (*sketched_greedy_scratch_bytes)(int64_t k);
    bool (*sketched_greedy)(GreedyArgs&, ThreadPool&);
    void (*head_input)(const LinearArgs&, float* values, ThreadPool&);  // [k], the first row as the product takes it
    void (*route)(const RouteArgs&, ThreadPool&);
    void (*add_shares)(const SharesArgs&, ThreadPool&);
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
