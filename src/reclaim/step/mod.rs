//! The ways to get memory back: what a plan does to a target, gentlest first.
//!
//! Each way is one file: when a plan takes it, how it is shown, to whom it is done, how it is done, what
//! has come of it. Here are the list of them, what is written and asked of each, and their order. Whoever
//! would start a process again is asked first: the notebook server, the launcher of a distributed run,
//! and where a scheduler, a service manager, a container runtime or a pool of workers owns it, that one, by
//! a command that is only named. To add a way is to add its file, its variant of [`Step`], and where it
//! does something of its own, of [`Deed`] and [`Request`].
//!
//! Whether a step may be taken at all is asked in `act`, of whatever way.

mod advise;
mod shut_kernel;
mod signal;
mod terminate_client;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::shut_kernel::{AskServer, KernelAtServer, ask_servers};
pub use self::signal::Recipients;
use super::guard::Guard;
use super::handles::Handles;
use super::ledger::{self, LedgerEntry, LedgerEvent, LedgerSink};
use super::policy::{Policy, Signal};
use super::process_control::{Handle, ProcessControl, RequestResult};
use super::target::{Target, TargetProcess};
use super::verify::Outcome;
use crate::advice;
use crate::model::{Process, Snapshot, Time};

/// A notebook server looks after its kernels every 3 s (`jupyter_client`: `KernelRestarter.time_to_dead`
/// and `poll_interval`), torchrun more often.
const RESPAWN_SECONDS: f64 = 6.0;

/// One thing to do.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Ask the notebook server to shut the kernel down.
    ShutKernel {
        /// Which, and where.
        kernel: KernelAtServer,
        /// How long to wait.
        grace_seconds: f64,
    },
    /// Ask the control daemon of the Multi-Process Service to part with its clients.
    TerminateClient {
        /// Which.
        pids: Vec<u32>,
        /// `CUDA_MPS_PIPE_DIRECTORY`, where the clients have one.
        pipe_directory: Option<Arc<str>>,
        /// How long to wait.
        grace_seconds: f64,
    },
    /// Send a signal.
    Signal {
        /// Which.
        signal: Signal,
        /// To which processes; `whom` in JSON.
        #[serde(rename = "whom")]
        recipients: Recipients,
        /// How long to wait.
        grace_seconds: f64,
    },
    /// Only say what to type.
    Advise {
        /// That. Holds names that others chose: escape it for a terminal.
        command: Arc<str>,
    },
}

impl Step {
    /// What will be done. Holds names that others chose: escape it for a terminal.
    pub fn describe(&self, target: &Target) -> String {
        self.way().describe(target)
    }

    /// What to type, where that is all.
    pub fn advice(&self) -> Option<&Arc<str>> {
        match self {
            Self::Advise { command } => Some(command),
            _ => None,
        }
    }

    pub(super) fn way(&self) -> Box<dyn ReclaimWay + '_> {
        match self {
            Self::ShutKernel {
                kernel,
                grace_seconds,
            } => Box::new(shut_kernel::ShutKernel {
                kernel,
                grace_seconds: *grace_seconds,
            }),
            Self::TerminateClient {
                pids,
                pipe_directory,
                grace_seconds,
            } => Box::new(terminate_client::TerminateClient {
                pids,
                pipe_directory,
                grace_seconds: *grace_seconds,
            }),
            Self::Signal {
                signal,
                recipients: to,
                grace_seconds,
            } => Box::new(signal::SendSignal {
                signal: *signal,
                recipients: *to,
                grace_seconds: *grace_seconds,
            }),
            Self::Advise { command } => Box::new(advise::Advise { command }),
        }
    }
}

/// One thing that is done, as it is written down.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "deed", rename_all = "snake_case")]
pub enum Deed {
    /// Signals are sent, to each of the processes all of them in this order.
    Signal {
        /// Which.
        signals: Vec<Signal>,
        /// To whom.
        processes: Vec<ledger::LedgerProcess>,
    },
    /// A notebook server is asked to shut a kernel down.
    ShutKernel {
        /// Which.
        kernel_id: Arc<str>,
    },
    /// The Multi-Process Service is asked to part with clients.
    TerminateClient {
        /// Which.
        pids: Vec<u32>,
    },
}

/// Holds names that others chose: escape it for a terminal.
impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal { signals, processes } => signal::write_deed(f, signals, processes),
            Self::ShutKernel { kernel_id } => shut_kernel::write_deed(f, kernel_id),
            Self::TerminateClient { pids } => terminate_client::write_deed(f, pids),
        }
    }
}

/// What is asked of somebody else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Of a notebook server: to shut a kernel down.
    ShutKernel {
        /// Which.
        kernel: KernelAtServer,
        /// Also where it is at work now.
        even_at_work: bool,
    },
    /// Of the control daemon of the Multi-Process Service: to part with clients.
    TerminateClient {
        /// Which.
        pids: Vec<u32>,
        /// Where the daemon listens; `None` for the usual place.
        pipe_directory: Option<Arc<str>>,
    },
}

/// By what requests are made; by itself no notebook server is asked.
#[derive(Clone)]
pub(super) struct Services {
    /// How notebook servers are asked; `None` where none is.
    pub server: Option<AskServer>,
    /// The control program of the Multi-Process Service.
    pub mps_control: PathBuf,
}

