//! How fast memory grows in a window, and how steadily: what is reported about growth.

use super::scale::UNIT;
use super::view::{SLOTS, View, Window, slopes};
use crate::model::Time;

/// Growth that has been steady for a while.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trend {
    /// When it began, rather than when it was noticed.
    pub since: Time,
    /// How fast the floor rises.
    pub bytes_per_second: f64,
    /// A likely lower bound.
    pub bytes_per_second_low: f64,
    /// Observed from `since` to the last sample.
    pub span_seconds: f64,
    /// Samples in that span.
    pub samples: u64,
    /// The floor's rise in that span, without what single jumps added.
    pub grown_bytes: u64,
    /// From `since` to the last rise.
    pub rising_seconds: f64,
    /// Time since the last rise.
    pub quiet_seconds: f64,
    /// The longest time between two rises.
    pub longest_pause_seconds: f64,
}

impl Trend {
    /// Whether nothing rose for this long, and for longer than it ever paused.
    pub fn is_quiet_for(&self, seconds: f64) -> bool {
        self.quiet_seconds >= seconds && self.quiet_seconds >= 1.5 * self.longest_pause_seconds
    }
}

impl View<'_> {
    pub(super) fn trend(&self, since: u32, window: &Window) -> Trend {
        let counted: f64 = self.capped_rises(since, window.end).iter().sum();
        // The time before it began says nothing about its speed.
        let start = since.max(window.start);
        let (rate, low) = rates(&self.capped_rises(start, window.end));
        let per_second =
            |rise: f64| rise * UNIT as f64 * SLOTS as f64 / f64::from((window.end - start).max(1));
        Trend {
            since: self.series.last.plus_seconds(f64::from(since) - f64::from(self.series.now)),
            bytes_per_second: per_second(rate),
            bytes_per_second_low: per_second(low),
            span_seconds: f64::from(self.series.now - since),
            samples: self
                .buckets()
                .iter()
                .filter(|bucket| bucket.start >= since)
                .map(|bucket| u64::from(bucket.samples))
                .sum(),
            grown_bytes: counted.max(window.counted) as u64 * UNIT,
            // `halt` fills these in.
            rising_seconds: 0.0,
            quiet_seconds: 0.0,
            longest_pause_seconds: 0.0,
        }
    }
}

/// Rise per slot: the median slope between ends of slots at least a third apart, and its tenth percentile.
fn rates(rises: &[f64; SLOTS]) -> (f64, f64) {
    let mut heights = [Some(0.0); SLOTS + 1];
    for (slot, rise) in rises.iter().enumerate() {
        heights[slot + 1] = heights[slot].map(|height: f64| height + rise);
    }
    let slopes = slopes(&heights);
    let quantile = |tenths: usize| slopes[(slopes.len() - 1) * tenths / 10];
    (quantile(5), quantile(1))
}
