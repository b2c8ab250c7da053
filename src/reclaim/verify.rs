//! Whether the memory came back, as NVML sees it, and what an act came to. Pure.
//!
//! That a process has exited proves nothing: a fork that inherited its descriptors, or a driver that is
//! held up, keeps its memory. It is back when NVML no longer lists its processes *and* no memory is left
//! that no process accounts for and that was accounted for before. How much is in use in all says less:
//! another process may have taken it in the same second.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guard::Protection;
use super::release::{NotReleased, ReleaseReport};
use super::target::{Target, TargetProcess, listed};
use crate::model::{Gpu, Snapshot, Time};
use crate::units::{Bytes, MIB};

/// How long the driver may take to give memory back after the last exit, in seconds.
pub const DEADLINE_SECONDS: f64 = 10.0;

/// Unaccounted memory moves by as much without anybody's doing: a share of what is expected, within
/// bounds.
const LEAST_SLACK: u64 = 16 * MIB;
/// Less than this is nothing: a GPU's memory is given to processes in pieces of some MiB.
pub const LEAST_RELEASED: u64 = 16 * MIB;
/// So many samples have to agree on what was released.
const RELEASE_SAMPLES: usize = 3;
const MOST_SLACK: u64 = 256 * MIB;

/// What an act came to.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// NVML shows that the memory came back.
    Freed {
        /// How much.
        bytes: u64,
        /// From the first deed until it was seen.
        ms: u64,
    },
    /// All have exited and the memory is not back.
    ExitedNotFreed {
        /// Who may hold it: processes with the GPU open that NVML does not list, or pids that NVML
        /// lists and no process has.
        holders: Vec<u32>,
    },
    /// Another one was started in its place.
    Respawned {
        /// Which.
        pid: u32,
        /// What came back all the same: less what the new one holds by now.
        #[serde(default)]
        bytes: u64,
    },
    /// There was nothing left to end.
    AlreadyGone,
    /// A number of the plan is another process's now; nothing was sent.
    IdentityChanged,
    /// The finding is no longer true, or no longer certain.
    RuleNoLongerTrue,
    /// It is protected.
    Protected {
        /// Why.
        why: Protection,
    },
    /// The kernel did not allow it.
    NotPermitted,
    /// A thread is blocked in the kernel: not even SIGKILL kills it before the driver releases it.
    StuckInDriver {
        /// Where, as the kernel names it; `"?"` where it does not say.
        wchan: Arc<str>,
    },
    /// It has outlived all that was sent.
    StillAlive,
    /// The pids are not the host's.
    OtherNamespace,
    /// The process gave memory back, as NVML sees it, and lives on, or has ended by itself.
    Released {
        /// How much: the least of three samples after it was done.
        bytes: u64,
        /// From asking until so much was back.
        ms: u64,
        /// What the process says itself, which proves nothing.
        #[serde(flatten)]
        report: Box<ReleaseReport>,
    },
    /// It was asked, and NVML shows next to nothing back; it lives on.
    NothingToRelease {
        /// What came back, under 16 MiB.
        bytes: u64,
        /// What the process says itself; why nothing came back is in `why`.
        #[serde(flatten)]
        report: Box<ReleaseReport>,
    },
    /// It is at work, and was left alone.
    Busy {
        /// Why. Holds words of others: escape it for a terminal.
        why: Arc<str>,
    },
    /// It cannot be asked to release memory.
    NoWayIn {
        /// Why, of each way. Holds words of others: escape it for a terminal.
        why: Arc<str>,
    },
    /// It could be asked, and must not be, or has said no.
    Refused {
        /// Why, and what to do. Holds words of others: escape it for a terminal.
        why: Arc<str>,
    },
    /// It has not answered in time.
    TimedOut {
        /// Whether it still may. Holds words of others: escape it for a terminal.
        why: Arc<str>,
    },
    /// It exited while it was asked to release memory: what came back came with its end.
    Exited,
}

