//! Carries out the steps for one target, as a state machine without a clock.
//!
//! The caller repeatedly passes the time, the newest snapshot and the rule's verdict to [`Act::advance`]. The method
//! takes the steps that are due through [`ProcessControl`] and returns the time at which the next step is due. It never
//! blocks.
//!
//! No other module decides to send a signal or a request. Before sending, this module checks again the identity of
//! the process, its protection and the finding, and writes to the ledger. `handles` tracks the processes that may be
//! signalled, and `step` implements the actions.

mod checks;

use std::sync::Arc;

use super::guard::{Guard, Protection};
use super::ledger::{Actor, Failure, LedgerError, LedgerEvent, LedgerSink};
use super::park::ParkResult;
use super::past_acts::PastRelease;
use super::process_control::{NotOpened, ProcessControl, RequestResult};
use super::recheck::{Recheck, is_saving};
use super::release::ReleaseReport;
use super::step::{StepContext, StepEffect, StepInput, StepState};
use super::target::{Deed, Recipients, Step, Target, TargetProcess};
use super::verify::{Baseline, DEADLINE_SECONDS, FreeCheck, Outcome, members_hold_memory};
use crate::host::JobUsage;
use crate::model::Time;
use crate::units::{Bytes, Span};

/// Minimum time, in seconds, to watch for a restart once the memory is free. A supervisor waits a second or more
/// before it restarts a process (systemd's `RestartSec=`, a shell's `sleep 1`).
const WATCH_SECONDS: f64 = 5.0;

/// Interval, in seconds, between checks of a job that is still working when its grace period ends.
const SAVING_SECONDS: f64 = 5.0;
/// Maximum time, in seconds since the first signal, for which a job that is still working may continue.
const MAX_SAVING_SECONDS: f64 = 600.0;

#[derive(Clone, PartialEq, Debug)]
pub enum ActProgress {
    /// The next step is due at `until`. The caller can call again earlier if a process exits or a newer snapshot
    /// arrives.
    Waiting {
        until: Time,
    },
    Ended(Outcome),
}

#[derive(Debug)]
pub struct Act {
    state: StepState,
    actor: Actor,
    stage: ActStage,
    baseline: Option<Baseline>,
    unknown_since: Option<Time>,
    /// Resource usage of the living members' job at the last signal or, if later, at the last check for work.
    usage: JobUsage,
    /// Description of the job's work, if the job was given more time because it is still working.
    saving: Option<String>,
    /// Outcome of a step after which the processes keep running.
    settled: Option<Outcome>,
}

#[derive(Clone, PartialEq, Debug)]
enum ActStage {
    Fresh,
    Due(usize),
    /// The step with this index was taken. Its effect is awaited until this time.
    Taken(usize, Time),
    /// The members have exited or freed the memory, which NVML must confirm. If a process allocates memory again, the
    /// act returns to `resume`.
    Verifying {
        since: Time,
        freed: Option<(u64, Time)>,
        resume: Box<ActStage>,
    },
    Over(Outcome),
}

enum NextMove {
    Go(ActStage),
    Wait(Time),
    End(Outcome),
}

impl Act {
    pub fn new(target: Target, guard: Arc<Guard>, actor: Actor) -> Self {
        Self {
            state: StepState::new(target, guard),
            actor,
            stage: ActStage::Fresh,
            baseline: None,
            unknown_since: None,
            usage: JobUsage::default(),
            saving: None,
            settled: None,
        }
    }

    pub fn after(mut self, releases: Vec<PastRelease>) -> Self {
        self.state.releases = releases;
        self
    }

