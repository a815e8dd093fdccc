"""The ring functions from Python, by ctypes alone. Arguments: the library, a folder; or also `child`, for a process that this one kills."""

import ctypes
import os
import signal
import subprocess
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p

OK, INVALID, FULL, EMPTY, TIMEOUT, DISCONNECTED, MISMATCH = 0, 1, 4, 5, 6, 7, 8
LEFT, DIED = 2, 3
LIMIT = 60 * 10**9


class Message(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("align", c_size_t), ("kind", c_uint64), ("abi", c_uint64)]


class Sample(ctypes.Structure):
    _fields_ = [("id", c_uint64), ("value", c_double)]


SAMPLE = Message(ctypes.sizeof(Sample), ctypes.alignment(Sample), 7, 0x1234)

library = ctypes.CDLL(sys.argv[1])
library.ringmem_last_error.restype = c_char_p
ENDS = {
    "wait": [c_int64], "wait_for_peer": [c_int64, POINTER(c_uint64)], "peer_state": [POINTER(c_int32), POINTER(c_uint64)], "capacity": [POINTER(c_size_t)],
}
CALLS = {
    "ring_create": [c_char_p, POINTER(Message), c_uint64, POINTER(c_void_p)],
    "ring_open": [c_char_p, POINTER(c_void_p)],
    "ring_indices": [c_void_p, POINTER(c_uint64), POINTER(c_uint64)],
    "producer_open": [c_void_p, POINTER(Message), POINTER(c_void_p)],
    "consumer_open": [c_void_p, POINTER(Message), POINTER(c_void_p)],
    "producer_push": [c_void_p, c_void_p],
    "producer_push_wait": [c_void_p, c_void_p, c_int64],
    "producer_push_many": [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)],
    "producer_reserve": [c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
    "producer_commit": [c_void_p, c_size_t],
    "consumer_pop": [c_void_p, c_void_p],
    "consumer_pop_wait": [c_void_p, c_void_p, c_int64],
    "consumer_pop_many": [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)],
    "consumer_peek": [c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
    "consumer_release": [c_void_p, c_size_t],
}
for end in ("producer", "consumer"):
    CALLS.update({f"{end}_{name}": [c_void_p, *arguments] for name, arguments in ENDS.items()})
for name, arguments in CALLS.items():
    getattr(library, f"ringmem_{name}").argtypes = arguments
for name in ("ring", "producer", "consumer"):
    close = getattr(library, f"ringmem_{name}_close")
    close.argtypes, close.restype = [c_void_p], None


def call(name, *arguments, status=OK):
    found = getattr(library, f"ringmem_{name}")(*arguments)
    assert found == status, f"{name}: {found}, expected {status}: {library.ringmem_last_error().decode()}"


def opened(name, *arguments):
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle


def child(path):
    ring = opened("ring_open", path)
    producer = opened("producer_open", ring, byref(SAMPLE))
    for number in range(3):
        call("producer_push", producer, byref(Sample(number, 0.5)))
    print("pushed", flush=True)
    sys.stdin.read()


def one_process(path):
    ring = opened("ring_create", path, byref(SAMPLE), 4)
    producer, consumer = opened("producer_open", ring, byref(SAMPLE)), opened("consumer_open", ring, None)
    message, count, slots = Sample(), c_size_t(), c_void_p()
    call("consumer_pop", consumer, byref(message), status=EMPTY)
    call("consumer_pop_wait", consumer, byref(message), 1000, status=TIMEOUT)
    many = (Sample * 6)(*[Sample(number, 1) for number in range(6)])
    call("producer_push_many", producer, many, 6, byref(count))
    assert count.value == 4
    call("producer_push", producer, byref(message), status=FULL)
    call("producer_push_wait", producer, byref(message), 0, status=TIMEOUT)
    call("consumer_peek", consumer, 3, byref(slots), byref(count))
    assert [sample.id for sample in (Sample * count.value).from_address(slots.value)] == [0, 1, 2]
    call("consumer_release", consumer, 4, status=INVALID)
    call("consumer_release", consumer, 3)
    call("producer_reserve", producer, 2, byref(slots), byref(count))
    for number, sample in enumerate((Sample * count.value).from_address(slots.value)):
        sample.id = 10 + number
    call("producer_commit", producer, count.value)
    call("consumer_pop_many", consumer, many, 6, byref(count))
    assert [sample.id for sample in many[:count.value]] == [3, 10, 11]
    other = Message(SAMPLE.size, SAMPLE.align, SAMPLE.kind, 1)
    library.ringmem_producer_close(producer)
    call("producer_open", ring, byref(other), byref(producer), status=MISMATCH)
    call("consumer_pop_wait", consumer, byref(message), LIMIT, status=DISCONNECTED)
    library.ringmem_consumer_close(consumer)
    library.ringmem_ring_close(ring)


def a_killed_process(path):
    ring = opened("ring_create", path, byref(SAMPLE), 4)
    consumer = opened("consumer_open", ring, byref(SAMPLE))
    peer = subprocess.Popen([sys.executable, __file__, *sys.argv[1:3], "child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    generation, state, message = c_uint64(), c_int32(), Sample()
    call("consumer_wait_for_peer", consumer, LIMIT, byref(generation))
    assert generation.value == 1 and peer.stdout.readline() == b"pushed\n"
    peer.send_signal(signal.SIGKILL)
    peer.wait()
    for number in range(3):
        call("consumer_pop_wait", consumer, byref(message), LIMIT)
        assert (message.id, message.value) == (number, 0.5)
    call("consumer_pop_wait", consumer, byref(message), LIMIT, status=DISCONNECTED)
    call("consumer_peer_state", consumer, byref(state), byref(generation))
    assert state.value == DIED
    library.ringmem_ring_close(ring)
    library.ringmem_consumer_close(consumer)


path = os.fsencode(os.path.join(sys.argv[2], "killed"))
if len(sys.argv) > 3:
    child(path)
else:
    one_process(os.fsencode(os.path.join(sys.argv[2], "one")))
    a_killed_process(path)
    print("ok")
