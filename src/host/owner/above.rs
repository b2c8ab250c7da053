//! Reads what the ancestors of a process prove: the step daemon of its Slurm job, the monitor of its container, its
//! supervisor, and the process that started it. The parent started the process unless it has only adopted the process.
//!
//! Step daemons and monitors run as root on this machine, and the kernel maintains the links from child to parent. By
//! contrast, an environment can be inherited or copied, and a cgroup may be shared or uninformative. A user can give a
//! program the name of a daemon, or start a set-uid program such as `su` under that name. The root user of a container
//! owns the processes in the container. The functions in this module exclude such ancestors. `place` combines the
//! results with those from the cgroup.

use std::path::Path;
use std::sync::Arc;

use rustix::io;

use crate::host::machine::clocks::parse_pid_namespace;
use crate::host::owner::names::name;
use crate::host::proc::cmdline::{CMDLINE_BYTES, read_cmdline};
use crate::host::proc::environ::{ENVIRON_BYTES, parse_environ};
use crate::host::proc::folder::{Folder, ProcEntry, is_gone};
use crate::host::proc::stat::Stat;
use crate::host::proc::status::read_status;
use crate::model::Process;
use crate::model::owners::{self, OwnerEntry, may_be_owner};
use crate::model::process::Parent;
use crate::model::program::file_name;
use crate::model::server_name::is_worker_command;
use crate::model::snapshot::{Container, PidNamespace};

const ANCESTORS: usize = 64;
const JOBS_NS: u64 = 5_000_000_000;
/// Name of the program that runs a step of a Slurm job (slurm: `src/slurmd/slurmstepd`).
pub(in crate::host) const STEP_DAEMON: &str = "slurmstepd";

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::host) struct AncestorFacts {
    pub step: Option<SlurmStep>,
    /// Pid and start ticks of the first process in the pid namespace, or `None` if it is unknown or if the process is
    /// in gpumem's namespace.
    pub first: Option<(u32, u64)>,
    pub container: Option<Container>,
    /// User who started the first process of the pid namespace, or `None` if that user is root or unknown.
    pub user: Option<u32>,
    pub supervisor: Option<Supervisor>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::host) struct Supervisor {
    pub parent: Arc<Parent>,
    pub uid: Option<u32>,
    /// Whether the supervisor certainly is a root-owned program on this machine.
    pub is_roots: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::host) struct SlurmStep {
    pub job: Arc<str>,
    pub step: Arc<str>,
    /// Id of the job array and the job's index in the array, from the environment of the process that the daemon
    /// started.
    pub array: Option<(Arc<str>, Arc<str>)>,
}

struct Ancestor {
    ppid: Option<u32>,
    start_ticks: u64,
    comm: Option<Arc<str>>,
    has_memory: bool,
    folder: Folder,
}

fn open(proc: &Path, pid: u32, content: &mut Vec<u8>) -> io::Result<Option<Ancestor>> {
    let folder = Folder::open(proc, pid)?;
    let Some(stat) = Stat::read(&folder, content)? else {
        return Ok(None);
    };
    let is_over = matches!(stat.state, 'Z' | 'X');
    Ok(Some(Ancestor {
        ppid: stat.ppid,
        start_ticks: stat.start_ticks,
        comm: (!is_over).then(|| String::from_utf8_lossy(stat.comm).into()),
        has_memory: stat.has_memory(),
        folder,
    }))
}

impl Ancestor {
    fn named(&self, pid: u32, content: &mut Vec<u8>) -> Option<Parent> {
        let comm = self.comm.clone()?;
        let reads = self.has_memory && may_be_owner(&comm);
        let command = reads.then(|| read_cmdline(&self.folder, content)).flatten();
        let start_ticks = Some(self.start_ticks);
        Some(Parent { pid, start_ticks, comm: Some(comm), command, ..Parent::default() })
    }

    /// Returns the ancestor if it has the name of a supervisor. The uid is checked in addition to the owner of the
    /// folder in /proc, because root owns the folder of a process that is not dumpable. The program file is checked
    /// because a set-uid program can be started through a link with a supervisor's name.
    fn supervisor(
        &self,
        parent: Parent,
        is_within: bool,
        content: &mut Vec<u8>,
    ) -> Option<Supervisor> {
        let owner = OwnerEntry::of_ancestor(&parent)?;
        let uid = read_status(&self.folder, content).ok().and_then(|status| status.uid);
        let is_its = self.program().is_some_and(|file| owner.may_run_from(&file));
        let is_roots = !is_within && uid == Some(0) && self.folder.owner() == Ok(0) && is_its;
        Some(Supervisor { parent: Arc::new(parent), uid, is_roots })
    }

