//! Sources of snapshots.
//!
//! Other modules use only the trait [`Source`], which yields snapshots. `live` joins NVML and /proc and stamps the
//! time, at the pace of `sample_timer`. `kernel_poller` reads the files and servers of notebook kernels. `named_pids`
//! remembers the processes behind NVML's pids. `replay` plays recordings at the pace of a `playback`. `remote` reads
//! another machine's recording. `nvml` makes every NVML call.

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

/// Yields snapshots at its own pace, which can be changed.
///
/// Callers that only need snapshots call [`Source::next`]. Callers that also wait for other events ask when the next
/// snapshot is [`due`](Source::due), wait until then, and take the snapshot.
pub trait Source: Send {
    /// When the next snapshot is due; `now` is the current time. Blocks while a recording is read from a pipe. Fails
    /// only if no snapshot can follow: there is no driver at all, or a recording cannot be read further. Partial
    /// failures are in the snapshot's `errors`.
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError>;

    /// Returns the next snapshot, even if it is not due; `None` at the end of a recording.
    fn take(&mut self, now: Instant) -> Result<Option<Snapshot>, SourceError>;

    /// Applies a control, or does nothing if the control does not apply to this source. Fails if a recording cannot
    /// be reread from its beginning.
    fn steer(&mut self, control: Control, now: Instant) -> Result<(), SourceError>;

    fn origin(&self) -> Origin;

    /// Why snapshots are missing, if the reason is known and may be temporary.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// How much of a recording has been read, from 0 to 1; `None` if unknown.
    fn share_read(&self) -> Option<f64> {
        None
    }

    /// Blocks until the next snapshot is due. `None` if a recording has ended or is paused.
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

/// When a source provides its next snapshot.
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
    /// Start fast sampling of this machine, beginning now, or stop it.
    Fast(bool),
    /// Play a recording at this multiple of real time.
    Speed(f64),
    /// Play or pause a recording.
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
        /// Name on the screen: the file's name, `standard input`, `demo`.
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
