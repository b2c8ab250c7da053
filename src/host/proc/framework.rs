//! Which framework a process has loaded, from the names of the files that it has mapped and from the
//! name of its program.
//!
//! The framework of a process is the one whose allocator holds its memory, because that decides what
//! gives the memory back: the engine that serves before the library that trains, that one before what
//! it is built on, and CUDA itself where nothing else is known. What only launches or communicates
//! (DeepSpeed, Ray, NCCL) allocates through one of them and is told beside it.
//!
//! `/proc/PID/maps` of such a process has thousands of lines; it is read in pieces, and no more is
//! kept of it than which of the names below were seen. The files that are mapped are not looked at:
//! they may lie on a disk that hangs. The table was made from the files of the packages that the
//! projects publish. How a version is read off a path is in `version`, what a package's metadata tells of it
//! in `metadata`, for a thread that may hang; which programs are engines is in `program`.

mod metadata;
mod program;
#[cfg(test)]
mod tests;
mod version;

use std::sync::Arc;

use rustix::io;

pub use self::metadata::{has_version_metadata, read_version};

use self::program::{engine, is_deepspeed, is_ray};
use self::version::{of_file, of_folders};
use crate::host::proc::folder::{Folder, if_readable};

/// How much of the maps is read; 4 MiB hold some 40 000 lines.
const MAPS_BYTES: usize = 4 << 20;

/// How much is read at once; the kernel gives a page at a time.
const PIECE_BYTES: usize = 4096;

/// The longest line of which the end is looked at: two numbers, and a path of 4096 bytes.
const LINE_BYTES: usize = 4352;

/// A file that tells that something is loaded.
struct FrameworkMark {
    /// What it tells of: a framework, or one of [`LIBRARIES`].
    name: &'static str,
    /// What the folder that it is in ends with, with its slashes; empty where any will do.
    folder: &'static [u8],
    /// How its name starts; it has `.so` in it.
    prefix: &'static [u8],
    /// Builds without CUDA have it too, and prove nothing unless the driver is loaded.
    needs_driver: bool,
    /// The number after its `.so.` is the version of what it tells of, or the start of it.
    is_numbered: bool,
}

const fn mark(name: &'static str, folder: &'static str, prefix: &'static str) -> FrameworkMark {
    FrameworkMark {
        name,
        folder: folder.as_bytes(),
        prefix: prefix.as_bytes(),
        needs_driver: false,
        is_numbered: false,
    }
}

const fn shared(name: &'static str, folder: &'static str, prefix: &'static str) -> FrameworkMark {
    FrameworkMark { needs_driver: true, ..mark(name, folder, prefix) }
}

impl FrameworkMark {
    const fn numbered(self) -> Self {
        Self { is_numbered: true, ..self }
    }
}

