// Entry points of this instruction set, gathered in table.cpp. Contracts: csrc/kernels.h.
#pragma once

#include "kernels.h"

namespace octavo::OCTAVO_ISA {

void quantize_groups(const QuantizeArgs& args, int64_t begin, int64_t end);
void write_kv(const WriteKVArgs& args, ThreadPool& pool);
size_t attention_scratch_bytes(const KVPool& kv, int num_heads, int max_num_tokens, int max_num_seqs, int num_threads);
void attention(const AttentionArgs& args, ThreadPool& pool);
float row_max(const float* x, int64_t n, float* block_max, bool* has_nan);
double row_exp(const float* x, int64_t n, float max, float factor, float* p, float* block_sum);
int64_t count_above(const float* x, int64_t n, float value);
int64_t packed_bytes(int64_t n, int64_t k, const WeightFormat& format);
int panel_columns(const WeightFormat& format);
size_t linear_scratch_bytes(int64_t k, int max_num_tokens, const WeightFormat& format);
void pack(const PackArgs& args, ThreadPool& pool);
void linear(const LinearArgs& args, ThreadPool& pool);
void embedding(const EmbeddingArgs& args, ThreadPool& pool);
void rms_norm(const RowArgs& args, ThreadPool& pool);
void layer_norm(const RowArgs& args, ThreadPool& pool);
void gated(const RowArgs& args, ThreadPool& pool);
void activation(const RowArgs& args, ThreadPool& pool);
void scale(const RowArgs& args, ThreadPool& pool);
void soft_cap(const RowArgs& args, ThreadPool& pool);
void sigmoid_gate(const RowArgs& args, ThreadPool& pool);
void add(const RowArgs& args, ThreadPool& pool);
void add_positions(const PositionArgs& args, ThreadPool& pool);
void select(const RowArgs& args, ThreadPool& pool);
void rotary(const RowArgs& args, ThreadPool& pool);
void rotary_write_kv(const RowArgs& query, const RowArgs& key, const WriteKVArgs& kv, ThreadPool& pool);
size_t screen_bytes(int64_t n, int64_t k);
size_t make_screen_buffer_bytes(int64_t k, int num_threads);
bool make_screen(const ScreenArgs& args, ThreadPool& pool);
size_t greedy_scratch_bytes(int64_t k);
bool greedy(GreedyArgs& args, ThreadPool& pool);
size_t sketch_bytes(int64_t n, int64_t k);
size_t make_sketch_buffer_bytes(int64_t k, int num_threads);
bool make_sketch(const SketchArgs& args, ThreadPool& pool);
size_t sketched_greedy_scratch_bytes(int64_t k);
bool sketched_greedy(GreedyArgs& args, ThreadPool& pool);
void head_input(const LinearArgs& product, float* values, ThreadPool& pool);
void route(const RouteArgs& args, ThreadPool& pool);
void add_shares(const SharesArgs& args, ThreadPool& pool);
double dot_chains(WeightFormat::Kind kind, int64_t steps, float* result);

}  // namespace octavo::OCTAVO_ISA
