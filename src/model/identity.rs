//! Decides whether two observations are of the same process.
//!
//! The kernel reuses pids. A process is identified by boot, pid and start in clock ticks since boot
//! (`/proc/PID/stat`, field 22). If a recording has no ticks, the start time is used.

use super::time::Time;

/// When a process started, as precisely as known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Start {
    /// Clock ticks since boot: exact, and unaffected by setting the clock.
    Ticks(u64),
    Time(Time),
    /// /proc did not list the pid, or its entry belongs to another process.
    Unknown,
}

/// Identifies a process within one boot of a host.
///
/// The boot is not part of the key, because all histories restart when the boot or host changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// The pid in gpumem's own pid namespace.
    pub pid: u32,
    pub start: Start,
}

impl Identity {
    /// Whether this certainly identifies one process. gpumem never acts on a process without a certain identity.
    pub fn is_certain(&self) -> bool {
        !matches!(self.start, Start::Unknown)
    }

    /// Returns a name that matches only this process, at any time and on any machine: `PID@TICKS@BOOT_ID`. `None`
    /// without an exact start, or if the boot id is not a single shell word.
    pub fn exact_name(&self, boot_id: &str) -> Option<String> {
        let is_word = boot_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        match self.start {
            Start::Ticks(ticks) if is_word => Some(format!("{}@{ticks}@{boot_id}", self.pid)),
            Start::Ticks(_) | Start::Time(_) | Start::Unknown => None,
        }
    }
}
