//! Whether growth leaves the band that memory moved in before: what only comes back to where it was takes
//! nothing anew, and neither does what wanders up as far as it wandered before.

use super::halt::HELD_SECONDS;
use super::series::held_at;
use super::view::{SLOTS, View};

/// Of its growth in a third of the window, so much has to be above all that was held before.
const NEW_SHARE: f64 = 0.3;

/// Lows that went up and down by more than this share of the growth before do so again.
const WANDERED_SHARE: f64 = 0.5;
/// The lows of so many parts of the window stray from a line through them by no more than this share of the
/// growth, as the root of the mean square: of short parts, where noise moves them, or of parts that are longer
/// than most teeth. Requests that come and go by chance stray in both.
const STRAYS: [(usize, f64); 2] = [(SLOTS, 0.12), (SLOTS / 2, 0.07)];

impl View<'_> {
    /// Whether it held as much as now, for minutes, before it grew: then it takes nothing anew.
    pub(super) fn is_in_its_band(&self, start: u32) -> bool {
        let mut before = (0..self.floor.len).take_while(|at| self.end_of(*at) <= start);
        before.any(|at| self.buckets()[at].held >= self.floor.last())
    }

    /// Whether it leaves the band that it moved in. What is held for minutes has to be higher lately than
    /// ever before, not just than at first, or it has to peak higher; and where its peaks are no higher
    /// than in the rest of the window, they rise on the whole.
    pub(super) fn leaves_its_band(&self, start: u32, end: u32, counted: f64) -> bool {
        let last_third = end - (end - start) / 3;
        // Of what is held and of the highest: before the window, in it, and lately.
        let mut most = [[0u32; 3]; 2];
        for (at, bucket) in self.buckets().iter().enumerate() {
            if bucket.is_hole() || bucket.start >= end {
                continue;
            }
            let part = usize::from(bucket.start >= start) + usize::from(bucket.start >= last_third);
            let held = held_at(&self.buckets()[..=at], self.end_of(at), HELD_SECONDS);
            most[0][part] = most[0][part].max(held);
            most[1][part] = most[1][part].max(bucket.high);
        }
        let exceeds = |lately: u32, before: u32| {
            f64::from(lately) >= f64::from(before) + NEW_SHARE * counted / 3.0
        };
        let [held, high] = most;
        let is_new = |of: [u32; 3]| exceeds(of[2], of[0].max(of[1]));
        (is_new(held) || is_new(high))
            && (exceeds(high[2], high[1]) || self.ceiling_rises(start, end, counted) >= NEW_SHARE)
    }

    /// Whether it goes up as what comes and goes by chance does now and then: it went up and down as far before,
    /// or does not keep to a line.
    pub(super) fn wanders(&self, start: u32, end: u32, counted: f64) -> bool {
        let before = &self.buckets()[..self.index(start)];
        let lows = || before.iter().filter(|it| !it.is_hole()).map(|it| it.low);
        let wandered = lows().max().unwrap_or(0) - lows().min().unwrap_or(0);
        f64::from(wandered) > WANDERED_SHARE * counted
            || STRAYS.iter().all(|(parts, most)| self.strays(start, end, *parts) > most * counted)
    }

    /// How far the lows of so many parts stray from a line through them.
    fn strays(&self, start: u32, end: u32, parts: usize) -> f64 {
        let all = self.lows(start, end, parts);
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
