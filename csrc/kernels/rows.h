// Ops that make one row of others, for elementwise.cpp and for the products that convert what they take. Private to
// csrc/kernels.
//
// `Out` takes the row vector by vector: put(i, v) stores the elements from i, put_n(i, v, count) the first ones of v.
// Every Out gets the same values, so that a joined op has the bits of its parts.
#pragma once

#include "activate.h"
#include "kernels.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

struct FloatRow {
    float* out;
    void put(int64_t i, VF v) const { v.store(out + i); }
    void put_n(int64_t i, VF v, int count) const { v.store_n(out + i, count); }
};

struct Bf16Row {
    uint16_t* out;
    void put(int64_t i, VF v) const { v.store_bf16(out + i); }
    void put_n(int64_t i, VF v, int count) const { v.store_bf16_n(out + i, count); }
};

template <class Out>
void copy_row(const float* x, int64_t width, Out out) {
    const int64_t whole = width / VF::W * VF::W;
    const int rest = int(width - whole);
    for (int64_t i = 0; i < whole; i += VF::W) out.put(i, VF::load(x + i));
    if (rest) out.put_n(whole, VF::load_n(x + whole, rest), rest);
}

template <class Out>
void rms_norm_row(const float* x, const float* weight, float eps, int64_t width, Out out) {
    const int64_t whole = width / VF::W * VF::W;
    const int rest = int(width - whole);
    VF squares = VF::zero();
    for (int64_t i = 0; i < whole; i += VF::W) {
        const VF v = VF::load(x + i);
        squares = fma(v, v, squares);
    }
    if (rest) {
        const VF v = VF::load_n(x + whole, rest);
        squares = fma(v, v, squares);
    }
    const VF scale = VF::set1(1.0f / std::sqrt(reduce_add(squares) / float(width) + eps));
    for (int64_t i = 0; i < whole; i += VF::W) out.put(i, VF::load(x + i) * scale * VF::load(weight + i));
    if (rest) out.put_n(whole, VF::load_n(x + whole, rest) * scale * VF::load_n(weight + whole, rest), rest);
}

// In three passes: the mean; the sums of what differs from it, and of its squares; the result. The first sum's rounding
// is what the second one finds left.
template <class Out>
void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, int64_t width, Out out) {
    const int64_t whole = width / VF::W * VF::W;
    const int rest = int(width - whole);
    VF sum = VF::zero();
    for (int64_t i = 0; i < whole; i += VF::W) sum = sum + VF::load(x + i);
    if (rest) sum = sum + VF::load_n(x + whole, rest);
    const float about = reduce_add(sum) / float(width);
    const VF mean = VF::set1(about);
    VF left = VF::zero(), squares = VF::zero();
    const auto take = [&](const VF& d) {
        left = left + d;
        squares = fma(d, d, squares);
    };
    for (int64_t i = 0; i < whole; i += VF::W) take(VF::load(x + i) - mean);
    if (rest) {
        float lanes[VF::W];
        mean.store(lanes);
        take(VF::load_n(x + whole, rest) - VF::load_n(lanes, rest));
    }
    const float shift = reduce_add(left) / float(width);
    const float variance = reduce_add(squares) / float(width) - shift * shift;
    const VF more = VF::set1(shift), scale = VF::set1(1.0f / std::sqrt(variance + eps));
    const auto normed = [&](const VF& v, const VF& w) { return (v - mean - more) * scale * w; };
    if (bias) {
        for (int64_t i = 0; i < whole; i += VF::W)
            out.put(i, normed(VF::load(x + i), VF::load(weight + i)) + VF::load(bias + i));
        if (rest)
            out.put_n(
                whole,
                normed(VF::load_n(x + whole, rest), VF::load_n(weight + whole, rest)) + VF::load_n(bias + whole, rest),
                rest);
        return;
    }
    for (int64_t i = 0; i < whole; i += VF::W) out.put(i, normed(VF::load(x + i), VF::load(weight + i)));
    if (rest) out.put_n(whole, normed(VF::load_n(x + whole, rest), VF::load_n(weight + whole, rest)), rest);
}

