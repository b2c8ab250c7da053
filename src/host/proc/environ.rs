//! Parses the variables in `/proc/PID/environ` that show which job a process belongs to or how it uses memory.
//!
//! Only variables on a fixed list are kept, none of which contains secrets. The file contains the initial
//! environment, without later changes. A process that sets a title can overwrite the environment. Reading the file
//! takes a lock on the memory map of the process (see `entry`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::{Arc, LazyLock};

use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::host::secrets;
use crate::model::owners;

/// Maximum number of bytes read. With the usual stack limit of 8 MiB, execve(2) limits arguments and environment to 2
/// MiB.
pub(in crate::host) const ENVIRON_BYTES: usize = 4 << 20;

/// Name of the variable with which a user protects a process (`model::keep`).
const KEEP: &str = "GPUMEM_KEEP";

/// Variables that are used even if the rest of the environment is unknown.
const KEPT_IF_INCOMPLETE: [&str; 3] = [KEEP, "LD_AUDIT", "LD_PRELOAD"];

/// Variables that are ignored in a set-uid program. The caller of the program chose their values. The loader ignores
/// the last two as well.
const CALLER_CHOSEN: [&str; 3] = ["GPUMEM_RELEASE_SIGNAL", "LD_AUDIT", "LD_PRELOAD"];

/// Maximum number of bytes read from the auxiliary vector, which has about 25 entries of two words.
const AUXV_BYTES: usize = 1024;

/// Maximum length of a value. A longer value is truncated and ends with `…`.
const VALUE_BYTES: usize = 512;

const NAMES: [&str; 50] = [
    "CONDA_DEFAULT_ENV",
    "CUDA_VISIBLE_DEVICES",
    "DISPLAY",
    "GPUMEM_KEEP",
    "GPUMEM_RELEASE_SIGNAL",
    "GROUP_RANK",
    "HOSTNAME",
    "JPY_PARENT_PID",
    "JPY_SESSION_NAME",
    "LD_AUDIT",
    "LD_PRELOAD",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NVIDIA_VISIBLE_DEVICES",
    "OLLAMA_KEEP_ALIVE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "POD_NAME",
    "POD_NAMESPACE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "RANK",
    "RAY_JOB_ID",
    "SLURMD_NODENAME",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_USER",
    "SLURM_LOCALID",
    "SLURM_PROCID",
    "SLURM_STEP_GPUS",
    "SLURM_STEP_ID",
    "TF_ENABLE_GPU_GARBAGE_COLLECTION",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "WAYLAND_DISPLAY",
    "WORLD_SIZE",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
];

/// [`NAMES`] and the variables that `model::owners` uses, sorted.
static KEPT_NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    Vec::from_iter(owners::variables().into_iter().chain(NAMES).collect::<BTreeSet<_>>())
});

pub(in crate::host) fn is_kept(name: &str) -> bool {
    KEPT_NAMES.binary_search(&name).is_ok()
}

/// Parses the listed variables from `/proc/PID/environ`, which may be truncated. If a name is repeated, its first
/// value is used, as by getenv(3). Invalid UTF-8 is replaced.
pub fn parse_environ(bytes: &[u8]) -> BTreeMap<Arc<str>, Arc<str>> {
    let mut variables = BTreeMap::new();
    let mut rest = bytes;
    // A variable without a final NUL byte may be truncated and is ignored.
    while let Ok(variable) = CStr::from_bytes_until_nul(rest) {
        let variable = variable.to_bytes();
        rest = &rest[variable.len() + 1..];
        let Some(at) = variable.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let (name, value) = (&variable[..at], &variable[at + 1..]);
        if let Ok(index) = KEPT_NAMES.binary_search_by(|kept| kept.as_bytes().cmp(name))
            && !variables.contains_key(KEPT_NAMES[index])
        {
            variables.insert(Arc::from(KEPT_NAMES[index]), text(value));
        }
    }
    variables
}

/// Parses the variables like [`parse_environ`]. Returns `None` if the environment exceeds the limit or if a title has
/// overwritten it, unless it contains one of [`KEPT_IF_INCOMPLETE`]. An environment that setproctitle has overwritten
/// contains zero bytes and part of the title.
pub(in crate::host) fn parse_whole_environ(
    bytes: &[u8],
) -> Option<Arc<BTreeMap<Arc<str>, Arc<str>>>> {
    let is_overwritten = bytes.starts_with(b"\0") || bytes.windows(2).any(|two| two == b"\0\0");
    let is_whole = bytes.len() < ENVIRON_BYTES && !is_overwritten;
    let variables = parse_environ(bytes);
    let is_known = is_whole || KEPT_IF_INCOMPLETE.iter().any(|name| variables.contains_key(*name));
    is_known.then(|| Arc::new(variables))
}

/// Parses the variables like [`parse_whole_environ`]. If the process with this folder runs a set-uid program,
/// variables that the program's caller chose are omitted.
pub(in crate::host) fn parse_own_environ(
    bytes: &[u8],
    folder: &Folder,
) -> Option<Arc<BTreeMap<Arc<str>, Arc<str>>>> {
    let mut variables = parse_whole_environ(bytes)?;
    if CALLER_CHOSEN.iter().any(|name| variables.contains_key(*name)) {
        let mut auxv = Vec::new();
        let read = folder.read(c"auxv", &mut auxv, AUXV_BYTES);
        if read.is_err() || is_set_uid(&auxv) != Some(false) {
            let variables = Arc::make_mut(&mut variables);
            variables.retain(|name, _| !CALLER_CHOSEN.contains(&&**name));
        }
    }
    Some(variables)
}

