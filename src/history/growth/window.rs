//! Whether the floor rises steadily in a window: spread over it, to its end, and as never before.
//!
//! Pure arithmetic on a row's buckets; what is made of the answer, and when it is asked for, is in
//! [`super`].

use std::ops::RangeInclusive;

use super::BUCKET_SECONDS;
use super::outline::{Bucket, Outline};
use super::slowing::Slower;
use super::steps::Steps;
use super::{LEAST_RISE, MOST_BUCKETS, SHORTEST_SECONDS, Trend, UNIT};

/// Of all growth that counts, one slot may be no more than one part in so many.
const LEAST_STEPS: f64 = 4.0;
/// With fewer, thirds are uneven by chance.
const FEW_STEPS: f64 = 8.0;
/// A climb is like another where it took a fifth of the time or more.
const SAME_CLIMB: f64 = 0.2;
/// What goes down by less than this, of what it goes up by, keeps to no band.
const CALM: f64 = 0.1;
/// Growth whose twelfths differ by less than this share of their mean, as the standard deviation, is not by chance.
pub(super) const EVEN: f64 = 0.2;
/// Highs that rise by this share of the floor's rate do as it does: all of it goes up.
const PARALLEL: RangeInclusive<f64> = 0.6..=1.6;
/// A window is cut into as many slots.
pub(super) const SLOTS: usize = 12;

/// For each bucket the least that has been held since.
pub(super) struct Floor {
    values: [u32; MOST_BUCKETS],
    pub(super) len: usize,
}

impl Floor {
    pub(super) fn of(buckets: &[Bucket]) -> Self {
        let mut values = [0; MOST_BUCKETS];
        let mut least = u32::MAX;
        for (value, bucket) in values.iter_mut().zip(buckets).rev() {
            least = least.min(bucket.low);
            *value = least;
        }
        Self {
            values,
            len: buckets.len().min(MOST_BUCKETS),
        }
    }

    pub(super) fn at(&self, at: usize) -> u32 {
        self.values[at]
    }

    pub(super) fn last(&self) -> u32 {
        self.values[self.len - 1]
    }
}

/// What a window has to be. Rises of thirds are shares of their mean.
pub(super) struct Gates {
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
pub(super) const FIRE: Gates = Gates {
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
    slower: Slower {
        all: 0.75,
        lately: 0.88,
        sure: 2.0,
    },
    is_first: true,
};

/// To go on calling it so.
pub(super) const KEEP: Gates = Gates {
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
    slower: Slower {
        all: 0.6,
        lately: 0.8,
        sure: 3.0,
    },
    is_first: false,
};

/// To call it so again after it stopped.
pub(super) const RESUME: Gates = Gates {
    is_first: true,
    ..KEEP
};

/// A window in which the floor rises steadily, in seconds since the first sample.
pub(super) struct Window {
    pub(super) start: u32,
    pub(super) end: u32,
    /// What all slots count for.
    pub(super) counted: f64,
}

/// A rise of the floor: at its start, or up to when it ended.
pub(super) struct Rise {
    pub(super) start: u32,
    pub(super) until: u32,
    pub(super) size: f64,
}

pub(super) struct View<'a> {
    pub(super) outline: &'a Outline,
    pub(super) floor: &'a Floor,
}

