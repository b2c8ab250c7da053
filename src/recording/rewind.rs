//! Goes back to the beginning of a recording, except for a pipe.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek as _, SeekFrom};

use crate::units::MIB;

/// A compressed file is read so far ahead that a small one is read at once; in a larger one the position shows
/// the progress.
const LEAST_COMPRESSED_BYTES: u64 = 4 * MIB;

/// A recording that can be read again.
#[derive(Debug)]
pub(super) enum Rewind {
    /// An open file, the same whatever its name means by then. It shares its position with the reader.
    File {
        file: File,
        /// Where the recording begins in it.
        start: u64,
    },
    Bytes(&'static [u8]),
}

impl Rewind {
    /// How to rewind a file that is about to be read; `None` if it cannot be.
    pub(super) fn of(file: &File) -> Option<Self> {
        let mut file = file.try_clone().ok()?;
        let is_file = file.metadata().is_ok_and(|it| it.is_file());
        let start = file.stream_position().ok().filter(|_| is_file)?;
        Some(Self::File { file, start })
    }

    /// The recording, from its beginning. An earlier reader must stop.
    pub(super) fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::File { file, start } => {
                let mut file = file.try_clone()?;
                file.seek(SeekFrom::Start(*start))?;
                Box::new(file)
            }
            Self::Bytes(bytes) => Box::new(Cursor::new(*bytes)),
        })
    }

    /// How much has been read, from 0 to 1, after `lines` bytes of text.
    pub(super) fn share(&self, compressed: bool, lines: u64) -> Option<f64> {
        let (read, length) = match self {
            Self::File { file, start } => {
                let mut file = file;
                let length = file.metadata().ok()?.len().checked_sub(*start)?;
                let read = match compressed {
                    false => lines,
                    true if length < LEAST_COMPRESSED_BYTES => return None,
                    true => file.stream_position().ok()?.checked_sub(*start)?,
                };
                (read, length)
            }
            Self::Bytes(_) if compressed => return None,
            Self::Bytes(bytes) => (lines, bytes.len() as u64),
        };
        (length > 0).then(|| (read as f64 / length as f64).min(1.0))
    }
}
