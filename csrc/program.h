// Recorded ops, replayed in one call per step.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "kv_memory.h"
#include "matrix.h"
#include "memory.h"
#include "screen.h"

namespace octavo {

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

// What a product takes: the rows of `x`, or what an op makes of them.
struct ProductInput {
    View x;
    LinearArgs::Input kind = LinearArgs::Input::kRows;
    std::vector<float> norm{};       // kRmsNorm, kLayerNorm
    std::vector<float> norm_bias{};  // kLayerNorm; empty for none
    float eps = 0.0f;                // kRmsNorm, kLayerNorm
    View up{-1, 0, 0};               // kGated; x is the gate
    Activation activation{};         // kGated, kActivation
};

// A decoder as a list of ops over slots, that is, buffers [num_tokens, width] or, after `select`, [num_selected,
// width]. The sizes come with each step. Slots have room for max_num_tokens rows from the start (resident only once
// written), so a result's memory stays where it is as long as the program lives. The logits of a whole prompt can be
// hundreds of megabytes: the step after such a one gives back what it does not need itself.
//
// The methods that add an op throw std::invalid_argument naming the argument when widths, slots or the kind of rows
// do not fit. An op's output is another slot than its inputs; those without an output work in place, on x.
class Program {
  public:
    Program(const Kernels& kernels, const KVMemory& kv, ThreadPool& pool, int64_t max_num_tokens);

    int add_slot(int64_t width, bool selected);
    void set_output(View view);
    // Of the last op, which must be a product with the screen's head, without a bias, into the output.
    void set_screen(const Screen& screen);

    void embedding(const Matrix& table, int out);
    void add_positions(View x, const Matrix& table, int64_t offset);
    void rms_norm(View x, std::vector<float> weight, float eps, int out);  // of each run of x as long as the weight
    void layer_norm(View x, std::vector<float> weight, std::vector<float> bias, float eps, int out);  // bias or none
    // Into columns [first_column, first_column + weight.n) of `out`.
    void linear(ProductInput input, const Matrix& weight, std::vector<float> bias, int out, int64_t first_column = 0);
    void linear_add(ProductInput input, const Matrix& weight, std::vector<float> bias, View into);  // adds to it
    // The first half of the product's columns, activated, times the second. The input is not activated itself.
    void linear_gated(ProductInput input, Activation activation, const Matrix& weight, std::vector<float> bias,
                      int out);
    void rotary(View x, std::vector<double> inv_freq, double scale, int64_t head_dim, int64_t max_position);
    void write_kv(int layer, View key, View value);
    void rotary_write_kv(View query, View key, std::vector<double> inv_freq, double scale, int64_t head_dim,
                         int64_t max_position, int layer, View value);  // rotary of both, then write_kv
    void attention(int layer, View query, float scale, int window, float soft_cap, int out);  // 0: none of them
    void gated(View gate, View up, Activation activation, int out);
    void activation(View x, Activation activation);
    void scale(View x, float factor);
    void soft_cap(View x, float cap);
    void sigmoid_gate(View x, View gate);  // gate is one column wide
    // Of each expert: the rows of gate and of up, [2 * inner, width], and down, [width, inner].
    void experts(View x, View router_logits, std::vector<Pieces> gate_up, std::vector<Pieces> down, int top_k,
                 bool normalise, Activation activation, int out);
    void add(View x, View y);  // into x
    void select(View x, int out);

    // The result of a step: rows of the output's slot, valid until the next run.
    struct Result {
        const float* data;
        int64_t num_rows;
        int64_t width;
        int64_t stride;  // in floats
    };

    // Computes one step. Throws std::invalid_argument naming the field when the input breaks its contract; nothing has
    // changed then. Calls from several threads wait for one another.
    Result run(const StepInput& input);

    // The same, but only the index of each row's largest number, the first among equals; -1 if one is NaN or the
    // largest is not finite.
    void run_greedy(const StepInput& input, int32_t* token_ids);  // num_results() of them

    // Rows of a step's result.
    int64_t num_results(const StepInput& input) const;

    // From now on each op's time is added up: that of the clock, or the calling thread's CPU time. For benchmarks.
    void start_profile(bool cpu_time);
    void stop_profile();

    // Name and seconds of each op since then, in order; a product's name ends with its weight's shape.
    std::vector<std::pair<std::string, double>> profile();

  private:
    struct Slot {
        int64_t width;
        bool selected;
        Memory memory;
    };
    struct Rope;
    struct Op;
    struct Step;

    void check(const StepInput& input);
    void check_sequence(const StepInput& input, int64_t index) const;
    void check_tables(const StepInput& input) const;
    void check_view(const char* name, const View& view) const;
    void check_rows(const char* name, const View& view, bool selected) const;
    View check_out(int out, int64_t width, bool selected, std::initializer_list<View> inputs) const;
    void check_matrix(const Matrix& matrix) const;
    void check_norm(const std::vector<float>& weight, const std::vector<float>& bias, int64_t width) const;
    void check_product(const ProductInput& input, const Matrix& weight, const std::vector<float>& bias) const;
    void add_product(ProductInput input, const Matrix& weight, std::vector<float> bias, View out,
                     LinearArgs::Output output);
    void reach_back(int layer, int32_t window);
    void check_rotary(const char* name, const View& x, size_t half, int64_t head_dim) const;
    void check_written(int layer, const View& key, const View& value);
    Rope* rope_of(std::vector<double> inv_freq, double scale, int64_t max_position);
    RowArgs rotary_rows(const Op& op, const View& x, const StepInput& input) const;
    void prepare(const StepInput& input);
    void release_unselected(int64_t num_selected);
    float* at(const View& view) const;
    int64_t rows_of(int slot, const StepInput& input) const;
    void execute(const Op& op, const StepInput& input);
    LinearArgs product_of(const Op& op, int num_rows);
    void execute_greedy(const Op& op, const StepInput& input, int32_t* token_ids);
    bool ask_screen(const Op& op, int num_rows, int32_t* token_ids);
    void look_ahead(size_t first_op, const StepInput& input);
    void execute_all(const StepInput& input, int32_t* token_ids);
    static std::string name_of(const Op& op);

    const Kernels& kernels_;
    const KVPool& kv_;
    ThreadPool& pool_;
    int64_t max_num_tokens_;
    int64_t vocab_size_ = INT32_MAX;
    View output_{-1, 0, 0};
    const Screen* screen_ = nullptr;
    int screen_rest_ = 0;   // steps for which it is not asked
    int screen_pause_ = 0;  // how many it was the last time
    int64_t max_seq_len_;   // of the block tables, the rotary embeddings and the learned positions
    int max_heads_ = 0;
    size_t linear_scratch_bytes_ = 0;
    size_t experts_scratch_bytes_ = 0;
    std::vector<Slot> slots_;
    std::vector<Op> ops_;
    std::vector<std::unique_ptr<Rope>> ropes_;
    std::vector<int32_t> group_window_;  // tokens whose blocks the group's layers touch; 0 for all, -1 for none
    std::vector<int32_t> token_rows_;
    std::vector<uint64_t> row_seen_;  // the last step that named each row of the block tables
    uint64_t num_steps_ = 0;
    std::vector<double> op_seconds_;  // empty unless profiling
    bool profile_cpu_time_ = false;
    int64_t rows_selected_ = 0;  // resident in slots of selected rows
    std::mutex running_;
    Memory linear_scratch_;
    Memory experts_scratch_;
    Memory greedy_scratch_;
    Memory attention_scratch_;
    KVAhead ahead_;

  public:
    ~Program();
};

}  // namespace octavo
