    # TensorFlow's own pool (BFC) keeps its pages while the process lives: what tensors leave goes back only if it is
    # started with TF_GPU_ALLOCATOR=cuda_malloc_async. clear_session() is left out: it drops the program's models.
    _trim_gpu_pools()
