#include "sketch.h"

#include <algorithm>
#include <cmath>

namespace octavo {
namespace {

constexpr int64_t kMeanOf = 1024;  // rows of the head, at most
constexpr int64_t kParts = 32;     // steps in which a sketch is made
constexpr int kRefinements = 8;
// Of the panels, that it leaves to compute in the mean: so few take less than learning again would save.
constexpr int64_t kFewLeft = 16;

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

// a - factor * b.
void subtract(Vector& a, double factor, const Vector& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] -= factor * b[i];
}

// Makes it one long; what is next to nothing, or not finite, becomes nothing.
void normalise(Vector& a) {
    const double size = std::sqrt(dot(a, a));
    const bool something = size > 1e-12 && size < 1e30;
    for (double& element : a) element = something ? element / size : 0.0;
}

void orthogonalise(std::vector<Vector>& vectors) {
    for (size_t i = 0; i < vectors.size(); ++i) {
        for (size_t j = 0; j < i; ++j) subtract(vectors[i], dot(vectors[i], vectors[j]), vectors[j]);
        normalise(vectors[i]);
    }
}

// The `count` vectors that have most of the rows in them: of the products of rows with each other the first vectors by
// orthogonal iteration, as weights of the rows.
std::vector<Vector> principal(const std::vector<Vector>& rows, size_t count) {
    const size_t n = rows.size();
    std::vector<Vector> gram(n, Vector(n));
    for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j <= i; ++j) gram[i][j] = gram[j][i] = dot(rows[i], rows[j]);
    std::vector<Vector> weights(count, Vector(n));
    for (size_t i = 0; i < count; ++i) weights[i][i % n] = 1;
    for (int turn = 0; turn < kRefinements; ++turn) {
        for (Vector& weight : weights) {
            Vector next(n);
            for (size_t i = 0; i < n; ++i) next[i] = dot(gram[i], weight);
            weight = next;
        }
        orthogonalise(weights);
    }
    std::vector<Vector> found;
    for (const Vector& weight : weights) {
        Vector direction(rows[0].size());
        for (size_t i = 0; i < n; ++i) subtract(direction, -weight[i], rows[i]);
        normalise(direction);
        found.push_back(direction);
    }
    return found;
}

// Householder's: what turns each vector, as those before have left it, to its own axis.
std::vector<float> reflectors_of(std::vector<Vector> vectors) {
    const size_t k = vectors[0].size();
    std::vector<float> reflectors(vectors.size() * k);
    for (size_t j = 0; j < vectors.size(); ++j) {
        Vector v = vectors[j];
        std::fill(v.begin(), v.begin() + int64_t(j), 0.0);
        const double size = std::sqrt(dot(v, v));
        if (size < 1e-12) continue;
        v[j] += v[j] < 0 ? -size : size;
        const double factor = std::sqrt(2 / dot(v, v));
        for (double& element : v) element *= factor;
        for (size_t i = j + 1; i < vectors.size(); ++i) subtract(vectors[i], dot(vectors[i], v), v);
        for (size_t i = 0; i < k; ++i) reflectors[j * k + i] = float(v[i]);
    }
    return reflectors;
}

// Of rows of a head, evenly spread.
Vector mean_row(const Matrix& head, ThreadPool& pool) {
    const int64_t count = std::min(kMeanOf, head.n);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(int32_t(i * head.n / count));
    std::vector<float> rows(size_t(count * head.k));
    head.kernels->embedding({head.memory.data, head.format, head.k, ids.data(), rows.data(), int(count)}, pool);
    Vector mean(size_t(head.k));
    for (size_t i = 0; i < rows.size(); ++i) mean[i % size_t(head.k)] += double(rows[i]) / double(count);
    for (double& element : mean) element = std::isfinite(element) ? element : 0;
    return mean;
}

}  // namespace

std::vector<float> learn_reflectors(const Vector& common, const float* rows, int64_t num_rows, int64_t k) {
    std::vector<Vector> vectors{common};
    normalise(vectors[0]);
    std::vector<Vector> left;
    for (int64_t i = 0; i < num_rows; ++i) {
        left.emplace_back(rows + i * k, rows + (i + 1) * k);
        normalise(left.back());
        subtract(left.back(), dot(left.back(), vectors[0]), vectors[0]);
    }
    for (Vector& direction : principal(left, size_t(num_directions(k)))) vectors.push_back(direction);
    return reflectors_of(vectors);
}

Sketch::Sketch(const Matrix& head, Arena& arena, ThreadPool& pool)
    : head_(&head), common_(mean_row(head, pool)), sample_(head.k) {
    memory_ = arena.take(head.kernels->sketch_bytes(head.n, head.k));
    const int64_t columns = head.kernels->panel_columns(head.format);
    num_panels_ = (head.n + columns - 1) / columns;
}

bool Sketch::fits(const WeightFormat& format, int64_t k) {
    return format.kind == WeightFormat::Kind::kInt8 && k >= kLeastSketched && k <= kMaxScreened;
}

size_t Sketch::bytes(const Matrix& head) {
    return head.kernels->sketch_bytes(head.n, head.k) +
           size_t(SampledRows::kRows + 1 + num_directions(head.k)) * size_t(head.k) * sizeof(float);
}

void Sketch::see(const LinearArgs& product, ThreadPool& pool) {
    head_->kernels->head_input(product, sample_.place(), pool);
    if (!sample_.next()) return;
    reflectors_ = learn_reflectors(common_, sample_.data(), SampledRows::kRows, head_->k);
    sample_.forget();
    buffer_ = Memory(head_->kernels->make_sketch_buffer_bytes(head_->k, pool.size()));
    num_made_ = 0;
    state_ = State::kMaking;
}

void Sketch::make_some(ThreadPool& pool) {
    const int64_t count = std::min((num_panels_ + kParts - 1) / kParts, num_panels_ - num_made_);
    const bool good =
        head_->kernels->make_sketch({head_->memory.data, head_->format, head_->n, head_->k, reflectors_.data(),
                                     num_made_, count, memory_.data, buffer_.as<float>()},
                                    pool);
    num_made_ += count;
    if (!good)
        state_ = State::kBroken;
    else if (num_made_ == num_panels_)
        state_ = State::kMade;
    if (state_ != State::kMaking) buffer_ = Memory();
}

void Sketch::review(int64_t num_rows, int64_t num_left) {
    num_asked_ += num_rows, num_left_ += num_left;
    if (num_left_ < patience_ * num_panels_) return;
    if (num_left_ * kFewLeft > num_asked_ * num_panels_) {
        patience_ *= 2;  // it may be that nothing can be learned from these rows
        state_ = State::kSeeing;
    }
    num_asked_ = num_left_ = 0;
}

Found Sketch::greedy(GreedyArgs args, ThreadPool& pool) {
    const std::lock_guard<std::mutex> lock(asking_);
    if (state_ == State::kBroken || args.product.num_tokens > kMostRows) return Found::kNotAsked;
    if (state_ == State::kSeeing) return see(args.product, pool), Found::kNotAsked;
    if (state_ == State::kMaking) return make_some(pool), Found::kNotAsked;
    args.screen = memory_.data, args.reflectors = reflectors_.data();
    const bool found = head_->kernels->sketched_greedy(args, pool);
    review(args.product.num_tokens, args.num_left);
    return found ? Found::kAll : Found::kTooMuch;
}

}  // namespace octavo
