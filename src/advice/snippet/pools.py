

def _trim_gpu_pools():
    """The driver's own pools, cuda_malloc_async and cudaMallocAsync: what was freed and waited for goes back."""
    import ctypes

    try:
        # The one that the program has loaded; none is loaded for this.
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
        # Where the program has no context, none is made.
        cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if not active.value:
            continue
        for get_pool in (cuda.cuDeviceGetDefaultMemPool, cuda.cuDeviceGetMemPool):
            if get_pool(ctypes.byref(pool), device) == 0:
                cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0))
