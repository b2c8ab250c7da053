# Returns cached GPU memory when gpumem asks for it (gpumem release PID); the program keeps running.
#
# 1. Paste this where the program starts, in its main thread.
# 2. Call release_gpu_memory_if_asked() in the main thread between two steps, batches or requests. Where the program
#    waits (for a request, a queue, a key), let it wait within "with gpu_is_idle():", which releases at once.
#    An asyncio program needs neither: loop.add_signal_handler(signal.SIGUSR2, release_gpu_memory)
# 3. Start it with the variable that tells gpumem about this: GPUMEM_RELEASE_SIGNAL=USR2 python main.py
#    (USR1, USR2 or HUP; choose one that the program does not use.) Without the variable this code does nothing.
import contextlib
import gc
import os
import signal
import sys

_asked = _idle = False


def _ask(*_):
    """The signal handler. It may run between any two bytecodes of the main thread, so it only sets a flag there."""
    global _asked
    _asked = True
    if _idle:
        release_gpu_memory_if_asked()


def release_gpu_memory_if_asked():
    """Costs nothing unless a release was requested."""
    global _asked
    if _asked:
        _asked = False
        release_gpu_memory()


@contextlib.contextmanager
def gpu_is_idle():
    """For code that waits and computes nothing on the GPU."""
    global _idle
    _idle = True
    try:
        release_gpu_memory_if_asked()
        yield
    finally:
        _idle = False


def release_gpu_memory():
    """Returns memory that allocators keep after it was freed. Memory in use stays."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()
    # TensorFlow's own pool (BFC) keeps its pages while the process lives: what tensors leave goes back only if it is
    # started with TF_GPU_ALLOCATOR=cuda_malloc_async. clear_session() is left out: it drops the program's models.
    jax = sys.modules.get("jax")
    if jax is not None:
        # Frees compiled programs. JAX's own pool keeps freed memory while the process lives, unless it is started
        # with XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async, or XLA_PYTHON_CLIENT_ALLOCATOR=platform.
        jax.clear_caches()
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        # The pool of the current device; for others, call it within "with cupy.cuda.Device(N):".
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    _trim_gpu_pools()


def _trim_gpu_pools():
    """Trims the driver's own pools (cuda_malloc_async, cudaMallocAsync)."""
    import ctypes

    try:
        # Only if the program has loaded it.
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return
    count, device = ctypes.c_int(), ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return
    for index in range(count.value):
        flags, active, pool = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            continue
        # Creates no context where the program has none.
        cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if not active.value:
            continue
        for get_pool in (cuda.cuDeviceGetDefaultMemPool, cuda.cuDeviceGetMemPool):
            if get_pool(ctypes.byref(pool), device) == 0:
                cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0))


_name = os.environ.get("GPUMEM_RELEASE_SIGNAL", "").upper()
_name = _name[3:] if _name.startswith("SIG") else _name
if _name in ("USR1", "USR2", "HUP"):
    signal.signal(getattr(signal, "SIG" + _name), _ask)
