#include "first_touch.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

namespace octavo {
namespace {

constexpr size_t kPiece = size_t{4} << 20;  // whoever waits for the thread to end waits for one of these

// Less urgent than the threads that compute, which it is to get ahead of with time that they leave.
constexpr int kNiceness = 5;

bool populate(uint8_t* begin, size_t bytes) {
#ifdef __linux__
    constexpr int kMadvPopulateWrite = 23;  // newer than some systems' headers
    return madvise(begin, bytes, kMadvPopulateWrite) == 0;
#else
    (void)begin, (void)bytes;
    return false;
#endif
}

}  // namespace

FirstTouch::~FirstTouch() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void FirstTouch::want(size_t end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t target = std::min(end, bytes_ - std::min(bytes_, kAhead)) + std::min(bytes_, kAhead);
    if (target <= target_ || stopped_) return;
    target_ = target;
    if (thread_.joinable()) return changed_.notify_one();
    try {
        thread_ = std::thread(&FirstTouch::run, this);
    } catch (const std::system_error&) {
        stopped_ = true;  // no threads to be had: pages come when they are written, as ever
    }
}

size_t FirstTouch::ready() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ready_;
}

void FirstTouch::run() {
#ifdef __linux__
    setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), kNiceness);  // of this thread alone
#endif
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_) {
        if (ready_ >= target_) {
            changed_.wait(lock);
            continue;
        }
        const size_t begin = ready_, bytes = std::min(kPiece, target_ - begin);
        lock.unlock();
        const bool done = populate(base_ + begin, bytes);
        lock.lock();
        if (!done) return;
        ready_ = begin + bytes;
    }
}

}  // namespace octavo
