/* Reads every struct of the header from its input, checks each field by name, gives each another value and writes them all back.
 *
 * A field's value follows from its path and from nothing else, so a field that is read in another's place is noticed. C11 and C++11. */
#include "layouts.h"

#include <stdio.h>

static int wrong = 0;

/* FNV-1a of the path, then one step for each element: the same as in the Rust test. */
static uint64_t value(uint64_t turn, const char *path, uint64_t index) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ turn;
    while (*path) {
        hash = (hash ^ (unsigned char)*path++) * UINT64_C(0x00000100000001b3);
    }
    return hash + index * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t unsigned_of(uint64_t turn, const char *path, uint64_t index, size_t bytes) {
    return value(turn, path, index) >> (64 - 8 * bytes);
}

/* Always negative: a sign that is lost is noticed. */
static int64_t signed_of(uint64_t turn, const char *path, uint64_t index) {
    return -1 - (int64_t)(value(turn, path, index) & 0x7f);
}

/* Exact in 32 bits, and no integer. */
static double float_of(uint64_t turn, const char *path, uint64_t index) {
    return (double)(value(turn, path, index) & 0xffff) + 0.5;
}

static void check(int right, const char *path, uint64_t index) {
    if (!right) {
        fprintf(stderr, "%s, element %u: another value\n", path, (unsigned)index);
        wrong = 1;
    }
}

#define U(place, path, index) \
    (check((place) == unsigned_of(1, path, index, sizeof(place)), path, index), (void)((place) = unsigned_of(2, path, index, sizeof(place))))
#define S(place, path, index) (check((place) == signed_of(1, path, index), path, index), (void)((place) = signed_of(2, path, index)))
#define F(place, path, index) (check((place) == float_of(1, path, index), path, index), (void)((place) = float_of(2, path, index)))

