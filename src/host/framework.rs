//! Which framework a process has loaded, from the names of the files that it has mapped.
//!
//! `/proc/PID/maps` of such a process has thousands of lines; it is read in pieces, and no more is
//! kept of it than which of the names below were seen. The table was made from the files of the
//! packages that the projects publish; a framework built on another one stands before it.

use rustix::io;

use super::folder::{Folder, if_readable};

/// How much of the maps is read; 4 MiB hold some 40 000 lines.
const MAPS_BYTES: usize = 4 << 20;

/// How much is read at once; the kernel gives a page at a time.
const PIECE_BYTES: usize = 4096;

/// The longest line of which the end is looked at: two numbers, and a path of 4096 bytes.
const LINE_BYTES: usize = 4352;

/// A file that tells that a framework is loaded.
struct Mark {
    framework: &'static str,
    /// A folder that has to be in its path, with its slashes; empty where any will do.
    folder: &'static [u8],
    /// How its name starts; it has `.so` in it.
    prefix: &'static [u8],
    /// Builds without CUDA have it too, and prove nothing unless the driver is loaded.
    needs_driver: bool,
}

const fn mark(framework: &'static str, folder: &'static [u8], prefix: &'static [u8]) -> Mark {
    Mark {
        framework,
        folder,
        prefix,
        needs_driver: false,
    }
}

const fn shared_mark(
    framework: &'static str,
    folder: &'static [u8],
    prefix: &'static [u8],
) -> Mark {
    Mark {
        needs_driver: true,
        ..mark(framework, folder, prefix)
    }
}

/// The most specific first. Where two are loaded, the one that only a build with CUDA can have is the
/// likelier to hold the memory: PyTorch stands before TensorFlow, whose files every build has.
const MARKS: [Mark; 29] = [
    shared_mark("vllm", b"/vllm/", b""),
    shared_mark("sglang", b"/sgl_kernel/", b""),
    mark("llama.cpp", b"", b"libggml-cuda"),
    shared_mark("llama.cpp", b"", b"libllama."),
    shared_mark("ctranslate2", b"", b"libctranslate2"),
    mark("jax", b"", b"xla_cuda_plugin"),
    mark("jax", b"/jax_cuda11_plugin/", b"cuda_plugin_extension"),
    mark("jax", b"/jax_cuda12_plugin/", b"cuda_plugin_extension"),
    mark("jax", b"/jax_cuda13_plugin/", b"cuda_plugin_extension"),
    shared_mark("paddle", b"", b"libpaddle."),
    shared_mark("paddle", b"", b"libphi."),
    shared_mark("mxnet", b"", b"libmxnet."),
    mark("pytorch", b"", b"libtorch_cuda"),
    mark("pytorch", b"", b"libc10_cuda"),
    shared_mark("pytorch", b"", b"libtorch_python."),
    shared_mark("tensorflow", b"", b"libtensorflow_cc."),
    shared_mark("tensorflow", b"", b"libtensorflow_framework."),
    shared_mark("tensorflow", b"", b"_pywrap_tensorflow_internal."),
    mark("rapids", b"", b"librmm."),
    mark("rapids", b"", b"libcudf."),
    mark("rapids", b"", b"libcuml."),
    mark("rapids", b"", b"libcuml++."),
    mark("onnxruntime", b"", b"libonnxruntime_providers_cuda."),
    mark("onnxruntime", b"", b"libonnxruntime_providers_tensorrt."),
    shared_mark("onnxruntime", b"", b"libonnxruntime.so"),
    shared_mark("onnxruntime", b"", b"onnxruntime_pybind11_state"),
    shared_mark("cupy", b"/cupy/_core/", b"core."),
    shared_mark("cupy", b"/cupy/cuda/", b"memory."),
    shared_mark("cupy", b"/cupy_backends/cuda/api/", b"runtime."),
];

const _: () = assert!(MARKS.len() < 64, "marks seen are the bits of a word");

/// Which marks were seen so far, in lines that come in pieces.
#[derive(Debug, Default)]
struct Seen {
    /// A bit for each of [`MARKS`].
    marks: u64,
    driver: bool,
    /// The start of a line whose end has not come yet.
    line: Vec<u8>,
    /// The path of the last line: a library is mapped in several parts, one after the other.
    last: Vec<u8>,
}

impl Seen {
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
        let (folders, name) = (&path[..=slash], &path[slash + 1..]);
        if !contains(name, b".so") {
            return;
        }
        self.driver |= name.starts_with(b"libcuda.so");
        for (at, mark) in MARKS.iter().enumerate() {
            if name.starts_with(mark.prefix) && contains(folders, mark.folder) {
                self.marks |= 1 << at;
            }
        }
    }

    fn framework(&self) -> Option<&'static str> {
        MARKS
            .iter()
            .enumerate()
            .find(|(at, mark)| self.marks & 1 << at != 0 && (self.driver || !mark.needs_driver))
            .map(|(_, mark)| mark.framework)
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

