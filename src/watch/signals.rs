//! Signals that are sent to gpumem, as events; and stopping, as a shell's job does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

// Of a group or session from outside this PID namespace the number is 0 here, which rustix takes for impossible.
use nix::unistd::{getpgrp, getsid};
use rustix::process::kill_current_process_group;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTOU};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::{SigId, flag, low_level};

use super::{ThreadMessage, WatchError, spawn, terminal};
use crate::watch::state::Event;

/// How often, and how long after one another, it is looked for a signal that ends a job that was continued.
const LOOKS: usize = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Signals as events, as long as this lives.
pub(super) struct SignalWatch {
    handle: Handle,
    flags: Vec<SigId>,
    /// Whether one of the signals that end gpumem has come, by signal.
    asked: Vec<Arc<AtomicBool>>,
    /// Which of the two came last: the one that stops gpumem, or the one that continues it.
    last_of_job: Arc<AtomicUsize>,
}

impl SignalWatch {
    /// From now on.
    pub(super) fn start(sender: &SyncSender<ThreadMessage>) -> Result<Self, WatchError> {
        let failed = |error| WatchError::Setup { what: "signal handlers", error };
        let ends = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
        let mut flags = Vec::new();
        let mut all_asked = Vec::new();
        for signal in ends {
            // Asked a second time, gpumem ends at once: the main thread may be stuck in a write to a
            // terminal that takes nothing. The order matters: the first time only sets the flag. Each
            // signal has its own: the end of a session sends several, and each only once.
            let asked = Arc::new(AtomicBool::new(false));
            let again = flag::register_conditional_default(signal, Arc::clone(&asked));
            flags.push(again.map_err(failed)?);
            flags.push(flag::register(signal, Arc::clone(&asked)).map_err(failed)?);
            all_asked.push(asked);
        }
        // Events are taken in later than signals come, and not in their order.
        let last_of_job = Arc::default();
        for signal in [SIGTSTP, SIGCONT] {
            let came = flag::register_usize(signal, Arc::clone(&last_of_job), signal as usize);
            flags.push(came.map_err(failed)?);
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

    /// Whether gpumem is still to stop: its shell may have continued it before it came to that, and would wait for
    /// one that it knows to run.
    pub(super) fn is_to_stop(&self) -> bool {
        self.last_of_job.load(Ordering::SeqCst) != SIGCONT as usize
    }

    /// Stops where that was told while the terminal was another program's, which was told as well.
    pub(super) fn stop_if_told(&self) {
        if self.last_of_job.load(Ordering::SeqCst) == SIGTSTP as usize {
            // It then goes on.
            let _ = stop();
        }
    }

    /// Whether gpumem was told to end, also where that event is still on its way.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.iter().any(|asked| asked.load(Ordering::SeqCst))
    }

    /// As [`is_asked`](Self::is_asked); looks for it for a moment. A shell that ends a stopped job sends the signal and
    /// then continues it, and two threads may take one each.
    pub(super) fn is_to_end(&self) -> bool {
        (0..LOOKS).any(|_| {
            let is_asked = self.is_asked();
            if !is_asked {
                thread::sleep(BETWEEN_LOOKS);
            }
            is_asked
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

/// Ctrl-Z: stops all that the shell started in this job, as the terminal would outside raw mode. The
/// signal comes back as an event and [`stop`]s gpumem itself. The terminal is given back before: its
/// shell may wait for another of them, and takes the terminal over as soon as that one has stopped.
pub(super) fn suspend() -> Result<(), WatchError> {
    if !can_be_continued() {
        return Ok(());
    }
    terminal::give_back();
    kill_current_process_group(rustix::process::Signal::TSTP)
        .map_err(|errno| WatchError::Terminal(errno.into()))
}

/// Gives the terminal back and stops; whoever continues gpumem sends `SIGCONT`, which is an event.
pub(super) fn stop() -> Result<(), WatchError> {
    if !can_be_continued() {
        return Ok(());
    }
    terminal::give_back();
    low_level::emulate_default_handler(SIGTSTP).map_err(WatchError::Terminal)
}

/// Stops again: gpumem was continued in the background, where it may not have the terminal.
pub(super) fn stop_in_background() -> Result<(), WatchError> {
    low_level::emulate_default_handler(SIGTTOU).map_err(WatchError::Terminal)
}

/// Whether there is a shell to continue a stopped gpumem. A terminal that was opened for gpumem alone
/// has none: it leads the session itself, and would stay stopped for good.
fn can_be_continued() -> bool {
    getsid(None).is_ok_and(|session| session != getpgrp())
}