/// The most specific first. Where two are loaded, the one that only a build with CUDA can have is the
/// likelier to hold the memory: PyTorch stands before TensorFlow, whose files every build has.
const MARKS: [FrameworkMark; 58] = [
    // Engines that serve.
    shared("vllm", "/vllm/", "_C"),
    shared("vllm", "/vllm/", "_moe_C"),
    shared("vllm", "/vllm/", "cumem_allocator"),
    shared("vllm", "/vllm/vllm_flash_attn/", "_vllm_fa"),
    shared("sglang", "/sgl_kernel/", "common_ops"),
    shared("sglang", "/sgl_kernel/", "flash_ops"),
    shared("sglang", "/sgl_kernel/sm90/", "common_ops"),
    shared("sglang", "/sgl_kernel/sm100/", "common_ops"),
    mark("tensorrt-llm", "", "libtensorrt_llm."),
    mark("tensorrt-llm", "", "libnvinfer_plugin_tensorrt_llm."),
    shared("triton-server", "", "libtritonserver."),
    shared("ollama", "/ollama/", "libggml"),
    mark("ollama", "/ollama/cuda_v11/", "libggml-cuda"),
    mark("ollama", "/ollama/cuda_v12/", "libggml-cuda"),
    mark("ollama", "/ollama/cuda_v13/", "libggml-cuda"),
    mark("llama.cpp", "", "libggml-cuda"),
    shared("llama.cpp", "", "libllama."),
    shared("ctranslate2", "", "libctranslate2").numbered(),
    // What trains.
    mark("jax", "", "xla_cuda_plugin"),
    mark("jax", "/jax_cuda11_plugin/", "cuda_plugin_extension"),
    mark("jax", "/jax_cuda12_plugin/", "cuda_plugin_extension"),
    mark("jax", "/jax_cuda13_plugin/", "cuda_plugin_extension"),
    shared("paddle", "", "libpaddle."),
    shared("paddle", "", "libphi."),
    shared("mxnet", "", "libmxnet."),
    mark("pytorch", "", "libtorch_cuda"),
    mark("pytorch", "", "libc10_cuda"),
    shared("pytorch", "", "libtorch_python."),
    shared("tensorflow", "", "libtensorflow_cc.").numbered(),
    shared("tensorflow", "", "libtensorflow_framework.").numbered(),
    shared("tensorflow", "", "_pywrap_tensorflow_internal."),
    // JAX before its plugins; every build has it.
    shared("jax", "/jaxlib/", "xla_extension."),
    // What computes with arrays and graphs.
    mark("rapids", "", "librmm."),
    mark("rapids", "", "libcudf."),
    mark("rapids", "", "libcuml."),
    mark("rapids", "", "libcuml++."),
    mark("onnxruntime", "", "libonnxruntime_providers_cuda."),
    mark("onnxruntime", "", "libonnxruntime_providers_tensorrt."),
    shared("onnxruntime", "", "libonnxruntime.so").numbered(),
    shared("onnxruntime", "", "onnxruntime_pybind11_state"),
    shared("cupy", "/cupy/_core/", "core."),
    shared("cupy", "/cupy/cuda/", "memory."),
    shared("cupy", "/cupy_backends/cuda/api/", "runtime."),
    shared("tensorrt", "", "libnvinfer.so").numbered(),
    shared("numba", "/numba/", "_helperlib."),
    shared("numba", "/numba/cuda/cext/", "_helperlib."),
    // What anything on a GPU may have.
    mark("cuda", "", "libcudart.").numbered(),
    mark("cuda", "", "libcudart-").numbered(),
    mark("cuda", "", "libcuda.so"),
    // What takes no memory of its own to speak of.
    mark("nccl", "", "libnccl."),
    shared("ray", "/ray/", "_raylet."),
    shared("deepspeed", "/deepspeed/ops/adam/", ""),
    shared("deepspeed", "/deepspeed/ops/aio/", ""),
    shared("deepspeed", "/fused_adam/", "fused_adam."),
    shared("deepspeed", "/cpu_adam/", "cpu_adam."),
    shared("deepspeed", "/fused_lamb/", "fused_lamb."),
    shared("deepspeed", "/async_io/", "async_io."),
    shared("deepspeed", "/transformer_inference/", "transformer_inference."),
];

const _: () = assert!(MARKS.len() < 64, "marks seen are the bits of a word");

/// What a framework is built on, which is not told beside it: it is no choice of the program's.
const BUILT_ON: &[(&str, &[&str])] = &[
    ("vllm", &["pytorch", "cupy", "numba"]),
    ("sglang", &["pytorch", "cupy", "numba"]),
    ("tgi", &["pytorch"]),
    ("tensorrt-llm", &["pytorch", "tensorrt", "cupy"]),
    ("ollama", &["llama.cpp"]),
    ("rapids", &["cupy", "numba"]),
    ("cupy", &["numba"]),
    ("onnxruntime", &["tensorrt"]),
];

/// What is told beside frameworks, in this order.
const LIBRARIES: [&str; 3] = ["deepspeed", "nccl", "ray"];

/// What a process has loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    /// The framework that holds its memory; `None` where it is none that is known.
    pub framework: Option<&'static str>,
    /// The framework's version, as far as a path tells it.
    pub version: Option<String>,
    /// What else it has loaded: other frameworks, and of `deepspeed`, `nccl` and `ray`.
    pub libraries: Vec<&'static str>,
}

/// Which marks were seen so far, in lines that come in pieces.
#[derive(Debug, Default)]
struct SeenMarks {
    /// A bit for each of [`MARKS`].
    marks: u64,
    driver: bool,
    /// The most that a path told of each framework's version.
    versions: Vec<(&'static str, String)>,
    /// The start of a line whose end has not come yet.
    line: Vec<u8>,
    /// The path of the last line: a library is mapped in several parts, one after the other.
    last: Vec<u8>,
}

impl SeenMarks {
    fn piece(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let is_whole = line.ends_with(b"\n");
            if self.line.is_empty() && is_whole {
                self.line(line);
            } else {
                let room = LINE_BYTES.saturating_sub(self.line.len());
                self.line.extend_from_slice(&line[..line.len().min(room)]);
                if is_whole {
                    let mut line = std::mem::take(&mut self.line);
                    self.line(&line);
                    line.clear();
                    self.line = line;
                }
            }
        }
    }

