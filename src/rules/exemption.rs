//! Exemptions: processes on which no rule reports, with a reason and perhaps an expiry date.
//!
//! An exemption protects, so an unknown value counts as a match: if the scope names an owner and the process's
//! owner is unknown, the process is kept. This applies only to processes that could be ended. An unresolved process
//! never is, so it must be known to match. Exemptions expire by the snapshot's time.

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
    /// The processes covered; never all of them.
    pub scope: Scope,
    pub reason: Arc<str>,
    /// `None` if the exemption never expires.
    pub until: Option<Time>,
    /// Covers only findings of these kinds and of the rules below; if both are empty, all.
    pub kinds: Vec<Kind>,
    /// Covers only findings of these rules and of the kinds above.
    pub rules: Vec<Arc<str>>,
}

impl Exemption {
    pub fn is_expired(&self, time: Time) -> bool {
        self.until.is_some_and(|until| time >= until)
    }

    fn is_from(&self, kind: Kind, rule: &Arc<str>) -> bool {
        (self.kinds.is_empty() && self.rules.is_empty())
            || self.kinds.contains(&kind)
            || self.rules.contains(rule)
    }

    /// An exempt finding for the report; `certain` if it is known to be covered.
    pub(super) fn kept(&self, finding: Finding, certain: bool) -> Kept {
        Kept { finding, reason: Arc::clone(&self.reason), until: self.until, certain }
    }

    /// `None` if the scope does not match the process or GPU, otherwise whether the match is certain.
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
pub(super) enum Exempts<'a> {
    No,
    /// The finding is reported, but the process is exempt on another GPU, or on some of the finding's.
    InPart,
    /// This exemption covers the finding, certainly or possibly.
    Wholly(&'a Exemption, bool),
    /// The snapshot does not show the process, so the earlier result holds.
    Unseen,
}

/// Finds the exemption that covers a finding: the first certain one, otherwise the first possible one.
pub(super) fn exempts<'a>(
    keeps: &'a [Exemption],
    finding: &Finding,
    snapshot: &Snapshot,
) -> Exempts<'a> {
    let mut keeps = keeps
        .iter()
        .filter(|keep| !keep.is_expired(snapshot.time) && keep.is_from(finding.kind, &finding.rule))
        .peekable();
    if keeps.peek().is_none() {
        return Exempts::No;
    }
    let mut process = None;
    if let Some(accused) = &finding.process {
        process = snapshot.process(accused.pid);
        if process.is_none_or(|process| process.identity() != accused.identity) {
            return Exempts::Unseen;
        }
    }
    let places = places(finding, process, snapshot);
    let (mut whole, mut in_part) = (None, false);
    for keep in keeps {
        let answers =
            || places.iter().map(|(is_accused, input)| (*is_accused, keep.protects(input)));
        in_part |= answers().any(|(_, answer)| answer.is_some());
        let mut accused = answers().filter_map(|(is_accused, answer)| is_accused.then_some(answer));
        // Certain on all GPUs, possible on all, or no match on one.
        let certain = accused.try_fold(true, |all, answer| Some(all && answer?));
        match certain {
            Some(true) => {
                return Exempts::Wholly(keep, true);
            }
            Some(false) => whole = whole.or(Some(keep)),
            None => {}
        }
    }
    match whole {
        Some(keep) => Exempts::Wholly(keep, false),
        None if in_part => Exempts::InPart,
        None => Exempts::No,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct KeepRules<'a> {
    pub(super) keeps: &'a [Exemption],
    /// File names of programs that are never killed, in addition to the built-in ones.
    pub(super) never: &'a [Arc<str>],
    /// The longest time for which `GPUMEM_KEEP` protects a process.
    pub(super) longest_keep: Option<Span>,
}

