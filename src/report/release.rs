//! Plans of `gpumem release` and their results, as JSON and as text.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::escape::escape;
use super::reap::{ReapStatus, count, title};
use super::refusal::{RefusalReader, refusal};
use super::style::Style;
use crate::advice;
use crate::model::snapshot::ReadError;
use crate::model::{Snapshot, Time};
use crate::reclaim::plan::Why;
use crate::reclaim::release::{ProbedTarget, Reference, ReleaseReport};
use crate::reclaim::{Outcome, Refused, Target};
use crate::units::Bytes;

pub const SCHEMA: &str = "gpumem.release/1";

/// The plan that `gpumem release --json` prints and, with --yes, its result: one document, even on failure. Units are
/// part of the field names. Unknown values are absent or `null`, never 0. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct ReleaseDocument {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot that the plan was made from: RFC 3339, UTC; `null` if there was none.
    pub time: Option<Time>,
    /// `planned` (exit code 0): nothing was sent; `done` (exit code 0): every target has released memory;
    /// `incomplete` (exit code 1); `interrupted`: a signal ended gpumem; `error` (exit code 1, 2 or 3): the command
    /// failed for the reason in `errors`.
    pub status: ReapStatus,
    /// Memory that was released according to NVML, in bytes; `null` if nothing was sent.
    pub released_bytes: Option<u64>,
    /// The targets, most memory first.
    pub targets: Vec<ProbedTarget>,
    /// Processes that were requested, but are skipped.
    pub refused: Vec<Refused>,
    /// Read errors, and the reason for a failure.
    pub errors: Vec<ReadError>,
}

impl ReleaseDocument {
    pub fn new(time: Time, probed: Vec<ProbedTarget>, refused: Vec<Refused>) -> Self {
        Self { schema: SCHEMA, time: Some(time), targets: probed, refused, ..Self::default() }
    }

    /// Creates the document for a release that failed before a plan was made.
    pub fn failed(error: &str) -> Self {
        let mut document = Self { schema: SCHEMA, ..Self::default() };
        document.fail(error);
        document
    }

    pub fn fail(&mut self, error: &str) {
        self.status = ReapStatus::Error;
        self.errors.push(ReadError { gpu: None, call: "release".into(), error: error.into() });
    }

    pub fn released(&self) -> u64 {
        let outcomes = self.targets.iter().filter_map(|probed| probed.outcome.as_ref());
        outcomes.map(Outcome::freed_bytes).sum()
    }

    /// Returns whether every requested process released its memory.
    pub fn is_all(&self) -> bool {
        let is_released =
            |probed: &ProbedTarget| probed.outcome.as_ref().is_some_and(Outcome::is_success);
        self.refused.is_empty() && !self.targets.is_empty() && self.targets.iter().all(is_released)
    }
}

/// Formats the targets with their steps, then the skipped processes with reasons and alternatives.
pub fn plan(
    document: &ReleaseDocument,
    snapshot: &Snapshot,
    style: Style,
    reader: RefusalReader,
) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    for probed in &document.targets {
        let _ = writeln!(out, "{}", title(&probed.target, style));
        for step in &probed.target.steps {
            let words = step.describe(&probed.target);
            let _ = writeln!(out, "    {}", escape(&words));
        }
        let _ = match (&probed.outcome, &probed.proved) {
            (Some(outcome), _) => writeln!(out, "    {}", escape(&outcome.to_string())),
            (None, Some(proved)) => writeln!(out, "    verified: {}", escape(proved)),
            (None, None) => Ok(()),
        };
        if matches!(probed.outcome, Some(Outcome::NoWayIn { .. })) {
            out.push_str(&alternative(probed.target.leader, snapshot));
        }
        out.push('\n');
    }
    for refused in &document.refused {
        let words = refusal(refused, reader);
        let _ = writeln!(out, "{} {words}", style.faint("skipped:"));
        out.push_str(&alternative_for(refused, snapshot));
    }
    for error in &document.errors {
        let gpu = error.gpu.map(|gpu| format!("GPU {gpu}: "));
        let (call, error) = (escape(&error.call), escape(&error.error));
        let _ = writeln!(out, "error: {}{call}: {error}", gpu.unwrap_or_default());
    }
    let due = due(document);
    let mut words = vec![match due.len() {
        0 => "no process to ask".to_owned(),
        _ => format!("will ask {} to release memory", count(&due)),
    }];
    let left = document.targets.len() - due.len() + document.refused.len();
    if left > 0 {
        words.push(format!("{left} skipped"));
    }
    let _ = writeln!(out, "{}", words.join("; "));
    out
}

/// Returns the targets that have no outcome from the probe and must still be asked.
pub fn due(document: &ReleaseDocument) -> Vec<&Target> {
    let due = document.targets.iter().filter(|probed| probed.is_due());
    due.map(|probed| &probed.target).collect()
}

fn alternative_for(refused: &Refused, snapshot: &Snapshot) -> String {
    match (&refused.why, refused.pid) {
        (Why::NoWayIn { .. }, Some(pid)) => alternative(pid, snapshot),
        _ => String::new(),
    }
}

fn alternative(pid: u32, snapshot: &Snapshot) -> String {
    let Some(process) = snapshot.process(pid) else {
        return String::new();
    };
    let mut out = String::new();
    for line in advice::steps(process) {
        let _ = writeln!(out, "    instead: {}", escape(&line));
    }
    let _ = writeln!(out, "    more: gpumem explain {pid}");
    out
}

/// Formats the outcome, the variables that still hold memory, and how to wake a paused server.
pub fn outcome(leader: u32, outcome: &Outcome) -> String {
    let mut out = format!("{leader}: {}\n", escape(&outcome.to_string()));
    for reference in references(outcome) {
        let (bytes, name) = (Bytes(reference.bytes), escape(&reference.name));
        let _ = writeln!(out, "    {bytes} held by {name}");
    }
    if let Some(wake) = outcome.wake() {
        let _ = writeln!(out, "    to wake it: {}", escape(wake));
    }
    out
}

fn references(outcome: &Outcome) -> &[Reference] {
    let report: &ReleaseReport = match outcome {
        Outcome::Released { report, .. } | Outcome::NothingToRelease { report, .. } => report,
        _ => return &[],
    };
    &report.references
}
