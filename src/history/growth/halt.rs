//! Whether growth that was found has stopped: when memory last rose, and what would be giving it back.
//!
//! The thresholds of [`super::window`] ask whether a window has grown; growth that ended a while ago still
//! fills most of a long one. This asks when the highest last rose, and the highest of what was held for
//! some minutes: peaks come and go, and what is below them tells. What moves within a band that was filled
//! before does not rise. How long growth may pause without having stopped is told by its own pauses.

use super::scale::UNIT;
use super::series::{Bucket, GrowthSeries, held_at};

/// Growth that never paused has stopped after five minutes.
pub(super) const QUIET_SECONDS: u32 = 300;
/// What stopped is worth a word for a while,
const WORTH_A_WORD_SECONDS: u32 = 900;
/// and for so many times as long as it might only pause: what goes on by then is the same growth,
const WORTH_A_WORD: u32 = 5;
/// but for no longer than this.
const LONGEST_WORD_SECONDS: u32 = 2700;
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
/// A rise of what is held shows later than one of peaks by as much.
const HELD_LATE_SECONDS: u32 = 90;
/// Peaks shorter than this do not hide what is below them.
pub(super) const HELD_SECONDS: u32 = 150;
/// What is held rises as often as this where only peaks are above it.
const INDICATIVE_PAUSE: u32 = 240;
/// What was held for as long as this was not only a peak, and is missed when it goes.
const KEPT_SECONDS: u32 = 300;
/// What goes up and down has stopped where neither its lows nor its highs are above those of so long before,
const STALL_SECONDS: u32 = 280;
/// by this share of what the rate would have brought,
const STALL_SHARE: f64 = 0.4;
/// by this one where these are chance,
const STALL_SHARE_OF_NOISE: f64 = 0.75;
/// as where it goes down so often in that time and the time before,
const NOISE_FALLS: usize = 6;
/// nor the mean of what is between them, which chance moves less, by this one,
const STALL_SHARE_OF_MEAN: f64 = 0.25;
/// and goes down by this share of what it goes up by.
const RESTLESS_SHARE: f64 = 0.3;
/// Growth has ended when this share of it came back,
const CAME_BACK: f64 = 0.1;
/// and more than ever before in it, by so many times;
const MORE_THAN_EVER: f64 = 2.0;
/// by only so many where it stays below that for a while: each fall of what goes up and down may be the deepest.
const MORE_THAN_EVER_FOR_LONG: f64 = 1.25;
/// That is for as long.
pub(super) const CAME_BACK_SECONDS: u32 = 150;
/// What never came down by this share before is given back for good.
const CALM_SHARE: f64 = 0.025;

/// When something rose, and how long it pauses between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rises {
    pub(super) last: u32,
    longest_pause: u32,
    /// How long it may pause for all that is known: longer where it was called stopped, and was not.
    accepted_pause: u32,
}

impl Rises {
    fn rise(&mut self, bucket: &Bucket, end: u32) {
        let pause = bucket.start.saturating_sub(self.last);
        self.longest_pause = self.longest_pause.max(pause);
        self.accepted_pause = self.accepted_pause.max(pause);
        // A plateau rose at its start, anything else perhaps up to its end.
        self.last = if bucket.low == bucket.high { bucket.start } else { end };
    }

    /// How long it may pause, for how it did.
    fn usual(&self) -> u32 {
        (PATIENCE * f64::from(self.accepted_pause) + 60.0) as u32
    }

    /// How long it may pause.
    fn patience(&self) -> u32 {
        QUIET_SECONDS.max(self.usual())
    }
}

