//! Reads cmdline, environ and maps in a child process that can be abandoned. Reading these files takes a lock on the
//! memory map of the process that is read (the target).
//!
//! A malicious process can cause its lock to be held forever. For example, it maps a file on a FUSE file system that
//! never answers. A second process reads a page of that file through `/proc/PID/mem`, and a thread of the first process
//! then waits to change the memory map. Reading the files then blocks, although the first thread of the target is in
//! ordinary sleep. If the child does not answer in time, gpumem kills and abandons it, and does not read the target for
//! some minutes. If gpumem's program file gives it more rights than its caller, gpumem reads the files itself, because
//! a child would get these rights, too.

use std::ffi::{CStr, OsStr, OsString};
use std::io::{self, BufReader, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::host::machine::rights::has_gained_rights;
use crate::host::proc::folder::Folder;

const ARGUMENT: &str = "__read";
/// Names of the files. Only the last file is a list (see [`Folder::read_list`]).
pub(super) const NAMES: [&CStr; 3] = [c"cmdline", c"environ", c"maps"];
/// Maximum wait for an answer. The kernel may have to read pages from a disk.
const ANSWERS: Duration = Duration::from_secs(1);
/// Maximum wait for the start of a child, which takes long only on a busy machine.
const STARTS: Duration = Duration::from_secs(20);
/// Minimum time for which a process is not read after a read of it has timed out.
const PAUSE: Duration = Duration::from_secs(300);
/// Maximum number of abandoned children per user. If it is reached, no process of the user is read.
const MAX_PER_USER: usize = 4;
/// Size of a request, which contains a limit in bytes for each file. A single request is sent for all files of a
/// process, because a round trip takes longer than the kernel takes to write a file.
const REQUEST_BYTES: usize = NAMES.len() * 8;
const HEAD_BYTES: usize = NAMES.len() * 8;
const SHORT_BYTES: usize = 8 << 10;

pub(super) type Contents = [Result<Vec<u8>, Errno>; NAMES.len()];

static READER: Mutex<Option<Reader>> = Mutex::new(None);

#[derive(Debug, Default)]
struct Reader {
    child: Option<(Child, UnixStream)>,
    abandoned: Vec<AbandonedChild>,
}

/// An abandoned child, and the inode number and owner of the folder that it was reading. The inode number identifies
/// a process.
#[derive(Debug)]
struct AbandonedChild {
    child: Child,
    inode: u64,
    uid: u32,
    at: Instant,
}

/// While this guard exists, a child reads the files. Dropping the guard kills the child and waits for it. In a
/// container whose first process does not reap children, a child that outlives gpumem would remain a zombie.
#[derive(Debug)]
pub struct ReadingChild(());

/// Makes a child read the files from now on. The program must have called [`serves_memory`] before.
pub fn read_memory_by_child() -> ReadingChild {
    if !has_gained_rights() {
        *READER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Reader::default());
    }
    ReadingChild(())
}

