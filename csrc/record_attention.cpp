// Records the ops of attention: rotary embeddings, keys and values, and attention itself.
#include <algorithm>
#include <cmath>

#include "program_ops.h"
#include "refuse.h"

namespace octavo {

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

}  // namespace octavo
