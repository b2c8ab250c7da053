//! A bounded window of points per process and GPU.

use crate::model::{Identity, Time};

/// What has been seen so far, bounded.
#[derive(Debug, Default)]
pub struct History {}

impl History {
    /// Since when a process is known not to have used a GPU (NVML's index); `None` while it uses it
    /// or where that is unknown.
    pub fn idle_since(&self, _identity: Identity, _gpu: u32) -> Option<Time> {
        None
    }
}
