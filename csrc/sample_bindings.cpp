#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "kernels.h"
#include "sample.h"

namespace nb = nanobind;

namespace octavo {
namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Masks = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

template <class T>
const T* column(const char* field, const Vector<T>& values, size_t rows) {
    require(values.shape(0) == rows, std::string(field) + " must have one entry per row of logits");
    return values.data();
}

const int64_t* ranges(const char* field, const Vector<int64_t>& start, size_t rows, size_t num_values) {
    require(start.shape(0) == rows + 1, std::string(field) + " must have one entry more than logits has rows");
    bool ordered = start(0) >= 0;
    for (size_t i = 0; i < rows; ++i) ordered = ordered && start(i) <= start(i + 1);
    require(ordered && size_t(start(rows)) <= num_values, std::string(field) + " must ascend within its values");
    return start.data();
}

// Written so that a NaN fails.
void check_rows(const SampleArgs& a, int64_t num_masks) {
    for (int64_t i = 0; i < a.num_rows; ++i) {
        const std::string row = " of row " + std::to_string(i) + " must be ";
        require(a.temperature[i] >= 0 && std::isfinite(a.temperature[i]), "temperature" + row + "finite, at least 0");
        require(a.top_k[i] >= 0, "top_k" + row + "at least 0");
        require(a.top_p[i] > 0 && a.top_p[i] <= 1, "top_p" + row + "above 0 and at most 1");
        require(a.min_p[i] >= 0 && a.min_p[i] <= 1, "min_p" + row + "from 0 to 1");
        require(a.repetition_penalty[i] > 0, "repetition_penalty" + row + "above 0");
        require(std::isfinite(a.presence_penalty[i]), "presence_penalty" + row + "finite");
        require(std::isfinite(a.frequency_penalty[i]), "frequency_penalty" + row + "finite");
        require(a.num_prompt[i] >= 0, "num_prompt" + row + "at least 0");
        require(a.mask_index[i] >= -1 && a.mask_index[i] < num_masks, "mask_index" + row + "-1 or that of a mask");
    }
}

template <class T>
nb::object to_numpy(std::unique_ptr<T[]> data, std::initializer_list<size_t> shape) {
    T* pointer = data.release();
    nb::capsule owner(pointer, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(pointer, shape, owner));
}

nb::tuple call_sample(Logits logits, Vector<float> temperature, Vector<int32_t> top_k, Vector<float> top_p,
                      Vector<float> min_p, Vector<float> repetition_penalty, Vector<float> presence_penalty,
                      Vector<float> frequency_penalty, Vector<int64_t> seed, Vector<int32_t> sequence_index,
                      Vector<int32_t> position, Vector<int64_t> history_start, Vector<int32_t> history,
                      Vector<int32_t> num_prompt, Vector<int64_t> bias_start, Vector<int32_t> bias_ids,
                      Vector<float> bias_values, Vector<int64_t> banned_start, Vector<int32_t> banned_ids,
                      Vector<int32_t> mask_index, Masks masks, Vector<int32_t> num_logprobs, ThreadPool& pool,
                      const std::string& isa) {
    const size_t rows = logits.shape(0), vocab_size = logits.shape(1);
    require(vocab_size > 0 && vocab_size <= INT32_MAX, "logits must have at least one column");
    require(rows == 0 || logits.stride(1) == 1, "rows of logits must be contiguous");
    require(bias_ids.shape(0) == bias_values.shape(0), "bias_ids and bias_values must be equally long");
    SampleArgs args{};
    args.logits = logits.data();
    args.logits_stride = logits.stride(0);
    args.num_rows = int64_t(rows);
    args.vocab_size = int32_t(vocab_size);
    args.temperature = column("temperature", temperature, rows);
    args.top_k = column("top_k", top_k, rows);
    args.top_p = column("top_p", top_p, rows);
    args.min_p = column("min_p", min_p, rows);
    args.repetition_penalty = column("repetition_penalty", repetition_penalty, rows);
    args.presence_penalty = column("presence_penalty", presence_penalty, rows);
    args.frequency_penalty = column("frequency_penalty", frequency_penalty, rows);
    args.seed = column("seed", seed, rows);
    args.sequence_index = column("sequence_index", sequence_index, rows);
    args.position = column("position", position, rows);
    args.history_start = ranges("history_start", history_start, rows, history.shape(0));
    args.history = history.data();
    args.num_prompt = column("num_prompt", num_prompt, rows);
    args.bias_start = ranges("bias_start", bias_start, rows, bias_ids.shape(0));
    args.bias_ids = bias_ids.data();
    args.bias_values = bias_values.data();
    args.banned_start = ranges("banned_start", banned_start, rows, banned_ids.shape(0));
    args.banned_ids = banned_ids.data();
    args.mask_index = column("mask_index", mask_index, rows);
    args.masks = masks.data();
    args.mask_words = int64_t(masks.shape(1));
    args.num_logprobs = column("num_logprobs", num_logprobs, rows);
    check_rows(args, int64_t(masks.shape(0)));

    const int32_t wanted = rows ? *std::max_element(args.num_logprobs, args.num_logprobs + rows) : -1;
    const size_t num_top = std::min(size_t(std::max(wanted, 0)), vocab_size);
    std::unique_ptr<int32_t[]> token_ids(new int32_t[rows]), ranks, top_ids;
    std::unique_ptr<float[]> logprobs, top_logprobs;
    if (wanted >= 0) {
        logprobs.reset(new float[rows]);
        ranks.reset(new int32_t[rows]);
        top_ids.reset(new int32_t[rows * num_top]);
        top_logprobs.reset(new float[rows * num_top]);
    }
    const SampleResult result{token_ids.get(), logprobs.get(),     ranks.get(),
                              top_ids.get(),   top_logprobs.get(), int64_t(num_top)};
    const Kernels& kernels = kernels_for(isa);
    {
        nb::gil_scoped_release release;
        sample(args, result, kernels, pool);
    }
    nb::object tokens = to_numpy(std::move(token_ids), {rows});
    if (wanted < 0) return nb::make_tuple(tokens, nb::none(), nb::none(), nb::none(), nb::none());
    return nb::make_tuple(tokens, to_numpy(std::move(logprobs), {rows}), to_numpy(std::move(ranks), {rows}),
                          to_numpy(std::move(top_ids), {rows, num_top}),
                          to_numpy(std::move(top_logprobs), {rows, num_top}));
}

}  // namespace

