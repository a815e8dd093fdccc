// The C++ process of examples/08_cpp without the library: a second implementation of the format and protocol of shared rings.
//
// It takes orders from the ring in one file, and puts fills into the ring in another.
//
// 1. It reads and writes shared words by atomic accesses only, and copies messages word by word: the other process may write at any time.
// 2. It reads constants once, checks them and keeps them. An index of the other process that is out of range is an error.
// 3. It owns its ends as ringmem::shared does: a lock of an open file description on byte 0 (producer) or 1 (consumer) of the file, which the
//    operating system releases when the process ends, and the word `owner`.
// 4. It wakes the other process after each publish and release, and polls instead of sleeping itself.

#include "layouts.h"

#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

using Word = std::atomic_ref<uint64_t>;
static_assert(Word::is_always_lock_free);
static_assert(std::endian::native == std::endian::little, "the upper half of a wait word is at offset 4");

using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

constexpr uint64_t magic(const char (&text)[8]) {
    uint64_t word = 0;
    for (int place = 0; place < 8; ++place) word |= uint64_t(uint8_t(text[place])) << (8 * place);
    return word;
}

// As in ringmem's `region` and `ring`.
constexpr uint64_t REGION_MAGIC = magic("rm.regn"), RING_MAGIC = magic("rm.ring");
constexpr uint64_t REGION_VERSION = 1, SHARED_RING = 5, MAX_ENTRIES = 32, SPSC = 1;
constexpr uint64_t STATE = 3, OPEN = 1, CLOSED = 2, GENERATION = 4;

enum class Side : off_t { producer = 0, consumer = 1 };

// The number in `#[layout(message = ..)]`, and the hash of a ring of these messages.
template <class T> struct Message;
template <> struct Message<Order> { static constexpr uint64_t kind = RINGMEM_KIND_OF_Order, abi = RINGMEM_RING_OF_Order; };
template <> struct Message<Fill> { static constexpr uint64_t kind = RINGMEM_KIND_OF_Fill, abi = RINGMEM_RING_OF_Fill; };

[[noreturn]] void failed(const std::string& call) { throw std::system_error(errno, std::generic_category(), call); }

void check(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(std::string("not such a ring: ") + what);
}

// A mapped file with one ring, and the ownership of one end of it.
class End {
public:
    End(const End&) = delete;
    End& operator=(const End&) = delete;

    // Whether the other end's owner closed it or died. What it published before can still be taken.
    bool peer_is_gone() {
        const uint64_t word = Word(other_owner()).load(memory_order_acquire);
        if ((word & STATE) != OPEN) return (word & STATE) == CLOSED;
        if (++looks_ % 1024 != 0) return false;
        struct flock lock = range(side_ == Side::producer ? Side::consumer : Side::producer);
        if (fcntl(fd_, F_OFD_GETLK, &lock) != 0) failed("fcntl(F_OFD_GETLK)");
        // It may have closed the end after the word was read.
        return lock.l_type == F_UNLCK && Word(other_owner()).load(memory_order_acquire) == word;
    }

protected:
    End(const char* path, Side side, uint64_t kind, uint64_t abi, uint64_t slot_size) : side_(side) {
        // A description of its own: the lock belongs to it.
        fd_ = open(path, O_RDWR | O_CLOEXEC);
        if (fd_ < 0) failed(std::string("open ") + path);
        try {
            map();
            find(kind, abi, slot_size);
            struct flock lock = range(side);
            if (fcntl(fd_, F_OFD_SETLK, &lock) != 0) failed(std::string("this end has an owner: ") + path);
        } catch (...) {
            release();
            throw;
        }
        const uint64_t word = Word(own_owner()).load(memory_order_relaxed);
        Word(own_owner()).store(((word & ~STATE) + GENERATION) | OPEN, memory_order_relaxed);
        wake();
    }

