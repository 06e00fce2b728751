// Scatter of new keys and values into their blocks.
#include "kv_layout.h"
#include "ops.h"
#include "quantise.h"
#include "rows.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kTokensPerTile = 4;  // a microsecond or two

// First key element of the strip that holds the token at `offset` of a block, and the token's place in it.
struct Strip {
    int64_t begin, length, place;
    Strip(const KVPool& kv, int offset) : length(strip_length(kv)), place(offset % length) {
        begin = (offset - place) * kv.head_dim;
    }
};

void write_bf16(const KVPool& kv, uint16_t* keys, int offset, const float* key, const float* value) {
    const Strip strip(kv, offset);
    const int pairs = kv.head_dim / 2;
    uint16_t* to = keys + strip.begin;
    for (int i = 0; i < pairs; ++i) {
        const uint16_t pair[2] = {float_to_bf16(key[2 * i]), float_to_bf16(key[2 * i + 1])};
        std::memcpy(to + (i * strip.length + strip.place) * 2, pair, 4);
    }
    if (kv.head_dim % 2) to[pairs * strip.length * 2 + strip.place] = float_to_bf16(key[2 * pairs]);
    uint16_t* values = keys + head_elements(kv) + int64_t{offset} * kv.head_dim;
    int d = 0;
    for (; d + VF::W <= kv.head_dim; d += VF::W) VF::load(value + d).store_bf16(values + d);
    for (; d < kv.head_dim; ++d) values[d] = float_to_bf16(value[d]);
}

void write_int8(const KVPool& kv, int8_t* keys, int offset, const float* key, const float* value) {
    const Strip strip(kv, offset);
    const float scales[2] = {integer_scale(key, kv.head_dim, 127.0f), integer_scale(value, kv.head_dim, 127.0f)};
    for (int64_t i = 0; i < 2; ++i)
        std::memcpy(keys - scale_bytes(kv) + (i * kv.block_size + offset) * 4, scales + i, 4);
    int8_t* to = keys + strip.begin;
    int8_t* values = keys + head_elements(kv) + int64_t{offset} * kv.head_dim;
    for (int d = 0; d < kv.head_dim; d += VF::W) {
        const int count = kv.head_dim - d < VF::W ? kv.head_dim - d : VF::W;
        int8_t stored[VF::W];
        quantise(key + d, count, scales[0], 127.0f, stored);
        for (int i = 0; i + 1 < count; i += 2)
            std::memcpy(to + (d + i) * strip.length + strip.place * 2, stored + i, 2);
        if (count % 2) to[(d + count - 1) * strip.length + strip.place] = stored[count - 1];
        quantise(value + d, count, scales[1], 127.0f, stored);
        std::memcpy(values + d, stored, size_t(count));
    }
}

void write_f32(const KVPool& kv, float* keys, int offset, const float* key, const float* value) {
    const Strip strip(kv, offset);
    for (int d = 0; d < kv.head_dim; ++d) keys[strip.begin + d * strip.length + strip.place] = key[d];
    std::memcpy(keys + head_elements(kv) + int64_t{offset} * kv.head_dim, value, size_t(kv.head_dim) * 4);
}

void write_token(const WriteKVArgs& args, int token) {
    const KVPool& kv = *args.kv;
    const int32_t position = args.positions[token];
    const int32_t block = table_row(kv, args.layer, args.token_rows[token])[position / kv.block_size];
    const int offset = position % kv.block_size;
    for (int head = 0; head < kv.num_kv_heads; ++head) {
        uint8_t* keys = head_keys(kv, block, args.layer, head);
        const float* key = args.key + token * args.key_stride + int64_t{head} * kv.head_dim;
        const float* value = args.value + token * args.value_stride + int64_t{head} * kv.head_dim;
        switch (kv.dtype) {
            case KVDtype::kFloat32:
                write_f32(kv, reinterpret_cast<float*>(keys), offset, key, value);
                break;
            case KVDtype::kBFloat16:
                write_bf16(kv, reinterpret_cast<uint16_t*>(keys), offset, key, value);
                break;
            case KVDtype::kInt8:
                write_int8(kv, reinterpret_cast<int8_t*>(keys), offset, key, value);
                break;
        }
    }
}

void write_tile(void* context, int64_t tile, int) {
    const WriteKVArgs& args = *static_cast<const WriteKVArgs*>(context);
    const int begin = int(tile) * kTokensPerTile;
    const int end = begin + kTokensPerTile < args.num_tokens ? begin + kTokensPerTile : args.num_tokens;
    for (int token = begin; token < end; ++token) write_token(args, token);
}

struct RotaryJob {
    const RowArgs* query;
    const RowArgs* key;
    const WriteKVArgs* kv;
};

void rotate_and_write_tile(void* context, int64_t tile, int) {
    const RotaryJob& job = *static_cast<const RotaryJob*>(context);
    const int begin = int(tile) * kTokensPerTile, num_tokens = job.kv->num_tokens;
    const int end = begin + kTokensPerTile < num_tokens ? begin + kTokensPerTile : num_tokens;
    for (int token = begin; token < end; ++token) {
        rotate_row(*job.query, token);
        rotate_row(*job.key, token);
        write_token(*job.kv, token);
    }
}

}  // namespace

void rotary_write_kv(const RowArgs& query, const RowArgs& key, const WriteKVArgs& kv, ThreadPool& pool) {
    RotaryJob job{&query, &key, &kv};
    pool.parallel_for((kv.num_tokens + kTokensPerTile - 1) / kTokensPerTile, rotate_and_write_tile, &job);
}

void write_kv(const WriteKVArgs& args, ThreadPool& pool) {
    const int tiles = (args.num_tokens + kTokensPerTile - 1) / kTokensPerTile;
    pool.parallel_for(tiles, write_tile, const_cast<WriteKVArgs*>(&args));
}

}  // namespace octavo::OCTAVO_ISA
