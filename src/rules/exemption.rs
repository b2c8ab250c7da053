//! Exemptions exclude processes from findings, with a reason and an optional expiry date.
//!
//! Unknown facts protect: if a scope names an owner and the owner of a process is unknown, gpumem keeps the process.
//! A process whose identity is uncertain needs no such protection, because gpumem never ends it. Expiry dates are
//! compared with the time of the snapshot.

use std::sync::Arc;

use super::scope::{Scope, ScopeInput};
use super::server;
use crate::history::ProcessHistory;
use crate::model::finding::{Ends, Finding, FindingGpu, Kept, Kind};
use crate::model::keep::{Exempt, KeptBy};
use crate::model::program::never_killed;
use crate::model::{Process, Snapshot, Time};
use crate::units::Span;

#[derive(Clone, PartialEq, Debug)]
pub struct Exemption {
    /// Processes that are exempt. The scope is never empty.
    pub scope: Scope,
    pub reason: Arc<str>,
    /// `None` if the exemption never expires.
    pub until: Option<Time>,
    /// Kinds whose findings are exempt. If `kinds` and `rules` are both empty, all findings are exempt.
    pub kinds: Vec<Kind>,
    /// Names of rules whose findings are exempt, in addition to the findings of `kinds`.
    pub rules: Vec<Arc<str>>,
}

impl Exemption {
    pub fn is_expired(&self, time: Time) -> bool {
        self.until.is_some_and(|until| time >= until)
    }

    fn covers_rule(&self, kind: Kind, rule: &Arc<str>) -> bool {
        (self.kinds.is_empty() && self.rules.is_empty())
            || self.kinds.contains(&kind)
            || self.rules.contains(rule)
    }

    /// Converts an exempt finding to an entry of the report. `certain` is false if unknown facts leave open whether
    /// the exemption matches.
    pub(super) fn kept(&self, finding: Finding, certain: bool) -> Kept {
        Kept { finding, reason: Arc::clone(&self.reason), until: self.until, certain }
    }

