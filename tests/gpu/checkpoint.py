"""The CUDA checkpoint API: a process's GPU memory to host memory and back, as groundwork for parking."""

import contextlib
import ctypes
import time
from pathlib import Path

from harness import GIB, MIB, Skip, mib, row_of

FUNCTIONS = [
    f"cuCheckpointProcess{name}" for name in ("GetRestoreThreadId", "GetState", "Lock", "Checkpoint", "Restore", "Unlock")
]
# The first version with them, as cuDriverGetVersion gives it.
CUDA_12_8 = 12080
STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}
CODES = {
    0: "ok",
    1: "invalid value",
    2: "out of memory",
    304: "operating system",
    401: "illegal state",
    600: "not ready",
    800: "not permitted",
    801: "not supported",
    999: "unknown error",
}
LOCK_MILLISECONDS = 10_000


class Checkpointer:
    """Makes the calls, in a process that is never the target; a kind of programs.py."""

    def __init__(self, cuda):
        self._cuda = cuda

    def symbols(self):
        version = ctypes.c_int()
        self._cuda.cuDriverGetVersion(ctypes.byref(version))
        found = {}
        for name in FUNCTIONS:
            pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
            with contextlib.suppress(AttributeError):
                self._cuda.cuGetProcAddress_v2(
                    name.encode(), ctypes.byref(pointer), CUDA_12_8, ctypes.c_uint64(0), ctypes.byref(status)
                )
            found[name] = {"exported": hasattr(self._cuda, name), "status": status.value}
        return {"version": version.value, "found": found}

    def init(self):
        return {"code": self._cuda.cuInit(0)}

    def state(self, pid):
        state = ctypes.c_uint(99)
        answer = self._call("GetState", pid, ctypes.byref(state))
        return {**answer, "state": STATES.get(state.value, state.value)}

    def lock(self, pid):
        # The time-out is the first 32 bits; 0 would wait for ever.
        return self._call("Lock", pid, self._arguments(LOCK_MILLISECONDS))

    def checkpoint(self, pid):
        return self._call("Checkpoint", pid, self._arguments(0))

    def restore(self, pid):
        return self._call("Restore", pid, self._arguments(0))

    def unlock(self, pid):
        return self._call("Unlock", pid, self._arguments(0))

    def _arguments(self, first):
        return (ctypes.c_uint64 * 8)(first)

    def _call(self, name, pid, arguments):
        begun = time.perf_counter()
        code = getattr(self._cuda, f"cuCheckpointProcess{name}")(ctypes.c_int(pid), arguments)
        seconds = time.perf_counter() - begun
        return {"code": code, "words": CODES.get(code, str(code)), "seconds": round(seconds, 3)}


def check(h):
    with h.part("persistence mode"):
        modes = {True: "on", False: "off: cuInit keeps the driver loaded and makes a restore possible"}
        observed = [modes[h.nvml.is_persistent(device)] for device in h.nvml.devices]
        h.row("persistence mode", "known", ", ".join(observed), True)
    with h.part("functions"):
        helper = h.start("checkpoint")
        symbols = helper.ask("symbols")
        lacking = {name: it for name, it in symbols["found"].items() if not it["exported"] or it["status"] > 0}
        is_new = symbols["version"] >= CUDA_12_8
        observed = f"CUDA {symbols['version']}, of six lacking {lacking or 'none'}"
        h.row("functions", "all six from CUDA 12.8 on", observed, not lacking or not is_new)
        if lacking:
            raise Skip("the driver lacks the functions")
        with h.part("a process at rest"), h.recording("8-checkpoint"):
            park(h, helper)


def park(h, helper):
    try:
        target = h.start("torch")
    except Skip as reason:
        h.skip("PyTorch", reason)
        target = h.start("plain")
    room = host_room()
    size = next((size for size in (2 * GIB, GIB) if room is None or room >= size * 1.1 + 3 * GIB), None)
    if size is None:
        raise Skip(f"host memory has room for {mib(room)} only")
    target.ask("take", size)
    digest = target.ask("hash", limit=60)["sha256"]
    before = h.listed(target.pid)
    try:
        there_and_back(h, helper, target, size, before)
        after = target.ask("hash", limit=60)["sha256"]
        h.row("tensors", "bit-identical", f"sha256 {digest[:16]}… before, {after[:16]}… after", after == digest)
    finally:
        recover(h, helper, target)


