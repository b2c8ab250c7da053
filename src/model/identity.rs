//! When two observations are of the same process.
//!
//! A pid is a number that the kernel hands out again. A process is identified by the boot, its pid
//! and its start in clock ticks since boot (`/proc/PID/stat`, field 22); where a stream carries no
//! ticks, by its start time.

use super::time::Time;

/// When a process started, as exactly as a stream tells it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Start {
    /// Clock ticks since boot: exact, and untouched by a clock that is set.
    Ticks(u64),
    /// Wall-clock time, for streams without ticks.
    Time(Time),
    /// /proc did not know the pid, or what it knew was not believed.
    Unknown,
}

/// A process, within one boot of one host.
///
/// The boot is not part of the key: a change of boot or host starts every history afresh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// The process id, in gpumem's own pid namespace.
    pub pid: u32,
    /// When it started.
    pub start: Start,
}

impl Identity {
    /// Whether this names one process for certain. What is not certain is never a target.
    pub fn is_certain(&self) -> bool {
        !matches!(self.start, Start::Unknown)
    }
}
