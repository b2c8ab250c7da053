//! A process on a GPU that NVML does not list there: only the device file that it holds open tells.
//!
//! A worker that was forked from a trainer holds what the trainer's context held, under the trainer's
//! name or under none. It is watched only where its parent and its group's leader are gone, on GPUs
//! whose memory the list does not explain; which process has that memory is not known.

use super::SampleTime;
use super::row::Use;
use super::streak::{Clause, Streak};
use crate::model::Gpu;
use crate::units::GIB;

/// Less memory than this is what contexts and the driver round off.
const LEAST_UNEXPLAINED_BYTES: u64 = GIB;
/// What the driver reserves of a GPU, at most, where it does not tell: a share of all its memory.
const RESERVED_SHARE: u64 = 50;
/// A process has no more device files than this machine has GPUs.
const MOST_FILES: usize = 256;

/// A GPU whose device file a process holds open without being listed on it.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    device: u32,
    clause: Clause,
}

impl Hidden {
    pub(super) fn device(&self) -> usize {
        self.device as usize
    }

    /// Since when the GPU's memory has not been explained by its list and the process has not used it.
    pub fn streak(&self) -> Option<&Streak> {
        self.clause.streak()
    }
}

/// Takes in what a snapshot says of one GPU whose file a process holds open.
pub(super) fn observe(
    known: &mut Vec<Hidden>,
    device: usize,
    holds: Option<bool>,
    moment: SampleTime,
) {
    let place = known.iter().position(|hidden| hidden.device() == device);
    let place = match place {
        Some(place) => place,
        None if known.len() < MOST_FILES && holds == Some(true) => {
            known.push(Hidden {
                device: u32::try_from(device).unwrap_or(u32::MAX),
                clause: Clause::default(),
            });
            known.len() - 1
        }
        None => return,
    };
    known[place].clause.observe(holds, moment);
}

/// Whether the memory of a GPU is more than its list explains; `None` where that cannot be told.
pub(super) fn is_unexplained(gpu: &Gpu) -> Option<bool> {
    if gpu.is_divided() || gpu.stale_seconds.is_some() {
        return None;
    }
    let memory = gpu.memory?;
    let used = match memory.reserved_bytes {
        Some(_) => memory.used_bytes,
        None => memory.used_bytes.saturating_sub((memory.total_bytes / RESERVED_SHARE).max(GIB)),
    };
    let listed = gpu.process_bytes()?;
    Some(used.saturating_sub(listed) >= LEAST_UNEXPLAINED_BYTES)
}

/// Whether a process that is not listed on a GPU did not use it: no process did, or a listed one
/// did and this one did nothing at all (`is_still`).
pub(super) fn is_unused(gpu: &Gpu, is_still: bool) -> Option<bool> {
    let rows = gpu.processes.as_ref()?;
    match gpu.gpu_percent? {
        0 => Some(true),
        _ => Some(is_still && rows.iter().any(|row| Use::of(gpu, row) == Use::Used)),
    }
}
