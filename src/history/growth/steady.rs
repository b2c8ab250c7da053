//! Watches a row for steady growth: when it is found, how it is followed, and when it is over.
//!
//! [`super::window`] defines steady growth in a window, [`super::halt`] its end.

use super::halt::Steady;
use super::scale::{BUCKET_SECONDS, LEAST_RISE, LONGEST_SECONDS, SHORTEST_SECONDS};
use super::series::{Bucket, GrowthSeries};
use super::trend::Trend;
use super::view::View;
use super::window::{EVEN, KEEP, START};
use crate::model::Time;

/// The least growth, as a multiple of what the samples miss of a valley's depth on average.
const MISSED_VALLEYS: f64 = 1.5;
/// For how long, in seconds, growth has to slow down before it counts as slowing.
const SLOW_FOR_SECONDS: u32 = 90;
/// The same for growth by chance, whose rises are rarer by chance.
const SLOW_BY_CHANCE_SECONDS: u32 = 300;

/// A window that passes now.
struct Passing {
    since: u32,
    trend: Trend,
    /// For how long, in seconds, it has to pass: memory that jumps up and down resembles growth now and then,
    /// but not for long.
    probation: u32,
}

/// A row's series, and the last result.
#[derive(Clone, Debug)]
pub(super) struct GrowthDetector {
    pub(super) series: GrowthSeries,
    /// When the next evaluation is due.
    judge_at: u32,
    /// Since when some window has passed.
    passes_since: Option<u32>,
    pub(super) steady: Option<Steady>,
}

impl GrowthDetector {
    pub(super) fn new(series: GrowthSeries) -> Self {
        Self { series, judge_at: 0, passes_since: None, steady: None }
    }

    /// Takes in a sample, and evaluates what is due.
    pub(super) fn observe(&mut self, sample: Bucket, time: Time) {
        self.series.observe(sample, time);
        if self.steady.is_some_and(|steady| steady.came_back(&sample)) {
            self.forget();
        }
        if self.series.now >= self.judge_at {
            self.judge_at = self.series.now.saturating_add(BUCKET_SECONDS);
            self.judge();
        }
    }

    fn judge(&mut self) {
        match self.passing() {
            None => {
                self.passes_since = None;
                self.steady = self.steady.filter(|steady| self.may_last(steady));
            }
            Some(passing) => {
                let passes_since = *self.passes_since.get_or_insert(self.series.now);
                if let Some(steady) = &mut self.steady {
                    steady.passed_at = self.series.now;
                    if !steady.has_stopped() {
                        let since = steady.trend.since;
                        steady.trend = Trend { since, ..passing.trend };
                    }
                } else if self.series.now - passes_since >= passing.probation {
                    let steady = Steady::of(&self.series, passing.since, passing.trend);
                    // A window may still be full of growth that is over.
                    self.steady = Some(steady).filter(|steady| !steady.has_stopped());
                }
            }
        }
        if let Some(steady) = &mut self.steady {
            steady.follow(&self.series);
            if steady.is_history() {
                self.forget();
            }
        }
    }

    /// Growth that has ended.
    fn forget(&mut self) {
        (self.steady, self.passes_since) = (None, None);
    }

    /// The longest window that passes.
    fn passing(&self) -> Option<Passing> {
        let view = View::of(&self.series);
        if view.risen(0) < LEAST_RISE || self.series.now < SHORTEST_SECONDS {
            return None;
        }
        let thresholds = if self.steady.is_some() { &KEEP } else { &START };
        let mut length = self.series.now.min(LONGEST_SECONDS);
        let window = loop {
            if let Some(window) = view.judge(self.series.now - length, thresholds)
                && window.counted >= MISSED_VALLEYS * f64::from(self.series.grain.mean())
            {
                break window;
            }
            length = length / 9 * 8;
            if length < SHORTEST_SECONDS {
                return None;
            }
        };
        let since = match self.steady {
            Some(steady) => steady.since,
            None => view.beginning(&window),
        };
        let trend = view.trend(since, &window);
        if view.slows(since, window.end, &thresholds.slower) {
            return None;
        }
        // It falls nearly as much as it rises.
        let (up, down) = view.ups_and_downs(window.start);
        let probation = if down > up / 2.0 { (window.end - window.start) / 12 } else { 0 };
        Some(Passing { since, trend, probation })
    }

    /// Whether growth that does not pass now still counts: a peak or a pause ends nothing.
    fn may_last(&self, steady: &Steady) -> bool {
        if steady.has_stopped() {
            // Its pauses decide for how long it is reported.
            return true;
        }
        let passed = self.series.now - steady.passed_at;
        let grace = ((self.series.now - steady.since) / 12).clamp(300, 600);
        let view = View::of(&self.series);
        let (since, until) = (steady.since, steady.rose_at());
        let is_even = view.unevenness(since, until) < EVEN;
        let slow_for = if is_even { SLOW_FOR_SECONDS } else { SLOW_BY_CHANCE_SECONDS };
        passed < slow_for || passed <= grace && !view.slows(since, until, &KEEP.slower)
    }
}
