//! Creates a plan from findings and a policy: targets with their steps, and refusals with their reasons.
//!
//! gpumem shows the plan first and then carries it out; see `act`. [`crate::model::family`] groups related processes. A
//! rule ends a family only if every member that NVML lists or that uses the CPU has a finding. `select` chooses the
//! processes that the policy requests, `step` chooses the steps, and `guard` protects processes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::guard::{Call, Guard, Protection};
use super::launcher::{find_launcher, find_leader};
use super::park::check::is_suggested;
use super::policy::{Release, Targets, WORKING_CPU_PERCENT};
use super::release::{self, ReleaseBy, ReleaseOptions, ReleaseWay};
use super::select::{MatchedProcess, select_found, select_named};
use super::step::{self, FamilyInput};
use super::target::{Because, MemberGpu, Reason, Target, TargetProcess, listed};
use crate::advice;
use crate::host::{Guarded, Roots, UsageReader};
use crate::model::family::{Family, member};
use crate::model::finding::{Finding, Kind};
use crate::model::process::Parent;
use crate::model::process_name::name_of;
use crate::model::{Gpu, Process, Snapshot, Time, Unread};

/// Maximum number of generations searched for a requested ancestor of a process.
const MAX_GENERATIONS: usize = 64;

#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    pub findings: &'a [Finding],
    pub snapshot: &'a Snapshot,
    pub families: &'a [Family],
    /// Facts about the processes that [`pids`] returns. Processes whose facts could not be read are missing.
    pub facts: &'a BTreeMap<u32, Guarded>,
}

/// Returns the pids of all processes about which a plan needs facts.
pub fn pids(snapshot: &Snapshot, families: &[Family]) -> Vec<u32> {
    let launchers = families.iter().filter_map(|family| Some(family.launcher.as_ref()?.pid));
    let mut pids: Vec<u32> =
        snapshot.processes.iter().map(|process| process.pid).chain(launchers).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan {
    pub time: Time,
    /// The targets, sorted by memory, largest first.
    pub targets: Vec<Target>,
    /// Processes that were requested or found, but belong to no target.
    pub refused: Vec<Refused>,
}

/// A process or finding that a plan refuses.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Refused {
    /// PID of the process; `None` if there is none.
    pub pid: Option<u32>,
    /// User name of the owner.
    pub user: Option<Arc<str>>,
    /// Name of the process, as in findings. Chosen by the process: escape it for a terminal.
    pub name: Option<Arc<str>>,
    /// Identifier of the finding; `None` if the process was named.
    pub finding: Option<Arc<str>>,
    /// Kind of the finding.
    pub kind: Option<Kind>,
    /// Reason for the refusal.
    pub why: Why,
}

impl Refused {
    pub fn new(pid: Option<u32>, why: Why) -> Self {
        Self { pid, user: None, name: None, finding: None, kind: None, why }
    }
}

