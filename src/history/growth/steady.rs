//! Detects steady growth in a row, follows it, and detects its end. [`super::window`] defines which windows show
//! steady growth.

use super::series::{Bucket, GrowthSeries, held_at};
use super::view::{Trend, View};
use super::window::{EVEN, KEEP, START};
use super::{BUCKET_SECONDS, LEAST_RISE, LONGEST_SECONDS, SHORTEST_SECONDS, UNIT};
use crate::model::Time;

/// Minimum growth, as a multiple of the mean depth of the valleys that samples can miss.
const MISSED_VALLEYS: f64 = 1.5;
/// Time, in seconds since the last window that passed, for which growth that slows down is considered to continue.
const SLOW_FOR_SECONDS: u32 = 90;
/// Replaces [`SLOW_FOR_SECONDS`] for irregular growth, whose rises can be rare by chance.
const SLOW_BY_CHANCE_SECONDS: u32 = 300;

struct GrowthCandidate {
    since: u32,
    trend: Trend,
    /// Seconds for which windows must pass before growth is reported. This excludes memory that jumps up and down,
    /// which resembles growth only briefly.
    probation: u32,
}

#[derive(Clone, Debug)]
pub(super) struct GrowthDetector {
    pub(super) series: GrowthSeries,
    judge_at: u32,
    passes_since: Option<u32>,
    pub(super) steady: Option<Steady>,
}

impl GrowthDetector {
    pub(super) fn new(series: GrowthSeries) -> Self {
        Self { series, judge_at: 0, passes_since: None, steady: None }
    }

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
                    let steady = Steady::new(&self.series, passing.since, passing.trend);
                    // A window can pass although its growth has already stopped.
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

    fn forget(&mut self) {
        (self.steady, self.passes_since) = (None, None);
    }

    fn passing(&self) -> Option<GrowthCandidate> {
        let view = View::new(&self.series);
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
        // Put memory on probation if it falls by more than half as much as it rises.
        let (up, down) = view.ups_and_downs(window.start);
        let probation = if down > up / 2.0 { (window.end - window.start) / 12 } else { 0 };
        Some(GrowthCandidate { since, trend, probation })
    }

    /// Returns whether growth continues although no window passes, because of a peak or a pause.
    fn may_last(&self, steady: &Steady) -> bool {
        if steady.has_stopped() {
            // For growth that has stopped, `Steady::is_history` decides when it ends.
            return true;
        }
        let passed = self.series.now - steady.passed_at;
        let grace = ((self.series.now - steady.since) / 12).clamp(300, 600);
        let view = View::new(&self.series);
        let (since, until) = (steady.since, steady.rose_at());
        let is_even = view.unevenness(since, until) < EVEN;
        let slow_for = if is_even { SLOW_FOR_SECONDS } else { SLOW_BY_CHANCE_SECONDS };
        passed < slow_for || passed <= grace && !view.slows(since, until, &KEEP.slower)
    }
}

// A long window still passes after the growth in it has stopped. [`Steady`] therefore records when the highest value
// last rose and, to ignore short peaks, when the highest value that was held for a few minutes last rose. Variation
// below these values is not a rise. The longest earlier pause determines how long growth can pause.

/// Growth without earlier pauses has stopped after this many seconds without a rise.
const QUIET_SECONDS: u32 = 300;
/// Time, in seconds since the last rise, for which stopped growth is reported. The time is longer if earlier pauses
/// were longer.
const TOLD_SECONDS: u32 = 2700;
/// The longest usual pause is the longest earlier pause, multiplied by this factor, plus one minute.
const PATIENCE: f64 = 1.5;
/// Minimum size of a rise, as a share of the rise expected from the rate.
const LEAST_SHARE: f64 = 0.15;
/// Replaces [`LEAST_SHARE`] after growth has stopped.
const LEAST_SHARE_ANEW: f64 = 0.6;
/// After growth has stopped, the expected rise is computed over at most this many seconds.
const MOST_SECONDS_ANEW: u32 = 600;
/// Minimum size of a rise in any case: 1 MiB.
const LEAST_UNITS: f64 = (1 << 20) as f64 / UNIT as f64;
/// Time, in seconds, for which a value must be held. Shorter peaks are ignored.
const HELD_SECONDS: u32 = 150;
/// Length, in seconds, of the two periods that are compared to decide whether memory that goes up and down has
/// stopped growing.
const STALL_SECONDS: u32 = 280;
/// Minimum rise of the lows from the first period to the second, as a share of the rise expected from the rate.
const STALL_SHARE: f64 = 0.4;
/// Minimum rise of the mean of lows and highs, as a share of the expected rise. Random variation affects this mean
/// less than the lows.
const STALL_SHARE_OF_MEAN: f64 = 0.25;
/// Growth ends only if at least this share of it is freed.
const CAME_BACK: f64 = 0.1;
/// Growth ends only if memory falls below the level held for [`LEVEL_SECONDS`] by at least this share of the growth.
const CAME_BACK_BENEATH: f64 = 0.02;
/// Time, in seconds, for which a level must be held. The evaluation phase of a training run is shorter, so memory at
/// its end does not fall below the level.
const LEVEL_SECONDS: u32 = 600;
/// Growth ends only with a fall that is at least this many times as deep as any earlier fall.
const MORE_THAN_EVER: f64 = 2.0;

