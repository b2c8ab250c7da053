//! What trains: PyTorch, TensorFlow, JAX and what is built on them.

use super::{Framework, Line};

pub(super) const PYTORCH: Framework = Framework {
    name: "pytorch",
    title: "PyTorch",
    takes: Line::new(
        "a cache that grows by segments of 2 MiB, 20 MiB and more and keeps what tensors no longer use, \
         beside a CUDA context of some 300 to 600 MiB; NVML shows both, and neither falls by itself",
        "docs.pytorch.org: notes, CUDA semantics, memory management",
    ),
    inside: &[Line::new(
        "in the process: drop what refers to its tensors (`del model, optimizer, out`), then \
         `import gc; gc.collect(); torch.cuda.empty_cache()`; the CUDA context, some 500 MiB, stays \
         until it ends",
        "docs.pytorch.org: torch.cuda.empty_cache",
    )],
    at_start: &[],
    unchanged: &[],
    at_end: &[],
};

pub(super) const TENSORFLOW: Framework = Framework {
    name: "tensorflow",
    title: "TensorFlow 2",
    takes: Line::new(
        "nearly all free memory of every GPU that it sees, when it first uses one; NVML shows that pool, \
         full or empty, until the process ends",
        "tensorflow.org: guide, limiting GPU memory growth",
    ),
    inside: &[],
    at_start: &[Line::new(
        "at its next start: TF_FORCE_GPU_ALLOW_GROWTH=true, so that it takes what it needs",
        "tensorflow.org: guide, limiting GPU memory growth",
    )
    .unless_set(&[("TF_FORCE_GPU_ALLOW_GROWTH", "true")])],
    unchanged: &[],
    at_end: &[],
};
