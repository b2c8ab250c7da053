//! Has a running CPython 3.14 process execute a script, with the interpreter's own `sys.remote_exec` (PEP 768).
//!
//! The process's own interpreter does this, in a child with the process's user and namespaces and without
//! capabilities: the user chose that program, and it can do nothing that it could not do before. gpumem opens,
//! maps and waits for nothing that the user can write; a child that does not answer is killed and abandoned. If
//! gpumem runs as root and only root can change the interpreter, root runs it, with the rights to trace and to
//! act as the user, so Yama's `ptrace_scope` 1 does not forbid it.
//!
//! The script runs when the main thread next evaluates bytecode. A file, created by whichever side comes first,
//! decides whether the script runs or is withdrawn, so it runs once, in time, in this process, or never.
//! `python.py` implements the protocol; `advice::recipe` has the scripts.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use rustix::thread::{
    CapabilitySet, ThreadNameSpaceType, capabilities, move_into_thread_name_spaces,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use rustix::time::Timespec;

use super::machine::ownership::prove_directory_ours;
use super::machine::rights::read_ptrace_scope;
use super::proc::opened_process::OpenedProcess;
use super::proc::status::STATUS_BYTES;
use super::{Roots, read_time};
use crate::deadline::{Deadline, Task};

/// The version that can be asked: script and recipe are tested with it.
const PROGRAM: &str = "python3.14";
const DRIVER: &str = include_str!("python.py");
const SCRIPT: &str = include_str!("python_script.py");
/// The longest script: a pipe takes this much without a reader (pipe(7): 64 KiB).
const SCRIPT_BYTES: usize = 48 << 10;
const ANSWER_BYTES: usize = 2 << 20;
/// The longest wait until the child runs; its file may be on a network.
const STARTS: Duration = Duration::from_secs(5);
/// How much longer a script that begins at the last moment may take, with the child's report.
const ENDS: Duration = Duration::from_secs(2);
/// The longest wait for a killed child to be gone.
const DIES: Duration = Duration::from_secs(1);
/// The longest that a process may be blocked in the kernel before it counts as held up.
const BLOCKS: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(10);

/// The namespaces that are entered if they differ from gpumem's. Not user namespaces: a thread cannot enter
/// one, and its owner may trace what is in it.
const NAMESPACES: [(&std::ffi::CStr, &str, ThreadNameSpaceType); 6] = [
    (c"ns/mnt", "mnt", ThreadNameSpaceType::MOUNT),
    (c"ns/pid", "pid", ThreadNameSpaceType::PROCESS_ID),
    (c"ns/net", "net", ThreadNameSpaceType::NETWORK),
    (c"ns/ipc", "ipc", ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION),
    (c"ns/uts", "uts", ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME),
    (c"ns/cgroup", "cgroup", ThreadNameSpaceType::CONTROL_GROUP),
];

/// Why an interpreter cannot be asked, or a script did not run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PythonError {
    #[error("it has exited, or runs another program now; make a new plan")]
    Gone,
    #[error("its pid belongs to another process now; make a new plan")]
    Changed,
    #[error("it is blocked in the kernel, or stopped; try again when it runs")]
    HeldUp,
    #[error("it belongs to another user; that requires root or that user")]
    OtherUser,
    #[error(
        "kernel.yama.ptrace_scope is {scope}: {}",
        if *scope >= 2 { "no program of its user may attach to it" } else { "only root may attach to it, with an interpreter that only root can change" }
    )]
    Yama { scope: u8 },
    #[error(
        "attaching to it is not permitted ({0}); it has rights that its interpreter in a child has not"
    )]
    NotPermitted(String),
    #[error("it runs no {PROGRAM}, which is what gpumem can attach to")]
    NoInterpreter,
    #[error("its interpreter's file was replaced or removed since it started")]
    Replaced,
    #[error("its interpreter cannot be asked: {0}")]
    Refused(String),
    #[error("cannot create a file that only its user can write in /tmp, /var/tmp or /dev/shm")]
    NoFolder,
    #[error("cannot start its interpreter, {}: {errno}", program.display())]
    NotStarted { program: PathBuf, errno: Errno },
    #[error("its interpreter, started in a child, did not answer, and was killed")]
    NoAnswer,
    #[error("its answer is malformed; gpumem's script did not write it")]
    Malformed,
    #[error("cannot read it: {0}")]
    Unreadable(Errno),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScriptResult {
    /// It ran and left this: a JSON object with `out` or `error`, or whatever the process put there.
    Answered(Vec<u8>),
    /// The main thread evaluated nothing in time. The script will not run later.
    NotBegun,
    /// It began, was not finished in time, and continues.
    NotDone,
}

