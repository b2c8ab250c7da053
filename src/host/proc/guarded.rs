//! Reads the owner, protections and state of a process immediately before an action on it. `reclaim` decides whether
//! the action is allowed.
//!
//! Unlike the live source, which reads mainly GPU processes, this module can read any process, and it keeps nothing.
//! The folder of the process stays open during a read, so that all values belong to the same process.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustix::thread::CapabilitySet;

use crate::host::gpu::gpu_files::read_held;
use crate::host::machine::clocks::read_host;
use crate::host::machine::rights::has_capability;
use crate::host::proc::cmdline::read_cmdline;
use crate::host::proc::environ::{ENVIRON_BYTES, parse_own_environ};
use crate::host::proc::folder::{Folder, ProcEntry, is_gone};
use crate::host::proc::framework::{MAPS_BYTES, mapped_path};
use crate::host::proc::stat::{STAT_BYTES, Stat, parse_stat};
use crate::host::proc::status::{SignalMasks, owner_uid, parse_signal_masks, read_status};
use crate::host::{HostError, Roots};
use crate::model::program::is_preloaded;
use crate::model::snapshot::PidNamespace;

const MAX_ANCESTORS: usize = 128;
const MAX_THREADS: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guarded {
    pub start_ticks: u64,
    pub state: Option<char>,
    pub ppid: Option<u32>,
    pub process_group: Option<u32>,
    pub session: Option<u32>,
    pub is_kernel_thread: bool,
    pub uid: Option<u32>,
    pub is_process: Option<bool>,
    /// Adjustment of the kernel's out-of-memory score. The kernel never kills a process with −1000 to free memory.
    pub oom_score_adj: Option<i32>,
    pub executable: Option<Arc<str>>,
    pub executable_is_roots: Option<bool>,
    pub comm: Option<Arc<str>>,
    pub command: Option<Arc<[Arc<str>]>>,
    pub environment: Option<Arc<BTreeMap<Arc<str>, Arc<str>>>>,
    pub gpu_files: Option<Arc<[Arc<str>]>>,
}

