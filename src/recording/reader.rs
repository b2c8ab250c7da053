//! Streams snapshots out of a recording, a line at a time, and steps over damage.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::fd::AsFd;
use std::path::Path;

use serde::Deserialize;

use super::again::Again;
use super::{Error, is_zstd};
use crate::model::Snapshot;
use crate::model::snapshot::SCHEMA;
use crate::units::MIB;

/// A longer line is not held in memory. A snapshot of a thousand processes is about one MiB.
const LINE_LIMIT: u64 = 64 * MIB;
/// Damage beyond this many lines is counted and no longer kept.
const DAMAGE_LIMIT: usize = 100;
/// Read at once; a few snapshots of a busy host.
const BUFFER_BYTES: usize = 1 << 17;
/// How our own lines begin, which finds the whole line that follows a torn one without a newline.
const START: &[u8] = br#"{"schema":"#;

/// Yields the snapshots of a recording, of any size, in bounded memory.
///
/// A damaged line is skipped and noted in [`Reader::damage`]. An error ends the iteration: the
/// recording cannot be read on, is of another major version, or has ended without one snapshot.
pub struct Reader {
    name: String,
    input: Box<dyn BufRead + Send>,
    again: Option<Again>,
    compressed: bool,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
    found: bool,
    ended: bool,
    damage: Vec<Damage>,
    damage_count: u64,
}

