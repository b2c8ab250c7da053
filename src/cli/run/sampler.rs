//! The sampling thread of `gpumem run`. The command never waits for this thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::usage::Usage;
use crate::host::{self, Roots};
use crate::model::Process;
use crate::report::run::HeldMemory;
use crate::source::live::Live;

/// Interval between the first samples, so that short commands are sampled several times. Later, the interval is a
/// twentieth of the elapsed time, up to the configured interval.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const INTERVAL_SHARE: u32 = 20;
/// Delay after the exit of the command before held memory is reported, because processes need some time to exit.
pub(super) const HELD_AFTER: Duration = Duration::from_secs(5);
const HELD_INTERVAL: Duration = Duration::from_millis(200);

/// Usage data shared by the main thread and the sampling thread. The lock is not held during NVML calls.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Usage>>);

impl Shared {
    pub(super) fn new(usage: Usage) -> Self {
        Self(Arc::new(Mutex::new(usage)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Usage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes samples until the command exits. Returns whether all descendants of the command have exited as well.
pub(super) fn until_end(
    live: &mut Live,
    shared: &Shared,
    longest: Duration,
    ended: &Receiver<bool>,
) -> bool {
    let begun = Instant::now();
    loop {
        let snapshot = live.sample();
        let pause = (begun.elapsed() / INTERVAL_SHARE).max(FIRST_INTERVAL).min(longest);
        // Discard a sample that was taken after the command exited.
        match ended.try_recv() {
            Err(TryRecvError::Empty) => shared.lock().observe(snapshot, is_ours),
            message => return message.unwrap_or(true),
        }
        match ended.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            message => return message.unwrap_or(true),
        }
    }
}

/// Returns the memory that descendants hold `HELD_AFTER` after the command exited. Returns early if no memory is held
/// or a signal arrives.
pub(super) fn held_after(
    live: &mut Live,
    shared: &Shared,
    is_hurried: &AtomicBool,
) -> Option<Vec<HeldMemory>> {
    let begun = Instant::now();
    loop {
        let snapshot = live.sample();
        let held = shared.lock().held(&snapshot, is_ours);
        let is_over = begun.elapsed() >= HELD_AFTER || is_hurried.load(Ordering::Relaxed);
        if is_over || held.as_ref().is_some_and(Vec::is_empty) {
            return held;
        }
        std::thread::sleep(HELD_INTERVAL.min(HELD_AFTER.saturating_sub(begun.elapsed())));
    }
}

/// Returns whether a process descends from gpumem, which adopts orphaned descendants of the command.
fn is_ours(process: &Process) -> bool {
    host::descends_from(&Roots::default(), process.pid, std::process::id())
}
