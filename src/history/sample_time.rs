//! The time of a snapshot, and how much of the time before it samples cover.

use crate::model::Time;

/// Time, in milliseconds, for which the driver keeps process samples.
const KEPT_BY_DRIVER_MILLISECONDS: i64 = 10_000;
/// If snapshots are further apart than this, in milliseconds, the driver's samples cover less than a quarter of the
/// time.
const FAR_APART_MILLISECONDS: i64 = 45_000;
/// Maximum gap, in milliseconds, that other evidence can bridge, such as an unchanged CPU time.
pub(super) const BRIDGED_GAP_MILLISECONDS: i64 = 600_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct SampleTime {
    pub(super) time: Time,
    /// Usual time between two samples, in milliseconds.
    pub(super) interval: i64,
    /// Maximum gap, in milliseconds, between two samples of a condition.
    pub(super) allowed_gap: i64,
}

impl SampleTime {
    /// Returns how much of a gap this sample covers: all of it if the sample is at most half an interval late,
    /// otherwise one interval.
    pub(super) fn vouched(self, gap: i64) -> i64 {
        if gap <= self.interval + self.interval / 2 { gap } else { gap.min(self.interval) }
    }

    /// Returns how much of a gap is covered by the driver's samples, if `reported` seconds of samples were read.
    ///
    /// The driver keeps samples for about 10 s. gpumem reads them often enough to miss none, even between rare
    /// snapshots. If a recording does not contain `reported`, the samples are assumed to be complete, unless the
    /// interval is so long that most of them would have been missed.
    pub(super) fn sampled(self, gap: i64, reported: Option<f64>) -> i64 {
        let measured = reported.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        let most = match measured {
            Some(seconds) => (seconds * 1000.0) as i64,
            None if self.interval > FAR_APART_MILLISECONDS => KEPT_BY_DRIVER_MILLISECONDS,
            None => i64::MAX,
        };
        self.vouched(gap).min(most)
    }
}

// The usual interval is the median of the last [`KEPT`] intervals, so a single late or additional snapshot hardly
// changes it.

/// Number of intervals of which the median is taken.
const KEPT: usize = 15;
/// Maximum interval, in milliseconds. If samples are rare, a gap of an hour must not be considered normal.
const LONGEST_MILLISECONDS: i64 = 600_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    recent: [i64; KEPT],
    count: usize,
    median: i64,
}

impl Interval {
    pub(super) fn push(&mut self, milliseconds: i64) {
        self.recent[self.count % KEPT] = milliseconds.clamp(1, LONGEST_MILLISECONDS);
        // Once all entries are used, only the position in the ring matters.
        self.count = if self.count + 1 == 2 * KEPT { KEPT } else { self.count + 1 };
        let mut sorted = self.recent;
        let values = &mut sorted[..self.count.min(KEPT)];
        values.sort_unstable();
        self.median = values[values.len() / 2];
    }

    /// Returns the median, in milliseconds, or 0 if there is no value yet.
    pub(super) fn milliseconds(&self) -> i64 {
        self.median
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_samples_do_not_change_the_usual_interval() {
        let mut interval = Interval::default();
        assert_eq!(interval.milliseconds(), 0);
        for round in 0..100 {
            interval.push(if round % 4 == 3 { 90_000 } else { 10_000 });
        }
        assert_eq!(interval.milliseconds(), 10_000);
        for _ in 0..8 {
            interval.push(1_000);
        }
        assert_eq!(interval.milliseconds(), 1_000, "a new interval is adopted");
    }

    #[test]
    fn a_gap_of_hours_is_never_usual() {
        let mut interval = Interval::default();
        interval.push(3 * 3_600_000);
        assert_eq!(interval.milliseconds(), LONGEST_MILLISECONDS);
        interval.push(i64::MIN);
        interval.push(i64::MIN);
        assert_eq!(interval.milliseconds(), 1);
    }
}