/// When a value last rose, and the longest time between two of its rises.
#[derive(Clone, Copy, Debug)]
struct Rises {
    last: u32,
    longest_pause: u32,
}

impl Rises {
    fn rise(&mut self, bucket: &Bucket, end: u32) {
        self.longest_pause = self.longest_pause.max(bucket.start.saturating_sub(self.last));
        // In a bucket with constant memory, the rise was at the start. In any other bucket, it can have been as late
        // as the end.
        self.last = if bucket.is_level() { bucket.start } else { end };
    }
}

/// Steady growth, followed from sample to sample because old buckets are too wide to show when a value rose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    pub(super) since: u32,
    passed_at: u32,
    pub(super) trend: Trend,
    at: u32,
    /// Rises of `high` or `held`.
    either: Rises,
    /// Rises of `held` alone.
    held_alone: Rises,
    /// The highest value so far, and the highest value that was held for [`HELD_SECONDS`].
    high: u32,
    held: u32,
    /// Values of `high` and `held` at the last rise.
    before: (u32, u32),
    held_before: u32,
    /// The highest value held for [`LEVEL_SECONDS`], which is the level below the peaks.
    level: u32,
    deepest_fall: u32,
    stopped: Option<Stop>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    at: u32,
    rose_at: u32,
}

impl Steady {
    pub(super) fn new(series: &GrowthSeries, since: u32, trend: Trend) -> Self {
        let first = series.buckets.partition_point(|it| it.start <= since).saturating_sub(1);
        let start = series.buckets[first].low;
        let mut steady = Self {
            since,
            passed_at: series.now,
            trend,
            at: since,
            either: Rises { last: since, longest_pause: 0 },
            held_alone: Rises { last: since, longest_pause: 0 },
            high: start,
            held: start,
            before: (start, start),
            held_before: start,
            level: start,
            deepest_fall: 0,
            stopped: None,
        };
        steady.follow(series);
        steady
    }

    pub(super) fn follow(&mut self, series: &GrowthSeries) {
        let rate = self.trend.bytes_per_second / UNIT as f64;
        let (share, most) = match self.stopped {
            // Growth that resumes does not make up for a long pause.
            Some(_) => (LEAST_SHARE_ANEW, MOST_SECONDS_ANEW),
            None => (LEAST_SHARE, u32::MAX),
        };
        let ends = series.buckets.iter().skip(1).map(|next| next.start).chain([series.now]);
        let new = ends.enumerate().skip_while(|(_, end)| *end <= self.at);
        for (at, end) in new {
            let bucket = &series.buckets[at];
            self.high = self.high.max(bucket.high);
            self.held = self.held.max(held_at(&series.buckets[..=at], end, HELD_SECONDS));
            self.level = self.level.max(held_at(&series.buckets[..=at], end, LEVEL_SECONDS));
            self.deepest_fall = self.deepest_fall.max(self.level.saturating_sub(bucket.low));
            let is_rise = |by: u32, since: u32| {
                let meanwhile = f64::from(end.saturating_sub(since).min(most));
                f64::from(by) >= LEAST_UNITS.max(share * rate * meanwhile)
            };
            let by = (self.high - self.before.0).max(self.held - self.before.1);
            if is_rise(by, self.either.last) {
                self.either.rise(bucket, end);
                self.before = (self.high, self.held);
            }
            if is_rise(self.held - self.held_before, self.held_alone.last) {
                self.held_alone.rise(bucket, end);
                self.held_before = self.held;
            }
        }
        self.at = series.now;
        // Growth that has stopped resumes only if a window passes.
        let passes = self.passed_at == self.at;
        let rose_at = if self.is_still() {
            Some(self.either.last)
        } else if self.stalls(series, rate) {
            Some(self.either.last.min(self.at.saturating_sub(STALL_SECONDS)))
        } else {
            self.stopped.filter(|_| !passes).map(|stop| stop.rose_at)
        };
        self.stopped = rose_at.map(|rose_at| self.stopped.unwrap_or(Stop { at: self.at, rose_at }));
        let rose_at = self.stopped.map_or(self.either.last, |stop| stop.rose_at);
        self.trend.rising_seconds = f64::from(self.either.last.saturating_sub(self.since));
        self.trend.quiet_seconds = f64::from(self.at.saturating_sub(rose_at));
        self.trend.longest_pause_seconds = f64::from(self.either.longest_pause);
    }

