//! Engines that serve models: they hold what they took on purpose, busy or not.

use super::{Framework, Remark};

pub(super) const VLLM: Framework = Framework {
    name: "vllm",
    title: "vLLM",
    takes: Remark::new(
        "a share of the GPU set by --gpu-memory-utilization, 0.9 by default, for weights and \
         KV cache at start; NVML shows it flat, busy or idle, and that is no leak",
        "docs.vllm.ai: engine arguments; vllm-project/vllm#822",
    ),
    inside: &[
        Remark::new(
            "if started with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1: \
             `curl -X POST 'http://HOST:PORT/sleep?level=1&mode=wait'`; without mode=wait, or before 0.17, it \
             aborts running requests; new ones hang until `curl -X POST http://HOST:PORT/wake_up`",
            "docs.vllm.ai: features, sleep mode; vllm-project/vllm#45326, #45520",
        ),
        Remark::new(
            "before that: vllm:num_requests_running and vllm:num_requests_waiting are 0 in \
             `curl http://HOST:PORT/metrics`, and host memory has room for the weights; 1 to 3 GiB a GPU stay",
            "docs.vllm.ai: production metrics; llm-d/llm-d#2489",
        ),
        Remark::new(
            "in a script, of an engine made with `enable_sleep_mode=True`: `llm.sleep(level=1)` keeps the \
             weights in host memory, level=2 drops them; `llm.wake_up()` to go on",
            "docs.vllm.ai: features, sleep mode",
        ),
    ],
    at_start: &[
        Remark::new(
            "at its next start: a lower --gpu-memory-utilization than 0.9",
            "docs.vllm.ai: engine arguments",
        ),
        Remark::new(
            "at its next start: VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode, so that it can be put to \
             sleep; not where users reach it, and not with expandable segments",
            "docs.vllm.ai: features, sleep mode; vllm-project/vllm#11743",
        ),
        Remark::new(
            "at its next start: a smaller --max-model-len or --max-num-seqs needs less KV cache, which \
             allows a lower share",
            "docs.vllm.ai: conserving memory",
        ),
    ],
    unchanged: &[
        Remark::new(
            "waiting for requests to end: the KV cache is reserved, not counted by use",
            "vllm-project/vllm#550",
        ),
        Remark::new(
            "`/reset_prefix_cache`: forgets cached prefixes; their blocks stay in the pool",
            "docs.vllm.ai: automatic prefix caching",
        ),
    ],
    at_end: &[Remark::new(
        "end the server, not an engine: `kill -TERM` to the process that listens, the parent of \
         VLLM::EngineCore; after `kill -9` look for engines that it left",
        "vllm-project/vllm#34643",
    )],
};

pub(super) const SGLANG: Framework = Framework {
    name: "sglang",
    title: "SGLang",
    takes: Remark::new(
        "a share of the GPU set by --mem-fraction-static for weights and KV cache at start; NVML shows it \
         flat, busy or idle",
        "docs.sglang.ai: server arguments",
    ),
    inside: &[
        Remark::new(
            "only if started with --enable-memory-saver, and while no request runs or comes, or its \
             scheduler crashes: `curl http://HOST:PORT/release_memory_occupation -H 'Content-Type: \
             application/json' -d '{}'`; the same with /resume_memory_occupation before the next request",
            "docs.sglang.ai: SGLang for RL systems, release memory; sgl-project/sglang#24123",
        ),
        Remark::new(
            "before that: sglang:num_running_reqs and sglang:num_queue_reqs are 0 in \
             `curl http://HOST:PORT/metrics`, where it was started with --enable-metrics, and no \
             client sends it any more; the context and CUDA graphs stay",
            "docs.sglang.ai: production metrics",
        ),
    ],
    at_start: &[
        Remark::new(
            "at its next start: a lower --mem-fraction-static",
            "docs.sglang.ai: server arguments",
        ),
        Remark::new(
            "at its next start: --enable-memory-saver, so that it can let go of its memory",
            "docs.sglang.ai: SGLang for RL systems, server flag",
        ),
    ],
    unchanged: &[Remark::new(
        "`/flush_cache`: forgets cached prefixes; their blocks stay in the pool",
        "docs.sglang.ai: native APIs, flush cache",
    )],
    at_end: &[Remark::new(
        "end the server, not a scheduler: `kill -TERM` to the process that listens, the parent of \
         sglang::scheduler",
        "docs.sglang.ai: server arguments",
    )],
};

