//! What trains: PyTorch, TensorFlow, Keras, JAX and others, and what launches and links their ranks.

use super::{Framework, Remark};

/// What a launcher gives each of the processes that it starts; the value may be any.
const IS_A_RANK: &[(&str, &str)] = &[("TORCHELASTIC_RUN_ID", ""), ("LOCAL_RANK", ""), ("RANK", "")];

const TORCHRUN: Remark = Remark::new(
    "end the launcher, not a rank: `kill -TERM` to torchrun, which ends its ranks within 30 seconds; \
     `kill -9` of it leaves them behind, and a rank that is killed may be started again",
    "pytorch: torch/distributed/elastic/multiprocessing/api.py",
)
.only_if_set(IS_A_RANK);

const TF_GROWTH: Remark = Remark::new(
    "at its next start: TF_FORCE_GPU_ALLOW_GROWTH=true, so that it takes what it needs, step by step",
    "tensorflow.org: guide, limiting GPU memory growth",
)
.unless_set(&[("TF_FORCE_GPU_ALLOW_GROWTH", "true")]);

const TF_CHILD: Remark = Remark::new(
    "at its next start: train in a child process, whose end returns everything: \
     `p = multiprocessing.get_context('spawn').Process(target=train); p.start(); p.join()`",
    "tensorflow/tensorflow#36465",
);

const TF_SESSIONS: Remark = Remark::new(
    "`tf.compat.v1.Session`: `sess.close()` and `tf.compat.v1.reset_default_graph()` return nothing to the \
     driver, under TensorFlow 2 as under 1; the pool belongs to the process",
    "tensorflow/tensorflow#17048, #32128",
);

const TF_COLLECTION: Remark = Remark::new(
    "TF_ENABLE_GPU_GARBAGE_COLLECTION, on by default: regions that are wholly free go back only when \
     an allocation would fail otherwise",
    "tensorflow/tensorflow#26218",
);

const TF_CONTEXT: Remark = Remark::new(
    "`numba.cuda.close()` and `cudaDeviceReset()` return its memory by destroying the context, after \
     which TensorFlow fails or hangs in this process: end it instead",
    "tensorflow/tensorflow#36465",
);

