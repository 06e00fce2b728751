// Floats to groups of small integers, once, when a model is loaded with --quantization.
//
// Sixteen groups are worked on at once, one in each lane, so that sums run along a group in one fixed order: the
// results are the same bits on every path, and the plain loops over lanes become vectors.
#include "kernels.h"
#include "ops.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kLanes = 16, kGroup = kQuantizeGroup;

using Lanes = float[kLanes];

// The values of some groups, [element][lane]. A group shorter than kGroup goes round again, so that its values weigh
// about the same.
struct Block {
    Lanes x[kGroup];
};

inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

// The nearest float16 number, ties to even; infinite from 65520 on. The choices are made among integers, so that loops
// over lanes become vectors.
inline float to_half(float value) {
    const uint32_t sign = float_to_bits(value) & 0x80000000u, bits = float_to_bits(value) & 0x7fffffffu;
    const uint32_t normal = (bits + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u;
    // The ulp of 0.5 is that of float16's subnormals, 2^-24.
    const uint32_t subnormal = float_to_bits((bits_to_float(bits) + 0.5f) - 0.5f);
    const uint32_t large = bits > 0x7f800000u ? bits : normal >= 0x47800000u ? 0x7f800000u : normal;
    return bits_to_float((bits < 0x38800000u ? subnormal : large) | sign);
}

// The integer of 0 to `limit` that is nearest, ties to even; 0 for NaN.
inline VF nearest_code(VF x, float limit) {
    const VF magic = VF::set1(0x1.8p23f);
    return (min(max(x, VF::zero()), VF::set1(limit)) + magic) - magic;
}

template <class T>
inline float widen(T value) {
    if constexpr (sizeof(T) == 2)
        return bf16_to_float(value);
    else
        return value;
}

// `count` <= kLanes groups from `first` on; lanes past them repeat the last.
template <class T>
void load(const QuantizeArgs& args, int64_t first, int64_t count, Block& block) {
    const int64_t per_row = (args.k + kGroup - 1) / kGroup;
    for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t g = first + (lane < count ? lane : count - 1);
        const int64_t column = g % per_row * kGroup;
        const T* rows = static_cast<const T*>(args.rows) + g / per_row * args.k + column;
        const int length = args.k - column < kGroup ? int(args.k - column) : kGroup;
        if (length == kGroup) {
            for (int i = 0; i < kGroup; ++i) block.x[i][lane] = widen(rows[i]);
        } else {
            for (int i = 0; i < kGroup; ++i) block.x[i][lane] = widen(rows[i % length]);
        }
    }
}

void store(const QuantizeArgs& args, int64_t first, int64_t count, const Block& codes, const Lanes& scale,
           const Lanes& minimum) {
    const int64_t per_row = (args.k + kGroup - 1) / kGroup;
    for (int lane = 0; lane < count; ++lane) {
        const int64_t g = first + lane, column = g % per_row * kGroup, start = g / per_row * args.k + column;
        const int length = args.k - column < kGroup ? int(args.k - column) : kGroup;
        for (int i = 0; i < length; ++i) args.codes[start + i] = uint8_t(codes.x[i][lane]);
        args.scales[g] = scale[lane];
        if (args.minimums != nullptr) args.minimums[g] = minimum[lane];
    }
}

// Smallest and largest of each lane; NaN where one of its values is not finite or past float16.
void extremes(const Block& block, Lanes& low, Lanes& high) {
    Lanes broken = {};
    for (int l = 0; l < kLanes; ++l) low[l] = high[l] = block.x[0][l];
    for (int i = 0; i < kGroup; ++i) {
        for (int l = 0; l < kLanes; ++l) {
            const float x = block.x[i][l];
            low[l] = x < low[l] ? x : low[l];
            high[l] = x > high[l] ? x : high[l];
            broken[l] += x - x;  // 0, or NaN
        }
    }
    for (int l = 0; l < kLanes; ++l) {
        const bool large = low[l] < -65504.0f || high[l] > 65504.0f;
        const float poison = large ? bits_to_float(0x7fc00000u) : broken[l];
        low[l] += poison, high[l] += poison;
    }
}

// --- 8 bits: codes 1 to 255 around 128 -------------------------------------------------------------------------------

void round_int8(const Block& block, Block& codes, Lanes& scale) {
    Lanes low, high, inverse;
    extremes(block, low, high);
    for (int l = 0; l < kLanes; ++l) {
        const float largest = high[l] > -low[l] ? high[l] : -low[l];
        float s = to_half(largest / 127.0f);
        // Among float16's subnormals the nearest may be far below: then the next one up, and no code overflows.
        s = s * 127.0f < largest && s < 0x1p-14f ? s + 0x1p-24f : s;
        scale[l] = s;
        inverse[l] = s > 0.0f ? 1.0f / s : 0.0f;
    }
    for (int l = 0; l < kLanes; l += VF::W) {
        const VF by = VF::load(inverse + l), zero = VF::set1(128.0f);
        for (int i = 0; i < kGroup; ++i) {
            const VF code = nearest_code(VF::load(block.x[i] + l) * by + zero, 255.0f);
            max(code, VF::set1(1.0f)).store(codes.x[i] + l);
        }
    }
}

// --- 4 bits with a minimum -------------------------------------------------------------------------------------------

