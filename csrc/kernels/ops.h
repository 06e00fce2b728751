// Entry points of this instruction set, gathered in table.cpp. Contracts: csrc/kernels.h.
#pragma once

#include "kernels.h"

namespace octavo::OCTAVO_ISA {

void write_kv(const WriteKVArgs& args, ThreadPool& pool);
size_t attention_scratch_bytes(const KVPool& kv, int num_heads, int max_num_tokens, int max_num_seqs, int num_threads);
void attention(const AttentionArgs& args, ThreadPool& pool);
float row_max(const float* x, int64_t n, float* block_max, bool* has_nan);
double row_exp(const float* x, int64_t n, float max, float factor, float* p, float* block_sum);
int64_t count_above(const float* x, int64_t n, float value);

}  // namespace octavo::OCTAVO_ISA