pub(super) const TGI: Framework = Framework {
    name: "tgi",
    title: "Text Generation Inference",
    takes: Remark::new(
        "weights, then KV cache in all that is left of --cuda-memory-fraction of the GPU, the \
        whole by default; NVML shows it flat, busy or idle",
        "huggingface.co: text-generation-launcher arguments",
    ),
    inside: &[],
    at_start: &[
        Remark::new(
            "at its next start: --cuda-memory-fraction 0.5, for half of the GPU",
            "huggingface.co: text-generation-launcher arguments",
        ),
        Remark::new(
            "at its next start: a smaller --max-batch-total-tokens, or --cuda-graphs 0",
            "huggingface.co: text-generation-launcher arguments",
        ),
    ],
    unchanged: &[Remark::new(
        "waiting for requests to end: the KV cache is reserved, and no request unloads the model",
        "huggingface.co: text-generation-launcher arguments",
    )],
    at_end: &[Remark::new(
        "end the launcher, not a shard: `kill -TERM` to text-generation-launcher, which ends its shards",
        "huggingface/text-generation-inference: launcher/src/main.rs",
    )],
};

pub(super) const TRITON_SERVER: Framework = Framework {
    name: "triton-server",
    title: "Triton Inference Server",
    takes: Remark::new(
        "what the backends of its loaded models take, each in its own way, beside a CUDA pool of 64 MiB a \
         GPU; models of the Python backend run in processes of their own",
        "docs.nvidia.com: Triton Inference Server, model management",
    ),
    inside: &[
        Remark::new(
            "where it was started with --model-control-mode=explicit, unload a model: \
             `curl -X POST http://HOST:8000/v2/repository/models/MODEL/unload`; PyTorch and TensorFlow \
             models leave what their pools keep",
            "docs.nvidia.com: Triton Inference Server, model repository extension",
        ),
        Remark::new(
            "`curl -X POST http://HOST:8000/v2/repository/index` lists its models and their state",
            "docs.nvidia.com: Triton Inference Server, model repository extension",
        ),
    ],
    at_start: &[
        Remark::new(
            "at its next start: --model-control-mode=explicit --load-model=MODEL, so that it loads what \
             is named and can unload it",
            "docs.nvidia.com: Triton Inference Server, model management",
        ),
        Remark::new(
            "at its next start: fewer instances, `instance_group [{ count: 1, kind: KIND_GPU }]` in the \
             model's config.pbtxt",
            "docs.nvidia.com: Triton Inference Server, model configuration",
        ),
    ],
    unchanged: &[Remark::new(
        "unload requests in the default mode, none: they are refused",
        "docs.nvidia.com: Triton Inference Server, model management",
    )],
    at_end: &[Remark::new(
        "end it with `kill -TERM`: it finishes the requests under way, for 30 seconds unless \
        --exit-timeout-secs is set",
        "docs.nvidia.com: Triton Inference Server, tritonserver --help",
    )],
};

pub(super) const TENSORRT_LLM: Framework = Framework {
    name: "tensorrt-llm",
    title: "TensorRT-LLM",
    takes: Remark::new(
        "weights, then a share of what is free after them for KV cache, 0.9 by default; NVML \
         shows it flat, busy or idle",
        "tensorrt_llm: commands/serve.py, --kv_cache_free_gpu_memory_fraction",
    ),
    inside: &[],
    at_start: &[Remark::new(
        "at its next start: --kv_cache_free_gpu_memory_fraction 0.5",
        "tensorrt_llm: commands/serve.py, --kv_cache_free_gpu_memory_fraction",
    )],
    unchanged: &[Remark::new(
        "waiting for requests to end: the KV cache is reserved, not counted by use",
        "tensorrt_llm: commands/serve.py, --kv_cache_free_gpu_memory_fraction",
    )],
    at_end: &[],
};

