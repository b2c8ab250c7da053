//! Whether the floor rises steadily in a window: spread over it, to its end, and as never before.
//!
//! Pure arithmetic on a row's buckets; what is made of the answer, and when it is asked for, is in
//! [`super`].

use std::ops::RangeInclusive;

use super::scale::{BUCKET_SECONDS, LEAST_RISE, SHORTEST_SECONDS};
use super::slowing::Slower;
use super::steps::Steps;
use super::trend::cap;
use super::view::{SLOTS, View, Window};

/// With fewer, thirds are uneven by chance.
const FEW_STEPS: f64 = 8.0;
/// A climb is like another where it took a fifth of the time or more.
const SAME_CLIMB: f64 = 0.2;
/// Growth whose twelfths differ by less than this share of their mean, as the standard deviation, is not by chance.
pub(super) const EVEN: f64 = 0.2;
/// Highs that rise by this share of the floor's rate do as it does: all of it goes up.
const PARALLEL: RangeInclusive<f64> = 0.6..=1.6;

/// What a window has to be. Rises of thirds are shares of their mean.
pub(super) struct Thresholds {
    first_third: f64,
    middle_third: f64,
    last_third: f64,
    last_third_of_few: f64,
    /// What may be given back, as a share of what is added.
    falls: f64,
    /// Empty slots at the end.
    silence: usize,
    /// Times the shortest window, over the slots that rise.
    patience: f64,
    /// That, where the highs rise as fast as the floor.
    patience_of_parallel: f64,
    /// So many times faster before the window is settling down.
    settles: f64,
    /// The share of the mean rate that the lows of the last half have to rise by.
    pace_lately: f64,
    /// The share of the mean rate that the present one has to be.
    pub(super) slowed: f64,
    /// Becoming slower by this is settling down.
    pub(super) slower: Slower,
    /// Whether it was not called steady just before.
    is_first: bool,
}

/// To call growth steady.
pub(super) const START: Thresholds = Thresholds {
    first_third: 0.2,
    middle_third: 0.4,
    last_third: 0.7,
    last_third_of_few: 0.55,
    falls: 0.15,
    silence: 3,
    patience: 10.0,
    patience_of_parallel: 5.0,
    settles: 1.3,
    pace_lately: 0.35,
    slowed: 0.6,
    slower: Slower { all: 0.75, lately: 0.88, sure: 2.0 },
    is_first: true,
};

/// To go on calling it so.
pub(super) const KEEP: Thresholds = Thresholds {
    first_third: 0.1,
    middle_third: 0.2,
    last_third: 0.45,
    last_third_of_few: 0.45,
    falls: 0.3,
    silence: 4,
    patience: 6.0,
    patience_of_parallel: 4.0,
    settles: 2.0,
    pace_lately: 0.15,
    slowed: 0.33,
    slower: Slower { all: 0.6, lately: 0.8, sure: 3.0 },
    is_first: false,
};

/// To call it so again after it stopped.
pub(super) const RESUME: Thresholds = Thresholds { is_first: true, ..KEEP };

