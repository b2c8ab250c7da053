//! The ways to get memory back: what a plan does to a target, gentlest first.
//!
//! [`Step`] is the list of them, and its methods are what every way has: how it is shown, to which processes it is
//! done, how it is done, what has come of it. What only one way needs is a file: when a plan takes it, and its own
//! part of each method. To add a way is to add its file, its variant of [`Step`], and where it does something of its
//! own, of [`Deed`] and [`Request`]; these are data, in `target`.
//!
//! Whoever would start a process again is asked first: the notebook server, the launcher of a distributed run. Where
//! a scheduler, a service manager, a container runtime or a pool of workers owns it, a command is named and nothing is
//! done. Whether a step may be taken at all is asked in `act`, of whatever way.

mod advise;
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
use super::release::{self as ways, ReleaseBy, ReleaseWay};
use super::target::{
    Deed, LedgerProcess, Recipients, Request, Step, Target, TargetProcess, listed,
};
use super::verify::{Outcome, ReleaseMeter};
use crate::advice;
use crate::host::Roots;
use crate::model::process::AskedRelease;
use crate::model::{Process, Snapshot, Time};
use crate::units::Span;

/// A notebook server looks after its kernels every 3 s (`jupyter_client`: `KernelRestarter.time_to_dead`
/// and `poll_interval`), torchrun more often.
const RESPAWN_SECONDS: f64 = 6.0;

impl Step {
    /// What will be done. Holds names that others chose: escape it for a terminal.
    pub fn describe(&self, target: &Target) -> String {
        let what = match self {
            Self::Release { way, .. } => release::describe(way),
            Self::ShutKernel { kernel, .. } => shut_kernel::describe(kernel),
            Self::Signal { signal, recipients, .. } => {
                signal::describe(*signal, *recipients, target)
            }
            Self::Advise { command } => return command.to_string(),
        };
        let wait = Span::from_seconds(self.grace_seconds());
        let longer = if self.may_save() { ", longer while it writes" } else { "" };
        format!("{what}; wait {wait}{longer}")
    }

    /// Whether those it is done to may save their work before they end.
    pub(super) fn may_save(&self) -> bool {
        matches!(self, Self::Signal { signal, .. } if *signal != Signal::Kill)
    }

    /// What to type, where that is all.
    pub fn advice(&self) -> Option<&Arc<str>> {
        match self {
            Self::Advise { command } => Some(command),
            _ => None,
        }
    }

    /// How long it has, in seconds.
    pub(super) fn grace_seconds(&self) -> f64 {
        match self {
            Self::Release { grace_seconds, .. }
            | Self::ShutKernel { grace_seconds, .. }
            | Self::Signal { grace_seconds, .. } => *grace_seconds,
            Self::Advise { .. } => 0.0,
        }
    }

    /// The living processes it is done to; where there is none, the next step is due. Whether they may be
    /// touched is asked of them just before.
    pub(super) fn recipients(&self, scene: &mut StepState<'_>) -> Vec<Handle> {
        match self {
            Self::Release { .. } => scene.alive(Recipients::Family),
            Self::ShutKernel { .. } => scene.held.alive(&mut *scene.control),
            Self::Signal { recipients, .. } => scene.alive(*recipients),
            Self::Advise { .. } => Vec::new(),
        }
    }

    /// Does it, or begins to.
    pub(super) fn execute(
        &self,
        context: &mut StepContext<'_>,
        to: &[Handle],
    ) -> Result<Started, LedgerError> {
        match self {
            Self::Release { way, options, .. } => release::request(way, options, context),
            Self::ShutKernel { kernel, .. } => shut_kernel::request(kernel, context),
            Self::Signal { signal, .. } => signal::send(*signal, context, to),
            Self::Advise { .. } => Ok(Started::Done),
        }
    }

