//! Reads the initial environment of a process to display it to a user who requests it, with secrets masked. The
//! result is never recorded. The variables in snapshots are read by `environ`.

use std::borrow::Cow;

use rustix::io::Errno;
use rustix::process::getuid;

use crate::host::proc::environ::{ENVIRON_BYTES, has_memory, is_kept};
use crate::host::proc::folder::{Folder, is_gone};
use crate::host::{HostError, Roots, has_gained_rights, secrets};

/// Maximum length of a displayed value. A longer value is truncated and ends with `…`.
const VALUE_BYTES: usize = 2048;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error("the process is gone")]
    Gone,
    #[error("the process is in uninterruptible sleep or exiting; reading it could hang")]
    HeldUp,
    /// gpumem may read the environment, but its caller may not.
    #[error(
        "it is another user's, and gpumem has capabilities that you lack (from its program file); \
        run it as root"
    )]
    NotYours,
    #[error("{0}")]
    Refused(#[from] HostError),
}

/// Reads the initial environment of a process, sorted by name. The values of harmless variables are returned with
/// secrets masked, and all other values are returned as `***`. Invalid UTF-8 is replaced. The caller must escape
/// control characters.
///
/// Masking may miss secrets. If gpumem's program file gives gpumem more rights than its caller, only processes of the
/// caller are therefore read. Returns an error if the process has exited, is stuck, or must not be read.
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
    match has_memory(&folder, start_ticks, &mut content) {
        Some(true) => {}
        Some(false) => return Err(EnvironmentError::HeldUp),
        None => return Err(EnvironmentError::Gone),
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
        variables.push((name, cut(value)));
    }
    variables.sort_unstable();
    variables
}

fn cut(value: Cow<'_, str>) -> String {
    if value.len() <= VALUE_BYTES {
        return value.into_owned();
    }
    let mut end = VALUE_BYTES;
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &value[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{FakeProc, StatLine};

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
        assert!(value.ends_with("é…") && value.len() <= VALUE_BYTES + 4);
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