    fn program(&self) -> Option<String> {
        let name = |path: &[u8]| file_name(&String::from_utf8_lossy(path)).to_owned();
        self.folder.link(c"exe", name).ok()
    }

    /// Returns whether the process certainly is a step daemon. Any user can start a set-uid program through a link with
    /// the daemon's name, and root then owns its folder in /proc. The target of `/proc/PID/exe`, which only root can
    /// read for such a program, must therefore match as well. In Debian, the program is called `slurmstepd-wlm`.
    fn is_step_daemon(&self) -> bool {
        self.may_be_step_daemon() && self.program().is_some()
    }

    /// Returns whether the process is a step daemon, or could be one because its program file cannot be read.
    fn may_be_step_daemon(&self) -> bool {
        self.comm.as_deref() == Some(STEP_DAEMON)
            && self.folder.owner() == Ok(0)
            && self.program().is_none_or(|program| program.starts_with(STEP_DAEMON))
    }
}

pub(in crate::host) fn look_above(
    process: &Process,
    proc: &Path,
    content: &mut Vec<u8>,
) -> AncestorFacts {
    let mut above = AncestorFacts::default();
    let mut is_within = process.namespace_pid.is_some();
    let mut is_way_in = false;
    let mut below = (process.pid, process.start_ticks.unwrap_or_default());
    let mut parent = process.ppid;
    for _ in 0..ANCESTORS {
        let Some(pid) = parent else {
            break;
        };
        let Ok(Some(ancestor)) = open(proc, pid, content) else {
            break;
        };
        if is_within {
            // If containers are nested, report the outermost container. Its monitor is on this machine and can be read.
            match read_status(&ancestor.folder, content).unwrap_or_default().pids().len() {
                1 => {
                    above.first = Some(below);
                    watcher(&ancestor, &mut above, content);
                    is_within = false;
                }
                // The kernel does not report the namespaces.
                0 => break,
                _ => {}
            }
        }
        if !is_way_in && let Some(parent) = ancestor.named(pid, content) {
            is_way_in = owners::is_way_in(&parent);
            let is_settled =
                above.supervisor.as_ref().is_some_and(|supervisor| supervisor.is_roots);
            let found = ancestor
                .supervisor(parent, is_within, content)
                .filter(|found| above.supervisor.is_none() || (found.is_roots && !is_settled));
            above.supervisor = found.or(above.supervisor);
        }
        // The root user of a container can give any name to a program.
        if !is_within && ancestor.is_step_daemon() {
            above.step = step(&ancestor, content)
                .map(|step| SlurmStep { array: array(proc, below.0, &step.job, content), ..step });
            break;
        }
        below = (pid, ancestor.start_ticks);
        parent = ancestor.ppid;
    }
    above
}

fn step(daemon: &Ancestor, content: &mut Vec<u8>) -> Option<SlurmStep> {
    if !daemon.has_memory {
        return None;
    }
    daemon.folder.read(c"cmdline", content, CMDLINE_BYTES).ok()?;
    parse_title(content)
}

fn parse_title(title: &[u8]) -> Option<SlurmStep> {
    let title = std::str::from_utf8(title).ok()?;
    let (_, rest) = title.split_once('[')?;
    let (inner, _) = rest.split_once(']')?;
    let (job, step) = inner.rsplit_once('.')?;
    let is_word = |text: &str| {
        (1..=40).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
    };
    (is_word(job) && is_word(step)).then(|| SlurmStep {
        job: job.into(),
        step: step.into(),
        array: None,
    })
}

fn array(proc: &Path, task: u32, job: &str, content: &mut Vec<u8>) -> Option<(Arc<str>, Arc<str>)> {
    let task = open(proc, task, content).ok()??;
    if !task.has_memory {
        return None;
    }
    task.folder.read(c"environ", content, ENVIRON_BYTES).ok()?;
    array_in(&parse_environ(content), job)
}

/// Returns the job array named in an environment, if the environment belongs to the job.
pub(in crate::host) fn array_in(
    environment: &std::collections::BTreeMap<Arc<str>, Arc<str>>,
    job: &str,
) -> Option<(Arc<str>, Arc<str>)> {
    let number = |name: &str| {
        let value = environment.get(name)?;
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| Arc::clone(value))
    };
    let is_its = number("SLURM_JOB_ID").is_some_and(|claimed| *claimed == *job);
    let array = (number("SLURM_ARRAY_JOB_ID")?, number("SLURM_ARRAY_TASK_ID")?);
    is_its.then_some(array)
}