/// A process whose interpreter can be asked.
#[derive(Debug)]
pub struct PythonProcess {
    roots: Roots,
    process: OpenedProcess,
    program: PathBuf,
    uid: u32,
    gid: u32,
    /// Root runs its interpreter, which only root can change.
    is_by_root: bool,
}

impl PythonProcess {
    /// Opens the process with this pid and start, if it can be asked. Starts and changes nothing.
    ///
    /// # Errors
    ///
    /// If it is another process, or cannot be asked.
    pub fn open(roots: &Roots, pid: u32, start_ticks: u64) -> Result<Self, PythonError> {
        let process = OpenedProcess::open(roots, pid);
        let process = process.map_err(PythonError::Unreadable)?.ok_or(PythonError::Gone)?;
        match process.state {
            _ if process.start_ticks != start_ticks => return Err(PythonError::Changed),
            'Z' | 'X' => return Err(PythonError::Gone),
            _ => {}
        }
        let mut status = Vec::new();
        let read = process.folder.read(c"status", &mut status, STATUS_BYTES);
        read.map_err(PythonError::Unreadable)?;
        let id = |name| real_id(&status, name).ok_or(PythonError::Gone);
        let (uid, gid) = (id("Uid:\t")?, id("Gid:\t")?);
        let own = geteuid();
        if !own.is_root() && own.as_raw() != uid {
            return Err(PythonError::OtherUser);
        }
        let program = process.link(c"exe").ok_or(PythonError::OtherUser)?;
        let program = match program.strip_suffix(" (deleted)") {
            Some(_) => return Err(PythonError::Replaced),
            None => PathBuf::from(program),
        };
        if program.file_name().is_none_or(|name| name != PROGRAM) {
            return Err(PythonError::NoInterpreter);
        }
        let scope = read_ptrace_scope(&roots.proc).unwrap_or(0);
        let is_by_root = own.is_root()
            && !differs(&process, c"ns/mnt", "mnt")
            && is_changed_by_root_only(&program);
        if scope >= if is_by_root { 3 } else { 1 } {
            return Err(PythonError::Yama { scope });
        }
        let process = Self { roots: roots.clone(), process, program, uid, gid, is_by_root };
        process.wait_until_it_runs()?;
        Ok(process)
    }

    /// Every process blocks briefly, on a page fault or a write. One that stays blocked may hold its mmap lock, which
    /// reading its memory needs.
    fn wait_until_it_runs(&self) -> Result<(), PythonError> {
        let deadline = Deadline::after(BLOCKS);
        loop {
            match self.look()?.state {
                'D' if !deadline.left().is_zero() => thread::sleep(LOOK),
                'D' | 'T' | 't' => return Err(PythonError::HeldUp),
                _ => return Ok(()),
            }
        }
    }

