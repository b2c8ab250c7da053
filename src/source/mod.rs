//! Where snapshots come from.
//!
//! [`Source`] is all that the rest of the house knows: the next snapshot, please. `live` joins NVML
//! and /proc and stamps the time, `notebooks` asks Jupyter's servers for it; `replay` plays recordings; `nvml` holds every NVML call.

pub mod live;
mod notebooks;
pub mod nvml;
pub mod replay;

use crate::model::Snapshot;
use crate::recording;

/// Yields snapshots at its own pace.
pub trait Source: Send {
    /// The next snapshot; blocks until it is due. `None` at the end of a recording.
    ///
    /// # Errors
    ///
    /// Only where nothing more can come: no driver at all, or a recording that cannot be read on.
    /// What is broken in part is in the snapshot's `errors`.
    fn next(&mut self) -> Result<Option<Snapshot>, Error>;

    /// Where the snapshots come from.
    fn origin(&self) -> Origin;
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
    },
}

/// Why a source has no more snapshots.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no NVML to ask.
    #[error(transparent)]
    Nvml(#[from] nvml::Error),
    /// The recording cannot be read on.
    #[error(transparent)]
    Recording(#[from] recording::Error),
}
