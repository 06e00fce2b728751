// The table of kernels: one per instruction set, chosen once at run time.
//
// Arguments are plain structs, declared here, so that the callers (program.cpp, sample.cpp) never include an
// instruction set's headers. Each kernel does one *tile*: threads take tiles from a counter, and no sum is ever split
// over tiles, so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

struct Dequantizer;  // dequantize.h

struct Kernels {
    const char* name;  // "portable", "avx2" or "avx512"
    int lanes;         // float32 lanes of a vector
    const Dequantizer* dequantizers;  // [kNumDequantizers], one per stored format
};

namespace portable {
extern const Kernels table;
}
#ifdef OCTAVO_X86
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

// Names of the paths this CPU can run, best first.
std::vector<std::string> supported_paths();

// The table called `name`. Throws std::invalid_argument when this CPU cannot run it.
const Kernels& kernels_for(const std::string& name);

}  // namespace octavo
