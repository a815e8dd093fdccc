// What one would write in C++ instead, and what this GPU's bus costs. `twin rings|launches|product` prints rows as `gpu_suite bench` does.
//
// rings: loads, stores and fences over the bus; the clock; the echo over a pair of rings, 64-byte messages to a kernel that keeps running, and back.
// launches: the same echo by one launch per batch, with and without copies and CUDA graphs, beside the ring; a FIFO from the kernel to the host.
// product: a matrix product alone and beside kernels that poll empty rings.
//
// Built where nvcc is. Every answer is checked. Kernels that wait leave when they are told to, or after ten seconds without a message. All memory is
// allocated before a kernel that waits is launched: an allocation may wait for it. Exit codes: 0 done, 1 not, 2 no such part.

#include <cuda/atomic>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

namespace {

constexpr uint64_t CAPACITY = 1024;
constexpr uint64_t BATCH = 128;
constexpr int UNDER_WAY = 16;
constexpr int DRY_POLLS = 16;
constexpr uint64_t IDLE_NS = 10'000'000'000;
// As the input's tail: no more messages.
constexpr uint64_t LEAVE = ~0ull;

struct alignas(64) Message {
    uint64_t words[8];
};

constexpr uint64_t PIECES = sizeof(Message) / sizeof(uint4);

using Index = cuda::atomic<uint64_t, cuda::thread_scope_system>;
using Word = cuda::atomic_ref<uint64_t, cuda::thread_scope_system>;

struct Ring {
    alignas(128) Index tail;
    alignas(128) Index head;
    alignas(128) Message slots[CAPACITY];
};

struct Shared {
    Ring input;
    Ring output;
};

__device__ uint64_t now() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// Signed: a clock that was set back has not passed anything.
__device__ bool passed(uint64_t since, uint64_t ns = IDLE_NS) {
    return static_cast<int64_t>(now() - since) > static_cast<int64_t>(ns);
}

__global__ void echo(Shared* shared) {
    Ring &input = shared->input, &output = shared->output;
    const unsigned lane = threadIdx.x;
    uint64_t head = 0, room = CAPACITY, last = now();
    unsigned dry = 0;
    for (;;) {
        uint64_t count = 0;
        if (lane == 0) {
            const uint64_t tail = input.tail.load(cuda::memory_order_acquire);
            count = tail - head;
            if (count > BATCH) count = BATCH;
            if (room < count) room = CAPACITY - (head - output.head.load(cuda::memory_order_acquire));
            if (room < count) count = room;
            if (tail == LEAVE || (count == 0 && ++dry % DRY_POLLS == 0 && passed(last))) count = LEAVE;
        }
        count = __shfl_sync(~0u, count, 0);
        if (count == LEAVE) return;
        if (count == 0) continue;
        // The shuffle orders nothing: the other lanes read after lane 0's acquire.
        __syncwarp();
        const auto* from = reinterpret_cast<const uint4*>(input.slots);
        auto* to = reinterpret_cast<uint4*>(output.slots);
        const uint64_t first = head * PIECES, pieces = count * PIECES;
        // Neighbouring lanes move neighbouring pieces; all loads of a turn are issued before the first store.
        for (uint64_t i = lane; i < pieces; i += 32 * UNDER_WAY) {
            uint4 piece[UNDER_WAY];
#pragma unroll
            for (int j = 0; j < UNDER_WAY; ++j) {
                if (i + 32 * j < pieces) piece[j] = from[(first + i + 32 * j) % (CAPACITY * PIECES)];
            }
#pragma unroll
            for (int j = 0; j < UNDER_WAY; ++j) {
                if (i + 32 * j < pieces) to[(first + i + 32 * j) % (CAPACITY * PIECES)] = piece[j];
            }
        }
        __syncwarp();
        head += count;
        if (lane == 0) {
            room -= count;
            cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system);
            output.tail.store(head, cuda::memory_order_relaxed);
            input.head.store(head, cuda::memory_order_relaxed);
            last = now();
        }
        __syncwarp();
    }
}

bool fine(cudaError_t said, const char* call) {
    if (said != cudaSuccess) std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(said));
    return said == cudaSuccess;
}

using Clock = std::chrono::steady_clock;

uint64_t since(Clock::time_point begun) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count());
}

