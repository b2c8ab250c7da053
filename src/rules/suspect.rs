//! Processes that look like waste before a rule can prove it.
//!
//! The rules report candidates, which meet all conditions except the time. This module decides whether facts
//! without a history already support the suspicion:
//!
//! - a notebook's server has reported it idle for longer than the rule needs;
//! - the process used almost no CPU in its lifetime or, by the driver's accounting, almost none of its GPUs;
//! - the process is stopped, or was observed unused for some seconds.
//!
//! A process that used a GPU for most of its lifetime must be unused for as long as one that was just observed
//! working. A process that resumed work after a pause must be unused for longer than that pause.
//!
//! Never a suspect: a process with a finding; one that is kept; one that is busy now on any GPU or the CPU; one
//! that the rule could not decide later either. An unknown fact is no reason for suspicion. Only kinds that `reap`
//! includes by default are suspected, because waiting is a server's work.

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

/// Lifetime CPU use, in percent of a core, below which a process has mostly waited.
const LITTLE_CPU_PERCENT: f64 = 5.0;
/// Lifetime GPU use, in percent as the driver rounds it, below which a process hardly needed its GPUs.
const LITTLE_GPU_PERCENT: u32 = 5;
/// Lifetime GPU use, in percent, above which a process works there.
const MUCH_GPU_PERCENT: u32 = 50;
/// How long, in seconds, a process must be unused before it can be a suspect.
const LEAST_SECONDS: f64 = 10.0;
/// The share of the rule's duration that a process just observed working must be unused.
const LEAST_SHARE: f64 = 0.1;
/// CPU use of this age, in seconds, counts as unknown.
const OLDEST_CPU_SECONDS: f64 = 60.0;
/// A window that must contain the whole duration begins this many seconds earlier.
const MARGIN_SECONDS: f64 = 5.0;

/// A process that meets a rule's conditions except for the time.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Candidate {
    pub(super) rule: Arc<str>,
    pub(super) kind: Kind,
    pub(super) process: Identity,
    pub(super) gpus: Vec<FindingGpu>,
    pub(super) since: Time,
    pub(super) began: Began,
    pub(super) samples: u64,
    /// How long the rule requires, in seconds.
    pub(super) needed: f64,
    /// The CPU use from which the process counts as working.
    pub(super) max_cpu_percent: f64,
    /// The longest pause after which the process resumed work, in seconds; 0 if none was observed.
    pub(super) longest_pause: f64,
}

impl Candidate {
    /// Merges a rule's candidates on the GPUs of a process; the start is when all conditions hold.
    fn joined(of_one: &[Self]) -> Option<Self> {
        let mut joined = of_one.iter().max_by_key(|it| it.since)?.clone();
        joined.gpus = subject::by_gpu(of_one.iter().flat_map(|it| it.gpus.iter().cloned()));
        for it in of_one {
            joined.samples = joined.samples.min(it.samples);
            joined.needed = joined.needed.max(it.needed);
            joined.longest_pause = joined.longest_pause.max(it.longest_pause);
            joined.max_cpu_percent = joined.max_cpu_percent.min(it.max_cpu_percent);
        }
        Some(joined)
    }
}