/// Returns whether a program gained rights from its file when it was executed (getauxval(3), `AT_SECURE`), or `None`
/// if the auxiliary vector does not contain this information.
fn is_set_uid(auxv: &[u8]) -> Option<bool> {
    const AT_SECURE: u64 = 23;
    let words = auxv.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    let words: Vec<u64> = words.collect();
    let secure = words.chunks_exact(2).find(|entry| entry[0] == AT_SECURE)?;
    Some(secure[1] != 0)
}

/// Returns whether the memory of a process can be read without blocking, or `None` if the process has exited or its
/// pid has been reused.
pub(in crate::host) fn has_memory(
    folder: &Folder,
    start_ticks: u64,
    content: &mut Vec<u8>,
) -> Option<bool> {
    folder.read(c"stat", content, STAT_BYTES).ok()?;
    let stat = parse_stat(content).filter(|stat| stat.start_ticks == start_ticks)?;
    Some(!stat.is_exiting && stat.state != 'D')
}

fn text(value: &[u8]) -> Arc<str> {
    let mut text = String::from_utf8_lossy(&value[..value.len().min(VALUE_BYTES)]);
    secrets::hide_in_value(&mut text);
    if value.len() > VALUE_BYTES {
        let text = text.to_mut();
        // Remove the U+FFFD that replaces a truncated character.
        if text.ends_with('\u{fffd}') {
            text.pop();
        }
        text.push('…');
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(bytes: &[u8]) -> Vec<(String, String)> {
        let variables = parse_environ(bytes).into_iter();
        variables.map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn an_overwritten_or_long_environ_keeps_only_the_keep() {
        let is_complete = |bytes: &[u8]| parse_whole_environ(bytes).is_some();
        assert!(is_complete(b"") && is_complete(b"RANK=1\0HOME=/root\0"));
        // What setproctitle can leave: the end of a title, and zero bytes.
        for bytes in
            [&b"EngineCore_0\0\0\0\0"[..], b"\0\0\0\0", b"\0RANK=1\0", b"RANK=1\0\0\0HOME=/x\0"]
        {
            assert!(!is_complete(bytes), "{bytes:?}");
        }
        assert!(is_complete(b"GPUMEM_KEEP=night run\0\0\0\0"));
        assert!(is_complete(b"LD_PRELOAD=/home/ann/x.so\0\0\0\0"));
        let mut long = b"PADDING=".to_vec();
        long.resize(ENVIRON_BYTES, b'x');
        assert!(!is_complete(&long));
    }

    #[test]
    fn the_kept_names_are_sorted_and_not_secret() {
        assert!(NAMES.is_sorted() && KEPT_NAMES.is_sorted());
        for name in &*KEPT_NAMES {
            for part in ["TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH"] {
                assert!(!name.contains(part), "{name}");
            }
        }
    }

    #[test]
    fn only_listed_variables_are_kept() {
        let bytes = b"HOME=/root\0RANK=3\0JUPYTER_TOKEN=abc\0AWS_SECRET_ACCESS_KEY=x\0\
            RANKS=9\0RAN=1\0rank=2\0TF_GPU_ALLOCATOR=a=b\0WORLD_SIZE=\0";
        let expected = [("RANK", "3"), ("TF_GPU_ALLOCATOR", "a=b"), ("WORLD_SIZE", "")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables(bytes), expected);
    }

    #[test]
    fn every_listed_name_is_found() {
        let bytes: String = KEPT_NAMES.iter().map(|name| format!("{name}=1\0")).collect();
        assert_eq!(variables(bytes.as_bytes()).len(), KEPT_NAMES.len());
        let other_names = format!("{}=1\0RANN=1\0{}\0", "R".repeat(200), "=".repeat(200));
        assert_eq!(variables(other_names.as_bytes()), []);
    }

    #[test]
    fn the_first_value_of_a_name_is_used() {
        assert_eq!(variables(b"RANK=0\0RANK=1\0"), [("RANK".to_owned(), "0".to_owned())]);
    }

    #[test]
    fn a_secret_in_a_value_is_masked() {
        let bytes = b"GPUMEM_KEEP=for https://ann:s3cret@host until 12:00\0";
        assert_eq!(variables(bytes)[0].1, "for https://ann:***@host until 12:00");
    }

    #[test]
    fn hostile_environ_is_bounded_and_valid_utf8() {
        for bytes in [&b""[..], b"\0\0\0", b"RANK=1", b"RANK\0", b"=\0", b"=RANK=1\0", b"\xff=1\0"]
        {
            assert_eq!(variables(bytes), [], "{}", bytes.escape_ascii());
        }
        let (_, value) = &variables(b"HOSTNAME=\x1b[31m\xff\n\0")[0];
        assert_eq!(value, "\u{1b}[31m\u{fffd}\n");
        let long = format!("HOSTNAME={}é\0", "x".repeat(VALUE_BYTES - 1));
        let (_, value) = &variables(long.as_bytes())[0];
        assert!(value.ends_with("x…") && value.len() <= VALUE_BYTES + 3, "{value}");
    }

    #[test]
    fn set_uid_is_read_from_the_auxiliary_vector() {
        let entry = |kind: u64, value: u64| [kind.to_ne_bytes(), value.to_ne_bytes()].concat();
        let of = |value| [entry(6, 4096), entry(23, value), entry(0, 0)].concat();
        assert_eq!(is_set_uid(&of(0)), Some(false));
        assert_eq!(is_set_uid(&of(1)), Some(true));
        assert_eq!(is_set_uid(&of(1)[..24]), None, "cut");
        assert_eq!(is_set_uid(b""), None);
        let auxv = std::fs::read("/proc/self/auxv").unwrap();
        assert_eq!(is_set_uid(&auxv), Some(false));
    }
}
