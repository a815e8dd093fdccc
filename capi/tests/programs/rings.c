// The ring functions of ringmem.h: each call, each status, a killed process. Arguments: a folder for files.

#define _GNU_SOURCE
#include "ringmem.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                            \
    do {                                                                                                            \
        if (!(condition)) {                                                                                         \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, ringmem_last_error()); \
            exit(1);                                                                                                \
        }                                                                                                           \
    } while (0)
#define OK(call) CHECK((call) == RINGMEM_STATUS_OK)
#define FAILS(call, status, text) CHECK((call) == (status) && strstr(ringmem_last_error(), (text)) != NULL)

#define RING 1152 /* Offset of the ring in its memory. */
#define LIMIT (INT64_C(60) * 1000 * 1000 * 1000)

typedef struct sample {
    uint64_t id;
    double value;
} sample;

static const ringmem_message SAMPLE = {sizeof(sample), alignof(sample), 7, UINT64_C(0x1234567890abcdef)};

static ringmem_ring *created(uint64_t capacity) {
    ringmem_ring *ring = NULL;
    OK(ringmem_ring_create(NULL, &SAMPLE, capacity, &ring));
    return ring;
}

static void null_pointers_are_invalid_by_name(void) {
    ringmem_ring *ring = created(4), *other = NULL;
    ringmem_producer *producer = NULL;
    ringmem_consumer *consumer = NULL;
    OK(ringmem_producer_open(ring, &SAMPLE, &producer));
    OK(ringmem_consumer_open(ring, NULL, &consumer));
    sample message = {1, 2};
    size_t count = 9;
    uint64_t number = 9;
    ringmem_owner_state state;
    void *slots = NULL;
    const void *messages = NULL;
    ringmem_message facts;
#define NAMED(call, argument) FAILS(call, RINGMEM_STATUS_INVALID, "`" argument "` is a null pointer")
    NAMED(ringmem_ring_create(NULL, NULL, 4, &other), "message");
    NAMED(ringmem_ring_create(NULL, &SAMPLE, 4, NULL), "ring");
    NAMED(ringmem_ring_open(NULL, &other), "path");
    NAMED(ringmem_ring_open("/dev/null", NULL), "ring");
    NAMED(ringmem_ring_from_fd(0, NULL), "ring");
    NAMED(ringmem_ring_indices(NULL, &number, &number), "ring");
    NAMED(ringmem_ring_indices(ring, NULL, &number), "head");
    NAMED(ringmem_ring_indices(ring, &number, NULL), "tail");
    NAMED(ringmem_ring_producer_state(NULL, &state, &number), "ring");
    NAMED(ringmem_ring_producer_state(ring, NULL, &number), "state");
    NAMED(ringmem_ring_consumer_state(ring, &state, NULL), "generation");
    CHECK(ringmem_ring_fd(NULL) == -1 && strstr(ringmem_last_error(), "`ring`") != NULL);
    NAMED(ringmem_producer_open(NULL, &SAMPLE, &producer), "ring");
    NAMED(ringmem_producer_open(ring, &SAMPLE, NULL), "producer");
    NAMED(ringmem_consumer_open(NULL, &SAMPLE, &consumer), "ring");
    NAMED(ringmem_consumer_open(ring, &SAMPLE, NULL), "consumer");
    NAMED(ringmem_producer_push(NULL, &message), "producer");
    NAMED(ringmem_producer_push(producer, NULL), "message");
    NAMED(ringmem_producer_push_many(producer, NULL, 1, &count), "messages");
    NAMED(ringmem_producer_push_many(producer, &message, 1, NULL), "pushed");
    NAMED(ringmem_producer_push_wait(NULL, &message, 0), "producer");
    NAMED(ringmem_producer_push_wait(producer, NULL, 0), "message");
    NAMED(ringmem_producer_wait(NULL, 0), "producer");
    NAMED(ringmem_producer_reserve(NULL, 1, &slots, &count), "producer");
    NAMED(ringmem_producer_reserve(producer, 1, NULL, &count), "slots");
    NAMED(ringmem_producer_reserve(producer, 1, &slots, NULL), "count");
    NAMED(ringmem_producer_commit(NULL, 1), "producer");
    NAMED(ringmem_producer_wait_for_peer(NULL, 0, &number), "producer");
    NAMED(ringmem_producer_wait_for_peer(producer, 0, NULL), "generation");
    NAMED(ringmem_producer_peer_state(producer, NULL, &number), "state");
    NAMED(ringmem_producer_peer_state(producer, &state, NULL), "generation");
    NAMED(ringmem_producer_free(NULL, &count), "producer");
    NAMED(ringmem_producer_free(producer, NULL), "free");
    NAMED(ringmem_producer_message(producer, NULL), "message");
    NAMED(ringmem_producer_capacity(NULL, &count), "producer");
    NAMED(ringmem_consumer_pop(NULL, &message), "consumer");
    NAMED(ringmem_consumer_pop(consumer, NULL), "message");
    NAMED(ringmem_consumer_pop_many(consumer, NULL, 1, &count), "messages");
    NAMED(ringmem_consumer_pop_many(consumer, &message, 1, NULL), "popped");
    NAMED(ringmem_consumer_pop_wait(consumer, NULL, 0), "message");
    NAMED(ringmem_consumer_wait(NULL, 0), "consumer");
    NAMED(ringmem_consumer_peek(NULL, 1, &messages, &count), "consumer");
    NAMED(ringmem_consumer_peek(consumer, 1, NULL, &count), "slots");
    NAMED(ringmem_consumer_peek(consumer, 1, &messages, NULL), "count");
    NAMED(ringmem_consumer_release(NULL, 1), "consumer");
    NAMED(ringmem_consumer_wait_for_peer(consumer, 0, NULL), "generation");
    NAMED(ringmem_consumer_peer_state(NULL, &state, &number), "consumer");
    NAMED(ringmem_consumer_available(consumer, NULL), "available");
    NAMED(ringmem_consumer_message(NULL, &facts), "consumer");
    NAMED(ringmem_consumer_capacity(consumer, NULL), "capacity");
    CHECK(other == NULL && count == 9 && number == 9 && slots == NULL && messages == NULL);
    OK(ringmem_ring_indices(ring, &number, &number));
    CHECK(number == 0);
    ringmem_producer_close(producer);
    ringmem_consumer_close(consumer);
    ringmem_ring_close(ring);
    ringmem_producer_close(NULL);
    ringmem_consumer_close(NULL);
    ringmem_ring_close(NULL);
}