/// Why a process or finding is refused.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Why {
    /// The process, or another process in its family, is protected.
    Protected {
        /// PID of the protected process.
        pid: u32,
        /// Reason for the protection.
        protection: Protection,
    },
    /// The process cannot be signalled safely, or a signal would not help.
    NeverTaken {
        /// Kind of the finding.
        kind: Kind,
    },
    /// `reap` acts on findings of this kind only if the kind is requested.
    OnlyWhenAsked {
        /// Kind of the finding.
        kind: Kind,
    },
    /// The rule only notifies the owner, for example because the process is active on another GPU or exempt there.
    #[serde(rename = "only_told")]
    OnlyNotified,
    /// Other processes in the family have no finding but would be killed together with the process.
    Family {
        /// PIDs of these processes.
        pids: Vec<u32>,
    },
    /// The process is a rank of a distributed run whose other ranks are not targets. The launcher would restart the
    /// rank or end all ranks.
    Rank {
        /// PID of the launcher.
        launcher: u32,
        /// Program of the launcher.
        program: Arc<str>,
        /// PIDs of the other ranks.
        pids: Vec<u32>,
    },
    /// The process, or another process in its family, may be working on a GPU whose process list could not be read.
    Unread {
        /// NVML index of the GPU.
        gpu: u32,
    },
    /// NVML does not list the process on any GPU, and the process has no GPU open.
    NotOnGpu,
    /// The process is a zombie, which receives no signals.
    Zombie {
        /// Description of the parent, which must reap the zombie. Contains untrusted text: escape it for a terminal.
        parent: Arc<str>,
    },
    /// The process cannot be asked to release memory.
    NoWayIn {
        /// Why each method is impossible. Contains untrusted text: escape it for a terminal.
        ways: Arc<str>,
    },
    /// The process cannot be parked.
    CannotPark {
        /// Why not.
        obstacle: Arc<str>,
    },
    /// The process is no longer in the snapshot.
    Gone,
    /// The finding is about a GPU, not a process.
    NoProcess,
    /// The name matches no GPU, no notebook, kernel or server on a GPU, and no finding.
    NoTarget {
        /// The name that was requested.
        name: Arc<str>,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protected { pid, protection } => write!(f, "{pid}: {protection}"),
            Self::NeverTaken { kind } => f.write_str(match kind {
                Kind::Dead => {
                    "its process has exited; one that inherited its files holds the memory, and \
                    only root sees which"
                }
                Kind::Stuck => {
                    "no signal kills a process that is blocked in the kernel; drain the machine \
                    and restart it"
                }
                _ => "killing it does not help; see the finding's advice",
            }),
            Self::OnlyWhenAsked { kind } => {
                write!(f, "killed only on request; add --kind {kind}")
            }
            Self::OnlyNotified => {
                f.write_str("the rule only notifies its owner; name it with --pid")
            }
            Self::Family { pids } => {
                let pids = listed(pids);
                write!(
                    f,
                    "{pids} of its job have no finding and would be killed with it; name them \
                    with --pid"
                )
            }
            Self::Rank { launcher, program, pids } => {
                let pids = listed(pids);
                write!(
                    f,
                    "its launcher {launcher} ({program}) would start it again or kill {pids} too; \
                    gpumem kill {launcher} ends the whole run"
                )
            }
            Self::Unread { gpu } => write!(
                f,
                "it or a process of its job may be on GPU {gpu}, whose process list could not be read"
            ),
            Self::NotOnGpu => f.write_str("it holds no GPU; gpumem ps shows who does"),
            Self::Zombie { parent } => write!(
                f,
                "it has exited and gets no signal; {parent} has to reap it or exit, and a process \
                that inherited its files may hold the memory"
            ),
            Self::NoWayIn { ways } => write!(f, "cannot be asked to release memory: {ways}"),
            Self::CannotPark { obstacle } => write!(f, "cannot be parked: {obstacle}"),
            Self::Gone => f.write_str("it no longer exists"),
            Self::NoProcess => f.write_str("it is about a GPU, and there is no process to kill"),
            Self::NoTarget { name } => write!(
                f,
                "nothing on a GPU is called {name}; write a PID, a notebook, a kernel's id, a \
                finding's id, gpu:0 or a server's name, as gpumem ps and gpumem check show them"
            ),
        }
    }
}

pub fn plan(input: &PlanInput<'_>, guard: &Guard) -> Plan {
    let mut plan = Plan { time: input.snapshot.time, targets: Vec::new(), refused: Vec::new() };
    let families = by_launcher(input);
    let input = &PlanInput { families: &families, ..*input };
    let refused = &mut plan.refused;
    let (call, matched) = match &guard.policy.targets {
        Targets::Named { pids, words } => {
            (Call::Named, select_named(input, guard, (pids, words), refused))
        }
        Targets::Found(selector) => (Call::Rule, select_found(input, guard, selector, refused)),
    };
    let unread = Unread::new(input.snapshot, input.families, |_, _| false);
    let (parked, matched): (Vec<MatchedProcess<'_>>, Vec<MatchedProcess<'_>>) =
        matched.into_iter().partition(|matched| {
            let mut findings = matched.findings.iter();
            guard.policy.parks
                || findings.any(|finding| guard.policy.parking.contains(&finding.rule))
        });
    let planner = Planner { input, guard, call, unread: &unread };
    for matched in &parked {
        plan.add(planner.park_target(matched), &[matched]);
    }
    let (released, ended): (Vec<MatchedProcess<'_>>, Vec<MatchedProcess<'_>>) =
        matched.into_iter().partition(|matched| {
            let mut findings = matched.findings.iter();
            matches!(guard.policy.release, Release::Only(_))
                || findings.any(|finding| guard.policy.releasing.contains(&finding.rule))
        });
    Planner { guard: &guard.for_release(), ..planner }.plan_releases(&released, &mut plan);
    let mut done: Vec<u32> = Vec::new();
    for requested in &ended {
        if done.contains(&requested.process.pid) {
            continue;
        }
        let family = member(input.families, requested.process.pid);
        let is_relative = |pid: u32| match family {
            Some(family) => family.members.contains(&pid),
            None => pid == requested.process.pid,
        };
        let together: Vec<&MatchedProcess<'_>> =
            ended.iter().filter(|matched| is_relative(matched.process.pid)).collect();
        done.extend(together.iter().map(|matched| matched.process.pid));
        let target = planner.target(&together, family);
        plan.add(target, &together);
    }
    plan.targets.sort_by_key(|target| (std::cmp::Reverse(target.bytes), target.leader));
    plan
}

