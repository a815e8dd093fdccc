// The entry points as PyTorch uses them: loaded by name, called through std::function, with exceptions. `torch LIBRARY`.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <sys/types.h>

using Stream = void*; // cudaStream_t

template <class Function> Function* symbol(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("no ") + name);
    return reinterpret_cast<Function*>(found);
}

template <class Call> std::string thrown(Call call) {
    try {
        call();
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "nothing";
}

int main(int, char** arguments) try {
    void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const std::function<void*(size_t, int, Stream)> allocate = symbol<void*(size_t, int, Stream)>(library, "ringmem_torch_malloc");
    const std::function<void(void*, size_t, int, Stream)> release = symbol<void(void*, size_t, int, Stream)>(library, "ringmem_torch_free");
    const std::function<void(void*, Stream)> record = symbol<void(void*, Stream)>(library, "ringmem_torch_record_stream");
    const std::function<void(int)> init = symbol<void(int)>(library, "ringmem_torch_init");
    const std::function<void()> reset = symbol<void()>(library, "ringmem_torch_empty_cache");
    const std::function<void(double, int)> fraction = symbol<void(double, int)>(library, "ringmem_torch_set_memory_fraction");
    const std::function<void(int, std::pair<uint64_t, uint64_t>, std::function<bool(Stream)>)> begin =
        symbol<void(int, std::pair<uint64_t, uint64_t>, std::function<bool(Stream)>)>(library, "ringmem_torch_begin_allocate_to_pool");

    init(1);
    fraction(1.0, 0);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&] {
            std::vector<std::pair<void*, size_t>> live;
            for (size_t number = 0; number < 300; ++number) {
                const size_t bytes = 1 + number * 997 % 3000000;
                live.emplace_back(allocate(bytes, 0, nullptr), bytes);
                record(live.back().first, nullptr);
                if (live.size() > 4) {
                    release(live.front().first, live.front().second, 0, nullptr);
                    live.erase(live.begin());
                }
            }
            for (const auto& [address, bytes] : live) release(address, bytes, 0, nullptr);
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::printf("too much: %s\n", thrown([&] { allocate(size_t(1) << 40, 0, nullptr); }).c_str());
    std::printf("device: %s\n", thrown([&] { allocate(1, 7, nullptr); }).c_str());
    std::printf("graph: %s\n", thrown([&] { begin(0, {0, 1}, [](Stream) { return true; }); }).c_str());
    reset();
    void* live = allocate(1000, 0, nullptr);
    std::printf("unloaded: %d\n", dlclose(library));
    release(live, 1000, 0, nullptr); // the code is still there
    allocate(1000, 0, nullptr);      // live at the exit
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
