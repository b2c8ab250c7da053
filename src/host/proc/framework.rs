//! Detects the framework that a process has loaded, from the names of its mapped files and of its program.
//!
//! The framework of a process is the one whose allocator holds the process's GPU memory, because the allocator
//! determines how the memory can be freed. A serving engine takes precedence over a training library, and a training
//! library over the library that it is built on. If only CUDA is known, the framework is `cuda`. DeepSpeed, NCCL and
//! Ray allocate memory through a framework and are listed in addition.
//!
//! The table was derived from the files of published packages. The mapped files are not read, because reading a file
//! on a server that hangs would block gpumem.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use crate::host::proc::cmdline::{Program, parse_program};

/// Maximum number of bytes read from maps. About 40,000 lines fit.
pub(in crate::host) const MAPS_BYTES: usize = 4 << 20;

const LONGEST_VERSION: usize = 32;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FrameworkMark {
    name: String,
    #[serde(default)]
    folder: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    needs_driver: bool,
    #[serde(default)]
    is_numbered: bool,
}

impl FrameworkMark {
    fn is_of(&self, folders: &[u8], name: &[u8]) -> bool {
        let prefix = self.prefix.as_bytes();
        (prefix.is_empty() || name.first() == prefix.first())
            && name.starts_with(prefix)
            && folders.ends_with(self.folder.as_bytes())
            && name.windows(3).any(|part| part == b".so")
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    marks: Vec<FrameworkMark>,
    programs: HashMap<String, String>,
    modules: HashMap<String, String>,
    titles: HashMap<String, String>,
    built_on: HashMap<String, Vec<String>>,
}

fn parse() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("framework/framework.toml"))
}

/// Parsing cannot fail, because a test parses the same table.
static TABLE: LazyLock<Table> = LazyLock::new(|| parse().unwrap_or_default());

const LIBRARIES: [&str; 3] = ["deepspeed", "nccl", "ray"];

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    /// Framework that holds the process's GPU memory, or `None` if it is unknown.
    pub framework: Option<&'static str>,
    pub version: Option<String>,
    pub libraries: Vec<&'static str>,
}

/// Returns the path in a line of `/proc/PID/maps`, without the suffix ` (deleted)` of an unlinked file. The fields
/// before the path contain no slash. The kernel writes a newline in a path as `\012`.
pub(in crate::host) fn mapped_path(line: &[u8]) -> Option<&[u8]> {
    let path = line[line.iter().position(|&byte| byte == b'/')?..].trim_ascii_end();
    Some(path.strip_suffix(b" (deleted)").unwrap_or(path))
}

fn mapped_file(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let path = mapped_path(line)?;
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    Some(path.split_at(slash + 1))
}

pub(in crate::host) fn loaded(maps: &[u8], command: &[Arc<str>]) -> Loaded {
    let mut marks = vec![false; TABLE.marks.len()];
    let mut has_driver = false;
    let mut versions: Vec<(&str, String)> = Vec::new();
    let mut last: (&[u8], &[u8]) = (&[], &[]);
    // The last line may be truncated, so skip it unless it ends with a newline.
    for line in maps.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        let Some(file) = mapped_file(line).filter(|file| *file != last) else {
            continue;
        };
        last = file;
        let (folders, name) = file;
        has_driver |= name.starts_with(b"libcuda.so");
        for (mark, is_seen) in TABLE.marks.iter().zip(&mut marks) {
            if mark.is_of(folders, name) {
                *is_seen = true;
                let version = version_of_file(name).filter(|_| mark.is_numbered);
                versions.extend(version.map(|version| (&*mark.name, version)));
            }
        }
    }
    let found_marks = || {
        let marks = TABLE.marks.iter().zip(&marks).filter(|(_, is_found)| **is_found);
        marks.map(|(mark, _)| mark).filter(|mark| has_driver || !mark.needs_driver)
    };
    let mapped = found_marks().map(|mark| &*mark.name).find(|name| !LIBRARIES.contains(name));
    // The name of a program is used only if a GPU library is loaded.
    let framework = mapped.map(|mapped| engine(command).unwrap_or(mapped));
    let mut libraries: Vec<&str> = Vec::new();
    for mark in found_marks() {
        let is_other = framework.is_some_and(|framework| is_other_framework(mark, framework));
        if is_other && !libraries.contains(&&*mark.name) {
            libraries.push(&mark.name);
        }
    }
    libraries.extend(LIBRARIES.into_iter().filter(|library| {
        found_marks().any(|mark| mark.name == *library)
            || (*library == "deepspeed" && framework.is_some() && is_deepspeed(command))
    }));
    let versions = versions.into_iter().filter(|(of, _)| Some(*of) == framework);
    let version = versions.map(|(_, version)| version).max_by_key(String::len);
    Loaded { framework, version, libraries }
}

