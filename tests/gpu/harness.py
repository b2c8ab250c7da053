"""Helpers for the checks: rows of the report, gpumem, programs that hold GPU memory, and NVML."""

import contextlib
import ctypes
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
HERE = Path(__file__).resolve().parent
BINARY = os.environ["GPUMEM_TEST_GPU_BINARY"]
WORK = Path(os.environ["GPUMEM_TEST_GPU_WORK"])
IS_MOCK = "GPUMEM_MOCK_SCENE" in os.environ
# A word on the command line of every program that holds memory, so that gpumem can select these programs.
TOKEN = f"@{WORK.name}"
# The driver keeps utilization samples for 10 s. The mock driver applies a change immediately.
MEMORY_SECONDS = 0 if IS_MOCK else 10
UNKNOWN = 2**64 - 1


class Skip(Exception):
    """Raised if this machine does not meet the requirements of a check."""


row_start = time.monotonic()


def row(check, expected, observed, passed):
    """Writes a result for `run`. `passed` is None if the check could not run."""
    global row_start
    now = time.monotonic()
    result = {"check": check, "expected": expected, "observed": str(observed)[:4000], "passed": passed}
    print(json.dumps({**result, "seconds": round(now - row_start, 2)}), flush=True)
    row_start = now
    return passed


@contextlib.contextmanager
def part(check):
    """Runs a part of a check, and reports exceptions as failures, so that the next parts still run."""
    try:
        yield
    except Skip as reason:
        row(check, "it can be tried", reason, None)
    except Exception as error:  # noqa: BLE001, the row shows it
        row(check, "no error", f"{type(error).__name__}: {error}", False)


def wait(condition, limit):
    """Waits until a condition is met. Returns the seconds waited, or None after `limit` seconds."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > limit:
            return None
        time.sleep(0.02)
    return round(time.monotonic() - start, 2)


def mib(size):
    return "unknown" if size is None else f"{size / MIB:.0f} MiB"


def process_state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "gone"


def gpumem(*arguments, config="/dev/null"):
    print("+ gpumem", *arguments, file=sys.stderr, flush=True)
    command = [BINARY, "--config", config, *map(str, arguments)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60
    )
    print(done.stderr, end="", file=sys.stderr, flush=True)
    return done


def parse(done):
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"no JSON, exit {done.returncode}: {done.stderr[-300:]}") from None


def snapshot():
    return parse(gpumem("ps", "--json", "--no-store"))


def find_row(current, pid):
    """Returns the row of a process on any GPU."""
    rows = [row for gpu in current["gpus"] for row in gpu.get("processes") or [] if row["pid"] == pid]
    return rows[0] if rows else None


@contextlib.contextmanager
def recording(name):
    """Records to `NAME.jsonl.zst`, with a store because only stores are compressed."""
    store = WORK / f"store-{name}"
    command = [BINARY, "--config", "/dev/null", "--store-dir", store, "record", "--store", "--interval", "1s"]
    recorder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        recorder.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            recorder.wait(10)
        for file in store.glob("*.jsonl.zst"):
            shutil.copyfile(file, WORK / f"{name}.jsonl.zst")


def program_command(kind, *codes):
    return [sys.executable, str(HERE / "programs.py"), TOKEN, kind, *codes]


class Program:
    """A running `programs.py`, which executes the Python code that it receives."""

    def __init__(self, kind, **environment):
        self.kind = kind
        self.process = subprocess.Popen(
            program_command(kind),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            # gpumem treats the processes of a group as one family.
            process_group=0,
        )
        self.pid = self.process.pid
        self.receive()

    def send(self, code):
        self.process.stdin.write(json.dumps(code).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self, limit=90):
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise RuntimeError(f"the {self.kind} program did not answer within {limit} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.kind} program ended; see log.txt")
        answer = json.loads(line)
        if "missing" in answer:
            raise Skip(answer["missing"])
        if "error" in answer:
            raise RuntimeError(f"the {self.kind} program: {answer['error']}")
        return answer["value"]

    def ask(self, code, limit=90):
        self.send(code)
        return self.receive(limit)

    def kill(self):
        self.process.kill()
        self.process.wait(20)

    def finish(self):
        self.process.stdin.close()
        self.process.wait(20)


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used_bytes", ctypes.c_ulonglong), ("instances", ctypes.c_uint * 2)]


class Nvml:
    """Queries NVML without gpumem."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.call("nvmlInit_v2")
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.devices = [ctypes.c_void_p() for _ in range(count.value)]
        for index, device in enumerate(self.devices):
            self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with {code}")

    def memory(self, device):
        """Returns total, free and used bytes. Used bytes include the memory that the driver reserves."""
        memory = (ctypes.c_ulonglong * 3)()
        self.call("nvmlDeviceGetMemoryInfo", device, memory)
        return list(memory)

    def used(self):
        """Returns the bytes in use on all GPUs."""
        return sum(self.memory(device)[2] for device in self.devices)

    def processes(self):
        """Returns the bytes by pid for each GPU."""
        tables = []
        for device in self.devices:
            rows, count = (_Process * 1024)(), ctypes.c_uint(1024)
            self.call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), rows)
            tables.append({row.pid: row.used_bytes for row in rows[: count.value]})
        return tables

    def listed(self, pid):
        """Returns the bytes of a process on all GPUs, or None if NVML does not report its memory."""
        sizes = [table[pid] for table in self.processes() if table.get(pid, UNKNOWN) != UNKNOWN]
        return sum(sizes) if sizes else None

    def require_listed(self, pid):
        """Skips the check if NVML lists the process under another pid, as in some containers and sandboxes."""
        if wait(lambda: self.listed(pid) is not None, 5) is None:
            shown = [gpu.get("processes") for gpu in snapshot()["gpus"]]
            kernel = Path("/proc/version").read_text()[:80]
            raise Skip(f"NVML lists {self.processes()}, not pid {pid}; gpumem shows {shown}; {kernel}")

    def wait_free(self, before):
        """Waits until the memory in use is not more than before."""
        return wait(lambda: self.used() <= before + 64 * MIB, 5)
