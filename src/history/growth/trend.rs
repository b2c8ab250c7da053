//! How fast memory grows in a window, and how steadily: what is reported about growth.

use super::scale::UNIT;
use super::view::{SLOTS, View, Window};
use crate::model::Time;

/// How many parts are compared to see what was given back.
const PARTS: usize = 6;
/// No slot counts for more than one part in this many of the counted growth.
const LEAST_STEPS: f64 = 4.0;

/// Growth that has been steady for a while.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trend {
    /// When it began, rather than when it was noticed.
    pub since: Time,
    /// How fast the floor rises.
    pub bytes_per_second: f64,
    /// A likely lower bound.
    pub bytes_per_second_low: f64,
    /// A likely upper bound.
    pub bytes_per_second_high: f64,
    /// From `since` to the last sample.
    pub span_seconds: f64,
    /// Samples in that span.
    pub samples: u64,
    /// The floor's rise in that span, without what single jumps added.
    pub grown_bytes: u64,
    /// The share of the span's twelfths in which the floor rose, 0 to 1.
    pub growing_share: f64,
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
        let raw = self.rises(since, window.end);
        let most = cap(&raw);
        let rises = raw.map(|rise| rise.min(most));
        let counted: f64 = rises.iter().sum();
        // The time before it began says nothing about its speed.
        let start = since.max(window.start);
        let lately = self.rises(start, window.end);
        let most = cap(&lately);
        let (rate, low, high) = rates(&lately.map(|rise| rise.min(most)));
        let per_second =
            |rise: f64| rise * UNIT as f64 * SLOTS as f64 / f64::from((window.end - start).max(1));
        let first = self.series.first;
        Trend {
            since: first.plus_seconds(f64::from(since)),
            bytes_per_second: per_second(rate),
            bytes_per_second_low: per_second(low),
            bytes_per_second_high: per_second(high),
            span_seconds: f64::from(self.series.now - since),
            samples: self
                .buckets()
                .iter()
                .filter(|bucket| bucket.start >= since)
                .map(|bucket| u64::from(bucket.samples))
                .sum(),
            grown_bytes: counted.max(window.counted) as u64 * UNIT,
            growing_share: rises.iter().filter(|rise| **rise > 0.0).count() as f64 / SLOTS as f64,
            // `halt` fills these in.
            rising_seconds: 0.0,
            quiet_seconds: 0.0,
            longest_pause_seconds: 0.0,
        }
    }

    /// What is given back between the parts' lows, as a share of what is added.
    pub(super) fn gives_back(&self, start: u32, end: u32) -> f64 {
        let lows = self.lows(start, end, PARTS);
        let (mut rises, mut falls, mut before) = (0.0, 0.0, None);
        for low in lows[..PARTS].iter().copied().flatten() {
            if let Some(before) = before.replace(low) {
                let step: f64 = low - before;
                rises += step.max(0.0);
                falls += (-step).max(0.0);
            }
        }
        falls / f64::max(rises, 1.0)
    }
}

/// The most that a slot may count for, so that it is at most a quarter of the total; 0 if fewer than four rise.
pub(super) fn cap(rises: &[f64; SLOTS]) -> f64 {
    let mut sorted = *rises;
    sorted.sort_unstable_by(f64::total_cmp);
    // With the `above` largest cut to c, c is a quarter of c * above and all the rest.
    let mut rest: f64 = sorted.iter().sum();
    for above in 0..LEAST_STEPS as usize {
        let cap = rest / (LEAST_STEPS - above as f64);
        let largest = sorted[SLOTS - 1 - above];
        if largest <= cap {
            return cap;
        }
        rest -= largest;
    }
    sorted[SLOTS - LEAST_STEPS as usize]
}

/// Rise per slot: the median slope between ends of slots at least a third apart, and its tenth and ninetieth
/// percentile.
fn rates(rises: &[f64; SLOTS]) -> (f64, f64, f64) {
    let mut heights = [0.0; SLOTS + 1];
    for slot in 0..SLOTS {
        heights[slot + 1] = heights[slot] + rises[slot];
    }
    let mut slopes = Vec::with_capacity(SLOTS * SLOTS / 2);
    for from in 0..=SLOTS {
        for to in from + SLOTS / 3..=SLOTS {
            slopes.push((heights[to] - heights[from]) / (to - from) as f64);
        }
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let quantile = |tenths: usize| slopes[(slopes.len() - 1) * tenths / 10];
    (quantile(5), quantile(1), quantile(9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_counts_for_more_than_a_quarter() {
        let rises = |few: &[f64]| {
            let mut rises = [0.0; SLOTS];
            rises[..few.len()].copy_from_slice(few);
            rises
        };
        assert_eq!(cap(&rises(&[])), 0.0);
        assert_eq!(cap(&rises(&[9.0, 9.0, 9.0])), 0.0);
        assert_eq!(cap(&rises(&[9.0, 7.0, 7.0, 7.0])), 7.0);
        assert_eq!(cap(&rises(&[1.0; 12])), 3.0);
        // Twelve of 1 and one of 100 among them: (11 + c) / 4 = c.
        let mut jump = [1.0; 12];
        jump[5] = 100.0;
        assert!((cap(&jump) - 11.0 / 3.0).abs() < 1e-9);
    }
}