    /// Runs a script and waits for its answer within the given time. `source` builds it from the latest moment
    /// (in milliseconds since the Unix epoch) at which it may begin. The last two seconds, or the last quarter,
    /// are reserved for a script that has begun.
    ///
    /// # Errors
    ///
    /// If it could not be asked, or has exited meanwhile. Then the script will not run later either.
    pub fn run(
        self,
        time: Duration,
        source: impl FnOnce(i64) -> String,
    ) -> Result<ScriptResult, PythonError> {
        let deadline = Deadline::after(time + ENDS);
        let now = read_time().unix_milliseconds();
        let after = |time: Duration| {
            now.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
        };
        let (begins_ms, ends_ms) = (after(time - ENDS.min(time / 4)), after(time));
        let script = wrap(&source(begins_ms), self.process.start_ticks, begins_ms);
        if script.len() > SCRIPT_BYTES {
            return Err(PythonError::Malformed);
        }
        let namespaces = self.namespaces();
        let number = match namespaces.contains(ThreadNameSpaceType::PROCESS_ID) {
            true => self.process.numbers.last().copied().ok_or(PythonError::Gone)?,
            false => self.process.pid,
        };
        let times = [begins_ms, ends_ms];
        let arguments = [u64::from(number), self.process.start_ticks]
            .map(|number| number.to_string())
            .into_iter()
            .chain(times.map(|time| time.to_string()))
            .chain([self.uid, self.gid].map(|id| id.to_string()));
        let mut command = Command::new(&self.program);
        let user = if self.is_by_root { (0, 0) } else { (self.uid, self.gid) };
        command
            .args(["-I", "-S", "-B", "-c", DRIVER])
            .args(arguments)
            .env_clear()
            .current_dir("/")
            .uid(user.0)
            .gid(user.1)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let pidfd = self.pidfd()?;
        let kept = match self.is_by_root {
            true => CapabilitySet::SYS_PTRACE | CapabilitySet::SETUID | CapabilitySet::SETGID,
            false => CapabilitySet::empty(),
        };
        let started = Task::start("python", move || {
            enter(&pidfd, namespaces, kept)?;
            command.spawn()
        });
        let failed = |error: io::Error| PythonError::NotStarted {
            program: self.program.clone(),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        };
        // A child that starts later finds its script truncated, and exits.
        let child = started.map_err(failed)?.wait(STARTS.min(deadline.left()));
        let mut child = child.map_err(|_| PythonError::NoAnswer)?.map_err(failed)?;
        let answer = converse(&mut child, &script, &deadline);
        end(&mut child);
        let result = read(&answer.ok_or(PythonError::NoAnswer)?);
        // A process that has exited ran nothing, whatever else was seen.
        self.look()?;
        result
    }

    /// Its namespaces that are entered: none if its files are ours, because then its pid is ours, too.
    fn namespaces(&self) -> ThreadNameSpaceType {
        let differing =
            NAMESPACES.iter().filter(|(link, name, _)| differs(&self.process, link, name));
        let all: ThreadNameSpaceType = differing.map(|(_, _, kind)| *kind).collect();
        match all.contains(ThreadNameSpaceType::MOUNT) {
            true => all,
            false => all - ThreadNameSpaceType::PROCESS_ID,
        }
    }

    fn pidfd(&self) -> Result<OwnedFd, PythonError> {
        let pid = i32::try_from(self.process.pid).ok().and_then(Pid::from_raw);
        let pidfd = pidfd_open(pid.ok_or(PythonError::Gone)?, PidfdFlags::empty());
        let pidfd = pidfd.map_err(|_| PythonError::Gone)?;
        self.look()?;
        Ok(pidfd)
    }

    /// The process now, if it is still the same one and runs the same program.
    fn look(&self) -> Result<OpenedProcess, PythonError> {
        let now = OpenedProcess::open(&self.roots, self.process.pid);
        let now = now.map_err(PythonError::Unreadable)?.ok_or(PythonError::Gone)?;
        let is_same =
            now.start_ticks == self.process.start_ticks && !matches!(now.state, 'Z' | 'X');
        let program = now.link(c"exe").map(PathBuf::from);
        (is_same && program.as_deref() == Some(&*self.program))
            .then_some(now)
            .ok_or(PythonError::Gone)
    }
}

/// The first, the real one, of the four ids in a line of `/proc/PID/status`.
fn real_id(status: &[u8], name: &str) -> Option<u32> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
    std::str::from_utf8(line).ok()?.split('\t').next()?.parse().ok()
}

/// Whether a process is in another namespace of this kind, if known.
fn differs(process: &OpenedProcess, link: &std::ffi::CStr, name: &str) -> bool {
    let own = std::fs::read_link(Path::new("/proc/self/ns").join(name)).ok();
    process.link(link).map(PathBuf::from) != own
}

/// Whether root may run an interpreter as root: only root can change it or the library beside it, and no other
/// library can replace that.
fn is_changed_by_root_only(program: &Path) -> bool {
    let Some(folder) = program.parent() else { return false };
    let Some(prefix) = folder.parent() else { return false };
    let library = prefix.join("lib").join(PROGRAM);
    let redirects = [folder.join("pyvenv.cfg"), prefix.join("pyvenv.cfg")];
    is_of_root(program)
        && is_of_root(&library)
        && prove_directory_ours(&library).is_ok()
        && library.join("os.py").is_file()
        && !redirects.iter().any(|file| file.exists())
}