fn version_of_file(name: &[u8]) -> Option<String> {
    let (_, number) = std::str::from_utf8(name).ok()?.split_once(".so.")?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (number.len() <= LONGEST_VERSION && number.split('.').all(is_number)).then(|| number.to_owned())
}

/// Returns whether a mark shows a framework other than the one that holds the memory. CUDA is ignored because all
/// frameworks use it, and Numba because many programs use Numba without a GPU.
fn is_other_framework(mark: &FrameworkMark, framework: &str) -> bool {
    let built_on = TABLE.built_on.get(framework);
    let is_for_cpus = mark.name == "numba" && mark.folder == "/numba/";
    mark.name != framework
        && mark.name != "cuda"
        && !is_for_cpus
        && !LIBRARIES.contains(&&*mark.name)
        && built_on.is_none_or(|parts| !parts.contains(&mark.name))
}

// The libraries of an engine may show only the framework that it is built on. Engines are therefore detected by the
// names of programs, scripts and modules, and by the titles that workers set. Other arguments are ignored, because a
// model can have the same name as an engine.

fn engine(command: &[Arc<str>]) -> Option<&'static str> {
    let title = command.first()?;
    let titled = TABLE.titles.iter().find(|(start, _)| title.starts_with(start.as_str()));
    if let Some((_, engine)) = titled {
        return Some(engine);
    }
    let Program { name, is_module, .. } = parse_program(command)?;
    let engine = match is_module {
        false => TABLE.programs.get(name),
        true => TABLE.modules.get(name.split('.').next()?),
    };
    engine.map(String::as_str)
}

