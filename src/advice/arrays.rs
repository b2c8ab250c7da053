//! What computes with arrays and graphs, and CUDA itself.

use super::{Framework, Remark};

pub(super) const RAPIDS: Framework = Framework {
    name: "rapids",
    title: "RAPIDS",
    takes: Remark::new(
        "what each frame needs, straight from the driver, or through a pool of rmm where one was asked \
         for; a pool grows and keeps what was dropped, and NVML shows the pool",
        "docs.rapids.ai: rmm, memory resources",
    ),
    inside: &[
        Remark::new(
            "in the process: drop its frames (`del df`), then \
             `import gc, rmm; gc.collect(); rmm.reinitialize(pool_allocator=False)`",
            "docs.rapids.ai: rmm.reinitialize",
        ),
        Remark::new(
            "what CuPy allocated beside it: `cupy.get_default_memory_pool().free_all_blocks()`",
            "docs.cupy.dev: user guide, memory management",
        ),
    ],
    at_start: &[Remark::new(
        "at its next start: `rmm.reinitialize(pool_allocator=True, initial_pool_size=2**30, \
         maximum_pool_size=2**33)`, or no pool; under Dask a smaller --rmm-pool-size",
        "docs.rapids.ai: rmm.reinitialize; dask-cuda, command line",
    )],
    unchanged: &[Remark::new(
        "`del df` alone, where there is a pool: its memory becomes free inside the pool",
        "docs.rapids.ai: rmm, memory resources",
    )],
    at_end: &[],
};

pub(super) const ONNXRUNTIME: Framework = Framework {
    name: "onnxruntime",
    title: "ONNX Runtime",
    takes: Remark::new(
        "an arena for each session that doubles when it is full and keeps what it has; NVML shows the \
         arenas, beside what cuDNN and cuBLAS keep",
        "onnxruntime.ai: CUDA execution provider, arena_extend_strategy",
    ),
    inside: &[
        Remark::new(
            "in the process: drop the InferenceSession (`del session; gc.collect()`), or run with the \
             option `memory.enable_memory_arena_shrinkage` set to `gpu:0`",
            "onnxruntime: onnxruntime_run_options_config_keys.h",
        ),
        Remark::new(
            "with the session kept: `o = onnxruntime.RunOptions(); \
             o.add_run_config_entry('memory.enable_memory_arena_shrinkage', 'gpu:0')`, then \
             `session.run(None, inputs, o)`; the arena shrinks at the end of that run",
            "onnxruntime: onnxruntime_run_options_config_keys.h",
        ),
    ],
    at_start: &[Remark::new(
        "at its next start: `providers=[('CUDAExecutionProvider', {'gpu_mem_limit': 2 * 1024**3, \
         'arena_extend_strategy': 'kSameAsRequested'})]`",
        "onnxruntime.ai: CUDA execution provider, configuration options",
    )],
    unchanged: &[Remark::new(
        "`del outputs` and `gc.collect()` while the session lives: its arena keeps what it has",
        "onnxruntime.ai: CUDA execution provider, arena_extend_strategy",
    )],
    at_end: &[],
};

pub(super) const CUPY: Framework = Framework {
    name: "cupy",
    title: "CuPy",
    takes: Remark::new(
        "a pool that keeps the blocks of arrays that are gone, beside a context of some hundred MiB; NVML \
         shows the pool",
        "docs.cupy.dev: user guide, memory management",
    ),
    inside: &[
        Remark::new(
            "in the process: drop its arrays (`del x`), then \
             `cupy.get_default_memory_pool().free_all_blocks()`",
            "docs.cupy.dev: user guide, memory management",
        ),
        Remark::new(
            "plans of FFTs keep work areas: `cupy.fft.config.get_plan_cache().clear()`, then free all \
             blocks; once for each device",
            "docs.cupy.dev: user guide, fast Fourier transform, FFT plan cache",
        ),
    ],
    at_start: &[
        Remark::new(
            "at its next start: CUPY_GPU_MEMORY_LIMIT=30%, for three tenths of the GPU at most",
            "docs.cupy.dev: user guide, memory management",
        ),
        Remark::new(
            "at its next start: `cupy.cuda.set_allocator(None)` before any array, so that nothing is \
             kept; slower",
            "docs.cupy.dev: user guide, memory management",
        ),
    ],
    unchanged: &[
        Remark::new(
            "`del x` and `gc.collect()` alone: the block goes back to the pool",
            "docs.cupy.dev: user guide, memory management",
        ),
        Remark::new(
            "`cupy.get_default_pinned_memory_pool().free_all_blocks()`: returns host memory",
            "docs.cupy.dev: user guide, memory management",
        ),
    ],
    at_end: &[],
};

