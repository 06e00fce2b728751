#include <stdexcept>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "kernels.h"

namespace octavo {

std::vector<std::string> supported_paths() {
    std::vector<std::string> paths;
#ifdef OCTAVO_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#ifdef OCTAVO_EMULATED_AVX512
    // First, so that all that takes the best path is tested as on a machine with AVX512.
    const bool avx512 = avx2;
#else
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#endif
    if (avx512) paths.push_back("avx512");
    if (avx2) paths.push_back("avx2");
#endif
    paths.push_back("portable");
    return paths;
}

const Kernels& kernels_for(const std::string& name) {
    for (const std::string& path : supported_paths()) {
        if (path != name) continue;
#ifdef OCTAVO_X86
        if (name == "avx512") return avx512::table;
        if (name == "avx2") return avx2::table;
#endif
        return portable::table;
    }
    throw std::invalid_argument("this CPU has no kernel path '" + name + "'");
}

void bind_dispatch(nanobind::module_& m) {
    m.def("supported_paths", &supported_paths, "Kernel paths this CPU can run, best first.");
}

}  // namespace octavo