/* A word of the struct at hand. */
#define W(type, field) U(it.field, #type "." #field, 0)
#define ALL(type, field) \
    for (size_t i = 0; i < sizeof(it.field) / sizeof(it.field[0]); i++) U(it.field[i], #type "." #field, i)

#define STRUCT(type) \
    type it; \
    if (fread(&it, sizeof it, 1, stdin) != 1) { \
        fprintf(stderr, "%s: too few bytes\n", #type); \
        return 1; \
    }
#define DONE \
    if (fwrite(&it, sizeof it, 1, stdout) != 1) { \
        return 1; \
    }

int main(void) {
    {
        STRUCT(BufferReference)
        W(BufferReference, registry), W(BufferReference, id), W(BufferReference, element), W(BufferReference, offset);
        W(BufferReference, length), W(BufferReference, flags), W(BufferReference, tag), W(BufferReference, _reserved);
        DONE
    }
    {
        STRUCT(ControlBlock)
        W(ControlBlock, abi), W(ControlBlock, capabilities), W(ControlBlock, command), W(ControlBlock, epoch);
        W(ControlBlock, input_ring), W(ControlBlock, output_ring), W(ControlBlock, telemetry), W(ControlBlock, input_second);
        W(ControlBlock, state), W(ControlBlock, command_seen), W(ControlBlock, error), W(ControlBlock, processed);
        W(ControlBlock, in_flight), W(ControlBlock, output_second), W(ControlBlock, heartbeat), W(ControlBlock, abi_seen);
        DONE
    }
    {
        STRUCT(RegionEntry)
        W(RegionEntry, kind), W(RegionEntry, offset), W(RegionEntry, size), W(RegionEntry, _reserved);
        DONE
    }
    {
        STRUCT(RegionHeader)
        W(RegionHeader, magic), W(RegionHeader, version), W(RegionHeader, size), W(RegionHeader, abi), W(RegionHeader, count);
        ALL(RegionHeader, _reserved);
        DONE
    }
    {
        STRUCT(RingHeader)
        W(RingHeader, producer.tail), W(RingHeader, producer.owner), W(RingHeader, producer.waiting);
        ALL(RingHeader, producer._reserved);
        W(RingHeader, consumer.head), W(RingHeader, consumer.owner), W(RingHeader, consumer.waiting);
        ALL(RingHeader, consumer._reserved);
        W(RingHeader, constants.magic), W(RingHeader, constants.abi), W(RingHeader, constants.capacity);
        W(RingHeader, constants.slot_size), W(RingHeader, constants.slots_offset), W(RingHeader, constants.flags);
        W(RingHeader, constants.message_kind);
        ALL(RingHeader, constants._reserved);
        DONE
    }
    {
        STRUCT(ConstantLine)
        W(ConstantLine, magic), W(ConstantLine, abi), W(ConstantLine, capacity), W(ConstantLine, slot_size);
        W(ConstantLine, slots_offset), W(ConstantLine, flags), W(ConstantLine, message_kind);
        ALL(ConstantLine, _reserved);
        DONE
    }
    {
        STRUCT(ConsumerLine)
        W(ConsumerLine, head), W(ConsumerLine, owner), W(ConsumerLine, waiting);
        ALL(ConsumerLine, _reserved);
        DONE
    }
    {
        STRUCT(ProducerLine)
        W(ProducerLine, tail), W(ProducerLine, owner), W(ProducerLine, waiting);
        ALL(ProducerLine, _reserved);
        DONE
    }
    {
        STRUCT(TelemetryBuffer)
        W(TelemetryBuffer, sequence), W(TelemetryBuffer, processed), W(TelemetryBuffer, dropped), W(TelemetryBuffer, latency_total_ns);
        W(TelemetryBuffer, latency_min_ns), W(TelemetryBuffer, latency_max_ns), W(TelemetryBuffer, depths), W(TelemetryBuffer, updated_ns);
        DONE
    }
    {
        STRUCT(Groups)
        W(Groups, epoch), W(Groups, input), W(Groups, output), W(Groups, reserved);
        W(Groups, published), W(Groups, refused), W(Groups, left);
        ALL(Groups, _reserved);
        DONE
    }
    {
        STRUCT(Burst)
        W(Burst, count);
        DONE
    }
    {
        STRUCT(Report)
        W(Report, number);
        DONE
    }
    {
        STRUCT(Echo)
        ALL(Echo, words);
        DONE
    }
    {
        STRUCT(Chunk)
        W(Chunk, id), W(Chunk, offset), W(Chunk, length), W(Chunk, first_word);
        DONE
    }
    {
        STRUCT(Counted)
        W(Counted, id), W(Counted, status), W(Counted, bytes), W(Counted, checksum);
        DONE
    }
    {
        STRUCT(Work)
        ALL(Work, totals);
        for (size_t i = 0; i < 32 * 256; i++) U(it.tables[i / 256][i % 256], "Work.tables", i);
        DONE
    }
    {
        STRUCT(Reduce)
        W(Reduce, id), W(Reduce, offset), W(Reduce, length), W(Reduce, number);
        DONE
    }
    {
        STRUCT(Reduced)
        W(Reduced, id), W(Reduced, status), W(Reduced, count), W(Reduced, sum), W(Reduced, least), W(Reduced, greatest);
        ALL(Reduced, _reserved);
        DONE
    }
    {
        STRUCT(Row)
        W(Row, sum), W(Row, least), W(Row, greatest);
        DONE
    }
    {
        STRUCT(Rows)
        for (size_t i = 0; i < 32; i++) {
            U(it.rows[i].sum, "Rows.rows.sum", i);
            U(it.rows[i].least, "Rows.rows.least", i);
            U(it.rows[i].greatest, "Rows.rows.greatest", i);
        }
        DONE
    }
    {
        STRUCT(Applied)
        W(Applied, id), W(Applied, status);
        DONE
    }
    {
        STRUCT(Apply)
        W(Apply, id), W(Apply, offset), W(Apply, length), W(Apply, operation);
        DONE
    }
    {
        STRUCT(Mixed)
        W(Mixed, byte);
        S(it.char_, "Mixed.char", 0);
        S(it.small, "Mixed.small", 0);
        W(Mixed, half);
        ALL(Mixed, flags);
        S(it.signed_, "Mixed.signed", 0);
        W(Mixed, count);
        S(it.big, "Mixed.big", 0);
        W(Mixed, whole);
        F(it.price, "Mixed.price", 0);
        for (size_t i = 0; i < 3; i++) {
            S(it.pairs[i].left, "Mixed.pairs.left", i);
            U(it.pairs[i].type, "Mixed.pairs.type", i);
        }
        F(it.rate, "Mixed.rate", 0);
        for (size_t i = 0; i < 6; i++) S(it.grid[i / 2][i % 2], "Mixed.grid", i);
        ALL(Mixed, _padding);
        DONE
    }
    {
        STRUCT(Wire)
        W(Wire, kind), W(Wire, length);
        F(it.price, "Wire.price", 0);
        DONE
    }
    if (getchar() != EOF) {
        fprintf(stderr, "there are more bytes\n");
        return 1;
    }
    return wrong;
}
