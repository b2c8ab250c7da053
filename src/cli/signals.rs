//! Signal handling for commands, except for the screen of `gpumem watch`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Context as _;
use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_usize;
use signal_hook::iterator::Signals;
use signal_hook::low_level;

const CANNOT: &str = "cannot catch signals";

/// Starts a thread that calls `caught` for each signal until `caught` returns `false`.
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

pub(super) fn name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("a signal")
}

/// Runs the default action of a signal, which usually ends gpumem.
pub(super) fn end_as_by(signal: i32) -> std::io::Result<()> {
    low_level::emulate_default_handler(signal).or_else(|_| {
        // signal_hook does not know the real-time signals.
        SigSet::all().thread_unblock()?;
        low_level::raise(signal)
    })
}

/// Records SIGINT, SIGTERM and SIGHUP while a plan is carried out, so that gpumem completes the current action and
/// starts no other.
#[derive(Debug)]
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    pub(super) fn catch() -> anyhow::Result<Self> {
        // Number of the last signal, or 0.
        let caught = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal)?;
            register_usize(signal, Arc::clone(&caught), number).context(CANNOT)?;
        }
        Ok(Self(caught))
    }

    pub(super) fn signal(&self) -> Option<i32> {
        let caught = i32::try_from(self.0.load(Ordering::Relaxed));
        caught.ok().filter(|&signal| signal != 0)
    }
}
