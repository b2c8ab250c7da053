//! Starts the command as a shell would, waits for it, and forwards signals.
//!
//! The command stays in gpumem's process group, so that the terminal and the shell treat both as one job. gpumem
//! blocks the signals that end or stop a job. The terminal also sends them to the command, and gpumem ends or stops
//! when the command does. Signals sent to gpumem alone are forwarded. gpumem reads blocked signals from a descriptor,
//! so the command inherits unchanged signal dispositions.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, thread};

use anyhow::Context as _;
use nix::libc;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal as BlockedSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process, pidfd_open,
    pidfd_send_signal, set_child_subreaper, wait,
};
use rustix::termios::tcgetpgrp;

use crate::cli::signals;
use crate::host::{self, Roots};

/// `__WNOTHREAD` (wait(2)), which rustix lacks, waits only for children of this thread. This thread started the
/// command, and the kernel reparents orphans to it. Other threads, such as the one that reads /proc, wait for their
/// own children.
const NO_THREAD: u32 = 0x2000_0000;

/// Forwarded signals: those that end or stop a job, and those that users send to programs.
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

// Rust's runtime ignores SIGPIPE before `main`, but the command must inherit the original disposition (systemd
// services ignore it). Only code that runs before `main` can read it.
#[used]
#[unsafe(link_section = ".init_array")]
#[allow(unsafe_code)]
static READ_PIPE_DISPOSITION: extern "C" fn() = {
    extern "C" fn read() {
        IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    }
    read
};

/// Whether a signal is ignored, as under nohup(1) and in background jobs of scripts.
#[allow(unsafe_code)]
fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only reads the disposition, into a value of the right type that outlives the call.
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

/// Phase of a run, which determines how signals are handled.
#[derive(Debug)]
enum Stage {
    /// Before the command starts, signals end or stop gpumem.
    Before,
    /// Signals are forwarded.
    Running { child: Child, pidfd: OwnedFd },
    /// After the command has exited, the first signal ends the wait for held memory, and the next one ends gpumem.
    After,
}

/// What the command gets in addition to gpumem's environment.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    /// File descriptors of gpumem that only the command inherits.
    pub(super) descriptors: Vec<i32>,
    pub(super) variable: Option<(&'static str, String)>,
}

/// Process of the command. Only this module waits for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child(Pid);

#[derive(Debug)]
pub(super) struct Signals {
    stage: Arc<Mutex<Stage>>,
    /// Whether a signal arrived after the command exited.
    pub(super) is_hurried: Arc<AtomicBool>,
    mask: SigSet,
}

impl Signals {
    /// Blocks the signals, and reads them on a thread. Call this while there is only one thread.
    pub(super) fn block() -> anyhow::Result<Self> {
        let cannot = "cannot catch signals";
        if is_ignored(libc::SIGCHLD) {
            // If SIGCHLD were ignored, the kernel would discard the command's exit code.
            signal_hook::flag::register(libc::SIGCHLD, Arc::default()).context(cannot)?;
        }
        let signals: SigSet = PASSED_ON.into_iter().collect();
        let mask = SigSet::thread_get_mask().context(cannot)?;
        signals.thread_block().context(cannot)?;
        let read = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context(cannot)?;
        let stage = Arc::new(Mutex::new(Stage::Before));
        let is_hurried = Arc::new(AtomicBool::new(false));
        let (thread_stage, hurry) = (Arc::clone(&stage), Arc::clone(&is_hurried));
        let spawned = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while let Ok(Some(caught)) = read.read_signal() {
                let signal = caught.ssi_signo.cast_signed();
                // The terminal has already sent its signal to the whole job.
                let is_terminals = caught.ssi_code == libc::SI_KERNEL;
                handle_signal(
                    &thread_stage.lock().unwrap_or_else(PoisonError::into_inner),
                    signal,
                    is_terminals,
                    &hurry,
                );
            }
        });
        spawned.context("cannot start a thread for signals")?;
        Ok(Self { stage, is_hurried, mask })
    }

    /// Starts the command, and forwards signals from then on.
    pub(super) fn start(&self, command: &[OsString], given: &Given) -> Result<Child, nix::Error> {
        // Processes that detach from the command stay descendants of gpumem.
        let _ = set_child_subreaper(Some(getpid()));
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = spawn(command, &self.mask, given)?;
        let child = Child(Pid::from_raw(pid.as_raw()).ok_or(nix::Error::ESRCH)?);
        // The child has not been reaped, so its pid cannot have been reused.
        if let Ok(pidfd) = pidfd_open(child.0, PidfdFlags::empty()) {
            *stage = Stage::Running { child, pidfd };
        }
        Ok(child)
    }

    /// Waits until the command exits, and reaps other children. Stops gpumem when the command stops.
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

/// Reaps exited children. Returns whether other children are left.
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

fn handle_signal(stage: &Stage, signal: i32, is_terminals: bool, hurry: &AtomicBool) {
    match stage {
        // Blocked signals are delivered to the descriptor even if they are ignored.
        Stage::Before | Stage::After if is_ignored(signal) => {}
        Stage::Before => {
            let _ = signals::end_as_by(signal);
        }
        Stage::Running { child, pidfd } => {
            let is_wanted = match signal {
                // If SIGCONT was sent to the whole group, the command has already continued.
                libc::SIGCONT => is_stopped(*child),
                _ => !is_terminals,
            };
            if let Some(signal) = Signal::from_named_raw(signal).filter(|_| is_wanted) {
                // This fails if the command has already exited.
                let _ = pidfd_send_signal(pidfd, signal);
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

fn is_stopped(child: Child) -> bool {
    host::read_state(&Roots::default(), child.pid()) == Some('T')
}

/// Stops gpumem along with the command, so that the shell sees a stopped job. If only the command was stopped, for
/// example by SIGSTOP, gpumem keeps running. Programs that handle Ctrl-Z stop themselves with SIGSTOP, so in the
/// foreground of a terminal SIGSTOP counts as job control, too.
fn stop_with(child: Child, signal: i32) {
    let is_job_control = match signal {
        libc::SIGSTOP => has_terminal(),
        _ => true,
    };
    if is_job_control && is_stopped(child) {
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Whether the process group is in the foreground of its terminal.
fn has_terminal() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// Returns a shell's exit code for a command that cannot be started: 127 if not found, 126 if not executable.
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
        // Duplicating a descriptor onto itself makes the command inherit it.
        actions.add_dup2(descriptor, descriptor)?;
    }
    posix_spawnp(program, &actions, &attributes, &words, &environment)
}