impl View<'_> {
    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.outline.buckets
    }

    /// The bucket in which a time lies.
    pub(super) fn index(&self, at: u32) -> usize {
        self.buckets()
            .partition_point(|bucket| bucket.start <= at)
            .saturating_sub(1)
    }

    pub(super) fn end_of(&self, at: usize) -> u32 {
        self.buckets()
            .get(at + 1)
            .map_or(self.outline.now, |next| next.start)
    }

    /// The window from `start` up to now, or up to the last valley, where it passes.
    pub(super) fn judge(&self, start: u32, gates: &Gates) -> Option<Window> {
        let first = self.index(start);
        let last = self.end_of_news(first)?;
        let end = self.end_of(last);
        let length = end - start;
        if length < SHORTEST_SECONDS || self.outline.now - end > length / 3 {
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
        let passes = third(0) >= gates.first_third
            && third(1) >= gates.middle_third
            && third(2) >= if spread < FEW_STEPS { gates.last_third_of_few } else { gates.last_third }
            && silence <= gates.silence
            && self.is_long_enough((end, length), spread, gates, || self.ceiling_rises(start, end, counted))
            // Few steps are a habit only where they are alike.
            && (spread >= 5.0 || counted >= 0.5 * raw.iter().sum::<f64>())
            && self.unseen(first, last) <= length / 3
            && self.gives_back(start - (length / 2).min(start), end) <= gates.falls
            && !self.settles(start, length, counted * gates.settles)
            && self.pace_lately(start, end, counted) >= gates.pace_lately
            && (!gates.is_first || self.is_no_high_water(start, end, counted));
        passes.then_some(Window {
            start,
            end,
            counted,
        })
    }

    /// Whether the window is long enough for the slots in which it rises.
    fn is_long_enough(
        &self,
        (end, length): (u32, u32),
        spread: f64,
        gates: &Gates,
        ceiling: impl FnOnce() -> f64,
    ) -> bool {
        let weight = f64::from(length) * spread / f64::from(SHORTEST_SECONDS);
        weight >= gates.patience
            || weight >= gates.patience_of_parallel
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

    /// What the floor rises by in each twelfth from `start` to `end`.
    fn rises(&self, start: u32, end: u32) -> [f64; SLOTS] {
        let mut rises = [0.0; SLOTS];
        let length = u64::from(end - start).max(1);
        let first = self.index(start);
        for at in first + 1..self.floor.len {
            let bucket = &self.buckets()[at];
            if bucket.start >= end {
                break;
            }
            let slot = u64::from(bucket.start - start) * SLOTS as u64 / length;
            rises[slot as usize] += f64::from(self.floor.at(at) - self.floor.at(at - 1));
        }
        rises
    }

    /// Where the floor rises from bucket to bucket.
    pub(super) fn rises_of_buckets(&self, start: u32, end: u32) -> Vec<Rise> {
        let first = self.index(start);
        let inside = (first + 1..self.floor.len).filter(|at| {
            self.floor.at(*at) > self.floor.at(*at - 1) && self.buckets()[*at].start < end
        });
        inside
            .map(|at| {
                let bucket = &self.buckets()[at];
                Rise {
                    start: bucket.start,
                    until: if bucket.low == bucket.high {
                        bucket.start
                    } else {
                        self.end_of(at)
                    },
                    size: f64::from(self.floor.at(at) - self.floor.at(at - 1)),
                }
            })
            .collect()
    }

    /// What the floor has risen by since a time.
    pub(super) fn risen(&self, since: u32) -> f64 {
        f64::from(self.floor.last() - self.floor.at(self.index(since)))
    }

    /// Seconds in which nothing was seen.
    fn unseen(&self, first: usize, last: usize) -> u32 {
        (first..=last)
            .filter(|at| self.buckets()[*at].is_hole())
            .map(|at| self.end_of(at) - self.buckets()[at].start)
            .sum()
    }

    /// What is given back, by the coarser or the finer measure: peaks may fill a short part altogether.
    fn gives_back(&self, start: u32, end: u32) -> f64 {
        self.falls(start, end, 9)
            .min(4.0 * self.falls(start, end, 6) + 0.05)
    }

    /// What is given back between the lows of so many parts, as a share of what is added.
    fn falls(&self, start: u32, end: u32, parts: usize) -> f64 {
        let lows = self.lows(start, end, parts);
        let (mut rises, mut falls, mut before) = (0.0, 0.0, None);
        for low in lows[..parts].iter().copied().flatten() {
            if let Some(before) = before.replace(low) {
                let step: f64 = low - before;
                rises += step.max(0.0);
                falls += (-step).max(0.0);
            }
        }
        falls / f64::max(rises, 1.0)
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
                && (self.unevenness(start, end) < EVEN || steps.go_on(self, counted))
        } else {
            self.leaves_its_band(start, end, counted) && !self.wanders(start, end, counted)
        }
    }

    /// The least in each of so many parts of a stretch; `None` where nothing was seen.
    pub(super) fn lows(&self, start: u32, end: u32, parts: usize) -> [Option<f64>; SLOTS] {
        let mut lows = [u32::MAX; SLOTS];
        let (count, length) = (parts as u64, u64::from(end - start).max(1));
        for at in self.index(start)..self.floor.len {
            let bucket = &self.buckets()[at];
            if bucket.start >= end {
                break;
            }
            let part = |time: u32| {
                (u64::from(time.clamp(start, end) - start) * count / length).min(count - 1) as usize
            };
            let until = self.end_of(at).saturating_sub(1).max(bucket.start);
            for low in &mut lows[part(bucket.start)..=part(until)] {
                *low = (*low).min(bucket.low);
            }
        }
        lows.map(|low| (low != u32::MAX).then_some(f64::from(low)))
    }

    /// Whether it goes down nearly as much as up, from bucket to bucket.
    pub(super) fn is_restless(&self, window: &Window) -> bool {
        let (up, down) = self.ups_and_downs(window.start);
        down > up / 2.0
    }

    /// Whether hardly anything is ever given back.
    pub(super) fn is_calm(&self, start: u32) -> bool {
        let (up, down) = self.ups_and_downs(start);
        down <= up * CALM
    }

    /// What the lows go up and down by, from bucket to bucket.
    fn ups_and_downs(&self, start: u32) -> (f64, f64) {
        let lows = || {
            let inside = self.buckets()[self.index(start)..].iter();
            inside
                .filter(|bucket| !bucket.is_hole())
                .map(|bucket| f64::from(bucket.low))
        };
        let (mut up, mut down) = (0.0, 0.0);
        for (before, after) in lows().zip(lows().skip(1)) {
            up += f64::max(after - before, 0.0);
            down += f64::max(before - after, 0.0);
        }
        (up, down)
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
            let age = self.outline.now - start;
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
        (first + 1..self.floor.len)
            .find(|at| self.floor.at(*at) > self.floor.at(first))
            .map_or(start, |rise| {
                let rises_at = self.buckets()[rise].start.saturating_sub(BUCKET_SECONDS);
                start.max(rises_at).min(window.end)
            })
    }

    pub(super) fn trend(&self, since: u32, window: &Window) -> Trend {
        let raw = self.rises(since, window.end);
        let most = cap(&raw);
        let rises = raw.map(|rise| rise.min(most));
        let counted: f64 = rises.iter().sum();
        // What was before it began says nothing of how fast it is.
        let start = since.max(window.start);
        let lately = self.rises(start, window.end);
        let most = cap(&lately);
        let (rate, low, high) = rates(&lately.map(|rise| rise.min(most)));
        let per_second =
            |rise: f64| rise * UNIT as f64 * SLOTS as f64 / f64::from((window.end - start).max(1));
        let first = self.outline.first;
        Trend {
            since: first.plus_seconds(f64::from(since)),
            bytes_per_second: per_second(rate),
            bytes_per_second_low: per_second(low),
            bytes_per_second_high: per_second(high),
            span_seconds: f64::from(self.outline.now - since),
            samples: self
                .buckets()
                .iter()
                .filter(|bucket| bucket.start >= since)
                .map(|bucket| u64::from(bucket.samples))
                .sum(),
            grown_bytes: counted.max(window.counted) as u64 * UNIT,
            growing_share: rises.iter().filter(|rise| **rise > 0.0).count() as f64 / SLOTS as f64,
            falls_share: self.gives_back(since, window.end),
            // What `halt` tells.
            rising_seconds: 0.0,
            quiet_seconds: 0.0,
            longest_pause_seconds: 0.0,
        }
    }
}

