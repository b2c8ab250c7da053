//! Starts the command as a shell would, waits for the command, and forwards signals.
//!
//! The command stays in gpumem's process group, so that the terminal and the shell treat both processes as one job.
//! gpumem blocks the signals that end or stop a job and reads them from a signalfd. The command receives the terminal's
//! signals directly, and gpumem forwards only signals that were sent to gpumem alone. When the command ends or stops,
//! gpumem does the same. The command inherits gpumem's original signal mask and dispositions.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, thread};

use anyhow::Context as _;
use nix::libc;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal as BlockedSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process, pidfd_open,
    set_child_subreaper, wait,
};
use rustix::termios::tcgetpgrp;

use crate::cli::signals;
use crate::host::{self, Roots};

/// `__WNOTHREAD` from wait(2), which rustix lacks: wait only for children of the calling thread. The main thread starts
/// the command and adopts orphans. Other threads wait for their own children.
const NO_THREAD: u32 = 0x2000_0000;

/// Signals that end, stop or continue a job, and SIGUSR1 and SIGUSR2. Real-time signals are forwarded as well.
const PASSED_ON: [BlockedSignal; 10] = [
    BlockedSignal::SIGHUP,
    BlockedSignal::SIGINT,
    BlockedSignal::SIGQUIT,
    BlockedSignal::SIGTERM,
    BlockedSignal::SIGUSR1,
    BlockedSignal::SIGUSR2,
    BlockedSignal::SIGTSTP,
    BlockedSignal::SIGTTIN,
    BlockedSignal::SIGTTOU,
    BlockedSignal::SIGCONT,
];

static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);
/// Whether the caller had closed standard input, output and error.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

// Before `main`, Rust's runtime ignores SIGPIPE and opens /dev/null in place of closed standard streams. The command
// must inherit the original state: systemd ignores SIGPIPE for services. Only code that runs before Rust's runtime
// can read the original state.
#[used]
#[unsafe(link_section = ".init_array")]
#[allow(unsafe_code)]
static READ_ORIGINAL_STATE: extern "C" fn() = {
    extern "C" fn read() {
        IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
        for (descriptor, is_closed) in (0..).zip(&CLOSED) {
            // SAFETY: the call only reads the descriptor's flags, and fails if the descriptor is closed.
            let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
            is_closed.store(flags == -1, Ordering::Relaxed);
        }
    }
    read
};

/// Returns whether a signal is ignored. nohup(1) makes commands ignore SIGHUP, and scripts make background jobs
/// ignore SIGINT.
#[allow(unsafe_code)]
fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sigaction only writes the current disposition to `action`, which has the right type and outlives the
    // call.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Exited(i32),
    Signaled(i32),
}

#[derive(Debug)]
enum Stage {
    /// Signals have their default effect on gpumem.
    Before,
    /// gpumem forwards signals to the command.
    Running { child: Child, pidfd: OwnedFd },
    /// The command has exited. The first signal ends the wait for held memory, and the second signal ends gpumem.
    After,
}

/// Descriptors and a variable that the command inherits in addition to gpumem's environment.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    /// Descriptors that are close-on-exec in gpumem, but that the command inherits.
    pub(super) descriptors: Vec<i32>,
    pub(super) variable: Option<(&'static str, String)>,
}

/// The process of the command. Until this module reaps the process, the kernel does not reuse the pid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child(Pid);

#[derive(Debug)]
pub(super) struct Signals {
    stage: Arc<Mutex<Stage>>,
    pub(super) is_hurried: Arc<AtomicBool>,
    mask: SigSet,
}