pub(super) const OLLAMA: Framework = Framework {
    name: "ollama",
    title: "Ollama",
    takes: Remark::new(
        "weights and context of each loaded model, kept for five minutes after its last request \
        by default; NVML shows them flat, under a runner of its own for each model",
        "docs.ollama.com: FAQ, keep_alive",
    ),
    inside: &[
        Remark::new(
            "unload the model: `ollama stop MODEL`; `ollama ps` lists those that are loaded",
            "docs.ollama.com: FAQ, keep_alive",
        ),
        Remark::new(
            "over the network: `curl http://HOST:11434/api/generate -d '{\"model\": \"MODEL\", \
             \"keep_alive\": 0}'`, with a name that /api/ps lists; running requests end first, and the next one \
             loads it again",
            "docs.ollama.com: FAQ, keep_alive",
        ),
    ],
    at_start: &[
        Remark::new(
            "at the server's next start: OLLAMA_KEEP_ALIVE=1m, so that a model goes a minute after its \
             last request",
            "docs.ollama.com: FAQ, keep_alive",
        )
        .unless_set(&[("OLLAMA_KEEP_ALIVE", "")]),
        Remark::new(
            "at the server's next start: OLLAMA_MAX_LOADED_MODELS=1, or OLLAMA_CONTEXT_LENGTH=4096",
            "docs.ollama.com: FAQ, concurrent requests",
        ),
    ],
    unchanged: &[Remark::new(
        "ending the program that asked: the model stays loaded for its keep_alive",
        "docs.ollama.com: FAQ, keep_alive",
    )],
    at_end: &[Remark::new(
        "end the server, not a runner, which the next request starts again: `systemctl stop ollama`",
        "docs.ollama.com: Linux",
    )],
};

pub(super) const LLAMA_CPP: Framework = Framework {
    name: "llama.cpp",
    title: "llama.cpp",
    takes: Remark::new(
        "weights and a KV cache for its whole context when it loads a model; NVML shows them flat until \
         the model is unloaded",
        "ggml-org/llama.cpp: tools/server/README.md",
    ),
    inside: &[
        Remark::new(
            "if llama-server was started without a model, as a router: \
             `curl http://HOST:8080/models/unload -H 'Content-Type: application/json' \
             -d '{\"model\": \"MODEL\"}'` with one that /models lists as loaded; the next request loads it \
             again; started with a model, it keeps that until it ends",
            "ggml-org/llama.cpp: tools/server/README.md, POST /models/unload",
        ),
        Remark::new(
            "in Python, with llama-cpp-python: `llm.close()`",
            "llama-cpp-python: Llama.close",
        ),
    ],
    at_start: &[
        Remark::new(
            "at its next start: --sleep-idle-seconds 300, so that it unloads the model after five minutes \
             without a request and loads it with the next; versions of 2026 can crash where one comes as it \
             falls asleep, or asks a sleeping one to count tokens",
            "ggml-org/llama.cpp: tools/server/README.md, sleeping on idle; #29188, #29689",
        ),
        Remark::new(
            "at its next start: a smaller --ctx-size, or fewer --n-gpu-layers",
            "ggml-org/llama.cpp: tools/server/README.md",
        ),
    ],
    unchanged: &[Remark::new(
        "`/slots/ID?action=erase`: forgets a slot's prompt; its part of the KV cache stays",
        "ggml-org/llama.cpp: tools/server/README.md, POST /slots",
    )],
    at_end: &[],
};

pub(super) const CTRANSLATE2: Framework = Framework {
    name: "ctranslate2",
    title: "CTranslate2",
    takes: Remark::new(
        "weights for as long as a model is loaded, and a cache for what it computes; NVML shows both",
        "opennmt.net: CTranslate2, environment variables, CT2_CUDA_ALLOCATOR",
    ),
    inside: &[Remark::new(
        "in the process: `translator.unload_model()`, with faster-whisper `model.model.unload_model()`; \
         `load_model()` to go on",
        "opennmt.net: CTranslate2, Translator.unload_model",
    )],
    at_start: &[Remark::new(
        "at its next start: a smaller type, `compute_type='int8_float16'`",
        "opennmt.net: CTranslate2, quantization",
    )],
    unchanged: &[Remark::new(
        "waiting for requests to end: the weights stay loaded",
        "opennmt.net: CTranslate2, Translator.unload_model",
    )],
    at_end: &[],
};
