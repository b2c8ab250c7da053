//! The journal: what gpumem has done with a process's GPU state, in one file for each process.
//!
//! Each line is on disk before the call that it announces, so the journal shows what happened or was about to happen
//! when the helper died. While it works, the helper locks a second file, which only its user can open: everyone can read
//! journals, and could otherwise block the helper. The kernel releases the lock when the helper exits. A line can be incomplete only at the end, where readers ignore it. Records of processes that have
//! exited are deleted.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};

use super::ffi::CudaState;
use crate::host::{Roots, open_output, read_host, read_start_ticks, read_time};
use crate::model::json;
use crate::model::process::{ParkMark, ParkState};
use crate::model::{Identity, Snapshot, Start, Time};

const FOLDER: &str = "park";
/// Extension of the file that the helper locks.
const LOCK: &str = "lock";
/// Maximum size of a journal, enough for thousands of restores. A longer one is not read.
const MAX_BYTES: u64 = 4 << 20;
/// Maximum number of attempts to take the lock, which a reader may hold briefly, with a pause of [`PAUSE`].
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum number of attempts to take the lock for host memory. A check takes less than a second.
const MEMORY_ATTEMPTS: usize = 5000;

/// A process whose GPU state gpumem moves, as it was before the first call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParkedProcess {
    pub pid: u32,
    pub start_ticks: u64,
    pub uid: u32,
    pub boot_id: Arc<str>,
    /// Name for display. Chosen by the process: escape it for a terminal.
    pub name: Arc<str>,
    /// Path of the notebook. Chosen by the user: escape it for a terminal.
    pub notebook: Option<Arc<str>>,
    /// Version of the driver, which must not change before the restore.
    pub driver_version: Arc<str>,
    pub gpus: Vec<ParkedGpu>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParkedGpu {
    pub index: u32,
    pub uuid: Arc<str>,
    pub bytes: u64,
}

impl ParkedProcess {
    pub fn identity(&self) -> Identity {
        Identity { pid: self.pid, start: Start::Ticks(self.start_ticks) }
    }

    pub fn bytes(&self) -> u64 {
        self.gpus.iter().fold(0, |sum, gpu| sum.saturating_add(gpu.bytes))
    }

    /// Returns whether the process of this boot still exists.
    fn exists(&self, roots: &Roots, boot_id: Option<&str>) -> bool {
        let start = read_start_ticks(&roots.proc, self.pid).ok().flatten();
        boot_id == Some(&*self.boot_id) && start == Some(self.start_ticks)
    }

    /// Returns whether the process is known to have exited. Unlike [`Self::exists`], an error proves nothing.
    fn is_gone(&self, roots: &Roots, boot_id: Option<&str>) -> bool {
        let start = read_start_ticks(&roots.proc, self.pid);
        let is_other = start.is_ok_and(|start| start != Some(self.start_ticks));
        is_other || boot_id.is_some_and(|boot_id| boot_id != &*self.boot_id)
    }
}

