//! Checks, before each step, whether the rule's finding still holds and the processes may be signalled.

use super::{Act, ActStage, NextMove, PATIENCE_SECONDS, Recheck, StepInput};
use crate::host::JobWork;
use crate::model::{GpuProcess, Kind, Snapshot};
use crate::reclaim::guard::{Call, Protection};
use crate::reclaim::process_control::{Handle, ProcessControl};
use crate::reclaim::recheck::is_work;
use crate::reclaim::target::Reason;
use crate::reclaim::verify::Outcome;

/// Maximum period, in seconds, over which work since the plan is averaged. A plan can stay on the screen for hours,
/// and averaging over hours would hide recent work.
const MAX_SECONDS: f64 = 60.0;

impl Act {
    /// Handles a step that left the processes running: continues with the next step, or ends the act if there is none.
    pub(super) fn settle(&mut self, index: usize, outcome: Outcome) -> NextMove {
        let is_last = index + 1 >= self.target.steps.len();
        self.settled = Some(outcome.clone());
        match is_last {
            true => NextMove::End(outcome),
            false => NextMove::Go(ActStage::Due(index + 1)),
        }
    }

    /// Returns the final outcome of the act. If a release ended the finding, the result is the outcome of the release.
    pub(super) fn with_settled(&self, outcome: Outcome) -> Outcome {
        match (&outcome, &self.settled) {
            (Outcome::RuleNoLongerTrue, Some(released @ Outcome::Released { .. })) => {
                released.clone()
            }
            _ => outcome,
        }
    }

    /// Returns the move that ends the act if the finding no longer holds, or the move that waits as long as this is
    /// unknown. Returns `None` if the act can continue, and always if a person named the target.
    pub(super) fn recheck_finding(
        &mut self,
        input: StepInput<'_>,
        control: &mut dyn ProcessControl,
    ) -> Option<NextMove> {
        if self.target.call() == Call::Named {
            return None;
        }
        let recheck = match self.has_begun_work(control) {
            true => Recheck::NoLonger,
            false => input.recheck,
        };
        match recheck {
            Recheck::StillTrue => {
                self.unknown_since = None;
                None
            }
            // gpumem's own SIGCONT ended the finding, so the act continues unless the process uses a GPU again.
            Recheck::NoLonger if self.was_stopped() && !self.uses_gpu(input.snapshot) => None,
            Recheck::NoLonger => Some(NextMove::End(Outcome::RuleNoLongerTrue)),
            Recheck::Unknown => {
                let since = *self.unknown_since.get_or_insert(input.now);
                let until = since.plus_seconds(PATIENCE_SECONDS);
                Some(if input.now >= until {
                    NextMove::End(Outcome::RuleNoLongerTrue)
                } else {
                    NextMove::Wait(until)
                })
            }
        }
    }

    /// Returns whether the target or its helper processes have worked since the plan was made. Returns false after
    /// the first action, because exiting also uses CPU time.
    fn has_begun_work(&self, control: &mut dyn ProcessControl) -> bool {
        let Some(at_plan) = self.target.used_at_plan.as_deref() else {
            return false;
        };
        if self.first_action.is_some() || self.target.may_work() {
            return false;
        }
        let now = control.read_usage(&self.target.identities(), Some(at_plan));
        let used = now.since(at_plan);
        is_work(JobWork { seconds: used.seconds.min(MAX_SECONDS), ..used })
    }

    /// Returns whether gpumem sent SIGCONT and all findings on the target are of kind `stopped`.
    fn was_stopped(&self) -> bool {
        let Reason::Found { findings } = &self.target.reason else {
            return false;
        };
        self.has_continued && findings.iter().all(|finding| finding.kind == Kind::Stopped)
    }

    pub(super) fn uses_gpu(&self, snapshot: &Snapshot) -> bool {
        let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
        let works = |row: &GpuProcess| {
            let engines = [row.sm_percent, row.encoder_percent, row.decoder_percent];
            engines.into_iter().flatten().any(|percent| percent > 0)
        };
        rows.flatten()
            .filter(|row| self.target.members.iter().any(|member| member.pid == row.pid))
            .any(works)
    }

    /// Returns the outcome if one of the recipients is protected now.
    pub(super) fn find_protection(
        &self,
        recipients: &[Handle],
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Option<Outcome> {
        let call = self.target.call();
        for &handle in recipients {
            let Some(held) = self.held.get(handle) else {
                continue;
            };
            let facts = control.read_guarded(held.pid);
            if control.has_exited(handle) {
                continue;
            }
            let environment = facts.as_ref().and_then(|facts| facts.environment.clone());
            // The process is still alive, so its pid was not reused while the facts were read.
            let executable = held.executable.as_deref();
            let mut protection = self.guard.by_facts(call, held.pid, facts.as_ref(), executable);
            let shown = snapshot
                .process(held.pid)
                .filter(|process| process.start_ticks == Some(held.start_ticks));
            if protection.is_none()
                && let Some(process) = shown
                && held.is_member
            {
                // The process may have executed another program since the snapshot.
                let mut process = process.clone();
                process.environment = environment.or(process.environment);
                protection = self.guard.by_snapshot(call, &process, snapshot);
            }
            if let Some(protection) = protection {
                return Some(Outcome::from_protection(protection));
            }
        }
        None
    }

    /// Returns the outcome of a step that would also end GPU processes outside the plan: a launcher's other ranks or,
    /// if a rule found the target, children of any member.
    pub(super) fn would_end_others(
        &self,
        handles: &[Handle],
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Option<Outcome> {
        let is_asked = |handle: &&Handle| {
            let held = self.held.get(**handle);
            self.target.call() == Call::Rule || held.is_some_and(|held| !held.is_member)
        };
        let recipients: Vec<Handle> = handles.iter().filter(is_asked).copied().collect();
        let pids = self.held.descendants_not_held(&recipients, snapshot, control);
        let why = Protection::Descendants { pids };
        match &why {
            Protection::Descendants { pids } if pids.is_empty() => None,
            _ => Some(Outcome::Protected { why }),
        }
    }
}
