"""TensorFlow's BFC allocator, which keeps every page that it has ever taken until the process ends.

`FAKE_TENSORFLOW_1` in the environment makes it a version 1, whose sessions hold the memory.
"""

import os

import fake_gpu

from .python.eager import context

__version__ = '1.15.5' if os.environ.get('FAKE_TENSORFLOW_1') else '2.20.0'


class _Bfc:
    def __init__(self):
        self.live = 0
        self.kept = 0

    def take(self, size):
        self.live += size
        # Regions double; freed chunks are used again, and no region is ever given back.
        if self.live > self.kept:
            self.kept = max(self.live, 2 * self.kept)
            fake_gpu.hold(0, 'tensorflow', self.kept)


bfc = _Bfc()


class EagerTensor:
    device = '/job:localhost/replica:0/task:0/device:GPU:0'

    class dtype:
        size = 4

    def __init__(self, count):
        context._context = context.Context()
        self.shape = (count,)
        bfc.take(4 * count)

    def __del__(self):
        bfc.live -= 4 * self.shape[0]

    def __repr__(self):
        raise AssertionError('a value was shown')


def zeros(count):
    return EagerTensor(count)


class Session:
    """Of version 1."""

    def run(self, count):
        bfc.take(4 * count)
        self.count = count

    def close(self):
        bfc.live -= 4 * self.count


class config:
    class experimental:
        @staticmethod
        def get_memory_info(device):
            context.ensure_initialized()
            if device != 'GPU:0':
                raise ValueError('Failed parsing device name')
            return {'current': bfc.live, 'peak': bfc.kept}

        reset = 0
