"""A transformer trained under three allocators: PyTorch's own, that with expandable segments, and ringmem's (`torch_allocators.py LIBRARY`).

Each trains in a process of its own, with the same seed, sizes and number of steps, and prints one object: the first losses, the time of a step, and the bytes
that the allocator had from the driver at most. The program fails if the losses differ or a process fails. Exit code 3 where PyTorch sees no GPU.
"""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

WARM, LONGEST, LAYERS, WIDTH, HEADS, WORDS = 8, 512, 12, 1024, 16, 32000
SECONDS = 1 if "RINGMEM_BUNDLE_QUICK" in os.environ else 6
ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "ringmem": {},
}


def switch(torch, path):
    """What the guide tells users to write."""
    library = ctypes.CDLL(path)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "ringmem_torch_malloc", "ringmem_torch_free")
    torch.cuda.memory.change_current_allocator(allocator)
    hooks = {"init_fn": "init", "record_stream_fn": "record_stream", "reset_fn": "empty_cache", "memory_fraction_fn": "set_memory_fraction",
             "begin_allocate_to_pool": "begin_allocate_to_pool"}
    for hook, name in hooks.items():
        function = ctypes.cast(getattr(library, f"ringmem_torch_{name}"), ctypes.c_void_p).value
        getattr(allocator.allocator(), f"set_{hook}")(function)
    return library


class Statistics(ctypes.Structure):
    NAMES = ["size", "live", "live_bytes", "live_peak", "reserved_bytes", "reserved_peak"]
    _fields_ = [(name, ctypes.c_uint64) for name in NAMES]


def reserved(torch, library):
    """Bytes that the allocator has from the driver at most, and those of live tensors at most."""
    if library is None:
        return torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    figures = Statistics(size=ctypes.sizeof(Statistics))
    if library.ringmem_torch_read_statistics(0, ctypes.byref(figures)) != 0:
        raise RuntimeError("no figures of ringmem's allocator")
    return figures.reserved_peak, figures.live_peak


def process_bytes():
    """What nvidia-smi says of this process, in bytes; None where it says nothing, as in containers."""
    try:
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        said = subprocess.run(query, capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in said.splitlines():
        pid, _, used = line.partition(",")
        if pid.strip() == str(os.getpid()) and used.strip().isdigit():
            return int(used) << 20
    return None


def train(name, path):
    import torch

    library = switch(torch, path) if name == "ringmem" else None
    if not torch.cuda.is_available():
        print("torch sees no GPU", file=sys.stderr)
        return 3
    torch.manual_seed(7)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), torch.nn.TransformerEncoder(layer, LAYERS), torch.nn.Linear(WIDTH, WORDS)).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side = torch.cuda.Stream()
    losses, times, least_free = [], [], None
    begun = time.monotonic()
    # As many steps under each allocator as are compared, then more for the time of a step.
    while len(losses) < WARM or time.monotonic() - begun < SECONDS:
        number = len(losses)
        # Sequences of other lengths each step, as real batches have, copied on a stream of their own.
        length = LONGEST - 64 * (number % 5)
        words = torch.randint(0, WORDS, (4, length + 1), generator=torch.Generator().manual_seed(number)).pin_memory()
        from_clock = time.monotonic()
        with torch.cuda.stream(side):
            words = words.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        words.record_stream(torch.cuda.current_stream())
        loss = torch.nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(time.monotonic() - from_clock)
        free, _ = torch.cuda.mem_get_info()
        least_free = free if least_free is None else min(free, least_free)
    torch.cuda.synchronize()
    most, live = reserved(torch, library)
    row = {
        "allocator": name, "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "steps": len(losses), "losses": losses[:WARM],
        "step_ms": 1000 * statistics.median(times[WARM // 2:]), "reserved_peak": most, "live_peak": live, "ratio": most / live,
        "least_free": least_free, "process_bytes": process_bytes(),
    }
    print(json.dumps(row, separators=(",", ":")), flush=True)
    return 0


def main():
    path = os.path.abspath(sys.argv[1])
    rows = {}
    for name, variables in ALLOCATORS.items():
        environment = {**os.environ, **variables}
        child = subprocess.run([sys.executable, __file__, path, name], env=environment, capture_output=True, text=True)
        sys.stderr.write(child.stderr)
        if child.returncode == 3 or "No module named 'torch'" in child.stderr:
            print("PyTorch with CUDA is not here", file=sys.stderr)
            return 3
        sys.stdout.write(child.stdout)
        sys.stdout.flush()
        if child.returncode != 0:
            print(f"failed {name}: exit code {child.returncode}", file=sys.stderr)
            return 1
        rows[name] = json.loads(child.stdout)
    for name in ("expandable", "ringmem"):
        pairs = zip(rows["native"]["losses"], rows[name]["losses"])
        worst = max(abs(one - other) / abs(one) for one, other in pairs)
        # Kernels that add with atomics differ in the last bits.
        if not worst < 1e-3:
            print(f"failed {name}: its losses differ from the native allocator's by {worst:.2g}", file=sys.stderr)
            return 1
    return 0


sys.exit(train(sys.argv[2], sys.argv[1]) if len(sys.argv) > 2 else main())