Message message(uint64_t number) {
    Message made;
    for (int j = 0; j < 8; ++j) made.words[j] = number + static_cast<uint64_t>(j);
    return made;
}

bool is(const Message& answer, uint64_t number) {
    const Message expected = message(number);
    return std::memcmp(&answer, &expected, sizeof answer) == 0;
}

// The host's ends, which know what they have published and looked at.
struct Host {
    Shared* shared;
    uint64_t sent = 0, received = 0, taken = 0, arrived = 0;

    uint64_t send(uint64_t most) {
        if (CAPACITY - (sent - taken) < most) taken = shared->input.head.load(cuda::memory_order_acquire);
        const uint64_t count = std::min(most, CAPACITY - (sent - taken));
        for (uint64_t i = 0; i < count; ++i) shared->input.slots[(sent + i) % CAPACITY] = message(sent + i);
        sent += count;
        if (count) shared->input.tail.store(sent, cuda::memory_order_release);
        return count;
    }

    // How many came, or -1 where one is not as it was sent.
    int64_t receive(uint64_t most) {
        if (arrived == received) arrived = shared->output.tail.load(cuda::memory_order_acquire);
        const uint64_t count = std::min(most, arrived - received);
        for (uint64_t i = 0; i < count; ++i) {
            if (!is(shared->output.slots[(received + i) % CAPACITY], received + i)) return -1;
        }
        received += count;
        if (count) shared->output.head.store(received, cuda::memory_order_release);
        return static_cast<int64_t>(count);
    }

    // Sends and receives so many, at most `window` at a time.
    bool exchange(uint64_t messages, uint64_t window) {
        const uint64_t last = received + messages;
        auto moved = Clock::now();
        while (received < last) {
            const uint64_t went = send(std::min(window, last - sent));
            const int64_t came = receive(window);
            if (came < 0) {
                std::fprintf(stderr, "message %llu came back otherwise\n", static_cast<unsigned long long>(received));
                return false;
            }
            if (went || came) {
                moved = Clock::now();
            } else if (since(moved) > IDLE_NS / 2) {
                std::fprintf(stderr, "%llu messages came back, then none\n", static_cast<unsigned long long>(received));
                return false;
            }
        }
        return true;
    }
};

// The GPU's name, as rows have it.
char source[sizeof(cudaDeviceProp::name) + 4];
int multiprocessors;

