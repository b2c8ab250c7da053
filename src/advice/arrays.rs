//! What computes with arrays, and CUDA itself.

use super::{Framework, Line};

pub(super) const CUDA: Framework = Framework {
    name: "cuda",
    title: "CUDA",
    takes: Line::new(
        "what the program asks for with `cudaMalloc`, beside a context of some hundred MiB; pools of \
         `cudaMallocAsync` keep what was freed up to their release threshold",
        "docs.nvidia.com: CUDA runtime API, stream ordered memory allocator",
    ),
    inside: &[],
    at_start: &[],
    unchanged: &[],
    at_end: &[],
};
