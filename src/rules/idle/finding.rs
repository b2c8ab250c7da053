//! Builds the finding on an idle process, including the actions that it offers.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::is_for_servers;
use crate::advice;
use crate::history::RowHistory;
use crate::model::finding::{
    Action, Evidence, Finding, FindingGpu, KindEvidence, Severity, samples,
};
use crate::model::{Process, Time};
use crate::rules::rule::{FindingParts, ProcessInput};
use crate::rules::subject;
use crate::units::{Bytes, Span};

/// Evidence that a process was idle.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct IdleEvidence {
    /// Highest SM utilization while the process was idle, in percent, 0 to 100; `null` if the whole GPU's utilization
    /// was used instead.
    pub sm_percent_max: Option<u32>,
    /// Highest utilization of the whole GPU while the process was idle, in percent, 0 to 100; `null` unless it is
    /// part of the evidence.
    pub gpu_percent_max: Option<u32>,
    /// Mean CPU use over the rule's duration, in percent; one core is 100.
    pub cpu_percent_mean: Option<f64>,
    /// Number of consecutive samples without use.
    pub samples: u64,
    /// Share of the idle time that the samples cover, 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    pub coverage: f64,
    /// Last activity of the notebook, as reported by its server; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Time>,
    /// How long a cell of the notebook has run without output, CPU use and GPU use, in seconds; absent
    /// if none is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0))]
    pub busy_seconds: Option<f64>,
    /// Whether the state of the notebook's kernel is unknown: its server does not report it, or cannot be queried.
    #[serde(rename = "kernel_unknown", skip_serializing_if = "std::ops::Not::not")]
    pub is_kernel_unknown: bool,
}

impl KindEvidence for IdleEvidence {
    fn words(&self) -> String {
        let used = match (self.sm_percent_max, self.gpu_percent_max) {
            (Some(0) | None, None) => "no GPU use".to_owned(),
            (Some(sm), _) => format!("SM {sm}% at most"),
            (None, Some(0)) => "whole GPU unused".to_owned(),
            (None, Some(gpu)) => format!("whole GPU at most {gpu}% busy"),
        };
        let mut words = format!("{used} in {}", samples(self.samples));
        if let Some(cpu) = self.cpu_percent_mean {
            let _ = write!(words, ", CPU {cpu:.1}%");
        }
        if let Some(last) = self.last_activity {
            let _ = write!(words, ", notebook last active {}", last.local());
        }
        if let Some(busy) = self.busy_seconds {
            let busy = Span::from_seconds(busy);
            let _ = write!(words, ", its cell has run for {busy} without CPU or GPU use");
        }
        if self.is_kernel_unknown {
            words.push_str(", kernel state unknown: its server does not report it");
        }
        words
    }
}

/// Returns advice on a cell that shows no activity. gpumem cannot know what the cell waits for, so the owner must
/// decide.
fn sleeping_cell(pid: u32) -> String {
    format!(
        "ask its owner: a cell that only sleeps or waits keeps the kernel busy and the memory held; interrupt it, \
        then `gpumem release {pid}`: the variables stay"
    )
}

pub(super) struct IdleGpu<'a> {
    pub(super) row: &'a RowHistory,
    pub(super) gpu: FindingGpu,
    pub(super) severity: Severity,
    /// Whether the process may resume work as it did after earlier pauses, because this pause is not much longer.
    pub(super) may_resume: bool,
    /// Required number of seconds without use.
    pub(super) needed: f64,
    pub(super) evidence: IdleEvidence,
    pub(super) since: Time,
    pub(super) until: Time,
}

