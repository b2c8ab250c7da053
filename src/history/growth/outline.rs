//! The bounded outline of what a row held: buckets with their lowest and highest value, each no wider than some
//! twentieth of its age, and what was last judged of them in [`super::steady`].

use super::grain::Grain;
use super::steady::Steady;
use super::window::Floor;
use super::{BUCKET_SECONDS, LEAST_RISE, MOST_BUCKETS, Outlook, Trend, YOUNG_SECONDS};
use crate::model::Time;

/// What was held in a stretch of time, up to where the next begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Seconds since the first sample of all.
    pub(super) start: u32,
    pub(super) low: u32,
    pub(super) high: u32,
    /// The most that had been held for [`super::band::BAND_SECONDS`] at some time in it, once it is closed.
    pub(super) held: u32,
    pub(super) samples: u32,
}

impl Bucket {
    /// Time in which nothing was seen.
    pub(super) fn hole(start: u32) -> Self {
        Self {
            start,
            low: u32::MAX,
            high: 0,
            held: 0,
            samples: 0,
        }
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

#[derive(Clone, Debug)]
pub(super) struct Outline {
    pub(super) buckets: Vec<Bucket>,
    /// When it is judged next.
    pub(super) judge_at: u32,
    /// Since when some window passes.
    pub(super) passes_since: Option<u32>,
    pub(super) steady: Option<Steady>,
    /// Growth that is not steady, and becomes slower.
    pub(super) slowing: Option<(Trend, Outlook)>,
    /// When growth ended, and at what height.
    pub(super) ended: Option<(u32, u32)>,
    pub(super) first: Time,
    pub(super) now: u32,
    pub(super) grain: Grain,
}

impl Outline {
    pub(super) fn has_risen(&self) -> bool {
        let floor = Floor::of(&self.buckets);
        floor.last() - floor.at(0) >= LEAST_RISE
    }

    pub(super) fn observe(&mut self, sample: Bucket, hole: Option<u32>) {
        self.now = sample.start;
        if hole.is_some() {
            self.grain.interrupt();
        }
        self.grain.observe(sample.low);
        let is_closed = if let Some(since) = hole {
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
        };
        self.look_back(&sample);
        // On a plateau growth can cease, and cannot begin, once it is sure that it is one.
        let is_watched = self.steady.is_some() || self.slowing.is_some() || self.is_young_plateau();
        if is_closed || (is_watched && self.now >= self.judge_at) {
            self.judge_at = self.now.saturating_add(BUCKET_SECONDS);
            self.judge();
        }
    }

    /// Whether the last rise may yet prove to be a peak.
    fn is_young_plateau(&self) -> bool {
        let last = self.buckets.last();
        last.is_some_and(|last| self.now - last.start <= YOUNG_SECONDS)
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

    /// Merges the two neighbours whose union is the narrowest for its age.
    fn merge(&mut self) {
        let width_for_age = |at: usize| {
            let pair = &self.buckets[at..];
            let end = pair.get(2).map_or(self.now, |next| next.start);
            let age = f64::from(self.now - pair[0].start) + f64::from(BUCKET_SECONDS);
            let penalty = if pair[0].is_hole() == pair[1].is_hole() {
                1.0
            } else {
                1e6
            };
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
