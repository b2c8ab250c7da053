//! Finds the process that started another process. It is the parent unless the parent has only adopted the process.
//! Recognises processes that adopt orphans.

use std::path::Path;
use std::sync::Arc;

use crate::host::proc::cmdline::{CMDLINE_BYTES, parse_cmdline};
use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::host::proc::status::{STATUS_BYTES, parse_status};
use crate::model::Process;
use crate::model::process::Parent;
use crate::model::server_name::is_worker_command;

#[derive(Clone, Debug)]
pub(in crate::host) struct ReadParent {
    pub adopts: Option<bool>,
    is_init: bool,
    parent: Option<Arc<Parent>>,
}

impl ReadParent {
    pub(in crate::host) fn read(pid: u32, proc: &Path, content: &mut Vec<u8>) -> Self {
        let (adopts, is_init) = read_adoption(pid, proc, content);
        Self { adopts, is_init, parent: read_parent(proc, pid, content).map(Arc::new) }
    }

    /// Records the parent as the starter unless the parent adopts orphans. A recorded starter is kept if the parent
    /// changes later. The first process of a container adopts orphans, but is recorded as the starter of a server's
    /// worker, because it may have started the worker.
    pub(in crate::host) fn note(&self, process: &mut Process) {
        let is_starter = process.parent_is_reaper == Some(false)
            || !self.is_init && process.is_worker_of_a_server();
        // A parent that started later has reused the pid of the real parent.
        let parent =
            self.parent.as_ref().filter(|parent| parent.start_ticks <= process.start_ticks);
        if let Some(parent) = parent.filter(|_| is_starter)
            && process.parent.as_deref() != Some(&**parent)
        {
            process.parent = Some(Arc::clone(parent));
        }
    }
}

/// Reads a parent for display. Returns `None` if it does not exist or is not visible. `content` is a reusable buffer.
/// The command line is omitted if reading it may block (see `entry`).
fn read_parent(proc: &Path, pid: u32, content: &mut Vec<u8>) -> Option<Parent> {
    let folder = Folder::open(proc, pid).ok()?;
    folder.read(c"stat", content, STAT_BYTES).ok()?;
    let stat = parse_stat(content)?;
    let (has_memory, stat_ppid) = (stat.has_memory(), stat.ppid);
    let mut parent = Parent {
        pid,
        start_ticks: Some(stat.start_ticks),
        comm: Some(String::from_utf8_lossy(stat.comm).into()),
        command: None,
        ppid: None,
        parent_is_reaper: None,
    };
    if has_memory {
        // One additional byte shows whether the command line exceeds the limit.
        let read = folder.read(c"cmdline", content, CMDLINE_BYTES + 1);
        parent.command = read.ok().and_then(|()| parse_cmdline(content));
    }
    // The parent is an engine that a server started. If the server exits, the engine becomes an orphan, and its
    // workers thus have no server either.
    if let Some(command) = &parent.command
        && is_worker_command(command)
    {
        parent.ppid = stat_ppid;
        parent.parent_is_reaper = stat_ppid.map(|pid| read_adoption(pid, proc, content).1);
    }
    Some(parent)
}

// When a process exits, its children become children of the nearest ancestor that adopts orphans
// (`PR_SET_CHILD_SUBREAPER`, prctl(2)), or else of the first process of their pid namespace. In `/proc/PID/status`,
// the last number after `NSpid` is 1 for the first process (pid_namespaces(7)). The kernel does not show which
// processes adopt orphans, so these are recognised by name.

/// Names (`comm`) of programs that adopt orphans or usually run as the first process of a namespace.
const NAMES: [&[u8]; 13] = [
    // systemd, its user instances (systemd: `src/core/main.c`), and other init systems.
    b"systemd",
    b"init",
    b"upstart",
    // Programs of which one process runs per container or pod (containerd: README of the shim; conmon: `src/conmon.c`).
    b"containerd-shim",
    b"conmon",
    b"conmonrs",
    // First processes of containers. `tini -s` adopts orphans even if it is not the first process.
    b"tini",
    b"docker-init",
    b"dumb-init",
    b"catatonit",
    b"podman-init",
    // Further init systems.
    b"s6-svscan",
    b"runit",
];

/// Returns whether a process adopts orphans, or `None` if it is unknown, as for a parent outside this pid namespace.
/// `content` is a reusable buffer.
pub fn adopts(pid: u32, proc: &Path, content: &mut Vec<u8>) -> Option<bool> {
    read_adoption(pid, proc, content).0
}

/// Also returns whether the process has the name of a program that adopts orphans and does not start workers.
fn read_adoption(pid: u32, proc: &Path, content: &mut Vec<u8>) -> (Option<bool>, bool) {
    let folder = Folder::open(proc, pid);
    let read = folder.and_then(|folder| folder.read(c"status", content, STATUS_BYTES));
    let status = read.map(|()| parse_status(content)).unwrap_or_default();
    let is_named = status.name.map(|name| NAMES.contains(&name));
    let is_first = pid == 1 || status.innermost_pid == Some(1);
    (if is_first { Some(true) } else { is_named }, is_named == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::FakeProc;

    #[test]
    fn first_processes_and_subreapers_adopt_orphans() {
        let fake = FakeProc::new();
        for (status, adoption) in [
            ("Name:\tsystemd\nNSpid:\t900\n", (Some(true), true)),
            ("Name:\tcontainerd-shim\nNSpid:\t900\n", (Some(true), true)),
            ("Name:\tpython3\nNSpid:\t900\t1\n", (Some(true), false)),
            ("NSpid:\t900\t1\n", (Some(true), false)),
            ("Name:\tbash\nNSpid:\t900\n", (Some(false), false)),
            ("Name:\tsystemd-logind\n", (Some(false), false)),
            ("NSpid:\t900\n", (None, false)),
        ] {
            fake.put(900, "status", status);
            assert_eq!(read_adoption(900, &fake.proc, &mut Vec::new()), adoption, "{status:?}");
        }
        assert_eq!(adopts(1, &fake.proc, &mut Vec::new()), Some(true));
        assert_eq!(adopts(901, &fake.proc, &mut Vec::new()), None);
    }

    #[test]
    fn reaper_names_fit_the_kernels_limit() {
        assert!(NAMES.iter().all(|name| name.len() <= 15));
    }
}