impl Outcome {
    /// Whether what was asked for is so: the memory is back, or no process held it.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Freed { .. } | Self::AlreadyGone | Self::Released { .. })
    }

    /// What came back.
    pub fn freed_bytes(&self) -> u64 {
        match self {
            Self::Freed { bytes, .. }
            | Self::Respawned { bytes, .. }
            | Self::Released { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// What wakes again what was released.
    pub fn wake(&self) -> Option<&Arc<str>> {
        match self {
            Self::Released { report, .. } | Self::NothingToRelease { report, .. } => {
                report.wake.as_ref()
            }
            _ => None,
        }
    }

    /// What it means that a process released nothing.
    pub fn of_release(error: &NotReleased) -> Self {
        let why = error.why().into();
        match error {
            NotReleased::Busy(_) => Self::Busy { why },
            NotReleased::NoWayIn(_) => Self::NoWayIn { why },
            NotReleased::Refused(_) => Self::Refused { why },
            NotReleased::TimedOut(_) => Self::TimedOut { why },
        }
    }

    /// What it means that a process is protected.
    pub fn of(protection: Protection) -> Self {
        match protection {
            Protection::OtherNamespace => Self::OtherNamespace,
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
                "exited, but its memory was not freed; as root, look for what holds the GPU",
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
                f.write_str("not permitted; that takes root or the process's owner")
            }
            Self::StuckInDriver { wchan } => write!(
                f,
                "blocked in the kernel ({wchan}); it exits when the driver releases it: drain the \
                machine and restart it"
            ),
            Self::StillAlive => f.write_str("still alive after all signals"),
            Self::OtherNamespace => {
                f.write_str("pids here are not the host's; run gpumem on the host")
            }
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
            Self::NoWayIn { why } => write!(f, "no way in: {why}"),
            Self::Refused { why } => write!(f, "refused: {why}"),
            Self::TimedOut { why } => write!(f, "timed out: {why}"),
            Self::Exited => f.write_str("exited while it was asked to release memory"),
        }
    }
}

/// What a process says of itself after a release.
fn write_report(f: &mut fmt::Formatter<'_>, report: &ReleaseReport) -> fmt::Result {
    if let Some(live) = report.live_bytes {
        write!(f, "; it has {} in use", Bytes(live))?;
    }
    if let Some(cached) = report.cached_bytes_left {
        write!(f, "; {} still cached", Bytes(cached))?;
    }
    Ok(())
}

/// How much less a target holds than it did, if it lives on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReleaseMeter {
    before: Option<u64>,
    /// What was held at times after it was done, oldest first.
    after: Vec<(Time, u64)>,
}

impl ReleaseMeter {
    /// Of what a target holds before it is asked.
    pub fn new(target: &Target, snapshot: &Snapshot) -> Self {
        Self { before: held_bytes(target, snapshot), after: Vec::new() }
    }

    /// Takes in a snapshot of after it was done; one twice counts once.
    pub fn add(&mut self, target: &Target, snapshot: &Snapshot) {
        let last = self.after.last().map(|(time, _)| *time);
        if last.is_none_or(|last| last < snapshot.time)
            && let Some(held) = held_bytes(target, snapshot)
        {
            self.after.push((snapshot.time, held));
        }
    }

    /// Whether NVML has said how much the target holds, before and often enough after.
    pub fn is_known(&self) -> bool {
        self.before.is_some() && self.after.len() >= RELEASE_SAMPLES
    }

    /// What came back and stayed away: the least of the last three samples. And when so much was first
    /// back.
    pub fn released(&self) -> Option<(u64, Time)> {
        let before = self.before.filter(|_| self.is_known())?;
        let last = self.after.iter().rev().take(RELEASE_SAMPLES);
        let held = last.map(|(_, held)| *held).max()?;
        let (since, _) = self.after.iter().find(|(_, at)| *at <= held)?;
        Some((before.saturating_sub(held), *since))
    }
}

/// What NVML lists the members with; `None` where it does not say of one, or not now.
fn held_bytes(target: &Target, snapshot: &Snapshot) -> Option<u64> {
    let on = |gpu: &&Gpu| {
        let mut of_members = target.members.iter().flat_map(|it| &it.gpus);
        of_members.any(|it| it.index == gpu.index)
    };
    let mut gpus = snapshot.gpus.iter().filter(on).peekable();
    gpus.peek()?;
    gpus.try_fold(0u64, |sum, gpu| {
        let rows = gpu.processes.as_ref().filter(|_| gpu.stale_seconds.is_none())?;
        let mut theirs = rows.iter().filter(|row| is_listed(row.pid, target, snapshot));
        theirs.try_fold(sum, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
    })
}

/// What GPUs were like before a deed.
#[derive(Clone, PartialEq, Debug)]
pub struct Baseline(Vec<BytesBefore>);

#[derive(Clone, PartialEq, Debug)]
struct BytesBefore {
    index: u32,
    uuid: Option<Arc<str>>,
    used: Option<u64>,
    /// Memory that no listed process accounts for; `None` where that cannot be told.
    loose: Option<u64>,
    /// What the target's rows say together; `None` where one does not say.
    held: Option<u64>,
}

/// Whether memory is back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Back {
    /// It is, and so much of it.
    Yes(u64),
    /// Not so far, or it cannot be told; who may hold it.
    NotYet(Vec<u32>),
}

