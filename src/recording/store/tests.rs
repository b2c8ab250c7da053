//! Tests the store with simulated times.

use crate::model::dice::Dice;
use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::process::Command;
use std::time::Duration;

use super::*;
use crate::recording::Damage;

const BEGIN: i64 = 1_763_719_445_000;
const DAY: StoreLimits = StoreLimits { max_age: Duration::from_secs(86_400), max_bytes: 256 * MIB };

fn time(seconds: i64) -> Time {
    Time::from_unix_milliseconds(BEGIN + 1000 * seconds)
}

/// Returns a snapshot that contains a few hundred random hexadecimal digits, which compress poorly.
fn snapshot_at(seconds: i64) -> Snapshot {
    let mut snapshot = Snapshot::new(time(seconds));
    let mut dice = Dice::new(seconds as u64);
    let noise: String = (0..20).map(|_| format!("{:x}", dice.next())).collect();
    snapshot.host.hostname = Some(noise.into());
    snapshot
}

/// Opens the store. Retries while the store is busy: if another test forks while it holds a lock, the child inherits
/// the lock until it executes a program.
fn writer(folder: &Path, limits: StoreLimits) -> StoreWriter {
    loop {
        match StoreWriter::open(folder, limits, Access::Owner) {
            Err(RecordingError::StoreBusy { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

fn fill(folder: &Path, limits: StoreLimits, seconds: impl IntoIterator<Item = i64>) {
    let mut writer = writer(folder, limits);
    for second in seconds {
        writer.write(&snapshot_at(second)).unwrap();
    }
    writer.flush().unwrap();
}

/// Returns the times of the snapshots from `since` on, in whole seconds, and the errors.
fn read_since(folder: &Path, since: i64) -> (Vec<i64>, Vec<RecordingError>) {
    let (mut seconds, mut errors) = (Vec::new(), Vec::new());
    for item in Store::open(folder).unwrap().since(time(since)) {
        match item {
            Ok(snapshot) => {
                let second = (snapshot.time.unix_milliseconds() - BEGIN) / 1000;
                assert_eq!(snapshot, snapshot_at(second));
                seconds.push(second);
            }
            Err(error) => errors.push(error),
        }
    }
    (seconds, errors)
}

fn read(folder: &Path) -> Vec<i64> {
    let (seconds, errors) = read_since(folder, -1_000_000_000);
    assert!(errors.is_empty(), "{errors:?}");
    seconds
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let paths = list(folder).unwrap().into_iter();
    paths.map(|segment| segment.path).collect()
}

fn bytes(folder: &Path) -> u64 {
    let segments = list(folder).unwrap();
    segments.iter().map(|segment| segment.bytes).sum()
}

#[test]
fn segment_names_are_times() {
    let start: Time = "2026-11-21T13:05:00.123Z".parse().unwrap();
    assert_eq!(name_of(start), "20261121T130500.123Z.jsonl.zst");
    assert_eq!(start_of("20261121T130500.123Z.jsonl.zst"), Some(start));
    for name in [
        "",
        "lock",
        "20261121T130500.123Z.jsonl",
        "20261121T130500Z.jsonl.zst",
        "2026-11-21T13:05:00.123Z.jsonl.zst",
        "20261121T140500.123+0100.jsonl.zst",
        "20261321T130500.123Z.jsonl.zst",
        ".jsonl.zst",
    ] {
        assert_eq!(start_of(name), None, "{name}");
    }
    for absurd in [i64::MIN, -1, i64::MAX] {
        let name = name_of(Time::from_unix_milliseconds(absurd));
        assert!(start_of(&name).is_some(), "{name}");
    }
}

#[test]
fn snapshots_read_back_and_each_segment_is_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/on/the/way");
    let seconds: Vec<i64> = (0..400).map(|n| 5 * n).collect();
    fill(&folder, DAY, seconds.iter().copied());
    assert_eq!(read(&folder), seconds);
    assert_eq!(read_since(&folder, 1234).0, seconds[247..]);
    assert_eq!(read_since(&folder, 10_000).0, [0_i64; 0]);

    let segments = segments(&folder);
    assert_eq!(segments.len(), 4, "one per ten minutes: {segments:?}");
    let mut count = 0;
    for segment in &segments {
        let mut reader = RecordingReader::open(segment).unwrap();
        count += reader.by_ref().map(Result::unwrap).count();
        assert_eq!(reader.damage_count(), 0);
    }
    assert_eq!(count, 400);
}

#[test]
fn snapshots_are_written_within_ten_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer(folder.path(), DAY);
    for (second, last) in [(0, 0), (5, 0), (10, 10), (15, 10), (20, 20), (50, 50)] {
        writer.write(&snapshot_at(second)).unwrap();
        assert_eq!(read(folder.path()).last(), Some(&last), "at {second}");
    }
    assert!(!writer.is_behind());
    writer.write(&snapshot_at(51)).unwrap();
    assert!(writer.is_behind());
    writer.flush().unwrap();
    assert_eq!(read(folder.path()), [0, 5, 10, 15, 20, 50, 51]);
}

#[test]
fn a_store_is_bounded_by_age_even_after_a_pause() {
    let folder = tempfile::tempdir().unwrap();
    let limits = StoreLimits { max_age: Duration::from_secs(3600), ..DAY };
    let mut writer = writer(folder.path(), limits);
    for second in (0..9_000).step_by(30) {
        writer.write(&snapshot_at(second)).unwrap();
        if second % 150 != 0 {
            continue;
        }
        let first = read_since(folder.path(), -1).0[0];
        // Only whole segments are removed, so the store can exceed its maximum age by an eighth and a frame.
        let oldest = (second - first) as f64;
        assert!(oldest <= 3600.0 + 450.0 + 30.0, "{oldest} at {second}");
        assert!(second < 3600 || oldest >= 3600.0, "{oldest} at {second}");
    }
    drop(writer);
    fill(folder.path(), limits, [200_000]);
    assert_eq!(read(folder.path()), [200_000]);
}

#[test]
fn a_store_is_bounded_by_size_and_keeps_its_current_segment() {
    let folder = tempfile::tempdir().unwrap();
    let limits = StoreLimits { max_bytes: 20_000, ..DAY };
    let mut writer = writer(folder.path(), limits);
    let mut largest = 0;
    for second in (0..6000).step_by(20) {
        writer.write(&snapshot_at(second)).unwrap();
        largest = largest.max(bytes(folder.path()));
        if second % 200 == 0 {
            assert_eq!(read(folder.path()).last(), Some(&second));
        }
    }
    assert!((15_000..=20_000).contains(&largest), "{largest}");
    drop(writer);

    // Even a frame that exceeds the size limit is written. All older segments are removed.
    let tiny = StoreLimits { max_bytes: 1, ..DAY };
    fill(folder.path(), tiny, [7000]);
    assert_eq!(read(folder.path()), [7000]);
    fill(folder.path(), tiny, [7001]);
    assert_eq!(read(folder.path()), [7001]);
}

#[test]
fn a_second_writer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = writer(folder.path(), DAY);
    fs::write(folder.path().join("lock"), "no number").unwrap();
    let error = StoreWriter::open(folder.path(), DAY, Access::Owner).unwrap_err();
    assert!(error.to_string().contains("another gpumem process is recording"), "{error}");
    drop(first);
    fill(folder.path(), DAY, [1]);
}

#[test]
fn a_torn_segment_loses_its_end_and_stays_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), DAY, [0, 5, 10]);
    let torn = segments(folder.path()).pop().unwrap();
    let length = fs::metadata(&torn).unwrap().len();
    let file = OpenOptions::new().write(true).open(&torn).unwrap();
    file.set_len(length - 60).unwrap();
    // The segment may still be growing, so an incomplete frame is not damage.
    assert_eq!(read(folder.path()), [0]);
    assert_eq!(latest(folder.path()), Some((0, None)));

    fill(folder.path(), DAY, [20, 25]);
    assert_eq!(fs::metadata(&torn).unwrap().len(), length - 60);
    let (seconds, errors) = read_since(folder.path(), 0);
    assert_eq!(seconds, [0, 20, 25]);
    let [error] = &errors[..] else { panic!("{errors:?}") };
    let text = error.to_string();
    assert!(text.starts_with(&torn.display().to_string()), "{text}");
    assert!(text.contains("incomplete compressed data"), "{text}");
    assert!(
        matches!(error, RecordingError::Damaged { damage: Damage { line: 2, .. }, more: 0, .. }),
        "{error:?}"
    );
}