/// Why a process is kept despite a finding of this kind and rule, as far as a snapshot shows: an exemption that may
/// cover it on any of its GPUs, its owner, its program, or that it serves. `reap` skips such a process, so it
/// counts as neither reclaimable nor suspected. `known` is its history.
pub(super) fn kept_by(
    keep_rules: KeepRules<'_>,
    (process, known): (&Process, Option<&ProcessHistory>),
    (kind, rule): (Kind, &Arc<str>),
    snapshot: &Snapshot,
) -> Option<KeptBy> {
    let now = snapshot.time;
    let keeps = keep_rules.keeps.iter();
    let mut keeps =
        keeps.filter(|keep| !keep.is_expired(now) && keep.is_from(kind, rule)).peekable();
    let mut exemption = None;
    if keeps.peek().is_some() {
        let places = places_of(process, &[], snapshot);
        exemption = keeps.find(|keep| {
            let mut answers = places.iter().map(|(_, input)| keep.protects(input));
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
        // Skips comparisons with a hundred names that the process is known not to have.
        let may_be_one =
            !keep_rules.never.is_empty() || known.is_none_or(|known| known.names().is_never_killed);
        let is_roots = process.executable_is_roots;
        let name = || never_killed(executable, is_roots, comm, keep_rules.never);
        let name = may_be_one.then(name).flatten();
        let program = name.map(|name| KeptBy::Program { name: name.into() });
        let is_server = || match known {
            Some(known) => server::is_server(process, known, snapshot),
            None => server::serves(process, snapshot),
        };
        // A finding requested by name includes servers.
        let is_server = || kind.ends() == Ends::Always && is_server();
        program.or_else(|| is_server().then_some(KeptBy::Server))
    })
}

/// Processes that exemptions may cover on any of their GPUs, and parents that are certain to be covered, because
/// less is known about parents. `reap` does not touch them.
pub fn exempt_processes(keeps: &[Exemption], snapshot: &Snapshot) -> Vec<Exempt> {
    let mut exempt = Vec::new();
    // Usually there are no exemptions and many processes.
    let processes = snapshot.processes.iter().filter(|_| !keeps.is_empty());
    let parents: Vec<Process> = processes.clone().filter_map(parent_of).collect();
    let parents = parents.iter().map(|it| (it, true));
    for (process, is_parent) in processes.map(|it| (it, false)).chain(parents) {
        let places = places_of(process, &[], snapshot);
        let is_for = |keep: &&Exemption| {
            let mut answers = places.iter().filter_map(|(_, input)| keep.protects(input));
            let is_for_it = answers.any(|is_certain| is_certain || !is_parent);
            !keep.is_expired(snapshot.time) && is_for_it
        };
        exempt.extend(keeps.iter().filter(is_for).map(|keep| Exempt {
            identity: process.identity(),
            kinds: keep.kinds.clone(),
            rules: keep.rules.clone(),
            reason: Arc::clone(&keep.reason),
            until: keep.until,
        }));
    }
    exempt
}

/// The known facts about a process's parent, such as the launcher of a run. It shares its child's place and owner.
fn parent_of(child: &Process) -> Option<Process> {
    let parent = child.parent.as_deref().filter(|it| child.ppid == Some(it.pid))?;
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

/// Whether any exemption may cover a process on any GPU. Facts about a new process may be incomplete.
pub fn may_exempt(keeps: &[Exemption], process: &Process, snapshot: &Snapshot) -> bool {
    let is_for = |keep: &Exemption| {
        snapshot.gpus.iter().any(|gpu| {
            let place =
                ScopeInput { process: Some(process), index: gpu.index, held_bytes: None, snapshot };
            keep.protects(&place).is_some()
        })
    };
    let mut keeps = keeps.iter().filter(|keep| !keep.is_expired(snapshot.time));
    keeps.any(is_for)
}

/// The places of a process, or of the finding's GPUs, as scope inputs; each with whether the finding is about it.
fn places<'a>(
    finding: &'a Finding,
    process: Option<&'a Process>,
    snapshot: &'a Snapshot,
) -> Vec<(bool, ScopeInput<'a>)> {
    let mut places: Vec<(bool, ScopeInput<'_>)> = finding
        .gpus
        .iter()
        .map(|gpu| {
            let input =
                ScopeInput { process, index: gpu.index, held_bytes: gpu.used_bytes, snapshot };
            (true, input)
        })
        .collect();
    if let Some(process) = process {
        places.extend(places_of(process, &finding.gpus, snapshot));
    }
    places
}

/// The places of a process, including GPUs without a finding. Empty if it is on no GPU.
fn places_of<'a>(
    process: &'a Process,
    accused: &[FindingGpu],
    snapshot: &'a Snapshot,
) -> Vec<(bool, ScopeInput<'a>)> {
    let mut places = Vec::new();
    for gpu in &snapshot.gpus {
        let is_accused = accused.iter().any(|on| on.index == gpu.index);
        let rows = gpu.processes.iter().flatten();
        for row in rows.filter(|row| row.pid == process.pid && !is_accused) {
            let input = ScopeInput {
                process: Some(process),
                index: gpu.index,
                held_bytes: row.used_bytes,
                snapshot,
            };
            // A finding without GPUs is about all GPUs of the process.
            places.push((accused.is_empty(), input));
        }
    }
    if places.is_empty() && accused.is_empty() {
        let nowhere =
            ScopeInput { process: Some(process), index: u32::MAX, held_bytes: None, snapshot };
        places.push((true, nowhere));
    }
    places
}

#[cfg(test)]
mod tests;