pub(super) const PYTORCH: Framework = Framework {
    name: "pytorch",
    title: "PyTorch",
    takes: Remark::new(
        "a cache that grows by segments of 2 MiB, 20 MiB and more and keeps what tensors no longer use, \
         beside a CUDA context of some 300 to 600 MiB; NVML shows both, and neither falls by itself",
        "docs.pytorch.org: notes, CUDA semantics, memory management",
    ),
    inside: &[
        Remark::new(
            "in the process: drop what refers to its tensors (`del model, optimizer, out`), then \
             `import gc, torch; gc.collect(); torch.cuda.empty_cache()`; the CUDA context, some 500 MiB, \
             stays until it ends",
            "docs.pytorch.org: torch.cuda.empty_cache",
        ),
        Remark::new(
            "the model is to stay: `model.to('cpu')` and `del optimizer`, then collect and empty the \
             cache",
            "docs.pytorch.org: torch.nn.Module.to",
        ),
        Remark::new(
            "an exception keeps the tensors of every frame it passed: leave its `except` block, then \
             `import sys; sys.last_exc = sys.last_value = sys.last_traceback = None`, in a notebook run a \
             cell that fails in its place, `1/0`; then collect and empty the cache",
            "docs.python.org: sys.last_exc; ipython: core/ultratb.py; docs.pytorch.org: notes, FAQ",
        ),
        Remark::new(
            "a notebook keeps what cells showed, in `Out` and `_`: `%reset -f out` and, for what that \
             forgets, `get_ipython().user_ns_hidden.update(_=0, __=0, ___=0)`, then collect and empty the \
             cache",
            "ipython.readthedocs.io: magics, %reset; ipython: core/displayhook.py",
        ),
        Remark::new(
            "an optimizer keeps its state, parameters keep their gradients: `del optimizer`, \
             `model.zero_grad(set_to_none=True)`, then collect and empty the cache",
            "docs.pytorch.org: torch.nn.Module.zero_grad",
        ),
        Remark::new(
            "`torch.compile` and CUDA graphs have pools of their own: `torch.compiler.reset()` and \
             `del graph`, then collect and empty the cache",
            "docs.pytorch.org: torch.compiler.reset; notes, CUDA graphs",
        ),
        Remark::new(
            "tensors that were sent to other processes stay until those drop them; then \
             `torch.cuda.ipc_collect()` here",
            "docs.pytorch.org: torch.cuda.ipc_collect",
        ),
    ],
    at_start: &[
        Remark::new(
            "at its next start, first of all: `torch.cuda.set_per_process_memory_fraction(0.5)`, so that \
             it takes no more than half of the GPU",
            "docs.pytorch.org: torch.cuda.set_per_process_memory_fraction",
        ),
        Remark::new(
            "at its next start: PYTORCH_ALLOC_CONF=expandable_segments:True (in older releases \
             PYTORCH_CUDA_ALLOC_CONF), so that less is pinned between live tensors; vLLM's sleep mode \
             fails with it",
            "docs.pytorch.org: notes, CUDA semantics; vllm-project/vllm#11743",
        )
        .unless_set(&[
            ("PYTORCH_ALLOC_CONF", "expandable_segments:true"),
            ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:true"),
        ]),
        Remark::new(
            "at its next start: a smaller batch, gradient accumulation or activation checkpointing \
             lowers the peak, and so what the cache grows to",
            "docs.pytorch.org: torch.utils.checkpoint",
        ),
    ],
    unchanged: &[
        Remark::new(
            "`del model` and `gc.collect()` alone: the tensors go back to the cache, which PyTorch uses \
             again and NVML counts on",
            "docs.pytorch.org: notes, CUDA semantics, memory management",
        ),
        Remark::new(
            "`torch.cuda.empty_cache()` while the tensors are referred to: only segments without any \
             live tensor go; `torch.cuda.memory_summary()` shows allocated beside reserved memory",
            "docs.pytorch.org: torch.cuda.empty_cache",
        ),
        Remark::new(
            "a smaller batch or gradient accumulation in a process that runs: the cache has grown \
             already",
            "docs.pytorch.org: notes, CUDA semantics, memory management",
        ),
    ],
    at_end: &[
        TORCHRUN,
        Remark::new(
            "DataLoader workers that were forked after the first use of the GPU hold its memory too: \
             end the trainer with `kill -TERM`, so that it ends them; after `kill -9` look for them",
            "pytorch/pytorch#4293",
        ),
    ],
};

pub(super) const TENSORFLOW: Framework = Framework {
    name: "tensorflow",
    title: "TensorFlow 2",
    takes: Remark::new(
        "nearly all free memory of every GPU that it sees, when it first uses one; with growth allowed, \
         more and more; NVML shows that pool, full or empty, until the process ends",
        "tensorflow.org: guide, limiting GPU memory growth",
    ),
    inside: &[],
    at_start: &[
        TF_GROWTH,
        Remark::new(
            "at its next start, before it uses a GPU: `for gpu in tf.config.list_physical_devices('GPU'): \
             tf.config.experimental.set_memory_growth(gpu, True)`",
            "tensorflow.org: guide, limiting GPU memory growth",
        )
        .unless_set(&[("TF_FORCE_GPU_ALLOW_GROWTH", "true")]),
        Remark::new(
            "at its next start, before it uses a GPU: `tf.config.set_logical_device_configuration(gpu, \
             [tf.config.LogicalDeviceConfiguration(memory_limit=4096)])`, in MiB, so that it never takes \
             more",
            "tensorflow.org: guide, limiting GPU memory growth",
        ),
        Remark::new(
            "at its next start: TF_GPU_ALLOCATOR=cuda_malloc_async, a pool of CUDA's that grows instead \
             of taking all; it keeps what it has freed too, for its release threshold is its limit",
            "tensorflow: core/common_runtime/gpu/gpu_cudamallocasync_allocator.cc",
        )
        .unless_set(&[("TF_GPU_ALLOCATOR", "cuda_malloc_async")]),
        Remark::new(
            "at its next start, where it makes sessions of TensorFlow 1: `config = \
             tf.compat.v1.ConfigProto(); config.gpu_options.allow_growth = True`, and \
             `tf.compat.v1.Session(config=config)`",
            "tensorflow: core/protobuf/config.proto, GPUOptions",
        )
        .unless_set(&[("TF_FORCE_GPU_ALLOW_GROWTH", "true")]),
        TF_CHILD,
    ],
    unchanged: &[
        Remark::new(
            "`tf.keras.backend.clear_session()`: frees for reuse inside the process and returns nothing \
             to the driver; it is good between models, whose names and graphs add up",
            "tensorflow/tensorflow#36465, #37289; keras-team/keras#9379",
        ),
        Remark::new(
            "`del model` and `gc.collect()`: the memory becomes free inside TensorFlow's pool",
            "tensorflow/tensorflow#36465",
        ),
        Remark::new(
            "`set_memory_growth` once a GPU was used: it raises RuntimeError",
            "tensorflow.org: guide, limiting GPU memory growth",
        ),
        Remark::new(
            "a smaller batch in a process that runs: its pool never shrinks",
            "tensorflow.org: guide, limiting GPU memory growth",
        ),
        TF_SESSIONS,
        TF_COLLECTION,
    ],
    at_end: &[TF_CONTEXT],
};