static void an_invalid_message_or_capacity_is_an_error(void) {
    ringmem_ring *ring = NULL;
    const ringmem_message invalid[] = {{0, 1, 0, 0}, {8, 0, 0, 0}, {8, 3, 0, 0}, {12, 8, 0, 0}, {SIZE_MAX, 1, 0, 0}, {8192, 8192, 0, 0}};
    for (size_t place = 0; place < sizeof invalid / sizeof *invalid; ++place) {
        FAILS(ringmem_ring_create(NULL, &invalid[place], 4, &ring), RINGMEM_STATUS_INVALID, "");
    }
    FAILS(ringmem_ring_create(NULL, &SAMPLE, 0, &ring), RINGMEM_STATUS_INVALID, "power of two");
    FAILS(ringmem_ring_create(NULL, &SAMPLE, 100, &ring), RINGMEM_STATUS_INVALID, "the next is 128");
    FAILS(ringmem_ring_create(NULL, &SAMPLE, UINT64_C(1) << 63, &ring), RINGMEM_STATUS_INVALID, "");
    CHECK(ring == NULL);
}

static void messages_are_pushed_and_popped(void) {
    ringmem_ring *ring = created(4);
    ringmem_producer *producer = NULL;
    ringmem_consumer *consumer = NULL;
    OK(ringmem_producer_open(ring, &SAMPLE, &producer));
    FAILS(ringmem_producer_open(ring, &SAMPLE, &producer), RINGMEM_STATUS_BUSY, "the ring has a producer");
    OK(ringmem_consumer_open(ring, &SAMPLE, &consumer));
    uint64_t head, tail, generation;
    ringmem_owner_state state;
    OK(ringmem_ring_producer_state(ring, &state, &generation));
    CHECK(state == RINGMEM_OWNER_STATE_ALIVE && generation == 1);
    int fd = ringmem_ring_fd(ring);
    CHECK(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    ringmem_message facts;
    OK(ringmem_producer_message(producer, &facts));
    CHECK(facts.size == SAMPLE.size && facts.align == 16 && facts.kind == SAMPLE.kind && facts.abi == SAMPLE.abi);
    size_t count;
    OK(ringmem_consumer_capacity(consumer, &count));
    CHECK(count == 4);

    sample message = {0, 0};
    FAILS(ringmem_consumer_pop(consumer, &message), RINGMEM_STATUS_EMPTY, "the ring is empty");
    for (uint64_t id = 0; id < 4; ++id) {
        message = (sample){id, 0.5 * (double)id};
        OK(ringmem_producer_push(producer, &message));
    }
    FAILS(ringmem_producer_push(producer, &message), RINGMEM_STATUS_FULL, "the ring is full");
    OK(ringmem_producer_free(producer, &count));
    CHECK(count == 0);
    OK(ringmem_consumer_available(consumer, &count));
    CHECK(count == 4);
    // Ends outlive their ring.
    OK(ringmem_ring_indices(ring, &head, &tail));
    CHECK(head == 0 && tail == 4);
    ringmem_ring_close(ring);
    for (uint64_t id = 0; id < 4; ++id) {
        OK(ringmem_consumer_pop(consumer, &message));
        CHECK(message.id == id && message.value == 0.5 * (double)id);
    }

    sample many[8] = {{0, 0}};
    for (uint64_t id = 0; id < 8; ++id) many[id].id = 10 + id;
    count = 99;
    FAILS(ringmem_consumer_pop_many(consumer, many, 8, &count), RINGMEM_STATUS_EMPTY, "the ring is empty");
    CHECK(count == 99);
    OK(ringmem_producer_push_many(producer, many, 0, &count));
    CHECK(count == 0);
    // Only the four messages that fit are read.
    OK(ringmem_producer_push_many(producer, many, SIZE_MAX, &count));
    CHECK(count == 4);
    count = 99;
    FAILS(ringmem_producer_push_many(producer, many, 8, &count), RINGMEM_STATUS_FULL, "the ring is full");
    CHECK(count == 99);
    memset(many, 0, sizeof many);
    OK(ringmem_consumer_pop_many(consumer, many, 0, &count));
    CHECK(count == 0);
    OK(ringmem_consumer_pop_many(consumer, many, 3, &count));
    CHECK(count == 3 && many[2].id == 12 && many[3].id == 0);
    OK(ringmem_consumer_pop_many(consumer, many, SIZE_MAX, &count));
    CHECK(count == 1 && many[0].id == 13);
    ringmem_producer_close(producer);
    FAILS(ringmem_consumer_pop(consumer, &message), RINGMEM_STATUS_EMPTY, "the ring is empty");
    OK(ringmem_consumer_peer_state(consumer, &state, &generation));
    CHECK(state == RINGMEM_OWNER_STATE_LEFT && generation == 1);
    ringmem_consumer_close(consumer);
}

static void slots_are_filled_and_read_in_place(void) {
    ringmem_ring *ring = created(4);
    ringmem_producer *producer = NULL;
    ringmem_consumer *consumer = NULL;
    OK(ringmem_producer_open(ring, &SAMPLE, &producer));
    OK(ringmem_consumer_open(ring, &SAMPLE, &consumer));
    ringmem_ring_close(ring);
    void *slots = NULL;
    const void *messages = NULL;
    size_t count = 0;
    FAILS(ringmem_producer_commit(producer, 1), RINGMEM_STATUS_INVALID, "cannot commit 1 of 0 reserved slots");
    FAILS(ringmem_consumer_release(consumer, SIZE_MAX), RINGMEM_STATUS_INVALID, "of 0 peeked messages");
    FAILS(ringmem_consumer_peek(consumer, 1, &messages, &count), RINGMEM_STATUS_EMPTY, "the ring is empty");
    CHECK(messages == NULL);
    OK(ringmem_consumer_peek(consumer, 0, &messages, &count));
    CHECK(count == 0);
    OK(ringmem_producer_reserve(producer, 3, &slots, &count));
    CHECK(count == 3 && (uintptr_t)slots % alignof(sample) == 0);
    for (uint64_t id = 0; id < 3; ++id) ((sample *)slots)[id] = (sample){id, 1};
    FAILS(ringmem_producer_commit(producer, 4), RINGMEM_STATUS_INVALID, "cannot commit 4 of 3 reserved slots");
    OK(ringmem_producer_commit(producer, 0));
    OK(ringmem_producer_commit(producer, 1));
    OK(ringmem_producer_commit(producer, 2));
    FAILS(ringmem_producer_commit(producer, 1), RINGMEM_STATUS_INVALID, "cannot commit 1 of 0 reserved slots");
    OK(ringmem_consumer_peek(consumer, SIZE_MAX, &messages, &count));
    CHECK(count == 3 && ((const sample *)messages)[2].id == 2);
    FAILS(ringmem_consumer_release(consumer, 4), RINGMEM_STATUS_INVALID, "cannot release 4 of 3 peeked messages");
    OK(ringmem_consumer_release(consumer, 2));
    OK(ringmem_consumer_release(consumer, 1));
    FAILS(ringmem_consumer_release(consumer, 1), RINGMEM_STATUS_INVALID, "cannot release 1 of 0 peeked messages");
    // The fourth slot is the last in memory; the next three begin at the first.
    OK(ringmem_producer_reserve(producer, SIZE_MAX, &slots, &count));
    CHECK(count == 1);
    ((sample *)slots)->id = 3;
    OK(ringmem_producer_commit(producer, 1));
    OK(ringmem_producer_reserve(producer, SIZE_MAX, &slots, &count));
    CHECK(count == 3);
    // A push cancels the reservation, and a pop the messages that were peeked.
    sample message = {4, 1};
    OK(ringmem_producer_push(producer, &message));
    FAILS(ringmem_producer_commit(producer, 1), RINGMEM_STATUS_INVALID, "of 0 reserved slots");
    OK(ringmem_consumer_peek(consumer, 1, &messages, &count));
    OK(ringmem_consumer_pop(consumer, &message));
    CHECK(message.id == 3);
    FAILS(ringmem_consumer_release(consumer, 1), RINGMEM_STATUS_INVALID, "of 0 peeked messages");
    OK(ringmem_consumer_pop(consumer, &message));
    CHECK(message.id == 4);
    for (int push = 0; push < 4; ++push) OK(ringmem_producer_push(producer, &message));
    FAILS(ringmem_producer_reserve(producer, 1, &slots, &count), RINGMEM_STATUS_FULL, "the ring is full");
    FAILS(ringmem_producer_commit(producer, 1), RINGMEM_STATUS_INVALID, "of 0 reserved slots");
    ringmem_consumer_close(consumer);
    ringmem_producer_close(producer);
}

static void other_messages_are_a_mismatch_with_both_values(void) {
    ringmem_ring *ring = created(4);
    ringmem_producer *producer = NULL;
    ringmem_consumer *consumer = NULL;
    ringmem_message other = SAMPLE;
    other.abi = 7;
    FAILS(ringmem_producer_open(ring, &other, &producer), RINGMEM_STATUS_MISMATCH, "0x1234567890abcdef, expected 0x0000000000000007");
    other = SAMPLE;
    other.kind = 8;
    FAILS(ringmem_consumer_open(ring, &other, &consumer), RINGMEM_STATUS_MISMATCH, "kind 7, expected 8");
    other = SAMPLE;
    other.size = 24;
    FAILS(ringmem_consumer_open(ring, &other, &consumer), RINGMEM_STATUS_MISMATCH, "slots of 16 bytes, expected 24");
    other = SAMPLE;
    other.align = 32;
    FAILS(ringmem_producer_open(ring, &other, &producer), RINGMEM_STATUS_MISMATCH, "not a multiple of 32");
    other.align = 3;
    FAILS(ringmem_producer_open(ring, &other, &producer), RINGMEM_STATUS_INVALID, "invalid alignment: 3 is no power of two");
    FAILS(ringmem_consumer_open(ring, &other, &consumer), RINGMEM_STATUS_INVALID, "invalid alignment: 3 is no power of two");
    ringmem_owner_state state;
    uint64_t generation;
    OK(ringmem_ring_consumer_state(ring, &state, &generation));
    CHECK(state == RINGMEM_OWNER_STATE_NOT_YET && generation == 0);
    CHECK(producer == NULL && consumer == NULL);
    ringmem_ring_close(ring);
}

static void rings_are_opened_by_path_and_descriptor(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/by-path", folder);
    ringmem_ring *ring = NULL, *again = NULL;
    FAILS(ringmem_ring_open(path, &ring), RINGMEM_STATUS_SYSTEM, "No such file");
    OK(ringmem_ring_create(path, &SAMPLE, 4, &ring));
    FAILS(ringmem_ring_create(path, &SAMPLE, 4, &again), RINGMEM_STATUS_SYSTEM, "it exists");
    OK(ringmem_ring_open(path, &again));
    ringmem_producer *producer = NULL;
    ringmem_consumer *consumer = NULL;
    OK(ringmem_producer_open(ring, &SAMPLE, &producer));
    OK(ringmem_consumer_open(again, &SAMPLE, &consumer));
    sample message = {5, 6};
    OK(ringmem_producer_push(producer, &message));
    message.id = 0;
    OK(ringmem_consumer_pop(consumer, &message));
    CHECK(message.id == 5);
    ringmem_producer_close(producer);
    ringmem_consumer_close(consumer);
    ringmem_ring_close(ring);
    ringmem_ring_close(again);

    ring = created(4);
    int fd = dup(ringmem_ring_fd(ring));
    OK(ringmem_ring_from_fd(fd, &again));
    CHECK(fcntl(fd, F_GETFD) == -1);
    ringmem_ring_close(again);
    ringmem_ring_close(ring);
    fd = memfd_create("empty", MFD_CLOEXEC);
    FAILS(ringmem_ring_from_fd(fd, &again), RINGMEM_STATUS_SYSTEM, "missing F_SEAL_SHRINK");
    CHECK(fcntl(fd, F_GETFD) != -1);
    close(fd);
    FAILS(ringmem_ring_from_fd(fd, &again), RINGMEM_STATUS_SYSTEM, "cannot duplicate descriptor");
    FAILS(ringmem_ring_from_fd(-1, &again), RINGMEM_STATUS_INVALID, "`fd` is -1");
    FAILS(ringmem_ring_from_fd(INT32_MIN, &again), RINGMEM_STATUS_INVALID, "no descriptor");
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fclose(file) == 0);
    FAILS(ringmem_ring_open(path, &again), RINGMEM_STATUS_MISMATCH, "too small");
}

