//! The steps that free a target's memory, gentlest first.
//!
//! [`Step`] lists the kinds of steps, and its methods contain what they have in common. Each kind has a module with
//! its part of each method and the condition for using the step. To add a kind, add a module, a variant of [`Step`]
//! and, for a new kind of action, variants of [`Deed`] and [`Request`].
//!
//! A supervisor that would restart a process (a notebook server, or the launcher of a distributed run) is asked
//! first. If a scheduler, service manager, container runtime or worker pool owns the process, the step only shows a
//! command. `act` decides whether a step can be taken at all.

pub(super) mod park;
pub(super) mod release;
mod shut_kernel;
mod signal;

use std::fmt;
use std::sync::Arc;

pub use self::shut_kernel::ask_server;
use super::guard::{Call, Guard};
use super::handles::{Handles, HeldProcess};
use super::ledger::{LedgerEntry, LedgerError, LedgerEvent, LedgerSink};
use super::past_acts::PastRelease;
use super::policy::Signal;
use super::process_control::{ProcessControl, RequestResult};
use super::recheck::Recheck;
use super::release as ways;
use super::release::{ReleaseBy, ReleaseWay};
use super::target::{Deed, LedgerProcess, Recipients, Request, Step, Target, listed};
use super::verify::{Outcome, ReleaseMeter};
use crate::advice;
use crate::host::Roots;
use crate::model::{Process, Snapshot, Time};
use crate::units::{Bytes, Span};

/// Time, in seconds, to watch for a restart. A notebook server checks its kernels every 3 s (`jupyter_client`:
/// `KernelRestarter.time_to_dead` and `poll_interval`), and torchrun checks its workers more often.
const RESPAWN_SECONDS: f64 = 6.0;

impl Step {
    /// Describes the action. The text contains untrusted names, so the caller must escape it for a terminal.
    pub fn describe(&self, target: &Target) -> String {
        let action = match self {
            Self::Release { way, .. } => release::describe(way),
            Self::Park { process, to_end } => return park::describe(process, *to_end),
            Self::ShutKernel { kernel, .. } => shut_kernel::describe(kernel),
            Self::Signal { signal, recipients, .. } => {
                signal::describe(*signal, *recipients, target)
            }
            Self::Advise { command } => return command.to_string(),
        };
        let wait = Span::from_seconds(self.grace_seconds());
        let longer = if self.may_save() { ", longer while it works" } else { "" };
        format!("{action}; wait {wait}{longer}")
    }

    /// Returns whether the recipients may save their work before they exit because of the step.
    pub(super) fn may_save(&self) -> bool {
        matches!(self, Self::Signal { signal, .. } if *signal != Signal::Kill)
    }

    pub fn advice(&self) -> Option<&Arc<str>> {
        match self {
            Self::Advise { command } => Some(command),
            _ => None,
        }
    }

    pub(super) fn grace_seconds(&self) -> f64 {
        match self {
            Self::Release { grace_seconds, .. }
            | Self::ShutKernel { grace_seconds, .. }
            | Self::Signal { grace_seconds, .. } => *grace_seconds,
            Self::Park { process, .. } => park::grace_seconds(process),
            Self::Advise { .. } => 0.0,
        }
    }

    /// Returns the living recipients. If there are none, the act continues with the next step. The caller checks
    /// whether the recipients are protected.
    pub(super) fn recipients(
        &self,
        state: &mut StepState,
        context: &mut StepContext<'_>,
    ) -> Vec<HeldProcess> {
        match self {
            Self::Release { .. } | Self::Park { .. } => state.alive(Recipients::Family, context),
            Self::ShutKernel { .. } => state.held.alive(context.control),
            Self::Signal { recipients, .. } => state.alive(*recipients, context),
            Self::Advise { .. } => Vec::new(),
        }
    }

    /// Acts on the recipients. Returns [`StepEffect::Pending`] if something was sent.
    pub(super) fn execute(
        &self,
        state: &mut StepState,
        context: &mut StepContext<'_>,
        recipients: &[HeldProcess],
    ) -> Result<StepEffect, LedgerError> {
        match self {
            Self::Release { way, options, .. } => release::request(way, options, state, context),
            Self::Park { process, to_end } => park::request(process, *to_end, state, context),
            Self::ShutKernel { kernel, .. } => shut_kernel::request(kernel, state, context),
            Self::Signal { signal, .. } => signal::send(*signal, state, context, recipients),
            Self::Advise { .. } => Ok(StepEffect::Over),
        }
    }

    /// Returns the effect so far, according to the answer and the living processes.
    pub(super) fn effect(
        &self,
        state: &mut StepState,
        context: &mut StepContext<'_>,
    ) -> StepEffect {
        match self {
            Self::Release { way, options, .. } => release::effect(way, options, state, context),
            Self::Park { process, to_end } => park::effect(process, *to_end, state, context),
            Self::ShutKernel { .. } => shut_kernel::effect(state),
            Self::Signal { recipients, .. } if !state.alive(*recipients, context).is_empty() => {
                StepEffect::Pending
            }
            Self::Signal { .. } | Self::Advise { .. } => StepEffect::Over,
        }
    }

