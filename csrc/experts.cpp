#include "experts.h"

#include <algorithm>

#include "refuse.h"

namespace octavo {
namespace {

int64_t rows_of(const Pieces& weight) {
    int64_t rows = 0;
    for (const Matrix* piece : weight) rows += piece->n;
    return rows;
}

// That every expert's weight is [n, k], in matrices of this kernel path.
void check(const std::string& name, const std::vector<Pieces>& weights, int64_t n, int64_t k, const Kernels& kernels) {
    for (size_t e = 0; e < weights.size(); ++e) {
        const std::string field = name + "[" + std::to_string(e) + "]";
        for (const Matrix* piece : weights[e]) {
            if (piece->kernels != &kernels)
                refuse(field,
                       std::string("is packed for ") + piece->kernels->name + ", the program is for " + kernels.name);
            if (piece->k != k)
                refuse(field, "has " + std::to_string(piece->k) + " columns; must have " + std::to_string(k));
        }
        if (rows_of(weights[e]) != n)
            refuse(field, "has " + std::to_string(rows_of(weights[e])) + " rows; must have " + std::to_string(n));
    }
}

}  // namespace

// Pieces of one step's memory; rows of one expert at most all rows, as a row chooses an expert once.
struct Experts::Scratch {
    int32_t* chosen;   // [num_rows, top_k]
    float* of_chosen;  // [num_rows, top_k], the shares
    int32_t* first;    // [num_experts + 1], where each expert's rows begin in the next two
    int32_t* rows;     // [num_rows * top_k]
    float* shares;     // [num_rows * top_k]
    float* taken;      // [num_rows, width], what one expert takes,
    float* inner;      // [num_rows, 2 * inner], its product, or its gated half,
    float* given;      // [num_rows, width], and what it gives
    size_t bytes;
};

Experts::Experts(const Kernels& kernels, std::vector<Pieces> gate_up, std::vector<Pieces> down, int top_k,
                 bool normalise, Activation activation)
    : kernels_(kernels),
      gate_up_(std::move(gate_up)),
      down_(std::move(down)),
      top_k_(top_k),
      normalise_(normalise),
      activation_(activation) {
    if (gate_up_.empty()) refuse("gate_up", "there must be an expert");
    if (down_.size() != gate_up_.size())
        refuse("down", "has " + std::to_string(down_.size()) + " experts, gate_up " + std::to_string(gate_up_.size()));
    for (const auto* weights : {&gate_up_, &down_})
        for (const Pieces& weight : *weights)
            if (weight.empty() || std::count(weight.begin(), weight.end(), nullptr))
                refuse(weights == &down_ ? "down" : "gate_up", "every expert must have a weight");
    if (top_k < 1 || top_k > num_experts())
        refuse("top_k",
               "is " + std::to_string(top_k) + "; must be from 1 to the " + std::to_string(num_experts()) + " experts");
    const int64_t both = rows_of(gate_up_[0]);
    if (both % 2) refuse("gate_up[0]", "has " + std::to_string(both) + " rows; must be those of gate and of up");
    width_ = gate_up_[0][0]->k, inner_ = both / 2;
    check("gate_up", gate_up_, both, width_, kernels);
    check("down", down_, width_, inner_, kernels);
}

Experts::Scratch Experts::scratch(void* memory, int64_t num_rows) const {
    Scratch s{};
    size_t used = 0;
    const auto take = [&](auto*& piece, int64_t count) {
        using T = std::remove_reference_t<decltype(*piece)>;
        piece = reinterpret_cast<T*>(static_cast<char*>(memory) + used);
        used += (size_t(count) * sizeof(T) + 63) / 64 * 64;
    };
    take(s.chosen, num_rows * top_k_), take(s.of_chosen, num_rows * top_k_);
    take(s.first, num_experts() + 1);
    take(s.rows, num_rows * top_k_), take(s.shares, num_rows * top_k_);
    take(s.taken, num_rows * width_), take(s.inner, num_rows * 2 * inner_), take(s.given, num_rows * width_);
    s.bytes = used;
    return s;
}

size_t Experts::scratch_bytes(int64_t max_rows) const { return scratch(nullptr, max_rows).bytes; }

size_t Experts::linear_scratch_bytes() const {
    size_t most = 0;
    for (const auto* weights : {&gate_up_, &down_})
        for (const Pieces& weight : *weights)
            for (const Matrix* piece : weight)
                most = std::max(most, kernels_.linear_scratch_bytes(piece->k, 1, piece->format));
    return most;
}

std::string Experts::shape() const {
    return std::to_string(top_k_) + "/" + std::to_string(num_experts()) + " " + std::to_string(2 * inner_) + "x" +
           std::to_string(width_);
}

// A counting sort: an expert's rows stay in their order.
void Experts::sort_by_expert(const Scratch& s, int num_rows) const {
    const int64_t count = int64_t{num_rows} * top_k_;
    std::fill_n(s.first, num_experts() + 1, 0);
    for (int64_t i = 0; i < count; ++i)
        if (s.chosen[i] >= 0) ++s.first[s.chosen[i]];
    int32_t end = 0;
    for (int e = 0; e <= num_experts(); ++e) s.first[e] = end += s.first[e];  // where each one ends, for now
    for (int64_t i = count - 1; i >= 0; --i) {
        if (s.chosen[i] < 0) continue;
        const int32_t place = --s.first[s.chosen[i]];
        s.rows[place] = int32_t(i / top_k_), s.shares[place] = s.of_chosen[i];
    }
}

void Experts::multiply(const Pieces& weight, LinearArgs args, const ExpertsStep& step, ThreadPool& pool) const {
    args.scratch = step.linear_scratch, args.ahead = step.ahead;
    for (const Matrix* piece : weight) {
        args.weight = piece->memory.data, args.format = piece->format;
        args.n = piece->n, args.k = piece->k;
        kernels_.linear(args, pool);
        args.out += piece->n;
    }
}

void Experts::mlp(int expert, const Scratch& s, int num_rows, const ExpertsStep& step, ThreadPool& pool) const {
    const Pieces& gate_up = gate_up_[size_t(expert)];
    const bool gates = gate_up.size() == 1 && gate_up[0]->has_halves();
    LinearArgs first{};
    first.x = s.taken, first.x_stride = width_, first.num_tokens = num_rows;
    first.out = s.inner, first.out_stride = gates ? inner_ : 2 * inner_;
    first.output = gates ? LinearArgs::Output::kGated : LinearArgs::Output::kStore;
    first.activation = activation_;
    multiply(gate_up, first, step, pool);
    LinearArgs second{};
    second.x = s.inner, second.x_stride = first.out_stride, second.num_tokens = num_rows;
    second.out = s.given, second.out_stride = width_;
    if (!gates) {
        second.input = LinearArgs::Input::kGated, second.activation = activation_;
        second.up = s.inner + inner_, second.up_stride = first.out_stride;
    }
    multiply(down_[size_t(expert)], second, step, pool);
}

void Experts::run(const ExpertsStep& step, ThreadPool& pool) const {
    if (step.num_rows == 0) return;
    const Scratch s = scratch(step.scratch, step.num_rows);
    kernels_.route({step.logits, step.logits_stride, step.num_rows, num_experts(), top_k_, normalise_, s.chosen,
                    s.of_chosen, step.out, step.out_stride, int(width_)},
                   pool);
    sort_by_expert(s, step.num_rows);
    for (int e = 0; e < num_experts(); ++e) {
        const int32_t begin = s.first[e];
        const int num_rows = s.first[e + 1] - begin;
        if (num_rows == 0) continue;
        RowArgs taken{};
        taken.x = step.x, taken.x_stride = step.x_stride, taken.index = s.rows + begin;
        taken.out = s.taken, taken.out_stride = width_;
        taken.num_rows = num_rows, taken.width = int(width_);
        kernels_.select(taken, pool);
        mlp(e, s, num_rows, step, pool);
        kernels_.add_shares(
            {s.given, width_, s.shares + begin, s.rows + begin, step.out, step.out_stride, num_rows, int(width_)},
            pool);
    }
}

}  // namespace octavo
