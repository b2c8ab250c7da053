//! Helpers for kinds whose condition must last for a duration.

use super::rule::{ProcessInput, RuleInput, RuleOutput, Settings};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::{Began, ProcessHistory, RowHistory, Streak};
use crate::model::finding::FindingGpu;

/// Minimum share of an unused period that samples must cover. Less than 1, because some samples are
/// lost.
pub(super) const LEAST_COVERAGE: f64 = 0.75;
/// Like [`LEAST_COVERAGE`], for an active finding.
const COVERAGE_TO_STAY: f64 = 0.5;
/// Maximum age, in seconds, of a usable CPU reading.
pub(super) const OLDEST_CPU_SECONDS: f64 = 60.0;
/// Minimum share of the duration with known CPU use.
pub(super) const LEAST_CPU_SHARE: f64 = 0.75;

/// Window, in seconds, for a process's current activity.
pub(super) const NOW_SECONDS: f64 = 90.0;
/// Minimum window, in seconds, for an I/O rate, because I/O is read only twice a minute.
const LEAST_IO_SECONDS: f64 = 60.0;
/// Minimum I/O rate, in bytes per second, of a working process, for example during a download.
const WORK_BYTES_PER_SECOND: f64 = 2e5;

/// Returns whether a process works although its GPU is idle: it uses the CPU now, or does I/O now
/// or over the rule's duration. The caller checks the mean CPU use over the duration.
pub(super) fn is_working(
    process_history: &ProcessHistory,
    max_cpu_percent: f64,
    needed: f64,
) -> bool {
    let now = NOW_SECONDS.min(needed);
    let computes =
        process_history.cpu().mean(now).is_some_and(|mean| mean.percent >= max_cpu_percent);
    let rate = |seconds| process_history.io().rate(seconds).filter(|_| seconds >= LEAST_IO_SECONDS);
    let moves = |seconds| rate(seconds).is_some_and(|rate| rate >= WORK_BYTES_PER_SECOND);
    computes || moves(now) || moves(needed)
}

pub(super) fn is_covered(coverage: f64, is_active: bool) -> bool {
    let min_coverage = if is_active { COVERAGE_TO_STAY } else { LEAST_COVERAGE };
    coverage >= min_coverage
}

/// Returns the process's GPUs with rows that the rule covers and `counts` accepts, sorted by index,
/// and the most severe settings. Returns `None` if there is no such row.
pub(super) fn held_gpus(
    input: ProcessInput<'_>,
    counts: impl Fn(&Settings, &RowHistory) -> bool,
) -> Option<(Settings, Vec<FindingGpu>)> {
    let mut worst: Option<Settings> = None;
    let mut gpus = Vec::new();
    for row in input.process_history.rows() {
        let Some(settings) = input.settings(row).filter(|settings| counts(settings, row)) else {
            continue;
        };
        if worst.is_none_or(|worst| worst.severity < settings.severity) {
            worst = Some(settings);
        }
        gpus.push(input.finding_gpu(row));
    }
    Some((worst?, subject::merge_rows(gpus.into_iter())))
}

/// Returns whether the snapshot contains the row. A row on a GPU that does not answer also counts
/// if the finding is active.
pub(super) fn is_listed(input: ProcessInput<'_>, row: &RowHistory) -> bool {
    row.last_seen() == input.rule_input.snapshot.time
        || (!input.rule_input.history.is_listed(row) && input.is_active())
}

/// Reports a condition that has not lasted long enough yet. If the start of the condition was not
/// observed, it may already have lasted long enough, so the rule is undecided.
pub(super) fn report_wait(
    (input, pid): (RuleInput<'_>, u32),
    gpu: u32,
    streak: &Streak,
    needed: f64,
    output: &mut RuleOutput,
) {
    if streak.began == Began::Witnessed {
        output.add_pending(input.pending(Some(pid), gpu, streak.since, needed));
    } else {
        output.add_doubt(UndecidedReason::ShortHistory { needed, observed: streak.seconds() });
    }
}
