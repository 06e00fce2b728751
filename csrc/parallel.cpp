#include "parallel.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#ifdef OCTAVO_X86
#include <immintrin.h>
#endif

namespace octavo {
namespace {

void relax() {
#ifdef OCTAVO_X86
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// A worker that has found no loop for about this many pauses (tens of microseconds) goes to sleep; a caller that
// waits this long for a tile lets the thread holding it have the core.
constexpr int kSpins = 2000;

// The lower half of a ticket that offers no tile, whatever the count.
constexpr uint64_t kClosed = 0xffffffffu;

// CPUs' worth of time that the cgroup (v2, else v1) mounted at `root` allows; 0 without a limit.
double cgroup_quota(const std::string& root) {
    double limit = 0, period = 0;
    std::ifstream v2(root + "/cpu.max");  // "max 100000" has no number in front
    if (v2.is_open()) return v2 >> limit >> period && limit > 0 && period > 0 ? limit / period : 0;
    std::ifstream v1_quota(root + "/cpu/cpu.cfs_quota_us");
    std::ifstream v1_period(root + "/cpu/cpu.cfs_period_us");
    return v1_quota >> limit && v1_period >> period && limit > 0 && period > 0 ? limit / period : 0;
}

}  // namespace

int usable_cpus(const std::string& cgroup_root) {
    cpu_set_t set;
    int count =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(std::thread::hardware_concurrency());
    const double quota = cgroup_quota(cgroup_root);
    if (quota > 0 && quota < count) count = int(quota + 0.5);
    return std::max(1, count);
}

// A loop is published by one 64-bit ticket: its number in the upper half, the next tile in the lower. A thread reads
// the ticket, then the loop's fields, then claims a tile by compare-and-swap on that ticket: success proves that the
// fields belong to that loop, since the caller closes the ticket before it changes a field (and whoever sees a new
// field, by acquire, also sees the closed ticket). So a thread that comes late, or sleeps through a loop, costs nobody
// anything, and the caller waits for tiles, not for threads.
struct ThreadPool::State {
    std::atomic<uint64_t> ticket{0};
    std::atomic<int64_t> count{0};
    std::atomic<Body> body{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<int64_t> done{0};

    std::atomic<int> sleeping{0};
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::condition_variable wake;
    std::vector<std::thread> workers;
    const pid_t owner = getpid();
    uint32_t loop = 0;  // number of the last loop; the caller's alone

    void work(int thread) {
        for (;;) {
            uint64_t seen = ticket.load(std::memory_order_acquire);
            const int64_t tiles = count.load(std::memory_order_acquire);
            const Body run = body.load(std::memory_order_acquire);
            void* const with = context.load(std::memory_order_acquire);
            const int64_t tile = int64_t(seen & 0xffffffffu);
            if (tile >= tiles) return;
            if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
            run(with, tile, thread);
            done.fetch_add(1, std::memory_order_release);
        }
    }

    void run_worker(int thread) {
        uint32_t last = 0;
        while (!stop.load(std::memory_order_acquire)) {
            const uint32_t current = uint32_t(ticket.load(std::memory_order_acquire) >> 32);
            if (current != last) {
                last = current;
                work(thread);
            } else if (!spin(last)) {
                sleep(last);
            }
        }
    }

    bool changed(uint32_t last) const {
        return uint32_t(ticket.load(std::memory_order_seq_cst) >> 32) != last || stop.load(std::memory_order_acquire);
    }

    bool spin(uint32_t last) const {
        for (int i = 0; i < kSpins; ++i) {
            if (changed(last)) return true;
            relax();
        }
        return false;
    }

    // `sleeping` is raised before the ticket is looked at once more, and the caller looks at it after it has changed
    // the ticket (all sequentially consistent): one of the two sees the other.
    void sleep(uint32_t last) {
        std::unique_lock<std::mutex> lock(mutex);
        sleeping.fetch_add(1, std::memory_order_seq_cst);
        wake.wait(lock, [&] { return changed(last); });
        sleeping.fetch_sub(1, std::memory_order_seq_cst);
    }

    // A forked child has no workers to wake, and the mutex may be held by one that it does not have.
    void wake_all() {
        if (getpid() != owner) return;
        std::lock_guard<std::mutex> lock(mutex);
        wake.notify_all();
    }

    void end() {
        stop.store(true, std::memory_order_seq_cst);
        wake_all();
        for (std::thread& worker : workers) worker.join();
    }
};

ThreadPool::ThreadPool(int num_threads) : state_(new State) {
    const int size = num_threads > 0 ? num_threads : usable_cpus();
    try {
        for (int thread = 1; thread < size; ++thread)
            state_->workers.emplace_back([state = state_.get(), thread] { state->run_worker(thread); });
    } catch (const std::system_error& error) {
        const size_t started = state_->workers.size() + 1;
        state_->end();
        throw std::runtime_error("num_threads = " + std::to_string(size) + ": the system grants only " +
                                 std::to_string(started) + " (" + error.what() + ")");
    }
}

ThreadPool::~ThreadPool() {
    if (getpid() == state_->owner)
        state_->end();
    else
        (void)state_.release();  // a forked child has none of the threads, and nobody to wait for
}

int ThreadPool::size() const { return int(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t count, Body body, void* context) {
    if (count <= 0) return;
    if (count == 1 || state_->workers.empty()) {
        for (int64_t tile = 0; tile < count; ++tile) body(context, tile, 0);
        return;
    }
    State& s = *state_;
    s.ticket.store(uint64_t{s.loop} << 32 | kClosed, std::memory_order_seq_cst);
    s.done.store(0, std::memory_order_relaxed);
    s.body.store(body, std::memory_order_release);
    s.context.store(context, std::memory_order_release);
    s.count.store(count, std::memory_order_release);
    s.ticket.store(uint64_t{++s.loop} << 32, std::memory_order_seq_cst);
    if (s.sleeping.load(std::memory_order_seq_cst) > 0) s.wake_all();
    s.work(0);
    for (int spins = 0; s.done.load(std::memory_order_acquire) < count; ++spins)
        spins < kSpins ? relax() : std::this_thread::yield();
}

}  // namespace octavo
