"""Blocks of a pool as NumPy arrays, and arrays as tensors: `arrays.py LIBRARY simulated|cuda`. Needs NumPy 2.1."""
import ctypes
import gc
import sys
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import numpy

library = ctypes.CDLL(sys.argv[1])
library.ringmem_last_error.restype = c_char_p
capsules = ctypes.pythonapi
capsules.PyCapsule_New.restype = ctypes.py_object
capsules.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
for function in [capsules.PyCapsule_GetPointer, capsules.PyCapsule_IsValid, capsules.PyCapsule_SetName]:
    function.argtypes = [ctypes.py_object, c_char_p]
capsules.PyCapsule_GetPointer.restype = c_void_p
# A capsule does not copy its name.
FRESH, USED = b"dltensor_versioned", b"used_dltensor_versioned"


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("device", c_uint32), ("memory", c_int32), ("limit", c_uint64), ("slab", c_uint64)]


class Statistics(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("live", c_uint64), ("others", c_uint64 * 12)]


class Tensor(ctypes.Structure):
    """`DLManagedTensorVersioned`."""


Tensor._fields_ = [
    ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", CFUNCTYPE(None, POINTER(Tensor))), ("flags", c_uint64),
    ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
    ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
]


def check(status):
    if status != 0:
        raise RuntimeError(library.ringmem_last_error().decode())


def tensor_of(capsule):
    return ctypes.cast(capsules.PyCapsule_GetPointer(capsule, FRESH), POINTER(Tensor))


class Block:
    """An allocated block. The array that takes it frees it; a tensor that no consumer has taken is deleted with this."""

    capsule = None

    def __init__(self, pool, device, shape, code, bits):
        self.pool, self.device, self.shape, self.type = pool, device, shape, (code, bits)
        self.address = c_void_p()
        size = bits // 8
        for extent in shape:
            size *= extent
        check(library.ringmem_pool_allocate(pool, c_size_t(max(size, 1)), None, byref(self.address)))

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if max_version is None or max_version[0] < 1 or copy:
            raise BufferError("only as DLPack 1, without a copy")
        code, bits = map(c_uint8, self.type)
        shape, tensor = (c_int64 * len(self.shape))(*self.shape), c_void_p()
        check(library.ringmem_dlpack_lend(self.pool, self.address, code, bits, c_int32(len(self.shape)), shape, None, byref(tensor)))
        # Without a destructor: one in Python cannot run while the exception of a consumer that refuses the tensor is on its way.
        self.capsule = capsules.PyCapsule_New(tensor, FRESH, None)
        return self.capsule

    def __del__(self):
        if self.capsule is not None and capsules.PyCapsule_IsValid(self.capsule, FRESH):
            tensor = tensor_of(self.capsule)
            capsules.PyCapsule_SetName(self.capsule, USED)
            tensor.contents.deleter(tensor)


def live(pool):
    figures = Statistics(size=ctypes.sizeof(Statistics))
    check(library.ringmem_pool_read_statistics(pool, byref(figures)))
    return figures.live


def lend(pool, device):
    """NumPy uses the pool's memory, and frees it."""
    block = Block(pool, device, (3, 4), 2, 32)
    array = numpy.from_dlpack(block)
    assert array.shape == (3, 4) and array.dtype == numpy.float32 and array.flags.writeable and array.flags.c_contiguous
    assert array.ctypes.data == block.address.value and array.ctypes.data % 256 == 0
    array[:] = numpy.arange(12).reshape(3, 4)
    assert list((ctypes.c_float * 12).from_address(block.address.value)) == list(range(12))
    view = array[1:, ::2]
    del array
    gc.collect()
    assert live(pool) == 1 and view.tolist() == [[4, 6], [8, 10]]
    try:
        check(library.ringmem_pool_free(pool, block.address, None))
        raise AssertionError("freed under an array")
    except RuntimeError as error:
        assert "is lent" in str(error), error
    del view
    gc.collect()
    assert live(pool) == 0
    # Other shapes and types.
    for shape, code, bits, dtype in [((), 0, 64, "int64"), ((0, 5), 1, 8, "uint8"), ((2, 1, 3), 5, 128, "complex128"), ((7,), 6, 8, "bool")]:
        array = numpy.from_dlpack(Block(pool, device, shape, code, bits))
        assert array.shape == shape and array.dtype == dtype, (array.shape, array.dtype)
    # A type that NumPy does not have.
    block = Block(pool, device, (5,), 4, 16)
    try:
        numpy.from_dlpack(block)
        raise AssertionError("NumPy has this type")
    except (BufferError, RuntimeError):
        pass
    del array, block
    gc.collect()
    assert live(pool) == 0, "the refused tensor is deleted"
    # A capsule that no consumer takes.
    block = Block(pool, device, (5,), 1, 8)
    capsule = block.__dlpack__(max_version=(1, 0))
    assert live(pool) == 1
    del block
    gc.collect()
    assert live(pool) == 0 and capsules.PyCapsule_IsValid(capsule, USED)


def take():
    """The structure is laid out as NumPy does."""
    array = numpy.arange(6, dtype=numpy.int16).reshape(2, 3)
    references = sys.getrefcount(array)
    capsule = array.__dlpack__(max_version=(1, 0))
    tensor = tensor_of(capsule)
    capsules.PyCapsule_SetName(capsule, USED)
    del capsule
    fields = tensor.contents
    assert (fields.major, fields.device_type, fields.device_id, fields.ndim, fields.lanes) == (1, 1, 0, 2, 1)
    assert (fields.code, fields.bits, fields.shape[:2], fields.strides[:2]) == (0, 16, [2, 3], [3, 1])
    assert fields.data + fields.byte_offset == array.ctypes.data and sys.getrefcount(array) == references + 1
    fields.deleter(tensor)
    assert sys.getrefcount(array) == references


devices = c_void_p()
if sys.argv[2] == "cuda":
    check(library.ringmem_cuda_open(byref(devices)))
else:
    check(library.ringmem_simulated_open(c_uint32(1), c_uint64(64 << 20), byref(devices)))
for memory, device_type in [(1, 3), (2, 13)]:
    pool = c_void_p()
    options = Options(size=ctypes.sizeof(Options), memory=memory)
    check(library.ringmem_pool_create(devices, byref(options), byref(pool)))
    lend(pool, (device_type if sys.argv[2] == "cuda" else 1, 0))
    # The array outlives the pool.
    array = numpy.from_dlpack(Block(pool, (1, 0), (1000,), 2, 64))
    array[:] = 1.5
    check(library.ringmem_pool_close(pool))
    assert array.sum() == 1500
    del array
take()
library.ringmem_devices_close(devices)
print(f"NumPy {numpy.__version__}")
