// Direct calls of single kernels, for the tests and benchmarks. The engine goes through replay.cpp.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "kernels.h"
#include "kv_ahead.h"
#include "kv_memory.h"
#include "memory.h"
#include "parallel.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Rows may be strided, elements of a row are contiguous.
using Rows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using ConstRows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

// Every entry of the block table that tokens [begin, end) of a row use must name a block.
void check_table(const KVPool& kv, int layer, int32_t row, int64_t begin, int64_t end) {
    require(row >= 0 && row < kv.max_num_seqs, "rows must be rows of the block tables");
    require(begin >= 0 && end <= int64_t{kv.max_blocks_per_seq} * kv.block_size, "positions must fit the block table");
    const int32_t* table = kv.tables + (int64_t{kv.layer_group[layer]} * kv.max_num_seqs + row) * kv.max_blocks_per_seq;
    for (int64_t i = begin / kv.block_size; i * kv.block_size < end; ++i)
        require(table[i] >= 0 && table[i] < kv.num_blocks, "the block table must name blocks of the pool");
}

void check_layer(const KVPool& kv, int layer) {
    require(layer >= 0 && layer < kv.num_layers, "layer must be one of the memory's");
}

void call_write_kv(const KVMemory& memory, int layer, ConstRows key, ConstRows value, Ints positions, Ints token_rows,
                   ThreadPool& pool, const std::string& isa) {
    const KVPool& kv = memory.pool();
    const size_t count = positions.shape(0), width = size_t(kv.num_kv_heads) * size_t(kv.head_dim);
    check_layer(kv, layer);
    require(token_rows.shape(0) == count && key.shape(0) == count && value.shape(0) == count,
            "key, value, positions and token_rows must be equally long");
    require(key.shape(1) == width && value.shape(1) == width, "key and value must be num_kv_heads * head_dim wide");
    require(key.stride(1) == 1 && value.stride(1) == 1, "rows of key and value must be contiguous");
    for (size_t i = 0; i < count; ++i) check_table(kv, layer, token_rows(i), positions(i), int64_t{positions(i)} + 1);
    const WriteKVArgs args{&kv,          layer,           key.data(),       key.stride(0),
                           value.data(), value.stride(0), positions.data(), token_rows.data(),
                           int(count)};
    const Kernels& kernels = kernels_for(isa);
    nb::gil_scoped_release release;
    kernels.write_kv(args, pool);
}

