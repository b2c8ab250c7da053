//! Recordings that are built to exhaust the reader's memory or time.

use std::fs::{self, File};
use std::io::Write as _;
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
fn measure(arguments: &[&str], replay: &Path) -> Option<(i32, String, u64)> {
    let python = support::find("python3", "python3")?;
    let mut command = Command::new(python);
    command.args(["-c", MEASURE, support::gpumem()]);
    command.args(arguments).arg("--replay").arg(replay);
    support::clean_environment(&mut command);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    let (messages, kib) = messages.trim_end().rsplit_once('\n').unwrap_or(("", messages.trim()));
    Some((output.status.code().unwrap(), messages.to_owned(), kib.parse().unwrap()))
}

fn assert_refused(arguments: &[&str], replay: &Path, words: &str) {
    let start = Instant::now();
    let (code, messages, kib) = or_skip!(measure(arguments, replay));
    let context =
        format!("{arguments:?} {}: {kib} KiB, {:?}: {messages}", replay.display(), start.elapsed());
    // Without a snapshot, gpumem cannot measure and exits with code 3.
    assert_eq!(code, 3, "{context}");
    assert!(messages.contains(words), "no {words:?} in {context}");
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
    assert!(fs::metadata(&zeros).unwrap().len() < 4 * MIB);
    let long = "zeros.jsonl.zst, line 1: no snapshot in more than 64 MiB";
    READERS.iter().for_each(|reader| assert_refused(reader, &zeros, long));
    let blank = bomb(folder.path(), "blank.jsonl.zst", "", b"\n", 10);
    assert_refused(READERS[1], &blank, "no snapshot in more than 64 MiB or 100,000 lines");
    let after = bomb(folder.path(), "after.jsonl.zst", &good_line(), b"[", 10);
    assert_refused(READERS[1], &after, "after.jsonl.zst, line 2: no snapshot in more than 64 MiB");
}