#[test]
fn a_flipped_bit_is_detected_by_the_checksum() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), DAY, [0, 700]);
    let path = segments(folder.path()).remove(0);
    let whole = fs::read(&path).unwrap();
    let mut missed = 0;
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(&path, bytes).unwrap();
        let (seconds, errors) = read_since(folder.path(), 0);
        assert_eq!(seconds.last(), Some(&700), "byte {at}");
        missed += usize::from(errors.is_empty() && seconds.len() != 2);
    }
    assert_eq!(missed, 0, "every loss is reported");
}

#[test]
fn a_clock_set_back_changes_neither_order_nor_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    let mut names = HashSet::new();
    for begin in [5000, 100, 100, 4999, 6000] {
        fill(folder.path(), DAY, [begin, begin + 20]);
        written.extend([begin, begin + 20]);
        names.extend(segments(folder.path()));
    }
    assert_eq!(read(folder.path()), written);
    assert_eq!(segments(folder.path()).len(), 5);
    assert_eq!(names.len(), 5, "no segment was renamed");

    // When the clock is set back while the writer is running, the snapshots stay in order, and later frames still
    // share a segment.
    let mut writer = writer(folder.path(), DAY);
    for second in [3000, 3020, 3040, 2000, 2020, 2040] {
        writer.write(&snapshot_at(second)).unwrap();
        written.push(second);
    }
    assert_eq!(read(folder.path()), written);
    assert_eq!(segments(folder.path()).len(), 7);
}

