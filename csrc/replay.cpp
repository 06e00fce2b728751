// Computes a step with the recorded ops.
#include <algorithm>
#include <cmath>
#include <ctime>

#include "program_ops.h"
#include "sample.h"

namespace octavo {
namespace {

// Positions by which a table of cosines and sines grows.
constexpr int64_t kRopeStep = 1024;

// Memory of selected rows that a step needs no more is given back when there is as much of it as this.
constexpr int64_t kMuchMemory = 32 << 20;

// Steps at most for which a screen that has been of no use again and again is not asked.
constexpr int kLongestPause = 63;

}  // namespace

void Program::Rope::serve(int64_t position) {
    const int64_t half = int64_t(inv_freq.size());
    int64_t have = half ? int64_t(table.size()) / (2 * half) : 0;
    if (position < have) return;
    const int64_t want = std::min(max_position, (position / kRopeStep + 1) * kRopeStep);
    table.resize(size_t(want * 2 * half));
    for (; have < want; ++have) {
        float* row = table.data() + have * 2 * half;
        for (int64_t i = 0; i < half; ++i) {
            const double angle = double(have) * inv_freq[size_t(i)];
            row[i] = float(std::cos(angle) * scale);
            row[half + i] = float(std::sin(angle) * scale);
        }
    }
}

void Program::prepare(const StepInput& in) {
    if (attention_scratch_.size() == 0 && max_heads_ > 0)
        attention_scratch_ =
            Memory(std::max<size_t>(64, kernels_.attention_scratch_bytes(kv_, max_heads_, int(max_num_tokens_),
                                                                         kv_.max_num_seqs, pool_.size())));
    if (linear_scratch_.size() == 0 && linear_scratch_bytes_ > 0)
        linear_scratch_ = Memory(linear_scratch_bytes_ * size_t(max_num_tokens_));
    if (experts_scratch_.size() == 0 && experts_scratch_bytes_ > 0) experts_scratch_ = Memory(experts_scratch_bytes_);
    release_unselected(in.num_selected);
    for (int64_t i = 0; i < in.num_seqs; ++i) {
        std::fill(token_rows_.begin() + in.query_start_loc[i], token_rows_.begin() + in.query_start_loc[i + 1],
                  in.batch_rows[i]);
        for (auto& rope : ropes_) rope->serve(in.seq_lens[i] - 1);
    }
    look_ahead(0, in);
}

void Program::release_unselected(int64_t num_selected) {
    bool released = false;
    for (Slot& slot : slots_) {
        const int64_t row_bytes = slot.width * int64_t(sizeof(float));
        if (!slot.selected || (rows_selected_ - num_selected) * row_bytes < kMuchMemory) continue;
        slot.memory.release_past(size_t(num_selected * row_bytes));
        released = true;
    }
    rows_selected_ = released ? num_selected : std::max(rows_selected_, num_selected);
}

float* Program::at(const View& view) const { return slots_[size_t(view.slot)].memory.as<float>() + view.offset; }

int64_t Program::num_results(const StepInput& in) const { return output_.slot < 0 ? 0 : rows_of(output_.slot, in); }

int64_t Program::rows_of(int slot, const StepInput& in) const {
    return slots_[size_t(slot)].selected ? in.num_selected : in.num_tokens;
}

LinearArgs Program::product_of(const Op& op, int num_rows) {
    const auto stride = [&](const View& view) { return slots_[size_t(view.slot)].width; };
    LinearArgs args{};
    args.x = at(op.x), args.x_stride = stride(op.x);
    args.weight = op.matrix->memory.data, args.format = op.matrix->format;
    args.n = op.matrix->n, args.k = op.matrix->k;
    args.bias = op.vector.empty() ? nullptr : op.vector.data();
    args.out = at(op.out), args.out_stride = stride(op.out), args.output = op.output;
    args.num_tokens = num_rows;
    args.scratch = linear_scratch_.as<void>();
    args.input = op.input.kind, args.activation = op.activation;
    args.norm = op.input.norm.data(), args.eps = op.input.eps;
    args.norm_bias = op.input.norm_bias.empty() ? nullptr : op.input.norm_bias.data();
    if (op.input.kind == LinearArgs::Input::kGated) args.up = at(op.input.up), args.up_stride = stride(op.input.up);
    args.ahead = &ahead_;
    return args;
}

bool Program::ask_screen(const Op& op, int num_rows, int32_t* token_ids) {
    if (screen_ == nullptr || !screen_->usable || op.matrix != screen_->head) return false;
    if (screen_rest_ > 0) return --screen_rest_, false;
    if (greedy_scratch_.size() == 0) greedy_scratch_ = Memory(screen_->scratch_bytes(max_num_tokens_));
    GreedyArgs args{};
    args.product = product_of(op, num_rows);
    args.scratch = greedy_scratch_.as<void>();
    args.token_ids = token_ids;
    const Found found = screen_->greedy(args, pool_);
    screen_pause_ = found == Found::kTooMuch ? std::min(2 * screen_pause_ + 1, kLongestPause) : 0;
    screen_rest_ = screen_pause_;
    return found == Found::kAll;
}

// The last op, and what it is asked for.
void Program::execute_greedy(const Op& op, const StepInput& in, int32_t* token_ids) {
    const int64_t num_rows = rows_of(output_.slot, in);
    if (ask_screen(op, int(num_rows), token_ids)) return;
    execute(op, in);
    find_largest(at(output_), slots_[size_t(output_.slot)].width, num_rows, output_.width, token_ids, kernels_, pool_);
}

// Lets products fetch the KV of the next attention, if there is one from `first_op` on.
void Program::look_ahead(size_t first_op, const StepInput& in) {
    for (size_t i = first_op; i < ops_.size(); ++i)
        if (ops_[i].kind == Op::Kind::kAttention)
            return ahead_.begin(ops_[i].layer, ops_[i].window, int(ops_[i].x.width / kv_.head_dim) / kv_.num_kv_heads,
                                in.batch_rows, in.query_start_loc, in.seq_lens, int(in.num_seqs));
    ahead_.end();
}

RowArgs Program::rotary_rows(const Op& op, const View& x, const StepInput& in) const {
    RowArgs rows{};
    rows.x = op.rope->table.data(), rows.index = in.positions;
    rows.out = at(x), rows.out_stride = slots_[size_t(x.slot)].width;
    rows.num_rows = int(rows_of(x.slot, in)), rows.width = int(x.width);
    rows.head_dim = int(op.head_dim), rows.rotary_half = int(op.rope->inv_freq.size());
    return rows;
}

void Program::execute(const Op& op, const StepInput& in) {
    const auto stride = [&](const View& view) { return slots_[size_t(view.slot)].width; };
    RowArgs rows{};
    rows.x = at(op.x), rows.x_stride = stride(op.x);
    rows.y = at(op.y), rows.y_stride = stride(op.y);
    rows.out = at(op.out), rows.out_stride = stride(op.out);
    rows.num_rows = int(rows_of(op.out.slot, in));
    rows.width = int(op.x.width);
    rows.number = op.number, rows.activation = op.activation;
    const WriteKVArgs written{&kv_,
                              op.layer,
                              rows.x,
                              rows.x_stride,
                              rows.y,
                              rows.y_stride,
                              in.positions,
                              token_rows_.data(),
                              int(in.num_tokens)};
    switch (op.kind) {
        case Op::Kind::kEmbedding:
            return kernels_.embedding(
                {op.matrix->memory.data, op.matrix->format, op.matrix->k, in.token_ids, rows.out, rows.num_rows},
                pool_);
        case Op::Kind::kLinear:
            return kernels_.linear(product_of(op, rows.num_rows), pool_);
        case Op::Kind::kWriteKV:
            return kernels_.write_kv(written, pool_);
        case Op::Kind::kAttention:
            kernels_.attention(
                {&kv_, op.layer, rows.x, rows.x_stride, rows.out, rows.out_stride, int(op.x.width / kv_.head_dim),
                 op.number, op.window, op.soft_cap, in.batch_rows, in.query_start_loc, in.seq_lens, int(in.num_seqs),
                 attention_scratch_.as<void>(), attention_scratch_.size()},
                pool_);
            return look_ahead(size_t(&op - ops_.data()) + 1, in);
        case Op::Kind::kRmsNorm:
            rows.weight = op.vector.data(), rows.run = int(op.vector.size()), rows.eps = op.number;
            return kernels_.rms_norm(rows, pool_);
        case Op::Kind::kLayerNorm:
            rows.weight = op.vector.data(), rows.bias = op.bias.empty() ? nullptr : op.bias.data();
            rows.eps = op.number;
            return kernels_.layer_norm(rows, pool_);
        case Op::Kind::kAddPositions:
            return kernels_.add_positions(
                {op.matrix->memory.data, op.matrix->format, op.matrix->k, in.positions, op.offset, rows.out,
                 rows.out_stride, rows.num_rows, linear_scratch_.as<float>()},
                pool_);
        case Op::Kind::kActivation:
            return kernels_.activation(rows, pool_);
        case Op::Kind::kScale:
            return kernels_.scale(rows, pool_);
        case Op::Kind::kSoftCap:
            return kernels_.soft_cap(rows, pool_);
        case Op::Kind::kSigmoidGate:
            return kernels_.sigmoid_gate(rows, pool_);
        case Op::Kind::kRotary:
            return kernels_.rotary(rotary_rows(op, op.x, in), pool_);
        case Op::Kind::kRotaryWriteKV:
            return kernels_.rotary_write_kv(rotary_rows(op, op.out, in), rotary_rows(op, op.x, in), written, pool_);
        case Op::Kind::kGated:
            return kernels_.gated(rows, pool_);
        case Op::Kind::kAdd:
            return kernels_.add(rows, pool_);
        case Op::Kind::kSelect:
            rows.index = in.logits_tokens;
            return kernels_.select(rows, pool_);
        case Op::Kind::kExperts:
            return op.experts->run({rows.x, rows.x_stride, rows.y, rows.y_stride, rows.out, rows.out_stride,
                                    rows.num_rows, experts_scratch_.as<void>(), linear_scratch_.as<void>(), &ahead_},
                                   pool_);
    }
}

// With `token_ids`, these are wanted of the last op instead of its output.
void Program::execute_all(const StepInput& input, int32_t* token_ids) {
    const clockid_t clock = profile_cpu_time_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    const auto now = [&] {
        timespec time{};
        clock_gettime(clock, &time);
        return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
    };
    const bool timed = !op_seconds_.empty();
    double before = timed ? now() : 0;
    for (size_t i = 0; i < ops_.size(); ++i) {
        if (token_ids != nullptr && i + 1 == ops_.size())
            execute_greedy(ops_[i], input, token_ids);
        else
            execute(ops_[i], input);
        if (!timed) continue;
        const double after = now();
        op_seconds_[i] += after - before;
        before = after;
    }
}

Program::Result Program::run(const StepInput& input) {
    const std::lock_guard<std::mutex> lock(running_);
    check(input);
    const ThreadPoolStep step(pool_);
    prepare(input);
    execute_all(input, nullptr);
    return {at(output_), rows_of(output_.slot, input), output_.width, slots_[size_t(output_.slot)].width};
}

void Program::run_greedy(const StepInput& input, int32_t* token_ids) {
    const std::lock_guard<std::mutex> lock(running_);
    check(input);
    const ThreadPoolStep step(pool_);
    prepare(input);
    execute_all(input, token_ids);
}

}  // namespace octavo
