//! Checks whether a finding on a target still holds in the newest snapshot.

use super::act::{Act, Recheck};
use super::target::{Because, Reason, TargetProcess};
use crate::host::JobWork;
use crate::model::family::families;
use crate::model::finding::Finding;
use crate::model::{Gpu, Identity, Snapshot, Unread};

/// Checks the target's findings again. `found` contains all current findings that are not exempt.
pub fn recheck<'a>(
    act: &Act,
    found: impl IntoIterator<Item = &'a Finding>,
    snapshot: &Snapshot,
) -> Recheck {
    let Reason::Found { findings } = &act.target().reason else {
        // If a person named the target, the end of a finding does not cancel the act.
        return Recheck::StillTrue;
    };
    let found: Vec<&Finding> = found.into_iter().collect();
    recheck_members(&act.alive(), findings, &found, snapshot)
}

/// Minimum CPU use, in cores, of a job that works.
const WORK_SHARE: f64 = 0.1;
/// Minimum I/O rate, in bytes per second, of a job that works.
const WORK_BYTES_PER_SECOND: f64 = 1e6;
/// Minimum averaging period, in seconds. Less than 1 s of CPU time or 10 MB of I/O is therefore never considered work.
pub const MIN_SECONDS: f64 = 10.0;
/// Maximum averaging period, in seconds, for the CPU use of a job that may be saving its work. Averaging over a
/// longer period would hide that the job has just begun to save.
const SAVING_SECONDS: f64 = 5.0;
/// Minimum I/O, in bytes, of a job that saves a checkpoint.
const MIN_SAVED_BYTES: u64 = 1 << 20;

/// Returns whether a supposedly idle job has worked.
pub fn is_work(used: JobWork) -> bool {
    let seconds = used.seconds.max(MIN_SECONDS);
    used.cpu_seconds >= WORK_SHARE * seconds || used.bytes as f64 >= WORK_BYTES_PER_SECOND * seconds
}

/// Returns whether a job may be saving its work after a signal.
pub(super) fn is_saving(used: JobWork) -> bool {
    used.cpu_seconds > WORK_SHARE * used.seconds.min(SAVING_SECONDS)
        || used.bytes >= MIN_SAVED_BYTES
}

/// Returns whether each living member that had findings still has at least one of them.
fn recheck_members(
    alive: &[&TargetProcess],
    findings: &[Because],
    found: &[&Finding],
    snapshot: &Snapshot,
) -> Recheck {
    let mut verdict = Recheck::StillTrue;
    let unread = unread(snapshot);
    for member in alive {
        // If the process list of a GPU that a family member may use cannot be read, the verdict on the whole family
        // is unknown.
        let is_elsewhere = unread.gpu_of(member.pid).is_some();
        if is_elsewhere {
            verdict = Recheck::Unknown;
        }
        let of_member: Vec<&Because> =
            findings.iter().filter(|because| because.pid == member.pid).collect();
        if of_member.is_empty() || is_elsewhere {
            continue;
        }
        if !is_seen(member, snapshot) {
            verdict = Recheck::Unknown;
            continue;
        }
        let identity = Some(member.identity());
        let still = |because: &&Because| {
            let is_match = |finding: &&Finding| {
                let found_identity: Option<Identity> =
                    finding.process.as_ref().map(|process| process.identity);
                // A finding on a GPU matches only members that use this GPU.
                let mut member_gpus = member.gpus.iter();
                let mut is_on_gpu = || {
                    member_gpus.any(|member_gpu| {
                        finding.gpus.iter().any(|gpu| gpu.index == member_gpu.index)
                    })
                };
                finding.rule == because.rule
                    && (found_identity == identity || (finding.process.is_none() && is_on_gpu()))
            };
            found.iter().any(is_match)
        };
        if !of_member.iter().any(still) {
            return Recheck::NoLonger;
        }
    }
    verdict
}

fn unread(snapshot: &Snapshot) -> Unread {
    match snapshot.gpus.iter().any(Gpu::is_unread) {
        true => Unread::new(snapshot, &families(snapshot), |_, _| false),
        false => Unread::default(),
    }
}

/// Returns whether the snapshot contains a member and the process lists of all of its GPUs. Otherwise, the findings
/// on the member are outdated.
fn is_seen(member: &TargetProcess, snapshot: &Snapshot) -> bool {
    let process = snapshot.process(member.pid);
    let is_same = process.is_some_and(|process| process.start_ticks == Some(member.start_ticks));
    is_same
        && member.gpus.iter().all(|member_gpu| {
            let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == member_gpu.index);
            gpu.is_some_and(|gpu| !gpu.is_unread())
        })
}

#[cfg(test)]
mod tests;
