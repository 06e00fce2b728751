// Direct calls of the kernels on rows, for the tests and benchmarks. The engine goes through replay.cpp.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "activation_names.h"
#include "bindings.h"
#include "kernels.h"
#include "matrix.h"
#include "memory.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Rows may be strided, elements of a row are contiguous.
using Rows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using ConstRows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

template <class Array>
void require_shape(const Array& rows, size_t num_rows, size_t width, const char* message) {
    require(rows.shape(0) == num_rows && rows.shape(1) == width && (rows.stride(1) == 1 || width <= 1), message);
}

void call_linear(const ConstRows& x, const Matrix& weight, const std::vector<float>& bias, const Rows& out,
                 ThreadPool& pool, const std::vector<float>& norm, float eps,
                 const std::optional<std::vector<float>>& norm_bias, const std::optional<ConstRows>& up,
                 const std::optional<std::string>& kind, bool add, bool gated) {
    require_shape(x, x.shape(0), size_t(weight.k), "x must be [M, k]");
    require(!gated || (weight.has_halves() && !add), "gated wants a weight in halves, and no sum");
    require_shape(out, x.shape(0), size_t(gated ? weight.n / 2 : weight.n), "out must be [M, n], gated half as wide");
    require(bias.empty() || int64_t(bias.size()) == weight.n, "bias must hold n values");
    require(norm.empty() || int64_t(norm.size()) == weight.k, "norm must hold k values");
    require(!norm_bias || (!norm.empty() && (norm_bias->empty() || norm_bias->size() == norm.size())),
            "norm_bias must hold k values, beside norm");
    require(norm.empty() || !up, "up does not go with a norm");
    require(!kind || norm.empty() || gated, "kind goes with up, gated, or x alone");
    if (up) require_shape(*up, x.shape(0), size_t(weight.k), "up must have the shape of x");
    LinearArgs args{};
    args.x = x.data(), args.x_stride = x.stride(0);
    args.weight = weight.memory.data, args.format = weight.format;
    args.n = weight.n, args.k = weight.k;
    args.bias = bias.empty() ? nullptr : bias.data();
    args.out = out.data(), args.out_stride = out.stride(0);
    args.output = gated ? LinearArgs::Output::kGated : add ? LinearArgs::Output::kAdd : LinearArgs::Output::kStore;
    args.num_tokens = int(x.shape(0));
    args.scratch = thread_scratch(weight.kernels->linear_scratch_bytes(weight.k, args.num_tokens, weight.format));
    if (kind && !gated) args.input = LinearArgs::Input::kActivation;
    if (kind) args.activation = activation_called(*kind);
    if (!norm.empty()) args.input = LinearArgs::Input::kRmsNorm, args.norm = norm.data(), args.eps = eps;
    if (norm_bias)
        args.input = LinearArgs::Input::kLayerNorm, args.norm_bias = norm_bias->empty() ? nullptr : norm_bias->data();
    if (up) args.input = LinearArgs::Input::kGated, args.up = up->data(), args.up_stride = up->stride(0);
    nb::gil_scoped_release release;
    weight.kernels->linear(args, pool);
}

void call_embedding(const Matrix& table, const Ints& token_ids,
                    const nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& out, ThreadPool& pool) {
    require_shape(out, token_ids.shape(0), size_t(table.k), "out must be [T, k]");
    for (size_t i = 0; i < token_ids.shape(0); ++i)
        require(token_ids(i) >= 0 && token_ids(i) < table.n, "token_ids must be rows of the table");
    const EmbeddingArgs args{table.memory.data, table.format, table.k,
                             token_ids.data(),  out.data(),   int(token_ids.shape(0))};
    nb::gil_scoped_release release;
    table.kernels->embedding(args, pool);
}

template <class X>
RowArgs row_args(const X& x, const Rows& out) {
    require_shape(x, x.shape(0), x.shape(1), "rows of x must be contiguous");
    RowArgs args{};
    args.x = x.data(), args.x_stride = x.stride(0);
    args.out = out.data(), args.out_stride = out.stride(0);
    args.num_rows = int(out.shape(0)), args.width = int(x.shape(1));
    return args;
}

