"""JAX's BFC pool, compiled programs, and backends, which some calls initialize."""

import fake_gpu

from ._src import xla_bridge

programs = {}
kept = 0


class Array:
    def __init__(self, size):
        global kept
        xla_bridge.backends()
        self.nbytes = size
        live.append(size)
        kept = max(kept, sum(live))
        fake_gpu.hold(0, 'jax', kept)

    def __del__(self):
        live.remove(self.nbytes)

    def __repr__(self):
        raise AssertionError('a value was shown')


live = []


class _Device:
    platform = 'gpu'

    @staticmethod
    def memory_stats():
        return {'bytes_in_use': sum(live), 'pool_bytes': kept}


def local_devices():
    xla_bridge.backends()
    return [_Device()]


def clear_caches():
    programs.clear()
