//! Cumulative CPU seconds or bytes of a process, from which the mean use over a window is computed.
//!
//! Points are stored every second for the last half minute, every 15 s for the last hour, and every 6 minutes for the
//! last day. Two points are enough for a mean. If a recording contains only percentages, they are summed instead.

use std::collections::VecDeque;

use crate::model::Time;

const POINTS: usize = 256;
/// Maximum number of points for the last half minute.
const LAST_POINTS: usize = 32;
/// Minimum interval, in milliseconds, between points of the last half minute. It is less than a second, because a
/// sample can be early.
const LAST_MILLISECONDS: i64 = 900;
/// Minimum interval, in milliseconds, between points of the last hour.
const FINE_MILLISECONDS: i64 = 15_000;
/// Minimum interval, in milliseconds, between points of the last day.
const COARSE_MILLISECONDS: i64 = 360_000;
pub const LONGEST_WINDOW_SECONDS: f64 = 86_400.0;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mean {
    /// Mean use in percent of one core.
    pub percent: f64,
    /// Length of the window, in seconds. It is close to the requested length, or shorter if the history is shorter.
    pub seconds: f64,
}

/// CPU seconds of a process, or bytes that it has read and written.
#[derive(Clone, Debug, Default)]
pub struct Counter {
    total: f64,
    /// The last counter read, or `None` if percentages are summed.
    counter: Option<f64>,
    known_at: Option<Time>,
    last: VecDeque<CpuPoint>,
    fine: VecDeque<CpuPoint>,
    coarse: VecDeque<CpuPoint>,
}

#[derive(Clone, Copy, Debug)]
struct CpuPoint {
    time: Time,
    total: f64,
}

impl Counter {
    /// Adds a counter reading. If this reading or the previous one is missing, adds `percent` over the time since the
    /// last known value instead, provided that this time is at most `allowed_gap` milliseconds. If that is not possible
    /// either, starts over. If both values are missing, nothing changes.
    pub(super) fn observe(
        &mut self,
        time: Time,
        seconds: Option<f64>,
        percent: Option<f64>,
        allowed_gap: i64,
    ) {
        let sane = |number: &f64| number.is_finite() && *number >= 0.0;
        let seconds = seconds.filter(sane);
        let percent = percent.filter(sane);
        let elapsed = self.known_at.map(|known_at| time - known_at);
        match (seconds, self.counter, percent, elapsed) {
            (None, _, None, _) => return,
            // Counters never decrease, so a lower value is from a different counter.
            (Some(now), Some(before), ..) if now >= before => self.total += now - before,
            (None, _, Some(percent), Some(elapsed)) | (_, None, Some(percent), Some(elapsed))
                if elapsed <= allowed_gap =>
            {
                self.total += percent / 100.0 * (elapsed as f64 / 1000.0);
            }
            _ => *self = Self::default(),
        }
        self.counter = seconds;
        self.known_at = Some(time);
        for (tier, spacing, most) in [
            (&mut self.last, LAST_MILLISECONDS, LAST_POINTS),
            (&mut self.fine, FINE_MILLISECONDS, POINTS),
            (&mut self.coarse, COARSE_MILLISECONDS, POINTS),
        ] {
            if tier.back().is_none_or(|point| time - point.time >= spacing) {
                if tier.len() == most {
                    tier.pop_front();
                }
                tier.push_back(CpuPoint { time, total: self.total });
            }
        }
    }

    /// Returns the total since the first known value, or `None` if no value is known for `time`.
    pub fn total_at(&self, time: Time) -> Option<f64> {
        (self.known_at == Some(time)).then_some(self.total)
    }

    /// Returns the mean use over the `seconds` before the last known value, or `None` if no earlier value is known.
    /// The window begins at the nearest stored point, preferably an earlier one. If samples are frequent enough, its
    /// length is wrong by at most 10 s within the last hour, and by at most 4 minutes otherwise.
    pub fn mean(&self, seconds: f64) -> Option<Mean> {
        let now = self.known_at?;
        let start = now.plus_seconds(-seconds);
        let reaches_back =
            |tier: &&VecDeque<CpuPoint>| tier.front().is_some_and(|oldest| oldest.time <= start);
        let tiers = [&self.last, &self.fine];
        // If no tier reaches back to `start`, use the coarse one, which contains the first point until it is full.
        let tier = tiers.into_iter().find(reaches_back).unwrap_or(&self.coarse);
        let after = tier.partition_point(|point| point.time < start);
        // Prefer the earlier of two points at similar distances, because a window that is too short proves too little.
        let distance = |point: &&CpuPoint| match point.time - start {
            late if late > 0 => 2 * late,
            early => -early,
        };
        let nearest = [after.checked_sub(1), Some(after)]
            .into_iter()
            .flatten()
            .filter_map(|index| tier.get(index))
            .filter(|point| point.time < now)
            .min_by_key(distance)?;
        let window = now.seconds_since(nearest.time);
        Some(Mean { percent: (self.total - nearest.total) / window * 100.0, seconds: window })
    }