def there_and_back(h, helper, target, size, listed):
    pid = target.pid
    do(h, helper, "lock", pid, "locked")
    resident, group, used = memory(pid), memory_of_group(), h.used()
    down = do(h, helper, "checkpoint", pid, "checkpointed")
    now, growth = h.listed(pid), memory(pid) - resident
    device = used - h.used()
    observed = f"{mib(listed)} before; now {mib(now) if now is not None else 'not listed'}; {mib(device)} freed on the GPU"
    row = row_of(h.snapshot(), pid)
    observed += f"; gpumem shows {row}"
    h.row("bytes while checkpointed", "none of the process's", observed, not now and device >= size)
    in_group = memory_of_group()
    more = mib(in_group - group) if None not in (in_group, group) else "unknown"
    observed = f"{mib(growth)} resident, {more} of its control group, for {mib(size)} of tensors"
    h.row("growth of host memory", "as much as was on the GPU", observed, growth >= size * 0.9)
    with h.part("a call while checkpointed"):
        touched = target.ask("touch", 3, limit=10)
        h.row("a call while checkpointed", "waits", touched, not touched["returned"])
    # Without persistence mode a restore needs this, and no context: that would take memory.
    code = helper.ask("init")["code"]
    h.row("cuInit in the caller", "0", code, code == 0)
    up = do(h, helper, "restore", pid, "locked")
    do(h, helper, "unlock", pid, "running")
    with h.part("the call after that"):
        touched = target.ask("touched", 20, limit=30)
        h.row("the call after that", "returns", touched, touched["returned"])
    now = h.listed(pid)
    h.row("bytes after it", "those of before", f"{mib(listed)} before, {mib(now)} now", now == listed or h.used() >= used - 64 * MIB)
    gib = size / GIB
    observed = f"{down / gib:.2f} s a GiB to the host, {up / gib:.2f} s back"
    h.row("speed", "less than 2 s a GiB", observed, max(down, up) / gib < 2)


def do(h, helper, command, pid, state):
    """One step, and the state that has to follow it; how long the step took."""
    answer = helper.ask(command, pid, limit=60)
    now = helper.ask("state", pid, limit=20)
    observed = f"{answer['words']} ({answer['code']}) in {answer['seconds']} s; then {now['state']} ({now['words']}, {now['seconds']} s)"
    if not h.row(command, f"ok, then {state}", observed, answer["code"] == 0 and now["state"] == state):
        raise Skip(f"what follows needs `{command}`")
    return answer["seconds"]


def recover(h, helper, target):
    """Brings it back whatever happened, and then ends it: checkpointed, since killing a restored process has hung a host."""
    with h.part("left behind"):
        steps = {
            "running": ("lock", "checkpoint"),
            "locked": ("unlock", "lock", "checkpoint"),
            "checkpointed": ("restore", "unlock", "lock", "checkpoint"),
        }
        state = helper.ask("state", target.pid, limit=20)["state"]
        done = [(step, helper.ask(step, target.pid, limit=60)["words"]) for step in steps.get(state, ())]
        target.kill()
        h.row("left behind", "running; checkpointed again and killed", f"{state}, then {done}", state == "running")


def memory(pid):
    """Its resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def memory_of_group():
    """What is counted to this process's control group, if that can be read."""
    for path in ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int(Path(path).read_text())
    return None


def host_room():
    """Bytes that host memory has left, by the machine and by the control group; None if unknown."""
    rooms = []
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        rooms.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")))
    with contextlib.suppress(OSError, ValueError):
        rooms.append(int(Path("/sys/fs/cgroup/memory.max").read_text()) - memory_of_group())
    return min(rooms, default=None)
