//! What `gpumem release --json` prints, as data.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::reap::json::ReapStatus;
use crate::model::Time;
use crate::model::snapshot::ReadError;
use crate::reclaim::{Outcome, Refused, Target};

/// The `schema` of a [`ReleaseDocument`].
pub const SCHEMA: &str = "gpumem.release/1";

/// The plan that `gpumem release --json` prints and, with --yes, the result: one document, also where it
/// failed. Units are in the names. What is not known is absent or `null`, never 0. A reader ignores fields that
/// it does not know.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct ReleaseDocument {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot that the plan was made from: RFC 3339, UTC; `null` where there was none.
    pub time: Option<Time>,
    /// `planned`: nothing was sent, the exit code is 0; `done`, 0: every target has released memory;
    /// `incomplete`, 1; `interrupted`: by a signal, which ends gpumem; `error`, 1, 2 or 3: errors says why.
    pub status: ReapStatus,
    /// What came back, in bytes, as NVML sees it; `null` where nothing was sent.
    pub released_bytes: Option<u64>,
    /// The targets, most memory first.
    pub targets: Vec<ProbedTarget>,
    /// What was asked for and is left alone.
    pub refused: Vec<Refused>,
    /// What could not be read, and why it failed.
    pub errors: Vec<ReadError>,
}

/// A target, what was proved of it before, and what became of it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ProbedTarget {
    /// The target.
    #[serde(flatten)]
    pub target: Target,
    /// What shows that it rests and can be asked. Holds words of others: escape it for a terminal.
    pub proved: Option<Arc<str>>,
    /// What it came to, also where the look before it has shown that it cannot be asked; `null` where it was
    /// not carried out, or not to its end.
    pub outcome: Option<Outcome>,
}

impl ProbedTarget {
    /// Whether it is to be asked.
    pub fn is_due(&self) -> bool {
        self.outcome.is_none()
    }
}

impl ReleaseDocument {
    /// A plan that is not carried out so far; what its targets were found to be is `probed`.
    pub fn new(time: Time, probed: Vec<ProbedTarget>, refused: Vec<Refused>) -> Self {
        Self { schema: SCHEMA, time: Some(time), targets: probed, refused, ..Self::default() }
    }

    /// What there is to say where there is no plan.
    pub fn failed(error: &str) -> Self {
        let mut document = Self { schema: SCHEMA, ..Self::default() };
        document.fail(error);
        document
    }

    /// Says that it failed, and why.
    pub fn fail(&mut self, error: &str) {
        self.status = ReapStatus::Error;
        self.errors.push(ReadError { gpu: None, call: "release".into(), error: error.into() });
    }

    /// What has come back so far.
    pub fn released(&self) -> u64 {
        let outcomes = self.targets.iter().filter_map(|it| it.outcome.as_ref());
        outcomes.map(Outcome::freed_bytes).sum()
    }

    /// Whether all that was asked for has released memory.
    pub fn is_all(&self) -> bool {
        let is_released = |it: &ProbedTarget| it.outcome.as_ref().is_some_and(Outcome::is_success);
        self.refused.is_empty() && !self.targets.is_empty() && self.targets.iter().all(is_released)
    }
}
