// Products with weights in groups: one loop for each format that WeightFormat::is_known.
#include "gemm_groups.h"

namespace octavo::OCTAVO_ISA {

namespace {

// run(GroupWeights<...>{}), of such a format.
template <class Run>
void with_int4(const WeightFormat& f, const Run& run) {
    if (f.group == 16)
        return f.minimum ? run(GroupWeights<4, 16, true, false>{}) : run(GroupWeights<4, 16, false, false>{});
    if (!f.minimum)
        return f.half_scales ? run(GroupWeights<4, 32, false, true>{}) : run(GroupWeights<4, 32, false, false>{});
    return f.half_scales ? run(GroupWeights<4, 32, true, true>{}) : run(GroupWeights<4, 32, true, false>{});
}

template <class Run>
void with_int8(const WeightFormat& f, const Run& run) {
    if (f.group == 16) return run(GroupWeights<8, 16, false, false>{});
    if (!f.minimum)
        return f.half_scales ? run(GroupWeights<8, 32, false, true>{}) : run(GroupWeights<8, 32, false, false>{});
    return f.half_scales ? run(GroupWeights<8, 32, true, true>{}) : run(GroupWeights<8, 32, true, false>{});
}

}  // namespace

void linear_groups(const LinearArgs& args, const uint8_t* rows, ThreadPool& pool) {
    const int64_t stride = quantised_row_bytes(args.k, args.format);
    const auto run = [&](auto format) { run_linear<decltype(format)>(args, rows, stride, pool); };
    args.format.kind == WeightFormat::Kind::kInt4 ? with_int4(args.format, run) : with_int8(args.format, run);
}

void multiply_row_int8(const LinearArgs& args, const uint8_t* row, int64_t panel, float* out) {
    with_int8(args.format, [&](auto format) { multiply_row_by<decltype(format)>(args, row, panel, out); });
}

}  // namespace octavo::OCTAVO_ISA