// Without scratch memory; `scratch_bytes` says how much it takes.
AttentionArgs checked_attention(const KVMemory& memory, int layer, const ConstRows& query, const Rows& out,
                                int num_heads, float scale, int window, const Ints& batch_rows,
                                const Ints& query_start_loc, const Ints& seq_lens, const ThreadPool& pool,
                                const std::string& isa, float soft_cap) {
    const KVPool& kv = memory.pool();
    const size_t num_seqs = batch_rows.shape(0), num_tokens = query.shape(0);
    check_layer(kv, layer);
    require(num_heads > 0 && num_heads % kv.num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads");
    require(scale > 0 && window >= 0 && soft_cap >= 0, "scale must be above 0, window and soft_cap at least 0");
    require(query.shape(1) == size_t(num_heads) * size_t(kv.head_dim) && out.shape(1) == query.shape(1) &&
                out.shape(0) == num_tokens,
            "query and out must be [num_tokens, num_heads * head_dim]");
    require(query.stride(1) == 1 && out.stride(1) == 1, "rows of query and out must be contiguous");
    require(query_start_loc.shape(0) == num_seqs + 1 && seq_lens.shape(0) == num_seqs && query_start_loc(0) == 0 &&
                size_t(query_start_loc(num_seqs)) == num_tokens,
            "query_start_loc must run from 0 to num_tokens with one entry more than batch_rows and seq_lens");
    for (size_t i = 0; i < num_seqs; ++i) {
        const int64_t new_tokens = int64_t{query_start_loc(i + 1)} - query_start_loc(i);
        require(new_tokens >= 0 && seq_lens(i) >= new_tokens, "seq_lens must count at least the new tokens");
        const int64_t oldest = window > 0 ? seq_lens(i) - new_tokens + 1 - window : 0;
        if (new_tokens) check_table(kv, layer, batch_rows(i), oldest > 0 ? oldest : 0, seq_lens(i));
    }
    const size_t bytes =
        kernels_for(isa).attention_scratch_bytes(kv, num_heads, int(num_tokens), int(num_seqs), pool.size());
    return {
        &kv,    layer,    query.data(),      query.stride(0),        out.data(),      out.stride(0), num_heads, scale,
        window, soft_cap, batch_rows.data(), query_start_loc.data(), seq_lens.data(), int(num_seqs), nullptr,   bytes};
}

void call_attention(const KVMemory& memory, int layer, ConstRows query, Rows out, int num_heads, float scale,
                    int window, Ints batch_rows, Ints query_start_loc, Ints seq_lens, ThreadPool& pool,
                    const std::string& isa, float soft_cap) {
    AttentionArgs args = checked_attention(memory, layer, query, out, num_heads, scale, window, batch_rows,
                                           query_start_loc, seq_lens, pool, isa, soft_cap);
    args.scratch = thread_scratch(args.scratch_bytes);
    nb::gil_scoped_release release;
    kernels_for(isa).attention(args, pool);
}

// One layer after the other, as a step calls them: what it takes to come from Python is not the kernel's.
void call_attention_layers(const std::vector<std::pair<const KVMemory*, int>>& layers, ConstRows query, Rows out,
                           int num_heads, float scale, Ints batch_rows, Ints query_start_loc, Ints seq_lens,
                           ThreadPool& pool, const std::string& isa) {
    const Kernels& kernels = kernels_for(isa);
    std::vector<AttentionArgs> calls;
    for (const auto& [memory, layer] : layers) {
        require(memory, "layers must have a memory");
        calls.push_back(checked_attention(*memory, layer, query, out, num_heads, scale, 0, batch_rows, query_start_loc,
                                          seq_lens, pool, isa, 0.0f));
    }
    size_t bytes = 0;
    for (const AttentionArgs& args : calls) bytes = std::max(bytes, args.scratch_bytes);
    void* scratch = thread_scratch(bytes);
    for (AttentionArgs& args : calls) args.scratch = scratch;
    nb::gil_scoped_release release;
    const ThreadPoolStep step(pool);
    for (const AttentionArgs& args : calls) kernels.attention(args, pool);
}

// For each thread what it would fetch ahead of `layer`'s attention, as places and sizes in the KV memory.
std::vector<std::vector<std::pair<int64_t, int64_t>>> fetched_ahead(const KVMemory& memory, int layer, int window,
                                                                    Ints batch_rows, Ints query_start_loc,
                                                                    Ints seq_lens, int num_threads) {
    const KVPool& kv = memory.pool();
    const size_t num_seqs = batch_rows.shape(0);
    check_layer(kv, layer);
    require(window >= 0 && num_threads > 0, "window must be at least 0, num_threads above 0");
    require(query_start_loc.shape(0) == num_seqs + 1 && seq_lens.shape(0) == num_seqs,
            "query_start_loc must have one entry more than batch_rows and seq_lens");
    for (size_t i = 0; i < num_seqs; ++i)
        require(batch_rows(i) >= 0 && batch_rows(i) < kv.max_num_seqs, "batch_rows must be rows of the block tables");
    KVAhead ahead(kv, num_threads);
    ahead.begin(layer, window, 3, batch_rows.data(), query_start_loc.data(), seq_lens.data(), int(num_seqs));
    std::vector<std::vector<std::pair<int64_t, int64_t>>> result(static_cast<size_t>(num_threads));
    for (int thread = 0; thread < num_threads; ++thread) {
        KVAhead::Cursor* const cursor = ahead.cursor(thread);
        while (cursor->seq < cursor->last_seq) {
            ahead.next_block(cursor);
            if (cursor->at == cursor->end) break;
            result[size_t(thread)].emplace_back(cursor->at - kv.base, cursor->end - cursor->at);
            cursor->at = cursor->end;
        }
    }
    return result;
}

// Reads `bytes` of memory once on all threads and returns GB/s: the roof beside which benchmarks state their figures.
double read_bandwidth(ThreadPool& pool, int64_t bytes) {
    constexpr int64_t kTile = 1 << 20;
    require(bytes >= kTile && bytes <= int64_t{1} << 40, "bytes must be from 2^20 to 2^40");
    const int64_t words = bytes / 8;
    const std::unique_ptr<uint64_t, decltype(&std::free)> memory(
        static_cast<uint64_t*>(std::aligned_alloc(size_t{1} << 21, (size_t(bytes) + (1 << 21) - 1) >> 21 << 21)),
        &std::free);
    if (!memory) throw std::bad_alloc();
    madvise(memory.get(), size_t(bytes), MADV_HUGEPAGE);
    std::fill_n(memory.get(), words, uint64_t{1});
    struct Job {
        const uint64_t* memory;
        int64_t words;
        std::atomic<uint64_t> sum{0};
    } job{memory.get(), words};
    nb::gil_scoped_release release;
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(
        words * 8 / kTile,
        [](void* context, int64_t tile, int) {
            Job& j = *static_cast<Job*>(context);
            const uint64_t* p = j.memory + tile * (kTile / 8);
            uint64_t sum[16] = {};
            for (int64_t i = 0; i < kTile / 8; i += 16)
                for (int k = 0; k < 16; ++k) sum[k] += p[i + k];
            for (uint64_t s : sum) j.sum += s;
        },
        &job);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (job.sum != uint64_t(words * 8 / kTile * (kTile / 8))) throw std::runtime_error("memory holds other values");
    return double(bytes) / seconds / 1e9;
}

// Seconds of an empty parallel loop with one tile for each thread, the mean of `repeats` in a step: what a kernel that
// uses threads costs at least.
double fork_join(ThreadPool& pool, int repeats) {
    require(repeats >= 1 && repeats <= 1 << 24, "repeats must be from 1 to 2^24");
    nb::gil_scoped_release release;
    const ThreadPoolStep step(pool);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) pool.parallel_for(pool.size(), [](void*, int64_t, int) {}, nullptr);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

}  // namespace

