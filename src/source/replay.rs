//! Plays recordings: a file, standard input, or the demo that is built in.
//!
//! A recording is passed on as it is, also where its clock jumps back: what that means is for
//! `rules`. What is damaged in it is skipped; [`Replay::damage`] says what. How a recording is read
//! is in [`crate::recording`]; the demo is made by `tests/it/demo.rs`.

use std::io::Cursor;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::{Error, Origin, Source};
use crate::model::{Snapshot, Time};
use crate::recording::{self, Damage, Reader};

/// The demo: a recording of a machine that does not exist.
static DEMO: &[u8] = include_bytes!("demo.jsonl.zst");
/// How much of the demo is history when its screen comes up.
pub const DEMO_HISTORY_SECONDS: f64 = 25.0 * 60.0;
/// A gap in a recording is not waited for longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How fast a recording plays.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// Without waiting.
    AsFast,
    /// By the snapshots' times: 1 is real time, 10 is ten times as fast. What is not above 0 waits
    /// the longest that is ever waited between two snapshots, 5 s.
    Speed(f64),
}

/// So many snapshots are read ahead of who judges them: enough that neither waits for the other's
/// unevenness, little enough that a thousand processes in each do not matter.
const READ_AHEAD: usize = 32;

/// A recording as a source.
#[derive(Debug)]
pub struct Replay {
    name: String,
    input: Input,
    schedule: Schedule,
    started: Option<Instant>,
}

/// Where the snapshots are read.
#[derive(Debug)]
enum Input {
    /// Here, one at a time.
    Here(Box<Reader>),
    /// On a thread of its own, ahead of who takes them.
    Ahead {
        snapshots: Receiver<Result<Snapshot, recording::Error>>,
        /// What is left of the reader when it is done.
        done: Receiver<Reader>,
    },
    /// Nowhere any more.
    Ended(Option<Box<Reader>>),
}

impl Input {
    /// Reads on a thread of its own, or here where there can be none.
    fn ahead(reader: Reader) -> Self {
        let (give, snapshots) = mpsc::sync_channel(READ_AHEAD);
        let (finish, done) = mpsc::sync_channel(1);
        // The reader is handed over once the thread runs, so that it is not lost where none can.
        let (hand_over, take) = mpsc::sync_channel::<Reader>(1);
        let thread = thread::Builder::new().name("replay".to_owned());
        let spawned = thread.spawn(move || {
            let Ok(mut reader) = take.recv() else {
                return;
            };
            // Whoever took the snapshots may have had enough.
            for snapshot in reader.by_ref() {
                if give.send(snapshot).is_err() {
                    return;
                }
            }
            let _ = finish.send(reader);
        });
        match spawned {
            Ok(_) => match hand_over.send(reader) {
                Ok(()) => Self::Ahead { snapshots, done },
                Err(mpsc::SendError(reader)) => Self::Here(Box::new(reader)),
            },
            Err(_) => Self::Here(Box::new(reader)),
        }
    }

    fn next(&mut self) -> Result<Option<Snapshot>, recording::Error> {
        match self {
            Self::Here(reader) => reader.next().transpose(),
            Self::Ahead { snapshots, done } => match snapshots.recv() {
                Ok(snapshot) => snapshot.map(Some),
                Err(mpsc::RecvError) => {
                    *self = Self::Ended(done.recv().ok().map(Box::new));
                    Ok(None)
                }
            },
            Self::Ended(_) => Ok(None),
        }
    }

    /// Whoever has read so far, where that is known.
    fn reader(&self) -> Option<&Reader> {
        match self {
            Self::Here(reader) => Some(reader),
            Self::Ahead { .. } => None,
            Self::Ended(reader) => reader.as_deref(),
        }
    }
}

impl Replay {
    /// Plays what `reader` reads.
    pub fn new(reader: Reader, pace: Pace) -> Self {
        Self {
            name: reader.name().to_owned(),
            input: match pace {
                Pace::AsFast => Input::ahead(reader),
                Pace::Speed(_) => Input::Here(Box::new(reader)),
            },
            schedule: Schedule::new(pace),
            started: None,
        }
    }

