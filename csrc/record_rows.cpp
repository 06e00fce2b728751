// Records the ops that treat each row by itself: norms, activations, gates, sums, and the choice of rows.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "program_ops.h"
#include "refuse.h"

namespace octavo {

void Program::rms_norm(View x, std::vector<float> weight, float eps, int out) {
    check_view("x", x);
    if (weight.empty() || x.width % int64_t(weight.size())) refuse("weight", "must be as wide as x, or a whole part");
    Op op{Op::Kind::kRmsNorm};
    op.out = check_out(out, x.width, slots_[size_t(x.slot)].selected, {x});
    op.x = x, op.vector = std::move(weight), op.number = eps;
    ops_.push_back(std::move(op));
}

void Program::check_norm(const std::vector<float>& weight, const std::vector<float>& bias, int64_t width) const {
    if (int64_t(weight.size()) != width) refuse("weight", "must be as wide as x");
    if (!bias.empty() && bias.size() != weight.size()) refuse("norm_bias", "must be as long as the weight");
}

void Program::layer_norm(View x, std::vector<float> weight, std::vector<float> bias, float eps, int out) {
    check_view("x", x);
    check_norm(weight, bias, x.width);
    Op op{Op::Kind::kLayerNorm};
    op.out = check_out(out, x.width, slots_[size_t(x.slot)].selected, {x});
    op.x = x, op.vector = std::move(weight), op.bias = std::move(bias), op.number = eps;
    ops_.push_back(std::move(op));
}

void Program::gated(View gate, View up, Activation activation, int out) {
    check_view("gate", gate);
    const bool selected = slots_[size_t(gate.slot)].selected;
    check_rows("up", up, selected);
    if (gate.width != up.width) refuse("up", "must be as wide as gate");
    Op op{Op::Kind::kGated};
    op.out = check_out(out, gate.width, selected, {gate, up});
    op.x = gate, op.y = up, op.activation = activation;
    ops_.push_back(std::move(op));
}

void Program::activation(View x, Activation activation) {
    check_view("x", x);
    Op op{Op::Kind::kActivation};
    op.x = op.out = x, op.activation = activation;
    ops_.push_back(std::move(op));
}

void Program::scale(View x, float factor) {
    check_view("x", x);
    if (!std::isfinite(factor)) refuse("factor", "must be finite");
    Op op{Op::Kind::kScale};
    op.x = op.out = x, op.number = factor;
    ops_.push_back(std::move(op));
}

void Program::soft_cap(View x, float cap) {
    check_view("x", x);
    if (!(cap > 0 && std::isfinite(cap))) refuse("cap", "must be finite, and above 0");
    Op op{Op::Kind::kSoftCap};
    op.x = op.out = x, op.number = cap;
    ops_.push_back(std::move(op));
}

void Program::sigmoid_gate(View x, View gate) {
    check_view("x", x);
    check_rows("gate", gate, slots_[size_t(x.slot)].selected);
    if (gate.width != 1) refuse("gate", "must be one column wide");
    Op op{Op::Kind::kSigmoidGate};
    op.x = op.out = x, op.y = gate;
    ops_.push_back(std::move(op));
}

void Program::add(View x, View y) {
    check_view("x", x);
    check_rows("y", y, slots_[size_t(x.slot)].selected);
    if (x.width != y.width) refuse("y", "must be as wide as x");
    if (x.slot == y.slot && x.offset != y.offset && std::abs(x.offset - y.offset) < x.width)
        refuse("y", "must not overlap x");
    Op op{Op::Kind::kAdd};
    op.x = x, op.y = y, op.out = x;
    ops_.push_back(std::move(op));
}

void Program::select(View x, int out) {
    check_rows("x", x, false);
    Op op{Op::Kind::kSelect};
    op.out = check_out(out, x.width, true, {x});
    op.x = x;
    ops_.push_back(std::move(op));
}

}  // namespace octavo
