"""What the guide's lines need of CuPy. The allocator that is selected serves a block."""
import ctypes
from types import SimpleNamespace


class CFunctionAllocator:
    def __init__(self, param, malloc, free, owner):
        self.param, self.owner = param, owner
        self.call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(malloc)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(free)

    def malloc(self, size):
        block = self.call(self.param, size, 0)
        self.free(self.param, block, 0)
        return block


def set_allocator(malloc):
    assert malloc(5000) == malloc(5000) != None
    print("cupy")


cuda = SimpleNamespace(memory=SimpleNamespace(CFunctionAllocator=CFunctionAllocator), set_allocator=set_allocator)
