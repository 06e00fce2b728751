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
// Workers spin briefly between the loops of a step, where the next loop comes within microseconds, and sleep when a
// step is over, so an idle engine takes no CPU.
class ThreadPool {
  public:
    // 0 threads: usable_cpus(). Throws std::runtime_error when the system does not grant them.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const;

    // Calls body(context, tile, thread) once for each tile in [0, count); tiles are taken from an atomic counter, so
    // a thread that is descheduled delays only the tile it holds. Returns when all are done. While another loop runs,
    // on the same pool but called from elsewhere, the caller runs all its tiles itself. The body must not throw. A
    // plain function pointer, not a template: see simd.h.
    using Body = void (*)(void* context, int64_t tile, int thread);
    void parallel_for(int64_t count, Body body, void* context);

    // Ends the workers, when the loop that runs is done; later loops run on the calling thread alone. `size` stays.
    void stop();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace octavo
