//! Runs programs that need no terminal: the notify command, and ssh in batch mode.
//!
//! Each program runs in a new session without a controlling terminal, so it cannot read from or type into the caller's
//! terminal. The kernel sends SIGTERM to the program when the thread that started it ends.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, set_parent_process_death_signal,
    setsid, waitid,
};

use crate::deadline::Deadline;

/// Interval at which to check whether a program has exited.
const POLL: Duration = Duration::from_millis(5);
/// Maximum time to wait for the exit of a killed program. A process in an uninterruptible system call exits late.
const EXITS: Duration = Duration::from_secs(2);

/// A program in its own session. Dropping this value kills the program's process group.
#[derive(Debug)]
pub struct Subprocess {
    pub child: Child,
    is_reaped: bool,
}

impl Subprocess {
    #[allow(unsafe_code)]
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let begin_session = || {
            setsid()?;
            Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
        };
        // SAFETY: after the fork, the closure makes two system calls; it neither allocates nor locks.
        let child = unsafe { command.pre_exec(begin_session) }.spawn()?;
        Ok(Self { child, is_reaped: false })
    }

    /// Waits up to `time` for the program to exit. If it exits, kills the rest of its process group and returns the
    /// exit status. Otherwise, returns `None`.
    pub fn wait(&mut self, time: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Deadline::after(time);
        let exited = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while !self.is_reaped && waitid(WaitId::Pid(self.pid()), exited)?.is_none() {
            if deadline.left().is_zero() {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
        self.kill();
        self.is_reaped = true;
        self.child.wait().map(Some)
    }

    /// Kills the process group. The kernel cannot reuse the group ID until the program is reaped.
    pub fn kill(&self) {
        if !self.is_reaped {
            let _ = kill_process_group(self.pid(), Signal::KILL);
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Subprocess {
    fn drop(&mut self) {
        self.kill();
        let _ = self.wait(EXITS);
    }
}
