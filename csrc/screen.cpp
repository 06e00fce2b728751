#include "screen.h"

#include "refuse.h"

namespace octavo {

Screen::Screen(const Matrix& head, Arena& arena, ThreadPool& pool) : head(&head) {
    if (!fits(head.format, head.k))
        refuse("head", "is in groups of 4 bits, or has more than 65536 columns, or in groups of 8 bits less than 16");
    if (head.format.in_groups()) {
        sketch_ = std::make_unique<Sketch>(head, arena, pool);
        return;
    }
    memory_ = arena.take(bytes(head));
    const Memory buffer(head.kernels->make_screen_buffer_bytes(head.k, pool.size()));
    usable = head.kernels->make_screen(
        {head.memory.data, head.format, head.n, head.k, memory_.data, buffer.as<float>()}, pool);
}

size_t Screen::bytes(const Matrix& head) {
    return head.format.in_groups() ? Sketch::bytes(head) : head.kernels->screen_bytes(head.n, head.k);
}

size_t Screen::scratch_bytes(int64_t max_num_rows) const {
    return sketch_ ? sketch_->scratch_bytes() : head->kernels->greedy_scratch_bytes(head->k) * size_t(max_num_rows);
}

Found Screen::greedy(GreedyArgs args, ThreadPool& pool) const {
    if (args.product.num_tokens == 0) return Found::kAll;
    Found found;
    if (sketch_) {
        found = sketch_->greedy(args, pool);
    } else {
        args.screen = memory_.data;
        found = head->kernels->greedy(args, pool) ? Found::kAll : Found::kTooMuch;
    }
    if (found == Found::kAll) ++num_found_;
    return found;
}

}  // namespace octavo
