//! Appends snapshots to a file or standard output, a whole line at a time.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

use super::{RecordingError, is_zstd};
use crate::model::json;
use crate::model::{Snapshot, Time};

/// When a recording is moved aside, and how many are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rotation {
    /// A line that would make the file larger than this begins a new one. A single line may.
    pub max_bytes: u64,
    /// How many older files stay: `FILE.1` is the latest of them.
    pub keep: NonZeroU32,
}

/// Writes snapshots, one `write(2)` a line.
///
/// Nothing that was in the file before is ever changed, and what a failed write has left of its
/// line is taken back, so that after an error the caller may end or try again.
#[derive(Debug)]
pub struct Writer {
    name: String,
    file: File,
    /// `None` for standard output.
    path: Option<PathBuf>,
    rotation: Option<Rotation>,
    bytes: u64,
    /// What the file ends with is no whole line: a newline has to come first.
    isolate: bool,
    line: Vec<u8>,
    whole: Option<Time>,
}

impl Writer {
    /// Appends to a file and creates it where it is missing. A torn last line, as a crash leaves
    /// one, stays and is closed off by a newline.
    ///
    /// Pipes and devices may be named; they are never rotated.
    ///
    /// # Errors
    ///
    /// What cannot be opened, is a directory, is compressed, or is being recorded to already.
    pub fn append(path: &Path, rotation: Option<Rotation>) -> Result<Self, RecordingError> {
        let name = path.display().to_string();
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zst")) {
            return Err(RecordingError::Compressed { name });
        }
        if path.is_dir() {
            return Err(RecordingError::Directory { path: path.to_owned() });
        }
        let (file, end) = open(path, &name)?;
        let rotation = rotation.filter(|_| end.regular);
        Ok(Self {
            name,
            file,
            path: Some(path.to_owned()),
            rotation,
            bytes: end.bytes,
            isolate: end.torn,
            line: Vec::new(),
            whole: None,
        })
    }

    /// Writes to standard output, past the buffer of [`io::stdout`].
    ///
    /// # Errors
    ///
    /// Where standard output is closed.
    pub fn to_stdout() -> Result<Self, RecordingError> {
        let name = "standard output".to_owned();
        match io::stdout().as_fd().try_clone_to_owned() {
            Ok(stdout) => Ok(Self {
                name,
                file: File::from(stdout),
                path: None,
                rotation: None,
                bytes: 0,
                isolate: false,
                line: Vec::new(),
                whole: None,
            }),
            Err(cause) => Err(RecordingError::Create { name, cause }),
        }
    }

    /// Writes one snapshot as one line.
    ///
    /// # Errors
    ///
    /// A full disk and the like, after which the file still ends with a whole line and another try
    /// is welcome; [`RecordingError::Closed`] where it is a pipe and its reader has gone.
    pub fn write(&mut self, snapshot: &Snapshot) -> Result<(), RecordingError> {
        self.line.clear();
        self.line.push(b'\n');
        if let Err(error) = json::append(&mut self.line, snapshot) {
            return Err(self.failed(error.into(), false));
        }
        self.line.push(b'\n');
        self.find_again()?;
        self.rotate()?;
        let from = usize::from(!self.isolate);
        let (written, result) = write_all(&mut self.file, &self.line[from..]);
        self.bytes += written;
        match result {
            Ok(()) => {
                self.isolate = false;
                self.whole = Some(snapshot.time);
                Ok(())
            }
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
                Err(RecordingError::Closed { name: self.name.clone() })
            }
            Err(cause) => {
                let torn = written > 0 && !self.take_back(written);
                self.isolate |= torn;
                Err(self.failed(cause, torn))
            }
        }
    }

    /// The name of what is written to, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn failed(&self, cause: io::Error, torn: bool) -> RecordingError {
        RecordingError::Write { name: self.name.clone(), cause, whole: self.whole, torn }
    }

    /// Cuts off the last `written` bytes, which are ours, unless somebody else has appended since.
    fn take_back(&mut self, written: u64) -> bool {
        let mut cut = || -> io::Result<bool> {
            // An appending write leaves the position behind its own last byte.
            let end = self.file.stream_position()?;
            let metadata = self.file.metadata()?;
            if !metadata.is_file() || metadata.len() != end || written > end {
                return Ok(false);
            }
            self.file.set_len(end - written)?;
            // Standard output may be a file that was not opened for appending.
            self.file.seek(SeekFrom::Start(end - written))?;
            Ok(true)
        };
        let done = cut().unwrap_or(false);
        if done {
            self.bytes -= written;
        }
        done
    }

    /// Opens the file anew where what is there by its name is another one, or none: it was moved away, deleted or
    /// replaced.
    fn find_again(&mut self) -> Result<(), RecordingError> {
        let Some(path) = self.path.as_deref() else {
            return Ok(());
        };
        let own = self.file.metadata().ok().filter(Metadata::is_file);
        let identity = |it: &Metadata| (it.dev(), it.ino());
        let Some(own) = own else {
            return Ok(());
        };
        if !fs::metadata(path).is_ok_and(|named| identity(&named) == identity(&own)) {
            self.reopen()?;
        }
        Ok(())
    }

    /// Begins a new file, or goes on with what is there.
    fn reopen(&mut self) -> Result<(), RecordingError> {
        if let Some(path) = self.path.as_deref() {
            let (file, end) = open(path, &self.name)?;
            self.file = file;
            self.bytes = end.bytes;
            self.isolate = end.torn;
        }
        Ok(())
    }

    /// Moves a full file aside and begins a new one, before the line at hand is written.
    fn rotate(&mut self) -> Result<(), RecordingError> {
        let (Some(rotation), Some(path)) = (self.rotation, self.path.as_deref()) else {
            return Ok(());
        };
        if self.bytes == 0 || self.bytes + self.line.len() as u64 <= rotation.max_bytes {
            return Ok(());
        }
        for n in (0..rotation.keep.get()).rev() {
            let (from, to) = (numbered(path, n), numbered(path, n + 1));
            match fs::rename(&from, &to) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                    return Err(RecordingError::Rotate { from, to, cause });
                }
                // A gap in the row is no harm.
                _ => {}
            }
        }
        self.reopen()
    }
}

