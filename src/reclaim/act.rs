//! Carries out the steps for one target, as a state machine without a clock.
//!
//! The caller repeatedly passes the time, the newest snapshot and the rule's verdict to [`Act::advance`]. The method
//! takes the steps that are due through [`ProcessControl`] and returns when the next step is due. It never blocks.
//!
//! No other module decides to send a signal or a request. Before sending, this module checks again the identity of
//! the process, its protection and the finding, and writes to the ledger. `handles` tracks the processes that may be
//! signalled, and `step` implements the actions.

mod checks;

use std::sync::Arc;

use super::guard::{Call, Guard, Protection};
use super::handles::Handles;
use super::ledger::{self, Actor, Failure, LedgerEntry, LedgerEvent, LedgerSink};
use super::park::ParkAnswer;
use super::past_release::PastRelease;
use super::policy::Signal;
use super::process_control::{Handle, NotOpened, ProcessControl, RequestResult};
use super::recheck::is_saving;
use super::release::ReleaseReport;
use super::step::{Started, StepContext, StepEffect, StepState};
use super::target::{Deed, LedgerProcess, Recipients, Step, Target, TargetProcess};
use super::verify::{
    Baseline, DEADLINE_SECONDS, FreeCheck, Outcome, ReleaseMeter, members_hold_memory,
};
use crate::host::JobUsage;
use crate::model::{Snapshot, Time};
use crate::units::{Bytes, Span};

/// Minimum time, in seconds, to watch for a restart once the memory is free. A supervisor waits a second or more
/// before it restarts a process (systemd's `RestartSec=`, a shell's `sleep 1`).
const WATCH_SECONDS: f64 = 5.0;

/// Interval, in seconds, between checks of a job that is still working when its grace period ends.
const SAVING_SECONDS: f64 = 5.0;
/// Maximum time, in seconds since the first signal, for which a job that is still working may continue.
const MAX_SAVING_SECONDS: f64 = 600.0;

