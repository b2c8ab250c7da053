"""A process that holds GPU memory and executes the Python code that it receives.

`programs.py TOKEN KIND` reads a JSON string with code per line, and answers each line with a line of JSON. If further
arguments contain code, the program executes the code and exits.
"""

import ctypes
import gc  # noqa: F401, for the code that is executed
import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import threading  # noqa: F401
import time
import traceback
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30

BLOCKING_SYNC = 4


class Plain:
    """CUDA's driver API without a framework."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.blocks = []
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        # A thread that waits for the GPU must not use the CPU.
        self.call("cuDevicePrimaryCtxSetFlags_v2", device, BLOCKING_SYNC)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with {code}")

    def take(self, size):
        block = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size))
        self.blocks.append((block, ctypes.c_size_t(size)))
        self.work_once()

    def work_once(self):
        block, size = self.blocks[-1]
        self.call("cuMemsetD8_v2", block, ctypes.c_ubyte(1), size)
        self.call("cuCtxSynchronize")

    def copy(self):
        block, _ = self.blocks[-1]
        host, size = ctypes.c_void_p(), ctypes.c_size_t(256 * MIB)
        self.call("cuMemAllocHost_v2", ctypes.byref(host), size)
        while True:
            self.call("cuMemcpyHtoD_v2", block, host, size)
            self.call("cuMemcpyDtoH_v2", host, block, size)


class Torch:
    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")
        self.torch, self.blocks = torch, []
        self.matrix = torch.full((4096, 4096), 0.5, device="cuda")
        self.work_once()

    def take(self, size):
        block = self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
        self.blocks.append(block.random_(0, 256))
        self.torch.cuda.synchronize()

    def work_once(self):
        (self.matrix @ self.matrix).tanh()
        self.torch.cuda.synchronize()

    def facts(self):
        cuda = self.torch.cuda
        return {"reserved": cuda.memory_reserved(), "peak": cuda.max_memory_allocated()}

    def hash(self):
        digest = hashlib.sha256()
        for block in self.blocks:
            host = block.cpu()
            digest.update((ctypes.c_ubyte * host.numel()).from_address(host.data_ptr()))
        return digest.hexdigest()


class Jax:
    def __init__(self):
        import jax

        if jax.default_backend() != "gpu":
            raise ImportError("JAX sees no GPU")
        self.jax, self.blocks = jax, []
        self.matrix = jax.numpy.full((4096, 4096), 0.5, dtype="float32")
        self.work_once()

    def take(self, size):
        self.blocks.append(self.jax.numpy.ones((size // 4,), dtype="float32").block_until_ready())

    def work_once(self):
        self.jax.numpy.tanh(self.matrix @ self.matrix).block_until_ready()

    def hash(self):
        digest = hashlib.sha256()
        for block in self.blocks:
            digest.update(self.jax.device_get(block).tobytes())
        return digest.hexdigest()

    def facts(self):
        return {"reserved": self.jax.devices()[0].memory_stats()["bytes_limit"]}


class Cupy:
    def __init__(self):
        import cupy

        self.cupy, self.blocks = cupy, []
        self.take(1)

    def take(self, size):
        self.blocks.append(self.cupy.empty(size, dtype=self.cupy.uint8))
        self.work_once()

    def work_once(self):
        # Memset requires no kernel. CuPy compiles kernels at run time, which requires more than the driver.
        self.blocks[-1].data.memset(1, self.blocks[-1].nbytes)
        self.cupy.cuda.runtime.deviceSynchronize()

    def hash(self):
        digest = hashlib.sha256()
        for block in self.blocks:
            digest.update(block.get().tobytes())
        return digest.hexdigest()

    def facts(self):
        return {"reserved": self.cupy.get_default_memory_pool().total_bytes()}


class Checkpoint:
    """Calls the CUDA checkpoint API on another process."""

    NAMES = ("GetRestoreThreadId", "GetState", "Lock", "Checkpoint", "Restore", "Unlock")
    STATES = ("running", "locked", "checkpointed", "failed")
    # 0 would mean no time limit.
    LOCK_MILLISECONDS = 10_000

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")

    def facts(self):
        version = ctypes.c_int()
        self.cuda.cuDriverGetVersion(ctypes.byref(version))
        missing = [name for name in self.NAMES if not hasattr(self.cuda, f"cuCheckpointProcess{name}")]
        return [version.value, missing]

    def state(self, pid):
        state = ctypes.c_uint(99)
        code = self.cuda.cuCheckpointProcessGetState(ctypes.c_int(pid), ctypes.byref(state))
        return self.STATES[state.value] if state.value < 4 else f"code {code}"

    def step(self, name, pid):
        """Returns the code, the seconds and the new state."""
        arguments = (ctypes.c_uint64 * 8)(self.LOCK_MILLISECONDS if name == "Lock" else 0)
        start = time.perf_counter()
        code = getattr(self.cuda, f"cuCheckpointProcess{name}")(ctypes.c_int(pid), arguments)
        return [code, round(time.perf_counter() - start, 3), self.state(pid)]


class StandIn:
    """Imitates a program on the mock driver. `run` writes the memory of the program to the driver's scene."""

    TOTAL = 80 * GIB - 614 * MIB
    CONTEXT = 512 * MIB
    LIBRARIES = {
        "plain": "libcuda.so.1",
        "torch": "libtorch_cuda.so",
        "jax": "xla_cuda_plugin.so",
        "cupy": "cupy_backends/cuda/api/runtime.so",
    }

    def __init__(self, kind):
        self.folder = Path(os.environ["GPUMEM_MOCK_SCENE"]).parent
        self.row_patch = json.loads(os.environ.get("GPUMEM_TEST_GPU_BREAK", "{}")).get("process", {})
        self.files = [open(f"/dev/{name}", "rb") for name in ("nvidia0", "nvidiactl", "nvidia-uvm")]
        self.maps = [self.map_library(self.LIBRARIES[name]) for name in ("plain", kind)]
        self.pids = [os.getpid()]
        self.preallocated = int(0.75 * 80 * GIB) if kind == "jax" else 0
        self.allocated = self.peak = 0
        self.publish(0)

    def map_library(self, name):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(4096))
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)

    def rows(self):
        return json.loads((self.folder / "scene.json").read_text())["gpus"][0]["processes"]

    def publish(self, sm):
        used = self.CONTEXT + max(self.preallocated, self.allocated)
        row = {"pid": self.pids[0], "used_bytes": used, "sm": sm, **self.row_patch}
        file = self.folder / f"holders/{self.pids[0]}.json"
        file.with_suffix(".new").write_text(json.dumps({"row": row, "pids": self.pids}))
        file.with_suffix(".new").replace(file)
        while row not in self.rows():
            time.sleep(0.005)

    def take(self, size):
        if size > self.TOTAL - sum(row["used_bytes"] for row in self.rows()):
            raise RuntimeError("CUDA out of memory.")
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.publish(0)

    def work(self, seconds):
        self.publish(97)
        time.sleep(seconds)
        self.publish(0)

    def copy(self):
        # Copying gigabytes keeps some multiprocessors busy.
        self.publish(4)
        time.sleep(3600)

    def facts(self):
        return {"reserved": max(self.preallocated, self.allocated), "peak": self.peak}

    def forked(self, pid):
        self.pids.append(pid)
        self.publish(0)