void bind_kernel_tests(nb::module_& m) {
    m.def("write_kv", &call_write_kv, nb::arg("kv"), nb::arg("layer"), nb::arg("key").noconvert(),
          nb::arg("value").noconvert(), nb::arg("positions").noconvert(), nb::arg("token_rows").noconvert(),
          nb::arg("pool"), nb::arg("isa"),
          "One call of the write_kv kernel, checked; for tests and benchmarks. float32 [T, num_kv_heads * head_dim].");
    m.def("read_bandwidth", &read_bandwidth, nb::arg("pool"), nb::arg("bytes") = int64_t{1} << 28,
          "GB/s at which all threads together read memory once; for benchmarks.");
    m.def("fork_join", &fork_join, nb::arg("pool"), nb::arg("repeats") = 1000,
          "Mean seconds of an empty parallel loop; for benchmarks.");
    m.def("fetched_ahead", &fetched_ahead, nb::arg("kv"), nb::arg("layer"), nb::arg("window"),
          nb::arg("batch_rows").noconvert(), nb::arg("query_start_loc").noconvert(), nb::arg("seq_lens").noconvert(),
          nb::arg("num_threads"),
          "What each thread fetches ahead of a layer's attention: [(place, bytes)]; for tests.");
    m.def("attention", &call_attention, nb::arg("kv"), nb::arg("layer"), nb::arg("query").noconvert(),
          nb::arg("out").noconvert(), nb::arg("num_heads"), nb::arg("scale"), nb::arg("window"),
          nb::arg("batch_rows").noconvert(), nb::arg("query_start_loc").noconvert(), nb::arg("seq_lens").noconvert(),
          nb::arg("pool"), nb::arg("isa"), nb::arg("soft_cap") = 0.0f,
          "One call of the attention kernel, checked; for tests and benchmarks. window and soft_cap 0 mean none.");
    m.def("attention_layers", &call_attention_layers, nb::arg("layers"), nb::arg("query").noconvert(),
          nb::arg("out").noconvert(), nb::arg("num_heads"), nb::arg("scale"), nb::arg("batch_rows").noconvert(),
          nb::arg("query_start_loc").noconvert(), nb::arg("seq_lens").noconvert(), nb::arg("pool"), nb::arg("isa"),
          "The same for some (kv, layer) in one call; for benchmarks.");
}

}  // namespace octavo
