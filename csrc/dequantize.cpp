// Turning stored tensors into floats: checks, and threads around the kernels of kernels/dequantize.cpp.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

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

// Chunks are taken from a counter, so the work is done whatever number of threads the system grants.
template <class Out>
void convert_all(void (*run)(const uint8_t*, int64_t, int64_t, Out*), const uint8_t* in, int64_t count, Out* out,
                 int num_threads) {
    std::atomic<int64_t> next{0};
    auto work = [&] {
        for (int64_t begin; (begin = next.fetch_add(kChunk)) < count;)
            run(in, begin, std::min(begin + kChunk, count), out);
    };
    std::vector<std::thread> helpers;
    const int64_t chunks = (count + kChunk - 1) / kChunk;
    helpers.reserve(size_t(num_threads));
    try {
        while (int64_t(helpers.size()) + 1 < std::min<int64_t>(num_threads, chunks)) helpers.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads to be had: those that started and this one share the work.
    }
    work();
    for (std::thread& helper : helpers) helper.join();
}

using Stored = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<nb::c_contig, nb::device::cpu>;

void dequantize(const Stored& data, const std::string& type, const Floats& out, int num_threads,
                const std::string& path) {
    const Dequantizer& c = find(kernels_for(path.empty() ? supported_paths().front() : path), type);
    const bool bf16 = out.dtype() == nb::dtype<uint16_t>();
    if (!bf16 && out.dtype() != nb::dtype<float>())
        throw std::invalid_argument("out must be float32, or uint16 for bfloat16");
    if (num_threads < 1 || num_threads > 1024) throw std::invalid_argument("num_threads must be from 1 to 1024");
    const int64_t count = int64_t(out.size());
    const int64_t per_element = c.bytes / c.elements;  // of the plain formats
    const int64_t needed = c.unit == 1 ? count * per_element : count / c.elements * c.bytes;
    if (count % c.unit != 0 || int64_t(data.size()) != needed)
        throw std::invalid_argument(std::to_string(data.size()) + " bytes are not " + std::to_string(count) +
                                    " elements of " + type);
    const uint8_t* in = data.data();
    void* to = out.data();
    nb::gil_scoped_release release;
    if (bf16)
        convert_all(c.to_bfloat16, in, count, static_cast<uint16_t*>(to), num_threads);
    else
        convert_all(c.to_float32, in, count, static_cast<float*>(to), num_threads);
}

}  // namespace

void bind_dequantize(nb::module_& m) {
    m.def("dequantize", &dequantize, nb::arg("data"), nb::arg("type"), nb::arg("out").noconvert(),
          nb::arg("num_threads") = 1, nb::arg("path") = "",
          "Turn the stored bytes `data` (uint8, one axis) of ggml type `type` into the contiguous array `out`:\n"
          "float32, or uint16 holding the bits of bfloat16. Raises ValueError when sizes or types do not agree.\n"
          "`path` forces a kernel path; the bits are the same on all.");
}

}  // namespace octavo
