//! The ways to get memory back: what a plan does to a target, gentlest first.
//!
//! [`Step`] lists them, and its methods are what each way has: a description, recipients, execution, effect.
//! What is special to a way is in its own file: when a plan takes it, and its part of each method. To add a
//! way, add its file, its variant of [`Step`], and, for a new kind of action, variants of [`Deed`] and
//! [`Request`]; these are data, in `target`.
//!
//! Whatever would restart a process is asked first: the notebook server, the launcher of a distributed run. If
//! a scheduler, service manager, container runtime or worker pool owns it, a command is named and nothing is
//! done. `act` checks whether a step may be taken at all.

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
use crate::units::Span;

/// For how long, in seconds, to watch for a restart: a notebook server checks its kernels every 3 s
/// (`jupyter_client`: `KernelRestarter.time_to_dead` and `poll_interval`), torchrun more often.
const RESPAWN_SECONDS: f64 = 6.0;

impl Step {
    /// What will be done. Contains untrusted names: escape it for a terminal.
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
        let longer = if self.may_save() { ", longer while it works" } else { "" };
        format!("{what}; wait {wait}{longer}")
    }

    /// Whether its recipients may save their work before they end.
    pub(super) fn may_save(&self) -> bool {
        matches!(self, Self::Signal { signal, .. } if *signal != Signal::Kill)
    }

    /// What to type, if that is all.
    pub fn advice(&self) -> Option<&Arc<str>> {
        match self {
            Self::Advise { command } => Some(command),
            _ => None,
        }
    }

    /// Its time limit, in seconds.
    pub(super) fn grace_seconds(&self) -> f64 {
        match self {
            Self::Release { grace_seconds, .. }
            | Self::ShutKernel { grace_seconds, .. }
            | Self::Signal { grace_seconds, .. } => *grace_seconds,
            Self::Advise { .. } => 0.0,
        }
    }

    /// Its living recipients; if there are none, the next step is due. The caller checks whether they may be
    /// touched just before.
    pub(super) fn recipients(&self, scene: &mut StepState<'_>) -> Vec<Handle> {
        match self {
            Self::Release { .. } => scene.alive(Recipients::Family),
            Self::ShutKernel { .. } => scene.held.alive(&mut *scene.control),
            Self::Signal { recipients, .. } => scene.alive(*recipients),
            Self::Advise { .. } => Vec::new(),
        }
    }

    /// Does it, or starts to.
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

    /// Its effect so far, by answers and living processes.
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

    /// Its effect when its time is over.
    pub(super) fn expired(&self, scene: &StepState<'_>) -> StepEffect {
        match self {
            Self::Release { .. } => release::expired(scene),
            Self::ShutKernel { .. } => shut_kernel::expired(scene),
            Self::Signal { .. } | Self::Advise { .. } => StepEffect::Over,
        }
    }

    /// Whether it ends processes. Then dependents may end as well, and the act is over once the memory is back;
    /// a release measures for itself how much it has to bring back.
    pub(super) fn ends_processes(&self) -> bool {
        !matches!(self, Self::Release { .. })
    }

    /// Whether the program may answer by ending, as one does whose pool is never returned otherwise.
    pub(super) fn may_be_answered_by_an_end(&self) -> bool {
        let by_signal = |way: &ReleaseWay| matches!(way.by, ReleaseBy::Signal { .. });
        matches!(self, Self::Release { way, .. } if by_signal(way))
    }
}

/// Contains untrusted names: escape it for a terminal.
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

/// Sends the requests of all ways, for
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

/// The effect of a step so far.
pub(super) enum StepEffect {
    /// Still within its time.
    Pending,
    /// It will do no more; the next step is due.
    Over,
    Ends(Outcome),
    /// It will do no more and the process lives: the act ends with this, unless there is another step and the
    /// finding still holds.
    Settled(Outcome),
}

pub(super) enum Started {
    Done,
    Ends(Outcome),
    /// Nothing was done; as [`StepEffect::Settled`].
    Settled(Outcome),
    /// This request was sent.
    Asked(Deed),
}

/// What a step sees: handles, answers, times.
pub(super) struct StepState<'a> {
    pub target: &'a Target,
    pub policy: &'a Policy,
    pub held: &'a mut Handles,
    pub snapshot: &'a Snapshot,
    pub control: &'a mut dyn ProcessControl,
    /// The answer to the last request.
    pub answer: &'a RequestResult,
    /// When it arrived.
    pub answered: Option<Time>,
    /// When the first action was taken.
    pub begun: Option<Time>,
    /// Measures what a target that lives on has released.
    pub meter: &'a ReleaseMeter,
}

