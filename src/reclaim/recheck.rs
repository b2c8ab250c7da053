//! Whether a finding on a target still holds, by the newest snapshot. Pure.

use super::act::{Act, Recheck};
use super::target::{Because, Reason, TargetProcess};
use crate::host::JobWork;
use crate::model::family::families;
use crate::model::finding::Finding;
use crate::model::{Gpu, Identity, Snapshot, Unread};

/// Whether it holds. `found` is all current findings, in `snapshot`, that no exemption covers.
pub fn recheck<'a>(
    act: &Act,
    found: impl IntoIterator<Item = &'a Finding>,
    snapshot: &Snapshot,
) -> Recheck {
    let Reason::Found { findings } = &act.target().reason else {
        // A target that a person named stands.
        return Recheck::StillTrue;
    };
    let found: Vec<&Finding> = found.into_iter().collect();
    of_members(&act.alive(), findings, &found, snapshot)
}

/// The share of a core from which CPU use counts as work.
const WORK_SHARE: f64 = 0.1;
/// I/O in bytes a second from which a job works, as in the rule `idle`.
const WORK_BYTES_PER_SECOND: f64 = 1e6;
/// A shorter time counts as so many seconds: less than a second of CPU, or 10 MB, is no work.
pub const LEAST_SECONDS: f64 = 10.0;
/// The longest time over which CPU use is averaged while a job may save, in seconds: it may begin late.
const SAVING_SECONDS: f64 = 5.0;
/// Fewer bytes are no checkpoint.
const LEAST_SAVED_BYTES: u64 = 1 << 20;

/// Whether a job that should be idle has worked.
pub fn is_work(used: JobWork) -> bool {
    let seconds = used.seconds.max(LEAST_SECONDS);
    used.cpu_seconds >= WORK_SHARE * seconds || used.bytes as f64 >= WORK_BYTES_PER_SECOND * seconds
}

/// Whether a job that was sent a signal may be saving its work.
pub(super) fn is_saving(used: JobWork) -> bool {
    used.cpu_seconds > WORK_SHARE * used.seconds.min(SAVING_SECONDS)
        || used.bytes >= LEAST_SAVED_BYTES
}

/// It holds while each member that had a finding still has it; the other members have none.
fn of_members(
    alive: &[&TargetProcess],
    findings: &[Because],
    found: &[&Finding],
    snapshot: &Snapshot,
) -> Recheck {
    let mut verdict = Recheck::StillTrue;
    let unread = unread(snapshot);
    for member in alive {
        // If a family member may be at work unseen, findings on all of them are uncertain.
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
                // A finding on a GPU holds for the member it was reported for.
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

/// Whether the snapshot shows a member and each of its GPUs; otherwise its findings are old.
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
