//! Detects short bursts of use at a constant period, and how much power the GPU drew meanwhile.
//!
//! A program that has to look busy wakes the GPU by the clock. A burst begins with a sample that shows use
//! after one that shows none, so its beginning is known to within an interval. The count restarts if periods
//! differ by more than two intervals, a burst exceeds a third of the period, one is missing, or samples have a
//! gap. A period of fewer than six intervals cannot be told from chance.

use super::row::Use;
use super::{SampleTime, row::NoUseSource};
use crate::model::{Gpu, Time};

/// The shortest period, in intervals.
const LEAST_INTERVALS: i64 = 6;
/// How much periods may differ, in intervals.
const MOST_JITTER: i64 = 2;
/// A burst is at most one part in this many of a period.
const SHARE_OF_PERIOD: i64 = 3;

/// A time throughout which a process used a GPU in short bursts at a constant period.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bursts {
    /// When the first burst began.
    pub since: Time,
    /// The last sample.
    pub until: Time,
    /// Bursts begun.
    pub count: u64,
    pub samples: u64,
    /// The GPU's highest power as a share of its limit, 0 to 1; `None` if a sample lacks it.
    pub power_share_max: Option<f64>,
    last: Time,
    shortest: i64,
    longest: i64,
    is_on: bool,
}

impl Bursts {
    fn new(moment: SampleTime, power: Option<f64>) -> Self {
        Self {
            since: moment.time,
            until: moment.time,
            count: 1,
            samples: 1,
            power_share_max: power,
            last: moment.time,
            shortest: i64::MAX,
            longest: 0,
            is_on: true,
        }
    }

    pub fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }

    /// `None` before the second burst.
    pub fn period_seconds(&self) -> Option<f64> {
        let periods = self.count.checked_sub(1).filter(|periods| *periods > 0)?;
        Some(self.last.seconds_since(self.since) / periods as f64)
    }

    /// The bursts after a sample; `was_used` is the previous sample's answer.
    pub(super) fn observe(
        known: Option<Self>,
        was_used: Option<bool>,
        now: Use,
        gpu: &Gpu,
        moment: SampleTime,
    ) -> Option<Self> {
        let is_used = match now {
            Use::Used => true,
            Use::NotUsed(NoUseSource::Process) => false,
            // Nothing is known about this process in particular.
            Use::NotUsed(NoUseSource::Device) | Use::DeviceUsed | Use::Unknown => return None,
        };
        let share = gpu.power_watts.zip(gpu.power_limit_watts);
        let share = share.filter(|(power, limit)| power.is_finite() && *limit > 0.0);
        let power = share.map(|(power, limit)| power / limit);
        let begins = is_used && was_used == Some(false);
        let anew = || begins.then(|| Self::new(moment, power));
        let Some(known) = known else {
            return anew();
        };
        if moment.time - known.until > moment.interval * MOST_JITTER {
            return None;
        }
        let so_far = moment.time - known.last;
        let next = Self {
            until: moment.time,
            samples: known.samples + 1,
            power_share_max: known.power_share_max.zip(power).map(|(most, power)| most.max(power)),
            is_on: is_used,
            ..known
        };
        if begins {
            let next = Self {
                count: known.count + 1,
                last: moment.time,
                shortest: known.shortest.min(so_far),
                longest: known.longest.max(so_far),
                ..next
            };
            let is_constant = next.longest - next.shortest <= moment.interval * MOST_JITTER
                && next.shortest >= moment.interval * LEAST_INTERVALS;
            return if is_constant { Some(next) } else { anew() };
        }
        let is_first = known.count == 1;
        let is_long = is_used && !is_first && so_far > known.shortest / SHARE_OF_PERIOD;
        let is_late = !is_first && so_far > known.shortest + moment.interval * (MOST_JITTER + 1);
        (!(is_long || is_late)).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::moment;

    /// Plays samples of 10 s, `#` with use and `.` without, `?` unknown, ` ` missing.
    fn play(samples: &str) -> Option<Bursts> {
        let (mut known, mut was_used) = (None, None);
        let gpu =
            Gpu { power_watts: Some(100.0), power_limit_watts: Some(400.0), ..Gpu::default() };
        for (at, sample) in samples.chars().enumerate() {
            let moment = moment(at as i64 * 10);
            let now = match sample {
                '#' => Use::Used,
                '.' => Use::NotUsed(NoUseSource::Process),
                '?' => Use::Unknown,
                _ => continue,
            };
            known = Bursts::observe(known, was_used, now, &gpu, moment);
            was_used = Some(now == Use::Used);
        }
        known
    }

    fn count(samples: &str) -> u64 {
        play(samples).map_or(0, |bursts| bursts.count)
    }

    #[test]
    fn bursts_at_a_constant_period_are_counted() {
        let bursts = play(&".......#".repeat(5)).unwrap();
        assert_eq!((bursts.count, bursts.period_seconds()), (5, Some(80.0)));
        assert_eq!((bursts.seconds(), bursts.samples), (320.0, 33));
        assert_eq!(bursts.power_share_max, Some(0.25));
        // Sampling can shift it by an interval.
        assert_eq!(count(".......#......#........#.......#"), 4);
        assert_eq!(count(&".......##".repeat(5)), 5);
    }

    #[test]
    fn irregular_long_or_missing_bursts_restart_the_count() {
        assert_eq!(count(".......#.......#............"), 0, "it does not come");
        assert_eq!(count(".......#.......#..........#"), 1, "it comes late");
        assert_eq!(count(".......#.......#...#"), 1, "it comes early");
        assert_eq!(count(".......#.......#####"), 0, "it is long");
        assert_eq!(count(&"...#".repeat(9)), 1, "it is as short as the sampling");
        assert_eq!(count(".......#.......#..?"), 0, "it is not known");
        assert_eq!(count(".......#.......#.   ."), 0, "samples are missing");
        assert_eq!(count(&"#".repeat(50)), 0, "it works");
        assert_eq!(count(&".".repeat(50)), 0, "it rests");
    }
}
