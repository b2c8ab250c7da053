//! Helpers for kinds whose condition must last for a duration.

use foldhash::{HashMap, HashMapExt as _};

use super::rule::{ProcessInput, RuleInput, RuleOutput, Settings};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::{Began, History, ProcessHistory, RowHistory, Streak};
use crate::model::family::families;
use crate::model::finding::FindingGpu;
use crate::model::snapshot::{ProcessType, ProcessesByPid};
use crate::model::{Snapshot, Time};

/// Minimum share of an unused period that samples must cover. Some samples are always lost, so the share is below 1.
pub(super) const LEAST_COVERAGE: f64 = 0.75;
/// Minimum share that samples must cover while a finding is active.
const COVERAGE_TO_STAY: f64 = 0.5;
/// Maximum age, in seconds, at which a CPU reading is still usable.
pub(super) const OLDEST_CPU_SECONDS: f64 = 60.0;
/// Minimum share of the duration for which CPU use must be known.
pub(super) const LEAST_CPU_SHARE: f64 = 0.75;

/// Length, in seconds, of the window that shows whether a process is active now.
pub(super) const NOW_SECONDS: f64 = 90.0;
/// Minimum window, in seconds, for an I/O rate. I/O counters are read only twice a minute.
const LEAST_IO_SECONDS: f64 = 60.0;
/// I/O rate, in bytes per second, at or above which a process is considered working, for example downloading data.
pub const WORK_BYTES_PER_SECOND: f64 = 2e5;

/// Factor by which a limit is multiplied while a finding is active, to avoid flicker.
pub(super) const FACTOR_TO_STAY: f64 = 1.25;

/// Returns whether a process works although its GPU is idle: it uses the CPU now, or does I/O now or over `needed`
/// seconds. The caller checks the mean CPU use over the duration.
pub(super) fn is_working(
    process_history: &ProcessHistory,
    max_cpu_percent: f64,
    needed: f64,
    is_active: bool,
) -> bool {
    let factor = if is_active { FACTOR_TO_STAY } else { 1.0 };
    let now = NOW_SECONDS.min(needed);
    let computes = process_history
        .cpu()
        .mean(now)
        .is_some_and(|mean| mean.percent >= max_cpu_percent * factor);
    let rate = |seconds| process_history.io().rate(seconds).filter(|_| seconds >= LEAST_IO_SECONDS);
    let moves = |seconds| rate(seconds).is_some_and(|rate| rate >= WORK_BYTES_PER_SECOND * factor);
    computes || moves(now) || moves(needed)
}

pub(super) fn is_covered(coverage: f64, is_active: bool) -> bool {
    let min_coverage = if is_active { COVERAGE_TO_STAY } else { LEAST_COVERAGE };
    coverage >= min_coverage
}

/// Returns the GPUs of the process's rows that the rule covers and `counts` accepts, and the settings of the row with
/// the highest severity. Returns `None` if there is no such row.
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

/// Returns whether the snapshot contains the row. If the row's GPU does not answer, returns whether the finding is
/// active.
pub(super) fn is_listed(input: ProcessInput<'_>, row: &RowHistory) -> bool {
    row.last_seen() == input.rule_input.snapshot.time
        || (!input.rule_input.history.is_listed(row) && input.is_active())
}

/// Reports a condition that has not lasted long enough yet as pending. If the start of the condition was not
/// observed, reports instead that the rule is undecided, because the condition may already have lasted long enough.
pub(super) fn report_wait(
    (input, pid): (RuleInput<'_>, u32),
    gpu: u32,
    streak: &Streak,
    needed: f64,
    output: &mut RuleOutput,
) {
    if streak.began == Began::Witnessed {
        output.pending.push(input.pending(Some(pid), gpu, streak.since, needed));
    } else {
        output.add_doubt(UndecidedReason::ShortHistory { needed, observed: streak.seconds() });
    }
}

/// Unused memory of each job. The processes of a job may reach a threshold only together.
#[derive(Debug)]
pub(super) struct UnusedJobs {
    now: Time,
    job_of: HashMap<u32, usize>,
    jobs: Vec<UnusedJob>,
}

#[derive(Debug, Default)]
struct UnusedJob {
    /// Time since which the job has used no GPU, or `None` if the job uses a GPU or its use is unknown.
    since: Option<Time>,
    bytes: HashMap<u32, u64>,
}

impl UnusedJobs {
    pub(super) fn new(snapshot: &Snapshot, history: &History) -> Self {
        let mut unused_jobs = Self { now: snapshot.time, job_of: HashMap::new(), jobs: Vec::new() };
        let processes = ProcessesByPid::new(snapshot);
        let process_history = |pid: &u32| history.process(processes.get(*pid)?.identity());
        for family in families(snapshot).iter().filter(|family| family.members.len() > 1) {
            let members = || family.members.iter().filter_map(process_history);
            unused_jobs
                .job_of
                .extend(family.members.iter().map(|pid| (*pid, unused_jobs.jobs.len())));
            unused_jobs.jobs.push(UnusedJob::new(members(), history));
        }
        unused_jobs
    }

    /// Returns the memory of a process's job on a GPU if the job has used no GPU for at least `seconds`, otherwise 0.
    pub(super) fn bytes(&self, pid: u32, gpu: u32, seconds: f64) -> u64 {
        let job = self.job_of.get(&pid).map(|job| &self.jobs[*job]);
        let unused = job
            .filter(|job| job.since.is_some_and(|since| self.now.seconds_since(since) >= seconds));
        unused.and_then(|job| job.bytes.get(&gpu)).copied().unwrap_or(0)
    }
}

impl UnusedJob {
    fn new<'a>(members: impl Iterator<Item = &'a ProcessHistory>, history: &History) -> Self {
        let mut job = Self::default();
        let rows = members.flat_map(ProcessHistory::rows);
        let rows = rows.filter(|row| row.kind() != ProcessType::Graphics);
        let mut since = Vec::new();
        for row in rows {
            since.push(row.run().map(|run| run.since));
            let bytes = job.bytes.entry(history.gpu_index(row)).or_default();
            *bytes = bytes.saturating_add(row.used_bytes().unwrap_or(0));
        }
        let since: Option<Vec<Time>> = since.into_iter().collect();
        job.since = since.and_then(|since| since.into_iter().max());
        job
    }
}
