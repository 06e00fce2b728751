// Ops on rows: each row by itself, its sums in one fixed order.
#include "kernels.h"
#include "ops.h"
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

void rms_norm_row(const RowArgs& args, int row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    const int whole = args.width / VF::W * VF::W, rest = args.width - whole;
    VF squares = VF::zero();
    for (int i = 0; i < whole; i += VF::W) {
        const VF v = VF::load(x + i);
        squares = fma(v, v, squares);
    }
    if (rest) {
        const VF v = VF::load_n(x + whole, rest);
        squares = fma(v, v, squares);
    }
    const VF scale = VF::set1(1.0f / std::sqrt(reduce_add(squares) / float(args.width) + args.eps));
    for (int i = 0; i < whole; i += VF::W) (VF::load(x + i) * scale * VF::load(args.weight + i)).store(out + i);
    if (rest) (VF::load_n(x + whole, rest) * scale * VF::load_n(args.weight + whole, rest)).store_n(out + whole, rest);
}

VF silu_mul_of(const VF& gate, const VF& up) { return gate / (VF::set1(1.0f) + exp(VF::zero() - gate)) * up; }

void silu_mul_row(const RowArgs& args, int row) {
    const float* gate = args.x + row * args.x_stride;
    const float* up = args.y + row * args.y_stride;
    float* out = args.out + row * args.out_stride;
    const int whole = args.width / VF::W * VF::W, rest = args.width - whole;
    for (int i = 0; i < whole; i += VF::W) silu_mul_of(VF::load(gate + i), VF::load(up + i)).store(out + i);
    if (rest) silu_mul_of(VF::load_n(gate + whole, rest), VF::load_n(up + whole, rest)).store_n(out + whole, rest);
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

// `x` holds the cosines and sines of every position, [positions][2][half]; `out` is rotated in place.
void rotary_row(const RowArgs& args, int row) {
    const int half = args.rotary_half;
    const float* cosine = args.x + int64_t{args.index[row]} * 2 * half;
    const float* sine = cosine + half;
    for (float* head = args.out + row * args.out_stride; head < args.out + row * args.out_stride + args.width;
         head += args.head_dim) {
        for (int i = 0; i < half; i += VF::W) {
            const int count = half - i < VF::W ? half - i : VF::W;
            const VF c = VF::load_n(cosine + i, count), s = VF::load_n(sine + i, count);
            const VF first = VF::load_n(head + i, count), second = VF::load_n(head + half + i, count);
            (first * c - second * s).store_n(head + i, count);
            (second * c + first * s).store_n(head + half + i, count);
        }
    }
}

}  // namespace

void rms_norm(const RowArgs& args, ThreadPool& pool) { each_row(args, rms_norm_row, pool); }
void silu_mul(const RowArgs& args, ThreadPool& pool) { each_row(args, silu_mul_row, pool); }
void add(const RowArgs& args, ThreadPool& pool) { each_row(args, add_row, pool); }
void select(const RowArgs& args, ThreadPool& pool) { each_row(args, select_row, pool); }
void rotary(const RowArgs& args, ThreadPool& pool) { each_row(args, rotary_row, pool); }

}  // namespace octavo::OCTAVO_ISA
