//! Decides whether the floor rises steadily in a window: throughout, up to its end, and above earlier levels.
//! [`super::steady`] decides which windows to judge and uses the result.

use std::ops::RangeInclusive;

use super::view::{Line, Rise, SLOTS, View, Window, slopes};
use super::{BUCKET_SECONDS, LEAST_RISE, SHORTEST_SECONDS};

/// Growth is even if its [`View::unevenness`] is below this value.
pub(super) const EVEN: f64 = 0.2;
/// Maximum ratio of falls to rises for memory that is almost never freed.
const CALM: f64 = 0.1;
/// Ratio of the slope of the highs to that of the floor if both rise together.
const PARALLEL: RangeInclusive<f64> = 0.6..=1.6;

pub(super) struct Thresholds {
    last_third: f64,
    /// Minimum product of the window's length, as a multiple of the shortest window, and its effective number of
    /// rising slots. If the highs rise as fast as the floor, half of this product is enough.
    patience: f64,
    /// Growth that slows down this much is approaching a level.
    pub(super) slower: SlowdownLimits,
    /// Whether the thresholds are for growth that has not been detected yet.
    is_first: bool,
}

pub(super) const START: Thresholds = Thresholds {
    last_third: 0.7,
    patience: 10.0,
    slower: SlowdownLimits { share: 0.75, sure: 1.3 },
    is_first: true,
};

pub(super) const KEEP: Thresholds = Thresholds {
    last_third: 0.45,
    patience: 6.0,
    slower: SlowdownLimits { share: 0.6, sure: 3.0 },
    is_first: false,
};

impl View<'_> {
    /// Returns the window from `start` to the last sample if it passes the thresholds.
    pub(super) fn judge(&self, start: u32, thresholds: &Thresholds) -> Option<Window> {
        let (end, length) = (self.series.now, self.series.now - start);
        let rises = self.capped_rises(start, end);
        let counted: f64 = rises.iter().sum();
        if counted < f64::from(LEAST_RISE) {
            return None;
        }
        let last_third = rises[SLOTS / 3 * 2..].iter().sum::<f64>() * 3.0 / counted;
        let spread = counted * counted / rises.iter().map(|rise| rise * rise).sum::<f64>();
        // The fewer slots rise, the longer the window must be.
        let weight = f64::from(length) * spread / f64::from(SHORTEST_SECONDS);
        let is_parallel =
            || !self.is_calm(start) && PARALLEL.contains(&self.ceiling_rises(start, end, counted));
        let is_long_enough =
            weight >= thresholds.patience || weight >= thresholds.patience / 2.0 && is_parallel();
        let passes = last_third >= thresholds.last_third
            && is_long_enough
            && (!thresholds.is_first || self.is_no_high_water(start, end, counted));
        passes.then_some(Window { start, end, counted })
    }

    fn is_calm(&self, start: u32) -> bool {
        let (up, down) = self.ups_and_downs(start);
        down <= up * CALM
    }

    /// Returns whether the growth is neither a high-water mark, nor a filling cache, nor a band that fills up. The
    /// first two are possible only if memory is almost never freed, and the third only otherwise.
    fn is_no_high_water(&self, start: u32, end: u32, counted: f64) -> bool {
        if self.is_in_its_band(start) {
            false
        } else if self.is_calm(start) {
            self.unevenness(start, end) < EVEN || self.keeps_coming(start, end, counted)
        } else {
            self.leaves_its_band(start, end, counted) && !self.wanders(start, end, counted)
        }
    }

    /// Returns when the growth in a window began, after any time in which memory was constant.
    pub(super) fn beginning(&self, window: &Window) -> u32 {
        let rise = self.rises(window.start, window.end).next();
        rise.map_or(window.start, |rise| {
            window.start.max(rise.start.saturating_sub(BUCKET_SECONDS))
        })
    }
}

// Growth must leave the band in which memory moved before. Neither a return to an earlier height nor a rise within
// earlier variation is new.

