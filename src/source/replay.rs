//! Plays recordings: a file, standard input, or the built-in demo.
//!
//! Snapshots are passed on unchanged, even if the clock was set back; `rules` handles that. Damaged lines are skipped
//! and listed in [`Replay::damage`]. [`crate::recording`] reads recordings, and [`PlaybackClock`] decides when each
//! snapshot is due.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Control, NextSnapshot, Origin, Source, SourceError};
use crate::model::{Snapshot, Time};
use crate::recording::{self, Damage, RecordingReader};

static DEMO: &[u8] = include_bytes!("demo.jsonl.zst");
/// Length, in seconds, of the history with which the demo opens.
pub const DEMO_HISTORY_SECONDS: f64 = 25.0 * 60.0;

#[derive(Debug)]
pub struct Replay {
    reader: RecordingReader,
    /// A snapshot that was read but is not due yet.
    read: Option<Snapshot>,
    playback: PlaybackClock,
    started: Option<Instant>,
}

impl Replay {
    /// Plays all snapshots without waiting.
    pub fn new(reader: RecordingReader) -> Self {
        Self { reader, read: None, playback: PlaybackClock::default(), started: None }
    }

    /// Plays a file, or standard input if the path is `-`.
    pub fn open(path: &Path) -> Result<Self, recording::RecordingError> {
        Ok(Self::new(RecordingReader::open(path)?))
    }

    /// Plays the demo. The first 25 of its 40 minutes are played without waiting, so that the screen opens with a
    /// history.
    pub fn demo() -> Result<Self, recording::RecordingError> {
        let reader = RecordingReader::from_bytes(DEMO, "demo")?;
        Ok(Self::new(reader).start_after(DEMO_HISTORY_SECONDS))
    }

    /// Plays at this multiple of the recording's speed.
    #[must_use]
    pub fn at_speed(mut self, speed: f64) -> Self {
        self.playback = self.playback.at_speed(speed);
        self
    }

    /// Plays the first `seconds` of the recording without waiting.
    #[must_use]
    pub fn start_after(mut self, seconds: f64) -> Self {
        self.playback = self.playback.start_after(seconds);
        self
    }

    pub fn name(&self) -> &str {
        self.reader.name()
    }

    pub fn damage(&self) -> &[Damage] {
        self.reader.damage()
    }

    pub fn damage_count(&self) -> u64 {
        self.reader.damage_count()
    }

    fn clock(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.started.get_or_insert(now))
    }
}

impl Source for Replay {
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError> {
        if self.playback.is_paused() {
            return Ok(NextSnapshot::OnRequest);
        }
        if self.read.is_none() {
            self.read = self.reader.next().transpose()?;
        }
        let clock = self.clock(now);
        Ok(match &self.read {
            None => NextSnapshot::Ended,
            Some(snapshot) => {
                let wait = self.playback.wait(snapshot.time, clock);
                wait.map_or(NextSnapshot::OnRequest, NextSnapshot::In)
            }
        })
    }

    fn take(&mut self, now: Instant) -> Result<Option<Snapshot>, SourceError> {
        let read = match self.read.take() {
            None => self.reader.next().transpose()?,
            read => read,
        };
        let clock = self.clock(now);
        Ok(read.inspect(|snapshot| self.playback.delivered(snapshot.time, clock)))
    }

    fn steer(&mut self, control: Control, now: Instant) -> Result<(), SourceError> {
        if control == Control::Rewind {
            self.reader.rewind()?;
            self.read = None;
        }
        let clock = self.clock(now);
        self.playback.steer(control, clock);
        Ok(())
    }

    fn origin(&self) -> Origin {
        Origin::Replay { name: self.reader.name().to_owned(), can_rewind: self.reader.can_rewind() }
    }

