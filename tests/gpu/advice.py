"""Code from the tables of advice (`src/advice/`), and the change in GPU memory that NVML must show.

An entry describes a process: kind and name, environment, and steps. A step consists of code and an expectation: a
change since the previous step in GiB, the memory of the process in GiB, or the memory as a share of the GPU.
"""

SAME = ("change", -0.13, 0.13)
GROWS = ("change", 1.87, 99)
FALLS = ("change", -99, -1.87)
CONTEXT = ("GiB", 0.1, 2.5)
LITTLE = ("share", 0, 0.10)

TORCH = """
def block(size=2 << 30):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
def empty():
    gc.collect()
    gc.collect()
    torch.cuda.empty_cache()
empty()
"""
TORCH_EXCEPTION = """
def fails():
    kept = block()
    raise RuntimeError("as out of memory does")
try:
    fails()
except RuntimeError as error:
    sys.last_exc = sys.last_value = error
    sys.last_traceback = error.__traceback__
"""
FORGET = "sys.last_exc = sys.last_value = sys.last_traceback = None; empty()"
TORCH_TRAINING = """
model = torch.nn.Linear(16384, 16384, bias=False, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
x = torch.ones(4096, 16384, device="cuda")
model(x).sum().backward()
optimizer.step()
"""
TORCH_SMALLER_BATCH = """
optimizer.zero_grad(set_to_none=True)
del x
x = torch.ones(64, 16384, device="cuda")
model(x).sum().backward()
"""
TORCH_GRAPH = """
static = block(1 << 20)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = static.repeat(2048)
del result
"""
NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.user_ns["block"] = block
def cell(words):
    shell.run_cell(words, store_history=True)
"""
NOTEBOOK_FORGET = """
cell('%reset -f out')
cell('get_ipython().user_ns_hidden.update(_=0, __=0, ___=0)')
empty()
"""
JAX_TAKE = "x = jax.numpy.ones((1 << 29,), dtype=jax.numpy.float32).block_until_ready()"
JAX_DROP = "del x; gc.collect(); jax.clear_caches(); gc.collect()"
TENSORFLOW = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
if not gpus:
    raise ImportError("TensorFlow sees no GPU")
def limit(megabytes):
    limits = [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)]
    tf.config.set_logical_device_configuration(gpus[0], limits)
"""
TENSORFLOW_START = "tf.ones(1)[0].numpy()"
TENSORFLOW_TAKE = "x = tf.ones((1 << 29,), dtype=tf.float32); x[0].numpy()"
TENSORFLOW_DROP = [("del x; gc.collect()", SAME), ("tf.keras.backend.clear_session(); gc.collect()", SAME)]
TENSORFLOW_REFUSED = """
try:
    tf.config.experimental.set_memory_growth(gpus[0], True)
    raise AssertionError("set_memory_growth is to be refused once a GPU was used")
except RuntimeError:
    pass
"""
TENSORFLOW_SESSION = """
tf.compat.v1.disable_eager_execution()
session = tf.compat.v1.Session()
session.run(tf.reduce_sum(tf.ones((1 << 29,)) * tf.random.uniform((1 << 29,))))
"""


def jax(name, environment, first, taken, dropped):
    return f"jax {name}", environment, [("None", first), (JAX_TAKE, taken), (JAX_DROP, dropped)]


def tensorflow(name, environment, setup, first, taken, *after):
    steps = [(TENSORFLOW + setup + TENSORFLOW_START, first), (TENSORFLOW_TAKE, taken)]
    return f"tensorflow {name}", environment, [*steps, *TENSORFLOW_DROP, *after]


SET_GROWTH = "tf.config.experimental.set_memory_growth(gpus[0], True)\n"
GROWTH = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
ADVICE = [
    ("torch", {}, [
        (TORCH, CONTEXT),
        ("x = block()", GROWS),
        ("torch.cuda.empty_cache()", SAME),
        ("del x", SAME),
        ("gc.collect()", SAME),
        ("torch.cuda.empty_cache()", FALLS),
        # Blocks under 10 MiB share segments of 20 MiB, and a live block keeps its segment.
        ("blocks = [block(5 << 20) for _ in range(400)]", GROWS),
        ("kept = blocks[::4]; del blocks; empty()", ("change", -1.34, 0.13)),
        ("del kept; empty()", ("change", -99, -0.4)),
        (TORCH_EXCEPTION, GROWS),
        ("empty()", SAME),
        (FORGET, FALLS),
        (TORCH_TRAINING, ("change", 3.87, 99)),
        (TORCH_SMALLER_BATCH, ("change", -0.87, 99)),
        ("optimizer.zero_grad(set_to_none=True); model.to('cpu'); empty()", ("change", -99, -0.87)),
        ("del optimizer, x; empty()", FALLS),
        ("del model; empty()", SAME),
        (TORCH_GRAPH, GROWS),
        ("empty()", SAME),
        ("del graph; empty()", FALLS),
        ("del static; empty()", CONTEXT),
    ]),
    ("torch in a notebook", {}, [
        (TORCH + NOTEBOOK, CONTEXT),
        ("cell('block()')", GROWS),
        ("empty()", SAME),
        (NOTEBOOK_FORGET, FALLS),
        ("cell('def fails():\\n    kept = block()\\n    raise RuntimeError\\nfails()')", GROWS),
        ("cell('import sys; sys.last_exc = sys.last_value = sys.last_traceback = None'); empty()", SAME),
        ("cell('1/0'); empty()", FALLS),
    ]),
    ("cupy", {}, [
        ("pool = cupy.get_default_memory_pool()", CONTEXT),
        ("x = cupy.empty(2 << 30, dtype=cupy.uint8)", GROWS),
        ("pool.free_all_blocks()", SAME),
        ("del x; gc.collect()", SAME),
        ("pool.free_all_blocks()", FALLS),
    ]),
    jax("default", {}, ("share", 0.70, 0.85), SAME, SAME),
    # This fails in versions that only support the older name, XLA_PYTHON_CLIENT_MEM_FRACTION.
    jax("fraction", {"XLA_CLIENT_MEM_FRACTION": ".30"}, ("share", 0.25, 0.40), SAME, SAME),
    jax("growing", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, LITTLE, GROWS, SAME),
    jax("platform", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, LITTLE, GROWS, FALLS),
    tensorflow("default", {}, "", ("share", 0.80, 1), SAME, (TENSORFLOW_REFUSED, SAME)),
    tensorflow("growing", GROWTH, "", LITTLE, GROWS),
    tensorflow("set_memory_growth", {}, SET_GROWTH, LITTLE, GROWS),
    tensorflow("limited", {}, "limit(4096)\n", ("GiB", 0.1, 5), SAME),
    tensorflow("cuda_malloc_async", {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}, "", LITTLE, GROWS),
    ("tensorflow session", GROWTH, [
        (TENSORFLOW + TENSORFLOW_SESSION, ("GiB", 1.87, 99)),
        ("session.close()", SAME),
        ("tf.compat.v1.reset_default_graph()", SAME),
        ("tf.keras.backend.clear_session()", SAME),
    ]),
]  # fmt: skip
MOCK_ADVICE = [("plain", {}, [("take(2 << 30)", GROWS), ("work(0)", SAME), ("take(-2 << 30)", FALLS)])]
