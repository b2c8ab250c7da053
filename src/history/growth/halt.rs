//! Whether growth that was found has stopped: when memory last rose, and what would be giving it back.
//!
//! The gates of [`super::window`] ask whether a window has grown; growth that ended a while ago still
//! fills most of a long one. This asks when the highest last rose, and the highest of what was held for
//! some minutes: peaks come and go, and what is below them tells. What moves within a band that was filled
//! before does not rise. How long growth may pause without having stopped is told by its own pauses.

use super::UNIT;
use super::outline::{Bucket, Outline};

/// Growth that never paused has stopped after five minutes.
pub(super) const QUIET_SECONDS: u32 = 300;
/// What stopped is worth a word for a while, and for longer than it might only pause.
const WORTH_A_WORD_SECONDS: u32 = 900;
/// A pause may be so many times as long as the longest before.
const PATIENCE: f64 = 1.5;
/// A rise is no less than this share of what the rate would have brought meanwhile,
const LEAST_SHARE: f64 = 0.15;
/// where it had stopped this one,
const LEAST_SHARE_ANEW: f64 = 0.6;
/// and in any case 1 MiB.
const LEAST_UNITS: f64 = (1 << 20) as f64 / UNIT as f64;
/// Peaks shorter than this do not hide what is below them.
pub(super) const HELD_SECONDS: u32 = 150;
/// What is held rises as often as this where only peaks are above it.
const TELLING_PAUSE: u32 = 240;
/// What was held for as long as this was not only a peak, and is missed when it goes.
const KEPT_SECONDS: u32 = 300;
/// What goes up and down has stopped where neither its lows nor its highs are above those of so long before,
const STALL_SECONDS: u32 = 280;
/// by this share of what the rate would have brought,
const STALL_SHARE: f64 = 0.4;
/// nor the mean of what is between them, which chance moves less, by this one,
const STALL_SHARE_OF_MEAN: f64 = 0.3;
/// and goes down by this share of what it goes up by.
const RESTLESS_SHARE: f64 = 0.3;
/// Growth has ended when this share of it came back,
const CAME_BACK: f64 = 0.1;
/// and more than ever before in it, by so many times.
const MORE_THAN_EVER: f64 = 1.25;

/// When something rose, and how long it pauses between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rises {
    pub(super) last: u32,
    longest_pause: u32,
}

impl Rises {
    fn rise(&mut self, bucket: &Bucket, end: u32) {
        let pause = bucket.start.saturating_sub(self.last);
        self.longest_pause = self.longest_pause.max(pause);
        // A plateau rose at its start, anything else perhaps up to its end.
        self.last = if bucket.low == bucket.high {
            bucket.start
        } else {
            end
        };
    }

    /// How long it may pause.
    fn patience(&self) -> u32 {
        let pauses = PATIENCE * f64::from(self.longest_pause) + 60.0;
        QUIET_SECONDS.max(pauses as u32)
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
    /// Since when it has been called stopped.
    stopped_at: Option<u32>,
}

impl Pace {
    /// Follows growth from `since` on, at so many units a second.
    pub(super) fn of(outline: &Outline, since: u32, rate: f64) -> Self {
        let first = outline
            .buckets
            .partition_point(|bucket| bucket.start <= since)
            .saturating_sub(1);
        let bucket = &outline.buckets[first];
        let start = if bucket.is_hole() { 0 } else { bucket.low };
        let none = Rises {
            last: since,
            longest_pause: 0,
        };
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
            stopped_at: None,
        };
        pace.follow(outline, rate);
        pace
    }

