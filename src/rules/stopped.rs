//! `stopped`: a signal or terminal has stopped a process (`T`) that holds memory on a GPU.
//!
//! By Ctrl-Z, a shell that gave it no terminal to read from, `kill -STOP`, or a frozen cgroup (`docker pause`).
//! Every sample of the duration has to show it; one that does not restarts the time.
//!
//! Never stopped: a process under a debugger (`t`), which is someone's work; one that holds nothing on a GPU,
//! or only graphics. No action ends it: the owner or scheduler that stopped it means to resume it.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{held, wait};
use super::rule::{FindingParts, ProcessInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::subject;
use crate::advice::{self, quote};
use crate::history::RowHistory;
use crate::model::Process;
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::Kind;
use crate::model::snapshot::ProcessType;
use crate::units::Span;

pub static KIND: RuleKind = RuleKind {
    process,
    ..RuleKind::new::<StoppedEvidence>(
        Kind::Stopped,
        "a process that holds memory on a GPU has been stopped by a signal or a terminal",
        &[
            ("min_memory", "less memory than this on a GPU is ignored (0 for any at all)"),
            ("duration", "how long it has to be stopped"),
            SEVERITY,
        ],
        Settings { duration: seconds(120), ..Settings::NONE },
    )
};

/// Evidence that a process is stopped.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StoppedEvidence {
    /// Process state: `T`.
    pub state: char,
    /// Number of consecutive samples in which the condition held.
    pub samples: u64,
    /// Controlling terminal, if there is one; `fg` there continues the process.
    pub terminal: Option<Arc<str>>,
    /// Whether the process is frozen with its cgroup; /proc reports it as sleeping.
    #[serde(rename = "frozen")]
    pub is_frozen: bool,
}

impl KindEvidence for StoppedEvidence {
    fn words(&self) -> String {
        let how = if self.is_frozen { "its cgroup is frozen" } else { "T: Ctrl-Z, SIGSTOP" };
        let mut words = format!("suspended ({how}) in all {}", samples(self.samples));
        if let Some(terminal) = &self.terminal {
            let _ = write!(words, ", on {terminal}");
        }
        words
    }
}

fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let Some(('T', streak)) = it.known.state() else {
        return;
    };
    // Memory that the driver does not report counts as held.
    let counts = |settings: &Settings, row: &RowHistory| {
        let is_enough = |bytes: u64| bytes > 0 && bytes >= settings.min_memory.0;
        row.kind() != ProcessType::Graphics && row.used_bytes().is_none_or(is_enough)
    };
    let Some((settings, gpus)) = held(it, counts) else {
        return;
    };
    let needed = settings.duration.seconds();
    if streak.seconds() < needed {
        wait((it.seen, it.process.pid), gpus[0].index, &streak, needed, verdicts);
        let began = (streak.since, streak.began);
        verdicts.suspect(it.candidate(gpus, began, streak.samples, needed));
        return;
    }
    let message = format!(
        "{} has been stopped for {} and holds {}",
        it.name(),
        Span::from_seconds(streak.seconds()),
        subject::held(&gpus),
    );
    let terminal = it.process.terminal.clone();
    let is_frozen = it.process.frozen == Some(true);
    let evidence = StoppedEvidence { state: 'T', samples: streak.samples, terminal, is_frozen };
    let parts = FindingParts {
        severity: settings.severity,
        gpus,
        since: streak.since,
        until: streak.until,
        evidence: Evidence::new(evidence),
        message,
        advice: lines(it.process),
    };
    verdicts.find(it.seen.finding(Some(it.process), parts));
}

fn lines(process: &Process) -> Vec<String> {
    let pid = process.pid;
    if let Some(line) = advice::thaw(process) {
        return vec![line];
    }
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
