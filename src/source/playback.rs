//! How recordings are played: when each snapshot is due, by its own time, on a clock that is handed in; pause,
//! step and seek.

use std::time::Duration;

use super::Control;
use crate::model::Time;

/// A gap in a recording is not waited for longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// What was late by more, because it was held up by Ctrl-Z say, is not made up for.
const MOST_LATE: Duration = Duration::from_secs(1);

/// How fast a recording plays.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PlaybackPace {
    /// Without waiting.
    AsFast,
    /// By the snapshots' times: 1 is real time, 10 is ten times as fast. What is not above 0 waits
    /// the longest that is ever waited between two snapshots, 5 s.
    Speed(f64),
}

/// The clock of snapshots that are played: it says when each is due, pauses, steps and seeks.
///
/// It holds no snapshot and reads no time itself: those of snapshots, and of a clock that only goes forward, are
/// handed in. The snapshots may be read from a recording as they are due, or lie on a screen's timeline; there, a
/// jump to a snapshot is a new clock to which that one was delivered.
#[derive(Clone, PartialEq, Debug)]
pub struct PlaybackClock {
    pace: PlaybackPace,
    /// Not paused.
    is_playing: bool,
    seek: Option<Seek>,
    /// Of the first so many seconds, nothing is waited for.
    history_seconds: f64,
    first: Option<Time>,
    previous: Option<Time>,
    /// When the previous snapshot was due.
    due: Duration,
}

/// What is played at once, whatever the pace; then it is paused.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Seek {
    /// One snapshot.
    Step,
    /// All before this time, and the one after them.
    To(Time),
    /// All that there are.
    Run,
}

impl PlaybackClock {
    /// Plays from the beginning.
    pub fn new(pace: PlaybackPace) -> Self {
        Self {
            pace,
            is_playing: true,
            seek: None,
            history_seconds: 0.0,
            first: None,
            previous: None,
            due: Duration::ZERO,
        }
    }

    /// Waits for nothing in the first `seconds`, by the snapshots' own times.
    #[must_use]
    pub fn start_after(mut self, seconds: f64) -> Self {
        self.history_seconds = seconds;
        self
    }

    /// Whether nothing is due until it is steered.
    pub fn is_paused(&self) -> bool {
        !self.is_playing && self.seek.is_none()
    }

    /// Does as it is told at `now`; what is not about playing does nothing.
    pub fn steer(&mut self, control: Control, now: Duration) {
        let seek = match control {
            Control::Interval(_) | Control::Fast(_) => return,
            Control::Speed(speed) => {
                // From the previous snapshot on.
                self.pace = PlaybackPace::Speed(speed);
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
                // Whoever goes back waits from the first snapshot on.
                *self = Self::new(self.pace);
                None
            }
            Control::Step => Some(Seek::Step),
            Control::SeekTo(time) => Some(Seek::To(time)),
            Control::Run => Some(Seek::Run),
        };
        self.is_playing = false;
        self.seek = seek;
    }

    /// How long to wait at `now` for the next snapshot, taken at `time`; `None` while it is paused.
    pub fn wait(&self, time: Time, now: Duration) -> Option<Duration> {
        let gap = self.gap(time).filter(|_| self.seek.is_none());
        let wait = gap.map_or(Duration::ZERO, |gap| (self.due + gap).saturating_sub(now));
        (!self.is_paused()).then_some(wait)
    }

    /// The snapshot taken at `time` is handed out at `now`; whether it is only passed over, on the way to what is
    /// sought.
    pub fn delivered(&mut self, time: Time, now: Duration) -> bool {
        // Counted from when the previous one was due, so that delays do not add up; but what was
        // held up for long does not rush to make up for it.
        self.due = match self.gap(time) {
            Some(gap) if now.saturating_sub(self.due + gap) < MOST_LATE => {
                (self.due + gap).min(now)
            }
            _ => now,
        };
        self.first.get_or_insert(time);
        self.previous = Some(time);
        let is_passing = match self.seek {
            Some(Seek::Run) => true,
            Some(Seek::To(to)) => time < to,
            Some(Seek::Step) | None => false,
        };
        if !is_passing {
            self.seek = None;
        }
        is_passing
    }

    /// From when the previous snapshot was due to when this one is; `None` where nothing is waited for.
    fn gap(&self, time: Time) -> Option<Duration> {
        let (PlaybackPace::Speed(speed), Some(first), Some(previous)) =
            (self.pace, self.first, self.previous)
        else {
            return None;
        };
        if time.seconds_since(first) < self.history_seconds {
            return None;
        }
        Some(gap(previous, time, speed))
    }
}

