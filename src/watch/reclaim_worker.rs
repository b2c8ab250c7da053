//! The worker that makes plans and carries them out, on a thread of its own.
//!
//! This module defines only the interface. The caller of the screen provides the worker, which has the machine's
//! configuration and audit log. For a recording, the worker makes plans but carries none out. The worker makes every
//! call that can hang (/proc, a server, a disk), so that the screen never waits. Requests go through a [`mailbox`].

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
    /// Handles a request, given with its age, or continues pending work, and reports results. Returns when to call it
    /// again without a request; `None` means never. It may block.
    fn handle(
        &mut self,
        ask: Option<(ReclaimRequest, Duration)>,
        report: &mut dyn FnMut(ReclaimProgress),
    ) -> Option<Duration>;
}

/// What to end, or to make release memory, and how.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanOptions {
    pub scope: PlanScope,
    /// Make them release memory, and let them run.
    pub release: bool,
    /// The signal to send instead of the default steps.
    pub signal: Option<Signal>,
    /// Processes of other users too.
    pub all_users: bool,
    /// Processes of a scheduler, service manager or container runtime too.
    pub direct: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum PlanScope {
    Processes(Vec<RowKey>),
    Families(Vec<RowKey>),
    /// Everything that the rules found.
    Findings,
}

/// A request to the worker.
#[derive(Clone, PartialEq, Debug)]
pub enum ReclaimRequest {
    Plan(Box<PlanRequest>),
    /// Carry out exactly this plan.
    Begin {
        number: u64,
        plan: Arc<Plan>,
    },
    /// Do what is due, given this sample.
    Observe(ObservedSample),
    /// Send nothing more for this plan, whether or not anything was sent.
    Stop {
        number: u64,
    },
    Environment(Identity),
    /// Find the commands for these findings.
    Commands(ObservedSample),
    /// Send nothing more, and report what was sent.
    Leave,
}

#[derive(Clone, PartialEq, Debug)]
pub struct PlanRequest {
    /// Repeated in the answer.
    pub number: u64,
    pub options: PlanOptions,
    pub snapshot: Arc<Snapshot>,
    pub findings: Vec<Finding>,
    pub undecided: Vec<Undecided>,
}

/// A judged sample.
#[derive(Clone, PartialEq, Debug)]
pub struct ObservedSample {
    pub snapshot: Arc<Snapshot>,
    /// The findings: for a plan, all that no exemption keeps; for commands, those shown.
    pub found: Vec<Finding>,
}

/// A report of the worker.
#[derive(Clone, PartialEq, Debug)]
pub enum ReclaimProgress {
    /// A plan, or why there is none.
    Planned {
        /// The number of the request.
        number: u64,
        plan: Result<Proposal, String>,
    },
    /// The environment of a process.
    Environment {
        of: Identity,
        /// Variables by name, with secrets masked; or why they cannot be read.
        variables: Result<Vec<(String, String)>, String>,
    },
    /// The commands for each finding, by its id.
    Commands(Vec<(Arc<str>, NextSteps)>),
    /// A plan is being carried out, and needs samples.
    Begun { number: u64 },
    /// The state of a target.
    Target {
        number: u64,
        /// Position of the target in the plan.
        place: usize,
        stage: TargetStage,
    },
    /// A step of a target was carried out.
    Sent {
        number: u64,
        /// Position of the target in the plan.
        place: usize,
        words: String,
    },
    /// Nothing more will be done: every target has ended, or an error stopped the plan.
    Finished {
        number: u64,
        /// Why not everything was done.
        error: Option<String>,
    },
}

/// A plan and its text.
#[derive(Clone, PartialEq, Debug)]
pub struct Proposal {
    pub plan: Arc<Plan>,
    /// The lines that `gpumem reap` prints for it.
    pub lines: Vec<String>,
    /// A line per target: which process, and what should be freed.
    pub titles: Vec<String>,
}

/// The state of a target.
#[derive(Clone, PartialEq, Debug)]
pub enum TargetStage {
    /// It has until then to react.
    Waiting {
        until: Time,
        /// What it does for which it has more time, in words.
        saving: Option<Arc<str>>,
    },
    Ended {
        outcome: Outcome,
        /// The outcome in words.
        words: String,
    },
}