    /// Whether anything is left for it to do, by what was answered and who is alive.
    pub(super) fn effect(&self, scene: &mut StepState<'_>) -> StepEffect {
        match self {
            Self::Release { way, options, .. } => release::effect(way, options, scene),
            Self::ShutKernel { .. } => shut_kernel::effect(scene),
            Self::Signal { recipients, .. } if !scene.alive(*recipients).is_empty() => {
                StepEffect::Pending
            }
            Self::Signal { .. } | Self::Advise { .. } => StepEffect::Over,
        }
    }

    /// Its time is over: what has come of it.
    pub(super) fn expired(&self, scene: &StepState<'_>) -> StepEffect {
        match self {
            Self::Release { .. } => release::expired(scene),
            Self::ShutKernel { .. } => shut_kernel::expired(scene),
            Self::Signal { .. } | Self::Advise { .. } => StepEffect::Over,
        }
    }

    /// Whether it ends processes, so that what depends on them may end as well, and the act is over once their
    /// memory is back. How much a release has to bring back it measures itself.
    pub(super) fn ends_processes(&self) -> bool {
        !matches!(self, Self::Release { .. })
    }

    /// Whether it asks a program that may answer by its end, as one does whose pool is never returned otherwise.
    pub(super) fn may_be_answered_by_an_end(&self) -> bool {
        let by_signal = |way: &ReleaseWay| matches!(way.by, ReleaseBy::Signal { .. });
        matches!(self, Self::Release { way, .. } if by_signal(way))
    }
}

/// Holds names that others chose: escape it for a terminal.
impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal { signals, processes } => {
                let signals: Vec<&str> = signals.iter().map(|signal| signal.name()).collect();
                let pids = listed(processes.iter().map(|process| &process.pid));
                write!(f, "{} to {pids}", signals.join(" and "))
            }
            Self::Release { way } => f.write_str(&release::words(way, "asking")),
            Self::ShutKernel { kernel_id } => {
                write!(f, "asking its server to shut kernel {kernel_id} down")
            }
        }
    }
}

/// What makes the requests of all ways, for
/// [`PidfdControl::with_requests`](crate::reclaim::PidfdControl::with_requests); a call may take seconds.
pub fn perform_requests(roots: Roots) -> PerformRequest {
    Arc::new(move |request| match request {
        Request::Release { way, options } => {
            RequestResult::Released(ways::perform(&roots, way, options))
        }
        Request::ShutKernel { kernel, even_at_work, asked } => {
            ask_server(&roots, kernel, *even_at_work, asked)
        }
    })
}

/// What has come of a step so far.
pub(super) enum StepEffect {
    /// It has its time.
    Pending,
    /// It will do no more: the next is due.
    Over,
    /// It ends the act.
    Ends(Outcome),
    /// It will do no more and the process lives: the act ends with this, unless there is another step and
    /// what a rule said is still so.
    Settled(Outcome),
}

pub(super) enum Started {
    Done,
    /// It ends the act.
    Ends(Outcome),
    /// Nothing was done; as [`StepEffect::Settled`].
    Settled(Outcome),
    /// Somebody was asked this.
    Asked(Deed),
}

/// Who is held, and what there is.
pub(super) struct StepState<'a> {
    pub target: &'a Target,
    pub policy: &'a Policy,
    pub held: &'a mut Handles,
    pub snapshot: &'a Snapshot,
    pub control: &'a mut dyn ProcessControl,
    /// What was answered to what was asked last.
    pub answer: &'a RequestResult,
    /// When that was answered.
    pub answered: Option<Time>,
    /// When the first deed was done.
    pub begun: Option<Time>,
    /// What the target holds since, where it lives on.
    pub meter: &'a ReleaseMeter,
}

impl StepState<'_> {
    /// The recipients that are alive; of those that were not in the plan, only those that
    /// hold a GPU.
    pub fn alive(&mut self, to: Recipients) -> Vec<Handle> {
        let leader = self.target.leader;
        self.held
            .concerned(self.snapshot, self.control)
            .into_iter()
            .filter(|one| match to {
                Recipients::Launcher => !one.is_member,
                Recipients::Leader => one.is_member && one.pid == leader,
                Recipients::Family => one.is_member,
            })
            .map(|one| one.handle)
            .collect()
    }
}