#[test]
fn other_files_in_the_directory_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fill(folder.path(), DAY, [100]);
    fs::create_dir(path("20200101T000000.000Z.jsonl.zst")).unwrap();
    symlink("/dev/zero", path("20200101T000001.000Z.jsonl.zst")).unwrap();
    let fifo = path("20200101T000002.000Z.jsonl.zst");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::write(path("notes.txt"), "mine").unwrap();
    fs::write(path("20200101T000003.000Z.jsonl.zst"), "not a recording\n").unwrap();
    fs::write(path("20200101T000004.000Z.jsonl.zst"), "").unwrap();
    let (seconds, errors) = read_since(folder.path(), -1_000_000_000);
    assert_eq!(seconds, [100]);
    assert_eq!(errors.len(), 1, "the file that is not a recording: {errors:?}");
    assert_eq!(latest(folder.path()), Some((100, None)));

    // If a FIFO replaced a segment after the directory was listed, opening it must fail rather than block.
    assert!(open(&fifo).is_err());
    assert!(open(&path("20200101T000001.000Z.jsonl.zst")).is_err());
    let limits = StoreLimits { max_bytes: 1, ..DAY };
    fill(folder.path(), limits, [200]);
    assert!(fifo.exists() && path("notes.txt").exists());
}

#[test]
fn readers_and_the_writer_do_not_wait_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer(folder.path(), DAY);
    for second in [0, 600, 1200] {
        writer.write(&snapshot_at(second)).unwrap();
    }
    let mut since = Store::open(folder.path()).unwrap().since(time(0));
    let mut next = || {
        let snapshot = since.next()?.unwrap();
        Some((snapshot.time - time(0)) / 1000)
    };
    assert_eq!(next(), Some(0));
    // While the first segment is read, the second is removed and the third grows.
    fs::remove_file(&segments(folder.path())[1]).unwrap();
    writer.write(&snapshot_at(1220)).unwrap();
    assert_eq!(next(), Some(1200));
    assert_eq!(next(), Some(1220));
    assert_eq!(next(), None);

    // If all segments are removed, the writer continues with a new one.
    for path in segments(folder.path()) {
        fs::remove_file(path).unwrap();
    }
    writer.write(&snapshot_at(1240)).unwrap();
    writer.write(&snapshot_at(1900)).unwrap();
    assert_eq!(read(folder.path()), [1900]);
}

