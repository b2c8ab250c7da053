//! Tests intact, damaged, foreign and endless recordings.

use std::sync::Arc;

use super::*;
use crate::model::{Process, Time};

/// Returns small snapshots that contain text that must be escaped.
fn snapshots(count: u32) -> Vec<Snapshot> {
    (0..count)
        .map(|n| {
            let mut snapshot =
                Snapshot::new(Time::from_unix_milliseconds(1_763_719_445_000 + i64::from(n)));
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

fn reader(bytes: impl Into<Vec<u8>>) -> RecordingReader {
    RecordingReader::from_read(Cursor::new(bytes.into()), "r.jsonl").unwrap()
}

fn read(bytes: impl Into<Vec<u8>>) -> (Vec<Snapshot>, Vec<Damage>, Option<RecordingError>) {
    let mut reader = reader(bytes);
    let (mut snapshots, mut error) = (Vec::new(), None);
    for item in &mut reader {
        match item {
            Ok(snapshot) => snapshots.push(snapshot),
            Err(e) => error = Some(e),
        }
    }
    assert!(reader.next().is_none(), "an error ends the iteration");
    (snapshots, reader.damage, error)
}

fn flaws(damage: &[Damage]) -> Vec<(u64, &Flaw)> {
    damage.iter().map(|d| (d.line, &d.flaw)).collect()
}

#[test]
fn every_form_reads_back_even_from_a_slow_pipe() {
    let expected = snapshots(3);
    let lines = lines(&expected);
    let plain = lines.concat();
    let crlf: Vec<u8> =
        lines.iter().flat_map(|line| [line.trim_ascii_end(), b"\r\n"].concat()).collect();
    let spread = [b"\xef\xbb\xbf\n\n".to_vec(), lines.join(&b"\n \r\n"[..])].concat();
    let marked = [b"\xef\xbb\xbf".as_slice(), &plain].concat();
    let unended = plain[..plain.len() - 1].to_vec();
    let halves = [&plain[..plain.len() / 2], &plain[plain.len() / 2..]];
    let frames = halves.map(|half| zstd::encode_all(half, 3).unwrap()).concat();
    let skippable = [&b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..], &frames].concat();
    for (form, bytes) in [
        ("plain", plain),
        ("crlf", crlf),
        ("with blank lines", spread),
        ("with a byte order mark", marked),
        ("without an end", unended),
        ("in two frames", frames),
        ("in frames after a skippable one", skippable),
    ] {
        let trickle = Trickle(Cursor::new(bytes.clone()));
        let slow = RecordingReader::from_read(trickle, "-").unwrap();
        assert_eq!(slow.collect::<Result<Vec<_>, _>>().unwrap(), expected, "{form}");
        let (snapshots, damage, error) = read(bytes);
        assert_eq!((snapshots, damage), (expected.clone(), vec![]), "{form}");
        assert!(error.is_none(), "{form}: {error:?}");
    }
}

/// A reader that returns one byte at a time, as a slow pipe does.
struct Trickle(Cursor<Vec<u8>>);

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let one = into.len().min(1);
        self.0.read(&mut into[..one])
    }
}

#[test]
fn damaged_lines_are_skipped_and_reported() {
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
    let lines: Vec<u64> = damage.iter().map(|damage| damage.line).collect();
    assert_eq!(lines, [2, 3, 4, 6, 7, 9]);
    let [time, nul, not_utf8, schema, array, torn] = [0, 1, 2, 3, 4, 5].map(|at| &damage[at].flaw);
    assert_eq!(torn, &Flaw::TornLine);
    for (flaw, part) in [
        (nul, "expected value (column 1)"),
        (not_utf8, "expected value (column 1)"),
        (time, "missing field `time` (column 30)"),
        (schema, "unknown variant `gpumem.check/1`"),
        (array, "(column 2)"),
    ] {
        assert!(matches!(flaw, Flaw::Json(text) if text.contains(part)), "{flaw:?}");
    }
}

#[test]
fn an_overlong_line_is_skipped_without_buffering() {
    let expected = snapshots(2);
    let lines = lines(&expected);
    let input = Cursor::new(lines[0].clone())
        .chain(io::repeat(b'x').take(LINE_LIMIT + 10))
        .chain(Cursor::new([b"\n", &lines[1][..]].concat()));
    let mut reader = RecordingReader::from_read(input, "r.jsonl").unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), expected[0]);
    assert_eq!(reader.next().unwrap().unwrap(), expected[1]);
    assert!(reader.next().is_none());
    assert_eq!(flaws(reader.damage()), [(2, &Flaw::TooLong)]);
    assert!(reader.line.capacity() < 1 << 20);
}

/// Reads an endless recording until an error occurs, and returns the error.
fn read_endless(input: impl Read + Send + 'static) -> String {
    let mut reader = RecordingReader::from_read(input, "r.jsonl").unwrap();
    let error = reader.by_ref().find_map(Result::err).unwrap().to_string();
    assert!(reader.next().is_none(), "an error ends the iteration");
    assert!(reader.bytes <= BARREN_LIMIT + LINE_LIMIT + 2);
    assert!(reader.line.capacity() <= 2 * LINE_LIMIT as usize);
    assert!(reader.damage().len() <= DAMAGE_LIMIT);
    error
}

struct Forever(Vec<u8>, usize);

impl Forever {
    fn new(text: &[u8]) -> Self {
        Self(text.repeat(BUFFER_BYTES / text.len() + 1), 0)
    }
}