fn is_deepspeed(command: &[Arc<str>]) -> bool {
    let is_launcher = |program: Program<'_, _>| match program.is_module {
        false => program.name == "deepspeed",
        true => program.name.starts_with("deepspeed."),
    };
    parse_program(command).is_some_and(is_launcher)
        || command.iter().any(|argument| {
            matches!(argument.split('=').next(), Some("--deepspeed" | "--deepspeed_config"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(paths: &[&str]) -> Vec<u8> {
        let mut maps =
            b"55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 1234   /usr/bin/python3.12\n\
        7ffd1c000000-7ffd1c021000 rw-p 00000000 00:00 0   [stack]\n\
        7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
                .to_vec();
        for path in paths {
            for part in ["r--p 00000000", "r-xp 00001000"] {
                maps.extend(format!("7f00-7f01 {part} 08:01 99   {path}\n").into_bytes());
            }
        }
        maps
    }

    fn command(words: &str) -> Vec<Arc<str>> {
        words.split_whitespace().map(Arc::from).collect()
    }

    fn parse_maps(bytes: &[u8], command: &[Arc<str>]) -> Loaded {
        super::loaded(bytes, command)
    }

    fn loaded(paths: &[&str], words: &str) -> Loaded {
        parse_maps(&maps(paths), &command(words))
    }

    fn framework(paths: &[&str]) -> Option<&'static str> {
        loaded(paths, "python train.py").framework
    }

    const TORCH: &str = "/v/site-packages/torch/lib/libtorch_cuda.so";
    const DRIVER: &str = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.03";
    const RUNTIME: &str = "/v/nvidia/cuda_runtime/lib/libcudart.so.12";

    #[test]
    fn each_framework_is_detected_by_its_marks() {
        for (path, expected) in [
            (TORCH, "pytorch"),
            ("/v/torch/lib/libc10_cuda.so (deleted)", "pytorch"),
            ("/v/tensorflow/libtensorflow_cc.so.2", "tensorflow"),
            ("/v/jax_plugins/xla_cuda12/xla_cuda_plugin.so", "jax"),
            ("/v/jaxlib/xla_extension.so", "jax"),
            ("/v/cupy/_core/core.cpython-312-x86_64-linux-gnu.so", "cupy"),
            ("/v/librmm/lib64/librmm.so", "rapids"),
            ("/v/onnxruntime/capi/libonnxruntime_providers_cuda.so", "onnxruntime"),
            ("/v/vllm/_C.abi3.so", "vllm"),
            ("/v/sgl_kernel/sm90/common_ops.abi3.so", "sglang"),
            ("/v/tensorrt_llm/libs/libtensorrt_llm.so", "tensorrt-llm"),
            ("/opt/tritonserver/lib/libtritonserver.so", "triton-server"),
            ("/usr/lib/ollama/cuda_v12/libggml-cuda.so", "ollama"),
            ("/opt/llama.cpp/build/bin/libggml-cuda.so", "llama.cpp"),
            ("/v/ctranslate2.libs/libctranslate2-bc15bf3f.so.4.5.0", "ctranslate2"),
            ("/v/mxnet/libmxnet.so", "mxnet"),
            ("/v/paddle/base/libpaddle.so", "paddle"),
            ("/v/tensorrt_libs/libnvinfer.so.10", "tensorrt"),
            ("/v/numba/_helperlib.cpython-312-x86_64-linux-gnu.so", "numba"),
            ("/a folder/torch/lib/libtorch_cuda.so", "pytorch"),
            (RUNTIME, "cuda"),
            ("/v/x.libs/libcudart-9335f6a2.so.12.4.127", "cuda"),
        ] {
            assert_eq!(framework(&[path, DRIVER]), Some(expected), "{path}");
        }
    }

    #[test]
    fn every_named_framework_has_advice() {
        let table = parse().unwrap();
        let engines = table.programs.values().chain(table.modules.values());
        let engines = engines.chain(table.titles.values());
        let built_on = table.built_on.values().flatten();
        let marks = table.marks.iter().map(|mark| &mark.name);
        for name in marks.chain(engines).chain(built_on) {
            let row = crate::advice::find(name);
            assert_eq!(row.map(|row| &row.name), Some(name));
        }
    }

    #[test]
    fn the_more_specific_framework_wins_in_any_order() {
        let vllm = "/v/vllm/cumem_allocator.abi3.so";
        let whisper = "/v/ctranslate2.libs/libctranslate2-1.so.4";
        let rmm = "/v/librmm/lib64/librmm.so";
        let cupy = "/v/cupy/_core/core.cpython-312-x86_64-linux-gnu.so";
        let numba = "/v/numba/_helperlib.cpython-312-x86_64-linux-gnu.so";
        let triton = "/opt/tritonserver/lib/libtritonserver.so";
        for (paths, expected) in [
            (&[vllm, TORCH][..], "vllm"),
            (&[TORCH, vllm], "vllm"),
            (&[TORCH, whisper], "ctranslate2"),
            (&[cupy, numba, rmm], "rapids"),
            (&[numba, cupy], "cupy"),
            (&[rmm, TORCH], "pytorch"),
            (&["/v/jaxlib/xla_extension.so", TORCH], "pytorch"),
            (&[TORCH, triton], "triton-server"),
            (&[RUNTIME, numba], "numba"),
        ] {
            let with_driver = [paths, &[DRIVER]].concat();
            assert_eq!(framework(&with_driver), Some(expected), "{paths:?}");
            let reversed: Vec<_> = with_driver.into_iter().rev().collect();
            assert_eq!(framework(&reversed), Some(expected), "{paths:?}");
        }
    }

    #[test]
    fn files_shared_with_cpu_builds_require_the_driver() {
        for path in [
            "/v/tensorflow/libtensorflow_framework.so.2",
            "/v/onnxruntime/capi/onnxruntime_pybind11_state.so",
            "/v/torch/lib/libtorch_python.so",
            "/v/numba/_helperlib.cpython-312-x86_64-linux-gnu.so",
            "/v/jaxlib/xla_extension.so",
        ] {
            assert_eq!(framework(&[path]), None, "{path}");
            assert_ne!(framework(&[path, DRIVER]), Some("cuda"), "{path}");
        }
    }

    #[test]
    fn a_process_with_only_cuda_libraries_is_cuda() {
        assert_eq!(framework(&[DRIVER]), Some("cuda"));
        assert_eq!(framework(&[RUNTIME]), Some("cuda"));
        assert_eq!(framework(&["/usr/lib/libnvidia-ml.so.1"]), None);
        assert_eq!(framework(&["/v/libnccl.so.2"]), None);
    }

    #[test]
    fn similar_file_names_are_not_frameworks() {
        for path in [
            "/home/vllm/data.bin",
            "/home/vllm/venv/site-packages/numpy/_multiarray_umath.so",
            "/home/ann/vllm/venv/site-packages/markupsafe/_C.so",
            "/home/ann/libtorch_cuda.txt",
            "/v/torch/lib/xlibtorch_cuda.so",
            "/v/triton/_C/libtriton.so",
            "/usr/lib/libc.so.6",
            "/memfd:libtorch (deleted)",
        ] {
            assert_eq!(framework(&[path, DRIVER]), Some("cuda"), "{path}");
            assert_eq!(framework(&[path]), None, "{path}");
        }
        assert_eq!(parse_maps(b"", &[]), Loaded::default());
        assert_eq!(parse_maps(b"\n\n/\n//\n\xff/\xff\n", &[]), Loaded::default());
        // The line has no newline, so its path may be truncated.
        assert_eq!(
            parse_maps(b"7f00-7f01 r--p 0 08:01 9 /v/libtorch_cuda.so", &[]),
            Loaded::default()
        );
    }

    #[test]
    fn an_engine_is_recognised_by_its_program() {
        for (words, expected) in [
            ("/opt/conda/bin/python3.11 /opt/conda/bin/text-generation-server serve m", "tgi"),
            ("/usr/src/.venv/bin/text-generation-server serve m", "tgi"),
            ("python -m text_generation_server.cli serve", "tgi"),
            ("python -u -X faulthandler -m vllm.entrypoints.openai.api_server", "vllm"),
            ("VLLM::EngineCore", "vllm"),
            ("sglang::scheduler_TP0", "sglang"),
            (
                "/opt/tritonserver/backends/python/triton_python_backend_stub /m/1/model.py",
                "triton-server",
            ),
            ("/usr/local/bin/ollama runner --model x", "ollama"),
            ("python /v/bin/trtllm-serve x", "tensorrt-llm"),
            ("python train.py --model vllm", "pytorch"),
            ("python -m train vllm", "pytorch"),
            ("python -c import-vllm vllm", "pytorch"),
            ("python -W vllm train.py", "pytorch"),
            ("python vllm.py", "pytorch"),
            ("python", "pytorch"),
            ("", "pytorch"),
        ] {
            let of = |paths: &[&str]| loaded(paths, words).framework;
            assert_eq!(of(&[TORCH, DRIVER]), Some(expected), "{words}");
            assert_eq!(of(&["/usr/lib/libc.so.6"]), None, "{words}");
        }
    }

    #[test]
    fn launchers_and_other_frameworks_are_listed_in_addition() {
        let nccl = "/v/nvidia/nccl/lib/libnccl.so.2";
        let ray = "/v/ray/_raylet.so";
        let adam = "/home/ann/.cache/torch_extensions/py311_cu121/fused_adam/fused_adam.so";
        let flow = "/v/tensorflow/libtensorflow_framework.so.2";
        let jax = "/v/jax_plugins/xla_cuda12/xla_cuda_plugin.so";
        let cupy = "/v/cupy/_core/core.cpython-312-x86_64-linux-gnu.so";
        let numba = "/v/numba/_helperlib.cpython-312-x86_64-linux-gnu.so";
        let vllm = "/v/vllm/_C.abi3.so";
        for (paths, words, framework, libraries) in [
            (&[TORCH, nccl][..], "python t.py", "pytorch", &["nccl"][..]),
            (&[TORCH, ray], "ray::Trainer.fit", "pytorch", &["ray"]),
            (&[TORCH, adam, nccl], "python t.py", "pytorch", &["deepspeed", "nccl"]),
            (&[TORCH], "python t.py --deepspeed ds.json", "pytorch", &["deepspeed"]),
            (&[TORCH], "python t.py --deepspeed_config=ds.json", "pytorch", &["deepspeed"]),
            (&[TORCH], "python t.py --deepspeedy", "pytorch", &[]),
            (&[ray], "ray::IDLE", "cuda", &["ray"]),
            (&[nccl], "all_reduce_perf -g 8", "cuda", &["nccl"]),
            (&[vllm, TORCH, ray], "ray::RayWorkerWrapper", "vllm", &["ray"]),
            (&[TORCH, flow], "python t.py", "pytorch", &["tensorflow"]),
            (&[flow, TORCH, jax], "python t.py", "jax", &["pytorch", "tensorflow"]),
            (&[TORCH, cupy], "python t.py", "pytorch", &["cupy"]),
            (&[TORCH, numba, RUNTIME], "python t.py", "pytorch", &[]),
            (&[vllm, TORCH, cupy], "python t.py", "vllm", &[]),
            (&[vllm, TORCH, flow], "python t.py", "vllm", &["tensorflow"]),
        ] {
            let loaded = loaded(&[paths, &[DRIVER]].concat(), words);
            assert_eq!(loaded.framework, Some(framework), "{words} {paths:?}");
            assert_eq!(loaded.libraries, libraries, "{words} {paths:?}");
        }
        assert_eq!(loaded(&[ray], "ray::IDLE"), Loaded::default());
    }

    #[test]
    fn a_library_version_is_the_suffix_of_its_name() {
        for (path, expected) in [
            ("/v/tensorflow/libtensorflow_framework.so.2", Some("2")),
            ("/v/tensorflow/libtensorflow_framework.so", None),
            ("/o/lib/libonnxruntime.so.1.17.0", Some("1.17.0")),
            ("/v/ctranslate2.libs/libctranslate2-bc15bf3f.so.4.5.0", Some("4.5.0")),
            ("/usr/local/cuda/lib64/libcudart.so.12.4.127", Some("12.4.127")),
            (DRIVER, None),
            (TORCH, None),
            ("/o/lib/libonnxruntime.so.1.\u{e9}.0", None),
            ("/o/lib/libonnxruntime.so.", None),
            ("/o/lib/libonnxruntime.so.99999999999.99999999999999999999999999", None),
        ] {
            let loaded = loaded(&[path, DRIVER], "x");
            assert_eq!(loaded.version.as_deref(), expected, "{path}");
        }
        let other = "/v/tensorflow/libtensorflow_framework.so.2";
        assert_eq!(loaded(&[other, TORCH, DRIVER], "x").version, None, "of another framework");
    }
}
