//! The store: a ring of recordings in a directory.
//!
//! [`StoreWriter`] limits the age and size of the store, and [`Store`] reads it. A segment is a `.jsonl.zst` file named
//! after the time of its first snapshot, and consists of complete zstd frames with checksums. If gpumem crashes, only
//! the last frame can be damaged. A frame contains about ten seconds of snapshots. `--replay` and `zstd` can read
//! segments.
//!
//! Readers and the writer never wait for each other. The writer only appends frames, begins segments, and removes the
//! oldest segments. Readers tolerate a segment that disappears or ends with an incomplete frame. `cli::store` chooses
//! the directory and how far back to read.

mod ring;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zstd::zstd_safe::find_frame_compressed_size;

pub use ring::{Access, StoreLimits, StoreWriter};

use super::{Damage, Flaw, RecordingError, RecordingReader};
use crate::model::snapshot::Host;
use crate::model::{Snapshot, Time};
use crate::units::MIB;

const SUFFIX: &str = ".jsonl.zst";
/// Latest time that the name of a segment can contain, in milliseconds: almost the end of the year 9999.
const LAST_NAMEABLE: i64 = 253_402_207_199_999;
/// Maximum number of segments searched for the latest snapshot. The newest segments can be torn or empty.
const SEGMENTS_TRIED: usize = 4;
/// Maximum number of bytes of a segment that are read to find its latest snapshot. The writer's segments are smaller.
const SEGMENT_LIMIT: u64 = 64 * MIB;
/// Number of bytes of unpacked text after which the search for the latest snapshot stops. The writer's frames are
/// smaller.
const FRAME_LIMIT: u64 = 64 * MIB;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Segment {
    /// Time in the segment's name. No snapshot in the segment is older, unless the clock was set back.
    start: Time,
    path: PathBuf,
    bytes: u64,
}

/// The segments that the store's directory contained when it was listed.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    segments: Vec<Segment>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct LatestSnapshot {
    pub time: Time,
    pub host: Host,
    /// Seconds since the previous snapshot, or `None` if the last two frames of the segment contain no previous
    /// snapshot.
    pub interval_seconds: Option<f64>,
}

