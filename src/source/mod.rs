//! Where snapshots come from.
//!
//! [`Source`] is all that the rest of the house knows: the next snapshot, please. `live` joins NVML
//! and /proc and stamps the time, when `sample_timer` says; `kernel_poller` asks kernels' files and servers for it, `versions`
//! packages for theirs, `named_pids` keeps who NVML's pids were; `replay` plays recordings by a `playback`; `nvml` holds every NVML call.

mod kernel_poller;
pub mod live;
mod named_pids;
pub mod nvml;
pub mod playback;
pub mod replay;
mod sample_timer;
mod versions;

use std::thread;
use std::time::{Duration, Instant};

use crate::model::{Snapshot, Time};
use crate::recording;

/// Yields snapshots at its own pace, which can be steered.
///
/// Who only wants the snapshots calls [`Source::next`]. Who has to hear something else meanwhile
/// asks when the next one is [`due`](Source::due), waits for that as it likes, and takes it.
pub trait Source: Send {
    /// When the next snapshot is due, by a clock that shows `now`. Where a recording is read from a
    /// pipe, this waits for the pipe.
    ///
    /// # Errors
    ///
    /// Only where nothing more can come: no driver at all, or a recording that cannot be read on.
    /// What is broken in part is in the snapshot's `errors`.
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError>;

    /// The next snapshot, due or not; `None` at the end of a recording.
    ///
    /// # Errors
    ///
    /// As [`Source::due`].
    fn take(&mut self, now: Instant) -> Result<Option<Taken>, SourceError>;

    /// Does as it is told; what makes no sense to this source is no error and does nothing.
    ///
    /// # Errors
    ///
    /// Where a recording cannot be read again from its beginning.
    fn steer(&mut self, control: Control, now: Instant) -> Result<(), SourceError>;

    /// Where the snapshots come from.
    fn origin(&self) -> Origin;

    /// How much of a recording has been read, from 0 to 1; `None` where that is not known.
    fn share_read(&self) -> Option<f64> {
        None
    }

    /// The next snapshot; blocks until it is due. `None` at the end of a recording, and where one
    /// stands still.
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
                Ok(self.take(Instant::now())?.map(|taken| taken.snapshot))
            }
            NextSnapshot::OnRequest | NextSnapshot::Ended => Ok(None),
        }
    }
}

/// When a source has its next snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextSnapshot {
    /// So long from now.
    In(Duration),
    /// Not before it is steered: it stands still.
    OnRequest,
    /// Never, unless it is a recording that is begun again.
    Ended,
}

/// A snapshot that was taken.
#[derive(Clone, PartialEq, Debug)]
pub struct Taken {
    /// What was observed.
    pub snapshot: Snapshot,
    /// Whether it is only passed over, on the way to what was asked for.
    pub is_passing: bool,
}

/// What a source can be told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Control {
    /// Sample this machine so often.
    Interval(Duration),
    /// Sample this machine at once and several times a second, or no longer so.
    Fast(bool),
    /// Play a recording so many times as fast as it was made.
    Speed(f64),
    /// Play a recording, or stand still.
    Playing(bool),
    /// The next sample of a recording, then stand still.
    Step,
    /// Pass over the samples that follow and are before this time, then stand still.
    SeekTo(Time),
    /// Pass over the samples that follow until told otherwise.
    Run,
    /// Go back to the beginning of a recording, and stand still there.
    Rewind,
}

/// Where snapshots come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// This machine, now.
    Live,
    /// A recording; nothing in it can be signalled.
    Replay {
        /// What to call it on the screen: the file's name, `standard input`, `demo`.
        name: String,
        /// Whether it can be begun again; a pipe cannot.
        can_rewind: bool,
    },
}

/// Why a source has no more snapshots.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// There is no NVML to ask.
    #[error(transparent)]
    Nvml(#[from] nvml::NvmlFailure),
    /// The recording cannot be read on.
    #[error(transparent)]
    Recording(#[from] recording::RecordingError),
}
