//! Growth in steps: flat between, and so told by when the steps come and how high they are.
//!
//! A caching allocator's high water rises by steps too, whenever a batch needs more than all before it: at
//! random, ever more rarely, by any amount. What leaks at each epoch or request does it as regularly as
//! these come, or so often that chance is no matter.

use super::window::View;

/// A step is no less than this share of what counts.
const LEAST_SHARE: f64 = 0.02;
/// Growth that is flat for less than this share of the time is none in steps.
const FLAT_SHARE: f64 = 0.5;
/// For less than this it is none at all.
const SMOOTH_SHARE: f64 = 0.2;
/// Between samples that are close nobody is flat.
const CLOSE_SECONDS: u32 = 90;
/// So many steps need not be regular,
const MANY: usize = 12;
/// where time tells them better than its logarithm does, by so much (the logarithm of the odds),
const ODDS: f64 = 1.5;
/// or they are so many for each time that the process grew e times as old.
const DENSE: f64 = 25.0;
/// Over less than this, old by young, time and its logarithm are alike.
const TELLING: f64 = 3.0;
/// What a process takes in its first minutes is no high water.
const BEGINNING_SECONDS: u32 = 120;
/// Regular steps are so many at least,
const FEWEST: usize = 4;
/// the longest time between two is so many times the shortest at most, but for the width of old buckets,
const LONGEST_GAP: f64 = 1.4;
const WIDTH_SHARE: u32 = 16;
/// and the highest so many times the lowest.
const HIGHEST: f64 = 2.0;

/// The steps in a window.
pub(super) struct Steps {
    /// Seconds between each two.
    gaps: Vec<f64>,
    sizes: Vec<f64>,
    /// Seconds since the last.
    since_last: f64,
    flat_share: f64,
    /// How far old buckets may be off.
    slack: f64,
    /// How many times as old the process is at the end as at the start.
    ages: f64,
    /// How much better time tells when it grew than the logarithm of its age does: that of the odds.
    odds_of_time: f64,
}

impl Steps {
    /// `counted` is what the window rises by, but for single jumps.
    pub(super) fn of(view: &View<'_>, start: u32, end: u32, counted: f64) -> Self {
        let rises = view.rises_of_buckets(start, end);
        let (mut gaps, mut sizes) = (Vec::new(), Vec::new());
        let (mut flat, mut until) = (0u32, start);
        let mut last = None;
        for rise in rises
            .iter()
            .filter(|rise| rise.size >= LEAST_SHARE * counted)
        {
            flat += rise
                .start
                .saturating_sub(until)
                .saturating_sub(CLOSE_SECONDS);
            until = rise.until;
            if let Some(last) = last.replace(rise.start) {
                gaps.push(f64::from(rise.start - last));
            }
            sizes.push(rise.size);
        }
        flat += end.saturating_sub(until).saturating_sub(CLOSE_SECONDS);
        let young = f64::from(start.max(BEGINNING_SECONDS));
        let ages = f64::from(end.max(BEGINNING_SECONDS * 2)) / young;
        // At a rate of 1 / age the density of growth is 1 / (age ln ages), at a steady one 1 / span.
        let by_log = (young * (ages - 1.0) / ages.ln()).ln();
        let old_enough = || rises.iter().filter(|rise| f64::from(rise.start) >= young);
        let most = counted / 4.0;
        let (mut weight, mut squares, mut sum) = (0.0, 0.0, 0.0);
        for rise in old_enough() {
            let size = rise.size.min(most);
            let middle = f64::midpoint(f64::from(rise.start), f64::from(rise.until));
            weight += size;
            squares += size * size;
            sum += size * (middle.ln() - by_log);
        }
        let odds_of_time = if squares > 0.0 {
            weight * weight / squares * sum / weight
        } else {
            0.0
        };
        Self {
            ages,
            odds_of_time,
            gaps,
            sizes,
            since_last: f64::from(end - last.unwrap_or(start)),
            slack: f64::from((view.outline.now - start) / WIDTH_SHARE),
            flat_share: f64::from(flat) / f64::from((end - start).max(1)),
        }
    }

    /// Whether they may be those of a leak: hardly steps at all, many and no rarer, or few and regular.
    pub(super) fn are_a_habit(&self) -> bool {
        if self.flat_share < SMOOTH_SHARE {
            return true;
        }
        if self.flat_share < FLAT_SHARE {
            return self.ages < TELLING || self.odds_of_time > ODDS;
        }
        if self.sizes.len() >= MANY {
            let dense = self.sizes.len() as f64 / self.ages.ln();
            return self.odds_of_time > ODDS || dense > DENSE;
        }
        if self.sizes.len() < FEWEST {
            return false;
        }
        let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        let least = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
        most(&self.gaps).max(self.since_last) <= LONGEST_GAP * least(&self.gaps) + self.slack
            && most(&self.sizes) <= HIGHEST * least(&self.sizes)
    }
}
