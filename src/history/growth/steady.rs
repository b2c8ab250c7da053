//! Watches a row for steady growth: when it is found, how it is followed, and when it is over.
//!
//! [`super::window`] defines steady growth in a window, [`super::halt`] its end.

use super::halt::Pace;
use super::scale::{BUCKET_SECONDS, LEAST_RISE, LONGEST_SECONDS, SHORTEST_SECONDS, UNIT};
use super::series::{Bucket, Floor, GrowthSeries};
use super::trend::Trend;
use super::view::View;
use super::window::{EVEN, KEEP, START};

/// For how long, in seconds, growth has to slow down before it counts as slowing.
const SLOW_FOR_SECONDS: u32 = 90;
/// The same for growth by chance, whose rises are rarer by chance.
const SLOW_BY_CHANCE_SECONDS: u32 = 300;

/// Steady growth, as last evaluated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    pub(super) since: u32,
    /// When it last passed.
    pub(super) held_at: u32,
    pub(super) trend: Trend,
    pub(super) pace: Pace,
    /// Below this level its growth has been given back.
    pub(super) came_back_below: u32,
}

/// A window that passes now.
struct Passing {
    since: u32,
    trend: Trend,
    /// For how long, in seconds, it has to pass: memory that jumps up and down resembles growth now and then,
    /// but not for long.
    probation: u32,
}

fn units(bytes: f64) -> f64 {
    bytes / UNIT as f64
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
    /// When growth ended, and at what height.
    ended: Option<(u32, u32)>,
}

impl GrowthDetector {
    pub(super) fn new(series: GrowthSeries) -> Self {
        Self { series, judge_at: 0, passes_since: None, steady: None, ended: None }
    }

    /// Takes in a sample, after a gap since `hole` if any, and evaluates what is due.
    pub(super) fn observe(&mut self, sample: Bucket, hole: Option<u32>) {
        let is_closed = self.series.observe(sample, hole);
        self.look_back(&sample);
        // On a plateau growth can end but not begin, once it certainly is one.
        let is_watched = self.steady.is_some() || self.series.is_young_plateau();
        if is_closed || (is_watched && self.series.now >= self.judge_at) {
            self.judge_at = self.series.now.saturating_add(BUCKET_SECONDS);
            self.judge();
        }
    }

    fn judge(&mut self) {
        match self.passing() {
            None => {
                self.passes_since = None;
                if let Some(steady) = self.steady
                    && !self.may_last(&steady)
                {
                    self.steady = None;
                }
            }
            Some(passing) => {
                let passes_since = *self.passes_since.get_or_insert(self.series.now);
                if let Some(steady) = &mut self.steady {
                    steady.held_at = self.series.now;
                    if !steady.pace.has_stopped() {
                        steady.trend = passing.trend;
                    }
                } else if self.series.now - passes_since >= passing.probation {
                    let steady = Steady {
                        since: passing.since,
                        held_at: self.series.now,
                        trend: passing.trend,
                        pace: Pace::of(
                            &self.series,
                            passing.since,
                            units(passing.trend.bytes_per_second),
                        ),
                        came_back_below: 0,
                    };
                    // A window may still be full of growth that is over.
                    if !steady.pace.has_stopped() {
                        self.steady = Some(steady);
                    }
                }
            }
        }
        self.follow();
    }

    /// Checks whether steady growth continues.
    fn follow(&mut self) {
        let Some(mut steady) = self.steady else {
            return;
        };
        let grown = units(steady.trend.grown_bytes as f64);
        let passes = steady.held_at == self.series.now;
        steady.pace.follow(&self.series, units(steady.trend.bytes_per_second), passes);
        steady.came_back_below = steady.pace.came_back_below(grown);
        let rose_at = steady.pace.last_rise();
        let trend = &mut steady.trend;
        trend.rising_seconds = f64::from(rose_at.saturating_sub(steady.since));
        trend.quiet_seconds = f64::from(self.series.now.saturating_sub(steady.pace.rose_at()));
        trend.longest_pause_seconds = f64::from(steady.pace.longest_pause());
        self.steady = Some(steady);
        if steady.pace.is_history(self.series.now) {
            self.end(rose_at);
        }
    }

    /// Checks whether its growth has been given back.
    fn look_back(&mut self, sample: &Bucket) {
        if self.steady.is_some_and(|steady| sample.low < steady.came_back_below) {
            self.end(self.series.now);
        }
    }

    /// Forgets growth that has ended.
    fn end(&mut self, at: u32) {
        if let Some(steady) = self.steady.take() {
            self.ended = Some((at, steady.pace.height()));
            self.passes_since = None;
        }
    }

    /// The longest window that passes.
    fn passing(&self) -> Option<Passing> {
        let floor = Floor::of(&self.series.buckets);
        if floor.last() - floor.at(0) < LEAST_RISE || self.series.now < SHORTEST_SECONDS {
            return None;
        }
        let view = View { series: &self.series, floor: &floor };
        let thresholds = if self.steady.is_some() { &KEEP } else { &START };
        let mut length = self.series.now.min(LONGEST_SECONDS);
        // Earlier growth is nothing new, and what it gave back it may take again.
        if let Some((at, height)) = self.ended
            && floor.last() <= height
        {
            length = length.min(self.series.now - at);
            if length < SHORTEST_SECONDS {
                return None;
            }
        }
        let window = loop {
            if let Some(window) = view.judge(self.series.now - length, thresholds)
                && window.counted >= f64::from(self.series.grain.mean())
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
        let probation =
            if view.is_restless(&window) { (window.end - window.start) / 12 } else { 0 };
        Some(Passing { since, trend, probation })
    }

    /// Whether growth that does not pass now still counts: a peak or a pause ends nothing.
    fn may_last(&self, steady: &Steady) -> bool {
        if steady.pace.has_stopped() {
            // Its pauses decide for how long it is reported.
            return true;
        }
        let passed = self.series.now - steady.held_at;
        let grace = ((self.series.now - steady.since) / 12).clamp(300, 600);
        let floor = Floor::of(&self.series.buckets);
        let view = View { series: &self.series, floor: &floor };
        let (since, until) = (steady.since, steady.pace.last_rise());
        let is_even = view.unevenness(since, until) < EVEN;
        let slow_for = if is_even { SLOW_FOR_SECONDS } else { SLOW_BY_CHANCE_SECONDS };
        passed < slow_for || passed <= grace && !view.slows(since, until, &KEEP.slower)
    }
}