bool look_at_device() {
    cudaDeviceProp properties;
    if (!fine(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties")) return false;
    std::snprintf(source, sizeof source, "gpu:%s", properties.name);
    multiprocessors = properties.multiProcessorCount;
    return true;
}

void row(const std::string& workload, const char* subject, const char* unit, std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    std::printf(
        "{\"bench\":\"twin\",\"workload\":\"%s\",\"subject\":\"%s\",\"unit\":\"%s\",\"median\":%.1f,\"low\":%.1f,\"high\":%.1f,"
        "\"ratio\":null,\"aim\":null,\"limit\":null,\"source\":\"%s\",\"class\":\"\"}\n",
        workload.c_str(), subject, unit, samples[samples.size() / 2], samples.front(), samples.back(), source);
    std::fflush(stdout);
}

constexpr int TURNS = 11;

template <class T>
T* pinned(size_t count) {
    void* memory = nullptr;
    if (!fine(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped), "cudaHostAlloc")) return nullptr;
    std::memset(memory, 0, count * sizeof(T));
    return static_cast<T*>(memory);
}

// With unified addressing, the device sees pinned memory at the host's address.
template <class T>
T* on_device(T* memory) {
    void* seen = nullptr;
    if (!fine(cudaHostGetDevicePointer(&seen, memory, 0), "cudaHostGetDevicePointer")) return nullptr;
    return static_cast<T*>(seen);
}

template <class T>
T* device(size_t count) {
    void* memory = nullptr;
    if (!fine(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc")) return nullptr;
    // Streams that do not block do not wait for it.
    const bool zeroed = fine(cudaMemset(memory, 0, count * sizeof(T)), "cudaMemset") && fine(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    return zeroed ? static_cast<T*>(memory) : nullptr;
}

bool synchronized(cudaStream_t stream) {
    return fine(cudaGetLastError(), "launch") && fine(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

// An idle GPU runs at a sixth of its clock, and takes part of a second to raise it.
__global__ void spin(uint64_t ns) {
    const uint64_t begun = now();
    while (now() - begun < ns) {
    }
}

// ---- loads, stores and fences over the bus

struct Spent {
    uint64_t ns, cycles, value;
};

// Each load's address depends on the load before it.
__global__ void load_chain(uint64_t* words, int loads, bool acquires, Spent* spent) {
    uint64_t place = 0;
    const uint64_t begun = now(), first = clock64();
    for (int i = 0; i < loads; ++i) place = Word(words[place]).load(acquires ? cuda::memory_order_acquire : cuda::memory_order_relaxed);
    *spent = {now() - begun, clock64() - first, place};
}

__global__ void store_each(uint64_t* word, int stores, bool fences, Spent* spent) {
    const uint64_t begun = now(), first = clock64();
    for (int i = 0; i < stores; ++i) {
        Word(*word).store(static_cast<uint64_t>(i), cuda::memory_order_relaxed);
        if (fences) cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system);
    }
    // Until all have arrived, not only been issued.
    if (!fences) cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system);
    *spent = {now() - begun, clock64() - first, 0};
}

// In `value` the smallest step between two different readings, in `ns` the time of all readings.
__global__ void read_clock(int readings, Spent* spent) {
    const uint64_t begun = now(), first = clock64();
    uint64_t step = ~0ull, last = begun;
    for (int i = 0; i < readings; ++i) {
        const uint64_t read = now();
        if (read != last && read - last < step) step = read - last;
        last = read;
    }
    *spent = {last - begun, clock64() - first, step};
}

bool measure_bus() {
    constexpr int TIMES = 2000, STORES = 20'000;
    auto* host = pinned<uint64_t>(64);
    auto* spent = pinned<Spent>(1);
    auto* memory = device<uint64_t>(64);
    if (!host || !spent || !memory) return false;
    uint64_t* seen = on_device(host);
    Spent* out = on_device(spent);
    if (!seen || !out) return false;
    // Runs a kernel TURNS times after once, which loads its code.
    const auto rows = [&](const char* workload, const char* subject, int times, const std::function<void()>& launch) {
        std::vector<double> ns, cycles;
        for (int turn = 0; turn <= TURNS; ++turn) {
            launch();
            if (!synchronized(nullptr)) return false;
            if (turn == 0) continue;
            ns.push_back(static_cast<double>(spent->ns) / times);
            cycles.push_back(static_cast<double>(spent->cycles) / times);
        }
        row(workload, subject, "ns", ns);
        row(workload, subject, "cycles", cycles);
        return true;
    };
    for (const bool acquires : {false, true}) {
        const char* subject = acquires ? "acquire load" : "relaxed load";
        if (!rows("read-pinned", subject, TIMES, [&] { load_chain<<<1, 1>>>(seen, TIMES, acquires, out); })) return false;
        if (!rows("read-device", subject, TIMES, [&] { load_chain<<<1, 1>>>(memory, TIMES, acquires, out); })) return false;
    }
    for (const bool fences : {false, true}) {
        const char* subject = fences ? "store and fence" : "store";
        if (!rows("write-pinned", subject, STORES, [&] { store_each<<<1, 1>>>(seen, STORES, fences, out); })) return false;
    }
    constexpr int READINGS = 200'000;
    if (!rows("globaltimer", "a reading", READINGS, [&] { read_clock<<<1, 1>>>(READINGS, out); })) return false;
    row("globaltimer", "its step", "ns", {static_cast<double>(spent->value)});
    cudaFreeHost(host);
    cudaFreeHost(spent);
    cudaFree(memory);
    return true;
}

// ---- the ring

// Runs `measure` over rings whose kernel runs meanwhile.
bool over_rings(const std::function<bool(Host&)>& measure) {
    void* memory = nullptr;
    if (!fine(cudaHostAlloc(&memory, sizeof(Shared), cudaHostAllocMapped), "cudaHostAlloc")) return false;
    auto* shared = new (memory) Shared{};
    Shared* seen = on_device(shared);
    if (!seen) return false;
    cudaStream_t stream;
    if (!fine(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags")) return false;
    echo<<<1, 32, 0, stream>>>(seen);
    if (!fine(cudaGetLastError(), "launch")) return false;
    Host host{shared};
    const bool done = measure(host);
    shared->input.tail.store(LEAVE, cuda::memory_order_release);
    const bool left = synchronized(stream);
    cudaStreamDestroy(stream);
    cudaFreeHost(memory);
    return done && left;
}

bool measure_rings(Host& host) {
    if (!host.exchange(10'000, 64)) return false;
    std::vector<double> medians, tails;
    std::vector<uint64_t> all;
    for (int turn = 0; turn < TURNS; ++turn) {
        std::vector<uint64_t> each;
        for (int i = 0; i < 1000; ++i) {
            const auto begun = Clock::now();
            if (!host.exchange(1, 1)) return false;
            each.push_back(since(begun));
        }
        std::sort(each.begin(), each.end());
        medians.push_back(static_cast<double>(each[each.size() / 2]));
        tails.push_back(static_cast<double>(each[each.size() * 99 / 100]));
        all.insert(all.end(), each.begin(), each.end());
    }
    std::sort(all.begin(), all.end());
    row("round-trip", "C++ twin", "ns, p50", medians);
    row("round-trip-p99", "C++ twin", "ns, p99", tails);
    row("round-trip-p999", "C++ twin", "ns, p99.9", {static_cast<double>(all[all.size() * 999 / 1000])});
    std::vector<double> times;
    for (int turn = 0; turn < TURNS; ++turn) {
        constexpr uint64_t MESSAGES = 200'000;
        const auto begun = Clock::now();
        if (!host.exchange(MESSAGES, 64)) return false;
        times.push_back(static_cast<double>(since(begun)) / MESSAGES);
    }
    row("messages", "C++ twin", "ns/message", times);
    // A store that the host has executed is no message that has arrived.
    times.clear();
    for (int turn = 0; turn < TURNS; ++turn) {
        constexpr uint64_t MESSAGES = CAPACITY / 2;
        const auto begun = Clock::now();
        for (uint64_t i = 0; i < MESSAGES; ++i) {
            if (host.send(1) != 1) return false;
        }
        times.push_back(static_cast<double>(since(begun)) / MESSAGES);
        if (!host.exchange(MESSAGES, 64)) return false;
    }
    row("send-alone", "C++ twin", "ns/message", times);
    return true;
}

// ---- one launch per batch

__global__ void answer(const uint4* from, uint4* to, uint64_t pieces) {
    const uint64_t piece = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (piece < pieces) to[piece] = from[piece];
}

constexpr uint64_t SIZES[] = {1, 16, 128, 1024, 16384};
constexpr uint64_t MOST = 16384;

struct Launches {
    Message *input, *output;
    Message *mapped_input, *mapped_output;
    Message *device_input, *device_output;
    cudaStream_t stream;

    bool open() {
        input = pinned<Message>(MOST);
        output = pinned<Message>(MOST);
        device_input = device<Message>(MOST);
        device_output = device<Message>(MOST);
        if (!input || !output || !device_input || !device_output) return false;
        mapped_input = on_device(input);
        mapped_output = on_device(output);
        return mapped_input && mapped_output && fine(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }

    void close() {
        cudaStreamDestroy(stream);
        cudaFreeHost(input);
        cudaFreeHost(output);
        cudaFree(device_input);
        cudaFree(device_output);
    }

    void launch(const Message* from, Message* to, uint64_t count) const {
        const uint64_t pieces = count * PIECES;
        answer<<<static_cast<unsigned>((pieces + 255) / 256), 256, 0, stream>>>(
            reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), pieces);
    }

    // Queues the work of one batch.
    bool queue(uint64_t count, bool copies) const {
        if (!copies) {
            launch(mapped_input, mapped_output, count);
            return true;
        }
        const size_t bytes = count * sizeof(Message);
        if (!fine(cudaMemcpyAsync(device_input, input, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync")) return false;
        launch(device_input, device_output, count);
        return fine(cudaMemcpyAsync(output, device_output, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    }

    bool graph(uint64_t count, bool copies, cudaGraphExec_t* made) const {
        cudaGraph_t captured;
        if (!fine(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture")) return false;
        const bool queued = queue(count, copies);
        if (!fine(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture") || !queued) return false;
        const bool is_made = fine(cudaGraphInstantiateWithFlags(made, captured, 0), "cudaGraphInstantiateWithFlags");
        cudaGraphDestroy(captured);
        return is_made;
    }

    // Writes, sends, waits for and checks batches; nanoseconds a batch, or a negative number.
    double batches(uint64_t count, int times, const std::function<bool()>& submit) const {
        const auto begun = Clock::now();
        for (int i = 0; i < times; ++i) {
            for (uint64_t j = 0; j < count; ++j) input[j] = message(static_cast<uint64_t>(i) + j);
            if (!submit() || !synchronized(stream)) return -1;
            for (uint64_t j = 0; j < count; ++j) {
                if (!is(output[j], static_cast<uint64_t>(i) + j)) {
                    std::fprintf(stderr, "message %llu of a batch came back otherwise\n", static_cast<unsigned long long>(j));
                    return -1;
                }
            }
        }
        return static_cast<double>(since(begun)) / times;
    }
};

bool measure_launches() {
    Launches launches;
    if (!launches.open()) return false;
    double best[std::size(SIZES)];
    bool done = true;
    for (size_t nth = 0; done && nth < std::size(SIZES); ++nth) {
        const uint64_t count = SIZES[nth];
        const std::string workload = "batch-" + std::to_string(count);
        const int times = count < 1024 ? 200 : 20;
        best[nth] = 1e18;
        for (int way = 0; done && way < 4; ++way) {
            const bool copies = way & 1, replays = way & 2;
            cudaGraphExec_t graph = nullptr;
            if (replays && !launches.graph(count, copies, &graph)) return false;
            std::vector<double> samples;
            for (int turn = 0; done && turn <= TURNS; ++turn) {
                const double took = launches.batches(count, times, [&] {
                    return replays ? fine(cudaGraphLaunch(graph, launches.stream), "cudaGraphLaunch") : launches.queue(count, copies);
                });
                done = took >= 0;
                if (turn > 0) samples.push_back(took);
            }
            if (graph) cudaGraphExecDestroy(graph);
            if (!done) break;
            constexpr const char* NAMES[] = {"launch, mapped", "copy, launch, copy", "graph, mapped", "graph, copies"};
            row(workload, NAMES[way], "ns/batch", samples);
            std::sort(samples.begin(), samples.end());
            best[nth] = std::min(best[nth], samples[samples.size() / 2]);
        }
    }
    launches.close();
    double crossover = 0;
    done = done && over_rings([&](Host& host) {
        for (size_t nth = 0; nth < std::size(SIZES); ++nth) {
            const uint64_t count = SIZES[nth];
            const int times = count < 1024 ? 200 : 20;
            std::vector<double> samples;
            for (int turn = 0; turn <= TURNS; ++turn) {
                const auto begun = Clock::now();
                for (int i = 0; i < times; ++i) {
                    if (!host.exchange(count, std::min(count, BATCH))) return false;
                }
                if (turn > 0) samples.push_back(static_cast<double>(since(begun)) / times);
            }
            row("batch-" + std::to_string(count), "ring, kernel stays", "ns/batch", samples);
            std::sort(samples.begin(), samples.end());
            if (crossover == 0 && best[nth] < samples[samples.size() / 2]) crossover = static_cast<double>(count);
        }
        return true;
    });
    // No row: the ring is faster at each size.
    if (crossover > 0) row("batch-crossover", "launch faster than the ring", "messages", {crossover});
    return done;
}

// ---- a FIFO from the kernel to the host

constexpr uint64_t ENTRIES = 512;

// The lowest bit of `first` says in which lap the entry was written; memory begins as that of a lap before the first.
struct alignas(16) Entry {
    uint64_t first, second;
};

struct Fifo {
    Entry entries[ENTRIES];
    alignas(128) Index tail;
};

// Any thread pushes. A ticket gives it a slot, which it fills by one 16-byte store.
__global__ void push(Fifo* fifo, uint64_t* tickets, uint64_t count, uint64_t* late) {
    const uint64_t begun = now();
    uint64_t tail = 0;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t ticket = cuda::atomic_ref<uint64_t, cuda::thread_scope_device>(*tickets).fetch_add(1, cuda::memory_order_relaxed);
        while (ticket >= tail + ENTRIES) {
            tail = fifo->tail.load(cuda::memory_order_acquire);
            if (passed(begun)) {
                *late = 1;
                return;
            }
        }
        const uint64_t first = ticket << 1 | ((ticket / ENTRIES & 1) ^ 1);
        asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(&fifo->entries[ticket % ENTRIES]), "l"(first), "l"(~ticket) : "memory");
    }
}

bool measure_fifo() {
    void* memory = nullptr;
    if (!fine(cudaHostAlloc(&memory, sizeof(Fifo), cudaHostAllocMapped), "cudaHostAlloc")) return false;
    auto* tickets = device<uint64_t>(1);
    auto* late = pinned<uint64_t>(1);
    cudaStream_t stream;
    if (!tickets || !late || !fine(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags")) return false;
    struct Shape {
        const char* subject;
        unsigned blocks, lanes;
    };
    bool done = true;
    for (const Shape& shape : {Shape{"one lane", 1, 1}, Shape{"one warp", 1, 32}, Shape{"a lane on each multiprocessor", static_cast<unsigned>(multiprocessors), 1}}) {
        const uint64_t threads = uint64_t{shape.blocks} * shape.lanes;
        const uint64_t each = 100'000 / threads;
        std::vector<double> samples;
        for (int turn = 0; done && turn <= TURNS; ++turn) {
            auto* fifo = new (memory) Fifo{};
            Fifo* seen = on_device(fifo);
            if (!seen || !fine(cudaMemsetAsync(tickets, 0, sizeof *tickets, stream), "cudaMemsetAsync")) return false;
            if (!synchronized(stream)) return false;
            uint64_t torn = 0, taken = 0;
            push<<<shape.blocks, shape.lanes, 0, stream>>>(seen, tickets, each, on_device(late));
            if (!fine(cudaGetLastError(), "launch")) return false;
            auto moved = Clock::now();
            const auto begun = moved;
            for (; taken < each * threads; ++taken) {
                Entry& entry = fifo->entries[taken % ENTRIES];
                const uint64_t lap = (taken / ENTRIES & 1) ^ 1;
                uint64_t first;
                for (int polls = 1; ((first = Word(entry.first).load(cuda::memory_order_acquire)) & 1) != lap; ++polls) {
                    if (polls % 1024 == 0 && since(moved) > IDLE_NS / 2) {
                        std::fprintf(stderr, "%llu entries came, then none\n", static_cast<unsigned long long>(taken));
                        done = false;
                        break;
                    }
                }
                if (!done) break;
                const uint64_t second = Word(entry.second).load(cuda::memory_order_relaxed);
                torn += first >> 1 != taken || second != ~taken;
                if (taken % 64 == 63) {
                    fifo->tail.store(taken + 1, cuda::memory_order_release);
                    moved = Clock::now();
                }
            }
            const double took = static_cast<double>(since(begun)) / static_cast<double>(each * threads);
            // A kernel that waits for room goes on.
            fifo->tail.store(each * threads, cuda::memory_order_release);
            done = synchronized(stream) && done && *late == 0;
            if (torn) {
                std::fprintf(stderr, "%llu entries of %llu are torn\n", static_cast<unsigned long long>(torn), static_cast<unsigned long long>(taken));
                done = false;
            }
            if (turn > 0) samples.push_back(took);
        }
        if (!done) break;
        row("fifo", shape.subject, "ns/entry", samples);
    }
    cudaStreamDestroy(stream);
    cudaFreeHost(memory);
    cudaFreeHost(late);
    cudaFree(tickets);
    return done;
}

// ---- a matrix product beside idle rings

// A multiple of 32 and 15: blocks of 480 threads leave each multiprocessor room for the warp that polls.
constexpr int SIDE = 960;
constexpr uint64_t POLL_NS = 2'000'000'000;

// Without shared memory: its operands come from the first-level cache, which an acquire by another warp of the multiprocessor empties.
__global__ void product(const float* a, const float* b, float* c) {
    const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
    float sum = 0;
    for (int k = 0; k < SIDE; ++k) sum += a[y * SIDE + k] * b[k * SIDE + x];
    c[y * SIDE + x] = sum;
}

// Polls a word as ringmem's kernels poll an empty ring: 32 times at once, then each 64 ns, from the 1024th on each microsecond.
__global__ void poll(uint64_t* words, bool acquires) {
    const uint64_t begun = now();
    for (unsigned dry = 0; threadIdx.x == 0; ++dry) {
        Word word(words[blockIdx.x * 16]);
        if (word.load(acquires ? cuda::memory_order_acquire : cuda::memory_order_relaxed) != 0) return;
        if (dry >= 32) __nanosleep(dry < 1024 ? 64 : 1000);
        if (dry % 64 == 63 && passed(begun, POLL_NS)) return;
    }
}

bool measure_product() {
    constexpr size_t CELLS = size_t{SIDE} * SIDE;
    const size_t lines = static_cast<size_t>(multiprocessors);
    auto* words = pinned<uint64_t>(lines * 16);
    auto *a = device<float>(CELLS), *b = device<float>(CELLS), *c = device<float>(CELLS);
    if (!words || !a || !b || !c) return false;
    const std::vector<float> ones(CELLS, 1.0f);
    for (float* to : {a, b}) {
        if (!fine(cudaMemcpy(to, ones.data(), CELLS * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy")) return false;
    }
    // The copies are staged, not done.
    if (!synchronized(nullptr)) return false;
    uint64_t* seen = on_device(words);
    cudaStream_t stream, idle;
    if (!fine(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags")) return false;
    if (!seen || !fine(cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags")) return false;
    struct Beside {
        const char* subject;
        unsigned rings;
        bool acquires;
    };
    const unsigned all = static_cast<unsigned>(multiprocessors);
    const Beside cases[] = {
        {"alone", 0, false},
        {"beside 1 idle ring, acquire polls", 1, true},
        {"beside an idle ring per multiprocessor, acquire polls", all, true},
        {"beside an idle ring per multiprocessor, relaxed polls", all, false},
    };
    std::vector<double> samples[std::size(cases)];
    for (int turn = 0; turn <= TURNS; ++turn) {
        for (size_t nth = 0; nth < std::size(cases); ++nth) {
            const Beside& beside = cases[nth];
            std::memset(words, 0, lines * 16 * sizeof *words);
            if (beside.rings) poll<<<beside.rings, 32, 0, idle>>>(seen, beside.acquires);
            // Until they poll at their slowest: 1024 polls, of less than 5 us each.
            for (const auto launched = Clock::now(); since(launched) < 5'000'000;) {
            }
            constexpr int PRODUCTS = 10;
            const auto begun = Clock::now();
            for (int i = 0; i < PRODUCTS; ++i) product<<<dim3(SIDE / 32, SIDE / 15), dim3(32, 15), 0, stream>>>(a, b, c);
            const bool done = synchronized(stream);
            const double took = static_cast<double>(since(begun)) / 1e3 / PRODUCTS;
            for (size_t line = 0; line < lines; ++line) Word(words[line * 16]).store(1, cuda::memory_order_release);
            if (!synchronized(idle) || !done) return false;
            if (took * PRODUCTS * 1e3 > POLL_NS / 2) {
                std::fprintf(stderr, "%s: the product waited for what polls\n", beside.subject);
                return false;
            }
            if (turn > 0) samples[nth].push_back(took);
        }
    }
    std::vector<float> sums(CELLS);
    if (!fine(cudaMemcpy(sums.data(), c, CELLS * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy")) return false;
    if (std::any_of(sums.begin(), sums.end(), [](float sum) { return sum != static_cast<float>(SIDE); })) {
        std::fprintf(stderr, "the product is wrong\n");
        return false;
    }
    for (size_t nth = 0; nth < std::size(cases); ++nth) row("product", cases[nth].subject, "us/product", samples[nth]);
    return true;
}

}  // namespace

int main(int count, char** arguments) {
    const std::string part = count == 2 ? arguments[1] : "";
    if (part != "rings" && part != "launches" && part != "product") {
        std::fprintf(stderr, "usage: twin rings|launches|product\n");
        return 2;
    }
    // The first launch of a kernel that is not loaded waits for those that run.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (!fine(cudaSetDeviceFlags(cudaDeviceScheduleSpin | cudaDeviceMapHost), "cudaSetDeviceFlags") || !look_at_device()) return 1;
    spin<<<static_cast<unsigned>(multiprocessors), 32>>>(1'000'000'000);
    if (!synchronized(nullptr)) return 1;
    // What fails does not keep the rest from being measured.
    bool done = true;
    if (part == "rings") {
        done = measure_bus() && done;
        done = over_rings(measure_rings) && done;
    } else if (part == "launches") {
        done = measure_launches() && done;
        done = measure_fifo() && done;
    } else {
        done = measure_product() && done;
    }
    return done ? 0 : 1;
}
