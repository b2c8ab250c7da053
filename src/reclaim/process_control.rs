//! Signals processes through pidfds, and starts requests to servers, kernels and the park helper. No other module in
//! `reclaim` sends signals.
//!
//! [`ProcessControl`] is the interface for an act, and [`PidfdControl`] implements it. To open a process safely,
//! `PidfdControl` opens a pidfd, reads the identity again by pid, and then checks that the process is still alive.
//! Because a living process keeps its pid, the pidfd refers to the process whose identity was read. No signal is sent
//! by pid. This module makes no decisions; see `act`.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;

use super::park::ParkAnswer;
use super::policy::Signal;
use super::release::ReleaseAnswer;
use super::step;
use super::target::Request;
use crate::deadline::{NoAnswer, Task};
use crate::host::{
    Guarded, JobUsage, ListedProcess, Roots, UsageReader, read_all, read_guarded, read_host,
    read_wait_channel,
};
use crate::units::system_message;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ApprovedProcess {
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    pub uid: u32,
    /// ID of the boot that `start_ticks` counts from. If `None`, no process matches.
    pub boot_id: Option<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(pub usize);

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotOpened {
    #[error("{0} is gone")]
    Gone(u32),
    /// The pid was reused, is that of a thread, or is from another boot.
    #[error("{0} is another process now; make a new plan")]
    Changed(u32),
    /// The kernel has no pidfds, or a sandbox forbids them. No privilege is needed to open a pidfd.
    #[error(
        "cannot open a pidfd for process {0}: needs Linux 5.3 and a seccomp profile that allows pidfd_open"
    )]
    NoPidfd(u32),
    #[error("cannot open a pidfd for process {pid}: {error}; try again")]
    Failed {
        pid: u32,
        /// Error from the kernel or from reading /proc.
        error: String,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotSent {
    #[error("gone")]
    Gone,
    #[error("not permitted; that requires root or the process's owner")]
    NotPermitted,
    #[error("not sent: {0}; try again")]
    Failed(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestResult {
    Waiting,
    Done,
    /// The process is working, so nothing was done.
    AtWork,
    Failed(String),
    Restarts(String),
    Released(ReleaseAnswer),
    Parked(ParkAnswer),
}

/// Operations on processes that an act needs. None of them waits for a process or a server.
pub trait ProcessControl {
    /// Opens a process, unless its pid belongs to a different process now.
    fn open(&mut self, approved: &ApprovedProcess) -> Result<Handle, NotOpened>;

    fn read_guarded(&mut self, pid: u32) -> Option<Guarded>;

    fn signal(&mut self, handle: Handle, signal: Signal) -> Result<(), NotSent>;

    /// Returns whether an opened process and all of its threads have exited.
    fn has_exited(&mut self, handle: Handle) -> bool;

    fn list(&mut self) -> Vec<ListedProcess>;

    /// Returns the resource usage of a job whose processes have these pids and start ticks. `before` is the previous
    /// reading, if any.
    fn read_usage(&mut self, processes: &[(u32, u64)], before: Option<&JobUsage>) -> JobUsage;

    /// Returns the kernel function in which a process is blocked, or `None` if it is not blocked.
    fn held_up(&mut self, pid: u32) -> Option<String>;

    fn start_request(&mut self, request: Request);

    fn answer(&mut self) -> RequestResult;

    fn release(&mut self);
}

pub struct PidfdControl {
    roots: Roots,
    held: Vec<OwnedFd>,
    /// The running request, or the reason why its thread could not be started.
    pending: Option<Result<Task<RequestResult>, String>>,
}

impl PidfdControl {
    pub fn new(roots: Roots) -> Self {
        Self { roots, held: Vec::new(), pending: None }
    }

    fn is_readable(fd: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If polling fails, assume that the process is alive.
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl ProcessControl for PidfdControl {
    fn open(&mut self, approved: &ApprovedProcess) -> Result<Handle, NotOpened> {
        let pid = approved.pid;
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(NotOpened::Gone(pid))?;
        let fd = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Err(NotOpened::Gone(pid)),
            // The pid is that of a thread. Older kernels return EINVAL, newer kernels return ENOENT.
            Err(Errno::INVAL | Errno::NOENT) => return Err(NotOpened::Changed(pid)),
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => return Err(NotOpened::NoPidfd(pid)),
            Err(errno) => {
                let error = errno.to_string();
                return Err(NotOpened::Failed { pid, error });
            }
        };
        let boot = read_host(&self.roots).boot_id;
        if approved.boot_id.is_none() || boot != approved.boot_id {
            return Err(NotOpened::Changed(pid));
        }
        let facts = read_guarded(&self.roots, pid)
            .map_err(|error| NotOpened::Failed { pid, error: error.to_string() })?;
        let facts = facts.ok_or(NotOpened::Gone(pid))?;
        if Self::is_readable(&fd) {
            return Err(NotOpened::Gone(pid));
        }
        let is_same = facts.start_ticks == approved.start_ticks
            && facts.uid == Some(approved.uid)
            && facts.is_process == Some(true);
        if !is_same {
            return Err(NotOpened::Changed(pid));
        }
        self.held.push(fd);
        Ok(Handle(self.held.len() - 1))
    }

    fn read_guarded(&mut self, pid: u32) -> Option<Guarded> {
        read_guarded(&self.roots, pid).ok().flatten()
    }

    fn signal(&mut self, handle: Handle, signal: Signal) -> Result<(), NotSent> {
        let Some(fd) = self.held.get(handle.0) else {
            return Err(NotSent::Gone);
        };
        match pidfd_send_signal(fd, signal.kernel()) {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err(NotSent::Gone),
            Err(Errno::PERM) => Err(NotSent::NotPermitted),
            Err(errno) => Err(NotSent::Failed(system_message(&errno))),
        }
    }

    fn has_exited(&mut self, handle: Handle) -> bool {
        self.held.get(handle.0).is_none_or(Self::is_readable)
    }

    fn list(&mut self) -> Vec<ListedProcess> {
        read_all(&self.roots).unwrap_or_default()
    }

    fn read_usage(&mut self, processes: &[(u32, u64)], before: Option<&JobUsage>) -> JobUsage {
        UsageReader::new(&self.roots).read(processes, before)
    }

    fn held_up(&mut self, pid: u32) -> Option<String> {
        read_wait_channel(&self.roots, pid)
    }

    fn start_request(&mut self, request: Request) {
        let roots = self.roots.clone();
        let task = Task::start("asking", move || step::perform(&roots, &request));
        self.pending = Some(task.map_err(|error| system_message(&error)));
    }

    fn answer(&mut self) -> RequestResult {
        match self.pending.as_ref().map(|task| task.as_ref().map(|task| task.wait(Duration::ZERO)))
        {
            None | Some(Ok(Err(NoAnswer::Late))) => RequestResult::Waiting,
            Some(Ok(Ok(answer))) => answer,
            Some(Ok(Err(NoAnswer::Never))) => {
                RequestResult::Failed("the thread that sent the request failed".to_owned())
            }
            Some(Err(error)) => RequestResult::Failed(error.clone()),
        }
    }

    fn release(&mut self) {
        self.held.clear();
        self.pending = None;
    }
}

impl std::fmt::Debug for PidfdControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PidfdControl").field("held", &self.held).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn an_approval_with_another_identity_is_not_opened() {
        let roots = Roots::default();
        let mut control = PidfdControl::new(roots.clone());
        let pid = std::process::id();
        let facts = control.read_guarded(pid).unwrap();
        let approved = ApprovedProcess {
            pid,
            start_ticks: facts.start_ticks,
            uid: facts.uid.unwrap(),
            boot_id: read_host(&roots).boot_id,
        };
        let handle = control.open(&approved).unwrap();
        assert!(!control.has_exited(handle));
        let changed = Err(NotOpened::Changed(pid));
        for changed_identity in [
            ApprovedProcess { start_ticks: facts.start_ticks + 1, ..approved.clone() },
            ApprovedProcess { uid: approved.uid.wrapping_add(1), ..approved.clone() },
            ApprovedProcess { boot_id: None, ..approved.clone() },
            ApprovedProcess { boot_id: Some("another".into()), ..approved.clone() },
        ] {
            assert_eq!(control.open(&changed_identity), changed, "{changed_identity:?}");
        }
        for pid in [0, u32::MAX, i32::MAX as u32] {
            let absent = ApprovedProcess { pid, ..approved.clone() };
            assert_eq!(control.open(&absent), Err(NotOpened::Gone(pid)));
        }
        assert_eq!(control.signal(Handle(99), Signal::Kill), Err(NotSent::Gone));
    }

    #[test]
    fn a_thread_id_is_not_opened() {
        let (pid_sender, pid_receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let link = std::fs::read_link("/proc/thread-self").unwrap();
            let number = link.file_name().unwrap().to_str().unwrap().parse::<u32>();
            pid_sender.send(number.unwrap()).unwrap();
            let _ = ended.recv();
        });
        let pid = pid_receiver.recv().unwrap();
        let roots = Roots::default();
        let mut control = PidfdControl::new(roots.clone());
        let facts = control.read_guarded(pid).unwrap();
        let approved = ApprovedProcess {
            pid,
            start_ticks: facts.start_ticks,
            uid: facts.uid.unwrap(),
            boot_id: read_host(&roots).boot_id,
        };
        assert_eq!(control.open(&approved), Err(NotOpened::Changed(pid)));
        drop(end);
        thread.join().unwrap();
    }
}
