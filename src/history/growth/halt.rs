//! Whether growth that was found has stopped: when memory last rose, and what would be giving it back.
//!
//! The thresholds of [`super::window`] ask whether a window has grown; growth that ended a while ago still
//! fills most of a long one. This asks when the highest last rose, and the highest of what was held for
//! some minutes: peaks come and go, and what is below them tells. What moves within a band that was filled
//! before does not rise. How long growth may pause without having stopped is told by its own pauses.

use super::scale::UNIT;
use super::series::{Bucket, GrowthSeries, held_at};

/// Growth that never paused has stopped after five minutes.
const QUIET_SECONDS: u32 = 300;
/// What stopped is told for so long, or as long as it may pause.
const TOLD_SECONDS: u32 = 2700;
/// A pause may be so many times as long as the longest before.
const PATIENCE: f64 = 1.5;
/// A rise is no less than this share of what the rate would have brought meanwhile,
const LEAST_SHARE: f64 = 0.15;
/// where it had stopped this one,
const LEAST_SHARE_ANEW: f64 = 0.6;
/// in so many seconds at most,
const MOST_SECONDS_ANEW: u32 = 600;
/// and in any case 1 MiB.
const LEAST_UNITS: f64 = (1 << 20) as f64 / UNIT as f64;
/// Peaks shorter than this do not hide what is below them.
pub(super) const HELD_SECONDS: u32 = 150;
/// What goes up and down has stopped where its lows are not above those of so long before,
const STALL_SECONDS: u32 = 280;
/// by this share of what the rate would have brought,
const STALL_SHARE: f64 = 0.4;
/// nor the mean of what is between lows and highs, which chance moves less, by this one.
const STALL_SHARE_OF_MEAN: f64 = 0.25;
/// Growth has ended when this share of it came back,
const CAME_BACK: f64 = 0.1;
/// and more than so many times what ever came back before.
const MORE_THAN_EVER: f64 = 2.0;

/// When something rose, and the longest time between two rises.
#[derive(Clone, Copy, Debug)]
struct Rises {
    last: u32,
    longest_pause: u32,
}

impl Rises {
    fn rise(&mut self, bucket: &Bucket, end: u32) {
        let pause = bucket.start.saturating_sub(self.last);
        self.longest_pause = self.longest_pause.max(pause);
        // A plateau rose at its start, anything else perhaps up to its end.
        self.last = if bucket.low == bucket.high { bucket.start } else { end };
    }
}

/// How growth goes on. It is followed while it does: old buckets are too wide to tell when something rose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Up to when it was followed.
    at: u32,
    /// Of the highest, or of the highest that was held for some minutes.
    either: Rises,
    /// Of the highest that was held for some minutes.
    held_alone: Rises,
    /// The highest so far, and the highest that was held for some minutes.
    high: u32,
    held: u32,
    /// What these were when something rose last.
    before: (u32, u32),
    held_before: u32,
    /// How far it ever came down from its highest.
    deepest_fall: u32,
    /// Since when it grows.
    since: u32,
    /// Where it is called stopped.
    stopped: Option<Stop>,
}

/// A stop of growth.
#[derive(Clone, Copy, Debug)]
struct Stop {
    /// When it was called so.
    at: u32,
    /// When something rose last, but for chance.
    rose_at: u32,
}

impl Pace {
    /// Follows growth from `since` on, at so many units a second.
    pub(super) fn of(series: &GrowthSeries, since: u32, rate: f64) -> Self {
        let first =
            series.buckets.partition_point(|bucket| bucket.start <= since).saturating_sub(1);
        let bucket = &series.buckets[first];
        let start = if bucket.is_hole() { 0 } else { bucket.low };
        let mut pace = Self {
            at: since,
            either: Rises { last: since, longest_pause: 0 },
            held_alone: Rises { last: since, longest_pause: 0 },
            high: start,
            held: start,
            before: (start, start),
            held_before: start,
            deepest_fall: 0,
            since,
            stopped: None,
        };
        pace.follow(series, rate, true);
        pace
    }

