//! A row's memory over time, downsampled into buckets with lowest and highest value, each no wider than about a
//! twentieth of its age.

use super::grain::Grain;
use super::scale::{BUCKET_SECONDS, LEAST_RISE, MOST_BUCKETS, YOUNG_SECONDS};
use crate::model::Time;

/// How long, in seconds, a level has to be held to belong to the band.
const BAND_SECONDS: u32 = 240;

/// What was held during some time, up to the next bucket's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Seconds since the very first sample.
    pub(super) start: u32,
    pub(super) low: u32,
    pub(super) high: u32,
    /// The most that was held for [`BAND_SECONDS`] during it, once it is closed.
    pub(super) held: u32,
    pub(super) samples: u32,
}

impl Bucket {
    /// A time without samples.
    pub(super) fn hole(start: u32) -> Self {
        Self { start, low: u32::MAX, high: 0, held: 0, samples: 0 }
    }

    pub(super) fn is_hole(&self) -> bool {
        self.samples == 0
    }

    pub(super) fn take_in(&mut self, other: &Self) {
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
        self.held = self.held.max(other.held);
        self.samples = self.samples.saturating_add(other.samples);
    }
}

/// For each bucket the least that has been held since.
pub(super) struct Floor {
    values: [u32; MOST_BUCKETS],
    pub(super) len: usize,
}

impl Floor {
    pub(super) fn of(buckets: &[Bucket]) -> Self {
        let mut values = [0; MOST_BUCKETS];
        let mut least = u32::MAX;
        for (value, bucket) in values.iter_mut().zip(buckets).rev() {
            least = least.min(bucket.low);
            *value = least;
        }
        Self { values, len: buckets.len().min(MOST_BUCKETS) }
    }

    pub(super) fn at(&self, at: usize) -> u32 {
        self.values[at]
    }

    pub(super) fn last(&self) -> u32 {
        self.values[self.len - 1]
    }
}

#[derive(Clone, Debug)]
pub(super) struct GrowthSeries {
    pub(super) buckets: Vec<Bucket>,
    pub(super) first: Time,
    /// The last sample, in seconds since the first.
    pub(super) now: u32,
    pub(super) grain: Grain,
}

impl GrowthSeries {
    /// From memory that was constant up to `now`.
    pub(super) fn new(still: Bucket, first: Time, now: u32) -> Self {
        Self { buckets: vec![still], first, now, grain: Grain::default() }
    }

    pub(super) fn has_risen(&self) -> bool {
        let floor = Floor::of(&self.buckets);
        floor.last() - floor.at(0) >= LEAST_RISE
    }

    /// Takes in a sample, after a gap since `hole` if any; returns whether that closed a bucket.
    pub(super) fn observe(&mut self, sample: Bucket, hole: Option<u32>) -> bool {
        self.now = sample.start;
        if hole.is_some() {
            self.grain.interrupt();
        }
        self.grain.observe(sample.low);
        if let Some(since) = hole {
            self.push(Bucket::hole(since));
            self.push(sample);
            true
        } else {
            match self.buckets.last_mut() {
                // A plateau is one bucket, however long.
                Some(last)
                    if sample.start - last.start < BUCKET_SECONDS
                        || (last.low == sample.low && last.high == sample.low) =>
                {
                    last.take_in(&sample);
                    false
                }
                _ => {
                    self.push(sample);
                    true
                }
            }
        }
    }

    /// Whether the last rise may still turn out to be a peak.
    pub(super) fn is_young_plateau(&self) -> bool {
        let last = self.buckets.last();
        last.is_some_and(|last| self.now - last.start <= YOUNG_SECONDS)
    }

    /// Records what the last bucket held for long when it ends: merging loses that.
    fn note_held(&mut self, end: u32) {
        if end < BAND_SECONDS {
            return;
        }
        let held = held_at(&self.buckets, end, BAND_SECONDS);
        if let Some(last) = self.buckets.last_mut().filter(|last| !last.is_hole()) {
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

    /// Merges the two neighbours whose union is narrowest for its age.
    fn merge(&mut self) {
        let width_for_age = |at: usize| {
            let pair = &self.buckets[at..];
            let end = pair.get(2).map_or(self.now, |next| next.start);
            let age = f64::from(self.now - pair[0].start) + f64::from(BUCKET_SECONDS);
            let penalty = if pair[0].is_hole() == pair[1].is_hole() { 1.0 } else { 1e6 };
            f64::from(end - pair[0].start) / age * penalty
        };
        let narrowest = (0..self.buckets.len().saturating_sub(1))
            .min_by(|a, b| width_for_age(*a).total_cmp(&width_for_age(*b)));
        if let Some(at) = narrowest {
            let next = self.buckets.remove(at + 1);
            self.buckets[at].take_in(&next);
        }
    }
}

/// The least in the last `seconds` of some buckets that end at `end`.
pub(super) fn held_at(buckets: &[Bucket], end: u32, seconds: u32) -> u32 {
    let mut until = end;
    let mut least = u32::MAX;
    for bucket in buckets.iter().rev() {
        if end - until >= seconds {
            break;
        }
        // A gap has no least.
        least = least.min(bucket.low);
        until = bucket.start;
    }
    least
}
