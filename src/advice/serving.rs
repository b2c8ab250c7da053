//! Engines that serve models.

use super::{Framework, Line};

pub(super) const VLLM: Framework = Framework {
    name: "vllm",
    title: "vLLM",
    takes: Line::new(
        "a share of the GPU set by --gpu-memory-utilization, 0.9 unless told otherwise, for weights and \
         KV cache at start; NVML shows it flat, busy or idle, and that is no leak",
        "docs.vllm.ai: engine arguments; vllm#822",
    ),
    inside: &[Line::new(
        "where it was started with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1: \
         `curl -X POST 'http://HOST:PORT/sleep?level=1'`, and /wake_up to go on",
        "docs.vllm.ai: features, sleep mode",
    )],
    at_start: &[Line::new(
        "at its next start: a lower --gpu-memory-utilization than 0.9",
        "docs.vllm.ai: engine arguments",
    )],
    unchanged: &[],
    at_end: &[],
};

pub(super) const OLLAMA: Framework = Framework {
    name: "ollama",
    title: "Ollama",
    takes: Line::new(
        "weights and context of each loaded model, kept for five minutes after the last request unless \
         told otherwise; NVML shows them flat, under a runner of its own per model",
        "docs.ollama.com: FAQ, keep_alive",
    ),
    inside: &[Line::new(
        "unload the model: `ollama stop MODEL`",
        "docs.ollama.com: FAQ, keep_alive",
    )],
    at_start: &[],
    unchanged: &[],
    at_end: &[],
};
