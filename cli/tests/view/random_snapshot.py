#!/usr/bin/env python3
"""Prints a snapshot of random allocations: random_snapshot.py EVENTS [SEED]. Names contain markup, which a page must show as text."""
import json
import random
import sys

NAMES = ["weights", "kv cache", "activations", "<img src=x onerror=document.body.dataset.broken=1>", "</script><script>document.body.dataset.broken=1</script>",
         "<!-- logits", "workspace", None]
PLACES = ["src/model.rs:120:17", "src/attention.rs:48:9", "src/attention.rs:77:9", "src/sampler.rs:31:22", "src/io/loader.rs:204:13", None]
KIB = 1024


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 7
    chance, events, live, samples = random.Random(seed), [], {}, []
    time, block, held, peak = 5_000_000_000, 0, 0, 0
    while len(events) < count:
        time += chance.randrange(200, 20_000)
        target = 1200 + 900 * (len(events) * 6 // count % 2)
        if live and chance.random() < 0.5 + 0.4 * (len(live) - target) / target:
            freed = chance.choice(list(live)[-40:]) if chance.random() < 0.9 else chance.choice(list(live)[:200])
            held -= live.pop(freed)[1]
            events.append({"kind": "free", "time_ns": time, "block": freed, "after": []})
        elif chance.random() < 0.0002:
            events.append({"kind": "refused", "time_ns": time, "block": None, "bytes": 1 << 33, "align": 256, "stream": 0, "address": None, "name": "too much",
                           "place": PLACES[0], "backtrace": None})
        else:
            group = min(int(chance.expovariate(0.5)), 7)
            size, address = int(2 ** chance.uniform(8, 20)), (1 << 32) + block * (1 << 21)
            backtrace = "   0: model::forward\n             at ./src/model.rs:120:17\n   1: main\n             at ./src/main.rs:9:5" if chance.random() < 0.01 else None
            event = {"kind": "alloc", "time_ns": time, "block": block, "bytes": size, "align": 256, "stream": chance.choice([None, 0, 1, 2]), "address": address,
                     "name": NAMES[group], "place": PLACES[group % len(PLACES)], "backtrace": backtrace}
            events.append(event)
            live[block] = (event, size)
            held += size
            peak = max(peak, held)
            block += 1
        if len(events) % max(count // 1000, 1) == 0:
            samples.append({"pool": "device", "time_ns": time, "statistics": statistics(held, len(events) / count)})
    parts, offset = [], 0
    for number in range(3000):
        size = 256 * chance.randrange(1, 120)
        parts.append({"offset": offset, "bytes": size, "state": chance.choice(["live", "live", "cached", "pending", "free"])})
        offset += size
    slabs = [{"number": 0, "address": 1 << 31, "bytes": offset + (1 << 20), "parts": parts + [{"offset": offset, "bytes": 1 << 20, "state": "free"}]}]
    for number in range(1, 30):
        slabs.append({"number": number, "address": None, "bytes": 8 << 20, "parts": [{"offset": at << 20, "bytes": 1 << 20, "state": chance.choice(["live", "cached", "free", "pending"])}
                                                                                     for at in range(8)]})
    leaks = [{"number": number, "name": event["name"], "bytes": size, "align": 256, "address": event["address"], "stream": event["stream"], "place": event["place"],
              "age_ns": time - event["time_ns"], "backtrace": event["backtrace"]} for number, (event, size) in list(live.items())[:100]]
    buffers = [{"name": name or "scratch", "element": "f32", "used_bytes": 300 * KIB, "capacity_bytes": 512 * KIB, "resizes": 2, "age_ns": 9_000_000, "idle_ns": 120_000} for name in NAMES]
    json.dump({
        "version": 1, "taken_ns": time,
        "pools": [{"name": "device", "time_ns": time, "statistics": statistics(held, 1), "slabs": slabs}],
        "samples": samples,
        "trackers": [{"name": "device", "peak_bytes": peak, "leaks": leaks}],
        "managers": [{"name": "buffers", "used_bytes": 4 << 20, "peak_bytes": 5 << 20, "limit_bytes": 1 << 30, "created": len(NAMES), "registered": 12, "released": 3, "freed": 2,
                      "leases": 4, "retired": 0, "buffers": buffers}],
        "traces": [{"name": "device", "events": events}],
    }, sys.stdout)


def statistics(held, age):
    free, cached = int(held * 0.1 * (1 + age)), int(held * 0.05)
    return {"hits": 900, "misses": 100, "returns": 500, "live": 500, "requested_bytes": int(held * 0.95), "held_bytes": held, "reserved_bytes": held + free + cached,
            "reserved_peak": held * 2, "slabs": 30, "free_bytes": free, "free_blocks": 40, "largest_free": int(free * (0.9 - 0.7 * age)), "cached_bytes": cached,
            "largest_cached": cached // 9, "pending": 3, "memory_allocations": 30, "memory_frees": 0}


main()
