//! Writes a store: appends frames, begins segments, and removes the oldest segments to limit age and size.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags};
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use super::{Segment, list, name_of};
use crate::host::open_output;
use crate::model::json;
use crate::model::{Snapshot, Time};
use crate::recording::RecordingError;
use crate::units::MIB;

/// Name of the lock file, which the writer locks and which contains the writer's pid.
const LOCK: &str = "lock";
/// Maximum time, in milliseconds, that a snapshot waits to be compressed together with later snapshots.
const FRAME_MILLISECONDS: i64 = 10_000;
/// Maximum number of bytes of text that wait to be compressed together.
const FRAME_BYTES: usize = 256 << 10;
/// Maximum time span of a segment, in milliseconds.
const SEGMENT_MILLISECONDS: i64 = 600_000;
/// Maximum size of a segment, in bytes.
const SEGMENT_BYTES: u64 = 16 * MIB;
/// Minimum number of segments into which the limits are divided, so that each segment is a small part of the store.
const SEGMENTS: u32 = 8;
/// Maximum number of bytes of text that are kept for another attempt after writing failed.
const MAX_PENDING: usize = 4 << 20;
/// Compression level of zstd. It takes little CPU time, and the output is a third as large as at the fastest level.
const LEVEL: i32 = 3;

/// Limits of a store. The current segment is never removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreLimits {
    /// A segment is removed if it ended longer than this before the latest snapshot.
    pub max_age: Duration,
    /// Maximum total size. The oldest segments are removed before the store exceeds this size.
    pub max_bytes: u64,
}

impl StoreLimits {
    fn segment_milliseconds(self) -> i64 {
        let share = (self.max_age / SEGMENTS).as_millis();
        i64::try_from(share).map_or(SEGMENT_MILLISECONDS, |share| share.min(SEGMENT_MILLISECONDS))
    }

    fn segment_bytes(self) -> u64 {
        (self.max_bytes / u64::from(SEGMENTS)).min(SEGMENT_BYTES)
    }
}

/// Users who can read new files, unless the umask excludes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Owner,
    Everyone,
}

impl Access {
    fn folder_mode(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            Self::Everyone => 0o755,
        }
    }

    fn file_mode(self) -> u32 {
        self.folder_mode() & 0o666
    }
}

/// Writes a store, which has at most one writer. If writing fails, the incomplete frame is removed if possible, and the
/// next call tries again.
pub struct StoreWriter {
    folder: PathBuf,
    limits: StoreLimits,
    access: Access,
    /// The lock file. Closing it would release the lock.
    _lock: File,
    compressor: Compressor<'static>,
    /// All segments, oldest first. The last segment belongs to `current`, if set.
    segments: VecDeque<Segment>,
    current: Option<Current>,
    pending: PendingSegment,
    last: Option<Time>,
    interval: i64,
    lost: u64,
}

struct Current {
    file: File,
    /// Time of the first snapshot. The time in the file name may be later.
    first: Time,
}

#[derive(Default)]
struct PendingSegment {
    text: Vec<u8>,
    snapshots: u64,
    first: Option<Time>,
}