/// The most that a slot may count for, so that it is no more than a quarter of what counts; 0 where
/// fewer than four rise.
fn cap(rises: &[f64; SLOTS]) -> f64 {
    let mut sorted = *rises;
    sorted.sort_unstable_by(f64::total_cmp);
    // With the `above` largest cut to c, c is a quarter of c * above and all the rest.
    let mut rest: f64 = sorted.iter().sum();
    for above in 0..LEAST_STEPS as usize {
        let cap = rest / (LEAST_STEPS - above as f64);
        let largest = sorted[SLOTS - 1 - above];
        if largest <= cap {
            return cap;
        }
        rest -= largest;
    }
    sorted[SLOTS - LEAST_STEPS as usize]
}

/// Rise per slot: the median slope between ends of slots a third apart or more, and the tenths that
/// are lowest and highest.
fn rates(rises: &[f64; SLOTS]) -> (f64, f64, f64) {
    let mut heights = [0.0; SLOTS + 1];
    for slot in 0..SLOTS {
        heights[slot + 1] = heights[slot] + rises[slot];
    }
    let mut slopes = Vec::with_capacity(SLOTS * SLOTS / 2);
    for from in 0..=SLOTS {
        for to in from + SLOTS / 3..=SLOTS {
            slopes.push((heights[to] - heights[from]) / (to - from) as f64);
        }
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let quantile = |tenths: usize| slopes[(slopes.len() - 1) * tenths / 10];
    (quantile(5), quantile(1), quantile(9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_counts_for_more_than_a_quarter() {
        let rises = |few: &[f64]| {
            let mut rises = [0.0; SLOTS];
            rises[..few.len()].copy_from_slice(few);
            rises
        };
        assert_eq!(cap(&rises(&[])), 0.0);
        assert_eq!(cap(&rises(&[9.0, 9.0, 9.0])), 0.0);
        assert_eq!(cap(&rises(&[9.0, 7.0, 7.0, 7.0])), 7.0);
        assert_eq!(cap(&rises(&[1.0; 12])), 3.0);
        // Twelve of 1 and one of 100 in their midst: (11 + c) / 4 = c.
        let mut jump = [1.0; 12];
        jump[5] = 100.0;
        assert!((cap(&jump) - 11.0 / 3.0).abs() < 1e-9);
    }
}
