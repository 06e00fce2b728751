// How long each op of a program took, and its name.
#include <string>

#include "activation_names.h"
#include "program_ops.h"

namespace octavo {
namespace {

// In the order of Op::Kind.
constexpr const char* kOpNames[] = {"embedding",       "rms_norm",   "linear",     "rotary", "write_kv",
                                    "rotary_write_kv", "attention",  "gated",      "add",    "select",
                                    "add_positions",   "layer_norm", "activation", "scale",  "soft_cap",
                                    "sigmoid_gate",    "experts"};

}  // namespace

void Program::start_profile(bool cpu_time) {
    const std::lock_guard<std::mutex> lock(running_);
    op_seconds_.assign(ops_.size(), 0.0);
    profile_cpu_time_ = cpu_time;
}

void Program::stop_profile() {
    const std::lock_guard<std::mutex> lock(running_);
    op_seconds_.clear();
}

std::vector<std::pair<std::string, double>> Program::profile() {
    const std::lock_guard<std::mutex> lock(running_);
    std::vector<std::pair<std::string, double>> result;
    for (size_t i = 0; i < op_seconds_.size(); ++i) result.emplace_back(name_of(ops_[i]), op_seconds_[i]);
    return result;
}

std::string Program::name_of(const Op& op) {
    const std::string activation = kActivationNames[int(op.activation)];
    if (op.kind == Op::Kind::kGated) return activation + "_mul";
    if (op.kind == Op::Kind::kActivation) return activation;
    if (op.kind == Op::Kind::kExperts) return std::string(kOpNames[int(op.kind)]) + " " + op.experts->shape();
    if (op.kind != Op::Kind::kLinear) return kOpNames[int(op.kind)];
    // In the order of LinearArgs::Input and Output.
    const std::string inputs[] = {"", "rms_norm_", "layer_norm_", activation + "_mul_", activation + "_"};
    const std::string outputs[] = {" ", "_add ", "_" + activation + "_mul "};
    return inputs[int(op.input.kind)] + kOpNames[int(op.kind)] + outputs[int(op.output)] +
           std::to_string(op.matrix->n) + "x" + std::to_string(op.matrix->k);
}

}  // namespace octavo
