// A range of zeroed memory of its own, in huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace octavo {

// Not resident until it is written.
class Memory {
  public:
    Memory() = default;
    explicit Memory(size_t size) : size_(size) {
        if (size == 0) return;
        data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data_ == MAP_FAILED) {
            data_ = nullptr;
            throw std::bad_alloc();
        }
#ifdef MADV_HUGEPAGE
        madvise(data_, size, MADV_HUGEPAGE);  // only a hint: small pages work too
#endif
    }
    ~Memory() {
        if (data_ != nullptr) munmap(data_, size_);
    }
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    size_t size() const { return size_; }

  private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace octavo
