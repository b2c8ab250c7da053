"""What returns GPU memory, as the tables of advice (`src/advice/`) say, held against NVML.

`advice.py FRAMEWORK MODE` does what people type, step by step, reads after each step what NVML counts to its own
process, and prints one JSON document: `steps`, each with the bytes after it, and `claims`, each with whether
the steps bore it out.
"""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time

from harness import GIB, MIB, Broken
from nvml import Nvml, NvmlError

BIG = 2 * GIB
# Less than this is no change: contexts grow a little when a kernel is loaded for the first time.
SLACK_BYTES = 128 * MIB
# Seconds for one framework in one mode.
LIMIT = 60

# Each mode is a process of its own, because these variables count from its start.
MODES = {
    "torch": {"": {}},
    "cupy": {"": {}},
    "jax": {
        "default": {},
        # Releases that know only the older name, XLA_PYTHON_CLIENT_MEM_FRACTION, fail this one.
        "fraction": {"XLA_CLIENT_MEM_FRACTION": ".30"},
        "growing": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        "platform": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
    },
    "tensorflow": {
        "default": {},
        "growing": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        "set_memory_growth": {},
        "limited": {},
        "cuda_malloc_async": {"TF_GPU_ALLOCATOR": "cuda_malloc_async"},
        "session": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        "child": {},
    },
}


