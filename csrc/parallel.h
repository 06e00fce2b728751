// Octavo's own small thread pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace octavo {

// Threads that the CPU affinity and the quotas of the cgroup and those above it allow, at least 1.
int usable_cpus(const std::string& cgroup_root = "/sys/fs/cgroup",
                const std::string& memberships = "/proc/self/cgroup");

// A fixed set of threads that run one loop at a time. The calling thread is thread 0 and works too.
// Workers stay awake between the loops of a step and sleep as soon as it is over, so an idle engine takes no CPU. After
// a loop outside steps they wait some tens of microseconds for another.
class ThreadPool {
  public:
    // 0 threads: usable_cpus(). Throws std::runtime_error when the system does not grant them.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const;

    // Calls body(context, tile, thread) once for each tile in [0, count), which must be below 2^32. Each thread begins
    // with neighbouring tiles of its own and goes on with others', so a thread that is descheduled delays only the tile
    // it holds. Returns when all are done. While another loop runs,
    // on the same pool but called from elsewhere, the caller runs all its tiles itself. The body must not throw. A
    // plain function pointer, not a template: see simd.h.
    using Body = void (*)(void* context, int64_t tile, int thread);
    void parallel_for(int64_t count, Body body, void* context);

    // The same where tiles are unequal: share s begins where the one before ends, at `ends[s]`; the last at count.
    static constexpr int kMaxShares = 16;
    int num_shares() const;  // one for each thread, but in large pools kMaxShares in all
    void parallel_for(const int64_t* ends, Body body, void* context);

    // Between these the next loop is expected within microseconds. Steps may overlap.
    void begin_step();
    void end_step();

    // Ends the workers, when the loop that runs is done; later loops run on the calling thread alone. `size` stays.
    void stop();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// A step of `pool`, as long as it lives.
class ThreadPoolStep {
  public:
    explicit ThreadPoolStep(ThreadPool& pool) : pool_(pool) { pool_.begin_step(); }
    ~ThreadPoolStep() { pool_.end_step(); }
    ThreadPoolStep(const ThreadPoolStep&) = delete;
    ThreadPoolStep& operator=(const ThreadPoolStep&) = delete;

  private:
    ThreadPool& pool_;
};

}  // namespace octavo
