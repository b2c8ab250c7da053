//! Streams snapshots from a recording, line by line, and skips damaged lines.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

use serde::Deserialize;

use super::{RecordingError, is_zstd};
use crate::model::Snapshot;
use crate::model::snapshot::SCHEMA;
use crate::units::MIB;

/// Maximum length of a line. A snapshot of a thousand processes is about 1 MiB long.
const LINE_LIMIT: u64 = 16 * MIB;
/// Maximum number of bytes without a snapshot. Longer input is not a recording and may be endless, such as a device, a
/// pipe, or zeros compressed to a few kilobytes.
const BARREN_LIMIT: u64 = 64 * MIB;
/// Maximum number of consecutive lines without a snapshot.
const BARREN_LINES: u64 = 100_000;
/// Maximum number of JSON objects in a line. A process may have only ten bytes of JSON, but takes a hundred times as
/// much memory after parsing. A snapshot of a thousand processes contains only a few thousand objects.
const OBJECT_LIMIT: usize = 100_000;
/// Maximum number of commas in a line. This limits lists of empty strings.
const VALUE_LIMIT: usize = 2_000_000;
/// Base-2 logarithm of the maximum zstd window: 128 MiB, as in the `zstd` command. The decoder allocates the whole
/// window when it starts.
const WINDOW_LOG_LIMIT: u32 = 27;
/// Maximum number of damaged lines that are listed. Any others are only counted.
const DAMAGE_LIMIT: usize = 100;
/// Size of the read buffer. A few snapshots of a busy host fit into it.
const BUFFER_BYTES: usize = 1 << 17;

/// An iterator over the snapshots of a recording of any size.
///
/// Damaged lines are skipped and listed in [`RecordingReader::damage`]. If reading fails, the recording has a
/// different major version, or it contains no snapshot, the iteration ends with an error.
pub struct RecordingReader {
    name: String,
    input: Box<dyn BufRead + Send>,
    rewind: Option<Rewind>,
    compressed: bool,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
    /// Bytes read since the last snapshot, or since the start of the recording if there was none.
    barren: u64,
    /// Line of the last snapshot, or 0 if there was none.
    found: u64,
    ended: bool,
    damage: Vec<Damage>,
    damage_count: u64,
}

