//! Parses the variables in `/proc/PID/environ` that show which job a process belongs to or how it uses memory. Also
//! reads a whole environment when a user requests it.
//!
//! Snapshots contain only variables on a fixed list, none of which contains secrets. A whole environment is displayed
//! with secrets masked, and never recorded. The file contains the initial environment, without later changes. A process
//! that sets a title can overwrite the environment. Reading the file takes a lock on the memory map of the process (see
//! `processes`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
use rustix::process::getuid;

use crate::host::proc::folder::{Folder, is_gone};
use crate::host::proc::stat::Stat;
use crate::host::{HostError, Roots, has_gained_rights, secrets, truncate};
use crate::model::owners;

/// Maximum number of bytes read. With the usual stack limit of 8 MiB, execve(2) limits arguments and environment to 2
/// MiB.
pub(in crate::host) const ENVIRON_BYTES: usize = 4 << 20;

const KEEP: &str = "GPUMEM_KEEP";

/// Variables that are used even if the rest of the environment is unknown.
const KEPT_IF_INCOMPLETE: [&str; 3] = [KEEP, "LD_AUDIT", "LD_PRELOAD"];

/// Variables that are ignored in a set-uid program. The caller of the program chose their values. The loader ignores
/// the last two as well.
const CALLER_CHOSEN: [&str; 3] = ["GPUMEM_RELEASE_SIGNAL", "LD_AUDIT", "LD_PRELOAD"];

const AUXV_BYTES: usize = 1024;

/// Maximum length of a value. A longer value is truncated and ends with `…`.
const VALUE_BYTES: usize = 512;

/// Variables in `secrets.toml` and those that `model::owners` uses, sorted.
static KEPT_NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let names = owners::variables().into_iter().chain(secrets::recorded_variables());
    Vec::from_iter(names.collect::<BTreeSet<_>>())
});

fn is_kept(name: &str) -> bool {
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

fn text(value: &[u8]) -> Arc<str> {
    let mut text = String::from_utf8_lossy(&value[..value.len().min(VALUE_BYTES)]);
    secrets::hide_in_value(&mut text);
    match value.len() > VALUE_BYTES {
        // Remove the U+FFFD that replaces a truncated character.
        true => format!("{}…", text.trim_end_matches('\u{fffd}')).into(),
        false => text.into(),
    }
}

const SHOWN_BYTES: usize = 2048;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error("the process is gone")]
    Gone,
    #[error("the process is in uninterruptible sleep or exiting; reading it could hang")]
    HeldUp,
    #[error(
        "it is another user's, and gpumem has capabilities that you lack (from its program file); \
        run it as root"
    )]
    NotYours,
    #[error("{0}")]
    Refused(#[from] HostError),
}

/// Reads the initial environment of a process, sorted by name. Secrets in the values of harmless variables are masked,
/// and the values of all other variables are returned as `***`. The caller must escape control characters.
///
/// Masking may miss secrets. If gpumem's program file gives gpumem more rights than its caller, only processes of the
/// caller are therefore read.
pub fn read_environment(
    roots: &Roots,
    pid: u32,
    start_ticks: u64,
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let refused = |name: &str, errno: Errno| match is_gone(errno) {
        true => EnvironmentError::Gone,
        false => EnvironmentError::Refused(HostError::Read {
            path: roots.proc.join(pid.to_string()).join(name),
            errno,
        }),
    };
    let mut content = Vec::new();
    let folder = Folder::open(&roots.proc, pid).map_err(|errno| refused("", errno))?;
    let owner = folder.owner().map_err(|errno| refused("", errno))?;
    if !may_show(has_gained_rights(), owner, getuid().as_raw()) {
        return Err(EnvironmentError::NotYours);
    }
    let stat = Stat::read(&folder, &mut content).ok().flatten();
    match stat.filter(|stat| stat.start_ticks == start_ticks) {
        None => return Err(EnvironmentError::Gone),
        Some(stat) if stat.is_exiting || stat.state == 'D' => return Err(EnvironmentError::HeldUp),
        Some(_) => {}
    }
    folder
        .read(c"environ", &mut content, ENVIRON_BYTES)
        .map_err(|errno| refused("environ", errno))?;
    Ok(parse_environment(&content))
}

fn may_show(has_gained_rights: bool, owner: u32, starter: u32) -> bool {
    !has_gained_rights || owner == starter
}

