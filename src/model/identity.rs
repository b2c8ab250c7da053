//! Decides when two observations are of the same process.
//!
//! The kernel reuses pids. A process is identified by boot, pid and start in clock ticks since boot
//! (`/proc/PID/stat`, field 22). Streams without ticks use the start time.

use super::time::Time;

/// When a process started, as exactly as the stream reports it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Start {
    /// Clock ticks since boot: exact, and unaffected by setting the clock.
    Ticks(u64),
    Time(Time),
    /// /proc did not list the pid, or its entry belongs to another process.
    Unknown,
}

/// A process, within one boot of one host.
///
/// The boot is not part of the key: another boot or host restarts every history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// The pid in gpumem's own pid namespace.
    pub pid: u32,
    pub start: Start,
}

impl Identity {
    /// Whether this identifies one process for certain. A process without a certain identity is never a target.
    pub fn is_certain(&self) -> bool {
        !matches!(self.start, Start::Unknown)
    }

    /// A name that matches only this process, at any time and on any machine: `PID@TICKS@BOOT_ID`. `None` without
    /// an exact start, or if the boot id is not a single shell word.
    pub fn exact_name(&self, boot_id: &str) -> Option<String> {
        let is_word = boot_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        match self.start {
            Start::Ticks(ticks) if is_word => Some(format!("{}@{ticks}@{boot_id}", self.pid)),
            Start::Ticks(_) | Start::Time(_) | Start::Unknown => None,
        }
    }
}