pub(super) fn finding(input: ProcessInput<'_>, idle: Vec<IdleGpu<'_>>) -> Option<Finding> {
    let (process, process_history) = (input.process, input.process_history);
    let worst = idle.iter().max_by_key(|idle_gpu| idle_gpu.severity)?;
    let (worst, needed) = (worst.severity, worst.needed);
    // With several GPUs, the process is idle since it last used any of them.
    let since = idle.iter().map(|idle_gpu| idle_gpu.since).max()?;
    let until = idle.iter().map(|idle_gpu| idle_gpu.until).max()?;
    let evidence = idle.iter().map(|idle_gpu| idle_gpu.evidence.clone()).reduce(weakest)?;
    let works_elsewhere = process_history.rows().iter().any(|row| {
        !idle.iter().any(|idle_gpu| std::ptr::eq(idle_gpu.row, row))
            && row.run().is_none_or(|run| run.seconds() < needed)
    });
    let pauses = idle
        .iter()
        .filter(|idle_gpu| idle_gpu.may_resume)
        .map(|idle_gpu| idle_gpu.row.longest_pause);
    let resumed_after = pauses.max_by(f64::total_cmp);
    let gpus = subject::merge_rows(idle.into_iter().map(|idle_gpu| idle_gpu.gpu));
    let sleeps = evidence.busy_seconds.is_some();
    let is_doubtful = evidence.is_kernel_unknown;
    let severity = if is_doubtful { Severity::Info } else { worst };
    let bytes = gpus.iter().filter_map(|gpu| gpu.used_bytes).sum();
    let message = format!(
        "{} has held {} on {} without using {} for {}{}",
        input.name(),
        Bytes(bytes),
        subject::gpus(&gpus),
        if gpus.len() == 1 { "it" } else { "them" },
        Span::from_seconds(until.seconds_since(since)),
        match resumed_after {
            _ if sleeps => ", while its cell ran without CPU or GPU use".to_owned(),
            Some(seconds) => {
                format!(
                    "; it has resumed work after pauses of up to {}",
                    Span::from_seconds(seconds)
                )
            }
            None => String::new(),
        }
    );
    let cell = sleeps.then(|| sleeping_cell(process.pid));
    let advice = cell.into_iter().chain(advice::steps(process)).collect();
    let evidence = Evidence::new(evidence);
    let parts = FindingParts { severity, gpus, since, until, evidence, message, advice };
    let mut finding = input.rule_input.finding(Some(process), parts);
    let names = process_history.names();
    let is_made_to_wait =
        is_for_servers(input) || names.pool.is_some() || names.placeholder.is_some();
    if !works_elsewhere && !sleeps && !is_doubtful && !is_made_to_wait && resumed_after.is_none() {
        finding.actions = actions(process);
    }
    Some(finding)
}

/// Combines the evidence for two GPUs by keeping the weaker value of each field. The utilization of the process is kept
/// only if it is known for both GPUs.
fn weakest(one: IdleEvidence, other: IdleEvidence) -> IdleEvidence {
    IdleEvidence {
        sm_percent_max: one.sm_percent_max.and(other.sm_percent_max),
        gpu_percent_max: one.gpu_percent_max.or(other.gpu_percent_max),
        samples: one.samples.min(other.samples),
        coverage: one.coverage.min(other.coverage),
        busy_seconds: one.busy_seconds.zip(other.busy_seconds).map(|(one, other)| one.min(other)),
        ..one
    }
}

fn actions(process: &Process) -> Vec<Action> {
    let mut actions = vec![Action::Notify];
    // A process in uninterruptible sleep is doing I/O and does not react to signals.
    if process.state == Some('D') {
        return actions;
    }
    let kernel = process.jupyter.as_ref();
    // Only a notebook server could tell whether the kernel is waiting for something, and this kernel has no server.
    if kernel.is_some_and(|kernel| !kernel.is_served() && !kernel.is_batch()) {
        return actions;
    }
    // Only a running server can shut down the kernel.
    if kernel.is_some_and(|kernel| kernel.kernel_id.is_some()) && !process.has_lost_server() {
        actions.push(Action::JupyterShutdown);
    }
    actions.push(Action::Terminate);
    actions
}
