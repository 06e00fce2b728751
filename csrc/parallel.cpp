#include "parallel.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <limits>
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

// A caller that has yielded for this long sleeps. Tiles of large products take a good part of it, so that sleeping is
// rare; a scheduler's time slice is longer, and a holder that waits behind another process can move to a core that
// falls idle, but not to one that is kept busy with yielding.
constexpr std::chrono::milliseconds kYielding{1};

// The lower half of a ticket that offers no tile, whatever the count.
constexpr uint64_t kClosed = 0xffffffffu;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double ratio(double limit, double period) { return limit > 0 && period > 0 ? limit / period : kNoLimit; }

// CPUs' worth of time that one cgroup allows itself: "150000 100000", or "max 100000", which has no number in front.
double quota_v2(const std::string& folder) {
    double limit = 0, period = 0;
    std::ifstream file(folder + "/cpu.max");
    return file >> limit >> period ? ratio(limit, period) : kNoLimit;
}

double quota_v1(const std::string& folder) {
    double limit = 0, period = 0;
    std::ifstream limit_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
    return limit_file >> limit && period_file >> period ? ratio(limit, period) : kNoLimit;
}

// The least quota from the cgroup `path` up to the top of the hierarchy mounted at `mount`.
double least_quota(double (*quota)(const std::string&), const std::string& mount, std::string path) {
    double least = quota(mount);
    for (; path.size() > 1 && path[0] == '/'; path.erase(path.rfind('/'))) least = std::min(least, quota(mount + path));
    return least;
}

bool names_cpu(const std::string& controllers) { return ("," + controllers + ",").find(",cpu,") != std::string::npos; }

// What this process's cgroup and all above it allow. `memberships` has lines "id:controllers:/path", without
// controllers for version 2. In a container the path may be that of the host and name nothing here: the tops of the
// hierarchies count in any case.
double cgroup_quota(const std::string& root, const std::string& memberships) {
    double least = std::min(quota_v2(root), quota_v1(root + "/cpu"));
    std::ifstream file(memberships);
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
        if (controllers.empty())
            for (const char* mount : {"", "/unified"})
                least = std::min(least, least_quota(quota_v2, root + mount, path));
        else if (names_cpu(controllers))
            for (const std::string& mount : {std::string("cpu"), controllers})
                least = std::min(least, least_quota(quota_v1, root + "/" + mount, path));
    }
    return least;
}

}  // namespace

int usable_cpus(const std::string& cgroup_root, const std::string& memberships) {
    cpu_set_t set;
    int count =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(std::thread::hardware_concurrency());
    const double quota = cgroup_quota(cgroup_root, memberships);
    if (quota < count) count = int(quota + 0.5);
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

    alignas(64) std::atomic<int> sleeping{0};  // in cache lines apart from what the caller writes
    std::atomic<bool> stop{false};
    std::atomic<bool> caller_sleeps{false};
    std::mutex mutex;
    std::condition_variable wake;
    std::condition_variable finished;
    alignas(64) std::mutex callers;  // held by whoever runs a loop on the workers, or ends them
    std::vector<std::thread> workers;
    int size = 1;
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
            // Sequentially consistent, as in wait(): either the caller sees that all is done or this sees it asleep.
            if (done.fetch_add(1, std::memory_order_seq_cst) + 1 == tiles && caller_sleeps.load()) {
                std::lock_guard<std::mutex> lock(mutex);
                finished.notify_one();
            }
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

    // Until the other threads have finished the tiles they hold.
    void wait(int64_t tiles) {
        const auto all_done = [&] { return done.load(std::memory_order_seq_cst) >= tiles; };
        for (int spins = 0; spins < kSpins; ++spins, relax())
            if (all_done()) return;
        const auto limit = std::chrono::steady_clock::now() + kYielding;
        for (; std::chrono::steady_clock::now() < limit; std::this_thread::yield())
            if (all_done()) return;
        std::unique_lock<std::mutex> lock(mutex);
        caller_sleeps.store(true);
        finished.wait(lock, all_done);
        caller_sleeps.store(false);
    }

    void end() {
        stop.store(true, std::memory_order_seq_cst);
        wake_all();
        for (std::thread& worker : workers) worker.join();
        workers.clear();
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
    state_->size = size;
}

void ThreadPool::stop() {
    if (getpid() != state_->owner) return;
    std::lock_guard<std::mutex> lock(state_->callers);
    state_->end();
}

ThreadPool::~ThreadPool() {
    if (getpid() == state_->owner)
        state_->end();
    else
        (void)state_.release();  // a forked child has none of the threads, and nobody to wait for
}

int ThreadPool::size() const { return state_->size; }

void ThreadPool::parallel_for(int64_t count, Body body, void* context) {
    if (count <= 0) return;
    State& s = *state_;
    std::unique_lock<std::mutex> mine(s.callers, std::defer_lock);
    if (count == 1 || !mine.try_lock() || s.workers.empty()) {
        for (int64_t tile = 0; tile < count; ++tile) body(context, tile, 0);
        return;
    }
    s.ticket.store(uint64_t{s.loop} << 32 | kClosed, std::memory_order_seq_cst);
    s.done.store(0, std::memory_order_relaxed);
    s.body.store(body, std::memory_order_release);
    s.context.store(context, std::memory_order_release);
    s.count.store(count, std::memory_order_release);
    s.ticket.store(uint64_t{++s.loop} << 32, std::memory_order_seq_cst);
    if (s.sleeping.load(std::memory_order_seq_cst) > 0) s.wake_all();
    s.work(0);
    s.wait(count);
}

}  // namespace octavo
