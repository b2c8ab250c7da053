//! Whether growth leaves the band that memory moved in before: returning to an earlier height is nothing new,
//! and neither is wandering up as far as it wandered before.

use super::view::{SLOTS, View};

/// The least slope of the highs, as a share of the floor's slope.
const CEILING_SHARE: f64 = 0.3;
/// The share of the growth by which lows may have moved before; if more, they may do so again.
const WANDERED_SHARE: f64 = 0.5;
/// Into how many parts a window is cut to compare lows; a part is longer than most sawteeth.
const PARTS: usize = SLOTS / 2;
/// How far these lows may stray from a line through them: root mean square, as a share of the growth.
const STRAYS: f64 = 0.07;

impl View<'_> {
    /// Whether it held as much as now, for minutes, before it grew: then nothing is new.
    pub(super) fn is_in_its_band(&self, start: u32) -> bool {
        let mut before = self.buckets().iter().take_while(|bucket| bucket.start <= start);
        before.any(|bucket| bucket.held >= self.floor.last())
    }

    /// Whether its highs rise too.
    pub(super) fn leaves_its_band(&self, start: u32, end: u32, counted: f64) -> bool {
        self.ceiling_rises(start, end, counted) >= CEILING_SHARE
    }

    /// Whether it may have risen by chance: it moved up and down as far before, or does not keep to a line.
    pub(super) fn wanders(&self, start: u32, end: u32, counted: f64) -> bool {
        let before = &self.buckets()[..self.index(start)];
        let lows = || before.iter().filter(|it| !it.is_hole()).map(|it| it.low);
        let wandered = lows().max().unwrap_or(0) - lows().min().unwrap_or(0);
        f64::from(wandered) > WANDERED_SHARE * counted || self.strays(start, end) > STRAYS * counted
    }

    /// How far the lows of the parts stray from a line through them.
    fn strays(&self, start: u32, end: u32) -> f64 {
        let all = self.lows(start, end, PARTS);
        let lows = || (all.iter().enumerate()).filter_map(|(at, low)| Some((at as f64, (*low)?)));
        let count = lows().count() as f64;
        if count < 3.0 {
            return f64::INFINITY;
        }
        let (at, low) = lows().fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let (middle, mean) = (at / count, low / count);
        let (mut squares, mut product) = (0.0, 0.0);
        for (at, low) in lows() {
            squares += (at - middle).powi(2);
            product += (at - middle) * (low - mean);
        }
        let slope = product / squares;
        let rest: f64 = lows().map(|(at, low)| (low - mean - slope * (at - middle)).powi(2)).sum();
        (rest / (count - 2.0)).sqrt()
    }

    /// The slope of the twelfths' highs, as a share of the floor's mean rate. Memory that fills a band reaches its top
    /// no higher than before.
    pub(super) fn ceiling_rises(&self, start: u32, end: u32, counted: f64) -> f64 {
        let highs = self.highs(start, end);
        let mut slopes = Vec::with_capacity(SLOTS * SLOTS / 2);
        for from in 0..SLOTS {
            for to in from + SLOTS / 3..SLOTS {
                if let (Some(before), Some(after)) = (highs[from], highs[to]) {
                    slopes.push((after - before) / (to - from) as f64);
                }
            }
        }
        slopes.sort_unstable_by(f64::total_cmp);
        let median = slopes.get(slopes.len() / 2).copied();
        median.unwrap_or_default() * SLOTS as f64 / counted
    }

    /// The most in each twelfth; `None` if it has no sample.
    fn highs(&self, start: u32, end: u32) -> [Option<f64>; SLOTS] {
        let mut highs = [None; SLOTS];
        let length = u64::from(end - start).max(1);
        for at in self.index(start)..self.floor.len {
            let bucket = &self.buckets()[at];
            if bucket.start >= end {
                break;
            }
            if bucket.is_hole() {
                continue;
            }
            let slot = |time: u32| {
                let since = u64::from(time.clamp(start, end) - start);
                (since * SLOTS as u64 / length).min(SLOTS as u64 - 1) as usize
            };
            let until = self.end_of(at).saturating_sub(1).max(bucket.start);
            for high in &mut highs[slot(bucket.start)..=slot(until)] {
                *high = Some(f64::from(bucket.high).max(high.unwrap_or(0.0)));
            }
        }
        highs
    }
}
