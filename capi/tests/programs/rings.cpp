// The classes of ringmem.hpp. Arguments: a folder for files.

#include "layouts.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ringmem.hpp>
#include <string>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

RINGMEM_MESSAGE(Order);
RINGMEM_MESSAGE(Fill);

namespace market {
struct Tick {
    uint64_t id;
};
} // namespace market
RINGMEM_MESSAGE_AS(market::Tick, 9, 20260101);

namespace {

using namespace std::chrono_literals;
constexpr auto limit = 60s;

#define CHECK(...)                                                                                                   \
    do {                                                                                                             \
        if (!(__VA_ARGS__)) {                                                                                        \
            std::fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #__VA_ARGS__, ringmem_last_error()); \
            std::exit(1);                                                                                            \
        }                                                                                                            \
    } while (0)

template <class T>
constexpr bool moves_only = !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> && std::is_nothrow_move_constructible_v<T> &&
                            std::is_nothrow_move_assignable_v<T>;
static_assert(moves_only<ringmem::ring> && moves_only<ringmem::producer<Order>> && moves_only<ringmem::consumer<Order>>);
static_assert(ringmem::message_traits<Order>::kind == 1 && ringmem::message_traits<Fill>::kind == 2);
static_assert(ringmem::message_traits<Order>::abi != ringmem::message_traits<Fill>::abi);
static_assert(!std::is_convertible_v<ringmem::result<int>, bool> && std::is_constructible_v<bool, ringmem::result<int>>);
static_assert(ringmem::timeout(std::chrono::seconds::max()).nanoseconds() == INT64_MAX && ringmem::timeout(1h * 1e30).nanoseconds() == INT64_MAX);
static_assert(ringmem::timeout(std::chrono::hours::min()).nanoseconds() == 0 && ringmem::timeout(-1e30s).nanoseconds() == 0);
static_assert(ringmem::timeout(ringmem::forever).nanoseconds() == -1 && ringmem::timeout(-1ns).nanoseconds() == 0 && ringmem::timeout(2us).nanoseconds() == 2000);
static_assert(ringmem::timeout(std::chrono::duration<std::uint64_t>(UINT64_MAX)).nanoseconds() == INT64_MAX);
static_assert(ringmem::timeout(std::chrono::duration<short, std::ratio<60>>(1)).nanoseconds() == 60'000'000'000);
static_assert(ringmem::timeout(std::chrono::duration<std::int64_t, std::pico>(INT64_MAX)).nanoseconds() == INT64_MAX / 1000);
static_assert(std::is_convertible_v<ringmem::span<int>, ringmem::span<const int>> && !std::is_convertible_v<ringmem::span<const int>, ringmem::span<int>>);

template <class T>
void fails(const ringmem::result<T>& result, ringmem::status status, const char* text) {
    CHECK(!result && result.status() == status && result.error().status() == status);
    if (result.error().text().find(text) == std::string::npos) {
        std::fprintf(stderr, "`%s` is not in: %s\n", text, result.error().what());
        std::exit(1);
    }
    bool is_thrown = false;
    try {
        static_cast<void>(result.value());
    } catch (const ringmem::error& error) {
        is_thrown = error.status() == status && error.text() == result.error().what();
    }
    CHECK(is_thrown);
}

void messages_are_pushed_and_popped(const std::string& folder) {
    const std::string path = folder + "/orders";
    fails(ringmem::ring::open(path), RINGMEM_STATUS_SYSTEM, "No such file");
    fails(ringmem::ring::create<Order>(3), RINGMEM_STATUS_INVALID, "not a power of two");
    auto ring = ringmem::ring::create<Order>(path, 4).value();
    auto producer = ring.producer<Order>().value();
    fails(ring.producer<Order>(), RINGMEM_STATUS_BUSY, "the ring has a producer");
    auto opened = ringmem::ring::open(path).value();
    fails(opened.consumer<Fill>(), RINGMEM_STATUS_MISMATCH, "type mismatch");
    auto consumer = opened.consumer<Order>().value();
    CHECK(opened.producer_state().value().state == RINGMEM_OWNER_STATE_ALIVE && ring.consumer_state().value().generation == 1);
    opened = ringmem::ring();
    CHECK(consumer.capacity().value() == 4 && producer.capacity().value() == 4);

    fails(consumer.pop(), RINGMEM_STATUS_EMPTY, "the ring is empty");
    for (uint64_t id = 0; id < 4; ++id) CHECK(producer.push(Order{id, 0.5, 2 * id}));
    const auto full = producer.push(Order{});
    fails(producer.commit(1), RINGMEM_STATUS_INVALID, "of 0 reserved slots");
    fails(full, RINGMEM_STATUS_FULL, "the ring is full");
    CHECK(producer.free().value() == 0 && consumer.available().value() == 4);
    for (uint64_t id = 0; id < 4; ++id) {
        const Order order = consumer.pop().value();
        CHECK(order.id == id && order.price == 0.5 && order.quantity == 2 * id);
    }
    CHECK(ring.indices().value() == std::pair<uint64_t, uint64_t>(4, 4));

    std::vector<Order> many(6);
    many[3].id = 3;
    CHECK(producer.push_many({many.data(), many.size()}).value() == 4);
    fails(producer.push_many({many.data(), many.size()}), RINGMEM_STATUS_FULL, "the ring is full");
    CHECK(producer.push_many({}).value() == 0);
    Order three[3];
    CHECK(consumer.pop_many(three).value() == 3 && consumer.pop_many(three).value() == 1 && three[0].id == 3);
    CHECK(consumer.pop_many({}).value() == 0);
    fails(consumer.pop_many(three), RINGMEM_STATUS_EMPTY, "the ring is empty");

    // A moved-from end is empty; the other closes once.
    auto moved = std::move(producer);
    CHECK(moved && !producer);
    fails(producer.push(Order{}), RINGMEM_STATUS_INVALID, "`producer` is a null pointer");
    fails(ringmem::ring().consumer<Order>(), RINGMEM_STATUS_INVALID, "`ring` is a null pointer");
    moved = ringmem::producer<Order>();
    CHECK(consumer.peer_state().value().state == RINGMEM_OWNER_STATE_LEFT);
}

void slots_are_filled_and_read_in_place() {
    auto ring = ringmem::ring::create<Fill>(8).value();
    auto producer = ring.producer<Fill>().value();
    auto consumer = ring.consumer<Fill>().value();
    uint64_t pushed = 0, popped = 0;
    while (pushed < 1000) {
        const ringmem::span<Fill> slots = producer.reserve(5).value();
        CHECK(!slots.empty() && slots.size() <= 5);
        for (Fill& fill : slots) fill = Fill{pushed++, 1.5};
        CHECK(producer.commit(slots.size()));
        while (popped < pushed) {
            const ringmem::span<const Fill> messages = consumer.peek(8).value();
            for (const Fill& fill : messages) CHECK(fill.id == popped++ && fill.cost == 1.5);
            CHECK(consumer.release(messages.size()));
        }
    }
    fails(consumer.peek(1), RINGMEM_STATUS_EMPTY, "the ring is empty");
    fails(consumer.release(1), RINGMEM_STATUS_INVALID, "of 0 peeked messages");
}

void ends_wait_for_each_other() {
    auto ring = ringmem::ring::create<Order>(2).value();
    auto sent = ringmem::ring::from_fd(dup(ring.fd())).value();
    fails(ringmem::ring::from_fd(-1), RINGMEM_STATUS_INVALID, "no descriptor");
    auto consumer = ring.consumer<Order>().value();
    fails(consumer.wait_for_peer(1ms), RINGMEM_STATUS_TIMEOUT, "none has attached yet");
    fails(consumer.pop_wait(1ms), RINGMEM_STATUS_TIMEOUT, "empty until the deadline");
    fails(consumer.wait(0ns), RINGMEM_STATUS_TIMEOUT, "empty until the deadline");
    // The rest of a deadline that has passed is no wait without a limit.
    fails(consumer.wait(-1ns), RINGMEM_STATUS_TIMEOUT, "empty until the deadline");
    fails(consumer.pop_wait(-5s), RINGMEM_STATUS_TIMEOUT, "empty until the deadline");
    std::thread thread([sent = std::move(sent)] {
        auto producer = sent.producer<Order>().value();
        CHECK(producer.wait_for_peer(limit).value() == 1);
        for (uint64_t id = 0; id < 1000; ++id) {
            CHECK(producer.wait(limit));
            CHECK(producer.push_wait(Order{id, 1, 1}, limit));
        }
    });
    CHECK(consumer.wait_for_peer().value() == 1);
    uint64_t count = 0;
    for (;;) {
        const auto order = consumer.pop_wait(limit);
        if (order.status() == RINGMEM_STATUS_DISCONNECTED) break;
        CHECK(order.value().id == count++);
    }
    thread.join();
    CHECK(count == 1000);
    fails(consumer.wait(), RINGMEM_STATUS_DISCONNECTED, "no message remains");
}

void structs_of_the_program_are_messages() {
    auto ring = ringmem::ring::create<market::Tick>(2).value();
    fails(ring.consumer<Order>(), RINGMEM_STATUS_MISMATCH, "");
    auto producer = ring.producer<market::Tick>().value();
    auto consumer = ring.consumer<market::Tick>().value();
    producer.push(market::Tick{7}).value();
    CHECK(consumer.pop_wait(limit).value().id == 7);
}

} // namespace

int main(int argc, char** argv) {
    CHECK(argc == 2);
    messages_are_pushed_and_popped(argv[1]);
    slots_are_filled_and_read_in_place();
    ends_wait_for_each_other();
    structs_of_the_program_are_messages();
    std::puts("ok");
}