void call_rms_norm(const ConstRows& x, const Floats& weight, float eps, const Rows& out, ThreadPool& pool,
                   const std::string& isa) {
    require_shape(out, x.shape(0), x.shape(1), "out must have the shape of x");
    require(weight.shape(0) > 0 && x.shape(1) % weight.shape(0) == 0, "x must be a multiple of the weight wide");
    RowArgs args = row_args(x, out);
    args.weight = weight.data(), args.run = int(weight.shape(0)), args.eps = eps;
    kernels_for(isa).rms_norm(args, pool);
}

void call_layer_norm(const ConstRows& x, const Floats& weight, const std::optional<Floats>& bias, float eps,
                     const Rows& out, ThreadPool& pool, const std::string& isa) {
    require_shape(out, x.shape(0), x.shape(1), "out must have the shape of x");
    require(weight.shape(0) == x.shape(1) && (!bias || bias->shape(0) == x.shape(1)),
            "weight and bias must be as wide as x");
    RowArgs args = row_args(x, out);
    args.weight = weight.data(), args.bias = bias ? bias->data() : nullptr, args.eps = eps;
    kernels_for(isa).layer_norm(args, pool);
}

void call_gated(const ConstRows& gate, const ConstRows& up, const Rows& out, ThreadPool& pool, const std::string& isa,
                const std::string& kind) {
    require_shape(out, gate.shape(0), gate.shape(1), "out must have the shape of gate");
    require_shape(up, gate.shape(0), gate.shape(1), "up must have the shape of gate");
    RowArgs args = row_args(gate, out);
    args.y = up.data(), args.y_stride = up.stride(0), args.activation = activation_called(kind);
    kernels_for(isa).gated(args, pool);
}

void call_activation(const Rows& x, const std::string& kind, ThreadPool& pool, const std::string& isa) {
    RowArgs args = row_args(x, x);
    args.activation = activation_called(kind);
    kernels_for(isa).activation(args, pool);
}

template <void (*Kernels::*Op)(const RowArgs&, ThreadPool&)>
void call_with_number(const Rows& x, float number, ThreadPool& pool, const std::string& isa) {
    RowArgs args = row_args(x, x);
    args.number = number;
    (kernels_for(isa).*Op)(args, pool);
}

void call_sigmoid_gate(const Rows& x, const ConstRows& gate, ThreadPool& pool, const std::string& isa) {
    require_shape(gate, x.shape(0), 1, "gate must have one number for each row");
    RowArgs args = row_args(x, x);
    args.y = gate.data(), args.y_stride = gate.stride(0);
    kernels_for(isa).sigmoid_gate(args, pool);
}

void call_add(const ConstRows& x, const ConstRows& y, const Rows& out, ThreadPool& pool, const std::string& isa) {
    require_shape(out, x.shape(0), x.shape(1), "out must have the shape of x");
    require_shape(y, x.shape(0), x.shape(1), "y must have the shape of x");
    RowArgs args = row_args(x, out);
    args.y = y.data(), args.y_stride = y.stride(0);
    kernels_for(isa).add(args, pool);
}

void call_select(const ConstRows& x, const Ints& rows, const Rows& out, ThreadPool& pool, const std::string& isa) {
    require_shape(out, rows.shape(0), x.shape(1), "out must be as wide as x, with a row for each of rows");
    for (size_t i = 0; i < rows.shape(0); ++i)
        require(rows(i) >= 0 && size_t(rows(i)) < x.shape(0), "rows must be rows of x");
    RowArgs args = row_args(x, out);
    args.index = rows.data();
    kernels_for(isa).select(args, pool);
}

