//! Opens and reads the folders of processes in /proc, and lists /proc.
//!
//! A pid can be reused at any time, but an open folder never refers to a different process. After the process has
//! exited, reads in the folder return `ESRCH` or `ENOENT`. The content is parsed by other modules.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags, fstat, openat, readlinkat_raw, statx,
};
use rustix::io::{self, Errno};
use rustix::path::Arg;

use crate::host::parse_number;
use crate::host::proc::memory_reader;

const LINK_BYTES: usize = 4096;

const FIRST_BYTES: usize = 16 << 10;

const OTHERS_WRITE: u16 = 0o022;

/// Maximum number of listed processes, which is a quarter of the kernel's limit on 64-bit machines.
pub const MAX_PROCESSES: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ProcEntry {
    pub pid: u32,
    pub inode: u64,
}

#[derive(Debug)]
pub struct Folder(OwnedFd);

fn open_folder(at: impl AsFd, path: impl Arg, access: OFlags) -> io::Result<Folder> {
    openat(at, path, access | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map(Folder)
}

impl Folder {
    pub fn open(proc: &Path, pid: u32) -> io::Result<Self> {
        let mut path = proc.to_owned();
        path.push(rustix::path::DecInt::new(pid));
        open_folder(CWD, &path, OFlags::PATH)
    }

    pub fn list(path: &Path) -> io::Result<Self> {
        open_folder(CWD, path, OFlags::RDONLY)
    }

    pub fn own(proc: &Path) -> io::Result<Self> {
        open_folder(CWD, proc.join("self"), OFlags::PATH)
    }

    pub fn descriptors_of(&self, pid: u32) -> io::Result<Self> {
        open_folder(&self.0, format!("{pid}/fd"), OFlags::RDONLY)
    }

    /// Reads the start of a file in the folder of `pid` into `content`. `self` must be /proc.
    pub fn file_of(&self, pid: u32, name: &str, content: &mut [u8]) -> io::Result<usize> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(&self.0, format!("{pid}/{name}"), flags, Mode::empty())?;
        io::read(&file, content)
    }

    /// Returns the owner of the folder, which usually is the effective user of the process. This takes a tenth of the
    /// time of reading `status`.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(fstat(&self.0)?.st_uid)
    }

    pub fn inode(&self) -> io::Result<u64> {
        Ok(fstat(&self.0)?.st_ino)
    }

    pub fn folder(&self, name: &CStr) -> io::Result<Self> {
        open_folder(&self.0, name, OFlags::RDONLY)
    }

    pub fn unlisted_folder(&self, name: &CStr) -> io::Result<Self> {
        open_folder(&self.0, name, OFlags::PATH)
    }

    pub fn file(&self, name: &CStr) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        openat(&self.0, name, flags, Mode::empty())
    }

    /// Replaces `content` with at most `limit` bytes of a file that the kernel returns in a single read: stat, status,
    /// cgroup, io, cmdline or environ. If a read of such a file does not fill the buffer, the content is complete
    /// (`seq_read_iter` in `fs/seq_file.c`, `environ_read` and `get_mm_cmdline` in `fs/proc/base.c`). Lists must be
    /// read with [`Folder::read_list`].
    pub fn read(&self, name: &CStr, content: &mut Vec<u8>, limit: usize) -> io::Result<()> {
        self.read_one(name, content, limit, false)
    }

    /// Reads a list like [`read`](Self::read). Each read of a list returns whole lines up to the size of a page.
    pub fn read_list(&self, name: &CStr, content: &mut Vec<u8>, limit: usize) -> io::Result<()> {
        self.read_one(name, content, limit, true)
    }

    fn read_one(
        &self,
        name: &CStr,
        content: &mut Vec<u8>,
        limit: usize,
        is_list: bool,
    ) -> io::Result<()> {
        let by_child = memory_reader::NAMES.iter().position(|memory_file| *memory_file == name);
        let by_child = by_child.and_then(|at| {
            let mut limits = [0; memory_reader::NAMES.len()];
            limits[at] = limit;
            memory_reader::read(self, limits)?.into_iter().nth(at)
        });
        match by_child {
            Some(read) => read.map(|read| *content = read),
            None => self.read_here(name, content, limit, is_list),
        }
    }

    /// Reads cmdline, environ and maps, each up to a limit in bytes. Skips a file if its limit is 0.
    pub fn read_memory(&self, limits: [usize; 3]) -> [io::Result<Vec<u8>>; 3] {
        memory_reader::read(self, limits).unwrap_or_else(|| {
            let mut files = memory_reader::NAMES.into_iter().zip(limits);
            std::array::from_fn(|_| {
                let mut content = Vec::new();
                if let Some((name, limit)) = files.next().filter(|&(_, limit)| limit > 0) {
                    self.read_here(name, &mut content, limit, name == c"maps")?;
                }
                Ok(content)
            })
        })
    }

    /// Reads a file in this process rather than in the child process. For cmdline, environ and maps, the read can block
    /// on the mmap lock of the other process.
    pub(super) fn read_here(
        &self,
        name: &CStr,
        content: &mut Vec<u8>,
        limit: usize,
        is_list: bool,
    ) -> io::Result<()> {
        let file = self.file(name)?;
        content.clear();
        while content.len() < limit {
            content.reserve((limit - content.len()).min(FIRST_BYTES));
            let room = content.spare_capacity_mut().len();
            let length = io::read(&file, spare_capacity(content))?;
            if length == 0 || (!is_list && length < room) {
                break;
            }
        }
        content.truncate(limit);
        Ok(())
    }

    /// Calls `each` with the target of a link, without the suffix ` (deleted)` that the kernel appends to the path of
    /// an unlinked file.
    pub fn link<T>(&self, name: &CStr, each: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); LINK_BYTES];
        let (target, _) = readlinkat_raw(&self.0, name, &mut buffer)?;
        Ok(each(target.strip_suffix(b" (deleted)").unwrap_or(target)))
    }

    /// Returns whether a link leads to a file that belongs to root and that only root can write to. Reads only cached
    /// attributes, because a network file system can hang. A FUSE file system can refuse other users, including root
    /// (`EACCES`). Such a file does not belong to root.
    pub fn leads_to_roots_file(&self, name: &CStr) -> Option<bool> {
        let wanted = StatxFlags::UID | StatxFlags::MODE;
        match statx(&self.0, name, AtFlags::STATX_DONT_SYNC, wanted) {
            Ok(file) => Some(file.stx_uid == 0 && file.stx_mode & OTHERS_WRITE == 0),
            Err(Errno::ACCESS) => Some(false),
            Err(_) => None,
        }
    }

    pub fn names(&self, mut each: impl FnMut(&CStr) -> bool) -> io::Result<()> {
        self.entries(|name, _| each(name))
    }

    /// Lists up to [`MAX_PROCESSES`] processes, sorted by pid. `self` must be /proc.
    pub fn processes(&self) -> io::Result<Vec<ProcEntry>> {
        let mut listing = Vec::new();
        self.entries(|name, inode| {
            let pid = parse_number(name.to_bytes());
            listing.extend(pid.map(|pid| ProcEntry { pid, inode }));
            listing.len() < MAX_PROCESSES
        })?;
        listing.sort_unstable();
        Ok(listing)
    }

    /// Calls `each` with the name and inode number of each entry, until `each` returns `false`.
    pub fn entries(&self, mut each: impl FnMut(&CStr, u64) -> bool) -> io::Result<()> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
        let mut entries = RawDir::new(self.0.as_fd(), &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." && !each(name, entry.ino()) {
                break;
            }
        }
        Ok(())
    }
}

