//! Whether the floor rises steadily in a window: spread over it, to its end, and as never before.
//!
//! Pure arithmetic on a row's buckets; [`super`] decides when to ask and what follows.

use std::ops::RangeInclusive;

use super::scale::{BUCKET_SECONDS, LEAST_RISE, SHORTEST_SECONDS};
use super::slowing::Slower;
use super::view::{SLOTS, View, Window};

/// The standard deviation of twelfths, as a share of their mean, below which growth is not by chance.
pub(super) const EVEN: f64 = 0.2;
/// The ratio of falls to rises below which memory keeps to no band.
const CALM: f64 = 0.1;
/// The range of the highs' slope, as a share of the floor's, in which everything rises together.
const PARALLEL: RangeInclusive<f64> = 0.6..=1.6;

/// The conditions for a window.
pub(super) struct Thresholds {
    /// The least rise of the last third, as a share of the mean third.
    last_third: f64,
    /// The least length, in shortest windows, times the effective number of rising slots; half as much if the
    /// highs rise as fast as the floor.
    patience: f64,
    /// Growth that slows down this much is levelling off.
    pub(super) slower: Slower,
    /// Whether it was not steady just before.
    is_first: bool,
}

/// To become steady growth.
pub(super) const START: Thresholds = Thresholds {
    last_third: 0.7,
    patience: 10.0,
    slower: Slower { share: 0.75, sure: 1.3 },
    is_first: true,
};

/// To stay steady growth.
pub(super) const KEEP: Thresholds = Thresholds {
    last_third: 0.45,
    patience: 6.0,
    slower: Slower { share: 0.6, sure: 3.0 },
    is_first: false,
};

impl View<'_> {
    /// The window from `start` to now, if it passes.
    pub(super) fn judge(&self, start: u32, thresholds: &Thresholds) -> Option<Window> {
        let (end, length) = (self.series.now, self.series.now - start);
        let rises = self.capped_rises(start, end);
        let counted: f64 = rises.iter().sum();
        if counted < f64::from(LEAST_RISE) {
            return None;
        }
        let last_third = rises[SLOTS / 3 * 2..].iter().sum::<f64>() * 3.0 / counted;
        let spread = counted * counted / rises.iter().map(|rise| rise * rise).sum::<f64>();
        // The fewer slots rise, the longer the window has to be.
        let weight = f64::from(length) * spread / f64::from(SHORTEST_SECONDS);
        let is_parallel =
            || !self.is_calm(start) && PARALLEL.contains(&self.ceiling_rises(start, end, counted));
        let is_long_enough =
            weight >= thresholds.patience || weight >= thresholds.patience / 2.0 && is_parallel();
        let passes = last_third >= thresholds.last_third
            && is_long_enough
            && (!thresholds.is_first || self.is_no_high_water(start, end, counted));
        passes.then_some(Window { start, end, counted })
    }

    /// Whether hardly anything is ever given back.
    fn is_calm(&self, start: u32) -> bool {
        let (up, down) = self.ups_and_downs(start);
        down <= up * CALM
    }

    /// Whether it is no high-water mark, cache or band that fills. The first two are checked if it never comes
    /// down, the third if it does.
    fn is_no_high_water(&self, start: u32, end: u32, counted: f64) -> bool {
        if self.is_in_its_band(start) {
            false
        } else if self.is_calm(start) {
            self.unevenness(start, end) < EVEN || self.keeps_coming(start, end, counted)
        } else {
            self.leaves_its_band(start, end, counted) && !self.wanders(start, end, counted)
        }
    }

    /// When a window's growth began: not while it was still constant.
    pub(super) fn beginning(&self, window: &Window) -> u32 {
        let rise = self.rises(window.start, window.end).next();
        rise.map_or(window.start, |rise| {
            window.start.max(rise.start.saturating_sub(BUCKET_SECONDS))
        })
    }
}
