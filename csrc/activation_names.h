// The names of activation functions, as backends/protocol.py Activation.
#pragma once

#include <string>

#include "kernels.h"
#include "refuse.h"

namespace octavo {

// In the order of Activation.
constexpr const char* kActivationNames[] = {"silu", "gelu", "gelu_tanh", "relu"};

inline Activation activation_called(const std::string& name) {
    for (int i = 0; i < 4; ++i)
        if (name == kActivationNames[i]) return Activation(i);
    refuse("kind", name + "; must be silu, gelu, gelu_tanh or relu");
}

}  // namespace octavo
