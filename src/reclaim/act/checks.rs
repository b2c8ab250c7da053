//! Checks, before each step, whether the rule's finding still holds and the processes may be signalled.

use super::{Act, NextMove};
use crate::host::JobWork;
use crate::model::{GpuProcess, Kind, Snapshot};
use crate::reclaim::guard::{Call, Protection};
use crate::reclaim::handles::HeldProcess;
use crate::reclaim::process_control::ProcessControl;
use crate::reclaim::recheck::{Recheck, is_work};
use crate::reclaim::step::StepContext;
use crate::reclaim::target::Reason;
use crate::reclaim::verify::Outcome;

/// Maximum period, in seconds, over which work since the plan is averaged. A plan can stay on the screen for hours,
/// and averaging over hours would hide recent work.
const MAX_SECONDS: f64 = 60.0;

/// Maximum time, in seconds, for which a rule's verdict can stay unknown before the act is cancelled.
const PATIENCE_SECONDS: f64 = 30.0;

impl Act {
    /// Returns the move that ends the act if the finding no longer holds, or the move that waits as long as this is
    /// unknown. Returns `None` if the act can continue, and always if a person named the target.
    pub(super) fn recheck_finding(&mut self, context: &mut StepContext<'_>) -> Option<NextMove> {
        if self.state.is_named() {
            return None;
        }
        let now = context.input.now;
        let recheck = match self.has_begun_work(context.control) {
            true => Recheck::NoLonger,
            false => context.input.recheck,
        };
        match recheck {
            Recheck::StillTrue => {
                self.unknown_since = None;
                None
            }
            // gpumem's own SIGCONT ended the finding, so the act continues unless the process uses a GPU again.
            Recheck::NoLonger if self.was_stopped() && !self.uses_gpu(context.input.snapshot) => {
                None
            }
            Recheck::NoLonger => Some(NextMove::End(Outcome::RuleNoLongerTrue)),
            Recheck::Unknown => {
                let since = *self.unknown_since.get_or_insert(now);
                let until = since.plus_seconds(PATIENCE_SECONDS);
                Some(match now >= until {
                    true => NextMove::End(Outcome::RuleNoLongerTrue),
                    false => NextMove::Wait(until),
                })
            }
        }
    }

    /// Returns whether the target or its helper processes have worked since the plan was made. Returns false after
    /// the first action, because exiting also uses CPU time.
    fn has_begun_work(&self, control: &mut dyn ProcessControl) -> bool {
        let Some(at_plan) = self.target().used_at_plan.as_deref() else {
            return false;
        };
        if self.state.first_action.is_some() || self.target().may_work() {
            return false;
        }
        let now = control.read_usage(&self.target().identities(), Some(at_plan));
        let used = now.since(at_plan);
        is_work(JobWork { seconds: used.seconds.min(MAX_SECONDS), ..used })
    }

    fn was_stopped(&self) -> bool {
        let Reason::Found { findings } = &self.target().reason else {
            return false;
        };
        self.state.has_continued && findings.iter().all(|finding| finding.kind == Kind::Stopped)
    }

    pub(super) fn uses_gpu(&self, snapshot: &Snapshot) -> bool {
        let works = |row: &GpuProcess| {
            let engines = [row.sm_percent, row.encoder_percent, row.decoder_percent];
            engines.into_iter().flatten().any(|percent| percent > 0)
        };
        self.target().members.iter().any(|member| snapshot.rows_of(member.pid).any(works))
    }

    pub(super) fn find_protection(
        &self,
        recipients: &[HeldProcess],
        context: &mut StepContext<'_>,
    ) -> Option<Outcome> {
        let (call, guard) = (self.target().call(), &self.state.guard);
        let snapshot = context.input.snapshot;
        for held in recipients {
            let facts = context.control.read_guarded(held.pid);
            if context.control.has_exited(held.handle) {
                continue;
            }
            // The process is still alive, so its pid was not reused while the facts were read.
            let executable = held.executable.as_deref();
            let mut protection = guard.by_facts(call, held.pid, facts.as_ref(), executable);
            let shown = snapshot.same_process(held.pid, held.start_ticks);
            if let Some(process) = shown.filter(|_| protection.is_none() && held.is_member) {
                // The process may have executed another program since the snapshot.
                let environment = facts.and_then(|facts| facts.environment);
                let mut process = process.clone();
                process.environment = environment.or(process.environment);
                protection = guard.by_snapshot(call, &process, snapshot);
            }
            if let Some(protection) = protection {
                return Some(Outcome::from_protection(protection));
            }
        }
        None
    }

    /// Returns an outcome if the step could also end GPU processes outside the plan: descendants of the launcher or, if
    /// a rule found the target, of any recipient.
    pub(super) fn would_end_others(
        &self,
        recipients: &[HeldProcess],
        context: &mut StepContext<'_>,
    ) -> Option<Outcome> {
        let is_by_rule = self.target().call() == Call::Rule;
        let parents = recipients.iter().filter(|held| is_by_rule || !held.is_member);
        let pids = self.state.held.descendants_not_held(
            parents.map(|held| held.pid),
            context.input.snapshot,
            context.control,
        );
        let is_any = !pids.is_empty();
        is_any.then_some(Outcome::Protected { why: Protection::Descendants { pids } })
    }
}