    pub fn target(&self) -> &Target {
        &self.state.target
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.stage {
            ActStage::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    pub fn saving(&self) -> Option<&str> {
        self.saving.as_deref()
    }

    pub fn alive(&self) -> Vec<&TargetProcess> {
        let members = self.target().members.iter();
        members.filter(|member| !self.state.held.has_ended(member.pid)).collect()
    }

    /// Takes the steps that are due. If the ledger cannot be written, ends the act without taking the next action,
    /// and returns the error.
    pub fn advance(
        &mut self,
        input: StepInput<'_>,
        control: &mut dyn ProcessControl,
        record: &mut dyn LedgerSink,
    ) -> Result<ActProgress, LedgerError> {
        if let ActStage::Over(outcome) = &self.stage {
            return Ok(ActProgress::Ended(outcome.clone()));
        }
        let result = self.advance_stage(&mut StepContext { input, control, record });
        if result.is_err() && self.outcome().is_none() {
            self.stage = ActStage::Over(Outcome::StillAlive);
        }
        result
    }

    fn advance_stage(&mut self, context: &mut StepContext<'_>) -> Result<ActProgress, LedgerError> {
        if self.state.act.is_empty() {
            let now = context.input.now.unix_milliseconds();
            self.state.act = format!("{now}-{}", self.target().id).into();
            let target = Box::new(self.target().clone());
            let actor = self.actor.clone();
            self.state.note(LedgerEvent::Begun { actor, target }, context)?;
        }
        self.take_answer(context)?;
        loop {
            let next = match self.stage.clone() {
                ActStage::Fresh => self.begin(context),
                ActStage::Due(step) => self.take_step(step, context)?,
                ActStage::Taken(step, until) => self.watch(step, until, context),
                ActStage::Verifying { since, freed, resume } => {
                    self.verify((since, freed, resume), context)
                }
                ActStage::Over(outcome) => NextMove::End(outcome),
            };
            match next {
                NextMove::Go(stage) => self.stage = stage,
                NextMove::Wait(until) => return Ok(ActProgress::Waiting { until }),
                NextMove::End(outcome) => {
                    let outcome = match (outcome, &self.settled) {
                        // The release ended the finding.
                        (Outcome::RuleNoLongerTrue, Some(released @ Outcome::Released { .. })) => {
                            released.clone()
                        }
                        (outcome, _) => outcome,
                    };
                    self.stage = ActStage::Over(outcome.clone());
                    self.state.note(LedgerEvent::Ended(outcome.clone()), context)?;
                    return Ok(ActProgress::Ended(outcome));
                }
            }
        }
    }

    /// Checks the target again and opens handles on its processes. No process is signalled before all handles are open.
    fn begin(&mut self, context: &mut StepContext<'_>) -> NextMove {
        if let Some(command) = self.target().steps.first().and_then(|step| step.advice()) {
            let command = Arc::clone(command);
            let why = Protection::Owned { command };
            return NextMove::End(Outcome::Protected { why });
        }
        if let Some(next) = self.recheck_finding(context) {
            return next;
        }
        let StepInput { snapshot, .. } = context.input;
        let Target { members, launcher, .. } = &self.state.target;
        let members = members.iter().map(|member| (member, true));
        for (process, is_member) in members.chain(launcher.iter().map(|launcher| (launcher, false)))
        {
            match self.state.held.open(process, is_member, snapshot, context.control) {
                Ok(()) | Err(NotOpened::Gone(_)) => {}
                Err(NotOpened::Changed(_)) => return NextMove::End(Outcome::IdentityChanged),
                Err(NotOpened::NoPidfd(_)) => {
                    return NextMove::End(Outcome::Protected { why: Protection::NoPidfd });
                }
                Err(NotOpened::Failed { error, .. }) => {
                    let why = Protection::NotHeld { error: error.into() };
                    return NextMove::End(Outcome::Protected { why });
                }
            }
        }
        if self.state.alive(Recipients::Family, context).is_empty() {
            return NextMove::End(Outcome::AlreadyGone);
        }
        // Since the plan was made, a process that a person named may have freed its GPU memory.
        if self.state.is_named()
            && !self.target().must_exit()
            && members_hold_memory(self.target(), snapshot) == Some(false)
        {
            return NextMove::End(Outcome::AlreadyGone);
        }
        let alive = self.state.held.alive(context.control);
        if let Some(outcome) = self.find_protection(&alive, context) {
            return NextMove::End(outcome);
        }
        self.state.held.record_existing(snapshot, context.control);
        self.baseline = Some(Baseline::new(self.target(), snapshot));
        NextMove::Go(ActStage::Due(0))
    }

    fn take_step(
        &mut self,
        index: usize,
        context: &mut StepContext<'_>,
    ) -> Result<NextMove, LedgerError> {
        let step = self.target().steps.get(index).cloned();
        if let Some(next) = self.find_end(step.as_ref(), context) {
            return Ok(next);
        }
        let Some(step) = step else {
            return Ok(NextMove::End(self.alive_at_the_end(context.control)));
        };
        if let Some(next) = self.recheck_finding(context) {
            return Ok(next);
        }
        let recipients = step.recipients(&mut self.state, context);
        if recipients.is_empty() {
            return Ok(NextMove::Go(ActStage::Due(index + 1)));
        }
        let mut protection = self.find_protection(&recipients, context);
        if protection.is_none() && step.ends_processes() {
            protection = self.would_end_others(&recipients, context);
        }
        if let Some(outcome) = protection {
            return Ok(NextMove::End(outcome));
        }
        let effect = step.execute(&mut self.state, context, &recipients)?;
        if let Some(next) = self.next_move(index, effect) {
            return Ok(next);
        }
        let now = context.input.now;
        self.state.first_action.get_or_insert(now);
        self.saving = None;
        if step.may_save() {
            self.usage = self.read_usage(context.control);
        }
        Ok(NextMove::Go(ActStage::Taken(index, now.plus_seconds(step.grace_seconds()))))
    }

    /// Returns the move after an effect of a step, or `None` if the effect is still awaited.
    fn next_move(&mut self, index: usize, effect: StepEffect) -> Option<NextMove> {
        let is_last = index + 1 >= self.target().steps.len();
        match effect {
            StepEffect::Pending => None,
            StepEffect::Ends(outcome) => Some(NextMove::End(outcome)),
            StepEffect::Settled(outcome) if is_last => Some(NextMove::End(outcome)),
            StepEffect::Settled(outcome) => {
                self.settled = Some(outcome);
                Some(NextMove::Go(ActStage::Due(index + 1)))
            }
            StepEffect::Over => Some(NextMove::Go(ActStage::Due(index + 1))),
        }
    }

    fn watch(&mut self, index: usize, until: Time, context: &mut StepContext<'_>) -> NextMove {
        let StepInput { now, snapshot, recheck } = context.input;
        let state = &mut self.state;
        // Look for new children first, while their parents are alive, because children are found through their parents.
        state.held.adopt(state.target.call(), &state.guard, now, snapshot, context.control);
        let next = NextMove::Go(ActStage::Due(index + 1));
        let Some(step) = self.target().steps.get(index).cloned() else {
            return next;
        };
        if let Some(next) = self.find_end(Some(&step), context) {
            return next;
        }
        let state = &mut self.state;
        if state.answered.is_some_and(|answered| answered < snapshot.time) {
            state.meter.add(&state.target, snapshot);
        }
        let effect = step.effect(state, context);
        if let Some(next) = self.next_move(index, effect) {
            return next;
        }
        // If the finding no longer holds, a step that ends processes is cancelled. A release request continues.
        if step.ends_processes()
            && recheck == Recheck::NoLonger
            && let Some(next) = self.recheck_finding(context)
        {
            return next;
        }
        if now < until {
            return NextMove::Wait(until);
        }
        if step.may_save() && self.still_works(context) {
            let later = now.plus_seconds(SAVING_SECONDS);
            self.stage = ActStage::Taken(index, later);
            return NextMove::Wait(later);
        }
        self.next_move(index, step.expired(&self.state)).unwrap_or(next)
    }

    fn read_usage(&mut self, control: &mut dyn ProcessControl) -> JobUsage {
        let alive = self.state.held.alive(control).into_iter();
        let alive: Vec<(u32, u64)> = alive.map(|held| (held.pid, held.start_ticks)).collect();
        control.read_usage(&alive, Some(&self.usage))
    }

    /// Returns whether a living member or one of its helper processes is still working, perhaps saving a checkpoint.
    /// The act then waits, at most for [`MAX_SAVING_SECONDS`].
    fn still_works(&mut self, context: &mut StepContext<'_>) -> bool {
        let StepInput { now, snapshot, .. } = context.input;
        let usage = self.read_usage(context.control);
        let used = usage.since(&self.usage);
        self.usage = usage;
        let uses_gpu = self.uses_gpu(snapshot);
        let since = self.state.first_action.unwrap_or(now);
        let is_saving =
            now.seconds_since(since) < MAX_SAVING_SECONDS && (uses_gpu || is_saving(used));
        self.saving = is_saving.then(|| {
            let percent = 100.0 * used.cpu_seconds / used.seconds.max(1.0);
            let gpu = if uses_gpu { " and uses the GPU" } else { "" };
            let limit = Span::from_seconds(MAX_SAVING_SECONDS);
            format!(
                "it still works (CPU {percent:.0}%, {} of I/O in {}){gpu}; waiting until it ends or is idle, {limit} at most",
                Bytes(used.bytes),
                Span::from_seconds(used.seconds)
            )
        });
        is_saving
    }

    /// Reads the answer to a request, if one is awaited, and writes it to the ledger.
    fn take_answer(&mut self, context: &mut StepContext<'_>) -> Result<(), LedgerError> {
        let (now, state) = (context.input.now, &mut self.state);
        if state.pending_request.is_none() {
            return Ok(());
        }
        state.answer = context.control.answer();
        let error = match &state.answer {
            RequestResult::Waiting => return Ok(()),
            RequestResult::Done | RequestResult::Released(Ok(_)) => None,
            RequestResult::AtWork => Some("it is working".to_owned()),
            RequestResult::Failed(error) | RequestResult::Restarts(error) => Some(error.clone()),
            RequestResult::Released(Err(error)) => Some(error.why().to_owned()),
            RequestResult::Parked(answer) => {
                (answer.result != ParkResult::Parked).then(|| answer.text.clone())
            }
        };
        state.answered = Some(now);
        let Some(deed) = state.pending_request.take() else {
            return Ok(());
        };
        state.is_shut |= error.is_none() && matches!(deed, Deed::ShutKernel { .. });
        if let Deed::Release { way } = &deed {
            let since = state.first_action.unwrap_or(now);
            state.releases.push(PastRelease::new(way, since, Some(now)));
        }
        let failure = error.map(|error| Failure { pid: None, error });
        let failures = failure.into_iter().collect();
        state.note(LedgerEvent::Done { deed, failures }, context)
    }

    /// Returns the next move if all members have exited or, in a step that ends processes, if the memory is freed.
    /// During a park or a release request to a kernel or server, the step itself evaluates an exit. New children
    /// without a GPU can keep running, for example to save a checkpoint.
    fn find_end(&mut self, step: Option<&Step>, context: &mut StepContext<'_>) -> Option<NextMove> {
        let StepInput { now, snapshot, .. } = context.input;
        let alive = self.state.alive(Recipients::Family, context);
        if self.state.first_action.is_none() {
            return alive.is_empty().then_some(NextMove::End(Outcome::AlreadyGone));
        }
        let is_freed = || {
            !self.target().must_exit()
                && !alive.iter().any(|held| held.is_adopted)
                && members_hold_memory(self.target(), snapshot) == Some(false)
                && matches!(self.compare(context.input), Some(FreeCheck::Freed(_)))
        };
        let ends = step.is_none_or(Step::ends_processes);
        let may_end = ends || step.is_some_and(Step::may_be_answered_by_an_end);
        let is_done = may_end && alive.is_empty() || ends && is_freed();
        let resume = Box::new(self.stage.clone());
        let verifying = ActStage::Verifying { since: now, freed: None, resume };
        is_done.then_some(NextMove::Go(verifying))
    }

    fn verify(
        &mut self,
        (since, freed, resume): (Time, Option<(u64, Time)>, Box<ActStage>),
        context: &mut StepContext<'_>,
    ) -> NextMove {
        let StepInput { now, snapshot, .. } = context.input;
        // A process that is still alive can allocate the memory again.
        if !self.state.alive(Recipients::Family, context).is_empty()
            && members_hold_memory(self.target(), snapshot) == Some(true)
        {
            return NextMove::Go(*resume);
        }
        let check = self.compare(context.input);
        let freed = match check {
            Some(FreeCheck::Freed(bytes)) => freed.or(Some((bytes, snapshot.time))),
            Some(FreeCheck::StillHeld(_)) => None,
            None => freed,
        };
        let seconds = match self.state.is_shut {
            true => 0.0,
            false => self.target().respawn_seconds.max(WATCH_SECONDS),
        };
        let watch_until = since.plus_seconds(seconds);
        let deadline = since.plus_seconds(DEADLINE_SECONDS.max(seconds));
        let successor = self.state.held.successor(self.target(), snapshot, context.control);
        let first_action = self.state.first_action.unwrap_or(since);
        let ms_until = |freed_at: Time| u64::try_from(freed_at - first_action).unwrap_or(0);
        // If no step ends processes, a process that has exited did so because of the release request.
        let only_asked = !self.target().steps.iter().any(Step::ends_processes);
        let released = |bytes, freed_at, why: String| {
            let report = ReleaseReport { why: Some(why.into()), ..ReleaseReport::default() };
            let (ms, report) = (ms_until(freed_at), Box::new(report));
            NextMove::End(Outcome::Released { bytes, ms, report })
        };
        match (freed, successor) {
            (Some((bytes, freed_at)), Some(pid)) => {
                let taken = snapshot.rows_of(pid).filter_map(|row| row.used_bytes);
                let bytes = bytes.saturating_sub(taken.fold(0, u64::saturating_add));
                if bytes == 0 || !only_asked {
                    return NextMove::End(Outcome::Respawned { pid, bytes });
                }
                released(bytes, freed_at, format!("it exited, and {pid} continues in its place"))
            }
            (None, Some(pid)) if now >= watch_until => {
                NextMove::End(Outcome::Respawned { pid, bytes: 0 })
            }
            (Some((bytes, freed_at)), None) if now >= watch_until => match only_asked {
                true => released(bytes, freed_at, "it ended".to_owned()),
                false => NextMove::End(Outcome::Freed { bytes, ms: ms_until(freed_at) }),
            },
            (Some(_), None) | (None, Some(_)) => {
                self.stage = ActStage::Verifying { since, freed, resume };
                NextMove::Wait(watch_until)
            }
            (None, None) if now >= deadline => {
                let holders = match check {
                    Some(FreeCheck::StillHeld(holders)) => holders,
                    _ => Vec::new(),
                };
                NextMove::End(Outcome::ExitedNotFreed { holders })
            }
            (None, None) => NextMove::Wait(deadline),
        }
    }

    /// Compares a snapshot with the baseline. Returns `None` unless there is a baseline and the snapshot is newer than
    /// the first action.
    fn compare(&self, input: StepInput<'_>) -> Option<FreeCheck> {
        let baseline = self.baseline.as_ref()?;
        let first_action = self.state.first_action?;
        let is_later = input.snapshot.time > first_action;
        is_later.then(|| baseline.compare(self.target(), input.snapshot))
    }

    fn alive_at_the_end(&mut self, control: &mut dyn ProcessControl) -> Outcome {
        let alive = self.state.held.alive(control);
        let wchan = alive.iter().find_map(|held| control.held_up(held.pid));
        wchan.map_or(Outcome::StillAlive, |wchan| Outcome::StuckInDriver { wchan: wchan.into() })
    }
}

#[cfg(test)]
mod tests;
