//! Rechecks whether a finding on a target still holds in the newest snapshot. Pure.

use super::act::{Act, Recheck};
use super::target::{Because, Reason, TargetProcess};
use crate::host::JobWork;
use crate::model::family::families;
use crate::model::finding::Finding;
use crate::model::{Gpu, Identity, Snapshot, Unread};

/// Rechecks a target's findings. `found` contains all current findings that no exemption covers.
pub fn recheck<'a>(
    act: &Act,
    found: impl IntoIterator<Item = &'a Finding>,
    snapshot: &Snapshot,
) -> Recheck {
    let Reason::Found { findings } = &act.target().reason else {
        // No rule cancels a target that a person named.
        return Recheck::StillTrue;
    };
    let found: Vec<&Finding> = found.into_iter().collect();
    of_members(&act.alive(), findings, &found, snapshot)
}

/// The share of a core from which CPU use counts as work.
const WORK_SHARE: f64 = 0.1;
/// The I/O in bytes per second from which a job works, as in the rule `idle`.
const WORK_BYTES_PER_SECOND: f64 = 1e6;
/// The shortest period for the thresholds, in seconds. Less than 1 s of CPU time or 10 MB is never work.
pub const LEAST_SECONDS: f64 = 10.0;
/// The longest period for CPU averages of a job that may be saving, in seconds. Saving may start late.
const SAVING_SECONDS: f64 = 5.0;
/// The least I/O in bytes that counts as saving a checkpoint.
const LEAST_SAVED_BYTES: u64 = 1 << 20;

/// Whether a job that should be idle has worked.
pub fn is_work(used: JobWork) -> bool {
    let seconds = used.seconds.max(LEAST_SECONDS);
    used.cpu_seconds >= WORK_SHARE * seconds || used.bytes as f64 >= WORK_BYTES_PER_SECOND * seconds
}

/// Whether a job that received a signal may be saving its work.
pub(super) fn is_saving(used: JobWork) -> bool {
    used.cpu_seconds > WORK_SHARE * used.seconds.min(SAVING_SECONDS)
        || used.bytes >= LEAST_SAVED_BYTES
}

/// The verdict holds while each member that had a finding still has it. The other members have none.
fn of_members(
    alive: &[&TargetProcess],
    findings: &[Because],
    found: &[&Finding],
    snapshot: &Snapshot,
) -> Recheck {
    let mut verdict = Recheck::StillTrue;
    let unread = unread(snapshot);
    for member in alive {
        // If a family member's GPU cannot be read, the findings on all members are uncertain.
        let is_elsewhere = unread.gpu_of(member.pid).is_some();
        if is_elsewhere {
            verdict = Recheck::Unknown;
        }
        let of_member: Vec<&Because> = findings.iter().filter(|it| it.pid == member.pid).collect();
        if of_member.is_empty() || is_elsewhere {
            continue;
        }
        if !is_seen(member, snapshot) {
            verdict = Recheck::Unknown;
            continue;
        }
        let identity = Some(member.identity());
        let still = |because: &&Because| {
            let is_it = |finding: &&Finding| {
                let whose: Option<Identity> = finding.process.as_ref().map(|it| it.identity);
                // A finding on a GPU counts only for the member on that GPU.
                let mut on = member.gpus.iter();
                let mut is_on = || on.any(|on| finding.gpus.iter().any(|it| it.index == on.index));
                finding.rule == because.rule
                    && (whose == identity || (finding.process.is_none() && is_on()))
            };
            found.iter().any(is_it)
        };
        if !of_member.iter().any(still) {
            return Recheck::NoLonger;
        }
    }
    verdict
}

/// Processes that may be on a GPU whose process list is missing.
fn unread(snapshot: &Snapshot) -> Unread {
    match snapshot.gpus.iter().any(Gpu::is_unread) {
        true => Unread::new(snapshot, &families(snapshot), |_, _| false),
        false => Unread::default(),
    }
}

/// Whether the snapshot shows a member and each of its GPUs. Otherwise the findings are old.
fn is_seen(member: &TargetProcess, snapshot: &Snapshot) -> bool {
    let process = snapshot.process(member.pid);
    let is_it = process.is_some_and(|process| process.start_ticks == Some(member.start_ticks));
    is_it
        && member.gpus.iter().all(|on| {
            let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == on.index);
            gpu.is_some_and(|gpu| !gpu.is_unread())
        })
}

#[cfg(test)]
mod tests;
