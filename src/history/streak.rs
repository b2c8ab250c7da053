//! The period in which a condition has held without interruption, and the number of samples in it.

use super::SampleTime;
use super::row::Began;
use crate::model::Time;

/// A period in which all known samples were the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Streak {
    pub since: Time,
    pub until: Time,
    pub samples: u64,
    pub began: Began,
}

impl Streak {
    pub(super) fn new(time: Time, began: Began) -> Self {
        Self { since: time, until: time, samples: 1, began }
    }

    /// Adds another equal sample. After a gap, starts over unless other evidence covers the gap (`is_bridged`).
    pub(super) fn extend(&mut self, sample: SampleTime, is_bridged: bool) {
        let gap = sample.time - self.until;
        if gap > sample.allowed_gap && !is_bridged {
            *self = Self::new(sample.time, Began::Unwitnessed);
        } else if gap > 0 {
            self.until = sample.time;
            self.samples += 1;
        }
    }

    pub fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }
}

/// The period, if any, in which a condition has held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clause {
    streak: Option<Streak>,
    denied_at: Option<Time>,
}

impl Clause {
    /// Adds a sample. If it is unknown (`None`), nothing changes until the allowed gap has passed; then the streak
    /// ends.
    pub(super) fn observe(&mut self, holds: Option<bool>, sample: SampleTime) {
        match (holds, &mut self.streak) {
            (Some(true), Some(streak)) => streak.extend(sample, false),
            (Some(true), None) => {
                let is_witnessed = self
                    .denied_at
                    .is_some_and(|denied_at| sample.time - denied_at <= sample.allowed_gap);
                self.streak = Some(Streak::new(
                    sample.time,
                    if is_witnessed { Began::Witnessed } else { Began::Unwitnessed },
                ));
            }
            (Some(false), _) => {
                self.streak = None;
                self.denied_at = Some(sample.time);
            }
            (None, Some(streak)) if sample.time - streak.until > sample.allowed_gap => {
                self.streak = None;
            }
            (None, _) => {}
        }
    }

    pub(super) fn streak(&self) -> Option<&Streak> {
        self.streak.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::sample_at as at;

    #[test]
    fn an_unknown_value_does_not_break_a_streak_for_a_minute() {
        let mut clause = Clause::default();
        for (seconds, holds) in [(0, Some(false)), (10, Some(true)), (20, None), (70, Some(true))] {
            clause.observe(holds, at(seconds));
        }
        let streak = *clause.streak().unwrap();
        assert_eq!((streak.seconds(), streak.samples), (60.0, 2));
        assert_eq!(streak.began, Began::Witnessed);
        clause.observe(None, at(131));
        assert_eq!(clause.streak(), None);
        clause.observe(Some(true), at(140));
        assert_eq!(clause.streak().unwrap().began, Began::Unwitnessed);
    }

    #[test]
    fn a_gap_or_one_contrary_sample_restarts_a_streak() {
        let mut clause = Clause::default();
        clause.observe(Some(true), at(0));
        clause.observe(Some(true), at(61));
        let streak = *clause.streak().unwrap();
        assert_eq!((streak.since, streak.samples), (at(61).time, 1));
        clause.observe(Some(false), at(70));
        clause.observe(Some(true), at(80));
        assert_eq!(clause.streak().unwrap().began, Began::Witnessed);
        // A repeated sample must not be counted twice.
        clause.observe(Some(true), at(80));
        assert_eq!(clause.streak().unwrap().samples, 1);

        let mut streak = Streak::new(at(0).time, Began::Witnessed);
        streak.extend(at(500), true);
        assert_eq!((streak.seconds(), streak.samples), (500.0, 2));
    }
}
