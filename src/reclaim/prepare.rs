//! Prepares plans, either for this machine with facts from /proc, or from a snapshot alone.
//!
//! A plan from a snapshot is the plan that root would make on that machine. It shows how much memory `reap` would
//! free and which processes `release` could ask. Such a plan is never carried out. Facts missing from the snapshot
//! (`oom_score_adj`, an unread environment) would protect a process in a live plan, but do not protect it here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::guard::Guard;
use super::launcher::find_launcher;
use super::plan::{self, Plan, PlanInput, Why, plan};
use super::policy::{Policy, Targets};
use crate::config::reap::ReapConfig;
use crate::host::{Guarded, HostError, Ourselves, Roots, read_guarded, read_ourselves};
use crate::model::family::families;
use crate::model::reclaimable::PlanMark;
use crate::model::selector::Selected;
use crate::model::{Finding, Process, Snapshot};
use crate::rules::exemption::exempt_processes;
use crate::rules::{Engine, RuleSet};

#[derive(Clone, Copy, Debug)]
pub struct PlanSource<'a> {
    pub snapshot: &'a Snapshot,
    pub findings: &'a [Finding],
    /// The rules, with the configured exemptions.
    pub rules: &'a RuleSet,
    /// The `[reap]` configuration, which selects the rules that only park or ask for releases. `None` treats all rules
    /// alike.
    pub reap: Option<&'a ReapConfig>,
    /// Processes that a selector matched. If set, the plan contains no other processes.
    pub selected: Option<&'a Selected>,
}

impl<'a> PlanSource<'a> {
    pub fn new(snapshot: &'a Snapshot, findings: &'a [Finding], rules: &'a RuleSet) -> Self {
        Self { snapshot, findings, rules, reap: None, selected: None }
    }

    fn complete(&self, policy: Policy) -> Policy {
        let rules = self.rules;
        Policy {
            selected: self.selected.cloned(),
            releasing: self.reap.into_iter().flat_map(ReapConfig::releasing).cloned().collect(),
            parking: self.reap.into_iter().flat_map(ReapConfig::parking).cloned().collect(),
            never: rules.never().to_vec(),
            longest_keep: rules.longest_keep,
            kept: exempt_processes(rules.keeps(), self.snapshot),
            keeps: rules.keeps().to_vec(),
            ..policy
        }
    }
}

/// Returns the names of the requested rules. If one of them is undecided, the plan may be incomplete.
pub fn concerned(targets: &Targets, rules: &RuleSet) -> Vec<Arc<str>> {
    let rules = rules.rules().iter();
    rules
        .filter(|rule| targets.concerns(&rule.name, rule.kind()))
        .map(|rule| Arc::clone(&rule.name))
        .collect()
}

/// Makes a plan for this machine with facts from /proc. Also returns the guard that was used, which is needed to
/// carry out the plan. Returns an error if gpumem's own identity cannot be read.
pub fn plan_live(policy: Policy, source: PlanSource<'_>) -> Result<(Plan, Guard), HostError> {
    let PlanSource { snapshot, findings, .. } = source;
    let roots = Roots::default();
    let guard = Guard { policy: source.complete(policy), ourselves: read_ourselves(&roots)? };
    let families = families(snapshot);
    // A process without facts is protected.
    let facts = plan::pids(snapshot, &families).into_iter();
    let facts = facts.filter_map(|pid| Some((pid, read_guarded(&roots, pid).ok()??)));
    let input = PlanInput { findings, snapshot, families: &families, facts: &facts.collect() };
    let mut plan = plan(&input, &guard);
    plan.note_usage(&roots);
    Ok((plan, guard))
}

/// Makes the plan that root would make on the recorded machine. Facts that were not recorded protect no process.
pub fn plan_recorded(policy: Policy, source: PlanSource<'_>) -> (Plan, Guard) {
    plan_by_snapshot(source.complete(policy), source.findings, source.snapshot)
}

fn plan_by_snapshot(
    mut policy: Policy,
    findings: &[Finding],
    snapshot: &Snapshot,
) -> (Plan, Guard) {
    let mut snapshot = Cow::Borrowed(snapshot);
    if snapshot.processes.iter().any(|process| process.environment.is_none()) {
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
    let processes = snapshot.processes.iter();
    let launchers = processes.clone().filter_map(|rank| guarded_launcher(rank, snapshot));
    let facts: BTreeMap<u32, Guarded> = launchers
        .chain(processes.filter_map(|process| Some((process.pid, guarded_by_snapshot(process)?))))
        .collect();
    let input = PlanInput { findings, snapshot, families: &families(snapshot), facts: &facts };
    (plan(&input, &guard), guard)
}

pub(super) fn guarded_by_snapshot(process: &Process) -> Option<Guarded> {
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

/// Returns the facts about a rank's launcher that a snapshot contains. Assumes that the launcher has the owner of the
/// rank, because snapshots do not contain the launcher's owner.
fn guarded_launcher(rank: &Process, snapshot: &Snapshot) -> Option<(u32, Guarded)> {
    let parent = find_launcher(rank, snapshot)?;
    let program = parent.command.as_deref().and_then(<[_]>::first);
    let launcher = Process {
        start_ticks: parent.start_ticks,
        uid: rank.uid,
        executable: program.cloned(),
        comm: parent.comm.clone(),
        command: parent.command.clone(),
        // In a plan from a snapshot, an unread environment protects no process.
        environment: Some(Arc::default()),
        ..Process::default()
    };
    Some((parent.pid, guarded_by_snapshot(&launcher)?))
}

pub fn default_policy() -> Policy {
    Policy { all_users: true, ..Policy::default() }
}

/// Returns, for each finding that `reap` offers to act on, whether a plan for all users would include it.
pub fn plan_marks(engine: &Engine, snapshot: &Snapshot) -> Vec<PlanMark> {
    if !engine.unkept().any(Finding::is_offered) {
        return Vec::new();
    }
    let found: Vec<Finding> = engine.unkept().cloned().collect();
    let source = PlanSource::new(snapshot, &found, engine.settings());
    marks(&found, &plan_recorded(default_policy(), source).0)
}

/// Returns, for each finding that `reap` offers to act on, whether the plan includes it.
fn marks(findings: &[Finding], plan: &Plan) -> Vec<PlanMark> {
    let offered = || findings.iter().filter(|finding| finding.is_offered());
    let why = |finding: &Finding| -> Arc<str> {
        let pid = finding.process.as_ref().map(|process| process.pid);
        let by_id = |id: &Option<Arc<str>>| id.as_ref() == Some(&finding.id);
        let refused = plan.refused.iter().find(|refused| by_id(&refused.finding));
        let refused = refused.or_else(|| plan.refused.iter().find(|refused| refused.pid == pid));
        match refused.map(|refused| &refused.why) {
            None | Some(Why::Gone) => "it is not in the last sample".into(),
            Some(why) => why.to_string().into(),
        }
    };
    // For each target, the memory that the target's findings do not account for. The key is the pid of one of the
    // target's processes with a finding.
    let mut more: BTreeMap<u32, u64> = BTreeMap::new();
    for target in &plan.targets {
        let of_it = offered().filter(|finding| target.is_for(finding));
        let found: BTreeMap<u32, Option<u64>> = of_it
            .filter_map(|finding| Some((finding.process.as_ref()?.pid, finding.memory_bytes)))
            .collect();
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
            more_bytes: finding
                .process
                .as_ref()
                .and_then(|process| more.get(&process.pid).copied()),
        }
    };
    offered().map(mark).collect()
}

#[cfg(test)]
mod tests;