impl Plan {
    /// Records how much CPU and I/O each target found by a rule has used so far, so that later work can cancel the act.
    pub fn note_usage(&mut self, roots: &Roots) {
        let reader = UsageReader::new(roots);
        for target in self.targets.iter_mut().filter(|target| target.is_found()) {
            target.used_at_plan = Some(Arc::new(reader.read(&target.identities(), None)));
        }
    }

    /// Adds a target, or refuses all of its requested processes, even those that did not cause the refusal.
    fn add(&mut self, target: Result<Target, Why>, requested: &[&MatchedProcess<'_>]) {
        match target {
            Ok(target) => self.targets.push(target),
            Err(why) => {
                let refused = requested.iter().map(|matched| matched.refused(why.clone()));
                self.refused.extend(refused);
            }
        }
    }
}

/// Merges the families that have the same launcher, because they end together with the launcher.
fn by_launcher(input: &PlanInput<'_>) -> Vec<Family> {
    let mut families: Vec<Family> = input.families.to_vec();
    let find_launcher = |pid: u32| find_launcher(input.snapshot.process(pid)?, input.snapshot);
    let mut runs: Vec<(Arc<Parent>, Vec<usize>)> = Vec::new();
    for (index, family) in families.iter().enumerate() {
        let parents = family.members.iter().filter_map(|&pid| find_launcher(pid));
        for parent in parents {
            let key = (parent.pid, parent.start_ticks);
            match runs
                .iter_mut()
                .find(|(known_parent, _)| (known_parent.pid, known_parent.start_ticks) == key)
            {
                Some((_, run)) if run.contains(&index) => {}
                Some((_, run)) => run.push(index),
                None => runs.push((Arc::clone(parent), vec![index])),
            }
        }
    }
    for (parent, run) in runs {
        let mut joined = families[run[0]].clone();
        for &index in &run[1..] {
            joined.members.append(&mut families[index].members);
            joined.ties.extend(families[index].ties.iter().copied());
        }
        joined.members.sort_unstable();
        joined.members.dedup();
        joined.launcher = Some(parent);
        families[run[0]] = joined;
    }
    families.retain(|family| !family.members.is_empty());
    families
}

struct Planner<'a> {
    input: &'a PlanInput<'a>,
    guard: &'a Guard,
    call: Call,
    unread: &'a Unread,
}

impl<'a> Planner<'a> {
    /// Returns an error if a rule found a process that may be working on a GPU whose process list could not be read.
    fn check_unread(&self, process: &Process) -> Result<(), Why> {
        match self.unread.gpu_of(process.pid) {
            Some(gpu) if self.call == Call::Rule => Err(Why::Unread { gpu }),
            _ => Ok(()),
        }
    }

    /// Plans to park a process without ending it.
    fn park_target(&self, matched: &MatchedProcess<'a>) -> Result<Target, Why> {
        let process = matched.process;
        self.check_unread(process)?;
        if self.call == Call::Rule && process.jupyter.is_none() {
            return Err(Why::CannotPark { obstacle: "rules park only notebooks".into() });
        }
        let target = self.new_target(&[matched], &[process], Vec::new())?;
        let step = step::park::step(process, self.input.snapshot, false);
        Ok(Target { steps: Vec::from_iter(step), ..target })
    }

