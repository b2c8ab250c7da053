"""TensorFlow's BFC allocator, which frees memory only when the process exits.

`FAKE_TENSORFLOW_1` selects version 1, in which sessions hold the memory.
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
        # Each region doubles the memory. Freed chunks are reused, and regions are never freed.
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
    """A session of version 1."""

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
