//! Recordings that are built to exhaust the reader's memory or time.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support;

const MIB: u64 = 1 << 20;
/// Memory limit for reading a recording. The reader's zstd window of 128 MiB and several lines of 16 MiB fit within
/// the limit, but the decompressed 10 GiB do not.
const MAX_MEMORY_KIB: u64 = 400 << 10;
/// An optimized build needs about a second. The limit allows for an unoptimized build on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

const READERS: [&[&str]; 5] =
    [&["ps"], &["check"], &["explain", "1"], &["config", "test"], &["watch", "--once"]];

/// Runs a program, and prints the program's peak memory in KiB to standard error.
const MEASURE: &str = "
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)";

/// Runs gpumem. Returns the exit code, the messages and the peak memory in KiB, or `None` if Python is not installed.
fn measure(arguments: &[&str], replay: &Path, input: Stdio) -> Option<(i32, String, u64)> {
    let python = support::find("python3", "python3")?;
    let mut command = Command::new(python);
    command.args(["-c", MEASURE, support::gpumem()]);
    command.args(arguments).arg("--replay").arg(replay);
    support::clean_environment(&mut command);
    let output = command.stdin(input).output().unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    let (messages, kib) = messages.trim_end().rsplit_once('\n').unwrap_or(("", messages.trim()));
    Some((output.status.code().unwrap(), messages.to_owned(), kib.parse().unwrap()))
}

fn assert_refused(arguments: &[&str], replay: &Path, input: Stdio, words: &[&str]) {
    let start = Instant::now();
    let (code, messages, kib) = or_skip!(measure(arguments, replay, input));
    let context =
        format!("{arguments:?} {}: {kib} KiB, {:?}: {messages}", replay.display(), start.elapsed());
    // Without a snapshot, gpumem cannot measure and exits with code 3.
    assert_eq!(code, 3, "{context}");
    for word in words {
        assert!(messages.contains(word), "no {word:?} in {context}");
    }
    assert!(kib < MAX_MEMORY_KIB, "{context}");
    assert!(start.elapsed() < TIME_LIMIT, "{context}");
}

/// Returns the first line of a recording in the corpus.
fn good_line() -> String {
    let data = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/corpus/idle_notebook_after_training-101.jsonl"
    );
    let text = fs::read_to_string(data).unwrap();
    format!("{}\n", text.lines().next().unwrap())
}

/// Writes a compressed file that consists of `first` and `gib` GiB of repeated `text`.
fn bomb(folder: &Path, name: &str, first: &str, text: &[u8], gib: u64) -> PathBuf {
    let chunk = text.repeat(16 * MIB as usize / text.len());
    let frame = zstd::encode_all(&chunk[..], 1).unwrap();
    let path = folder.join(name);
    let mut file = File::create(&path).unwrap();
    file.write_all(&zstd::encode_all(first.as_bytes(), 1).unwrap()).unwrap();
    for _ in 0..gib * 1024 / 16 {
        file.write_all(&frame).unwrap();
    }
    path
}

#[test]
fn ten_gigabytes_in_a_small_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = bomb(folder.path(), "zeros.jsonl.zst", "", b"\0", 10);
    let blank = bomb(folder.path(), "blank.jsonl.zst", "", b"\n", 10);
    let good = good_line();
    let after = bomb(folder.path(), "after.jsonl.zst", &good, b"[", 10);
    assert!(fs::metadata(&zeros).unwrap().len() < 4 * MIB);
    for reader in READERS {
        assert_refused(
            reader,
            &zeros,
            Stdio::null(),
            &["zeros.jsonl.zst, line 1: no snapshot in more than 64 MiB"],
        );
    }
    assert_refused(
        &["check"],
        &blank,
        Stdio::null(),
        &["no snapshot in more than 64 MiB or 100,000 lines"],
    );
    assert_refused(
        &["check"],
        &after,
        Stdio::null(),
        &["after.jsonl.zst, line 2: no snapshot in more than 64 MiB"],
    );
}

#[test]
fn a_compressed_bomb_in_the_store_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    bomb(folder.path(), "20261121T130500.123Z.jsonl.zst", &good_line(), b"\0", 10);
    let start = Instant::now();
    let store = gpumem::api::recording::Store::open(folder.path()).unwrap();
    let mut since = store.since(gpumem::api::model::Time::from_unix_milliseconds(0));
    assert!(since.next().unwrap().is_ok());
    let error = since.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("no snapshot in more than"), "{error}");
    assert!(since.next().is_none());
    assert!(store.latest().is_none_or(|latest| latest.interval_seconds.is_none()));
    assert!(start.elapsed() < TIME_LIMIT);
}

#[test]
fn a_long_recording_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.jsonl");
    let mut file = io::BufWriter::new(File::create(&path).unwrap());
    // Leading blanks make each line 1 MiB long.
    let line = format!("{}{}", " ".repeat(MIB as usize), good_line());
    for _ in 0..100 {
        file.write_all(line.as_bytes()).unwrap();
    }
    drop(file);
    for reader in [&["ps"][..], &["check", "--quiet"]] {
        let (code, messages, kib) = or_skip!(measure(reader, &path, Stdio::null()));
        assert_eq!((code, &*messages), (0, ""), "{reader:?}");
        assert!(kib < MAX_MEMORY_KIB, "{reader:?}: {kib} KiB");
    }
}
