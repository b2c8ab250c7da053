//! Whether the floor rises steadily in a window: spread over it, to its end, and as never before.
//!
//! Pure arithmetic on a row's buckets; [`super`] decides when to ask and what follows.

use std::ops::RangeInclusive;

use super::scale::{BUCKET_SECONDS, LEAST_RISE, SHORTEST_SECONDS};
use super::slowing::Slower;
use super::trend::cap;
use super::view::{SLOTS, View, Window};

/// An earlier climb is similar if it took at least this share of the time.
const SAME_CLIMB: f64 = 0.2;
/// The standard deviation of twelfths, as a share of their mean, below which growth is not by chance.
pub(super) const EVEN: f64 = 0.2;
/// The range of the highs' slope, as a share of the floor's, in which everything rises together.
const PARALLEL: RangeInclusive<f64> = 0.6..=1.6;

/// The conditions for a window.
pub(super) struct Thresholds {
    /// The least rise of the last third, as a share of the mean third.
    last_third: f64,
    /// The most that may be given back, as a share of what is added.
    falls: f64,
    /// The least length, in shortest windows, times the effective number of rising slots.
    patience: f64,
    /// The same if the highs rise as fast as the floor.
    patience_of_parallel: f64,
    /// Growth that slows down this much is levelling off.
    pub(super) slower: Slower,
    /// Whether it was not steady just before.
    is_first: bool,
}

/// To become steady growth.
pub(super) const START: Thresholds = Thresholds {
    last_third: 0.7,
    falls: 0.15,
    patience: 10.0,
    patience_of_parallel: 5.0,
    slower: Slower { share: 0.75, sure: 2.0 },
    is_first: true,
};

/// To stay steady growth.
pub(super) const KEEP: Thresholds = Thresholds {
    last_third: 0.45,
    falls: 0.3,
    patience: 6.0,
    patience_of_parallel: 4.0,
    slower: Slower { share: 0.6, sure: 3.0 },
    is_first: false,
};

impl View<'_> {
    /// The window from `start` to now, if it passes.
    pub(super) fn judge(&self, start: u32, thresholds: &Thresholds) -> Option<Window> {
        let (first, end) = (self.index(start), self.series.now);
        let length = end - start;
        if !self.is_news(first) {
            return None;
        }
        let raw = self.rises(start, end);
        let cap = cap(&raw);
        let rises = raw.map(|rise| rise.min(cap));
        let counted: f64 = rises.iter().sum();
        if counted < f64::from(LEAST_RISE) {
            return None;
        }
        let last_third = rises[SLOTS / 3 * 2..].iter().sum::<f64>() * 3.0 / counted;
        let spread = counted * counted / rises.iter().map(|rise| rise * rise).sum::<f64>();
        // The fewer slots rise, the longer the window has to be.
        let weight = f64::from(length) * spread / f64::from(SHORTEST_SECONDS);
        let is_parallel =
            || !self.is_calm(start) && PARALLEL.contains(&self.ceiling_rises(start, end, counted));
        let is_long_enough = weight >= thresholds.patience
            || weight >= thresholds.patience_of_parallel && is_parallel();
        let passes = last_third >= thresholds.last_third
            && is_long_enough
            && self.unseen(first) <= length / 3
            && self.gives_back(start - (length / 2).min(start), end) <= thresholds.falls
            && (!thresholds.is_first || self.is_no_high_water(start, end, counted));
        passes.then_some(Window { start, end, counted })
    }

    /// Whether the rise from a bucket on is new, rather than climbed as slowly and given back before.
    fn is_news(&self, first: usize) -> bool {
        let bottom = self.floor.at(first);
        let rise = self.floor.last() - bottom;
        if rise < LEAST_RISE {
            return false;
        }
        let (low, high) = (bottom + rise / 4, bottom + rise / 4 * 3);
        let reaches = |height: u32| (first..self.floor.len).find(|at| self.floor.at(*at) >= height);
        let (Some(leaves), Some(arrives)) = (reaches(low + 1), reaches(high)) else { return false };
        let takes = f64::from(self.buckets()[arrives].start - self.buckets()[leaves].start);
        let before = self.slowest_climb(leaves, low, high);
        before.is_none_or(|before| f64::from(before) < SAME_CLIMB * takes)
    }

    /// The duration of the slowest climb from `low` to `high` before a bucket; `None` if there was none.
    fn slowest_climb(&self, before: usize, low: u32, high: u32) -> Option<u32> {
        let (mut slowest, mut climb) = (None, None);
        // At the beginning of the history only the observed part of a climb counts.
        let mut bottom = Some(0);
        for (at, bucket) in self.buckets()[..before].iter().enumerate() {
            if bucket.is_hole() {
                continue;
            }
            if bucket.low <= low {
                // It came down, which completes a climb.
                slowest = slowest.max(climb.take());
            }
            if bucket.high >= high
                && let Some(since) = bottom.take()
                && at > 0
            {
                climb = Some(bucket.start.saturating_sub(since));
            }
            if bucket.low <= low {
                bottom = Some(self.end_of(at));
            }
        }
        slowest
    }

    /// Seconds without samples.
    fn unseen(&self, first: usize) -> u32 {
        (first..self.floor.len)
            .filter(|at| self.buckets()[*at].is_hole())
            .map(|at| self.end_of(at) - self.buckets()[at].start)
            .sum()
    }

    /// Whether it is no high-water mark, cache or band that fills. The first two are checked if it never comes
    /// down, the third if it does.
    fn is_no_high_water(&self, start: u32, end: u32, counted: f64) -> bool {
        if self.is_in_its_band(start) {
            false
        } else if self.is_calm(start) {
            self.unevenness(start, end) < EVEN || self.keeps_coming(start, end, counted)
        } else {
            self.leaves_its_band(start, end, counted) && !self.wanders(start, end, counted)
        }
    }

    /// When a window's growth began: perhaps before it, perhaps not at its start.
    pub(super) fn beginning(&self, window: &Window) -> u32 {
        let pace = window.counted / f64::from((window.end - window.start).max(1));
        let at = |time: u32| f64::from(self.floor.at(self.index(time)));
        let mut start = window.start;
        loop {
            // Wide enough for buckets of that age.
            let age = self.series.now - start;
            let stretch = ((window.end - window.start) / 4).max(age / 8).max(1);
            if start <= stretch {
                break;
            }
            let before = (at(start) - at(start - stretch)) / f64::from(stretch);
            // Much slower or faster growth is something else.
            if !(0.4 * pace..=4.0 * pace).contains(&before) {
                break;
            }
            start -= stretch;
        }
        // Not while it was still constant.
        let first = self.index(start);
        (first + 1..self.floor.len).find(|at| self.floor.at(*at) > self.floor.at(first)).map_or(
            start,
            |rise| {
                let rises_at = self.buckets()[rise].start.saturating_sub(BUCKET_SECONDS);
                start.max(rises_at).min(window.end)
            },
        )
    }
}
