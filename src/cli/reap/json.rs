//! What `gpumem reap --json` and `gpumem reap --history --json` print, as data.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::Time;
use crate::model::finding::Undecided;
use crate::model::snapshot::ReadError;
use crate::reclaim::ledger::{LedgerSummary, PastAct};
use crate::reclaim::{Outcome, Plan, Refused, Target};

/// The `schema` of a [`ReapReport`].
pub const SCHEMA: &str = "gpumem.reap/1";
/// The `schema` of a [`ReapHistory`].
pub const HISTORY: &str = "gpumem.history/1";

/// What a reaper came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReapStatus {
    /// There is a plan, and nothing was sent.
    #[default]
    Planned,
    /// All that was asked for is ended, and the memory is back.
    Done,
    /// Not all of it.
    Incomplete,
    /// A signal came in the middle of it.
    Interrupted,
    /// It failed; `errors` says why.
    Error,
}

/// The plan that `gpumem reap --json` prints and, with --yes, the result: one document, also where
/// it failed. Units are in the names. What is not known is absent or `null`, never 0. A reader ignores
/// fields that it does not know.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct ReapReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot that the plan was made from: RFC 3339, UTC; `null` where there was none.
    pub time: Option<Time>,
    /// Whether it is of a recording, in which nothing can be killed.
    pub is_replay: bool,
    /// `planned`: nothing was sent, the exit code is 0; `done`, 0: every target is killed and its
    /// memory freed;
    /// `incomplete`, 1; `interrupted`: by a signal, which ends gpumem; `error`, 1, 2 or 3: errors says
    /// why.
    pub status: ReapStatus,
    /// What should come back in all, in bytes; `null` where it is not known of one target.
    pub expected_bytes: Option<u64>,
    /// What came back, in bytes; `null` where nothing was carried out.
    pub freed_bytes: Option<u64>,
    /// The targets, most memory first.
    pub targets: Vec<Planned>,
    /// What was asked for, or found, and is left alone.
    pub refused: Vec<Refused>,
    /// Rules that were asked for and could not be decided; they produce no finding.
    pub undecided: Vec<Undecided>,
    /// What could not be read, and why it failed.
    pub errors: Vec<ReadError>,
}

/// A target, and what became of it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Planned {
    /// The target.
    #[serde(flatten)]
    pub target: Target,
    /// What it came to; `None` where it was not carried out, or not to its end.
    pub outcome: Option<Outcome>,
}

impl ReapReport {
    /// A plan that is not carried out so far.
    pub fn new(plan: Plan, undecided: Vec<Undecided>, errors: Vec<ReadError>) -> Self {
        let expected = plan.targets.iter().map(|target| target.bytes);
        Self {
            schema: SCHEMA,
            time: Some(plan.time),
            is_replay: false,
            status: ReapStatus::Planned,
            expected_bytes: expected.sum(),
            freed_bytes: None,
            targets: plan
                .targets
                .into_iter()
                .map(|target| Planned { target, outcome: None })
                .collect(),
            refused: plan.refused,
            undecided,
            errors,
        }
    }

    /// What there is to say where there is no plan.
    pub fn failed(error: &str) -> Self {
        let mut report = Self { schema: SCHEMA, ..Self::default() };
        report.fail(error);
        report
    }

    /// Says that it failed, and why.
    pub fn fail(&mut self, error: &str) {
        self.status = ReapStatus::Error;
        self.errors.push(ReadError { gpu: None, call: "reap".into(), error: error.into() });
    }

    /// What has come back so far.
    pub fn freed(&self) -> u64 {
        let outcomes = self.targets.iter().filter_map(|it| it.outcome.as_ref());
        outcomes.map(Outcome::freed_bytes).sum()
    }

    /// How many targets are ended and their memory back.
    pub fn ended(&self) -> usize {
        let is_ended = |it: &&Planned| it.outcome.as_ref().is_some_and(Outcome::is_success);
        self.targets.iter().filter(is_ended).count()
    }
}

/// What `gpumem reap --history --json` prints: what was done, by the ledger. Units are in the names.
/// What is not known is absent or `null`, never 0. A reader ignores fields that it does not know.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ReapHistory {
    /// Format and major version.
    #[schemars(extend("const" = HISTORY))]
    pub schema: &'static str,
    /// The ledger's path.
    pub ledger: Arc<str>,
    /// Whether there is more before these.
    pub is_cut: bool,
    /// Lines of the ledger that are torn, or of a later version.
    pub unread_lines: usize,
    /// The acts, oldest first.
    pub acts: Vec<PastAct>,
}

impl ReapHistory {
    /// What is written of it.
    pub fn new(ledger: Arc<str>, past: LedgerSummary) -> Self {
        Self {
            schema: HISTORY,
            ledger,
            is_cut: past.is_cut,
            unread_lines: past.unread_lines,
            acts: past.acts,
        }
    }
}
