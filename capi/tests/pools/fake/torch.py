"""What the guide's lines need of PyTorch. The allocator that is selected serves a block, with all its hooks."""
import ctypes
from types import SimpleNamespace

HOOKS = {
    "init_fn": ctypes.CFUNCTYPE(None, ctypes.c_int),
    "record_stream_fn": ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p),
    "reset_fn": ctypes.CFUNCTYPE(None),
    "memory_fraction_fn": ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int),
    "begin_allocate_to_pool": None,  # it throws
}


class CUDAPluggableAllocator:
    def __init__(self, path, malloc, free):
        library = ctypes.CDLL(path)
        address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        self.malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(address(malloc))
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(address(free))
        self.hooks = {}

    def allocator(self):
        return self

    def __getattr__(self, name):
        hook = name.removeprefix("set_")
        if hook not in HOOKS:
            raise AttributeError(name)
        return lambda address: self.hooks.update({hook: HOOKS[hook](address) if HOOKS[hook] else address})


def change_current_allocator(allocator):
    allocator.hooks["init_fn"](1)
    allocator.hooks["memory_fraction_fn"](1.0, 0)
    block = allocator.malloc(1000, 0, None)
    allocator.hooks["record_stream_fn"](block, None)
    allocator.free(block, 1000, 0, None)
    assert allocator.malloc(1000, 0, None) == block
    allocator.free(block, 1000, 0, None)
    allocator.hooks["reset_fn"]()
    print("torch", sorted(allocator.hooks))


cuda = SimpleNamespace(memory=SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=change_current_allocator))
