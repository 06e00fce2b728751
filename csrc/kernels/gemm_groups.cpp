// Products with weights in groups: one loop for each format that WeightFormat::is_known.
#include "gemm_groups.h"

namespace octavo::OCTAVO_ISA {

void linear_groups(const LinearArgs& args, const uint8_t* rows, ThreadPool& pool) {
    const WeightFormat& f = args.format;
    const int64_t stride = quantised_row_bytes(args.k, f);
    const auto run = [&](auto format) { run_linear<decltype(format)>(args, rows, stride, pool); };
    if (f.kind == WeightFormat::Kind::kInt4) {
        if (f.group == 16)
            return f.minimum ? run(GroupWeights<4, 16, true, false>{}) : run(GroupWeights<4, 16, false, false>{});
        if (!f.minimum)
            return f.half_scales ? run(GroupWeights<4, 32, false, true>{}) : run(GroupWeights<4, 32, false, false>{});
        return f.half_scales ? run(GroupWeights<4, 32, true, true>{}) : run(GroupWeights<4, 32, true, false>{});
    }
    if (f.group == 16) return run(GroupWeights<8, 16, false, false>{});
    if (!f.minimum)
        return f.half_scales ? run(GroupWeights<8, 32, false, true>{}) : run(GroupWeights<8, 32, false, false>{});
    return f.half_scales ? run(GroupWeights<8, 32, true, true>{}) : run(GroupWeights<8, 32, true, false>{});
}

}  // namespace octavo::OCTAVO_ISA
