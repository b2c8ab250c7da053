//! `stray-context`: a process works on one GPU and holds a small context on another that it does not use.
//!
//! A CUDA context of some hundred MiB that a program opens by mistake, on GPU 0 nearly always: every rank
//! of a job has its own there, and they add up. It is told only where the use of the other GPU is seen,
//! and none of this one for the duration, with samples for three quarters of it.
//!
//! Never stray: graphics; memory of the size of a model; a context of a process that works nowhere, which
//! is [`idle`](super::idle)'s business. Nothing is offered that would end it: it is at work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lasting::{FindingText, ProcessFinding, expect, is_covered, on};
use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::{Began, ProcessHistory, RowHistory, Use};
use crate::model::Process;
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{Action, Kind, Severity};
use crate::model::snapshot::ProcessType;
use crate::units::{Bytes, GIB, Span};

/// A run of fewer samples is a coincidence.
const LEAST_SAMPLES: u64 = 3;

/// What says that a context is there by mistake.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StrayContextEvidence {
    /// The GPUs on which the process works, by NVML's index.
    pub works_on: Vec<u32>,
    /// Samples in which this one was not used.
    pub samples: u64,
}

impl KindEvidence for StrayContextEvidence {
    fn words(&self) -> String {
        let works_on: Vec<String> = self.works_on.iter().map(u32::to_string).collect();
        format!("no use in {}, works on GPU {}", samples(self.samples), works_on.join(", "))
    }
}

/// What the rule is tuned by.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, JsonSchema, Serialize)]
pub struct StrayContextSettings {
    /// Whether the rule is run.
    pub enabled: bool,
    /// This much memory or more on a GPU is no mere context.
    pub max_memory: Bytes,
    /// How long the GPU has to be unused.
    pub duration: Span,
    /// How bad a finding is: info, warning or critical.
    pub severity: Severity,
}

impl Default for StrayContextSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            max_memory: Bytes(GIB),
            duration: Span::from_seconds(600.0),
            severity: Severity::Info,
        }
    }
}

impl RuleKind for StrayContextSettings {
    const KIND: Kind = Kind::StrayContext;
    const MEANING: &'static str =
        "a process holds a small context on a GPU that it does not use while it works on another";
    type Evidence = StrayContextEvidence;

    fn process(
        rule: &ConfiguredRule<Self>,
        seen: RuleInput<'_>,
        process: &Process,
        known: &ProcessHistory,
        verdicts: &mut RuleOutput,
    ) {
        let rows = known.rows();
        if rows.len() < 2 || known.rows_summary().uses_all {
            return;
        }
        let was_active = seen.active_finding(rule.name(), process.identity()).is_some();
        let works = |row: &RowHistory, settings: &Self| match row.run() {
            None => row.last_use() == Use::Used,
            // A pause does not end it.
            Some(run) => {
                was_active
                    && run.began == Began::Witnessed
                    && run.seconds() < settings.duration.seconds()
            }
        };
        let settings = rule.settings();
        let mut works_on: Vec<u32> = rows
            .iter()
            .filter(|row| works(row, settings))
            .map(|row| seen.history.gpu_index(row))
            .collect();
        if works_on.is_empty() {
            return;
        }
        works_on.sort_unstable();
        works_on.dedup();
        let mut strays = Vec::new();
        for row in rows {
            let gpu = seen.history.gpu_index(row);
            let Some(run) = row.run() else {
                continue;
            };
            let is_large = |settings: &Self| {
                row.used_bytes().is_some_and(|bytes| bytes == 0 || bytes >= settings.max_memory.0)
            };
            if works_on.contains(&gpu) || row.kind() == ProcessType::Graphics {
                continue;
            }
            let Some(settings) = rule
                .settings_for(&seen.scope_of(process, row))
                .filter(|settings| !is_large(settings))
            else {
                continue;
            };
            let needed = settings.duration.seconds();
            if run.seconds() < needed {
                match run.began {
                    Began::Witnessed => expect(rule, process, gpu, run.since, needed, verdicts),
                    Began::AfterDeviceUse => verdicts.doubt(UndecidedReason::NoUtilization { gpu }),
                    Began::Unwitnessed => verdicts
                        .doubt(UndecidedReason::ShortHistory { needed, seen: run.seconds() }),
                }
            } else if row.used_bytes().is_none() {
                verdicts.doubt(UndecidedReason::NoMemory { pid: process.pid, gpu });
            } else if is_covered(run.coverage(), was_active) && run.samples >= LEAST_SAMPLES {
                strays.push((*settings, *run, on(seen, row)));
            }
        }
        let Some(severity) = strays.iter().map(|(settings, ..)| settings.severity).max() else {
            return;
        };
        // All of them are stray since the last of them is.
        let times = || strays.iter().map(|(_, run, _)| run);
        let (Some(since), Some(until), Some(samples)) = (
            times().map(|run| run.since).max(),
            times().map(|run| run.until).max(),
            times().map(|run| run.samples).min(),
        ) else {
            return;
        };
        let about = ProcessFinding {
            rule,
            process,
            severity,
            gpus: subject::by_gpu(strays.into_iter().map(|(.., gpu)| gpu)),
            since,
            until,
        };
        let message = format!(
            "{} works elsewhere and has held {} without using {} for {}",
            about.name(),
            subject::held(&about.gpus),
            if about.gpus.len() == 1 { "it" } else { "them" },
            Span::from_seconds(about.seconds()),
        );
        verdicts.find(about.finding(FindingText {
            evidence: Evidence::new(StrayContextEvidence { works_on, samples }),
            message,
            advice: vec![
                "show the process only the GPUs that it is meant to use: CUDA_VISIBLE_DEVICES"
                    .to_owned(),
                "in PyTorch, call `torch.cuda.set_device(rank)` before the first call of CUDA, and \
                 load checkpoints with `map_location`"
                    .to_owned(),
            ],
            actions: vec![Action::Notify],
        }));
    }
}

#[cfg(test)]
mod tests;