/// The file descriptor must have been opened for reading if the folder is to be listed.
impl From<OwnedFd> for Folder {
    fn from(opened: OwnedFd) -> Self {
        Self(opened)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub fn is_out_of_descriptors(errno: Errno) -> bool {
    errno == Errno::MFILE || errno == Errno::NFILE
}

pub fn is_gone(errno: Errno) -> bool {
    errno == Errno::NOENT || errno == Errno::SRCH
}

/// Converts an error to `None`, unless gpumem has no file descriptors left.
pub fn if_readable<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(errno) if is_out_of_descriptors(errno) => Err(errno),
        Err(_) => Ok(None),
    }
}

/// Reads the first bytes of a small kernel file. Must not be used for files that users can create: such a file can be
/// a pipe, a link, or a file on a file server that hangs.
pub(in crate::host) fn read_start(path: &Path, most_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(in crate::host) fn read_text(path: &Path, most_bytes: u64) -> Option<String> {
    String::from_utf8(read_start(path, most_bytes).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::fs::FileType;

    use super::*;

    #[test]
    fn reading_stops_at_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"12\n3\xff").unwrap();
        assert_eq!(read_start(&path, 4).unwrap(), b"12\n3");
        assert_eq!(read_text(&path, 4).as_deref(), Some("12\n3"));
        assert_eq!(read_text(&path, 64), None);
        assert_eq!(read_text(&folder.path().join("b"), 64), None);
    }

    #[test]
    fn a_short_file_takes_one_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stat");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        // A second read would block, because the pipe is empty and still open for writing.
        let mut writer = File::options();
        let mut writer = writer.read(true).write(true).open(&path).unwrap();
        writer.write_all(b"1 (x) S").unwrap();
        let opened = Folder::list(folder.path()).unwrap();
        let (sender, read) = channel();
        std::thread::spawn(move || {
            let mut content = Vec::new();
            let result = opened.read(c"stat", &mut content, 4096);
            sender.send((result, content))
        });
        let (result, content) = read.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((result, &*content), (Ok(()), &b"1 (x) S"[..]));
    }

    #[test]
    fn a_long_file_is_read_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let long: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(folder.path().join("environ"), &long).unwrap();
        let opened = Folder::list(folder.path()).unwrap();
        let mut content = vec![1; 7];
        for limit in [1, FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, 99_999, 200_000] {
            opened.read(c"environ", &mut content, limit).unwrap();
            assert_eq!(content, long[..limit.min(long.len())], "{limit}");
        }
    }

    #[test]
    fn lists_are_read_to_the_end_and_records_in_one_read() {
        let folder = Folder::own(Path::new("/proc")).unwrap();
        let (mut list, mut record) = (Vec::new(), Vec::new());
        // The file is longer than a page, and a read returns at most a page.
        folder.read_list(c"smaps", &mut list, 4 << 20).unwrap();
        assert!(list.len() > 4096 && list.ends_with(b"\n"), "{}", list.len());
        assert!(list.windows(7).any(|part| part == b"[stack]"));
        for name in [c"stat", c"status", c"cgroup", c"cmdline", c"environ"] {
            folder.read(name, &mut record, 1 << 20).unwrap();
            let path = Path::new("/proc/self").join(name.to_str().unwrap());
            let whole = std::fs::read(path).unwrap();
            // Some numbers change between the reads, so only the number of control characters is compared.
            assert_eq!(
                record.iter().filter(|byte| **byte <= b'\n').count(),
                whole.iter().filter(|byte| **byte <= b'\n').count(),
                "{name:?}"
            );
        }
    }
}
