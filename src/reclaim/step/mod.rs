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
use super::guard::Guard;
use super::handles::Handles;
use super::ledger::{LedgerEntry, LedgerError, LedgerEvent, LedgerSink};
use super::past_release::PastRelease;
use super::policy::{Policy, Signal};
use super::process_control::{Handle, PerformRequest, ProcessControl, RequestResult};
use super::release as ways;
use super::release::{ReleaseBy, ReleaseWay};
use super::target::{
    Deed, LedgerProcess, Recipients, Request, Step, Target, TargetProcess, listed,
};
use super::verify::{Outcome, ReleaseMeter};
use crate::advice;
use crate::host::Roots;
use crate::model::process::AskedRelease;
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
            Self::Park { way, to_end, .. } => return park::describe(way, *to_end),
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

    /// Returns the command to show, or `None` if the step is an action.
    pub fn advice(&self) -> Option<&Arc<str>> {
        match self {
            Self::Advise { command } => Some(command),
            _ => None,
        }
    }

    pub(super) fn grace_seconds(&self) -> f64 {
        match self {
            Self::Release { grace_seconds, .. }
            | Self::Park { grace_seconds, .. }
            | Self::ShutKernel { grace_seconds, .. }
            | Self::Signal { grace_seconds, .. } => *grace_seconds,
            Self::Advise { .. } => 0.0,
        }
    }

    /// Returns the living recipients. If there are none, the act continues with the next step. The caller checks
    /// whether the recipients are protected.
    pub(super) fn recipients(&self, state: &mut StepState<'_>) -> Vec<Handle> {
        match self {
            Self::Release { .. } | Self::Park { .. } => state.alive(Recipients::Family),
            Self::ShutKernel { .. } => state.held.alive(&mut *state.control),
            Self::Signal { recipients, .. } => state.alive(*recipients),
            Self::Advise { .. } => Vec::new(),
        }
    }

    pub(super) fn execute(
        &self,
        context: &mut StepContext<'_>,
        recipients: &[Handle],
    ) -> Result<Started, LedgerError> {
        match self {
            Self::Release { way, options, .. } => release::request(way, options, context),
            Self::Park { way, to_end, .. } => park::request(way, *to_end, context),
            Self::ShutKernel { kernel, .. } => shut_kernel::request(kernel, context),
            Self::Signal { signal, .. } => signal::send(*signal, context, recipients),
            Self::Advise { .. } => Ok(Started::Done),
        }
    }

    /// Returns the effect so far, according to the answer and the living processes.
    pub(super) fn effect(&self, state: &mut StepState<'_>) -> StepEffect {
        match self {
            Self::Release { way, options, .. } => release::effect(way, options, state),
            Self::Park { way, to_end, .. } => park::effect(way, *to_end, state),
            Self::ShutKernel { .. } => shut_kernel::effect(state),
            Self::Signal { recipients, .. } if !state.alive(*recipients).is_empty() => {
                StepEffect::Pending
            }
            Self::Signal { .. } | Self::Advise { .. } => StepEffect::Over,
        }
    }

    /// Returns the effect when the time limit has passed.
    pub(super) fn expired(&self, state: &StepState<'_>) -> StepEffect {
        match self {
            Self::Release { .. } => release::expired(state),
            Self::Park { to_end, .. } => park::expired(*to_end),
            Self::ShutKernel { .. } => shut_kernel::expired(state),
            Self::Signal { .. } | Self::Advise { .. } => StepEffect::Over,
        }
    }

    /// Returns whether the step ends processes. Such a step can also end dependent processes, and the act succeeds
    /// once the memory is free. The effect of a release is measured with [`ReleaseMeter`] instead.
    pub(super) fn ends_processes(&self) -> bool {
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
                write!(f, "parking {}: moving {} to host memory", process.pid, Bytes(*bytes))
            }
            Self::ShutKernel { kernel_id } => {
                write!(f, "asking its server to shut kernel {kernel_id} down")
            }
        }
    }
}

/// Returns the function that performs the requests of all steps, for
/// [`PidfdControl::with_requests`](crate::reclaim::PidfdControl::with_requests). A request can take seconds.
pub fn perform_requests(roots: Roots) -> PerformRequest {
    Arc::new(move |request| match request {
        Request::Release { way, options } => {
            RequestResult::Released(ways::perform(&roots, way, options))
        }
        Request::Park { way, to_end } => RequestResult::Parked(park::perform(way, *to_end)),
        Request::ShutKernel { kernel, even_at_work, asked } => {
            ask_server(&roots, kernel, *even_at_work, asked)
        }
    })
}

pub(super) enum StepEffect {
    Pending,
    /// The step is complete, and the act continues with the next step.
    Over,
    Ends(Outcome),
    /// The step is complete, and the process keeps running. The act continues with the next step or, if there is
    /// none, ends with this outcome.
    Settled(Outcome),
}

pub(super) enum Started {
    Done,
    Ends(Outcome),
    /// Nothing was done. The act continues as after [`StepEffect::Settled`].
    Settled(Outcome),
    Asked(Deed),
}

/// Handles, answers and times that a step can inspect.
pub(super) struct StepState<'a> {
    pub target: &'a Target,
    pub policy: &'a Policy,
    pub held: &'a mut Handles,
    pub snapshot: &'a Snapshot,
    pub control: &'a mut dyn ProcessControl,
    pub answer: &'a RequestResult,
    pub answered: Option<Time>,
    pub begun: Option<Time>,
    /// Measures how much memory a living target has released.
    pub meter: &'a ReleaseMeter,
}

