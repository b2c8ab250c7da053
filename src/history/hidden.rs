//! A process on a GPU whose NVML list lacks it: only its open device file shows it.
//!
//! A worker forked from a trainer holds what the trainer's context held, listed under the trainer's pid or
//! none. It is watched only if its parent and its group's leader are gone, and on GPUs whose memory the list
//! does not explain; which process holds that memory is unknown.

use super::SampleTime;
use super::row::Use;
use super::streak::{Clause, Streak};
use crate::model::Gpu;
use crate::units::GIB;

/// The least unexplained memory; less is rounding by contexts and driver.
const LEAST_UNEXPLAINED_BYTES: u64 = GIB;
/// The driver's reserve if it does not report one: at most one part in this many of the memory.
const RESERVED_SHARE: u64 = 50;
/// The most device files of a process; a machine has fewer GPUs.
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

    /// Since when the list has not explained the GPU's memory and the process has not used the GPU.
    pub fn streak(&self) -> Option<&Streak> {
        self.clause.streak()
    }
}

/// Takes in a snapshot of a GPU whose file the process holds open.
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

/// Whether a GPU has more memory in use than its list explains; `None` if unknown.
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

/// Whether an unlisted process did not use a GPU: no process did, or a listed one did and this one did nothing
/// at all (`is_still`).
pub(super) fn is_unused(gpu: &Gpu, is_still: bool) -> Option<bool> {
    let rows = gpu.processes.as_ref()?;
    match gpu.gpu_percent? {
        0 => Some(true),
        _ => Some(is_still && rows.iter().any(|row| Use::of(gpu, row) == Use::Used)),
    }
}
