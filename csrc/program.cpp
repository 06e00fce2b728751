#include "program.h"

#include <algorithm>
#include <string>

#include "program_ops.h"
#include "refuse.h"

namespace octavo {

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

}  // namespace octavo
