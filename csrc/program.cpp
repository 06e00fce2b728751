#include "program.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "activation_names.h"
#include "experts.h"
#include "refuse.h"
#include "sample.h"

namespace octavo {
namespace {

// Positions by which a table of cosines and sines grows.
constexpr int64_t kRopeStep = 1024;

// Memory of selected rows that a step needs no more is given back when there is as much of it as this.
constexpr int64_t kMuchMemory = 32 << 20;

// Steps at most for which a screen that has been of no use again and again is not asked.
constexpr int kLongestPause = 63;

// Elements of a matrix, so that no size in bytes overflows.
constexpr int64_t kMaxElements = int64_t{1} << 40;

}  // namespace

Matrix::Matrix(const Kernels& kernels, Arena& arena, int64_t n, int64_t k, const WeightFormat& format)
    : kernels(&kernels), n(n), k(k), format(format) {
    if (n < 1 || k < 1 || n > INT32_MAX || k > INT32_MAX || n * k > kMaxElements)
        refuse("shape", std::to_string(n) + " x " + std::to_string(k) +
                            ": a matrix needs rows and columns, and at most 2^40 elements");
    if (!format.is_known())
        refuse("format", "there are no kernels for this combination of bits, group, zero, minimum and half_scales");
    bytes = size_t(kernels.packed_bytes(n, k, format));
    memory = arena.take(bytes);
}

void Matrix::pack(const void* rows, const float* scales, const float* minimums, int64_t first_row, int64_t num_rows,
                  ThreadPool& pool) {
    if (first_row < 0 || num_rows < 0 || first_row > n - num_rows)
        refuse("first_row", "the rows do not fit the matrix's " + std::to_string(n));
    kernels->pack({rows, scales, minimums, first_row, num_rows, k, format, memory.data}, pool);
}

Screen::Screen(const Matrix& head, Arena& arena, ThreadPool& pool) : head(&head) {
    if (!fits(head.format, head.k)) refuse("head", "is in groups, or has more than 65536 columns");
    memory = arena.take(bytes(head));
    const Memory buffer(head.kernels->make_screen_buffer_bytes(head.k, pool.size()));
    usable = head.kernels->make_screen({head.memory.data, head.format, head.n, head.k, memory.data, buffer.as<float>()},
                                       pool);
}

// Cosines and sines of one set of frequencies: [positions][2][half], grown as positions are met.
struct Program::Rope {
    std::vector<double> inv_freq;
    double scale;
    int64_t max_position;
    std::vector<float> table;

    void serve(int64_t position) {
        const int64_t half = int64_t(inv_freq.size());
        int64_t have = half ? int64_t(table.size()) / (2 * half) : 0;
        if (position < have) return;
        const int64_t want = std::min(max_position, (position / kRopeStep + 1) * kRopeStep);
        table.resize(size_t(want * 2 * half));
        for (; have < want; ++have) {
            float* row = table.data() + have * 2 * half;
            for (int64_t i = 0; i < half; ++i) {
                const double angle = double(have) * inv_freq[size_t(i)];
                row[i] = float(std::cos(angle) * scale);
                row[half + i] = float(std::sin(angle) * scale);
            }
        }
    }
};

// In the order of Op::Kind.
constexpr const char* kOpNames[] = {"embedding",       "rms_norm",   "linear",     "rotary", "write_kv",
                                    "rotary_write_kv", "attention",  "gated",      "add",    "select",
                                    "add_positions",   "layer_norm", "activation", "scale",  "soft_cap",
                                    "sigmoid_gate",    "experts"};

struct Program::Op {
    enum class Kind {
        kEmbedding,
        kRmsNorm,
        kLinear,
        kRotary,
        kWriteKV,
        kRotaryWriteKV,
        kAttention,
        kGated,
        kAdd,
        kSelect,
        kAddPositions,
        kLayerNorm,
        kActivation,
        kScale,
        kSoftCap,
        kSigmoidGate,
        kExperts
    } kind;
    View x{};
    View y{};
    View out{};
    const Matrix* matrix = nullptr;
    std::vector<float> vector{};  // norm weight, or bias of a product
    std::vector<float> bias{};    // of a layer norm
    ProductInput input{};
    LinearArgs::Output output = LinearArgs::Output::kStore;
    Activation activation{};
    float number = 0.0f;    // eps, scale, factor or cap
    float soft_cap = 0.0f;  // attention
    int offset = 0;         // add_positions
    int layer = 0;
    int window = 0;
    int64_t head_dim = 0;
    Rope* rope = nullptr;
    std::unique_ptr<const Experts> experts{};

