//! Decides from NVML's data whether the memory is freed, and derives the outcome of an act.
//!
//! The exit of a process does not prove that its memory is free. A blocked driver, or a forked process that inherited
//! the file descriptors, can still hold it. Memory is freed when NVML no longer lists the processes and unattributed
//! memory has not grown. The total usage of the GPU is weaker evidence, because another process can allocate memory in
//! the meantime.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guard::Protection;
use super::release::{NotReleased, ReleaseReport};
use super::target::{Target, TargetProcess, listed};
use crate::model::{Gpu, Process, Snapshot, Time};
use crate::units::{Bytes, MIB};

/// Time limit, in seconds, for the driver to free the memory after the last process has exited.
pub const DEADLINE_SECONDS: f64 = 10.0;

/// Lower limit, in bytes, of the tolerated growth of unattributed memory. The tolerance is a quarter of the memory
/// that the target held, but within [`MIN_SLACK`] and [`MAX_SLACK`].
const MIN_SLACK: u64 = 16 * MIB;
/// Minimum decrease, in bytes, that is reported as a release. GPU memory is allocated in blocks of a few MiB.
pub const MIN_RELEASED: u64 = 16 * MIB;
/// Number of samples over which the released memory is measured.
const RELEASE_SAMPLES: usize = 3;
/// Upper limit, in bytes, of the tolerated growth of unattributed memory.
const MAX_SLACK: u64 = 256 * MIB;

/// Outcome of an act.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// NVML shows that the memory is free.
    Freed {
        /// Memory that was freed, in bytes.
        bytes: u64,
        /// Time from the first action until NVML showed that the memory is free, in milliseconds.
        ms: u64,
    },
    /// All processes have exited, but the memory is not free.
    ExitedNotFreed {
        /// PIDs that may hold the memory: of processes that have the GPU open but are not listed by NVML, or of
        /// processes that do not exist although NVML lists them.
        holders: Vec<u32>,
    },
    /// A new process has replaced a killed process.
    Respawned {
        /// PID of the new process.
        pid: u32,
        /// Freed memory minus the memory of the new process, in bytes.
        #[serde(default)]
        bytes: u64,
    },
    /// The processes had already exited or released the memory.
    AlreadyGone,
    /// A PID of the plan now belongs to another process; nothing was sent.
    IdentityChanged,
    /// The condition of the finding no longer holds, or is no longer certain to hold.
    RuleNoLongerTrue,
    /// The process is protected.
    Protected {
        /// Reason for the protection.
        why: Protection,
    },
    /// The kernel denied permission to signal a process.
    NotPermitted,
    /// A thread is blocked in the kernel. Even SIGKILL takes effect only when the driver releases the thread.
    StuckInDriver {
        /// Kernel function that blocks the thread; `"?"` if unknown.
        wchan: Arc<str>,
    },
    /// The process is still running after all signals.
    StillAlive,
    /// According to NVML, the process released memory. It is still running, or has exited by itself.
    Released {
        /// Released memory, in bytes: the minimum of three samples after the request.
        bytes: u64,
        /// Time from the request until NVML first showed this memory as free, in milliseconds.
        ms: u64,
        /// The process's own report, which proves nothing.
        #[serde(flatten)]
        report: Box<ReleaseReport>,
    },
    /// The process was asked and keeps running, but NVML shows almost no memory released.
    NothingToRelease {
        /// Released memory, in bytes; less than 16 MiB.
        bytes: u64,
        /// The process's own report. Its `why` is the reason why nothing was released.
        #[serde(flatten)]
        report: Box<ReleaseReport>,
    },
    /// The process is working and was left alone.
    Busy {
        /// Evidence that the process is working. Contains untrusted text: escape it for a terminal.
        why: Arc<str>,
    },
    /// The process cannot be asked to release memory.
    NoWayIn {
        /// Why each method is impossible. Contains untrusted text: escape it for a terminal.
        why: Arc<str>,
    },
    /// gpumem must not ask the process, or the process refused the request.
    Refused {
        /// The reason, and what to do. Contains untrusted text: escape it for a terminal.
        why: Arc<str>,
    },
    /// The process did not answer in time.
    TimedOut {
        /// Whether the process may still answer. Contains untrusted text: escape it for a terminal.
        why: Arc<str>,
    },
    /// The GPU memory of the process is in host memory, and NVML shows it as free. The process keeps running; its next
    /// CUDA call waits until it is restored.
    Parked {
        /// Memory that was moved, in bytes.
        bytes: u64,
        /// Time that this took, in milliseconds.
        ms: u64,
    },
    /// Parking failed.
    ParkFailed {
        /// The reason, and the state of the process. Contains untrusted text: escape it for a terminal.
        why: Arc<str>,
    },
    /// The process exited during the request. Any freed memory is due to the exit.
    Exited,
}

