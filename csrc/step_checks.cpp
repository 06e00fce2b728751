// What a step must be before anything is computed.
#include <algorithm>
#include <string>

#include "program.h"
#include "refuse.h"

namespace octavo {

void Program::check(const StepInput& in) {
    if (output_.slot < 0) refuse("program", "has no output");
    if (in.num_tokens < 1 || in.num_tokens > max_num_tokens_)
        refuse("token_ids", std::to_string(in.num_tokens) + " tokens; must be from 1 to the " +
                                std::to_string(max_num_tokens_) + " compiled for");
    for (int64_t t = 0; t < in.num_tokens; ++t)
        if (in.token_ids[t] < 0 || in.token_ids[t] >= vocab_size_)
            refuse(at_index("token_ids", t, in.token_ids[t]), "outside the vocabulary");
    if (in.query_start_loc[0] != 0 || in.query_start_loc[in.num_seqs] != in.num_tokens)
        refuse("query_start_loc", "must run from 0 to the number of tokens");
    ++num_steps_;
    for (int64_t i = 0; i < in.num_seqs; ++i) {
        check_sequence(in, i);
        uint64_t& seen = row_seen_[size_t(in.batch_rows[i])];
        if (seen == num_steps_) refuse(at_index("batch_rows", i, in.batch_rows[i]), "named twice");
        seen = num_steps_;
    }
    for (int64_t s = 0; s < in.num_selected; ++s)
        if (in.logits_tokens[s] < 0 || in.logits_tokens[s] >= in.num_tokens ||
            (s > 0 && in.logits_tokens[s] <= in.logits_tokens[s - 1]))
            refuse(at_index("logits_tokens", s, in.logits_tokens[s]), "must ascend within the new tokens");
    check_tables(in);
}

void Program::check_sequence(const StepInput& in, int64_t i) const {
    const int64_t first = in.query_start_loc[i], last = in.query_start_loc[i + 1];
    if (last <= first) refuse(at_index("query_start_loc", i + 1, last), "a sequence without new tokens");
    if (last > in.num_tokens) refuse(at_index("query_start_loc", i + 1, last), "past the last token");
    if (in.batch_rows[i] < 0 || in.batch_rows[i] >= kv_.max_num_seqs)
        refuse(at_index("batch_rows", i, in.batch_rows[i]), "there is no such row");
    if (in.seq_lens[i] < last - first || in.seq_lens[i] > max_seq_len_)
        refuse(at_index("seq_lens", i, in.seq_lens[i]),
               "must be at least its " + std::to_string(last - first) + " new tokens and at most the " +
                   std::to_string(max_seq_len_) + " of the block tables and the positions");
    for (int64_t t = first; t < last; ++t)
        if (in.positions[t] != in.seq_lens[i] - last + t)
            refuse(at_index("positions", t, in.positions[t]), "new tokens must be the sequence's last ones");
}

// Every block that the step will read or write must exist; entries below a group's window are not looked at.
void Program::check_tables(const StepInput& in) const {
    for (int32_t group = 0; group < kv_.num_groups; ++group) {
        const int32_t window = group_window_[size_t(group)];
        if (window < 0) continue;  // no op of this program touches it
        for (int64_t i = 0; i < in.num_seqs; ++i) {
            const int32_t* table =
                kv_.tables + (int64_t{group} * kv_.max_num_seqs + in.batch_rows[i]) * kv_.max_blocks_per_seq;
            const int64_t oldest = in.seq_lens[i] - (in.query_start_loc[i + 1] - in.query_start_loc[i]);
            const int64_t start = window == 0 ? 0 : std::max<int64_t>(0, oldest - window + 1);
            const int64_t end = (in.seq_lens[i] - 1) / kv_.block_size;
            for (int64_t column = start / kv_.block_size; column <= end; ++column)
                if (table[column] < 1 || table[column] >= kv_.num_blocks)
                    refuse(at_index("block_tables", column, table[column]), "row " + std::to_string(in.batch_rows[i]) +
                                                                                " of group " + std::to_string(group) +
                                                                                " needs a block there");
        }
    }
}

}  // namespace octavo
