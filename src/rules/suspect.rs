//! Finds suspects: processes that look like waste before a rule can prove it.
//!
//! Candidates are processes that meet the conditions of a rule, but not yet for the duration. This module checks their
//! CPU use. A candidate becomes a suspect if at least one fact supports the suspicion:
//!
//! - the notebook server has reported the kernel as idle for longer than the duration;
//! - the process used almost no CPU in its lifetime, or almost no GPU according to the driver's accounting;
//! - the process is stopped, or was observed unused for a few seconds.
//!
//! A process that was observed working, or that used a GPU for most of its lifetime, must be unused for a tenth of
//! the duration. A process that resumed work after a pause must be unused for longer than that pause.
//!
//! Never a suspect: a process that has a finding, is kept, or currently uses a GPU or the CPU. Unknown facts never
//! support a suspicion. Only kinds that `reap` includes by default have suspects.

use std::cmp::Reverse;
use std::sync::Arc;

use foldhash::HashSet;

use super::exemption::{self, KeepRules};
use super::subject;
use crate::history::counter::Mean;
use crate::history::{Began, History, ProcessHistory, RowHistory, Use};
use crate::model::escape::escape;
use crate::model::finding::{FindingGpu, FindingProcess};
use crate::model::snapshot::ProcessType;
use crate::model::snapshot::ProcessesByPid;
use crate::model::suspect::{SeenSoFar, StillMissing, Suspect, SuspectEvidence};
use crate::model::{Identity, Kind, Process, Snapshot, Time};
use crate::units::Span;

/// Lifetime CPU use, in percent of a core, below which a process has done almost no work.
const LITTLE_CPU_PERCENT: f64 = 5.0;
/// Maximum lifetime GPU use, in percent, of a process that has barely used its GPUs. The driver rounds the value.
const LITTLE_GPU_PERCENT: u32 = 5;
/// Lifetime GPU use, in percent, above which a process works mostly on the GPU.
const MUCH_GPU_PERCENT: u32 = 50;
/// Maximum time, in seconds, for which a process that was not observed working must be unused.
const LEAST_SECONDS: f64 = 10.0;
/// Time for which a process that was observed working must be unused, as a share of the duration.
const LEAST_SHARE: f64 = 0.1;
/// Maximum age, in seconds, at which a CPU reading is still usable.
const OLDEST_CPU_SECONDS: f64 = 60.0;
/// The suggested `gpumem check --window` exceeds the duration by this many seconds, so that the duration fits into
/// the window.
const MARGIN_SECONDS: f64 = 5.0;

/// A process that meets the conditions of a rule, but not yet for the duration.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Candidate {
    pub(super) rule: Arc<str>,
    pub(super) kind: Kind,
    pub(super) process: Identity,
    pub(super) gpus: Vec<FindingGpu>,
    pub(super) since: Time,
    pub(super) began: Began,
    pub(super) samples: u64,
    pub(super) needed: f64,
    /// CPU use, in percent of a core, at or above which the process is considered working.
    pub(super) max_cpu_percent: f64,
    /// Longest pause, in seconds, after which the process resumed work, or 0 if it was never observed to resume.
    pub(super) longest_pause: f64,
}

impl Candidate {
    /// Merges one rule's candidates for a process. The result has the latest start and the strictest limits.
    fn merge(same_process: &[Self]) -> Option<Self> {
        let mut merged = same_process.iter().max_by_key(|candidate| candidate.since)?.clone();
        merged.gpus = subject::merge_rows(
            same_process.iter().flat_map(|candidate| candidate.gpus.iter().cloned()),
        );
        for candidate in same_process {
            merged.samples = merged.samples.min(candidate.samples);
            merged.needed = merged.needed.max(candidate.needed);
            merged.longest_pause = merged.longest_pause.max(candidate.longest_pause);
            merged.max_cpu_percent = merged.max_cpu_percent.min(candidate.max_cpu_percent);
        }
        Some(merged)
    }
}

