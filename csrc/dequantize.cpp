// Turning stored tensors into floats or groups, and floats into groups: checks, and threads around the kernels of
// kernels/dequantize.cpp and kernels/quantize_groups.cpp.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.h"
#include "dequantize.h"
#include "kernels.h"

namespace nb = nanobind;

namespace octavo {
namespace {

const Dequantizer& find(const Kernels& kernels, const std::string& name) {
    for (int i = 0; i < kNumDequantizers; ++i)
        if (name == kernels.dequantizers[i].name) return kernels.dequantizers[i];
    throw std::invalid_argument("no dequantiser for '" + name + "'");
}

constexpr int64_t kChunk = 1 << 16;  // elements; a multiple of every block

// Calls body(begin, end) for all of [0, count) in chunks, which are taken from a counter: the work is done whatever
// number of threads the system grants.
template <class Body>
void in_chunks(int64_t count, int64_t chunk, int num_threads, const Body& body) {
    std::atomic<int64_t> next{0};
    auto work = [&] {
        for (int64_t begin; (begin = next.fetch_add(chunk)) < count;) body(begin, std::min(begin + chunk, count));
    };
    std::vector<std::thread> helpers;
    const int64_t chunks = (count + chunk - 1) / chunk;
    helpers.reserve(size_t(num_threads));
    try {
        while (int64_t(helpers.size()) + 1 < std::min<int64_t>(num_threads, chunks)) helpers.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads to be had: those that started and this one share the work.
    }
    work();
    for (std::thread& helper : helpers) helper.join();
}

const Kernels& kernels_of(const std::string& path) {
    return kernels_for(path.empty() ? supported_paths().front() : path);
}

void check_threads(int num_threads) {
    if (num_threads < 1 || num_threads > 1024) throw std::invalid_argument("num_threads must be from 1 to 1024");
}

void check_bytes(const Dequantizer& c, int64_t bytes, int64_t count) {
    const int64_t per_element = c.bytes / c.elements;  // of the plain formats
    const int64_t needed = c.unit == 1 ? count * per_element : count / c.elements * c.bytes;
    if (count % c.unit != 0 || bytes != needed)
        throw std::invalid_argument(std::to_string(bytes) + " bytes are not " + std::to_string(count) +
                                    " elements of " + c.name);
}

using Stored = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<nb::c_contig, nb::device::cpu>;

void dequantize(const Stored& data, const std::string& type, const Floats& out, int num_threads,
                const std::string& path) {
    const Dequantizer& c = find(kernels_of(path), type);
    const bool bf16 = out.dtype() == nb::dtype<uint16_t>();
    if (!bf16 && out.dtype() != nb::dtype<float>())
        throw std::invalid_argument("out must be float32, or uint16 for bfloat16");
    check_threads(num_threads);
    const int64_t count = int64_t(out.size());
    check_bytes(c, int64_t(data.size()), count);
    const uint8_t* in = data.data();
    void* to = out.data();
    nb::gil_scoped_release release;
    in_chunks(count, kChunk, num_threads, [&](int64_t begin, int64_t end) {
        bf16 ? c.to_bfloat16(in, begin, end, static_cast<uint16_t*>(to))
             : c.to_float32(in, begin, end, static_cast<float*>(to));
    });
}

using Rows = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using GroupValues = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Arrays for the groups of rows [n, k].
void check_groups(const Codes& codes, const GroupValues& scales, const std::optional<GroupValues>& minimums,
                  const GroupLayout& layout) {
    const size_t groups = (codes.shape(1) + size_t(layout.group) - 1) / size_t(layout.group);
    const auto fits = [&](const GroupValues& v) { return v.shape(0) == codes.shape(0) && v.shape(1) == groups; };
    if (!fits(scales)) throw std::invalid_argument("scales: must be one for each group of each row");
    if (minimums.has_value() != layout.minimum || (minimums && !fits(*minimums)))
        throw std::invalid_argument("minimums: must be one for each group of each row, and None without minimums");
}

void read_groups(const Stored& data, const std::string& type, const Codes& codes, const GroupValues& scales,
                 const std::optional<GroupValues>& minimums, int num_threads, const std::string& path) {
    const Dequantizer& c = find(kernels_of(path), type);
    if (c.to_groups == nullptr) throw std::invalid_argument("'" + type + "' is not stored in groups");
    check_threads(num_threads);
    if (codes.shape(1) % size_t(c.elements) != 0)
        throw std::invalid_argument("codes: a row must be whole blocks of " + std::to_string(c.elements));
    const int64_t count = int64_t(codes.size());
    check_bytes(c, int64_t(data.size()), count);
    check_groups(codes, scales, minimums, c.groups);
    nb::gil_scoped_release release;
    in_chunks(count, kChunk, num_threads, [&](int64_t begin, int64_t end) {
        c.to_groups(data.data(), begin, end, codes.data(), scales.data(), minimums ? minimums->data() : nullptr);
    });
}

std::optional<std::tuple<int, int, int, bool, bool>> group_layout(const std::string& type) {
    const GroupLayout& l = find(kernels_of(""), type).groups;
    if (l.bits == 0) return std::nullopt;
    return std::tuple(l.bits, l.group, l.zero, l.minimum, l.half_scales);
}

void quantize(const Rows& rows, int bits, const Codes& codes, const GroupValues& scales,
              const std::optional<GroupValues>& minimums, int num_threads, const std::string& path) {
    const bool bf16 = rows.dtype() == nb::dtype<uint16_t>();
    if (!bf16 && rows.dtype() != nb::dtype<float>())
        throw std::invalid_argument("rows must be float32, or uint16 for bfloat16");
    if (rows.shape(0) != codes.shape(0) || rows.shape(1) != codes.shape(1))
        throw std::invalid_argument("codes: must have the shape of the rows");
    if (bits != 4 && bits != 8) throw std::invalid_argument("bits: must be 4 or 8");
    check_threads(num_threads);
    check_groups(codes, scales, minimums, {bits, kQuantizeGroup, 0, bits == 4, true});
    const QuantizeArgs args{rows.data(),
                            bf16,
                            int64_t(codes.shape(1)),
                            bits,
                            codes.data(),
                            scales.data(),
                            minimums ? minimums->data() : nullptr};
    const auto quantize_groups = kernels_of(path).quantize_groups;
    const int64_t groups = int64_t(scales.size());
    nb::gil_scoped_release release;
    in_chunks(groups, kChunk / kQuantizeGroup, num_threads,
              [&](int64_t begin, int64_t end) { quantize_groups(args, begin, end); });
}

// How small integers lie in 32-bit words. Place p of a word is its bits [p * bits, (p + 1) * bits).
enum class Packing {
    kRows,     // words [n, k / places]: the places of a word are columns of a row
    kColumns,  // words [k / places, n]: the same, but the words are transposed
    kAwq,      // words [k, n / 8]: the places of a word are rows, in the order of kAwqRows
};
constexpr int kAwqRows[8] = {0, 2, 4, 6, 1, 3, 5, 7};

Packing packing_of(const std::string& name) {
    if (name == "rows") return Packing::kRows;
    if (name == "columns") return Packing::kColumns;
    if (name == "awq") return Packing::kAwq;
    throw std::invalid_argument("packing: must be rows, columns or awq");
}

struct UnpackArgs {
    const uint32_t* words;
    int64_t words_per_row;
    int bits;
    int64_t k;
    uint8_t* codes;  // [n, k]
};

// Places of one word to neighbouring codes, those past the end of the row not.
inline void put_places(const UnpackArgs& a, uint32_t word, uint8_t* row, int64_t column) {
    const int places = 32 / a.bits;
    const uint32_t mask = (1u << a.bits) - 1;
    if (column + places <= a.k) {
        for (int p = 0; p < places; ++p) row[column + p] = uint8_t(word >> (p * a.bits) & mask);
        return;
    }
    for (int p = 0; column + p < a.k; ++p) row[column + p] = uint8_t(word >> (p * a.bits) & mask);
}

// Rows [begin, end) of the codes. With kAwq both are multiples of 8.
void unpack_rows(const UnpackArgs& a, Packing packing, int64_t begin, int64_t end) {
    const int places = 32 / a.bits;
    if (packing == Packing::kRows) {
        for (int64_t n = begin; n < end; ++n)
            for (int64_t w = 0; w < a.words_per_row; ++w)
                put_places(a, a.words[n * a.words_per_row + w], a.codes + n * a.k, w * places);
    } else if (packing == Packing::kColumns) {
        for (int64_t k = 0; k < a.k; k += places)
            for (int64_t n = begin; n < end; ++n)
                put_places(a, a.words[k / places * a.words_per_row + n], a.codes + n * a.k, k);
    } else {
        constexpr int64_t kTile = 64;  // columns of the codes, so that the words of a tile stay in the cache
        for (int64_t first = 0; first < a.k; first += kTile)
            for (int64_t n = begin; n < end; ++n) {
                const int shift = int(std::find(kAwqRows, kAwqRows + 8, n % 8) - kAwqRows) * 4;
                const uint32_t* word = a.words + n / 8;
                for (int64_t k = first; k < std::min(first + kTile, a.k); ++k)
                    a.codes[n * a.k + k] = uint8_t(word[k * a.words_per_row] >> shift & 15);
            }
    }
}

using Words = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void unpack_codes(const Words& words, const std::string& packing, int bits, const Codes& codes, int num_threads) {
    const Packing as = packing_of(packing);
    check_threads(num_threads);
    if (bits != 8 && bits != 4) throw std::invalid_argument("bits: must be 4 or 8");
    if (as == Packing::kAwq && bits != 4) throw std::invalid_argument("bits: must be 4 with awq");
    const size_t n = codes.shape(0), k = codes.shape(1), places = size_t(32 / bits);
    const auto fits = [&](size_t rows, size_t columns) { return words.shape(0) == rows && words.shape(1) == columns; };
    const size_t packed = (k + places - 1) / places;
    const bool right = as == Packing::kRows      ? fits(n, packed)
                       : as == Packing::kColumns ? fits(packed, n)
                                                 : n % 8 == 0 && fits(k, n / 8);
    if (!right) throw std::invalid_argument("words: do not have the shape that the codes need");
    const UnpackArgs args{words.data(), int64_t(words.shape(1)), bits, int64_t(k), codes.data()};
    const int64_t chunk = as == Packing::kAwq ? 128 : 16;  // rows whose words are one cache line
    nb::gil_scoped_release release;
    in_chunks(int64_t(n), chunk, num_threads, [&](int64_t begin, int64_t end) { unpack_rows(args, as, begin, end); });
}

}  // namespace

void bind_dequantize(nb::module_& m) {
    m.def("dequantize", &dequantize, nb::arg("data"), nb::arg("type"), nb::arg("out").noconvert(),
          nb::arg("num_threads") = 1, nb::arg("path") = "",
          "Turn the stored bytes `data` (uint8, one axis) of ggml type `type` into the contiguous array `out`:\n"
          "float32, or uint16 holding the bits of bfloat16. Raises ValueError when sizes or types do not agree.\n"
          "`path` forces a kernel path; the bits are the same on all.");
    m.def("group_layout", &group_layout, nb::arg("type"),
          "Bits, group, zero, whether there are minimums, and whether scales and minimums are float16 numbers, of a "
          "ggml\n"
          "type that stores integers in groups; None for the plain types.");
    m.def(
        "read_groups", &read_groups, nb::arg("data"), nb::arg("type"), nb::arg("codes").noconvert(),
        nb::arg("scales").noconvert(), nb::arg("minimums").noconvert().none(), nb::arg("num_threads") = 1,
        nb::arg("path") = "",
        "The integers of a type that `group_layout` knows: `codes` [n, k] uint8, `scales` and `minimums` (None where\n"
        "the type has none) float32 [n, k / group]. scale * (code - zero) + minimum, each step rounded to float32, is\n"
        "what `dequantize` gives. Raises ValueError when sizes or types do not agree.");
    m.def("unpack_codes", &unpack_codes, nb::arg("words"), nb::arg("packing"), nb::arg("bits"),
          nb::arg("codes").noconvert(), nb::arg("num_threads") = 1,
          "Integers of 4 or 8 bits from the uint32 `words` into `codes` [n, k] uint8. `packing`: rows (words\n"
          "[n, ceil(k / places)], the places of a word from the lowest bits up being columns), columns (the same\n"
          "transposed), or awq (words [k, n / 8], the places being rows 0 2 4 6 1 3 5 7 of eight; 4 bits only).\n"
          "Raises ValueError when shapes do not agree.");
    m.def("quantize", &quantize, nb::arg("rows"), nb::arg("bits"), nb::arg("codes").noconvert(),
          nb::arg("scales").noconvert(), nb::arg("minimums").noconvert().none(), nb::arg("num_threads") = 1,
          nb::arg("path") = "",
          "Round rows [n, k], float32 or bfloat16 bits, to groups of 32 with float16 scales: 8 bits with zero 128 and "
          "no\n"
          "minimum, or 4 bits with minimums, chosen for the least squared error among some candidates. A group with\n"
          "something that is not finite, or too large for float16, gets the scale NaN. The bits are the same on all "
          "paths.");
}

}  // namespace octavo
