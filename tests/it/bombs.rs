//! Recordings that are made to fill the memory of whoever reads them, or to keep them reading for ever.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support;

const MIB: u64 = 1 << 20;
/// What reads a recording may take: lines of 16 MiB, some of them read ahead, and a window of 128 MiB
/// are within it, 10 GiB are not.
const MOST_MEMORY_KIB: u64 = 400 << 10;
/// An unoptimized build on a busy machine is allowed this; an optimized one takes a second.
const IN_TIME: Duration = Duration::from_secs(120);

const READERS: [&[&str]; 5] =
    [&["ps"], &["check"], &["explain", "1"], &["config", "test"], &["watch", "--once"]];

/// Runs a program and says at its end what it took.
const MEASURE: &str = "
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)";

/// A run of gpumem: its code, its talk, and the most memory that it had, in KiB.
fn measured(arguments: &[&str], replay: &Path, input: Stdio) -> Option<(i32, String, u64)> {
    let python = support::find("python3", "python3")?;
    let mut command = Command::new(python);
    command.args(["-c", MEASURE, support::gpumem()]);
    command.args(arguments).arg("--replay").arg(replay);
    support::clean_environment(&mut command);
    let output = command.stdin(input).output().unwrap();
    let talk = String::from_utf8(output.stderr).unwrap();
    let (talk, kib) = talk.trim_end().rsplit_once('\n').unwrap_or(("", talk.trim()));
    Some((output.status.code().unwrap(), talk.to_owned(), kib.parse().unwrap()))
}

fn refused(arguments: &[&str], replay: &Path, input: Stdio, words: &[&str]) {
    let start = Instant::now();
    let (code, talk, kib) = or_skip!(measured(arguments, replay, input));
    let what =
        format!("{arguments:?} {}: {kib} KiB, {:?}: {talk}", replay.display(), start.elapsed());
    // It could not be measured: no snapshot was there to judge.
    assert_eq!(code, 3, "{what}");
    for word in words {
        assert!(talk.contains(word), "no {word:?} in {what}");
    }
    assert!(kib < MOST_MEMORY_KIB, "{what}");
    assert!(start.elapsed() < IN_TIME, "{what}");
}

/// A line as `gpumem record` writes it.
fn good_line() -> String {
    let data = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/corpus/idle_notebook_after_training-101.jsonl"
    );
    let text = fs::read_to_string(data).unwrap();
    format!("{}\n", text.lines().next().unwrap())
}

/// So many bytes of text, again and again, compressed.
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
fn ten_gigabytes_in_a_small_file_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = bomb(folder.path(), "zeros.jsonl.zst", "", b"\0", 10);
    let blank = bomb(folder.path(), "blank.jsonl.zst", "", b"\n", 10);
    let good = good_line();
    let after = bomb(folder.path(), "after.jsonl.zst", &good, b"[", 10);
    assert!(fs::metadata(&zeros).unwrap().len() < 4 * MIB);
    for reader in READERS {
        refused(
            reader,
            &zeros,
            Stdio::null(),
            &[
                "zeros.jsonl.zst, line 1: no snapshot so far (longer than 16 MiB); expected a recording by `gpumem record`",
            ],
        );
    }
    refused(
        &["check"],
        &blank,
        Stdio::null(),
        &["no snapshot so far (blank lines); expected a recording"],
    );
    refused(
        &["check"],
        &after,
        Stdio::null(),
        &[
            "after.jsonl.zst, line 2: no snapshot since line 1 (longer than 16 MiB); cut it off there with `head -n 1`",
        ],
    );
}

#[test]
fn a_segment_of_the_store_that_is_a_bomb_is_stepped_over() {
    let folder = tempfile::tempdir().unwrap();
    bomb(folder.path(), "20261121T130500.123Z.jsonl.zst", &good_line(), b"\0", 10);
    let start = Instant::now();
    let store = gpumem::api::recording::Store::open(folder.path()).unwrap();
    let mut since = store.since(gpumem::api::model::Time::from_unix_milliseconds(0));
    assert!(since.next().unwrap().is_ok());
    let error = since.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("no snapshot since line 1"), "{error}");
    assert!(since.next().is_none());
    assert!(store.latest().is_none_or(|latest| latest.interval_seconds.is_none()));
    assert!(start.elapsed() < IN_TIME);
}

#[test]
fn a_good_recording_is_read_to_its_end_however_long_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.jsonl");
    let mut file = io::BufWriter::new(File::create(&path).unwrap());
    // Blanks make few lines of it: what is counted is their text.
    let line = format!("{}{}", " ".repeat(MIB as usize), good_line());
    for _ in 0..100 {
        file.write_all(line.as_bytes()).unwrap();
    }
    drop(file);
    for reader in [&["ps"][..], &["check", "--quiet"]] {
        let (code, talk, kib) = or_skip!(measured(reader, &path, Stdio::null()));
        assert_eq!((code, &*talk), (0, ""), "{reader:?}");
        assert!(kib < MOST_MEMORY_KIB, "{reader:?}: {kib} KiB");
    }
}
