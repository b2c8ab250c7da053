//! Growth that slows down steadily is no leak: a line through its twelfths' rises declines.

use super::view::{Line, SLOTS, View};

/// How much growth has to slow down, from first twelfth to last, to count as slowing.
pub(super) struct Slower {
    /// The last rise is at most this share of the first.
    pub(super) share: f64,
    /// The decline is at least this many standard errors.
    pub(super) sure: f64,
}

impl View<'_> {
    /// Whether growth slows down.
    pub(super) fn slows(&self, since: u32, end: u32, slower: &Slower) -> bool {
        let Some(line) = self.bend(since, end).filter(|_| end.min(self.last_start()) > since)
        else {
            return false;
        };
        let half = line.slope * (SLOTS - 1) as f64 / 2.0;
        let (first, last) = (line.mean - half, line.mean + half);
        first > 0.0
            && last <= slower.share * first
            && -line.slope >= slower.sure * line.error.max(1e-9)
    }

    /// The standard deviation of the twelfths' rises around their trend, as a share of their mean.
    pub(super) fn unevenness(&self, start: u32, end: u32) -> f64 {
        let line = self.bend(start, end);
        line.map_or(f64::INFINITY, |line| line.deviation / line.mean.max(1e-9))
    }

    /// A line through the twelfths' rises, what rises in the last bucket left out.
    fn bend(&self, start: u32, end: u32) -> Option<Line> {
        let end = end.min(self.last_start()).max(start + 1);
        let step = f64::from(end - start) / SLOTS as f64;
        let height = |slot: usize| self.height_at(f64::from(start) + step * slot as f64);
        let rises = (0..SLOTS).map(|slot| (slot as f64, height(slot + 1) - height(slot)));
        Line::through(&rises.collect::<Vec<_>>())
    }

    /// The floor's height at a time. It rises linearly between buckets, and at the end of a plateau.
    fn height_at(&self, time: f64) -> f64 {
        let (at, floor) = (self.index(time as u32), self.floor());
        let (bucket, height) = (&self.buckets()[at], f64::from(floor[at]));
        if at + 1 >= floor.len() || bucket.is_level() && bucket.samples > 1 {
            return height;
        }
        let width = f64::from(self.end_of(at) - bucket.start).max(1.0);
        height + f64::from(floor[at + 1] - floor[at]) * (time - f64::from(bucket.start)) / width
    }
}