pub(super) const TENSORRT: Framework = Framework {
    name: "tensorrt",
    title: "TensorRT",
    takes: Remark::new(
        "weights for each engine and scratch memory for each execution context, for as long as they \
         live; NVML shows them flat",
        "docs.nvidia.com: TensorRT, memory",
    ),
    inside: &[Remark::new(
        "in the process: drop the contexts before their engine: `del context, engine`, then \
         `import gc; gc.collect()`; the buffers that the program allocated are its own",
        "docs.nvidia.com: TensorRT, memory",
    )],
    at_start: &[Remark::new(
        "when the engine is built the next time: \
         `config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)`",
        "docs.nvidia.com: TensorRT, IBuilderConfig.set_memory_pool_limit",
    )],
    unchanged: &[Remark::new(
        "waiting: weights and scratch memory stay until engine and contexts are destroyed",
        "docs.nvidia.com: TensorRT, memory",
    )],
    at_end: &[],
};

pub(super) const NUMBA: Framework = Framework {
    name: "numba",
    title: "Numba",
    takes: Remark::new(
        "what each device array needs, straight from the driver; arrays that are dropped wait in a queue \
         until there are ten, or they hold a fifth of the GPU",
        "numba.readthedocs.io: CUDA, memory management, deallocation behavior",
    ),
    inside: &[
        Remark::new(
            "in the process: drop its device arrays (`del d_x`); more than ten, or a fifth of the GPU, go \
             at once, the rest with the next ones",
            "numba.readthedocs.io: CUDA, memory management, deallocation behavior",
        ),
        Remark::new(
            "where nothing else in the process uses the GPU: `numba.cuda.close()` destroys the context \
             and returns all of it; PyTorch, TensorFlow and CuPy in the same process fail afterwards",
            "tensorflow/tensorflow#36465",
        ),
    ],
    at_start: &[Remark::new(
        "at its next start: NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT=0, so that what is dropped goes at once",
        "numba.readthedocs.io: CUDA, memory management, deallocation behavior",
    )],
    unchanged: &[Remark::new(
        "`del d_x` of a few small arrays: they wait in the queue",
        "numba.readthedocs.io: CUDA, memory management, deallocation behavior",
    )],
    at_end: &[],
};

pub(super) const CUDA: Framework = Framework {
    name: "cuda",
    title: "CUDA",
    takes: Remark::new(
        "what the program asks for with `cudaMalloc`, beside a context of some hundred MiB; pools of \
         `cudaMallocAsync` keep what was freed up to their release threshold; NVML shows all of it",
        "docs.nvidia.com: CUDA runtime API, stream ordered memory allocator",
    ),
    inside: &[
        Remark::new(
            "in the program: `cudaFree` what is not needed; after `cudaFreeAsync`, \
             `cudaDeviceSynchronize()` and `cudaMemPoolTrimTo(pool, 0)`",
            "docs.nvidia.com: CUDA runtime API, cudaMemPoolTrimTo",
        ),
        Remark::new(
            "in the program: `cudaDeviceReset()` returns everything, the context too; all its pointers, \
             streams and modules on the GPU are void then, those of other libraries as well",
            "docs.nvidia.com: CUDA runtime API, cudaDeviceReset",
        ),
    ],
    at_start: &[
        Remark::new(
            "at its next start: CUDA_VISIBLE_DEVICES=0, so that it has a context on one GPU only",
            "docs.nvidia.com: CUDA programming guide, environment variables",
        )
        .unless_set(&[("CUDA_VISIBLE_DEVICES", "")]),
        Remark::new(
            "at its next start, before CUDA 12.2: CUDA_MODULE_LOADING=LAZY, for a smaller context",
            "docs.nvidia.com: CUDA programming guide, lazy loading",
        ),
    ],
    unchanged: &[Remark::new(
        "`cudaFreeAsync` alone, of a pool with a release threshold: the pool keeps it for itself",
        "docs.nvidia.com: CUDA runtime API, cudaMemPoolAttrReleaseThreshold",
    )],
    at_end: &[],
};