    /// Takes in what came since; `passes` where a window of it does just now, without which nothing begins anew.
    pub(super) fn follow(&mut self, series: &GrowthSeries, rate: f64, passes: bool) {
        let end_of = |at: usize| {
            let next = series.buckets.get(at + 1);
            next.map_or(series.now, |next| next.start)
        };
        let buckets = series.buckets.len();
        let first = (0..buckets).rev().take_while(|at| end_of(*at) > self.at).last();
        let (share, most) = match self.stopped {
            // What was missed in a long pause need not be made up for.
            Some(_) => (LEAST_SHARE_ANEW, MOST_SECONDS_ANEW),
            None => (LEAST_SHARE, u32::MAX),
        };
        for at in first.unwrap_or(buckets)..buckets {
            let (bucket, end) = (&series.buckets[at], end_of(at));
            if bucket.is_hole() {
                // What rose meanwhile is not known.
                self.either.last = self.either.last.max(end);
                self.held_alone.last = self.held_alone.last.max(end);
                continue;
            }
            let until = &series.buckets[..=at];
            self.high = self.high.max(bucket.high);
            self.held = self.held.max(held_at(until, end, HELD_SECONDS));
            self.deepest_fall = self.deepest_fall.max(self.high.saturating_sub(bucket.low));
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
        let rose_at = self.either.last.min(self.at);
        let stopped = if self.is_still(self.at) {
            Some(rose_at)
        } else if self.stalls(series, rate) {
            Some(rose_at.min(self.at.saturating_sub(STALL_SECONDS)))
        } else {
            self.stopped.filter(|_| !passes).map(|stop| stop.rose_at)
        };
        self.stopped = stopped.map(|rose_at| self.stopped.unwrap_or(Stop { at: self.at, rose_at }));
    }

    /// Below this, enough of so many units that it grew by has come back to end it.
    pub(super) fn came_back_below(&self, grown: f64) -> u32 {
        let deepest = f64::from(self.deepest_fall);
        let may_go = (CAME_BACK * grown + 0.75 * deepest).max(MORE_THAN_EVER * deepest);
        self.high.saturating_sub(may_go as u32)
    }

    /// What it has to exceed to grow anew.
    pub(super) fn height(&self) -> u32 {
        self.high
    }

    /// When something rose last; where it goes up and down after it stopped, that which did not by chance.
    pub(super) fn rose_at(&self) -> u32 {
        self.stopped.map_or(self.either.last, |stop| stop.rose_at)
    }

    /// When anything rose last, by chance or not.
    pub(super) fn last_rise(&self) -> u32 {
        self.either.last
    }

    /// The longest time between two rises.
    pub(super) fn longest_pause(&self) -> u32 {
        self.either.longest_pause
    }

    /// How long it may pause, for how it did.
    fn usual_pause(&self) -> u32 {
        (PATIENCE * f64::from(self.either.longest_pause) + 60.0) as u32
    }

    /// Whether nothing has risen for too long to be a pause; then it goes on only when something rises again.
    fn is_still(&self, now: u32) -> bool {
        match self.stopped {
            Some(stop) => self.either.last <= stop.at,
            None => now.saturating_sub(self.either.last) >= QUIET_SECONDS.max(self.usual_pause()),
        }
    }

    /// Whether what goes up and down does so where it did before: peaks of teeth and noise exceed others by chance
    /// long after growth has stopped.
    fn stalls(&self, series: &GrowthSeries, rate: f64) -> bool {
        let pause = self.either.longest_pause.min(self.held_alone.longest_pause);
        let span = STALL_SECONDS.max(pause / 4 * 5);
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
        // Sum and count of the middles between low and high.
        let mut middles = [(0.0, 0.0); 2];
        let mut end = now;
        for bucket in series.buckets.iter().rev() {
            if end <= from {
                break;
            }
            for (part, is_in) in [bucket.start < middle, end > middle].into_iter().enumerate() {
                if is_in && !bucket.is_hole() {
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

    /// Whether it stopped so long ago that there is no more to say.
    pub(super) fn is_history(&self, now: u32) -> bool {
        now.saturating_sub(self.either.last) >= TOLD_SECONDS.max(self.usual_pause())
    }
}