impl RecordingReader {
    /// Opens a recording, or standard input if the path is `-`. The first bytes, not the file name, show whether the
    /// recording is compressed.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is missing, a directory, or unreadable.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let name = path.display().to_string();
        let open_error = |name, cause| RecordingError::Open { name, cause };
        if path.as_os_str() == "-" {
            let name = "standard input".to_owned();
            return match io::stdin().as_fd().try_clone_to_owned() {
                Ok(stdin) => Self::from_file(File::from(stdin), name),
                Err(cause) => Err(open_error(name, cause)),
            };
        }
        match File::open(path).and_then(|file| Ok((file.metadata()?, file))) {
            Ok((metadata, _)) if metadata.is_dir() => {
                Err(RecordingError::Directory { path: path.to_owned() })
            }
            Ok((_, file)) => Self::from_file(file, name),
            Err(cause) => Err(open_error(name, cause)),
        }
    }

    fn from_file(file: File, name: String) -> Result<Self, RecordingError> {
        let rewind = Rewind::new(&file);
        let reader = Self::from_read(file, name)?;
        Ok(Self { rewind, ..reader })
    }

    /// Reads a recording that is embedded in the program. Errors contain `name`.
    pub fn from_bytes(
        bytes: &'static [u8],
        name: impl Into<String>,
    ) -> Result<Self, RecordingError> {
        let reader = Self::from_read(Cursor::new(bytes), name)?;
        let rewind = Some(Rewind::Bytes(bytes));
        Ok(Self { rewind, ..reader })
    }

    /// Returns whether [`RecordingReader::rewind`] has an effect. It has none on a pipe.
    pub fn can_rewind(&self) -> bool {
        self.rewind.is_some()
    }

    /// Returns to the start of the recording. Has no effect on a pipe.
    ///
    /// # Errors
    ///
    /// Returns an error if the first bytes cannot be read again.
    pub fn rewind(&mut self) -> Result<(), RecordingError> {
        let Some(rewind) = self.rewind.take() else {
            return Ok(());
        };
        let input = rewind.open().map_err(|cause| RecordingError::Read {
            name: self.name.clone(),
            line: 0,
            cause,
        })?;
        *self = Self::from_read(input, std::mem::take(&mut self.name))?;
        self.rewind = Some(rewind);
        Ok(())
    }

    /// Returns how much of the recording has been read, from 0 to 1. Returns `None` for a pipe, and for a compressed
    /// recording that is small or embedded in the program.
    pub fn share_read(&self) -> Option<f64> {
        self.rewind.as_ref()?.share(self.compressed, self.bytes)
    }

    /// Reads a recording from any reader. Errors contain `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if the first bytes cannot be read.
    pub fn from_read(
        mut input: impl Read + Send + 'static,
        name: impl Into<String>,
    ) -> Result<Self, RecordingError> {
        let name = name.into();
        let read_error = |name, cause| RecordingError::Read { name, line: 0, cause };
        // A pipe can return less than four bytes at a time.
        let mut head = Vec::with_capacity(4);
        if let Err(cause) = input.by_ref().take(4).read_to_end(&mut head) {
            return Err(read_error(name, cause));
        }
        let compressed = is_zstd(&head);
        let whole = Cursor::new(head).chain(input);
        let input: Box<dyn BufRead + Send> = if compressed {
            let decoder = zstd::Decoder::new(whole).and_then(|mut decoder| {
                decoder.window_log_max(WINDOW_LOG_LIMIT)?;
                Ok(decoder)
            });
            match decoder {
                Ok(decoder) => Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder)),
                Err(cause) => return Err(read_error(name, cause)),
            }
        } else {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, whole))
        };
        Ok(Self {
            name,
            input,
            rewind: None,
            compressed,
            line: Vec::new(),
            number: 0,
            bytes: 0,
            barren: 0,
            found: 0,
            ended: false,
            damage: Vec::new(),
            damage_count: 0,
        })
    }

    /// Returns the path as the caller specified it, or `standard input`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the damaged lines so far. At most the first hundred are listed.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Returns the number of damaged lines so far, including unlisted ones.
    pub fn damage_count(&self) -> u64 {
        self.damage_count
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads one line. Returns `None` if the line contains no snapshot, or if there is no line left.
    fn step(&mut self) -> Result<Option<Snapshot>, RecordingError> {
        self.line.clear();
        self.number += 1;
        match self.fill_line() {
            Ok(RecordingLine::Whole) => self.parse(false),
            Ok(RecordingLine::Last) => self.parse(true),
            Ok(RecordingLine::TooLong) => {
                self.note(Flaw::TooLong);
                self.check_barren()
            }
            Ok(RecordingLine::End) => self.end(None),
            // An error without an errno is from the decompressor. The text before it is valid.
            Err(cause) if self.compressed && cause.raw_os_error().is_none() => {
                self.end(Some(match cause.kind() {
                    io::ErrorKind::UnexpectedEof => Flaw::TornCompression,
                    _ if cause.to_string().contains(TOO_FAR_BACK) => Flaw::Window,
                    _ => Flaw::Compression(bounded(&cause.to_string())),
                }))
            }
            Err(cause) => {
                Err(RecordingError::Read { name: self.name.clone(), line: self.number - 1, cause })
            }
        }
    }

    fn fill_line(&mut self) -> io::Result<RecordingLine> {
        let read = (&mut self.input).take(LINE_LIMIT + 1).read_until(b'\n', &mut self.line)?;
        self.count_text(read);
        Ok(if read == 0 {
            RecordingLine::End
        } else if self.line.ends_with(b"\n") {
            RecordingLine::Whole
        } else if read as u64 > LINE_LIMIT {
            self.line = Vec::new();
            let rest = BARREN_LIMIT.saturating_sub(self.barren) + 1;
            let skipped = (&mut self.input).take(rest).skip_until(b'\n')?;
            self.count_text(skipped);
            RecordingLine::TooLong
        } else {
            RecordingLine::Last
        })
    }

    fn count_text(&mut self, read: usize) {
        self.bytes += read as u64;
        self.barren += read as u64;
    }

    fn check_barren(&self) -> Result<Option<Snapshot>, RecordingError> {
        if self.barren <= BARREN_LIMIT && self.number - self.found <= BARREN_LINES {
            return Ok(None);
        }
        Err(RecordingError::Barren { name: self.name.clone(), line: self.number })
    }

    fn end(&mut self, flaw: Option<Flaw>) -> Result<Option<Snapshot>, RecordingError> {
        self.ended = true;
        if let Some(flaw) = flaw {
            self.note(flaw);
        }
        if self.found > 0 {
            return Ok(None);
        }
        Err(RecordingError::Empty { name: self.name.clone(), first: self.damage.first().cloned() })
    }

    fn parse(&mut self, last: bool) -> Result<Option<Snapshot>, RecordingError> {
        let mut text = self.line.as_slice();
        if self.number == 1 {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        text = text.trim_ascii();
        if text.is_empty() {
            return self.check_barren();
        }
        if is_overfull(text) {
            self.note(Flaw::Overfull);
            return self.check_barren();
        }
        let error = match serde_json::from_slice(text) {
            Ok(snapshot) => return Ok(Some(snapshot)),
            Err(error) => error,
        };
        if let Some(found) = foreign_schema(text) {
            return Err(RecordingError::Schema {
                name: self.name.clone(),
                line: self.number,
                found,
            });
        }
        let is_torn = last && error.is_eof();
        self.note(if is_torn { Flaw::TornLine } else { Flaw::Json(reason(&error)) });
        self.check_barren()
    }

    fn note(&mut self, flaw: Flaw) {
        self.damage_count += 1;
        if self.damage.len() < DAMAGE_LIMIT {
            self.damage.push(Damage { line: self.number, flaw });
        }
    }
}

impl Iterator for RecordingReader {
    type Item = Result<Snapshot, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.step() {
                Ok(Some(snapshot)) => {
                    self.found = self.number;
                    self.barren = 0;
                    return Some(Ok(snapshot));
                }
                Ok(None) => {}
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl fmt::Debug for RecordingReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingReader").field("name", &self.name).finish_non_exhaustive()
    }
}

enum RecordingLine {
    Whole,
    /// The last line of the file, which has no newline.
    Last,
    TooLong,
    End,
}

/// A damaged line, or the line at which the unreadable rest of the file begins.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {flaw}")]
pub struct Damage {
    pub line: u64,
    pub flaw: Flaw,
}

/// Defect of a line. Text from the line is truncated and safe for a terminal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Flaw {
    #[error("incomplete last line: the writer was interrupted")]
    TornLine,
    #[error("incomplete compressed data: the file is truncated")]
    TornCompression,
    /// The decompressor failed, so the rest of the file cannot be read.
    #[error("damaged compressed data; the rest cannot be read: {0}")]
    Compression(String),
    /// Decompression would need more memory than is allowed.
    #[error("compressed with a window of more than 128 MiB; unpack it with `zstd -d --long=31`")]
    Window,
    #[error("longer than 16 MiB")]
    TooLong,
    #[error("more objects or values than a snapshot can contain")]
    Overfull,
    #[error("not a snapshot: {0}")]
    Json(String),
}

