// The echo over a pair of rings as one would write it in C++: 64-byte messages to a kernel that keeps running, and back.
//
// Built where nvcc is; prints rows as `ringmem bench` does: `round-trip` and `messages`. Both rings lie in pinned memory that the kernel sees, each
// index on a line of its own; a warp copies a batch of up to 128 messages, lane 0 makes it visible by one fence. Every answer is checked.
// The kernel leaves when it is told to, or after ten seconds without a message. Exit codes: 0 done, 1 not.

#include <cuda/atomic>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

namespace {

constexpr uint64_t CAPACITY = 1024;
constexpr uint64_t BATCH = 128;
constexpr int UNDER_WAY = 16;
constexpr int DRY_POLLS = 16;
constexpr uint64_t IDLE_NS = 10'000'000'000;

struct alignas(64) Message {
    uint64_t words[8];
};

constexpr uint64_t PIECES = sizeof(Message) / sizeof(uint4);

using Index = cuda::atomic<uint64_t, cuda::thread_scope_system>;

struct Ring {
    alignas(128) Index tail;
    alignas(128) Index head;
    alignas(128) Message slots[CAPACITY];
};

struct Shared {
    Ring input;
    Ring output;
    alignas(128) Index leave;
};

__device__ uint64_t now() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

__global__ void echo(Shared* shared) {
    Ring &input = shared->input, &output = shared->output;
    const unsigned lane = threadIdx.x;
    uint64_t head = 0, room = CAPACITY, last = now();
    unsigned dry = 0;
    for (;;) {
        uint64_t count = 0;
        if (lane == 0) {
            count = input.tail.load(cuda::memory_order_acquire) - head;
            if (count > BATCH) count = BATCH;
            if (room < count) room = CAPACITY - (head - output.head.load(cuda::memory_order_acquire));
            if (room < count) count = room;
            // Each is another round trip over the bus.
            if (count == 0 && ++dry % DRY_POLLS == 0 && (shared->leave.load(cuda::memory_order_relaxed) != 0 || now() - last > IDLE_NS)) count = ~0ull;
        }
        count = __shfl_sync(~0u, count, 0);
        if (count == ~0ull) return;
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
            last = now();
            cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system);
            output.tail.store(head, cuda::memory_order_relaxed);
            input.head.store(head, cuda::memory_order_relaxed);
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

bool name_source() {
    cudaDeviceProp properties;
    if (!fine(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties")) return false;
    std::snprintf(source, sizeof source, "gpu:%s", properties.name);
    return true;
}

void row(const char* workload, const char* unit, std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    std::printf(
        "{\"bench\":\"echo_twin\",\"workload\":\"%s\",\"subject\":\"C++ twin\",\"unit\":\"%s\",\"median\":%.1f,\"low\":%.1f,\"high\":%.1f,"
        "\"ratio\":null,\"aim\":null,\"limit\":null,\"source\":\"%s\",\"class\":\"\"}\n",
        workload, unit, samples[samples.size() / 2], samples.front(), samples.back(), source);
}

bool measure(Host& host) {
    if (!host.exchange(10'000, 64)) return false;
    std::vector<double> times;
    for (int turn = 0; turn < 11; ++turn) {
        std::vector<uint64_t> each;
        for (int i = 0; i < 1000; ++i) {
            const auto begun = Clock::now();
            if (!host.exchange(1, 1)) return false;
            each.push_back(since(begun));
        }
        std::sort(each.begin(), each.end());
        times.push_back(static_cast<double>(each[each.size() / 2]));
    }
    row("round-trip", "ns, p50", times);
    times.clear();
    for (int turn = 0; turn < 11; ++turn) {
        constexpr uint64_t MESSAGES = 200'000;
        const auto begun = Clock::now();
        if (!host.exchange(MESSAGES, 64)) return false;
        times.push_back(static_cast<double>(since(begun)) / MESSAGES);
    }
    row("messages", "ns/message", times);
    return true;
}

}  // namespace

int main() {
    void* memory = nullptr;
    if (!name_source()) return 1;
    if (!fine(cudaHostAlloc(&memory, sizeof(Shared), cudaHostAllocMapped), "cudaHostAlloc")) return 1;
    auto* shared = new (memory) Shared{};
    void* seen = nullptr;
    if (!fine(cudaHostGetDevicePointer(&seen, memory, 0), "cudaHostGetDevicePointer")) return 1;
    echo<<<1, 32>>>(static_cast<Shared*>(seen));
    if (!fine(cudaGetLastError(), "launch")) return 1;
    Host host{shared};
    const bool done = measure(host);
    shared->leave.store(1, cuda::memory_order_release);
    const bool left = fine(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    cudaFreeHost(memory);
    return done && left ? 0 : 1;
}
