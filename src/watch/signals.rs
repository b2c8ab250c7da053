//! Turns signals into events, and stops gpumem for job control.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

// The kernel returns 0 for groups and sessions outside this PID namespace. rustix cannot represent 0.
use nix::unistd::{getpgrp, getsid};
use rustix::process::kill_current_process_group;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTOU};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::{SigId, flag, low_level};

use super::{ThreadMessage, WatchError, spawn, terminal};
use crate::watch::state::Event;

/// Number and interval of the checks in [`must_exit_soon`](SignalWatch::must_exit_soon).
const CHECKS: usize = 20;
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct SignalWatch {
    handle: Handle,
    flags: Vec<SigId>,
    /// One flag for each terminating signal, set when the signal arrives.
    asked: Vec<Arc<AtomicBool>>,
    /// The last SIGTSTP or SIGCONT that arrived.
    last_of_job: Arc<AtomicUsize>,
}

impl SignalWatch {
    pub(super) fn start(sender: &SyncSender<ThreadMessage>) -> Result<Self, WatchError> {
        let failed = |error| WatchError::Setup { what: "signal handlers", error };
        let ends = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
        let mut flags = Vec::new();
        let mut all_asked = Vec::new();
        for signal in ends {
            // The first signal sets the flag. A second signal terminates gpumem, which can be blocked on the
            // terminal. The handler that terminates gpumem is registered before the handler that sets the flag, so it
            // sees only the flag of an earlier signal. Each signal has its own flag, because the end of a session
            // sends several different signals.
            let asked = Arc::new(AtomicBool::new(false));
            let again = flag::register_conditional_default(signal, Arc::clone(&asked));
            flags.push(again.map_err(failed)?);
            flags.push(flag::register(signal, Arc::clone(&asked)).map_err(failed)?);
            all_asked.push(asked);
        }
        // Events can be handled late and in a different order, so remember the last signal.
        let last_of_job = Arc::default();
        for signal in [SIGTSTP, SIGCONT] {
            let registered =
                flag::register_usize(signal, Arc::clone(&last_of_job), signal as usize);
            flags.push(registered.map_err(failed)?);
        }
        let mut signals = Signals::new(ends.iter().chain(&[SIGTSTP, SIGCONT])).map_err(failed)?;
        let handle = signals.handle();
        spawn("signals", sender, move |sender| {
            for signal in signals.forever() {
                if sender.send(ThreadMessage::Event(Event::Signal(signal))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { handle, flags, asked: all_asked, last_of_job })
    }

    /// Returns whether gpumem should still stop: no SIGCONT has followed SIGTSTP. A shell that has already continued
    /// gpumem would not continue it again.
    pub(super) fn should_stop(&self) -> bool {
        self.last_of_job.load(Ordering::SeqCst) != SIGCONT as usize
    }

    /// Stops gpumem if SIGTSTP arrived while another program used the terminal.
    pub(super) fn stop_if_requested(&self) {
        if self.last_of_job.load(Ordering::SeqCst) == SIGTSTP as usize {
            let _ = stop();
        }
    }

    /// Returns whether a terminating signal has arrived, even if its event is still queued.
    pub(super) fn must_exit(&self) -> bool {
        self.asked.iter().any(|asked| asked.load(Ordering::SeqCst))
    }

    /// Waits up to 200 ms for a terminating signal. To terminate a stopped job, a shell sends the
    /// signal and then SIGCONT, which different threads can receive.
    pub(super) fn must_exit_soon(&self) -> bool {
        (0..CHECKS).any(|_| {
            let must_exit = self.must_exit();
            if !must_exit {
                thread::sleep(CHECK_INTERVAL);
            }
            must_exit
        })
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
        for &id in &self.flags {
            low_level::unregister(id);
        }
    }
}

/// Handles Ctrl-Z, which raw mode disables, by sending SIGTSTP to the process group. The terminal is restored first,
/// because the shell takes over as soon as any process of the group has stopped. Does nothing if no shell could
/// continue gpumem.
pub(super) fn suspend() -> Result<(), WatchError> {
    if !can_be_continued() {
        return Ok(());
    }
    terminal::restore();
    kill_current_process_group(rustix::process::Signal::TSTP)
        .map_err(|errno| WatchError::Terminal(errno.into()))
}

pub(super) fn stop() -> Result<(), WatchError> {
    if !can_be_continued() {
        return Ok(());
    }
    terminal::restore();
    low_level::emulate_default_handler(SIGTSTP).map_err(WatchError::Terminal)
}

/// Stops gpumem again after a shell has continued it in the background.
pub(super) fn stop_in_background() -> Result<(), WatchError> {
    low_level::emulate_default_handler(SIGTTOU).map_err(WatchError::Terminal)
}

/// Returns whether a shell can continue gpumem. A session leader, such as the only program of a new
/// terminal, has no shell above it.
fn can_be_continued() -> bool {
    getsid(None).is_ok_and(|session| session != getpgrp())
}
