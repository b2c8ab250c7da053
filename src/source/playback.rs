//! Decides when each snapshot of a recording is due, judging by its time. Supports pause, step and seek.

use std::time::Duration;

use super::Control;
use crate::model::Time;

/// Maximum time to wait at a gap in a recording.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Maximum delay for which playback catches up. A longer delay is treated as a suspension, for example by Ctrl-Z.
const MOST_LATE: Duration = Duration::from_secs(1);

/// A clock for playback, which decides when each snapshot is due.
///
/// The clock neither holds snapshots nor reads the time. The caller passes in the times of the snapshots, from a
/// recording or from the timeline of the screen, and the current time of a monotonic clock. To jump within a
/// timeline, the caller creates a new clock and delivers the target snapshot to it.
#[derive(Clone, PartialEq, Debug)]
pub struct PlaybackClock {
    /// Multiple of the recording's speed. If it is 0 or less, each wait is [`LONGEST_WAIT`]. `None` means that
    /// playback never waits.
    speed: Option<f64>,
    is_playing: bool,
    seek: Option<Seek>,
    /// Length, in seconds, of the beginning that is played without waiting.
    history_seconds: f64,
    first: Option<Time>,
    previous: Option<Time>,
    due: Duration,
}

/// Snapshots that are played without waiting. After them, playback pauses.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Seek {
    Step,
    /// All snapshots before this time, and the first one after it.
    To(Time),
    Run,
}

impl Default for PlaybackClock {
    fn default() -> Self {
        Self {
            speed: None,
            is_playing: true,
            seek: None,
            history_seconds: 0.0,
            first: None,
            previous: None,
            due: Duration::ZERO,
        }
    }
}

impl PlaybackClock {
    /// Plays at this multiple of the recording's speed.
    #[must_use]
    pub fn at_speed(mut self, speed: f64) -> Self {
        self.speed = Some(speed);
        self
    }

    /// Plays the first `seconds` of the recording without waiting.
    #[must_use]
    pub fn start_after(mut self, seconds: f64) -> Self {
        self.history_seconds = seconds;
        self
    }

    pub fn is_paused(&self) -> bool {
        !self.is_playing && self.seek.is_none()
    }

    /// Applies a control at the time `now`. Controls that are not about playback have no effect.
    pub fn steer(&mut self, control: Control, now: Duration) {
        let seek = match control {
            Control::Interval(_) | Control::Fast(_) => return,
            Control::Speed(speed) => {
                // The new speed also applies to the current wait, from the previous snapshot on.
                self.speed = Some(speed);
                return;
            }
            Control::Playing(is_playing) => {
                if is_playing && (!self.is_playing || self.seek.is_some()) {
                    self.due = now;
                }
                self.is_playing = is_playing;
                self.seek = None;
                return;
            }
            Control::Rewind => {
                // After a rewind, the beginning is played with waits.
                *self = Self { speed: self.speed, ..Self::default() };
                None
            }
            Control::Step => Some(Seek::Step),
            Control::SeekTo(time) => Some(Seek::To(time)),
            Control::Run => Some(Seek::Run),
        };
        self.is_playing = false;
        self.seek = seek;
    }

    /// Returns how long to wait, from `now`, for the snapshot recorded at `time`, or `None` if playback is paused.
    pub fn wait(&self, time: Time, now: Duration) -> Option<Duration> {
        let gap = self.gap(time).filter(|_| self.seek.is_none());
        let wait = gap.map_or(Duration::ZERO, |gap| (self.due + gap).saturating_sub(now));
        (!self.is_paused()).then_some(wait)
    }

    pub fn delivered(&mut self, time: Time, now: Duration) {
        // Count from when the snapshot was due, so that delays do not add up. After a long suspension, start over.
        self.due = match self.gap(time) {
            Some(gap) if now.saturating_sub(self.due + gap) < MOST_LATE => {
                (self.due + gap).min(now)
            }
            _ => now,
        };
        self.first.get_or_insert(time);
        self.previous = Some(time);
        self.seek = self.seek.filter(|seek| match seek {
            Seek::Run => true,
            Seek::To(to) => time < *to,
            Seek::Step => false,
        });
    }

    /// Returns how long after the previous snapshot this one is due, or `None` if it is due immediately.
    fn gap(&self, time: Time) -> Option<Duration> {
        let (speed, first, previous) = (self.speed?, self.first?, self.previous?);
        let is_history = time.seconds_since(first) < self.history_seconds;
        (!is_history).then(|| gap(previous, time, speed))
    }
}

