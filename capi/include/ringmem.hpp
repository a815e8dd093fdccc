// ringmem in C++17: typed rings between processes, over ringmem.h.
//
// 1. Handles are move-only and close themselves. A moved-from or default handle is empty: its calls return RINGMEM_STATUS_INVALID.
// 2. A ring may be used from any thread. An end is used by one thread at a time; it may move between threads. An end may outlive its ring.
// 3. A call that can fail returns a result<T>; result::value() throws ringmem::error if there is none. Calls throw nothing themselves, but for
//    std::bad_alloc while an error's text is copied.
// 4. span is std::span under C++20, and otherwise a class with the same few members.
//
//     #include "layouts.h"                // what ringmem::describe::c writes of a Rust program's structs
//     #include <ringmem.hpp>
//     RINGMEM_MESSAGE(Order);             // once, outside of any namespace; RINGMEM_MESSAGE_AS for a struct of your own
//
//     auto orders = ringmem::ring::open("/dev/shm/orders").value();
//     auto consumer = orders.consumer<Order>().value();
//     while (auto order = consumer.pop_wait()) handle(order.value());

#ifndef RINGMEM_HPP
#define RINGMEM_HPP

#include "ringmem.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ratio>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#if __cplusplus >= 202002L && __has_include(<span>)
#include <span>
#endif

// Declares the struct Order, of a header that ringmem generated, as a message of rings.
#define RINGMEM_MESSAGE(Order) RINGMEM_MESSAGE_AS(Order, RINGMEM_KIND_OF_##Order, RINGMEM_RING_OF_##Order)

// Declares a struct of your own, also in a namespace, with two numbers that both sides know: which message, and which version of its layout.
#define RINGMEM_MESSAGE_AS(Struct, number, version)    \
    template <>                                        \
    struct ringmem::message_traits<Struct> {           \
        static constexpr std::uint64_t kind = number;  \
        static constexpr std::uint64_t abi = version;  \
    }

