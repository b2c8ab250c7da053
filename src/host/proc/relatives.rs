//! Finds listening processes that work with a watched one, which may be serving through them.
//!
//! The program that takes requests is often not the one that holds the GPU memory: a front end that starts
//! workers, a service that starts an engine, a container's first process. So twice a minute the sockets are
//! read of a process's ancestors within its session, its descendants, and the other processes of its service or
//! container. What they listen for is not judged here.

use std::path::Path;
use std::sync::Arc;

use foldhash::HashMap;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io;

use crate::host::gpu::gpu_files::read_held_within;
use crate::host::proc::cmdline::{CMDLINE_BYTES, parse_cmdline};
use crate::host::proc::entry::Surroundings;
use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::host::proc::tree::Tree;
use crate::model::Process;
use crate::model::process::{Relation, Relative};

/// For how long a result is valid.
const VALID_NS: u64 = 30_000_000_000;

/// The most processes of each relation that are read.
const MOST: usize = 64;

/// The most that are reported.
const MOST_LISTED: usize = 16;

/// The most that is read of a cgroup's process list: some thousand pids.
const CGROUP_BYTES: usize = 8 << 10;

/// Where cgroups are mounted, below the root: the unified hierarchy, or memory's.
const CGROUPS: [&str; 3] = ["sys/fs/cgroup", "sys/fs/cgroup/unified", "sys/fs/cgroup/memory"];

#[derive(Debug, Default)]
pub(in crate::host) struct Relatives {
    /// This sample's reads, shared by all relatives: `None` if there is no such process.
    seen: HashMap<u32, Option<SocketScan>>,
    known: HashMap<u32, KnownRelatives>,
}

/// What one process's sockets show.
#[derive(Clone, Debug)]
struct SocketScan {
    session: Option<u32>,
    listens: Option<RelativeSockets>,
}

#[derive(Clone, Debug)]
struct RelativeSockets {
    start_ticks: u64,
    command: Option<Arc<[Arc<str>]>>,
    on: Arc<[Arc<str>]>,
}

/// The last result for one watched process.
#[derive(Debug)]
struct KnownRelatives {
    start_ticks: Option<u64>,
    looked_ns: u64,
    relatives: Arc<[Relative]>,
}

impl Surroundings {
    /// Fills in the listening relatives of each process.
    pub(in crate::host) fn fill_relatives(
        &mut self,
        processes: &mut [Process],
        tree: &Tree,
        now_ns: u64,
    ) {
        self.relatives.seen.clear();
        let mut before = std::mem::take(&mut self.relatives.known);
        for process in processes.iter_mut().filter(|it| it.start_ticks.is_some()) {
            let known = before.remove(&process.pid).filter(|it| {
                it.start_ticks == process.start_ticks
                    && now_ns.saturating_sub(it.looked_ns) < VALID_NS
            });
            let known = known.unwrap_or_else(|| KnownRelatives {
                start_ticks: process.start_ticks,
                looked_ns: now_ns,
                relatives: self.find_relatives(process, tree).into(),
            });
            process.listening_relatives = Some(Arc::clone(&known.relatives));
            self.relatives.known.insert(process.pid, known);
        }
    }

    fn find_relatives(&mut self, process: &Process, tree: &Tree) -> Vec<Relative> {
        let mut found: Vec<Relative> = Vec::new();
        let mut add = |pid, relation, listens: Option<RelativeSockets>| {
            let is_new = pid != process.pid && !found.iter().any(|it| it.pid == pid);
            if let Some(listens) = listens.filter(|_| is_new && found.len() < MOST_LISTED) {
                found.push(Relative {
                    pid,
                    start_ticks: Some(listens.start_ticks),
                    relation,
                    command: listens.command,
                    listening_on: listens.on,
                });
            }
        };
        for pid in tree.ancestors(process.pid) {
            // A login, a terminal's program and a scheduler start each process in its own session. A session
            // that began outside this pid namespace has no number here (0 in proc_pid_stat(5)); an ancestor
            // without one is in the same session, because one that began below it would have a number.
            match self.scan_sockets(pid) {
                Some(seen) if seen.session == process.session => {
                    add(pid, Relation::Ancestor, seen.listens);
                }
                _ => break,
            }
        }
        for pid in tree.descendants(process.pid).into_iter().take(MOST) {
            let listens = self.scan_sockets(pid).and_then(|it| it.listens);
            add(pid, Relation::Descendant, listens);
        }
        if has_cgroup_of_its_own(process) {
            for pid in read_cgroup(&self.roots.root, process).into_iter().take(MOST) {
                let listens = self.scan_sockets(pid).and_then(|it| it.listens);
                add(pid, Relation::Cgroup, listens);
            }
        }
        found
    }

    /// Reads a process's sockets, once a sample; `None` if it does not exist.
    fn scan_sockets(&mut self, pid: u32) -> Option<SocketScan> {
        if let Some(seen) = self.relatives.seen.get(&pid) {
            return seen.clone();
        }
        let seen = self.read_sockets(pid);
        self.relatives.seen.insert(pid, seen.clone());
        seen
    }

    fn read_sockets(&mut self, pid: u32) -> Option<SocketScan> {
        let folder = Folder::open(&self.roots.proc, pid).ok()?;
        folder.read(c"stat", &mut self.content, STAT_BYTES).ok()?;
        let stat = parse_stat(&self.content)?;
        let (start_ticks, session) = (stat.start_ticks, stat.session);
        let has_memory = stat.has_memory();
        let listens = self.read_listens(&folder, start_ticks, has_memory).ok().flatten();
        Some(SocketScan { session, listens })
    }

    fn read_listens(
        &mut self,
        folder: &Folder,
        start_ticks: u64,
        has_memory: bool,
    ) -> io::Result<Option<RelativeSockets>> {
        let held = read_held_within(&mut self.descriptors, folder, &self.roots.dev)?;
        let Some(on) = self.listening.read(folder, held.sockets.as_ref())?.on else {
            return Ok(None);
        };
        let mut command = None;
        if has_memory {
            // One byte more than is kept shows whether there is more.
            let read = folder.read(c"cmdline", &mut self.content, CMDLINE_BYTES + 1);
            command = read.ok().and_then(|()| parse_cmdline(&self.content));
        }
        Ok(Some(RelativeSockets { start_ticks, command, on }))
    }
}

/// Whether all processes in a process's cgroup belong to one service or container.
fn has_cgroup_of_its_own(process: &Process) -> bool {
    let is_service = process
        .systemd_unit
        .as_deref()
        .is_some_and(|unit| unit.ends_with(".service") && !unit.starts_with("user@"));
    (is_service || process.container.is_some()) && process.slurm.is_none()
}

/// The pids in a process's cgroup; empty if they cannot be read.
fn read_cgroup(root: &Path, process: &Process) -> Vec<u32> {
    // A path that begins with `/..` is outside this cgroup namespace, and not visible.
    let cgroup = process.cgroup.as_deref().filter(|path| {
        path.len() > 1 && path.starts_with('/') && !path.split('/').any(|part| part == "..")
    });
    let Some(cgroup) = cgroup else {
        return Vec::new();
    };
    for mounted in CGROUPS {
        let folder = root.join(mounted).join(&cgroup[1..]);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(opened) = openat(CWD, &folder, flags, Mode::empty()) else {
            continue;
        };
        let mut content = Vec::new();
        let read = Folder::from(opened).read_list(c"cgroup.procs", &mut content, CGROUP_BYTES);
        if read.is_ok() {
            let lines = content.split(|&byte| byte == b'\n');
            let pids = lines.filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok());
            return pids.collect();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests;