impl Outcome {
    /// Returns whether the act achieved its purpose: the memory was freed, or no process held it anymore.
    pub fn is_success(&self) -> bool {
        matches!(
            self,
            Self::Freed { .. } | Self::AlreadyGone | Self::Released { .. } | Self::Parked { .. }
        )
    }

    pub fn name(&self) -> Arc<str> {
        let value = serde_json::to_value(self).ok();
        value.as_ref().and_then(|value| value["outcome"].as_str()).unwrap_or_default().into()
    }

    pub fn freed_bytes(&self) -> u64 {
        match self {
            Self::Freed { bytes, .. }
            | Self::Respawned { bytes, .. }
            | Self::Released { bytes, .. }
            | Self::Parked { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    pub fn wake(&self) -> Option<&Arc<str>> {
        match self {
            Self::Released { report, .. } | Self::NothingToRelease { report, .. } => {
                report.wake.as_ref()
            }
            _ => None,
        }
    }

    pub fn of_release(error: &NotReleased) -> Self {
        let why = error.why().into();
        match error {
            NotReleased::Busy(_) => Self::Busy { why },
            NotReleased::NoWayIn(_) => Self::NoWayIn { why },
            NotReleased::Refused(_) => Self::Refused { why },
            NotReleased::TimedOut(_) => Self::TimedOut { why },
        }
    }

    pub fn from_protection(protection: Protection) -> Self {
        match protection {
            Protection::NotPermitted { .. } => Self::NotPermitted,
            Protection::Replaced => Self::IdentityChanged,
            why => Self::Protected { why },
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Freed { bytes, ms } => {
                write!(f, "freed {} in {:.1} s", Bytes(*bytes), *ms as f64 / 1000.0)
            }
            Self::ExitedNotFreed { holders } if holders.is_empty() => f.write_str(
                "exited, but its memory was not freed; as root, find the processes that have the GPU open",
            ),
            Self::ExitedNotFreed { holders } => {
                let pids = listed(holders);
                write!(f, "exited, but its memory was not freed; see `gpumem explain` for {pids}")
            }
            Self::Respawned { pid, bytes } => write!(
                f,
                "freed {}, and {pid} was started in its place; stop what starts it: a kernel in \
                its notebook, a service by systemctl stop",
                Bytes(*bytes)
            ),
            Self::AlreadyGone => f.write_str("already gone"),
            Self::IdentityChanged => {
                f.write_str("its pid belongs to another process now; nothing was sent")
            }
            Self::RuleNoLongerTrue => f.write_str("skipped: the finding is no longer certain"),
            Self::Protected { why } => write!(f, "skipped: {why}"),
            Self::NotPermitted => {
                f.write_str("not permitted; that requires root or the process's owner")
            }
            Self::StuckInDriver { wchan } => write!(
                f,
                "blocked in the kernel ({wchan}); it exits when the driver releases it: drain the \
                machine and restart it"
            ),
            Self::StillAlive => f.write_str("still alive after all signals"),
            Self::Released { bytes, ms, report } => {
                let seconds = *ms as f64 / 1000.0;
                write!(f, "released {} in {seconds:.1} s", Bytes(*bytes))?;
                write_report(f, report)?;
                match &report.why {
                    Some(why) => write!(f, "; {why}"),
                    None => Ok(()),
                }
            }
            Self::NothingToRelease { report, .. } => {
                f.write_str("nothing to release")?;
                write_report(f, report)?;
                let why = report.why.as_deref();
                write!(f, ": {}", why.unwrap_or("NVML shows no memory freed"))
            }
            Self::Busy { why } => write!(f, "busy: {why}"),
            Self::NoWayIn { why } => write!(f, "cannot be asked to release memory: {why}"),
            Self::Refused { why } => write!(f, "refused: {why}"),
            Self::TimedOut { why } => write!(f, "timed out: {why}"),
            Self::Parked { bytes, ms } => {
                let seconds = *ms as f64 / 1000.0;
                write!(f, "parked {} in host memory in {seconds:.1} s", Bytes(*bytes))
            }
            Self::ParkFailed { why } => write!(f, "parking failed: {why}"),
            Self::Exited => f.write_str("exited while it was asked to release memory"),
        }
    }
}

fn write_report(f: &mut fmt::Formatter<'_>, report: &ReleaseReport) -> fmt::Result {
    if let Some(live) = report.live_bytes {
        write!(f, "; it has {} in use", Bytes(live))?;
    }
    if let Some(cached) = report.cached_bytes_left {
        write!(f, "; {} still cached", Bytes(cached))?;
    }
    Ok(())
}

/// Measures how much memory a target has released while it keeps running.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReleaseMeter {
    before: Option<u64>,
    /// Bytes held in each sample after the release, oldest first.
    after: Vec<(Time, u64)>,
}

impl ReleaseMeter {
    pub fn new(target: &Target, snapshot: &Snapshot) -> Self {
        Self { before: held_bytes(target, snapshot), after: Vec::new() }
    }

    /// Adds a snapshot taken after the release. Ignores a snapshot that is not newer than the previous one.
    pub fn add(&mut self, target: &Target, snapshot: &Snapshot) {
        let last = self.after.last().map(|(time, _)| *time);
        if last.is_none_or(|last| last < snapshot.time)
            && let Some(held) = held_bytes(target, snapshot)
        {
            self.after.push((snapshot.time, held));
        }
    }

    /// Returns the minimum number of bytes released in the last three samples, and the time of the first sample that
    /// shows at least as many bytes released. Returns `None` if this is unknown.
    pub fn released(&self) -> Option<(u64, Time)> {
        let before = self.before.filter(|_| self.after.len() >= RELEASE_SAMPLES)?;
        let last = self.after.iter().rev().take(RELEASE_SAMPLES);
        let held = last.map(|(_, held)| *held).max()?;
        let (since, _) = self.after.iter().find(|(_, held_then)| *held_then <= held)?;
        Some((before.saturating_sub(held), *since))
    }
}

/// Returns how many bytes NVML lists for the members, or `None` if a value is unknown or the snapshot contains none
/// of their GPUs.
fn held_bytes(target: &Target, snapshot: &Snapshot) -> Option<u64> {
    let is_on_gpu = |gpu: &&Gpu| {
        let mut of_members = target.members.iter().flat_map(|member| &member.gpus);
        of_members.any(|gpu_of_member| gpu_of_member.index == gpu.index)
    };
    let mut gpus = snapshot.gpus.iter().filter(is_on_gpu).peekable();
    gpus.peek()?;
    gpus.try_fold(0u64, |sum, gpu| match gpu.stale_seconds {
        None => Some(sum.saturating_add(held(gpu, target, snapshot)?)),
        Some(_) => None,
    })
}

#[derive(Clone, PartialEq, Debug)]
pub struct Baseline(Vec<BytesBefore>);

#[derive(Clone, PartialEq, Debug)]
struct BytesBefore {
    index: u32,
    uuid: Option<Arc<str>>,
    used: Option<u64>,
    /// Used memory that no listed process holds, in bytes.
    unattributed: Option<u64>,
    /// Bytes that NVML lists for the target, or `None` if a value is unknown.
    held: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FreeCheck {
    /// All memory was freed. Contains how much, in bytes.
    Freed(u64),
    /// Memory is still in use, or its state is unknown. Contains the pids of processes that may hold it.
    StillHeld(Vec<u32>),
}

impl Baseline {
    pub fn new(target: &Target, snapshot: &Snapshot) -> Self {
        let is_theirs = |gpu: &Gpu| {
            let mut rows = gpu.processes.iter().flatten();
            let has_open = |member: &TargetProcess| {
                member.gpus.iter().any(|member_gpu| member_gpu.index == gpu.index)
            };
            target.members.iter().any(has_open)
                || rows.any(|row| is_listed(row.pid, target, snapshot))
        };
        let gpus = snapshot.gpus.iter().filter(|gpu| is_theirs(gpu));
        Self(
            gpus.map(|gpu| BytesBefore {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                used: gpu.memory.map(|memory| memory.used_bytes),
                unattributed: unattributed(gpu),
                held: held(gpu, target, snapshot),
            })
            .collect(),
        )
    }

    /// Compares a snapshot taken after the first action with this baseline.
    pub fn compare(&self, target: &Target, snapshot: &Snapshot) -> FreeCheck {
        let (mut bytes, mut is_freed, mut holders) = (0u64, true, Vec::new());
        for before in &self.0 {
            match before.freed(target, snapshot) {
                Some(freed) => bytes = bytes.saturating_add(freed),
                None => {
                    is_freed = false;
                    before.add_holders(target, snapshot, &mut holders);
                }
            }
        }
        if is_freed {
            return FreeCheck::Freed(bytes);
        }
        holders.sort_unstable();
        holders.dedup();
        FreeCheck::StillHeld(holders)
    }
}

impl BytesBefore {
    fn gpu<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Gpu> {
        let is_same_gpu = |gpu: &&Gpu| match (&self.uuid, &gpu.uuid) {
            (Some(one), Some(other)) => one == other,
            _ => self.index == gpu.index,
        };
        snapshot.gpus.iter().find(is_same_gpu)
    }

    /// Returns the bytes freed on this GPU, or `None` if the memory is still in use or its state is unknown.
    fn freed(&self, target: &Target, snapshot: &Snapshot) -> Option<u64> {
        let gpu = self.gpu(snapshot)?;
        if gpu.stale_seconds.is_some() || gpu.processes.is_none() {
            return None;
        }
        let rows = gpu.processes.iter().flatten();
        if rows.map(|row| row.pid).any(|pid| is_listed(pid, target, snapshot)) {
            return None;
        }
        let Some(used) = gpu.memory.map(|memory| memory.used_bytes) else {
            // If NVML does not report memory usage, its process list is the only evidence.
            return self.used.is_none().then_some(self.held.unwrap_or(0));
        };
        let slack = (self.held.unwrap_or(0) / 4).clamp(MIN_SLACK, MAX_SLACK);
        let dropped = self.used.map(|before| before.saturating_sub(used));
        match (self.unattributed, unattributed(gpu)) {
            (Some(before), Some(after)) => match self.held {
                // NVML listed no bytes for the target, so its memory was unattributed, and unattributed memory must
                // drop.
                Some(0) if before <= MIN_SLACK => Some(0),
                Some(0) => Some(before.saturating_sub(after)).filter(|&freed| freed > MIN_SLACK),
                Some(held) => (after <= before.saturating_add(slack)).then_some(held),
                None => dropped.filter(|&freed| freed > 0),
            },
            _ => match self.held {
                Some(held) if held > 0 => (dropped? >= held.saturating_sub(slack)).then_some(held),
                _ => dropped.filter(|&freed| freed > MIN_SLACK),
            },
        }
    }

    fn add_holders(&self, target: &Target, snapshot: &Snapshot, holders: &mut Vec<u32>) {
        let Some(gpu) = self.gpu(snapshot) else {
            return;
        };
        let pids = || gpu.processes.iter().flatten().map(|row| row.pid);
        holders.extend(pids().filter(|&pid| {
            snapshot.process(pid).is_none_or(|process| process.start_ticks.is_none())
                || is_listed(pid, target, snapshot)
        }));
        let file = gpu.minor_number.map(|minor| format!("/nvidia{minor}"));
        let holds = |files: &Arc<[Arc<str>]>| {
            let is_here = |path: &Arc<str>| file.as_ref().is_none_or(|file| path.ends_with(file));
            files.iter().any(is_here)
        };
        holders.extend(
            snapshot
                .processes
                .iter()
                .filter(|process| process.gpu_files.as_ref().is_some_and(holds))
                .map(|process| process.pid)
                .filter(|&pid| pids().all(|listed| listed != pid)),
        );
    }
}

/// Returns whether the process with this pid, which NVML lists, belongs to the target. A later process that reuses
/// the pid does not.
fn is_listed(pid: u32, target: &Target, snapshot: &Snapshot) -> bool {
    let shown = snapshot.process(pid);
    let start = shown.and_then(|process| process.start_ticks);
    let is_member = |member: &TargetProcess| {
        member.pid == pid && start.is_none_or(|start| start == member.start_ticks)
    };
    let is_dead = start.is_none() || shown.is_some_and(Process::is_zombie);
    target.members.iter().any(is_member) || is_dead && target.dead.contains(&pid)
}

/// Returns whether members of the target hold memory, according to a snapshot, or `None` if that is unknown.
pub(super) fn members_hold_memory(target: &Target, snapshot: &Snapshot) -> Option<bool> {
    let mut is_known = true;
    for gpu in &snapshot.gpus {
        let Some(rows) = gpu.processes.as_ref().filter(|_| gpu.stale_seconds.is_none()) else {
            is_known = false;
            continue;
        };
        if rows.iter().any(|row| is_listed(row.pid, target, snapshot)) {
            return Some(true);
        }
    }
    for member in &target.members {
        let process = snapshot.same_process(member.pid, member.start_ticks);
        let files = process.map(|process| process.gpu_files.as_deref());
        match files {
            Some(Some([])) => {}
            Some(Some(_)) => return Some(true),
            // If a process is gone or its open files are unknown, only NVML's lists show whether it holds memory.
            // They prove nothing about a process that NVML never listed.
            Some(None) | None => is_known &= member.is_listed,
        }
    }
    is_known.then_some(false)
}

/// Returns how many bytes NVML lists for the target on a GPU, or `None` if a value is unknown.
fn held(gpu: &Gpu, target: &Target, snapshot: &Snapshot) -> Option<u64> {
    let rows = gpu.processes.as_ref()?.iter();
    rows.filter(|row| is_listed(row.pid, target, snapshot))
        .try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
}

fn unattributed(gpu: &Gpu) -> Option<u64> {
    Some(gpu.memory?.used_bytes.saturating_sub(gpu.process_bytes()?))
}

#[cfg(test)]
mod tests;