static void waits_end_at_their_deadlines(void) {
    ringmem_ring *ring = created(1);
    ringmem_producer *producer = NULL;
    ringmem_consumer *consumer = NULL;
    OK(ringmem_consumer_open(ring, &SAMPLE, &consumer));
    uint64_t generation = 99;
    sample message = {1, 1};
    FAILS(ringmem_consumer_wait_for_peer(consumer, 1000000, &generation), RINGMEM_STATUS_TIMEOUT, "none has attached yet");
    CHECK(generation == 99);
    OK(ringmem_producer_open(ring, &SAMPLE, &producer));
    OK(ringmem_consumer_wait_for_peer(consumer, -1, &generation));
    CHECK(generation == 1);
    OK(ringmem_producer_wait_for_peer(producer, INT64_MAX, &generation));
    const int64_t timeouts[] = {0, 1, 1000000};
    for (int place = 0; place < 3; ++place) {
        FAILS(ringmem_consumer_pop_wait(consumer, &message, timeouts[place]), RINGMEM_STATUS_TIMEOUT, "empty until the deadline");
        FAILS(ringmem_consumer_wait(consumer, timeouts[place]), RINGMEM_STATUS_TIMEOUT, "empty until the deadline");
    }
    OK(ringmem_producer_push_wait(producer, &message, 0));
    for (int place = 0; place < 3; ++place) {
        FAILS(ringmem_producer_push_wait(producer, &message, timeouts[place]), RINGMEM_STATUS_TIMEOUT, "full until the deadline");
        FAILS(ringmem_producer_wait(producer, timeouts[place]), RINGMEM_STATUS_TIMEOUT, "full until the deadline");
    }
    OK(ringmem_consumer_wait(consumer, INT64_MIN));
    ringmem_consumer_close(consumer);
    FAILS(ringmem_producer_push_wait(producer, &message, -1), RINGMEM_STATUS_DISCONNECTED, "the consumer has left or died");
    OK(ringmem_consumer_open(ring, &SAMPLE, &consumer));
    ringmem_producer_close(producer);
    OK(ringmem_consumer_pop_wait(consumer, &message, -1));
    FAILS(ringmem_consumer_pop_wait(consumer, &message, -1), RINGMEM_STATUS_DISCONNECTED, "no message remains");
    FAILS(ringmem_consumer_wait_for_peer(consumer, 0, &generation), RINGMEM_STATUS_TIMEOUT, "the last one was dropped");
    ringmem_consumer_close(consumer);
    ringmem_ring_close(ring);
}

