//! Whether what a rule said of a target is still so, by the newest snapshot. Pure.

use super::act::{Act, Recheck};
use super::target::{Because, Reason, TargetProcess};
use crate::model::family::families;
use crate::model::finding::Finding;
use crate::model::{Gpu, Identity, Snapshot, Unread};

/// Whether it is. `found` is all that the rules say now and no exemption keeps, by `snapshot`.
pub fn recheck<'a>(
    act: &Act,
    found: impl IntoIterator<Item = &'a Finding>,
    snapshot: &Snapshot,
) -> Recheck {
    let Reason::Found { findings } = &act.target().reason else {
        // What a person named stands.
        return Recheck::StillTrue;
    };
    let found: Vec<&Finding> = found.into_iter().collect();
    of_members(&act.alive(), findings, &found, snapshot)
}

/// It is still true while each member that had the finding still has it; those that merely belong to
/// them have none.
fn of_members(
    alive: &[&TargetProcess],
    findings: &[Because],
    found: &[&Finding],
    snapshot: &Snapshot,
) -> Recheck {
    let mut verdict = Recheck::StillTrue;
    let unread = unread(snapshot);
    for member in alive {
        // Where it or one of its family may be at work unseen, nothing said of any of them is certain.
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
                finding.rule == because.rule && whose == identity
            };
            found.iter().any(is_it)
        };
        if !of_member.iter().any(still) {
            return Recheck::NoLonger;
        }
    }
    verdict
}

/// Who may be on a GPU whose processes the snapshot does not tell.
fn unread(snapshot: &Snapshot) -> Unread {
    match snapshot.gpus.iter().any(Gpu::is_unread) {
        true => Unread::new(snapshot, &families(snapshot), |_, _| false),
        false => Unread::default(),
    }
}

/// Whether the snapshot shows a member and every GPU that it is on: else what is said of it is what was
/// said before.
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
