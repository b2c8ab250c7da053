//! Whether what a rule said of a target is still so, by the newest snapshot. Pure.

use super::act::{Act, Standing};
use super::target::{Because, Member, Reason};
use crate::model::finding::Finding;
use crate::model::{Identity, Snapshot};

/// Whether it is. `found` is all that the rules say now and no exemption keeps, by `snapshot`.
pub fn standing<'a>(
    act: &Act,
    found: impl IntoIterator<Item = &'a Finding>,
    snapshot: &Snapshot,
) -> Standing {
    let Reason::Found { findings } = &act.target().reason else {
        // What a person named stands.
        return Standing::Holds;
    };
    let found: Vec<&Finding> = found.into_iter().collect();
    of_members(&act.alive(), findings, &found, snapshot)
}

/// It stands while each member of whom it was said still has it said of it; those that merely belong to
/// them have nothing said.
fn of_members(
    alive: &[&Member],
    findings: &[Because],
    found: &[&Finding],
    snapshot: &Snapshot,
) -> Standing {
    let mut stands = Standing::Holds;
    for member in alive {
        let said: Vec<&Because> = findings.iter().filter(|it| it.pid == member.pid).collect();
        if said.is_empty() {
            continue;
        }
        if !is_seen(member, snapshot) {
            stands = Standing::Unknown;
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
        if !said.iter().any(still) {
            return Standing::NoLonger;
        }
    }
    stands
}

/// Whether the snapshot shows a member and every GPU that it is on: else what is said of it is what was
/// said before.
fn is_seen(member: &Member, snapshot: &Snapshot) -> bool {
    let process = snapshot.process(member.pid);
    let is_it = process.is_some_and(|process| process.start_ticks == Some(member.start_ticks));
    is_it
        && member.gpus.iter().all(|on| {
            let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == on.index);
            gpu.is_some_and(|gpu| gpu.stale_seconds.is_none() && gpu.processes.is_some())
        })
}

#[cfg(test)]
mod tests;