/// A step of the helper. Steps in `-ing` precede the call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum JournalStep {
    Intent(ParkedProcess),
    /// The process is in another user's journal. The steps that follow are in this one.
    Adopted(ParkedProcess),
    Locking,
    Checkpointing,
    /// The memory is on the host. `left_bytes` is what NVML still showed for the process on the GPUs, if known.
    Parked {
        left_bytes: Option<u64>,
    },
    Restoring,
    Unlocking,
    Running,
    /// A call failed. `state` is what the driver then reported.
    Failed {
        why: String,
        state: Option<CudaState>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct JournalEntry {
    time: Time,
    /// Pid of the helper.
    helper: u32,
    #[serde(flatten)]
    step: JournalStep,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParkRecord {
    pub process: ParkedProcess,
    pub state: ParkState,
    /// Time of the last step.
    pub since: Time,
    /// Whether gpumem has ever begun to restore the process.
    pub was_restored: bool,
    /// Pid of the helper that wrote the last step.
    pub helper: u32,
    /// The last failure, if nothing has succeeded since.
    pub failure: Option<String>,
}

impl ParkRecord {
    fn parse(content: &[u8], is_locked: bool) -> Option<Self> {
        let lines = content.split_inclusive(|&byte| byte == b'\n');
        let entries =
            lines.filter_map(|line| serde_json::from_slice(line.strip_suffix(b"\n")?).ok());
        let entries: Vec<JournalEntry> = entries.collect();
        let process = entries.iter().rev().find_map(|entry| match &entry.step {
            JournalStep::Intent(process) | JournalStep::Adopted(process) => Some(process.clone()),
            _ => None,
        })?;
        let last = entries.last()?;
        let state = match &last.step {
            _ if is_locked => ParkState::InProgress,
            // No call that changes the state precedes the next step.
            JournalStep::Intent(_) | JournalStep::Running => ParkState::Running,
            JournalStep::Parked { .. } => ParkState::Parked,
            JournalStep::Failed { state, .. } => match state {
                Some(CudaState::Running) => ParkState::Running,
                Some(CudaState::Locked) => ParkState::Locked,
                Some(CudaState::Checkpointed) => ParkState::Parked,
                Some(CudaState::Failed) => ParkState::Lost,
                Some(CudaState::Other(_)) | None => ParkState::Unknown,
            },
            JournalStep::Adopted(_)
            | JournalStep::Locking
            | JournalStep::Checkpointing
            | JournalStep::Restoring
            | JournalStep::Unlocking => ParkState::Unknown,
        };
        let failure = match &last.step {
            JournalStep::Failed { why, .. } => Some(why.clone()),
            _ => None,
        };
        let was_restored = entries.iter().any(|entry| entry.step == JournalStep::Restoring);
        Some(Self { process, state, since: last.time, was_restored, helper: last.helper, failure })
    }
}

impl ParkRecord {
    /// Corrects the record with a snapshot: a process that NVML lists is not parked. The owner may have restored what
    /// root has parked, and root does not read the owner's journal.
    pub fn corrected(mut self, snapshot: &Snapshot) -> Self {
        let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
        let mut rows = rows.filter(|row| row.pid == self.process.pid);
        if self.state == ParkState::Parked
            && rows.any(|row| row.used_bytes.is_some_and(|bytes| bytes > 0))
        {
            (self.state, self.was_restored) = (ParkState::Running, true);
        }
        self
    }

    fn mark(&self) -> ParkMark {
        let (state, since, was_restored) = (self.state, self.since, self.was_restored);
        ParkMark { state, since, bytes: self.process.bytes(), was_restored }
    }
}

/// The journals in a state directory.
#[derive(Clone, Debug)]
pub struct Journals {
    /// Directories, the one for new journals first.
    folders: Vec<PathBuf>,
}

impl Journals {
    /// Reads the journals in these state directories. New ones are written to the first.
    pub fn new<'a>(states: impl IntoIterator<Item = &'a Path>) -> Self {
        Self { folders: states.into_iter().map(|state| state.join(FOLDER)).collect() }
    }

    /// Returns the records of all processes that still exist, oldest first.
    pub fn read(&self, roots: &Roots) -> Vec<ParkRecord> {
        let boot_id = read_host(roots).boot_id;
        let mut records: Vec<ParkRecord> = Vec::new();
        for path in self.paths() {
            let Ok(Some(record)) = read_record(&path) else { continue };
            if !record.process.exists(roots, boot_id.as_deref()) {
                continue;
            }
            let is_same =
                |other: &&mut ParkRecord| other.process.identity() == record.process.identity();
            // Two users can have acted on the same process. The latest step counts.
            match records.iter_mut().find(is_same) {
                Some(other) => {
                    let was_restored = other.was_restored || record.was_restored;
                    if record.since > other.since {
                        *other = record;
                    }
                    other.was_restored = was_restored;
                }
                None => records.push(record),
            }
        }
        records.sort_by_key(|record| (record.since, record.process.pid));
        records
    }

    /// Deletes the journals of processes that no longer exist. Skips journals of other users and those that a helper has
    /// locked, even if it has written nothing yet.
    pub fn prune(&self, roots: &Roots) {
        let boot_id = read_host(roots).boot_id;
        for path in self.paths() {
            let lock_path = path.with_extension(LOCK);
            let Ok(lock) = open_output(&lock_path, OFlags::empty(), 0o600) else { continue };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let is_over = match read_content(&path) {
                // A helper that refused has written nothing.
                Ok(Some(content)) if content.is_empty() => true,
                Ok(Some(content)) => ParkRecord::parse(&content, false)
                    .is_some_and(|record| record.process.is_gone(roots, boot_id.as_deref())),
                Ok(None) | Err(_) => false,
            };
            if is_over {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_file(&lock_path);
            }
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        let folders = self.folders.iter().filter_map(|folder| fs::read_dir(folder).ok());
        let files = folders.flatten().filter_map(|entry| Some(entry.ok()?.path()));
        files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect()
    }

    fn sizes(&self) -> Vec<(PathBuf, u64)> {
        let size = |path: PathBuf| Some((path.clone(), fs::metadata(path).ok()?.len()));
        let mut sizes: Vec<(PathBuf, u64)> = self.paths().into_iter().filter_map(size).collect();
        sizes.sort_unstable();
        sizes
    }

    /// Takes the lock under which a helper compares the available host memory with what it will allocate.
    pub fn lock_memory(&self) -> io::Result<File> {
        let folder = self.folders.first().ok_or(io::ErrorKind::NotFound)?;
        let file = open_output(&folder.join("memory.lock"), OFlags::empty(), 0o600)?;
        for _ in 0..MEMORY_ATTEMPTS {
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(file);
            }
            thread::sleep(PAUSE);
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "another park is being checked; try again"))
    }

    /// Opens the journal of a process and locks it. Fails if another helper is at work.
    pub fn open(&self, process: (&str, u32, u64)) -> io::Result<Journal> {
        let (boot_id, pid, start_ticks) = process;
        let is_plain = boot_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let folder = self.folders.first().filter(|_| is_plain);
        let folder = folder.ok_or_else(|| io::Error::other("the boot id is not valid"))?;
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{boot_id}-{pid}-{start_ticks}.jsonl"));
        let mut attempts = 0..ATTEMPTS;
        loop {
            let lock_path = path.with_extension(LOCK);
            let lock = open_output(&lock_path, OFlags::empty(), 0o600)?;
            let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
            // The file may have been deleted in the meantime.
            let is_current = || {
                let (opened, current) = (lock.metadata().ok()?, fs::metadata(&lock_path).ok()?);
                Some(opened.ino() == current.ino())
            };
            if locked.is_ok() && is_current() == Some(true) {
                let file = open_output(&path, OFlags::APPEND, 0o644)?;
                // Whatever the umask, everyone may read it, so that an owner can restore what root has parked.
                file.set_permissions(Permissions::from_mode(0o644))?;
                fs::set_permissions(folder, Permissions::from_mode(0o755))?;
                File::open(folder)?.sync_all()?;
                return Ok(Journal { file, _lock: lock });
            }
            if attempts.next().is_none() {
                let why =
                    "another gpumem is parking or unparking the process; see `gpumem park --list`";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            thread::sleep(PAUSE);
        }
    }
}

/// A locked journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    _lock: File,
}

