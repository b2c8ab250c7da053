//! The journal: what gpumem has done with a process's GPU state.
//!
//! Each line is a [`ParkRecord`]. The line for a call is on disk before the call is made. If the helper dies, the last
//! complete line shows what had happened or was about to happen. Each user writes their own file for a process. gpumem
//! ignores a file that belongs neither to root nor to the process's owner. If both have a file, the newer line counts.
//! If [`SHARED`] exists, all users write there, so that root sees each restore.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::host::{Roots, open_output, read_host, read_start_ticks};
use crate::model::process::{ParkMark, ParkState};
use crate::model::{Identity, Snapshot, Start, Time, json};
use crate::reclaim::target::ProcessToPark;

/// Maximum number of bytes read from the end of a journal, more than the longest line.
const READ_BYTES: u64 = 64 << 10;
/// Directory in which all users write once root has parked a process. Like parked memory, its content does not survive
/// a reboot.
pub const SHARED: &str = "/run/gpumem-park";
/// Mode of [`SHARED`]. All users can create files there, but can delete only their own.
const SHARED_MODE: u32 = 0o1777;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParkedGpu {
    pub index: u32,
    pub uuid: Arc<str>,
    pub bytes: u64,
}

/// A step of the helper. A step whose name ends in `-ing` is written before its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkStep {
    Intent,
    Locking,
    Checkpointing,
    Parked,
    Restoring,
    Unlocking,
    Running,
    /// The driver was queried for the state, because the operation had failed or the helper had died.
    Asked,
}

/// A line of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParkRecord {
    pub time: Time,
    /// Pid and start ticks of the helper that wrote the line.
    pub helper: (u32, u64),
    pub step: ParkStep,
    /// State of the process if the helper dies after this line.
    pub state_without_helper: ParkState,
    /// Why the last operation failed.
    pub failure: Option<String>,
    /// Whether a restore of the process has ever begun, perhaps by another program.
    pub was_restored: bool,
    pub boot_id: Arc<str>,
    /// Version of the driver, which must not change before the restore.
    pub driver_version: Arc<str>,
    /// Memory of the process on each GPU before the first call.
    pub gpus: Vec<ParkedGpu>,
    pub process: ProcessToPark,
}

impl ParkRecord {
    pub fn identity(&self) -> Identity {
        Identity { pid: self.process.pid, start: Start::Ticks(self.process.start_ticks) }
    }

    pub fn state(&self) -> ParkState {
        let is_last = matches!(self.step, ParkStep::Parked | ParkStep::Running | ParkStep::Asked);
        let (pid, start) = self.helper;
        match !is_last && start_ticks(pid).is_ok_and(|now| now == Some(start)) {
            true => ParkState::InProgress,
            false => self.state_without_helper,
        }
    }

    /// If the snapshot shows GPU memory of a parked process, marks the process as restored. Another program may have
    /// restored it, or its owner may have restored it before [`SHARED`] existed.
    pub fn corrected(mut self, snapshot: &Snapshot) -> Self {
        let mut rows = snapshot.rows_of(self.process.pid);
        if self.state() == ParkState::Parked && rows.any(|row| row.used_bytes > Some(0)) {
            (self.state_without_helper, self.was_restored) = (ParkState::Running, true);
        }
        self
    }

    /// Reads the last complete line of a file, and the file's owner.
    fn read_last(path: &Path) -> io::Result<(Option<Self>, u32)> {
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        let mut content = Vec::new();
        if metadata.is_file() {
            file.seek(SeekFrom::Start(metadata.len().saturating_sub(READ_BYTES)))?;
            file.take(READ_BYTES).read_to_end(&mut content)?;
        }
        let mut lines = content.split_inclusive(|&byte| byte == b'\n').rev();
        let last = lines.find_map(|line| serde_json::from_slice(line.strip_suffix(b"\n")?).ok());
        Ok((last, metadata.uid()))
    }
}

pub fn start_ticks(pid: u32) -> io::Result<Option<u64>> {
    read_start_ticks(&Roots::default().proc, pid).map_err(io::Error::other)
}

/// The directories with journals. New journals are written to the first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Journals(pub Vec<PathBuf>);