impl Default for Services {
    fn default() -> Self {
        Self {
            server: None,
            mps_control: terminate_client::CONTROL.into(),
        }
    }
}

impl Request {
    /// Asks, and waits for the answer; may take seconds.
    pub(super) fn perform(&self, services: &Services) -> RequestResult {
        match self {
            Self::ShutKernel {
                kernel,
                even_at_work,
            } => shut_kernel::perform(services, kernel, *even_at_work),
            Self::TerminateClient {
                pids,
                pipe_directory,
            } => terminate_client::perform(services, pids, pipe_directory.as_deref()),
        }
    }
}

/// A way to get memory back, at the deed.
pub(super) trait ReclaimWay {
    /// What will be done. Holds names that others chose.
    fn describe(&self, target: &Target) -> String;

    /// To whom it is done, of those who are alive; where there is nobody, the next step is due. Whether
    /// they may be touched is asked of them just before.
    fn recipients(&self, scene: &mut StepState<'_>) -> Vec<Handle>;

    /// Does it, or begins to.
    fn execute(
        &self,
        context: &mut StepContext<'_>,
        to: &[Handle],
    ) -> Result<Started, ledger::LedgerError>;

    /// How long it has, in seconds.
    fn grace_seconds(&self) -> f64;

    /// Whether anything is left for it to do, by what was answered and who is alive.
    fn effect(&self, scene: &mut StepState<'_>) -> StepEffect;

    /// Its time is over: what ends the act; else the next step is due.
    fn expired(&self, _scene: &StepState<'_>) -> Option<Outcome> {
        None
    }

    /// Whether all that it was to bring about is so, and nothing more need be done: the memory is back,
    /// or there is nobody left who holds it. A way that keeps the process alive says here how much is
    /// enough.
    fn is_done(&self, measured: &Measured) -> bool {
        measured.is_all()
    }
}

/// What has come of a step so far.
pub(super) enum StepEffect {
    /// It has its time.
    Pending,
    /// It will do no more: the next is due.
    Over,
    /// It ends the act.
    Ends(Outcome),
}

pub(super) enum Started {
    Done,
    /// It ends the act.
    Ends(Outcome),
    /// Somebody was asked.
    PendingRequest(PendingRequest),
}

/// What somebody was asked, and has not answered so far.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub deed: Deed,
    /// Where it is done, nobody starts the process again.
    pub prevents_respawn: bool,
}

/// What NVML and Linux show of a target after something was done.
pub(super) struct Measured {
    /// No member is alive.
    pub are_all_gone: bool,
    /// NVML shows that all of the memory is back.
    pub is_back: bool,
}

impl Measured {
    /// Whether nothing is left to wait for.
    pub fn is_all(&self) -> bool {
        self.are_all_gone || self.is_back
    }
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
}

impl StepState<'_> {
    /// Those of whom it is meant that are alive; of those that were not in the plan, only those that
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

/// By what a step does something: it is written down, done, and what came of it written down.
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
}

impl StepContext<'_> {
    pub fn note(&mut self, event: LedgerEvent) -> Result<(), ledger::LedgerError> {
        self.record.write(&LedgerEntry {
            time: self.now,
            act: Arc::clone(self.act),
            event,
        })
    }

    /// Writes down what somebody is asked, and begins to ask.
    pub fn request(&mut self, deed: &Deed, request: Request) -> Result<(), ledger::LedgerError> {
        self.note(LedgerEvent::Intended(deed.clone()))?;
        self.control.start_request(request);
        Ok(())
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
}

/// The steps, and how long to look out for one that is started in the place of what they end.
pub(super) struct StepPlan {
    pub steps: Vec<Step>,
    pub respawn_seconds: f64,
}

/// How a target is ended.
pub(super) fn steps(candidate: &FamilyInput<'_>) -> StepPlan {
    if let Some(first) = shut_kernel::plan(candidate) {
        let mut steps = vec![first];
        steps.extend(by_force(candidate));
        return StepPlan {
            steps,
            respawn_seconds: RESPAWN_SECONDS,
        };
    }
    if let Some(only) = advise::plan(candidate, shut_kernel::restarted) {
        return StepPlan {
            steps: vec![only],
            respawn_seconds: 0.0,
        };
    }
    let processes = || candidate.processes.iter();
    let is_restarted = processes().any(|it| shut_kernel::is_notebook(it))
        || processes().any(|it| it.is_restarted_by_its_pool())
        || processes().any(|it| advice::owner(it).is_some())
        || !candidate.is_whole;
    StepPlan {
        steps: by_force(candidate),
        respawn_seconds: if is_restarted { RESPAWN_SECONDS } else { 0.0 },
    }
}

/// What ends processes whether or not somebody would start them again.
fn by_force(candidate: &FamilyInput<'_>) -> Vec<Step> {
    let mut steps: Vec<Step> = terminate_client::plan(candidate).into_iter().collect();
    steps.extend(signal::plan(candidate));
    steps
}

/// Numbers as they are listed.
fn numbers(numbers: impl IntoIterator<Item = u32>) -> String {
    let words: Vec<String> = numbers.into_iter().map(|it| it.to_string()).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests;