/// Returns the suspects among the candidates, at most one per process, largest first. Skips the processes in `found`,
/// which already have findings.
pub(super) fn suspects(
    (history, snapshot, processes): (&History, &Snapshot, &ProcessesByPid<'_>),
    found: &HashSet<Identity>,
    keep_rules: KeepRules<'_>,
    mut candidates: Vec<Candidate>,
) -> Vec<Suspect> {
    candidates.retain(|candidate| !found.contains(&candidate.process));
    // If several kinds have candidates for a process, the first kind is reported.
    candidates.sort_by(|a, b| (a.process, a.kind, &a.rule).cmp(&(b.process, b.kind, &b.rule)));
    let mut suspects: Vec<Suspect> = Vec::new();
    let mut rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
    let has_accounts = rows.any(|row| row.lifetime_percent.is_some());
    for same_process in candidates.chunk_by(|a, b| a.process == b.process && a.rule == b.rule) {
        let identity = same_process[0].process;
        let is_listed = suspects.last().is_some_and(|last| last.process.identity == identity);
        let process = processes.get(identity.pid).filter(|process| process.identity() == identity);
        if let Some(candidate) = Candidate::merge(same_process)
            && !is_listed
            && let (Some(process), Some(process_history)) = (process, history.process(identity))
        {
            let life = has_accounts.then(|| GpuLife::new(process, snapshot)).flatten();
            let kind_and_rule = (candidate.kind, &candidate.rule);
            let is_kept = || {
                exemption::kept_by(
                    keep_rules,
                    (process, Some(process_history)),
                    kind_and_rule,
                    snapshot,
                )
                .is_some()
            };
            let input = SuspectInput {
                now: snapshot.time,
                process,
                process_history,
                life,
                candidate: &candidate,
            };
            if input.is_suspect() && !is_kept() {
                suspects.push(input.to_suspect());
            }
        }
    }
    suspects.sort_by_key(|suspect| (Reverse(suspect.memory_bytes), suspect.process.pid));
    suspects
}

#[derive(Clone, Copy)]
struct GpuLife {
    /// Use of the most heavily used GPU, in percent.
    percent: u32,
    since: Time,
    /// Whether the driver's accounting covers the process on all of its GPUs.
    is_whole: bool,
}

impl GpuLife {
    fn new(process: &Process, snapshot: &Snapshot) -> Option<Self> {
        let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
        let rows = rows.filter(|row| row.pid == process.pid && row.kind != ProcessType::Graphics);
        let lives: Vec<Option<(u32, Time)>> = rows.map(|row| row.lifetime_of(process)).collect();
        let (percent, since) = *lives.iter().flatten().max_by_key(|(percent, _)| *percent)?;
        Some(Self { percent, since, is_whole: lives.iter().all(Option::is_some) })
    }
}

struct SuspectInput<'a> {
    now: Time,
    process: &'a Process,
    process_history: &'a ProcessHistory,
    life: Option<GpuLife>,
    candidate: &'a Candidate,
}