impl Signals {
    /// Blocks the signals to forward, and starts a thread that reads them. Call this function before other threads
    /// start, because threads inherit the signal mask.
    pub(super) fn block() -> anyhow::Result<Self> {
        let cannot = "cannot catch signals";
        if is_ignored(libc::SIGCHLD) {
            // The kernel discards the exit status of a child if the parent ignores SIGCHLD (wait(2)).
            signal_hook::flag::register(libc::SIGCHLD, Arc::default()).context(cannot)?;
        }
        let mut signals = SigSet::all();
        // The iterator does not contain the real-time signals, so they stay in the set.
        let others = BlockedSignal::iterator().filter(|signal| !PASSED_ON.contains(signal));
        others.for_each(|signal| signals.remove(signal));
        let mask = SigSet::thread_get_mask().context(cannot)?;
        signals.thread_block().context(cannot)?;
        let read = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context(cannot)?;
        let stage = Arc::new(Mutex::new(Stage::Before));
        let is_hurried = Arc::new(AtomicBool::new(false));
        let (thread_stage, hurry) = (Arc::clone(&stage), Arc::clone(&is_hurried));
        let spawned = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while let Ok(Some(caught)) = read.read_signal() {
                let stage = thread_stage.lock().unwrap_or_else(PoisonError::into_inner);
                handle_signal(&stage, &caught, &hurry);
            }
        });
        spawned.context("cannot start a thread for signals")?;
        Ok(Self { stage, is_hurried, mask })
    }

    pub(super) fn start(&self, command: &[OsString], given: &Given) -> Result<Child, nix::Error> {
        // The kernel reparents orphaned descendants of the command to gpumem.
        let _ = set_child_subreaper(Some(getpid()));
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = spawn(command, &self.mask, given)?;
        let child = Child(Pid::from_raw(pid.as_raw()).ok_or(nix::Error::ESRCH)?);
        // The kernel cannot reuse the pid before the child is reaped.
        if let Ok(pidfd) = pidfd_open(child.0, PidfdFlags::empty()) {
            *stage = Stage::Running { child, pidfd };
        }
        Ok(child)
    }

    /// Waits until the command exits, and reaps other children. If the command stops, gpumem stops as well.
    pub(super) fn wait(&self, child: Child) -> anyhow::Result<Ending> {
        loop {
            let options = WaitOptions::UNTRACED.union(WaitOptions::from_bits_retain(NO_THREAD));
            let (pid, status) = match wait(options) {
                Ok(Some(changed)) => changed,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno).context("cannot wait for the command"),
            };
            if pid != child.0 {
                continue;
            }
            if let Some(signal) = status.stopping_signal() {
                stop_with(child, signal);
            } else if let Some(ending) = ending(status) {
                *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage::After;
                return Ok(ending);
            }
        }
    }
}

impl Child {
    pub(super) fn pid(self) -> u32 {
        self.0.as_raw_pid().cast_unsigned()
    }
}

/// Reaps all exited children. Returns whether a child is left.
pub(super) fn reap() -> bool {
    loop {
        let options = WaitOptions::NOHANG.union(WaitOptions::from_bits_retain(NO_THREAD));
        match wait(options) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn ending(status: WaitStatus) -> Option<Ending> {
    let exited = status.exit_status().map(Ending::Exited);
    exited.or_else(|| status.terminating_signal().map(Ending::Signaled))
}

fn handle_signal(stage: &Stage, caught: &siginfo, hurry: &AtomicBool) {
    let signal = caught.ssi_signo.cast_signed();
    match stage {
        // A signalfd also delivers signals that are ignored.
        Stage::Before | Stage::After if is_ignored(signal) => {}
        Stage::Before => {
            let _ = signals::end_as_by(signal);
        }
        Stage::Running { child, pidfd } => {
            let is_wanted = match signal {
                // If SIGCONT was sent to the whole process group, the command is already running.
                libc::SIGCONT => is_stopped(*child),
                // The kernel sends a terminal's signal to the whole process group, including the command.
                _ => caught.ssi_code != libc::SI_KERNEL,
            };
            if is_wanted {
                forward(caught, pidfd);
            }
        }
        Stage::After if signal == libc::SIGCONT => {}
        Stage::After => {
            if hurry.swap(true, Ordering::Relaxed) {
                let _ = signals::end_as_by(signal);
            }
        }
    }
}

/// Sends a signal to the command. Includes the value and sender of a signal that was sent with sigqueue(3).
#[allow(unsafe_code)]
fn forward(caught: &siginfo, pidfd: &OwnedFd) {
    /// `siginfo_t` of a queued signal: number, errno, code, padding; pid and uid of the sender; value; unused.
    #[repr(C)]
    struct QueuedSignal([i32; 4], [u32; 2], u64, [u64; 12]);
    let numbers = [caught.ssi_signo.cast_signed(), caught.ssi_errno, caught.ssi_code, 0];
    let sender = [caught.ssi_pid, caught.ssi_uid];
    let queued = QueuedSignal(numbers, sender, caught.ssi_ptr, [0; 12]);
    let is_queued = caught.ssi_code == libc::SI_QUEUE;
    let info = if is_queued { &raw const queued } else { std::ptr::null() };
    // SAFETY: the descriptor is open, and `info` is null or points to the 128 bytes of a `siginfo_t`.
    unsafe {
        // Ignore the error: the command has exited.
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), caught.ssi_signo, info, 0);
    }
}