void bind_sample(nb::module_& m) {
    m.def("sample", &call_sample, nb::arg("logits").noconvert(), nb::arg("temperature").noconvert(),
          nb::arg("top_k").noconvert(), nb::arg("top_p").noconvert(), nb::arg("min_p").noconvert(),
          nb::arg("repetition_penalty").noconvert(), nb::arg("presence_penalty").noconvert(),
          nb::arg("frequency_penalty").noconvert(), nb::arg("seed").noconvert(), nb::arg("sequence_index").noconvert(),
          nb::arg("position").noconvert(), nb::arg("history_start").noconvert(), nb::arg("history").noconvert(),
          nb::arg("num_prompt").noconvert(), nb::arg("bias_start").noconvert(), nb::arg("bias_ids").noconvert(),
          nb::arg("bias_values").noconvert(), nb::arg("banned_start").noconvert(), nb::arg("banned_ids").noconvert(),
          nb::arg("mask_index").noconvert(), nb::arg("masks").noconvert(), nb::arg("num_logprobs").noconvert(),
          nb::arg("pool"), nb::arg("isa"),
          "One token per row of logits, as backends/protocol.py Backend.sample. Takes the fields of SampleBatch in\n"
          "order and returns those of SampleOutput; logits are not changed. Ids outside the vocabulary are ignored in\n"
          "history, bias and bans. Rows that failed or did not ask have logprob -inf and rank 0. Raises ValueError.");
    m.def("uniform", &uniform, nb::arg("seed"), nb::arg("sequence_index"), nb::arg("position"),
          "The noise of one token; equal to backends/protocol.py uniform.");
}

}  // namespace octavo
