//! The end of what the command wrote to standard error, for what it says of memory that ran out.
//!
//! A terminal is left alone: whoever sits there reads it. What was added to a file is read back from it. A pipe has
//! one reader, so there the command writes to a pipe of gpumem's, and a child process (`gpumem __relay`) passes every
//! byte on, in order; with standard output where both are the same pipe. It goes on for as long as anybody has that
//! pipe open, so that whoever outlives the command and gpumem can still write, and the reader sees the end when it
//! would without gpumem.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;

/// By this argument gpumem knows that it is such a child.
const ARGUMENT: &str = "__relay";
/// How much of the end is kept.
const TAIL_BYTES: usize = 64 << 10;
/// How long the child may take to pass on what is there; a reader that stands still holds it up.
const ANSWERS: Duration = Duration::from_secs(10);

/// Where the command's standard error goes.
#[derive(Debug)]
pub(super) enum Stderr {
    /// Where it went; what it writes is not known.
    Alone,
    /// To a file, which had this length before.
    File {
        from: u64,
    },
    Relay {
        control: UnixStream,
        pipe: Option<OwnedFd>,
        has_output: bool,
    },
}

impl Stderr {
    pub(super) fn watch() -> Self {
        let stderr = io::stderr();
        let Ok(known) = fstat(&stderr) else { return Self::Alone };
        match FileType::from_raw_mode(known.st_mode) {
            FileType::RegularFile => {
                let appends = fcntl_getfl(&stderr).is_ok_and(|it| it.contains(OFlags::APPEND));
                let end = known.st_size.cast_unsigned();
                let from = if appends { Ok(end) } else { rustix::fs::tell(&stderr) };
                from.map_or(Self::Alone, |from| Self::File { from })
            }
            FileType::Fifo => {
                let is_same = |output: rustix::fs::Stat| {
                    (output.st_dev, output.st_ino) == (known.st_dev, known.st_ino)
                };
                let has_output = fstat(io::stdout()).is_ok_and(is_same);
                start_relay().map_or(Self::Alone, |(control, pipe)| Self::Relay {
                    control,
                    pipe: Some(pipe),
                    has_output,
                })
            }
            _ => Self::Alone,
        }
    }

    /// Which descriptors the command gets in place of gpumem's own: from, to.
    pub(super) fn replaced(&self) -> Vec<(i32, i32)> {
        let Self::Relay { pipe: Some(pipe), has_output, .. } = self else { return Vec::new() };
        let from = pipe.as_raw_fd();
        let to: &[i32] = if *has_output { &[1, 2] } else { &[2] };
        to.iter().map(|&to| (from, to)).collect()
    }

    /// The command has been started, or never will be: only its own end is left.
    pub(super) fn started(&mut self) {
        if let Self::Relay { pipe, .. } = self {
            *pipe = None;
        }
    }

    /// Has all passed on that was written so far; the end of it.
    pub(super) fn tail(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Alone => None,
            Self::File { from } => {
                // The descriptor itself is for writing, and its place in the file the command's.
                let mut file = File::open("/proc/self/fd/2").ok()?;
                let length = file.metadata().ok()?.len();
                let from = (*from).max(length.saturating_sub(TAIL_BYTES as u64));
                file.seek(SeekFrom::Start(from)).ok()?;
                let mut tail = Vec::new();
                file.take(TAIL_BYTES as u64).read_to_end(&mut tail).ok()?;
                Some(tail)
            }
            Self::Relay { control, .. } => ask(control).ok(),
        }
    }
}

fn start_relay() -> io::Result<(UnixStream, OwnedFd)> {
    let (read, write) = io::pipe()?;
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(ANSWERS))?;
    let mut relay = Command::new("/proc/self/exe");
    relay
        .arg0("gpumem")
        .arg(ARGUMENT)
        .env_clear()
        .current_dir("/")
        // What is typed at a terminal to end the command is not for it.
        .process_group(0)
        .stdin(Stdio::from(read))
        .stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?))
        .stderr(Stdio::from(OwnedFd::from(theirs)));
    // It inherits blocked signals: one that is sent to every process of a job, as Slurm does, does not end it before the
    // command. It is the child of a thread of its own, which waits for it: those of the first one are the command's.
    let (started, is_started) = channel();
    thread::Builder::new().name("relay".to_owned()).spawn(move || {
        let child = relay.spawn();
        drop(relay);
        let (child, result) = match child {
            Ok(child) => (Some(child), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let _ = started.send(result);
        child.map(|mut child| child.wait())
    })?;
    is_started.recv().map_err(io::Error::other)??;
    Ok((ours, write.into()))
}

fn ask(control: &mut UnixStream) -> io::Result<Vec<u8>> {
    control.write_all(b"?")?;
    let mut length = [0; 8];
    control.read_exact(&mut length)?;
    let mut tail = Vec::new();
    control.take(u64::from_le_bytes(length)).read_to_end(&mut tail)?;
    Ok(tail)
}

/// Whether this is such a child, by the arguments that the program was started with; then it has done its work.
pub(in crate::cli) fn relays(mut arguments: impl Iterator<Item = OsString>) -> bool {
    let is_child = arguments.nth(1).is_some_and(|it| it == *ARGUMENT);
    if is_child {
        // Nobody reads any more: whoever writes is to see that, too.
        let _ = relay();
    }
    is_child
}

fn relay() -> io::Result<()> {
    let (input, output) = (io::stdin().as_fd().try_clone_to_owned()?, io::stdout());
    let mut control = UnixStream::from(io::stderr().as_fd().try_clone_to_owned()?);
    let mut tail = Vec::new();
    let mut bytes = vec![0; TAIL_BYTES];
    let (mut is_open, mut is_asked) = (true, true);
    while is_open || is_asked {
        let mut polled = Vec::with_capacity(2);
        if is_open {
            polled.push(PollFd::new(&input, PollFlags::IN));
        }
        if is_asked {
            polled.push(PollFd::new(&control, PollFlags::IN));
        }
        rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
        let is_ready = |at: usize| polled.get(at).is_some_and(|it| !it.revents().is_empty());
        // A question is answered once all is passed on that was written before it.
        if is_open && is_ready(0) {
            let length = rustix::io::retry_on_intr(|| rustix::io::read(&input, &mut bytes[..]))?;
            write_all(&output, &bytes[..length])?;
            tail.extend_from_slice(&bytes[..length]);
            tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
            if length == 0 {
                is_open = false;
                // Its reader sees the end now; whoever asks may come later.
                nix::unistd::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
            }
        } else if is_ready(usize::from(is_open)) {
            is_asked = control.read(&mut [0])? == 1;
            if is_asked {
                control.write_all(&(tail.len() as u64).to_le_bytes())?;
                control.write_all(&tail)?;
            }
        }
    }
    Ok(())
}

/// Also where whoever shares the pipe has made it one that is not waited for.
fn write_all(output: &impl rustix::fd::AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(output, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(output, PollFlags::OUT)], None)?;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
