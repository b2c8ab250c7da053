//! Whether growth leaves the band that memory moved in before: returning to an earlier height is nothing new,
//! and neither is wandering up as far as it wandered before.

use super::view::{Line, SLOTS, View, slopes};

/// The least share of growth that is above what was held before.
const NEW_SHARE: f64 = 0.8;
/// The least slope of the highs, as a share of the floor's slope.
const CEILING_SHARE: f64 = 0.3;
/// The share of the growth by which lows may have moved before; if more, they may do so again.
const WANDERED_SHARE: f64 = 0.5;
/// Into how many parts a window is cut to compare lows; a part is longer than most sawteeth.
const PARTS: usize = SLOTS / 2;
/// How far these lows may stray from a line through them: root mean square, as a share of the growth.
const STRAYS: f64 = 0.07;

impl View<'_> {
    /// Whether little of its growth is above what it held before for minutes: then nothing is new.
    pub(super) fn is_in_its_band(&self, start: u32) -> bool {
        let before = self.buckets().iter().take_while(|bucket| bucket.start <= start);
        let held = before.map(|bucket| bucket.held).max().unwrap_or_default();
        let height = self.floor().last().copied().unwrap_or_default();
        let above = f64::from(height.saturating_sub(held));
        above < NEW_SHARE * f64::from(self.risen(start))
    }

    /// Whether its highs rise too.
    pub(super) fn leaves_its_band(&self, start: u32, end: u32, counted: f64) -> bool {
        self.ceiling_rises(start, end, counted) >= CEILING_SHARE
    }

    /// Whether it may have risen by chance: it moved up and down as far before, or does not keep to a line.
    pub(super) fn wanders(&self, start: u32, end: u32, counted: f64) -> bool {
        let before = &self.buckets()[..self.index(start)];
        let lows = || before.iter().map(|it| it.low);
        let wandered = lows().max().unwrap_or(0) - lows().min().unwrap_or(0);
        f64::from(wandered) > WANDERED_SHARE * counted || self.strays(start, end) > STRAYS * counted
    }

    /// How far the lows of the parts stray from a line through them.
    fn strays(&self, start: u32, end: u32) -> f64 {
        let parts = self.extremes::<PARTS>(start, end);
        let lows = (0..PARTS).filter_map(|at| Some((at as f64, parts[at]?.0)));
        Line::through(&lows.collect::<Vec<_>>()).map_or(f64::INFINITY, |line| line.deviation)
    }

    /// The slope of the twelfths' highs, as a share of the floor's mean rate. Memory that fills a band reaches its top
    /// no higher than before.
    pub(super) fn ceiling_rises(&self, start: u32, end: u32, counted: f64) -> f64 {
        let highs = self.extremes::<SLOTS>(start, end).map(|it| Some(it?.1));
        let slopes = slopes(&highs);
        let median = slopes.get(slopes.len() / 2).copied();
        median.unwrap_or_default() * SLOTS as f64 / counted
    }
}
