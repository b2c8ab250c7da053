//! Recognises out-of-memory messages in what a program printed: who reported it, on which GPU, and how much it asked
//! for.
//!
//! Pure: bytes in. A message alone proves no failure, because programs also print one and carry on with less; so only
//! the output of a program that failed is read. The GPU number is the program's own, counted within its
//! CUDA_VISIBLE_DEVICES.

use crate::units::Bytes;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// The framework or library that reported it.
    pub by: &'static str,
    /// The GPU, as the program numbers it.
    pub gpu: Option<u32>,
    pub asked_bytes: Option<u64>,
}

/// Messages of frameworks, now and in older versions. They say more than [`RUNTIME`], which often follows them.
const FRAMEWORKS: [(&str, &str); 4] = [
    // torch.OutOfMemoryError, torch.cuda.OutOfMemoryError, RuntimeError: CUDA out of memory. Tried to allocate …
    ("PyTorch", "CUDA out of memory"),
    // ResourceExhaustedError: OOM when allocating tensor with shape[…] on …/device:GPU:0 by allocator GPU_0_bfc
    ("TensorFlow", "OOM when allocating tensor"),
    // XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory (while trying to allocate|allocating) N bytes
    ("JAX (XLA)", "RESOURCE_EXHAUSTED: Out of memory"),
    ("JAX (XLA)", "Resource exhausted: Out of memory"),
];

/// Messages of CUDA itself.
const RUNTIME: [&str; 4] = [
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    // llama.cpp: allocating 144.00 MiB on device 4: cudaMalloc failed: out of memory
    "cudaMalloc failed: out of memory",
];

/// What comes before a size.
const ASKED: [&str; 4] =
    ["ried to allocate ", "trying to allocate ", "Out of memory allocating ", "allocating "];
/// What comes before a GPU's number.
const GPU: [&str; 5] = ["(GPU ", "GPU ", "GPU:", "gpu:", "on device "];

/// The last framework message in what a program printed, or else the last one of CUDA.
pub fn recognize(printed: &[u8]) -> Option<OutOfMemory> {
    let text = String::from_utf8_lossy(printed);
    let lines: Vec<&str> = text.lines().collect();
    let said = |line: &str| {
        // A CPU that ran out of memory is a different problem.
        let is_of_cpu = line.contains("device:CPU:") || line.contains("by allocator cpu");
        let found = FRAMEWORKS.iter().find(|(_, words)| line.contains(words) && !is_of_cpu);
        found.map(|(by, _)| *by)
    };
    let by_framework = lines.iter().rposition(|line| said(line).is_some());
    let by_runtime = || lines.iter().rposition(|line| RUNTIME.iter().any(|it| line.contains(it)));
    let at = by_framework.or_else(by_runtime)?;
    // A long message may be wrapped once.
    let message = lines[at..].iter().take(2).copied().collect::<Vec<&str>>().join(" ");
    // TensorFlow's message has no size; its allocator prints one before.
    let allocator = || {
        let mut earlier = lines[..at].iter().rev();
        after(earlier.find(|line| line.contains("Allocator (GPU_"))?, &ASKED, size)
    };
    Some(OutOfMemory {
        by: said(lines[at]).unwrap_or("CUDA"),
        gpu: after(&message, &GPU, number),
        asked_bytes: after(&message, &ASKED, size).or_else(allocator),
    })
}

/// The first value that can be read after one of these words.
fn after<T>(text: &str, words: &[&str], read: fn(&str) -> Option<T>) -> Option<T> {
    let behind = |word: &&str| {
        let ends = text.match_indices(*word).map(|(at, word)| &text[at + word.len()..]);
        ends.filter_map(read).next()
    };
    words.iter().find_map(behind)
}

fn number(text: &str) -> Option<u32> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    text[..digits].parse().ok()
}

