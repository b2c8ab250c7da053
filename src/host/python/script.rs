//! A script and its answer, in a directory that only a process's own user may enter.
//!
//! The directory is made where the process sees it, by the rights of its user: what is written is neither
//! more nor elsewhere than that user could write. Whether the script may run is settled by one file: whoever
//! makes `begun` first has it, the script as it begins or gpumem as it takes it back. So it runs once or not at
//! all, whatever becomes of the request in the interpreter.

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, unlinkat,
};
use rustix::io::{self, Errno, retry_on_intr};

use super::PythonError;

/// Where it is put: the first of them that is there and safe. They begin with `/`.
const PARENTS: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
const SCRIPT: &str = "release.py";
const BEGUN: &str = "begun";
const ANSWER: &str = "answer";
/// What the answer is called until it is whole.
const PART: &str = "answer.part";
/// An answer has some hundred bytes, and a few thousand with what holds memory.
const ANSWER_BYTES: usize = 1 << 20;
/// Group and others may write; only the owner of an entry may replace it.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Who owns a process: by these ids it is looked whether it may open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileOwner {
    pub uid: u32,
    pub gid: u32,
}

impl FileOwner {
    /// From `/proc/PID/status`: the last of the four ids of `Uid` and `Gid`, proc_pid_status(5).
    pub fn parse(status: &[u8]) -> Option<Self> {
        let last = |name: &str| {
            let mut lines = status.split(|&byte| byte == b'\n');
            let line = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
            let ids = std::str::from_utf8(line).ok()?;
            ids.split('\t').nth(3)?.parse().ok()
        };
        Some(Self { uid: last("Uid:\t")?, gid: last("Gid:\t")? })
    }

    /// Gives the thread that calls the rights of this owner over files, for good. A thread has them of its own.
    ///
    /// # Errors
    ///
    /// Where gpumem may not do that.
    pub fn assume(self) -> Result<(), PythonError> {
        // Neither reports a failure: what is asked for and cannot be changes nothing and tells what is.
        let unchanged = u32::MAX;
        setfsgid(Gid::from_raw(self.gid));
        setfsuid(Uid::from_raw(self.uid));
        let uid = setfsuid(Uid::from_raw(unchanged)).as_raw();
        let gid = setfsgid(Gid::from_raw(unchanged)).as_raw();
        ((uid, gid) == (self.uid, self.gid)).then_some(()).ok_or(PythonError::OtherUser)
    }
}

/// The directory of one script. It is removed by [`Self::remove`] only.
#[derive(Debug)]
pub struct ScriptFolder {
    parent: OwnedFd,
    name: String,
    folder: OwnedFd,
    owner: FileOwner,
    path: String,
}

impl ScriptFolder {
    /// Makes one within the root directory of a process. To be called by a thread that has
    /// [assumed](FileOwner::assume) the owner's rights; `name` is one that cannot be guessed.
    ///
    /// # Errors
    ///
    /// Where there is no place that is safe, or it cannot be written to.
    pub fn create(root: BorrowedFd<'_>, owner: FileOwner, name: &str) -> Result<Self, PythonError> {
        let root_uid = fstat(root).map_err(PythonError::Files)?.st_uid;
        let mut why = Errno::NOENT;
        for path in PARENTS {
            match Self::create_in(root, path, (owner, root_uid), name) {
                Ok(created) => return Ok(created),
                Err(errno) => why = errno,
            }
        }
        Err(PythonError::Files(why))
    }

