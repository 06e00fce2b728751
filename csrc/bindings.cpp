#include "bindings.h"

NB_MODULE(_native, m) {
    m.doc() = "Octavo's native code. Every function releases the GIL while it computes.";
    octavo::bind_dispatch(m);
    octavo::bind_dequantize(m);
    octavo::bind_parallel(m);
    octavo::bind_kv_memory(m);
    octavo::bind_program(m);
    octavo::bind_sample(m);
    octavo::bind_kernel_tests(m);
    octavo::bind_dense_tests(m);
}