namespace ringmem {

// Files of one program may be compiled by different standards: their functions with spans have different names.
#if defined(__cpp_lib_span)
inline namespace with_std_span {
#else
inline namespace with_own_span {
#endif

// The number `kind` and the hash `abi` of a message; see RINGMEM_MESSAGE.
template <class T>
struct message_traits {
    static_assert(sizeof(T) == 0, "the struct is no message yet: declare it with RINGMEM_MESSAGE or RINGMEM_MESSAGE_AS");
};

#if defined(__cpp_lib_span)
template <class T>
using span = std::span<T>;
#else
// Adjacent objects that another one owns.
template <class T>
class span {
public:
    constexpr span() noexcept = default;
    constexpr span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
    // A span of const objects from one of objects.
    template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
    constexpr span(span<U> other) noexcept : data_(other.data()), size_(other.size()) {}
    template <std::size_t N>
    constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}

    constexpr T* data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T* begin() const noexcept { return data_; }
    constexpr T* end() const noexcept { return data_ + size_; }
    constexpr T& operator[](std::size_t place) const { return data_[place]; }
    constexpr span first(std::size_t count) const { return span(data_, count); }

private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};
#endif

using status = ringmem_status;
using owner_state = ringmem_owner_state;

// A failed call: its status, and the reason in words.
class error : public std::runtime_error {
public:
    error(ringmem::status found, const char* text) : std::runtime_error(text), status_(found) {}
    ringmem::status status() const noexcept { return status_; }
    std::string text() const { return what(); }

private:
    ringmem::status status_;
};

// A value, or the status of the call that failed. The text of an error is copied, except of FULL and EMPTY.
template <class T>
class [[nodiscard]] result {
public:
    result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
    // Of the calling thread's last failure.
    static result failed(ringmem::status found) { return result(std::in_place_index<1>, found, ringmem_last_error()); }

    explicit operator bool() const noexcept { return content_.index() == 0; }
    // RINGMEM_STATUS_OK with a value.
    ringmem::status status() const noexcept { return *this ? RINGMEM_STATUS_OK : std::get_if<1>(&content_)->status; }
    // Requires that there is no value.
    ringmem::error error() const {
        const failure& found = std::get<1>(content_);
        return ringmem::error(found.status, found.text());
    }
    // Throws ringmem::error if there is none.
    T& value() & { return check(), *std::get_if<0>(&content_); }
    const T& value() const& { return check(), *std::get_if<0>(&content_); }
    T&& value() && { return check(), std::move(*std::get_if<0>(&content_)); }

private:
    struct failure {
        failure(ringmem::status found, const char* text) : status(found) {
            // Their texts are constants of the library.
            if (found == RINGMEM_STATUS_FULL || found == RINGMEM_STATUS_EMPTY) known = text;
            else written = text;
        }
        const char* text() const { return known != nullptr ? known : written.c_str(); }

        ringmem::status status;
        const char* known = nullptr;
        std::string written;
    };

    result(std::in_place_index_t<1> place, ringmem::status found, const char* text) : content_(place, found, text) {}
    void check() const {
        if (!*this) throw error();
    }

    std::variant<T, failure> content_;
};

// The value of a call that returns none.
struct done {};

// The timeout without a limit. Any other that is negative has passed, such as the rest of a deadline.
inline constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::min();

// The timeout of a call, from any duration: what nanoseconds cannot count is the longest, or has passed.
class timeout {
public:
    template <class Rep, class Period>
    constexpr timeout(std::chrono::duration<Rep, Period> time) noexcept : time_(within(time)) {}

    // For ringmem.h, where each negative timeout has no limit.
    constexpr std::int64_t nanoseconds() const noexcept {
        if (time_ == forever) return -1;
        return time_.count() < 0 ? 0 : std::int64_t(time_.count());
    }

private:
    template <class Rep, class Period>
    static constexpr std::chrono::nanoseconds within(std::chrono::duration<Rep, Period> time) noexcept {
        using nano = std::chrono::nanoseconds;
        if constexpr (std::ratio_greater_equal_v<Period, std::nano>) {
            using wide = std::chrono::duration<std::common_type_t<Rep, std::int64_t>, Period>;
            if (!(wide(time) < std::chrono::duration_cast<wide>(nano::max()))) return nano::max();
            if constexpr (std::is_signed_v<Rep>) {
                if (wide(time) < std::chrono::duration_cast<wide>(nano::min())) return nano(-1);
            }
        }
        return std::chrono::duration_cast<nano>(time);
    }

    std::chrono::nanoseconds time_;
};

// The state of an end's owner, and the number of its owners so far.
struct owner {
    owner_state state;
    std::uint64_t generation;
};

namespace detail {

template <auto Close>
struct closer {
    template <class T>
    void operator()(T* object) const noexcept {
        Close(object);
    }
};

template <class T, class... Arguments>
result<T> made(ringmem::status found, Arguments&&... arguments) {
    if (found != RINGMEM_STATUS_OK) return result<T>::failed(found);
    return result<T>(T{std::forward<Arguments>(arguments)...});
}

template <class T>
constexpr ringmem_message message() {
    static_assert(std::is_trivially_copyable_v<T>, "a message is copied between processes as bytes");
    static_assert(std::is_standard_layout_v<T>, "a message has the layout of a C struct");
    return {sizeof(T), alignof(T), message_traits<T>::kind, message_traits<T>::abi};
}

} // namespace detail

// Fills slots and publishes them. See ringmem.h for each call.
template <class T>
class producer {
public:
    producer() = default;
    explicit producer(ringmem_producer* owned) noexcept : end_(owned) {}

    // FULL if there is no free slot.
    result<done> push(const T& message) { return detail::made<done>(ringmem_producer_push(get(), &message)); }
    // Waits for a free slot. DISCONNECTED if the consumer has left or died.
    result<done> push_wait(const T& message, timeout limit = forever) {
        return detail::made<done>(ringmem_producer_push_wait(get(), &message, limit.nanoseconds()));
    }
    // Returns the number of messages that fit, at least 1; FULL if none does.
    result<std::size_t> push_many(span<const T> messages) {
        if (messages.empty()) return result<std::size_t>(0);
        std::size_t pushed = 0;
        const status found = ringmem_producer_push_many(get(), messages.data(), messages.size(), &pushed);
        return detail::made<std::size_t>(found, pushed);
    }

    // Returns at most `wanted` adjacent free slots, to be filled and then committed.
    result<span<T>> reserve(std::size_t wanted) {
        void* slots = nullptr;
        std::size_t count = 0;
        const status found = ringmem_producer_reserve(get(), wanted, &slots, &count);
        return detail::made<span<T>>(found, static_cast<T*>(slots), count);
    }
    // Publishes the first `count` reserved slots.
    result<done> commit(std::size_t count) { return detail::made<done>(ringmem_producer_commit(get(), count)); }
    // Waits for a free slot.
    result<done> wait(timeout limit = forever) { return detail::made<done>(ringmem_producer_wait(get(), limit.nanoseconds())); }

    // Waits for a consumer; returns its generation.
    result<std::uint64_t> wait_for_peer(timeout limit = forever) {
        std::uint64_t generation = 0;
        const status found = ringmem_producer_wait_for_peer(get(), limit.nanoseconds(), &generation);
        return detail::made<std::uint64_t>(found, generation);
    }
    result<owner> peer_state() {
        owner peer{};
        const status found = ringmem_producer_peer_state(get(), &peer.state, &peer.generation);
        return detail::made<owner>(found, peer);
    }
    result<std::size_t> free() {
        std::size_t free = 0;
        const status found = ringmem_producer_free(get(), &free);
        return detail::made<std::size_t>(found, free);
    }
    result<std::size_t> capacity() {
        std::size_t capacity = 0;
        const status found = ringmem_producer_capacity(get(), &capacity);
        return detail::made<std::size_t>(found, capacity);
    }

    // For the functions of ringmem.h. The end stays this object's.
    ringmem_producer* get() const noexcept { return end_.get(); }
    explicit operator bool() const noexcept { return end_ != nullptr; }

private:
    std::unique_ptr<ringmem_producer, detail::closer<ringmem_producer_close>> end_;
};

// Empties slots and releases them. See ringmem.h for each call.
template <class T>
class consumer {
public:
    consumer() = default;
    explicit consumer(ringmem_consumer* owned) noexcept : end_(owned) {}

    // EMPTY if there is no message.
    result<T> pop() {
        T message;
        const status found = ringmem_consumer_pop(get(), &message);
        return detail::made<T>(found, message);
    }
    // Waits for a message. DISCONNECTED if the producer has left or died, and no message remains.
    result<T> pop_wait(timeout limit = forever) {
        T message;
        const status found = ringmem_consumer_pop_wait(get(), &message, limit.nanoseconds());
        return detail::made<T>(found, message);
    }
    // Returns the number of messages moved into `messages`, at least 1; EMPTY if there is none.
    result<std::size_t> pop_many(span<T> messages) {
        if (messages.empty()) return result<std::size_t>(0);
        std::size_t popped = 0;
        const status found = ringmem_consumer_pop_many(get(), messages.data(), messages.size(), &popped);
        return detail::made<std::size_t>(found, popped);
    }

    // Returns at most `wanted` adjacent messages in their slots, to be read and then released. A producer that is not trusted may write them meanwhile.
    result<span<const T>> peek(std::size_t wanted) {
        const void* slots = nullptr;
        std::size_t count = 0;
        const status found = ringmem_consumer_peek(get(), wanted, &slots, &count);
        return detail::made<span<const T>>(found, static_cast<const T*>(slots), count);
    }
    // Removes the first `count` peeked messages.
    result<done> release(std::size_t count) { return detail::made<done>(ringmem_consumer_release(get(), count)); }
    // Waits for a message.
    result<done> wait(timeout limit = forever) { return detail::made<done>(ringmem_consumer_wait(get(), limit.nanoseconds())); }

    // Waits for a producer; returns its generation.
    result<std::uint64_t> wait_for_peer(timeout limit = forever) {
        std::uint64_t generation = 0;
        const status found = ringmem_consumer_wait_for_peer(get(), limit.nanoseconds(), &generation);
        return detail::made<std::uint64_t>(found, generation);
    }
    result<owner> peer_state() {
        owner peer{};
        const status found = ringmem_consumer_peer_state(get(), &peer.state, &peer.generation);
        return detail::made<owner>(found, peer);
    }
    result<std::size_t> available() {
        std::size_t available = 0;
        const status found = ringmem_consumer_available(get(), &available);
        return detail::made<std::size_t>(found, available);
    }
    result<std::size_t> capacity() {
        std::size_t capacity = 0;
        const status found = ringmem_consumer_capacity(get(), &capacity);
        return detail::made<std::size_t>(found, capacity);
    }

    // For the functions of ringmem.h. The end stays this object's.
    ringmem_consumer* get() const noexcept { return end_.get(); }
    explicit operator bool() const noexcept { return end_ != nullptr; }

private:
    std::unique_ptr<ringmem_consumer, detail::closer<ringmem_consumer_close>> end_;
};

// A ring in shared memory. See ringmem.h for each call.
class ring {
public:
    ring() = default;
    explicit ring(ringmem_ring* owned) noexcept : ring_(owned) {}

    // Creates a ring of messages T in a sealed memfd.
    template <class T>
    static result<ring> create(std::uint64_t capacity) {
        return create_at<T>(nullptr, capacity);
    }
    // Creates a ring of messages T in a new file.
    template <class T>
    static result<ring> create(const std::string& path, std::uint64_t capacity) {
        return create_at<T>(path.c_str(), capacity);
    }
    // Opens a ring in a file.
    static result<ring> open(const std::string& path) {
        ringmem_ring* opened = nullptr;
        const status found = ringmem_ring_open(path.c_str(), &opened);
        return detail::made<ring>(found, opened);
    }
    // Opens a ring in a memfd. The descriptor is the library's on success, and stays the caller's on failure.
    static result<ring> from_fd(int fd) {
        ringmem_ring* opened = nullptr;
        const status found = ringmem_ring_from_fd(fd, &opened);
        return detail::made<ring>(found, opened);
    }

    // Takes an end. BUSY while it has an owner; MISMATCH for other messages.
    template <class T>
    result<ringmem::producer<T>> producer() const {
        constexpr ringmem_message expected = detail::message<T>();
        ringmem_producer* end = nullptr;
        const status found = ringmem_producer_open(get(), &expected, &end);
        return detail::made<ringmem::producer<T>>(found, end);
    }
    template <class T>
    result<ringmem::consumer<T>> consumer() const {
        constexpr ringmem_message expected = detail::message<T>();
        ringmem_consumer* end = nullptr;
        const status found = ringmem_consumer_open(get(), &expected, &end);
        return detail::made<ringmem::consumer<T>>(found, end);
    }

    // The descriptor of the memory, which stays the ring's; -1 for an empty handle.
    int fd() const noexcept { return ringmem_ring_fd(get()); }
    result<owner> producer_state() const {
        owner found{};
        const status read = ringmem_ring_producer_state(get(), &found.state, &found.generation);
        return detail::made<owner>(read, found);
    }
    result<owner> consumer_state() const {
        owner found{};
        const status read = ringmem_ring_consumer_state(get(), &found.state, &found.generation);
        return detail::made<owner>(read, found);
    }
    // The consumer's, then the producer's index, unchecked.
    result<std::pair<std::uint64_t, std::uint64_t>> indices() const {
        std::uint64_t head = 0, tail = 0;
        const status read = ringmem_ring_indices(get(), &head, &tail);
        return detail::made<std::pair<std::uint64_t, std::uint64_t>>(read, head, tail);
    }

    // For the functions of ringmem.h. The ring stays this object's.
    ringmem_ring* get() const noexcept { return ring_.get(); }
    explicit operator bool() const noexcept { return ring_ != nullptr; }

private:
    template <class T>
    static result<ring> create_at(const char* path, std::uint64_t capacity) {
        constexpr ringmem_message message = detail::message<T>();
        ringmem_ring* created = nullptr;
        const status found = ringmem_ring_create(path, &message, capacity, &created);
        return detail::made<ring>(found, created);
    }

    std::unique_ptr<ringmem_ring, detail::closer<ringmem_ring_close>> ring_;
};

} // inline namespace
} // namespace ringmem

#endif // RINGMEM_HPP