/// Whether a path without links, and everything above it, belongs to root and only root can write there.
/// Checked from `/` down, so nothing that another user may have mounted is read.
fn is_of_root(path: &Path) -> bool {
    let mut all: Vec<&Path> = path.ancestors().collect();
    all.reverse();
    all.into_iter().all(|path| {
        let found = std::fs::symlink_metadata(path);
        found.is_ok_and(|it| it.uid() == 0 && !it.is_symlink() && it.mode() & 0o022 == 0)
    })
}

/// Moves the calling thread, and what it starts, into a process's namespaces; after its next exec it has no
/// capabilities beyond `kept`.
fn enter(pidfd: &OwnedFd, namespaces: ThreadNameSpaceType, kept: CapabilitySet) -> io::Result<()> {
    if !namespaces.is_empty() {
        // A thread needs its own root and current directory before it changes its mount namespace.
        unshare(CloneFlags::CLONE_FS)?;
        move_into_thread_name_spaces(pidfd.as_fd(), namespaces)?;
    }
    set_no_new_privs(true)?;
    if geteuid().is_root() {
        // Up to the last capability that the kernel knows.
        for bit in 0..64 {
            let one = CapabilitySet::from_bits_retain(1 << bit);
            let is_known = kept.contains(one) || remove_capability_from_bounding_set(one).is_ok();
            if !is_known {
                break;
            }
        }
        let mut sets = capabilities(None)?;
        sets.inheritable = CapabilitySet::empty();
        set_capabilities(None, sets)?;
    }
    Ok(())
}

/// Sends the child its script and reads its answer; `None` if that does not finish in time.
fn converse(child: &mut Child, script: &str, deadline: &Deadline) -> Option<Vec<u8>> {
    // A child that has exited does not read it.
    let _ = child.stdin.take()?.write_all(script.as_bytes());
    read_all(child.stdout.take()?, deadline)
}

fn read_all(mut pipe: ChildStdout, deadline: &Deadline) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while answer.len() <= ANSWER_BYTES {
        let left = Timespec::try_from(deadline.left()).ok()?;
        let ready = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&left));
        match ready {
            Ok(0) => return None,
            Ok(_) => match pipe.read(&mut part).ok()? {
                0 => return Some(answer),
                length => answer.extend_from_slice(&part[..length]),
            },
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    None
}

/// Kills a running child. One that is blocked in the kernel is abandoned.
fn end(child: &mut Child) {
    let deadline = Deadline::after(DIES);
    let _ = child.kill();
    while matches!(child.try_wait(), Ok(None)) && !deadline.left().is_zero() {
        thread::sleep(LOOK);
    }
}

/// Parses what `python.py` prints, or whatever the user's program printed.
fn read(answer: &[u8]) -> Result<ScriptResult, PythonError> {
    let answer = String::from_utf8_lossy(answer);
    let (state, text) = answer.split_once(' ').ok_or(PythonError::NoAnswer)?;
    let words = || text.trim().chars().take(120).collect::<String>();
    match state {
        "answered" => Ok(ScriptResult::Answered(text.trim().as_bytes().to_vec())),
        "not_begun" => Ok(ScriptResult::NotBegun),
        "not_done" => Ok(ScriptResult::NotDone),
        "gone" => Err(PythonError::Gone),
        "denied" => Err(PythonError::NotPermitted(words())),
        "failed" => Err(PythonError::Refused(words())),
        "no_folder" => Err(PythonError::NoFolder),
        _ => Err(PythonError::Malformed),
    }
}
/// A script that runs `source` once, in the process that started at `start_ticks`, beginning by `deadline_ms`
/// (since the Unix epoch), and writes the `out` it sets, or how it failed, to its folder.
fn wrap(source: &str, start_ticks: u64, deadline_ms: i64) -> String {
    SCRIPT
        .replace("@DEADLINE_MS@", &deadline_ms.to_string())
        .replace("@START_TICKS@", &start_ticks.to_string())
        .replace("@SOURCE@", &quote(source))
}

/// A Python string literal.
fn quote(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => literal.extend(['\\', c]),
            '\n' => literal.push_str("\\n"),
            ' '..='~' => literal.push(c),
            c => literal.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    literal.push('"');
    literal
}