/// How growth goes on. It is followed while it does: old buckets are too wide to tell when something rose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Up to when it was followed.
    at: u32,
    /// Of the highest, or of what is held.
    pub(super) either: Rises,
    /// Of what is held for some minutes.
    held_alone: Rises,
    /// The highest so far, and the highest that was held for some minutes.
    high: u32,
    held: u32,
    /// What these were when something rose last.
    before: (u32, u32),
    held_before: u32,
    /// What it held for longer than a peak, at its highest.
    kept: u32,
    /// How far it ever came down from its highest, and from what it held for longer than a peak.
    falls: (u32, u32),
    /// Since when it grows, and over how long it may stall without having stopped.
    since: u32,
    stall_seconds: u32,
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
        let none = Rises { last: since, longest_pause: 0, accepted_pause: 0 };
        let mut pace = Self {
            at: since,
            either: none,
            held_alone: none,
            high: start,
            held: start,
            before: (start, start),
            held_before: start,
            kept: start,
            falls: (0, 0),
            since,
            stall_seconds: STALL_SECONDS,
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
            self.kept = self.kept.max(held_at(until, end, KEPT_SECONDS));
            let fall = |from: u32, deepest: u32| deepest.max(from.saturating_sub(bucket.low));
            self.falls = (fall(self.high, self.falls.0), fall(self.kept, self.falls.1));
            let least = |since: u32| {
                let meanwhile = f64::from(end.saturating_sub(since).min(most));
                LEAST_UNITS.max(share * rate * meanwhile)
            };
            let either = (self.high - self.before.0).max(self.held - self.before.1);
            if f64::from(either) >= least(self.either.last) {
                self.either.rise(bucket, end);
                self.before = (self.high, self.held);
            }
            if f64::from(self.held - self.held_before) >= least(self.held_alone.last) {
                self.held_alone.rise(bucket, end);
                self.held_before = self.held;
            }
        }
        self.at = series.now;
        let rose_at = self.either.last.min(self.at);
        let stopped = if self.is_still(self.at) {
            Some(rose_at)
        } else if self.stalls(series, rate) {
            Some(rose_at.min(self.at.saturating_sub(self.stall_seconds)))
        } else {
            // Without a window that passes nothing begins anew.
            self.stopped.filter(|_| !passes).map(|stop| stop.rose_at)
        };
        if stopped.is_none() && self.stopped.is_some() {
            // It only paused, and may do so again.
            self.either.accepted_pause += self.either.accepted_pause / 2;
            self.held_alone.accepted_pause += self.held_alone.accepted_pause / 2;
            self.stall_seconds += self.stall_seconds / 4;
        }
        self.stopped = stopped.map(|rose_at| self.stopped.unwrap_or(Stop { at: self.at, rose_at }));
    }

    /// Below this, of so many units that it grew by enough has come back to end it: at once, or when it stays there.
    pub(super) fn came_back_below(&self, grown: f64) -> [u32; 2] {
        [MORE_THAN_EVER, MORE_THAN_EVER_FOR_LONG].map(|times| {
            let below = |height: u32, deepest: u32| {
                let deepest = f64::from(deepest);
                let may_go = (CAME_BACK * grown + (times - MORE_THAN_EVER_FOR_LONG) * deepest)
                    .max(times * deepest);
                height.saturating_sub(may_go as u32)
            };
            below(self.high, self.falls.0).max(below(self.kept, self.falls.1))
        })
    }

    /// What it has to exceed to grow anew.
    pub(super) fn height(&self) -> u32 {
        self.high
    }

    /// When something rose last; where it goes up and down after it stopped, that which did not by chance.
    pub(super) fn rose_at(&self) -> u32 {
        self.stopped.map_or(self.either.last, |stop| stop.rose_at)
    }

    /// The longest time between two rises.
    pub(super) fn longest_pause(&self) -> u32 {
        self.either.longest_pause
    }

    /// What tells of the growth. Where what is held pauses longer than peaks last, it tells no more than the
    /// highest does.
    fn indicators(&self) -> impl Iterator<Item = Rises> {
        let held = Some(self.held_alone).filter(|held| held.accepted_pause <= INDICATIVE_PAUSE);
        std::iter::once(self.either).chain(held)
    }

    /// Whether nothing has risen for too long to be a pause; then it goes on only when all rise again.
    fn is_still(&self, now: u32) -> bool {
        match self.stopped {
            Some(stop) => self.indicators().any(|rises| rises.last <= stop.at),
            None => self
                .indicators()
                .zip([0, HELD_LATE_SECONDS])
                .any(|(rises, late)| now.saturating_sub(rises.last) >= rises.patience() + late),
        }
    }

    /// Whether what goes up and down does so where it did before: peaks of teeth and noise exceed others by chance
    /// long after growth has stopped.
    fn stalls(&self, series: &GrowthSeries, rate: f64) -> bool {
        let pauses = [self.either, self.held_alone].map(|rises| rises.accepted_pause);
        let span = self.stall_seconds.max(pauses[0].min(pauses[1]) / 4 * 5);
        let now = series.now;
        let (Some(middle), Some(from)) =
            (now.checked_sub(span), now.checked_sub(span.saturating_mul(2)))
        else {
            return false;
        };
        if from < self.since {
            return false;
        }
        let (mut lows, mut highs) = ([u32::MAX; 2], [0; 2]);
        // Sum and count of the middles between low and high.
        let mut middles = [(0.0, 0.0); 2];
        let (mut up, mut down, mut falls, mut before) = (0, 0, 0, None);
        let mut end = now;
        for bucket in series.buckets.iter().rev() {
            if end <= from {
                break;
            }
            if !bucket.is_hole() {
                // Backwards in time.
                let after = before.replace(bucket.low).unwrap_or(bucket.low);
                up += after.saturating_sub(bucket.low);
                down += bucket.low.saturating_sub(after);
                falls += usize::from(after < bucket.low);
                for (part, is_in) in [bucket.start < middle, end > middle].into_iter().enumerate() {
                    if is_in {
                        lows[part] = lows[part].min(bucket.low);
                        highs[part] = highs[part].max(bucket.high);
                        let (sum, count) = &mut middles[part];
                        *sum += f64::midpoint(bucket.low.into(), bucket.high.into());
                        *count += 1.0;
                    }
                }
            }
            end = bucket.start;
        }
        let expected = rate * f64::from(span);
        let least =
            expected * if falls >= NOISE_FALLS { STALL_SHARE_OF_NOISE } else { STALL_SHARE };
        let [before, lately] = middles.map(|(sum, count)| sum / f64::max(count, 1.0));
        let is_above = |of: [u32; 2]| f64::from(of[1]) - f64::from(of[0]) >= least;
        !lows.contains(&u32::MAX)
            && f64::from(down) > RESTLESS_SHARE * f64::from(up)
            && !is_above(lows)
            && !is_above(highs)
            && lately - before < STALL_SHARE_OF_MEAN * expected
    }

    /// Whether hardly anything of so many units ever came back.
    pub(super) fn is_calm(&self, grown: f64) -> bool {
        f64::from(self.falls.0) < CALM_SHARE * grown
    }

    /// Calls it stopped, until all rises again.
    pub(super) fn stop(&mut self, now: u32) {
        let rose_at = self.either.last.min(now);
        self.stopped.get_or_insert(Stop { at: now, rose_at });
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Whether it stopped so long ago that there is no more to say.
    pub(super) fn is_history(&self, now: u32) -> bool {
        self.indicators().any(|rises| {
            let word = WORTH_A_WORD * rises.usual();
            let word = word.clamp(WORTH_A_WORD_SECONDS, LONGEST_WORD_SECONDS);
            now.saturating_sub(rises.last) >= word.max(rises.patience())
        })
    }
}
