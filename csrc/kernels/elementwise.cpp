// Ops on rows: each row by itself, its sums in one fixed order.
#include "kernels.h"
#include "ops.h"
#include "products.h"
#include "rows.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

// Elements below which starting the other threads costs more than it saves.
constexpr int64_t kSerialElements = 16 << 10;
constexpr int kRowsPerTile = 4;

struct RowJob {
    const RowArgs* args;
    void (*row)(const RowArgs&, int);
};

void rows_tile(void* context, int64_t tile, int) {
    const RowJob& job = *static_cast<RowJob*>(context);
    const int begin = int(tile) * kRowsPerTile;
    const int end = begin + kRowsPerTile < job.args->num_rows ? begin + kRowsPerTile : job.args->num_rows;
    for (int row = begin; row < end; ++row) job.row(*job.args, row);
}

void each_row(const RowArgs& args, void (*row)(const RowArgs&, int), ThreadPool& pool) {
    if (int64_t{args.num_rows} * args.width <= kSerialElements) {
        for (int i = 0; i < args.num_rows; ++i) row(args, i);
        return;
    }
    RowJob job{&args, row};
    pool.parallel_for((args.num_rows + kRowsPerTile - 1) / kRowsPerTile, rows_tile, &job);
}

// For ops on single elements: rows as long as those of logits are cut.
constexpr int kStretch = 8 << 10;

int stretches_of(const RowArgs& args) { return (args.width + kStretch - 1) / kStretch; }

void stretch_tile(void* context, int64_t tile, int) {
    const RowJob& job = *static_cast<RowJob*>(context);
    RowArgs args = *job.args;
    const int stretches = stretches_of(args), begin = int(tile % stretches) * kStretch;
    args.x += begin, args.out += begin;
    args.width = args.width - begin < kStretch ? args.width - begin : kStretch;
    job.row(args, int(tile / stretches));
}

void each_stretch(const RowArgs& args, void (*row)(const RowArgs&, int), ThreadPool& pool) {
    if (args.width <= kStretch) return each_row(args, row, pool);
    RowJob job{&args, row};
    pool.parallel_for(int64_t{args.num_rows} * stretches_of(args), stretch_tile, &job);
}

void norm_row(const RowArgs& args, int row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    for (int i = 0; i < args.width; i += args.run)
        rms_norm_row(x + i, args.weight, args.eps, args.run, FloatRow{out + i});
}

void centred_norm_row(const RowArgs& args, int row) {
    const float* x = args.x + row * args.x_stride;
    layer_norm_row(x, args.weight, args.bias, args.eps, args.width, FloatRow{args.out + row * args.out_stride});
}

void gate_row(const RowArgs& args, int row) {
    const float* gate = args.x + row * args.x_stride;
    const float* up = args.y + row * args.y_stride;
    gated_row(args.activation, gate, up, args.width, FloatRow{args.out + row * args.out_stride});
}

void activate_row(const RowArgs& args, int row) {
    const float* x = args.x + row * args.x_stride;
    activation_row(args.activation, x, args.width, FloatRow{args.out + row * args.out_stride});
}

void multiply_row_by_number(const RowArgs& args, int row, float number) {
    const VF factor = VF::set1(number);
    map_row(args.x + row * args.x_stride, args.width, FloatRow{args.out + row * args.out_stride},
            [&](const VF& v) { return v * factor; });
}

void scale_row(const RowArgs& args, int row) { multiply_row_by_number(args, row, args.number); }

void sigmoid_gate_row(const RowArgs& args, int row) {
    const float gate = args.y[row * args.y_stride];
    float lanes[VF::W];
    (VF::set1(1.0f) / (VF::set1(1.0f) + exp(VF::set1(-gate)))).store(lanes);
    multiply_row_by_number(args, row, std::isnan(gate) ? gate : lanes[0]);  // exp knows no NaN
}

void soft_cap_row(const RowArgs& args, int row) {
    const VF cap = VF::set1(args.number), inverse = VF::set1(1.0f / args.number);
    map_row(args.x + row * args.x_stride, args.width, FloatRow{args.out + row * args.out_stride},
            [&](const VF& v) { return tanh(v * inverse) * cap; });
}

