"""The pools that Python programs have, on this GPU: a block taken and given back, warm.

Rows have the form of those of `gpu_suite bench`, one object a line. What Python itself costs is in them: the call of a function that does
nothing is a row too. Exit code 3 where neither PyTorch nor CuPy is there.
"""

import json
import statistics
import sys
import time

SIZES = [("pool-64K", 64 << 10), ("pool-1M", 1 << 20), ("pool-100M", 100 << 20)]
TURNS = 11
BLOCKS = 2000


def torch_pool():
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")

    def block(size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    return block, torch.cuda.synchronize, torch.cuda.get_device_name(0)


def cupy_pool():
    import cupy

    pool = cupy.get_default_memory_pool()
    return pool.malloc, cupy.cuda.Device().synchronize, cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()


def main():
    subjects, missing, source = [("nothing, from Python", lambda size: None, lambda: None)], [], None
    for name, make in [("PyTorch, from Python", torch_pool), ("CuPy, from Python", cupy_pool)]:
        try:
            block, wait, gpu = make()
            block(1)
            source = source or f"gpu:{gpu}"
            subjects.append((name, block, wait))
        except Exception as error:  # whatever a broken installation raises, it is not here
            missing.append(f"{name.split(',')[0]}: {error}")
    for line in missing:
        print(line, file=sys.stderr)
    if len(subjects) == 1:
        print("neither PyTorch nor CuPy works here: " + "; ".join(missing), file=sys.stderr)
        return 3
    for workload, size in SIZES:
        times = {name: [] for name, _, _ in subjects}
        for _ in range(TURNS):
            for name, block, wait in subjects:
                block(size)
                wait()
                begun = time.perf_counter_ns()
                for _ in range(BLOCKS):
                    block(size)
                times[name].append((time.perf_counter_ns() - begun) / BLOCKS)
        for name, taken in times.items():
            row = {
                "bench": "pools.py", "workload": workload, "subject": name, "unit": "ns/block", "median": statistics.median(taken),
                "low": min(taken), "high": max(taken), "ratio": None, "aim": None, "limit": None, "source": source, "class": "",
            }
            print(json.dumps(row, separators=(",", ":")), flush=True)
    return 0


sys.exit(main())