/// Records the container that the parent of a pid namespace's first process monitors, if the parent belongs to root,
/// or else the user of the parent. Root also owns the folder of a set-uid program in /proc, so the real user is
/// checked, too.
fn watcher(parent: &Ancestor, above: &mut AncestorFacts, content: &mut Vec<u8>) {
    let uid = read_status(&parent.folder, content).ok().and_then(|status| status.uid);
    let uids = [uid, parent.folder.owner().ok()];
    above.user = uids.into_iter().flatten().find(|&uid| uid != 0);
    if above.user.is_some() || !parent.has_memory {
        return;
    }
    let Some(command) = read_cmdline(&parent.folder, content) else {
        return;
    };
    let file = parent.folder.link(c"exe", |path| String::from_utf8_lossy(path).into_owned());
    // A set-uid program can have the name of a monitor, so the program file must be known.
    let Ok(file) = file else {
        return;
    };
    // Some runtimes run from a copy of their program in memory. In that case, the arguments name the program.
    let program = (!file.starts_with("/memfd:")).then(|| file_name(&file));
    above.container = watched(program, &command);
}

/// Returns the container that `program` monitors according to its arguments, or `None` if the program is not a
/// monitor. Monitors are `conmon` (Podman, CRI-O), `containerd-shim-runc-v2` (containerd), `systemd-nspawn`, and
/// `runc run` or `crun run` in the foreground.
fn watched(program: Option<&str>, command: &[Arc<str>]) -> Option<Container> {
    let (own_name, arguments) = command.split_first()?;
    let program = program.unwrap_or_else(|| file_name(own_name));
    let after = |names: &[&str]| {
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if names.contains(&&**word) {
                return name(words.next()?);
            }
            let joined = names.iter().find_map(|name| word.strip_prefix(name)?.strip_prefix('='));
            if let Some(joined) = joined {
                return name(joined);
            }
        }
        None
    };
    let container =
        |runtime: &str| Container { runtime: Some(runtime.into()), ..Container::default() };
    if program == "conmon" {
        let is_crio = arguments.iter().any(|word| word.contains("/crio"));
        return Some(Container {
            id: Some(after(&["-c", "--cid"])?),
            name: after(&["-n", "--name"]).filter(|_| !is_crio),
            ..container(if is_crio { "cri-o" } else { "podman" })
        });
    }
    if program.starts_with("containerd-shim") {
        let namespace = after(&["-namespace", "--namespace"])?;
        let runtime = if *namespace == *"moby" { "docker" } else { "containerd" };
        return Some(Container {
            // In Kubernetes, the id is that of the pod, whose containers have different ids.
            id: after(&["-id", "--id"]).filter(|_| *namespace != *"k8s.io"),
            namespace: Some(namespace),
            ..container(runtime)
        });
    }
    if program == "systemd-nspawn" {
        let folder = || {
            let path = after(&["-D", "--directory"])?;
            name(file_name(path.trim_end_matches('/')))
        };
        return Some(Container {
            id: Some(after(&["-M", "--machine"]).or_else(folder)?),
            ..container("nspawn")
        });
    }
    if matches!(program, "runc" | "crun") && arguments.iter().any(|word| **word == *"run") {
        return Some(Container { id: Some(Arc::clone(arguments.last()?)), ..container(program) });
    }
    None
}

#[derive(Debug, Default)]
pub(in crate::host) struct Jobs {
    read_ns: Option<u64>,
    /// `None` if the list is incomplete because some processes are hidden.
    jobs: Option<Vec<Arc<str>>>,
}

impl Jobs {
    /// Returns whether the job has no step left on this machine. Returns `None` if other users' processes or the
    /// processes of a container's host are hidden, or if the job of a step daemon is unknown.
    pub(in crate::host) fn is_over(&mut self, job: &str, proc: &Path, now_ns: u64) -> Option<bool> {
        let has = |jobs: &Option<Vec<Arc<str>>>| {
            let jobs = jobs.as_ref()?;
            Some(jobs.iter().any(|running| **running == *job))
        };
        let age_ns = self.read_ns.map(|read_ns| now_ns.saturating_sub(read_ns));
        // A job that is missing from an older list may have started since. Only a list from this sample therefore
        // proves that the job is over.
        let is_fresh = match age_ns {
            Some(0) => true,
            Some(age_ns) => age_ns < JOBS_NS && has(&self.jobs) == Some(true),
            None => false,
        };
        if !is_fresh {
            self.read_ns = Some(now_ns);
            self.jobs = read_jobs(proc);
        }
        has(&self.jobs).map(|has| !has)
    }
}

