//! Appends snapshots to a file or standard output, one line at a time.

use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

use super::{RecordingError, is_zstd};
use crate::host::open_output;
use crate::model::json;
use crate::model::{Snapshot, Time};

/// Writes snapshots, with a single `write(2)` call per line if possible. Never changes existing content. After a
/// failed write, removes the part that was written, so that the caller can try again.
#[derive(Debug)]
pub struct Writer {
    name: String,
    file: File,
    path: Option<PathBuf>,
    /// Whether a newline must precede the next line, because the file ends with a torn line.
    isolate: bool,
    line: Vec<u8>,
    whole: Option<Time>,
}

impl Writer {
    /// Appends to a file, and creates a missing file. If a crash left a torn last line, terminates the line with a
    /// newline. The path can refer to an open file descriptor, such as `/dev/stdout` or `/dev/fd/63`.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened, is a directory, is compressed, or is not a recording. Also
    /// returns an error if another process is recording to the file.
    pub fn append(path: &Path) -> Result<Self, RecordingError> {
        let name = path.display().to_string();
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zst")) {
            return Err(RecordingError::Compressed { name });
        }
        if path.is_dir() {
            return Err(RecordingError::Directory { path: path.to_owned() });
        }
        let (file, isolate) = open(path, &name)?;
        Ok(Self { name, file, path: Some(path.to_owned()), isolate, line: Vec::new(), whole: None })
    }

    /// Writes to standard output, without the buffer of [`io::stdout`].
    ///
    /// # Errors
    ///
    /// Returns an error if standard output is closed.
    pub fn to_stdout() -> Result<Self, RecordingError> {
        let name = "standard output".to_owned();
        match io::stdout().as_fd().try_clone_to_owned() {
            Ok(stdout) => Ok(Self {
                name,
                file: File::from(stdout),
                path: None,
                isolate: false,
                line: Vec::new(),
                whole: None,
            }),
            Err(cause) => Err(RecordingError::Create { name, cause }),
        }
    }

    /// Writes a snapshot as one line.
    ///
    /// # Errors
    ///
    /// Returns an error if writing fails, for example because the disk is full. If possible, the file then ends with
    /// a complete line, and the caller can try again. Returns [`RecordingError::Closed`] if the reader of a pipe has
    /// exited.
    pub fn write(&mut self, snapshot: &Snapshot) -> Result<(), RecordingError> {
        self.line.clear();
        self.line.push(b'\n');
        if let Err(error) = json::append(&mut self.line, snapshot) {
            return Err(self.failed(error.into(), false));
        }
        self.line.push(b'\n');
        self.find_again()?;
        let from = usize::from(!self.isolate);
        let (written, result) = write_all(&mut self.file, &self.line[from..]);
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

    pub fn name(&self) -> &str {
        &self.name
    }

    fn failed(&self, cause: io::Error, torn: bool) -> RecordingError {
        RecordingError::Write { name: self.name.clone(), cause, whole: self.whole, torn }
    }

    /// Removes the last `written` bytes, unless other data follows them. Returns whether the bytes were removed.
    fn take_back(&mut self, written: u64) -> bool {
        let mut cut = || -> io::Result<bool> {
            // After an append, the position is just after the last byte that this writer wrote.
            let end = self.file.stream_position()?;
            let metadata = self.file.metadata()?;
            if !metadata.is_file() || metadata.len() != end || written > end {
                return Ok(false);
            }
            self.file.set_len(end - written)?;
            // A file on standard output may be open without `O_APPEND`.
            self.file.seek(SeekFrom::Start(end - written))?;
            Ok(true)
        };
        cut().unwrap_or(false)
    }

    fn find_again(&mut self) -> Result<(), RecordingError> {
        let Some(path) = self.path.as_deref() else {
            return Ok(());
        };
        let metadata = self.file.metadata().ok().filter(Metadata::is_file);
        let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
        let Some(metadata) = metadata else {
            return Ok(());
        };
        if !fs::metadata(path).is_ok_and(|named| identity(&named) == identity(&metadata)) {
            (self.file, self.isolate) = open(path, &self.name)?;
        }
        Ok(())
    }
}

