//! Whether a finding on a target still holds, by the newest snapshot. Pure.

use std::collections::BTreeMap;

use super::act::{Act, Recheck};
use super::target::{Because, Reason, TargetProcess};
use crate::model::family::families;
use crate::model::finding::Finding;
use crate::model::{Gpu, Identity, Process, Snapshot, Time, Unread};

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

/// CPU seconds in total; fewer are no work.
const LEAST_WORK_SECONDS: f64 = 5.0;
/// The share of a core since the plan from which CPU use counts as work.
const WORK_SHARE: f64 = 0.1;
/// Bytes read and written in total; fewer are no work.
const LEAST_WORK_BYTES: u64 = 50_000_000;

/// Whether this many CPU seconds in this time show that work has begun.
pub fn is_work(cpu_seconds: f64, in_seconds: f64) -> bool {
    cpu_seconds >= LEAST_WORK_SECONDS.max(WORK_SHARE * in_seconds)
}

/// What each process had used when the plan was made.
#[derive(Debug)]
pub struct UsedAtPlan {
    time: Time,
    used: BTreeMap<Identity, Used>,
}

/// What a process has used, with its family.
#[derive(Debug)]
struct Used {
    cpu_seconds: Option<f64>,
    /// Time it has waited for a CPU.
    wait_seconds: Option<f64>,
    io_bytes: Option<u64>,
}

impl UsedAtPlan {
    /// From the snapshot that the plan is based on.
    pub fn new(snapshot: &Snapshot) -> Self {
        let used = snapshot.processes.iter().map(|it| (it.identity(), used(it)));
        Self { time: snapshot.time, used: used.collect() }
    }

    /// Whether one of these has begun to work since.
    pub fn has_begun_work(&self, alive: &[&TargetProcess], snapshot: &Snapshot) -> bool {
        let seconds = snapshot.time.seconds_since(self.time);
        alive.iter().any(|member| {
            let now = snapshot.process(member.pid).map(used);
            let (Some(now), Some(then)) = (now, self.used.get(&member.identity())) else {
                return false;
            };
            let cpu = now.cpu_seconds.zip(then.cpu_seconds).map(|(now, then)| now - then);
            let waited = now.wait_seconds.zip(then.wait_seconds).map(|(now, then)| now - then);
            let io = now.io_bytes.zip(then.io_bytes).map(|(now, then)| now.saturating_sub(then));
            cpu.is_some_and(|cpu| is_work(cpu + waited.unwrap_or_default(), seconds))
                || io.is_some_and(|bytes| bytes >= LEAST_WORK_BYTES)
        })
    }
}

fn used(process: &Process) -> Used {
    let others = process.descendants.as_deref();
    let cpu = others.and_then(|it| it.cpu_seconds).unwrap_or_default();
    let io = others.and_then(|it| it.io_bytes).unwrap_or_default();
    Used {
        cpu_seconds: process.cpu_seconds.map(|own| own + cpu),
        wait_seconds: process.cpu_wait_seconds,
        io_bytes: process.io_bytes.map(|own| own.saturating_add(io)),
    }
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