impl SuspectInput<'_> {
    fn seconds(&self) -> f64 {
        self.now.seconds_since(self.candidate.since).max(0.0)
    }

    fn is_suspect(&self) -> bool {
        // A stopped process does not work now, even if it worked before.
        if self.candidate.kind == Kind::Stopped {
            return true;
        }
        let mean = self.process_history.cpu().mean(self.candidate.needed);
        self.is_quiet(mean) && (self.is_known_quiet() || self.was_observed_quiet(mean.is_some()))
    }

    /// Returns whether the process is known to use neither its GPUs nor the CPU now. `mean` is the CPU use over the
    /// duration, if known.
    fn is_quiet(&self, mean: Option<Mean>) -> bool {
        let is_unused = |row: &RowHistory| {
            row.last_seen() == self.now
                && matches!(row.last_use(), Use::NotUsed(_))
                && row.run().is_some_and(|run| !run.is_unexplained())
        };
        let cpu = self.process_history.cpu();
        let is_recent = |at: Time| self.now.seconds_since(at) <= OLDEST_CPU_SECONDS;
        let max_percent = self.candidate.max_cpu_percent;
        let last = self.cpu_percent();
        let may_run = match self.process.state {
            // The process is doing disk I/O.
            Some('D') => true,
            Some('R') => last.is_none(),
            _ => false,
        };
        !may_run
            && self.rows().all(is_unused)
            && cpu.known_at().is_some_and(is_recent)
            && mean.is_none_or(|mean| mean.percent < max_percent)
            && last.is_none_or(|percent| percent < max_percent)
    }

    /// Returns whether facts from outside the history (the notebook server, CPU time and accounting) show that the
    /// process waits.
    fn is_known_quiet(&self) -> bool {
        let needed = self.candidate.needed;
        if let Some(seconds) = self.inactive_seconds() {
            return seconds >= needed;
        }
        let Some((cpu, age)) = self.lifetime().filter(|(_, age)| *age >= needed) else {
            return false;
        };
        // If the accounting shows little GPU use, the CPU limit of the rule applies instead of `LITTLE_CPU_PERCENT`.
        let most_cpu = match self.life {
            None => LITTLE_CPU_PERCENT,
            Some(life) if life.percent > LITTLE_GPU_PERCENT => return false,
            Some(life) if life.is_whole && self.now.seconds_since(life.since) >= needed => {
                self.candidate.max_cpu_percent.max(LITTLE_CPU_PERCENT)
            }
            Some(_) => LITTLE_CPU_PERCENT,
        };
        self.candidate.began == Began::Unwitnessed && cpu < age * most_cpu / 100.0
    }

    fn mostly_worked(&self) -> bool {
        self.life.is_some_and(|life| life.percent > MUCH_GPU_PERCENT)
    }

    /// Returns whether the process was observed unused for long enough and did not start recently.
    fn was_observed_quiet(&self, has_cpu: bool) -> bool {
        let needed = self.candidate.needed;
        let share = needed * LEAST_SHARE;
        let min_seconds = match self.candidate.began {
            Began::Unwitnessed if !self.mostly_worked() => LEAST_SECONDS.min(share),
            Began::Unwitnessed | Began::Witnessed | Began::AfterDeviceUse => share,
        };
        let is_settled = self.age_seconds().is_none_or(|age| age >= share);
        // CPU use is known only from the second sample on.
        is_settled
            && has_cpu
            && self.observed_seconds() >= min_seconds.max(self.candidate.longest_pause)
    }

    /// Returns for how many seconds the process was observed unused, including the time before the first snapshot
    /// that the driver's samples cover.
    fn observed_seconds(&self) -> f64 {
        let before = || {
            let runs = self.rows().filter_map(|row| Some(row.run()?.seconds_before));
            runs.reduce(f64::min).unwrap_or(0.0)
        };
        self.seconds()
            + match self.candidate.began {
                Began::Unwitnessed => before(),
                Began::Witnessed | Began::AfterDeviceUse => 0.0,
            }
    }

    fn cpu_percent(&self) -> Option<f64> {
        let own_percent = self.process.cpu_percent?;
        match self.process.descendants.as_deref() {
            Some(descendants) => Some(own_percent + descendants.cpu_percent?),
            None => Some(own_percent),
        }
    }

    /// Returns the CPU time of the process and its descendants, and the age of the process, both in seconds. Returns
    /// `None` if either is unknown.
    fn lifetime(&self) -> Option<(f64, f64)> {
        let own_seconds = self.process.cpu_seconds?;
        let cpu = match self.process.descendants.as_deref() {
            Some(descendants) => own_seconds + descendants.cpu_seconds?,
            None => own_seconds,
        };
        Some((cpu, self.age_seconds()?))
    }

    fn age_seconds(&self) -> Option<f64> {
        let age = self.now.seconds_since(self.process.start_time?);
        (age >= 0.0).then_some(age)
    }

    /// Returns the seconds since a notebook kernel was last active, or `None` if its server does not report it as idle.
    fn inactive_seconds(&self) -> Option<f64> {
        let kernel = self.process.jupyter.as_deref()?;
        let is_idle = kernel.execution_state.as_deref() == Some("idle");
        let last = self.process.last_activity().filter(|_| is_idle)?;
        Some(self.now.seconds_since(last).max(0.0))
    }

    fn rows(&self) -> impl Iterator<Item = &RowHistory> {
        let rows = self.process_history.rows().iter();
        rows.filter(|row| row.kind() != ProcessType::Graphics)
    }

    fn evidence(&self) -> SuspectEvidence {
        let candidate = self.candidate;
        if candidate.kind == Kind::Stopped {
            return SuspectEvidence {
                samples: candidate.samples,
                state: self.process.state,
                ..SuspectEvidence::default()
            };
        }
        let mut runs = self.rows().filter_map(RowHistory::run).peekable();
        let is_listed = runs.peek().is_some();
        let by_device = runs.any(|run| run.by_device > 0);
        let lifetime = self.lifetime();
        let inactive_seconds = self.inactive_seconds();
        SuspectEvidence {
            samples: candidate.samples,
            sm_percent_max: (is_listed && !by_device).then_some(0),
            gpu_percent_max: by_device.then_some(0),
            cpu_seconds: lifetime.map(|(cpu, _)| cpu),
            age_seconds: lifetime.map(|(_, age)| age),
            lifetime_percent: self.life.map(|life| life.percent),
            lifetime_seconds: self.life.map(|life| self.now.seconds_since(life.since).max(0.0)),
            last_activity: inactive_seconds.and(self.process.last_activity()),
            inactive_seconds,
            paused_seconds: Some(candidate.longest_pause).filter(|seconds| *seconds > 0.0),
            state: None,
            job_gone: (candidate.kind == Kind::Orphan).then_some(true),
        }
    }

    fn message(&self) -> String {
        let looks = match self.candidate.kind {
            Kind::Stopped => "is stopped",
            Kind::Orphan => "may have outlived its job",
            _ => "may be idle",
        };
        let name = super::name_of(self.process);
        let held = subject::describe_memory(&self.candidate.gpus);
        format!("{name} ({}) holds {held} and {looks}", self.process.pid)
    }

    fn to_suspect(&self) -> Suspect {
        let candidate = self.candidate;
        let (seconds, needed, kind) = (self.seconds(), candidate.needed, candidate.kind);
        let due = candidate.since.plus_seconds(needed);
        Suspect {
            rule: Arc::clone(&candidate.rule),
            kind,
            process: FindingProcess::new(self.process),
            memory_bytes: subject::total_bytes(&candidate.gpus),
            since: candidate.since,
            seen_seconds: seconds,
            needed_seconds: needed,
            due,
            evidence: self.evidence(),
            mark: SeenSoFar { kind, seconds: seconds as u64, needed: Span::from_seconds(needed) },
            message: escape(&self.message()).into(),
            missing: StillMissing {
                seconds: due.seconds_since(self.now).ceil().max(0.0) as u64,
                is_recorded: candidate.began == Began::Witnessed,
            },
            command: command(candidate.kind, needed).into(),
            gpus: candidate.gpus.clone(),
        }
    }
}

fn command(kind: Kind, needed: f64) -> String {
    let window = Span::from_seconds((needed + MARGIN_SECONDS).ceil()).exact();
    format!("gpumem check --kind {kind} --window {window}")
}

#[cfg(test)]
mod tests;