/// Maximum time, in seconds, for which a rule's verdict can stay unknown before the act is cancelled.
pub const PATIENCE_SECONDS: f64 = 30.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recheck {
    StillTrue,
    NoLonger,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    pub now: Time,
    pub snapshot: &'a Snapshot,
    /// Whether the finding still holds. Has no effect if a person named the target.
    pub recheck: Recheck,
}

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
    id: Arc<str>,
    guard: Arc<Guard>,
    actor: Actor,
    target: Target,
    stage: ActStage,
    held: Handles,
    baseline: Option<Baseline>,
    first_action: Option<Time>,
    unknown_since: Option<Time>,
    /// Resource usage of the living members' job at the last signal or, if later, at the last check for work.
    usage: JobUsage,
    /// Description of the job's work, if the job was given more time because it is still working.
    saving: Option<String>,
    has_continued: bool,
    signalled: Vec<(LedgerProcess, Signal)>,
    /// Whether the server reported that it shut the kernel down. The server will not restart such a kernel.
    is_shut: bool,
    pending_request: Option<Deed>,
    answer: RequestResult,
    answered: Option<Time>,
    meter: ReleaseMeter,
    /// Outcome of a step after which the processes keep running.
    settled: Option<Outcome>,
    releases: Vec<PastRelease>,
    is_begun: bool,
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
        let boot_id = target.boot_id.clone();
        let guard = match target.is_release() {
            true => Arc::new(guard.for_release()),
            false => guard,
        };
        Self {
            id: "".into(),
            guard,
            actor,
            target,
            stage: ActStage::Fresh,
            held: Handles::new(boot_id),
            baseline: None,
            first_action: None,
            unknown_since: None,
            usage: JobUsage::default(),
            saving: None,
            has_continued: false,
            signalled: Vec::new(),
            is_shut: false,
            pending_request: None,
            answer: RequestResult::Waiting,
            answered: None,
            meter: ReleaseMeter::default(),
            settled: None,
            releases: Vec::new(),
            is_begun: false,
        }
    }

    pub fn after(self, releases: Vec<PastRelease>) -> Self {
        Self { releases, ..self }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.stage {
            ActStage::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Returns a description of the target's work, if the target was given more time because it is still working.
    pub fn saving(&self) -> Option<&str> {
        self.saving.as_deref()
    }

    pub fn alive(&self) -> Vec<&TargetProcess> {
        let members = self.target.members.iter();
        members.filter(|member| !self.held.has_ended(member.pid)).collect()
    }

    /// Takes the steps that are due. If the ledger cannot be written, ends the act without taking the next action,
    /// and returns the error.
    pub fn advance(
        &mut self,
        input: StepInput<'_>,
        control: &mut dyn ProcessControl,
        record: &mut dyn LedgerSink,
    ) -> Result<ActProgress, ledger::LedgerError> {
        if let ActStage::Over(outcome) = &self.stage {
            return Ok(ActProgress::Ended(outcome.clone()));
        }
        let result = self.advance_stage(input, control, record);
        if result.is_err() && self.outcome().is_none() {
            self.stage = ActStage::Over(Outcome::StillAlive);
        }
        result
    }

    fn advance_stage(
        &mut self,
        input: StepInput<'_>,
        control: &mut dyn ProcessControl,
        record: &mut dyn LedgerSink,
    ) -> Result<ActProgress, ledger::LedgerError> {
        if !self.is_begun {
            self.is_begun = true;
            self.id = format!("{}-{}", input.now.unix_milliseconds(), self.target.id).into();
            let target = Box::new(self.target.clone());
            let actor = self.actor.clone();
            self.note(input.now, LedgerEvent::Begun { actor, target }, record)?;
        }
        self.record(input.now, control, record)?;
        loop {
            let next = match self.stage.clone() {
                ActStage::Fresh => self.begin(input, control),
                ActStage::Due(step) => self.take_step(step, input, control, record)?,
                ActStage::Taken(step, until) => self.watch(step, until, input, control),
                ActStage::Verifying { since, freed, resume } => {
                    self.verify((since, freed, resume), input, control)
                }
                ActStage::Over(outcome) => NextMove::End(outcome),
            };
            match next {
                NextMove::Go(stage) => self.stage = stage,
                NextMove::Wait(until) => return Ok(ActProgress::Waiting { until }),
                NextMove::End(outcome) => {
                    let outcome = self.with_settled(outcome);
                    self.stage = ActStage::Over(outcome.clone());
                    self.note(input.now, LedgerEvent::Ended(outcome.clone()), record)?;
                    return Ok(ActProgress::Ended(outcome));
                }
            }
        }
    }

    fn note(
        &self,
        time: Time,
        event: LedgerEvent,
        record: &mut dyn LedgerSink,
    ) -> Result<(), ledger::LedgerError> {
        let act = Arc::clone(&self.id);
        record.write(&LedgerEntry { time, act, event })
    }

    /// Checks the target again and opens handles on its processes. No process is signalled before all handles are open.
    fn begin(&mut self, input: StepInput<'_>, control: &mut dyn ProcessControl) -> NextMove {
        if let Some(command) = self.target.steps.first().and_then(|step| step.advice()) {
            let command = Arc::clone(command);
            let why = Protection::Owned { command };
            return NextMove::End(Outcome::Protected { why });
        }
        if let Some(next) = self.recheck_finding(input, control) {
            return next;
        }
        let members = self.target.members.iter().map(|member| (member, true));
        let launcher = self.target.launcher.iter().map(|member| (member, false));
        for (member, is_member) in members.chain(launcher) {
            match self.held.open(member, is_member, control) {
                Ok(()) | Err(NotOpened::Gone(_)) => {}
                Err(error) => return NextMove::End(outcome_of_not_opened(error)),
            }
        }
        if self.family(input.snapshot, control).is_empty() {
            return NextMove::End(Outcome::AlreadyGone);
        }
        // Since the plan was made, a process that a person named may have freed its GPU memory.
        if self.target.call() == Call::Named
            && !self.target.must_exit()
            && members_hold_memory(&self.target, input.snapshot) == Some(false)
        {
            return NextMove::End(Outcome::AlreadyGone);
        }
        for member in &self.target.members {
            let shown = input.snapshot.process(member.pid);
            self.held.remember(member.pid, shown.and_then(|process| process.executable.clone()));
        }
        let alive: Vec<Handle> = self.held.alive(control);
        if let Some(outcome) = self.find_protection(&alive, input.snapshot, control) {
            return NextMove::End(outcome);
        }
        self.held.record_existing(input.snapshot, control);
        self.baseline = Some(Baseline::new(&self.target, input.snapshot));
        NextMove::Go(ActStage::Due(0))
    }

    fn take_step(
        &mut self,
        index: usize,
        input: StepInput<'_>,
        control: &mut dyn ProcessControl,
        record: &mut dyn LedgerSink,
    ) -> Result<NextMove, ledger::LedgerError> {
        let step = self.target.steps.get(index).cloned();
        if let Some(next) = self.is_done(step.as_ref(), input, control) {
            return Ok(next);
        }
        let Some(step) = step else {
            return Ok(NextMove::End(self.alive_at_the_end(control)));
        };
        if let Some(next) = self.recheck_finding(input, control) {
            return Ok(next);
        }
        let recipient_handles = step.recipients(&mut self.step_state(input.snapshot, control));
        if recipient_handles.is_empty() {
            return Ok(NextMove::Go(ActStage::Due(index + 1)));
        }
        let would_end = |act: &mut Self, control: &mut dyn ProcessControl| {
            act.would_end_others(&recipient_handles, input.snapshot, control)
        };
        if let Some(outcome) = self
            .find_protection(&recipient_handles, input.snapshot, control)
            .or_else(|| step.ends_processes().then(|| would_end(self, control))?)
        {
            return Ok(NextMove::End(outcome));
        }
        let mut context = StepContext {
            act: &self.id,
            now: input.now,
            held: &self.held,
            control,
            record,
            is_named: self.target.call() == Call::Named,
            has_continued: false,
            signalled: &mut self.signalled,
            releases: &self.releases,
        };
        let started = step.execute(&mut context, &recipient_handles)?;
        self.has_continued |= context.has_continued;
        if let Started::Settled(outcome) = started {
            return Ok(self.settle(index, outcome));
        }
        self.first_action.get_or_insert(input.now);
        self.saving = None;
        if step.may_save() {
            self.usage = self.read_usage(control);
        }
        let taken =
            NextMove::Go(ActStage::Taken(index, input.now.plus_seconds(step.grace_seconds())));
        Ok(match started {
            Started::Asked(deed) => {
                (self.pending_request, self.answer) = (Some(deed), RequestResult::Waiting);
                self.answered = None;
                self.meter = ReleaseMeter::new(&self.target, input.snapshot);
                taken
            }
            // A kernel that received a signal may be restarted by its server.
            Started::Done => {
                self.is_shut = false;
                taken
            }
            Started::Ends(outcome) | Started::Settled(outcome) => NextMove::End(outcome),
        })
    }

    fn step_state<'a>(
        &'a mut self,
        snapshot: &'a Snapshot,
        control: &'a mut dyn ProcessControl,
    ) -> StepState<'a> {
        StepState {
            target: &self.target,
            policy: &self.guard.policy,
            held: &mut self.held,
            snapshot,
            control,
            answer: &self.answer,
            answered: self.answered,
            begun: self.first_action,
            meter: &self.meter,
        }
    }

    fn family(&mut self, snapshot: &Snapshot, control: &mut dyn ProcessControl) -> Vec<Handle> {
        self.step_state(snapshot, control).alive(Recipients::Family)
    }

    fn watch(
        &mut self,
        index: usize,
        until: Time,
        input: StepInput<'_>,
        control: &mut dyn ProcessControl,
    ) -> NextMove {
        // Look for new children first, while their parents are alive, because children are found through their parents.
        let call = self.target.call();
        let now = input.now;
        self.held.adopt(call, &self.guard, now, input.snapshot, control);
        let step = self.target.steps.get(index).cloned();
        if let Some(next) = self.is_done(step.as_ref(), input, control) {
            return next;
        }
        let next = NextMove::Go(ActStage::Due(index + 1));
        let Some(step) = step else {
            return next;
        };
        if self.answered.is_some_and(|answered| answered < input.snapshot.time) {
            self.meter.add(&self.target, input.snapshot);
        }
        match step.effect(&mut self.step_state(input.snapshot, control)) {
            StepEffect::Pending => {}
            StepEffect::Over => return next,
            StepEffect::Ends(outcome) => return NextMove::End(outcome),
            StepEffect::Settled(outcome) => return self.settle(index, outcome),
        }
        // If the finding no longer holds, a step that ends processes is cancelled. A release request continues.
        if step.ends_processes()
            && input.recheck == Recheck::NoLonger
            && let Some(next) = self.recheck_finding(input, control)
        {
            return next;
        }
        if input.now < until {
            return NextMove::Wait(until);
        }
        if step.may_save() && self.still_works(input, control) {
            let later = input.now.plus_seconds(SAVING_SECONDS);
            self.stage = ActStage::Taken(index, later);
            return NextMove::Wait(later);
        }
        match step.expired(&self.step_state(input.snapshot, control)) {
            StepEffect::Pending | StepEffect::Over => next,
            StepEffect::Ends(outcome) => NextMove::End(outcome),
            StepEffect::Settled(outcome) => self.settle(index, outcome),
        }
    }

    /// Reads the resource usage of the living members and their helper processes.
    fn read_usage(&mut self, control: &mut dyn ProcessControl) -> JobUsage {
        let alive = self.held.alive(control).into_iter();
        let alive = alive.filter_map(|handle| self.held.get(handle));
        let alive: Vec<(u32, u64)> = alive.map(|held| (held.pid, held.start_ticks)).collect();
        control.read_usage(&alive, Some(&self.usage))
    }

    /// Returns whether a living member or one of its helper processes is still working, perhaps saving a checkpoint.
    /// The act then waits, but not forever.
    fn still_works(&mut self, input: StepInput<'_>, control: &mut dyn ProcessControl) -> bool {
        let first_action = self.first_action.unwrap_or(input.now);
        let now = self.read_usage(control);
        let used = now.since(&self.usage);
        self.usage = now;
        let uses_gpu = self.uses_gpu(input.snapshot);
        let is_in_time = input.now.seconds_since(first_action) < MAX_SAVING_SECONDS;
        let is_saving = is_in_time && (uses_gpu || is_saving(used));
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

    fn record(
        &mut self,
        now: Time,
        control: &mut dyn ProcessControl,
        record: &mut dyn LedgerSink,
    ) -> Result<(), ledger::LedgerError> {
        if self.pending_request.is_none() {
            return Ok(());
        }
        self.answer = control.answer();
        let error = match &self.answer {
            RequestResult::Waiting => return Ok(()),
            RequestResult::Done | RequestResult::Released(Ok(_)) => None,
            RequestResult::AtWork => Some("it is working".to_owned()),
            RequestResult::Failed(error) | RequestResult::Restarts(error) => Some(error.clone()),
            RequestResult::Released(Err(error)) => Some(error.why().to_owned()),
            RequestResult::Parked(ParkAnswer::Parked { .. }) => None,
            RequestResult::Parked(answer) => Some(answer.words()),
        };
        self.answered = Some(now);
        let Some(deed) = self.pending_request.take() else {
            return Ok(());
        };
        self.is_shut |= error.is_none() && matches!(deed, Deed::ShutKernel { .. });
        if let Deed::Release { way } = &deed {
            let since = self.first_action.unwrap_or(now);
            self.releases.push(PastRelease::new(way, since, Some(now)));
        }
        let failure = error.map(|error| Failure { pid: None, error });
        let failures = failure.into_iter().collect();
        self.note(now, LedgerEvent::Done { deed, failures }, record)
    }

    /// Returns the next move if all members have exited or, in a step that ends processes, if the memory is freed.
    /// The step itself evaluates an exit during a request to a kernel or server. New children without a GPU can keep
    /// running, for example to save a checkpoint.
    fn is_done(
        &mut self,
        step: Option<&Step>,
        input: StepInput<'_>,
        control: &mut dyn ProcessControl,
    ) -> Option<NextMove> {
        let alive = self.family(input.snapshot, control);
        if self.first_action.is_none() {
            return alive.is_empty().then_some(NextMove::End(Outcome::AlreadyGone));
        }
        let is_freed = || {
            !self.target.must_exit()
                && alive.iter().all(|&handle| !self.held.is_adopted(handle))
                && members_hold_memory(&self.target, input.snapshot) == Some(false)
                && matches!(self.compare(input), Some(FreeCheck::Freed(_)))
        };
        let ends = step.is_none_or(Step::ends_processes);
        let may_end = ends || step.is_some_and(Step::may_be_answered_by_an_end);
        let is_done = may_end && alive.is_empty() || ends && is_freed();
        let resume = Box::new(self.stage.clone());
        let verifying = ActStage::Verifying { since: input.now, freed: None, resume };
        is_done.then_some(NextMove::Go(verifying))
    }

    fn verify(
        &mut self,
        (since, freed, resume): (Time, Option<(u64, Time)>, Box<ActStage>),
        input: StepInput<'_>,
        control: &mut dyn ProcessControl,
    ) -> NextMove {
        // A process that is still alive can allocate the memory again.
        if !self.family(input.snapshot, control).is_empty()
            && members_hold_memory(&self.target, input.snapshot) == Some(true)
        {
            return NextMove::Go(*resume);
        }
        let freed = match self.compare(input) {
            Some(FreeCheck::Freed(bytes)) => freed.or(Some((bytes, input.snapshot.time))),
            Some(FreeCheck::StillHeld(_)) => None,
            None => freed,
        };
        let seconds =
            if self.is_shut { 0.0 } else { self.target.respawn_seconds.max(WATCH_SECONDS) };
        let watch_until = since.plus_seconds(seconds);
        let deadline = since.plus_seconds(DEADLINE_SECONDS.max(seconds));
        let successor = self.held.successor(&self.target, input.snapshot, control);
        let ms_until = |freed_at: Time| {
            u64::try_from(freed_at - self.first_action.unwrap_or(since)).unwrap_or(0)
        };
        // If no step ends processes, a process that has exited did so because of the release request.
        let only_asked = !self.target.steps.iter().any(Step::ends_processes);
        let released = |bytes, freed_at, why: String| {
            let report = ReleaseReport { why: Some(why.into()), ..ReleaseReport::default() };
            let (ms, report) = (ms_until(freed_at), Box::new(report));
            NextMove::End(Outcome::Released { bytes, ms, report })
        };
        match (freed, successor) {
            (Some((bytes, freed_at)), Some(pid)) => {
                let taken = self.taken_by(pid, input.snapshot);
                let bytes = bytes.saturating_sub(taken);
                if bytes == 0 || !only_asked {
                    return NextMove::End(Outcome::Respawned { pid, bytes });
                }
                released(bytes, freed_at, format!("it exited, and {pid} continues in its place"))
            }
            (None, Some(pid)) if input.now >= watch_until => {
                NextMove::End(Outcome::Respawned { pid, bytes: 0 })
            }
            (Some((bytes, freed_at)), None) if input.now >= watch_until && only_asked => {
                released(bytes, freed_at, "it ended".to_owned())
            }
            (Some((bytes, freed_at)), None) if input.now >= watch_until => {
                NextMove::End(Outcome::Freed { bytes, ms: ms_until(freed_at) })
            }
            (Some(_), None) | (None, Some(_)) => {
                self.stage = ActStage::Verifying { since, freed, resume };
                NextMove::Wait(watch_until)
            }
            (None, None) if input.now >= deadline => {
                let holders = match self.compare(input) {
                    Some(FreeCheck::StillHeld(holders)) => holders,
                    _ => Vec::new(),
                };
                NextMove::End(Outcome::ExitedNotFreed { holders })
            }
            (None, None) => NextMove::Wait(deadline),
        }
    }

    fn taken_by(&self, pid: u32, snapshot: &Snapshot) -> u64 {
        let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
        let rows = rows.flatten().filter(|row| row.pid == pid);
        rows.filter_map(|row| row.used_bytes).fold(0, u64::saturating_add)
    }

    /// Compares a snapshot with the baseline. Returns `None` if there is no baseline, or the snapshot is older than
    /// the first action.
    fn compare(&self, input: StepInput<'_>) -> Option<FreeCheck> {
        let baseline = self.baseline.as_ref()?;
        let first_action = self.first_action?;
        (input.snapshot.time > first_action).then(|| baseline.compare(&self.target, input.snapshot))
    }

    fn alive_at_the_end(&mut self, control: &mut dyn ProcessControl) -> Outcome {
        for handle in self.held.alive(control) {
            let Some(held) = self.held.get(handle) else {
                continue;
            };
            if let Some(wchan) = control.held_up(held.pid) {
                return Outcome::StuckInDriver { wchan: wchan.into() };
            }
        }
        Outcome::StillAlive
    }
}

fn outcome_of_not_opened(error: NotOpened) -> Outcome {
    match error {
        NotOpened::Gone(_) => Outcome::AlreadyGone,
        NotOpened::Changed(_) => Outcome::IdentityChanged,
        NotOpened::NoPidfd(_) => Outcome::Protected { why: Protection::NoPidfd },
        NotOpened::Failed { error, .. } => {
            Outcome::Protected { why: Protection::NotHeld { error: error.into() } }
        }
    }
}

#[cfg(test)]
mod tests;
