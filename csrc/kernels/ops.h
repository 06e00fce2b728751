// Entry points of this instruction set, gathered in table.cpp. Contracts: csrc/kernels.h.
#pragma once

#include "kernels.h"

namespace octavo::OCTAVO_ISA {

void write_kv(const WriteKVArgs& args, ThreadPool& pool);
size_t attention_scratch_bytes(const KVPool& kv, int num_heads, int max_num_tokens, int max_num_seqs, int num_threads);
void attention(const AttentionArgs& args, ThreadPool& pool);

}  // namespace octavo::OCTAVO_ISA
