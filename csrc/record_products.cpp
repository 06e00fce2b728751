// Records the ops that read weights: embeddings, products and experts.
#include <algorithm>
#include <string>

#include "program_ops.h"
#include "refuse.h"

namespace octavo {

void Program::embedding(const Matrix& table, int out) {
    check_matrix(table);
    Op op{Op::Kind::kEmbedding};
    op.out = check_out(out, table.k, false, {});
    if (slots_[size_t(out)].width != table.k) refuse("out", "must be as wide as the table");
    op.matrix = &table;
    vocab_size_ = std::min(vocab_size_, table.n);
    ops_.push_back(std::move(op));
}

void Program::add_positions(View x, const Matrix& table, int64_t offset) {
    check_rows("x", x, false);
    check_matrix(table);
    if (table.k != x.width)
        refuse("table", "has " + std::to_string(table.k) + " columns for an x of " + std::to_string(x.width));
    if (offset < 0 || offset >= table.n)
        refuse("offset", "must be one of the table's " + std::to_string(table.n) + " rows");
    max_seq_len_ = std::min(max_seq_len_, table.n - offset);
    linear_scratch_bytes_ = std::max(linear_scratch_bytes_, size_t(table.k) * sizeof(float));
    Op op{Op::Kind::kAddPositions};
    op.x = op.out = x, op.matrix = &table, op.offset = int(offset);
    ops_.push_back(std::move(op));
}

void Program::check_product(const ProductInput& input, const Matrix& weight, const std::vector<float>& bias) const {
    check_view("x", input.x);
    check_matrix(weight);
    if (weight.k != input.x.width)
        refuse("weight", "has " + std::to_string(weight.k) + " columns for an x of " + std::to_string(input.x.width));
    if (!bias.empty() && int64_t(bias.size()) != weight.n) refuse("bias", "must be as long as the weight has rows");
    using Input = LinearArgs::Input;
    if (input.kind == Input::kRmsNorm || input.kind == Input::kLayerNorm)
        check_norm(input.norm, input.norm_bias, weight.k);
    if (input.kind != Input::kGated) return;
    check_rows("up", input.up, slots_[size_t(input.x.slot)].selected);
    if (input.up.width != input.x.width) refuse("up", "must be as wide as the gate");
}

void Program::add_product(ProductInput input, const Matrix& weight, std::vector<float> bias, View out,
                          LinearArgs::Output output) {
    if (out.slot == input.x.slot || out.slot == input.up.slot) refuse("out", "must be another slot than the inputs");
    Op op{Op::Kind::kLinear};
    op.x = input.x, op.out = out, op.output = output, op.activation = input.activation;
    op.input = std::move(input), op.matrix = &weight, op.vector = std::move(bias);
    linear_scratch_bytes_ = std::max(linear_scratch_bytes_, kernels_.linear_scratch_bytes(weight.k, 1, weight.format));
    ops_.push_back(std::move(op));
}

void Program::linear(ProductInput input, const Matrix& weight, std::vector<float> bias, int out, int64_t first_column) {
    check_product(input, weight, bias);
    View to = check_out(out, weight.n, slots_[size_t(input.x.slot)].selected, {});
    to.offset = first_column;
    check_view("first_column", to);
    add_product(std::move(input), weight, std::move(bias), to, LinearArgs::Output::kStore);
}

void Program::linear_add(ProductInput input, const Matrix& weight, std::vector<float> bias, View into) {
    check_product(input, weight, bias);
    check_rows("into", into, slots_[size_t(input.x.slot)].selected);
    if (into.width != weight.n) refuse("into", "must be as wide as the weight has rows");
    add_product(std::move(input), weight, std::move(bias), into, LinearArgs::Output::kAdd);
}

void Program::linear_gated(ProductInput input, Activation activation, const Matrix& weight, std::vector<float> bias,
                           int out) {
    check_product(input, weight, bias);
    if (!weight.has_halves()) refuse("weight", "must have two halves of rows that both begin at panels");
    const View to = check_out(out, weight.n / 2, slots_[size_t(input.x.slot)].selected, {});
    input.activation = activation;
    add_product(std::move(input), weight, std::move(bias), to, LinearArgs::Output::kGated);
}

void Program::experts(View x, View router_logits, std::vector<Pieces> gate_up, std::vector<Pieces> down, int top_k,
                      bool normalise, Activation activation, int out) {
    check_view("x", x);
    const bool selected = slots_[size_t(x.slot)].selected;
    check_rows("router_logits", router_logits, selected);
    auto made =
        std::make_unique<const Experts>(kernels_, std::move(gate_up), std::move(down), top_k, normalise, activation);
    if (x.width != made->width()) refuse("x", "must have as many columns as gate_up");
    if (router_logits.width != made->num_experts()) refuse("router_logits", "must have a column for each expert");
    linear_scratch_bytes_ = std::max(linear_scratch_bytes_, made->linear_scratch_bytes());
    experts_scratch_bytes_ = std::max(experts_scratch_bytes_, made->scratch_bytes(max_num_tokens_));
    Op op{Op::Kind::kExperts};
    op.out = check_out(out, x.width, selected, {x, router_logits});
    op.x = x, op.y = router_logits, op.experts = std::move(made);
    ops_.push_back(std::move(op));
}

}  // namespace octavo