void call_rotary(const Rows& x, const Ints& positions, const ConstRows& table, int head_dim, ThreadPool& pool,
                 const std::string& isa) {
    const size_t half = table.shape(1) / 2;
    require_shape(x, positions.shape(0), x.shape(1), "x must have a row for each position");
    require_shape(table, table.shape(0), 2 * half, "table must be [positions, cosines and sines]");
    require(table.stride(0) == int64_t(2 * half), "table must be contiguous");
    require(head_dim > 0 && x.shape(1) % size_t(head_dim) == 0 && 2 * half <= size_t(head_dim),
            "head_dim must fit x and the table");
    for (size_t i = 0; i < positions.shape(0); ++i)
        require(positions(i) >= 0 && size_t(positions(i)) < table.shape(0), "positions must be rows of the table");
    RowArgs args{};
    args.x = table.data(), args.index = positions.data();
    args.out = x.data(), args.out_stride = x.stride(0);
    args.num_rows = int(x.shape(0)), args.width = int(x.shape(1));
    args.head_dim = head_dim, args.rotary_half = int(half);
    kernels_for(isa).rotary(args, pool);
}

nb::bytes packed(const Matrix& matrix) { return nb::bytes(matrix.memory.data, matrix.bytes); }

// How often each of `count` tiles ran, and whether a thread had a number outside the pool.
std::vector<int32_t> count_tiles(ThreadPool& pool, int64_t count, const std::vector<int64_t>& ends) {
    require(count >= 0 && count <= 1 << 24, "count must be from 0 to 2^24");
    require(ends.empty() || (int64_t(ends.size()) == pool.num_shares() && ends.front() >= 0 && ends.back() == count &&
                             std::is_sorted(ends.begin(), ends.end())),
            "ends must rise to count, one for each share");
    struct Job {
        std::vector<std::atomic<int32_t>> runs;
        int size;
    } job{std::vector<std::atomic<int32_t>>(size_t(count)), pool.size()};
    {
        nb::gil_scoped_release release;
        const ThreadPool::Body body = [](void* context, int64_t tile, int thread) {
            Job& j = *static_cast<Job*>(context);
            j.runs[size_t(tile)] += thread >= 0 && thread < j.size ? 1 : 1 << 16;
        };
        if (ends.empty())
            pool.parallel_for(count, body, &job);
        else
            pool.parallel_for(ends.data(), body, &job);
    }
    return {job.runs.begin(), job.runs.end()};
}

WeightFormat::Kind kind_called(const std::string& name) {
    using Kind = WeightFormat::Kind;
    if (name == "float32") return Kind::kFloat32;
    if (name == "bfloat16") return Kind::kBFloat16;
    if (name == "int8") return Kind::kInt8;
    require(name == "int4", "kind must be float32, bfloat16, int8 or int4");
    return Kind::kInt4;
}

double dot_peak(ThreadPool& pool, const std::string& isa, const std::string& kind) {
    constexpr int64_t kSteps = 100000;
    struct Job {
        const Kernels& kernels;
        WeightFormat::Kind kind;
        std::atomic<int64_t> operations{0};
    } job{kernels_for(isa), kind_called(kind)};
    nb::gil_scoped_release release;
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(
        8 * pool.size(),
        [](void* context, int64_t, int) {
            Job& j = *static_cast<Job*>(context);
            float result = 0;
            j.operations += int64_t(j.kernels.dot_chains(j.kind, kSteps, &result));
            if (!(result > 0)) std::abort();  // it is positive if it was computed
        },
        &job);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return double(job.operations) / seconds / 1e9;
}

}  // namespace