    fn share_read(&self) -> Option<f64> {
        self.reader.share_read()
    }
}

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
    /// All snapshots before this time, and the first one at or after it.
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
    use std::io::Cursor;

    use super::*;

    fn snapshots(times: &[i64]) -> Vec<Snapshot> {
        times
            .iter()
            .map(|&seconds| Snapshot::new(Time::from_unix_milliseconds(seconds * 1000)))
            .collect()
    }

    fn recording(snapshots: &[Snapshot]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for snapshot in snapshots {
            serde_json::to_writer(&mut bytes, snapshot).unwrap();
            bytes.push(b'\n');
        }
        bytes
    }

    fn replay(bytes: Vec<u8>) -> Replay {
        Replay::new(RecordingReader::from_read(Cursor::new(bytes), "r.jsonl").unwrap())
    }

    fn drain(replay: &mut Replay) -> Vec<Snapshot> {
        std::iter::from_fn(|| replay.next().unwrap()).collect()
    }

    #[test]
    fn snapshots_are_unchanged_even_if_the_clock_jumps_back() {
        let snapshots = snapshots(&[100, 105, 40, 45]);
        let mut replay = replay(recording(&snapshots));
        assert_eq!(replay.origin(), Origin::Replay { name: "r.jsonl".into(), can_rewind: false });
        assert_eq!(drain(&mut replay), snapshots);
        assert_eq!(replay.next().unwrap(), None);
        assert!(replay.damage().is_empty());
    }

    #[test]
    fn the_demo_plays_to_the_end() {
        let mut demo = Replay::demo().unwrap();
        assert_eq!(demo.origin(), Origin::Replay { name: "demo".into(), can_rewind: true });
        let snapshots = drain(&mut demo);
        let (Some(first), Some(last)) = (snapshots.first(), snapshots.last()) else {
            panic!("the demo is empty");
        };
        assert!(last.time.seconds_since(first.time) > DEMO_HISTORY_SECONDS + 600.0);
        assert_eq!(demo.damage_count(), 0);
    }

    /// Returns a recording of `count` snapshots, one per second from 100 s on, and the current time.
    fn replay_of(count: i64) -> (Replay, Instant) {
        let times: Vec<i64> = (100..100 + count).collect();
        let bytes: &'static [u8] = recording(&snapshots(&times)).leak();
        let reader = RecordingReader::from_bytes(bytes, "r.jsonl").unwrap();
        (Replay::new(reader).at_speed(1.0), Instant::now())
    }

    fn seconds(snapshot: &Snapshot) -> i64 {
        snapshot.time.unix_seconds()
    }

    /// Takes all snapshots that are due at `now`. Returns their times in seconds.
    fn take_due(replay: &mut Replay, now: Instant) -> Vec<i64> {
        let mut taken = Vec::new();
        while replay.due(now).unwrap() == NextSnapshot::In(Duration::ZERO) && taken.len() < 50 {
            let snapshot = replay.take(now).unwrap().unwrap();
            taken.push(seconds(&snapshot));
        }
        taken
    }

    fn wait(replay: &mut Replay, now: Instant) -> NextSnapshot {
        replay.due(now).unwrap()
    }

    #[test]
    fn replay_skips_to_a_time_and_pauses() {
        let (mut replay, now) = replay_of(6);
        let time = Time::from_unix_milliseconds(102_500);
        replay.steer(Control::SeekTo(time), now).unwrap();
        let passed = take_due(&mut replay, now);
        assert_eq!(passed, [100, 101, 102, 103]);
        assert_eq!(wait(&mut replay, now), NextSnapshot::OnRequest);
        // The snapshots before this time have already been played.
        replay.steer(Control::SeekTo(time), now).unwrap();
        assert_eq!(take_due(&mut replay, now), [104]);
        replay.steer(Control::Run, now).unwrap();
        assert_eq!(take_due(&mut replay, now), [105]);
        assert_eq!(wait(&mut replay, now), NextSnapshot::Ended);
        assert_eq!(replay.take(now).unwrap(), None);
    }

    #[test]
    fn replay_can_be_rewound_even_from_the_end() {
        let (mut replay, now) = replay_of(3);
        for _ in 0..2 {
            replay.steer(Control::Run, now).unwrap();
            assert_eq!(take_due(&mut replay, now).len(), 3);
            assert_eq!(wait(&mut replay, now), NextSnapshot::Ended);
            replay.steer(Control::Rewind, now).unwrap();
            assert_eq!(wait(&mut replay, now), NextSnapshot::OnRequest);
        }
        replay.steer(Control::Playing(true), now).unwrap();
        assert_eq!(take_due(&mut replay, now), [100]);

        let mut demo = Replay::demo().unwrap().at_speed(1.0);
        assert!(take_due(&mut demo, now).len() > 10, "its history");
        demo.steer(Control::Rewind, now).unwrap();
        demo.steer(Control::Playing(true), now).unwrap();
        // After a rewind, the history is played at normal speed.
        assert_eq!(take_due(&mut demo, now).len(), 1);
    }

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
        // The first ten seconds are delivered without waiting.
        let skipping = waits(at_speed(1.0), 10.0, &[0.0, 5.0, 9.9, 10.0, 12.0]);
        assert_eq!(skipping, [0.0, 0.0, 0.0, 0.1, 2.0]);
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