/// By what a step does something: it is written down, done, and the result written down.
pub(super) struct StepContext<'a> {
    /// Of this act.
    pub act: &'a Arc<str>,
    pub now: Time,
    pub held: &'a Handles,
    pub control: &'a mut dyn ProcessControl,
    pub record: &'a mut dyn LedgerSink,
    /// A person named the target.
    pub is_named: bool,
    /// Somebody who was stopped was made to go on.
    pub has_continued: bool,
    /// Who was sent which signal in this act. A program takes a second SIGTERM for "quit now", also while it still
    /// saves what the first one told it to.
    pub signalled: &'a mut Vec<(LedgerProcess, Signal)>,
    /// Who was asked to release memory, and when.
    pub releases: &'a [PastRelease],
}

impl StepContext<'_> {
    /// How long ago a process was asked to release memory, in seconds, if that was lately. One that was
    /// asked in the future, by a clock that was set back, was asked now.
    pub fn released_seconds_ago(&self, way: &ReleaseWay) -> Option<f64> {
        let who = LedgerProcess::of(way);
        let past = self.releases.iter().filter(|it| it.process == who);
        let last = past.map(|it| it.since).max()?;
        let seconds = self.now.seconds_since(last).max(0.0);
        (seconds < release::AGAIN_SECONDS).then_some(seconds)
    }

    pub fn note(&mut self, event: LedgerEvent) -> Result<(), LedgerError> {
        self.record.write(&LedgerEntry { time: self.now, act: Arc::clone(self.act), event })
    }

    /// When a process, by pid and start ticks, was asked to release memory.
    pub fn asked_of(&self, (pid, start_ticks): (u32, u64)) -> Vec<AskedRelease> {
        let who = LedgerProcess { pid, start_ticks };
        let past = self.releases.iter().filter(|it| it.process == who);
        past.map(|it| it.asked(self.now)).collect()
    }

    /// Writes down what somebody is asked, and begins to ask.
    pub fn request(&mut self, deed: Deed, request: Request) -> Result<Started, LedgerError> {
        self.note(LedgerEvent::Intended(deed.clone()))?;
        self.control.start_request(request);
        Ok(Started::Asked(deed))
    }
}

/// A family of which the steps are planned.
pub(super) struct FamilyInput<'a> {
    pub guard: &'a Guard,
    pub processes: &'a [&'a Process],
    pub launcher: Option<&'a TargetProcess>,
    pub leader: u32,
    pub snapshot: &'a Snapshot,
    /// All of the family.
    pub is_whole: bool,
    /// Rules found it idle, and nothing else.
    pub is_idle: bool,
}

/// The steps, and how long to look out for one that is started in the place of what they end.
pub(super) struct StepPlan {
    pub steps: Vec<Step>,
    pub respawn_seconds: f64,
}

/// How a target is ended.
pub(super) fn steps(candidate: &FamilyInput<'_>) -> StepPlan {
    let release = release::plan(candidate);
    if let Some(shut) = shut_kernel::plan(candidate) {
        let mut steps: Vec<Step> = release.into_iter().collect();
        steps.push(shut);
        steps.extend(signal::plan(candidate));
        return StepPlan { steps, respawn_seconds: RESPAWN_SECONDS };
    }
    if let Some(only) = advise::plan(candidate, shut_kernel::restarted) {
        return StepPlan { steps: vec![only], respawn_seconds: 0.0 };
    }
    let processes = || candidate.processes.iter();
    let is_restarted = processes().any(|it| shut_kernel::is_notebook(it))
        || processes().any(|it| it.is_restarted_by_its_pool())
        || processes().any(|it| advice::owner(it).is_some())
        || !candidate.is_whole;
    let mut steps: Vec<Step> = release.into_iter().collect();
    steps.extend(signal::plan(candidate));
    StepPlan { steps, respawn_seconds: if is_restarted { RESPAWN_SECONDS } else { 0.0 } }
}

#[cfg(test)]
mod tests;