fn gap(previous: Time, time: Time, speed: f64) -> Duration {
    // If the clock was set back in the recording, do not wait.
    let seconds = time.seconds_since(previous).max(0.0);
    if speed > 0.0 {
        Duration::try_from_secs_f64(seconds / speed)
            .map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT))
    } else {
        LONGEST_WAIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: f64) -> Time {
        Time::default().plus_seconds(seconds)
    }

    fn at_speed(speed: f64) -> PlaybackClock {
        PlaybackClock::default().at_speed(speed)
    }

    /// Plays the snapshots at `times` on a clock that advances only while waiting. Returns the waits in seconds.
    fn waits(playback: PlaybackClock, skip_seconds: f64, times: &[f64]) -> Vec<f64> {
        let mut playback = playback.start_after(skip_seconds);
        let mut now = Duration::ZERO;
        times
            .iter()
            .map(|&seconds| {
                let time = at(seconds);
                let wait = playback.wait(time, now).unwrap();
                now += wait;
                playback.delivered(time, now);
                wait.as_secs_f64()
            })
            .collect()
    }

    #[test]
    fn playback_waits_by_recorded_times_up_to_the_maximum() {
        let times = [0.0, 2.0, 3.0, 3.0, 1.0, 2.0, 9999.0];
        assert_eq!(waits(at_speed(1.0), 0.0, &times), [0.0, 2.0, 1.0, 0.0, 0.0, 1.0, 5.0]);
        assert_eq!(waits(at_speed(4.0), 0.0, &times), [0.0, 0.5, 0.25, 0.0, 0.0, 0.25, 5.0]);
        assert_eq!(waits(PlaybackClock::default(), 0.0, &times), [0.0; 7]);
        for odd in [0.0, -1.0, f64::NAN, f64::MIN_POSITIVE] {
            assert_eq!(waits(at_speed(odd), 0.0, &[0.0, 1.0]), [0.0, 5.0]);
        }
        assert_eq!(waits(at_speed(f64::INFINITY), 0.0, &[0.0, 1.0]), [0.0, 0.0]);
    }

    #[test]
    fn the_first_part_is_delivered_without_waiting() {
        assert_eq!(
            waits(at_speed(1.0), 10.0, &[0.0, 5.0, 9.9, 10.0, 12.0]),
            [0.0, 0.0, 0.0, 0.1, 2.0]
        );
    }

    #[test]
    fn delays_do_not_add_up_and_suspensions_are_not_made_up_for() {
        let milliseconds = Duration::from_millis;
        let mut playback = at_speed(1.0);
        playback.delivered(at(0.0), Duration::ZERO);
        // Drawing the screen took 0.3 s.
        let wait = playback.wait(at(1.0), milliseconds(300));
        assert_eq!(wait, Some(milliseconds(700)));
        // The caller woke up 0.2 s late.
        playback.delivered(at(1.0), milliseconds(1200));
        let wait = playback.wait(at(2.0), milliseconds(1200));
        assert_eq!(wait, Some(milliseconds(800)));
        // The program was suspended for an hour.
        let later = Duration::from_secs(3600);
        assert_eq!(playback.wait(at(2.0), later), Some(Duration::ZERO));
        playback.delivered(at(2.0), later);
        assert_eq!(playback.wait(at(3.0), later), Some(SECOND));
    }

    #[test]
    fn a_new_speed_applies_from_the_previous_snapshot() {
        let mut playback = at_speed(1.0);
        playback.delivered(at(0.0), Duration::ZERO);
        playback.steer(Control::Speed(0.5), SECOND);
        assert_eq!(playback.wait(at(2.0), SECOND), Some(3 * SECOND));
        playback.steer(Control::Speed(8.0), SECOND);
        assert_eq!(playback.wait(at(2.0), SECOND), Some(Duration::ZERO));
    }

    #[test]
    fn playback_pauses_steps_and_continues() {
        let mut playback = at_speed(1.0);
        playback.delivered(at(0.0), Duration::ZERO);
        playback.steer(Control::Playing(false), SECOND);
        assert!(playback.is_paused());
        assert_eq!(playback.wait(at(1.0), 9 * SECOND), None);
        playback.steer(Control::Step, 9 * SECOND);
        assert_eq!(playback.wait(at(1.0), 9 * SECOND), Some(Duration::ZERO));
        playback.delivered(at(1.0), 9 * SECOND);
        assert_eq!(playback.wait(at(2.0), 9 * SECOND), None);
        playback.steer(Control::Playing(true), 20 * SECOND);
        assert_eq!(playback.wait(at(2.0), 20 * SECOND), Some(SECOND));
        // A repeated control must not restart the wait. A control that is not about playback must have no effect.
        playback.steer(Control::Playing(true), 20 * SECOND + SECOND / 2);
        playback.steer(Control::Fast(true), 20 * SECOND + SECOND / 2);
        let wait = playback.wait(at(2.0), 20 * SECOND + SECOND / 2);
        assert_eq!(wait, Some(SECOND / 2));
    }

    /// Plays the timeline of a screen. Returns the second that is shown at each tick; ticks are in milliseconds.
    fn last_shown(playback: &mut PlaybackClock, from: i64, ticks: &[u64]) -> Vec<i64> {
        let mut next = from + 1;
        let mut tick = |&milliseconds| {
            let now = Duration::from_millis(milliseconds);
            while playback.wait(at(next as f64), now) == Some(Duration::ZERO) {
                playback.delivered(at(next as f64), now);
                next += 1;
            }
            next - 1
        };
        ticks.iter().map(&mut tick).collect()
    }

    #[test]
    fn a_timeline_plays_on_from_the_chosen_snapshot() {
        let mut playback = at_speed(1.0);
        playback.delivered(at(10.0), 50 * SECOND);
        let ticks = [50_000, 50_900, 51_000, 51_300, 52_000, 52_900, 53_000];
        let seconds = last_shown(&mut playback, 10, &ticks);
        assert_eq!(seconds, [10, 10, 11, 11, 12, 12, 13]);
        // If several snapshots are due at a tick, only the last one is shown.
        playback.steer(Control::Speed(64.0), 53 * SECOND);
        let seconds = last_shown(&mut playback, 13, &[53_000, 53_100, 53_200, 53_500]);
        assert_eq!(seconds, [13, 19, 25, 45]);
        // After an hour of suspension, the missed snapshots are not caught up on.
        assert_eq!(last_shown(&mut playback, 45, &[3_653_500]), [46]);
    }
}
