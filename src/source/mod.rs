//! Sources of snapshots.
//!
//! Other modules use the trait [`Source`], which returns snapshots. `live` joins NVML and /proc at regular intervals.
//! `kernel_poller` reads the files of notebook kernels and queries their servers. `named_pids` remembers the processes
//! whose pids NVML listed. `replay` plays recordings. `remote` reads the snapshots of another machine. `nvml` makes all
//! NVML calls.

mod kernel_poller;
pub mod live;
mod named_pids;
pub mod nvml;
pub mod remote;
pub mod replay;

use std::thread;
use std::time::{Duration, Instant};

use crate::model::{Snapshot, Time};
use crate::recording;

/// A source of snapshots.
///
/// Callers that only need snapshots call [`Source::next`]. Callers that also wait for other events call
/// [`due`](Source::due), wait until the next snapshot is due, and call [`take`](Source::take).
pub trait Source: Send {
    /// Returns when the next snapshot is due. May block while reading from a pipe or from another machine. Returns an
    /// error only if a recording cannot be read. Other failures are listed in the snapshot's `errors` or returned by
    /// [`trouble`](Source::trouble).
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError>;

    /// Returns the next snapshot, even if it is not due yet. Returns `None` at the end of a recording, or if no
    /// snapshot has arrived from the remote host.
    fn take(&mut self, now: Instant) -> Result<Option<Snapshot>, SourceError>;

    /// Applies a control. Controls that do not apply to this source have no effect. Returns an error if a recording
    /// cannot be rewound.
    fn steer(&mut self, control: Control, now: Instant) -> Result<(), SourceError>;

    fn origin(&self) -> Origin;

    /// Returns why snapshots are missing, if the reason is known and can be temporary.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns how much of a recording has been read, from 0 to 1, or `None` if that is unknown.
    fn share_read(&self) -> Option<f64> {
        None
    }

    /// Waits until the next snapshot is due, and returns it. Returns `None` if a recording has ended or is paused, or
    /// if another machine sent none.
    fn next(&mut self) -> Result<Option<Snapshot>, SourceError> {
        match self.due(Instant::now())? {
            NextSnapshot::In(wait) => {
                if !wait.is_zero() {
                    thread::sleep(wait);
                }
                self.take(Instant::now())
            }
            NextSnapshot::OnRequest | NextSnapshot::Ended => Ok(None),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextSnapshot {
    In(Duration),
    /// The source is paused until the next control.
    OnRequest,
    /// The recording has ended. Only rewinding it makes another snapshot available.
    Ended,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Control {
    Interval(Duration),
    /// Starts or stops fast sampling of this machine.
    Fast(bool),
    /// Plays a recording at this multiple of its speed.
    Speed(f64),
    Playing(bool),
    /// Plays the next sample of a recording, then pauses.
    Step,
    /// Plays without waiting up to the first sample at or after this time, then pauses.
    SeekTo(Time),
    /// Plays without waiting until the next control.
    Run,
    /// Goes back to the start of a recording, and pauses.
    Rewind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Live,
    /// A recording, whose processes cannot be signalled.
    Replay {
        /// Name to show: the path of the file, `standard input`, or `demo`.
        name: String,
        /// Whether the recording can be rewound, which a pipe cannot.
        can_rewind: bool,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Nvml(#[from] nvml::NvmlFailure),
    #[error(transparent)]
    Recording(#[from] recording::RecordingError),
}
