// The extension module: one `bind_*` function per room, each in its own file.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_dispatch(nanobind::module_& m);  // dispatch.cpp: which kernel paths this CPU can run
void bind_dequantize(nanobind::module_& m);  // dequantize.cpp: stored tensors to floats

}  // namespace octavo