impl Guarded {
    /// Returns whether a stop signal has stopped the process, which then handles no signals until SIGCONT. Returns
    /// `false` for a traced process (`t`), because its tracer can resume it.
    pub fn is_stopped(&self) -> bool {
        self.state == Some('T')
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ourselves {
    pub pid: u32,
    /// Effective user id, which the kernel checks when gpumem sends a signal.
    pub uid: u32,
    pub session: Option<u32>,
    pub ancestors: Vec<u32>,
    pub may_signal_others: bool,
    pub pid_namespace: Option<PidNamespace>,
    pub boot_id: Option<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedProcess {
    pub pid: u32,
    pub start_ticks: u64,
    pub ppid: Option<u32>,
    pub process_group: Option<u32>,
    pub session: Option<u32>,
}

/// Reads a process. Returns `None` if it does not exist, and an error if stat cannot be read. Other values that
/// cannot be read are `None`.
pub fn read_guarded(roots: &Roots, pid: u32) -> Result<Option<Guarded>, HostError> {
    let path = || roots.proc.join(pid.to_string()).join("stat");
    let read = |errno| match errno {
        errno if is_gone(errno) => Ok(None),
        errno => Err(HostError::Read { path: path(), errno }),
    };
    let folder = match Folder::open(&roots.proc, pid) {
        Ok(folder) => folder,
        Err(errno) => return read(errno),
    };
    let mut content = Vec::new();
    if let Err(errno) = folder.read(c"stat", &mut content, STAT_BYTES) {
        return read(errno);
    }
    let Some(stat) = parse_stat(&content) else {
        return Err(HostError::Malformed { path: path() });
    };
    if stat.is_released {
        return Ok(None);
    }
    let mut guarded = Guarded {
        start_ticks: stat.start_ticks,
        state: Some(stat.state),
        ppid: stat.ppid,
        process_group: stat.process_group,
        session: stat.session,
        is_kernel_thread: stat.is_kernel_thread,
        comm: Some(String::from_utf8_lossy(stat.comm).into()),
        ..Guarded::default()
    };
    let has_memory = stat.has_memory();
    if let Ok(status) = read_status(&folder, &mut content) {
        guarded.is_process = status.thread_group.map(|group| group == pid);
        let uid = status.uid;
        guarded.uid = owner_uid(&folder, uid, &mut content);
    }
    if folder.read(c"oom_score_adj", &mut content, 16).is_ok() {
        guarded.oom_score_adj = text(&content).and_then(|text| text.parse().ok());
    }
    guarded.executable =
        folder.link(c"exe", |target| Arc::from(String::from_utf8_lossy(target))).ok();
    guarded.executable_is_roots =
        guarded.executable.as_ref().and_then(|_| folder.leads_to_roots_file(c"exe"));
    if has_memory {
        guarded.command = read_cmdline(&folder, &mut content);
        let read = folder.read(c"environ", &mut content, ENVIRON_BYTES);
        guarded.environment = read.ok().and_then(|()| parse_own_environ(&content, &folder));
    }
    if guarded.environment.as_deref().is_some_and(is_preloaded) {
        guarded.executable_is_roots = guarded.executable_is_roots.map(|_| false);
    }
    guarded.gpu_files = read_held(&folder, &roots.dev).ok().and_then(|files| files.gpu_files);
    Ok(Some(guarded))
}

pub fn read_signal_masks(roots: &Roots, pid: u32) -> Option<SignalMasks> {
    let folder = Folder::open(&roots.proc, pid).ok()?;
    let mut content = Vec::new();
    read_status(&folder, &mut content).ok()?;
    parse_signal_masks(&content)
}

/// Reads gpumem's process. Returns an error if its stat cannot be read, because the ancestors, which must not be
/// signalled, are then unknown.
pub fn read_ourselves(roots: &Roots) -> Result<Ourselves, HostError> {
    let pid = std::process::id();
    let malformed = || HostError::Malformed { path: roots.proc.join(pid.to_string()).join("stat") };
    let guarded = read_guarded(roots, pid)?.ok_or_else(malformed)?;
    let host = read_host(roots);
    Ok(Ourselves {
        pid,
        uid: rustix::process::geteuid().as_raw(),
        session: guarded.session,
        ancestors: read_ancestors(roots, pid).collect(),
        may_signal_others: has_capability(CapabilitySet::KILL) == Some(true),
        pid_namespace: host.pid_namespace,
        boot_id: host.boot_id,
    })
}

pub fn read_state(roots: &Roots, pid: u32) -> Option<char> {
    read_stat(roots, pid, |stat| stat.state)
}

pub(in crate::host) fn is_zombie(roots: &Roots, pid: u32) -> bool {
    let is_zombie = |stat: &Stat<'_>| {
        matches!(stat.state, 'Z' | 'X' | 'x') && stat.threads.is_none_or(|threads| threads <= 1)
    };
    read_stat(roots, pid, is_zombie) == Some(true)
}

/// Returns whether `ancestor` is an ancestor of `pid`. Also returns `false` if the search ends at a parent that
/// cannot be read.
pub fn descends_from(roots: &Roots, pid: u32, ancestor: u32) -> bool {
    read_ancestors(roots, pid).any(|pid| pid == ancestor)
}

/// Returns at most [`MAX_ANCESTORS`] ancestors of a process, nearest first. Stops at an ancestor whose parent cannot
/// be read.
pub(in crate::host) fn read_ancestors(roots: &Roots, pid: u32) -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| read_stat(roots, *pid, |stat| stat.ppid)?;
    std::iter::successors(parent(&pid), parent).take(MAX_ANCESTORS)
}

fn read_stat<T>(roots: &Roots, pid: u32, part: impl Fn(&Stat<'_>) -> T) -> Option<T> {
    let folder = Folder::open(&roots.proc, pid).ok()?;
    Stat::read(&folder, &mut Vec::new()).ok()?.as_ref().map(part)
}

pub fn read_all(roots: &Roots) -> Result<Vec<ListedProcess>, HostError> {
    let mut all = Vec::new();
    read_each(roots, |pid, stat| {
        all.push(ListedProcess {
            pid,
            start_ticks: stat.start_ticks,
            ppid: stat.ppid,
            process_group: stat.process_group,
            session: stat.session,
        });
    })?;
    Ok(all)
}

pub(in crate::host) fn read_each(
    roots: &Roots,
    mut each: impl FnMut(u32, &Stat<'_>),
) -> Result<(), HostError> {
    let failed = |errno| HostError::Read { path: roots.proc.clone(), errno };
    let listing = Folder::list(&roots.proc).and_then(|proc| proc.processes()).map_err(failed)?;
    let mut content = Vec::new();
    for ProcEntry { pid, .. } in listing {
        if let Ok(folder) = Folder::open(&roots.proc, pid)
            && let Ok(Some(stat)) = Stat::read(&folder, &mut content)
        {
            each(pid, &stat);
        }
    }
    Ok(())
}

/// Returns the kernel function that blocks a thread in state D. Returns `None` if no thread is in state D, and `"?"`
/// if the kernel hides the function from unprivileged users.
pub fn read_wait_channel(roots: &Roots, pid: u32) -> Option<String> {
    let tasks = roots.proc.join(pid.to_string()).join("task");
    for task in fs::read_dir(tasks).ok()?.take(MAX_THREADS).flatten() {
        let stat = fs::read(task.path().join("stat")).unwrap_or_default();
        if parse_stat(&stat).is_none_or(|stat| stat.state != 'D') {
            continue;
        }
        return Some(wait_channel(&task.path()).unwrap_or_else(|| "?".to_owned()));
    }
    None
}

fn wait_channel(task: &Path) -> Option<String> {
    let content = fs::read(task.join("wchan")).ok()?;
    let name = text(&content)?;
    let is_symbol = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    (name != "0" && name.len() <= 128 && !name.is_empty() && name.chars().all(is_symbol))
        .then(|| name.to_owned())
}

fn text(content: &[u8]) -> Option<&str> {
    Some(std::str::from_utf8(content).ok()?.trim())
}

/// Reads the pid of the debugger that traces a process, which is 0 if there is none, and the paths of the mapped files.
/// Returns `None` if one of them cannot be read.
pub fn read_checkpoint_facts(roots: &Roots, pid: u32) -> Option<(u32, Vec<String>)> {
    let folder = Folder::open(&roots.proc, pid).ok()?;
    let tracer = read_status(&folder, &mut Vec::new()).ok()?.tracer?;
    let [_, _, maps] = folder.read_memory([0, 0, MAPS_BYTES]);
    // A list that reaches the limit may be incomplete.
    let maps = maps.ok().filter(|maps| maps.len() < MAPS_BYTES)?;
    let paths = maps.split(|&byte| byte == b'\n').filter_map(mapped_path);
    Some((tracer, paths.map(|path| String::from_utf8_lossy(path).into_owned()).collect()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::host::testing::{FakeProc, StatLine};

    #[test]
    fn the_current_process_is_read() {
        let roots = Roots::default();
        let ourselves = read_ourselves(&roots).unwrap();
        let guarded = read_guarded(&roots, ourselves.pid).unwrap().unwrap();
        assert_eq!(guarded.is_process, Some(true));
        assert!(!guarded.is_kernel_thread && guarded.oom_score_adj.is_some());
        assert!(guarded.executable.is_some() && guarded.command.is_some());
        assert!(ourselves.ancestors.contains(&guarded.ppid.unwrap()));
        assert!(!ourselves.ancestors.contains(&ourselves.pid));
        let all = read_all(&roots).unwrap();
        let listed = all.iter().find(|process| process.pid == ourselves.pid).unwrap();
        assert_eq!(listed.start_ticks, guarded.start_ticks);
        assert_eq!(read_wait_channel(&roots, u32::MAX), None);
        assert_eq!(read_guarded(&roots, u32::MAX), Ok(None));
    }

    fn process_seven(state: char, status: &str) -> FakeProc {
        let fake = FakeProc::new();
        fake.stat(7, &StatLine { state, start: 55, ..StatLine::ASLEEP });
        fake.put(7, "status", status);
        fake.put(7, "cmdline", "python\0train.py\0");
        let stat = fs::read(fake.folder(7).join("stat")).unwrap();
        fake.put(7, "task/7/stat", stat);
        fake
    }

    #[test]
    fn missing_values_are_unknown() {
        let proc = process_seven('S', "Tgid:\t9\nUid:\t1000\t0\t0\t0");
        let guarded = read_guarded(&proc, 7).unwrap().unwrap();
        assert_eq!((guarded.start_ticks, guarded.uid), (55, None));
        assert_eq!(guarded.is_process, Some(false), "a thread's number");
        assert_eq!((guarded.oom_score_adj, guarded.executable), (None, None));
        assert_eq!(guarded.command.map(|command| command.len()), Some(2));
        proc.put(7, "oom_score_adj", "-1000\n");
        let guarded = read_guarded(&proc, 7).unwrap().unwrap();
        assert_eq!(guarded.oom_score_adj, Some(-1000));
        proc.put(7, "stat", "7 (x");
        assert!(read_guarded(&proc, 7).is_err());
    }

    #[test]
    fn a_blocked_process_is_shown_with_its_wait_channel() {
        let proc = process_seven('D', "");
        assert_eq!(read_guarded(&proc, 7).unwrap().unwrap().command, None);
        assert_eq!(read_wait_channel(&proc, 7).as_deref(), Some("?"));
        for (content, channel) in
            [("uvm_spin_loop", "uvm_spin_loop"), ("0", "?"), ("\x1b[31m", "?")]
        {
            proc.put(7, "task/7/wchan", content);
            assert_eq!(read_wait_channel(&proc, 7).as_deref(), Some(channel));
        }
        let proc = process_seven('S', "");
        assert_eq!(read_wait_channel(&proc, 7), None);
    }

    /// The caller of a set-uid program must not influence how gpumem treats the program.
    #[test]
    fn set_uid_programs_ignore_the_callers_variables() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let read = |mode, name: &str, value: &str| {
            let program = folder.path().join(format!("sleep-{mode:o}-{name}"));
            fs::copy("/bin/sleep", &program).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
            let mut command = Command::new(program);
            command.arg("600").env_clear().env(name, value).stderr(Stdio::null());
            if is_root {
                command.uid(65534);
            }
            let mut child = command.spawn().unwrap();
            // `spawn` can return before the new environment is visible.
            let read = std::iter::repeat_with(|| read_guarded(&Roots::default(), child.id()))
                .map(|read| read.unwrap().unwrap())
                .find(|read| read.environment.is_some())
                .unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            (read.environment.unwrap().contains_key(name), read.executable_is_roots == Some(true))
        };
        assert_eq!(read(0o755, "GPUMEM_RELEASE_SIGNAL", "USR2"), (true, is_root));
        assert_eq!(read(0o755, "LD_PRELOAD", "/nonexistent.so"), (true, false));
        assert_eq!(read(0o755, "LD_AUDIT", "/nonexistent.so"), (true, false));
        assert_eq!(read(0o755, "LD_PRELOAD", ""), (true, is_root));
        if is_root {
            assert_eq!(read(0o4755, "GPUMEM_RELEASE_SIGNAL", "USR2"), (false, true));
            assert_eq!(read(0o4755, "LD_PRELOAD", "/nonexistent.so"), (false, true));
        }
    }

    #[test]
    fn the_current_process_is_not_traced_and_has_mapped_its_program() {
        let (tracer, mapped) =
            read_checkpoint_facts(&Roots::default(), std::process::id()).unwrap();
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        assert!(mapped.contains(&program.display().to_string()), "{mapped:?}");
        assert_eq!(tracer, 0);
        assert_eq!(read_checkpoint_facts(&Roots::default(), u32::MAX), None);
    }
}
