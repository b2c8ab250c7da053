//! A view of a row's buckets and their floor, for queries about windows of time.

use super::series::{Bucket, GrowthSeries};
use super::{MOST_BUCKETS, UNIT};
use crate::model::Time;

pub(super) const SLOTS: usize = 12;
/// A slot's share of the counted growth is at most the reciprocal of this number.
const LEAST_STEPS: f64 = 4.0;

/// A window in which the floor rises steadily. Its times are observed seconds since the first sample.
pub(super) struct Window {
    pub(super) start: u32,
    pub(super) end: u32,
    /// Sum of the slots' rises, each limited to the cap.
    pub(super) counted: f64,
}

pub(super) struct Rise {
    pub(super) start: u32,
    pub(super) until: u32,
    pub(super) size: f64,
}

pub(super) struct View<'a> {
    pub(super) series: &'a GrowthSeries,
    /// For each bucket, the lowest value in it and in all later buckets.
    floor: [u32; MOST_BUCKETS],
}

impl<'a> View<'a> {
    pub(super) fn new(series: &'a GrowthSeries) -> Self {
        let (mut floor, mut least) = ([0; MOST_BUCKETS], u32::MAX);
        for (value, bucket) in floor.iter_mut().zip(&series.buckets).rev() {
            least = least.min(bucket.low);
            *value = least;
        }
        Self { series, floor }
    }

    pub(super) fn buckets(&self) -> &'a [Bucket] {
        &self.series.buckets
    }

    pub(super) fn floor(&self) -> &[u32] {
        &self.floor[..self.buckets().len()]
    }

    pub(super) fn risen(&self, since: u32) -> u32 {
        let floor = self.floor();
        floor.last().map_or(0, |last| last - floor[self.index(since)])
    }

    pub(super) fn index(&self, at: u32) -> usize {
        self.buckets().partition_point(|bucket| bucket.start <= at).saturating_sub(1)
    }

    pub(super) fn end_of(&self, at: usize) -> u32 {
        self.buckets().get(at + 1).map_or(self.series.now, |next| next.start)
    }

    pub(super) fn rises(&self, start: u32, end: u32) -> impl Iterator<Item = Rise> + '_ {
        let floor = self.floor();
        let inside = (self.index(start) + 1..floor.len())
            .filter(move |at| floor[*at] > floor[*at - 1] && self.buckets()[*at].start < end);
        inside.map(move |at| {
            let bucket = &self.buckets()[at];
            Rise {
                start: bucket.start,
                until: if bucket.is_level() { bucket.start } else { self.end_of(at) },
                size: f64::from(floor[at] - floor[at - 1]),
            }
        })
    }

    /// Returns the rises of the floor in the twelfths from `start` to `end`, each limited to the cap.
    pub(super) fn capped_rises(&self, start: u32, end: u32) -> [f64; SLOTS] {
        let mut rises = [0.0; SLOTS];
        for rise in self.rises(start, end) {
            rises[slot(rise.start, start, end, SLOTS)] += rise.size;
        }
        let cap = cap(&rises);
        rises.map(|rise| rise.min(cap))
    }

    /// Returns the lowest and highest value in each of `PARTS` parts, or `None` for a part without samples.
    pub(super) fn extremes<const PARTS: usize>(
        &self,
        start: u32,
        end: u32,
    ) -> [Option<(f64, f64)>; PARTS] {
        let mut parts = [None; PARTS];
        for at in self.index(start)..self.buckets().len() {
            let bucket = &self.buckets()[at];
            if bucket.start >= end {
                break;
            }
            let until = self.end_of(at).saturating_sub(1).max(bucket.start);
            let [first, last] = [bucket.start, until].map(|time| slot(time, start, end, PARTS));
            for part in &mut parts[first..=last] {
                let (low, high) = part.unwrap_or((f64::INFINITY, 0.0_f64));
                *part = Some((low.min(bucket.low.into()), high.max(bucket.high.into())));
            }
        }
        parts
    }

    pub(super) fn ups_and_downs(&self, start: u32) -> (f64, f64) {
        let (mut up, mut down) = (0.0, 0.0);
        for pair in self.buckets()[self.index(start)..].windows(2) {
            up += f64::from(pair[1].low.saturating_sub(pair[0].low));
            down += f64::from(pair[0].low.saturating_sub(pair[1].low));
        }
        (up, down)
    }

    /// Returns the start of the last bucket, whose rises are not known yet.
    pub(super) fn last_start(&self) -> u32 {
        self.buckets().last().map_or(0, |last| last.start)
    }
}