fn read_jobs(proc: &Path) -> Option<Vec<Arc<str>>> {
    let link = std::fs::read_link(proc.join("self/ns/pid")).ok()?;
    if parse_pid_namespace(link.to_str()?) != Some(PidNamespace::Host) {
        return None;
    }
    let mut content = Vec::new();
    let mut jobs = Vec::new();
    let mut sees_all = false;
    for ProcEntry { pid, .. } in Folder::list(proc).ok()?.processes().ok()? {
        sees_all |= pid == 1;
        let process = match open(proc, pid, &mut content) {
            Ok(Some(process)) => process,
            Ok(None) => continue,
            Err(errno) if is_gone(errno) => continue,
            Err(_) => return None,
        };
        // A daemon that could not be verified may also belong to the job.
        if process.may_be_step_daemon() {
            match step(&process, &mut content) {
                Some(step) => jobs.push(step.job),
                // `slurmstepd infinity` keeps the parent cgroup of all steps and belongs to no job.
                None if has_word(&content, b"infinity") => {}
                // A daemon without a job in its title may belong to any job.
                None => return None,
            }
        }
    }
    sees_all.then_some(jobs)
}

fn has_word(command: &[u8], word: &[u8]) -> bool {
    command.split(|&byte| byte == 0).any(|part| part == word)
}

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

    /// Records the parent as the starter if the parent is known not to adopt orphans. A recorded starter is kept if the
    /// parent changes later. The first process of a container adopts orphans, but is recorded as the starter of a
    /// server's worker, because it may have started the worker.
    pub(in crate::host) fn note(&self, process: &mut Process) {
        let is_starter = process.parent_is_reaper == Some(false)
            || !self.is_init && process.is_worker_of_a_server();
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
/// The command line is omitted if reading it may block (see `processes`).
fn read_parent(proc: &Path, pid: u32, content: &mut Vec<u8>) -> Option<Parent> {
    let Ancestor { ppid, start_ticks, comm, has_memory, folder } =
        open(proc, pid, content).ok()??;
    let command = has_memory.then(|| read_cmdline(&folder, content)).flatten();
    // Keep the parent of an engine that a server started. If the server exits, the engine becomes an orphan, so its
    // workers have no server either.
    let ppid = ppid.filter(|_| command.as_deref().is_some_and(is_worker_command));
    let parent_is_reaper = ppid.map(|ppid| read_adoption(ppid, proc, content).1);
    Some(Parent { pid, start_ticks: Some(start_ticks), comm, command, ppid, parent_is_reaper })
}

// When a process exits, its children become children of the nearest ancestor that adopts orphans
// (`PR_SET_CHILD_SUBREAPER`, prctl(2)), or else of the first process of their pid namespace. The kernel does not show
// which processes adopt orphans, so these are recognised by name.

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
    let status = folder.and_then(|folder| read_status(&folder, content)).unwrap_or_default();
    let is_named = status.name.map(|name| NAMES.contains(&name));
    let is_first = pid == 1 || status.innermost_pid == Some(1);
    (if is_first { Some(true) } else { is_named }, is_named == Some(true))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::host::testing::{FakeProc, StatLine};

    #[test]
    fn a_step_daemon_names_its_job() {
        let of = |title: &str| {
            parse_title(title.as_bytes()).map(|step| format!("{} {}", step.job, step.step))
        };
        assert_eq!(of("slurmstepd: [7.batch]\0\0\0").as_deref(), Some("7 batch"));
        assert_eq!(of("slurmstepd: [12.0]").as_deref(), Some("12 0"));
        assert_eq!(of("slurmstepd: [12.extern]").as_deref(), Some("12 extern"));
        for title in ["slurmstepd", "/usr/sbin/slurmstepd infinity", "[]", "[.]", "[7]", "[7;x.0]"]
        {
            assert_eq!(of(title), None, "{title}");
        }
    }

    #[test]
    fn an_array_is_used_only_for_its_own_job() {
        let of = |environ: &str| array_in(&parse_environ(environ.as_bytes()), "8");
        let array = "SLURM_ARRAY_JOB_ID=3\0SLURM_ARRAY_TASK_ID=4\0";
        let is = of(&format!("SLURM_JOB_ID=8\0{array}"));
        assert_eq!(is, Some(("3".into(), "4".into())));
        assert_eq!(of(&format!("SLURM_JOB_ID=9\0{array}")), None);
        assert_eq!(of(array), None);
        assert_eq!(of("SLURM_JOB_ID=8\0SLURM_ARRAY_JOB_ID=3\0SLURM_ARRAY_TASK_ID=$(x)\0"), None);
    }

    #[test]
    fn a_monitor_names_its_container() {
        let of = |line: &str| {
            let command: Vec<Arc<str>> = line.split(' ').map(Arc::from).collect();
            watched(None, &command).map(|found| {
                let all = [found.runtime, found.namespace, found.id, found.name];
                all.map(|name| name.as_deref().unwrap_or("-").to_owned()).join(" ")
            })
        };
        for (line, expected) in [
            (
                "/usr/bin/conmon --api-version 1 -c 0123 -u 0123 -r /usr/bin/crun -n trainer \
                 --exit-command /usr/bin/podman",
                "podman - 0123 trainer",
            ),
            (
                "/usr/bin/conmon -b /x -c 0123 --exit-dir /run/crio/exits -n k8s_main_x -u 0123",
                "cri-o - 0123 -",
            ),
            (
                "/usr/bin/containerd-shim-runc-v2 -namespace moby -id 0123 -address /x",
                "docker moby 0123 -",
            ),
            (
                "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id 0123 -address /x",
                "containerd k8s.io - -",
            ),
            (
                "/usr/local/bin/containerd-shim-runc-v2 -namespace lab -id job-7 -address /x",
                "containerd lab job-7 -",
            ),
            ("systemd-nspawn -q -D /srv/box/ python", "nspawn - box -"),
            ("systemd-nspawn --machine=box -D /x", "nspawn - box -"),
            ("runc --root /x run job-7", "runc - job-7 -"),
        ] {
            assert_eq!(of(line).as_deref(), Some(expected), "{line}");
        }
        for line in ["/usr/lib/systemd/systemd", "conmon", "runc init", "bash -c x", "bwrap -x"] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    fn proc_with(processes: &[(u32, &'static str, &str)]) -> FakeProc {
        let fake = FakeProc::new();
        std::fs::remove_dir(fake.folder(1)).unwrap();
        for &(pid, comm, command) in processes {
            fake.stat(pid, &StatLine { comm, ..StatLine::ASLEEP });
            fake.put(pid, "cmdline", command.replace(' ', "\0"));
        }
        std::fs::create_dir_all(fake.proc.join("self/ns")).unwrap();
        symlink("pid:[4026531836]", fake.proc.join("self/ns/pid")).unwrap();
        fake
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn a_job_without_a_step_daemon_is_over_if_all_are_visible() {
        if !is_root() {
            return;
        }
        let init = (1, "systemd", "/sbin/init");
        let keeper = (5, "slurmstepd", "/usr/sbin/slurmstepd infinity");
        let title = |pid| (pid, "slurmstepd", "slurmstepd: [7.batch]");
        let is_over =
            |processes: &[_], job| Jobs::default().is_over(job, &proc_with(processes).proc, 1);
        assert_eq!(is_over(&[init, keeper, title(6)], "7"), Some(false));
        assert_eq!(is_over(&[init, keeper, title(6)], "8"), Some(true));
        // The result is unknown if processes are hidden, or if the title of a daemon contains no job.
        assert_eq!(is_over(&[keeper, title(6)], "8"), None);
        let mute = (6, "slurmstepd", "/usr/sbin/slurmstepd");
        assert_eq!(is_over(&[init, mute], "8"), None);
        // In a container, the daemons of the host are not visible.
        let inside = proc_with(&[init]);
        let namespace = inside.proc.join("self/ns/pid");
        std::fs::remove_file(&namespace).unwrap();
        symlink("pid:[4026532000]", namespace).unwrap();
        assert_eq!(Jobs::default().is_over("8", &inside.proc, 1), None);
    }

    #[test]
    fn a_missing_step_daemon_is_read_again() {
        if !is_root() {
            return;
        }
        let none = proc_with(&[(1, "init", "init")]);
        let one = proc_with(&[(1, "init", "init"), (6, "slurmstepd", "[7.0]")]);
        let mut jobs = Jobs::default();
        assert_eq!(jobs.is_over("7", &none.proc, 1), Some(true));
        assert_eq!(jobs.is_over("7", &one.proc, 2), Some(false));
        assert_eq!(jobs.is_over("7", &none.proc, 3), Some(false));
        assert_eq!(jobs.is_over("7", &none.proc, 3 + JOBS_NS), Some(true));
    }

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
