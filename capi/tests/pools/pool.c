/* A pool through the C interface alone: `pool simulated` or `pool cuda`. */
#include "ringmem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                                      \
    do {                                                                                                                 \
        ringmem_status status = (call);                                                                                  \
        if (status != RINGMEM_STATUS_OK) {                                                                               \
            fprintf(stderr, "%s: %s: %s\n", #call, ringmem_status_name(status), ringmem_last_error());                   \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

enum { BYTES = 100000 };

int main(int count, char **arguments) {
    ringmem_devices *devices = NULL;
    if (count == 2 && strcmp(arguments[1], "cuda") == 0) {
        CHECK(ringmem_cuda_open(&devices));
    } else {
        CHECK(ringmem_simulated_open(1, 64u << 20, &devices));
    }
    ringmem_pool_options options = {.size = sizeof options, .memory = RINGMEM_MEMORY_DEVICE, .limit = 32u << 20};
    ringmem_pool *pool = NULL;
    CHECK(ringmem_pool_create(devices, &options, &pool));
    void *stream = NULL, *first = NULL, *second = NULL;
    CHECK(ringmem_stream_create(devices, 0, &stream));
    CHECK(ringmem_pool_allocate(pool, BYTES, stream, &first));
    CHECK(ringmem_fill(devices, 0, first, 42, BYTES, stream));
    static unsigned char host[BYTES];
    CHECK(ringmem_copy(devices, 0, host, first, BYTES, RINGMEM_DIRECTION_TO_HOST, stream));
    CHECK(ringmem_pool_free(pool, first, stream));
    CHECK(ringmem_pool_allocate(pool, BYTES, stream, &second));
    CHECK(ringmem_stream_synchronize(devices, 0, stream));
    for (int place = 0; place < BYTES; ++place) {
        if (host[place] != 42) return 2;
    }
    void *third = NULL;
    if (ringmem_pool_allocate(pool, 33u << 20, stream, &third) != RINGMEM_STATUS_OUT_OF_MEMORY) return 3;
    printf("%s\n", ringmem_last_error());
    ringmem_pool_statistics statistics = {.size = sizeof statistics};
    CHECK(ringmem_pool_read_statistics(pool, &statistics));
    printf("reused %d, %llu live, %llu allocations\n", first == second, (unsigned long long)statistics.live,
           (unsigned long long)statistics.allocations);
    CHECK(ringmem_pool_free(pool, second, stream));
    CHECK(ringmem_pool_close(pool));
    CHECK(ringmem_stream_destroy(devices, 0, stream));
    ringmem_devices_close(devices);
    return 0;
}