fn slot(time: u32, start: u32, end: u32, slots: usize) -> usize {
    let since = u64::from(time.clamp(start, end) - start);
    let slot = since * slots as u64 / u64::from(end - start).max(1);
    (slot as usize).min(slots - 1)
}

/// Returns a cap for the rises that limits each slot to a quarter of the capped total, or 0 if fewer than four slots
/// rise.
fn cap(rises: &[f64; SLOTS]) -> f64 {
    let mut sorted = *rises;
    sorted.sort_unstable_by(f64::total_cmp);
    // If the `above` largest rises are limited to c, then c must be a quarter of `c * above + rest`.
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

/// Returns the sorted slopes between all pairs of values that are at least a third of the window apart. Their median
/// is a robust estimate of the slope.
pub(super) fn slopes(values: &[Option<f64>]) -> Vec<f64> {
    let mut slopes = Vec::with_capacity(values.len() * values.len() / 2);
    for (from, before) in values.iter().enumerate() {
        for (to, after) in values.iter().enumerate().skip(from + SLOTS / 3) {
            if let (Some(before), Some(after)) = (before, after) {
                slopes.push((after - before) / (to - from) as f64);
            }
        }
    }
    slopes.sort_unstable_by(f64::total_cmp);
    slopes
}

pub(super) struct Line {
    pub(super) mean: f64,
    pub(super) slope: f64,
    pub(super) deviation: f64,
    pub(super) error: f64,
}

impl Line {
    /// Fits a line through the points. Returns `None` if there are fewer than three.
    pub(super) fn through(points: &[(f64, f64)]) -> Option<Self> {
        if points.len() < 3 {
            return None;
        }
        let count = points.len() as f64;
        let middle = points.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean = points.iter().map(|(_, y)| y).sum::<f64>() / count;
        let squares: f64 = points.iter().map(|(x, _)| (x - middle).powi(2)).sum();
        let product: f64 = points.iter().map(|(x, y)| (x - middle) * (y - mean)).sum();
        let slope = product / squares;
        let rest = points.iter().map(|(x, y)| (y - mean - slope * (x - middle)).powi(2));
        let deviation = (rest.sum::<f64>() / (count - 2.0)).sqrt();
        Some(Self { mean, slope, deviation, error: deviation / squares.sqrt() })
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trend {
    /// When the growth began, not when it was detected.
    pub since: Time,
    pub bytes_per_second: f64,
    /// Conservative estimate of the rate: the tenth percentile of the slopes.
    pub bytes_per_second_low: f64,
    /// Seconds from `since` to the last sample.
    pub span_seconds: f64,
    pub samples: u64,
    /// Rise of the floor since `since`, in which single jumps are limited.
    pub grown_bytes: u64,
    pub rising_seconds: f64,
    pub quiet_seconds: f64,
    pub longest_pause_seconds: f64,
}

impl Trend {
    /// Returns whether memory has not risen for at least `seconds` and at least 1.5 times the longest earlier pause.
    pub fn is_quiet_for(&self, seconds: f64) -> bool {
        self.quiet_seconds >= seconds && self.quiet_seconds >= 1.5 * self.longest_pause_seconds
    }
}

impl View<'_> {
    pub(super) fn trend(&self, since: u32, window: &Window) -> Trend {
        let counted: f64 = self.capped_rises(since, window.end).iter().sum();
        // The time before the growth began must not lower the rate.
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
            // `Steady::follow` computes these.
            rising_seconds: 0.0,
            quiet_seconds: 0.0,
            longest_pause_seconds: 0.0,
        }
    }
}

/// Returns the median and the tenth percentile of the rise per slot, from slopes over at least a third of the window.
fn rates(rises: &[f64; SLOTS]) -> (f64, f64) {
    let mut heights = [Some(0.0); SLOTS + 1];
    for (slot, rise) in rises.iter().enumerate() {
        heights[slot + 1] = heights[slot].map(|height: f64| height + rise);
    }
    let slopes = slopes(&heights);
    let quantile = |tenths: usize| slopes[(slopes.len() - 1) * tenths / 10];
    (quantile(5), quantile(1))
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
        // With eleven rises of 1 and one of 100, the cap c is (11 + c) / 4.
        let mut jump = [1.0; 12];
        jump[5] = 100.0;
        assert!((cap(&jump) - 11.0 / 3.0).abs() < 1e-9);
    }
}