#define MESSAGES 10000

static void *sends(void *end) {
    for (uint64_t id = 0; id < MESSAGES; ++id) {
        sample message = {id, 1};
        OK(ringmem_producer_push_wait(end, &message, LIMIT));
    }
    ringmem_producer_close(end);
    return NULL;
}

static void ends_wait_for_each_other_in_two_threads(void) {
    ringmem_ring *ring = created(2);
    ringmem_producer *producer = NULL;
    ringmem_consumer *consumer = NULL;
    OK(ringmem_producer_open(ring, &SAMPLE, &producer));
    OK(ringmem_consumer_open(ring, &SAMPLE, &consumer));
    ringmem_ring_close(ring);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sends, producer) == 0);
    sample message;
    for (uint64_t id = 0; id < MESSAGES; ++id) {
        OK(ringmem_consumer_pop_wait(consumer, &message, LIMIT));
        CHECK(message.id == id);
    }
    FAILS(ringmem_consumer_pop_wait(consumer, &message, LIMIT), RINGMEM_STATUS_DISCONNECTED, "no message remains");
    CHECK(pthread_join(thread, NULL) == 0);
    ringmem_consumer_close(consumer);
}

static void a_killed_process_is_noticed(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/killed", folder);
    ringmem_ring *ring = NULL;
    OK(ringmem_ring_create(path, &SAMPLE, 4, &ring));
    ringmem_consumer *consumer = NULL;
    sample message = {0, 0};
    ringmem_owner_state state;
    for (uint64_t generation = 1; generation <= 2; ++generation) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            ringmem_ring *theirs = NULL;
            ringmem_producer *producer = NULL;
            OK(ringmem_ring_open(path, &theirs));
            OK(ringmem_producer_open(theirs, &SAMPLE, &producer));
            message.id = generation;
            OK(ringmem_producer_push(producer, &message));
            for (;;) pause();
        }
        if (consumer == NULL) OK(ringmem_consumer_open(ring, &SAMPLE, &consumer));
        uint64_t found = 0;
        OK(ringmem_consumer_wait_for_peer(consumer, LIMIT, &found));
        CHECK(found == generation);
        OK(ringmem_consumer_wait(consumer, LIMIT));
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        OK(ringmem_consumer_pop_wait(consumer, &message, LIMIT));
        CHECK(message.id == generation);
        FAILS(ringmem_consumer_pop_wait(consumer, &message, LIMIT), RINGMEM_STATUS_DISCONNECTED, "the producer has left or died");
        OK(ringmem_consumer_peer_state(consumer, &state, &found));
        CHECK(state == RINGMEM_OWNER_STATE_DIED && found == generation);
        FAILS(ringmem_consumer_wait_for_peer(consumer, 0, &found), RINGMEM_STATUS_TIMEOUT, "the last one died");
    }
    ringmem_consumer_close(consumer);
    ringmem_ring_close(ring);
}

