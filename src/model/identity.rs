//! Identifies a process across observations.
//!
//! The kernel reuses pids, so a process is identified by its boot, its pid, and its start in clock ticks since boot
//! (`/proc/PID/stat`, field 22). If a recording does not contain ticks, the start time is used.

use super::time::Time;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Start {
    /// Clock ticks since boot, which do not change when the clock is set.
    Ticks(u64),
    Time(Time),
    /// The start is unknown: /proc does not list the pid, or the process in /proc may be a different one.
    Unknown,
}

/// Identifies a process within one boot of a host.
///
/// The boot is not part of the key, because each history restarts when the boot or the host changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// Pid in the pid namespace of gpumem.
    pub pid: u32,
    pub start: Start,
}

impl Identity {
    /// Returns whether the start is known, so that the identity refers to exactly one process. gpumem only acts on
    /// processes with a certain identity.
    pub fn is_certain(&self) -> bool {
        !matches!(self.start, Start::Unknown)
    }

    /// Returns `PID@TICKS@BOOT_ID`, which never names a different process. Returns `None` if the start ticks are
    /// unknown, or the boot id contains unusual characters.
    pub fn exact_name(&self, boot_id: &str) -> Option<String> {
        let is_word = boot_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        match self.start {
            Start::Ticks(ticks) if is_word => Some(format!("{}@{ticks}@{boot_id}", self.pid)),
            Start::Ticks(_) | Start::Time(_) | Start::Unknown => None,
        }
    }
}