impl View<'_> {
    /// The window from `start` up to now, or up to the last valley, where it passes.
    pub(super) fn judge(&self, start: u32, thresholds: &Thresholds) -> Option<Window> {
        let first = self.index(start);
        let last = self.end_of_news(first)?;
        let end = self.end_of(last);
        let length = end - start;
        if length < SHORTEST_SECONDS || self.series.now - end > length / 3 {
            return None;
        }
        let raw = self.rises(start, end);
        let cap = cap(&raw);
        let rises = raw.map(|rise| rise.min(cap));
        let counted: f64 = rises.iter().sum();
        if counted < f64::from(LEAST_RISE) {
            return None;
        }
        let third = |third: usize| -> f64 {
            rises[third * 4..third * 4 + 4].iter().sum::<f64>() * 3.0 / counted
        };
        let spread = counted * counted / rises.iter().map(|rise| rise * rise).sum::<f64>();
        let silence = rises.iter().rev().take_while(|rise| **rise == 0.0).count();
        let passes = third(0) >= thresholds.first_third
            && third(1) >= thresholds.middle_third
            && third(2) >= if spread < FEW_STEPS { thresholds.last_third_of_few } else { thresholds.last_third }
            && silence <= thresholds.silence
            && self.is_long_enough((end, length), spread, thresholds, || self.ceiling_rises(start, end, counted))
            // Few steps are a habit only where they are alike.
            && (spread >= 5.0 || counted >= 0.5 * raw.iter().sum::<f64>())
            && self.unseen(first, last) <= length / 3
            && self.gives_back(start - (length / 2).min(start), end) <= thresholds.falls
            && !self.settles(start, length, counted * thresholds.settles)
            && self.pace_lately(start, end, counted) >= thresholds.pace_lately
            && (!thresholds.is_first || self.is_no_high_water(start, end, counted));
        passes.then_some(Window { start, end, counted })
    }

    /// Whether the window is long enough for the slots in which it rises.
    fn is_long_enough(
        &self,
        (end, length): (u32, u32),
        spread: f64,
        thresholds: &Thresholds,
        ceiling: impl FnOnce() -> f64,
    ) -> bool {
        let weight = f64::from(length) * spread / f64::from(SHORTEST_SECONDS);
        weight >= thresholds.patience
            || weight >= thresholds.patience_of_parallel
                && !self.is_calm(end - length)
                && PARALLEL.contains(&ceiling())
    }

    /// The last bucket up to which a rise from `first` is not what was climbed and given back before.
    fn end_of_news(&self, first: usize) -> Option<usize> {
        let mut last = self.floor.len - 1;
        for _ in 0..4 {
            let bottom = self.floor.at(first);
            let rise = self.floor.at(last) - bottom;
            if rise < LEAST_RISE {
                return None;
            }
            let (low, high) = (bottom + rise / 4, bottom + rise / 4 * 3);
            let leaves = (first..=last).find(|at| self.floor.at(*at) > low)?;
            let arrives = (leaves..=last).find(|at| self.floor.at(*at) >= high)?;
            let start = |at: usize| self.buckets()[at].start;
            let takes = start(arrives) - start(leaves);
            if self
                .slowest_climb(leaves, low, high)
                .is_none_or(|before| f64::from(before) < SAME_CLIMB * f64::from(takes))
            {
                return Some(last);
            }
            last = leaves.checked_sub(1).filter(|last| *last > first)?;
        }
        None
    }

    /// How long the slowest climb from `low` to `high` took before a bucket; `None` where there was none.
    fn slowest_climb(&self, before: usize, low: u32, high: u32) -> Option<u32> {
        let (mut slowest, mut climb) = (None, None);
        // Where the history begins, only what is seen of a climb counts.
        let mut bottom = Some(0);
        for (at, bucket) in self.buckets()[..before].iter().enumerate() {
            if bucket.is_hole() {
                continue;
            }
            if bucket.low <= low {
                // It has come down: that was one.
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

    /// Seconds in which nothing was seen.
    fn unseen(&self, first: usize, last: usize) -> u32 {
        (first..=last)
            .filter(|at| self.buckets()[*at].is_hole())
            .map(|at| self.end_of(at) - self.buckets()[at].start)
            .sum()
    }

    /// How much of its mean rate the lows of the twelfths rise by in the last half. The floor alone does
    /// not tell: at the end it is the least of few samples, and so rises with whatever goes up and down.
    fn pace_lately(&self, start: u32, end: u32, counted: f64) -> f64 {
        let lows = self.lows(start, end, SLOTS);
        let mut slopes = Vec::with_capacity(SLOTS * SLOTS / 8);
        for from in SLOTS / 2..SLOTS {
            for to in from + 1..SLOTS {
                if let (Some(before), Some(after)) = (lows[from], lows[to]) {
                    slopes.push((after - before) / (to - from) as f64);
                }
            }
        }
        slopes.sort_unstable_by(f64::total_cmp);
        let median = slopes.get(slopes.len() / 2).copied();
        median.unwrap_or_default() * SLOTS as f64 / counted
    }

    /// Whether it is neither a high water, nor a cache or a band that fills: what never comes down is asked for
    /// these two, what does for the third.
    fn is_no_high_water(&self, start: u32, end: u32, counted: f64) -> bool {
        if self.is_in_its_band(start) {
            false
        } else if self.is_calm(start) {
            let steps = Steps::of(self, start, end, counted);
            steps.are_a_habit()
                && (self.unevenness(start, end) < EVEN || steps.keep_coming(self, counted))
        } else {
            self.leaves_its_band(start, end, counted) && !self.wanders(start, end, counted)
        }
    }

    /// Whether it rose faster all along before the window, for as long or three times as long: then it
    /// approaches a level.
    fn settles(&self, start: u32, length: u32, counted: f64) -> bool {
        [1, 3].into_iter().any(|scale| {
            let slot = (length / SLOTS as u32).max(1) * scale;
            let known = (start / slot).min(SLOTS as u32);
            let mean = counted / SLOTS as f64 * f64::from(scale);
            let at = |time: u32| f64::from(self.floor.at(self.index(time)));
            let faster = (1..=known)
                .map(|back| start - back * slot)
                .filter(|begin| at(begin + slot) - at(*begin) > mean)
                .count();
            known >= SLOTS as u32 / 2 && faster * 2 >= known as usize
        })
    }

    /// When the growth seen in a window began: perhaps before it, perhaps not at its start.
    pub(super) fn beginning(&self, window: &Window) -> u32 {
        let pace = window.counted / f64::from((window.end - window.start).max(1));
        let at = |time: u32| f64::from(self.floor.at(self.index(time)));
        let mut start = window.start;
        loop {
            // Wide enough for the buckets of that age.
            let age = self.series.now - start;
            let stretch = ((window.end - window.start) / 4).max(age / 8).max(1);
            if start <= stretch {
                break;
            }
            let before = (at(start) - at(start - stretch)) / f64::from(stretch);
            // Much slower or faster is something else.
            if !(0.4 * pace..=4.0 * pace).contains(&before) {
                break;
            }
            start -= stretch;
        }
        // Not while it still stood where it was.
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
