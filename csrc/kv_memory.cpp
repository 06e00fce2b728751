#include "kv_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& allowed) {
    throw std::invalid_argument(field + " = " + value + ": must be " + allowed);
}

int32_t checked(const char* field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
        refuse(field, std::to_string(value), "from " + std::to_string(low) + " to " + std::to_string(high));
    return int32_t(value);
}

size_t product(std::initializer_list<size_t> factors) {
    size_t result = 1;
    for (size_t factor : factors)
        if (__builtin_mul_overflow(result, factor, &result) || result > (size_t{1} << 62))
            throw std::invalid_argument("the KV memory asked for does not fit the address space");
    return result;
}

KVDtype parse_dtype(const std::string& dtype) {
    if (dtype == "float32") return KVDtype::kFloat32;
    if (dtype == "bfloat16") return KVDtype::kBFloat16;
    if (dtype == "int8") return KVDtype::kInt8;
    refuse("dtype", "'" + dtype + "'", "'bfloat16', 'float32' or 'int8'");
}

// Bytes of one head's key (or value) of one token; with int8, its scale included.
size_t vector_bytes(KVDtype dtype, int64_t head_dim) {
    switch (dtype) {
        case KVDtype::kFloat32:
            return size_t(head_dim) * 4;
        case KVDtype::kBFloat16:
            return size_t(head_dim) * 2;
        case KVDtype::kInt8:
            break;
    }
    return size_t(head_dim) + 4;
}

}  // namespace

KVMemory::KVMemory(std::vector<int32_t> layer_groups, int64_t num_kv_heads, int64_t head_dim, const std::string& dtype,
                   int64_t block_size, int64_t num_blocks, int64_t max_num_seqs, int64_t max_blocks_per_seq)
    : layer_group_(std::move(layer_groups)) {
    if (layer_group_.empty()) refuse("layer_groups", "()", "at least one layer");
    pool_.dtype = parse_dtype(dtype);
    checked("block_size", block_size, 1, 256);
    if (block_size & (block_size - 1)) refuse("block_size", std::to_string(block_size), "a power of two");

    const auto largest = *std::max_element(layer_group_.begin(), layer_group_.end());
    for (int32_t group : layer_group_) checked("layer_groups", group, 0, int64_t(layer_group_.size()) - 1);
    std::vector<int32_t> count(size_t(largest) + 1, 0);
    for (int32_t group : layer_group_) layer_slot_.push_back(count[size_t(group)]++);

    pool_.num_layers = int32_t(layer_group_.size());
    pool_.num_groups = largest + 1;
    pool_.layers_per_page = *std::max_element(count.begin(), count.end());
    pool_.layer_group = layer_group_.data();
    pool_.layer_slot = layer_slot_.data();
    pool_.num_kv_heads = checked("num_kv_heads", num_kv_heads, 1, 1 << 16);
    pool_.head_dim = checked("head_dim", head_dim, 1, 1 << 16);
    pool_.block_size = int32_t(block_size);
    pool_.num_blocks = checked("num_blocks", num_blocks, 1, INT32_MAX);
    pool_.max_num_seqs = checked("max_num_seqs", max_num_seqs, 1, 1 << 20);
    pool_.max_blocks_per_seq = checked("max_blocks_per_seq", max_blocks_per_seq, 1, INT32_MAX / block_size);
    pool_.block_bytes = product({2, size_t(pool_.layers_per_page), size_t(block_size), size_t(num_kv_heads),
                                 vector_bytes(pool_.dtype, head_dim)});
    const size_t entries =
        product({size_t(pool_.num_groups), size_t(pool_.max_num_seqs), size_t(pool_.max_blocks_per_seq)});
    tables_.assign(entries, 0);
    pool_.tables = tables_.data();

    mapped_bytes_ = product({size_t(num_blocks), pool_.block_bytes});
    void* memory =
        mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(memory, mapped_bytes_, MADV_HUGEPAGE);  // only a hint: small pages work too
#endif
    pool_.base = static_cast<uint8_t*>(memory);
    first_touch_ = std::make_unique<FirstTouch>(pool_.base, mapped_bytes_);
}

KVMemory::~KVMemory() {
    first_touch_.reset();
    if (pool_.base) munmap(pool_.base, mapped_bytes_);
}

void KVMemory::check_block(int64_t index) const {
    if (index < 0 || index >= pool_.num_blocks)
        throw std::out_of_range("block " + std::to_string(index) + ": must be from 0 to " +
                                std::to_string(pool_.num_blocks - 1));
}

const uint8_t* KVMemory::block(int64_t index) const {
    check_block(index);
    return pool_.base + size_t(index) * pool_.block_bytes;
}