/// Returns the time of the latest snapshot and the interval since the previous snapshot, in seconds.
fn latest(folder: &Path) -> Option<(i64, Option<f64>)> {
    let latest = Store::open(folder).unwrap().latest()?;
    Some(((latest.time - time(0)) / 1000, latest.interval_seconds))
}

#[test]
fn the_latest_snapshot_is_found_without_reading_all() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("none")).unwrap();
    assert_eq!(latest(&folder.path().join("none")), None);
    let mut writer = writer(folder.path(), DAY);
    for (second, found) in [
        (0, (0, None)),
        (5, (0, None)),
        (10, (10, Some(5.0))),
        (40, (40, Some(30.0))),
        (700, (700, None)),
        (710, (710, Some(10.0))),
    ] {
        writer.write(&snapshot_at(second)).unwrap();
        assert_eq!(latest(folder.path()), Some(found), "at {second}");
    }
    // A crash may leave an empty segment.
    fs::write(folder.path().join(name_of(time(720))), "").unwrap();
    assert_eq!(latest(folder.path()), Some((710, Some(10.0))));
}

#[test]
fn keep_newest_limits_the_size() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), DAY, (0..5).map(|n| 600 * n));
    let store = Store::open(folder.path()).unwrap();
    let one = store.segments[0].bytes;
    for (bytes, first) in [(u64::MAX, 0), (3 * one + one / 2, 1200), (0, 2400)] {
        let mut since = store.since(time(0));
        assert_eq!(since.keep_newest(bytes), first > 0);
        assert_eq!(since.next().unwrap().unwrap(), snapshot_at(first), "{bytes}");
    }
    // Segments from before the given time are not part of the iteration.
    assert!(!store.since(time(1800)).keep_newest(2 * one + one / 2));
    assert!(!store.since(time(9999)).keep_newest(0));
}

#[test]
fn only_permitted_users_can_read_a_store() {
    for (access, folder_mode, file_mode) in
        [(Access::Owner, 0o700, 0o600), (Access::Everyone, 0o755, 0o644)]
    {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("store");
        let mut writer = StoreWriter::open(&folder, DAY, access).unwrap();
        writer.write(&snapshot_at(0)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        // The umask can restrict the mode further.
        assert_eq!(mode(&folder) & !folder_mode, 0);
        assert_eq!(mode(&segments(&folder)[0]) & !file_mode, 0);
        assert_eq!(mode(&folder) & 0o700, 0o700);
        assert_eq!(mode(&folder.join("lock")) & !0o600, 0, "only the owner can lock it");
    }
}

/// A small disk that is mounted on a directory until the value is dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Mounts a small disk. If mounting fails, prints the reason and returns `None`.
    fn mount(folder: &'a Path, size: &str) -> Option<Self> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(folder);
        if !command.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped, no small disk to fill: mount needs root");
            return None;
        }
        Some(Self(folder))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_removes_the_oldest_segments() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_mounted) = SmallDisk::mount(folder.path(), "size=128k") else {
        return;
    };
    let mut writer = writer(folder.path(), DAY);
    let mut second = 0;
    while segments(folder.path()).first() == Some(&folder.path().join(name_of(time(0))))
        || second == 0
    {
        writer.write(&snapshot_at(second)).unwrap();
        second += 20;
        assert!(second < 1_000_000, "the disk never became full");
    }
    assert_eq!(read(folder.path()).last(), Some(&(second - 20)));

    // When other data fills the disk, the writer first removes the oldest segments. When none are left, snapshots must
    // wait.
    let ballast = folder.path().join("ballast");
    let mut file = File::create(&ballast).unwrap();
    let error = loop {
        while io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
        let written = writer.write(&snapshot_at(second));
        second += 20;
        if let Err(error) = written {
            break error;
        }
    };
    assert!(error.to_string().contains("no space left"), "{error}");
    let before = read(folder.path());
    assert!(writer.is_behind());
    writer.write(&snapshot_at(second)).unwrap_err();
    assert_eq!(read(folder.path()), before, "existing snapshots stay whole");
    drop(file);
    fs::remove_file(&ballast).unwrap();
    writer.write(&snapshot_at(second + 20)).unwrap();
    let after = read(folder.path());
    assert!(after.ends_with(&[second - 20, second, second + 20]), "{after:?}");
    assert_eq!(writer.lost(), 0);
}
