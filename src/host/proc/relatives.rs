//! Which of the processes that work with a process listen: it may be serving for them.
//!
//! The program that takes the requests is often another one than the one that holds the GPU's memory: a
//! front end that starts workers, a service that starts an engine, a container's first process. So the
//! sockets of a process's ancestors within its session are looked at, of its descendants, and of the others of its
//! service or container. Each is looked at twice a minute at most, whoever's relative it is. What they
//! listen for is not judged here.

use std::path::Path;
use std::sync::Arc;

use foldhash::HashMap;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io;

use crate::host::gpu::gpu_files::read_held;
use crate::host::proc::cmdline::{CMDLINE_BYTES, parse_cmdline};
use crate::host::proc::entry::Surroundings;
use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::host::proc::tree::Tree;
use crate::model::Process;
use crate::model::process::{Relation, Relative};

/// How long a look stands.
const VALID_NS: u64 = 30_000_000_000;

/// So many of each relation are looked at.
const MOST: usize = 64;

/// So many are told.
const MOST_LISTED: usize = 16;

/// How much of the list of a cgroup is read: some thousand pids.
const CGROUP_BYTES: usize = 8 << 10;

/// Where cgroups are mounted, below the root: the unified hierarchy, or that of memory.
const CGROUPS: [&str; 3] = ["sys/fs/cgroup", "sys/fs/cgroup/unified", "sys/fs/cgroup/memory"];

/// Who was looked at.
#[derive(Debug, Default)]
pub(in crate::host) struct Relatives {
    seen: HashMap<u32, SocketScan>,
    /// When those were last forgotten whose look does not stand any more.
    forgot_ns: Option<u64>,
    known: HashMap<u32, KnownRelatives>,
}

impl Relatives {
    /// Forgets looks that do not stand any more, once a sample.
    fn forget_outdated(&mut self, now_ns: u64) {
        if self.forgot_ns.replace(now_ns) != Some(now_ns) {
            self.seen.retain(|_, seen| is_fresh(seen.looked_ns, now_ns));
        }
    }
}

/// What a look at one process's sockets came to.
#[derive(Debug)]
struct SocketScan {
    start_ticks: u64,
    looked_ns: u64,
    /// When its start was last read, so that the number is known to be its own: once a sample, whoever asks.
    checked_ns: u64,
    session: Option<u32>,
    listens: Option<RelativeSockets>,
}

#[derive(Clone, Debug)]
struct RelativeSockets {
    start_ticks: u64,
    command: Option<Arc<[Arc<str>]>>,
    on: Arc<[Arc<str>]>,
}

/// What was told of one watched process.
#[derive(Debug)]
struct KnownRelatives {
    start_ticks: Option<u64>,
    looked_ns: u64,
    /// When the process was last asked about.
    asked_ns: u64,
    relatives: Arc<[Relative]>,
}

fn is_fresh(looked_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(looked_ns) < VALID_NS
}

impl Surroundings {
    /// Tells each process who of its relatives listens.
    pub(in crate::host) fn fill_relatives(
        &mut self,
        processes: &mut [Process],
        tree: &Tree,
        now_ns: u64,
    ) {
        let mut asked = 0;
        for process in processes.iter_mut().filter(|it| it.start_ticks.is_some()) {
            asked += 1;
            let known = self.relatives.known.get_mut(&process.pid);
            if let Some(known) = known.filter(|it| {
                it.start_ticks == process.start_ticks && is_fresh(it.looked_ns, now_ns)
            }) {
                known.asked_ns = now_ns;
                process.listening_relatives = Some(Arc::clone(&known.relatives));
                continue;
            }
            self.relatives.forget_outdated(now_ns);
            let relatives: Arc<[Relative]> = self.find_relatives(process, tree, now_ns).into();
            process.listening_relatives = Some(Arc::clone(&relatives));
            let known = KnownRelatives {
                start_ticks: process.start_ticks,
                looked_ns: now_ns,
                asked_ns: now_ns,
                relatives,
            };
            self.relatives.known.insert(process.pid, known);
        }
        let known = &mut self.relatives.known;
        if known.len() != asked {
            known.retain(|_, known| known.asked_ns == now_ns);
        }
    }

