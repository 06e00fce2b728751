#include "parallel.h"

#include <pthread.h>
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

// A worker that has found no loop for about this many pauses (tens of microseconds) goes to sleep, or within a step
// lets others have the core between its looks; so does a caller that waits this long for a tile.
constexpr int kSpins = 2000;

// A caller that has yielded for this long sleeps. Tiles of large products take a good part of it, so that sleeping is
// rare; a scheduler's time slice is longer, and a holder that waits behind another process can move to a core that
// falls idle, but not to one that is kept busy with yielding.
constexpr std::chrono::milliseconds kYielding{1};

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
    if (quota < count) count = int(quota);  // one more, and the quota would stop all of them in the middle of steps
    return std::max(1, count);
}

// The tiles of a loop are dealt out in shares, neighbours together: each thread takes its own share's tiles in order,
// which costs it next to nothing, as the share is in a cache line of its own; whoever has none left takes others'. So
// a thread that comes late, or sleeps through a loop, costs nobody anything, and the caller waits for tiles, not for
// threads.
//
// A share is one 64-bit number, the next tile in the lower half and the end in the upper, with the loop's fields
// beside it. Counting it up by compare-and-swap claims a tile: until that tile is done the loop is not, and the fields
// stay what they are. A thread that wakes up late may compare with a number from an earlier loop; if it is the same
// number, the tile is free all the same, and the fields are read after the claim.
struct alignas(64) Share {
    std::atomic<uint64_t> tiles{0};
    std::atomic<ThreadPool::Body> body{nullptr};
    std::atomic<void*> context{nullptr};

    static bool any(uint64_t tiles) { return uint32_t(tiles) < uint32_t(tiles >> 32); }

    void fill(int64_t begin, int64_t end, ThreadPool::Body run, void* with) {
        body.store(run, std::memory_order_relaxed);
        context.store(with, std::memory_order_relaxed);
        tiles.store(uint64_t(end) << 32 | uint64_t(begin), std::memory_order_seq_cst);
    }

    // Runs tiles until there are none; how many it were.
    int64_t run(int thread) {
        int64_t count = 0;
        for (uint64_t seen = tiles.load(std::memory_order_acquire); any(seen);) {
            if (!tiles.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
            body.load(std::memory_order_relaxed)(context.load(std::memory_order_relaxed), uint32_t(seen), thread);
            ++count;
            ++seen;
        }
        return count;
    }
};

struct ThreadPool::State {
    Share shares[kMaxShares];                       // the caller fills them one by one
    alignas(64) std::atomic<int64_t> remaining{0};  // tiles of the loop that are not done

    alignas(64) std::atomic<int> sleeping{0};  // in cache lines apart from what the caller writes
    std::atomic<int> steps{0};
    std::atomic<bool> stop{false};
    std::atomic<bool> caller_sleeps{false};
    std::mutex mutex;
    std::condition_variable wake;
    std::condition_variable finished;
    alignas(64) std::mutex callers;  // held by whoever runs a loop on the workers, or ends them
    std::vector<std::thread> workers;
    int size = 1;
    int num_shares = 1;
    const pid_t owner = getpid();

    void publish(const int64_t* ends, Body body, void* context) {
        remaining.store(ends[num_shares - 1], std::memory_order_relaxed);
        for (int s = 0; s < num_shares; ++s) shares[s].fill(s > 0 ? ends[s - 1] : 0, ends[s], body, context);
        if (sleeping.load(std::memory_order_seq_cst) > 0) wake_all();
    }

    void work(int thread) {
        for (int i = 0; i < num_shares; ++i) {
            const int64_t count = shares[(thread + i) % num_shares].run(thread);
            if (count == 0) continue;
            // Sequentially consistent, as in wait(): either the caller sees that all is done or this sees it asleep.
            if (remaining.fetch_sub(count, std::memory_order_seq_cst) == count && caller_sleeps.load()) {
                std::lock_guard<std::mutex> lock(mutex);
                finished.notify_one();
            }
        }
    }

    void run_worker(int thread) {
        pthread_setname_np(pthread_self(), "octavo-pool");  // for top -H, and whoever counts
        const Share& own = shares[thread % num_shares];
        while (!stop.load(std::memory_order_acquire)) {
            if (has_work(own))
                work(thread);
            else if (!spin(own))
                sleep(own);
        }
    }

    bool has_work(const Share& own) const { return Share::any(own.tiles.load(std::memory_order_seq_cst)); }
    bool in_step() const { return steps.load(std::memory_order_seq_cst) > 0; }

    // Until there is work; false: it is time to sleep, which is at once when a step ends.
    bool spin(const Share& own) const {
        bool in_step_before = false;
        for (int i = 0;; ++i) {
            if (has_work(own) || stop.load(std::memory_order_acquire)) return true;
            const bool in_step_now = in_step();
            if (!in_step_now && (in_step_before || i >= kSpins)) return false;
            in_step_before = in_step_now;
            if (i < kSpins)
                relax();
            else
                std::this_thread::yield();
        }
    }

    // `sleeping` is raised before the share is looked at once more, and the caller looks at it after it has filled the
    // share (all sequentially consistent): one of the two sees the other. In the same way with a step that begins.
    void sleep(const Share& own) {
        std::unique_lock<std::mutex> lock(mutex);
        sleeping.fetch_add(1, std::memory_order_seq_cst);
        wake.wait(lock, [&] { return has_work(own) || in_step() || stop.load(std::memory_order_acquire); });
        sleeping.fetch_sub(1, std::memory_order_seq_cst);
    }

    // A forked child has no workers to wake, and the mutex may be held by one that it does not have.
    void wake_all() {
        if (getpid() != owner) return;
        std::lock_guard<std::mutex> lock(mutex);
        wake.notify_all();
    }

    // Until the other threads have finished the tiles they hold.
    void wait() {
        const auto all_done = [&] { return remaining.load(std::memory_order_seq_cst) == 0; };
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
    state_->num_shares = std::min(size, kMaxShares);
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

void ThreadPool::begin_step() {
    state_->steps.fetch_add(1, std::memory_order_seq_cst);
    if (state_->sleeping.load(std::memory_order_seq_cst) > 0) state_->wake_all();
}

void ThreadPool::end_step() { state_->steps.fetch_sub(1, std::memory_order_seq_cst); }

int ThreadPool::size() const { return state_->size; }

int ThreadPool::num_shares() const { return state_->num_shares; }

void ThreadPool::parallel_for(int64_t count, Body body, void* context) {
    int64_t ends[kMaxShares];
    const int64_t shares = state_->num_shares, used = std::min(shares, count);
    for (int64_t s = 0; s < shares; ++s) ends[s] = s < used ? count * (s + 1) / used : count;
    parallel_for(ends, body, context);
}

void ThreadPool::parallel_for(const int64_t* ends, Body body, void* context) {
    State& s = *state_;
    const int64_t count = ends[s.num_shares - 1];
    if (count <= 0) return;
    std::unique_lock<std::mutex> mine(s.callers, std::defer_lock);
    if (count == 1 || !mine.try_lock() || s.workers.empty()) {
        for (int64_t tile = 0; tile < count; ++tile) body(context, tile, 0);
        return;
    }
    s.publish(ends, body, context);
    s.work(0);
    s.wait();
}

}  // namespace octavo
