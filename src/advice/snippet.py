# Returns cached GPU memory to the driver when `gpumem release PID` asks for it. The program keeps running.
#
# 1. Paste this code where the main thread of the program starts.
# 2. Call release_gpu_memory_if_asked() in the main thread between two steps, batches or requests. Where the main thread
#    waits for a request, a queue or a key, use "with gpu_is_idle():", which releases memory during the wait. An asyncio
#    program needs neither. It calls loop.add_signal_handler(signal.SIGUSR2, release_gpu_memory) instead.
# 3. Start the program with GPUMEM_RELEASE_SIGNAL=USR2, which tells gpumem to send SIGUSR2. If the program uses SIGUSR2,
#    choose USR1 or HUP. Without the variable, this code does nothing.
import contextlib
import gc
import os
import signal
import sys

_asked = _idle = False


def _ask(*_):
    """Handles the signal, which can interrupt the main thread anywhere. Only sets a flag unless the GPU is idle."""
    global _asked
    _asked = True
    if _idle:
        release_gpu_memory_if_asked()


def release_gpu_memory_if_asked():
    """Releases memory if gpumem has asked for it since the last call."""
    global _asked
    if _asked:
        _asked = False
        release_gpu_memory()


@contextlib.contextmanager
def gpu_is_idle():
    """Marks code that does not use the GPU. If gpumem asks while the code runs, memory is released immediately."""
    global _idle
    _idle = True
    try:
        release_gpu_memory_if_asked()
        yield
    finally:
        _idle = False


def release_gpu_memory():
    """Returns memory that the program has freed and allocators have cached. Keeps memory in use."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()
    # TensorFlow's default allocator (BFC) keeps freed memory until the process exits. To change this, start the program
    # with TF_GPU_ALLOCATOR=cuda_malloc_async. tf.keras.backend.clear_session() would not free this memory either.
    jax = sys.modules.get("jax")
    if jax is not None:
        # Frees compiled programs. JAX's default allocator keeps freed memory until the process exits. To change this,
        # start the program with XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async or XLA_PYTHON_CLIENT_ALLOCATOR=platform.
        jax.clear_caches()
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        # Frees the pool of the current device. For another device, use "with cupy.cuda.Device(N):".
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    _trim_gpu_pools()


def _trim_gpu_pools():
    """Trims the pools of the driver, which cuda_malloc_async and cudaMallocAsync use."""
    import ctypes

    try:
        # RTLD_NOLOAD fails if the program has not loaded the library.
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
        # Skip devices on which the program has no context. This query does not create a context.
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