    /// Returns the effect when the time limit has passed.
    pub(super) fn expired(&self, state: &StepState) -> StepEffect {
        match self {
            Self::Release { .. } => release::expired(state),
            Self::Park { to_end, .. } => park::expired(*to_end),
            Self::ShutKernel { .. } => shut_kernel::expired(state),
            Self::Signal { .. } | Self::Advise { .. } => StepEffect::Over,
        }
    }

    /// Returns whether the step ends processes. Such a step can also end dependent processes, and the act succeeds
    /// once the memory is free. The effect of a release is measured with [`ReleaseMeter`] instead.
    pub fn ends_processes(&self) -> bool {
        !matches!(self, Self::Release { .. } | Self::Park { .. })
    }

    /// Returns whether the process may exit because of the request, since some programs can free a memory pool only
    /// by exiting.
    pub(super) fn may_be_answered_by_an_end(&self) -> bool {
        let by_signal = |way: &ReleaseWay| matches!(way.by, ReleaseBy::Signal { .. });
        matches!(self, Self::Release { way, .. } if by_signal(way))
    }
}

/// The text contains untrusted names, so the caller must escape it for a terminal.
impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal { signals, processes } => {
                let signals: Vec<&str> = signals.iter().map(|signal| signal.name()).collect();
                let pids = listed(processes.iter().map(|process| &process.pid));
                write!(f, "{} to {pids}", signals.join(" and "))
            }
            Self::Release { way } => f.write_str(&release::describe_request(way, "asking")),
            Self::Park { process, bytes } => {
                let (pid, bytes) = (process.pid, Bytes(*bytes));
                write!(
                    f,
                    "a helper moves {bytes} of {pid} to host memory, and finishes in any case"
                )
            }
            Self::ShutKernel { kernel_id } => {
                write!(f, "asking its server to shut kernel {kernel_id} down")
            }
        }
    }
}

/// Sends a request and waits for the answer, which can take seconds.
pub(super) fn perform(roots: &Roots, request: &Request) -> RequestResult {
    match request {
        Request::Release { way, options } => {
            RequestResult::Released(ways::perform(roots, way, options))
        }
        Request::Park { process, to_end } => RequestResult::Parked(park::perform(process, *to_end)),
        Request::ShutKernel { kernel, even_at_work, asked } => {
            ask_server(roots, kernel, *even_at_work, asked)
        }
    }
}

pub(super) enum StepEffect {
    Pending,
    /// The step is complete, and the act continues with the next step.
    Over,
    Ends(Outcome),
    /// The step is complete or was not necessary, and the process keeps running. The act continues with the next step
    /// or, if there is none, ends with this outcome.
    Settled(Outcome),
}

#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    pub now: Time,
    pub snapshot: &'a Snapshot,
    /// Whether the finding still holds. Has no effect if a person named the target.
    pub recheck: Recheck,
}

/// The newest sample, and the tools to act. Each action is written to the ledger, executed, and written again with its
/// result.
pub(super) struct StepContext<'a> {
    pub input: StepInput<'a>,
    pub control: &'a mut dyn ProcessControl,
    pub record: &'a mut dyn LedgerSink,
}

impl StepContext<'_> {
    fn is_alive(&mut self, pid: u32, start_ticks: u64) -> bool {
        let facts = self.control.read_guarded(pid);
        facts.is_some_and(|facts| {
            facts.start_ticks == start_ticks && !matches!(facts.state, Some('Z' | 'X'))
        })
    }
}

#[derive(Debug)]
pub(super) struct StepState {
    /// ID of the act, or empty if the act has not begun.
    pub act: Arc<str>,
    pub guard: Arc<Guard>,
    pub target: Target,
    pub held: Handles,
    pub first_action: Option<Time>,
    /// Whether SIGCONT was sent to a stopped process.
    pub has_continued: bool,
    /// Signals that this act has sent. No signal is sent to a process twice, because many programs treat a second
    /// SIGTERM as "quit now", even while they save their work.
    pub signalled: Vec<(LedgerProcess, Signal)>,
    /// Whether the server reported that it shut the kernel down. The server will not restart such a kernel.
    pub is_shut: bool,
    pub pending_request: Option<Deed>,
    pub answer: RequestResult,
    pub answered: Option<Time>,
    /// Measures how much memory a living target has released.
    pub meter: ReleaseMeter,
    pub releases: Vec<PastRelease>,
}

impl StepState {
    pub fn new(target: Target, guard: Arc<Guard>) -> Self {
        Self {
            act: "".into(),
            guard: if target.is_release() { Arc::new(guard.for_release()) } else { guard },
            held: Handles::new(target.boot_id.clone()),
            target,
            first_action: None,
            has_continued: false,
            signalled: Vec::new(),
            is_shut: false,
            pending_request: None,
            answer: RequestResult::Waiting,
            answered: None,
            meter: ReleaseMeter::default(),
            releases: Vec::new(),
        }
    }