    fn line(&mut self, line: &[u8]) {
        // What is before the path has no slash in it.
        let Some(start) = line.iter().position(|&byte| byte == b'/') else {
            return;
        };
        let path = line[start..].trim_ascii_end();
        if path == self.last {
            return;
        }
        self.last.clear();
        self.last.extend_from_slice(path);

        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let slash = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let (folders, name) = path.split_at(slash + 1);
        if !name.windows(3).any(|part| part == b".so") {
            return;
        }
        self.driver |= name.starts_with(b"libcuda.so");
        for (at, mark) in MARKS.iter().enumerate() {
            if name.starts_with(mark.prefix) && folders.ends_with(mark.folder) {
                self.marks |= 1 << at;
                self.version(mark, folders, name);
            }
        }
    }

    /// Keeps what this file's path tells of its framework's version, if that is the most so far.
    fn version(&mut self, mark: &FrameworkMark, folders: &[u8], name: &[u8]) {
        let by_name = || of_file(name).filter(|_| mark.is_numbered);
        let Some(version) = of_folders(folders, mark.name).or_else(by_name) else {
            return;
        };
        let known = self.versions.iter_mut().find(|(of, _)| *of == mark.name);
        match known {
            None => self.versions.push((mark.name, version)),
            Some((_, known)) if version.len() > known.len() => *known = version,
            Some(_) => {}
        }
    }

    /// What the marks tell of a process with this command line.
    fn loaded(mut self, command: &[Arc<str>]) -> Loaded {
        let is_seen = |at: usize, mark: &FrameworkMark| {
            self.marks & 1 << at != 0 && (self.driver || !mark.needs_driver)
        };
        let seen = || {
            let marks = MARKS.iter().enumerate();
            marks.filter(|&(at, mark)| is_seen(at, mark))
        };
        let mapped = seen().map(|(_, mark)| mark.name).find(|name| !LIBRARIES.contains(name));
        // A program's name proves nothing where nothing of a GPU is loaded.
        let framework = mapped.map(|mapped| engine(command).unwrap_or(mapped));
        let mut libraries: Vec<&str> = Vec::new();
        for (_, mark) in seen() {
            let is_other = framework.is_some_and(|framework| is_beside(mark, framework));
            if is_other && !libraries.contains(&mark.name) {
                libraries.push(mark.name);
            }
        }
        let launchers = LIBRARIES.into_iter().filter(|library| {
            seen().any(|(_, mark)| mark.name == *library)
                || match *library {
                    "deepspeed" => framework.is_some() && is_deepspeed(command),
                    "ray" => framework.is_some() && is_ray(command),
                    _ => false,
                }
        });
        libraries.extend(launchers);
        let version = self
            .versions
            .iter()
            .position(|(of, _)| Some(*of) == framework)
            .map(|at| self.versions.swap_remove(at).1);
        Loaded { framework, version, libraries }
    }
}

/// Whether a mark tells of another framework than the one that holds the memory. CUDA is under all of them,
/// and half of what computes on a CPU has Numba.
fn is_beside(mark: &FrameworkMark, framework: &str) -> bool {
    let built_on = BUILT_ON.iter().find(|(name, _)| *name == framework);
    let built_on = built_on.map_or(&[][..], |(_, parts)| *parts);
    let is_for_cpus = mark.name == "numba" && mark.folder == b"/numba/";
    mark.name != framework
        && mark.name != "cuda"
        && !is_for_cpus
        && !LIBRARIES.contains(&mark.name)
        && !built_on.contains(&mark.name)
}

/// What a process has loaded; `None` where its maps may not be read.
pub(in crate::host) fn read_framework(
    folder: &Folder,
    command: &[Arc<str>],
) -> io::Result<Option<Loaded>> {
    let Some(file) = if_readable(folder.file(c"maps"))? else {
        return Ok(None);
    };
    let mut seen = SeenMarks::default();
    let mut piece = [0; PIECE_BYTES];
    let mut read = 0;
    while read < MAPS_BYTES {
        let Some(length) = if_readable(io::read(&file, &mut piece))? else {
            return Ok(None);
        };
        if length == 0 {
            break;
        }
        read += length;
        seen.piece(&piece[..length]);
    }
    Ok(Some(seen.loaded(command)))
}