impl Drop for ReadingChild {
    fn drop(&mut self) {
        // If the reader is locked, a thread is waiting for an answer that may never arrive.
        let reader = READER.try_lock().ok().and_then(|mut reader| reader.take());
        if let Some((mut child, _)) = reader.and_then(|reader| reader.child) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// If this process was started as a reading child, serves requests until the parent exits. Returns whether it was.
pub fn serves_memory(mut arguments: impl Iterator<Item = OsString>) -> bool {
    let is_child = arguments.nth(1).is_some_and(|argument| argument == *OsStr::new(ARGUMENT));
    if is_child && !has_gained_rights() {
        let _ = serve();
    }
    is_child
}

/// Makes the child read the files in a process's folder, each up to a limit in bytes. Returns `None` if the caller
/// must read the files itself.
pub(super) fn read(folder: &Folder, limits: [usize; NAMES.len()]) -> Option<Contents> {
    let mut reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
    let reader = reader.as_mut()?;
    reader.abandoned.retain_mut(|abandoned| {
        let is_gone = abandoned.child.try_wait().is_ok_and(|status| status.is_some());
        !is_gone || abandoned.at.elapsed() < PAUSE
    });
    if !reader.abandoned.is_empty() {
        let (inode, uid) = match folder.inode().and_then(|inode| Ok((inode, folder.owner()?))) {
            Ok(identity) => identity,
            Err(errno) => return Some(NAMES.map(|_| Err(errno))),
        };
        let of_user = reader.abandoned.iter().filter(|abandoned| abandoned.uid == uid).count();
        if of_user >= MAX_PER_USER
            || reader.abandoned.iter().any(|abandoned| abandoned.inode == inode)
        {
            return Some(NAMES.map(|_| Err(Errno::TIMEDOUT)));
        }
    }
    for _ in 0..2 {
        let (child, mut socket) = match reader.child.take() {
            Some(child) => child,
            None => start().ok()?,
        };
        match ask(&mut socket, folder, limits) {
            Ok(contents) => {
                reader.child = Some((child, socket));
                return Some(contents);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let mut child = child;
                // A blocked child can survive SIGKILL.
                let _ = child.kill();
                let inode = folder.inode().unwrap_or(0);
                let uid = folder.owner().unwrap_or(u32::MAX);
                reader.abandoned.push(AbandonedChild { child, inode, uid, at: Instant::now() });
                return Some(NAMES.map(|_| Err(Errno::TIMEDOUT)));
            }
            Err(_) => drop(socket),
        }
    }
    Some(NAMES.map(|_| Err(Errno::IO)))
}

fn start() -> io::Result<(Child, UnixStream)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(STARTS))?;
    ours.set_write_timeout(Some(ANSWERS))?;
    let mut child = Command::new("/proc/self/exe")
        // Process listings must show that the child belongs to gpumem.
        .arg0("gpumem")
        .arg(ARGUMENT)
        .env_clear()
        .current_dir("/")
        // Signals sent by the terminal, such as for Ctrl-C, must not reach the child.
        .process_group(0)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    if let Err(error) = ours.read_exact(&mut [0]) {
        let _ = child.kill();
        return Err(error);
    }
    ours.set_read_timeout(Some(ANSWERS))?;
    Ok((child, ours))
}

fn ask(
    socket: &mut UnixStream,
    folder: &Folder,
    limits: [usize; NAMES.len()],
) -> io::Result<Contents> {
    let question = limits.map(|limit| (limit as u64).to_le_bytes());
    let question = question.as_flattened();
    let folders = [folder.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&folders));
    sendmsg(&socket, &[IoSlice::new(question)], &mut control, SendFlags::NOSIGNAL)?;
    // Most answers fit into the buffer and take a single read.
    let mut answer = BufReader::with_capacity(SHORT_BYTES, socket);
    let mut head = [0; HEAD_BYTES];
    answer.read_exact(&mut head)?;
    let mut contents = NAMES.map(|_| Ok(Vec::new()));
    let (heads, _) = head.as_chunks::<8>();
    for (content, &[e0, e1, e2, e3, l0, l1, l2, l3]) in contents.iter_mut().zip(heads) {
        let mut bytes = vec![0; u32::from_le_bytes([l0, l1, l2, l3]) as usize];
        answer.read_exact(&mut bytes)?;
        *content = match i32::from_le_bytes([e0, e1, e2, e3]) {
            0 => Ok(bytes),
            errno => Err(Errno::from_raw_os_error(errno)),
        };
    }
    Ok(contents)
}

fn serve() -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.write_all(&[0])?;
    let mut content = Vec::new();
    loop {
        let mut question = [0; REQUEST_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut question)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let got = recvmsg(&socket, &mut parts, &mut control, flags)?;
        let folder = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut folders) => folders.next(),
            _ => None,
        });
        let Some(folder) = folder.filter(|_| got.bytes == REQUEST_BYTES).map(Folder::from) else {
            return Ok(());
        };
        let (limits, _) = question.as_chunks::<8>();
        let mut head = Vec::with_capacity(HEAD_BYTES);
        let mut all = Vec::new();
        for (name, limit) in NAMES.into_iter().zip(limits) {
            let limit = usize::try_from(u64::from_le_bytes(*limit)).unwrap_or_default();
            content.clear();
            let read = match limit {
                0 => Ok(()),
                _ => folder.read_here(name, &mut content, limit, name == c"maps"),
            };
            let errno = read.err().map_or(0, Errno::raw_os_error);
            let length = u32::try_from(content.len()).unwrap_or_default();
            head.extend_from_slice(&errno.to_le_bytes());
            head.extend_from_slice(&length.to_le_bytes());
            all.extend_from_slice(&content);
        }
        socket.write_all(&[head, all].concat())?;
    }
}