impl Read for Forever {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = (&self.0[self.1..]).read(into)?;
        self.1 = (self.1 + length) % self.0.len();
        Ok(length)
    }
}

#[test]
fn endless_input_is_an_error() {
    for text in [
        &b"\0"[..],
        b"\n",
        b"{\"no\":\"recording of anything that could be read, a line of it as long as others\"}\n",
    ] {
        let error = read_endless(Forever::new(text));
        assert!(error.starts_with("r.jsonl, line "), "{error}");
        assert!(error.contains(": no snapshot in more than 64 MiB"), "{error}");
    }
    let good = lines(&snapshots(2)).concat();
    let error = read_endless(Cursor::new(good).chain(io::repeat(0)));
    assert!(error.starts_with("r.jsonl, line 3: no snapshot in more than"), "{error}");
}

#[test]
fn a_large_window_is_refused() {
    // A frame header that requests a window of 256 MiB, and an empty block.
    let bytes = b"\x28\xb5\x2f\xfd\x00\x90\x01\x00\x00";
    let (_, _, error) = read(&bytes[..]);
    let error = error.unwrap().to_string();
    assert!(error.contains("unpack it with `zstd -d --long=31`"), "{error}");
}

#[test]
fn a_line_with_too_many_values_is_skipped() {
    let expected = snapshots(1);
    let head = r#"{"schema":"gpumem.snapshot/1","time":"2025-12-04T08:15:38Z","host":{},"#;
    let processes = r#"{"pid":1},"#.repeat(OBJECT_LIMIT);
    let texts = r#""","#.repeat(VALUE_LIMIT);
    let bytes = [
        format!("{head}\"processes\":[{processes}{{\"pid\":1}}]}}\n").into_bytes(),
        format!("{head}\"processes\":[{{\"pid\":1,\"command\":[{texts}\"\"]}}]}}\n").into_bytes(),
        lines(&expected).concat(),
    ]
    .concat();
    let (snapshots, damage, error) = read(bytes);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(snapshots, expected);
    assert_eq!(flaws(&damage), [(1, &Flaw::Overfull), (2, &Flaw::Overfull)]);
}

#[test]
fn damage_is_bounded_and_counted() {
    let mut reader = reader([b"{}\n".repeat(1000), lines(&snapshots(1)).concat()].concat());
    assert_eq!(reader.by_ref().count(), 1);
    assert_eq!(reader.damage().len(), DAMAGE_LIMIT);
    assert_eq!(reader.damage_count(), 1000);
}

#[test]
fn a_damage_message_is_bounded_and_escaped() {
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
        "r.jsonl, line 2: unsupported schema \"gpumem.snapshot/12\", expected \
         \"gpumem.snapshot/1\"; use the version of gpumem that recorded the file"
    );
}

#[test]
fn a_file_without_a_snapshot_is_an_error() {
    for (bytes, reason) in [
        (&b""[..], "it is empty"),
        (b"\n\n", "it is empty"),
        (b"hello\n", "line 1: not a snapshot: expected value (column 1)"),
        (b"\n{\"sch", "line 2: incomplete last line: the writer was interrupted"),
        (b"\x1f\x8b\x08\x00", "line 1: not a snapshot: expected value (column 1)"),
        (b"\x28\xb5\x2f\xfd", "line 1: incomplete compressed data: the file is truncated"),
    ] {
        let (_, _, error) = read(bytes);
        let error = error.unwrap().to_string();
        assert!(
            error.starts_with(&format!("r.jsonl contains no snapshot ({reason}); ")),
            "{error}"
        );
    }
}

/// A reader that fails at the end of its content, as a defective disk does.
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
fn a_read_error_is_not_the_end_of_the_file() {
    let plain = lines(&snapshots(2)).concat();
    for bytes in [zstd::encode_all(&plain[..], 3).unwrap(), plain] {
        let reader = RecordingReader::from_read(Failing(Cursor::new(bytes)), "r.jsonl").unwrap();
        let items: Vec<_> = reader.collect();
        assert_eq!(items.len(), 3);
        let error = items[2].as_ref().unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read r.jsonl after line 2: input/output error;"),
            "{error}"
        );
    }
}

#[test]
fn a_truncated_file_keeps_its_whole_lines() {
    let expected = snapshots(3);
    let lines = lines(&expected);
    let plain = lines.concat();
    let ends: Vec<usize> = (1..=3).map(|n| lines[..n].concat().len()).collect();
    for length in 0..=plain.len() {
        let (snapshots, damage, error) = read(&plain[..length]);
        // A line is complete even without its newline.
        let whole = ends.iter().filter(|&&end| length >= end - 1).count();
        assert_eq!(snapshots, expected[..whole], "cut at {length}");
        let at_an_end = length == 0 || ends.iter().any(|&end| (end - 1..=end).contains(&length));
        assert_eq!(damage.is_empty(), at_an_end, "cut at {length}");
        assert_eq!(error.is_some(), whole == 0, "cut at {length}");
    }
}

#[test]
fn a_truncated_compressed_file_yields_a_prefix() {
    let expected = snapshots(40);
    let bytes = zstd::encode_all(&lines(&expected).concat()[..], 3).unwrap();
    for length in 0..bytes.len() {
        let (snapshots, damage, error) = read(&bytes[..length]);
        assert_eq!(snapshots, expected[..snapshots.len()], "cut at {length}");
        assert!(error.is_some() || !damage.is_empty(), "cut at {length}");
    }
}
