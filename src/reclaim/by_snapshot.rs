//! Plans from a snapshot alone, as root would make them on that machine. Pure.
//!
//! Used for recordings, and to show how much memory `reap` would free and which processes `release` could ask. Facts
//! that a snapshot lacks (`oom_score_adj`, an unread environment) protect no process here, because nothing is sent.
//! A plan to be carried out uses facts read from the machine.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::commands::{self, Typist};
use super::guard::Guard;
use super::launcher::launcher_of;
use super::plan::{Plan, PlanInput, Why, plan};
use super::policy::Policy;
use crate::host::{Guarded, Ourselves};
use crate::model::family::families;
use crate::model::finding::OwnCommands;
use crate::model::reclaimable::PlanMark;
use crate::model::{Finding, Process, Snapshot};
use crate::rules::exemption::exempt_processes;
use crate::rules::{Engine, serves};

/// The plan, and the guard that decided which processes it may include.
pub fn plan_by_snapshot(
    mut policy: Policy,
    findings: &[Finding],
    snapshot: &Snapshot,
) -> (Plan, Guard) {
    let mut snapshot = Cow::Borrowed(snapshot);
    if snapshot.processes.iter().any(|it| it.environment.is_none()) {
        for process in &mut snapshot.to_mut().processes {
            process.environment.get_or_insert_default();
        }
    }
    let snapshot = &*snapshot;
    let ourselves = Ourselves {
        may_signal_others: true,
        pid_namespace: snapshot.host.pid_namespace,
        boot_id: snapshot.host.boot_id.clone(),
        ..Ourselves::default()
    };
    policy.all_users = true;
    let guard = Guard { policy, ourselves };
    let known = snapshot.processes.iter();
    let launchers = known.clone().filter_map(|rank| guarded_launcher(rank, snapshot));
    let facts: BTreeMap<u32, Guarded> = launchers
        .chain(known.filter_map(|process| Some((process.pid, guarded_by_snapshot(process)?))))
        .collect();
    let seen = PlanInput { findings, snapshot, families: &families(snapshot), facts: &facts };
    (plan(&seen, &guard), guard)
}

/// What a snapshot shows of a process.
fn guarded_by_snapshot(process: &Process) -> Option<Guarded> {
    Some(Guarded {
        start_ticks: process.start_ticks?,
        state: process.state,
        ppid: process.ppid,
        process_group: process.process_group,
        session: process.session,
        is_kernel_thread: false,
        uid: process.uid,
        is_process: Some(true),
        oom_score_adj: Some(0),
        executable: process.executable.clone(),
        executable_is_roots: process.executable_is_roots,
        comm: process.comm.clone(),
        command: process.command.clone(),
        environment: process.environment.clone(),
        gpu_files: process.gpu_files.clone(),
    })
}

/// What a snapshot shows of a rank's launcher. It does not show the owner, which is nearly always the rank's.
fn guarded_launcher(rank: &Process, snapshot: &Snapshot) -> Option<(u32, Guarded)> {
    let parent = launcher_of(rank, snapshot)?;
    let program = parent.command.as_deref().and_then(<[_]>::first);
    let guarded = Guarded {
        start_ticks: parent.start_ticks?,
        uid: rank.uid,
        is_process: Some(true),
        oom_score_adj: Some(0),
        executable: program.cloned(),
        comm: parent.comm.clone(),
        command: parent.command.clone(),
        // As elsewhere in this file, an unread environment protects no process.
        environment: Some(Arc::default()),
        ..Guarded::default()
    };
    Some((parent.pid, guarded))
}

/// What a plan for all users does about the findings that it could reclaim.
pub fn plan_marks(engine: &Engine, snapshot: &Snapshot) -> Vec<PlanMark> {
    if !engine.unkept().any(Finding::is_offered) {
        return Vec::new();
    }
    let found: Vec<Finding> = engine.unkept().cloned().collect();
    marks(&found, snapshot, policy(engine, snapshot))
}

/// What `reap --all-users` takes by default, except what the configuration keeps.
fn policy(engine: &Engine, snapshot: &Snapshot) -> Policy {
    let settings = engine.settings();
    Policy {
        never: settings.never().to_vec(),
        kept: exempt_processes(settings.keeps(), snapshot),
        ..commands::policy(serves)
    }
}

/// The commands for a process of a snapshot that the engine has judged.
pub fn own_commands(
    engine: &Engine,
    process: Option<&Process>,
    snapshot: &Snapshot,
    typist: Typist,
) -> OwnCommands {
    let policy = policy(engine, snapshot);
    let own = |process| commands::of_process(process, snapshot, &policy, typist);
    process.map_or_else(OwnCommands::default, own)
}

/// What an all-users plan with this policy does with the findings that their rules offer.
fn marks(findings: &[Finding], snapshot: &Snapshot, policy: Policy) -> Vec<PlanMark> {
    let offered = || findings.iter().filter(|finding| finding.is_offered());
    if offered().next().is_none() {
        return Vec::new();
    }
    let (plan, _) = plan_by_snapshot(policy, findings, snapshot);
    let why = |finding: &Finding| -> Arc<str> {
        let pid = finding.process.as_ref().map(|it| it.pid);
        let by_id = |id: &Option<Arc<str>>| id.as_ref() == Some(&finding.id);
        let refused = plan.refused.iter().find(|it| by_id(&it.finding));
        let refused = refused.or_else(|| plan.refused.iter().find(|it| it.pid == pid));
        match refused.map(|it| &it.why) {
            None | Some(Why::Gone) => "it is not in the last sample".into(),
            Some(why) => why.to_string().into(),
        }
    };
    // A target's memory that belongs to no process with a finding, counted once.
    let mut more: BTreeMap<u32, u64> = BTreeMap::new();
    for target in &plan.targets {
        let of_it = offered().filter(|finding| target.is_for(finding));
        let found: BTreeMap<u32, Option<u64>> =
            of_it.filter_map(|it| Some((it.process.as_ref()?.pid, it.memory_bytes))).collect();
        let listed: u64 = found.values().flatten().sum();
        let rest = target.bytes.and_then(|bytes| bytes.checked_sub(listed));
        if let (Some(first), Some(rest @ 1..)) = (found.keys().next(), rest) {
            more.insert(*first, rest);
        }
    }
    let mark = |finding: &Finding| {
        let is_taken = plan.targets.iter().any(|target| target.is_for(finding));
        PlanMark {
            finding: Arc::clone(&finding.id),
            skipped: (!is_taken).then(|| why(finding)),
            more_bytes: finding.process.as_ref().and_then(|it| more.get(&it.pid).copied()),
        }
    };
    offered().map(mark).collect()
}

#[cfg(test)]
mod tests;
