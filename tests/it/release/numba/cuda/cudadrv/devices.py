"""Devices. The first use of a device creates a context."""

import fake_gpu


class _Deallocations:
    def __init__(self, context):
        self.context, self.pending = context, []

    def clear(self):
        self.pending.clear()
        self.context.write()


class _Context:
    def __init__(self, index):
        self.index, self.live = index, 0
        self.deallocations = _Deallocations(self)
        self.write()

    def write(self):
        fake_gpu.hold(self.index, 'numba', self.live + sum(self.deallocations.pending))


class _Device:
    def __init__(self, index):
        self.id, self.primary_context = index, None


class _DeviceContextManager:
    def __init__(self, device):
        self._device = device

    def __enter__(self):
        use(self._device.id)

    def __exit__(self, *_):
        pass


class _DeviceList:
    def __getattr__(self, name):
        if name != 'lst':
            raise AttributeError(name)
        self.lst = [_DeviceContextManager(_Device(index)) for index in range(fake_gpu.COUNT)]
        return self.lst


gpus = _DeviceList()
_current = None


def use(index):
    global _current
    device = gpus.lst[index]._device
    if device.primary_context is None:
        device.primary_context = _Context(index)
    _current = device.primary_context


def current():
    if _current is None:
        use(0)
    return _current