impl Baseline {
    /// What the GPUs of a target's members are like.
    pub fn of(target: &Target, snapshot: &Snapshot) -> Self {
        let is_theirs = |gpu: &Gpu| {
            let mut rows = gpu.processes.iter().flatten();
            let has_open = |it: &TargetProcess| it.gpus.iter().any(|on| on.index == gpu.index);
            target.members.iter().any(has_open) || rows.any(|row| is_of(row.pid, target))
        };
        let gpus = snapshot.gpus.iter().filter(|gpu| is_theirs(gpu));
        Self(
            gpus.map(|gpu| BytesBefore {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                used: gpu.memory.map(|memory| memory.used_bytes),
                loose: loose(gpu),
                held: held(gpu, target),
            })
            .collect(),
        )
    }

    /// Whether a snapshot, taken after the first deed, shows it back.
    pub fn compare(&self, target: &Target, snapshot: &Snapshot) -> Back {
        let (mut bytes, mut is_back, mut holders) = (0u64, true, Vec::new());
        for before in &self.0 {
            match before.freed(target, snapshot) {
                Some(freed) => bytes = bytes.saturating_add(freed),
                None => {
                    is_back = false;
                    before.add_holders(target, snapshot, &mut holders);
                }
            }
        }
        if is_back {
            return Back::Yes(bytes);
        }
        holders.sort_unstable();
        holders.dedup();
        Back::NotYet(holders)
    }
}

impl BytesBefore {
    fn gpu<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Gpu> {
        let same = |gpu: &&Gpu| match (&self.uuid, &gpu.uuid) {
            (Some(one), Some(other)) => one == other,
            _ => self.index == gpu.index,
        };
        snapshot.gpus.iter().find(same)
    }

    /// The bytes that came back here; `None` where they have not, or it cannot be told.
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
            // Where NVML gives no figures, its list is all the proof there is.
            return self.used.is_none().then_some(self.held.unwrap_or(0));
        };
        let slack = (self.held.unwrap_or(0) / 4).clamp(LEAST_SLACK, MOST_SLACK);
        let dropped = self.used.map(|before| before.saturating_sub(used));
        match (self.loose, loose(gpu)) {
            (Some(before), Some(after)) => match self.held {
                // None of its own by NVML's list: what no process accounted for has to have shrunk.
                Some(0) if before <= LEAST_SLACK => Some(0),
                Some(0) => Some(before.saturating_sub(after)).filter(|&freed| freed > LEAST_SLACK),
                Some(held) => (after <= before.saturating_add(slack)).then_some(held),
                None => dropped.filter(|&freed| freed > 0),
            },
            _ => match self.held {
                Some(held) if held > 0 => (dropped? >= held.saturating_sub(slack)).then_some(held),
                _ => dropped.filter(|&freed| freed > LEAST_SLACK),
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

/// Whether NVML's row of this number is the target's: not a later process's with a number of it.
fn is_listed(pid: u32, target: &Target, snapshot: &Snapshot) -> bool {
    let start = snapshot.process(pid).and_then(|process| process.start_ticks);
    let is =
        |it: &TargetProcess| it.pid == pid && start.is_none_or(|start| start == it.start_ticks);
    target.members.iter().any(is) || (start.is_none() && target.dead.contains(&pid))
}

/// Whether a number is the target's, as long as it has not been given to another.
fn is_of(pid: u32, target: &Target) -> bool {
    target.members.iter().any(|it| it.pid == pid) || target.dead.contains(&pid)
}

/// Whether the members hold anything by a snapshot; `None` where that cannot be told.
pub(super) fn hold_anything(target: &Target, snapshot: &Snapshot) -> Option<bool> {
    let mut known = true;
    for gpu in &snapshot.gpus {
        let Some(rows) = gpu.processes.as_ref().filter(|_| gpu.stale_seconds.is_none()) else {
            known = false;
            continue;
        };
        if rows.iter().any(|row| is_listed(row.pid, target, snapshot)) {
            return Some(true);
        }
    }
    for member in &target.members {
        let process = snapshot
            .process(member.pid)
            .filter(|process| process.start_ticks == Some(member.start_ticks));
        let files = process.map(|process| process.gpu_files.as_deref());
        match files {
            Some(Some([])) => {}
            Some(Some(_)) => return Some(true),
            // What the snapshot does not show holds nothing that was looked for, unless it was not.
            Some(None) | None => known &= member.is_listed,
        }
    }
    known.then_some(false)
}

fn held(gpu: &Gpu, target: &Target) -> Option<u64> {
    let rows = gpu.processes.as_ref()?.iter();
    rows.filter(|row| is_of(row.pid, target))
        .try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
}

fn loose(gpu: &Gpu) -> Option<u64> {
    Some(gpu.memory?.used_bytes.saturating_sub(gpu.process_bytes()?))
}

#[cfg(test)]
mod tests;
