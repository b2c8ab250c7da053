"""What the checks share: rows of the report, gpumem, and programs that hold GPU memory."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from nvml import UNKNOWN, Nvml

MIB = 1 << 20
GIB = 1 << 30
HERE = Path(__file__).resolve().parent
# A word on the command line of every program that holds memory, by which gpumem can select them.
TOKEN = f"@gpu-test-{os.getpid()}"


class Skip(Exception):
    """This machine lacks what a check needs."""


class Broken(Exception):
    """Something that should work does not: the check fails."""


def read_stat(pid):
    """State and start of a process as /proc has them; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


def mib(size):
    return "unknown" if size is None else f"{size / MIB:.0f} MiB"


def seconds(waited):
    return "too long" if waited is None else f"{waited:.2f} s"


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise Broken(f"no JSON, exit {self.code}: {self.err.strip()[-300:] or self.out[-300:]}") from None


class Program:
    """A running programs.py; see there."""

    def __init__(self, harness, kind, environment, limit):
        command = [sys.executable, "-u", "-B", str(HERE / "programs.py"), TOKEN, kind]
        self.kind = kind
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=harness.log,
            env={**os.environ, **environment},
            process_group=0,
        )
        self.pid = self.process.pid
        harness.register(self.pid)
        self._read = b""
        answer = self.hear(limit)
        if "missing" in answer:
            self.process.wait(20)
            raise Skip(answer["missing"])

    def tell(self, *words):
        try:
            self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Broken(f"the {self.kind} program has ended ({error})") from error

    def hear(self, limit=30):
        end = time.monotonic() + limit
        output = self.process.stdout.fileno()
        while b"\n" not in self._read:
            left = end - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                raise Broken(f"the {self.kind} program did not answer within {limit} s")
            read = os.read(output, 65536)
            if not read:
                raise Broken(f"the {self.kind} program ended; see log.txt")
            self._read += read
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Broken(f"the {self.kind} program: {answer['error']}")
        return answer

    def ask(self, *words, limit=30):
        self.tell(*words)
        return self.hear(limit)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait(20)

    def finish(self, limit=20):
        """Lets it end by itself."""
        self.process.stdin.close()
        self.process.wait(limit)


class Harness:
    def __init__(self, binary, work, is_mock):
        self.binary, self.work, self.is_mock = binary, work, is_mock
        self.log = open(work / "log.txt", "ab", buffering=0)  # noqa: SIM115, until the process ends
        self.rows = open(work / "rows.jsonl", "a", buffering=1)  # noqa: SIM115
        self.nvml = Nvml()
        self.begun = time.monotonic()
        # A real driver remembers ten seconds of use, and samples it a few times a second.
        self.memory_seconds = 0 if is_mock else 10
        self.rule_seconds = 2 if is_mock else 6

    def row(self, check, expected, observed, passed, skipped=None):
        """Notes one result; `passed` is None for what could not be tried."""
        now = time.monotonic()
        seconds = round(now - self.begun, 2)
        self.begun = now
        row = {"check": check, "expected": expected, "observed": str(observed)[:4000], "passed": passed}
        row |= {"skipped": skipped} if skipped else {}
        self.rows.write(json.dumps({**row, "seconds": seconds}) + "\n")
        return passed

    def skip(self, check, reason):
        self.row(check, "", "", None, str(reason))

    @contextlib.contextmanager
    def part(self, check):
        """One part of a check: what breaks it does not keep the others from being tried."""
        try:
            yield
        except Skip as reason:
            self.skip(check, reason)
        except Exception as error:  # noqa: BLE001, the row says which
            self.row(check, "no error", f"{type(error).__name__}: {error}", False)

    def register(self, pid):
        """Has a process killed when the check is over, together with its group."""
        stat = read_stat(pid)
        with open(self.work / "pids", "a") as file:
            file.write(f"{pid} {stat[1] if stat else 0}\n")

    def start(self, kind, environment=None, limit=90):
        return Program(self, kind, environment or {}, limit)

    def gpumem(self, *arguments, config=None, limit=60):
        command = [self.binary, "--config", config or "/dev/null", *map(str, arguments)]
        self.log.write(f"+ gpumem {' '.join(map(str, arguments))}\n".encode())
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
        )
        self.register(process.pid)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Broken(f"gpumem {arguments[0]} did not end within {limit} s") from None
        self.log.write(err)
        return Result(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def snapshot(self):
        return self.gpumem("ps", "--json", "--no-store").json()

    @contextlib.contextmanager
    def recording(self, name):
        """Records to `NAME.jsonl.zst` meanwhile, through a store, which compresses."""
        store = self.work / f"store-{name}"
        command = [self.binary, "--config", "/dev/null", "--store-dir", store, "record", "--store"]
        recorder = subprocess.Popen(
            [*command, "--interval", "1s"],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            process_group=0,
        )
        self.register(recorder.pid)
        try:
            yield
        finally:
            recorder.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                recorder.wait(20)
            files = sorted(store.glob("*.jsonl.zst"))
            if files:
                shutil.copyfile(files[0], self.work / f"{name}.jsonl.zst")

    def config(self, name, text):
        path = self.work / f"{name}.toml"
        path.write_text(text)
        return str(path)

    def used(self):
        """What is in use on all GPUs, by NVML itself."""
        return sum(self.nvml.memory(device).used for device in self.nvml.devices)

    def listed(self, pid):
        """The bytes that NVML counts to a pid on all GPUs; None if no GPU lists it or says."""
        rows = [self.nvml.processes(device).get(pid) for device in self.nvml.devices]
        known = [used for used in rows if used not in (None, UNKNOWN)]
        return sum(known) if known else None

    def require_listed(self, pid):
        """Skips what needs NVML to list a process by the number that it has here."""
        if self.wait(lambda: self.listed(pid) is not None, 5):
            return
        rows = [self.nvml.processes(device) for device in self.nvml.devices]
        shown = [gpu.get("processes") for gpu in self.snapshot()["gpus"]]
        try:
            namespace = os.readlink("/proc/self/ns/pid")
        except OSError as error:
            namespace = f"unknown: {error}"
        raise Skip(f"NVML does not list pid {pid}, but {rows}, and gpumem shows {shown}; pid namespace {namespace}, {kernel()}")

    def wait(self, condition, seconds):
        """Waits until a condition holds; how long that took, or None."""
        begun = time.monotonic()
        while True:
            if condition():
                return max(time.monotonic() - begun, 0.001)
            if time.monotonic() - begun > seconds:
                return None
            time.sleep(0.02)

    def wait_free(self, before, seconds=10):
        """Waits until no more is in use than before."""
        return self.wait(lambda: self.used() <= before + 64 * MIB, seconds)


def kernel():
    """What the kernel calls itself: gVisor says so here."""
    with contextlib.suppress(OSError):
        return Path("/proc/version").read_text().strip()[:80]
    return "/proc/version is unreadable"


def row_of(snapshot, pid):
    """A process's row, on whichever GPU."""
    rows = (row for gpu in snapshot["gpus"] for row in gpu.get("processes") or [] if row["pid"] == pid)
    return next(rows, None)


def process_of(snapshot, pid):
    return next((process for process in snapshot["processes"] if process["pid"] == pid), {})
