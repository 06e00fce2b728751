#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace octavo {

// First version: correct, with threads started for every loop.
struct ThreadPool::State {
    int size;
};

ThreadPool::ThreadPool(int num_threads)
    : state_(new State{num_threads > 0 ? num_threads : std::max(1, int(std::thread::hardware_concurrency()))}) {}

ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const { return state_->size; }

void ThreadPool::parallel_for(int64_t count, Body body, void* context) {
    std::atomic<int64_t> next{0};
    const auto work = [&](int thread) {
        for (int64_t tile; (tile = next.fetch_add(1)) < count;) body(context, tile, thread);
    };
    std::vector<std::thread> helpers;
    for (int thread = 1; thread < std::min<int64_t>(state_->size, count); ++thread) helpers.emplace_back(work, thread);
    work(0);
    for (std::thread& helper : helpers) helper.join();
}

}  // namespace octavo