impl StepState<'_> {
    /// Returns the living recipients. An added process is included only if it may hold a GPU.
    pub fn alive(&mut self, recipients: Recipients) -> Vec<Handle> {
        let leader = self.target.leader;
        self.held
            .concerned(self.snapshot, self.control)
            .into_iter()
            .filter(|held| match recipients {
                Recipients::Launcher => !held.is_member,
                Recipients::Leader => held.is_member && held.pid == leader,
                Recipients::Family => held.is_member,
            })
            .map(|held| held.handle)
            .collect()
    }
}

/// State and tools that a step needs to act. Each action is written to the ledger, executed, and written again with
/// its result.
pub(super) struct StepContext<'a> {
    pub act: &'a Arc<str>,
    pub now: Time,
    pub held: &'a Handles,
    pub control: &'a mut dyn ProcessControl,
    pub record: &'a mut dyn LedgerSink,
    pub is_named: bool,
    /// Set when SIGCONT is sent to a stopped process.
    pub has_continued: bool,
    /// Signals that this act has sent. No signal is sent to a process twice, because many programs treat a second
    /// SIGTERM as "quit now", even while they save their work.
    pub signalled: &'a mut Vec<(LedgerProcess, Signal)>,
    pub releases: &'a [PastRelease],
}

impl StepContext<'_> {
    /// Returns how many seconds ago the process was last asked to release memory, or `None` if it was not asked
    /// within the last [`release::AGAIN_SECONDS`]. If the clock was set back, a request in the future is treated as
    /// one that was just sent.
    pub fn released_seconds_ago(&self, way: &ReleaseWay) -> Option<f64> {
        let process = LedgerProcess::new(way);
        let past = self.releases.iter().filter(|release| release.process == process);
        let last = past.map(|release| release.since).max()?;
        let seconds = self.now.seconds_since(last).max(0.0);
        (seconds < release::AGAIN_SECONDS).then_some(seconds)
    }

    pub fn note(&mut self, event: LedgerEvent) -> Result<(), LedgerError> {
        self.record.write(&LedgerEntry { time: self.now, act: Arc::clone(self.act), event })
    }

    /// Returns the past release requests to a process.
    pub fn asked_of(&self, (pid, start_ticks): (u32, u64)) -> Vec<AskedRelease> {
        let process = LedgerProcess { pid, start_ticks };
        let past = self.releases.iter().filter(|release| release.process == process);
        past.map(|release| release.asked(self.now)).collect()
    }

    pub fn request(&mut self, deed: Deed, request: Request) -> Result<Started, LedgerError> {
        self.note(LedgerEvent::Intended(deed.clone()))?;
        self.control.start_request(request);
        Ok(Started::Asked(deed))
    }
}

pub(super) struct FamilyInput<'a> {
    pub guard: &'a Guard,
    pub processes: &'a [&'a Process],
    pub launcher: Option<&'a TargetProcess>,
    pub leader: u32,
    pub snapshot: &'a Snapshot,
    /// Whether the whole family is included.
    pub is_whole: bool,
    pub is_idle: bool,
}

pub(super) struct StepPlan {
    pub steps: Vec<Step>,
    pub respawn_seconds: f64,
}

pub(super) fn steps(candidate: &FamilyInput<'_>) -> StepPlan {
    let mut plan = family_steps(candidate);
    // No step that ends processes may precede the parks.
    let ends = |step: &Step| step.ends_processes() && step.advice().is_none();
    if let Some(first) = plan.steps.iter().position(ends) {
        let parks =
            candidate.processes.iter().filter_map(|process| park::to_end(process, candidate));
        plan.steps.splice(first..first, parks);
    }
    plan
}

fn family_steps(candidate: &FamilyInput<'_>) -> StepPlan {
    let release = release::plan(candidate);
    if let Some(shut) = shut_kernel::plan(candidate) {
        let mut steps: Vec<Step> = release.into_iter().collect();
        steps.push(shut);
        steps.extend(signal::plan(candidate));
        return StepPlan { steps, respawn_seconds: RESPAWN_SECONDS };
    }
    if let Some(only) = advise(candidate, shut_kernel::restarted) {
        return StepPlan { steps: vec![only], respawn_seconds: 0.0 };
    }
    let processes = || candidate.processes.iter();
    let is_restarted = processes().any(|process| shut_kernel::is_notebook(process))
        || processes().any(|process| process.restarting_pool().is_some())
        || processes().any(|process| advice::owner(process).is_some())
        || !candidate.is_whole;
    let mut steps: Vec<Step> = release.into_iter().collect();
    steps.extend(signal::plan(candidate));
    StepPlan { steps, respawn_seconds: if is_restarted { RESPAWN_SECONDS } else { 0.0 } }
}

/// Returns advice instead of steps if a scheduler, service manager, container runtime, pool or unreachable server
/// owns a process, unless `direct` is set. `restarted` returns the advice for a kernel that its server may restart.
fn advise(
    candidate: &FamilyInput<'_>,
    restarted: impl Fn(&Process) -> Option<Arc<str>>,
) -> Option<Step> {
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
    let restarted = || processes.iter().find_map(|process| restarted(process));
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
