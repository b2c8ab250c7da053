//! What to type about findings, for `check` and `explain`: the plan that `gpumem reap` would make is made
//! here, and nothing is done.

use super::args::Recorded;
use super::reap::observe::{PlanSource, Spared, plan_here, plan_there};
use super::warn;
use crate::config::Config;
use crate::model::{Finding, Snapshot};
use crate::reclaim::commands;
use crate::rules::serves;

/// What a plan is made of besides what was found.
#[derive(Debug)]
pub(super) struct CommandSource {
    spared: Spared,
    /// Whether it is about this machine now, not about a recording.
    is_live: bool,
}

impl CommandSource {
    /// By the configuration, which spares some processes.
    pub(super) fn new(config: &Config, recorded: &Recorded) -> Self {
        Self {
            spared: Spared::new(&config.rules),
            is_live: recorded.replay.is_none() && !recorded.demo,
        }
    }

    /// Fills in what to type; `all` that was found in the snapshot decides it.
    pub(super) fn fill_in<'f>(
        &self,
        findings: impl Iterator<Item = &'f mut Finding>,
        all: &[Finding],
        snapshot: &Snapshot,
    ) {
        let scene = PlanSource {
            snapshot,
            findings: all,
            spared: &self.spared,
            selected: None,
        };
        let policy = commands::policy(serves);
        let (plan, typed_by) = if self.is_live {
            // Without /proc nothing can be ended, and the findings are what they are.
            match plan_here(policy, scene) {
                Ok((plan, guard)) => (plan, Some(guard.ourselves.uid)),
                Err(_) => return,
            }
        } else {
            (plan_there(policy, scene).0, None)
        };
        commands::fill_in(findings, &plan, snapshot, typed_by);
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
