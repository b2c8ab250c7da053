"""Devices. Selecting a device creates a context."""

import fake_gpu

_current = [0]


def current():
    return _current[-1]


class Device:
    def __init__(self, index):
        self.index = index

    def __enter__(self):
        _current.append(self.index)
        if not fake_gpu.held[self.index]:
            fake_gpu.hold(self.index, 'cupy', 0)

    def __exit__(self, *_):
        _current.pop()


class runtime:
    @staticmethod
    def getDeviceCount():
        return fake_gpu.COUNT

    @staticmethod
    def deviceGetPCIBusId(index):
        return fake_gpu.bus_id(index)
