//! Signals that are sent to gpumem while a command runs; those of the screen are the screen's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{self, register_usize};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

const CANNOT: &str = "cannot catch signals";

/// From now on, has each of these signals told to `caught` on a thread of its own, until that says no.
///
/// # Errors
///
/// Where signals cannot be caught, or there is no thread for them.
pub(super) fn on_thread(
    signals: &[i32],
    mut caught: impl FnMut(i32) -> bool + Send + 'static,
) -> anyhow::Result<()> {
    let mut signals = Signals::new(signals).context(CANNOT)?;
    let spawned = thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if !caught(signal) {
                return;
            }
        }
    });
    spawned.map(drop).context("cannot start a thread for signals")
}

/// From now on, the second of one of these signals ends the program at once, also where a full pipe takes
/// nothing of what is written for the first.
///
/// # Errors
///
/// Where signals cannot be caught.
pub(super) fn end_on_second(signals: &[i32]) -> anyhow::Result<()> {
    for &signal in signals {
        let again = Arc::new(AtomicBool::new(false));
        flag::register_conditional_default(signal, Arc::clone(&again)).context(CANNOT)?;
        flag::register(signal, again).context(CANNOT)?;
    }
    Ok(())
}

/// A signal's name.
pub(super) fn name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("a signal")
}

/// Ends the program as by this signal, unless it has no such default.
///
/// # Errors
///
/// Where it cannot be sent.
pub(super) fn end_as_by(signal: i32) -> std::io::Result<()> {
    low_level::emulate_default_handler(signal)
}

/// SIGINT, SIGTERM and SIGHUP while a plan is carried out: nothing more is sent, and what was sent is
/// reported.
#[derive(Debug)]
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From now on these signals are only noted, however many come: what is being done at that moment,
    /// as stopping a family and killing it, is done whole.
    ///
    /// # Errors
    ///
    /// Where signals cannot be caught.
    pub(super) fn catch() -> anyhow::Result<Self> {
        // What was caught last; 0 is nothing.
        let caught = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal)?;
            register_usize(signal, Arc::clone(&caught), number).context(CANNOT)?;
        }
        Ok(Self(caught))
    }

    /// The caught signal.
    pub(super) fn signal(&self) -> Option<i32> {
        let caught = i32::try_from(self.0.load(Ordering::Relaxed));
        caught.ok().filter(|&signal| signal != 0)
    }
}
