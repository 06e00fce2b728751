// Products of activations with packed weights: packing, rounding of activations, and the choice of the format.
#include "gemm_dense.h"
#include "groups.h"
#include "kernels.h"
#include "ops.h"
#include "products.h"
#include "rows.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

// --- packing ---------------------------------------------------------------------------------------------------------

using Kind = WeightFormat::Kind;

struct PackJob {
    const PackArgs* args;
};

template <class T>
void pack_panel(const PackArgs& args, int64_t panel, int64_t group) {
    // `group` elements of k lie together per column: 2 for bfloat16 pairs, else 1.
    const int64_t k_padded = (args.k + group - 1) / group * group;
    T* out = static_cast<T*>(args.packed) + panel * k_padded * COLUMNS;
    const T* in = static_cast<const T*>(args.rows);
    for (int64_t c = 0; c < COLUMNS; ++c) {
        const int64_t row = panel * COLUMNS + c - args.first_row;
        if (row < 0 || row >= args.num_rows) continue;
        const T* source = in + row * args.k;
        T* column = out + c * group;
        for (int64_t k = 0; k < args.k; ++k) column[k / group * group * COLUMNS + k % group] = source[k];
    }
}

#if defined(OCTAVO_ISA_avx512)
// The common case of bfloat16 pairs: whole 32-bit pairs move, 16 k-pairs at a time so that the panel's lines stay
// close.
void pack_pairs(const PackArgs& args, int64_t panel) {
    const int64_t pairs = args.k / 2;
    auto* out = static_cast<uint8_t*>(args.packed) + panel * pairs * COLUMNS * 4;
    const auto* in = static_cast<const uint8_t*>(args.rows);
    for (int64_t begin = 0; begin < pairs; begin += 16) {
        const int64_t end = begin + 16 < pairs ? begin + 16 : pairs;
        for (int64_t c = 0; c < COLUMNS; ++c) {
            const int64_t row = panel * COLUMNS + c - args.first_row;
            if (row < 0 || row >= args.num_rows) continue;
            const uint8_t* source = in + row * args.k * 2;
            for (int64_t i = begin; i < end; ++i) std::memcpy(out + (i * COLUMNS + c) * 4, source + i * 4, 4);
        }
    }
}
#endif

void pack_tile(void* context, int64_t tile, int) {
    const PackArgs& args = *static_cast<PackJob*>(context)->args;
    const int64_t panel = args.first_row / COLUMNS + tile;
    if (args.format.kind == Kind::kFloat32) return pack_panel<float>(args, panel, 1);
#if defined(OCTAVO_ISA_avx512)
    if (args.k % 2 == 0) return pack_pairs(args, panel);
    return pack_panel<uint16_t>(args, panel, 2);
#else
    pack_panel<uint16_t>(args, panel, 1);
#endif
}

// --- what a product takes --------------------------------------------------------------------------------------------

#if defined(OCTAVO_ISA_avx512)
void round_row(const LinearArgs& args, int row, int) {
    const int64_t width = (args.k + 1) / 2 * 2;
    uint16_t* out = static_cast<uint16_t*>(args.scratch) + row * width;
    input_row(args, row, Bf16Row{out});
    if (width > args.k) out[args.k] = 0;
}
#endif

// The scratch has a row of float32 for each tile, then the rows as integers.
uint8_t* quantised_rows(const LinearArgs& args) {
    return static_cast<uint8_t*>(args.scratch) + int64_t{args.num_tokens} * args.k * int64_t(sizeof(float));
}

void quantise_input(const LinearArgs& args, int row, int tile) {
    const float* x = input_row(args, row, static_cast<float*>(args.scratch) + tile * args.k);
    quantise_row(x, args.k, args.format, quantised_rows(args) + row * quantised_row_bytes(args.k, args.format));
}

void make_row(const LinearArgs& args, int row, int) {
    input_row(args, row, FloatRow{static_cast<float*>(args.scratch) + row * args.k});
}

template <class W>
void run_dense(const LinearArgs& args, const ProductRows& rows, ThreadPool& pool) {
    using X = typename W::Activation;
    run_linear<W>(args, static_cast<const X*>(rows.data), rows.stride / int64_t(sizeof(X)), pool);
}

}  // namespace

int panel_columns(const WeightFormat& format) { return format.in_groups() ? kGroupColumns : COLUMNS; }

int64_t packed_bytes(int64_t n, int64_t k, const WeightFormat& format) {
    const int64_t columns = panel_columns(format), panels = (n + columns - 1) / columns;
    if (format.in_groups()) return panels * GroupLayout(format).panel_bytes(k);
    return format.kind == Kind::kBFloat16 ? panels * Bf16Weights::panel_elements(k) * 2
                                          : panels * FloatWeights::panel_elements(k) * 4;
}

