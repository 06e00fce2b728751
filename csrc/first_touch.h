// Makes memory resident before it is written, on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

namespace octavo {

// The first write to a page of a fresh mapping waits until the system has found and zeroed it. In huge pages, inside a
// virtual machine, that is milliseconds for each, and a loop's other threads wait too. This keeps `kAhead` bytes
// beyond what is in use ready, and no more: memory that nobody asks for stays untouched. What is in memory never
// changes. Where the system cannot do it (before Linux 5.14) nothing happens.
class FirstTouch {
  public:
    static constexpr size_t kAhead = size_t{128} << 20;

    // Nothing is touched before `want`. The range must outlive this.
    FirstTouch(uint8_t* base, size_t bytes) : base_(base), bytes_(bytes) {}
    ~FirstTouch();
    FirstTouch(const FirstTouch&) = delete;
    FirstTouch& operator=(const FirstTouch&) = delete;

    // The first `end` bytes are in use, or will be at once. Any thread may say so; costs next to nothing.
    void want(size_t end);

    // Bytes from the beginning that are resident, as far as this has made them so.
    size_t ready() const;

  private:
    void run();

    uint8_t* const base_;
    const size_t bytes_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    size_t target_ = 0, ready_ = 0;
    bool stopped_ = false;
    std::thread thread_;  // from the first wish on
};

}  // namespace octavo
