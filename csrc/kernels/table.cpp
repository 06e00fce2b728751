#include "dequantize.h"
#include "kernels.h"
#include "ops.h"
#include "simd.h"

#define OCTAVO_STRING_(x) #x
#define OCTAVO_STRING(x) OCTAVO_STRING_(x)

namespace octavo::OCTAVO_ISA {

extern const Dequantizer dequantizers[kNumDequantizers];  // dequantize.cpp

const Kernels table = {
    OCTAVO_STRING(OCTAVO_ISA),
    VF::W,
    dequantizers,
    quantize_groups,
    write_kv,
    attention_scratch_bytes,
    attention,
    row_max,
    row_exp,
    count_above,
    packed_bytes,
    panel_columns,
    linear_scratch_bytes,
    pack,
    linear,
    embedding,
    rms_norm,
    layer_norm,
    gated,
    activation,
    scale,
    soft_cap,
    sigmoid_gate,
    add,
    add_positions,
    select,
    rotary,
    dot_chains,
    rotary_write_kv,
    screen_bytes,
    make_screen_buffer_bytes,
    make_screen,
    greedy_scratch_bytes,
    greedy,
    sketch_bytes,
    make_sketch_buffer_bytes,
    make_sketch,
    sketched_greedy_scratch_bytes,
    sketched_greedy,
    head_input,
    route,
    add_shares,
};

}  // namespace octavo::OCTAVO_ISA
