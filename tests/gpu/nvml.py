"""NVML through ctypes: what gpumem is compared with. Only reads.

As a program it prints the GPUs that NVML finds, as JSON, and ends with 3 if there is none.
"""

import ctypes
import json
import statistics
import sys
import time

# Every NVML function that gpumem calls on a current driver and an undivided GPU, with its arguments after the
# device: `t` a text and its length, `o` a pointer to a result, `2` memory of version 2, `l` a process list,
# `u` utilization samples, a number itself. `tests/it/hardware.rs` compares the names with the calls of gpumem.
CALLS = {
    "nvmlSystemGetDriverVersion": ["t"],
    "nvmlSystemGetNVMLVersion": ["t"],
    "nvmlSystemGetCudaDriverVersion_v2": ["o"],
    "nvmlDeviceGetCount_v2": ["o"],
    "nvmlDeviceGetHandleByIndex_v2": [0, "o"],
    "nvmlDeviceGetName": ["t"],
    "nvmlDeviceGetUUID": ["t"],
    "nvmlDeviceGetPciInfo_v3": ["o"],
    "nvmlDeviceGetMinorNumber": ["o"],
    "nvmlDeviceGetMemoryInfo": ["o"],
    "nvmlDeviceGetMemoryInfo_v2": ["2"],
    "nvmlDeviceGetUtilizationRates": ["o"],
    "nvmlDeviceGetEncoderUtilization": ["o", "o"],
    "nvmlDeviceGetDecoderUtilization": ["o", "o"],
    "nvmlDeviceGetProcessUtilization": ["u"],
    "nvmlDeviceGetAccountingMode": ["o"],
    "nvmlDeviceGetComputeRunningProcesses_v3": ["l"],
    "nvmlDeviceGetGraphicsRunningProcesses_v3": ["l"],
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": ["l"],
    "nvmlDeviceGetPowerUsage": ["o"],
    "nvmlDeviceGetEnforcedPowerLimit": ["o"],
    "nvmlDeviceGetTemperature": [0, "o"],
    "nvmlDeviceGetClockInfo": [1, "o"],
    "nvmlDeviceGetPerformanceState": ["o"],
    "nvmlDeviceGetFanSpeed_v2": [0, "o"],
    "nvmlDeviceGetComputeMode": ["o"],
    "nvmlDeviceGetPersistenceMode": ["o"],
    "nvmlDeviceGetTotalEccErrors": [1, 0, "o"],
    "nvmlDeviceGetMigMode": ["o", "o"],
    "nvmlDeviceGetPcieThroughput": [0, "o"],
    "nvmlDeviceGetCurrentClocksThrottleReasons": ["o"],
    "nvmlDeviceGetNumaNodeId": ["o"],
    "nvmlInit_v2": [],
    "nvmlShutdown": [],
}
WITHOUT_DEVICE = ("nvmlSystem", "nvmlDeviceGetCount", "nvmlDeviceGetHandle", "nvmlInit", "nvmlShutdown")
ROOM = 1024
UNKNOWN = 2**64 - 1


class NvmlError(Exception):
    """NVML cannot be loaded, or a call failed."""


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance_id", ctypes.c_uint),
        ("compute_instance_id", ctypes.c_uint),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Nvml:
    def __init__(self):
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise NvmlError(f"no NVML: {error}") from error
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            self.devices.append(device)

    def _call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise NvmlError(f"{name} failed: {code}")

    def text(self, name, *device):
        text = ctypes.create_string_buffer(96)
        self._call(name, *device, text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def name(self, device):
        return self.text("nvmlDeviceGetName", device)

    def driver(self):
        return self.text("nvmlSystemGetDriverVersion")

    def memory(self, device):
        """Memory by the call of version 1: what the driver reserves counts as used."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return memory

    def processes(self, device):
        """Used bytes by pid; `UNKNOWN` where NVML does not say."""
        rows = (_Process * ROOM)()
        count = ctypes.c_uint(ROOM)
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), rows)
        return {row.pid: row.used_bytes for row in rows[: count.value]}

    def find(self, pid):
        """The device that lists a pid with a known number of bytes, or None."""
        for device in self.devices:
            if self.processes(device).get(pid, UNKNOWN) != UNKNOWN:
                return device
        return None

    def is_persistent(self, device):
        mode = ctypes.c_uint()
        self._call("nvmlDeviceGetPersistenceMode", device, ctypes.byref(mode))
        return mode.value == 1

    def time_call(self, name):
        """Return code, median and longest time of a call in milliseconds; None if the driver lacks it."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return None
        times = []
        # A call that sleeps, such as the PCIe counters, is made a few times only.
        while len(times) < 30 and sum(times) < 0.2:
            arguments = _arguments(name, self.devices[0])
            begun = time.perf_counter()
            code = function(*arguments)
            times.append(time.perf_counter() - begun)
        return code, statistics.median(times) * 1000, max(times) * 1000


def _arguments(name, device):
    arguments = [] if name.startswith(WITHOUT_DEVICE) else [device]
    for kind in CALLS[name]:
        if kind == "t":
            arguments += [ctypes.create_string_buffer(96), ctypes.c_uint(96)]
        elif kind == "o":
            arguments.append(ctypes.create_string_buffer(1024))
        elif kind == "2":
            memory = (ctypes.c_uint * 10)()
            memory[0] = ctypes.sizeof(memory) | 2 << 24
            arguments.append(memory)
        elif kind == "l":
            arguments += [ctypes.byref(ctypes.c_uint(ROOM)), ctypes.create_string_buffer(32 * ROOM)]
        elif kind == "u":
            samples = ctypes.create_string_buffer(32 * ROOM)
            arguments += [samples, ctypes.byref(ctypes.c_uint(ROOM)), ctypes.c_ulonglong(0)]
        else:
            arguments.append(ctypes.c_uint(kind))
    return arguments


def main():
    try:
        begun = time.perf_counter()
        nvml = Nvml()
        milliseconds = round((time.perf_counter() - begun) * 1000)
        names = [nvml.name(device) for device in nvml.devices]
        print(json.dumps({"driver": nvml.driver(), "gpus": names, "first_init_milliseconds": milliseconds}))
    except NvmlError as error:
        print(error)
        sys.exit(3)
    sys.exit(0 if names else 3)


if __name__ == "__main__":
    main()