size_t linear_scratch_bytes(int64_t k, int max_num_tokens, const WeightFormat& format) {
    const size_t floats = size_t(k) * size_t(max_num_tokens) * sizeof(float);
    if (format.in_groups()) return floats + size_t(quantised_row_bytes(k, format)) * size_t(max_num_tokens);
#if defined(OCTAVO_ISA_avx512)
    if (format.kind == Kind::kBFloat16) return size_t((k + 1) / 2 * 2) * size_t(max_num_tokens) * 2;
#endif
    return floats;
}

void pack(const PackArgs& args, ThreadPool& pool) {
    if (args.num_rows == 0) return;
    if (args.format.in_groups()) return pack_groups(args, pool);
    const int64_t first = args.first_row / COLUMNS, last = (args.first_row + args.num_rows - 1) / COLUMNS;
    PackJob job{&args};
    pool.parallel_for(last - first + 1, pack_tile, &job);
}

ProductRows convert_input(const LinearArgs& args, ThreadPool& pool) {
    if (args.format.in_groups()) {
        convert_rows(args, quantise_input, pool);
        return {quantised_rows(args), quantised_row_bytes(args.k, args.format)};
    }
#if defined(OCTAVO_ISA_avx512)
    if (args.format.kind == Kind::kBFloat16) {
        convert_rows(args, round_row, pool);
        return {args.scratch, (args.k + 1) / 2 * 2 * int64_t(sizeof(uint16_t))};
    }
#endif
    // Activations stay float32: those of x where they lie, others in the scratch.
    if (args.input == LinearArgs::Input::kRows) return {args.x, args.x_stride * int64_t(sizeof(float))};
    convert_rows(args, make_row, pool);
    return {args.scratch, args.k * int64_t(sizeof(float))};
}

void values_of_row(const LinearArgs& args, const void* row, float* out) {
    if (args.format.in_groups()) return values_of_quantised_row(row, args.k, args.format, out);
#if defined(OCTAVO_ISA_avx512)
    if (args.format.kind == Kind::kBFloat16) {
        for (int64_t i = 0; i < args.k; ++i) out[i] = bf16_to_float(static_cast<const uint16_t*>(row)[i]);
        return;
    }
#endif
    std::memcpy(out, row, size_t(args.k) * sizeof(float));
}

void multiply_row(const LinearArgs& args, const void* row, int64_t panel, float* out) {
    if (args.format.in_groups()) return multiply_row_int8(args, static_cast<const uint8_t*>(row), panel, out);
    args.format.kind == Kind::kBFloat16 ? multiply_row_by<Bf16Weights>(args, row, panel, out)
                                        : multiply_row_by<FloatWeights>(args, row, panel, out);
}

void linear(const LinearArgs& args, ThreadPool& pool) {
    if (args.num_tokens == 0) return;
    const ProductRows rows = convert_input(args, pool);
    if (args.format.in_groups()) return linear_groups(args, static_cast<const uint8_t*>(rows.data), pool);
    if (args.format.kind == Kind::kFloat32) return run_dense<FloatWeights>(args, rows, pool);
    run_dense<Bf16Weights>(args, rows, pool);
}

void embedding(const EmbeddingArgs& args, ThreadPool&) { embedding_rows(args); }

void embedding_rows(const EmbeddingArgs& args) {
    if (args.format.in_groups()) return embedding_groups(args);
    for (int t = 0; t < args.num_tokens; ++t) {
        const int64_t row = args.token_ids[t], panel = row / COLUMNS, column = row % COLUMNS;
        float* out = args.out + t * args.k;
        if (args.format.kind == Kind::kFloat32) {
            const float* w = static_cast<const float*>(args.weight) + panel * FloatWeights::panel_elements(args.k);
            for (int64_t i = 0; i < args.k; ++i) out[i] = w[i * COLUMNS + column];
            continue;
        }
        const uint16_t* w = static_cast<const uint16_t*>(args.weight) + panel * Bf16Weights::panel_elements(args.k);
#if defined(OCTAVO_ISA_avx512)
        for (int64_t i = 0; i < args.k; ++i) out[i] = bf16_to_float(w[(i / 2 * COLUMNS + column) * 2 + i % 2]);
#else
        for (int64_t i = 0; i < args.k; ++i) out[i] = bf16_to_float(w[i * COLUMNS + column]);
#endif
    }
}

}  // namespace octavo::OCTAVO_ISA
