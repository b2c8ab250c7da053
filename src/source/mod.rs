//! Where snapshots come from.
//!
//! Other rooms know only [`Source`], which returns the next snapshot. `live` joins NVML and /proc and stamps
//! the time, when `sample_timer` says so. `kernel_poller` asks kernels' files and servers,
//! `named_pids` remembers whose NVML's pids were. `replay` plays recordings at the pace of a
//! `playback`. `remote` reads what another machine records. `nvml` makes every NVML call.

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

/// Yields snapshots at its own, adjustable pace.
///
/// Callers that want only snapshots call [`Source::next`]. Callers that wait for other events too ask when the
/// next one is [`due`](Source::due), wait as they like, and take it.
pub trait Source: Send {
    /// When the next snapshot is due, by a clock that shows `now`. This waits for a recording that is read from
    /// a pipe.
    ///
    /// # Errors
    ///
    /// Only if nothing more can come: no driver at all, or a recording that cannot be read on. Partial failures
    /// are in the snapshot's `errors`.
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError>;

    /// The next snapshot, due or not; `None` at the end of a recording.
    ///
    /// # Errors
    ///
    /// As [`Source::due`].
    fn take(&mut self, now: Instant) -> Result<Option<Snapshot>, SourceError>;

    /// Carries out a control; one that makes no sense for this source does nothing.
    ///
    /// # Errors
    ///
    /// If a recording cannot be read again from its beginning.
    fn steer(&mut self, control: Control, now: Instant) -> Result<(), SourceError>;

    /// Where the snapshots come from.
    fn origin(&self) -> Origin;

    /// Why no snapshot comes at the moment, where that is known and may pass.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// How much of a recording has been read, from 0 to 1; `None` if unknown.
    fn share_read(&self) -> Option<f64> {
        None
    }

    /// Blocks until the next snapshot is due. `None` at the end of a recording, and while one is paused.
    ///
    /// # Errors
    ///
    /// As [`Source::due`].
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

/// When a source has its next snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextSnapshot {
    In(Duration),
    /// Only after a control: it is paused.
    OnRequest,
    /// Never, unless a recording is rewound.
    Ended,
}

/// How a source can be controlled.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Control {
    /// Sample this machine at this interval.
    Interval(Duration),
    /// Sample this machine at once and several times a second, or stop doing so.
    Fast(bool),
    /// Play a recording at this multiple of real time.
    Speed(f64),
    /// Play a recording, or pause it.
    Playing(bool),
    /// Go to a recording's next sample, then pause.
    Step,
    /// Skip samples before this time, then pause.
    SeekTo(Time),
    /// Skip samples until the next control.
    Run,
    /// Go back to a recording's beginning, and pause.
    Rewind,
}

/// Where snapshots come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Live,
    /// A recording; nothing in it can be signalled.
    Replay {
        /// Its name on the screen: the file's name, `standard input`, `demo`.
        name: String,
        /// Whether it can be rewound; a pipe cannot.
        can_rewind: bool,
    },
}

/// Why a source has no more snapshots.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// NVML cannot be used.
    #[error(transparent)]
    Nvml(#[from] nvml::NvmlFailure),
    /// The recording cannot be read further.
    #[error(transparent)]
    Recording(#[from] recording::RecordingError),
}
