//! The hand: what makes plans and carries them out, on a thread of its own.
//!
//! Here is only how it is spoken to; whoever starts the screen brings one along, which knows this
//! machine, its configuration and its ledger. A recording's makes plans and carries none out.

use std::sync::Arc;

use super::picture::RowKey;
use crate::model::finding::Finding;
use crate::model::{Snapshot, Time};
use crate::reclaim::{Plan, Signal};

/// Whom to end, and how.
#[derive(Clone, PartialEq, Debug)]
pub struct Wish {
    /// Whom.
    pub scope: Scope,
    /// With which signal, instead of the gentlest way.
    pub signal: Option<Signal>,
    /// Processes of other users too.
    pub all_users: bool,
}

/// Whom to end.
#[derive(Clone, PartialEq, Debug)]
pub enum Scope {
    /// These processes.
    Processes(Vec<RowKey>),
    /// Their families.
    Families(Vec<RowKey>),
    /// Whatever the rules found.
    Findings,
}

/// What is asked of the hand.
#[derive(Clone, PartialEq, Debug)]
pub enum Ask {
    /// Make a plan.
    Plan {
        /// The answer carries it, too.
        number: u64,
        /// Of whom.
        wish: Wish,
        /// What was seen.
        snapshot: Arc<Snapshot>,
        /// What was found in it.
        findings: Vec<Finding>,
    },
    /// Carry out this very plan.
    Begin {
        /// The plan's.
        number: u64,
    },
    /// Do what is due, by this sample.
    Look {
        /// Now, by the clock of the snapshots.
        now: Time,
        /// The newest sample.
        snapshot: Arc<Snapshot>,
    },
    /// Send nothing more.
    Leave,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub enum News {
    /// A plan, or why there is none.
    Planned {
        /// The question's.
        number: u64,
        /// The plan, and the lines that `gpumem reap` would print of it.
        plan: Result<(Plan, Vec<String>), String>,
    },
}
