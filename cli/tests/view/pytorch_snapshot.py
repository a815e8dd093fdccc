#!/usr/bin/env python3
"""Writes a snapshot of PyTorch's allocator with random allocations, and what a page should show of it: pytorch_snapshot.py EVENTS PICKLE JSON [SEED].

Segments come whole, or as pieces of one expandable segment per stream. The first blocks are live before the recording. Their allocations are left out.
"""
import json
import pickle
import random
import sys

MIB = 1 << 20


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[4]) if len(sys.argv) > 4 else 11
    chance, events, live, free = random.Random(seed), [], {}, {}
    frames = [{"name": f"function_{k}", "filename": f"/app/models/a_rather_long_name_of_a_source_file_{k % 7}.py", "line": 10 + k} for k in range(200)]
    native = [{"name": "c10::cuda::CUDACachingAllocator::malloc(unsigned long)", "filename": "/src/??", "line": 0}]
    stacks = [native + [frames[chance.randrange(200)] for _ in range(12)] for _ in range(300)]
    time, next_address, segments, mapped_end = 1_748_733_587_000_000, 0x7F0000000000, {}, {0: 0x100000000000, 1: 0x180000000000}
    before = 40
    timeline = []  # live and reserved bytes and segments after each allocation and free

    def event(action, address, size, stream, stack):
        events.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": time, "frames": stack})

    while len(events) < count:
        time += chance.randrange(1, 30)
        target = 150 + 250 * (len(events) * 4 // count % 2)
        if len(live) > before and chance.random() < 0.5 + 0.4 * (len(live) - target) / target:
            address = chance.choice(list(live)[-30:])
            size, stream, stack, room = live.pop(address)
            free.setdefault((room, stream), []).append(address)
            event("free_requested", address, size, stream, stack)
            event("free_completed", address, size, stream, stack)
        else:
            stream, size = chance.choice([0, 0, 0, 1]), int(2 ** chance.uniform(9, 24))
            room, stack = 1 << (size - 1).bit_length(), chance.choice(stacks)
            if free.get((room, stream)):
                address = free[(room, stream)].pop()
            elif room < MIB:
                address, mapped_end[stream] = mapped_end[stream], mapped_end[stream] + room
                event("segment_map", address, room, stream, stack)
            else:
                address, next_address = next_address, next_address + room + MIB
                segments[address] = (room, stream)
                event("segment_alloc", address, room, stream, stack)
            live[address] = (size, stream, stack, room)
            event("alloc", address, size, stream, stack)
        pieces = [mapped_end[0] - 0x100000000000, mapped_end[1] - 0x180000000000]
        reserved = sum(room for room, _ in segments.values()) + sum(pieces)
        timeline.append((sum(block[0] for block in live.values()), reserved, len(segments) + sum(piece > 0 for piece in pieces)))

    # Then the cache is emptied: memory goes after the last block.
    for address in [address for address in segments if address not in live]:
        room, stream = segments.pop(address)
        event("segment_free", address, room, stream, stacks[0])
    pieces = [mapped_end[0] - 0x100000000000, mapped_end[1] - 0x180000000000]
    timeline[-1] = (timeline[-1][0], sum(room for room, _ in segments.values()) + sum(pieces), len(segments) + sum(piece > 0 for piece in pieces))

    first = [at for at, one in enumerate(events) if one["action"] == "alloc"][before]
    events, known = events[first:], {}
    for one in events:
        known.setdefault(one["addr"], one["action"])
    blocks_of = {}
    for address, (size, _, stack, room) in live.items():
        blocks_of[address] = {"address": address, "size": room, "requested_size": size, "state": "active_allocated", "frames": stack}
    dumped = []
    for address, (room, stream) in segments.items():
        block = blocks_of.get(address, {"address": address, "size": room, "requested_size": 0, "state": "inactive", "frames": []})
        dumped.append({"device": 0, "address": address, "total_size": room, "stream": stream, "segment_type": "large", "is_expandable": False, "frames": [], "blocks": [block]})
    for stream, begin in ((0, 0x100000000000), (1, 0x180000000000)):
        blocks = [blocks_of[address] for address in sorted(blocks_of) if begin <= address < mapped_end[stream]]
        dumped.append({"device": 0, "address": begin, "total_size": mapped_end[stream] - begin, "stream": stream, "segment_type": "small", "is_expandable": True,
                       "frames": [], "blocks": blocks})
    half = events[len(events) // 2]["time_us"]
    annotations = [{"device": 0, "time_us": time, "name": name, "stage": stage} for time, name, stage in
                   ((events[0]["time_us"], "## forward ##", "START"), (half, "## forward ##", "END"), (half, "## backward ##", "START"))]
    with open(sys.argv[2], "wb") as file:
        pickle.dump({"segments": dumped, "device_traces": [events], "allocator_settings": {}, "external_annotations": annotations}, file, protocol=4)
    shown = timeline[-sum(one["action"] in ("alloc", "free_completed") for one in events):]
    peak = max(shown, key=lambda moment: moment[0])
    recorded = sum(one["action"] in ("alloc", "free_completed") for one in events)
    with open(sys.argv[3], "w", encoding="utf-8") as file:
        json.dump({"peak": peak, "end": shown[-1], "recorded": recorded, "live": len(live), "blocks": sum(one["action"] == "alloc" for one in events)}, file)


main()
