//! Decides whether two observations are of the same process.
//!
//! The kernel reuses pids. A process is identified by boot, pid and start in clock ticks since boot
//! (`/proc/PID/stat`, field 22). If a recording contains no ticks, the start time is used.

use super::time::Time;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Start {
    /// Clock ticks since boot, an exact time that does not change when the clock is set.
    Ticks(u64),
    Time(Time),
    /// The start is unknown: /proc does not list the pid, or the entry belongs to another process.
    Unknown,
}

/// Identifies a process within one boot of a host.
///
/// The boot is not part of the key, because every history restarts when the boot or the host
/// changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// Pid in gpumem's own pid namespace.
    pub pid: u32,
    pub start: Start,
}

impl Identity {
    /// Returns whether the start is known, so that the identity stands for exactly one process.
    /// gpumem never acts on a process without a certain identity.
    pub fn is_certain(&self) -> bool {
        !matches!(self.start, Start::Unknown)
    }

    /// Returns `PID@TICKS@BOOT_ID`, which matches only this process, at any time and on any
    /// machine. Returns `None` if the start ticks are unknown or the boot id is not a single shell
    /// word.
    pub fn exact_name(&self, boot_id: &str) -> Option<String> {
        let is_word = boot_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        match self.start {
            Start::Ticks(ticks) if is_word => Some(format!("{}@{ticks}@{boot_id}", self.pid)),
            Start::Ticks(_) | Start::Time(_) | Start::Unknown => None,
        }
    }
}