impl Journal {
    /// Reads the record in the journal. Returns `None` if it is empty.
    pub fn record(&mut self) -> io::Result<Option<ParkRecord>> {
        let mut content = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        (&self.file).take(MAX_BYTES).read_to_end(&mut content)?;
        Ok(ParkRecord::parse(&content, false))
    }

    /// Writes a step. Returns only after it is on disk.
    pub fn write(&mut self, step: JournalStep) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length >= MAX_BYTES - (64 << 10) {
            return Err(io::Error::other(
                "the journal is full; restart the process to use it again",
            ));
        }
        // A helper that was killed may have left an incomplete line, so each step begins with a new line.
        let mut line = if length == 0 { Vec::new() } else { vec![b'\n'] };
        json::append(
            &mut line,
            &JournalEntry { time: read_time(), helper: std::process::id(), step },
        )?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.file.sync_data()
    }
}

fn open_read(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

fn read_record(path: &Path) -> io::Result<Option<ParkRecord>> {
    // Closing the file releases the shared lock. Another user's lock cannot be opened.
    let is_locked = open_read(&path.with_extension(LOCK))
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_err());
    Ok(read_content(path)?.and_then(|content| ParkRecord::parse(&content, is_locked)))
}

/// Reads a journal. Returns `None` if it is no regular file or too long.
fn read_content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = open_read(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Ok(None);
    }
    let mut content = Vec::new();
    (&file).take(MAX_BYTES).read_to_end(&mut content)?;
    Ok(Some(content))
}

/// Marks the processes in snapshots from the journals, which are read again when they change.
#[derive(Debug)]
pub struct ParkLog {
    journals: Journals,
    roots: Roots,
    /// Sizes of the journals when they were last read.
    read: Vec<(PathBuf, u64)>,
    records: Vec<ParkRecord>,
}

impl ParkLog {
    pub fn new(journals: Journals, roots: Roots) -> Self {
        Self { journals, roots, read: Vec::new(), records: Vec::new() }
    }