impl Store {
    /// Lists the segments in a directory. Other files are ignored. Takes no lock and writes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the path is missing, not a directory, or unreadable.
    pub fn open(folder: &Path) -> Result<Self, RecordingError> {
        match list(folder) {
            Ok(segments) => Ok(Self { folder: folder.to_owned(), segments }),
            Err(cause) => Err(RecordingError::StoreUnreadable { folder: folder.to_owned(), cause }),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Returns the latest complete snapshot, or `None` if there is none. Decodes only the ends of the newest few
    /// segments.
    pub fn latest(&self) -> Option<LatestSnapshot> {
        self.segments.iter().rev().take(SEGMENTS_TRIED).find_map(|segment| latest_of(&segment.path))
    }

    /// Returns the snapshots from `time` on, in the order in which they were written. Each segment is opened when the
    /// iteration reaches it. If a segment causes an error, the iteration continues with the next segment.
    pub fn since(&self, time: Time) -> SnapshotsSince {
        // A segment contains no snapshots that are newer than the start of the next segment.
        let over = |next: &Segment| next.start <= time;
        let skip = self.segments.iter().skip(1).take_while(|next| over(next));
        SnapshotsSince {
            time,
            segments: self.segments[skip.count()..].to_vec().into(),
            reader: None,
        }
    }
}

/// The iterator over the snapshots of a store that [`Store::since`] returns.
#[derive(Debug)]
pub struct SnapshotsSince {
    time: Time,
    segments: VecDeque<Segment>,
    reader: Option<RecordingReader>,
}

impl SnapshotsSince {
    /// Drops the oldest segments from the iteration until the rest has at most `bytes` of compressed data. Always keeps
    /// the newest segment. Returns whether a segment was dropped. Must be called before the first snapshot is read.
    pub fn keep_newest(&mut self, bytes: u64) -> bool {
        let mut total = 0;
        let kept = self.segments.iter().rev().take_while(|segment| {
            let newest = total == 0;
            total += segment.bytes;
            newest || total <= bytes
        });
        let left_out = self.segments.len() - kept.count();
        self.segments.drain(..left_out);
        left_out > 0
    }

    /// Returns the error for a damaged segment. If the newest segment is torn, it may still be growing, which is not an
    /// error.
    fn damage_error(
        &self,
        name: &str,
        damage: Option<&Damage>,
        count: u64,
    ) -> Option<RecordingError> {
        let damage = damage?;
        let grows = self.segments.is_empty()
            && matches!(damage.flaw, Flaw::TornCompression | Flaw::TornLine);
        (!grows).then(|| RecordingError::Damaged {
            name: name.to_owned(),
            damage: damage.clone(),
            more: count.saturating_sub(1),
        })
    }
}

impl Iterator for SnapshotsSince {
    type Item = Result<Snapshot, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(reader) = &mut self.reader else {
                let path = self.segments.pop_front()?.path;
                match open(&path) {
                    Ok(reader) => self.reader = reader,
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            match reader.next() {
                Some(Ok(snapshot)) if snapshot.time < self.time => {}
                Some(Ok(snapshot)) => return Some(Ok(snapshot)),
                // The segment has ended, or contains no valid snapshot.
                None | Some(Err(RecordingError::Empty { .. })) => {
                    let reader = self.reader.take()?;
                    let (first, count) = (reader.damage().first(), reader.damage_count());
                    if let Some(error) = self.damage_error(reader.name(), first, count) {
                        return Some(Err(error));
                    }
                }
                Some(Err(error)) => {
                    self.reader = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

fn list(folder: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Some(start) = entry.file_name().to_str().and_then(start_of) else {
            continue;
        };
        // `DirEntry::metadata` does not follow symbolic links. It fails if the entry has disappeared.
        match entry.metadata() {
            Ok(metadata) if metadata.is_file() => {
                segments.push(Segment { start, path: entry.path(), bytes: metadata.len() });
            }
            _ => {}
        }
    }
    segments.sort_by_key(|segment| segment.start);
    Ok(segments)
}

/// Returns the name of a segment, such as `20261121T130500.123Z.jsonl.zst`. Names sort by time.
fn name_of(start: Time) -> String {
    let nameable = start.unix_milliseconds().clamp(0, LAST_NAMEABLE);
    let mut name = Time::from_unix_milliseconds(nameable).to_string();
    name.retain(|c| c != '-' && c != ':');
    name + SUFFIX
}

fn start_of(name: &str) -> Option<Time> {
    let text = name.strip_suffix(SUFFIX)?;
    let start: Time = text.parse().ok()?;
    (name_of(start) == name).then_some(start)
}

/// Opens a segment without following a symbolic link or waiting for a FIFO. Returns `None` if the segment was removed.
fn open(path: &Path) -> Result<Option<RecordingReader>, RecordingError> {
    let name = path.display().to_string();
    match open_file(path) {
        Ok(file) => RecordingReader::from_read(file, name).map(Some),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(RecordingError::Open { name, cause }),
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Returns the latest complete snapshot in a segment, or `None` if there is none. Decodes only the last two frames.
fn latest_of(path: &Path) -> Option<LatestSnapshot> {
    let mut bytes = Vec::new();
    let file = open_file(path).ok()?;
    file.take(SEGMENT_LIMIT).read_to_end(&mut bytes).ok()?;
    let (mut before, mut last, mut end) = (0, 0, 0);
    while let Ok(length @ 1..) = find_frame_compressed_size(&bytes[end..]) {
        (before, last) = (last, end);
        end += length;
    }
    let last_two_from = |from: usize| {
        let frames = Cursor::new(bytes[from..end].to_vec());
        let mut reader = RecordingReader::from_read(frames, "").ok()?;
        let mut two = (None, None);
        while reader.bytes() < FRAME_LIMIT {
            match reader.next() {
                Some(Ok(snapshot)) => two = (two.1, Some(snapshot)),
                Some(Err(_)) | None => break,
            }
        }
        Some(two)
    };
    let (previous, latest) = match last_two_from(last)? {
        (Some(previous), latest) => (Some(previous), latest),
        (None, _) => last_two_from(before)?,
    };
    let latest = latest?;
    Some(LatestSnapshot {
        time: latest.time,
        interval_seconds: previous
            .map(|previous: Snapshot| latest.time.seconds_since(previous.time)),
        host: latest.host,
    })
}

#[cfg(test)]
mod tests;
