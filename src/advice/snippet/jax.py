    jax = sys.modules.get("jax")
    if jax is not None:
        # Compiled programs. JAX's own pool keeps its pages while the process lives: what arrays leave goes back only
        # if it is started with XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async, or XLA_PYTHON_CLIENT_ALLOCATOR=platform.
        jax.clear_caches()
    _trim_gpu_pools()