/// Minimum share of the growth that must be above earlier levels.
const NEW_SHARE: f64 = 0.8;
/// Minimum slope of the highs, as a share of the slope of the floor.
const CEILING_SHARE: f64 = 0.3;
/// Maximum movement of the lows before the growth, as a share of the growth. If they moved further before, the growth
/// can be the same variation.
const WANDERED_SHARE: f64 = 0.5;
/// Number of parts whose lows are compared. Each part is longer than the teeth of most sawtooths.
const PARTS: usize = SLOTS / 2;
/// Maximum root mean square distance of the lows from a line through them, as a share of the growth.
const STRAYS: f64 = 0.07;

impl View<'_> {
    /// Returns whether too little of the growth is above the level held for some minutes before it.
    fn is_in_its_band(&self, start: u32) -> bool {
        let before = self.buckets().iter().take_while(|bucket| bucket.start <= start);
        let held = before.map(|bucket| bucket.held).max().unwrap_or_default();
        let height = self.floor().last().copied().unwrap_or_default();
        let above = f64::from(height.saturating_sub(held));
        above < NEW_SHARE * f64::from(self.risen(start))
    }

    fn leaves_its_band(&self, start: u32, end: u32, counted: f64) -> bool {
        self.ceiling_rises(start, end, counted) >= CEILING_SHARE
    }

    /// Returns whether the growth may be random: the lows had moved more than half as far before it began, or they do
    /// not follow a line now.
    fn wanders(&self, start: u32, end: u32, counted: f64) -> bool {
        let before = &self.buckets()[..self.index(start)];
        let lows = || before.iter().map(|it| it.low);
        let wandered = lows().max().unwrap_or(0) - lows().min().unwrap_or(0);
        f64::from(wandered) > WANDERED_SHARE * counted || self.strays(start, end) > STRAYS * counted
    }

    /// Returns the deviation of the lows of the window's parts from a line through them.
    fn strays(&self, start: u32, end: u32) -> f64 {
        let parts = self.extremes::<PARTS>(start, end);
        let lows = (0..PARTS).filter_map(|at| Some((at as f64, parts[at]?.0)));
        Line::through(&lows.collect::<Vec<_>>()).map_or(f64::INFINITY, |line| line.deviation)
    }

    /// Returns the slope of the twelfths' highs, as a share of the floor's slope. The share is small if the memory
    /// fills a band in which it already moved: the lows rise, but the highs do not.
    fn ceiling_rises(&self, start: u32, end: u32, counted: f64) -> f64 {
        let highs = self.extremes::<SLOTS>(start, end).map(|it| Some(it?.1));
        let slopes = slopes(&highs);
        let median = slopes.get(slopes.len() / 2).copied();
        median.unwrap_or_default() * SLOTS as f64 / counted
    }
}

// Growth that slows down steadily is not a leak. To detect it, a line is fitted to the rises in the twelfths of the
// growth. Growth slows down if this line falls steeply enough.

pub(super) struct SlowdownLimits {
    /// Maximum ratio of the last rise to the first, both on the line.
    pub(super) share: f64,
    /// Minimum fall of the line, in standard errors.
    pub(super) sure: f64,
}

