//! Growth in steps: whether they keep coming, as a leak's do, or ever more rarely.
//!
//! A caching allocator's high-water mark rises when a batch needs more than all before, and a cache fills with the most
//! frequent requests first: both rise ever more rarely. A leak at each epoch or request continues as it began.

use super::view::{Rise, View};

/// The smallest step, as a share of the counted growth.
const LEAST_SHARE: f64 = 0.02;
/// By how much (in log odds) time has to predict the steps better than its logarithm.
const ODDS: f64 = 4.0;
/// The start, in seconds, that is ignored: what a process takes then is no high-water mark.
const BEGINNING_SECONDS: u32 = 120;
/// The fewest regular steps.
const FEWEST: usize = 4;
/// The longest time between two steps, as a multiple of the shortest, apart from the width of old buckets.
const LONGEST_GAP: f64 = 1.4;
const WIDTH_SHARE: u32 = 16;
/// The highest step, as a multiple of the lowest.
const HIGHEST: f64 = 1.5;

impl View<'_> {
    /// Whether rises come no more rarely than at first, from the very first to now. `counted` is the window's
    /// rise without single jumps.
    pub(super) fn keeps_coming(&self, start: u32, end: u32, counted: f64) -> bool {
        let floor = self.floor();
        let rise = floor.windows(2).position(|pair| pair[1] > pair[0]);
        let first = rise.map_or(0, |before| self.buckets()[before].start);
        let odds = self.odds_of_time(first, counted.max(self.risen(first).into()));
        odds > if self.rises_regularly(start, end, counted) { 0.0 } else { ODDS }
    }

    /// How much better time since the start predicts the rises than its logarithm, in log odds.
    fn odds_of_time(&self, start: u32, counted: f64) -> f64 {
        let rises: Vec<Rise> = self.rises(start, self.series.now).collect();
        let young = f64::from(start.max(BEGINNING_SECONDS));
        let ages = f64::from(self.series.now.max(BEGINNING_SECONDS * 2)) / young;
        // At a rate of 1 / age the density of growth is 1 / (age ln ages), at a steady one 1 / span.
        let by_log = (young * (ages - 1.0) / ages.ln()).ln();
        let cap = counted / 4.0;
        // The last step is excluded: it is the reason for this question.
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

    /// Whether a window's steps, and the times between them, are alike.
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

/// The least and the most.
fn range(of: impl Iterator<Item = f64>) -> (f64, f64) {
    of.fold((f64::INFINITY, 0.0), |(least, most), it| (least.min(it), most.max(it)))
}
