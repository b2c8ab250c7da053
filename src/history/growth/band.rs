//! Whether growth leaves the band that memory moved in before: what only comes back to where it was takes
//! nothing anew.

use super::halt::{HELD_SECONDS, held_at};
use super::window::{SLOTS, View};

/// Of its growth in a third of the window, so much has to be above all that was held before.
const NEW_SHARE: f64 = 0.3;
/// What was held for so long before is no news.
const BAND_SECONDS: u32 = 240;

impl View<'_> {
    /// Whether it held as much as now, for minutes, before it grew: then it takes nothing anew.
    pub(super) fn is_in_its_band(&self, start: u32) -> bool {
        let before = (0..self.floor.len).take_while(|at| self.end_of(*at) <= start);
        before
            .filter(|at| self.end_of(*at) >= BAND_SECONDS)
            .any(|at| {
                held_at(&self.buckets()[..=at], self.end_of(at), BAND_SECONDS) >= self.floor.last()
            })
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
