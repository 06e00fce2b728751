// The thread pool under a race detector: `make sanitize` compiles this with csrc/parallel.cpp and -fsanitize=thread.
//
// Every tile adds to plain, unsynchronised memory, so a tile that runs twice, runs late or is seen too early is a race
// as well as a wrong sum.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "parallel.h"

namespace {

using octavo::ThreadPool;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

struct Loop {
    std::vector<int64_t> runs;
    int64_t work = 0;
};

// A loop of `count` tiles; each must have run once, and all be visible, when it returns. The memory is fresh.
void run_loop(ThreadPool& pool, int64_t count, int64_t work = 0) {
    Loop loop{std::vector<int64_t>(size_t(count), 0), work};
    pool.parallel_for(
        count,
        [](void* context, int64_t tile, int thread) {
            Loop& l = *static_cast<Loop*>(context);
            volatile int64_t spent = 0;
            for (int64_t i = 0; i < l.work * (thread + 1); ++i) spent = spent + 1;
            l.runs[size_t(tile)] += tile + 1;
        },
        &loop);
    for (int64_t tile = 0; tile < count; ++tile) require(loop.runs[size_t(tile)] == tile + 1, "a tile ran once");
}

void many_short_loops(int threads) {
    ThreadPool pool(threads);
    require(pool.size() == threads, "the size is what was asked for");
    for (int i = 0; i < 20000; ++i) run_loop(pool, i % 7);
}

void uneven_loops(int threads) {
    ThreadPool pool(threads);
    for (int i = 0; i < 300; ++i) run_loop(pool, 1 + i * 3, i % 50);
}

void sleeping_workers(int threads) {
    ThreadPool pool(threads);
    for (int i = 0; i < 60; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(i % 2 ? 20 : 3000));
        run_loop(pool, 2 + i);
    }
}

void pools_made_and_destroyed(int threads) {
    for (int i = 0; i < 200; ++i) {
        ThreadPool pool(threads);
        if (i % 3) run_loop(pool, 5);
        if (i % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

// One after another, as an engine that is moved to another thread: the hand-over is the callers' business.
void callers_one_after_another(int threads) {
    ThreadPool pool(threads);
    for (int i = 0; i < 50; ++i)
        std::thread([&] {
            for (int j = 0; j < 20; ++j) run_loop(pool, 9);
        }).join();
}

void two_pools_at_once(int threads) {
    std::vector<std::thread> callers;
    for (int c = 0; c < 2; ++c)
        callers.emplace_back([=] {
            ThreadPool pool(threads);
            for (int i = 0; i < 500; ++i) run_loop(pool, 4);
        });
    for (std::thread& caller : callers) caller.join();
}

// Several callers of one pool, which loses its workers meanwhile: whoever comes later runs its loop alone.
void callers_at_once(int threads) {
    ThreadPool pool(threads);
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c)
        callers.emplace_back([&] {
            for (int i = 0; i < 2000; ++i) run_loop(pool, 1 + i % 9, i % 11);
        });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.stop();
    pool.stop();
    require(pool.size() == threads, "the size stays");
    for (std::thread& caller : callers) caller.join();
}

// Steps that workers sleep before, in which they wait longer than they spin, and that overlap.
void steps(int threads) {
    ThreadPool pool(threads);
    for (int i = 0; i < 40; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(i % 2 ? 10 : 2000));
        const octavo::ThreadPoolStep step(pool);
        for (int j = 0; j < 5; ++j) run_loop(pool, 1 + j * 7);
        if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::thread([&] {
            const octavo::ThreadPoolStep another(pool);
            run_loop(pool, 30);
        }).join();
        run_loop(pool, 40);
    }
}

// Long enough that the caller falls asleep over a tile that another thread holds.
void tiles_that_take_long(int threads) {
    ThreadPool pool(threads);
    for (int i = 0; i < 30; ++i) {
        std::vector<int64_t> runs(4, 0);
        pool.parallel_for(
            4,
            [](void* context, int64_t tile, int thread) {
                if (thread > 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
                (*static_cast<std::vector<int64_t>*>(context))[size_t(tile)] += tile + 1;
            },
            &runs);
        for (int64_t tile = 0; tile < 4; ++tile) require(runs[size_t(tile)] == tile + 1, "a long tile ran once");
    }
}

}  // namespace

int main() {
    for (int threads : {1, 2, 3, 5}) {
        many_short_loops(threads);
        uneven_loops(threads);
        sleeping_workers(threads);
        pools_made_and_destroyed(threads);
        callers_one_after_another(threads);
        two_pools_at_once(threads);
        callers_at_once(threads);
        tiles_that_take_long(threads);
        steps(threads);
        std::printf("%d threads: every tile ran once\n", threads);
    }
}
