//! When two observations are of the same process.
//!
//! The kernel reuses pids. A process is identified by boot, pid and start in clock ticks since boot
//! (`/proc/PID/stat`, field 22); by its start time if a stream has no ticks.

use super::time::Time;

/// When a process started, as exactly as a stream tells.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Start {
    /// Clock ticks since boot: exact, and unaffected by setting the clock.
    Ticks(u64),
    /// Wall-clock time, for streams without ticks.
    Time(Time),
    /// /proc did not know the pid, or was not believed.
    Unknown,
}

/// A process, within one boot of one host.
///
/// The boot is not part of the key: another boot or host restarts every history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// In gpumem's own pid namespace.
    pub pid: u32,
    pub start: Start,
}

impl Identity {
    /// Whether this names one process for certain. Otherwise it is never a target.
    pub fn is_certain(&self) -> bool {
        !matches!(self.start, Start::Unknown)
    }

    /// A name of this process and no other, whenever and wherever it is typed: `PID@TICKS@BOOT_ID`. `None` without
    /// an exact start, or for a boot that a shell would take for more than a word.
    pub fn exact_name(&self, boot_id: &str) -> Option<String> {
        let is_word = boot_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        match self.start {
            Start::Ticks(ticks) if is_word => Some(format!("{}@{ticks}@{boot_id}", self.pid)),
            Start::Ticks(_) | Start::Time(_) | Start::Unknown => None,
        }
    }
}
