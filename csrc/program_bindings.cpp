#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "activation_names.h"
#include "bindings.h"
#include "program.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Int32s = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ViewTuple = std::tuple<int, int64_t, int64_t>;  // slot, offset, width

View view(const ViewTuple& t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }

using GroupValues = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Kind = WeightFormat::Kind;

WeightFormat group_format(int bits, int group, int zero, bool minimum, bool half_scales) {
    if (bits != 4 && bits != 8) throw std::invalid_argument("bits: must be 4 or 8");
    if (group != 16 && group != 32) throw std::invalid_argument("group: must be 16 or 32");
    if (zero < 0 || zero >= 1 << bits) throw std::invalid_argument("zero: must be a code");
    return {bits == 4 ? Kind::kInt4 : Kind::kInt8, group, zero, minimum, half_scales};
}

void pack(Matrix& self, const Rows& rows, int64_t first_row, ThreadPool& pool) {
    if (self.format.in_groups()) throw std::invalid_argument("rows: a weight in groups takes pack_groups");
    const bool bf16 = self.format.kind == Kind::kBFloat16;
    const nb::dlpack::dtype wanted = bf16 ? nb::dtype<uint16_t>() : nb::dtype<float>();
    if (rows.dtype() != wanted)
        throw std::invalid_argument(bf16 ? "rows: must be uint16 holding bfloat16 bits" : "rows: must be float32");
    if (int64_t(rows.shape(1)) != self.k)
        throw std::invalid_argument("rows: must have " + std::to_string(self.k) + " columns");
    nb::gil_scoped_release release;
    self.pack(rows.data(), nullptr, nullptr, first_row, int64_t(rows.shape(0)), pool);
}

void pack_groups(Matrix& self, const nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& codes,
                 const GroupValues& scales, const std::optional<GroupValues>& minimums, int64_t first_row,
                 ThreadPool& pool) {
    if (!self.format.in_groups()) throw std::invalid_argument("codes: the weight is not in groups");
    if (int64_t(codes.shape(1)) != self.k)
        throw std::invalid_argument("codes: must have " + std::to_string(self.k) + " columns");
    if (minimums.has_value() != self.format.minimum)
        throw std::invalid_argument(self.format.minimum ? "minimums: the format has them"
                                                        : "minimums: the format has none");
    const size_t groups = size_t(self.format.groups_of(self.k));
    const auto fits = [&](const GroupValues& v) { return v.shape(0) == codes.shape(0) && v.shape(1) == groups; };
    if (!fits(scales)) throw std::invalid_argument("scales: must be one for each group of each row");
    if (minimums && !fits(*minimums)) throw std::invalid_argument("minimums: must be one for each group of each row");
    nb::gil_scoped_release release;
    self.pack(codes.data(), scales.data(), minimums ? minimums->data() : nullptr, first_row, int64_t(codes.shape(0)),
              pool);
}

// What products take. Each of these is bound in front of every kind of output.
ProductInput rows(const ViewTuple& x) { return {view(x)}; }

ProductInput normed(LinearArgs::Input kind, const ViewTuple& x, std::vector<float> norm, float eps) {
    ProductInput input{view(x), kind};
    input.norm = std::move(norm), input.eps = eps;
    return input;
}

ProductInput rms_normed(const ViewTuple& x, std::vector<float> norm, float eps) {
    return normed(LinearArgs::Input::kRmsNorm, x, std::move(norm), eps);
}

ProductInput layer_normed(const ViewTuple& x, std::vector<float> norm, std::vector<float> norm_bias, float eps) {
    ProductInput input = normed(LinearArgs::Input::kLayerNorm, x, std::move(norm), eps);
    input.norm_bias = std::move(norm_bias);
    return input;
}

ProductInput activated(const ViewTuple& x, const std::string& kind) {
    ProductInput input{view(x), LinearArgs::Input::kActivation};
    input.activation = activation_called(kind);
    return input;
}

ProductInput gated(const ViewTuple& gate, const ViewTuple& up, const std::string& kind) {
    ProductInput input{view(gate), LinearArgs::Input::kGated};
    input.up = view(up), input.activation = activation_called(kind);
    return input;
}

