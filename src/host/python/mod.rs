//! Runs a script in a CPython of 3.14 that is at work, by its own protocol for debuggers (PEP 768).
//!
//! [`PythonProcess::open`] finds the interpreter in the process's memory and changes nothing; [`PythonProcess::run`]
//! has it run a script and waits for the answer. How the interpreter is read and what is written to it is in
//! `interpreter`, the files in `script`, where its runtime lies in `elf` and `offsets`, which of its threads are
//! awake in `threads`. What the script does is not known here: see `advice::recipe`.
//!
//! A script runs where a thread evaluates bytecode next. One that sleeps in a system call does not, for as long as
//! it sleeps; then the request is taken back, and no later call of the process runs it.
//!
//! Reading maps takes a lock that a process which is stuck in a driver may hold: such a one is left alone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::{Errno, pread};

mod elf;
mod interpreter;
mod memory;
mod offsets;
mod script;
#[cfg(test)]
mod tests;
mod threads;

use self::elf::{ReadAt, find_section};
use self::interpreter::{Disarmed, Interpreter, PythonThread};
use self::memory::ProcessMemory;
use self::offsets::PythonVersion;
use self::script::{FileOwner, ScriptFolder, wrap};
use self::threads::{ThreadActivities, read_tasks};
use super::machine::rights::read_ptrace_scope;
use super::proc::folder::{Folder, is_gone};
use super::proc::mapped::parse_mapped_file;
use super::proc::small_file::read_text;
use super::proc::stat::{STAT_BYTES, parse_stat};
use super::{Roots, read_clocks, read_time};
use crate::deadline::Deadline;

const STATUS_BYTES: usize = 16 << 10;
/// As for the names of frameworks; 4 MiB hold some 40,000 lines.
const MAPS_BYTES: usize = 4 << 20;
/// So many mapped files are looked into: the program, its library, and a few that are called alike.
const MOST_FILES: usize = 32;
/// How long until it is looked whether the script has begun, or is done.
const LOOK: Duration = Duration::from_millis(5);
/// How long a thread is waited for until another one is tried that has run meanwhile.
const TURN: Duration = Duration::from_millis(300);
/// From taking the request to opening the file: longer on a machine that is short of CPUs.
const BEGINS: Duration = Duration::from_secs(2);
/// What a script that begins at the last moment is given to end.
const ENDS: Duration = Duration::from_secs(2);
/// A thread that is not the main one is trusted to live on for the moment that it takes to write to it only where
/// it has lived so long.
const SETTLED: Duration = Duration::from_secs(5);

/// Why an interpreter cannot be entered, or a script was not run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PythonError {
    /// There is no such process.
    #[error("it has exited")]
    Gone,
    /// The number is another process's.
    #[error("its pid belongs to another process now; make a new plan")]
    Changed,
    /// It executed another program.
    #[error("it has exited, or runs another program now; make a new plan")]
    ProgramGone,
    /// Nothing is to be read of it now.
    #[error("it is blocked in the kernel, or stopped; try again when it runs")]
    HeldUp,
    /// Not its owner.
    #[error("it belongs to another user; run as root or as that user")]
    OtherUser,
    /// Yama's `ptrace_scope`.
    #[error(
        "kernel.yama.ptrace_scope is {scope}: {}",
        if *scope >= 3 { "no process may be traced on this machine" } else { "run as root (CAP_SYS_PTRACE)" }
    )]
    Yama {
        /// 1 to 3.
        scope: u8,
    },
    /// Not dumpable, in another user namespace, or a security module refuses.
    #[error("reading its memory is not permitted; run as root (CAP_SYS_PTRACE)")]
    NotPermitted,
    /// Nothing of CPython is mapped that can be entered.
    #[error("it runs no CPython that gpumem can attach to; that takes 3.14")]
    NoInterpreter,
    /// No table for it.
    #[error("it runs CPython {0}, and gpumem can attach to 3.14 only")]
    Version(PythonVersion),
    /// The build without a global lock.
    #[error("it runs free-threaded CPython (no global lock), which gpumem does not attach to")]
    FreeThreaded,
    /// By the user.
    #[error(
        "its interpreter does not permit attaching: it was started with PYTHON_DISABLE_REMOTE_DEBUG or -X disable_remote_debug; start it without"
    )]
    Disabled,
    /// On its way out.
    #[error("its interpreter is shutting down")]
    Ending,
    /// A debugger's.
    #[error("another script, perhaps a debugger's, is waiting to run in it; try again")]
    OtherScript,
    /// The thread has ended.
    #[error("the thread that was chosen has exited; try again")]
    ThreadGone,
    /// What its memory says cannot be.
    #[error("its interpreter's structures are not those of CPython 3.14 ({0})")]
    Damaged(&'static str),
    /// Something else about its memory.
    #[error("cannot read its memory: {0}")]
    Memory(Errno),
    /// No file can be given to it.
    #[error(
        "cannot create a file that only it can read in /tmp, /var/tmp or /dev/shm: {0}; see that one of them can be written"
    )]
    Files(Errno),
    /// The answer is no file of its user's, or has no end.
    #[error("its answer is malformed; gpumem's script did not write it")]
    Answer,
    /// No thread.
    #[error("cannot start a thread: {0}; see the limit on processes (ulimit -u)")]
    NoThread(String),
}