/// Opens a file for appending and locks it. Also returns whether the file ends with a torn line.
fn open(path: &Path, name: &str) -> Result<(File, bool), RecordingError> {
    let create_error = |cause| RecordingError::Create { name: name.to_owned(), cause };
    let file = open_output(path, OFlags::APPEND, 0o666).map_err(create_error)?;
    let metadata = file.metadata().map_err(create_error)?;
    if !metadata.is_file() {
        return Ok((file, false));
    }
    // Two writers would mix their lines. If the file system has no locks, a second writer is not noticed.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        return Err(RecordingError::Busy { name: name.to_owned() });
    }
    let mut is_torn = false;
    if metadata.len() > 0 {
        // A write-only descriptor does not allow reading the content. In this case, assume a torn last line, because an
        // additional empty line is harmless.
        let (head, last) = edges(&file, metadata.len()).unwrap_or_default();
        if is_zstd(&head) {
            return Err(RecordingError::Compressed { name: name.to_owned() });
        }
        if !is_begun_recording(&head) {
            return Err(RecordingError::Foreign { name: name.to_owned() });
        }
        is_torn = last != b'\n';
    }
    Ok((file, is_torn))
}

/// Returns whether a file that begins with `head` is a recording, even if its first line is torn.
fn is_begun_recording(head: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"schema\":\"gpumem.snapshot/";
    let written = head.iter().filter(|byte| !byte.is_ascii_whitespace());
    written.zip(BEGINNING).all(|(written, expected)| written == expected)
}

fn edges(file: &File, bytes: u64) -> io::Result<(Vec<u8>, u8)> {
    let mut last = [0];
    file.read_exact_at(&mut last, bytes - 1)?;
    let mut head = [0; 64];
    let length = file.read_at(&mut head, 0)?;
    Ok((head[..length].to_vec(), last[0]))
}

/// Writes all bytes, with a single call if possible. Also returns how many bytes were written.
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

