//! Growth in steps: flat between, and so told by when the steps come and how high they are.
//!
//! A caching allocator's high water rises by steps too, whenever a batch needs more than all before it: at
//! random, ever more rarely, by any amount. What leaks at each epoch or request does it as regularly as
//! these come, or so often that chance is no matter.

use super::scale::UNIT;
use super::view::{View, Window};

/// A step is no less than this share of what counts.
const LEAST_SHARE: f64 = 0.02;
/// Growth that is flat for less than this share of the time is none in steps.
const FLAT_SHARE: f64 = 0.5;
/// For less than this it is none at all.
const SMOOTH_SHARE: f64 = 0.15;
/// Between samples that are close no curve counts as flat.
const CLOSE_SECONDS: u32 = 90;
/// So many steps need not be regular,
const MANY: usize = 12;
/// where time tells them better than its logarithm does, by so much (the logarithm of the odds),
const ODDS: f64 = 4.0;
/// which is less where it is hardly flat,
const ODDS_OF_NEARLY_SMOOTH: f64 = 1.5;
/// or they are so many for each time that the process grew e times as old.
const DENSE: f64 = 25.0;
/// Over less than this, old by young, time and its logarithm are alike.
const DISTINCT_AGES: f64 = 3.0;
/// What a process takes in its first minutes is no high water.
const BEGINNING_SECONDS: u32 = 120;
/// Regular steps are so many at least,
const FEWEST: usize = 4;
/// the longest time between two is so many times the shortest at most, but for the width of old buckets,
const LONGEST_GAP: f64 = 1.4;
const WIDTH_SHARE: u32 = 16;
/// and the highest so many times the lowest.
const HIGHEST: f64 = 1.5;

/// Steps of 1 GiB and more are told from the third on,
const LARGE: f64 = (1u64 << 30) as f64 / UNIT as f64;
const LARGE_FEWEST: usize = 3;
/// unless they come as fast as a model is loaded.
const LARGE_GAP_SECONDS: f64 = 300.0;
/// Level shifts of a day have nothing to do with each other.
const LARGE_LONGEST_GAP_SECONDS: f64 = 1800.0;
/// They and the times between are alike but for this.
const LARGE_ALIKE: f64 = 1.15;
/// The last has to be held for so long.
const LARGE_HELD_SECONDS: f64 = 120.0;

/// The window of the last large steps, where they come regularly and none was given back.
pub(super) fn large(view: &View<'_>, start: u32) -> Option<Window> {
    let end = view.series.now;
    let rises = view.rises_of_buckets(start, end);
    let large: Vec<_> = rises.iter().filter(|rise| rise.size >= LARGE).collect();
    let last = large.last_chunk::<LARGE_FEWEST>()?;
    let gaps = [1, 2].map(|at| f64::from(last[at].start - last[at - 1].start));
    let sizes = last.map(|rise| rise.size);
    let since_last = f64::from(end - last[LARGE_FEWEST - 1].start);
    let slack = f64::from((end - last[0].start) / WIDTH_SHARE / 2);
    let longest = LARGE_ALIKE * least(&gaps) + slack;
    // What rises between is something else.
    let counted: f64 = sizes.iter().sum();
    let first = last[0].start.saturating_sub(least(&gaps) as u32);
    let all: f64 = rises.iter().filter(|rise| rise.start >= first).map(|rise| rise.size).sum();
    let passes = least(&gaps) >= LARGE_GAP_SECONDS
        && most(&gaps) <= LARGE_LONGEST_GAP_SECONDS
        && since_last >= LARGE_HELD_SECONDS
        && most(&gaps).max(since_last) <= longest
        && most(&sizes) <= LARGE_ALIKE * least(&sizes)
        && all <= LARGE_ALIKE * counted
        && view.is_calm(start);
    passes.then_some(Window { start: first, end, counted })
}

fn most(of: &[f64]) -> f64 {
    of.iter().copied().fold(0.0, f64::max)
}

fn least(of: &[f64]) -> f64 {
    of.iter().copied().fold(f64::INFINITY, f64::min)
}

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
        for rise in rises.iter().filter(|rise| rise.size >= LEAST_SHARE * counted) {
            flat += rise.start.saturating_sub(until).saturating_sub(CLOSE_SECONDS);
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
        let cap = counted / 4.0;
        let (mut weight, mut squares, mut sum) = (0.0, 0.0, 0.0);
        // That there was a step just now is why it is asked.
        let asked_at = rises.last().map_or(end, |rise| rise.start);
        for rise in old_enough().filter(|rise| rise.start < asked_at) {
            let size = rise.size.min(cap);
            let middle = f64::midpoint(f64::from(rise.start), f64::from(rise.until));
            weight += size;
            squares += size * size;
            sum += size * (middle.ln() - by_log);
        }
        let odds_of_time =
            if squares > 0.0 { weight * weight / squares * sum / weight } else { 0.0 };
        Self {
            ages,
            odds_of_time,
            gaps,
            sizes,
            since_last: f64::from(end - last.unwrap_or(start)),
            slack: f64::from((view.series.now - start) / WIDTH_SHARE),
            flat_share: f64::from(flat) / f64::from((end - start).max(1)),
        }
    }

    /// Whether they may be those of a leak: hardly steps at all, many and no rarer, or few and regular.
    pub(super) fn are_a_habit(&self) -> bool {
        if self.flat_share < SMOOTH_SHARE {
            return true;
        }
        if self.sizes.len() >= MANY {
            let dense = self.sizes.len() as f64 / self.ages.ln();
            return if self.flat_share < FLAT_SHARE {
                self.ages < DISTINCT_AGES || self.odds_of_time > ODDS_OF_NEARLY_SMOOTH
            } else {
                self.odds_of_time > ODDS || dense > DENSE
            };
        }
        self.are_regular()
    }

    /// Whether rises by chance come no more rarely than at first, seen from the first of all to now: those of a
    /// cache do, because what is asked for most is in it first. It fills for an hour in a way that a short window
    /// does not tell from a leak.
    pub(super) fn keep_coming(&self, view: &View<'_>, counted: f64) -> bool {
        let (first, end) = (view.first_rise(), view.series.now);
        let all = Self::of(view, first, end, counted.max(view.risen(first)));
        all.odds_of_time > if self.are_regular() { 0.0 } else { ODDS }
    }

    /// Whether they are alike, and the times between are.
    fn are_regular(&self) -> bool {
        if self.sizes.len() < FEWEST {
            return false;
        }
        most(&self.gaps).max(self.since_last) <= LONGEST_GAP * least(&self.gaps) + self.slack
            && most(&self.sizes) <= HIGHEST * least(&self.sizes)
    }
}