    /// Returns whether enough of the growth was freed to end it. The end of a peak is not enough, because memory then
    /// does not fall below the level.
    fn came_back(&self, sample: &Bucket) -> bool {
        let deepest = f64::from(self.deepest_fall);
        let grown = self.trend.grown_bytes as f64 / UNIT as f64;
        let may_go = (CAME_BACK * grown + 0.75 * deepest).max(MORE_THAN_EVER * deepest);
        let beneath_peaks = f64::from(self.level) - CAME_BACK_BENEATH * grown;
        f64::from(sample.low) < beneath_peaks.min(f64::from(self.high) - may_go)
    }

    fn rose_at(&self) -> u32 {
        self.either.last
    }

    /// Returns for how many seconds growth can pause, judging by its earlier pauses.
    fn usual_pause(&self) -> u32 {
        (PATIENCE * f64::from(self.either.longest_pause) + 60.0) as u32
    }

    /// Returns whether growth has paused for longer than usual or, if it has already stopped, whether it has not
    /// risen since.
    fn is_still(&self) -> bool {
        match self.stopped {
            Some(stop) => self.either.last <= stop.at,
            None => {
                self.at.saturating_sub(self.either.last) >= QUIET_SECONDS.max(self.usual_pause())
            }
        }
    }

    /// Returns whether memory that goes up and down stays at its level. Peaks alone cannot show this: long after
    /// growth has stopped, a peak of a sawtooth or of noise can exceed all earlier ones by chance.
    fn stalls(&self, series: &GrowthSeries, rate: f64) -> bool {
        let pause = self.either.longest_pause.min(self.held_alone.longest_pause);
        let span = STALL_SECONDS.max(pause * 3 / 2);
        let now = series.now;
        let (Some(middle), Some(from)) =
            (now.checked_sub(span), now.checked_sub(span.saturating_mul(2)))
        else {
            return false;
        };
        if from < self.since {
            return false;
        }
        let mut lows = [u32::MAX; 2];
        // Sum and number of the buckets' midpoints between low and high, for each of the two periods.
        let mut middles = [(0.0, 0.0); 2];
        let mut end = now;
        for bucket in series.buckets.iter().rev() {
            if end <= from {
                break;
            }
            for (part, is_in) in [bucket.start < middle, end > middle].into_iter().enumerate() {
                if is_in {
                    lows[part] = lows[part].min(bucket.low);
                    let (sum, count) = &mut middles[part];
                    *sum += f64::midpoint(bucket.low.into(), bucket.high.into());
                    *count += 1.0;
                }
            }
            end = bucket.start;
        }
        let expected = rate * f64::from(span);
        let [before, lately] = middles.map(|(sum, count)| sum / f64::max(count, 1.0));
        !lows.contains(&u32::MAX)
            && f64::from(lows[1]) - f64::from(lows[0]) < STALL_SHARE * expected
            && lately - before < STALL_SHARE_OF_MEAN * expected
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    pub(super) fn is_history(&self) -> bool {
        self.at.saturating_sub(self.either.last) >= TOLD_SECONDS.max(self.usual_pause())
    }
}