    bool is_plain_product() const {
        return kind == Kind::kLinear && output == LinearArgs::Output::kStore && vector.empty();
    }
};

Program::Program(const Kernels& kernels, const KVMemory& kv, ThreadPool& pool, int64_t max_num_tokens)
    : kernels_(kernels), kv_(kv.pool()), pool_(pool), max_num_tokens_(max_num_tokens), ahead_(kv_, pool.size()) {
    if (max_num_tokens < 1 || max_num_tokens > (1 << 20)) refuse("max_num_tokens", "must be from 1 to 1048576");
    max_seq_len_ = int64_t{kv_.max_blocks_per_seq} * kv_.block_size;
    group_window_.assign(size_t(kv_.num_groups), -1);
    token_rows_.resize(size_t(max_num_tokens));
    row_seen_.resize(size_t(kv_.max_num_seqs));
}

Program::~Program() = default;

int Program::add_slot(int64_t width, bool selected) {
    if (width < 1 || width > INT32_MAX) refuse("width", "must be positive and below 2^31");
    slots_.push_back({width, selected, Memory(size_t(max_num_tokens_ * width) * sizeof(float))});
    return int(slots_.size()) - 1;
}

void Program::set_output(View view) {
    check_view("output", view);
    output_ = view;
}

void Program::set_screen(const Screen& screen) {
    if (ops_.empty() || ops_.back().matrix != screen.head || !ops_.back().is_plain_product())
        refuse("screen", "is not of the head that the last op multiplies with");
    const View& out = ops_.back().out;
    if (out.slot != output_.slot || out.offset != output_.offset || out.width != output_.width)
        refuse("screen", "the last op's product is not the output");
    screen_ = &screen;
}

void Program::check_view(const char* name, const View& view) const {
    if (view.slot < 0 || view.slot >= int(slots_.size())) refuse(name, "there is no such slot");
    const int64_t width = slots_[size_t(view.slot)].width;
    if (view.offset < 0 || view.width < 1 || view.width > width || view.offset > width - view.width)
        refuse(name, "reaches outside its slot");
}

void Program::check_rows(const char* name, const View& view, bool selected) const {
    check_view(name, view);
    if (slots_[size_t(view.slot)].selected != selected)
        refuse(name, selected ? "must have the selected rows only" : "must have a row for every token");
}

View Program::check_out(int out, int64_t width, bool selected, std::initializer_list<View> inputs) const {
    const View view{out, 0, width};
    check_rows("out", view, selected);
    for (const View& input : inputs)
        if (input.slot == out) refuse("out", "must be another slot than the inputs");
    return view;
}

void Program::check_matrix(const Matrix& matrix) const {
    if (matrix.kernels != &kernels_)
        refuse("matrix",
               std::string("is packed for ") + matrix.kernels->name + ", the program is for " + kernels_.name);
}

// The op touches the blocks of the new tokens and of the `window` - 1 tokens before each; 0: of all tokens.
void Program::reach_back(int layer, int32_t window) {
    if (layer < 0 || layer >= kv_.num_layers) refuse("layer", "the KV memory has no such layer");
    int32_t& group = group_window_[size_t(kv_.layer_group[layer])];
    group = group == 0 || window == 0 ? 0 : std::max(group, window);
}

void Program::embedding(const Matrix& table, int out) {
    check_matrix(table);
    Op op{Op::Kind::kEmbedding};
    op.out = check_out(out, table.k, false, {});
    if (slots_[size_t(out)].width != table.k) refuse("out", "must be as wide as the table");
    op.matrix = &table;
    vocab_size_ = std::min(vocab_size_, table.n);
    ops_.push_back(std::move(op));
}

void Program::rms_norm(View x, std::vector<float> weight, float eps, int out) {
    check_view("x", x);
    if (weight.empty() || x.width % int64_t(weight.size())) refuse("weight", "must be as wide as x, or a whole part");
    Op op{Op::Kind::kRmsNorm};
    op.out = check_out(out, x.width, slots_[size_t(x.slot)].selected, {x});
    op.x = x, op.vector = std::move(weight), op.number = eps;
    ops_.push_back(std::move(op));
}

void Program::check_norm(const std::vector<float>& weight, const std::vector<float>& bias, int64_t width) const {
    if (int64_t(weight.size()) != width) refuse("weight", "must be as wide as x");
    if (!bias.empty() && bias.size() != weight.size()) refuse("norm_bias", "must be as long as the weight");
}

void Program::layer_norm(View x, std::vector<float> weight, std::vector<float> bias, float eps, int out) {
    check_view("x", x);
    check_norm(weight, bias, x.width);
    Op op{Op::Kind::kLayerNorm};
    op.out = check_out(out, x.width, slots_[size_t(x.slot)].selected, {x});
    op.x = x, op.vector = std::move(weight), op.bias = std::move(bias), op.number = eps;
    ops_.push_back(std::move(op));
}

void Program::add_positions(View x, const Matrix& table, int64_t offset) {
    check_rows("x", x, false);
    check_matrix(table);
    if (table.k != x.width)
        refuse("table", "has " + std::to_string(table.k) + " columns for an x of " + std::to_string(x.width));
    if (offset < 0 || offset >= table.n)
        refuse("offset", "must be one of the table's " + std::to_string(table.n) + " rows");
    max_seq_len_ = std::min(max_seq_len_, table.n - offset);
    linear_scratch_bytes_ = std::max(linear_scratch_bytes_, size_t(table.k) * sizeof(float));
    Op op{Op::Kind::kAddPositions};
    op.x = op.out = x, op.matrix = &table, op.offset = int(offset);
    ops_.push_back(std::move(op));
}

void Program::check_product(const ProductInput& input, const Matrix& weight, const std::vector<float>& bias) const {
    check_view("x", input.x);
    check_matrix(weight);
    if (weight.k != input.x.width)
        refuse("weight", "has " + std::to_string(weight.k) + " columns for an x of " + std::to_string(input.x.width));
    if (!bias.empty() && int64_t(bias.size()) != weight.n) refuse("bias", "must be as long as the weight has rows");
    using Input = LinearArgs::Input;
    if (input.kind == Input::kRmsNorm || input.kind == Input::kLayerNorm)
        check_norm(input.norm, input.norm_bias, weight.k);
    if (input.kind != Input::kGated) return;
    check_rows("up", input.up, slots_[size_t(input.x.slot)].selected);
    if (input.up.width != input.x.width) refuse("up", "must be as wide as the gate");
}

void Program::add_product(ProductInput input, const Matrix& weight, std::vector<float> bias, View out,
                          LinearArgs::Output output) {
    if (out.slot == input.x.slot || out.slot == input.up.slot) refuse("out", "must be another slot than the inputs");
    Op op{Op::Kind::kLinear};
    op.x = input.x, op.out = out, op.output = output, op.activation = input.activation;
    op.input = std::move(input), op.matrix = &weight, op.vector = std::move(bias);
    linear_scratch_bytes_ = std::max(linear_scratch_bytes_, kernels_.linear_scratch_bytes(weight.k, 1, weight.format));
    ops_.push_back(std::move(op));
}

void Program::linear(ProductInput input, const Matrix& weight, std::vector<float> bias, int out, int64_t first_column) {
    check_product(input, weight, bias);
    View to = check_out(out, weight.n, slots_[size_t(input.x.slot)].selected, {});
    to.offset = first_column;
    check_view("first_column", to);
    add_product(std::move(input), weight, std::move(bias), to, LinearArgs::Output::kStore);
}

void Program::linear_add(ProductInput input, const Matrix& weight, std::vector<float> bias, View into) {
    check_product(input, weight, bias);
    check_rows("into", into, slots_[size_t(input.x.slot)].selected);
    if (into.width != weight.n) refuse("into", "must be as wide as the weight has rows");
    add_product(std::move(input), weight, std::move(bias), into, LinearArgs::Output::kAdd);
}

void Program::linear_gated(ProductInput input, Activation activation, const Matrix& weight, std::vector<float> bias,
                           int out) {
    check_product(input, weight, bias);
    if (!weight.has_halves()) refuse("weight", "must have two halves of rows that both begin at panels");
    const View to = check_out(out, weight.n / 2, slots_[size_t(input.x.slot)].selected, {});
    input.activation = activation;
    add_product(std::move(input), weight, std::move(bias), to, LinearArgs::Output::kGated);
}

void Program::check_rotary(const char* name, const View& x, size_t half, int64_t head_dim) const {
    check_rows(name, x, false);
    if (head_dim < 1 || x.width % head_dim || int64_t(half) * 2 > head_dim)
        refuse("head_dim", "does not fit the width and the frequencies");
}

Program::Rope* Program::rope_of(std::vector<double> inv_freq, double scale, int64_t max_position) {
    if (max_position < 1) refuse("max_position", "must be positive");
    max_seq_len_ = std::min(max_seq_len_, max_position);
    for (auto& known : ropes_)
        if (known->inv_freq == inv_freq && known->scale == scale && known->max_position == max_position)
            return known.get();
    ropes_.push_back(std::make_unique<Rope>(Rope{std::move(inv_freq), scale, max_position, {}}));
    return ropes_.back().get();
}

void Program::rotary(View x, std::vector<double> inv_freq, double scale, int64_t head_dim, int64_t max_position) {
    check_rotary("x", x, inv_freq.size(), head_dim);
    Op op{Op::Kind::kRotary};
    op.x = x, op.head_dim = head_dim, op.rope = rope_of(std::move(inv_freq), scale, max_position);
    ops_.push_back(std::move(op));
}

void Program::check_written(int layer, const View& key, const View& value) {
    check_rows("key", key, false), check_rows("value", value, false);
    const int64_t width = int64_t{kv_.num_kv_heads} * kv_.head_dim;
    if (key.width != width || value.width != width) refuse("key, value", "must be num_kv_heads * head_dim wide");
    reach_back(layer, 1);
}

void Program::write_kv(int layer, View key, View value) {
    check_written(layer, key, value);
    Op op{Op::Kind::kWriteKV};
    op.x = key, op.y = value, op.layer = layer;
    ops_.push_back(std::move(op));
}

void Program::rotary_write_kv(View query, View key, std::vector<double> inv_freq, double scale, int64_t head_dim,
                              int64_t max_position, int layer, View value) {
    check_rotary("query", query, inv_freq.size(), head_dim), check_rotary("key", key, inv_freq.size(), head_dim);
    check_written(layer, key, value);
    Op op{Op::Kind::kRotaryWriteKV};
    op.x = key, op.y = value, op.out = query, op.layer = layer;
    op.head_dim = head_dim, op.rope = rope_of(std::move(inv_freq), scale, max_position);
    ops_.push_back(std::move(op));
}

void Program::attention(int layer, View query, float scale, int window, float soft_cap, int out) {
    check_rows("query", query, false);
    if (query.width % (int64_t{kv_.num_kv_heads} * kv_.head_dim))
        refuse("query", "must hold a multiple of num_kv_heads heads");
    if (window < 0) refuse("window", "must not be negative");
    if (!(scale > 0)) refuse("scale", "must be above 0");
    if (!(soft_cap >= 0 && std::isfinite(soft_cap))) refuse("soft_cap", "must be finite, and not negative");
    Op op{Op::Kind::kAttention};
    op.out = check_out(out, query.width, false, {query});
    op.x = query, op.number = scale, op.layer = layer, op.window = window, op.soft_cap = soft_cap;
    reach_back(layer, window);
    max_heads_ = std::max(max_heads_, int(query.width / kv_.head_dim));
    ops_.push_back(std::move(op));
}

void Program::gated(View gate, View up, Activation activation, int out) {
    check_view("gate", gate);
    const bool selected = slots_[size_t(gate.slot)].selected;
    check_rows("up", up, selected);
    if (gate.width != up.width) refuse("up", "must be as wide as gate");
    Op op{Op::Kind::kGated};
    op.out = check_out(out, gate.width, selected, {gate, up});
    op.x = gate, op.y = up, op.activation = activation;
    ops_.push_back(std::move(op));
}

void Program::activation(View x, Activation activation) {
    check_view("x", x);
    Op op{Op::Kind::kActivation};
    op.x = op.out = x, op.activation = activation;
    ops_.push_back(std::move(op));
}

void Program::scale(View x, float factor) {
    check_view("x", x);
    if (!std::isfinite(factor)) refuse("factor", "must be finite");
    Op op{Op::Kind::kScale};
    op.x = op.out = x, op.number = factor;
    ops_.push_back(std::move(op));
}

void Program::soft_cap(View x, float cap) {
    check_view("x", x);
    if (!(cap > 0 && std::isfinite(cap))) refuse("cap", "must be finite, and above 0");
    Op op{Op::Kind::kSoftCap};
    op.x = op.out = x, op.number = cap;
    ops_.push_back(std::move(op));
}

void Program::sigmoid_gate(View x, View gate) {
    check_view("x", x);
    check_rows("gate", gate, slots_[size_t(x.slot)].selected);
    if (gate.width != 1) refuse("gate", "must be one column wide");
    Op op{Op::Kind::kSigmoidGate};
    op.x = op.out = x, op.y = gate;
    ops_.push_back(std::move(op));
}

void Program::experts(View x, View router_logits, std::vector<Pieces> gate_up, std::vector<Pieces> down, int top_k,
                      bool normalise, Activation activation, int out) {
    check_view("x", x);
    const bool selected = slots_[size_t(x.slot)].selected;
    check_rows("router_logits", router_logits, selected);
    auto made =
        std::make_unique<const Experts>(kernels_, std::move(gate_up), std::move(down), top_k, normalise, activation);
    if (x.width != made->width()) refuse("x", "must have as many columns as gate_up");
    if (router_logits.width != made->num_experts()) refuse("router_logits", "must have a column for each expert");
    linear_scratch_bytes_ = std::max(linear_scratch_bytes_, made->linear_scratch_bytes());
    experts_scratch_bytes_ = std::max(experts_scratch_bytes_, made->scratch_bytes(max_num_tokens_));
    Op op{Op::Kind::kExperts};
    op.out = check_out(out, x.width, selected, {x, router_logits});
    op.x = x, op.y = router_logits, op.experts = std::move(made);
    ops_.push_back(std::move(op));
}

void Program::add(View x, View y) {
    check_view("x", x);
    check_rows("y", y, slots_[size_t(x.slot)].selected);
    if (x.width != y.width) refuse("y", "must be as wide as x");
    if (x.slot == y.slot && x.offset != y.offset && std::abs(x.offset - y.offset) < x.width)
        refuse("y", "must not overlap x");
    Op op{Op::Kind::kAdd};
    op.x = x, op.y = y, op.out = x;
    ops_.push_back(std::move(op));
}

void Program::select(View x, int out) {
    check_rows("x", x, false);
    Op op{Op::Kind::kSelect};
    op.out = check_out(out, x.width, true, {x});
    op.x = x;
    ops_.push_back(std::move(op));
}

// --- running ---------------------------------------------------------------------------------------------------------

void Program::prepare(const StepInput& in) {
    if (attention_scratch_.size() == 0 && max_heads_ > 0)
        attention_scratch_ =
            Memory(std::max<size_t>(64, kernels_.attention_scratch_bytes(kv_, max_heads_, int(max_num_tokens_),
                                                                         kv_.max_num_seqs, pool_.size())));
    if (linear_scratch_.size() == 0 && linear_scratch_bytes_ > 0)
        linear_scratch_ = Memory(linear_scratch_bytes_ * size_t(max_num_tokens_));
    if (experts_scratch_.size() == 0 && experts_scratch_bytes_ > 0) experts_scratch_ = Memory(experts_scratch_bytes_);
    release_unselected(in.num_selected);
    for (int64_t i = 0; i < in.num_seqs; ++i) {
        std::fill(token_rows_.begin() + in.query_start_loc[i], token_rows_.begin() + in.query_start_loc[i + 1],
                  in.batch_rows[i]);
        for (auto& rope : ropes_) rope->serve(in.seq_lens[i] - 1);
    }
    look_ahead(0, in);
}

void Program::release_unselected(int64_t num_selected) {
    bool released = false;
    for (Slot& slot : slots_) {
        const int64_t row_bytes = slot.width * int64_t(sizeof(float));
        if (!slot.selected || (rows_selected_ - num_selected) * row_bytes < kMuchMemory) continue;
        slot.memory.release_past(size_t(num_selected * row_bytes));
        released = true;
    }
    rows_selected_ = released ? num_selected : std::max(rows_selected_, num_selected);
}

float* Program::at(const View& view) const { return slots_[size_t(view.slot)].memory.as<float>() + view.offset; }

int64_t Program::num_results(const StepInput& in) const { return output_.slot < 0 ? 0 : rows_of(output_.slot, in); }

int64_t Program::rows_of(int slot, const StepInput& in) const {
    return slots_[size_t(slot)].selected ? in.num_selected : in.num_tokens;
}

LinearArgs Program::product_of(const Op& op, int num_rows) {
    const auto stride = [&](const View& view) { return slots_[size_t(view.slot)].width; };
    LinearArgs args{};
    args.x = at(op.x), args.x_stride = stride(op.x);
    args.weight = op.matrix->memory.data, args.format = op.matrix->format;
    args.n = op.matrix->n, args.k = op.matrix->k;
    args.bias = op.vector.empty() ? nullptr : op.vector.data();
    args.out = at(op.out), args.out_stride = stride(op.out), args.output = op.output;
    args.num_tokens = num_rows;
    args.scratch = linear_scratch_.as<void>();
    args.input = op.input.kind, args.activation = op.activation;
    args.norm = op.input.norm.data(), args.eps = op.input.eps;
    args.norm_bias = op.input.norm_bias.empty() ? nullptr : op.input.norm_bias.data();
    if (op.input.kind == LinearArgs::Input::kGated) args.up = at(op.input.up), args.up_stride = stride(op.input.up);
    args.ahead = &ahead_;
    return args;
}

bool Program::ask_screen(const Op& op, int num_rows, int32_t* token_ids) {
    if (screen_ == nullptr || !screen_->usable || op.matrix != screen_->head) return false;
    if (screen_rest_ > 0) return --screen_rest_, false;
    if (greedy_scratch_.size() == 0)
        greedy_scratch_ = Memory(kernels_.greedy_scratch_bytes(op.matrix->k) * size_t(max_num_tokens_));
    const GreedyArgs args{product_of(op, num_rows), screen_->memory.data, greedy_scratch_.as<void>(), token_ids};
    const bool found = kernels_.greedy(args, pool_);
    screen_pause_ = found ? 0 : std::min(2 * screen_pause_ + 1, kLongestPause);
    screen_rest_ = screen_pause_;
    return found;
}

// The last op, and what it is asked for.
void Program::execute_greedy(const Op& op, const StepInput& in, int32_t* token_ids) {
    const int64_t num_rows = rows_of(output_.slot, in);
    if (ask_screen(op, int(num_rows), token_ids)) return;
    execute(op, in);
    find_largest(at(output_), slots_[size_t(output_.slot)].width, num_rows, output_.width, token_ids, kernels_, pool_);
}

// Lets products fetch the KV of the next attention, if there is one from `first_op` on.
void Program::look_ahead(size_t first_op, const StepInput& in) {
    for (size_t i = first_op; i < ops_.size(); ++i)
        if (ops_[i].kind == Op::Kind::kAttention)
            return ahead_.begin(ops_[i].layer, ops_[i].window, int(ops_[i].x.width / kv_.head_dim) / kv_.num_kv_heads,
                                in.batch_rows, in.query_start_loc, in.seq_lens, int(in.num_seqs));
    ahead_.end();
}

RowArgs Program::rotary_rows(const Op& op, const View& x, const StepInput& in) const {
    RowArgs rows{};
    rows.x = op.rope->table.data(), rows.index = in.positions;
    rows.out = at(x), rows.out_stride = slots_[size_t(x.slot)].width;
    rows.num_rows = int(rows_of(x.slot, in)), rows.width = int(x.width);
    rows.head_dim = int(op.head_dim), rows.rotary_half = int(op.rope->inv_freq.size());
    return rows;
}

void Program::execute(const Op& op, const StepInput& in) {
    const auto stride = [&](const View& view) { return slots_[size_t(view.slot)].width; };
    RowArgs rows{};
    rows.x = at(op.x), rows.x_stride = stride(op.x);
    rows.y = at(op.y), rows.y_stride = stride(op.y);
    rows.out = at(op.out), rows.out_stride = stride(op.out);
    rows.num_rows = int(rows_of(op.out.slot, in));
    rows.width = int(op.x.width);
    rows.number = op.number, rows.activation = op.activation;
    const WriteKVArgs written{&kv_,
                              op.layer,
                              rows.x,
                              rows.x_stride,
                              rows.y,
                              rows.y_stride,
                              in.positions,
                              token_rows_.data(),
                              int(in.num_tokens)};
    switch (op.kind) {
        case Op::Kind::kEmbedding:
            return kernels_.embedding(
                {op.matrix->memory.data, op.matrix->format, op.matrix->k, in.token_ids, rows.out, rows.num_rows},
                pool_);
        case Op::Kind::kLinear:
            return kernels_.linear(product_of(op, rows.num_rows), pool_);
        case Op::Kind::kWriteKV:
            return kernels_.write_kv(written, pool_);
        case Op::Kind::kAttention:
            kernels_.attention(
                {&kv_, op.layer, rows.x, rows.x_stride, rows.out, rows.out_stride, int(op.x.width / kv_.head_dim),
                 op.number, op.window, op.soft_cap, in.batch_rows, in.query_start_loc, in.seq_lens, int(in.num_seqs),
                 attention_scratch_.as<void>(), attention_scratch_.size()},
                pool_);
            return look_ahead(size_t(&op - ops_.data()) + 1, in);
        case Op::Kind::kRmsNorm:
            rows.weight = op.vector.data(), rows.run = int(op.vector.size()), rows.eps = op.number;
            return kernels_.rms_norm(rows, pool_);
        case Op::Kind::kLayerNorm:
            rows.weight = op.vector.data(), rows.bias = op.bias.empty() ? nullptr : op.bias.data();
            rows.eps = op.number;
            return kernels_.layer_norm(rows, pool_);
        case Op::Kind::kAddPositions:
            return kernels_.add_positions(
                {op.matrix->memory.data, op.matrix->format, op.matrix->k, in.positions, op.offset, rows.out,
                 rows.out_stride, rows.num_rows, linear_scratch_.as<float>()},
                pool_);
        case Op::Kind::kActivation:
            return kernels_.activation(rows, pool_);
        case Op::Kind::kScale:
            return kernels_.scale(rows, pool_);
        case Op::Kind::kSoftCap:
            return kernels_.soft_cap(rows, pool_);
        case Op::Kind::kSigmoidGate:
            return kernels_.sigmoid_gate(rows, pool_);
        case Op::Kind::kRotary:
            return kernels_.rotary(rotary_rows(op, op.x, in), pool_);
        case Op::Kind::kRotaryWriteKV:
            return kernels_.rotary_write_kv(rotary_rows(op, op.out, in), rotary_rows(op, op.x, in), written, pool_);
        case Op::Kind::kGated:
            return kernels_.gated(rows, pool_);
        case Op::Kind::kAdd:
            return kernels_.add(rows, pool_);
        case Op::Kind::kSelect:
            rows.index = in.logits_tokens;
            return kernels_.select(rows, pool_);
        case Op::Kind::kExperts:
            return op.experts->run({rows.x, rows.x_stride, rows.y, rows.y_stride, rows.out, rows.out_stride,
                                    rows.num_rows, experts_scratch_.as<void>(), linear_scratch_.as<void>(), &ahead_},
                                   pool_);
    }
}

void Program::start_profile(bool cpu_time) {
    const std::lock_guard<std::mutex> lock(running_);
    op_seconds_.assign(ops_.size(), 0.0);
    profile_cpu_time_ = cpu_time;
}

void Program::stop_profile() {
    const std::lock_guard<std::mutex> lock(running_);
    op_seconds_.clear();
}

std::vector<std::pair<std::string, double>> Program::profile() {
    const std::lock_guard<std::mutex> lock(running_);
    std::vector<std::pair<std::string, double>> result;
    for (size_t i = 0; i < op_seconds_.size(); ++i) result.emplace_back(name_of(ops_[i]), op_seconds_[i]);
    return result;
}

std::string Program::name_of(const Op& op) {
    const std::string activation = kActivationNames[int(op.activation)];
    if (op.kind == Op::Kind::kGated) return activation + "_mul";
    if (op.kind == Op::Kind::kActivation) return activation;
    if (op.kind == Op::Kind::kExperts) return std::string(kOpNames[int(op.kind)]) + " " + op.experts->shape();
    if (op.kind != Op::Kind::kLinear) return kOpNames[int(op.kind)];
    // In the order of LinearArgs::Input and Output.
    const std::string inputs[] = {"", "rms_norm_", "layer_norm_", activation + "_mul_", activation + "_"};
    const std::string outputs[] = {" ", "_add ", "_" + activation + "_mul "};
    return inputs[int(op.input.kind)] + kOpNames[int(op.kind)] + outputs[int(op.output)] +
           std::to_string(op.matrix->n) + "x" + std::to_string(op.matrix->k);
}

// With `token_ids`, these are wanted of the last op instead of its output.
void Program::execute_all(const StepInput& input, int32_t* token_ids) {
    const clockid_t clock = profile_cpu_time_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    const auto now = [&] {
        timespec time{};
        clock_gettime(clock, &time);
        return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
    };
    const bool timed = !op_seconds_.empty();
    double before = timed ? now() : 0;
    for (size_t i = 0; i < ops_.size(); ++i) {
        if (token_ids != nullptr && i + 1 == ops_.size())
            execute_greedy(ops_[i], input, token_ids);
        else
            execute(ops_[i], input);
        if (!timed) continue;
        const double after = now();
        op_seconds_[i] += after - before;
        before = after;
    }
}

Program::Result Program::run(const StepInput& input) {
    const std::lock_guard<std::mutex> lock(running_);
    check(input);
    const ThreadPoolStep step(pool_);
    prepare(input);
    execute_all(input, nullptr);
    return {at(output_), rows_of(output_.slot, input), output_.width, slots_[size_t(output_.slot)].width};
}

void Program::run_greedy(const StepInput& input, int32_t* token_ids) {
    const std::lock_guard<std::mutex> lock(running_);
    check(input);
    const ThreadPoolStep step(pool_);
    prepare(input);
    execute_all(input, token_ids);
}

}  // namespace octavo
