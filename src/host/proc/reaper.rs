//! Which processes adopt orphans.
//!
//! When a process dies, its children go to the nearest ancestor that asked for orphans
//! (`PR_SET_CHILD_SUBREAPER`, prctl(2)), else to the first process of their pid namespace. The kernel shows a
//! namespace's first process: the last number of its `NSpid` is 1 (pid_namespaces(7)). It does not show
//! subreapers, which are recognised by name.

use std::path::Path;

use crate::host::proc::folder::Folder;
use crate::host::proc::status::{ProcStatus, STATUS_BYTES, parse_status};

/// Short names (the kernel keeps 15 bytes) of programs that ask for orphans or are meant to be a first process.
const NAMES: [&[u8]; 13] = [
    // systemd, and each user's systemd --user (systemd: src/core/main.c).
    b"systemd",
    b"init",
    b"upstart",
    // One per container, or per pod (containerd: the shim's README; conmon: src/conmon.c).
    b"containerd-shim",
    b"conmon",
    b"conmonrs",
    // First processes of containers; tini adopts with -s even if it is not the first.
    b"tini",
    b"docker-init",
    b"dumb-init",
    b"catatonit",
    b"podman-init",
    // First processes of other systems.
    b"s6-svscan",
    b"runit",
];

/// Whether the process with this pid adopts orphans; `None` if unknown, as for a parent outside this pid
/// namespace. `content` is a buffer.
pub fn adopts(pid: u32, proc: &Path, content: &mut Vec<u8>) -> Option<bool> {
    if pid == 1 {
        return Some(true);
    }
    let folder = Folder::open(proc, pid).ok()?;
    folder.read(c"status", content, STATUS_BYTES).ok()?;
    is_reaper(&parse_status(content))
}

/// Whether a process adopts orphans, from its status. `None` if the status does not tell.
fn is_reaper(status: &ProcStatus<'_>) -> Option<bool> {
    if status.innermost_pid == Some(1) {
        return Some(true);
    }
    let name = status.name?;
    Some(NAMES.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firsts_and_subreapers_adopt_and_shells_do_not() {
        let process =
            |name, innermost_pid| ProcStatus { name, innermost_pid, ..ProcStatus::default() };
        for (status, adopts) in [
            (process(Some(&b"systemd"[..]), Some(900)), Some(true)),
            (process(Some(b"containerd-shim"), Some(900)), Some(true)),
            (process(Some(b"python3"), Some(1)), Some(true)),
            (process(None, Some(1)), Some(true)),
            (process(Some(b"bash"), Some(900)), Some(false)),
            (process(Some(b"systemd-logind"), None), Some(false)),
            (process(None, Some(900)), None),
        ] {
            assert_eq!(is_reaper(&status), adopts, "{status:?}");
        }
    }

    #[test]
    fn names_are_as_long_as_the_kernel_keeps_them() {
        assert!(NAMES.iter().all(|name| name.len() <= 15));
    }
}