impl Reader {
    /// Opens a recording; `-` is standard input. Whether it is compressed is told from its first
    /// bytes, not from its name.
    ///
    /// # Errors
    ///
    /// What is missing, a directory, or not ours to read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let open_error = |name, cause| Error::Open { name, cause };
        if path.as_os_str() == "-" {
            let name = "standard input".to_owned();
            return match io::stdin().as_fd().try_clone_to_owned() {
                Ok(stdin) => Self::from_file(File::from(stdin), name),
                Err(cause) => Err(open_error(name, cause)),
            };
        }
        match File::open(path).and_then(|file| Ok((file.metadata()?, file))) {
            Ok((metadata, _)) if metadata.is_dir() => Err(Error::Directory {
                path: path.to_owned(),
            }),
            Ok((_, file)) => Self::from_file(file, name),
            Err(cause) => Err(open_error(name, cause)),
        }
    }

    fn from_file(file: File, name: String) -> Result<Self, Error> {
        let again = Again::of(&file);
        let reader = Self::from_read(file, name)?;
        Ok(Self { again, ..reader })
    }

    /// Reads a recording that is part of the program; `name` is what errors call it.
    ///
    /// # Errors
    ///
    /// As [`Reader::from_read`].
    pub fn from_bytes(bytes: &'static [u8], name: impl Into<String>) -> Result<Self, Error> {
        let reader = Self::from_read(Cursor::new(bytes), name)?;
        let again = Some(Again::Bytes(bytes));
        Ok(Self { again, ..reader })
    }

    /// Whether [`Reader::rewind`] goes back: a pipe cannot.
    pub fn can_rewind(&self) -> bool {
        self.again.is_some()
    }

    /// Goes back to the beginning, as if nothing had been read; in a pipe it does nothing.
    ///
    /// # Errors
    ///
    /// Where its first bytes cannot be read any more.
    pub fn rewind(&mut self) -> Result<(), Error> {
        let Some(again) = self.again.take() else {
            return Ok(());
        };
        let input = again.open().map_err(|cause| Error::Read {
            name: self.name.clone(),
            line: 0,
            cause,
        })?;
        *self = Self::from_read(input, std::mem::take(&mut self.name))?;
        self.again = Some(again);
        Ok(())
    }

    /// How much of it has been read, from 0 to 1; `None` where its length is not known, as of a pipe
    /// or of a small compressed file.
    pub fn share_read(&self) -> Option<f64> {
        self.again.as_ref()?.share(self.compressed, self.bytes)
    }

    /// Reads a recording from anywhere; `name` is what errors call it.
    ///
    /// # Errors
    ///
    /// Where its first bytes cannot be read.
    pub fn from_read(
        mut input: impl Read + Send + 'static,
        name: impl Into<String>,
    ) -> Result<Self, Error> {
        let name = name.into();
        let read_error = |name, cause| Error::Read {
            name,
            line: 0,
            cause,
        };
        // Four bytes tell, and a pipe may hand them over one by one.
        let mut head = Vec::with_capacity(4);
        if let Err(cause) = input.by_ref().take(4).read_to_end(&mut head) {
            return Err(read_error(name, cause));
        }
        let compressed = is_zstd(&head);
        let whole = Cursor::new(head).chain(input);
        let input: Box<dyn BufRead + Send> = if compressed {
            match zstd::Decoder::new(whole) {
                Ok(decoder) => Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder)),
                Err(cause) => return Err(read_error(name, cause)),
            }
        } else {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, whole))
        };
        Ok(Self {
            name,
            input,
            again: None,
            compressed,
            line: Vec::new(),
            number: 0,
            bytes: 0,
            found: false,
            ended: false,
            damage: Vec::new(),
            damage_count: 0,
        })
    }

    /// What the recording is called: the file as it was named, or `standard input`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The damage met so far, the first hundred lines of it.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// How many damaged lines were met so far, kept in [`Reader::damage`] or not.
    pub fn damage_count(&self) -> u64 {
        self.damage_count
    }

    /// Reads one line: its snapshot, or `None` where it holds none or there is no further line.
    fn step(&mut self) -> Result<Option<Snapshot>, Error> {
        self.line.clear();
        self.number += 1;
        match self.fill_line() {
            Ok(Line::Whole) => self.parse(false),
            Ok(Line::Last) => self.parse(true),
            Ok(Line::TooLong) => {
                self.note(Flaw::TooLong);
                Ok(None)
            }
            Ok(Line::End) => self.end(None),
            // What has no error number comes from the decompressor: what precedes it is good.
            Err(cause) if self.compressed && cause.raw_os_error().is_none() => {
                self.end(Some(match cause.kind() {
                    io::ErrorKind::UnexpectedEof => Flaw::TornCompression,
                    _ => Flaw::Compression(bounded(&cause.to_string())),
                }))
            }
            Err(cause) => Err(Error::Read {
                name: self.name.clone(),
                line: self.number - 1,
                cause,
            }),
        }
    }

    fn fill_line(&mut self) -> io::Result<Line> {
        let read = (&mut self.input)
            .take(LINE_LIMIT + 1)
            .read_until(b'\n', &mut self.line)?;
        self.bytes += read as u64;
        Ok(if read == 0 {
            Line::End
        } else if self.line.ends_with(b"\n") {
            Line::Whole
        } else if read as u64 > LINE_LIMIT {
            self.line = Vec::new();
            self.input.skip_until(b'\n')?;
            Line::TooLong
        } else {
            Line::Last
        })
    }

    fn end(&mut self, flaw: Option<Flaw>) -> Result<Option<Snapshot>, Error> {
        self.ended = true;
        if let Some(flaw) = flaw {
            self.note(flaw);
        }
        if self.found {
            return Ok(None);
        }
        Err(Error::Empty {
            name: self.name.clone(),
            first: self.damage.first().cloned(),
        })
    }

    fn parse(&mut self, last: bool) -> Result<Option<Snapshot>, Error> {
        let mut text = self.line.as_slice();
        if self.number == 1 {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        text = text.trim_ascii();
        if text.is_empty() {
            return Ok(None);
        }
        let error = match serde_json::from_slice(text) {
            Ok(snapshot) => return Ok(Some(snapshot)),
            Err(error) => error,
        };
        if let Some(found) = foreign_schema(text) {
            return Err(Error::Schema {
                name: self.name.clone(),
                line: self.number,
                found,
            });
        }
        let flaw = if last && error.is_eof() {
            Flaw::TornLine
        } else if text.contains(&0) {
            Flaw::Nul
        } else if std::str::from_utf8(text).is_err() {
            Flaw::NotUtf8
        } else {
            Flaw::Json(reason(&error))
        };
        let salvaged = salvage(text);
        self.note(flaw);
        Ok(salvaged)
    }

    fn note(&mut self, flaw: Flaw) {
        self.damage_count += 1;
        if self.damage.len() < DAMAGE_LIMIT {
            self.damage.push(Damage {
                line: self.number,
                flaw,
            });
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Snapshot, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.step() {
                Ok(Some(snapshot)) => {
                    self.found = true;
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

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("name", &self.name)
            .field("compressed", &self.compressed)
            .field("number", &self.number)
            .field("damage_count", &self.damage_count)
            .finish_non_exhaustive()
    }
}

/// How a line was read.
enum Line {
    Whole,
    /// The file ended before a newline.
    Last,
    TooLong,
    End,
}

/// A line, or the rest of a file, that was skipped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {flaw}")]
pub struct Damage {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub flaw: Flaw,
}

/// What is wrong with a line. Text in it is bounded and harmless for a terminal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Flaw {
    /// The file ends within it.
    #[error("torn last line: the writer was cut off")]
    TornLine,
    /// The file ends within a compressed frame.
    #[error("torn compressed data: the file was cut off")]
    TornCompression,
    /// The decompressor gave up; nothing behind it can be read.
    #[error("damaged compressed data, the rest cannot be read: {0}")]
    Compression(String),
    /// It is longer than a snapshot can be.
    #[error("longer than 64 MiB")]
    TooLong,
    /// It holds NUL bytes, as a file does after a power cut.
    #[error("holds NUL bytes")]
    Nul,
    /// It is not text.
    #[error("not UTF-8")]
    NotUtf8,
    /// It is not a snapshot in JSON.
    #[error("not a snapshot: {0}")]
    Json(String),
}

/// The schema of a line that is a snapshot of another major version.
fn foreign_schema(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        schema: Cow<'a, str>,
    }
    let head: Head<'_> = serde_json::from_slice(text).ok()?;
    let (family, _) = SCHEMA.rsplit_once('/')?;
    let major = head.schema.strip_prefix(family)?.strip_prefix('/')?;
    let foreign = head.schema != SCHEMA
        && !major.is_empty()
        && major.bytes().all(|byte| byte.is_ascii_digit());
    foreign.then(|| bounded(&head.schema))
}

/// The whole snapshot at the end of a line whose beginning is another one's torn half.
fn salvage(text: &[u8]) -> Option<Snapshot> {
    let at = text
        .windows(START.len())
        .rposition(|window| window == START)?;
    if at == 0 {
        return None;
    }
    serde_json::from_slice(&text[at..]).ok()
}

/// The parser's reason, with the column in place of a line number that is always 1.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let words = text.rsplit_once(" at line ").map_or(&*text, |(w, _)| w);
    format!("{} (column {})", bounded(words), error.column())
}

