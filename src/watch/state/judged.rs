//! The judged history, the screen's clock and the samples' clock.

use std::time::Duration;

use crate::history::memory_series::AllSeries;
use crate::model::{Snapshot, Time};
use crate::reclaim::prepare::plan_marks;
use crate::rules::Engine;

#[derive(Debug)]
pub struct JudgedState {
    pub engine: Engine,
    pub all_series: AllSeries,
    sampled_at: Duration,
    now: Duration,
}

impl JudgedState {
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            all_series: AllSeries::default(),
            sampled_at: Duration::ZERO,
            now: Duration::ZERO,
        }
    }

    pub(in crate::watch) fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    pub(in crate::watch) fn observe(&mut self, now: Duration, snapshot: &Snapshot) {
        self.advance(now);
        self.sampled_at = now;
        self.engine.observe(snapshot);
        let marks = plan_marks(&self.engine, snapshot);
        self.engine.mark_planned(&marks);
        self.all_series.follow(self.engine.history(), snapshot);
    }

    pub(in crate::watch) fn forget(&mut self) {
        self.engine.forget();
        self.all_series.forget();
    }

    /// Returns the time since the screen started, as of the last event.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns the time from the start of the screen to the last sample.
    pub fn sampled_at(&self) -> Duration {
        self.sampled_at
    }

    /// Returns the age of the last sample, or the time since the start if there is none.
    pub fn age(&self) -> Duration {
        self.now.saturating_sub(self.sampled_at)
    }

    /// Returns the current time on the samples' clock, or `None` before the first sample.
    pub fn clock(&self) -> Option<Time> {
        let last = self.engine.history().last_time()?;
        Some(last.plus_seconds(self.age().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RuleSet;
    use crate::watch::sample;

    #[test]
    fn the_samples_clock_advances_between_samples_and_is_monotonic() {
        let seconds = Duration::from_secs;
        let mut judged = JudgedState::new(Engine::new(RuleSet::default()));
        judged.advance(seconds(3));
        assert_eq!((judged.age(), judged.clock()), (seconds(3), None));
        let snapshot = sample::snapshot(1, 1);
        judged.observe(seconds(4), &snapshot);
        judged.advance(seconds(6));
        judged.advance(seconds(5));
        assert_eq!((judged.now(), judged.age()), (seconds(6), seconds(2)));
        assert_eq!(judged.clock(), Some(snapshot.time.plus_seconds(2.0)));
        judged.forget();
        assert_eq!(judged.clock(), None);
    }
}
