//! What to type about findings, for `check`, `explain` and `watch`: the plan that `gpumem reap` would make is made
//! here, and nothing is done.

use std::sync::Arc;

use super::args::Recorded;
use super::reap::observe::{ConfiguredPolicy, PlanSource, plan_here, plan_there};
use super::warn;
use crate::config::Config;
use crate::model::{Finding, Snapshot};
use crate::reclaim::Plan;
use crate::reclaim::commands::{self, NextSteps};
use crate::rules::{RuleSet, serves};

/// What a plan is made of besides what was found.
#[derive(Debug)]
pub(super) struct CommandSource {
    configured: ConfiguredPolicy,
    /// Whether it is about this machine now, not about a recording.
    is_live: bool,
}

impl CommandSource {
    /// By the configuration, which spares some processes.
    pub(super) fn new(config: &Config, recorded: &Recorded) -> Self {
        let is_live = recorded.replay.is_none() && !recorded.demo;
        Self::by_rules(&config.rules, is_live)
    }

    /// By rules, which spare some processes.
    pub(super) fn by_rules(rules: &RuleSet, is_live: bool) -> Self {
        Self { configured: ConfiguredPolicy::new(rules), is_live }
    }

    /// Fills in what to type; `all` that was found in the snapshot decides it.
    pub(super) fn fill_in<'f>(
        &self,
        findings: impl Iterator<Item = &'f mut Finding>,
        all: &[Finding],
        snapshot: &Snapshot,
    ) {
        if let Some((plan, typed_by)) = self.plan(all, snapshot) {
            commands::fill_in(findings, &plan, snapshot, typed_by);
        }
    }

    /// What to do next about each of these findings, by its id; nothing where that cannot be said.
    pub(super) fn next_steps(
        &self,
        findings: &[Finding],
        snapshot: &Snapshot,
    ) -> Vec<(Arc<str>, NextSteps)> {
        let Some((plan, typed_by)) = self.plan(findings, snapshot) else {
            return Vec::new();
        };
        let steps = |finding: &Finding| NextSteps::new(finding, &plan, snapshot, typed_by);
        let findings = findings.iter();
        findings.map(|finding| (Arc::clone(&finding.id), steps(finding))).collect()
    }

    /// Who would type a command; `None` where that is whose the processes are.
    pub(super) fn typed_by(&self) -> Option<u32> {
        self.is_live.then(|| rustix::process::geteuid().as_raw())
    }

    /// The plan, and who would type what it comes to; `None` where there can be none.
    fn plan(&self, findings: &[Finding], snapshot: &Snapshot) -> Option<(Plan, Option<u32>)> {
        let scene = PlanSource { snapshot, findings, configured: &self.configured, selected: None };
        let policy = commands::policy(serves);
        if self.is_live {
            // Without /proc nothing can be ended, and the findings are what they are.
            let (plan, guard) = plan_here(policy, scene).ok()?;
            Some((plan, Some(guard.ourselves.uid)))
        } else {
            Some((plan_there(policy, scene).0, None))
        }
    }
}

/// Says of the commands of a recording when and where they are right.
pub(super) fn warn_of_recorded(recorded: &Recorded, findings: &[Finding]) {
    if recorded.replay.is_some() && findings.iter().any(|finding| !finding.commands.is_empty()) {
        warn(
            "the commands are for the recorded machine at that time; here and now a pid may be \
            another process's",
        );
    }
}