// `name`: into columns of a slot from the first, or another, on; `name`_add: added to a view.
template <class... Taken>
void bind_product(nb::class_<Program>& program, const std::string& name, ProductInput (*input)(Taken...)) {
    constexpr size_t kWeight = sizeof...(Taken) + 2;  // its place among the arguments
    program
        .def(
            name.c_str(),
            [input](Program& self, Taken... taken, const Matrix& weight, std::vector<float> bias, int out) {
                self.linear(input(std::move(taken)...), weight, std::move(bias), out);
            },
            nb::keep_alive<1, kWeight>())
        .def(
            name.c_str(),
            [input](Program& self, Taken... taken, const Matrix& weight, std::vector<float> bias, int out,
                    int64_t first_column) {
                self.linear(input(std::move(taken)...), weight, std::move(bias), out, first_column);
            },
            nb::keep_alive<1, kWeight>())
        .def((name + "_add").c_str(),
             [input](Program& self, Taken... taken, const Matrix& weight, std::vector<float> bias,
                     const ViewTuple& into) {
                 self.linear_add(input(std::move(taken)...), weight, std::move(bias), view(into));
             },
             nb::keep_alive<1, kWeight>());
}

// `name`_gated: a product whose halves of columns become one.
template <class... Taken>
void bind_gated_product(nb::class_<Program>& program, const std::string& name, ProductInput (*input)(Taken...)) {
    program.def((name + "_gated").c_str(),
                [input](Program& self, const std::string& kind, Taken... taken, const Matrix& weight,
                        std::vector<float> bias, int out) {
                    self.linear_gated(input(std::move(taken)...), activation_called(kind), weight, std::move(bias),
                                      out);
                },
                nb::keep_alive<1, sizeof...(Taken) + 3>());
}

void bind_products(nb::class_<Program>& program) {
    bind_product(program, "linear", &rows);
    bind_product(program, "rms_norm_linear", &rms_normed);
    bind_product(program, "layer_norm_linear", &layer_normed);
    bind_product(program, "activation_linear", &activated);
    bind_product(program, "gated_linear", &gated);
    bind_gated_product(program, "linear", &rows);
    bind_gated_product(program, "rms_norm_linear", &rms_normed);
    bind_gated_product(program, "layer_norm_linear", &layer_normed);
}

void experts(Program& self, const ViewTuple& x, const ViewTuple& router_logits, std::vector<Pieces> gate_up,
             std::vector<Pieces> down, int top_k, bool normalise, const std::string& kind, int out) {
    self.experts(view(x), view(router_logits), std::move(gate_up), std::move(down), top_k, normalise,
                 activation_called(kind), out);
}

// A step's arrays, checked against each other, and copied while the GIL is held: another Python thread could change one
// after it was checked.
StepInput step_input(const Int32s& token_ids, const Int32s& positions, const Int32s& batch_rows,
                     const Int32s& query_start_loc, const Int32s& seq_lens, const Int32s& logits_tokens) {
    if (positions.size() != token_ids.size()) throw std::invalid_argument("positions: must be as long as token_ids");
    if (query_start_loc.size() != batch_rows.size() + 1 || seq_lens.size() != batch_rows.size())
        throw std::invalid_argument("query_start_loc, seq_lens: must be one longer than batch_rows, and as long");
    static thread_local std::vector<int32_t> copies;  // kept, so that a step takes no memory
    copies.clear();
    copies.reserve(2 * token_ids.size() + 3 * batch_rows.size() + 1 + logits_tokens.size());
    const auto copy = [&](const Int32s& field) {
        copies.insert(copies.end(), field.data(), field.data() + field.size());
        return copies.data() + copies.size() - field.size();
    };
    return {copy(token_ids),
            copy(positions),
            copy(batch_rows),
            copy(query_start_loc),
            copy(seq_lens),
            copy(logits_tokens),
            int64_t(token_ids.size()),
            int64_t(batch_rows.size()),
            int64_t(logits_tokens.size())};
}

// The result views the program's own memory: valid until the next run.
nb::ndarray<nb::numpy, float, nb::ndim<2>> run(Program& self, const Int32s& token_ids, const Int32s& positions,
                                               const Int32s& batch_rows, const Int32s& query_start_loc,
                                               const Int32s& seq_lens, const Int32s& logits_tokens) {
    const StepInput input = step_input(token_ids, positions, batch_rows, query_start_loc, seq_lens, logits_tokens);
    Program::Result result;
    {
        nb::gil_scoped_release release;
        result = self.run(input);
    }
    return {const_cast<float*>(result.data),
            {size_t(result.num_rows), size_t(result.width)},
            nb::find(self),
            {result.stride, 1}};
}

nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> run_greedy(Program& self, const Int32s& token_ids, const Int32s& positions,
                                                        const Int32s& batch_rows, const Int32s& query_start_loc,
                                                        const Int32s& seq_lens, const Int32s& logits_tokens) {
    const StepInput input = step_input(token_ids, positions, batch_rows, query_start_loc, seq_lens, logits_tokens);
    const size_t count = size_t(self.num_results(input));
    auto found = std::make_unique<int32_t[]>(count);
    {
        nb::gil_scoped_release release;
        self.run_greedy(input, found.get());
    }
    int32_t* data = found.release();
    return {data, {count}, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<int32_t*>(p); })};
}

}  // namespace

void bind_program(nb::module_& m) {
    nb::class_<WeightFormat>(m, "WeightFormat", "How a weight is kept.")
        .def_static("float32", [] { return WeightFormat{Kind::kFloat32}; })
        .def_static("bfloat16", [] { return WeightFormat{Kind::kBFloat16}; })
        .def_static("groups", &group_format, nb::arg("bits"), nb::arg("group"), nb::kw_only(), nb::arg("zero") = 0,
                    nb::arg("minimum") = false, nb::arg("half_scales") = false,
                    "Codes of 4 or 8 bits in groups of 16 or 32: scale * (code - zero) + minimum.");

    nb::class_<Arena>(m, "Arena", "Memory for weights, in huge pages.").def(nb::init<>());

    nb::class_<Matrix>(m, "Matrix", "A weight [n, k] in the panels of one kernel path.")
        .def(
            "__init__",
            [](Matrix* self, Arena& arena, int64_t n, int64_t k, const WeightFormat& format, const std::string& isa) {
                new (self) Matrix(kernels_for(isa), arena, n, k, format);
            },
            nb::arg("arena"), nb::arg("n"), nb::arg("k"), nb::arg("format"), nb::arg("isa"))
        .def("pack", &pack, nb::arg("rows"), nb::arg("first_row"), nb::arg("pool"),
             "Put rows [num_rows, k], float32 or bfloat16 bits, at `first_row`.")
        .def("pack_groups", &pack_groups, nb::arg("codes").noconvert(), nb::arg("scales").noconvert(),
             nb::arg("minimums").noconvert().none(), nb::arg("first_row"), nb::arg("pool"),
             "Put codes [num_rows, k] with scales and minimums [num_rows, groups] at `first_row`.")
        .def_ro("format", &Matrix::format)
        .def_ro("n", &Matrix::n)
        .def_ro("k", &Matrix::k)
        .def_prop_ro("has_halves", &Matrix::has_halves, "Whether both halves of its rows begin at panels.")
        .def_prop_ro("nbytes", [](const Matrix& self) { return self.bytes; });

    nb::class_<Screen>(m, "Screen", "What lets a greedy step compute only the products with a head that matter.")
        .def(nb::init<const Matrix&, Arena&, ThreadPool&>(), nb::arg("head"), nb::arg("arena"), nb::arg("pool"),
             nb::keep_alive<1, 2>(), nb::call_guard<nb::gil_scoped_release>())
        .def_static(
            "fits", [](const Matrix& head) { return Screen::fits(head.format, head.k); }, nb::arg("head"),
            "Whether there can be one.")
        .def_static("bytes_for", &Screen::bytes, nb::arg("head"), "Memory that one would take.")
        .def_prop_ro("nbytes", [](const Screen& self) { return Screen::bytes(*self.head); })
        .def_ro("usable", &Screen::usable, "False if the head has something that is not finite, or too large.")
        .def_prop_ro("num_found", &Screen::num_found, "Steps for which it found the tokens.");

    nb::class_<Program> program(m, "Program", "Recorded ops over slots; a view is (slot, offset, width).");
    bind_products(program);
    program
        .def(
            "__init__",
            [](Program* self, const std::string& isa, const KVMemory& kv, ThreadPool& pool, int64_t max_num_tokens) {
                new (self) Program(kernels_for(isa), kv, pool, max_num_tokens);
            },
            nb::arg("isa"), nb::arg("kv"), nb::arg("pool"), nb::arg("max_num_tokens"), nb::keep_alive<1, 3>(),
            nb::keep_alive<1, 4>())
        .def("add_slot", &Program::add_slot, nb::arg("width"), nb::arg("selected"))
        .def(
            "set_output", [](Program& self, const ViewTuple& x) { self.set_output(view(x)); }, nb::arg("view"))
        .def("set_screen", &Program::set_screen, nb::arg("screen"), nb::keep_alive<1, 2>(),
             "Of the last op's weight, for run_greedy.")
        .def("embedding", &Program::embedding, nb::arg("table"), nb::arg("out"), nb::keep_alive<1, 2>())
        .def("rms_norm", [](Program& self, const ViewTuple& x, std::vector<float> weight, float eps,
                            int out) { self.rms_norm(view(x), std::move(weight), eps, out); })
        .def("layer_norm",
             [](Program& self, const ViewTuple& x, std::vector<float> weight, std::vector<float> bias, float eps,
                int out) { self.layer_norm(view(x), std::move(weight), std::move(bias), eps, out); })
        .def(
            "add_positions",
            [](Program& self, const ViewTuple& x, const Matrix& table, int64_t offset) {
                self.add_positions(view(x), table, offset);
            },
            nb::keep_alive<1, 3>())
        .def("rotary",
             [](Program& self, const ViewTuple& x, std::vector<double> inv_freq, double scale, int64_t head_dim,
                int64_t max_position) { self.rotary(view(x), std::move(inv_freq), scale, head_dim, max_position); })
        .def("write_kv", [](Program& self, int layer, const ViewTuple& key,
                            const ViewTuple& value) { self.write_kv(layer, view(key), view(value)); })
        .def("rotary_write_kv",
             [](Program& self, const ViewTuple& query, const ViewTuple& key, std::vector<double> inv_freq, double scale,
                int64_t head_dim, int64_t max_position, int layer, const ViewTuple& value) {
                 self.rotary_write_kv(view(query), view(key), std::move(inv_freq), scale, head_dim, max_position, layer,
                                      view(value));
             })
        .def("attention", [](Program& self, int layer, const ViewTuple& query, float scale, int window, float soft_cap,
                             int out) { self.attention(layer, view(query), scale, window, soft_cap, out); })
        .def("gated", [](Program& self, const ViewTuple& gate, const ViewTuple& up, const std::string& kind,
                         int out) { self.gated(view(gate), view(up), activation_called(kind), out); })
        .def("activation", [](Program& self, const ViewTuple& x,
                              const std::string& kind) { self.activation(view(x), activation_called(kind)); })
        .def("scale", [](Program& self, const ViewTuple& x, float factor) { self.scale(view(x), factor); })
        .def("soft_cap", [](Program& self, const ViewTuple& x, float cap) { self.soft_cap(view(x), cap); })
        .def("sigmoid_gate",
             [](Program& self, const ViewTuple& x, const ViewTuple& gate) { self.sigmoid_gate(view(x), view(gate)); })
        .def("experts", &experts, nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
        .def("add", [](Program& self, const ViewTuple& x, const ViewTuple& y) { self.add(view(x), view(y)); })
        .def("select", [](Program& self, const ViewTuple& x, int out) { self.select(view(x), out); })
        .def("start_profile", &Program::start_profile, nb::arg("cpu_time"),
             "Add up each op's time from now on: the clock's, or the calling thread's CPU time. For benchmarks.")
        .def("stop_profile", &Program::stop_profile)
        .def("profile", &Program::profile, "Name and seconds of each op since then, in order.")
        .def("run", &run, nb::arg("token_ids").noconvert(), nb::arg("positions").noconvert(),
             nb::arg("batch_rows").noconvert(), nb::arg("query_start_loc").noconvert(), nb::arg("seq_lens").noconvert(),
             nb::arg("logits_tokens").noconvert(),
             "One step, in one call. The array views the program's memory and is valid until the next run.")
        .def("run_greedy", &run_greedy, nb::arg("token_ids").noconvert(), nb::arg("positions").noconvert(),
             nb::arg("batch_rows").noconvert(), nb::arg("query_start_loc").noconvert(), nb::arg("seq_lens").noconvert(),
             nb::arg("logits_tokens").noconvert(),
             "The same step, but only where each row's largest result is, the first among equals: int32 [rows]; -1 "
             "where one is NaN or the largest is not finite.");
}

}  // namespace octavo