impl View<'_> {
    pub(super) fn slows(&self, since: u32, end: u32, slower: &SlowdownLimits) -> bool {
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

    /// Returns the standard deviation of the twelfths' rises around their trend, as a share of their mean.
    pub(super) fn unevenness(&self, start: u32, end: u32) -> f64 {
        let line = self.bend(start, end);
        line.map_or(f64::INFINITY, |line| line.deviation / line.mean.max(1e-9))
    }

    /// Fits a line through the twelfths' rises. Leaves out the last bucket, which has not ended.
    fn bend(&self, start: u32, end: u32) -> Option<Line> {
        let end = end.min(self.last_start()).max(start + 1);
        let step = f64::from(end - start) / SLOTS as f64;
        let height = |slot: usize| self.height_at(f64::from(start) + step * slot as f64);
        let rises = (0..SLOTS).map(|slot| (slot as f64, height(slot + 1) - height(slot)));
        Line::through(&rises.collect::<Vec<_>>())
    }

    /// Returns the height of the floor at a time. Within a bucket, the floor is interpolated linearly. In a bucket
    /// with constant memory, it does not rise before the end.
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

// Growth in steps must continue at its initial rate.
//
// The high-water mark of a caching allocator rises whenever a batch needs more memory than all earlier ones, and a
// cache fills with the most frequent requests first. In both cases, steps become rarer. The steps of a leak in each
// epoch or request do not become rarer.

/// Minimum size of a step, as a share of the counted growth.
const LEAST_SHARE: f64 = 0.02;
/// Minimum log odds that steps come at a steady rate rather than ever more rarely.
const ODDS: f64 = 4.0;
/// Number of seconds at the start that are ignored, because memory allocated then is not a high-water mark.
const BEGINNING_SECONDS: u32 = 120;
const FEWEST: usize = 4;
/// Maximum ratio of the longest to the shortest time between steps, apart from a tolerance for the width of old
/// buckets.
const LONGEST_GAP: f64 = 1.4;
const WIDTH_SHARE: u32 = 16;
/// Maximum ratio of the largest step to the smallest.
const HIGHEST: f64 = 1.5;

impl View<'_> {
    /// Returns whether rises have not become rarer since the start. `counted` is the rise of the window, in which
    /// single jumps are limited.
    fn keeps_coming(&self, start: u32, end: u32, counted: f64) -> bool {
        let floor = self.floor();
        let rise = floor.windows(2).position(|pair| pair[1] > pair[0]);
        let first = rise.map_or(0, |before| self.buckets()[before].start);
        let odds = self.odds_of_time(first, counted.max(self.risen(first).into()));
        odds > if self.rises_regularly(start, end, counted) { 0.0 } else { ODDS }
    }

    /// Returns the log odds that rises come at a steady rate rather than ever more rarely.
    fn odds_of_time(&self, start: u32, counted: f64) -> f64 {
        let rises: Vec<Rise> = self.rises(start, self.series.now).collect();
        let young = f64::from(start.max(BEGINNING_SECONDS));
        let ages = f64::from(self.series.now.max(BEGINNING_SECONDS * 2)) / young;
        // At a rate of 1 / age, the density of growth is 1 / (age ln ages). At a steady rate, it is 1 / span.
        let by_log = (young * (ages - 1.0) / ages.ln()).ln();
        let cap = counted / 4.0;
        // Leave out the last step, because a window is judged just after a step.
        let Some((_, rises)) = rises.split_last() else { return 0.0 };
        let (mut weight, mut squares, mut sum) = (0.0, 0.0, 0.0);
        for rise in rises.iter().filter(|rise| f64::from(rise.start) >= young) {
            let size = rise.size.min(cap);
            let middle = f64::midpoint(f64::from(rise.start), f64::from(rise.until));
            weight += size;
            squares += size * size;
            sum += size * (middle.ln() - by_log);
        }
        if squares > 0.0 { weight / squares * sum } else { 0.0 }
    }

    /// Returns whether the steps in a window have similar sizes and similar times between them.
    fn rises_regularly(&self, start: u32, end: u32, counted: f64) -> bool {
        let steps: Vec<Rise> =
            self.rises(start, end).filter(|it| it.size >= LEAST_SHARE * counted).collect();
        let Some(last) = steps.last().filter(|_| steps.len() >= FEWEST) else { return false };
        let since_last = f64::from(end - last.start);
        let gap = |pair: &[Rise]| f64::from(pair[1].start - pair[0].start);
        let (gap, longest) = range(steps.windows(2).map(gap));
        let (least, most) = range(steps.iter().map(|rise| rise.size));
        let slack = f64::from((self.series.now - start) / WIDTH_SHARE);
        longest.max(since_last) <= LONGEST_GAP * gap + slack && most <= HIGHEST * least
    }
}

fn range(of: impl Iterator<Item = f64>) -> (f64, f64) {
    of.fold((f64::INFINITY, 0.0), |(least, most), it| (least.min(it), most.max(it)))
}
