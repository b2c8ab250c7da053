//! What really returns GPU memory, by framework, as NVML sees it, in words to type.
//!
//! One table. It holds only what makes NVML's number fall: `del model`, `gc.collect()` alone,
//! `clear_session()` and smaller batches leave it where it is, because allocators keep what they have
//! freed, and so they are not in it. Each line names its source.

use crate::model::Process;

/// A way to get memory back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// The words.
    pub text: &'static str,
    /// Where it is documented or was seen.
    pub source: &'static str,
}

/// What to do inside a process, by framework as a snapshot names it. A framework that is not here
/// gives memory back when its process ends, and only then: TensorFlow (tensorflow#17048, #36465), JAX
/// (its pool is one block: docs.jax.dev, GPU memory allocation), and what is unknown.
const INSIDE: &[(&str, Line)] = &[
    (
        "pytorch",
        Line {
            text: "in the process: drop its tensors, then `gc.collect(); torch.cuda.empty_cache()`; \
                   the CUDA context, some 500 MiB, stays until it ends",
            source: "docs.pytorch.org: torch.cuda.empty_cache",
        },
    ),
    (
        "cupy",
        Line {
            text: "in the process: drop its arrays, then \
                   `cupy.get_default_memory_pool().free_all_blocks()`",
            source: "docs.cupy.dev: user guide, memory management",
        },
    ),
    (
        "onnxruntime",
        Line {
            text: "in the process: drop the InferenceSession (`del session; gc.collect()`), or run with \
                   the option `memory.enable_memory_arena_shrinkage` set to `gpu:0`",
            source: "onnxruntime.ai: C API, memory arena shrinkage",
        },
    ),
    (
        "rapids",
        Line {
            text: "in the process: drop its frames, then `rmm.reinitialize(pool_allocator=False)`",
            source: "docs.rapids.ai: rmm.reinitialize",
        },
    ),
    (
        "paddle",
        Line {
            text: "in the process: drop its tensors, then `paddle.device.cuda.empty_cache()`",
            source: "paddlepaddle.org.cn: paddle.device.cuda.empty_cache",
        },
    ),
    (
        "vllm",
        Line {
            text: "where it was started with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1: \
                   `curl -X POST 'http://HOST:PORT/sleep?level=1'`, and /wake_up to go on",
            source: "docs.vllm.ai: features, sleep mode",
        },
    ),
    (
        "ollama",
        Line {
            text: "unload the model: `ollama stop MODEL`",
            source: "docs.ollama.com: FAQ, keep_alive",
        },
    ),
];

/// What keeps a framework from reserving all there is when it starts the next time.
const AT_START: &[(&str, Line)] = &[
    (
        "tensorflow",
        Line {
            text: "at its next start: TF_FORCE_GPU_ALLOW_GROWTH=true, so that it takes what it needs",
            source: "tensorflow.org: guide, limiting GPU memory growth",
        },
    ),
    (
        "jax",
        Line {
            text: "at its next start: XLA_PYTHON_CLIENT_PREALLOCATE=false, or \
                   XLA_CLIENT_MEM_FRACTION=.30 for three tenths of the GPU",
            source: "docs.jax.dev: GPU memory allocation",
        },
    ),
    (
        "vllm",
        Line {
            text: "at its next start: a lower --gpu-memory-utilization than 0.9",
            source: "docs.vllm.ai: engine arguments",
        },
    ),
    (
        "sglang",
        Line {
            text: "at its next start: a lower --mem-fraction-static",
            source: "docs.sglang.ai: server arguments",
        },
    ),
];

/// Under Jupyter the server restarts a kernel that is merely killed, and loses the notebook's state
/// all the same.
const KERNEL: Line = Line {
    text: "shut the kernel down: Kernel > Shut Down Kernel in Jupyter; interrupting it frees nothing",
    source: "jupyter_server: KernelRestarter; ipython#11572",
};

/// Linux's driver frees what a process held when its last file of the GPU closes.
const END: Line = Line {
    text: "end the process: its memory is free within seconds",
    source: "NVML reports no memory for a client whose device files are closed",
};

/// What gives this process's memory back, gentlest first.
pub fn lines(process: &Process) -> Vec<Line> {
    let is_ollama = process
        .command
        .as_deref()
        .and_then(<[_]>::first)
        .is_some_and(|program| program.rsplit('/').next() == Some("ollama"));
    // Ollama's runner maps llama.cpp's libraries, and only Ollama can unload its models.
    let framework = if is_ollama {
        Some("ollama")
    } else {
        process.framework.as_deref()
    };
    let inside = INSIDE
        .iter()
        .find(|(name, _)| Some(*name) == framework)
        .map(|(_, line)| *line);
    let is_notebook = process.jupyter.is_some();
    inside
        .into_iter()
        .chain([if is_notebook { KERNEL } else { END }])
        .collect()
}

/// What makes this process reserve less when it starts the next time, where its framework is known.
pub fn at_start(process: &Process) -> Option<Line> {
    let framework = process.framework.as_deref();
    AT_START
        .iter()
        .find(|(name, _)| Some(*name) == framework)
        .map(|(_, line)| *line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::Jupyter;
    use std::sync::Arc;

    fn texts(framework: Option<&str>, notebook: bool) -> Vec<&'static str> {
        let process = Process {
            framework: framework.map(Arc::from),
            jupyter: notebook.then(Arc::<Jupyter>::default),
            ..Process::default()
        };
        lines(&process).iter().map(|line| line.text).collect()
    }

    #[test]
    fn the_gentlest_way_comes_first_and_the_end_last() {
        let lines = texts(Some("pytorch"), true);
        assert!(lines[0].contains("torch.cuda.empty_cache()"));
        assert!(lines[1].starts_with("shut the kernel down"));
        assert_eq!(texts(Some("tensorflow"), false), [END.text]);
        assert_eq!(texts(None, false), [END.text]);
        assert_eq!(texts(None, true), [KERNEL.text]);
    }

    #[test]
    fn nothing_that_leaves_the_memory_where_it_is_is_advised() {
        for framework in INSIDE.iter().map(|(name, _)| *name) {
            for line in texts(Some(framework), false) {
                for useless in ["clear_session", "del model", "batch", "set_memory_growth"] {
                    assert!(!line.contains(useless), "{framework}: {line}");
                }
            }
        }
        assert!(INSIDE.iter().all(|(_, line)| !line.source.is_empty()));
    }

    #[test]
    fn a_model_of_ollama_is_unloaded_by_ollama() {
        let runner = Process {
            framework: Some("llama.cpp".into()),
            command: Some(["/usr/bin/ollama".into(), "runner".into()].into()),
            ..Process::default()
        };
        assert!(lines(&runner)[0].text.contains("ollama stop"));
    }
}