fn is_stopped(child: Child) -> bool {
    host::read_state(&Roots::default(), child.pid()) == Some('T')
}

/// Stops gpumem together with the command, so that the shell sees a stopped job. A SIGSTOP from another program stops
/// only the command. However, programs that handle Ctrl-Z stop themselves with SIGSTOP, so gpumem also stops on SIGSTOP
/// while the job is in the foreground.
fn stop_with(child: Child, signal: i32) {
    let is_job_control = match signal {
        libc::SIGSTOP => has_terminal(),
        _ => true,
    };
    if is_job_control && is_stopped(child) {
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Returns whether gpumem's process group is in the foreground of the terminal.
fn has_terminal() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// Returns the exit code that a shell would use: 127 if the command was not found, or 126 if it cannot be executed.
pub(super) fn code_of_failure(error: nix::Error) -> u8 {
    if error == nix::Error::ENOENT { 127 } else { 126 }
}

fn spawn(
    command: &[OsString],
    mask: &SigSet,
    given: &Given,
) -> Result<nix::unistd::Pid, nix::Error> {
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| nix::Error::EINVAL);
    let words = command.iter().map(|word| text(word)).collect::<Result<Vec<_>, _>>()?;
    let program = words.first().ok_or(nix::Error::ENOENT)?;
    let is_kept = |name: &OsStr| given.variable.as_ref().is_none_or(|(given, _)| name != *given);
    let kept = env::vars_os().filter(|(name, _)| is_kept(name));
    let variable = given.variable.iter().map(|(name, value)| ((*name).into(), value.into()));
    let environment = kept.chain(variable).map(|(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        CString::new(name.into_vec()).map_err(|_| nix::Error::EINVAL)
    });
    let environment = environment.collect::<Result<Vec<_>, _>>()?;
    let mut attributes = PosixSpawnAttr::init()?;
    let mut defaults = SigSet::empty();
    if !IGNORES_PIPE.load(Ordering::Relaxed) {
        defaults.add(BlockedSignal::SIGPIPE);
    }
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK,
    )?;
    attributes.set_sigdefault(&defaults)?;
    attributes.set_sigmask(mask)?;
    let mut actions = PosixSpawnFileActions::init()?;
    for &descriptor in &given.descriptors {
        // posix_spawn clears the close-on-exec flag of a descriptor that is duplicated onto itself.
        actions.add_dup2(descriptor, descriptor)?;
    }
    for (descriptor, is_closed) in (0..).zip(&CLOSED) {
        if is_closed.load(Ordering::Relaxed) {
            actions.add_close(descriptor)?;
        }
    }
    posix_spawnp(program, &actions, &attributes, &words, &environment)
}