struct Fit {
    Lanes scale, minimum, error;
};

// Sums over a group of its codes q and of its distances d from the minimum.
struct Sums {
    Lanes q, qq, d, qd;
};

inline float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

// Rounds the block to the scales and minimums of `fit`: the squared errors, and what `refit` needs.
void measure(const Block& block, Fit& fit, Sums& sums) {
    Lanes inverse;
    for (int l = 0; l < kLanes; ++l) inverse[l] = inverse_of(fit.scale[l]);
    for (int l = 0; l < kLanes; l += VF::W) {
        const VF scale = VF::load(fit.scale + l), minimum = VF::load(fit.minimum + l), by = VF::load(inverse + l);
        VF error = VF::zero(), q = VF::zero(), qq = VF::zero(), sum_d = VF::zero(), qd = VF::zero();
        for (int i = 0; i < kGroup; ++i) {
            const VF d = VF::load(block.x[i] + l) - minimum;
            const VF code = nearest_code(d * by, 15.0f);
            const VF off = scale * code - d;
            error = error + off * off;
            q = q + code, qq = qq + code * code, sum_d = sum_d + d, qd = qd + code * d;
        }
        error.store(fit.error + l);
        q.store(sums.q + l), qq.store(sums.qq + l), sum_d.store(sums.d + l), qd.store(sums.qd + l);
    }
}

// The scale and minimum of least squared error for the codes that were measured, rounded to float16. Where all codes
// are alike nothing can be told, and `fit` stays.
void refit(const Sums& sums, Fit& fit) {
    for (int l = 0; l < kLanes; ++l) {
        const float n = float(kGroup);
        const float det = n * sums.qq[l] - sums.q[l] * sums.q[l];
        const float safe = det > 0.0f ? det : 1.0f;
        const float scale = (n * sums.qd[l] - sums.q[l] * sums.d[l]) / safe;
        const float offset = (sums.qq[l] * sums.d[l] - sums.q[l] * sums.qd[l]) / safe;
        const bool better = scale > 0.0f;  // so det is too
        const float minimum = to_half(fit.minimum[l] + offset), half = to_half(scale);
        fit.minimum[l] = better ? minimum : fit.minimum[l];
        fit.scale[l] = better ? half : fit.scale[l];
    }
}

void keep_better(const Fit& candidate, Fit& best) {
    for (int l = 0; l < kLanes; ++l) {
        const bool better = candidate.error[l] < best.error[l];
        best.scale[l] = better ? candidate.scale[l] : best.scale[l];
        best.minimum[l] = better ? candidate.minimum[l] : best.minimum[l];
        best.error[l] = better ? candidate.error[l] : best.error[l];
    }
}

// Shares of the range cut off below and above before it is divided into 15 steps: an outlier rounded to the last code
// costs less than a coarser step for all others. From each start the least squares are found in turn. The first is the
// usual rounding, so nothing is worse than that.
constexpr float kCuts[][2] = {{0.0f, 0.0f},  {0.04f, 0.0f}, {0.0f, 0.04f},  {0.04f, 0.04f},
                              {0.09f, 0.0f}, {0.0f, 0.09f}, {0.09f, 0.09f}, {-0.03f, -0.03f}};
constexpr int kRefits = 2;

void round_int4(const Block& block, Block& codes, Lanes& scale, Lanes& minimum) {
    Lanes low, high;
    extremes(block, low, high);
    Fit best, fit;
    Sums sums;
    for (int start = 0; start < int(sizeof(kCuts) / sizeof(kCuts[0])); ++start) {
        const float below = kCuts[start][0], above = kCuts[start][1];
        for (int l = 0; l < kLanes; ++l) {
            const float range = high[l] - low[l];
            fit.minimum[l] = to_half(low[l] + below * range);
            fit.scale[l] = to_half(range * (1.0f - below - above) / 15.0f);
        }
        measure(block, fit, sums);
        if (start == 0)
            best = fit;
        else
            keep_better(fit, best);
        for (int again = 0; again < kRefits; ++again) {
            refit(sums, fit);
            measure(block, fit, sums);
            keep_better(fit, best);
        }
    }
    for (int l = 0; l < kLanes; ++l) {
        scale[l] = best.scale[l], minimum[l] = best.minimum[l];
        low[l] = inverse_of(scale[l]);
    }
    for (int l = 0; l < kLanes; l += VF::W) {
        const VF from = VF::load(minimum + l), by = VF::load(low + l);
        for (int i = 0; i < kGroup; ++i)
            nearest_code((VF::load(block.x[i] + l) - from) * by, 15.0f).store(codes.x[i] + l);
    }
}

}  // namespace

void quantize_groups(const QuantizeArgs& args, int64_t begin, int64_t end) {
    Block block, codes;
    Lanes scale, minimum;
    for (int64_t first = begin; first < end; first += kLanes) {
        const int64_t count = end - first < kLanes ? end - first : kLanes;
        if (args.bf16)
            load<uint16_t>(args, first, count, block);
        else
            load<float>(args, first, count, block);
        if (args.bits == 8)
            round_int8(block, codes, scale);
        else
            round_int4(block, codes, scale, minimum);
        store(args, first, count, codes, scale, minimum);
    }
}

}  // namespace octavo::OCTAVO_ISA
