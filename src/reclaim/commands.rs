//! What to type about each finding: the command that does what the plan for it does. Pure.
//!
//! What rests and can be asked to release memory gets that command first. Then:
//! What the plan would end by signals or requests is `gpumem kill` with every process of the target that a
//! rule found; what something else owns is that owner's own command. What `reap` would not take gets no
//! command that kills, only the one that explains it.

use super::by_snapshot::plan_by_snapshot;
use super::guard::Protection;
use super::plan::{Plan, Why};
use super::policy::{FindingSelector, Policy, Release, Serves, Targets};
use super::release::{self, ReleaseBy, ReleaseOptions};
use super::target::{Reason, Step, Target};
use crate::advice;
use crate::model::finding::{Finding, Kind, OwnCommands};
use crate::model::{Process, Snapshot};

/// The user who may ask anybody's process.
const ROOT: u32 = 0;

/// What a plan is asked about, for it to tell what to type: what `reap` takes by default, whoever's it is.
pub fn policy(serves: Serves) -> Policy {
    Policy { all_users: true, ..Policy::new(Targets::Found(FindingSelector::default()), serves) }
}

/// Fills in the commands of what lasts, by the plan that [`policy`] made of a snapshot. `typed_by` is the
/// uid of who would type them; `None` where that is whose the processes are, as for a recording.
pub fn fill_in<'f>(
    findings: impl Iterator<Item = &'f mut Finding>,
    plan: &Plan,
    snapshot: &Snapshot,
    typed_by: Option<u32>,
) {
    for finding in findings.filter(|finding| finding.resolved_at.is_none()) {
        NextSteps::new(finding, plan, snapshot, typed_by).put(finding);
    }
}

/// What to do next about a finding.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NextSteps {
    /// What to type, each a whole command.
    pub commands: Vec<String>,
    /// Whose it is and what they may type, where only rights stand in the way.
    ask_owner: Option<String>,
}

impl NextSteps {
    /// By a plan, as [`fill_in`] has it.
    pub fn new(finding: &Finding, plan: &Plan, snapshot: &Snapshot, typed_by: Option<u32>) -> Self {
        let target = plan.targets.iter().find(|it| it.is_for(finding));
        let command = target.and_then(|target| {
            let Reason::Found { findings } = &target.reason else {
                return None;
            };
            let pids = findings.iter().map(|because| because.pid).collect();
            kill(target, pids, snapshot, typed_by)
        });
        let command = command.or_else(|| explain(finding));
        let ask_owner = ask_owner(finding, plan);
        let release = match &ask_owner {
            Some(_) => None,
            None => release(finding, target, snapshot, typed_by),
        };
        Self { commands: release.into_iter().chain(command).collect(), ask_owner }
    }

    /// Puts them into a finding.
    pub fn put(&self, finding: &mut Finding) {
        finding.commands.clone_from(&self.commands);
        let is_new = |words: &&String| !finding.advice.contains(words);
        let words = self.ask_owner.as_ref().filter(is_new).cloned();
        finding.advice.extend(words);
    }
}

/// The command that ends a target, which is about these processes; `None` where it takes more than one, or cannot
/// be typed.
fn kill(
    target: &Target,
    mut pids: Vec<u32>,
    snapshot: &Snapshot,
    typed_by: Option<u32>,
) -> Option<String> {
    if target.is_advice() {
        let members = target.members.iter();
        let job: Vec<_> = members.filter_map(|it| snapshot.process(it.pid)).collect();
        return advice::owner_of(snapshot.process(target.leader)?, &job)?.command;
    }
    if let Some(launcher) = &target.launcher {
        pids = vec![launcher.pid];
    }
    pids.sort_unstable();
    pids.dedup();
    let is_others = |uid: u32| typed_by.is_some_and(|own| own != uid);
    let others = target.members.iter().any(|member| is_others(member.uid));
    let option = if others { " --all-users" } else { "" };
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    Some(format!("gpumem kill{option} {}", pids.join(" ")))
}

/// The command by which a process, and the others of its job of which the same was found, give memory back and
/// live on, where they rest and there is a way.
fn release(
    finding: &Finding,
    target: Option<&Target>,
    snapshot: &Snapshot,
    typed_by: Option<u32>,
) -> Option<String> {
    let found = finding.process.as_ref()?;
    if !finding.kind.may_be_released() || !found.identity.is_certain() {
        return None;
    }
    let process =
        |pid: u32| snapshot.process(pid).filter(|it| !is_busy(it) && can_be_asked(it, snapshot));
    process(found.pid).filter(|it| it.identity() == found.identity)?;
    let mut pids = vec![found.pid];
    if let Some(Reason::Found { findings }) = target.map(|it| &it.reason) {
        let others = findings.iter().filter(|it| it.kind.may_be_released());
        pids.extend(others.map(|it| it.pid).filter(|&pid| process(pid).is_some()));
    }
    pids.sort_unstable();
    pids.dedup();
    let is_others = |pid: &u32| {
        let uid = process(*pid).and_then(|it| it.uid);
        uid.zip(typed_by).is_some_and(|(uid, own)| uid != own)
    };
    let option = match pids.iter().any(is_others) {
        true => " --all-users",
        false => "",
    };
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    Some(format!("gpumem release{option} {}", pids.join(" ")))
}

