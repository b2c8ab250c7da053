"""The current context, which is created on the first request."""

import fake_gpu

from .cudadrv import devices


def current_context():
    return devices.current()


def device_array(size):
    devices.use(0)
    context = devices.current()
    context.live += size
    context.write()
    return _DeviceNDArray(context, size)


class _Pointer:
    def __init__(self, value):
        self.device_ctypes_pointer = type('c_void_p', (), {'value': value})


class _DeviceNDArray:
    def __init__(self, context, size):
        self._context, self.alloc_size, self.gpu_data = context, size, _Pointer(id(self))

    def __del__(self):
        self._context.live -= self.alloc_size
        self._context.deallocations.pending.append(self.alloc_size)


_DeviceNDArray.__name__ = 'DeviceNDArray'
