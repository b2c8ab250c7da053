//! SIGINT, SIGTERM and SIGHUP while a plan is carried out: nothing more is sent, and what was is said.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_usize;
use signal_hook::low_level;

/// What was caught last; 0 is nothing.
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
        let caught = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal)?;
            register_usize(signal, Arc::clone(&caught), number).context("cannot catch signals")?;
        }
        Ok(Self(caught))
    }

    /// What was caught.
    pub(super) fn signal(&self) -> Option<i32> {
        let caught = i32::try_from(self.0.load(Ordering::Relaxed));
        caught.ok().filter(|&signal| signal != 0)
    }
}

/// A signal's name.
pub(super) fn name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("a signal")
}
