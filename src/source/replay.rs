//! Plays recordings: a file, standard input, or the built-in demo.
//!
//! Snapshots are passed on unchanged, even if the clock was set back; `rules` handles that. Damaged lines are skipped
//! and listed in [`Replay::damage`]. [`crate::recording`] reads recordings, and [`playback`](super::playback)
//! decides when each snapshot is due.

use std::path::Path;
use std::time::{Duration, Instant};

use super::playback::PlaybackClock;
use super::{Control, NextSnapshot, Origin, Source, SourceError};
use crate::model::Snapshot;
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

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::model::Time;

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
}
