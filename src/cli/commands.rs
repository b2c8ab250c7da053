//! What to type about findings, for `check`, `explain` and `watch`: the plan that `gpumem reap` would make is made
//! here, and nothing is done.

use std::sync::Arc;

use super::args::Recorded;
use super::reap::observe::{ConfiguredPolicy, PlanSource, plan_here, plan_there};
use super::warn;
use crate::config::Config;
use crate::model::{Finding, Snapshot};
use crate::reclaim::Plan;
use crate::reclaim::commands::{self, NextSteps, Typist};
use crate::rules::{RuleSet, serves};
use crate::source::remote::RemoteHost;

/// The input of a plan, besides findings.
#[derive(Debug)]
pub(super) struct CommandSource {
    configured: ConfiguredPolicy,
    /// Whether the commands are for this machine now, not for a recording.
    is_live: bool,
    /// The other machine that the commands are for.
    host: Option<RemoteHost>,
}

impl CommandSource {
    /// From the configuration, which exempts some processes.
    pub(super) fn new(config: &Config, recorded: &Recorded) -> Self {
        Self::by_rules(&config.rules, recorded.is_live())
    }

    /// From rules, which exempt some processes.
    pub(super) fn by_rules(rules: &RuleSet, is_live: bool) -> Self {
        Self { configured: ConfiguredPolicy::new(rules), is_live, host: None }
    }

    /// For commands typed here about another machine.
    pub(super) fn on_host(rules: &RuleSet, host: RemoteHost) -> Self {
        Self { host: Some(host), ..Self::by_rules(rules, false) }
    }

    /// Fills in the commands of findings; `all` findings of the snapshot decide them.
    pub(super) fn fill_in<'f>(
        &self,
        findings: impl Iterator<Item = &'f mut Finding>,
        all: &[Finding],
        snapshot: &Snapshot,
    ) {
        let Some((plan, typist)) = self.plan(all, snapshot) else { return };
        for finding in findings.filter(|finding| finding.resolved_at.is_none()) {
            self.steps(finding, &plan, snapshot, typist).put(finding);
        }
    }

    /// Commands for each of these findings, by its id; none if they cannot be determined.
    pub(super) fn next_steps(
        &self,
        findings: &[Finding],
        snapshot: &Snapshot,
    ) -> Vec<(Arc<str>, NextSteps)> {
        let Some((plan, typist)) = self.plan(findings, snapshot) else {
            return Vec::new();
        };
        let steps = |finding: &Finding| self.steps(finding, &plan, snapshot, typist);
        let findings = findings.iter();
        findings.map(|finding| (Arc::clone(&finding.id), steps(finding))).collect()
    }

    fn steps(
        &self,
        finding: &Finding,
        plan: &Plan,
        snapshot: &Snapshot,
        typist: Typist,
    ) -> NextSteps {
        let mut steps = NextSteps::new(finding, plan, snapshot, typist);
        steps.commands.iter_mut().for_each(|command| *command = self.typed_here(command));
        steps
    }

    /// What is typed here to have a command carried out on its machine.
    pub(super) fn typed_here(&self, command: &str) -> String {
        self.host.as_ref().map_or_else(|| command.to_owned(), |host| host.typed(command))
    }

    /// Who would type a command.
    pub(super) fn typist(&self) -> Typist {
        match self.is_live {
            true => Typist::User(rustix::process::geteuid().as_raw()),
            false if self.host.is_some() => Typist::Elsewhere,
            false => Typist::Owner,
        }
    }

    /// The plan, and the user who would run its commands; `None` if there can be no plan.
    fn plan(&self, findings: &[Finding], snapshot: &Snapshot) -> Option<(Plan, Typist)> {
        let scene = PlanSource { snapshot, findings, configured: &self.configured, selected: None };
        let policy = commands::policy(serves);
        if self.is_live {
            // Without /proc nothing can be ended, and the findings are what they are.
            let (plan, guard) = plan_here(policy, scene).ok()?;
            Some((plan, Typist::User(guard.ourselves.uid)))
        } else {
            Some((plan_there(policy, scene).0, self.typist()))
        }
    }
}

/// Warns when and where the commands of a recording are valid.
pub(super) fn warn_of_recorded(recorded: &Recorded, findings: &[Finding]) {
    if recorded.replay.is_some() && findings.iter().any(|finding| !finding.commands.is_empty()) {
        warn(
            "the commands are for the recorded machine at that time; here and now a pid may be \
            another process's",
        );
    }
}
