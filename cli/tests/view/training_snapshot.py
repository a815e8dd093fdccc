#!/usr/bin/env python3
"""Writes what PyTorch's recorder would of a small training run: training_snapshot.py PICKLE. `docs/guide/view.png` and `view-state.png` are parts of its page, 1100
pixels wide, grouped by source line.

A transformer of eight layers, three steps with Adam: the activations of the forward pass live until the backward pass needs them, the gradients until the
optimizer has used them, and the optimizer's state comes in the first step. The sizes differ a little from step to step, as with batches of texts. The allocator is a
model of PyTorch's.
"""
import pickle
import random
import sys

MIB = 1 << 20
LAYERS, WIDTH = 8, 1024


class Recorder:
    def __init__(self):
        self.events, self.annotations, self.segments, self.free_blocks, self.live, self.time, self.next = [], [], {}, {}, {}, 1_750_000_000_000_000, 0x7F0000000000

    def event(self, action, address, size, stack):
        self.time += 37
        self.events.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time, "frames": stack})

    def annotate(self, name, stage):
        self.annotations.append({"device": 0, "time_us": self.time + 1, "name": name, "stage": stage})

    def alloc(self, size, stack):
        room = -(-size // 512) * 512
        is_small = room <= MIB
        fits = [(free, address) for address, free in self.free_blocks.items() if free >= room and (self.segment_of(address)[1] == 2 * MIB) == is_small]
        if fits:
            free, address = min(fits)
        else:
            free = 2 * MIB if is_small else 20 * MIB if room < 10 * MIB else -(-room // (2 * MIB)) * 2 * MIB
            address, self.next = self.next, self.next + free + MIB
            self.segments[address] = free
            self.free_blocks[address] = free
            self.event("segment_alloc", address, free, stack)
        del self.free_blocks[address]
        if free - room >= 512 if is_small else free - room > MIB:
            self.free_blocks[address + room] = free - room
        else:
            room = free
        self.live[address] = (size, room, stack)
        self.event("alloc", address, size, stack)
        return address

    def free(self, address):
        size, room, stack = self.live.pop(address)
        self.event("free_requested", address, size, stack)
        self.event("free_completed", address, size, stack)
        segment, length = self.segment_of(address)
        if address + room in self.free_blocks and address + room < segment + length:
            room += self.free_blocks.pop(address + room)
        before = [(at, free) for at, free in self.free_blocks.items() if at + free == address and at >= segment]
        if before:
            self.free_blocks[before[0][0]] += room
        else:
            self.free_blocks[address] = room

    def segment_of(self, address):
        return next((at, length) for at, length in self.segments.items() if at <= address < at + length)

    def snapshot(self):
        dumped = []
        for address, length in self.segments.items():
            blocks = [{"address": at, "size": room, "requested_size": size, "state": "active_allocated", "frames": stack} for at, (size, room, stack) in self.live.items()]
            blocks += [{"address": at, "size": free, "requested_size": 0, "state": "inactive", "frames": []} for at, free in self.free_blocks.items()]
            blocks = sorted((block for block in blocks if address <= block["address"] < address + length), key=lambda block: block["address"])
            dumped.append({"device": 0, "address": address, "total_size": length, "stream": 0, "segment_type": "small" if length == 2 * MIB else "large", "frames": [],
                           "blocks": blocks})
        return {"segments": dumped, "device_traces": [self.events], "allocator_settings": {}, "external_annotations": self.annotations}


def stack(*own):
    inner = [("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(signed char, unsigned long, CUstream_st*)", "/src/CUDACachingAllocator.cpp", 0)]
    return [{"name": name, "filename": file, "line": line} for name, file, line in (*inner, *own)]


def python(line, function, file="model.py", caller=41):
    return stack((function, file, line), ("forward", "model.py", 88), ("<module>", "train.py", caller))


def main():
    chance, r = random.Random(2), Recorder()
    init = [(line, name, size) for line, name, size in ((12, "attention", 4 * WIDTH * WIDTH * 4), (13, "mlp", 8 * WIDTH * WIDTH * 4), (14, "norm", 4 * WIDTH * 4))]
    weights = [(name, size, r.alloc(size, python(line, "__init__", caller=18))) for _ in range(LAYERS) for line, name, size in init]
    weights.append(("embedding", 32000 * WIDTH * 4, r.alloc(32000 * WIDTH * 4, python(71, "__init__", caller=18))))
    state = []
    for step in range(3):
        tokens = 4 * chance.randrange(380, 513)
        r.annotate("## forward ##", "START")
        kept = []
        for _ in range(LAYERS):
            temporary = r.alloc(tokens * WIDTH * 4, python(31, "norm"))
            kept.append(r.alloc(3 * tokens * WIDTH * 4, python(33, "attention")))
            scores = r.alloc(16 * tokens * tokens // 4 * 2, python(35, "attention"))
            kept.append(r.alloc(tokens * WIDTH * 4, python(37, "attention")))
            r.free(scores)
            kept.append(r.alloc(4 * tokens * WIDTH * 4, python(52, "mlp")))
            kept.append(r.alloc(tokens * WIDTH * 4, python(54, "mlp")))
            r.free(temporary)
        kept.append(r.alloc(tokens * 32000 * 2, python(92, "logits")))
        r.annotate("## forward ##", "END")
        r.annotate("## backward ##", "START")
        gradients = []
        for name, size, _ in reversed(weights):
            of = {"embedding": "EmbeddingBackward0", "norm": "NativeLayerNormBackward0"}.get(name, "MmBackward0")
            own = stack((f"torch::autograd::generated::{of}::apply(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)", "/src/??", 0), ("execute_native_thread_routine", "/src/thread.cc", 82))
            temporary = r.alloc(tokens * WIDTH * 4, own)
            gradients.append(r.alloc(size, own))
            for _ in range(len(kept) * 2 // (len(weights) + 1) + 1):
                if kept:
                    r.free(kept.pop())
            r.free(temporary)
        for address in kept:
            r.free(address)
        r.annotate("## backward ##", "END")
        r.annotate("## optimizer ##", "START")
        for at, (_, size, _) in enumerate(weights):
            step_stack = lambda line: stack(("_init_group", "/site-packages/torch/optim/adam.py", line), ("step", "/site-packages/torch/optim/adam.py", 157), ("<module>", "train.py", 47))
            if step == 0:
                state.extend([r.alloc(size, step_stack(111)), r.alloc(size, step_stack(113))])
            temporary = r.alloc(size, step_stack(201))
            r.free(temporary)
            r.free(gradients[len(weights) - 1 - at])
        r.annotate("## optimizer ##", "END")
    with open(sys.argv[1], "wb") as file:
        pickle.dump(r.snapshot(), file, protocol=4)


main()
