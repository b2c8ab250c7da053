//! When this machine is to be sampled next, by a clock that is handed in.

use std::time::{Duration, Instant};

/// The interval while somebody watches something end.
const HURRIED: Duration = Duration::from_millis(250);

/// An even beat, which can be changed at any time.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleTimer {
    interval: Duration,
    is_hurried: bool,
    /// When the last sample was due; `None` before the first.
    last: Option<Instant>,
    /// When the next one is.
    due: Instant,
}

impl SampleTimer {
    /// A beat whose first sample is due at once.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            is_hurried: false,
            last: None,
            due: now,
        }
    }

    /// How long until the next sample.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// A sample is taken `now`.
    pub(super) fn taken(&mut self, now: Instant) {
        // A sample that took longer than the interval does not make the next ones hurry.
        let due = (self.due + self.current()).max(now);
        self.last = Some(self.due.min(now));
        self.due = due;
    }

    /// Goes by another interval from the last sample on.
    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
        self.replan();
    }

    /// Hurries from `now` on, beginning with a sample at once, or no longer.
    pub(super) fn set_fast(&mut self, is_hurried: bool, now: Instant) {
        if self.is_hurried == is_hurried {
            return;
        }
        self.is_hurried = is_hurried;
        if is_hurried {
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
        if self.is_hurried {
            self.interval.min(HURRIED)
        } else {
            self.interval
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn milliseconds(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// A beat of 2 s that took its first sample at once, and when that was.
    fn begun() -> (SampleTimer, Instant) {
        let start = Instant::now();
        let mut beat = SampleTimer::new(milliseconds(2000), start);
        assert_eq!(beat.wait(start), Duration::ZERO);
        beat.taken(start);
        (beat, start)
    }

    #[test]
    fn it_is_even_and_what_was_late_is_not_made_up_for() {
        let (mut beat, start) = begun();
        assert_eq!(beat.wait(start + milliseconds(500)), milliseconds(1500));
        // Late by 300 ms: the one after is due when it always was.
        let late = start + milliseconds(2300);
        beat.taken(late);
        assert_eq!(beat.wait(late), milliseconds(1700));
        // Late by several intervals: one is due at once, and no more than one.
        let stopped = start + milliseconds(60_000);
        beat.taken(stopped);
        assert_eq!(beat.wait(stopped), Duration::ZERO);
        beat.taken(stopped);
        assert_eq!(beat.wait(stopped), milliseconds(2000));
    }

    #[test]
    fn another_interval_counts_from_the_last_sample() {
        let (mut beat, start) = begun();
        let now = start + milliseconds(700);
        beat.set_interval(milliseconds(500));
        assert_eq!(beat.wait(now), Duration::ZERO);
        beat.set_interval(milliseconds(10_000));
        assert_eq!(beat.wait(now), milliseconds(9300));
    }

    #[test]
    fn it_hurries_at_once_and_goes_back_to_its_interval() {
        let (mut beat, start) = begun();
        let now = start + milliseconds(700);
        beat.set_fast(true, now);
        assert_eq!(beat.wait(now), Duration::ZERO);
        beat.taken(now);
        assert_eq!(beat.wait(now), milliseconds(250));
        // Told again, it does not sample for that alone.
        beat.set_fast(true, now);
        assert_eq!(beat.wait(now), milliseconds(250));
        beat.set_interval(milliseconds(100));
        assert_eq!(beat.wait(now), milliseconds(100));
        beat.set_interval(milliseconds(2000));
        beat.set_fast(false, now);
        assert_eq!(beat.wait(now), milliseconds(2000));
    }
}