    ~End() {
        const uint64_t word = Word(own_owner()).load(memory_order_relaxed);
        Word(own_owner()).store((word & ~STATE) | CLOSED, memory_order_release);
        struct flock lock = range(side_);
        lock.l_type = F_UNLCK;
        fcntl(fd_, F_OFD_SETLK, &lock);
        wake();
        release();
    }

    // Wakes the other side if it sleeps. The read-modify-write orders the publish before the look at the sleepers.
    void wake() {
        Word waiting(side_ == Side::producer ? ring_->producer.waiting : ring_->consumer.waiting);
        if (uint32_t(waiting.fetch_add(0, memory_order_acq_rel)) == 0) return;
        waiting.fetch_add(uint64_t(1) << 32, memory_order_acq_rel);
        auto* wakes = reinterpret_cast<char*>(side_ == Side::producer ? &ring_->producer.waiting : &ring_->consumer.waiting) + 4;
        syscall(SYS_futex, wakes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }

    // The words of the slot of an index.
    uint64_t* slot(uint64_t index, uint64_t words) { return slots_ + (index & (capacity_ - 1)) * words; }

    RingHeader* ring_ = nullptr;
    uint64_t capacity_ = 0;

private:
    static struct flock range(Side side) {
        struct flock lock {};
        lock.l_type = F_WRLCK;
        lock.l_whence = SEEK_SET;
        lock.l_start = off_t(side);
        lock.l_len = 1;
        return lock;
    }

    void map() {
        struct stat facts {};
        if (fstat(fd_, &facts) != 0) failed("fstat");
        len_ = uint64_t(facts.st_size);
        check(S_ISREG(facts.st_mode) && len_ >= sizeof(RegionHeader) + MAX_ENTRIES * sizeof(RegionEntry), "too small");
        void* base = mmap(nullptr, len_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        if (base == MAP_FAILED) failed("mmap");
        base_ = static_cast<char*>(base);
    }

    // Finds the ring in the region's table and checks its geometry.
    void find(uint64_t kind, uint64_t abi, uint64_t slot_size) {
        auto* region = reinterpret_cast<RegionHeader*>(base_);
        auto* entries = reinterpret_cast<RegionEntry*>(region + 1);
        check(Word(region->magic).load(memory_order_acquire) == REGION_MAGIC, "no region");
        check(Word(region->version).load(memory_order_relaxed) == REGION_VERSION, "another version");
        const uint64_t count = Word(region->count).load(memory_order_relaxed);
        check(count <= MAX_ENTRIES, "too many entries");
        uint64_t place = 0;
        while (place < count && Word(entries[place].kind).load(memory_order_relaxed) != SHARED_RING) ++place;
        check(place < count, "no entry");
        const uint64_t offset = Word(entries[place].offset).load(memory_order_relaxed);
        const uint64_t size = Word(entries[place].size).load(memory_order_relaxed);
        check(offset % alignof(RingHeader) == 0 && offset <= len_ && size <= len_ - offset && size >= sizeof(RingHeader), "outside the file");

        auto* ring = reinterpret_cast<RingHeader*>(base_ + offset);
        ConstantLine& constants = ring->constants;
        check(Word(constants.magic).load(memory_order_acquire) == RING_MAGIC, "not formatted");
        check(Word(constants.abi).load(memory_order_relaxed) == abi, "other messages");
        check(Word(constants.message_kind).load(memory_order_relaxed) == kind, "another kind of message");
        check(Word(constants.flags).load(memory_order_relaxed) == SPSC, "another kind of ring");
        check(Word(constants.slot_size).load(memory_order_relaxed) == slot_size, "slots of another size");
        const uint64_t capacity = Word(constants.capacity).load(memory_order_relaxed);
        const uint64_t slots = Word(constants.slots_offset).load(memory_order_relaxed);
        check(std::has_single_bit(capacity) && slots == sizeof(RingHeader), "another geometry");
        check(capacity <= (size - slots) / slot_size, "outside its entry");
        ring_ = ring;
        capacity_ = capacity;
        slots_ = reinterpret_cast<uint64_t*>(base_ + offset + slots);
    }

    uint64_t& own_owner() { return side_ == Side::producer ? ring_->producer.owner : ring_->consumer.owner; }
    uint64_t& other_owner() { return side_ == Side::producer ? ring_->consumer.owner : ring_->producer.owner; }

    void release() {
        if (base_ != nullptr) munmap(base_, len_);
        close(fd_);
    }

    Side side_;
    int fd_ = -1;
    char* base_ = nullptr;
    uint64_t len_ = 0;
    uint64_t* slots_ = nullptr;
    uint64_t looks_ = 0;
};

// A message as words, which are read and written one by one.
template <class T> struct Words {
    static_assert(sizeof(T) % 8 == 0 && alignof(T) == 8);
    uint64_t word[sizeof(T) / 8];
};

template <class T> class Producer : End {
public:
    using End::peer_is_gone;

    explicit Producer(const char* path) : End(path, Side::producer, Message<T>::kind, Message<T>::abi, sizeof(T)) {
        tail_ = Word(ring_->producer.tail).load(memory_order_relaxed);
        free();
    }

    // Returns whether there was a free slot.
    bool push(const T& message) {
        if (free() == 0) return false;
        const auto words = std::bit_cast<Words<T>>(message);
        uint64_t* place = slot(tail_, std::size(words.word));
        for (const uint64_t word : words.word) Word(*place++).store(word, memory_order_relaxed);
        Word(ring_->producer.tail).store(++tail_, memory_order_release);
        wake();
        return true;
    }

private:
    uint64_t free() {
        const uint64_t used = tail_ - Word(ring_->consumer.head).load(memory_order_acquire);
        check(used <= capacity_, "the consumer's index is out of range");
        return capacity_ - used;
    }

    uint64_t tail_ = 0;
};

template <class T> class Consumer : End {
public:
    using End::peer_is_gone;

    explicit Consumer(const char* path) : End(path, Side::consumer, Message<T>::kind, Message<T>::abi, sizeof(T)) {
        head_ = Word(ring_->consumer.head).load(memory_order_relaxed);
        waiting();
    }

    std::optional<T> pop() {
        if (waiting() == 0) return std::nullopt;
        Words<T> words;
        uint64_t* place = slot(head_, std::size(words.word));
        for (uint64_t& word : words.word) word = Word(*place++).load(memory_order_relaxed);
        Word(ring_->consumer.head).store(++head_, memory_order_release);
        wake();
        return std::bit_cast<T>(words);
    }

private:
    uint64_t waiting() {
        const uint64_t count = Word(ring_->producer.tail).load(memory_order_acquire) - head_;
        check(count <= capacity_, "the producer's index is out of range");
        return count;
    }

    uint64_t head_ = 0;
};

} // namespace

int main(int argc, char** argv) try {
    if (argc != 3) {
        std::cerr << "usage: peer ORDERS FILLS\n";
        return 2;
    }
    Consumer<Order> orders(argv[1]);
    Producer<Fill> fills(argv[2]);
    for (uint64_t count = 0;;) {
        // Before the pop: an order that was sent before the end was closed is still taken.
        const bool is_last = orders.peer_is_gone();
        if (const std::optional<Order> order = orders.pop()) {
            const Fill fill = {order->id, order->price * double(order->quantity)};
            while (!fills.push(fill)) {
                if (fills.peer_is_gone()) throw std::runtime_error("nobody takes the fills");
                std::this_thread::yield();
            }
            ++count;
        } else if (is_last) {
            std::cout << count << " orders in C++\n";
            return 0;
        } else {
            std::this_thread::yield();
        }
    }
} catch (const std::exception& error) {
    std::cerr << "peer: " << error.what() << '\n';
    return 1;
}
