"""What the measuring scripts share: the bytes that NVML counts to this process, and the report.

Needs nothing but the driver's own library. Reads only; see README.md.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import time

MIB = 1 << 20
GIB = 1 << 30

# Less than this is no change: contexts grow a little when a kernel is loaded for the first time.
SLACK_BYTES = 128 * MIB


class Unmeasurable(Exception):
    """NVML cannot be read here, or not for this process."""


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance_id", ctypes.c_uint),
        ("compute_instance_id", ctypes.c_uint),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class Nvml:
    """The few calls that are needed."""

    UNKNOWN = 2**64 - 1

    def __init__(self):
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise Unmeasurable(f"no NVML: {error}") from error
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            self.devices.append(device)

    def _call(self, name, *arguments):
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise Unmeasurable(f"{name} failed: {result}")

    def name(self, device):
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetName", device, text, len(text))
        return text.value.decode(errors="replace")

    def driver(self):
        text = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, len(text))
        return text.value.decode(errors="replace")

    def memory(self, device):
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return memory

    def processes(self, device):
        """Used bytes by pid."""
        room = 1024
        rows = (_Process * room)()
        count = ctypes.c_uint(room)
        self._call(
            "nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), rows
        )
        return {row.pid: row.used_bytes for row in rows[: count.value]}


class Meter:
    """Steps and claims of one run. Make it once this process has a context on a GPU."""

    def __init__(self, framework, version):
        self._nvml = Nvml()
        self._pid = os.getpid()
        self._device, self.scope = self._find()
        self.total_bytes = self._nvml.memory(self._device).total
        self.report = {
            "framework": framework,
            "version": version,
            "gpu": self._nvml.name(self._device),
            "driver": self._nvml.driver(),
            "scope": self.scope,
            "total_bytes": self.total_bytes,
            "steps": [],
            "claims": [],
        }

    def _find(self):
        for device in self._nvml.devices:
            used = self._nvml.processes(device).get(self._pid)
            if used is not None and used != Nvml.UNKNOWN:
                return device, "process"
        if len(self._nvml.devices) == 1:
            return self._nvml.devices[0], "device"
        raise Unmeasurable(
            "NVML does not list this process by its number, and there are several GPUs:"
            " run it outside of the container, or with one GPU"
        )

    def used_bytes(self):
        """What NVML counts to this process now; of the whole GPU where it tells no process apart."""
        if self.scope == "device":
            return self._nvml.memory(self._device).used
        return self._nvml.processes(self._device).get(self._pid, 0)

    def step(self, words):
        """Notes what NVML shows after a step; returns the change since the last one."""
        used = self.used_bytes()
        steps = self.report["steps"]
        change = used - steps[-1]["used_bytes"] if steps else 0
        steps.append({"step": words, "used_bytes": used, "change_bytes": change})
        return change

    def claim(self, words, holds):
        """Notes whether a claim of the table was borne out."""
        self.report["claims"].append({"claim": words, "holds": bool(holds)})

    def grew(self, change, by_bytes):
        return change >= by_bytes - SLACK_BYTES

    def fell(self, change, by_bytes):
        return -change >= by_bytes - SLACK_BYTES

    def unchanged(self, change):
        return abs(change) <= SLACK_BYTES


def collect():
    """Twice: what the first pass finalizes may leave more for the second."""
    gc.collect()
    gc.collect()


def finish(reports):
    """Prints one document for all runs, and ends with the status that README.md tells."""
    claims = [claim for report in reports for claim in report["claims"]]
    print(json.dumps({"schema": "gpumem.measured/1", "runs": reports}, indent=2))
    sys.exit(0 if claims and all(claim["holds"] for claim in claims) else 1)


def cannot(error):
    """Says on standard error why nothing was measured."""
    print(f"nothing was measured: {error}", file=sys.stderr)
    sys.exit(3)


def run_modes(script, modes):
    """Runs the script once for each mode, which differ by their environment; returns their reports."""
    reports = []
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "XLA_"))}
    for mode, environment in modes.items():
        child = subprocess.run(
            [sys.executable, script, "--mode", mode],
            env={**mine, **environment},
            stdout=subprocess.PIPE,
            check=False,
        )
        if child.returncode != 0:
            cannot(f"mode {mode} of {os.path.basename(script)} failed: {child.returncode}")
        report = json.loads(child.stdout)
        report["mode"] = mode
        report["environment"] = environment
        reports.append(report)
        # The driver takes a moment to free what a process held.
        time.sleep(1)
    return reports