def measure(h):
    """The check: every framework that is installed, in every mode."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "XLA_"))}
    for framework, modes in MODES.items():
        for mode, environment in modes.items():
            name = " ".join(filter(None, (framework, mode)))
            with h.part(name):
                command = [sys.executable, "-B", __file__, framework, mode]
                child = subprocess.Popen(
                    command, env={**mine, **environment}, stdout=subprocess.PIPE, stderr=h.log, process_group=0
                )
                h.register(child.pid)
                try:
                    out, _ = child.communicate(timeout=LIMIT)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, 9)
                    raise Broken(f"it took more than {LIMIT} s") from None
                if child.returncode == 3:
                    h.skip(name, out.decode(errors="replace").strip())
                    # Its other modes lack the same.
                    break
                if child.returncode != 0:
                    raise Broken(f"ended with {child.returncode}; see log.txt")
                report = json.loads(out)
                steps = "; ".join(f"{step} {used / MIB:.0f} MiB" for step, used in report["steps"])
                about = f"{report['version']}, {report['scope']}"
                h.row(f"{name}: steps", "they are taken", f"{about}: {steps}", True)
                for claim, holds, change in report["claims"]:
                    h.row(f"{name}: {claim}", "holds", f"{change / MIB:+.0f} MiB", holds)
                # The driver takes a moment to free what a process held.
                time.sleep(1)


class Meter:
    """Steps and claims of one process. Make it once it has a context on a GPU."""

    def __init__(self, version):
        self._nvml = Nvml()
        self._device = self._nvml.find(os.getpid())
        self.scope = "process" if self._device else "device"
        if self._device is None:
            if len(self._nvml.devices) != 1:
                raise NvmlError("NVML does not list this process by its pid, and there are several GPUs")
            # As in some containers: nothing else may be running on the GPU.
            self._device = self._nvml.devices[0]
        self.total_bytes = self._nvml.memory(self._device).total
        self.change = 0
        self.steps, self.claims = [], []
        self.version = version

    def used_bytes(self):
        if self.scope == "device":
            return self._nvml.memory(self._device).used
        return self._nvml.processes(self._device).get(os.getpid(), 0)

    def share(self):
        return self.used_bytes() / self.total_bytes

    def step(self, words):
        """Notes what NVML shows after a step."""
        used = self.used_bytes()
        self.change = used - self.steps[-1][1] if self.steps else 0
        self.steps.append((words, used))

    def claim(self, words, holds):
        """Notes whether a claim of the table was borne out."""
        self.claims.append((words, bool(holds), self.change))

    def grew(self, by_bytes):
        return self.change >= by_bytes - SLACK_BYTES

    def fell(self, by_bytes):
        return -self.change >= by_bytes - SLACK_BYTES

    def unchanged(self):
        return abs(self.change) <= SLACK_BYTES


def collect():
    """Twice: what the first pass finalizes may leave more for the second."""
    gc.collect()
    gc.collect()


def torch(_):
    import torch

    if not torch.cuda.is_available():
        raise ImportError("PyTorch sees no GPU")

    def block(size_bytes=BIG):
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    def empty():
        collect()
        torch.cuda.empty_cache()

    # What libraries allocate for themselves at first use is not to count as a change later on.
    a = torch.ones(256, 256, device="cuda")
    (a @ a).sum().item()
    del a
    empty()
    meter = Meter(torch.__version__)
    meter.step("a context")
    references(meter, torch, block)
    pinned_segments(meter, block, empty)
    traceback(meter, block, empty)
    notebook(meter, block, empty)
    training(meter, torch, empty)
    graphs(meter, torch, block, empty)
    empty()
    meter.step("everything dropped")
    meter.claim("the context stays", meter.scope == "device" or meter.used_bytes() >= 100 * MIB)
    return meter


def references(meter, torch, block):
    x = block()
    meter.step("allocate 2 GiB")
    meter.claim("an allocation shows", meter.grew(BIG))
    torch.cuda.empty_cache()
    meter.step("torch.cuda.empty_cache() while it is referred to")
    meter.claim("empty_cache returns no live tensor", meter.unchanged())
    del x
    meter.step("del x")
    meter.claim("`del` alone returns nothing", meter.unchanged())
    collect()
    meter.step("gc.collect()")
    meter.claim("gc.collect() alone returns nothing", meter.unchanged())
    torch.cuda.empty_cache()
    meter.step("torch.cuda.empty_cache()")
    meter.claim("then empty_cache returns it", meter.fell(BIG))


def pinned_segments(meter, block, empty):
    # Blocks under 10 MiB share segments of 20 MiB: each segment keeps one that lives.
    blocks = [block(5 * MIB) for _ in range(400)]
    meter.step("allocate 400 blocks of 5 MiB")
    kept = blocks[::4]
    del blocks
    empty()
    meter.step("drop three of four, collect, empty_cache")
    meter.claim("a segment with one live tensor stays", not meter.fell(1500 * MIB))
    del kept
    empty()
    meter.step("drop the rest, collect, empty_cache")


def traceback(meter, block, empty):
    def fails():
        kept = block()  # noqa: F841, held by the frame
        raise RuntimeError("as out of memory does")

    try:
        fails()
    except RuntimeError as error:
        # As an interactive session does with what nobody catches.
        sys.last_exc = sys.last_value = error
        sys.last_traceback = error.__traceback__
    meter.step("an exception passes a frame with 2 GiB")
    empty()
    meter.step("collect, empty_cache")
    meter.claim("the traceback keeps it", meter.unchanged())
    sys.last_exc = sys.last_value = sys.last_traceback = None
    empty()
    meter.step("sys.last_exc = … = None, collect, empty_cache")
    meter.claim("without the traceback it goes", meter.fell(BIG))


def notebook(meter, block, empty):
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        return
    shell = InteractiveShell.instance()
    shell.user_ns["block"] = block

    def cell(words):
        shell.run_cell(words, store_history=True)

    cell("block()")
    meter.step("a cell shows 2 GiB")
    empty()
    meter.step("collect, empty_cache")
    meter.claim("the notebook's history keeps it", meter.unchanged())
    cell("%reset -f out")
    cell("get_ipython().user_ns_hidden.update(_=0, __=0, ___=0)")
    empty()
    meter.step("%reset -f out, hidden names, collect, empty_cache")
    meter.claim("without the history it goes", meter.fell(BIG))

    cell("def fails():\n    kept = block()\n    raise RuntimeError\nfails()")
    meter.step("a cell fails with 2 GiB in a frame")
    cell("import sys; sys.last_exc = sys.last_value = sys.last_traceback = None")
    empty()
    meter.step("sys.last_exc = … = None, collect, empty_cache")
    meter.claim("the notebook keeps the failure", meter.unchanged())
    cell("1/0")
    empty()
    meter.step("1/0, collect, empty_cache")
    meter.claim("a failure in its place lets it go", meter.fell(BIG))


def training(meter, torch, empty):
    model = torch.nn.Linear(16384, 16384, bias=False, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    size = 16384 * 16384 * 4
    x = torch.ones(4096, 16384, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    meter.step("one step of Adam: parameters, gradients and state of 1 GiB each, two of the last")
    small = torch.ones(64, 16384, device="cuda")
    optimizer.zero_grad(set_to_none=True)
    del x
    model(small).sum().backward()
    meter.step("a smaller batch")
    meter.claim("a smaller batch returns nothing", not meter.fell(size))
    optimizer.zero_grad(set_to_none=True)
    model.to("cpu")
    empty()
    meter.step("model.to('cpu'), collect, empty_cache")
    meter.claim("the model's memory goes, it stays in host memory", meter.fell(size))
    del optimizer, small
    empty()
    meter.step("del optimizer, collect, empty_cache")
    meter.claim("the optimizer's state goes with it", meter.fell(2 * size))
    del model


def graphs(meter, torch, block, empty):
    static = block(MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static.repeat(2048)
    del result
    meter.step("capture a graph that needs 2 GiB")
    empty()
    meter.step("collect, empty_cache")
    meter.claim("a graph keeps its pool", meter.unchanged())
    del graph
    empty()
    meter.step("del graph, collect, empty_cache")
    meter.claim("without the graph its pool goes", meter.fell(BIG))


def cupy(_):
    import cupy

    pool = cupy.get_default_memory_pool()
    cupy.empty(1, dtype=cupy.uint8).data.memset(1, 1)
    pool.free_all_blocks()
    meter = Meter(cupy.__version__)
    meter.step("a context")
    x = cupy.empty(BIG, dtype=cupy.uint8)
    meter.step("allocate 2 GiB")
    meter.claim("an allocation shows", meter.grew(BIG))
    pool.free_all_blocks()
    meter.step("free_all_blocks() while it is referred to")
    meter.claim("free_all_blocks returns no live array", meter.unchanged())
    del x
    collect()
    meter.step("del x, gc.collect()")
    meter.claim("`del` and gc.collect() return nothing", meter.unchanged())
    pool.free_all_blocks()
    meter.step("free_all_blocks()")
    meter.claim("then free_all_blocks returns it", meter.fell(BIG))
    return meter


def jax(mode):
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        raise ImportError("JAX sees no GPU")
    jnp.ones(1).block_until_ready()
    meter = Meter(jax.__version__)
    meter.step("the first operation")
    meter.change = meter.used_bytes()
    if mode == "default":
        meter.claim("three quarters of the GPU are taken at once", 0.70 <= meter.share() <= 0.85)
    elif mode == "fraction":
        meter.claim("the fraction that was asked for is taken", 0.25 <= meter.share() <= 0.40)
    else:
        meter.claim("little is taken at first", meter.share() <= 0.10)
    x = jnp.ones((BIG // 4,), dtype=jnp.float32).block_until_ready()
    meter.step("allocate 2 GiB")
    if mode in ("growing", "platform"):
        meter.claim("an allocation shows", meter.grew(BIG))
    else:
        meter.claim("an allocation does not show", meter.unchanged())
    before = meter.used_bytes()
    del x
    collect()
    meter.step("del x, gc.collect()")
    jax.clear_caches()
    collect()
    meter.step("jax.clear_caches(), gc.collect()")
    meter.change = meter.used_bytes() - before
    if mode == "platform":
        meter.claim("dropping it returns it", meter.fell(BIG))
    else:
        meter.claim("dropping it returns nothing", meter.unchanged())
    return meter


def tensorflow(mode):
    if mode == "child":
        return tensorflow_child()
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        raise ImportError("TensorFlow sees no GPU")
    return tensorflow_session(tf) if mode == "session" else tensorflow_eager(tf, mode)


def allocate(tf):
    x = tf.ones((BIG // 4,), dtype=tf.float32)
    x[0].numpy()
    return x


def tensorflow_eager(tf, mode):
    gpu = tf.config.list_physical_devices("GPU")[0]
    if mode == "set_memory_growth":
        tf.config.experimental.set_memory_growth(gpu, True)
    elif mode == "limited":
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
        tf.config.set_logical_device_configuration(gpu, [limit])
    tf.ones(1)[0].numpy()
    meter = Meter(tf.__version__)
    meter.step("the first operation")
    meter.change = meter.used_bytes()
    if mode == "default":
        meter.claim("nearly all of the GPU is taken at once", meter.share() >= 0.80)
    elif mode == "limited":
        meter.claim("no more than the limit is taken", meter.used_bytes() <= 5 * GIB)
    else:
        meter.claim("little is taken at first", meter.share() <= 0.10)
    x = allocate(tf)
    meter.step("allocate 2 GiB")
    if mode in ("growing", "set_memory_growth", "cuda_malloc_async"):
        meter.claim("an allocation shows", meter.grew(BIG))
    else:
        meter.claim("an allocation does not show", meter.unchanged())
    before = meter.used_bytes()
    del x
    collect()
    meter.step("del x, gc.collect()")
    meter.claim("dropping it returns nothing", meter.unchanged())
    tf.keras.backend.clear_session()
    collect()
    meter.step("tf.keras.backend.clear_session(), gc.collect()")
    meter.claim("clear_session returns nothing", meter.unchanged())
    meter.change = meter.used_bytes() - before
    meter.claim("nothing was returned at all", meter.unchanged())
    if mode == "default":
        is_refused = False
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError:
            is_refused = True
        meter.claim("set_memory_growth once a GPU was used is refused", is_refused)
    return meter


def tensorflow_session(tf):
    tf.compat.v1.disable_eager_execution()
    session = tf.compat.v1.Session()
    x = tf.reduce_sum(tf.ones((BIG // 4,), dtype=tf.float32) * tf.random.uniform((BIG // 4,)))
    session.run(x)
    meter = Meter(tf.__version__)
    meter.step("a session runs a graph that needs some GiB")
    meter.change = meter.used_bytes()
    meter.claim("the session's memory shows", meter.grew(BIG))
    for words, act in (
        ("sess.close()", session.close),
        ("tf.reset_default_graph()", tf.compat.v1.reset_default_graph),
        ("keras.backend.clear_session()", tf.keras.backend.clear_session),
    ):
        act()
        collect()
        meter.step(words)
        meter.claim(f"{words} returns nothing", meter.unchanged())
    return meter


def train(pipe):
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        pipe.send(None)
        return
    allocate(tf)
    meter = Meter(tf.__version__)
    meter.step("a child process trains")
    pipe.send((meter.version, meter.scope, meter.steps))


def tensorflow_child():
    nvml = Nvml()
    before = nvml.memory(nvml.devices[0]).used
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=train, args=(theirs,))
    child.start()
    theirs.close()
    trained = ours.recv()
    child.join()
    if trained is None:
        raise ImportError("TensorFlow sees no GPU")
    meter = Meter.__new__(Meter)
    meter.version, meter.scope, meter.steps = trained
    meter.change = nvml.memory(nvml.devices[0]).used - before
    is_listed = nvml.find(child.pid) is not None
    holds = meter.unchanged() if meter.scope == "device" else not is_listed
    meter.claims = [("the child's end returns everything", holds, meter.change)]
    return meter


def main():
    framework, mode = sys.argv[1:]
    # What libraries and notebook cells print is not the report's.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        meter = {"torch": torch, "cupy": cupy, "jax": jax, "tensorflow": tensorflow}[framework](mode)
    except (ImportError, NvmlError) as error:
        report.write(f"{error}\n")
        report.flush()
        sys.exit(3)
    names = ("version", "scope", "steps", "claims")
    json.dump({name: getattr(meter, name) for name in names}, report)


if __name__ == "__main__":
    main()
