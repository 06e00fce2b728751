// Recorded ops, replayed in one call per step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "kv_memory.h"
#include "memory.h"

namespace octavo {

// A weight [n, k] in the panels of one instruction set.
class Matrix {
  public:
    Matrix(const Kernels& kernels, Arena& arena, int64_t n, int64_t k, bool bf16);

    // Puts `rows` [num_rows, k] (float32, or bfloat16 bits) at row `first_row`.
    void pack(const void* rows, int64_t first_row, int64_t num_rows, ThreadPool& pool);

    const Kernels* kernels;
    int64_t n;
    int64_t k;
    bool bf16;
    size_t bytes;
    Arena::Piece memory;
};

// One step's input, checked by Program::run before anything is computed. As backends/protocol.py StepBatch.
struct StepInput {
    const int32_t* token_ids;        // [num_tokens]
    const int32_t* positions;        // [num_tokens]
    const int32_t* batch_rows;       // [num_seqs]
    const int32_t* query_start_loc;  // [num_seqs + 1]
    const int32_t* seq_lens;         // [num_seqs]
    const int32_t* logits_tokens;    // [num_selected]
    int64_t num_tokens;
    int64_t num_seqs;
    int64_t num_selected;
};

// Columns [offset, offset + width) of a slot's rows.
struct View {
    int slot;
    int64_t offset;
    int64_t width;
};

// A decoder as a list of ops over slots, that is, buffers [num_tokens, width] or, after `select`, [num_selected,
// width]. The sizes come with each step; nothing is allocated while a step runs, except when more rows are selected
// than ever before.
class Program {
  public:
    Program(const Kernels& kernels, const KVMemory& kv, ThreadPool& pool, int64_t max_num_tokens);

    int add_slot(int64_t width, bool selected);
    void set_output(int slot);

    void embedding(const Matrix& table, int out);
    void rms_norm(View x, std::vector<float> weight, float eps, int out);
    void linear(View x, const Matrix& weight, std::vector<float> bias, int out);
    void rotary(View x, std::vector<double> inv_freq, double scale, int64_t head_dim, int64_t max_position);
    void write_kv(int layer, View key, View value);
    void attention(int layer, View query, float scale, int window, int out);
    void silu_mul(View gate, View up, int out);
    void add(View x, View y);  // into x
    void select(View x, int out);

    // Computes one step. The result is the output slot's memory, [rows, width], valid until the next run.
    // Throws std::invalid_argument naming the field when the input breaks its contract.
    const float* run(const StepInput& input);
    int64_t output_rows(const StepInput& input) const;
    int64_t output_width() const;

  private:
    struct Slot {
        int64_t width;
        bool selected;
        Memory memory;
    };
    struct Rope;
    struct Op;
    struct Step;

    void check(const StepInput& input) const;
    void check_tables(const StepInput& input) const;
    void check_view(const View& view) const;
    void prepare(const StepInput& input);
    float* at(const View& view) const;
    int64_t rows_of(int slot, const StepInput& input) const;
    void execute(const Op& op, const StepInput& input);

    const Kernels& kernels_;
    const KVPool& kv_;
    ThreadPool& pool_;
    int64_t max_num_tokens_;
    int64_t max_selected_ = 0;
    int64_t vocab_size_ = INT32_MAX;
    int output_ = -1;
    int max_heads_ = 0;
    size_t linear_scratch_bytes_ = 0;
    std::vector<Slot> slots_;
    std::vector<Op> ops_;
    std::vector<std::unique_ptr<Rope>> ropes_;
    std::vector<int32_t> group_window_;  // largest window a layer of the group asks for; 0 without one
    std::vector<int32_t> token_rows_;
    Memory linear_scratch_;
    Memory attention_scratch_;

  public:
    ~Program();
};

}  // namespace octavo
