// The extension module: one `bind_*` function per room, each in its own file.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_dequantize(nanobind::module_& m);  // dequantize.cpp: GGUF block formats to float32 or bfloat16
void bind_program(nanobind::module_& m);     // program.cpp: recorded ops, replayed in one call
void bind_sample(nanobind::module_& m);      // sample.cpp: from logits to token ids

}  // namespace octavo