impl StoreWriter {
    /// Opens the store in a directory, and creates a missing directory. Always begins a new segment, because the last
    /// one may be torn.
    ///
    /// # Errors
    ///
    /// Returns an error if the path is not a writable directory, or if the store has another writer
    /// ([`RecordingError::StoreBusy`]).
    pub fn open(
        folder: &Path,
        limits: StoreLimits,
        access: Access,
    ) -> Result<Self, RecordingError> {
        let failed = |cause| RecordingError::StoreUnwritable { folder: folder.to_owned(), cause };
        DirBuilder::new()
            .recursive(true)
            .mode(access.folder_mode())
            .create(folder)
            .map_err(failed)?;
        let lock = lock(folder)?;
        let mut compressor = Compressor::new(LEVEL).map_err(failed)?;
        compressor.set_parameter(CParameter::ChecksumFlag(true)).map_err(failed)?;
        Ok(Self {
            folder: folder.to_owned(),
            limits,
            access,
            _lock: lock,
            compressor,
            segments: list(folder).map_err(failed)?.into(),
            current: None,
            pending: PendingSegment::default(),
            last: None,
            interval: 0,
            lost: 0,
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns how many snapshots were lost because writing failed for too long.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn is_behind(&self) -> bool {
        self.pending.snapshots > 0
    }

    /// Adds a snapshot. Writes the first snapshot immediately. Writes later snapshots together, within about ten
    /// seconds.
    ///
    /// # Errors
    ///
    /// Returns an error if a frame was due and could not be written. If the disk was full, old segments were removed
    /// first. The next call tries again.
    pub fn write(&mut self, snapshot: &Snapshot) -> Result<(), RecordingError> {
        if let Err(error) = json::append(&mut self.pending.text, snapshot) {
            return Err(self.failed(error.into()));
        }
        self.pending.text.push(b'\n');
        self.pending.snapshots += 1;
        let first = *self.pending.first.get_or_insert(snapshot.time);
        if let Some(last) = self.last.replace(snapshot.time) {
            self.interval = (snapshot.time - last).max(0);
        }
        // Age that the frame would reach if it waited for the next snapshot.
        let waits = (snapshot.time - first).saturating_add(self.interval);
        let due = self.current.is_none()
            || self.pending.text.len() >= FRAME_BYTES
            || waits >= FRAME_MILLISECONDS;
        if due { self.flush() } else { Ok(()) }
    }

    pub fn flush(&mut self) -> Result<(), RecordingError> {
        let Some(first) = self.pending.first else {
            return Ok(());
        };
        let result = match self.compressor.compress(&self.pending.text) {
            Ok(frame) => self.append(&frame, first),
            Err(cause) => Err(cause),
        };
        if let Err(cause) = result {
            if self.pending.text.len() > MAX_PENDING {
                self.lost += self.pending.snapshots;
                self.pending = PendingSegment::default();
            }
            return Err(self.failed(cause));
        }
        self.pending = PendingSegment::default();
        Ok(())
    }

    fn failed(&self, cause: io::Error) -> RecordingError {
        RecordingError::StoreWrite { folder: self.folder.clone(), cause }
    }

    /// Appends a frame whose first snapshot was taken at `first`. Removes old segments if necessary.
    fn append(&mut self, frame: &[u8], first: Time) -> io::Result<()> {
        let bytes = frame.len() as u64;
        self.end_segment_before(first, bytes);
        loop {
            let Err(cause) = self.try_append(frame, first) else {
                return Ok(());
            };
            let try_again = match cause.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => self.remove_oldest(),
                // The size limit applies to each file separately, so a new segment has room.
                io::ErrorKind::FileTooLarge => self.current.take().is_some(),
                _ => false,
            };
            if !try_again {
                return Err(cause);
            }
        }
    }

    fn try_append(&mut self, frame: &[u8], first: Time) -> io::Result<()> {
        if self.current.is_none() {
            self.begin(first)?;
        }
        self.make_room(frame.len() as u64);
        let (Some(current), Some(segment)) = (&mut self.current, self.segments.back_mut()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let Err(cause) = current.file.write_all(frame) else {
            segment.bytes += frame.len() as u64;
            return Ok(());
        };
        // If this would have been the first frame of a segment, remove the segment.
        if segment.bytes == 0 && fs::remove_file(&segment.path).is_ok() {
            self.segments.pop_back();
            self.current = None;
        } else if current.file.set_len(segment.bytes).is_err() {
            // The segment is torn, so the next frame must begin a new one.
            self.current = None;
        }
        Err(cause)
    }

    fn end_segment_before(&mut self, first: Time, bytes: u64) {
        let (Some(current), Some(segment)) = (&self.current, self.segments.back()) else {
            return;
        };
        let span = first - current.first;
        let full = span < 0
            || span >= self.limits.segment_milliseconds()
            || segment.bytes + bytes > self.limits.segment_bytes();
        if full {
            self.current = None;
        }
    }

    /// Begins a segment. The name sorts after the names of all other segments, even if the clock was set back.
    fn begin(&mut self, first: Time) -> io::Result<()> {
        // List the segments again, because other processes can remove segments.
        self.segments = list(&self.folder)?.into();
        let after = self
            .segments
            .back()
            .map(|latest| Time::from_unix_milliseconds(latest.start.unix_milliseconds() + 1));
        let start = after.map_or(first, |after| first.max(after));
        let path = self.folder.join(name_of(start));
        let flags = OFlags::APPEND | OFlags::EXCL;
        let file = open_output(&path, flags, self.access.file_mode())?;
        self.segments.push_back(Segment { start, path, bytes: 0 });
        self.current = Some(Current { file, first });
        Ok(())
    }

    fn make_room(&mut self, bytes: u64) {
        loop {
            let total: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
            let small_enough = total.saturating_add(bytes) <= self.limits.max_bytes;
            if (small_enough && !self.oldest_is_outdated()) || !self.remove_oldest() {
                return;
            }
        }
    }

    fn oldest_is_outdated(&self) -> bool {
        let (Some(now), Some(oldest)) = (self.last, self.segments.front()) else {
            return false;
        };
        // A segment ends when the next one begins or, if the writer paused, after the maximum time span.
        let longest = oldest.start.unix_milliseconds() + SEGMENT_MILLISECONDS;
        let longest = Time::from_unix_milliseconds(longest + FRAME_MILLISECONDS);
        let end = self.segments.get(1).map_or(longest, |next| next.start);
        now.seconds_since(end.min(longest)) > self.limits.max_age.as_secs_f64()
    }

    /// Removes the oldest segment, unless it is the current one. Returns whether a segment was removed.
    fn remove_oldest(&mut self) -> bool {
        let is_current = self.current.is_some() && self.segments.len() == 1;
        let Some(oldest) = self.segments.front().filter(|_| !is_current) else {
            return false;
        };
        let removed = match fs::remove_file(&oldest.path) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(()) => true,
        };
        if removed {
            self.segments.pop_front();
        }
        removed
    }
}

impl std::fmt::Debug for StoreWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreWriter").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn lock(folder: &Path) -> Result<File, RecordingError> {
    let failed = |cause| RecordingError::StoreUnwritable { folder: folder.to_owned(), cause };
    // Only the owner can open the lock file. Any user who could open it, even for reading, could lock it and block
    // the writer.
    let mode = Access::Owner.file_mode();
    let mut file = open_output(&folder.join(LOCK), OFlags::empty(), mode).map_err(failed)?;
    // If the file system has no locks, a second writer is not noticed.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        let mut text = String::new();
        let read = (&mut file).take(16).read_to_string(&mut text);
        return Err(RecordingError::StoreBusy {
            folder: folder.to_owned(),
            pid: read.ok().and_then(|_| text.trim().parse().ok()),
        });
    }
    // Ignore errors, because the pid is only shown to users.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", process::id()));
    Ok(file)
}
