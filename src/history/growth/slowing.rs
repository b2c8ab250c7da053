//! Growth that becomes ever slower is no leak: the rises of its twelfths decline, by a line through them.

use super::view::View;

/// Growth is cut into as many parts.
const PARTS: usize = 12;

/// How much slower growth has to become, from its first twelfth to its last, to be called slowing.
pub(super) struct Slower {
    /// At least to this share.
    pub(super) share: f64,
    /// It is no chance: so many times the standard error.
    pub(super) sure: f64,
}

impl View<'_> {
    /// Whether growth becomes slower.
    pub(super) fn slows(&self, since: u32, end: u32, slower: &Slower) -> bool {
        let end = end.min(self.last_start());
        if end <= since {
            return false;
        }
        let bend = Bend::of(&self.heights(since, end));
        bend.left <= slower.share && bend.odds >= slower.sure
    }

    /// How far the floor is above where it was at `start`, there and at the ends of so many parts less one. It
    /// rises evenly from bucket to bucket, and after a plateau at its end.
    fn heights(&self, start: u32, end: u32) -> [f64; PARTS + 1] {
        let mut at = self.index(start);
        let bottom = f64::from(self.floor.at(at));
        let step = f64::from(end - start) / PARTS as f64;
        std::array::from_fn(|part| {
            let time = f64::from(start) + step * part as f64;
            while at + 1 < self.floor.len && f64::from(self.buckets()[at + 1].start) <= time {
                at += 1;
            }
            let height = f64::from(self.floor.at(at)) - bottom;
            let bucket = &self.buckets()[at];
            let is_plateau = bucket.low == bucket.high && bucket.samples > 1;
            if at + 1 >= self.floor.len || is_plateau {
                return height;
            }
            let rise = f64::from(self.floor.at(at + 1)) - bottom - height;
            let width = f64::from(self.end_of(at) - bucket.start).max(1.0);
            height + rise * (time - f64::from(bucket.start)) / width
        })
    }

    /// How much the rises of twelfths differ, but for a trend: their standard deviation as a share of their mean.
    pub(super) fn unevenness(&self, start: u32, end: u32) -> f64 {
        let end = end.min(self.last_start()).max(start + 1);
        Bend::of(&self.heights(start, end)).uneven
    }
}

/// How the rises of the parts change from the first to the last.
struct Bend {
    /// The last as a share of the first, by a line through all.
    left: f64,
    /// How many times its standard error the line goes down by.
    odds: f64,
    /// Their standard deviation from that line, as a share of their mean.
    uneven: f64,
}

impl Bend {
    fn of(heights: &[f64; PARTS + 1]) -> Self {
        const MIDDLE: f64 = (PARTS - 1) as f64 / 2.0;
        let rises: [f64; PARTS] = std::array::from_fn(|at| heights[at + 1] - heights[at]);
        let mean = rises.iter().sum::<f64>() / PARTS as f64;
        let (mut squares, mut product) = (0.0, 0.0);
        for (at, rise) in rises.iter().enumerate() {
            let off = at as f64 - MIDDLE;
            squares += off * off;
            product += off * (rise - mean);
        }
        let slope = product / squares;
        let rest: f64 = (rises.iter().enumerate())
            .map(|(at, rise)| (rise - mean - slope * (at as f64 - MIDDLE)).powi(2))
            .sum();
        let variance = rest / (PARTS - 2) as f64;
        let error = (variance / squares).sqrt();
        let (first, last) = (mean - slope * MIDDLE, mean + slope * MIDDLE);
        Self {
            left: if first > 0.0 { last / first } else { f64::INFINITY },
            odds: -slope / error.max(1e-9),
            uneven: variance.sqrt() / mean.max(1e-9),
        }
    }
}
