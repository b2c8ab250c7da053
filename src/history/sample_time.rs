//! The moment of a snapshot, and what of the time before it samples vouch for.

use crate::model::Time;

/// The driver keeps its samples of processes for so long.
const KEPT_BY_DRIVER_MILLISECONDS: i64 = 10_000;
/// Of snapshots that are further apart, those samples cover less than a quarter.
const FAR_APART_MILLISECONDS: i64 = 45_000;
/// Up to here, evidence that spans a longer gap (CPU seconds that did not advance) bridges it.
pub(super) const BRIDGED_GAP_MILLISECONDS: i64 = 600_000;

/// What a row needs to know of the moment it is observed in.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleTime {
    pub(super) time: Time,
    /// Milliseconds between two samples, as a rule.
    pub(super) interval: i64,
    /// Milliseconds that may pass without evidence.
    pub(super) allowed_gap: i64,
}

impl SampleTime {
    /// How much of the milliseconds since the sample before a sample vouches for: an interval, with
    /// some lateness.
    pub(super) fn vouched(self, gap: i64) -> i64 {
        if gap <= self.interval + self.interval / 2 { gap } else { gap.min(self.interval) }
    }

    /// How much of them the driver's samples vouch for, which were read for `told` seconds of them.
    ///
    /// The driver keeps some 10 s; who samples often, as gpumem does between rare snapshots, misses none. A
    /// recording that does not tell is believed, but for one whose snapshots are so far apart that it has
    /// seen next to nothing of the time if it did not.
    pub(super) fn sampled(self, gap: i64, reported: Option<f64>) -> i64 {
        let measured = reported.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        let most = match measured {
            Some(seconds) => (seconds * 1000.0) as i64,
            None if self.interval > FAR_APART_MILLISECONDS => KEPT_BY_DRIVER_MILLISECONDS,
            None => i64::MAX,
        };
        self.vouched(gap).min(most)
    }

    /// How much of them two samples vouch for that say the same: all, where no more are missing between
    /// them than change nothing.
    pub(super) fn bridged(self, gap: i64) -> i64 {
        if gap <= self.allowed_gap { gap } else { self.vouched(gap) }
    }
}