impl Journals {
    /// Returns the records of all processes that still exist, oldest first. Deletes the journals of processes that no
    /// longer exist, if permitted.
    pub fn read(&self) -> Vec<ParkRecord> {
        let roots = Roots::default();
        let mut records: Vec<ParkRecord> = Vec::new();
        let folders = self.0.iter().filter_map(|folder| fs::read_dir(folder).ok());
        let files = folders.flatten().filter_map(|entry| Some(entry.ok()?.path()));
        for path in files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")) {
            let Ok((Some(record), writer)) = ParkRecord::read_last(&path) else { continue };
            let Some(boot_id) = read_host(&roots).boot_id else { continue };
            let pid = record.process.pid;
            let start = if boot_id == record.boot_id { start_ticks(pid) } else { Ok(None) };
            if start.as_ref().is_ok_and(|start| *start != Some(record.process.start_ticks)) {
                let _ = fs::remove_file(&path);
                continue;
            }
            let owner = fs::metadata(roots.proc.join(pid.to_string())).map(|entry| entry.uid());
            if start.is_err() || !(writer == 0 || owner.is_ok_and(|owner| owner == writer)) {
                continue;
            }
            match records.iter_mut().find(|other| other.identity() == record.identity()) {
                Some(other) => {
                    let was_restored = other.was_restored || record.was_restored;
                    if record.time > other.time {
                        *other = record;
                    }
                    other.was_restored = was_restored;
                }
                None => records.push(record),
            }
        }
        records.sort_by_key(|record| (record.time, record.process.pid));
        records
    }

    /// Adds a line. Returns only after it is on disk.
    pub fn append(&self, record: &ParkRecord) -> io::Result<()> {
        let folder = self.0.first().ok_or(io::ErrorKind::NotFound)?;
        let user = geteuid();
        if !folder.is_dir() {
            fs::create_dir_all(folder)?;
            if folder.as_path() == Path::new(SHARED) {
                fs::set_permissions(folder, Permissions::from_mode(SHARED_MODE))?;
            }
        }
        let name = record.identity().exact_name(&record.boot_id);
        let name = name.ok_or_else(|| io::Error::other("the boot id is not valid"))?;
        let path = folder.join(format!("{name}.{}.jsonl", user.as_raw()));
        let mut file = open_output(&path, OFlags::APPEND, 0o600)?;
        if user.is_root() {
            // Let the owner read the journal, so that the owner can restore a process that root has parked.
            file.set_permissions(Permissions::from_mode(0o644))?;
        }
        // A helper that was killed may have left an incomplete line, so each line begins with a line feed.
        let mut line = vec![b'\n'];
        json::append(&mut line, record)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_data()?;
        File::open(folder)?.sync_all()
    }

    /// Returns the pids of the recorded processes that are not known to be running normally. NVML may not list them.
    pub fn parked_pids(&self) -> Vec<u32> {
        let mut records = self.read();
        records.retain(|record| record.state() != ParkState::Running);
        records.iter().map(|record| record.process.pid).collect()
    }

    /// Sets `park` for each process in the snapshot that has a journal.
    pub fn mark(&self, snapshot: &mut Snapshot) {
        for record in self.read() {
            let record = record.corrected(snapshot);
            let mark = ParkMark {
                state: record.state(),
                since: record.time,
                bytes: record.process.bytes,
                was_restored: record.was_restored,
            };
            let mut processes = snapshot.processes.iter_mut();
            if let Some(process) = processes.find(|other| other.identity() == record.identity()) {
                process.park = Some(Arc::new(mark));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::read_time;

    /// Creates a record of this process, written by a helper that has exited.
    fn record(state: ParkState) -> ParkRecord {
        let pid = std::process::id();
        ParkRecord {
            time: read_time(),
            helper: (pid, 0),
            step: ParkStep::Checkpointing,
            state_without_helper: state,
            failure: None,
            was_restored: false,
            boot_id: read_host(&Roots::default()).boot_id.unwrap(),
            driver_version: "580.1".into(),
            gpus: vec![ParkedGpu { index: 0, uuid: "GPU-0".into(), bytes: 7 }],
            process: ProcessToPark {
                pid,
                start_ticks: start_ticks(pid).unwrap().unwrap(),
                uid: 0,
                name: "python".into(),
                notebook: None,
                bytes: 7,
                has_release: false,
            },
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn the_last_complete_line_counts() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals(vec![folder.path().join("park")]);
        assert_eq!(journals.read(), []);
        let mut record = record(ParkState::Unknown);
        journals.append(&record).unwrap();
        assert_eq!(journals.read(), [record.clone()]);
        assert_eq!(record.state(), ParkState::Unknown);
        // The operation is in progress until the helper writes its last step.
        record.helper.1 = record.process.start_ticks;
        assert_eq!(record.state(), ParkState::InProgress);
        (record.step, record.state_without_helper) = (ParkStep::Parked, ParkState::Parked);
        record.was_restored = true;
        journals.append(&record).unwrap();
        assert_eq!(journals.read()[0].state(), ParkState::Parked);
        // A helper that is killed while it writes leaves an incomplete line.
        let path = &files(&folder.path().join("park"))[0];
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"\n{\"time\":").unwrap();
        assert_eq!(journals.read(), [record.clone()]);
        record.failure = Some("x".to_owned());
        journals.append(&record).unwrap();
        assert_eq!(journals.read(), [record.clone()]);
        // An older line in another directory, such as the owner's, does not replace the newer line.
        let other = Journals(vec![folder.path().join("other")]);
        let older = ParkRecord { time: Time::default(), was_restored: false, ..record.clone() };
        other.append(&older).unwrap();
        let both = Journals([journals.0, other.0].concat());
        assert_eq!(both.read(), [record]);
    }

    #[test]
    fn journals_of_other_processes_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals(vec![folder.path().to_owned()]);
        let record = record(ParkState::Parked);
        journals.append(&record).unwrap();
        journals.append(&ParkRecord { boot_id: "another".into(), ..record.clone() }).unwrap();
        let mut reused = record.clone();
        reused.process.start_ticks -= 1;
        journals.append(&reused).unwrap();
        fs::write(folder.path().join("damaged.jsonl"), "no journal\n").unwrap();
        assert_eq!(files(folder.path()).len(), 4);
        assert_eq!(journals.read(), [record]);
        assert_eq!(files(folder.path()).len(), 2, "a damaged journal is kept");
    }
}