/// `FILE.n`, and FILE itself for 0.
fn numbered(path: &Path, n: u32) -> PathBuf {
    if n == 0 {
        return path.to_owned();
    }
    let mut name = OsString::from(path);
    name.push(format!(".{n}"));
    name.into()
}

/// What a file to append to ends with.
struct FileEnd {
    regular: bool,
    bytes: u64,
    torn: bool,
}

/// Opens a file for appending and takes its lock.
fn open(path: &Path, name: &str) -> Result<(File, FileEnd), RecordingError> {
    let create_error = |cause| RecordingError::Create { name: name.to_owned(), cause };
    let is_root = rustix::process::geteuid().is_root();
    // A link in a folder that others write to leads root to any file.
    let flags = if is_root { OFlags::NOFOLLOW } else { OFlags::empty() };
    let mut options = OpenOptions::new();
    options.append(true).create(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).map_err(create_error)?;
    let metadata = file.metadata().map_err(create_error)?;
    if is_root && metadata.uid() != 0 {
        return Err(RecordingError::Others { name: name.to_owned(), uid: metadata.uid() });
    }
    let mut end = FileEnd { regular: metadata.is_file(), bytes: metadata.len(), torn: false };
    if !end.regular {
        return Ok((file, end));
    }
    // Two writers would rotate the file away under each other. A file system without locks has
    // to do without this guard.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        return Err(RecordingError::Busy { name: name.to_owned() });
    }
    if end.bytes > 0 {
        // A file that we may write and not read is taken to end badly: an empty line is no harm.
        let (head, last) = edges(path, end.bytes).unwrap_or_default();
        if is_zstd(&head) {
            return Err(RecordingError::Compressed { name: name.to_owned() });
        }
        if !is_begun_recording(&head) {
            return Err(RecordingError::Foreign { name: name.to_owned() });
        }
        end.torn = last != b'\n';
    }
    Ok((file, end))
}

/// Whether a file that begins so is a recording, be its first line torn.
fn is_begun_recording(head: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"schema\":\"gpumem.snapshot/";
    let written = head.iter().filter(|byte| !byte.is_ascii_whitespace());
    written.zip(BEGINNING).all(|(one, other)| one == other)
}

/// The first bytes of a file and its last one.
fn edges(path: &Path, bytes: u64) -> io::Result<(Vec<u8>, u8)> {
    let file = File::open(path)?;
    let mut last = [0];
    file.read_exact_at(&mut last, bytes - 1)?;
    let mut head = Vec::new();
    file.take(64).read_to_end(&mut head)?;
    Ok((head, last[0]))
}

/// Writes everything, by one call where the system takes it in one, and tells how much it took.
fn write_all(file: &mut File, bytes: &[u8]) -> (u64, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written as u64, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written as u64, Err(error)),
        }
    }
    (written as u64, Ok(()))
}

