//! The memory of a row over time, in buckets that are at most about a twentieth as wide as they are old.

use super::{BUCKET_SECONDS, MOST_BUCKETS};
use crate::model::Time;

/// Time, in seconds, for which a level must be held to belong to the band.
const BAND_SECONDS: u32 = 360;

/// Memory held in the period that ends at the start of the next bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Observed seconds since the first sample.
    pub(super) start: u32,
    pub(super) low: u32,
    pub(super) high: u32,
    /// The highest level that was held for [`BAND_SECONDS`] during the bucket. Set when the bucket ends.
    pub(super) held: u32,
    pub(super) samples: u32,
}

impl Bucket {
    pub(super) fn new(start: u32, value: u32) -> Self {
        Self { start, low: value, high: value, held: 0, samples: 1 }
    }

    /// Returns whether all samples in the bucket have the same value.
    pub(super) fn is_level(&self) -> bool {
        self.low == self.high
    }

    pub(super) fn take_in(&mut self, other: &Self) {
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
        self.held = self.held.max(other.held);
        self.samples = self.samples.saturating_add(other.samples);
    }
}

#[derive(Clone, Debug)]
pub(super) struct GrowthSeries {
    pub(super) buckets: Vec<Bucket>,
    pub(super) last: Time,
    /// Time of the last sample, in observed seconds since the first.
    pub(super) now: u32,
    pub(super) grain: Grain,
}

impl GrowthSeries {
    pub(super) fn new(still: Bucket, last: Time) -> Self {
        Self { buckets: vec![still], last, now: still.start, grain: Grain::default() }
    }

    pub(super) fn observe(&mut self, sample: Bucket, time: Time) {
        (self.now, self.last) = (sample.start, time);
        self.grain.observe(sample.low);
        match self.buckets.last_mut() {
            // A plateau is a single bucket, however long it is.
            Some(last)
                if sample.start - last.start < BUCKET_SECONDS
                    || (last.is_level() && last.low == sample.low) =>
            {
                last.take_in(&sample);
            }
            _ => self.push(sample),
        }
    }

    /// Records the level that was held at `end`, the end of the last bucket. Merging buckets would lose this level.
    fn note_held(&mut self, end: u32) {
        if end < BAND_SECONDS {
            return;
        }
        let held = held_at(&self.buckets, end, BAND_SECONDS);
        if let Some(last) = self.buckets.last_mut() {
            last.held = last.held.max(held);
        }
    }

    fn push(&mut self, bucket: Bucket) {
        self.note_held(bucket.start);
        if self.buckets.len() >= MOST_BUCKETS {
            self.merge();
        }
        if self.buckets.len() == self.buckets.capacity() {
            let more = (self.buckets.len() * 2).clamp(8, MOST_BUCKETS) - self.buckets.len();
            self.buckets.reserve_exact(more);
        }
        self.buckets.push(bucket);
    }

    /// Merges the two neighbouring buckets that together are narrowest relative to their age.
    fn merge(&mut self) {
        let width_for_age = |at: usize| {
            let pair = &self.buckets[at..];
            let end = pair.get(2).map_or(self.now, |next| next.start);
            let age = f64::from(self.now - pair[0].start) + f64::from(BUCKET_SECONDS);
            f64::from(end - pair[0].start) / age
        };
        let narrowest = (0..self.buckets.len().saturating_sub(1))
            .min_by(|a, b| width_for_age(*a).total_cmp(&width_for_age(*b)));
        if let Some(at) = narrowest {
            let next = self.buckets.remove(at + 1);
            self.buckets[at].take_in(&next);
        }
    }
}

/// Returns the lowest value in the last `seconds` before `end`, which is the end of the last bucket.
pub(super) fn held_at(buckets: &[Bucket], end: u32, seconds: u32) -> u32 {
    let mut until = end;
    let mut least = u32::MAX;
    for bucket in buckets.iter().rev() {
        if end - until >= seconds {
            break;
        }
        least = least.min(bucket.low);
        until = bucket.start;
    }
    least
}

/// Estimated depth of the valleys that samples can miss: the mean difference between a low and its neighbouring
/// samples. If the period of a sawtooth is close to a multiple of the sampling interval, the observed minimum can
/// rise without growth, but at most by this depth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grain {
    before: Option<u32>,
    lost: u32,
    mean: u32,
}

impl Grain {
    pub(super) fn observe(&mut self, value: u32) {
        let Some(before) = self.before.replace(value) else {
            return;
        };
        let lost = std::mem::take(&mut self.lost);
        if value < before {
            self.lost = before - value;
        } else if lost > 0 {
            // Only valleys with a single sample at the bottom count, because samples do not miss the bottom of a flat
            // valley.
            let side = lost.min(value - before);
            self.mean = if self.mean == 0 { side } else { self.mean - self.mean / 4 + side / 4 };
        }
    }

    pub(super) fn mean(&self) -> u32 {
        self.mean
    }
}
