//! When the snapshots of a recording are due, by their own times, on a clock that is handed in.

use std::time::Duration;

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

/// When snapshots are due.
#[derive(Debug)]
pub(super) struct Schedule {
    pace: PlaybackPace,
    skip_seconds: f64,
    first: Option<Time>,
    previous: Option<Time>,
    /// When the previous snapshot was due.
    due: Duration,
}

impl Schedule {
    pub(super) fn new(pace: PlaybackPace) -> Self {
        Self {
            pace,
            skip_seconds: 0.0,
            first: None,
            previous: None,
            due: Duration::ZERO,
        }
    }

    /// Waits for nothing in the first `seconds`.
    pub(super) fn skip(&mut self, seconds: f64) {
        self.skip_seconds = seconds;
    }

    /// Plays so many times as fast from the previous snapshot on.
    pub(super) fn set_speed(&mut self, speed: f64) {
        self.pace = PlaybackPace::Speed(speed);
    }

    /// Counts the next wait from `now`.
    pub(super) fn resume(&mut self, now: Duration) {
        self.due = now;
    }

    /// The recording begins again, and is waited for from its first snapshot on.
    pub(super) fn begin_again(&mut self) {
        *self = Self::new(self.pace);
    }

    /// How long to wait at `now` for a snapshot taken at `time`.
    pub(super) fn wait(&self, time: Time, now: Duration) -> Duration {
        match self.gap(time) {
            None => Duration::ZERO,
            Some(gap) => (self.due + gap).saturating_sub(now),
        }
    }

    /// The snapshot taken at `time` is handed out at `now`.
    pub(super) fn delivered(&mut self, time: Time, now: Duration) {
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
    }

    /// From when the previous snapshot was due to when this one is; `None` where nothing is waited for.
    fn gap(&self, time: Time) -> Option<Duration> {
        let (PlaybackPace::Speed(speed), Some(first), Some(previous)) =
            (self.pace, self.first, self.previous)
        else {
            return None;
        };
        if time.seconds_since(first) < self.skip_seconds {
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

    /// Plays `times` on a clock that stands still but for the waits, and returns those in seconds.
    fn waits(pace: PlaybackPace, skip_seconds: f64, times: &[f64]) -> Vec<f64> {
        let mut schedule = Schedule::new(pace);
        schedule.skip(skip_seconds);
        let mut now = Duration::ZERO;
        times
            .iter()
            .map(|&seconds| {
                let time = Time::default().plus_seconds(seconds);
                let wait = schedule.wait(time, now);
                now += wait;
                schedule.delivered(time, now);
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
            assert_eq!(
                waits(PlaybackPace::Speed(odd), 0.0, &[0.0, 1.0]),
                [0.0, 5.0]
            );
        }
        assert_eq!(
            waits(PlaybackPace::Speed(f64::INFINITY), 0.0, &[0.0, 1.0]),
            [0.0, 0.0]
        );
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
        let at = |seconds| Time::default().plus_seconds(seconds);
        let milliseconds = Duration::from_millis;
        let mut schedule = Schedule::new(PlaybackPace::Speed(1.0));
        schedule.delivered(at(0.0), Duration::ZERO);
        // The screen took 0.3 s to draw.
        assert_eq!(schedule.wait(at(1.0), milliseconds(300)), milliseconds(700));
        // Who waited woke up late.
        schedule.delivered(at(1.0), milliseconds(1200));
        assert_eq!(
            schedule.wait(at(2.0), milliseconds(1200)),
            milliseconds(800)
        );
        // It was stopped for an hour.
        let later = Duration::from_secs(3600);
        assert_eq!(schedule.wait(at(2.0), later), Duration::ZERO);
        schedule.delivered(at(2.0), later);
        assert_eq!(schedule.wait(at(3.0), later), Duration::from_secs(1));
    }

    #[test]
    fn another_speed_counts_from_the_snapshot_before() {
        let at = |seconds| Time::default().plus_seconds(seconds);
        let mut schedule = Schedule::new(PlaybackPace::Speed(1.0));
        schedule.delivered(at(0.0), Duration::ZERO);
        schedule.set_speed(0.5);
        assert_eq!(
            schedule.wait(at(2.0), Duration::from_secs(1)),
            Duration::from_secs(3)
        );
        schedule.set_speed(8.0);
        assert_eq!(
            schedule.wait(at(2.0), Duration::from_secs(1)),
            Duration::ZERO
        );
    }
}