pub(super) const TENSORFLOW_1: Framework = Framework {
    name: "tensorflow1",
    title: "TensorFlow 1",
    takes: Remark::new(
        "nearly all memory of every GPU that it sees, with the first session; the pool belongs to the \
         process, not to the session, and NVML shows it until the process ends",
        "tensorflow/tensorflow#17048, #1578",
    ),
    inside: &[],
    at_start: &[
        TF_GROWTH,
        Remark::new(
            "at its next start: `config = tf.ConfigProto(); config.gpu_options.allow_growth = True`, and \
             `sess = tf.Session(config=config)`; for Keras `tf.keras.backend.set_session(sess)`",
            "tensorflow: core/protobuf/config.proto, GPUOptions",
        )
        .unless_set(&[("TF_FORCE_GPU_ALLOW_GROWTH", "true")]),
        Remark::new(
            "at its next start: `config.gpu_options.per_process_gpu_memory_fraction = 0.3`, for three \
             tenths of the GPU at most",
            "tensorflow: core/protobuf/config.proto, GPUOptions",
        ),
        TF_CHILD,
    ],
    unchanged: &[
        Remark::new(
            "`sess.close()`: ends the session's own resources; its pool lives as long as the process",
            "tensorflow/tensorflow#17048, #32128",
        ),
        Remark::new(
            "`tf.reset_default_graph()`: forgets the graph's nodes; good between models, whose graphs \
             add up",
            "tensorflow/tensorflow#17048",
        ),
        Remark::new(
            "`keras.backend.clear_session()`: a new session and a new graph; frees for reuse inside the \
             process",
            "keras-team/keras#9379",
        ),
        Remark::new(
            "`tf.contrib.memory_stats.BytesInUse()`: counts what is used inside the pool of this very \
             process, in a session; TensorFlow 2 has none, there it is \
             `tf.config.experimental.get_memory_info('GPU:0')`",
            "tensorflow.org: tf.config.experimental.get_memory_info",
        ),
        TF_COLLECTION,
    ],
    at_end: &[TF_CONTEXT],
};

pub(super) const KERAS: Framework = Framework {
    name: "keras",
    title: "Keras",
    takes: Remark::new(
        "what its backend takes, tensorflow, jax or torch: `keras.backend.backend()` shows which \
        one it is, and the backend's page holds",
        "keras.io: getting started, configuring your backend",
    ),
    inside: &[Remark::new(
        "on the backend torch: `del model`, then \
         `import gc, torch; gc.collect(); torch.cuda.empty_cache()`; on tensorflow and jax nothing does",
        "docs.pytorch.org: torch.cuda.empty_cache",
    )],
    at_start: &[
        Remark::new(
            "at its next start, on tensorflow: TF_FORCE_GPU_ALLOW_GROWTH=true",
            "tensorflow.org: guide, limiting GPU memory growth",
        )
        .unless_set(&[("TF_FORCE_GPU_ALLOW_GROWTH", "true")]),
        Remark::new(
            "at its next start, on jax: XLA_PYTHON_CLIENT_PREALLOCATE=false",
            "docs.jax.dev: GPU memory allocation",
        )
        .unless_set(JAX_TAKES_AS_NEEDED),
        TF_CHILD,
    ],
    unchanged: &[
        Remark::new(
            "`keras.backend.clear_session()`: resets names and graphs and collects garbage; the memory \
             stays with the backend, on torch until its cache is emptied",
            "keras-team/keras#9379; tensorflow/tensorflow#36465",
        ),
        Remark::new(
            "`del model` alone: the backend's allocator keeps what it held",
            "tensorflow/tensorflow#36465",
        ),
    ],
    at_end: &[TF_CONTEXT],
};

