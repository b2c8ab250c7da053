//! How a release is planned and the result, for people. Pure.

use std::fmt::Write as _;

use super::json::ReleaseDocument;
use crate::advice;
use crate::cli::reap::refusal::{RefusalReader, refusal};
use crate::cli::reap::text::{count, title};
use crate::model::Snapshot;
use crate::reclaim::release::{Reference, ReleaseReport};
use crate::reclaim::{Outcome, Refused, Target};
use crate::report::escape::escape;
use crate::report::style::Style;
use crate::units::Bytes;

/// The plan: who would be asked, how, and what was verified; who would not, why, and what to do
/// instead.
pub(in crate::cli) fn plan(
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
            out.push_str(&instead(probed.target.leader, snapshot));
        }
        out.push('\n');
    }
    for refused in &document.refused {
        let words = refusal(refused, reader);
        let _ = writeln!(out, "{} {words}", style.faint("skipped:"));
        out.push_str(&instead_of(refused, snapshot));
    }
    for error in &document.errors {
        let gpu = error.gpu.map(|gpu| format!("GPU {gpu}: "));
        let (call, why) = (escape(&error.call), escape(&error.error));
        let _ = writeln!(out, "error: {}{call}: {why}", gpu.unwrap_or_default());
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

/// Targets that will be asked.
pub(in crate::cli) fn due(document: &ReleaseDocument) -> Vec<&Target> {
    let due = document.targets.iter().filter(|it| it.is_due());
    due.map(|it| &it.target).collect()
}

/// What frees the memory of a process that cannot be asked.
fn instead_of(refused: &Refused, snapshot: &Snapshot) -> String {
    use crate::reclaim::plan::Why;
    match (&refused.why, refused.pid) {
        (Why::NoWayIn { .. }, Some(pid)) => instead(pid, snapshot),
        _ => String::new(),
    }
}

fn instead(pid: u32, snapshot: &Snapshot) -> String {
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

/// Outcome of a target; the last line says how to wake it.
pub(in crate::cli) fn outcome(leader: u32, outcome: &Outcome) -> String {
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
