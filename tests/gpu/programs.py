"""A process that holds GPU memory and does as it is told.

`programs.py KIND` reads a command a line (`take 1073741824`, `work 5`) and answers each with a line of JSON.
With commands as further arguments it carries those out and ends. KIND is `plain` (CUDA's driver interface and
no framework), `torch`, `jax`, `cupy`, or with the mock driver a stand-in for one of these.
"""

import ctypes
import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

MIB = 1 << 20

# Spins for some clock ticks in every thread: work that needs no compiler and no library.
SPIN = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 ticks)
{
    .reg .pred %p;
    .reg .b64 %limit, %begin, %now;
    ld.param.u64 %limit, [ticks];
    mov.u64 %begin, %clock64;
again:
    mov.u64 %now, %clock64;
    sub.s64 %now, %now, %begin;
    setp.lt.u64 %p, %now, %limit;
    @%p bra again;
    ret;
}
"""
BLOCKING_SYNC = 4


class Missing(Exception):
    """The framework is not installed, or sees no GPU."""


def load_cuda():
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Missing(f"no CUDA driver: {error}") from error


class Plain:
    def __init__(self):
        self._cuda = load_cuda()
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        # A thread that waits for the GPU sleeps: it is not to look busy on the CPU.
        self._call("cuDevicePrimaryCtxSetFlags_v2", device, BLOCKING_SYNC)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._context = context
        self._blocks = []
        self._peak = 0
        self._kernel = None

    def _call(self, name, *arguments):
        code = getattr(self._cuda, name)(*arguments)
        if code == 2:
            raise MemoryError(f"{name}: CUDA_ERROR_OUT_OF_MEMORY")
        if code != 0:
            raise RuntimeError(f"{name} failed: {code}")

    def take(self, size):
        block = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", block, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")
        self._blocks.append((block, size))
        self._peak = max(self._peak, self.facts()["reserved"])

    def work(self, seconds):
        # A thread has no current context of its own.
        self._call("cuCtxSetCurrent", self._context)
        if self._kernel is None:
            module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(SPIN))
            self._call("cuModuleGetFunction", ctypes.byref(kernel), module, ctypes.c_char_p(b"spin"))
            self._kernel = kernel
        ticks = ctypes.c_uint64(20_000_000)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(ticks))
        shape = [ctypes.c_uint(number) for number in (256, 1, 1, 128, 1, 1, 0)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._call("cuLaunchKernel", self._kernel, *shape, None, parameters, None)
            self._call("cuCtxSynchronize")

    def copy(self, seconds):
        size = ctypes.c_size_t(256 * MIB)
        host = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(host), size)
        block = self._blocks[0][0]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._call("cuMemcpyHtoD_v2", block, host, size)
            self._call("cuMemcpyDtoH_v2", host, block, size)

    def drop(self):
        for block, _ in self._blocks:
            self._call("cuMemFree_v2", block)
        self._blocks.clear()

    def facts(self):
        reserved = sum(size for _, size in self._blocks)
        return {"reserved": reserved, "allocated": reserved, "peak": self._peak}

    def hash(self):
        digest = hashlib.sha256()
        host = ctypes.create_string_buffer(64 * MIB)
        for block, size in self._blocks:
            for offset in range(0, size, len(host)):
                part = min(len(host), size - offset)
                there = ctypes.c_uint64(block.value + offset)
                self._call("cuMemcpyDtoH_v2", host, there, ctypes.c_size_t(part))
                digest.update(memoryview(host)[:part])
        return {"sha256": digest.hexdigest()}

    def call(self):
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuMemsetD8_v2", self._blocks[0][0], ctypes.c_ubyte(1), ctypes.c_size_t(1))
        self._call("cuCtxSynchronize")

    def forked(self, pid):
        pass


class Torch:
    device = "cuda"

    def __init__(self):
        try:
            import torch
        except ImportError as error:
            raise Missing(f"{error}") from error
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Missing("PyTorch sees no GPU")
        self._torch = torch
        self._blocks = []
        torch.ones(1, device=self.device)
        self._synchronize()

    def _synchronize(self):
        if self.device == "cuda":
            self._torch.cuda.synchronize()

    def take(self, size):
        block = self._torch.empty(size, dtype=self._torch.uint8, device=self.device)
        self._blocks.append(block.random_(0, 256))
        self._synchronize()

    def work(self, seconds):
        a = self._torch.full((4096, 4096), 0.5, device=self.device)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            a = (a @ a).tanh()
            self._synchronize()

    def drop(self):
        self._blocks.clear()
        gc.collect()
        self._torch.cuda.empty_cache()

    def facts(self):
        cuda = self._torch.cuda
        return {
            "version": self._torch.__version__,
            "reserved": cuda.memory_reserved(),
            "allocated": cuda.memory_allocated(),
            "peak": cuda.max_memory_allocated(),
            "total": cuda.get_device_properties(0).total_memory,
        }

    def hash(self):
        digest = hashlib.sha256()
        for block in self._blocks:
            host = block.cpu()
            digest.update((ctypes.c_ubyte * host.numel()).from_address(host.data_ptr()))
        return {"sha256": digest.hexdigest()}

    def call(self):
        self._torch.ones(1, device=self.device).sum().item()

    def forked(self, pid):
        pass


class Jax:
    def __init__(self):
        try:
            import jax
            import jax.numpy
        except ImportError as error:
            raise Missing(f"{error}") from error
        if jax.default_backend() != "gpu":
            raise Missing("JAX sees no GPU")
        self._jax = jax
        self._blocks = []
        jax.numpy.ones(1).block_until_ready()

    def take(self, size):
        numpy = self._jax.numpy
        self._blocks.append(numpy.ones((size // 4,), dtype=numpy.float32).block_until_ready())

    def work(self, seconds):
        numpy = self._jax.numpy
        a = numpy.full((4096, 4096), 0.5, dtype=numpy.float32)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            a = numpy.tanh(a @ a).block_until_ready()

    def facts(self):
        statistics = self._jax.devices()[0].memory_stats() or {}
        return {"version": self._jax.__version__, "reserved": statistics.get("bytes_limit"), "share": 0.75}

    def forked(self, pid):
        pass


class Cupy:
    def __init__(self):
        try:
            import cupy
        except ImportError as error:
            raise Missing(f"{error}") from error
        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise Missing(f"CuPy sees no GPU: {error}") from error
        self._cupy = cupy
        self._blocks = []

    def take(self, size):
        # Without a kernel: those are compiled at run time, which needs more than the driver.
        block = self._cupy.empty(size, dtype=self._cupy.uint8)
        block.data.memset(1, size)
        self._cupy.cuda.runtime.deviceSynchronize()
        self._blocks.append(block)

    def work(self, seconds):
        block = self._blocks[0]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            block.data.memset(1, block.nbytes)
            self._cupy.cuda.runtime.deviceSynchronize()

    def facts(self):
        pool = self._cupy.get_default_memory_pool()
        reserved, used = pool.total_bytes(), pool.used_bytes()
        return {"version": self._cupy.__version__, "reserved": reserved, "allocated": used}

    def forked(self, pid):
        pass


KINDS = {"plain": Plain, "torch": Torch, "jax": Jax, "cupy": Cupy}


class Program:
    """The commands that need no GPU, and those of what holds the memory."""

    def __init__(self, holder, answers):
        self._holder, self._answers = holder, answers
        self._touching = None
        self._working, self._rests = None, threading.Event()

    def do(self, command, *arguments):
        arguments = [float(word) if "." in word else int(word) for word in arguments]
        own = getattr(self._holder, command, None) or getattr(self, f"on_{command}")
        answer = own(*arguments)
        return answer if isinstance(answer, dict) else {}

    def on_begin(self):
        """Works until `rest`."""

        def work():
            while not self._rests.is_set():
                self._holder.work(0.3)

        self._working = threading.Thread(target=work, daemon=True)
        self._working.start()

    def on_rest(self):
        self._rests.set()
        self._working.join(20)

    def on_burn(self, seconds):
        """Uses the CPU only."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            hashlib.sha256(b"x" * 4096).digest()

    def on_ignore(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def on_fork(self):
        """Starts a worker as a data loader does: it inherits the GPU's files and waits."""
        pid = os.fork()
        if pid == 0:
            null = os.open("/dev/null", os.O_RDWR)
            # Whoever reads the answers is not to wait for this one's end.
            for number in (0, 1, 2, self._answers):
                os.dup2(null, number)
            while True:
                signal.pause()
        self._holder.forked(pid)
        return {"pid": pid}


    def on_detach(self, size):
        """Starts a process in a session of its own, which holds memory when this one has ended."""
        command = [sys.executable, "-B", __file__, "plain", f"take {size}", "wait 60"]
        null = subprocess.DEVNULL
        child = subprocess.Popen(
            command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
        )
        child.stdout.readline()
        return {"pid": child.pid}

    def on_wait(self, seconds):
        time.sleep(seconds)

    def on_vanish(self):
        """Ends as a killed process does: nothing is cleaned up on the way."""
        os._exit(0)

    def on_touch(self, seconds):
        """A GPU call in a thread: whether it returned in time."""
        self._touching = threading.Thread(target=self._holder.call, daemon=True)
        self._touching.start()
        return self.on_touched(seconds)

    def on_touched(self, seconds):
        begun = time.monotonic()
        self._touching.join(seconds)
        returned = not self._touching.is_alive()
        return {"returned": returned, "seconds": round(time.monotonic() - begun, 3)}


def make(kind):
    if kind == "checkpoint":
        import checkpoint

        return checkpoint.Checkpointer(load_cuda())
    if "GPUMEM_TEST_GPU_DEVICES" in os.environ:
        import mock

        return mock.StandIn(kind)
    return KINDS[kind]()


def main():
    kind, commands = sys.argv[1], sys.argv[2:]
    # What libraries print is not to be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if kind.startswith("@"):
        # A word by which gpumem can select it.
        kind, commands = commands[0], commands[1:]

    def answer(document):
        answers.write(json.dumps(document) + "\n")

    try:
        program = Program(make(kind), answers.fileno())
    except Missing as error:
        answer({"missing": f"{error}"})
        sys.exit(3)
    except RuntimeError as error:
        answer({"error": f"{error}"})
        raise
    if commands:
        for command in commands:
            answer(program.do(*command.split()))
        return
    answer({"pid": os.getpid()})
    for line in sys.stdin:
        try:
            answer(program.do(*line.split()))
        except Exception as error:  # noqa: BLE001, whatever it is, the check has to hear of it
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"[:500]})


if __name__ == "__main__":
    main()