/// The suspects among a sample's candidates, largest first, each process once. Processes in `found` have findings.
pub(super) fn suspects(
    (history, snapshot, processes): (&History, &Snapshot, &ProcessesByPid<'_>),
    found: &HashSet<Identity>,
    keep_rules: KeepRules<'_>,
    mut candidates: Vec<Candidate>,
) -> Vec<Suspect> {
    candidates.retain(|it| !found.contains(&it.process));
    // As for several findings on a process, the kind that needs action comes first.
    candidates.sort_by(|a, b| (a.process, a.kind, &a.rule).cmp(&(b.process, b.kind, &b.rule)));
    let mut suspects: Vec<Suspect> = Vec::new();
    let mut rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
    let has_accounts = rows.any(|row| row.lifetime_percent.is_some());
    for of_one in candidates.chunk_by(|a, b| a.process == b.process && a.rule == b.rule) {
        let identity = of_one[0].process;
        let is_named = suspects.last().is_some_and(|last| last.process.identity == identity);
        let process = processes.get(identity.pid).filter(|it| it.identity() == identity);
        if let Some(candidate) = Candidate::joined(of_one)
            && !is_named
            && let (Some(process), Some(known)) = (process, history.process(identity))
        {
            let life = has_accounts.then(|| GpuLife::of(process, snapshot)).flatten();
            let about = (candidate.kind, &candidate.rule);
            let is_kept = || {
                exemption::kept_by(keep_rules, (process, Some(known)), about, snapshot).is_some()
            };
            let input =
                SuspectInput { now: snapshot.time, process, known, life, candidate: &candidate };
            if input.is_suspect() && !is_kept() {
                suspects.push(input.suspect());
            }
        }
    }
    suspects.sort_by_key(|it| (Reverse(it.memory_bytes), it.process.pid));
    suspects
}

/// How much of its lifetime a process used GPUs, by the driver's accounting.
#[derive(Clone, Copy)]
struct GpuLife {
    /// Use of the most used GPU, in percent.
    percent: u32,
    since: Time,
    /// Whether every GPU of the process has an account of it.
    is_whole: bool,
}

impl GpuLife {
    fn of(process: &Process, snapshot: &Snapshot) -> Option<Self> {
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
    known: &'a ProcessHistory,
    life: Option<GpuLife>,
    candidate: &'a Candidate,
}

impl SuspectInput<'_> {
    /// For how long the conditions were observed, in seconds.
    fn seconds(&self) -> f64 {
        self.now.seconds_since(self.candidate.since).max(0.0)
    }

    fn is_suspect(&self) -> bool {
        // A stopped process does nothing, even if it worked before.
        if self.candidate.kind == Kind::Stopped {
            return true;
        }
        let mean = self.known.cpu().mean(self.candidate.needed);
        self.is_quiet(mean) && (self.is_known_quiet() || self.was_seen_quiet(mean.is_some()))
    }

    /// Whether the process is known not to work on any GPU or the CPU; `mean`: CPU use over the rule's time.
    fn is_quiet(&self, mean: Option<Mean>) -> bool {
        let is_unused = |row: &RowHistory| {
            row.last_seen() == self.now
                && matches!(row.last_use(), Use::NotUsed(_))
                && row.run().is_some_and(|run| !run.is_unexplained())
        };
        let cpu = self.known.cpu();
        let is_recent = |at: Time| self.now.seconds_since(at) <= OLDEST_CPU_SECONDS;
        let most = self.candidate.max_cpu_percent;
        let last = self.cpu_percent();
        let may_run = match self.process.state {
            // The process does disk I/O.
            Some('D') => true,
            Some('R') => last.is_none(),
            _ => false,
        };
        !may_run
            && self.rows().all(is_unused)
            && cpu.known_at().is_some_and(is_recent)
            && mean.is_none_or(|mean| mean.percent < most)
            && last.is_none_or(|percent| percent < most)
    }

    /// Whether facts known without a history show that the process waits.
    fn is_known_quiet(&self) -> bool {
        let needed = self.candidate.needed;
        if let Some(seconds) = self.inactive_seconds() {
            return seconds >= needed;
        }
        let Some((cpu, age)) = self.lifetime().filter(|(_, age)| *age >= needed) else {
            return false;
        };
        // A process that hardly used a GPU may have used more CPU, but no more than the rule allows.
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

    /// Whether the process worked on a GPU for most of its lifetime, by the driver's accounting.
    fn works_mostly(&self) -> bool {
        self.life.is_some_and(|it| it.percent > MUCH_GPU_PERCENT)
    }

    /// Whether the process was observed waiting for some seconds, and did not just start.
    fn was_seen_quiet(&self, has_cpu: bool) -> bool {
        let needed = self.candidate.needed;
        let share = needed * LEAST_SHARE;
        let least = match self.candidate.began {
            Began::Unwitnessed if !self.works_mostly() => LEAST_SECONDS.min(share),
            Began::Unwitnessed | Began::Witnessed | Began::AfterDeviceUse => share,
        };
        let is_settled = self.age_seconds().is_none_or(|age| age >= share);
        // CPU use is known only from the second sample on.
        is_settled && has_cpu && self.watched_seconds() >= least.max(self.candidate.longest_pause)
    }

    /// Seconds for which the conditions were observed, including driver samples before the first snapshot.
    fn watched_seconds(&self) -> f64 {
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

    /// CPU use of the process and its descendants; `None` if unknown.
    fn cpu_percent(&self) -> Option<f64> {
        let own = self.process.cpu_percent?;
        match self.process.descendants.as_deref() {
            Some(below) => Some(own + below.cpu_percent?),
            None => Some(own),
        }
    }

    /// CPU time of the process and its descendants, and the time since the process started; in seconds.
    fn lifetime(&self) -> Option<(f64, f64)> {
        let own = self.process.cpu_seconds?;
        let cpu = match self.process.descendants.as_deref() {
            Some(below) => own + below.cpu_seconds?,
            None => own,
        };
        Some((cpu, self.age_seconds()?))
    }

    fn age_seconds(&self) -> Option<f64> {
        let age = self.now.seconds_since(self.process.start_time?);
        (age >= 0.0).then_some(age)
    }

    /// How long ago a notebook was last active, if its server reports it idle.
    fn inactive_seconds(&self) -> Option<f64> {
        let kernel = self.process.jupyter.as_deref()?;
        let is_idle = kernel.execution_state.as_deref() == Some("idle");
        let last = self.process.last_activity().filter(|_| is_idle)?;
        Some(self.now.seconds_since(last).max(0.0))
    }

    fn rows(&self) -> impl Iterator<Item = &RowHistory> {
        let rows = self.known.rows().iter();
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
            _ => "looks idle",
        };
        let name = super::name_of(self.process);
        let held = subject::held(&self.candidate.gpus);
        format!("{name} ({}) holds {held} and {looks}", self.process.pid)
    }

    fn suspect(&self) -> Suspect {
        let candidate = self.candidate;
        let (seconds, needed, kind) = (self.seconds(), candidate.needed, candidate.kind);
        let due = candidate.since.plus_seconds(needed);
        Suspect {
            rule: Arc::clone(&candidate.rule),
            kind,
            process: FindingProcess::of(self.process),
            memory_bytes: subject::sum(&candidate.gpus),
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

/// The command that watches for as long as the rule needs.
fn command(kind: Kind, needed: f64) -> String {
    let window = Span::from_seconds((needed + MARGIN_SECONDS).ceil()).exact();
    format!("gpumem check --kind {kind} --window {window}")
}

#[cfg(test)]
mod tests;
