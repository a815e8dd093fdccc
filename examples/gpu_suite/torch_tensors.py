"""Blocks of ringmem's pools as tensors of PyTorch, without a copy: `torch_tensors.py LIBRARY [simulated]`.

A kernel of PyTorch writes device memory of a pool on a stream of its own; the block is freed by the tensor, after that kernel. With `simulated`, pinned memory
of a simulated device, which needs no GPU. Exit code 3 where PyTorch sees no GPU.
"""

import ctypes
import gc
import json
import sys
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

# A capsule does not copy its name.
FRESH, USED = b"dltensor_versioned", b"used_dltensor_versioned"
LENGTH = 1 << 20


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("device", c_uint32), ("memory", c_int32), ("limit", c_uint64), ("slab", c_uint64)]


class Statistics(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("live", c_uint64), ("others", c_uint64 * 12)]


class Managed(ctypes.Structure):
    """The beginning of `DLManagedTensorVersioned`."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p))]


library = ctypes.CDLL(sys.argv[1])
library.ringmem_last_error.restype = c_char_p
capsules = ctypes.pythonapi
capsules.PyCapsule_New.restype = ctypes.py_object
capsules.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
for function in [capsules.PyCapsule_GetPointer, capsules.PyCapsule_IsValid, capsules.PyCapsule_SetName]:
    function.argtypes = [ctypes.py_object, c_char_p]
capsules.PyCapsule_GetPointer.restype = c_void_p


def check(status):
    if status != 0:
        raise RuntimeError(library.ringmem_last_error().decode())


class Block:
    """A block of floats. The tensor that takes it frees it; one that no consumer has taken is deleted with this."""

    capsule = None

    def __init__(self, pool, device, stream):
        self.pool, self.device, self.address = pool, device, c_void_p()
        check(library.ringmem_pool_allocate(pool, c_size_t(4 * LENGTH), c_void_p(stream), byref(self.address)))

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, **others):
        # As the protocol has them: 1 is the default stream; -1 asks for no wait, and gets one of the default stream.
        handle = None if stream in (None, 1, -1) else stream
        shape, tensor = c_int64(LENGTH), c_void_p()
        call = (self.pool, self.address, c_uint8(2), c_uint8(32), c_int32(1), byref(shape), c_void_p(handle), byref(tensor))
        check(library.ringmem_dlpack_lend(*call))
        # Without a destructor: one in Python cannot run while the exception of a consumer that refuses the tensor is on its way.
        self.capsule = capsules.PyCapsule_New(tensor, FRESH, None)
        return self.capsule

    def __del__(self):
        if self.capsule is not None and capsules.PyCapsule_IsValid(self.capsule, FRESH):
            tensor = capsules.PyCapsule_GetPointer(self.capsule, FRESH)
            capsules.PyCapsule_SetName(self.capsule, USED)
            ctypes.cast(tensor, POINTER(Managed)).contents.deleter(tensor)


def live(pool):
    figures = Statistics(size=ctypes.sizeof(Statistics))
    check(library.ringmem_pool_read_statistics(pool, byref(figures)))
    return figures.live


def main():
    import torch

    simulated = len(sys.argv) > 2
    if not simulated and not torch.cuda.is_available():
        print("torch sees no GPU", file=sys.stderr)
        return 3
    devices, pool = c_void_p(), c_void_p()
    if simulated:
        check(library.ringmem_simulated_open(c_uint32(1), c_uint64(1 << 30), byref(devices)))
    else:
        torch.cuda.init()
        check(library.ringmem_cuda_open(byref(devices)))
    options = Options(size=ctypes.sizeof(Options), memory=1 if simulated else 0, limit=1 << 28)
    check(library.ringmem_pool_create(devices, byref(options), byref(pool)))
    streams = [None] if simulated else [torch.cuda.Stream(), torch.cuda.Stream()]
    for number, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            block = Block(pool, (1 if simulated else 2, 0), 0 if stream is None else stream.cuda_stream)
            tensor = torch.from_dlpack(block)
            assert tensor.data_ptr() == block.address.value and tensor.shape == (LENGTH,) and tensor.dtype == torch.float32
            tensor.fill_(number + 1)
            tensor.mul_(2)
            sum_of = tensor.sum().item()
        assert sum_of == 2 * (number + 1) * LENGTH, sum_of
        assert live(pool) == 1
        del tensor
        gc.collect()
        assert live(pool) == 0
    check(library.ringmem_pool_close(pool))
    print(json.dumps({"dlpack": "a block of a pool is a tensor of PyTorch", "torch": torch.__version__, "simulated": simulated}), flush=True)
    return 0


sys.exit(main())
