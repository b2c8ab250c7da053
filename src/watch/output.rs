//! Output to a terminal that can stop accepting bytes: the connection stalls, the user presses
//! Ctrl-S, or nothing reads from the pseudo-terminal.
//!
//! Bytes that the terminal does not accept in time stay in a buffer. Callers check
//! [`TerminalOutput::is_behind`] before they draw, so that the buffer stays small.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
// rustix cannot represent process groups outside this PID namespace; see `signals`.
use nix::unistd::{getpgrp, getsid};
use rustix::termios::{Action, QueueSelector, tcflow, tcflush, tcgetpgrp, tcgetsid};

/// Timeout for a frame. Output that the terminal has not accepted is written before the next frame.
const FRAME_TIMEOUT: Duration = Duration::from_millis(100);
/// Timeout for restoring the terminal. Output that the terminal has not accepted is discarded.
const RESTORE_TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum size of a write in blocking mode. A terminal that polls as writable accepts this many bytes without
/// blocking.
const SAFE_BYTES: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct TerminalOutput {
    file: Arc<File>,
    /// Whether writes can block: true if the terminal could not be reopened. Without reopening it, non-blocking mode
    /// would also affect the shell.
    may_block: bool,
    pending: Arc<Mutex<Vec<u8>>>,
}

impl TerminalOutput {
    /// Reopens the terminal of standard output, so that non-blocking mode affects no other process.
    pub(super) fn open() -> io::Result<Self> {
        let reopen = |path: &str| {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
            rustix::termios::isatty(&file).then(|| File::from(file))
        };
        // After `su`, another user owns the terminal and only /dev/tty can be opened.
        let session = || getsid(None).map(nix::unistd::Pid::as_raw);
        let is_own_session = || {
            tcgetsid(io::stdout()).is_ok_and(|owner| Ok(owner.as_raw_nonzero().get()) == session())
        };
        let file =
            reopen("/dev/stdout").or_else(|| is_own_session().then(|| reopen("/dev/tty"))?);
        let may_block = file.is_none();
        let file = match file {
            Some(file) => file,
            None => File::from(io::stdout().as_fd().try_clone_to_owned()?),
        };
        Ok(Self { file: Arc::new(file), may_block, pending: Arc::default() })
    }

    pub(super) fn is_behind(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Discards pending output and writes `bytes`, which determine the final state of the terminal.
    pub(super) fn write_last(&self, bytes: &[u8]) {
        // A thread that panicked may still hold the lock.
        if let Ok(mut pending) = self.pending.try_lock() {
            pending.clear();
        }
        // If the terminal is gone, there is nowhere to report the error.
        if self.send(bytes, RESTORE_TIMEOUT).is_ok_and(|sent| sent < bytes.len()) && is_foreground()
        {
            let _ = tcflush(&self.file, QueueSelector::OFlush);
            // Undo Ctrl-S, which blocks the output.
            let _ = tcflow(&self.file, Action::OOn);
            let _ = self.send(bytes, FRAME_TIMEOUT);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the bytes that the terminal accepts before the timeout. Returns the number of written bytes.
    fn send(&self, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
        let until = Instant::now() + timeout;
        let mut sent = 0;
        while sent < bytes.len() {
            let mut end = bytes.len();
            if self.may_block {
                if !self.is_ready(until)? {
                    break;
                }
                end = end.min(sent + SAFE_BYTES);
            }
            match (&*self.file).write(&bytes[sent..end]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.is_ready(until)? {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    fn is_ready(&self, until: Instant) -> io::Result<bool> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut polled = [PollFd::new(&*self.file, PollFlags::OUT)];
            match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
                Ok(count) => return Ok(count > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Write for TerminalOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut pending = self.lock();
        let sent = self.send(&pending, FRAME_TIMEOUT)?;
        pending.drain(..sent);
        Ok(())
    }
}

/// Returns whether gpumem may change the terminal. While gpumem is in the background, the shell
/// uses the terminal, and a change would stop gpumem.
pub(super) fn is_foreground() -> bool {
    tcgetpgrp(io::stdout()).is_ok_and(|group| group.as_raw_nonzero().get() == getpgrp().as_raw())
        // Job control does not apply if the terminal belongs to another session.
        || tcgetsid(io::stdout()).is_err()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn output(may_block: bool) -> (TerminalOutput, UnixStream) {
        let (reader, writer) = UnixStream::pair().unwrap();
        writer.set_nonblocking(!may_block).unwrap();
        let output = TerminalOutput {
            file: Arc::new(File::from(OwnedFd::from(writer))),
            may_block,
            pending: Arc::default(),
        };
        (output, reader)
    }

    #[test]
    fn output_that_the_terminal_rejects_is_kept_without_blocking() {
        for may_block in [false, true] {
            let (mut output, mut reader) = output(may_block);
            let bytes: Vec<u8> = (0..2_000_000u32).map(|n| n as u8).collect();
            let start = Instant::now();
            output.write_all(&bytes).unwrap();
            output.flush().unwrap();
            output.flush().unwrap();
            assert!(output.is_behind());
            let reading = std::thread::spawn(move || {
                let mut read = Vec::new();
                reader.read_to_end(&mut read).unwrap();
                read
            });
            while output.is_behind() && start.elapsed() < Duration::from_secs(60) {
                output.flush().unwrap();
            }
            drop(output);
            assert!(reading.join().unwrap() == bytes);
        }
    }

    #[test]
    fn writing_to_a_closed_terminal_fails() {
        let (mut output, reader) = output(false);
        drop(reader);
        output.write_all(b"x").unwrap();
        assert!(super::super::terminal::is_gone(&output.flush().unwrap_err()));
    }
}
