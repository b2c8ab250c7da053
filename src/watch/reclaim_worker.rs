//! The worker: what makes plans and carries them out, on a thread of its own.
//!
//! Here is only how it is spoken to; whoever starts the screen brings one along, which knows this
//! machine, its configuration and its ledger. A recording's makes plans and carries none out. Everything
//! that may hang, be it /proc, a server or a disk, is the worker's, so that the screen never waits for it: what
//! is asked lies in a [`mailbox`].

pub mod mailbox;

use std::sync::Arc;
use std::time::Duration;

use super::view_model::RowKey;
use crate::model::finding::{Finding, Undecided};
use crate::model::{Identity, Snapshot, Time};
use crate::reclaim::commands::NextSteps;
use crate::reclaim::{Outcome, Plan, Signal};

/// Makes plans and carries them out.
pub trait ReclaimWorker {
    /// Does what is asked, which was so long ago, or what is due; tells the result. How long there is
    /// nothing to do after that; `None` until something is asked.
    ///
    /// It is called again after that time without an ask. It may take long: no one waits for it.
    fn handle(
        &mut self,
        ask: Option<(ReclaimRequest, Duration)>,
        report: &mut dyn FnMut(ReclaimProgress),
    ) -> Option<Duration>;
}

/// What to end or to ask, and how.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanOptions {
    /// Which processes.
    pub scope: PlanScope,
    /// They are asked to release memory, and live on.
    pub release: bool,
    /// With which signal, instead of the default steps.
    pub signal: Option<Signal>,
    /// Processes of other users too.
    pub all_users: bool,
    /// What a scheduler, a service manager or a container runtime owns, too.
    pub direct: bool,
}

/// What to end.
#[derive(Clone, PartialEq, Debug)]
pub enum PlanScope {
    /// These processes.
    Processes(Vec<RowKey>),
    /// Their families.
    Families(Vec<RowKey>),
    /// Whatever the rules found.
    Findings,
}

/// What is asked of the worker.
#[derive(Clone, PartialEq, Debug)]
pub enum ReclaimRequest {
    /// Make a plan.
    Plan(Box<PlanRequest>),
    /// Carry out this very plan.
    Begin {
        /// The question's.
        number: u64,
        /// The plan.
        plan: Arc<Plan>,
    },
    /// Do what is due, by this sample.
    Observe(ObservedSample),
    /// Send nothing more of this plan, whether or not something was sent.
    Stop {
        /// The question's.
        number: u64,
    },
    /// Read the environment of this process.
    Environment(Identity),
    /// Find what to type about these findings.
    Commands(ObservedSample),
    /// Send nothing more, and say what was sent.
    Leave,
}

/// What a plan is asked for.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanRequest {
    /// The answer carries it, too.
    pub number: u64,
    /// Of which processes, and how.
    pub options: PlanOptions,
    /// What was seen.
    pub snapshot: Arc<Snapshot>,
    /// What was found in it.
    pub findings: Vec<Finding>,
    /// What could not be decided.
    pub undecided: Vec<Undecided>,
}

/// A sample, as it was judged.
#[derive(Clone, PartialEq, Debug)]
pub struct ObservedSample {
    pub snapshot: Arc<Snapshot>,
    /// What the rules find in it: of what is carried out, all that no exemption keeps; of commands, what is shown.
    pub found: Vec<Finding>,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub enum ReclaimProgress {
    /// A plan, or why there is none.
    Planned {
        /// The question's.
        number: u64,
        /// The plan.
        plan: Result<Proposal, String>,
    },
    /// The environment of a process.
    Environment {
        /// Whose.
        of: Identity,
        /// Its variables by name, secrets masked; or why they cannot be read.
        variables: Result<Vec<(String, String)>, String>,
    },
    /// What to type about each finding, by its id.
    Commands(Vec<(Arc<str>, NextSteps)>),
    /// A plan is being carried out: looks are wanted.
    Begun {
        /// The question's.
        number: u64,
    },
    /// How far one of its targets is.
    Target {
        /// The question's.
        number: u64,
        /// Which of the plan's targets.
        place: usize,
        /// How far.
        stage: TargetStage,
    },
    /// Something was done to one of its targets.
    Sent {
        /// The question's.
        number: u64,
        /// Which of the plan's targets.
        place: usize,
        /// What, in words.
        words: String,
    },
    /// Nothing more is done: all targets are at their end, or it failed, and how.
    Finished {
        /// The question's.
        number: u64,
        /// Why not all was done.
        error: Option<String>,
    },
}

/// A plan as it is shown.
#[derive(Clone, PartialEq, Debug)]
pub struct Proposal {
    /// What is carried out.
    pub plan: Arc<Plan>,
    /// The lines that `gpumem reap` prints of it.
    pub lines: Vec<String>,
    /// A line for each target: who it is, and what should come back.
    pub titles: Vec<String>,
}

/// How far a target is.
#[derive(Clone, PartialEq, Debug)]
pub enum TargetStage {
    /// It has until then.
    Waiting {
        /// When.
        until: Time,
    },
    /// It is at its end.
    Ended {
        /// What it came to.
        outcome: Outcome,
        /// The same, in words.
        words: String,
    },
}