/// What came of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScriptResult {
    /// It has run, and left this: a JSON object with `out` or with `error`, or whatever the process put there.
    Answered(Vec<u8>),
    /// No thread evaluated anything in time. The request was taken back.
    NotBegun,
    /// The request was taken and the script was not run: an audit hook forbade it, its file could not be read, or an
    /// interrupt that came with it ended it before its first line.
    Vetoed,
    /// It has begun and was not done in time; it goes on.
    NotDone,
}

/// A process with an interpreter that can be entered.
#[derive(Debug)]
pub struct PythonProcess {
    roots: Roots,
    start_ticks: u64,
    owner: FileOwner,
    folder: Folder,
    root: OwnedFd,
    interpreter: Interpreter<ProcessMemory>,
}

impl PythonProcess {
    /// Opens the process that started then, and finds its interpreter. Changes nothing.
    ///
    /// # Errors
    ///
    /// Where it is not the one that is meant, or cannot be entered.
    pub fn open(roots: &Roots, pid: u32, start_ticks: u64) -> Result<Self, PythonError> {
        let folder = Folder::open(&roots.proc, pid).map_err(not_opened)?;
        if matches!(check(&folder, start_ticks)?, 'D' | 'T' | 't') {
            return Err(PythonError::HeldUp);
        }
        let mut content = Vec::new();
        let read = folder.read(c"status", &mut content, STATUS_BYTES);
        read.map_err(not_opened)?;
        let owner = FileOwner::parse(&content).ok_or(PythonError::Gone)?;
        let own = rustix::process::geteuid().as_raw();
        let refused = |errno| match errno {
            Errno::ACCESS | Errno::PERM if own != owner.uid && own != 0 => PythonError::OtherUser,
            Errno::ACCESS | Errno::PERM => match read_ptrace_scope(&roots.proc) {
                Some(scope) if scope > 0 => PythonError::Yama { scope },
                _ => PythonError::NotPermitted,
            },
            errno => not_opened(errno),
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let memory = openat(&folder, c"mem", flags, Mode::empty()).map_err(refused)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(&folder, c"root", flags, Mode::empty()).map_err(refused)?;
        // What was opened by the number is this process's, if that still lives.
        check(&folder, start_ticks)?;
        let read = folder.read_list(c"maps", &mut content, MAPS_BYTES);
        read.map_err(refused)?;
        let runtime = find_runtime(&folder, &root, &content).ok_or(PythonError::NoInterpreter)?;
        let interpreter = Interpreter::read(ProcessMemory::new(memory), runtime)?;
        let process = Self { roots: roots.clone(), start_ticks, owner, folder, root, interpreter };
        process.known_threads()?;
        check(&process.folder, start_ticks)?;
        Ok(process)
    }

    /// Its threads that are threads of the process; the main one is.
    fn known_threads(&self) -> Result<(Vec<PythonThread>, ThreadActivities), PythonError> {
        let mut threads = self.interpreter.threads()?;
        let tasks = read_tasks(&self.folder);
        // A thread that ended a moment ago may be in the list still.
        threads.retain(|thread| tasks.contains_key(&thread.native_id));
        if threads.is_empty() {
            check(&self.folder, self.start_ticks)?;
            return Err(PythonError::Damaged("thread"));
        }
        Ok((threads, tasks))
    }

    /// Has it run a script, made of what `source` makes of the last moment (milliseconds since the Unix epoch) at
    /// which that may begin, and waits for its answer as long as is given. The last two seconds of it, or the last
    /// quarter, are for one that has begun.
    ///
    /// # Errors
    ///
    /// Where it could not be asked, or has ended meanwhile. Then the script does not run any more either.
    pub fn run(
        &self,
        time: Duration,
        source: impl FnOnce(i64) -> String + Send,
    ) -> Result<ScriptResult, PythonError> {
        let name = read_text(&self.roots.proc.join("sys/kernel/random/uuid"), 64);
        let name = name.ok_or(PythonError::Files(Errno::NOENT))?;
        let name = format!("gpumem-{}", name.trim());
        // The rights over files that it takes are its own, and end with it.
        thread::scope(|scope| {
            let work = thread::Builder::new().name("python".to_owned());
            let work = work.spawn_scoped(scope, || self.run_as_owner(time, source, &name));
            let work = work.map_err(|error| PythonError::NoThread(error.to_string()))?;
            let failed = |_| PythonError::NoThread("it has failed".to_owned());
            work.join().map_err(failed)?
        })
    }

    fn run_as_owner(
        &self,
        time: Duration,
        source: impl FnOnce(i64) -> String,
        name: &str,
    ) -> Result<ScriptResult, PythonError> {
        self.owner.assume()?;
        let folder = ScriptFolder::create(self.root.as_fd(), self.owner, name)?;
        let ends = ENDS.min(time / 4);
        let begins = time - ends;
        let last_ms = i64::try_from(begins.as_millis()).unwrap_or(i64::MAX);
        let last_ms = read_time().unix_milliseconds().saturating_add(last_ms);
        let script = wrap(&source(last_ms), folder.path(), last_ms);
        let result = folder
            .write(&script)
            .and_then(|path| self.request(&folder, path.as_bytes(), (begins, ends)));
        folder.remove();
        // What has ended has run nothing, whatever else was seen of it.
        check(&self.folder, self.start_ticks)?;
        result
    }

    /// Asks one thread after another, and takes back what was asked of the last.
    fn request(
        &self,
        folder: &ScriptFolder,
        path: &[u8],
        (begins, ends): (Duration, Duration),
    ) -> Result<ScriptResult, PythonError> {
        let deadline = Deadline::after(begins);
        let mut chooser = Chooser::new(self);
        loop {
            let thread = chooser.next()?;
            match self.ask(folder, &thread, path, &deadline, &chooser) {
                Ok(Begun::Yes) => return self.wait_answer(folder, deadline.left() + ends),
                Ok(Begun::Vetoed) => return Ok(ScriptResult::Vetoed),
                Ok(Begun::No) if deadline.left().is_zero() => {
                    return self.take_back(folder, &thread, path, ends);
                }
                Ok(Begun::No) => {
                    self.interpreter.disarm(&thread, path)?;
                }
                Err(error) => {
                    // What was written of the request before it failed is taken back as well.
                    let _ = folder.withdraw();
                    let _ = self.interpreter.disarm(&thread, path);
                    return Err(error);
                }
            }
        }
    }

    /// Asks a thread, until it begins, another one is awake, or the time is over.
    fn ask(
        &self,
        folder: &ScriptFolder,
        thread: &PythonThread,
        path: &[u8],
        deadline: &Deadline,
        chooser: &Chooser<'_>,
    ) -> Result<Begun, PythonError> {
        match self.interpreter.arm(thread, path) {
            Ok(()) => {}
            // It has ended since it was seen, as the main one does not.
            Err(PythonError::ThreadGone) if !thread.is_main => return Ok(Begun::No),
            Err(error) => return Err(error),
        }
        loop {
            let begun = self.wait_begun(folder, thread, deadline.left().min(TURN))?;
            let stays = begun == Begun::No && !deadline.left().is_zero();
            if !stays || chooser.has_another()? {
                return Ok(begun);
            }
        }
    }

    /// Whether the script begins within a time.
    fn wait_begun(
        &self,
        folder: &ScriptFolder,
        thread: &PythonThread,
        time: Duration,
    ) -> Result<Begun, PythonError> {
        let mut deadline = Deadline::after(time);
        let mut was_taken = false;
        loop {
            if folder.has_begun() {
                return Ok(Begun::Yes);
            }
            // The flag is cleared before the file is opened.
            if !was_taken && !self.interpreter.is_pending(thread)? {
                if !self.interpreter.is_there(thread)? {
                    return Ok(Begun::No);
                }
                was_taken = true;
                deadline = Deadline::after(BEGINS);
            } else if deadline.left().is_zero() {
                self.check()?;
                return Ok(if was_taken { Begun::Vetoed } else { Begun::No });
            }
            if was_taken {
                // A signal's handler comes before the script's first line, and may end it all.
                self.check()?;
            }
            thread::sleep(LOOK.min(deadline.left()));
        }
    }

    fn wait_answer(
        &self,
        folder: &ScriptFolder,
        time: Duration,
    ) -> Result<ScriptResult, PythonError> {
        let deadline = Deadline::after(time);
        loop {
            if let Some(answer) = folder.answer()? {
                return Ok(ScriptResult::Answered(answer));
            }
            if deadline.left().is_zero() {
                return Ok(ScriptResult::NotDone);
            }
            self.check()?;
            thread::sleep(LOOK.min(deadline.left()));
        }
    }

    /// Whether it is the same program still.
    fn check(&self) -> Result<(), PythonError> {
        check(&self.folder, self.start_ticks)?;
        self.interpreter.check_memory()
    }

    /// Sees to it that nothing runs any more; or waits for what has begun at the last moment.
    fn take_back(
        &self,
        folder: &ScriptFolder,
        thread: &PythonThread,
        path: &[u8],
        ends: Duration,
    ) -> Result<ScriptResult, PythonError> {
        let withdrawn = folder.withdraw();
        let disarmed = self.interpreter.disarm(thread, path);
        match (withdrawn, disarmed) {
            (Ok(false), _) => self.wait_answer(folder, ends),
            (Ok(true), Ok(Disarmed::Cleared | Disarmed::WasTaken)) => Ok(ScriptResult::NotBegun),
            // It does nothing, but for a message about a file that is not there.
            (Ok(true), Err(error)) => Err(error),
            (Err(error), Ok(Disarmed::WasTaken)) => Err(error),
            (Err(_), Ok(Disarmed::Cleared)) => Ok(ScriptResult::NotBegun),
            (Err(error), Err(_)) => Err(error),
        }
    }
}

/// Whether a script has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begun {
    No,
    Yes,
    Vetoed,
}

