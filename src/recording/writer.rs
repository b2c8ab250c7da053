//! Appends snapshots to a file or standard output, a whole line at a time.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::{Error, is_zstd};
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
    pub fn append(path: &Path, rotation: Option<Rotation>) -> Result<Self, Error> {
        let name = path.display().to_string();
        if path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("zst"))
        {
            return Err(Error::Compressed { name });
        }
        if path.is_dir() {
            return Err(Error::Directory {
                path: path.to_owned(),
            });
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
    pub fn to_stdout() -> Result<Self, Error> {
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
            Err(cause) => Err(Error::Create { name, cause }),
        }
    }

    /// Writes one snapshot as one line.
    ///
    /// # Errors
    ///
    /// A full disk and the like, after which the file still ends with a whole line and another try
    /// is welcome; [`Error::Closed`] where it is a pipe and its reader has gone.
    pub fn write(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.line.clear();
        self.line.push(b'\n');
        if let Err(error) = serde_json::to_writer(&mut self.line, snapshot) {
            return Err(self.failed(error.into(), false));
        }
        self.line.push(b'\n');
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
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Err(Error::Closed {
                name: self.name.clone(),
            }),
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

    fn failed(&self, cause: io::Error, torn: bool) -> Error {
        Error::Write {
            name: self.name.clone(),
            cause,
            whole: self.whole,
            torn,
        }
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

    /// Moves a full file aside and begins a new one, before the line at hand is written.
    fn rotate(&mut self) -> Result<(), Error> {
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
                    return Err(Error::Rotate { from, to, cause });
                }
                // A gap in the row is no harm.
                _ => {}
            }
        }
        let (file, end) = open(path, &self.name)?;
        self.file = file;
        self.bytes = end.bytes;
        self.isolate = end.torn;
        Ok(())
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
struct End {
    regular: bool,
    bytes: u64,
    torn: bool,
}

/// Opens a file for appending and takes its lock.
fn open(path: &Path, name: &str) -> Result<(File, End), Error> {
    let create_error = |cause| Error::Create {
        name: name.to_owned(),
        cause,
    };
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(create_error)?;
    let metadata = file.metadata().map_err(create_error)?;
    let mut end = End {
        regular: metadata.is_file(),
        bytes: metadata.len(),
        torn: false,
    };
    if !end.regular {
        return Ok((file, end));
    }
    // Two writers would rotate the file away under each other. A file system without locks has
    // to do without this guard.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        return Err(Error::Busy {
            name: name.to_owned(),
        });
    }
    if end.bytes > 0 {
        // A file that we may write and not read is taken to end badly: an empty line is no harm.
        let (head, last) = edges(path, end.bytes).unwrap_or_default();
        if is_zstd(&head) {
            return Err(Error::Compressed {
                name: name.to_owned(),
            });
        }
        end.torn = last != b'\n';
    }
    Ok((file, end))
}

/// The first four bytes of a file and its last one.
fn edges(path: &Path, bytes: u64) -> io::Result<(Vec<u8>, u8)> {
    let file = File::open(path)?;
    let mut last = [0];
    file.read_exact_at(&mut last, bytes - 1)?;
    let mut head = Vec::new();
    file.take(4).read_to_end(&mut head)?;
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