/// How long to wait between two snapshots of a recording.
fn gap(previous: Time, time: Time, speed: f64) -> Duration {
    // A clock that jumped back waits for nothing.
    let seconds = time.seconds_since(previous).max(0.0);
    if speed > 0.0 {
        Duration::try_from_secs_f64(seconds / speed).map_or(LONGEST_WAIT, |it| it.min(LONGEST_WAIT))
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

    /// Plays `times` on a clock that stands still but for the waits, and returns those in seconds.
    fn waits(pace: PlaybackPace, skip_seconds: f64, times: &[f64]) -> Vec<f64> {
        let mut playback = PlaybackClock::new(pace).start_after(skip_seconds);
        let mut now = Duration::ZERO;
        times
            .iter()
            .map(|&seconds| {
                let time = at(seconds);
                let wait = playback.wait(time, now).unwrap();
                now += wait;
                assert!(!playback.delivered(time, now));
                wait.as_secs_f64()
            })
            .collect()
    }

    #[test]
    fn it_waits_by_the_times_recorded_and_never_long() {
        let times = [0.0, 2.0, 3.0, 3.0, 1.0, 2.0, 9999.0];
        assert_eq!(
            waits(PlaybackPace::Speed(1.0), 0.0, &times),
            [0.0, 2.0, 1.0, 0.0, 0.0, 1.0, 5.0]
        );
        assert_eq!(
            waits(PlaybackPace::Speed(4.0), 0.0, &times),
            [0.0, 0.5, 0.25, 0.0, 0.0, 0.25, 5.0]
        );
        assert_eq!(waits(PlaybackPace::AsFast, 0.0, &times), [0.0; 7]);
        for odd in [0.0, -1.0, f64::NAN, f64::MIN_POSITIVE] {
            assert_eq!(waits(PlaybackPace::Speed(odd), 0.0, &[0.0, 1.0]), [0.0, 5.0]);
        }
        assert_eq!(waits(PlaybackPace::Speed(f64::INFINITY), 0.0, &[0.0, 1.0]), [0.0, 0.0]);
    }

    #[test]
    fn the_first_part_is_delivered_at_once() {
        assert_eq!(
            waits(PlaybackPace::Speed(1.0), 10.0, &[0.0, 5.0, 9.9, 10.0, 12.0]),
            [0.0, 0.0, 0.0, 0.1, 2.0]
        );
    }

    #[test]
    fn delays_do_not_add_up_and_a_long_stop_is_not_made_up_for() {
        let milliseconds = Duration::from_millis;
        let mut playback = PlaybackClock::new(PlaybackPace::Speed(1.0));
        playback.delivered(at(0.0), Duration::ZERO);
        // The screen took 0.3 s to draw.
        let wait = playback.wait(at(1.0), milliseconds(300));
        assert_eq!(wait, Some(milliseconds(700)));
        // Who waited woke up late.
        playback.delivered(at(1.0), milliseconds(1200));
        let wait = playback.wait(at(2.0), milliseconds(1200));
        assert_eq!(wait, Some(milliseconds(800)));
        // It was stopped for an hour.
        let later = Duration::from_secs(3600);
        assert_eq!(playback.wait(at(2.0), later), Some(Duration::ZERO));
        playback.delivered(at(2.0), later);
        assert_eq!(playback.wait(at(3.0), later), Some(SECOND));
    }

    #[test]
    fn another_speed_counts_from_the_snapshot_before() {
        let mut playback = PlaybackClock::new(PlaybackPace::Speed(1.0));
        playback.delivered(at(0.0), Duration::ZERO);
        playback.steer(Control::Speed(0.5), SECOND);
        assert_eq!(playback.wait(at(2.0), SECOND), Some(3 * SECOND));
        playback.steer(Control::Speed(8.0), SECOND);
        assert_eq!(playback.wait(at(2.0), SECOND), Some(Duration::ZERO));
    }

    #[test]
    fn it_pauses_steps_and_goes_on_from_then() {
        let mut playback = PlaybackClock::new(PlaybackPace::Speed(1.0));
        playback.delivered(at(0.0), Duration::ZERO);
        playback.steer(Control::Playing(false), SECOND);
        assert!(playback.is_paused());
        assert_eq!(playback.wait(at(1.0), 9 * SECOND), None);
        playback.steer(Control::Step, 9 * SECOND);
        assert_eq!(playback.wait(at(1.0), 9 * SECOND), Some(Duration::ZERO));
        assert!(!playback.delivered(at(1.0), 9 * SECOND));
        assert_eq!(playback.wait(at(2.0), 9 * SECOND), None);
        playback.steer(Control::Playing(true), 20 * SECOND);
        assert_eq!(playback.wait(at(2.0), 20 * SECOND), Some(SECOND));
        // Told what it does already, it does not begin the wait again; what is not about playing changes nothing.
        playback.steer(Control::Playing(true), 20 * SECOND + SECOND / 2);
        playback.steer(Control::Fast(true), 20 * SECOND + SECOND / 2);
        let wait = playback.wait(at(2.0), 20 * SECOND + SECOND / 2);
        assert_eq!(wait, Some(SECOND / 2));
    }

    /// A timeline that a screen plays on: of each of these ticks, in milliseconds, the last second that is shown.
    fn shown(playback: &mut PlaybackClock, from: i64, ticks: &[u64]) -> Vec<i64> {
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
    fn a_timeline_plays_on_from_where_a_person_went() {
        let mut playback = PlaybackClock::new(PlaybackPace::Speed(1.0));
        playback.delivered(at(10.0), 50 * SECOND);
        let ticks = [50_000, 50_900, 51_000, 51_300, 52_000, 52_900, 53_000];
        let seconds = shown(&mut playback, 10, &ticks);
        assert_eq!(seconds, [10, 10, 11, 11, 12, 12, 13]);
        // Faster than ticks come, only the last of those that are due is seen.
        playback.steer(Control::Speed(64.0), 53 * SECOND);
        let seconds = shown(&mut playback, 13, &[53_000, 53_100, 53_200, 53_500]);
        assert_eq!(seconds, [13, 19, 25, 45]);
        // An hour under Ctrl-Z is not made up for.
        assert_eq!(shown(&mut playback, 45, &[3_653_500]), [46]);
    }
}
