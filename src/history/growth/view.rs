//! A row's buckets with their floor, queried by windows of time. Pure arithmetic.

use super::series::{Bucket, Floor, GrowthSeries};

/// The number of slots in a window.
pub(super) const SLOTS: usize = 12;
/// The ratio of falls to rises below which memory keeps to no band.
const CALM: f64 = 0.1;

/// A window in which the floor rises steadily, in seconds since the first sample.
pub(super) struct Window {
    pub(super) start: u32,
    pub(super) end: u32,
    /// The rise of all slots, each up to its cap.
    pub(super) counted: f64,
}

/// A rise of the floor: at its start, or until its end.
pub(super) struct Rise {
    pub(super) start: u32,
    pub(super) until: u32,
    pub(super) size: f64,
}

/// A series with its floor.
pub(super) struct View<'a> {
    pub(super) series: &'a GrowthSeries,
    pub(super) floor: &'a Floor,
}

impl View<'_> {
    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.series.buckets
    }

    /// The bucket at a time.
    pub(super) fn index(&self, at: u32) -> usize {
        self.buckets().partition_point(|bucket| bucket.start <= at).saturating_sub(1)
    }

    pub(super) fn end_of(&self, at: usize) -> u32 {
        self.buckets().get(at + 1).map_or(self.series.now, |next| next.start)
    }

    /// The floor's rise in each twelfth from `start` to `end`.
    pub(super) fn rises(&self, start: u32, end: u32) -> [f64; SLOTS] {
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

    /// The floor's rises between buckets.
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
                    until: if bucket.low == bucket.high { bucket.start } else { self.end_of(at) },
                    size: f64::from(self.floor.at(at) - self.floor.at(at - 1)),
                }
            })
            .collect()
    }

    /// The floor's rise since a time.
    pub(super) fn risen(&self, since: u32) -> f64 {
        f64::from(self.floor.last() - self.floor.at(self.index(since)))
    }

    /// The least in each of `parts`; `None` for one without a sample.
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

    /// Whether it falls nearly as much as it rises, between buckets.
    pub(super) fn is_restless(&self, window: &Window) -> bool {
        let (up, down) = self.ups_and_downs(window.start);
        down > up / 2.0
    }

    /// Whether hardly anything is ever given back.
    pub(super) fn is_calm(&self, start: u32) -> bool {
        let (up, down) = self.ups_and_downs(start);
        down <= up * CALM
    }

    /// The sums of the lows' rises and falls between buckets.
    fn ups_and_downs(&self, start: u32) -> (f64, f64) {
        let lows = || {
            let inside = self.buckets()[self.index(start)..].iter();
            inside.filter(|bucket| !bucket.is_hole()).map(|bucket| f64::from(bucket.low))
        };
        let (mut up, mut down) = (0.0, 0.0);
        for (before, after) in lows().zip(lows().skip(1)) {
            up += f64::max(after - before, 0.0);
            down += f64::max(before - after, 0.0);
        }
        (up, down)
    }

    /// Until when the floor has not risen at all.
    pub(super) fn first_rise(&self) -> u32 {
        let first = (1..self.floor.len).find(|at| self.floor.at(*at) > self.floor.at(0));
        first.map_or(0, |at| self.buckets()[at - 1].start)
    }

    /// When the last bucket began: what rises within it is not known yet.
    pub(super) fn last_start(&self) -> u32 {
        self.buckets().last().map_or(0, |last| last.start)
    }
}
