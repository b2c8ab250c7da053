//! Whether growth leaves the band that memory moved in before: what only comes back to where it was takes
//! nothing anew, and neither does what wanders up as far as it wandered before.

use super::view::{SLOTS, View};

/// The highs rise by this share of the floor's rate.
const CEILING_SHARE: f64 = 0.3;
/// Lows that went up and down by more than this share of the growth before do so again.
const WANDERED_SHARE: f64 = 0.5;
/// The lows of so many parts of the window, which are longer than most teeth,
const PARTS: usize = SLOTS / 2;
/// stray from a line through them by this share of the growth, as the root of the mean square.
const STRAYS: f64 = 0.07;

impl View<'_> {
    /// Whether it held as much as now, for minutes, before it grew: then it takes nothing anew.
    pub(super) fn is_in_its_band(&self, start: u32) -> bool {
        let mut before = self.buckets().iter().take_while(|bucket| bucket.start <= start);
        before.any(|bucket| bucket.held >= self.floor.last())
    }

    /// Whether it leaves the band that it moved in: its highs rise, too.
    pub(super) fn leaves_its_band(&self, start: u32, end: u32, counted: f64) -> bool {
        self.ceiling_rises(start, end, counted) >= CEILING_SHARE
    }

    /// Whether it goes up as what comes and goes by chance does now and then: it went up and down as far before,
    /// or does not keep to a line.
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

    /// How fast the highs of the twelfths rise, as a share of the floor's mean rate. What moves within a band
    /// comes to its top no higher than before, and fills the band at most.
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

    /// The most in each twelfth of a stretch; `None` where nothing was seen.
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