class Code:
    """Executes code that can use the names in this file, in this object and in the holder of memory."""

    def __init__(self, answers):
        self.answers = answers
        self.names = dict(globals())
        self.add_names(self)

    def add_names(self, source):
        self.names |= {name: getattr(source, name) for name in dir(source) if not name.startswith("_")}

    def start(self, kind):
        is_mocked = "GPUMEM_MOCK_SCENE" in os.environ and kind in StandIn.LIBRARIES
        self.holder = StandIn(kind) if is_mocked else KINDS.get(kind, object)()
        self.add_names(self.holder)
        return os.getpid()

    def execute(self, code):
        try:
            expression = compile(code, "code", "eval")
        except SyntaxError:
            expression = None
        if expression:
            return eval(expression, self.names)
        exec(code, self.names)

    def answer(self, code):
        """Executes code, and writes the result or the failure."""
        try:
            answer = {"value": self.execute(code)}
        except (ImportError, OSError) as error:
            answer = {"missing": error}
        except Exception as error:  # noqa: BLE001, the check reports it
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        self.write(answer)

    def write(self, answer):
        print(json.dumps(answer, default=str), file=self.answers, flush=True)

    def work(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.holder.work_once()

    def fork(self):
        """Starts a worker that inherits the GPU's files and waits, like the worker of a data loader."""
        pid = os.fork()
        if pid == 0:
            null = os.open("/dev/null", os.O_RDWR)
            for number in (0, 1, 2, self.answers.fileno()):
                os.dup2(null, number)
            while True:
                signal.pause()
        if isinstance(self.holder, StandIn):
            self.holder.forked(pid)
        return pid

    def detach(self, size):
        """Starts a process in another session, which still holds memory after this process has exited."""
        command = [sys.executable, __file__, sys.argv[1], "plain", f"take({size})", "time.sleep(60)"]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        child = subprocess.Popen(command, stdin=null, stdout=pipe, stderr=null, start_new_session=True)
        child.stdout.readline()
        return child.pid


KINDS = {"plain": Plain, "torch": Torch, "jax": Jax, "cupy": Cupy, "checkpoint": Checkpoint}


def main():
    kind, lines = sys.argv[2], sys.argv[3:]
    # Send the output of libraries to standard error, so that it is not mixed with answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    code = Code(answers)
    if lines:
        code.start(kind)
        for line in lines:
            code.write({"value": code.execute(line)})
        return
    code.answer(f"start('{kind}')")
    for line in sys.stdin:
        code.answer(json.loads(line))


if __name__ == "__main__":
    main()