/// The framework that a process has loaded, by the content of `/proc/PID/maps`. `None` where it is
/// none that is known.
pub fn parse_maps(bytes: &[u8]) -> Option<&'static str> {
    let mut seen = Seen::default();
    seen.piece(bytes);
    seen.framework()
}

/// The framework that a process has loaded: `Some(None)` where it has none that is known, `None`
/// where its maps may not be read.
pub(super) fn read_framework(folder: &Folder) -> io::Result<Option<Option<&'static str>>> {
    let Some(file) = if_readable(folder.file(c"maps"))? else {
        return Ok(None);
    };
    let mut seen = Seen::default();
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
    Ok(Some(seen.framework()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maps of a process that has these files mapped.
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

    const TORCH: &str = "/v/site-packages/torch/lib/libtorch_cuda.so";
    const DRIVER: &str = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.03";

    #[test]
    fn each_framework_has_its_marks() {
        for (path, framework) in [
            (TORCH, "pytorch"),
            ("/v/torch/lib/libc10_cuda.so (deleted)", "pytorch"),
            ("/v/tensorflow/libtensorflow_cc.so.2", "tensorflow"),
            ("/v/jax_plugins/xla_cuda12/xla_cuda_plugin.so", "jax"),
            ("/v/jax_cuda12_plugin/cuda_plugin_extension.so", "jax"),
            ("/v/cupy/_core/core.cpython-312-x86_64-linux-gnu.so", "cupy"),
            ("/v/librmm/lib64/librmm.so", "rapids"),
            (
                "/v/onnxruntime/capi/libonnxruntime_providers_cuda.so",
                "onnxruntime",
            ),
            ("/v/vllm/_C.abi3.so", "vllm"),
            ("/v/sgl_kernel/sm90/common_ops.abi3.so", "sglang"),
            ("/usr/lib/ollama/cuda_v12/libggml-cuda.so", "llama.cpp"),
            (
                "/v/ctranslate2.libs/libctranslate2-bc15bf3f.so.4.5.0",
                "ctranslate2",
            ),
            ("/v/mxnet/libmxnet.so", "mxnet"),
            ("/v/paddle/base/libpaddle.so", "paddle"),
            ("/a folder/torch/lib/libtorch_cuda.so", "pytorch"),
        ] {
            assert_eq!(
                parse_maps(&maps(&[path, DRIVER])),
                Some(framework),
                "{path}"
            );
        }
    }

    #[test]
    fn the_more_specific_wins_whatever_the_order() {
        let vllm = "/v/vllm/cumem_allocator.abi3.so";
        let whisper = "/v/ctranslate2.libs/libctranslate2-1.so.4";
        assert_eq!(parse_maps(&maps(&[vllm, TORCH, DRIVER])), Some("vllm"));
        assert_eq!(parse_maps(&maps(&[DRIVER, TORCH, vllm])), Some("vllm"));
        assert_eq!(
            parse_maps(&maps(&[TORCH, whisper, DRIVER])),
            Some("ctranslate2")
        );
    }

    #[test]
    fn what_builds_without_cuda_share_needs_the_driver() {
        for path in [
            "/v/tensorflow/libtensorflow_framework.so.2",
            "/v/onnxruntime/capi/onnxruntime_pybind11_state.so",
            "/v/torch/lib/libtorch_python.so",
        ] {
            assert_eq!(parse_maps(&maps(&[path])), None, "{path}");
            assert!(parse_maps(&maps(&[path, DRIVER])).is_some(), "{path}");
        }
    }

    #[test]
    fn what_only_looks_like_one_is_none() {
        for path in [
            "/home/vllm/data.bin",
            "/home/ann/libtorch_cuda.txt",
            "/v/torch/lib/xlibtorch_cuda.so",
            "/usr/lib/libc.so.6",
            "/memfd:libtorch (deleted)",
        ] {
            assert_eq!(parse_maps(&maps(&[path, DRIVER])), None, "{path}");
        }
        assert_eq!(parse_maps(b""), None);
        assert_eq!(parse_maps(b"\n\n/\n//\n\xff/\xff\n"), None);
        // A line that is not over yet may go on.
        assert_eq!(
            parse_maps(b"7f00-7f01 r--p 0 08:01 9 /v/libtorch_cuda.so"),
            None
        );
    }

    #[test]
    fn the_pieces_in_which_it_is_read_make_no_difference() {
        let maps = maps(&[TORCH, "/v/vllm/_C.abi3.so", DRIVER]);
        for length in 1..maps.len() {
            let mut seen = Seen::default();
            maps.chunks(length).for_each(|piece| seen.piece(piece));
            assert_eq!(seen.framework(), Some("vllm"), "{length}");
        }
        let mut seen = Seen::default();
        for _ in 0..100 {
            seen.piece(&[b'/'; 4096]);
        }
        assert!(seen.line.len() <= LINE_BYTES);
    }
}
