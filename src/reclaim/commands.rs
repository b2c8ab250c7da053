//! Derives the commands that a user can run to act on each finding. Deriving them has no side effects.
//!
//! The first command is `gpumem release`, if the process can be asked to release memory. The second is `gpumem kill`,
//! if the plan would end the target. It names the target's launcher if there is one, otherwise the processes with
//! findings. If a scheduler or service manager owns the process, its command replaces `gpumem kill`. If no command ends
//! the process, the second command explains the finding.

use std::sync::Arc;

use super::guard::Protection;
use super::plan::{Plan, Why};
use super::policy::{Policy, Release, Targets};
use super::prepare::{PlanSource, default_policy, plan_live, plan_recorded};
use super::release::{self, ReleaseBy, ReleaseOptions};
use super::target::{Reason, Step, Target};
use crate::advice;
use crate::model::finding::{Action, Finding, Kind, OwnCommands};
use crate::model::{Process, Snapshot};
use crate::rules::RuleSet;
use crate::source::remote::RemoteHost;

/// Uid of root, who can signal any process.
const ROOT: u32 = 0;

/// User who runs a suggested command, and the place where it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandUser {
    /// The user with this uid, now and on this machine.
    User(u32),
    /// The owner of the processes. This is assumed for a recording, because it is unknown who reads the recording.
    Owner,
    /// The owner, on another machine and later, when a pid may have been reused.
    Elsewhere,
}

impl CommandUser {
    fn is_other_than(self, owner: u32) -> bool {
        matches!(self, Self::User(uid) if uid != owner)
    }

    /// Returns the processes as command-line arguments. Returns `None` if a process needs a name that stays unique
    /// after its pid is reused, but has none.
    fn names(self, mut pids: Vec<u32>, snapshot: &Snapshot) -> Option<String> {
        pids.sort_unstable();
        pids.dedup();
        let boot_id = snapshot.host.boot_id.as_deref();
        let name = |pid: &u32| match self {
            Self::Elsewhere => snapshot.process(*pid)?.identity().exact_name(boot_id?),
            Self::User(_) | Self::Owner => Some(pid.to_string()),
        };
        Some(pids.iter().map(name).collect::<Option<Vec<_>>>()?.join(" "))
    }