/// `2.00 GiB`, `8.00GiB`, `7406166528 bytes`.
fn size(text: &str) -> Option<u64> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &text[..text.len() - rest.len()];
    let rest = rest.strip_prefix(' ').unwrap_or(rest);
    let unit = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
    let unit = match &rest[..unit] {
        "bytes" | "byte" => "B",
        unit => unit,
    };
    format!("{number}{unit}").parse().ok().map(|Bytes(bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dice::Dice;
    use crate::units::{GIB, MIB};

    #[test]
    fn messages_of_frameworks_are_recognised() {
        for (printed, by, gpu, asked) in [
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 3 has a total capacity \
                 of 14.57 GiB of which 1.58 GiB is free. Process 2493055 has 12.02 GiB memory in use. Including",
                "PyTorch",
                Some(3),
                Some(GIB * 195 / 100),
            ),
            (
                "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB.\nGPU 0 has a total \
                 capacty of 4.00 GiB of which 41.56 MiB is free.",
                "PyTorch",
                Some(0),
                Some(32 * MIB),
            ),
            (
                "RuntimeError: CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 1; 11.17 GiB total capacity; \
                 10.90 GiB already allocated; 576.00 KiB free; 30.96 MiB cached)",
                "PyTorch",
                Some(1),
                Some(MIB),
            ),
            (
                "W bfc_allocator.cc:479] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.50GiB (rounded \
                 to 1610612736)requested by op\nResourceExhaustedError: OOM when allocating tensor with \
                 shape[64,2016,9,9] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator \
                 GPU_1_bfc\nHint: If you want to see a list of allocated tensors",
                "TensorFlow",
                Some(1),
                Some(GIB * 3 / 2),
            ),
            (
                "E cuda_driver.cc] failed to allocate 2.00GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n\
                 jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate \
                 7406166528 bytes.\nthe stack trace below",
                "JAX (XLA)",
                None,
                Some(7_406_166_528),
            ),
            (
                "RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.",
                "JAX (XLA)",
                None,
                Some(20_029_400_304),
            ),
            (
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9866.00 MiB on device 1: cudaMalloc failed: \
                 out of memory",
                "CUDA",
                Some(1),
                Some(9866 * MIB),
            ),
            ("terminate: cudaErrorMemoryAllocation: out of memory", "CUDA", None, None),
            ("RuntimeError: CUDA error: out of memory", "CUDA", None, None),
        ] {
            let found = recognize(printed.as_bytes());
            let asked_bytes = found.and_then(|it| it.asked_bytes);
            // Printed sizes are rounded.
            assert_eq!(asked_bytes.map(|it| it / MIB), asked.map(|it: u64| it / MIB), "{printed}");
            assert_eq!(found, Some(OutOfMemory { by, gpu, asked_bytes }), "{printed}");
        }
        for printed in [
            "",
            "Killed: out of memory",
            "MemoryError",
            "OOM when allocating tensor with shape[9] and type float on /job:localhost/device:CPU:0 by allocator cpu",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ] {
            assert_eq!(recognize(printed.as_bytes()), None, "{printed}");
        }
    }

    #[test]
    fn no_output_panics_the_parser() {
        let mut words: Vec<Vec<u8>> = Vec::new();
        let known =
            FRAMEWORKS.iter().map(|(_, words)| *words).chain(RUNTIME).chain(ASKED).chain(GPU);
        words.extend(known.map(|word| word.as_bytes().to_vec()));
        let odd: [&[u8]; 8] = [
            b"\n",
            b"9",
            b"99999999999999999999",
            b".",
            b" GiB",
            b"\xff\xfe",
            "ü".as_bytes(),
            b"B",
        ];
        words.extend(odd.map(<[u8]>::to_vec));
        let mut dice = Dice::new(29);
        for _ in 0..5000 {
            let text: Vec<u8> =
                (0..dice.place(12)).flat_map(|_| words[dice.place(words.len())].clone()).collect();
            let _ = recognize(&text);
        }
    }
}
