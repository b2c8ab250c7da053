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

/// Result of `gpumem reap` or `gpumem release`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReapStatus {
    /// There is a plan, and nothing was sent.
    #[default]
    Planned,
    /// Everything requested was done, and its memory is free.
    Done,
    /// Part of what was requested was not done.
    Incomplete,
    /// A signal interrupted it.
    Interrupted,
    /// It failed; `errors` says why.
    Error,
}

/// The plan that `gpumem reap --json` prints and, with --yes, its result: one document, even on
/// failure. Units are part of the field names. Unknown values are absent or `null`, never 0. Readers
/// must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct ReapReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot that the plan was made from: RFC 3339, UTC; `null` if there was none.
    pub time: Option<Time>,
    /// Whether the snapshot is from a recording, in which nothing can be killed.
    pub is_replay: bool,
    /// `planned`: nothing was sent, exit code 0; `done`: every target was killed and its memory freed, exit
    /// code 0; `incomplete`: exit code 1; `interrupted`: a signal interrupted and ended gpumem; `error`: exit
    /// code 1, 2 or 3, and errors says why.
    pub status: ReapStatus,
    /// Memory that all targets together should free, in bytes; `null` if it is unknown for one of them.
    pub expected_bytes: Option<u64>,
    /// Memory that was freed, in bytes; `null` if nothing was carried out.
    pub freed_bytes: Option<u64>,
    /// The targets, most memory first.
    pub targets: Vec<Planned>,
    /// What was requested or found, but is left alone.
    pub refused: Vec<Refused>,
    /// Requested rules that could not be decided; they produce no findings.
    pub undecided: Vec<Undecided>,
    /// Read errors, and why it failed.
    pub errors: Vec<ReadError>,
}

/// A target and its outcome.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Planned {
    /// The target.
    #[serde(flatten)]
    pub target: Target,
    /// Outcome of the target; `None` if the plan was not carried out for it, or not to the end.
    pub outcome: Option<Outcome>,
}

impl ReapReport {
    /// A plan that has not been carried out.
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

    /// The report if there is no plan.
    pub fn failed(error: &str) -> Self {
        let mut report = Self { schema: SCHEMA, ..Self::default() };
        report.fail(error);
        report
    }

    /// Records that it failed, and why.
    pub fn fail(&mut self, error: &str) {
        self.status = ReapStatus::Error;
        self.errors.push(ReadError { gpu: None, call: "reap".into(), error: error.into() });
    }

    /// Bytes freed so far.
    pub fn freed(&self) -> u64 {
        let outcomes = self.targets.iter().filter_map(|it| it.outcome.as_ref());
        outcomes.map(Outcome::freed_bytes).sum()
    }

    /// Number of targets that were killed and their memory freed.
    pub fn ended(&self) -> usize {
        let is_ended = |it: &&Planned| it.outcome.as_ref().is_some_and(Outcome::is_success);
        self.targets.iter().filter(is_ended).count()
    }
}

/// What `gpumem reap --history --json` prints: past acts, from the audit log. Units are part of the
/// field names. Unknown values are absent or `null`, never 0. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ReapHistory {
    /// Format and major version.
    #[schemars(extend("const" = HISTORY))]
    pub schema: &'static str,
    /// Path of the audit log.
    pub ledger: Arc<str>,
    /// Whether the audit log has earlier acts that are not listed.
    pub is_cut: bool,
    /// Number of lines of the audit log that are torn, or from a later version.
    pub unread_lines: usize,
    /// The acts, oldest first.
    pub acts: Vec<PastAct>,
}

impl ReapHistory {
    /// The document for what the audit log has.
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