/// Which thread is asked next: the main one first, then those in turn that were seen to run.
struct Chooser<'a> {
    process: &'a PythonProcess,
    before: ThreadActivities,
    asked: Vec<PythonThread>,
}

impl<'a> Chooser<'a> {
    fn new(process: &'a PythonProcess) -> Self {
        Self { process, before: read_tasks(&process.folder), asked: Vec::new() }
    }

    fn next(&mut self) -> Result<PythonThread, PythonError> {
        let awake = self.awake()?;
        if let Some(thread) = awake.iter().find(|thread| !self.asked.contains(thread)) {
            self.asked.push(*thread);
            return Ok(*thread);
        }
        // All were asked: from the start.
        self.asked.clear();
        let first = awake.first().copied().ok_or(PythonError::ThreadGone)?;
        self.asked.push(first);
        Ok(first)
    }

    /// Whether one that was not asked yet has run since the first look, or all were and there are several.
    fn has_another(&self) -> Result<bool, PythonError> {
        let awake = self.awake()?;
        Ok(awake.len() > 1 || awake.iter().any(|thread| !self.asked.contains(thread)))
    }

    /// The main thread, and others that have run since the first look and have lived for long.
    fn awake(&self) -> Result<Vec<PythonThread>, PythonError> {
        let (mut threads, tasks) = self.process.known_threads()?;
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let now = u128::from(read_clocks().boottime_ns) * u128::from(ticks) / 1_000_000_000;
        let settled = u128::from(SETTLED.as_secs()) * u128::from(ticks);
        threads.retain(|thread| {
            let task = tasks.get(&thread.native_id);
            let before = self.before.get(&thread.native_id);
            thread.is_main
                || task.zip(before).is_some_and(|(task, before)| {
                    task.start_ticks == before.start_ticks
                        && task.has_run_since(before)
                        && u128::from(task.start_ticks) + settled <= now
                })
        });
        Ok(threads)
    }
}

