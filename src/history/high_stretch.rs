//! Since when a number has been at least N, for any N.
//!
//! The threshold is a rule's, unknown here, and may differ between GPUs. So this keeps the lowest value since
//! each of some times: earlier times have lower floors, and the first floor that is high enough gives the
//! answer. The number may be anything.

use super::SampleTime;
use crate::model::Time;

/// The most floors. Beyond that, the one between the two nearest is dropped, and its answers become a later
/// time: never a longer stretch than there was.
const MOST_FLOORS: usize = 32;

/// A time throughout which a number was at least as high as requested.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HighStretch {
    pub since: Time,
    pub until: Time,
    pub samples: u64,
}

impl HighStretch {
    pub fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }
}

/// A number over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Floors {
    /// Lower the further back.
    floors: Vec<HighFloor>,
    until: Option<Time>,
    samples: u64,
}

#[derive(Clone, Copy, Debug)]
struct HighFloor {
    since: Time,
    least: u64,
    /// Samples before `since`.
    before: u64,
}

impl Floors {
    /// Takes in the number; `None` if unknown, which changes nothing up to the allowed gap and clears
    /// everything beyond it.
    pub(super) fn observe(&mut self, value: Option<u64>, moment: SampleTime) {
        if self.until.is_some_and(|until| moment.time - until > moment.allowed_gap) {
            *self = Self::default();
        }
        let Some(least) = value else {
            return;
        };
        let mut floor = HighFloor { since: moment.time, least, before: self.samples };
        while let Some(higher) = self.floors.pop_if(|known| known.least >= least) {
            floor = HighFloor { least, ..higher };
        }
        self.floors.push(floor);
        self.samples += 1;
        self.until = Some(moment.time);
        if self.floors.len() > MOST_FLOORS {
            let crowded = self
                .floors
                .windows(3)
                .enumerate()
                .min_by_key(|(_, floors)| floors[2].since - floors[0].since);
            if let Some((before, _)) = crowded {
                self.floors.remove(before + 1);
            }
        }
    }

    /// The current stretch throughout which the number was at least `least`.
    pub(super) fn at_least(&self, least: u64) -> Option<HighStretch> {
        let at = self.floors.partition_point(|floor| floor.least < least);
        let floor = self.floors.get(at)?;
        Some(HighStretch {
            since: floor.since,
            until: self.until?,
            samples: self.samples - floor.before,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::moment as at;

    fn of(values: &[Option<u64>]) -> Floors {
        let mut floors = Floors::default();
        for (step, value) in values.iter().enumerate() {
            floors.observe(*value, at(step as i64 * 10));
        }
        floors
    }

    fn since(floors: &Floors, least: u64) -> Option<(i64, u64)> {
        floors.at_least(least).map(|stretch| (stretch.since - at(0).time, stretch.samples))
    }

    #[test]
    fn every_threshold_has_its_own_beginning() {
        let floors = of(&[Some(5), Some(1), Some(7), Some(9), Some(8), Some(8)]);
        assert_eq!(since(&floors, 0), Some((0, 6)));
        assert_eq!(since(&floors, 1), Some((0, 6)));
        assert_eq!(since(&floors, 2), Some((20_000, 4)));
        assert_eq!(since(&floors, 7), Some((20_000, 4)));
        assert_eq!(since(&floors, 8), Some((30_000, 3)));
        assert_eq!(since(&floors, 9), None);
    }

    #[test]
    fn a_few_unknown_samples_change_nothing_and_a_gap_forgets() {
        let unknown = |count: usize| {
            let mut values = vec![Some(5)];
            values.extend(vec![None; count]);
            values.push(Some(5));
            since(&of(&values), 5)
        };
        assert_eq!(unknown(5), Some((0, 2)));
        assert_eq!(unknown(6), Some((70_000, 1)));
        assert_eq!(since(&of(&[Some(5), None, None]), 5), Some((0, 1)));
        let mut lost = of(&[Some(5)]);
        lost.observe(None, at(61));
        assert_eq!(since(&lost, 0), None);
    }

    #[test]
    fn it_is_bounded_and_never_reports_a_longer_stretch_than_there_was() {
        let mut floors = Floors::default();
        for step in 0..10_000 {
            floors.observe(Some(step as u64), at(step * 10));
        }
        assert_eq!(floors.floors.len(), MOST_FLOORS);
        for least in (0..10_000).step_by(97) {
            let stretch = floors.at_least(least).unwrap();
            let true_since = at(least as i64 * 10).time;
            assert!(stretch.since >= true_since, "{least}");
            assert!(stretch.since - true_since <= 10_000 * 10_000 / 8, "{least}");
        }
    }
}
