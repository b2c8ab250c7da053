//! Sources of snapshots.
//!
//! Other modules use only the trait [`Source`], which returns snapshots. `live` joins NVML and /proc at intervals that
//! `sample_timer` schedules. `kernel_poller` reads the files of notebook kernels and queries their servers.
//! `named_pids` stores the processes that have the pids listed by NVML. `replay` plays recordings, and `playback`
//! schedules their snapshots. `remote` reads the recording of another machine. `nvml` makes all NVML calls.

mod kernel_poller;
pub mod live;
mod named_pids;
pub mod nvml;
pub mod playback;
pub mod remote;
pub mod replay;
mod sample_timer;

use std::thread;
use std::time::{Duration, Instant};

use crate::model::{Snapshot, Time};
use crate::recording;

/// A source of snapshots.
///
/// Callers that only need snapshots call [`Source::next`]. Callers that also wait for other events call
/// [`due`](Source::due), wait until the next snapshot is due, and then call [`take`](Source::take).
pub trait Source: Send {
    /// Returns when the next snapshot is due. Blocks while a recording is read from a pipe. Fails only if no snapshot
    /// can follow, because there is no driver or a recording cannot be read further. Partial failures are in the
    /// snapshot's `errors`.
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError>;

    /// Returns the next snapshot even if it is not due, or `None` at the end of a recording.
    fn take(&mut self, now: Instant) -> Result<Option<Snapshot>, SourceError>;

    /// Applies a control, or does nothing if the control does not apply to this source. Fails if a recording cannot be
    /// read again from its beginning.
    fn steer(&mut self, control: Control, now: Instant) -> Result<(), SourceError>;

    fn origin(&self) -> Origin;

    /// Returns why snapshots are missing, if the reason is known and may be temporary.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns how much of a recording has been read, from 0 to 1, or `None` if unknown.
    fn share_read(&self) -> Option<f64> {
        None
    }

    /// Waits until the next snapshot is due and returns it. Returns `None` if a recording has ended or is paused.
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
    /// After the next control, because the source is paused.
    OnRequest,
    /// Never, unless the recording is rewound.
    Ended,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Control {
    Interval(Duration),
    /// Start or stop fast sampling of this machine.
    Fast(bool),
    /// Play a recording at this multiple of real time.
    Speed(f64),
    Playing(bool),
    /// Go to the next sample of a recording, then pause.
    Step,
    /// Skip samples before this time, then pause.
    SeekTo(Time),
    /// Skip samples until the next control.
    Run,
    /// Go back to the beginning of a recording, and pause.
    Rewind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Live,
    /// A recording, whose processes cannot be signalled.
    Replay {
        /// Name for display: the file's name, `standard input` or `demo`.
        name: String,
        /// Whether the recording can be rewound. A pipe cannot.
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