    fn find_relatives(&mut self, process: &Process, tree: &Tree, now_ns: u64) -> Vec<Relative> {
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
            // A login, a terminal's program and a scheduler start each process in a session of its own.
            // A session from outside this PID namespace has no number here (0 in proc_pid_stat(5)); an
            // ancestor without one is in the same, for a session that began below it would have one.
            match self.scan_sockets(pid, now_ns) {
                Some(seen) if seen.session == process.session => {
                    add(pid, Relation::Ancestor, seen.listens.clone());
                }
                _ => break,
            }
        }
        for pid in tree.descendants(process.pid).into_iter().take(MOST) {
            let listens = self.scan_sockets(pid, now_ns).and_then(|it| it.listens.clone());
            add(pid, Relation::Descendant, listens);
        }
        if has_cgroup_of_its_own(process) {
            for pid in read_cgroup(&self.roots.root, process).into_iter().take(MOST) {
                let listens = self.scan_sockets(pid, now_ns).and_then(|it| it.listens.clone());
                add(pid, Relation::Cgroup, listens);
            }
        }
        found
    }

    /// Looks at a process's sockets, unless that was done lately; `None` where there is none.
    fn scan_sockets(&mut self, pid: u32, now_ns: u64) -> Option<&SocketScan> {
        let checked = self.relatives.seen.get(&pid).map(|seen| seen.checked_ns);
        if checked == Some(now_ns) {
            return self.relatives.seen.get(&pid);
        }
        let folder = Folder::open(&self.roots.proc, pid).ok()?;
        folder.read(c"stat", &mut self.content, STAT_BYTES).ok()?;
        let stat = parse_stat(&self.content)?;
        let (start_ticks, session) = (stat.start_ticks, stat.session);
        let has_memory = stat.state != 'D' && !stat.is_exiting && !stat.is_kernel_thread;
        let known = self.relatives.seen.get_mut(&pid);
        if let Some(seen) = known.filter(|seen| seen.start_ticks == start_ticks) {
            seen.checked_ns = now_ns;
        } else {
            let listens = self.read_listens(&folder, start_ticks, has_memory);
            let listens = listens.ok().flatten();
            self.relatives.seen.insert(
                pid,
                SocketScan { start_ticks, looked_ns: now_ns, checked_ns: now_ns, session, listens },
            );
        }
        self.relatives.seen.get(&pid)
    }

    fn read_listens(
        &mut self,
        folder: &Folder,
        start_ticks: u64,
        has_memory: bool,
    ) -> io::Result<Option<RelativeSockets>> {
        let held = read_held(folder, &self.roots.dev)?;
        let Some(on) = self.listening.read(folder, held.sockets.as_ref())?.on else {
            return Ok(None);
        };
        let mut command = None;
        if has_memory {
            // One byte more than is kept tells whether there is more.
            let read = folder.read(c"cmdline", &mut self.content, CMDLINE_BYTES + 1);
            command = read.ok().and_then(|()| parse_cmdline(&self.content));
        }
        Ok(Some(RelativeSockets { start_ticks, command, on }))
    }
}

/// Whether all in a process's cgroup are one service's or one container's.
fn has_cgroup_of_its_own(process: &Process) -> bool {
    let is_service = process
        .systemd_unit
        .as_deref()
        .is_some_and(|unit| unit.ends_with(".service") && !unit.starts_with("user@"));
    (is_service || process.container.is_some()) && process.slurm.is_none()
}

/// Who is in the cgroup of a process; empty where that cannot be read.
fn read_cgroup(root: &Path, process: &Process) -> Vec<u32> {
    // The path of a cgroup outside this namespace begins with `/..`; what is above is not shown.
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