static void wrong_indices_are_corrupt(void) {
    ringmem_ring *ring = created(4);
    ringmem_producer *producer = NULL;
    ringmem_consumer *consumer = NULL;
    OK(ringmem_producer_open(ring, &SAMPLE, &producer));
    OK(ringmem_consumer_open(ring, &SAMPLE, &consumer));
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ringmem_ring_fd(ring), 0);
    CHECK(memory != MAP_FAILED);
    volatile uint64_t *tail = (uint64_t *)(memory + RING), *head = (uint64_t *)(memory + RING + 128);
    sample message = {1, 1};
    size_t count = 0;
    void *slots = NULL;
    const void *messages = NULL;
    const uint64_t wrong[] = {5, UINT64_MAX, UINT64_C(1) << 63};
    for (int place = 0; place < 3; ++place) {
        *tail = wrong[place];
        FAILS(ringmem_consumer_pop(consumer, &message), RINGMEM_STATUS_CORRUPT, "is not within 4 slots of head 0");
        FAILS(ringmem_consumer_pop_many(consumer, &message, SIZE_MAX, &count), RINGMEM_STATUS_CORRUPT, "corrupt");
        FAILS(ringmem_consumer_pop_wait(consumer, &message, -1), RINGMEM_STATUS_CORRUPT, "corrupt");
        FAILS(ringmem_consumer_peek(consumer, SIZE_MAX, &messages, &count), RINGMEM_STATUS_CORRUPT, "corrupt");
        FAILS(ringmem_consumer_available(consumer, &count), RINGMEM_STATUS_CORRUPT, "corrupt");
    }
    *tail = 0;
    for (int push = 0; push < 4; ++push) OK(ringmem_producer_push(producer, &message));
    const uint64_t lower[] = {5, UINT64_MAX - 4, UINT64_C(1) << 63};
    for (int place = 0; place < 3; ++place) {
        *head = lower[place];
        FAILS(ringmem_producer_push(producer, &message), RINGMEM_STATUS_CORRUPT, "corrupt");
        FAILS(ringmem_producer_push_wait(producer, &message, -1), RINGMEM_STATUS_CORRUPT, "corrupt");
        FAILS(ringmem_producer_reserve(producer, SIZE_MAX, &slots, &count), RINGMEM_STATUS_CORRUPT, "corrupt");
        FAILS(ringmem_producer_free(producer, &count), RINGMEM_STATUS_CORRUPT, "corrupt");
    }
    // The other end moves its index back over slots that are lent.
    *head = 4;
    OK(ringmem_producer_reserve(producer, 4, &slots, &count));
    CHECK(count == 4);
    *head = 1;
    OK(ringmem_producer_free(producer, &count));
    CHECK(count == 1);
    FAILS(ringmem_producer_commit(producer, 2), RINGMEM_STATUS_CORRUPT, "moved its index back");
    CHECK(*tail == 4);
    OK(ringmem_producer_commit(producer, 1));
    CHECK(*tail == 5);
    *tail = 4;
    OK(ringmem_consumer_peek(consumer, 4, &messages, &count));
    CHECK(count == 4);
    *tail = 2;
    OK(ringmem_consumer_available(consumer, &count));
    CHECK(count == 2);
    FAILS(ringmem_consumer_release(consumer, 3), RINGMEM_STATUS_CORRUPT, "moved its index back");
    OK(ringmem_consumer_release(consumer, 2));
    CHECK(*head == 2);
    ringmem_producer_close(producer);
    *head = 100;
    FAILS(ringmem_producer_open(ring, &SAMPLE, &producer), RINGMEM_STATUS_CORRUPT, "corrupt");
    ringmem_consumer_close(consumer);
    ringmem_ring_close(ring);
    munmap(memory, 4096);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    // First, while there is one thread.
    a_killed_process_is_noticed(argv[1]);
    null_pointers_are_invalid_by_name();
    an_invalid_message_or_capacity_is_an_error();
    messages_are_pushed_and_popped();
    slots_are_filled_and_read_in_place();
    other_messages_are_a_mismatch_with_both_values();
    rings_are_opened_by_path_and_descriptor(argv[1]);
    waits_end_at_their_deadlines();
    ends_wait_for_each_other_in_two_threads();
    wrong_indices_are_corrupt();
    puts("ok");
    return 0;
}
