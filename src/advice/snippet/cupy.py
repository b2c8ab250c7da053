    cupy = sys.modules.get("cupy")
    if cupy is not None:
        # The pool of the device that is current; of others, within "with cupy.cuda.Device(N):".
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
