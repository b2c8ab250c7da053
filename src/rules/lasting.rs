//! Helpers for kinds whose condition must last while memory is held.

use super::rule::{ProcessInput, RuleInput, RuleOutput, Settings};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::{Began, ProcessHistory, RowHistory, Streak};
use crate::model::finding::FindingGpu;

/// The share of a time without use that samples must cover. An occasional missing sample is bridged.
pub(super) const LEAST_COVERAGE: f64 = 0.75;
/// The same share for an active finding.
const COVERAGE_TO_STAY: f64 = 0.5;
/// The age in seconds from which CPU use counts as unknown.
pub(super) const OLDEST_CPU_SECONDS: f64 = 60.0;
/// The share of the duration for which CPU use must be known.
pub(super) const LEAST_CPU_SHARE: f64 = 0.75;

/// The window, in seconds, that counts as the present.
pub(super) const NOW_SECONDS: f64 = 90.0;
/// The shortest time, in seconds, over which I/O is known, because it is reported twice a minute.
const LEAST_IO_SECONDS: f64 = 60.0;
/// I/O in bytes a second from which a process counts as working: a download, a slow checkpoint.
const WORK_BYTES_PER_SECOND: f64 = 2e5;

/// Whether a process with an idle GPU is working anyway: it uses the CPU at present, or does I/O on files, pipes
/// and sockets at present or over the rule's time. The mean CPU use over the rule's time does not matter.
pub(super) fn is_at_work(known: &ProcessHistory, most_cpu_percent: f64, needed: f64) -> bool {
    let now = NOW_SECONDS.min(needed);
    let computes = known.cpu().mean(now).is_some_and(|mean| mean.percent >= most_cpu_percent);
    let rate = |seconds| known.io().rate(seconds).filter(|_| seconds >= LEAST_IO_SECONDS);
    let moves = |seconds| rate(seconds).is_some_and(|rate| rate >= WORK_BYTES_PER_SECOND);
    computes || moves(now) || moves(needed)
}

/// Whether samples cover enough of a time, for an active or a new finding.
pub(super) fn is_covered(coverage: f64, is_active: bool) -> bool {
    let least = if is_active { COVERAGE_TO_STAY } else { LEAST_COVERAGE };
    coverage >= least
}

/// The memory that a process holds on the GPUs where the rule applies and rows count, lowest index first, with the
/// most severe settings. `None` if no row counts.
pub(super) fn held(
    it: ProcessInput<'_>,
    counts: impl Fn(&Settings, &RowHistory) -> bool,
) -> Option<(Settings, Vec<FindingGpu>)> {
    let mut worst: Option<Settings> = None;
    let mut gpus = Vec::new();
    for row in it.known.rows() {
        let Some(settings) = it.settings(row).filter(|settings| counts(settings, row)) else {
            continue;
        };
        if worst.is_none_or(|worst| worst.severity < settings.severity) {
            worst = Some(settings);
        }
        gpus.push(it.on(row));
    }
    Some((worst?, subject::by_gpu(gpus.into_iter())))
}

/// Whether the row is shown, or cannot be observed while the finding is active.
pub(super) fn is_listed(it: ProcessInput<'_>, row: &RowHistory) -> bool {
    row.last_seen() == it.seen.snapshot.time || (!it.seen.history.is_listed(row) && it.is_active())
}

/// Reports when a condition will have lasted long enough. If its start was not observed, it may have lasted long
/// enough already, so the rule is undecided.
pub(super) fn wait(
    (seen, pid): (RuleInput<'_>, u32),
    gpu: u32,
    streak: &Streak,
    needed: f64,
    verdicts: &mut RuleOutput,
) {
    if streak.began == Began::Witnessed {
        verdicts.expect(seen.pending(Some(pid), gpu, streak.since, needed));
    } else {
        verdicts.doubt(UndecidedReason::ShortHistory { needed, seen: streak.seconds() });
    }
}