    fn command(
        self,
        verb: &str,
        pids: Vec<u32>,
        mut owners: impl Iterator<Item = u32>,
        snapshot: &Snapshot,
    ) -> Option<String> {
        let option = if owners.any(|uid| self.is_other_than(uid)) { " --all-users" } else { "" };
        Some(format!("gpumem {verb}{option} {}", self.names(pids, snapshot)?))
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NextSteps {
    pub commands: Vec<String>,
    /// Advice to ask the owner, if only a missing permission prevents gpumem from acting.
    ask_owner: Option<String>,
    /// Whether the plan leaves the target to its owner, such as a scheduler, and only shows the owner's command.
    is_left_to_owner: bool,
}

impl NextSteps {
    pub fn new(
        finding: &Finding,
        plan: &Plan,
        snapshot: &Snapshot,
        command_user: CommandUser,
    ) -> Self {
        let target = plan.targets.iter().find(|target| target.is_for(finding));
        let command = target.and_then(|target| {
            let Reason::Found { findings } = &target.reason else {
                return None;
            };
            let pids = findings.iter().map(|because| because.pid).collect();
            kill_command(target, pids, snapshot, command_user)
        });
        let command = command.or_else(|| explain_command(finding));
        let ask_owner = ask_owner(finding, plan);
        let release = match &ask_owner {
            Some(_) => None,
            None => release_command(finding, target, snapshot, command_user),
        };
        Self {
            commands: release.into_iter().chain(command).collect(),
            ask_owner,
            is_left_to_owner: target.is_some_and(Target::is_advice),
        }
    }

    /// Adds the commands to a finding. If the plan leaves the target to its owner, also removes the finding's actions.
    pub fn put(&self, finding: &mut Finding) {
        if self.is_left_to_owner {
            finding.actions.retain(|action| *action == Action::Notify);
        }
        finding.commands.clone_from(&self.commands);
        let is_new = |words: &&String| !finding.advice.contains(words);
        let words = self.ask_owner.as_ref().filter(is_new).cloned();
        finding.advice.extend(words);
    }
}

#[derive(Debug)]
pub struct CommandSource {
    rules: RuleSet,
    /// Whether the commands are for this machine now, not for a recording or another machine.
    is_live: bool,
    /// Machine on which the commands take effect, if not this one.
    host: Option<RemoteHost>,
}

impl CommandSource {
    pub fn new(rules: &RuleSet, is_live: bool) -> Self {
        Self { rules: rules.clone(), is_live, host: None }
    }

    pub fn on_host(rules: &RuleSet, host: RemoteHost) -> Self {
        Self { host: Some(host), ..Self::new(rules, false) }
    }

    pub fn fill_in<'f>(
        &self,
        findings: impl Iterator<Item = &'f mut Finding>,
        all: &[Finding],
        snapshot: &Snapshot,
    ) {
        let Some((plan, command_user)) = self.plan(all, snapshot) else { return };
        for finding in findings.filter(|finding| finding.resolved_at.is_none()) {
            self.steps(finding, &plan, snapshot, command_user).put(finding);
        }
    }

    /// Returns the commands for each finding, by finding id. If planning failed, returns an empty list.
    pub fn next_steps(
        &self,
        findings: &[Finding],
        snapshot: &Snapshot,
    ) -> Vec<(Arc<str>, NextSteps)> {
        let Some((plan, command_user)) = self.plan(findings, snapshot) else {
            return Vec::new();
        };
        let steps = |finding: &Finding| self.steps(finding, &plan, snapshot, command_user);
        let findings = findings.iter();
        findings.map(|finding| (Arc::clone(&finding.id), steps(finding))).collect()
    }

    fn steps(
        &self,
        finding: &Finding,
        plan: &Plan,
        snapshot: &Snapshot,
        command_user: CommandUser,
    ) -> NextSteps {
        let mut steps = NextSteps::new(finding, plan, snapshot, command_user);
        steps.commands.iter_mut().for_each(|command| *command = self.typed_here(command));
        steps
    }

    /// Returns `command` as the user must type it on this machine to run it on the target machine.
    pub fn typed_here(&self, command: &str) -> String {
        self.host.as_ref().map_or_else(|| command.to_owned(), |host| host.typed(command))
    }

    pub fn command_user(&self) -> CommandUser {
        match self.is_live {
            true => CommandUser::User(rustix::process::geteuid().as_raw()),
            false if self.host.is_some() => CommandUser::Elsewhere,
            false => CommandUser::Owner,
        }
    }

    fn plan(&self, findings: &[Finding], snapshot: &Snapshot) -> Option<(Plan, CommandUser)> {
        let source = PlanSource::new(snapshot, findings, &self.rules);
        let policy = default_policy();
        if self.is_live {
            // Planning fails without /proc. No process can be ended then, so the findings keep the advice of their
            // rules.
            let (plan, guard) = plan_live(policy, source).ok()?;
            Some((plan, CommandUser::User(guard.ourselves.uid)))
        } else {
            Some((plan_recorded(policy, source).0, self.command_user()))
        }
    }
}

/// Returns the command that ends a target. The command names `pids`, or the launcher if the target has one. Returns
/// `None` if there is no such command.
fn kill_command(
    target: &Target,
    mut pids: Vec<u32>,
    snapshot: &Snapshot,
    command_user: CommandUser,
) -> Option<String> {
    let leader = snapshot.process(target.leader)?;
    let members = target.members.iter();
    let job: Vec<_> = members.filter_map(|member| snapshot.process(member.pid)).collect();
    let owner = advice::owner_of(leader, &job);
    let owners = target.members.iter().map(|member| member.uid);
    let is_own = !owners.clone().any(|uid| command_user.is_other_than(uid));
    if target.is_advice() {
        return owner?.command_for(is_own).map(str::to_owned);
    }
    let asked = owner.as_ref().filter(|owner| owner.is_asked_first && !target.is_release());
    if let Some(command) = asked.and_then(|owner| owner.command_for(is_own)) {
        return Some(command.to_owned());
    }
    // A launcher has no exact name, so on another machine, the command names the launcher's ranks instead.
    if let Some(launcher) =
        target.launcher.as_ref().filter(|_| command_user != CommandUser::Elsewhere)
    {
        pids = vec![launcher.pid];
    }
    command_user.command("kill", pids, owners, snapshot)
}

/// Returns the command that asks the process of a finding to release memory, together with the other processes of its
/// target that can be asked. Returns `None` if the process cannot be asked.
fn release_command(
    finding: &Finding,
    target: Option<&Target>,
    snapshot: &Snapshot,
    command_user: CommandUser,
) -> Option<String> {
    let found = finding.process.as_ref()?;
    if !finding.kind.may_be_released() || !found.identity.is_certain() {
        return None;
    }
    let process = |pid: u32| {
        snapshot
            .process(pid)
            .filter(|process| !is_busy(process) && release::find(process, snapshot).is_ok())
    };
    process(found.pid).filter(|process| process.identity() == found.identity)?;
    let mut pids = vec![found.pid];
    if let Some(Reason::Found { findings }) = target.map(|target| &target.reason) {
        let others = findings.iter().filter(|finding| finding.kind.may_be_released());
        pids.extend(others.map(|finding| finding.pid).filter(|&pid| process(pid).is_some()));
    }
    let owners: Vec<u32> = pids.iter().filter_map(|&pid| process(pid)?.uid).collect();
    command_user.command("release", pids, owners.into_iter(), snapshot)
}

/// Returns whether the process is a kernel that is running a cell. Such a kernel cannot be asked until the cell ends.
fn is_busy(process: &Process) -> bool {
    let kernel = process.jupyter.as_deref();
    kernel.is_some_and(|kernel| kernel.execution_state.as_deref() == Some("busy"))
}

/// Returns the commands that the user can run on a process, whether or not the process has a finding.
pub fn own_commands(
    rules: &RuleSet,
    process: Option<&Process>,
    snapshot: &Snapshot,
    command_user: CommandUser,
) -> OwnCommands {
    let may_type = |process: &&Process| match command_user {
        CommandUser::User(uid) => uid == ROOT || Some(uid) == process.uid,
        CommandUser::Owner | CommandUser::Elsewhere => true,
    };
    let Some(process) = process.filter(may_type) else {
        return OwnCommands::default();
    };
    let target = |release| {
        let targets = Targets::Named { pids: vec![process.pid], words: Vec::new() };
        let policy = Policy { targets, release, ..default_policy() };
        let (plan, _) = plan_recorded(policy, PlanSource::new(snapshot, &[], rules));
        plan.targets.into_iter().next()
    };
    let release = || {
        let holds = snapshot.rows_of(process.pid).any(|row| row.used_bytes != Some(0));
        if !holds || is_busy(process) {
            return None;
        }
        let options = ReleaseOptions { is_named: true, ..ReleaseOptions::by_rule() };
        let target = target(Release::Only(options))?;
        let Some(Step::Release { way, .. }) = target.steps.first() else {
            return None;
        };
        let framework = advice::framework_of(process);
        let is_certain = !matches!(way.by, ReleaseBy::Kernel { .. })
            || framework.is_some_and(|framework| framework.returns(process));
        if !is_certain {
            return None;
        }
        command_user.command("release", vec![process.pid], process.uid.into_iter(), snapshot)
    };
    OwnCommands {
        release: release(),
        kill: target(Release::Never)
            .and_then(|target| kill_command(&target, vec![process.pid], snapshot, command_user)),
    }
}

fn explain_command(finding: &Finding) -> Option<String> {
    match (&finding.process, finding.gpus.first()) {
        (Some(process), _) => {
            let is_certain = process.identity.is_certain() || finding.kind == Kind::Dead;
            is_certain.then(|| format!("gpumem explain {}", process.pid))
        }
        (None, Some(gpu)) => Some(format!("gpumem explain gpu:{}", gpu.index)),
        (None, None) => None,
    }
}

fn ask_owner(finding: &Finding, plan: &Plan) -> Option<String> {
    let mut refused = plan.refused.iter();
    let refused = refused.find(|refused| refused.finding.as_ref() == Some(&finding.id))?;
    let Why::Protected { protection: Protection::NotPermitted { uid }, .. } = refused.why else {
        return None;
    };
    let pid = refused.pid?;
    let owner = match finding.process.as_ref().and_then(|process| process.user.as_deref()) {
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
