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

/// The plan that `gpumem release --json` prints and, with --yes, its result: one document, even on
/// failure. Units are part of the field names. Unknown values are absent or `null`, never 0. Readers
/// must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct ReleaseDocument {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot that the plan was made from: RFC 3339, UTC; `null` if there was none.
    pub time: Option<Time>,
    /// `planned`: nothing was sent, exit code 0; `done`: every target has released memory, exit code 0;
    /// `incomplete`: exit code 1; `interrupted`: a signal interrupted and ended gpumem; `error`: exit
    /// code 1, 2 or 3, and errors says why.
    pub status: ReapStatus,
    /// Memory that was released according to NVML, in bytes; `null` if nothing was sent.
    pub released_bytes: Option<u64>,
    /// The targets, most memory first.
    pub targets: Vec<ProbedTarget>,
    /// What was requested, but is left alone.
    pub refused: Vec<Refused>,
    /// Read errors, and why it failed.
    pub errors: Vec<ReadError>,
}

/// A target, the result of the probe before the request, and its outcome.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ProbedTarget {
    /// The target.
    #[serde(flatten)]
    pub target: Target,
    /// Proof that the target is idle and can be asked. Contains text from others: escape it for a
    /// terminal.
    pub proved: Option<Arc<str>>,
    /// Outcome of the target, also if the probe showed that it cannot be asked; `null` if the plan was
    /// not carried out for it, or not to the end.
    pub outcome: Option<Outcome>,
}

impl ProbedTarget {
    /// Whether it is to be asked.
    pub fn is_due(&self) -> bool {
        self.outcome.is_none()
    }
}

impl ReleaseDocument {
    /// A plan that has not been carried out, with the results of probing its targets.
    pub fn new(time: Time, probed: Vec<ProbedTarget>, refused: Vec<Refused>) -> Self {
        Self { schema: SCHEMA, time: Some(time), targets: probed, refused, ..Self::default() }
    }

    /// The document if there is no plan.
    pub fn failed(error: &str) -> Self {
        let mut document = Self { schema: SCHEMA, ..Self::default() };
        document.fail(error);
        document
    }

    /// Records that it failed, and why.
    pub fn fail(&mut self, error: &str) {
        self.status = ReapStatus::Error;
        self.errors.push(ReadError { gpu: None, call: "release".into(), error: error.into() });
    }

    /// Bytes released so far.
    pub fn released(&self) -> u64 {
        let outcomes = self.targets.iter().filter_map(|it| it.outcome.as_ref());
        outcomes.map(Outcome::freed_bytes).sum()
    }

    /// Whether everything requested has released memory.
    pub fn is_all(&self) -> bool {
        let is_released = |it: &ProbedTarget| it.outcome.as_ref().is_some_and(Outcome::is_success);
        self.refused.is_empty() && !self.targets.is_empty() && self.targets.iter().all(is_released)
    }
}
