// Weights in groups: packing, reading rows back, and rounding activations.
#include "groups.h"
#include "half.h"
#include "quantise.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr float kLimit = 127;

void put_value(const GroupLayout& layout, uint8_t* values, int64_t column, float value) {
    if (!layout.half) return void(std::memcpy(values + column * 4, &value, 4));
    const uint16_t half = float_to_half(value);
    std::memcpy(values + column * 2, &half, 2);
}

float get_value(const GroupLayout& layout, const uint8_t* values, int64_t column) {
    if (layout.half) {
        uint16_t half;
        std::memcpy(&half, values + column * 2, 2);
        return half_to_float(half);
    }
    float value;
    std::memcpy(&value, values + column * 4, 4);
    return value;
}

// One column's codes of one group; codes past the row's end are 0.
void put_codes(const GroupLayout& layout, uint8_t* to, int64_t column, const uint8_t* codes, int64_t count) {
    uint8_t padded[32] = {};
    if (count < layout.group) {
        std::memcpy(padded, codes, size_t(count));
        codes = padded;
    }
    const int quads = layout.group * layout.bits / 32;  // stored ones
    for (int q = 0; q < quads; ++q) {
        uint32_t quad;
        std::memcpy(&quad, codes + 4 * q, 4);
        if (layout.bits == 4) {
            uint32_t high;
            std::memcpy(&high, codes + 4 * (q + quads), 4);
            quad |= high << 4;
        }
        std::memcpy(to + (q * kGroupColumns + column) * 4, &quad, 4);
    }
}

void pack_panel(void* context, int64_t tile, int) {
    const PackArgs& args = *static_cast<const PackArgs*>(context);
    const GroupLayout layout(args.format);
    const int64_t panel = args.first_row / kGroupColumns + tile, groups = args.format.groups_of(args.k);
    uint8_t* records = static_cast<uint8_t*>(args.packed) + panel * layout.panel_bytes(args.k);
    for (int64_t g = 0; g < groups; ++g) {  // outermost, so that the panel is written from front to back
        uint8_t* record = records + g / layout.record_groups() * layout.record_bytes();
        const int64_t part = g % layout.record_groups(), left = args.k - g * layout.group;
        uint8_t* values = record + part * layout.scales_bytes();
        uint8_t* codes = record + layout.codes_at() + part * layout.codes_bytes();
        for (int64_t c = 0; c < kGroupColumns; ++c) {
            const int64_t row = panel * kGroupColumns + c - args.first_row;
            if (row < 0 || row >= args.num_rows) continue;
            put_value(layout, values, c, args.scales[row * groups + g]);
            if (layout.minimum) put_value(layout, values + layout.values_bytes(), c, args.minimums[row * groups + g]);
            put_codes(layout, codes, c, static_cast<const uint8_t*>(args.rows) + row * args.k + g * layout.group,
                      left < layout.group ? left : layout.group);
        }
    }
}

// One column's codes of one group.
void get_codes(const GroupLayout& layout, const uint8_t* from, int64_t column, uint8_t (&codes)[32]) {
    const int stored = layout.group * layout.bits / 8;  // bytes
    for (int i = 0; i < stored; ++i) {
        const uint8_t byte = from[(i / 4 * kGroupColumns + column) * 4 + i % 4];
        codes[i] = layout.bits == 4 ? byte & 15 : byte;
        if (layout.bits == 4) codes[i + stored] = byte >> 4;
    }
}

// The codes of one group and their sum.
int32_t put_activations(const GroupLayout& layout, const float* x, int count, float scale, uint8_t* out) {
    int32_t codes[32], sum = 0;
    for (int i = 0; i < layout.group; i += VF::W)
        quantise(x + i, count - i < 0 ? 0 : count - i, scale, kLimit, *reinterpret_cast<int32_t (*)[VF::W]>(codes + i));
    for (int i = 0; i < layout.group; ++i) sum += codes[i];
    if (layout.wide()) {
        for (int i = 0; i < layout.group; ++i) {
            const auto code = int16_t(codes[i]);
            std::memcpy(out + 2 * (i / 4 * 4 + i % 2 * 2 + i % 4 / 2), &code, 2);
        }
    } else {
        for (int i = 0; i < layout.group; ++i) out[i] = uint8_t(int8_t(codes[i]));
    }
    return sum;
}

}  // namespace

void pack_groups(const PackArgs& args, ThreadPool& pool) {
    const int64_t first = args.first_row / kGroupColumns, last = (args.first_row + args.num_rows - 1) / kGroupColumns;
    pool.parallel_for(last - first + 1, pack_panel, const_cast<PackArgs*>(&args));
}

void embedding_groups(const EmbeddingArgs& args) {
    const GroupLayout layout(args.format);
    for (int t = 0; t < args.num_tokens; ++t) {
        const int64_t panel = args.token_ids[t] / kGroupColumns, column = args.token_ids[t] % kGroupColumns;
        const uint8_t* records = static_cast<const uint8_t*>(args.weight) + panel * layout.panel_bytes(args.k);
        float* out = args.out + t * args.k;
        for (int64_t begin = 0; begin < args.k; begin += layout.group) {
            const int64_t g = begin / layout.group, part = g % layout.record_groups();
            const uint8_t* record = records + g / layout.record_groups() * layout.record_bytes();
            const uint8_t* values = record + part * layout.scales_bytes();
            const float scale = get_value(layout, values, column);
            uint8_t codes[32];
            get_codes(layout, record + layout.codes_at() + part * layout.codes_bytes(), column, codes);
            const int count = args.k - begin < layout.group ? int(args.k - begin) : layout.group;
            for (int i = 0; i < count; ++i) out[begin + i] = scale * float(codes[i] - args.format.zero);
            if (!layout.minimum) continue;
            const float minimum = get_value(layout, values + layout.values_bytes(), column);
            for (int i = 0; i < count; ++i) out[begin + i] = out[begin + i] + minimum;
        }
    }
}

int64_t quantised_row_bytes(int64_t k, const WeightFormat& format) {
    const GroupLayout layout(format);
    return layout.padded_groups(k) * layout.activation_bytes();
}

void quantise_row(const float* x, int64_t k, const WeightFormat& format, void* out) {
    const GroupLayout layout(format);
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t g = 0; g < layout.padded_groups(k); ++g, to += layout.activation_bytes()) {
        const int64_t begin = g * layout.group, left = k - begin;
        const int count = left <= 0 ? 0 : left < layout.group ? int(left) : layout.group;
        const float scale = integer_scale(x + begin, count, kLimit);
        const int32_t sum = put_activations(layout, x + begin, count, scale, to + sizeof(ActivationGroup));
        const ActivationGroup head{scale, scale * float(sum), -format.zero * sum, 0};
        std::memcpy(to, &head, sizeof head);
    }
}

}  // namespace octavo::OCTAVO_ISA
