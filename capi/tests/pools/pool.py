"""A pool through ctypes, as a Python program would use it: `pool.py LIBRARY`."""
import ctypes
import sys
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

library = ctypes.CDLL(sys.argv[1])
library.ringmem_last_error.restype = c_char_p
library.ringmem_status_name.restype = c_char_p


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("device", c_uint32), ("memory", c_int32), ("limit", c_uint64), ("slab", c_uint64)]


def check(status):
    if status != 0:
        raise RuntimeError(f"{library.ringmem_status_name(status).decode()}: {library.ringmem_last_error().decode()}")


devices, pool, stream, address = c_void_p(), c_void_p(), c_void_p(), c_void_p()
check(library.ringmem_simulated_open(c_uint32(1), c_uint64(64 << 20), byref(devices)))
check(library.ringmem_stream_create(devices, c_uint32(0), byref(stream)))
options = Options(size=ctypes.sizeof(Options), limit=8 << 20)
check(library.ringmem_pool_create(devices, byref(options), byref(pool)))
check(library.ringmem_pool_allocate(pool, c_size_t(1000), stream, byref(address)))
check(library.ringmem_fill(devices, c_uint32(0), address, c_uint8(7), c_uint64(1000), stream))
host = ctypes.create_string_buffer(1000)
check(library.ringmem_copy(devices, c_uint32(0), host, address, c_uint64(1000), c_int32(1), stream))
check(library.ringmem_stream_synchronize(devices, c_uint32(0), stream))
assert host.raw == b"\x07" * 1000
try:
    check(library.ringmem_pool_allocate(pool, c_size_t(9 << 20), stream, byref(c_void_p())))
except RuntimeError as error:
    print(error)
try:
    check(library.ringmem_pool_close(pool))
except RuntimeError as error:
    print(error)
check(library.ringmem_pool_free(pool, address, stream))
check(library.ringmem_pool_close(pool))
library.ringmem_devices_close(devices)