pub(super) fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull => "free some space, or record to another disk",
        io::ErrorKind::QuotaExceeded => "free some of your quota, or record to another disk",
        io::ErrorKind::FileTooLarge => {
            "raise the limit on file sizes (ulimit -f), or record with --store"
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

    fn snapshot_at(seconds: i64) -> Snapshot {
        let time = Time::from_unix_milliseconds(1_763_719_445_000 + 1000 * seconds);
        let mut snapshot = Snapshot::new(time);
        snapshot.host.hostname = Some("gpu-1".into());
        snapshot
    }

    fn read(path: &Path) -> (Vec<Snapshot>, u64) {
        let mut reader = RecordingReader::open(path).unwrap();
        let snapshots = reader.by_ref().map(Result::unwrap).collect();
        (snapshots, reader.damage_count())
    }

    #[test]
    fn each_line_is_written_immediately_and_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let mut writer = Writer::append(&path).unwrap();
        for n in 0..3 {
            writer.write(&snapshot_at(n)).unwrap();
            assert!(fs::read(&path).unwrap().ends_with(b"\n"));
            assert_eq!(read(&path).0.len() as i64, n + 1);
        }
        drop(writer);
        Writer::append(&path).unwrap().write(&snapshot_at(3)).unwrap();
        assert_eq!(read(&path), ((0..4).map(snapshot_at).collect(), 0));
    }

    #[test]
    fn a_torn_line_stays_and_gets_a_newline() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        fs::write(&path, "{\"schema\":\"gpum").unwrap();
        let mut writer = Writer::append(&path).unwrap();
        writer.write(&snapshot_at(0)).unwrap();
        writer.write(&snapshot_at(1)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"schema\":\"gpum\n{"), "{text}");
        assert_eq!(text.lines().count(), 3);
        assert_eq!(read(&path), (vec![snapshot_at(0), snapshot_at(1)], 1));
    }

    #[test]
    fn a_file_that_was_moved_or_deleted_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let [path, aside] = ["r.jsonl", "aside.jsonl"].map(|name| folder.path().join(name));
        let mut writer = Writer::append(&path).unwrap();
        writer.write(&snapshot_at(0)).unwrap();
        fs::rename(&path, &aside).unwrap();
        writer.write(&snapshot_at(1)).unwrap();
        fs::remove_file(&path).unwrap();
        writer.write(&snapshot_at(2)).unwrap();
        fs::copy(&aside, folder.path().join("copy")).unwrap();
        fs::rename(folder.path().join("copy"), &path).unwrap();
        writer.write(&snapshot_at(3)).unwrap();
        assert_eq!(read(&aside), (vec![snapshot_at(0)], 0));
        assert_eq!(read(&path), (vec![snapshot_at(0), snapshot_at(3)], 0));
    }

    #[test]
    fn foreign_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile");
        for text in ["export PATH\n", "{\"schema\":\"gpumem.check/1\"}\n", "{}\n", "x"] {
            fs::write(&path, text).unwrap();
            let error = Writer::append(&path).unwrap_err();
            assert!(error.to_string().contains("not a recording"), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
        assert!(Writer::append(&path).unwrap_err().to_string().contains("uid 1000"));
    }

    #[test]
    fn a_compressed_or_busy_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = |name: &str| Writer::append(&folder.path().join(name)).unwrap_err().to_string();
        assert!(error("r.jsonl.zst").contains("compress it afterwards"));
        fs::write(folder.path().join("r.jsonl"), b"\x28\xb5\x2f\xfd\0\0").unwrap();
        assert!(error("r.jsonl").contains("compress it afterwards"));
        assert!(error("").contains("is a directory; choose a file in it"));
        assert!(error("none/r.jsonl").contains("no such file or directory;"));

        let path = folder.path().join("busy.jsonl");
        let first = Writer::append(&path).unwrap();
        assert!(error("busy.jsonl").contains("another gpumem process is recording to it"));
        drop(first);
        Writer::append(&path).unwrap();
    }

    #[test]
    fn a_closed_pipe_has_its_own_error() {
        let (reader, pipe) = io::pipe().unwrap();
        let mut writer = Writer::to_stdout().unwrap();
        writer.file = File::from(std::os::fd::OwnedFd::from(pipe));
        writer.write(&snapshot_at(0)).unwrap();
        drop(reader);
        let error = writer.write(&snapshot_at(1)).unwrap_err();
        assert!(matches!(error, RecordingError::Closed { .. }), "{error}");
    }

    #[test]
    fn a_line_followed_by_other_data_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let mut writer = Writer::append(&path).unwrap();
        writer.write(&snapshot_at(0)).unwrap();
        let line = fs::metadata(&path).unwrap().len();
        let mut other = File::options().append(true).open(&path).unwrap();
        other.write_all(b"somebody else's\n").unwrap();
        assert!(!writer.take_back(line));
        assert_eq!(read(&path), (vec![snapshot_at(0)], 1));
    }

    /// Fills a disk until writing fails. At that time and after space is freed, the file must be intact.
    fn fill(path: &Path, kind: io::ErrorKind, words: &str, make_space: impl FnOnce()) {
        fs::write(path, "{\"schema").unwrap();
        let mut writer = Writer::append(path).unwrap();
        let mut n = 0;
        let error = loop {
            match writer.write(&snapshot_at(n)) {
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
            "cannot write {}: {words}; the recording is complete up to {}; ",
            path.display(),
            snapshot_at(n - 1).time.local()
        );
        assert!(error.to_string().starts_with(&start), "{error}");
        let whole = fs::read(path).unwrap();
        assert!(whole.ends_with(b"\n"));
        assert_eq!(read(path), ((0..n).map(snapshot_at).collect(), 1));

        // As long as the disk is full, every write fails.
        writer.write(&snapshot_at(n)).unwrap_err();
        assert_eq!(fs::read(path).unwrap(), whole);
        make_space();
        writer.write(&snapshot_at(n)).unwrap();
        assert_eq!(read(path), ((0..=n).map(snapshot_at).collect(), 1));
    }

    /// The limit on the size of files applies to the whole process, so the test runs itself in a child process. No
    /// privileges are needed.
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
        // If a shell ignores SIGXFSZ, so do the programs that it executes.
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