// f of every element of x.
template <class Out, class F>
[[gnu::always_inline]] inline void map_row(const float* x, int64_t width, Out out, F f) {
    const int64_t whole = width / VF::W * VF::W;
    const int rest = int(width - whole);
    for (int64_t i = 0; i < whole; i += VF::W) out.put(i, f(VF::load(x + i)));
    if (rest) out.put_n(whole, f(VF::load_n(x + whole, rest)), rest);
}

template <class Out>
void activation_row(Activation activation, const float* x, int64_t width, Out out) {
    with_activation(activation, [&](auto kind) {
        map_row(x, width, out, [](const VF& v) { return activated<decltype(kind)::value>(v); });
    });
}

template <class Out>
void gated_row(Activation activation, const float* gate, const float* up, int64_t width, Out out) {
    const int64_t whole = width / VF::W * VF::W;
    const int rest = int(width - whole);
    with_activation(activation, [&](auto kind) {
        constexpr Activation A = decltype(kind)::value;
        for (int64_t i = 0; i < whole; i += VF::W) out.put(i, activated<A>(VF::load(gate + i)) * VF::load(up + i));
        if (rest) out.put_n(whole, activated<A>(VF::load_n(gate + whole, rest)) * VF::load_n(up + whole, rest), rest);
    });
}

// The same of vectors in registers: gate[i] becomes the result.
[[gnu::noinline]] inline void gate_vectors(Activation activation, VF* gate, const VF* up, int count) {
    with_activation(activation, [&](auto kind) {
        for (int i = 0; i < count; ++i) gate[i] = activated<decltype(kind)::value>(gate[i]) * up[i];
    });
}

// Kernels::rotary for one row.
inline void rotate_row(const RowArgs& args, int row) {
    const int half = args.rotary_half;
    const float* cosine = args.x + int64_t{args.index[row]} * 2 * half;
    const float* sine = cosine + half;
    float* const begin = args.out + row * args.out_stride;
    for (float* head = begin; head < begin + args.width; head += args.head_dim) {
        for (int i = 0; i < half; i += VF::W) {
            const int count = half - i < VF::W ? half - i : VF::W;
            const VF c = VF::load_n(cosine + i, count), s = VF::load_n(sine + i, count);
            const VF first = VF::load_n(head + i, count), second = VF::load_n(head + half + i, count);
            (first * c - second * s).store_n(head + i, count);
            (second * c + first * s).store_n(head + half + i, count);
        }
    }
}

// Row `row` of what a product takes.
template <class Out>
void input_row(const LinearArgs& args, int row, Out out) {
    const float* x = args.x + row * args.x_stride;
    switch (args.input) {
        case LinearArgs::Input::kRows:
            return copy_row(x, args.k, out);
        case LinearArgs::Input::kRmsNorm:
            return rms_norm_row(x, args.norm, args.eps, args.k, out);
        case LinearArgs::Input::kLayerNorm:
            return layer_norm_row(x, args.norm, args.norm_bias, args.eps, args.k, out);
        case LinearArgs::Input::kGated:
            return gated_row(args.activation, x, args.up + row * args.up_stride, args.k, out);
        case LinearArgs::Input::kActivation:
            return activation_row(args.activation, x, args.k, out);
    }
}

// The same as float32, where it lies if it lies somewhere, else made in `buffer` [k].
inline const float* input_row(const LinearArgs& args, int row, float* buffer) {
    if (args.input == LinearArgs::Input::kRows) return args.x + row * args.x_stride;
    input_row(args, row, FloatRow{buffer});
    return buffer;
}

// Rows that one thread converts at a time: some microseconds of work, so that few rows are converted by one thread.
inline int input_rows_per_tile(const LinearArgs& args) {
    const bool activates = args.input == LinearArgs::Input::kGated || args.input == LinearArgs::Input::kActivation;
    const bool is_cheap = !activates && !args.format.in_groups();
    const int64_t elements = is_cheap ? 12 << 10 : 3 << 10;
    return int(elements > args.k ? elements / args.k : 1);
}

// Calls convert(args, row, tile) for each row that `args` takes, on all threads. There are at most as many tiles as
// rows.
using ConvertRow = void (*)(const LinearArgs& args, int row, int tile);
void convert_rows(const LinearArgs& args, ConvertRow convert, ThreadPool& pool);

}  // namespace octavo::OCTAVO_ISA