/// Whether it is a kernel that runs a cell: it is asked nothing before that is interrupted.
fn is_busy(process: &Process) -> bool {
    let kernel = process.jupyter.as_deref();
    kernel.is_some_and(|kernel| kernel.execution_state.as_deref() == Some("busy"))
}

/// What a process that holds memory of a GPU is told by name, whatever was found of it, where whoever would type it
/// may; `policy` says what is kept.
pub fn of_process(
    process: &Process,
    snapshot: &Snapshot,
    policy: &Policy,
    typed_by: Option<u32>,
) -> OwnCommands {
    let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes).flatten();
    let mut rows = rows.filter(|row| row.pid == process.pid);
    let may_type = match typed_by {
        None | Some(ROOT) => true,
        Some(_) => typed_by == process.uid,
    };
    let Some(targets) = Targets::of_pids(&[process.pid]).filter(|_| may_type) else {
        return OwnCommands::default();
    };
    let policy = Policy { targets, ..policy.clone() };
    let holds = rows.any(|row| row.used_bytes != Some(0));
    let release = (holds && !is_busy(process)).then(|| policy.clone());
    let (plan, _) = plan_by_snapshot(policy, &[], snapshot);
    let target = plan.targets.first();
    OwnCommands {
        release: release.and_then(|policy| release_of(process, snapshot, policy, typed_by)),
        kill: target.and_then(|target| kill(target, vec![process.pid], snapshot, typed_by)),
    }
}

fn release_of(
    process: &Process,
    snapshot: &Snapshot,
    policy: Policy,
    typed_by: Option<u32>,
) -> Option<String> {
    let release = Release::Only(ReleaseOptions { is_named: true, ..ReleaseOptions::by_rule() });
    let policy = Policy { release, ..policy };
    let (plan, _) = plan_by_snapshot(policy, &[], snapshot);
    let steps = plan.targets.iter().flat_map(|target| &target.steps);
    let mut ways = steps.filter_map(|step| match step {
        Step::Release { way, .. } => Some(way),
        _ => None,
    });
    let returns_memory = || advice::of(process).is_some_and(|row| row.returns(process));
    let is_certain = match ways.next()?.by {
        ReleaseBy::Server(_) | ReleaseBy::Signal { .. } => true,
        ReleaseBy::Kernel { .. } => returns_memory(),
        ReleaseBy::Python => release::python::is_shown(process) && returns_memory(),
    };
    let pid = process.pid;
    let option = match typed_by.is_some() && typed_by != process.uid {
        true => " --all-users",
        false => "",
    };
    is_certain.then(|| format!("gpumem release{option} {pid}"))
}

/// Whether there is a way that a snapshot shows. Which version a Python is, only a look into it shows.
fn can_be_asked(process: &Process, snapshot: &Snapshot) -> bool {
    let way = release::find(process, snapshot);
    way.is_ok_and(|way| way.by != ReleaseBy::Python || release::python::is_shown(process))
}

/// The command that shows more; `None` where it is not known what it is about.
fn explain(finding: &Finding) -> Option<String> {
    match (&finding.process, finding.gpus.first()) {
        (Some(process), _) => {
            let is_certain = process.identity.is_certain() || finding.kind == Kind::Dead;
            is_certain.then(|| format!("gpumem explain {}", process.pid))
        }
        (None, Some(gpu)) => Some(format!("gpumem explain gpu:{}", gpu.index)),
        (None, None) => None,
    }
}

/// Whose it is and what they may type, where only rights stand in the way.
fn ask_owner(finding: &Finding, plan: &Plan) -> Option<String> {
    let mut refused = plan.refused.iter();
    let refused = refused.find(|it| it.finding.as_ref() == Some(&finding.id))?;
    let Why::Protected { protection: Protection::NotPermitted { uid }, .. } = refused.why else {
        return None;
    };
    let pid = refused.pid?;
    let owner = match finding.process.as_ref().and_then(|it| it.user.as_deref()) {
        Some(user) => user.to_owned(),
        None => format!("uid {uid}"),
    };
    Some(format!(
        "it is another user's: ask {owner} to run `gpumem kill {pid}`, or as root run `gpumem kill \
        --all-users {pid}`"
    ))
}

#[cfg(test)]
mod tests;
