//! `stopped`: a process is stopped by a signal or a terminal (`T`) while it holds memory on a GPU.
//!
//! Ctrl-Z, a shell that gave it no terminal to read from, or `kill -STOP`. Every sample of the duration
//! has to show it; one that does not begins the time anew.
//!
//! Never stopped: a process that a debugger holds (`t`), which is somebody's work; one that holds nothing
//! on a GPU, or graphics only. Nothing is offered that would end it: who stopped it means to go on, an
//! owner or a scheduler.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lasting::{FindingText, ProcessFinding, held, wait};
use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use super::subject;
use super::suspect::Candidate;
use crate::advice::quote;
use crate::history::{ProcessHistory, RowHistory};
use crate::model::Process;
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{Action, Kind, Severity};
use crate::model::snapshot::ProcessType;
use crate::units::{Bytes, Span};

/// What says that a process was stopped.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StoppedEvidence {
    /// `T`, as in /proc.
    pub state: char,
    /// Samples in which it was so without a break.
    pub samples: u64,
    /// Its controlling terminal, where it has one: `fg` there would let it go on.
    pub terminal: Option<Arc<str>>,
}

impl KindEvidence for StoppedEvidence {
    fn words(&self) -> String {
        let mut words =
            format!("suspended ({}: Ctrl-Z, SIGSTOP) in all {}", self.state, samples(self.samples));
        if let Some(terminal) = &self.terminal {
            let _ = write!(words, ", on {terminal}");
        }
        words
    }
}

/// What the rule is tuned by.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, JsonSchema, Serialize)]
pub struct StoppedSettings {
    /// Whether the rule is run.
    pub enabled: bool,
    /// Less memory than this on a GPU is ignored (0 for any at all).
    pub min_memory: Bytes,
    /// How long it has to be stopped.
    pub duration: Span,
    /// How bad a finding is: info, warning or critical.
    pub severity: Severity,
}

impl Default for StoppedSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            min_memory: Bytes(0),
            duration: Span::from_seconds(120.0),
            severity: Severity::Warning,
        }
    }
}

impl RuleKind for StoppedSettings {
    const KIND: Kind = Kind::Stopped;
    const MEANING: &'static str =
        "a process that holds memory on a GPU has been stopped by a signal or a terminal";
    type Evidence = StoppedEvidence;

    fn process(
        rule: &ConfiguredRule<Self>,
        seen: RuleInput<'_>,
        process: &Process,
        known: &ProcessHistory,
        verdicts: &mut RuleOutput,
    ) {
        let Some(('T', streak)) = known.state() else {
            return;
        };
        let Some(held) = held(rule, seen, process, known, |it| it.severity, Self::counts) else {
            return;
        };
        let needed = held.settings.duration.seconds();
        if streak.seconds() < needed {
            wait(rule, process, held.gpus[0].index, &streak, needed, verdicts);
            verdicts.suspect(Candidate {
                rule: rule.name().clone(),
                kind: Self::KIND,
                process: known.identity(),
                gpus: held.gpus,
                since: streak.since,
                began: streak.began,
                samples: streak.samples,
                needed,
                max_cpu_percent: f64::INFINITY,
                is_undecidable: false,
            });
            return;
        }
        let about = ProcessFinding {
            rule,
            process,
            severity: held.settings.severity,
            gpus: held.gpus,
            since: streak.since,
            until: streak.until,
        };
        let message = format!(
            "{} has been stopped for {} and holds {}",
            about.name(),
            Span::from_seconds(about.seconds()),
            subject::held(&about.gpus),
        );
        verdicts.find(about.finding(FindingText {
            evidence: Evidence::new(StoppedEvidence {
                state: 'T',
                samples: streak.samples,
                terminal: process.terminal.clone(),
            }),
            message,
            advice: advice(process),
            actions: vec![Action::Notify],
        }));
    }
}

impl StoppedSettings {
    /// Whether memory is held in a row; what the driver does not tell is held.
    fn counts(&self, row: &RowHistory) -> bool {
        row.kind() != ProcessType::Graphics
            && row.used_bytes().is_none_or(|bytes| bytes > 0 && bytes >= self.min_memory.0)
    }
}

fn advice(process: &Process) -> Vec<String> {
    let pid = process.pid;
    let mut advice = Vec::new();
    let job = process.slurm.as_deref().filter(|it| it.over != Some(true));
    if let Some(job) = job.and_then(|it| quote(&it.id()?)) {
        advice.push(format!("where Slurm suspended its job: `scontrol resume {job}`"));
    }
    advice.push(match &process.terminal {
        Some(terminal) => {
            format!("continue it: `fg` in its shell on {terminal}, or `kill -CONT {pid}`")
        }
        None => format!("continue it: `kill -CONT {pid}`"),
    });
    advice.push(format!(
        "or kill it: `kill -TERM {pid}; kill -CONT {pid}` (while stopped it does not handle the first)"
    ));
    advice
}

#[cfg(test)]
mod tests;