/// Returns the variables in `/proc/PID/environ`, sorted by name. If a name is repeated, its first value is used.
/// Entries without a name are omitted, because they belong to a title that the process has written over its
/// environment.
fn parse_environment(bytes: &[u8]) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for variable in bytes.split_inclusive(|&byte| byte == 0) {
        // A variable without a final NUL byte may be truncated. Omit it, because masking could miss a truncated secret.
        let Some(variable) = variable.strip_suffix(b"\0") else {
            break;
        };
        let Some(at) = variable.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let name = String::from_utf8_lossy(&variable[..at]).into_owned();
        if name.is_empty() || variables.iter().any(|(existing, _)| *existing == name) {
            continue;
        }
        let mut value = String::from_utf8_lossy(&variable[at + 1..]);
        secrets::hide_variable(is_kept(&name) || secrets::is_harmless_variable(&name), &mut value);
        if value.len() > SHOWN_BYTES {
            value = format!("{}…", truncate(&value, SHOWN_BYTES)).into();
        }
        variables.push((name, value.into_owned()));
    }
    variables.sort_unstable();
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{FakeProc, StatLine};

    fn variables(bytes: &[u8]) -> Vec<(String, String)> {
        let variables = parse_environ(bytes).into_iter();
        variables.map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn an_overwritten_or_long_environ_keeps_only_the_keep() {
        let is_complete = |bytes: &[u8]| parse_whole_environ(bytes).is_some();
        assert!(is_complete(b"") && is_complete(b"RANK=1\0HOME=/root\0"));
        // setproctitle can leave the end of a title and zero bytes.
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
        assert!(KEPT_NAMES.is_sorted());
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

    #[test]
    fn only_harmless_variables_are_shown() {
        let bytes = b"HOME=/root\0PATH=/a:https://ann:s3cret@host\0RANK=3\0NCCL_DEBUG=INFO\0GITHUB_PAT=x\0\
            NPM_AUTH=x\0MNEMONIC=a b\0UNHEARD_OF=5\0HF_TOKEN=hf_abc\0AWS_SECRET_ACCESS_KEY=x/y\0DB_PASSWORD=p\0\
            GOOGLE_APPLICATION_CREDENTIALS=/k.json\0my_api_key=1\0PGPASS=q\0\
            http_proxy=http://ann:s3cret@proxy:3128\0EMPTY_TOKEN=\0=nothing\0title\0HOME=2\0CUT=sec";
        let parsed = parse_environment(bytes);
        let expected = [
            ("AWS_SECRET_ACCESS_KEY", "***"),
            ("DB_PASSWORD", "***"),
            ("EMPTY_TOKEN", ""),
            ("GITHUB_PAT", "***"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "***"),
            ("HF_TOKEN", "***"),
            ("HOME", "/root"),
            ("MNEMONIC", "***"),
            ("NCCL_DEBUG", "INFO"),
            ("NPM_AUTH", "***"),
            ("PATH", "/a:https://ann:***@host"),
            ("PGPASS", "***"),
            ("RANK", "3"),
            ("UNHEARD_OF", "***"),
            ("http_proxy", "http://ann:***@proxy:3128"),
            ("my_api_key", "***"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parsed, expected);
    }

    #[test]
    fn gained_rights_do_not_show_other_users_environments() {
        assert!(may_show(false, 1, 1000), "the kernel decides");
        assert!(may_show(true, 1000, 1000));
        assert!(!may_show(true, 1, 1000) && !may_show(true, 0, 1000));
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let bytes = [b"PATH=".to_vec(), "é".repeat(4000).into_bytes(), vec![0]].concat();
        let (_, value) = &parse_environment(&bytes)[0];
        assert!(value.ends_with("é…") && value.len() <= SHOWN_BYTES + 4);
    }

    #[test]
    fn a_reused_pid_or_a_stuck_process_is_not_read() {
        let fake = FakeProc::new();
        fake.stat(70, &StatLine { start: 9, ..StatLine::ASLEEP });
        fake.put(70, "environ", "LC_TEST_NAME=a\x1b[2J\0GPUMEM_TEST_TOKEN=s3cret\0");
        let read = |start_ticks| read_environment(&fake, 70, start_ticks);
        let variables = read(9).unwrap();
        assert_eq!(variables[1], ("LC_TEST_NAME".to_owned(), "a\x1b[2J".to_owned()));
        assert_eq!(variables[0].1, "***");
        assert_eq!(read(10), Err(EnvironmentError::Gone));
        fake.stat(70, &StatLine { start: 9, state: 'D', ..StatLine::ASLEEP });
        assert_eq!(read(9), Err(EnvironmentError::HeldUp));
        fake.end(70);
        assert_eq!(read(9), Err(EnvironmentError::Gone));
    }
}