    /// Takes in what came since.
    pub(super) fn follow(&mut self, outline: &Outline, rate: f64) {
        let end_of = |at: usize| {
            let next = outline.buckets.get(at + 1);
            next.map_or(outline.now, |next| next.start)
        };
        let buckets = outline.buckets.len();
        let first = (0..buckets)
            .rev()
            .take_while(|at| end_of(*at) > self.at)
            .last();
        let share = if self.stopped_at.is_some() {
            LEAST_SHARE_ANEW
        } else {
            LEAST_SHARE
        };
        for at in first.unwrap_or(buckets)..buckets {
            let (bucket, end) = (&outline.buckets[at], end_of(at));
            if bucket.is_hole() {
                // Nobody knows what rose meanwhile.
                self.either.last = self.either.last.max(end);
                self.held_alone.last = self.held_alone.last.max(end);
                continue;
            }
            let until = &outline.buckets[..=at];
            self.high = self.high.max(bucket.high);
            self.held = self.held.max(held_at(until, end, HELD_SECONDS));
            self.kept = self.kept.max(held_at(until, end, KEPT_SECONDS));
            let fall = |from: u32, deepest: u32| deepest.max(from.saturating_sub(bucket.low));
            self.falls = (fall(self.high, self.falls.0), fall(self.kept, self.falls.1));
            let least = |since: u32| {
                let meanwhile = f64::from(end.saturating_sub(since));
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
        self.at = outline.now;
        let is_still = self.is_still(self.at) || self.stalls(outline, rate);
        if !is_still && self.stopped_at.is_some() {
            // It only paused, and may do so again.
            self.either.longest_pause *= 2;
            self.held_alone.longest_pause *= 2;
            self.stall_seconds += self.stall_seconds / 2;
        }
        self.stopped_at = is_still.then(|| self.stopped_at.unwrap_or(self.at));
    }

    /// Below this, of so many units that it grew by enough has come back to end it.
    pub(super) fn came_back_below(&self, grown: f64) -> u32 {
        let below = |height: u32, deepest: u32| {
            let may_go = (CAME_BACK * grown).max(MORE_THAN_EVER * f64::from(deepest));
            height.saturating_sub(may_go as u32)
        };
        below(self.high, self.falls.0).max(below(self.kept, self.falls.1))
    }

    /// What it has to exceed to grow anew.
    pub(super) fn height(&self) -> u32 {
        self.high
    }

    /// The longest time between two rises.
    pub(super) fn longest_pause(&self) -> u32 {
        self.either.longest_pause
    }

    /// What tells of the growth. Where what is held pauses longer than peaks last, it tells no more than the
    /// highest does.
    fn telling(&self) -> impl Iterator<Item = Rises> {
        let held = Some(self.held_alone).filter(|held| held.longest_pause <= TELLING_PAUSE);
        std::iter::once(self.either).chain(held)
    }

    /// Whether nothing has risen for too long to be a pause; then it goes on only when all rise again.
    fn is_still(&self, now: u32) -> bool {
        match self.stopped_at {
            Some(stopped_at) => self.telling().any(|rises| rises.last <= stopped_at),
            None => self
                .telling()
                .any(|rises| now.saturating_sub(rises.last) >= rises.patience()),
        }
    }

    /// Whether what goes up and down does so where it did before: peaks of teeth and noise exceed others by chance
    /// long after growth has stopped.
    fn stalls(&self, outline: &Outline, rate: f64) -> bool {
        let pauses = [self.either, self.held_alone].map(|rises| rises.longest_pause);
        let span = self.stall_seconds.max(pauses[0].min(pauses[1]) / 4 * 5);
        let now = outline.now;
        let (Some(middle), Some(from)) = (
            now.checked_sub(span),
            now.checked_sub(span.saturating_mul(2)),
        ) else {
            return false;
        };
        if from < self.since {
            return false;
        }
        let (mut lows, mut highs) = ([u32::MAX; 2], [0; 2]);
        // Sum and count of the middles between low and high.
        let mut middles = [(0.0, 0.0); 2];
        let (mut up, mut down, mut before) = (0, 0, None);
        let mut end = now;
        for bucket in outline.buckets.iter().rev() {
            if end <= from {
                break;
            }
            if !bucket.is_hole() {
                // Backwards in time.
                let after = before.replace(bucket.low).unwrap_or(bucket.low);
                up += after.saturating_sub(bucket.low);
                down += bucket.low.saturating_sub(after);
                for (part, is_in) in [bucket.start < middle, end > middle]
                    .into_iter()
                    .enumerate()
                {
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
        let least = STALL_SHARE * expected;
        let [before, lately] = middles.map(|(sum, count)| sum / f64::max(count, 1.0));
        let is_above = |of: [u32; 2]| f64::from(of[1]) - f64::from(of[0]) >= least;
        !lows.contains(&u32::MAX)
            && f64::from(down) > RESTLESS_SHARE * f64::from(up)
            && !is_above(lows)
            && !is_above(highs)
            && lately - before < STALL_SHARE_OF_MEAN * expected
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped_at.is_some()
    }

    /// Whether it stopped so long ago that there is no more to say.
    pub(super) fn is_history(&self, now: u32) -> bool {
        self.telling().any(|rises| {
            let quiet = now.saturating_sub(rises.last);
            quiet >= WORTH_A_WORD_SECONDS.max(rises.patience().saturating_mul(2))
        })
    }
}

/// The least in the last `seconds` of some buckets, the last of which ends at `end`.
pub(super) fn held_at(buckets: &[Bucket], end: u32, seconds: u32) -> u32 {
    let mut until = end;
    let mut least = u32::MAX;
    for bucket in buckets.iter().rev() {
        if end - until >= seconds {
            break;
        }
        // A hole has no least.
        least = least.min(bucket.low);
        until = bucket.start;
    }
    least
}