const JAX_TAKES_AS_NEEDED: &[(&str, &str)] = &[
    ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    ("XLA_PYTHON_CLIENT_PREALLOCATE", "0"),
    ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"),
    ("TF_GPU_ALLOCATOR", "cuda_malloc_async"),
];

pub(super) const JAX: Framework = Framework {
    name: "jax",
    title: "JAX",
    takes: Remark::new(
        "three quarters of each GPU that it sees, with its first operation, as one pool; NVML shows it \
         flat from then on, whatever lives in it",
        "docs.jax.dev: GPU memory allocation",
    ),
    inside: &[
        Remark::new(
            "in the process: drop its arrays (`del params, state`), then \
             `import gc, jax; jax.clear_caches(); gc.collect()`; its allocator, platform, returns each \
             array as it goes",
            "docs.jax.dev: GPU memory allocation",
        )
        .only_if_set(&[("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")]),
    ],
    at_start: &[
        Remark::new(
            "at its next start: XLA_PYTHON_CLIENT_PREALLOCATE=false, so that its pool grows as needed",
            "docs.jax.dev: GPU memory allocation",
        )
        .unless_set(JAX_TAKES_AS_NEEDED),
        Remark::new(
            "at its next start: XLA_CLIENT_MEM_FRACTION=.30 for three tenths of the GPU (in older \
             releases XLA_PYTHON_CLIENT_MEM_FRACTION)",
            "docs.jax.dev: GPU memory allocation",
        )
        .unless_set(&[
            ("XLA_CLIENT_MEM_FRACTION", ""),
            ("XLA_PYTHON_CLIENT_MEM_FRACTION", ""),
        ]),
        Remark::new(
            "at its next start: XLA_PYTHON_CLIENT_ALLOCATOR=platform, the one that returns what is \
             dropped; it is very slow",
            "docs.jax.dev: GPU memory allocation",
        )
        .unless_set(&[("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")]),
        Remark::new(
            "at its next start: CUDA_VISIBLE_DEVICES=0, so that it takes its pool of one GPU only",
            "docs.nvidia.com: CUDA programming guide, environment variables",
        )
        .unless_set(&[("CUDA_VISIBLE_DEVICES", "")]),
    ],
    unchanged: &[
        Remark::new(
            "`del x`, `x.delete()` and `gc.collect()`: the array's memory becomes free inside the pool; \
             `jax.live_arrays()` lists what is kept",
            "docs.jax.dev: GPU memory allocation",
        ),
        Remark::new(
            "`jax.clear_caches()`: forgets compiled programs; what they held goes back to the pool",
            "docs.jax.dev: jax.clear_caches",
        ),
    ],
    at_end: &[],
};

pub(super) const PADDLE: Framework = Framework {
    name: "paddle",
    title: "PaddlePaddle",
    takes: Remark::new(
        "a pool that grows and keeps what tensors no longer use; NVML shows the pool",
        "paddlepaddle.org.cn: FLAGS, memory management",
    ),
    inside: &[Remark::new(
        "in the process: drop its tensors, then `paddle.device.cuda.empty_cache()`",
        "paddlepaddle.org.cn: paddle.device.cuda.empty_cache",
    )],
    at_start: &[Remark::new(
        "at its next start: FLAGS_gpu_memory_limit_mb=4096 for 4 GiB at most",
        "paddlepaddle.org.cn: FLAGS, memory management",
    )],
    unchanged: &[Remark::new(
        "`del model` alone: the pool keeps what it held",
        "paddlepaddle.org.cn: paddle.device.cuda.empty_cache",
    )],
    at_end: &[],
};