    /// Returns `Some(true)` if the scope matches and `Some(false)` if it may match. Returns `None` if the scope does
    /// not match, or may match a process that gpumem could not end anyway.
    fn protects(&self, input: &ScopeInput<'_>) -> Option<bool> {
        let could_be_ended = |process: &Process| process.identity().is_certain();
        match self.scope.answer(input) {
            Some(true) => Some(true),
            None if input.process.is_some_and(could_be_ended) => Some(false),
            None | Some(false) => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum ExemptionMatch<'a> {
    No,
    /// The exemption matches on some of the process's GPUs, but not on all GPUs of the finding.
    InPart,
    /// The exemption matches on all GPUs of the finding. The flag is false if the match is only possible.
    Wholly(&'a Exemption, bool),
    Unseen,
}

/// Returns whether an exemption covers a finding, and which one. Prefers the first certain match to possible matches.
pub(super) fn exempts<'a>(
    keeps: &'a [Exemption],
    finding: &Finding,
    snapshot: &Snapshot,
) -> ExemptionMatch<'a> {
    let mut keeps = keeps
        .iter()
        .filter(|keep| {
            !keep.is_expired(snapshot.time) && keep.covers_rule(finding.kind, &finding.rule)
        })
        .peekable();
    if keeps.peek().is_none() {
        return ExemptionMatch::No;
    }
    let mut process = None;
    if let Some(finding_process) = &finding.process {
        process = snapshot.process(finding_process.pid);
        if process.is_none_or(|process| process.identity() != finding_process.identity) {
            return ExemptionMatch::Unseen;
        }
    }
    let inputs = scope_inputs(finding, process, snapshot);
    let (mut whole, mut in_part) = (None, false);
    for keep in keeps {
        let answers =
            || inputs.iter().map(|(is_reported, input)| (*is_reported, keep.protects(input)));
        in_part |= answers().any(|(_, answer)| answer.is_some());
        let mut reported =
            answers().filter_map(|(is_reported, answer)| is_reported.then_some(answer));
        // `Some(true)`: the exemption certainly matches on all GPUs. `Some(false)`: on at least one GPU, it only may
        // match. `None`: on at least one GPU, it does not match.
        let certain = reported.try_fold(true, |all, answer| Some(all && answer?));
        match certain {
            Some(true) => {
                return ExemptionMatch::Wholly(keep, true);
            }
            Some(false) => whole = whole.or(Some(keep)),
            None => {}
        }
    }
    match whole {
        Some(keep) => ExemptionMatch::Wholly(keep, false),
        None if in_part => ExemptionMatch::InPart,
        None => ExemptionMatch::No,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct KeepRules<'a> {
    pub(super) keeps: &'a [Exemption],
    /// File names of programs that are never killed, in addition to the built-in ones.
    pub(super) never: &'a [Arc<str>],
    /// Maximum time for which `GPUMEM_KEEP` protects a process, or `None` if unlimited.
    pub(super) longest_keep: Option<Span>,
}

/// Returns why gpumem keeps a process despite a finding of this kind and rule, or `None` if it does not. The reasons
/// are: an exemption may match on one of the process's GPUs, its owner requested it, the program is never killed, or
/// the process may be a server. `reap` skips a kept process, so its memory is not reclaimable, and it is not a suspect.
pub(super) fn kept_by(
    keep_rules: KeepRules<'_>,
    (process, process_history): (&Process, Option<&ProcessHistory>),
    (kind, rule): (Kind, &Arc<str>),
    snapshot: &Snapshot,
) -> Option<KeptBy> {
    let now = snapshot.time;
    let keeps = keep_rules.keeps.iter();
    let mut keeps =
        keeps.filter(|keep| !keep.is_expired(now) && keep.covers_rule(kind, rule)).peekable();
    let mut exemption = None;
    if keeps.peek().is_some() {
        let inputs = process_scope_inputs(process, &[], snapshot);
        exemption = keeps.find(|keep| {
            let mut answers = inputs.iter().map(|(_, input)| keep.protects(input));
            answers.any(|answer| answer.is_some())
        });
    }
    if let Some(exemption) = exemption {
        return Some(KeptBy::Configuration {
            reason: Arc::clone(&exemption.reason),
            until: exemption.until,
        });
    }
    process.kept_by_owner(now, keep_rules.longest_keep).or_else(|| {
        let (executable, comm) = (process.executable.as_deref(), process.comm.as_deref());
        // Comparing about a hundred names is slow, so compare them only if the cached facts or the configured names
        // allow a match.
        let may_be_one = !keep_rules.never.is_empty()
            || process_history
                .is_none_or(|process_history| process_history.names().is_never_killed);
        let is_roots = process.executable_is_roots;
        let name = || never_killed(executable, is_roots, comm, keep_rules.never);
        let name = may_be_one.then(name).flatten();
        let program = name.map(|name| KeptBy::Program { name: name.into() });
        let is_server = || match process_history {
            Some(process_history) => {
                server::is_server(process, process_history, snapshot) != Some(false)
            }
            None => server::serves(process, snapshot),
        };
        // Only kinds that `reap` includes by default spare servers. Kinds that must be requested can end them.
        let is_server = || kind.ends() == Ends::Always && is_server();
        program.or_else(|| is_server().then_some(KeptBy::Server))
    })
}

/// Returns the processes that may be exempt on any of their GPUs, and the parents that certainly are. If a possible
/// match were enough for parents, whose facts are mostly unknown, nearly every parent would be listed.
pub fn exempt_processes(keeps: &[Exemption], snapshot: &Snapshot) -> Vec<Exempt> {
    let mut exempt = Vec::new();
    // Usually there are no exemptions, so no process is examined.
    let processes = snapshot.processes.iter().filter(|_| !keeps.is_empty());
    let parents: Vec<Process> = processes.clone().filter_map(parent_of).collect();
    let parents = parents.iter().map(|parent| (parent, true));
    for (process, is_parent) in processes.map(|process| (process, false)).chain(parents) {
        let inputs = process_scope_inputs(process, &[], snapshot);
        let covers_process = |keep: &&Exemption| {
            let mut answers = inputs.iter().filter_map(|(_, input)| keep.protects(input));
            let covers = answers.any(|is_certain| is_certain || !is_parent);
            !keep.is_expired(snapshot.time) && covers
        };
        exempt.extend(keeps.iter().filter(covers_process).map(|keep| Exempt {
            identity: process.identity(),
            kinds: keep.kinds.clone(),
            rules: keep.rules.clone(),
            reason: Arc::clone(&keep.reason),
            until: keep.until,
        }));
    }
    exempt
}

/// Returns what is known about a process's parent, such as the launcher of a run. Assumes that parent and child have
/// the same owner, container and unit.
fn parent_of(child: &Process) -> Option<Process> {
    let parent = child.parent.as_deref().filter(|parent| child.ppid == Some(parent.pid))?;
    Some(Process {
        pid: parent.pid,
        start_ticks: parent.start_ticks,
        comm: parent.comm.clone(),
        command: parent.command.clone(),
        user: child.user.clone(),
        uid: child.uid,
        cgroup: child.cgroup.clone(),
        container: child.container.clone(),
        kubernetes: child.kubernetes.clone(),
        slurm: child.slurm.clone(),
        systemd_unit: child.systemd_unit.clone(),
        ..Process::default()
    })
}

pub fn may_exempt(keeps: &[Exemption], process: &Process, snapshot: &Snapshot) -> bool {
    let covers_process = |keep: &Exemption| {
        snapshot.gpus.iter().any(|gpu| {
            let input =
                ScopeInput { process: Some(process), index: gpu.index, held_bytes: None, snapshot };
            keep.protects(&input).is_some()
        })
    };
    let mut keeps = keeps.iter().filter(|keep| !keep.is_expired(snapshot.time));
    keeps.any(covers_process)
}

/// Returns the scope inputs for the finding's GPUs, with the flag true, and for the process's other GPUs, with the
/// flag false.
fn scope_inputs<'a>(
    finding: &'a Finding,
    process: Option<&'a Process>,
    snapshot: &'a Snapshot,
) -> Vec<(bool, ScopeInput<'a>)> {
    let mut inputs: Vec<(bool, ScopeInput<'_>)> = finding
        .gpus
        .iter()
        .map(|gpu| {
            let input =
                ScopeInput { process, index: gpu.index, held_bytes: gpu.used_bytes, snapshot };
            (true, input)
        })
        .collect();
    if let Some(process) = process {
        inputs.extend(process_scope_inputs(process, &finding.gpus, snapshot));
    }
    inputs
}

/// Returns the scope inputs for a process on all of its GPUs except `reported`. If `reported` is empty and the
/// process uses no GPU, returns a single input without a GPU.
fn process_scope_inputs<'a>(
    process: &'a Process,
    reported: &[FindingGpu],
    snapshot: &'a Snapshot,
) -> Vec<(bool, ScopeInput<'a>)> {
    let mut inputs = Vec::new();
    for gpu in &snapshot.gpus {
        let is_reported = reported.iter().any(|finding_gpu| finding_gpu.index == gpu.index);
        let rows = gpu.processes.iter().flatten();
        for row in rows.filter(|row| row.pid == process.pid && !is_reported) {
            let input = ScopeInput {
                process: Some(process),
                index: gpu.index,
                held_bytes: row.used_bytes,
                snapshot,
            };
            // If the finding names no GPU, it is about all GPUs of the process.
            inputs.push((reported.is_empty(), input));
        }
    }
    if inputs.is_empty() && reported.is_empty() {
        let input =
            ScopeInput { process: Some(process), index: u32::MAX, held_bytes: None, snapshot };
        inputs.push((true, input));
    }
    inputs
}

#[cfg(test)]
mod tests;