/// What to do about a write that failed.
pub(super) fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull => "free space or record to another disk",
        io::ErrorKind::QuotaExceeded => "free some of your quota or record to another disk",
        io::ErrorKind::FileTooLarge => {
            "raise the limit on file sizes (ulimit -f) or rotate by a smaller size"
        }
        _ => "record to another file",
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;
    use crate::recording::RecordingReader;

    fn at(seconds: i64) -> Snapshot {
        let time = Time::from_unix_milliseconds(1_763_719_445_000 + 1000 * seconds);
        let mut snapshot = Snapshot::new(time);
        snapshot.host.hostname = Some("gpu-1".into());
        snapshot
    }

    /// The snapshots of a file, and how many lines of it are damaged.
    fn read(path: &Path) -> (Vec<Snapshot>, u64) {
        let mut reader = RecordingReader::open(path).unwrap();
        let snapshots = reader.by_ref().map(Result::unwrap).collect();
        (snapshots, reader.damage_count())
    }

    fn rotation(max_bytes: u64, keep: u32) -> Option<Rotation> {
        Some(Rotation { max_bytes, keep: NonZeroU32::new(keep).unwrap() })
    }

    #[test]
    fn what_is_written_reads_back_and_each_line_is_there_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let mut writer = Writer::append(&path, None).unwrap();
        for n in 0..3 {
            writer.write(&at(n)).unwrap();
            assert!(fs::read(&path).unwrap().ends_with(b"\n"));
            assert_eq!(read(&path).0.len() as i64, n + 1);
        }
        drop(writer);
        Writer::append(&path, None).unwrap().write(&at(3)).unwrap();
        assert_eq!(read(&path), ((0..4).map(at).collect(), 0));
    }

    #[test]
    fn a_torn_line_stays_and_is_closed_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        fs::write(&path, "{\"schema\":\"gpum").unwrap();
        let mut writer = Writer::append(&path, None).unwrap();
        writer.write(&at(0)).unwrap();
        writer.write(&at(1)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"schema\":\"gpum\n{"), "{text}");
        assert_eq!(text.lines().count(), 3);
        assert_eq!(read(&path), (vec![at(0), at(1)], 1));
    }

    #[test]
    fn what_was_moved_away_or_deleted_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let [path, aside] = ["r.jsonl", "aside.jsonl"].map(|name| folder.path().join(name));
        let mut writer = Writer::append(&path, None).unwrap();
        writer.write(&at(0)).unwrap();
        fs::rename(&path, &aside).unwrap();
        writer.write(&at(1)).unwrap();
        fs::remove_file(&path).unwrap();
        writer.write(&at(2)).unwrap();
        fs::copy(&aside, folder.path().join("copy")).unwrap();
        fs::rename(folder.path().join("copy"), &path).unwrap();
        writer.write(&at(3)).unwrap();
        assert_eq!(read(&aside), (vec![at(0)], 0));
        assert_eq!(read(&path), (vec![at(0), at(3)], 0));
    }

    #[test]
    fn what_is_no_recording_and_as_root_what_is_others_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile");
        for text in ["export PATH\n", "{\"schema\":\"gpumem.check/1\"}\n", "{}\n", "x"] {
            fs::write(&path, text).unwrap();
            let error = Writer::append(&path, None).unwrap_err();
            assert!(error.to_string().contains("something else than a recording"), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::remove_file(&path).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Writer::append(&link, None).is_err() && !path.exists());
        fs::write(&path, "").unwrap();
        std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
        assert!(Writer::append(&path, None).unwrap_err().to_string().contains("uid 1000"));
    }

    #[test]
    fn full_files_move_down_the_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let line = serde_json::to_vec(&at(0)).unwrap().len() as u64 + 1;
        let mut writer = Writer::append(&path, rotation(2 * line + 1, 2)).unwrap();
        for n in 0..9 {
            writer.write(&at(n)).unwrap();
        }
        // Two lines a file; the first four snapshots have left the row.
        assert_eq!(read(&path), (vec![at(8)], 0));
        assert_eq!(read(&numbered(&path, 1)), (vec![at(6), at(7)], 0));
        assert_eq!(read(&numbered(&path, 2)), (vec![at(4), at(5)], 0));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);

        // A line larger than the limit still has a file of its own.
        drop(writer);
        let mut writer = Writer::append(&path, rotation(1, 1)).unwrap();
        writer.write(&at(9)).unwrap();
        writer.write(&at(10)).unwrap();
        assert_eq!(read(&path), (vec![at(10)], 0));
        assert_eq!(read(&numbered(&path, 1)), (vec![at(9)], 0));
    }

    #[test]
    fn what_cannot_be_rotated_is_reported_and_nothing_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        // A directory that is not empty cannot be replaced by a file.
        fs::create_dir_all(numbered(&path, 1).join("x")).unwrap();
        let mut writer = Writer::append(&path, rotation(1, 1)).unwrap();
        writer.write(&at(0)).unwrap();
        let error = writer.write(&at(1)).unwrap_err();
        assert!(matches!(error, RecordingError::Rotate { .. }), "{error}");
        assert_eq!(read(&path), (vec![at(0)], 0));
        fs::remove_dir_all(numbered(&path, 1)).unwrap();
        writer.write(&at(1)).unwrap();
        assert_eq!(read(&path), (vec![at(1)], 0));
    }

    #[test]
    fn what_it_would_spoil_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            |name: &str| Writer::append(&folder.path().join(name), None).unwrap_err().to_string();
        assert!(error("r.jsonl.zst").contains("compress it afterwards"));
        fs::write(folder.path().join("r.jsonl"), b"\x28\xb5\x2f\xfd\0\0").unwrap();
        assert!(error("r.jsonl").contains("compress it afterwards"));
        assert!(error("").contains("is a directory; name a file in it"));
        assert!(error("none/r.jsonl").contains("no such file or directory;"));

        let path = folder.path().join("busy.jsonl");
        let first = Writer::append(&path, rotation(1, 1)).unwrap();
        assert!(error("busy.jsonl").contains("another gpumem is recording to it"));
        drop(first);
        Writer::append(&path, None).unwrap();
    }

    #[test]
    fn a_reader_that_has_gone_is_an_error_of_its_own() {
        let (reader, pipe) = io::pipe().unwrap();
        let mut writer = Writer::to_stdout().unwrap();
        writer.file = File::from(std::os::fd::OwnedFd::from(pipe));
        writer.write(&at(0)).unwrap();
        drop(reader);
        let error = writer.write(&at(1)).unwrap_err();
        assert!(matches!(error, RecordingError::Closed { .. }), "{error}");
    }

    #[test]
    fn a_torn_line_that_is_not_the_last_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let mut writer = Writer::append(&path, None).unwrap();
        writer.write(&at(0)).unwrap();
        let line = writer.bytes;
        let mut other = OpenOptions::new().append(true).open(&path).unwrap();
        other.write_all(b"somebody else's\n").unwrap();
        assert!(!writer.take_back(line));
        assert_eq!(read(&path), (vec![at(0)], 1));
    }

    /// Fills a file until it fails, and asserts that it is whole then and after space was made.
    fn fill(path: &Path, kind: io::ErrorKind, words: &str, make_space: impl FnOnce()) {
        fs::write(path, "{\"schema").unwrap();
        let mut writer = Writer::append(path, None).unwrap();
        let mut n = 0;
        let error = loop {
            match writer.write(&at(n)) {
                Ok(()) => n += 1,
                Err(error) => break error,
            }
            assert!(n < 100_000, "it never became full");
        };
        assert!(n > 10, "full after {n} lines");
        assert!(
            matches!(&error, RecordingError::Write { cause, torn: false, .. } if cause.kind() == kind),
            "{error:?}"
        );
        let start = format!(
            "cannot write {}: {words}; the recording is whole up to {}; ",
            path.display(),
            at(n - 1).time.local()
        );
        assert!(error.to_string().starts_with(&start), "{error}");
        let whole = fs::read(path).unwrap();
        assert!(whole.ends_with(b"\n"));
        assert_eq!(read(path), ((0..n).map(at).collect(), 1));

        // Again and again, while it stays full.
        writer.write(&at(n)).unwrap_err();
        assert_eq!(fs::read(path).unwrap(), whole);
        make_space();
        writer.write(&at(n)).unwrap();
        assert_eq!(read(path), ((0..=n).map(at).collect(), 1));
    }

    /// The same without privileges: the limit on file sizes holds for a whole process, so the test
    /// runs itself in one of its own.
    #[test]
    fn a_limit_on_file_sizes_leaves_a_whole_recording() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const FOLDER: &str = "GPUMEM_TEST_LIMITED_FOLDER";
        if let Some(folder) = env::var_os(FOLDER) {
            let path = Path::new(&folder).join("r.jsonl");
            let raise = || {
                let maximum = getrlimit(Resource::Fsize).maximum;
                let limit = Rlimit { current: maximum, maximum };
                setrlimit(Resource::Fsize, limit).unwrap();
            };
            return fill(&path, io::ErrorKind::FileTooLarge, "file too large", raise);
        }
        let folder = tempfile::tempdir().unwrap();
        let (_crate, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::a_limit_on_file_sizes_leaves_a_whole_recording");
        // Ignored in the shell, SIGXFSZ stays ignored in what it becomes.
        let output = Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -S -f 40; exec \"$@\"", "sh"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", &name, "--test-threads=1"])
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{printed}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
