// A range of zeroed memory of its own, in huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <memory>
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

    // Gives back what lies past the first `kept` bytes; it reads as zero afterwards.
    void release_past(size_t kept) {
        constexpr size_t kPage = 4096;
        const size_t begin = (kept + kPage - 1) / kPage * kPage;
        if (begin < size_) madvise(as<char>() + begin, size_ - begin, MADV_DONTNEED);
    }

  private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

// At least `bytes` that stay the calling thread's until its next call. What is in them means nothing.
inline void* thread_scratch(size_t bytes) {
    static thread_local Memory memory;
    if (memory.size() < bytes) memory = Memory(bytes);
    return memory.as<void>();
}

// Hands out pieces of large ranges, so that weights lie in whole huge pages: a matrix in a mapping of its own would
// begin and end in small ones, and many are smaller than one huge page. A range lives as long as a piece of it.
class Arena {
  public:
    struct Piece {
        std::shared_ptr<Memory> range;
        void* data = nullptr;
    };

    // `size` zeroed bytes, aligned to 64.
    Piece take(size_t size) {
        const size_t rounded = (size + 63) / 64 * 64;
        if (!range_ || rounded > room_) {
            const size_t length = rounded > kRange ? rounded : kRange;
            range_ = std::make_shared<Memory>(length + kHugePage);
            const size_t address = reinterpret_cast<size_t>(range_->as<void>());
            used_ = (kHugePage - address % kHugePage) % kHugePage;
            room_ = length;
        }
        Piece piece{range_, range_->as<char>() + used_};
        used_ += rounded;
        room_ -= rounded;
        return piece;
    }

  private:
    static constexpr size_t kHugePage = size_t{2} << 20;
    static constexpr size_t kRange = size_t{64} << 20;

    std::shared_ptr<Memory> range_;
    size_t used_ = 0;
    size_t room_ = 0;
};

}  // namespace octavo
