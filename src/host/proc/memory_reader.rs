//! The files of /proc that the kernel reads out of a process's own memory (argv, environment), or under its lock
//! (maps), read in a child that can be left.
//!
//! That lock a process can have held for ever: where somebody reads a page of it, by `/proc/PID/mem`, that lies in a
//! file system of its user's own which never answers, while a thread of it waits to map another. Whoever reads these
//! files then waits with it, while its first thread sleeps as usual. So it is a child that reads; one that does not
//! answer in time is killed and left, and its process not asked again for a while. A program that has capabilities
//! of its file reads by itself: its child would have them too, for whoever starts it.

use std::ffi::{CStr, OsStr, OsString};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::host::machine::rights::has_gained_rights;
use crate::host::proc::folder::Folder;

/// By this argument gpumem knows that it is such a child.
const ARGUMENT: &str = "__read";
/// The files; the last is a list.
const NAMES: [&CStr; 3] = [c"cmdline", c"environ", c"maps"];
/// How long an answer may take: pages may have to come back from a disk.
const ANSWERS: Duration = Duration::from_secs(1);
/// So long a process that did not answer is left alone,
const PAUSE: Duration = Duration::from_secs(300);
/// and so are all of its user's once there are so many of them.
const MOST_OF_ONE: usize = 4;
/// A question: which file, and how much of it.
const QUESTION_BYTES: usize = 9;
/// What stands before an answer: the error's number, and how much follows.
const HEAD_BYTES: usize = 8;
/// What of an answer is read with its head.
const SHORT_BYTES: usize = 8 << 10;

static READER: Mutex<Option<Reader>> = Mutex::new(None);

#[derive(Debug, Default)]
struct Reader {
    child: Option<(Child, UnixStream)>,
    left: Vec<Left>,
}

/// A child that was left, and for whom: the folder's inode number, which is another's in each process, and its owner.
#[derive(Debug)]
struct Left {
    child: Child,
    inode: u64,
    uid: u32,
    at: Instant,
}

/// From now on they are read so. To be called by a program that begins with [`serves_memory`].
pub fn read_memory_by_child() {
    if !has_gained_rights() {
        *READER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Reader::default());
    }
}

/// Whether this is such a child, by the arguments that the program was started with; then it has done its work.
pub fn serves_memory(mut arguments: impl Iterator<Item = OsString>) -> bool {
    let is_child = arguments.nth(1).is_some_and(|it| it == *OsStr::new(ARGUMENT));
    if is_child && !has_gained_rights() {
        // Who asked has ended.
        let _ = serve();
    }
    is_child
}

/// Reads a file of a process's folder into `content`, where it is one of these and a child is to read them.
pub(super) fn read(
    folder: &Folder,
    name: &CStr,
    content: &mut Vec<u8>,
    limit: usize,
) -> Option<Result<(), Errno>> {
    let file = NAMES.iter().position(|known| *known == name)?;
    let mut reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
    let reader = reader.as_mut()?;
    reader.left.retain_mut(|it| {
        let is_gone = it.child.try_wait().is_ok_and(|status| status.is_some());
        !is_gone || it.at.elapsed() < PAUSE
    });
    let (inode, uid) = match fstat(folder) {
        Ok(stat) => (stat.st_ino, stat.st_uid),
        Err(errno) => return Some(Err(errno)),
    };
    let of_user = reader.left.iter().filter(|it| it.uid == uid).count();
    if of_user >= MOST_OF_ONE || reader.left.iter().any(|it| it.inode == inode) {
        return Some(Err(Errno::TIMEDOUT));
    }
    for _ in 0..2 {
        let (child, mut socket) = match reader.child.take() {
            Some(known) => known,
            // Where there can be none, it is read here.
            None => start().ok()?,
        };
        match ask(&mut socket, folder, file, limit, content) {
            Ok(result) => {
                reader.child = Some((child, socket));
                return Some(result);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let mut child = child;
                // It may be beyond that, too.
                let _ = child.kill();
                reader.left.push(Left { child, inode, uid, at: Instant::now() });
                return Some(Err(Errno::TIMEDOUT));
            }
            // Somebody has ended it.
            Err(_) => drop(socket),
        }
    }
    Some(Err(Errno::IO))
}

fn start() -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(ANSWERS))?;
    ours.set_write_timeout(Some(ANSWERS))?;
    let child = Command::new("/proc/self/exe")
        // Who lists processes is to see whose it is.
        .arg0("gpumem")
        .arg(ARGUMENT)
        .env_clear()
        .current_dir("/")
        // What is typed at a terminal to end gpumem is not for it.
        .process_group(0)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, ours))
}

fn ask(
    socket: &mut UnixStream,
    folder: &Folder,
    file: usize,
    limit: usize,
    content: &mut Vec<u8>,
) -> io::Result<Result<(), Errno>> {
    let mut question = [0; QUESTION_BYTES];
    question[0] = u8::try_from(file).unwrap_or_default();
    question[1..].copy_from_slice(&(limit as u64).to_le_bytes());
    let folders = [folder.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&folders));
    sendmsg(&socket, &[IoSlice::new(&question)], &mut control, SendFlags::NOSIGNAL)?;
    // Most answers come whole with their head.
    let mut begin = [0; HEAD_BYTES + SHORT_BYTES];
    let mut got = 0;
    while got < HEAD_BYTES {
        match socket.read(&mut begin[got..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => got += more,
        }
    }
    let [e0, e1, e2, e3, l0, l1, l2, l3, rest @ ..] = begin;
    let errno = i32::from_le_bytes([e0, e1, e2, e3]);
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let come = length.min(got - HEAD_BYTES);
    content.clear();
    content.extend_from_slice(&rest[..come]);
    content.resize(length, 0);
    socket.read_exact(&mut content[come..])?;
    Ok(if errno == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(errno)) })
}

/// Answers until nobody asks any more.
fn serve() -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut content = Vec::new();
    loop {
        let mut question = [0; QUESTION_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut question)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let got = recvmsg(&socket, &mut parts, &mut control, flags)?;
        let folder = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut folders) => folders.next(),
            _ => None,
        });
        let Some(folder) = folder.filter(|_| got.bytes == QUESTION_BYTES).map(Folder::from) else {
            return Ok(());
        };
        let [file, limit @ ..] = question;
        let limit = usize::try_from(u64::from_le_bytes(limit)).unwrap_or_default();
        let name = NAMES.get(usize::from(file)).copied().unwrap_or_default();
        content.clear();
        let read = folder.read_here(name, &mut content, limit, name == c"maps");
        let errno = read.err().map_or(0, Errno::raw_os_error);
        let length = u32::try_from(content.len()).unwrap_or_default();
        let head = [errno.to_le_bytes(), length.to_le_bytes()].concat();
        socket.write_all(&[&head[..], &content].concat())?;
    }
}
