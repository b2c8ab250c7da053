//! The snapshot file: one JSON snapshot a line, as `gpumem record` writes it and `--replay` reads it.
//!
//! [`RecordingReader`] streams snapshots out of a file of any size, plain or compressed, and steps over what
//! is damaged; [`Writer`] appends them so that whatever interrupts it costs at most the line at
//! hand; [`store`] is a ring of such files that outlives the command. None of them knows what a
//! snapshot means: that is for `rules`. To play a recording at a pace, go to
//! [`crate::source::replay`]; the format itself is [`crate::model::snapshot`].

mod reader;
mod rewind;
pub mod store;
#[cfg(test)]
mod testing;
mod writer;

use std::io;
use std::path::PathBuf;

pub use reader::{Damage, Flaw, RecordingReader};
pub use writer::{Rotation, Writer};

use crate::model::Time;
use crate::model::snapshot::SCHEMA;

/// Why a recording cannot be read or written.
///
/// What the system said is part of each message, in the middle of it; so there is no
/// [`source`](std::error::Error::source) to print behind it.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It cannot be opened for reading.
    #[error("cannot open {name}: {}; name a recording made by `gpumem record`", plain(.cause))]
    Open { name: String, cause: io::Error },
    /// A directory was named where a file is needed.
    #[error("{} is a directory; name a file in it, such as {}", .path.display(), .path.join("recording.jsonl").display())]
    Directory { path: PathBuf },
    /// Reading failed on the way.
    #[error("cannot read {name} beyond line {line}: {}; copy it from where it can be read whole", plain(.cause))]
    Read {
        name: String,
        /// The last line that was read, from 1; 0 where there was none.
        line: u64,
        cause: io::Error,
    },
    /// It is of another major version of the format.
    #[error(
        "{name}, line {line}: its schema is {found:?} and this gpumem reads {SCHEMA:?}; read it with the version of gpumem that recorded it"
    )]
    Schema { name: String, line: u64, found: String },
    /// It ended and there was no snapshot in it.
    #[error("{name} holds no snapshot ({}); give it what `gpumem record` writes: one JSON snapshot a line, plain or compressed with zstd", blame(.first.as_ref()))]
    Empty {
        name: String,
        /// What was wrong first; `None` where it holds no text at all.
        first: Option<Damage>,
    },
    /// There was nothing but what is no snapshot for so long that it may have no end.
    #[error("{name}, line {line}: {}", barren(*.found, .last.as_ref()))]
    Barren {
        name: String,
        /// The line at which it was given up, from 1.
        line: u64,
        /// The line of the last snapshot; 0 where there was none.
        found: u64,
        /// What was wrong last; `None` where all of it was blank.
        last: Option<Flaw>,
    },
    /// It cannot be opened or created for writing.
    #[error("cannot record to {name}: {}; name a file in a directory that exists and that you may write to", plain(.cause))]
    Create { name: String, cause: io::Error },
    /// A compressed file cannot be appended to a line at a time.
    #[error(
        "cannot record to {name}: it is compressed; record to a .jsonl file and compress it afterwards with `zstd FILE.jsonl`"
    )]
    Compressed { name: String },
    /// What is in the file is no recording.
    #[error("cannot record to {name}: it holds something else than a recording; name another file")]
    Foreign { name: String },
    /// Root does not write into what another user has put there.
    #[error(
        "cannot record to {name}: as root only to a file of root's, and this is of uid {uid}; name another file"
    )]
    Others { name: String, uid: u32 },
    /// Another recorder has the file.
    #[error(
        "cannot record to {name}: another gpumem is recording to it; stop that one or name another file"
    )]
    Busy { name: String },
    /// A line could not be written whole.
    #[error("cannot write {name}: {}; {}; {}", plain(.cause), kept(*.whole, *.torn), writer::remedy(.cause))]
    Write {
        name: String,
        cause: io::Error,
        /// The time of the last snapshot that this writer wrote whole; `None` where there is none.
        whole: Option<Time>,
        /// Part of the line is left at the end of the file and could not be taken back.
        torn: bool,
    },
    /// The reader of a pipe has gone; not a failure of ours, and a reason to end quietly.
    #[error("{name} was closed by its reader")]
    Closed { name: String },
    /// A full file could not be moved out of the way.
    #[error("cannot rename {} to {}: {}; make the directory writable or record without rotation", .from.display(), .to.display(), plain(.cause))]
    Rotate { from: PathBuf, to: PathBuf, cause: io::Error },
    /// A directory cannot be made a store, or be written to.
    #[error("cannot keep a store in {}: {}; name a directory that you may write to with --store-dir", .folder.display(), plain(.cause))]
    StoreUnwritable { folder: PathBuf, cause: io::Error },
    /// Another recorder has the store.
    #[error(
        "cannot record to the store {}: {} is recording to it; stop that one or name another directory with --store-dir",
        .folder.display(), holder(*.pid)
    )]
    StoreBusy {
        folder: PathBuf,
        /// The other one's pid, where it says it.
        pid: Option<u32>,
    },
    /// A frame could not be written; all before it is whole.
    #[error("cannot write to the store {}: {}; {}", .folder.display(), plain(.cause), writer::remedy(.cause))]
    StoreWrite { folder: PathBuf, cause: io::Error },
    /// A directory cannot be listed.
    #[error("cannot read the store {}: {}; name the directory that `gpumem record --store` writes to", .folder.display(), plain(.cause))]
    StoreUnreadable { folder: PathBuf, cause: io::Error },
    /// Part of a segment cannot be read; it was stepped over.
    #[error("{name}, {damage}{}; the rest of the store is intact", others(*.more))]
    Damaged {
        name: String,
        damage: Damage,
        /// How many more lines of it are damaged.
        more: u64,
    },
}

/// Who has a store.
fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another gpumem".to_owned(), |pid| format!("the gpumem with pid {pid}"))
}

/// Damage beyond the first.
fn others(more: u64) -> String {
    match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}

/// The system's own words, in lower case and without the number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words);
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// Why there is no snapshot in a file.
fn blame(first: Option<&Damage>) -> String {
    first.map_or_else(|| "it is empty".to_owned(), ToString::to_string)
}

/// What there was in place of a snapshot, and what to do next.
fn barren(found: u64, last: Option<&Flaw>) -> String {
    let last = last.map_or_else(|| "blank lines".to_owned(), ToString::to_string);
    match found {
        0 => format!(
            "no snapshot so far ({last}); give it what `gpumem record` writes: one JSON snapshot a line, \
             plain or compressed with zstd"
        ),
        found => format!(
            "no snapshot since line {found} ({last}); cut it off there with `head -n {found}`"
        ),
    }
}

/// What a failed write has left.
fn kept(whole: Option<Time>, torn: bool) -> String {
    let mut text = match whole {
        Some(time) => format!("the recording is whole up to {}", time.local()),
        None => "nothing of this run is in it".to_owned(),
    };
    if torn {
        text.push_str("; the file ends with a torn line");
    }
    text
}

/// Whether bytes begin as zstd does: a frame, or one of the skippable frames that some compressors
/// put first.
fn is_zstd(head: &[u8]) -> bool {
    matches!(head, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}