const TOO_FAR_BACK: &str = "requires too much memory";

/// Returns whether parsing a line would take far more memory than its text. Braces and commas within strings are
/// counted, too, but real snapshots do not contain that many.
fn is_overfull(text: &[u8]) -> bool {
    // Most lines are too short to contain that many objects.
    if text.len() < OBJECT_LIMIT * br#"{"pid":1},"#.len() {
        return false;
    }
    let (mut objects, mut values) = (0, 0);
    for byte in text {
        objects += usize::from(*byte == b'{');
        values += usize::from(*byte == b',');
    }
    objects > OBJECT_LIMIT || values > VALUE_LIMIT
}

/// Returns the schema of a line if it is a snapshot of a different major version.
fn foreign_schema(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct RecordingHead<'a> {
        #[serde(borrow)]
        schema: Cow<'a, str>,
    }
    let head: RecordingHead<'_> = serde_json::from_slice(text).ok()?;
    let (family, _) = SCHEMA.rsplit_once('/')?;
    let major = head.schema.strip_prefix(family)?.strip_prefix('/')?;
    let foreign = head.schema != SCHEMA
        && !major.is_empty()
        && major.bytes().all(|byte| byte.is_ascii_digit());
    foreign.then(|| bounded(&head.schema))
}

/// Returns the parser's message with the column, but without the line number, which is always 1.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let words = text.rsplit_once(" at line ").map_or(&*text, |(w, _)| w);
    format!("{} (column {})", bounded(words), error.column())
}

/// Truncates text from a recording and makes it safe for a terminal.
fn bounded(text: &str) -> String {
    const CHARS: usize = 160;
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == CHARS {
            out.push('…');
            break;
        }
        match c {
            // The parser quotes text itself, so keep its quotes and backslashes.
            '"' | '\'' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

/// Minimum size of a compressed file whose progress is shown. In smaller files, the decoder reads too far ahead.
const MIN_COMPRESSED_BYTES: u64 = 4 * MIB;

#[derive(Debug)]
pub(super) enum Rewind {
    /// An open file, which stays the same if the path is renamed or replaced. It shares its position with the reader.
    File {
        file: File,
        start: u64,
    },
    Bytes(&'static [u8]),
}

impl Rewind {
    /// Returns how to rewind a file that has not been read yet, or `None` if it is not a regular file.
    pub(super) fn new(file: &File) -> Option<Self> {
        let mut file = file.try_clone().ok()?;
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let start = file.stream_position().ok().filter(|_| is_file)?;
        Some(Self::File { file, start })
    }

    /// Opens the recording at its start. Readers opened earlier must not be used anymore.
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

    /// Returns how much has been read, from 0 to 1, given the number of bytes of text read so far.
    pub(super) fn share(&self, compressed: bool, lines: u64) -> Option<f64> {
        let (read, length) = match self {
            Self::File { file, start } => {
                let mut file = file;
                let length = file.metadata().ok()?.len().checked_sub(*start)?;
                let read = match compressed {
                    false => lines,
                    true if length < MIN_COMPRESSED_BYTES => return None,
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

#[cfg(test)]
mod tests;