    fn create_in(
        root: BorrowedFd<'_>,
        path: &str,
        (owner, root_uid): (FileOwner, u32),
        name: &str,
    ) -> io::Result<Self> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let plain = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let parent = openat2(root, path, directory, Mode::empty(), plain)?;
        let stat = fstat(&parent)?;
        // Whoever may replace what lies there would have the process run something else.
        let is_shared = stat.st_mode & OTHERS_WRITE != 0 && stat.st_mode & STICKY == 0;
        let is_safe = [0, owner.uid, root_uid].contains(&stat.st_uid) && !is_shared;
        if !is_safe {
            return Err(Errno::PERM);
        }
        mkdirat(&parent, name, Mode::RWXU)?;
        let folder = openat2(&parent, name, directory, Mode::empty(), plain)?;
        let stat = fstat(&folder)?;
        let is_ours = stat.st_uid == owner.uid && stat.st_mode & 0o777 == 0o700;
        if !is_ours {
            return Err(Errno::PERM);
        }
        Ok(Self { parent, name: name.to_owned(), folder, owner, path: format!("{path}/{name}") })
    }

    /// Its path, as the process sees it: letters, digits, `/`, `.` and `-`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Writes the script, and tells its path.
    ///
    /// # Errors
    ///
    /// Where it cannot be written.
    pub fn write(&self, source: &str) -> Result<String, PythonError> {
        let file = self.make(SCRIPT).map_err(PythonError::Files)?;
        let mut rest = source.as_bytes();
        while !rest.is_empty() {
            let written = retry_on_intr(|| io::write(&file, rest));
            let written = written.map_err(PythonError::Files)?;
            rest = &rest[written..];
        }
        Ok(format!("{}/{SCRIPT}", self.path))
    }

    /// Makes a file that is not there.
    fn make(&self, name: &str) -> io::Result<OwnedFd> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)
    }

    /// Whether the script has begun.
    pub fn has_begun(&self) -> bool {
        rustix::fs::statat(&self.folder, BEGUN, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Sees to it that the script does nothing, if it has not begun; whether that is so now.
    ///
    /// # Errors
    ///
    /// Where neither is known.
    pub fn withdraw(&self) -> Result<bool, PythonError> {
        match self.make(BEGUN) {
            Ok(_) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(PythonError::Files(errno)),
        }
    }

    /// The answer, once it is there: it appears whole.
    ///
    /// # Errors
    ///
    /// Where what lies there is no plain file of the owner's, or too long.
    pub fn answer(&self) -> Result<Option<Vec<u8>>, PythonError> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&self.folder, ANSWER, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(_) => return Err(PythonError::Answer),
        };
        let stat = fstat(&file).map_err(PythonError::Files)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || stat.st_uid != self.owner.uid {
            return Err(PythonError::Answer);
        }
        let mut content = Vec::with_capacity(4096);
        while content.len() <= ANSWER_BYTES {
            content.reserve(4096);
            let read =
                retry_on_intr(|| io::read(&file, rustix::buffer::spare_capacity(&mut content)));
            if read.map_err(|_| PythonError::Answer)? == 0 {
                return Ok(Some(content));
            }
        }
        Err(PythonError::Answer)
    }

    /// Removes it with what gpumem and the script may have put there; what else lies there stays, and it with it.
    pub fn remove(self) {
        for name in [SCRIPT, BEGUN, ANSWER, PART] {
            // What is not there need not be removed, and what cannot be is the owner's doing.
            let _ = unlinkat(&self.folder, name, AtFlags::empty());
        }
        let _ = unlinkat(self.parent.as_fd(), &*self.name, AtFlags::REMOVEDIR);
    }
}

/// The source of a script that runs `source` once and until `deadline_ms` (since the Unix epoch) at the
/// latest, and leaves what that sets `out` to, or how it failed, in the folder at `path`.
pub fn wrap(source: &str, path: &str, deadline_ms: i64) -> String {
    let quoted = quote(source);
    // `begun` decides who has it. An interrupt of the user's in the middle is passed on.
    format!(
        r#"def _():
    import os, time
    if time.time() * 1000 > {deadline_ms}:
        return
    try:
        os.close(os.open("{path}/{BEGUN}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return
    is_interrupted = False
    try:
        names = {{}}
        try:
            import json
            exec({quoted}, names)
            text = json.dumps({{"out": names.get("out")}})
        except BaseException as error:
            is_interrupted = isinstance(error, KeyboardInterrupt)
            text = '{{"error": "%s"}}' % "".join(filter(str.isalnum, type(error).__name__))
        names.clear()
        text = text.encode()
        file = os.open("{path}/{PART}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while text:
                text = text[os.write(file, text):]
        finally:
            os.close(file)
        os.rename("{path}/{PART}", "{path}/{ANSWER}")
    except BaseException as error:
        is_interrupted = is_interrupted or isinstance(error, KeyboardInterrupt)
    if is_interrupted:
        # From here it would be raised in this very script: a thread does it a moment later.
        import _thread
        _thread.start_new_thread(lambda: (time.sleep(0.02), _thread.interrupt_main()), ())
try:
    _()
except BaseException:
    pass
"#
    )
}

/// A Python literal of a text.
fn quote(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => literal.extend(['\\', c]),
            '\n' => literal.push_str("\\n"),
            ' '..='~' => literal.push(c),
            c => literal.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    literal.push('"');
    literal
}