    /// Returns the pids of the processes that are parked and still exist. NVML does not list them.
    pub fn pids(&mut self) -> Vec<u32> {
        let current = self.journals.sizes();
        // While a helper works, its lock can change without its journal.
        let is_moving = |record: &ParkRecord| record.state == ParkState::InProgress;
        if current != self.read || self.records.iter().any(is_moving) {
            self.records = self.journals.read(&self.roots);
            self.read = current;
        }
        let is_parked = |record: &&ParkRecord| record.state != ParkState::Running;
        self.records.iter().filter(is_parked).map(|record| record.process.pid).collect()
    }

    /// Sets `park` of each process in the journals.
    pub fn mark(&mut self, snapshot: &mut Snapshot) {
        self.pids();
        for record in &self.records {
            let record = record.clone().corrected(snapshot);
            let identity = record.process.identity();
            let mut processes = snapshot.processes.iter_mut();
            if let Some(process) = processes.find(|process| process.identity() == identity) {
                process.park = Some(Arc::new(record.mark()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> ParkedProcess {
        let roots = Roots::default();
        let pid = std::process::id();
        ParkedProcess {
            pid,
            start_ticks: read_start_ticks(&roots.proc, pid).unwrap().unwrap(),
            uid: 0,
            boot_id: read_host(&roots).boot_id.unwrap(),
            name: "python".into(),
            notebook: None,
            driver_version: "580.1".into(),
            gpus: vec![ParkedGpu { index: 0, uuid: "GPU-0".into(), bytes: 7 }],
        }
    }

    #[test]
    fn the_state_follows_the_last_complete_step() {
        let (folder, roots) = (tempfile::tempdir().unwrap(), Roots::default());
        let journals = Journals::new([folder.path()]);
        let process = process();
        let name = (&*process.boot_id, process.pid, process.start_ticks);
        let state = || journals.read(&roots).first().map(|record| record.state);
        let mut journal = journals.open(name).unwrap();
        assert!(journals.open(name).is_err(), "the journal is locked");
        let failed = |state| JournalStep::Failed { why: "x".to_owned(), state };
        for (step, expected) in [
            (JournalStep::Intent(process.clone()), ParkState::Running),
            (JournalStep::Locking, ParkState::Unknown),
            (JournalStep::Checkpointing, ParkState::Unknown),
            (JournalStep::Parked { left_bytes: None }, ParkState::Parked),
            (JournalStep::Restoring, ParkState::Unknown),
            (failed(None), ParkState::Unknown),
            (failed(Some(CudaState::Failed)), ParkState::Lost),
            (failed(Some(CudaState::Locked)), ParkState::Locked),
            (failed(Some(CudaState::Checkpointed)), ParkState::Parked),
            (JournalStep::Unlocking, ParkState::Unknown),
            (JournalStep::Running, ParkState::Running),
        ] {
            journal.write(step).unwrap();
            assert_eq!(state(), Some(ParkState::InProgress));
            assert_eq!(journal.record().unwrap().unwrap().state, expected);
        }
        // A helper that is killed while it writes leaves an incomplete line.
        journal.file.write_all(br#"{"time":"#).unwrap();
        drop(journal);
        assert_eq!(state(), Some(ParkState::Running));
        let mut journal = journals.open(name).unwrap();
        journal.write(JournalStep::Parked { left_bytes: None }).unwrap();
        drop(journal);
        let record = journals.read(&roots).remove(0);
        assert!(record.was_restored && record.state == ParkState::Parked, "{record:?}");
        assert_eq!(record.process, process);
    }

    #[test]
    fn a_record_of_another_process_is_ignored_and_pruned() {
        let (folder, roots) = (tempfile::tempdir().unwrap(), Roots::default());
        let journals = Journals::new([folder.path()]);
        let process = process();
        let other_boot = ParkedProcess { boot_id: "another".into(), ..process.clone() };
        let reused = ParkedProcess { start_ticks: process.start_ticks - 1, ..process.clone() };
        for process in [other_boot, reused, process] {
            let name = (&*process.boot_id, process.pid, process.start_ticks);
            let mut journal = journals.open(name).unwrap();
            journal.write(JournalStep::Intent(process.clone())).unwrap();
        }
        assert_eq!(journals.read(&roots).len(), 1);
        journals.prune(&roots);
        assert_eq!(journals.paths().len(), 1);
        fs::write(&journals.paths()[0], "no journal\n").unwrap();
        assert_eq!(journals.read(&roots), []);
        // A helper has opened its journal, and checks the process before it writes.
        let helper = journals.open(("another", 7, 70)).unwrap();
        journals.prune(&roots);
        assert_eq!(journals.paths().len(), 2);
        drop(helper);
        journals.prune(&roots);
        assert_eq!(journals.paths().len(), 1, "an unreadable journal is kept");
    }
}