void bind_dense_tests(nb::module_& m) {
    m.def("linear", &call_linear, nb::arg("x").noconvert(), nb::arg("weight"), nb::arg("bias"),
          nb::arg("out").noconvert(), nb::arg("pool"), nb::kw_only(), nb::arg("norm") = std::vector<float>(),
          nb::arg("eps") = 0.0f, nb::arg("norm_bias") = nb::none(), nb::arg("up").noconvert().none() = nb::none(),
          nb::arg("kind") = nb::none(), nb::arg("add") = false, nb::arg("gated") = false,
          "One call of the weight's linear kernel, checked; for tests and benchmarks. An empty bias means none. With\n"
          "`norm` x is normalised first, with `norm_bias`, maybe empty, as layer norm does it; with `up` it becomes "
          "activation(x) * "
          "up,\n"
          "with `kind` alone activation(x); `add`: to what is in out; `gated`: the first half of the columns, "
          "activated,\n"
          "times the second. `kind`: of the activation, silu where it is not given.");
    m.def("embedding", &call_embedding, nb::arg("table"), nb::arg("token_ids").noconvert(), nb::arg("out").noconvert(),
          nb::arg("pool"), "One call of the table's embedding kernel, checked; for tests.");
    m.def("rms_norm", &call_rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"),
          nb::arg("out").noconvert(), nb::arg("pool"), nb::arg("isa"), "One call of the kernel, checked; for tests.");
    m.def("layer_norm", &call_layer_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
          nb::arg("bias").noconvert().none(), nb::arg("eps"), nb::arg("out").noconvert(), nb::arg("pool"),
          nb::arg("isa"), "One call of the kernel, checked; for tests.");
    m.def("gated", &call_gated, nb::arg("gate").noconvert(), nb::arg("up").noconvert(), nb::arg("out").noconvert(),
          nb::arg("pool"), nb::arg("isa"), nb::arg("kind") = "silu", "One call of the kernel, checked; for tests.");
    m.def("activation", &call_activation, nb::arg("x").noconvert(), nb::arg("kind"), nb::arg("pool"), nb::arg("isa"),
          "One call of the kernel, checked, in place; for tests.");
    m.def("scale", &call_with_number<&Kernels::scale>, nb::arg("x").noconvert(), nb::arg("factor"), nb::arg("pool"),
          nb::arg("isa"), "One call of the kernel, checked, in place; for tests.");
    m.def("soft_cap", &call_with_number<&Kernels::soft_cap>, nb::arg("x").noconvert(), nb::arg("cap"), nb::arg("pool"),
          nb::arg("isa"), "One call of the kernel, checked, in place; for tests.");
    m.def("sigmoid_gate", &call_sigmoid_gate, nb::arg("x").noconvert(), nb::arg("gate").noconvert(), nb::arg("pool"),
          nb::arg("isa"), "One call of the kernel, checked, in place; for tests.");
    m.def("add", &call_add, nb::arg("x").noconvert(), nb::arg("y").noconvert(), nb::arg("out").noconvert(),
          nb::arg("pool"), nb::arg("isa"), "One call of the kernel, checked; for tests.");
    m.def("select", &call_select, nb::arg("x").noconvert(), nb::arg("rows").noconvert(), nb::arg("out").noconvert(),
          nb::arg("pool"), nb::arg("isa"), "One call of the kernel, checked; for tests.");
    m.def("rotary", &call_rotary, nb::arg("x").noconvert(), nb::arg("positions").noconvert(),
          nb::arg("table").noconvert(), nb::arg("head_dim"), nb::arg("pool"), nb::arg("isa"),
          "One call of the kernel, checked, in place; for tests. `table` holds a position's cosines, then its sines.");
    m.def("packed", &packed, nb::arg("matrix"), "The bytes of a packed weight; for tests.");
    m.def("count_tiles", &count_tiles, nb::arg("pool"), nb::arg("count"), nb::arg("ends") = std::vector<int64_t>(),
          "Run a loop of `count` tiles and return how often each ran; for tests. 65536 or more: on no known thread.\n"
          "`ends`: where the shares of tiles end.");
    m.def("dot_peak", &dot_peak, nb::arg("pool"), nb::arg("isa"), nb::arg("kind"),
          "GOP/s of all threads on operands in registers, with the multiply-add of `linear` for weights that are "
          "float32, "
          "bfloat16, int8 or int4; for benchmarks.");
}

}  // namespace octavo