/// Text out of a recording, cut short and harmless for a terminal.
fn bounded(text: &str) -> String {
    const CHARS: usize = 160;
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == CHARS {
            out.push('…');
            break;
        }
        match c {
            // The parser's own quotes and escapes are fine as they are.
            '"' | '\'' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;
    use crate::model::{Process, Time};

    /// A handful of small snapshots with text that needs escaping.
    fn snapshots(count: u32) -> Vec<Snapshot> {
        (0..count)
            .map(|n| {
                let mut snapshot = Snapshot::new(Time::from_unix_milliseconds(
                    1_763_719_445_000 + i64::from(n),
                ));
                snapshot.host.hostname = Some("gpu-1".into());
                snapshot.processes.push(Process {
                    pid: 4200 + n,
                    start_ticks: Some(987_654),
                    command: Some(Arc::from([
                        "python".into(),
                        "träin.py\n{\"schema\":\"gpumem.snapshot/1\"}".into(),
                    ])),
                    cpu_percent: Some(97.5),
                    ..Process::default()
                });
                snapshot
            })
            .collect()
    }

    fn lines(snapshots: &[Snapshot]) -> Vec<Vec<u8>> {
        snapshots
            .iter()
            .map(|snapshot| {
                let mut line = serde_json::to_vec(snapshot).unwrap();
                line.push(b'\n');
                line
            })
            .collect()
    }

    fn reader(bytes: impl Into<Vec<u8>>) -> Reader {
        Reader::from_read(Cursor::new(bytes.into()), "r.jsonl").unwrap()
    }

    /// All that is read, the damage, and the error that ended it.
    fn read(bytes: impl Into<Vec<u8>>) -> (Vec<Snapshot>, Vec<Damage>, Option<Error>) {
        let mut reader = reader(bytes);
        let (mut snapshots, mut error) = (Vec::new(), None);
        for item in &mut reader {
            match item {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(e) => error = Some(e),
            }
        }
        assert!(reader.next().is_none(), "an error ends it");
        (snapshots, reader.damage, error)
    }

    fn flaws(damage: &[Damage]) -> Vec<(u64, &Flaw)> {
        damage.iter().map(|d| (d.line, &d.flaw)).collect()
    }

    #[test]
    fn it_reads_what_was_written_whatever_ends_a_line() {
        let expected = snapshots(3);
        let lines = lines(&expected);
        let plain = lines.concat();
        let crlf: Vec<u8> = lines
            .iter()
            .flat_map(|line| [line.trim_ascii_end(), b"\r\n"].concat())
            .collect();
        let spread = [b"\xef\xbb\xbf\n\n".to_vec(), lines.join(&b"\n \r\n"[..])].concat();
        let marked = [b"\xef\xbb\xbf".as_slice(), &plain].concat();
        let unended = plain[..plain.len() - 1].to_vec();
        for bytes in [plain, crlf, spread, marked, unended] {
            let (snapshots, damage, error) = read(bytes);
            assert_eq!(snapshots, expected);
            assert_eq!(damage, []);
            assert!(error.is_none(), "{error:?}");
        }
    }

    #[test]
    fn it_reads_compressed_files_by_their_content() {
        let expected = snapshots(3);
        let plain = lines(&expected).concat();
        // A skippable frame first, then two frames.
        let (one, two) = plain.split_at(plain.len() / 2);
        let bytes = [
            b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec(),
            zstd::encode_all(one, 3).unwrap(),
            zstd::encode_all(two, 3).unwrap(),
        ]
        .concat();
        for start in [0, 11] {
            let (snapshots, damage, error) = read(&bytes[start..]);
            assert_eq!((snapshots, damage), (expected.clone(), vec![]));
            assert!(error.is_none(), "{error:?}");
        }
    }

    /// Hands out one byte at a time, as a slow pipe does.
    struct Trickle(Cursor<Vec<u8>>);

    impl Read for Trickle {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let one = into.len().min(1);
            self.0.read(&mut into[..one])
        }
    }

    #[test]
    fn a_slow_pipe_is_a_recording_too() {
        let expected = snapshots(2);
        let plain = lines(&expected).concat();
        for bytes in [zstd::encode_all(&plain[..], 3).unwrap(), plain] {
            let reader = Reader::from_read(Trickle(Cursor::new(bytes)), "-").unwrap();
            let snapshots: Result<Vec<_>, _> = reader.collect();
            assert_eq!(snapshots.unwrap(), expected);
        }
    }

    #[test]
    fn damaged_lines_are_skipped_and_told() {
        let expected = snapshots(4);
        let lines = lines(&expected);
        let bytes = [
            &lines[0][..],
            b"{\"schema\":\"gpumem.snapshot/1\"}\n",
            b"\xff\xfe{\0\n",
            b"\xff\xfe\n",
            &lines[1],
            b"{\"schema\":\"gpumem.check/1\",\"time\":\"2025-12-04T08:15:38Z\"}\n",
            b"[1,2\n",
            &lines[2],
            &lines[3][..50],
        ]
        .concat();
        let (snapshots, damage, error) = read(bytes);
        assert_eq!(snapshots, expected[..3]);
        assert!(error.is_none(), "{error:?}");
        let json = |text: &str| Flaw::Json(text.into());
        assert_eq!(
            flaws(&damage),
            [
                (2, &json("missing field `time` (column 30)")),
                (3, &Flaw::Nul),
                (4, &Flaw::NotUtf8),
                (
                    6,
                    &json(
                        r#"schema is "gpumem.check/1", this gpumem reads "gpumem.snapshot/1" (column 26)"#
                    )
                ),
                (
                    7,
                    &json(
                        "invalid type: integer `1`, expected the schema \"gpumem.snapshot/1\" (column 2)"
                    )
                ),
                (9, &Flaw::TornLine),
            ]
        );
        assert_eq!(
            damage[5].to_string(),
            "line 9: torn last line: the writer was cut off"
        );
    }

    #[test]
    fn the_whole_line_behind_a_torn_one_is_kept() {
        let expected = snapshots(3);
        let lines = lines(&expected);
        // Two writers without a newline between them; zeros from a power cut before the third.
        let bytes = [&lines[0][..40], &lines[1][..], &[0; 4096], &lines[2][..]].concat();
        let (snapshots, damage, _) = read(bytes);
        assert_eq!(snapshots, expected[1..]);
        assert_eq!(damage.len(), 2);
        assert_eq!((damage[1].line, &damage[1].flaw), (2, &Flaw::Nul));
    }

    #[test]
    fn a_line_too_long_is_not_held() {
        let expected = snapshots(2);
        let lines = lines(&expected);
        let input = Cursor::new(lines[0].clone())
            .chain(io::repeat(b'x').take(LINE_LIMIT + 10))
            .chain(Cursor::new([b"\n", &lines[1][..]].concat()));
        let mut reader = Reader::from_read(input, "r.jsonl").unwrap();
        assert_eq!(reader.next().unwrap().unwrap(), expected[0]);
        assert_eq!(reader.next().unwrap().unwrap(), expected[1]);
        assert!(reader.next().is_none());
        assert_eq!(flaws(reader.damage()), [(2, &Flaw::TooLong)]);
        assert!(reader.line.capacity() < 1 << 20);
    }

    #[test]
    fn damage_is_bounded_and_counted() {
        let mut reader = reader([b"{}\n".repeat(1000), lines(&snapshots(1)).concat()].concat());
        assert_eq!(reader.by_ref().count(), 1);
        assert_eq!(reader.damage().len(), DAMAGE_LIMIT);
        assert_eq!(reader.damage_count(), 1000);
    }

    #[test]
    fn what_damage_says_is_bounded_and_harmless() {
        let line = format!(
            "{{\"schema\":\"gpumem.snapshot/1\",\"time\":\"\\u001b[2J\\u202e{}\"}}\n",
            "x".repeat(1 << 16)
        );
        let (_, damage, _) = read(line);
        let text = damage[0].to_string();
        assert!(text.len() < 400, "{}", text.len());
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'));
    }

    #[test]
    fn another_major_version_is_refused() {
        let mut lines = lines(&snapshots(2));
        lines[1] = br#"{"schema":"gpumem.snapshot/12","time":7}"#.to_vec();
        let (snapshots, _, error) = read(lines.concat());
        assert_eq!(snapshots.len(), 1);
        assert_eq!(
            error.unwrap().to_string(),
            "r.jsonl, line 2: its schema is \"gpumem.snapshot/12\" and this gpumem reads \
             \"gpumem.snapshot/1\"; read it with the version of gpumem that recorded it"
        );
    }

    #[test]
    fn a_file_without_a_snapshot_says_what_it_should_be() {
        for (bytes, reason) in [
            (&b""[..], "it is empty"),
            (b"\n\n", "it is empty"),
            (
                b"hello\n",
                "line 1: not a snapshot: expected value (column 1)",
            ),
            (
                b"\n{\"sch",
                "line 2: torn last line: the writer was cut off",
            ),
            (b"\x1f\x8b\x08\x00", "line 1: holds NUL bytes"),
            (
                b"\x28\xb5\x2f\xfd",
                "line 1: torn compressed data: the file was cut off",
            ),
        ] {
            let (_, _, error) = read(bytes);
            assert_eq!(
                error.unwrap().to_string(),
                format!(
                    "r.jsonl holds no snapshot ({reason}); give it what `gpumem record` writes: \
                     one JSON snapshot a line, plain or compressed with zstd"
                )
            );
        }
    }

    #[test]
    fn what_cannot_be_opened_is_a_plain_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Reader::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is a directory"), "{error}");

        let error = Reader::open(&folder.path().join("none")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("none: no such file or directory;"),
            "{error}"
        );

        let locked = folder.path().join("locked");
        fs::write(&locked, lines(&snapshots(1)).concat()).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
        match Reader::open(&locked) {
            Err(error) => assert!(error.to_string().contains("permission denied")),
            // root reads everything.
            Ok(reader) => assert_eq!(reader.count(), 1),
        }
    }

    /// Fails after its content, as a disk does.
    struct Failing(Cursor<Vec<u8>>);

    impl Read for Failing {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.read(into)? {
                0 => Err(io::Error::from_raw_os_error(5)),
                n => Ok(n),
            }
        }
    }

    #[test]
    fn a_disk_that_fails_is_no_end_of_file() {
        let plain = lines(&snapshots(2)).concat();
        for bytes in [zstd::encode_all(&plain[..], 3).unwrap(), plain] {
            let reader = Reader::from_read(Failing(Cursor::new(bytes)), "r.jsonl").unwrap();
            let items: Vec<_> = reader.collect();
            assert_eq!(items.len(), 3);
            let error = items[2].as_ref().unwrap_err().to_string();
            assert!(
                error.starts_with("cannot read r.jsonl beyond line 2: input/output error;"),
                "{error}"
            );
        }
    }

    #[test]
    fn no_cut_loses_a_whole_line() {
        let expected = snapshots(3);
        let lines = lines(&expected);
        let plain = lines.concat();
        let ends: Vec<usize> = (1..=3).map(|n| lines[..n].concat().len()).collect();
        for length in 0..=plain.len() {
            let (snapshots, damage, error) = read(&plain[..length]);
            // A line is whole without its newline, too.
            let whole = ends.iter().filter(|&&end| length >= end - 1).count();
            assert_eq!(snapshots, expected[..whole], "cut at {length}");
            let at_an_end =
                length == 0 || ends.iter().any(|&end| (end - 1..=end).contains(&length));
            assert_eq!(damage.is_empty(), at_an_end, "cut at {length}");
            assert_eq!(error.is_some(), whole == 0, "cut at {length}");
        }
    }

    #[test]
    fn no_cut_of_a_compressed_file_panics_or_invents() {
        let expected = snapshots(40);
        let bytes = zstd::encode_all(&lines(&expected).concat()[..], 3).unwrap();
        for length in 0..bytes.len() {
            let (snapshots, damage, error) = read(&bytes[..length]);
            assert_eq!(snapshots, expected[..snapshots.len()], "cut at {length}");
            assert!(error.is_some() || !damage.is_empty(), "cut at {length}");
        }
    }

    #[test]
    fn no_flipped_byte_loses_another_line() {
        let expected = snapshots(5);
        let lines = lines(&expected);
        let plain = lines.concat();
        let mut seed = 7u64;
        let mut random = |below: usize| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for _ in 0..600 {
            let (at, byte) = (random(plain.len()), random(256) as u8);
            let mut bytes = plain.clone();
            bytes[at] = byte;
            let mut end = 0;
            let hit = lines
                .iter()
                .position(|line| {
                    end += line.len();
                    at < end
                })
                .unwrap();
            let (snapshots, _, error) = read(bytes);
            let told = format!("byte {at}, line {hit}, made {byte:#x}: {error:?}");
            if let Some(Error::Schema { line, .. }) = error {
                assert_eq!(
                    (line, byte.is_ascii_digit()),
                    (hit as u64 + 1, true),
                    "{told}"
                );
                continue;
            }
            assert!(error.is_none(), "{told}");
            for (n, snapshot) in expected.iter().enumerate().filter(|&(n, _)| n != hit) {
                assert!(snapshots.contains(snapshot), "lost line {n}: {told}");
            }
        }
        let compressed = zstd::encode_all(&plain[..], 3).unwrap();
        for _ in 0..600 {
            let mut bytes = compressed.clone();
            bytes[random(compressed.len())] = random(256) as u8;
            let (snapshots, _, error) = read(bytes);
            assert!(!snapshots.is_empty() || error.is_some());
        }
    }
}