    /// Returns the mean use per second over the last `seconds`, as a share of a core or in bytes.
    pub fn rate(&self, seconds: f64) -> Option<f64> {
        self.mean(seconds).map(|mean| mean.percent / 100.0)
    }

    /// Returns the time since which no six minutes have used more than `percent` of a core on average. The result can
    /// be six minutes late. Returns `None` if no value is known.
    pub fn quiet_since(&self, percent: f64) -> Option<Time> {
        let (mut since, mut total) = (self.known_at?, self.total);
        for point in self.coarse.iter().rev() {
            // Average the newest use over at least one interval, so that a single scheduler tick does not matter.
            let milliseconds = (since - point.time).max(COARSE_MILLISECONDS);
            if total - point.total > percent / 100.0 * milliseconds as f64 / 1000.0 {
                break;
            }
            (since, total) = (point.time, point.total);
        }
        Some(since)
    }

    pub fn known_at(&self) -> Option<Time> {
        self.known_at
    }
}

#[cfg(test)]
impl Counter {
    pub(super) fn size(&self) -> usize {
        (self.last.capacity() + self.fine.capacity() + self.coarse.capacity())
            * size_of::<CpuPoint>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_unix_milliseconds(1_700_000_000_000 + seconds * 1000)
    }

    #[test]
    fn the_mean_covers_the_requested_window() {
        let mut cpu = Counter::default();
        // The process uses four cores for an hour, and none for the next twenty minutes.
        for second in 0..4_800 {
            let used = f64::from(second.min(3_600)) * 4.0;
            cpu.observe(at(second.into()), Some(50.0 + used), None, 60_000);
        }
        let last = cpu.mean(600.0).unwrap();
        assert_eq!(last.percent, 0.0);
        assert!((last.seconds - 600.0).abs() <= 8.0, "{last:?}");
        let half = cpu.mean(2_400.0).unwrap();
        assert!((half.percent - 200.0).abs() < 3.0, "{half:?}");
        let all = cpu.mean(86_400.0).unwrap();
        assert!((all.percent - 300.0).abs() < 0.1 && all.seconds > 4_790.0, "{all:?}");
    }

    #[test]
    fn the_earlier_of_two_equally_near_points_is_used() {
        let mut cpu = Counter::default();
        for second in [0, 30, 60, 120] {
            cpu.observe(at(second), Some(0.0), None, 60_000);
        }
        // No point was stored at 45 s.
        assert_eq!(cpu.mean(75.0).unwrap().seconds, 90.0);
    }

    #[test]
    fn a_window_of_hours_uses_the_coarse_points() {
        let mut cpu = Counter::default();
        for minute in 0..60 * 30 {
            let busy = (minute - 60 * 20).max(0) as f64 * 60.0;
            cpu.observe(at(minute * 60), Some(busy), None, 180_000);
        }
        let mean = cpu.mean(12.0 * 3_600.0).unwrap();
        assert!((mean.percent - 100.0 * 10.0 / 12.0).abs() < 1.0, "{mean:?}");
        assert!(cpu.fine.len() <= POINTS && cpu.coarse.len() <= POINTS);
    }

    #[test]
    fn percentages_are_added_up_without_a_counter() {
        let mut cpu = Counter::default();
        for second in (0..=600).step_by(10) {
            cpu.observe(at(second), None, Some(50.0), 60_000);
        }
        assert!((cpu.mean(300.0).unwrap().percent - 50.0).abs() < 1e-9);
        // A percentage after a gap of ten minutes does not show the CPU use during the gap.
        cpu.observe(at(1_200), None, Some(0.0), 60_000);
        assert_eq!(cpu.mean(300.0), None);
    }

    #[test]
    fn unknown_and_impossible_values_do_not_count_as_zero() {
        let mut cpu = Counter::default();
        cpu.observe(at(0), None, None, 60_000);
        assert_eq!((cpu.mean(1.0), cpu.total_at(at(0))), (None, None));
        cpu.observe(at(1), Some(f64::NAN), Some(-3.0), 60_000);
        assert_eq!(cpu.known_at(), None);
        cpu.observe(at(2), Some(100.0), None, 60_000);
        assert_eq!(cpu.mean(1.0), None, "one point is not a window");
        cpu.observe(at(3), Some(40.0), None, 60_000);
        assert_eq!(cpu.mean(1.0), None, "a counter that fell starts again");
        cpu.observe(at(4), Some(41.0), None, 60_000);
        assert_eq!(cpu.mean(1.0).unwrap().percent, 100.0);
    }
}
