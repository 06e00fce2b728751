// Computes the panels of a product in the order of what their products could be, until none left can be the largest.
#include "choose.h"

namespace octavo::OCTAVO_ISA {
namespace {

struct Job {
    const ChooseArgs* args;
    int64_t num_panels;
    int64_t columns;  // of a panel
    int slices;       // of each row's panels
};

// Where the largest number of [begin, end) is first.
int64_t first_largest(const float* x, int64_t begin, int64_t end) {
    VF top = VF::set1(-INFINITY);
    const int64_t whole = begin + (end - begin) / VF::W * VF::W;
    for (int64_t i = begin; i < whole; i += VF::W) top = max(top, VF::load(x + i));
    float largest = lanes_max(top);
    for (int64_t i = whole; i < end; ++i) largest = x[i] > largest ? x[i] : largest;
    int64_t at = begin;
    while (at + 1 < end && x[at] != largest) ++at;
    return at;
}

int64_t count_from(const float* x, int64_t count, float least) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) found += x[i] >= least;
    return found;
}

// Lowers the panel's bound so that it is not computed again, and raises `best` to what is in it.
void compute_panel(const Job& job, int64_t row, int64_t panel, float& best, int32_t& token) {
    const LinearArgs& product = *job.args->product;
    product.out[row * product.out_stride + panel] = -INFINITY;
    float products[kMostPanelColumns];
    multiply_row(product, job.args->exact.row(row), panel, products);
    const int64_t first = panel * job.columns, rest = product.n - first;
    for (int64_t c = 0; c < job.columns && c < rest; ++c) {
        const int32_t id = int32_t(first + c);
        if (products[c] > best || (products[c] == best && id < token)) best = products[c], token = id;
    }
}

// The panel that could have the largest, which mostly has; after it, how many others could.
void begin_row(void* context, int64_t row, int) {
    const Job& job = *static_cast<const Job*>(context);
    int32_t& token = job.args->token_ids[row];
    Choice& choice = job.args->choices[row];
    choice.num_left = 0;
    if (token == kUndecided) return;
    const float* bounds = job.args->product->out + row * job.args->product->out_stride;
    float best = -INFINITY;
    compute_panel(job, row, first_largest(bounds, 0, job.num_panels), best, token);
    for (int s = 0; s < job.slices; ++s) choice.best[s] = best, choice.token[s] = token;
    choice.num_left = count_from(bounds, job.num_panels, best);
    if (choice.num_left > job.args->most_panels) token = kUndecided;
}

void search_slice(void* context, int64_t index, int) {
    const Job& job = *static_cast<const Job*>(context);
    const int64_t row = index / job.slices, slice = index % job.slices;
    const int64_t begin = job.num_panels * slice / job.slices, end = job.num_panels * (slice + 1) / job.slices;
    const float* bounds = job.args->product->out + row * job.args->product->out_stride;
    Choice& choice = job.args->choices[row];
    float best = choice.best[slice];
    int32_t token = choice.token[slice];
    if (begin < end)
        for (int64_t at = first_largest(bounds, begin, end); bounds[at] >= best; at = first_largest(bounds, begin, end))
            compute_panel(job, row, at, best, token);
    choice.best[slice] = best, choice.token[slice] = token;
}

}  // namespace

bool choose_tokens(const ChooseArgs& args, int64_t* num_left, ThreadPool& pool) {
    const int64_t count = args.product->num_tokens;
    Job job{&args};
    job.columns = panel_columns(args.product->format);
    job.num_panels = (args.product->n + job.columns - 1) / job.columns;
    const int64_t threads = pool.size() < Choice::kMostThreads ? pool.size() : Choice::kMostThreads;
    job.slices = int((threads + count - 1) / count);
    pool.parallel_for(count, begin_row, &job);
    bool decided = true;
    *num_left = 0;
    for (int64_t row = 0; row < count; ++row) {
        *num_left += args.choices[row].num_left;
        decided &= args.token_ids[row] != kUndecided;
    }
    if (!decided) return false;
    pool.parallel_for(count * job.slices, search_slice, &job);
    for (int64_t row = 0; row < count; ++row) {
        const Choice& choice = args.choices[row];
        float best = choice.best[0];
        int32_t token = choice.token[0];
        for (int s = 1; s < job.slices; ++s)
            if (choice.best[s] > best || (choice.best[s] == best && choice.token[s] < token))
                best = choice.best[s], token = choice.token[s];
        args.token_ids[row] = token;
    }
    return true;
}

}  // namespace octavo::OCTAVO_ISA
