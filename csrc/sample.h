// Choosing tokens from logits. Semantics: backends/protocol.py `Backend.sample`.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "parallel.h"

namespace octavo {

// SampleBatch of backends/protocol.py, as pointers.
struct SampleArgs {
    const float* logits;  // row i at logits + i * logits_stride
    int64_t logits_stride;
    int64_t num_rows;
    int32_t vocab_size;
    const float* temperature;
    const int32_t* top_k;
    const float* top_p;
    const float* min_p;
    const float* repetition_penalty;
    const float* presence_penalty;
    const float* frequency_penalty;
    const int64_t* seed;
    const int32_t* sequence_index;
    const int32_t* position;
    const int64_t* history_start;
    const int32_t* history;
    const int32_t* num_prompt;
    const int64_t* bias_start;
    const int32_t* bias_ids;
    const float* bias_values;
    const int64_t* banned_start;
    const int32_t* banned_ids;
    const int32_t* mask_index;  // a row's mask in `masks`, or -1
    const uint32_t* masks;      // [number of masks, mask_words]
    int64_t mask_words;
    const int32_t* num_logprobs;
};

// SampleOutput. The logprob pointers are all null or none is.
struct SampleResult {
    int32_t* token_ids;   // [num_rows]
    float* logprobs;      // [num_rows]
    int32_t* ranks;       // [num_rows]
    int32_t* top_ids;     // [num_rows, num_top]
    float* top_logprobs;  // [num_rows, num_top]
    int64_t num_top;
};

// The noise of one token, in [0, 1) with 24 random bits; equal to `uniform` of backends/protocol.py.
float uniform(int64_t seed, int64_t sequence_index, int64_t position);

// Chooses a token per row, rows in parallel. A row's result does not depend on the others.
void sample(const SampleArgs& args, const SampleResult& result, const Kernels& kernels, ThreadPool& pool);

// The greedy choice for each of `num_rows` rows of n logits, row i at logits + i * stride: the first of the largest; -1
// where one is NaN or the largest is not finite.
void find_largest(const float* logits, int64_t stride, int64_t num_rows, int64_t n, int32_t* token_ids,
                  const Kernels& kernels, ThreadPool& pool);

}  // namespace octavo
