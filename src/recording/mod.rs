//! Recordings: files with one JSON snapshot per line, which `gpumem record` writes and `--replay` reads.
//!
//! [`RecordingReader`] streams snapshots from a file of any size, compressed or not, and skips damaged lines.
//! [`Writer`] appends snapshots; an interruption damages at most the line being written. [`store`] is a persistent
//! ring of recordings in a directory. [`crate::model::snapshot`] defines the format, and [`crate::source::replay`]
//! plays recordings.

mod reader;
pub mod store;
mod writer;

use std::io;
use std::path::PathBuf;

pub use reader::{Damage, Flaw, RecordingReader};
pub use writer::Writer;

use crate::model::Time;
use crate::model::snapshot::SCHEMA;
use crate::units::system_message;

/// Why a recording cannot be read or written.
///
/// The messages already contain the system's error, so [`source`](std::error::Error::source) returns `None`.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("cannot open {name}: {}; choose a recording made by `gpumem record`", system_message(.cause))]
    Open { name: String, cause: io::Error },
    #[error("{} is a directory; choose a file in it, such as {}", .path.display(), .path.join("recording.jsonl").display())]
    Directory { path: PathBuf },
    #[error("cannot read {name} after line {line}: {}; copy it again from the original", system_message(.cause))]
    Read {
        name: String,
        /// Number of the last line that was read, counting from 1, or 0 if none was read.
        line: u64,
        cause: io::Error,
    },
    /// The recording's format has a different major version.
    #[error(
        "{name}, line {line}: unsupported schema {found:?}, expected {SCHEMA:?}; use the version of gpumem that recorded the file"
    )]
    Schema { name: String, line: u64, found: String },
    #[error("{name} contains no snapshot ({}); expected a recording by `gpumem record`: one JSON snapshot per line, plain or compressed with zstd", describe_damage(.first.as_ref()))]
    Empty {
        name: String,
        /// The first damage in the file, or `None` if the file is empty or contains only blank lines.
        first: Option<Damage>,
    },
    /// The input has contained no snapshot for so long that it may be endless.
    #[error(
        "{name}, line {line}: no snapshot in more than 64 MiB or 100,000 lines; expected a recording by `gpumem record`"
    )]
    Barren {
        name: String,
        /// Number of the line at which reading stopped, counting from 1.
        line: u64,
    },
    #[error("cannot record to {name}: {}; choose a file in an existing directory that you can write to", system_message(.cause))]
    Create { name: String, cause: io::Error },
    /// Lines cannot be appended to a compressed file.
    #[error(
        "cannot record to {name}: it is compressed; record to a .jsonl file and compress it afterwards with `zstd FILE.jsonl`"
    )]
    Compressed { name: String },
    #[error("cannot record to {name}: it exists and is not a recording; choose another file")]
    Foreign { name: String },
    #[error(
        "cannot record to {name}: another gpumem process is recording to it; stop that process, or choose another file"
    )]
    Busy { name: String },
    #[error("cannot write {name}: {}; {}; {}", system_message(.cause), describe_remains(*.whole, *.torn), writer::remedy(.cause))]
    Write {
        name: String,
        cause: io::Error,
        /// Time of the last snapshot that this writer wrote completely, or `None` if there is none.
        whole: Option<Time>,
        /// Whether part of a line is left at the end of the file because it could not be removed.
        torn: bool,
    },
    /// The reader of a pipe has exited. This is not a failure, so the caller should exit without a message.
    #[error("{name} was closed by its reader")]
    Closed { name: String },
    /// The store's directory cannot be created or listed, or its lock file cannot be written.
    #[error("cannot create the store in {}: {}; use --store-dir with a directory that you can write to", .folder.display(), system_message(.cause))]
    StoreUnwritable { folder: PathBuf, cause: io::Error },
    #[error(
        "cannot record to the store {}: {} is recording to it; stop that process, or choose another directory with --store-dir",
        .folder.display(), describe_holder(*.pid)
    )]
    StoreBusy { folder: PathBuf, pid: Option<u32> },
    /// Writing failed. The store is intact up to the last complete frame.
    #[error("cannot write to the store {}: {}; {}", .folder.display(), system_message(.cause), writer::remedy(.cause))]
    StoreWrite { folder: PathBuf, cause: io::Error },
    #[error("cannot read the store {}: {}; use --store-dir with the directory that `gpumem record --store` writes to", .folder.display(), system_message(.cause))]
    StoreUnreadable { folder: PathBuf, cause: io::Error },
    /// A part of a segment cannot be read and was skipped.
    #[error("{name}, {damage}{}; the rest of the store is intact", count_more(*.more))]
    Damaged {
        name: String,
        damage: Damage,
        /// Number of other damaged lines in the segment.
        more: u64,
    },
}

fn describe_holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another gpumem process".to_owned(), |pid| format!("gpumem (pid {pid})"))
}

fn count_more(more: u64) -> String {
    match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}

fn describe_damage(first: Option<&Damage>) -> String {
    first.map_or_else(|| "it is empty".to_owned(), ToString::to_string)
}

fn describe_remains(whole: Option<Time>, torn: bool) -> String {
    let mut text = match whole {
        Some(time) => format!("the recording is complete up to {}", time.local()),
        None => "it contains nothing from this run".to_owned(),
    };
    if torn {
        text.push_str("; the file ends with an incomplete line");
    }
    text
}

/// Returns whether the bytes begin with a zstd frame or with a skippable frame, which some compressors write first.
fn is_zstd(head: &[u8]) -> bool {
    matches!(head, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}