impl StepState<'_> {
    /// The living recipients; of added processes only those that hold a GPU.
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

/// What a step acts with: it writes an action to the ledger, does it, and writes the result.
pub(super) struct StepContext<'a> {
    pub act: &'a Arc<str>,
    pub now: Time,
    pub held: &'a Handles,
    pub control: &'a mut dyn ProcessControl,
    pub record: &'a mut dyn LedgerSink,
    pub is_named: bool,
    /// A stopped process was sent SIGCONT.
    pub has_continued: bool,
    /// Signals sent in this act. Programs take a second SIGTERM for "quit now", even while they save what the
    /// first one told them to.
    pub signalled: &'a mut Vec<(LedgerProcess, Signal)>,
    /// Recent requests to release memory.
    pub releases: &'a [PastRelease],
}

impl StepContext<'_> {
    /// How many seconds ago a process was asked to release memory, if recently. A request in the future, from a
    /// clock that was set back, counts as now.
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

    /// Writes a request to the ledger and starts it.
    pub fn request(&mut self, deed: Deed, request: Request) -> Result<Started, LedgerError> {
        self.note(LedgerEvent::Intended(deed.clone()))?;
        self.control.start_request(request);
        Ok(Started::Asked(deed))
    }
}

/// A family whose steps are planned.
pub(super) struct FamilyInput<'a> {
    pub guard: &'a Guard,
    pub processes: &'a [&'a Process],
    pub launcher: Option<&'a TargetProcess>,
    pub leader: u32,
    pub snapshot: &'a Snapshot,
    /// All members are included.
    pub is_whole: bool,
    /// Rules found it idle and nothing else.
    pub is_idle: bool,
}

/// The steps, and for how long to watch for a restart.
pub(super) struct StepPlan {
    pub steps: Vec<Step>,
    pub respawn_seconds: f64,
}

/// Plans how a target is ended.
pub(super) fn steps(candidate: &FamilyInput<'_>) -> StepPlan {
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
    let is_restarted = processes().any(|it| shut_kernel::is_notebook(it))
        || processes().any(|it| it.is_restarted_by_its_pool())
        || processes().any(|it| advice::owner(it).is_some())
        || !candidate.is_whole;
    let mut steps: Vec<Step> = release.into_iter().collect();
    steps.extend(signal::plan(candidate));
    StepPlan { steps, respawn_seconds: if is_restarted { RESPAWN_SECONDS } else { 0.0 } }
}

/// If a scheduler, service manager, container runtime, pool, or server that cannot be asked owns one of them,
/// unless a person insists. `restarted` is what to type for a kernel that its server would restart.
fn advise(
    candidate: &FamilyInput<'_>,
    restarted: impl Fn(&Process) -> Option<Arc<str>>,
) -> Option<Step> {
    if candidate.guard.policy.direct {
        return None;
    }
    let processes = candidate.processes;
    let is_others = |it: &Process| it.uid != Some(candidate.guard.ourselves.uid);
    let mut owners = processes.iter().filter_map(|it| {
        advice::owner_of(it, processes).filter(|owner| !(owner.is_by_user && is_others(it)))
    });
    let are_own = !processes.iter().any(|it| is_others(it));
    let owned = owners.next().map(|owner| Arc::from(owner.way(are_own)));
    let restarted = || processes.iter().find_map(|it| restarted(it));
    let pooled = || processes.iter().find_map(|it| pooled(it, processes));
    let command = owned.or_else(restarted).or_else(pooled)?;
    Some(Step::Advise { command })
}

/// What to type for a worker that its pool restarts, if the pool is not ended with it.
fn pooled(process: &Process, processes: &[&Process]) -> Option<Arc<str>> {
    let pool = process.pool().filter(|_| process.is_restarted_by_its_pool())?;
    let is_parent = |it: &&Process| process.ppid == Some(it.pid);
    if processes.iter().any(is_parent) {
        return None;
    }
    let (by, words) = (&pool.restarted_by, &pool.words);
    let does = match pool.keeps_the_idle {
        true => "keeps it for the next task",
        false => "would start it again",
    };
    Some(format!("{by} {does}: {words}").into())
}

#[cfg(test)]
mod tests;