void add_to_row(const float* x, const float* y, int width, float* out) {
    const int whole = width / VF::W * VF::W, rest = width - whole;
    for (int i = 0; i < whole; i += VF::W) (VF::load(x + i) + VF::load(y + i)).store(out + i);
    if (rest) (VF::load_n(x + whole, rest) + VF::load_n(y + whole, rest)).store_n(out + whole, rest);
}

void add_row(const RowArgs& args, int row) {
    add_to_row(args.x + row * args.x_stride, args.y + row * args.y_stride, args.width,
               args.out + row * args.out_stride);
}

void positions_tile(void* context, int64_t tile, int) {
    const PositionArgs& args = *static_cast<const PositionArgs*>(context);
    const int begin = int(tile) * kRowsPerTile;
    const int end = begin + kRowsPerTile < args.num_tokens ? begin + kRowsPerTile : args.num_tokens;
    float* buffer = args.buffer + begin * args.k;
    for (int t = begin; t < end; ++t) {
        const int32_t row = args.positions[t] + args.offset;
        embedding_rows({args.weight, args.format, args.k, &row, buffer, 1});
        float* out = args.out + t * args.out_stride;
        add_to_row(out, buffer, int(args.k), out);
    }
}

void select_row(const RowArgs& args, int row) {
    std::memcpy(args.out + row * args.out_stride, args.x + args.index[row] * args.x_stride, size_t(args.width) * 4);
}

void rotary_row(const RowArgs& args, int row) { rotate_row(args, row); }

struct ConvertJob {
    const LinearArgs* args;
    ConvertRow convert;
    int rows_per_tile;
};

void convert_tile(void* context, int64_t tile, int) {
    const ConvertJob& job = *static_cast<ConvertJob*>(context);
    const int begin = int(tile) * job.rows_per_tile;
    const int end = begin + job.rows_per_tile < job.args->num_tokens ? begin + job.rows_per_tile : job.args->num_tokens;
    for (int row = begin; row < end; ++row) job.convert(*job.args, row, int(tile));
}

}  // namespace

void convert_rows(const LinearArgs& args, ConvertRow convert, ThreadPool& pool) {
    const int threads = pool.size(), most = input_rows_per_tile(args);
    int tiles = (args.num_tokens + most - 1) / most;
    if (tiles > 1) tiles = (tiles + threads - 1) / threads * threads;  // as many for each, of as many rows
    ConvertJob job{&args, convert, (args.num_tokens + tiles - 1) / tiles};
    pool.parallel_for((args.num_tokens + job.rows_per_tile - 1) / job.rows_per_tile, convert_tile, &job);
}

void rms_norm(const RowArgs& args, ThreadPool& pool) { each_row(args, norm_row, pool); }
void layer_norm(const RowArgs& args, ThreadPool& pool) { each_row(args, centred_norm_row, pool); }
void gated(const RowArgs& args, ThreadPool& pool) { each_row(args, gate_row, pool); }
void activation(const RowArgs& args, ThreadPool& pool) { each_stretch(args, activate_row, pool); }
void scale(const RowArgs& args, ThreadPool& pool) { each_stretch(args, scale_row, pool); }
void soft_cap(const RowArgs& args, ThreadPool& pool) { each_stretch(args, soft_cap_row, pool); }
void sigmoid_gate(const RowArgs& args, ThreadPool& pool) { each_stretch(args, sigmoid_gate_row, pool); }
void add(const RowArgs& args, ThreadPool& pool) { each_row(args, add_row, pool); }
void select(const RowArgs& args, ThreadPool& pool) { each_row(args, select_row, pool); }
void rotary(const RowArgs& args, ThreadPool& pool) { each_row(args, rotary_row, pool); }

void add_positions(const PositionArgs& args, ThreadPool& pool) {
    pool.parallel_for((args.num_tokens + kRowsPerTile - 1) / kRowsPerTile, positions_tile,
                      const_cast<PositionArgs*>(&args));
}

}  // namespace octavo::OCTAVO_ISA
