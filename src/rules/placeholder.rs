//! `placeholder`: a program that holds a GPU to keep others off it, and does no work there.
//!
//! Known programs published for this purpose are found by name (`Process::placeholder`), once they have run for
//! the duration, so that a burn-in test of some minutes is none, and while they hold memory on a GPU.
//!
//! No action ends a placeholder: a person who needs the GPU asks its owner. That also applies to other rules'
//! findings on it: see `reclaim::select`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{FindingParts, ProcessInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::subject;
use crate::advice;
use crate::history::RowHistory;
use crate::model::evidence::{Evidence, KindEvidence};
use crate::model::finding::{FindingGpu, Kind};
use crate::model::snapshot::ProcessType;
use crate::units::{Bytes, GIB, Span};

pub static KIND: RuleKind = RuleKind {
    process,
    ..RuleKind::new::<PlaceholderEvidence>(
        Kind::Placeholder,
        "a program reserves a GPU and does no work on it",
        &[
            ("min_memory", "less memory than this on a GPU is ignored"),
            ("duration", "how long it has to run"),
            SEVERITY,
        ],
        Settings { min_memory: Bytes(GIB), duration: seconds(3600), ..Settings::NONE },
    )
};

/// What to do, other than ending it.
const ADVICE: &str = "it holds a GPU and does no work on it; ask its owner what it is reserved for";

/// Evidence that a process only reserves a GPU.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PlaceholderEvidence {
    /// Known program that the process runs.
    pub program: Arc<str>,
}

impl KindEvidence for PlaceholderEvidence {
    fn words(&self) -> String {
        format!("runs {}, which occupies GPUs", self.program)
    }
}

/// Evaluates a known placeholder by how long it has run.
fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let Some(program) = it.known.names().placeholder else {
        return;
    };
    let now = it.seen.snapshot.time;
    let mut gpus: Vec<FindingGpu> = Vec::new();
    let mut severity = None;
    // It was started to hold memory, and did so before its memory was observed.
    let began = it.process.start_time.filter(|start| *start <= now);
    let first_seen = || it.known.rows().iter().map(RowHistory::first_seen).min();
    let Some(since) = began.or_else(first_seen) else {
        return;
    };
    for row in it.known.rows() {
        let Some(settings) = it.settings(row) else {
            continue;
        };
        let is_enough = |bytes: u64| bytes >= settings.min_memory.0;
        if row.kind() == ProcessType::Graphics || !row.used_bytes().is_some_and(is_enough) {
            continue;
        }
        let (gpu, needed) = (it.on(row), settings.duration.seconds());
        if now < since.plus_seconds(needed) {
            it.expect(gpu.index, since, needed, verdicts);
            continue;
        }
        severity = severity.max(Some(settings.severity));
        gpus.push(gpu);
    }
    let Some(severity) = severity else {
        return;
    };
    let gpus = subject::by_gpu(gpus.into_iter());
    let message = format!(
        "{} holds {} and has run for {}: {program} occupies GPUs without doing any work",
        it.name(),
        subject::held(&gpus),
        Span::from_seconds(now.seconds_since(since)),
    );
    let evidence = Evidence::new(PlaceholderEvidence { program: program.into() });
    let advice = advice(it);
    let parts = FindingParts { severity, gpus, since, until: now, evidence, message, advice };
    verdicts.find(it.seen.finding(Some(it.process), parts));
}

fn advice(it: ProcessInput<'_>) -> Vec<String> {
    [ADVICE.to_owned()].into_iter().chain(advice::steps(it.process)).collect()
}

#[cfg(test)]
mod tests;