    /// Plans to ask processes to release memory. Each process that can be asked is a target, except that all processes
    /// of a server are one target.
    fn plan_releases(&self, matched: &[MatchedProcess<'a>], plan: &mut Plan) {
        let by_rule = ReleaseOptions::by_rule();
        let options = match &self.guard.policy.release {
            Release::Only(options) => options,
            Release::First(_) | Release::Never => &by_rule,
        };
        let find_way = |process: &Process| {
            self.check_unread(process)?;
            let way = release::find(process, self.input.snapshot);
            way.map_err(|ways| Why::NoWayIn { ways: ways.into() })
        };
        let mut ways: Vec<(ReleaseWay, Vec<&MatchedProcess<'_>>)> = Vec::new();
        for matched in matched {
            match find_way(matched.process) {
                Ok(way) => match ways.iter_mut().find(|(other, _)| *other == way) {
                    Some((_, requested)) => requested.push(matched),
                    None => ways.push((way, vec![matched])),
                },
                Err(why) => plan.refused.push(matched.refused(why)),
            }
        }
        for (way, requested) in ways {
            plan.add(self.release_target(options, way, &requested), &requested);
        }
    }

    /// Creates one target for all processes that release memory after the same request. The target of a server
    /// includes its workers even if they were not requested, because the server releases their memory, too.
    fn release_target(
        &self,
        options: &ReleaseOptions,
        way: ReleaseWay,
        matched: &[&MatchedProcess<'a>],
    ) -> Result<Target, Why> {
        let snapshot = self.input.snapshot;
        let is_of_way = |process: &&Process| {
            is_matched(process.pid, matched)
                || (matches!(way.by, ReleaseBy::Server(_))
                    && snapshot.rows_of(process.pid).next().is_some()
                    && release::find(process, snapshot).as_ref() == Ok(&way))
        };
        let processes: Vec<&Process> = snapshot.processes.iter().filter(is_of_way).collect();
        let target = self.new_target(matched, &processes, Vec::new())?;
        let steps = vec![step::release::step(way, options, &processes, snapshot)];
        Ok(Target { steps, ..target })
    }

    fn target(
        &self,
        matched: &[&MatchedProcess<'a>],
        family: Option<&Family>,
    ) -> Result<Target, Why> {
        let Self { guard, call, unread, .. } = *self;
        let PlanInput { snapshot, facts, .. } = *self.input;
        matched.iter().try_for_each(|matched| self.check_unread(matched.process))?;
        let relatives = family.map_or(&[][..], |family| &family.members);
        let relatives = relatives.iter().filter(|&&pid| !is_matched(pid, matched));
        let mut processes: Vec<&Process> = matched.iter().map(|matched| matched.process).collect();
        let (mut unaccused, mut unasked, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        for &pid in relatives {
            let Some(process) = snapshot.process(pid) else {
                continue;
            };
            let is_listed = snapshot.rows_of(pid).next().is_some() || unread.may_hold(pid);
            if process.start_ticks.is_none() || process.is_zombie() {
                dead.push(pid);
            } else if is_listed || (call == Call::Rule && is_working(process)) {
                unaccused.push(pid);
            } else if descends(process, matched, snapshot) {
                processes.push(process);
            } else {
                // A relative that is not a descendant does not end with the requested processes.
                unasked.push(pid);
            }
        }
        if call == Call::Rule && !unaccused.is_empty() {
            return Err(Why::Family { pids: unaccused });
        }
        let is_whole = unaccused.is_empty() && unasked.is_empty();
        if !unaccused.is_empty() {
            // The members that keep running may still hold the memory of the dead processes.
            dead.clear();
        }
        let launcher = matched.iter().find_map(|matched| find_launcher(matched.process, snapshot));
        if let Some(parent) = launcher.filter(|_| !is_whole) {
            unaccused.append(&mut unasked);
            let program = launcher_name(parent);
            return Err(Why::Rank { launcher: parent.pid, program, pids: unaccused });
        }
        let mut target = self.new_target(matched, &processes, dead)?;
        if let Some(parent) = launcher {
            let facts = facts.get(&parent.pid);
            let facts = facts.filter(|facts| Some(facts.start_ticks) == parent.start_ticks);
            target.launcher = Some(self.launcher(parent, facts, &target.members, &processes)?);
        }
        let is_idle = call == Call::Rule
            && matched
                .iter()
                .flat_map(|matched| &matched.findings)
                .all(|finding| finding.kind == Kind::Idle);
        let (steps, respawn_seconds) = step::steps(&FamilyInput {
            guard,
            target: &target,
            processes: &processes,
            snapshot,
            is_whole,
            is_idle,
        });
        let instead = match &processes[..] {
            [process] if is_idle && is_suggested(process, snapshot) => {
                Some(format!("gpumem park {}", process.pid).into())
            }
            _ => None,
        };
        let owner = processes.iter().find_map(|process| advice::owner_of(process, &processes));
        let owner = owner.filter(|_| steps.iter().all(|step| step.advice().is_none()));
        let owner = owner.map(|owner| owner.line.into());
        Ok(Target { owner, steps, respawn_seconds, instead, ..target })
    }

    /// Returns the launcher of a run, or the reason why it is protected.
    fn launcher(
        &self,
        parent: &Parent,
        facts: Option<&Guarded>,
        members: &[TargetProcess],
        processes: &[&Process],
    ) -> Result<TargetProcess, Why> {
        let pid = parent.pid;
        let protected = |protection| Why::Protected { pid, protection };
        let (call, now) = (self.call, self.input.snapshot.time);
        let started = processes.iter().filter_map(|process| process.start_time).min();
        let protection = self
            .guard
            .by_facts(call, pid, facts, None)
            .or_else(|| self.guard.keeps_launcher(call, parent, facts?, (started, now)));
        if let Some(protection) = protection {
            return Err(protected(protection));
        }
        let identity = facts.and_then(|facts| Some((facts, facts.uid?)));
        let Some((facts, uid)) = identity else {
            return Err(protected(Protection::Unresolved));
        };
        if members.iter().any(|member| member.uid != uid) {
            return Err(protected(Protection::OtherUser { uid }));
        }
        Ok(TargetProcess {
            pid,
            start_ticks: facts.start_ticks,
            uid,
            user: members.first().and_then(|member| member.user.clone()),
            name: launcher_name(parent),
            gpus: Vec::new(),
            is_listed: false,
            process_group: facts.process_group,
            session: facts.session,
            is_stopped: facts.is_stopped(),
            is_parked: false,
        })
    }

    /// Creates a target without steps, or returns the reason why one of its processes is refused.
    fn new_target(
        &self,
        matched: &[&MatchedProcess<'_>],
        processes: &[&Process],
        dead: Vec<u32>,
    ) -> Result<Target, Why> {
        let members = processes.iter().map(|process| self.target_process(process, matched));
        let mut members: Vec<TargetProcess> = members.collect::<Result<_, _>>()?;
        members.sort_by_key(|member| (member.start_ticks, member.pid));
        let leader = find_leader(&members, processes);
        let start = members.iter().find(|member| member.pid == leader);
        let start = start.map_or(0, |member| member.start_ticks);
        let because = |matched: &&MatchedProcess<'_>| {
            let pid = matched.process.pid;
            matched.findings.iter().map(|finding| Because::new(finding, pid)).collect::<Vec<_>>()
        };
        Ok(Target {
            id: format!("{leader}:{start}").into(),
            boot_id: self.input.snapshot.host.boot_id.clone(),
            reason: match self.call {
                Call::Named => Reason::Named,
                Call::Rule => {
                    Reason::Found { findings: matched.iter().flat_map(because).collect() }
                }
            },
            launcher: None,
            leader,
            bytes: bytes(&members, &dead, self.input.snapshot),
            dead,
            members,
            owner: None,
            steps: Vec::new(),
            respawn_seconds: 0.0,
            used_at_plan: None,
            instead: None,
        })
    }

    /// Returns the entry of a process in a target, or the reason why the process is refused. A requested process must
    /// be on a GPU.
    fn target_process(
        &self,
        process: &Process,
        matched: &[&MatchedProcess<'_>],
    ) -> Result<TargetProcess, Why> {
        let (pid, call, snapshot) = (process.pid, self.call, self.input.snapshot);
        let protected = |protection| Err(Why::Protected { pid, protection });
        if let Some(protection) = self.guard.by_snapshot(call, process, snapshot) {
            return protected(protection);
        }
        let facts = self.input.facts.get(&pid);
        if facts.is_some_and(|facts| Some(facts.start_ticks) != process.start_ticks) {
            return protected(Protection::Replaced);
        }
        let executable = process.executable.as_deref();
        if let Some(protection) = self.guard.by_facts(call, pid, facts, executable) {
            return protected(protection);
        }
        let identity = process.start_ticks.zip(facts.and_then(|facts| facts.uid));
        let Some((start_ticks, uid)) = identity else {
            return protected(Protection::Unresolved);
        };
        let gpus = gpus(process, snapshot);
        let files = process.gpu_files.as_deref().unwrap_or_default();
        let is_parked = process.parked().is_some();
        if is_matched(pid, matched) && gpus.is_empty() && files.is_empty() && !is_parked {
            return Err(Why::NotOnGpu);
        }
        Ok(TargetProcess {
            pid,
            start_ticks,
            uid,
            user: process.user.clone(),
            name: name_of(process).into(),
            gpus,
            is_listed: snapshot.rows_of(pid).next().is_some(),
            process_group: process.process_group,
            session: process.session,
            is_stopped: facts.is_some_and(Guarded::is_stopped),
            is_parked,
        })
    }
}

fn is_matched(pid: u32, matched: &[&MatchedProcess<'_>]) -> bool {
    matched.iter().any(|matched| matched.process.pid == pid)
}

/// Returns whether a process uses at least [`WORKING_CPU_PERCENT`] of a core. Returns true if its CPU use is unknown.
fn is_working(process: &Process) -> bool {
    process.cpu_percent.is_none_or(|percent| percent >= WORKING_CPU_PERCENT)
}

/// Returns whether a process descends from a requested process, according to the snapshot.
fn descends(process: &Process, matched: &[&MatchedProcess<'_>], snapshot: &Snapshot) -> bool {
    let mut child = process;
    // In a recording, two processes can be each other's parents, so the search is limited.
    for _ in 0..MAX_GENERATIONS {
        let parent = child.ppid.and_then(|ppid| snapshot.process(ppid));
        let is_older = |parent: &&Process| {
            parent.start_ticks.is_some() && parent.start_ticks <= child.start_ticks
        };
        let Some(parent) = parent.filter(is_older) else {
            return false;
        };
        if is_matched(parent.pid, matched) {
            return true;
        }
        child = parent;
    }
    false
}

/// Returns the GPUs on which NVML lists a process, and the GPUs whose device file the process has open.
fn gpus(process: &Process, snapshot: &Snapshot) -> Vec<MemberGpu> {
    let files = process.gpu_files.as_deref().unwrap_or_default();
    let member_gpu = |gpu: &Gpu| {
        let rows = gpu.processes.iter().flatten();
        let mut rows = rows.filter(|row| row.pid == process.pid).peekable();
        let is_listed = rows.peek().is_some();
        let file = gpu.minor_number.map(|minor| format!("/nvidia{minor}"));
        let is_open = file.is_some_and(|file| files.iter().any(|path| path.ends_with(&file)));
        (is_listed || is_open).then(|| MemberGpu {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            used_bytes: match is_listed {
                true => rows.try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?))),
                false => None,
            },
        })
    };
    snapshot.gpus.iter().filter_map(member_gpu).collect()
}

/// Returns the memory that NVML lists for the members and the dead processes. Returns `None` if NVML lists none of them
/// or does not report a value.
fn bytes(members: &[TargetProcess], dead: &[u32], snapshot: &Snapshot) -> Option<u64> {
    let is_theirs =
        |pid: u32| dead.contains(&pid) || members.iter().any(|member| member.pid == pid);
    let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
    let mut rows = rows.flatten().filter(|row| is_theirs(row.pid)).peekable();
    rows.peek()?;
    rows.try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
}

fn launcher_name(parent: &Parent) -> Arc<str> {
    let (command, comm) = (parent.command.clone(), parent.comm.clone());
    name_of(&Process { command, comm, ..Process::default() }).into()
}

#[cfg(test)]
mod tests;
