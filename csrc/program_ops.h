// What a program keeps of each recorded op: written by record_*.cpp, read by replay.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "experts.h"
#include "program.h"

namespace octavo {

// Cosines and sines of one set of frequencies: [positions][2][half], grown as positions are met.
struct Program::Rope {
    std::vector<double> inv_freq;
    double scale;
    int64_t max_position;
    std::vector<float> table;

    void serve(int64_t position);
};

struct Program::Op {
    enum class Kind {
        kEmbedding,
        kRmsNorm,
        kLinear,
        kRotary,
        kWriteKV,
        kRotaryWriteKV,
        kAttention,
        kGated,
        kAdd,
        kSelect,
        kAddPositions,
        kLayerNorm,
        kActivation,
        kScale,
        kSoftCap,
        kSigmoidGate,
        kExperts
    } kind;
    View x{};
    View y{};
    View out{};
    const Matrix* matrix = nullptr;
    std::vector<float> vector{};  // norm weight, or bias of a product
    std::vector<float> bias{};    // of a layer norm
    ProductInput input{};
    LinearArgs::Output output = LinearArgs::Output::kStore;
    Activation activation{};
    float number = 0.0f;    // eps, scale, factor or cap
    float soft_cap = 0.0f;  // attention
    int offset = 0;         // add_positions
    int layer = 0;
    int window = 0;
    int64_t head_dim = 0;
    Rope* rope = nullptr;
    std::unique_ptr<const Experts> experts{};

    bool is_plain_product() const {
        return kind == Kind::kLinear && output == LinearArgs::Output::kStore && vector.empty();
    }
};

}  // namespace octavo