void KVMemory::copy_blocks(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
    for (const auto& [source, destination] : pairs) {
        check_block(source);
        check_block(destination);
    }
    for (const auto& [source, destination] : pairs)
        std::memmove(pool_.base + size_t(destination) * pool_.block_bytes, block(source), pool_.block_bytes);
}

void KVMemory::erase_blocks(const std::vector<int64_t>& blocks) {
    for (int64_t index : blocks) check_block(index);
    for (int64_t index : blocks) std::memset(pool_.base + size_t(index) * pool_.block_bytes, 0, pool_.block_bytes);
}

void KVMemory::check_size(size_t size) const {
    if (size != pool_.block_bytes)
        throw std::invalid_argument("data of " + std::to_string(size) + " bytes: must be " +
                                    std::to_string(pool_.block_bytes) + " bytes, the size of a block");
}

void KVMemory::export_to(int64_t index, void* data, size_t size) const {
    check_size(size);
    std::memcpy(data, block(index), size);
}

void KVMemory::import_block(int64_t index, const void* data, size_t size) {
    check_block(index);
    check_size(size);
    std::memcpy(pool_.base + size_t(index) * pool_.block_bytes, data, size);
}

void KVMemory::expect(int64_t index) {
    if (index < 0 || index >= pool_.num_blocks) return;  // whoever uses it will be told
    first_touch_->want(size_t(index + 1) * pool_.block_bytes);
}

void bind_kv_memory(nb::module_& m) {
    using Tables = nb::ndarray<nb::numpy, int32_t, nb::ndim<3>, nb::c_contig>;
    using Slot = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig>;
    using ReadOnlySlot = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>, nb::c_contig>;
    using Release = nb::call_guard<nb::gil_scoped_release>;
    // dynamic_attr: the back end adds `shape`, the KVShape it was made from.
    nb::class_<KVMemory>(m, "KVMemory", nb::dynamic_attr(),
                         "Blocks and block tables; see backends/protocol.py KVMemory. Arguments as KVShape.")
        .def(nb::init<std::vector<int32_t>, int64_t, int64_t, const std::string&, int64_t, int64_t, int64_t, int64_t>(),
             nb::kw_only(), nb::arg("layer_groups"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("dtype"),
             nb::arg("block_size"), nb::arg("num_blocks"), nb::arg("max_num_seqs"), nb::arg("max_blocks_per_seq"))
        .def_prop_ro(
            "block_tables",
            [](KVMemory& self) {
                const KVPool& kv = self.pool();
                return Tables(kv.tables,
                              {size_t(kv.num_groups), size_t(kv.max_num_seqs), size_t(kv.max_blocks_per_seq)});
            },
            nb::rv_policy::reference_internal,
            "int32 [num_groups, max_num_seqs, max_blocks_per_seq], writable, shared.")
        .def_prop_ro("bytes_per_block", [](const KVMemory& self) { return self.pool().block_bytes; })
        .def("expect", &KVMemory::expect, nb::arg("block"),
             "Blocks up to this one are in use, or will be at once: memory for some more is made ready meanwhile.")
        .def_prop_ro("ready_bytes", &KVMemory::ready_bytes, "Bytes from block 0 on that were made ready so far.")
        .def("copy_blocks", &KVMemory::copy_blocks, nb::arg("pairs"), Release(),
             "Copy whole blocks, (source, destination), in order. Raises IndexError before anything is copied.")
        .def("erase_blocks", &KVMemory::erase_blocks, nb::arg("blocks"), Release(), "Fill blocks with zero bytes.")
        .def(
            "export_block",
            [](const KVMemory& self, int64_t index) { return nb::bytes(self.block(index), self.pool().block_bytes); },
            nb::arg("block"), "The block's bytes, bytes_per_block long.")
        .def(
            "import_block",
            [](KVMemory& self, int64_t index, nb::bytes data) { self.import_block(index, data.data(), data.size()); },
            nb::arg("block"), nb::arg("data"),
            "Restore what export_block of the same shape gave. Raises ValueError on another length.")
        .def(
            "swap_out",
            [](const KVMemory& self, int64_t index, const Slot& slot) {
                self.export_to(index, slot.data(), slot.nbytes());
            },
            nb::arg("block"), nb::arg("slot"), Release(),
            "Copy a block's bytes into slot, a writable uint8 array. Raises ValueError on another length.")
        .def(
            "swap_in",
            [](KVMemory& self, const ReadOnlySlot& slot, int64_t index) {
                self.import_block(index, slot.data(), slot.nbytes());
            },
            nb::arg("slot"), nb::arg("block"), Release(),
            "Copy back what swap_out of the same shape gave. Raises ValueError on another length.");
}

}  // namespace octavo