    /// Plays a file; `-` is standard input.
    ///
    /// # Errors
    ///
    /// As [`Reader::open`].
    pub fn open(path: &Path, pace: Pace) -> Result<Self, recording::Error> {
        Ok(Self::new(Reader::open(path)?, pace))
    }

    /// Plays the demo. Its first 25 minutes are delivered at once, so that there is history to judge
    /// when the screen comes up; 15 minutes follow.
    ///
    /// # Errors
    ///
    /// None that a file could cause: the demo is part of the program.
    pub fn demo(pace: Pace) -> Result<Self, recording::Error> {
        let reader = Reader::from_read(Cursor::new(DEMO), "demo")?;
        Ok(Self::new(reader, pace).start_after(DEMO_HISTORY_SECONDS))
    }

    /// Delivers the snapshots of the first `seconds`, by their own times, without waiting.
    #[must_use]
    pub fn start_after(mut self, seconds: f64) -> Self {
        self.schedule.skip_seconds = seconds;
        self
    }

    /// What to call the recording in a message.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The damage met so far (see [`Reader::damage`]); at full pace it is known at the end.
    pub fn damage(&self) -> &[Damage] {
        self.input.reader().map_or(&[], Reader::damage)
    }

    /// How many damaged lines were met so far; at full pace it is known at the end.
    pub fn damage_count(&self) -> u64 {
        self.input.reader().map_or(0, Reader::damage_count)
    }
}

impl Source for Replay {
    /// The next snapshot, when it is due. Only the end of the process interrupts the wait.
    fn next(&mut self) -> Result<Option<Snapshot>, Error> {
        let Some(snapshot) = self.input.next()? else {
            return Ok(None);
        };
        let now = self.started.get_or_insert_with(Instant::now).elapsed();
        let wait = self.schedule.wait(snapshot.time, now);
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        Ok(Some(snapshot))
    }

    fn origin(&self) -> Origin {
        Origin::Replay {
            name: self.name.clone(),
        }
    }
}

/// When snapshots are due, on a clock that is handed in.
#[derive(Debug)]
struct Schedule {
    pace: Pace,
    skip_seconds: f64,
    first: Option<Time>,
    previous: Option<Time>,
    /// When the previous snapshot was due.
    due: Duration,
}

impl Schedule {
    fn new(pace: Pace) -> Self {
        Self {
            pace,
            skip_seconds: 0.0,
            first: None,
            previous: None,
            due: Duration::ZERO,
        }
    }

    /// How long to wait at `now` for a snapshot taken at `time`.
    fn wait(&mut self, time: Time, now: Duration) -> Duration {
        let first = *self.first.get_or_insert(time);
        let previous = self.previous.replace(time);
        let (Pace::Speed(speed), Some(previous)) = (self.pace, previous) else {
            self.due = now;
            return Duration::ZERO;
        };
        if time.seconds_since(first) < self.skip_seconds {
            self.due = now;
            return Duration::ZERO;
        }
        // A clock that jumped back waits for nothing.
        let gap = time.seconds_since(previous).max(0.0);
        let gap = if speed > 0.0 {
            Duration::try_from_secs_f64(gap / speed).unwrap_or(LONGEST_WAIT)
        } else {
            LONGEST_WAIT
        };
        // Counted from when the previous one was due, so that delays do not add up; but what was
        // held up for long, by Ctrl-Z say, does not rush to make up for it.
        self.due = (self.due + gap.min(LONGEST_WAIT)).max(now);
        self.due - now
    }
}