pub(super) const MXNET: Framework = Framework {
    name: "mxnet",
    title: "MXNet",
    takes: Remark::new(
        "a pool that grows and keeps what arrays no longer use; NVML shows the pool",
        "mxnet.apache.org: environment variables, memory options",
    ),
    inside: &[Remark::new(
        "in the process: drop its arrays, then `mx.nd.waitall(); mx.gpu(0).empty_cache()`",
        "mxnet.apache.org: Context.empty_cache",
    )],
    at_start: &[Remark::new(
        "at its next start: MXNET_GPU_MEM_POOL_TYPE=Unpooled, so that it returns what is dropped; slower",
        "mxnet.apache.org: environment variables, memory options",
    )],
    unchanged: &[Remark::new(
        "`del net` alone: the pool keeps what it held",
        "mxnet.apache.org: environment variables, memory options",
    )],
    at_end: &[],
};

pub(super) const DEEPSPEED: Framework = Framework {
    name: "deepspeed",
    title: "DeepSpeed",
    takes: Remark::new(
        "what PyTorch takes, whose allocator it uses: the framework of such a process is pytorch; the \
         buckets and partitions of ZeRO are tensors too",
        "deepspeed.readthedocs.io: ZeRO",
    ),
    inside: &[Remark::new(
        "in every rank: drop the engine, which holds model and optimizer (`del engine, optimizer`), then \
         `import gc, torch; gc.collect(); torch.cuda.empty_cache()`",
        "docs.pytorch.org: torch.cuda.empty_cache",
    )],
    at_start: &[Remark::new(
        "at its next start: \"offload_optimizer\": {\"device\": \"cpu\"} under zero_optimization, so that \
         the optimizer's state is on the host",
        "deepspeed.ai: configuration, ZeRO optimizations",
    )],
    unchanged: &[Remark::new(
        "a higher stage of ZeRO or a smaller micro-batch in a process that runs: the cache has grown \
         already",
        "docs.pytorch.org: notes, CUDA semantics, memory management",
    )],
    at_end: &[Remark::new(
        "end the launcher, not a rank: `kill -TERM` to deepspeed, which ends its ranks",
        "deepspeed: launcher/launch.py",
    )
    .only_if_set(IS_A_RANK)],
};

pub(super) const RAY: Framework = Framework {
    name: "ray",
    title: "Ray",
    takes: Remark::new(
        "no GPU memory itself: an actor holds what its framework took until its process ends, a task's \
         worker ends after each task that has a GPU, unless max_calls=0",
        "docs.ray.io: accelerator support, workers not releasing GPU resources",
    ),
    inside: &[],
    at_start: &[Remark::new(
        "at its next start: leave max_calls as it is for tasks with GPUs, or set \
         `@ray.remote(num_gpus=1, max_calls=1)`, so that the worker's end returns the memory",
        "docs.ray.io: accelerator support, workers not releasing GPU resources",
    )],
    unchanged: &[Remark::new(
        "a lower num_gpus: it is what Ray counts, not what the process may take",
        "docs.ray.io: accelerator support, fractional accelerators",
    )],
    at_end: &[Remark::new(
        "end the actor: `ray.kill(actor)`, or `ray job stop JOB` for all of its job; a worker that is \
         killed from outside may be started again",
        "docs.ray.io: ray.kill; ray job stop",
    )],
};

pub(super) const NCCL: Framework = Framework {
    name: "nccl",
    title: "NCCL",
    takes: Remark::new(
        "buffers for each communicator and channel, some hundred MiB a GPU, outside of the framework's \
         cache; NVML counts them to the process",
        "docs.nvidia.com: NCCL, environment variables, NCCL_BUFFSIZE",
    ),
    inside: &[Remark::new(
        "in every rank, when no collective is under way: `torch.distributed.destroy_process_group()`, or \
         `ncclCommDestroy(comm)`",
        "docs.nvidia.com: NCCL, ncclCommDestroy",
    )],
    at_start: &[Remark::new(
        "at its next start: NCCL_BUFFSIZE=1048576, for buffers of 1 MiB in place of 4",
        "docs.nvidia.com: NCCL, environment variables, NCCL_BUFFSIZE",
    )],
    unchanged: &[Remark::new(
        "`torch.cuda.empty_cache()`: the buffers are not PyTorch's",
        "docs.pytorch.org: torch.cuda.empty_cache",
    )],
    at_end: &[TORCHRUN],
};
