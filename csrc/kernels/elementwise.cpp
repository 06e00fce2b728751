// Ops on rows: each row by itself, its sums in one fixed order.
#include "kernels.h"
#include "ops.h"
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

void norm_row(const RowArgs& args, int row) {
    const float* x = args.x + row * args.x_stride;
    rms_norm_row(x, args.weight, args.eps, args.width, FloatRow{args.out + row * args.out_stride});
}

void gate_row(const RowArgs& args, int row) {
    const float* gate = args.x + row * args.x_stride;
    silu_mul_row(gate, args.y + row * args.y_stride, args.width, FloatRow{args.out + row * args.out_stride});
}

void add_row(const RowArgs& args, int row) {
    const float* x = args.x + row * args.x_stride;
    const float* y = args.y + row * args.y_stride;
    float* out = args.out + row * args.out_stride;
    const int whole = args.width / VF::W * VF::W, rest = args.width - whole;
    for (int i = 0; i < whole; i += VF::W) (VF::load(x + i) + VF::load(y + i)).store(out + i);
    if (rest) (VF::load_n(x + whole, rest) + VF::load_n(y + whole, rest)).store_n(out + whole, rest);
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
void silu_mul(const RowArgs& args, ThreadPool& pool) { each_row(args, gate_row, pool); }
void add(const RowArgs& args, ThreadPool& pool) { each_row(args, add_row, pool); }
void select(const RowArgs& args, ThreadPool& pool) { each_row(args, select_row, pool); }
void rotary(const RowArgs& args, ThreadPool& pool) { each_row(args, rotary_row, pool); }

}  // namespace octavo::OCTAVO_ISA
