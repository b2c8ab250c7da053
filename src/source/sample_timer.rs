//! Decides when the next sample of this machine is due.

use std::time::{Duration, Instant};

/// Sampling interval while a user waits for a process to exit.
const FAST: Duration = Duration::from_millis(250);

/// A timer for samples at regular intervals. The caller passes in the current time.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleTimer {
    interval: Duration,
    is_fast: bool,
    /// When the last sample was due, or `None` before the first sample.
    last: Option<Instant>,
    due: Instant,
}

impl SampleTimer {
    /// Creates a timer whose first sample is due immediately.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, is_fast: false, last: None, due: now }
    }

    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    pub(super) fn record_sample(&mut self, now: Instant) {
        // If a sample took longer than the interval, later intervals are not shortened.
        let due = (self.due + self.current()).max(now);
        self.last = Some(self.due.min(now));
        self.due = due;
    }

    /// Changes the interval. The current interval still counts from the last sample.
    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
        self.replan();
    }

    /// Starts or stops fast sampling. When it starts, a sample is due immediately.
    pub(super) fn set_fast(&mut self, is_fast: bool, now: Instant) {
        if self.is_fast == is_fast {
            return;
        }
        self.is_fast = is_fast;
        if is_fast {
            self.due = self.due.min(now);
        } else {
            self.replan();
        }
    }

    fn replan(&mut self) {
        if let Some(last) = self.last {
            self.due = last + self.current();
        }
    }

    fn current(&self) -> Duration {
        if self.is_fast { self.interval.min(FAST) } else { self.interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn milliseconds(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// Returns a timer with an interval of 2 s, and the time at which its first sample was taken.
    fn started_timer() -> (SampleTimer, Instant) {
        let start = Instant::now();
        let mut timer = SampleTimer::new(milliseconds(2000), start);
        assert_eq!(timer.wait(start), Duration::ZERO);
        timer.record_sample(start);
        (timer, start)
    }

    #[test]
    fn samples_are_regular_and_missed_ones_are_skipped() {
        let (mut timer, start) = started_timer();
        assert_eq!(timer.wait(start + milliseconds(500)), milliseconds(1500));
        // If a sample is 300 ms late, the next one is still on schedule.
        let late = start + milliseconds(2300);
        timer.record_sample(late);
        assert_eq!(timer.wait(late), milliseconds(1700));
        // If a sample is late by several intervals, only one sample is due.
        let stopped = start + milliseconds(60_000);
        timer.record_sample(stopped);
        assert_eq!(timer.wait(stopped), Duration::ZERO);
        timer.record_sample(stopped);
        assert_eq!(timer.wait(stopped), milliseconds(2000));
    }

    #[test]
    fn a_new_interval_starts_from_the_last_sample() {
        let (mut timer, start) = started_timer();
        let now = start + milliseconds(700);
        timer.set_interval(milliseconds(500));
        assert_eq!(timer.wait(now), Duration::ZERO);
        timer.set_interval(milliseconds(10_000));
        assert_eq!(timer.wait(now), milliseconds(9300));
    }

    #[test]
    fn fast_sampling_starts_at_once_and_ends_on_request() {
        let (mut timer, start) = started_timer();
        let now = start + milliseconds(700);
        timer.set_fast(true, now);
        assert_eq!(timer.wait(now), Duration::ZERO);
        timer.record_sample(now);
        assert_eq!(timer.wait(now), milliseconds(250));
        // A repeated control must not trigger a sample.
        timer.set_fast(true, now);
        assert_eq!(timer.wait(now), milliseconds(250));
        timer.set_interval(milliseconds(100));
        assert_eq!(timer.wait(now), milliseconds(100));
        timer.set_interval(milliseconds(2000));
        timer.set_fast(false, now);
        assert_eq!(timer.wait(now), milliseconds(2000));
    }
}