#[cfg(test)]
mod tests {
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
        Replay::new(
            Reader::from_read(Cursor::new(bytes), "r.jsonl").unwrap(),
            Pace::AsFast,
        )
    }

    fn drain(replay: &mut Replay) -> Vec<Snapshot> {
        std::iter::from_fn(|| replay.next().unwrap()).collect()
    }

    #[test]
    fn it_passes_on_what_was_recorded_also_where_the_clock_jumps_back() {
        let snapshots = snapshots(&[100, 105, 40, 45]);
        let mut replay = replay(recording(&snapshots));
        assert_eq!(
            replay.origin(),
            Origin::Replay {
                name: "r.jsonl".into()
            }
        );
        assert_eq!(drain(&mut replay), snapshots);
        assert_eq!(replay.next().unwrap(), None);
        assert!(replay.damage().is_empty());
    }

    #[test]
    fn damage_is_told_and_what_is_no_recording_is_an_error() {
        let snapshots = snapshots(&[100, 105]);
        let mut bytes = recording(&snapshots);
        bytes.truncate(bytes.len() - 9);
        let mut cut = replay(bytes);
        assert_eq!(drain(&mut cut), snapshots[..1]);
        assert_eq!((cut.damage().len(), cut.damage_count()), (1, 1));

        let error = replay(b"hello\n".to_vec()).next().unwrap_err().to_string();
        assert!(error.starts_with("r.jsonl holds no snapshot"), "{error}");
    }

    /// Plays `times` on a clock that stands still but for the waits, and returns those in seconds.
    fn waits(pace: Pace, skip_seconds: f64, times: &[f64]) -> Vec<f64> {
        let mut schedule = Schedule::new(pace);
        schedule.skip_seconds = skip_seconds;
        let mut now = Duration::ZERO;
        times
            .iter()
            .map(|&seconds| {
                let wait = schedule.wait(Time::default().plus_seconds(seconds), now);
                now += wait;
                wait.as_secs_f64()
            })
            .collect()
    }

    #[test]
    fn it_waits_by_the_times_recorded_and_never_long() {
        let times = [0.0, 2.0, 3.0, 3.0, 1.0, 2.0, 9999.0];
        assert_eq!(
            waits(Pace::Speed(1.0), 0.0, &times),
            [0.0, 2.0, 1.0, 0.0, 0.0, 1.0, 5.0]
        );
        assert_eq!(
            waits(Pace::Speed(4.0), 0.0, &times),
            [0.0, 0.5, 0.25, 0.0, 0.0, 0.25, 5.0]
        );
        assert_eq!(waits(Pace::AsFast, 0.0, &times), [0.0; 7]);
        for odd in [0.0, -1.0, f64::NAN, f64::MIN_POSITIVE] {
            assert_eq!(waits(Pace::Speed(odd), 0.0, &[0.0, 1.0]), [0.0, 5.0]);
        }
        assert_eq!(
            waits(Pace::Speed(f64::INFINITY), 0.0, &[0.0, 1.0]),
            [0.0, 0.0]
        );
    }

    #[test]
    fn the_first_part_is_delivered_at_once() {
        assert_eq!(
            waits(Pace::Speed(1.0), 10.0, &[0.0, 5.0, 9.9, 10.0, 12.0]),
            [0.0, 0.0, 0.0, 0.1, 2.0]
        );
    }

    #[test]
    fn delays_do_not_add_up_and_a_long_stop_is_not_made_up_for() {
        let at = |seconds| Time::default().plus_seconds(seconds);
        let mut schedule = Schedule::new(Pace::Speed(1.0));
        assert_eq!(schedule.wait(at(0.0), Duration::ZERO), Duration::ZERO);
        // The screen took 0.3 s to draw.
        assert_eq!(
            schedule.wait(at(1.0), Duration::from_millis(300)),
            Duration::from_millis(700)
        );
        // It was stopped for an hour.
        let later = Duration::from_secs(3600);
        assert_eq!(schedule.wait(at(2.0), later), Duration::ZERO);
        assert_eq!(schedule.wait(at(3.0), later), Duration::from_secs(1));
    }

    #[test]
    fn the_demo_plays_to_its_end() {
        let mut demo = Replay::demo(Pace::AsFast).unwrap();
        assert_eq!(
            demo.origin(),
            Origin::Replay {
                name: "demo".into()
            }
        );
        let snapshots = drain(&mut demo);
        let (Some(first), Some(last)) = (snapshots.first(), snapshots.last()) else {
            panic!("the demo is empty");
        };
        assert!(last.time.seconds_since(first.time) > DEMO_HISTORY_SECONDS + 600.0);
        assert_eq!(demo.damage_count(), 0);
    }
}
