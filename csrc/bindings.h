// The extension module: one `bind_*` function per room, each in its own file.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_dispatch(nanobind::module_& m);      // dispatch.cpp: which kernel paths this CPU can run
void bind_dequantize(nanobind::module_& m);    // dequantize.cpp: stored tensors to floats
void bind_parallel(nanobind::module_& m);      // parallel_bindings.cpp: ThreadPool
void bind_kv_memory(nanobind::module_& m);     // kv_memory.cpp: KVMemory
void bind_kernel_tests(nanobind::module_& m);  // kernel_tests.cpp: single kernels, for tests and benchmarks
void bind_dense_tests(nanobind::module_& m);   // dense_tests.cpp: the same for linear and the ops on rows
void bind_sample(nanobind::module_& m);        // sample_bindings.cpp: sample, uniform
void bind_program(nanobind::module_& m);       // program_bindings.cpp: recorded ops, replayed in one call

}  // namespace octavo