/// The state of the process that started then, where a folder is its and it lives.
fn check(folder: &Folder, start_ticks: u64) -> Result<char, PythonError> {
    let mut content = Vec::new();
    let read = folder.read(c"stat", &mut content, STAT_BYTES);
    read.map_err(not_opened)?;
    let stat = parse_stat(&content).ok_or(PythonError::Gone)?;
    if stat.is_released || stat.is_exiting || matches!(stat.state, 'Z' | 'X') {
        return Err(PythonError::Gone);
    }
    if stat.start_ticks != start_ticks {
        return Err(PythonError::Changed);
    }
    Ok(stat.state)
}

fn not_opened(errno: Errno) -> PythonError {
    if is_gone(errno) { PythonError::Gone } else { PythonError::Memory(errno) }
}

/// The address of a runtime: of the first program or library that has one.
fn find_runtime(folder: &Folder, root: &OwnedFd, maps: &[u8]) -> Option<u64> {
    let executable: Option<PathBuf> =
        folder.link(c"exe", |target| PathBuf::from(OsStr::from_bytes(target))).ok();
    let mut seen = BTreeSet::new();
    for line in maps.split(|&byte| byte == b'\n') {
        let Some(path) = parse_mapped_file(line) else {
            continue;
        };
        let is_program = executable.as_deref() == Some(path);
        let name = path.file_name().unwrap_or_default().as_bytes();
        let is_likely = is_program || name.windows(6).any(|part| part == b"python");
        if !is_likely || !seen.insert(path) {
            continue;
        }
        if seen.len() > MOST_FILES {
            return None;
        }
        let file = if is_program { open_program(folder) } else { open_mapped(root, path) };
        let section = file.and_then(|file| find_section(&file, b".PyRuntime"));
        if let Some(section) = section
            && let Some(start) = mapped_at(maps, path, section.load_offset)
        {
            let is_whole = section.bytes >= offsets::TABLE_BYTES as u64;
            let within = section.address.checked_sub(section.load_address)?;
            return start.checked_add(within).filter(|_| is_whole);
        }
    }
    None
}

