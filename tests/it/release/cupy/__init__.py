"""CuPy's memory pools. Each device has a pool, and calls apply to the current device."""

import fake_gpu

from . import cuda
from .cuda import Device, current

_pools = {}


class _Memory:
    def __init__(self, ptr, size):
        self.ptr, self.size = ptr, size


class _Pointer:
    def __init__(self, mem):
        self.mem = mem


class ndarray:
    _next = 1

    def __init__(self, size):
        self._device = current()
        self.nbytes = size
        self.data = _Pointer(_Memory(ndarray._next, -(-size // 512) * 512))
        ndarray._next += 1
        _pool(self._device).take(self.data.mem.size)

    def __del__(self):
        _pool(self._device).give(self.data.mem.size)

    def __repr__(self):
        raise AssertionError('a value was shown')


class _Pool:
    def __init__(self, index):
        self.index, self.used, self.free = index, 0, []

    def take(self, size):
        self.used += size
        if size in self.free:
            self.free.remove(size)
        self.write()

    def give(self, size):
        self.used -= size
        self.free.append(size)

    def write(self):
        fake_gpu.hold(self.index, 'cupy', self.used + sum(self.free))


def _pool(index):
    return _pools.setdefault(index, _Pool(index))


class MemoryPool:
    def free_all_blocks(self):
        pool = _pool(current())
        pool.free.clear()
        pool.write()

    def used_bytes(self):
        return _pool(current()).used

    def total_bytes(self):
        pool = _pool(current())
        return pool.used + sum(pool.free)


_default = MemoryPool()


def get_default_memory_pool():
    return _default


def empty(size):
    return ndarray(size)
