"""The parts of PyTorch that hold GPU memory: caching allocator, tensors and modules.

The allocator is a small version of `c10/cuda/CUDACachingAllocator.cpp`. Sizes are multiples of 512 bytes. Small
blocks share segments of 2 MiB, and blocks under 10 MiB share segments of 20 MiB. A larger block has its own segment,
in multiples of 2 MiB. `empty_cache` frees the segments without blocks in use.
"""

import contextlib

import fake_gpu

from . import cuda  # noqa: F401
from .cuda import _allocator

__version__ = '2.9.0+fake'


class _C:
    workspaces = 0

    @staticmethod
    def _cuda_clearCublasWorkspaces():
        _C.workspaces = 0

    DisableTorchFunction = contextlib.nullcontext


class _Plans(dict):
    def __missing__(self, index):
        self[index] = {}
        return self[index]


class backends:
    class cuda:
        cufft_plan_cache = _Plans()


class _Storage:
    def __init__(self, size, index):
        self.size, self.index = size, index
        self.block = None if index is None else _allocator(index).allocate(size)

    def data_ptr(self):
        return id(self) if self.block is None else self.block.address

    def nbytes(self):
        return self.size

    def __del__(self):
        if self.block is not None:
            _allocator(self.index).free(self.block)


class Tensor:
    def __init__(self, storage, count, width=4):
        self._storage, self._count, self._width = storage, count, width
        self.grad = None
        self.grad_fn = None
        self.requires_grad = False

    is_leaf = property(lambda self: self.grad_fn is None)
    is_cuda = property(lambda self: self._storage.index is not None)
    device = property(lambda self: 'cpu' if self._storage.index is None
                      else 'cuda:%d' % self._storage.index)

    def numel(self):
        return self._count

    def element_size(self):
        return self._width

    def untyped_storage(self):
        return self._storage

    def view(self):
        """Returns a tensor that shares the storage."""
        return Tensor(self._storage, self._count, self._width)

    def detach(self):
        return self.view()

    def __mul__(self, other):
        result = empty(self._count, device=self.device)
        # Autograd keeps the operands for the backward pass.
        result.grad_fn = ('MulBackward0', self, other) if self.requires_grad else None
        return result

    def __repr__(self):
        raise AssertionError('a value was shown')


def empty(count, device='cpu', width=4, requires_grad=False):
    name, _, index = str(device).partition(':')
    index = None if name == 'cpu' else int(index or 0)
    tensor = Tensor(_Storage(count * width, index), count, width)
    tensor.requires_grad = requires_grad
    return tensor


zeros = empty

from . import nn  # noqa: E402,F401