/// Where a file is mapped from an offset on that is within the first mapping.
fn mapped_at(maps: &[u8], path: &Path, offset: u64) -> Option<u64> {
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        if parse_mapped_file(line)? != path {
            return None;
        }
        let text = std::str::from_utf8(line.get(..line.iter().position(|&byte| byte == b'/')?)?);
        let mut fields = text.ok()?.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let mapped_offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let length = u64::from_str_radix(end, 16).ok()?.checked_sub(start)?;
        let within = offset.checked_sub(mapped_offset)?;
        (within < length).then_some(start + within)
    })
}

/// The file that was executed, also where it has been replaced since.
fn open_program(folder: &Folder) -> Option<MappedFile> {
    let file = folder.file(c"exe").ok()?;
    MappedFile::new(file)
}

/// A file that was mapped, where its path leads in the process's own root; what is there now need not be it, and
/// the runtime has a cookie for that.
fn open_mapped(root: &OwnedFd, path: &Path) -> Option<MappedFile> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    // Opening what is no file, a pipe or a device, may do something: it is looked at first.
    let found = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat2(root, path, found, Mode::empty(), within).ok()?;
    is_file(&found).then_some(())?;
    MappedFile::new(openat2(root, path, flags | OFlags::NOFOLLOW, Mode::empty(), within).ok()?)
}

fn is_file(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// A file that is mapped by a process.
struct MappedFile(OwnedFd);

impl MappedFile {
    fn new(file: OwnedFd) -> Option<Self> {
        is_file(&file).then_some(Self(file))
    }
}

impl ReadAt for MappedFile {
    fn read_at(&self, mut offset: u64, mut into: &mut [u8]) -> Option<()> {
        while !into.is_empty() {
            match pread(&self.0, &mut *into, offset) {
                Ok(0) => return None,
                Ok(read) => {
                    offset += read as u64;
                    into = &mut into[read..];
                }
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(())
    }
}
