//! Growth that slows down steadily is no leak: a line through its twelfths' rises declines.

use super::view::View;

/// The number of parts that growth is cut into.
const PARTS: usize = 12;

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
        let end = end.min(self.last_start());
        if end <= since {
            return false;
        }
        let bend = Bend::of(&self.heights(since, end));
        bend.left <= slower.share && bend.odds >= slower.sure
    }

    /// How far the floor is above its height at `start`, there and at the ends of the parts. It rises linearly
    /// between buckets, and at the end of a plateau.
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

    /// The standard deviation of the twelfths' rises around their trend, as a share of their mean.
    pub(super) fn unevenness(&self, start: u32, end: u32) -> f64 {
        let end = end.min(self.last_start()).max(start + 1);
        Bend::of(&self.heights(start, end)).uneven
    }
}

/// How the parts' rises change from first to last.
struct Bend {
    /// The last as a share of the first, on the fitted line.
    left: f64,
    /// The line's decline, in standard errors.
    odds: f64,
    /// Standard deviation from the line, as a share of the mean.
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