    pub fn is_named(&self) -> bool {
        self.target.call() == Call::Named
    }

    /// Returns the living recipients. An added process is included only if it may hold a GPU.
    pub fn alive(
        &mut self,
        recipients: Recipients,
        context: &mut StepContext<'_>,
    ) -> Vec<HeldProcess> {
        let mut alive = self.held.concerned(context.input.snapshot, context.control);
        alive.retain(|held| match recipients {
            Recipients::Launcher => !held.is_member,
            Recipients::Leader => held.is_member && held.pid == self.target.leader,
            Recipients::Family => held.is_member,
        });
        alive
    }

    pub fn note(
        &self,
        event: LedgerEvent,
        context: &mut StepContext<'_>,
    ) -> Result<(), LedgerError> {
        let (time, act) = (context.input.now, Arc::clone(&self.act));
        context.record.write(&LedgerEntry { time, act, event })
    }

    pub fn requests_to(&self, pid: u32, start_ticks: u64) -> impl Iterator<Item = &PastRelease> {
        let process = LedgerProcess { pid, start_ticks };
        self.releases.iter().filter(move |release| release.process == process)
    }

    /// Sends a request, whose answer the act awaits.
    pub fn request(
        &mut self,
        deed: Deed,
        request: Request,
        context: &mut StepContext<'_>,
    ) -> Result<StepEffect, LedgerError> {
        self.note(LedgerEvent::Intended(deed.clone()), context)?;
        context.control.start_request(request);
        self.pending_request = Some(deed);
        (self.answer, self.answered) = (RequestResult::Waiting, None);
        self.meter = ReleaseMeter::new(&self.target, context.input.snapshot);
        Ok(StepEffect::Pending)
    }
}

pub(super) struct FamilyInput<'a> {
    pub guard: &'a Guard,
    /// The target, still without steps.
    pub target: &'a Target,
    pub processes: &'a [&'a Process],
    pub snapshot: &'a Snapshot,
    /// Whether the whole family is included.
    pub is_whole: bool,
    pub is_idle: bool,
}

/// Returns the steps for a family, and the time in seconds to watch for a restart.
pub(super) fn steps(candidate: &FamilyInput<'_>) -> (Vec<Step>, f64) {
    let shut = shut_kernel::plan(candidate);
    if shut.is_none()
        && let Some(only) = advise(candidate)
    {
        return (vec![only], 0.0);
    }
    let is_restarted = shut.is_some()
        || !candidate.is_whole
        || candidate.processes.iter().any(|process| {
            shut_kernel::is_notebook(process)
                || process.restarting_pool().is_some()
                || advice::owner(process).is_some()
        });
    let mut steps: Vec<Step> = release::plan(candidate).into_iter().chain(shut).collect();
    steps.extend(signal::plan(candidate));
    // No step that ends processes may precede the parks.
    if let Some(first) = steps.iter().position(Step::ends_processes) {
        let processes = candidate.processes.iter();
        let parks = processes.filter_map(|process| park::before_end(process, candidate.snapshot));
        steps.splice(first..first, parks);
    }
    (steps, if is_restarted { RESPAWN_SECONDS } else { 0.0 })
}

/// Returns advice instead of steps if a scheduler, service manager, container runtime, pool or unreachable server
/// owns a process, unless `direct` is set.
fn advise(candidate: &FamilyInput<'_>) -> Option<Step> {
    if candidate.guard.policy.direct {
        return None;
    }
    let processes = candidate.processes;
    let is_others = |process: &Process| process.uid != Some(candidate.guard.ourselves.uid);
    let mut owners = processes.iter().filter_map(|process| {
        advice::owner_of(process, processes)
            .filter(|owner| !(owner.is_by_user && is_others(process)))
    });
    let are_own = !processes.iter().any(|process| is_others(process));
    let owned = owners.next().map(|owner| Arc::from(owner.way(are_own)));
    let restarted = || processes.iter().find_map(|process| shut_kernel::restarted(process));
    let pooled = || processes.iter().find_map(|process| pooled(process, processes));
    let command = owned.or_else(restarted).or_else(pooled)?;
    Some(Step::Advise { command })
}

/// Returns advice for a worker that its pool keeps for the next task or would start again. Returns `None` for other
/// processes, and if the worker's parent is among `processes`.
fn pooled(process: &Process, processes: &[&Process]) -> Option<Arc<str>> {
    let pool = process.restarting_pool()?;
    let is_parent = |parent: &&Process| process.ppid == Some(parent.pid);
    if processes.iter().any(is_parent) {
        return None;
    }
    let does = format!("{} {}", pool.restarter, pool.deed());
    Some(format!("{does}: {}", pool.unnamed.as_ref()?).into())
}

#[cfg(test)]
mod tests;
