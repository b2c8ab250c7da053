//! Which processes look like waste before a rule can prove it.
//!
//! The rules name the candidates: what meets each of their conditions and has not been seen for long
//! enough. Here it is asked whether a first look already speaks against them, by what is known without a
//! history: that a notebook's server calls it idle for longer than the rule asks for, that a process has
//! used next to no CPU in all its life or, by the driver's accounting, next to none of its GPUs, that it is
//! stopped; or that it was seen unused for some seconds. Who used a GPU for most of its life has to be seen
//! unused for as long as one that was seen at work just before.
//!
//! Never a suspect: a process with a finding, one that is kept, one that is busy now on any GPU or on the
//! CPU, and one that the rule could not decide later either. Unknown is no reason to suspect a process.
//! Kinds only that `reap` takes by default: a server that waits does its work.

use std::cmp::Reverse;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::exemption::{self, KeepRules};
use super::subject;
use crate::advice::quote;
use crate::history::cpu::Mean;
use crate::history::{Began, History, ProcessHistory, RowHistory, Use};
use crate::model::finding::FindingGpu;
use crate::model::process::{Jupyter, Parent};
use crate::model::processes_by_pid::ProcessesByPid;
use crate::model::shared::equal;
use crate::model::snapshot::ProcessType;
use crate::model::suspect::{SeenSoFar, StillMissing, Suspect, SuspectEvidence};
use crate::model::{Identity, Kind, Process, Snapshot, Time};
use crate::units::Span;

/// A process that used less of a core than this in all its life has waited for most of it. Percent.
const LITTLE_CPU_PERCENT: f64 = 5.0;
/// A process that used its GPUs for less of its life than this has hardly needed them. Percent; the driver
/// rounds it.
const LITTLE_GPU_PERCENT: u32 = 5;
/// One that used a GPU for more of its life than this works there. Percent.
const MUCH_GPU_PERCENT: u32 = 50;
/// Seen unused for as long, what was going on before may be over.
const LEAST_SECONDS: f64 = 10.0;
/// Where it was seen at work just before, a pause of this share of the rule's duration is nothing yet.
const LEAST_SHARE: f64 = 0.1;
/// CPU use that was not told for longer than this is unknown.
const OLDEST_CPU_SECONDS: f64 = 60.0;
/// A window that is to hold the whole duration begins a little before it.
const MARGIN_SECONDS: f64 = 5.0;

/// What meets the conditions of a rule but for the time that it takes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Candidate {
    pub(super) rule: Arc<str>,
    pub(super) kind: Kind,
    pub(super) process: Identity,
    /// Where it holds memory.
    pub(super) gpus: CandidateGpus,
    /// Since when it has been seen so.
    pub(super) since: Time,
    /// Whether that is since when it is so.
    pub(super) began: Began,
    pub(super) samples: u64,
    /// How long it has to be so, in seconds.
    pub(super) needed: f64,
    /// With this CPU use or more it is at work.
    pub(super) max_cpu_percent: f64,
    /// The rule will not be able to tell then either.
    pub(super) is_undecidable: bool,
}

/// Where a candidate holds memory: nearly all are on one GPU, and come anew in each sample.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum CandidateGpus {
    One(FindingGpu),
    /// In the order of a finding's.
    Several(Vec<FindingGpu>),
}

impl CandidateGpus {
    fn as_slice(&self) -> &[FindingGpu] {
        match self {
            Self::One(gpu) => std::slice::from_ref(gpu),
            Self::Several(gpus) => gpus,
        }
    }

    fn into_vec(self) -> Vec<FindingGpu> {
        match self {
            Self::One(gpu) => vec![gpu],
            Self::Several(gpus) => gpus,
        }
    }
}

/// The suspects of the last sample.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    list: Vec<Suspect>,
    named: HashMap<Identity, NamedSuspect>,
}

/// What a suspect's name was made of, and where it is in the list: as long as it is called the same and holds the
/// same, nothing that is said of it is written again.
#[derive(Debug)]
struct NamedSuspect {
    at: usize,
    command: Option<Arc<[Arc<str>]>>,
    executable: Option<Arc<str>>,
    comm: Option<Arc<str>>,
    parent: Option<Arc<Parent>>,
    jupyter: Option<Arc<Jupyter>>,
}

impl NamedSuspect {
    fn new(process: &Process) -> Self {
        Self {
            at: 0,
            command: process.command.clone(),
            executable: process.executable.clone(),
            comm: process.comm.clone(),
            parent: process.parent.clone(),
            jupyter: process.jupyter.clone(),
        }
    }

    /// Whether the process is called the same; only of one that has not ended.
    fn is_name_of(&self, process: &Process) -> bool {
        equal(&self.command, &process.command)
            && equal(&self.executable, &process.executable)
            && equal(&self.comm, &process.comm)
            && self.parent == process.parent
            && self.jupyter == process.jupyter
    }
}

/// Whether the same is held on the same GPUs.
fn hold_the_same(one: &[FindingGpu], other: &[FindingGpu]) -> bool {
    let is_same = |(one, other): (&FindingGpu, &FindingGpu)| {
        (one.index, one.used_bytes) == (other.index, other.used_bytes)
            && equal(&one.uuid, &other.uuid)
    };
    one.len() == other.len() && one.iter().zip(other).all(is_same)
}

impl Suspects {
    /// The one that holds most first; each process once.
    pub(super) fn list(&self) -> &[Suspect] {
        &self.list
    }

    /// Takes those among the candidates of the next sample. Of those in `found` something is found.
    pub(super) fn observe(
        &mut self,
        (history, snapshot, processes): (&History, &Snapshot, &ProcessesByPid<'_>),
        found: &HashSet<Identity>,
        keep_rules: KeepRules<'_>,
        mut candidates: Vec<Candidate>,
    ) {
        candidates.retain(|it| !it.is_undecidable && !found.contains(&it.process));
        if candidates.is_empty() {
            *self = Self::default();
            return;
        }
        // As of several findings of a process, the kind about which something is to be done first.
        // The processes of a snapshot are in the order of their numbers already, mostly.
        let rank = |it: &Candidate| (it.process, it.kind);
        let is_behind = |a: &Candidate, b: &Candidate| (rank(a), &a.rule) <= (rank(b), &b.rule);
        if !candidates.is_sorted_by(is_behind) {
            candidates.sort_by(|a, b| (rank(a), &a.rule).cmp(&(rank(b), &b.rule)));
        }
        let lives = GpuLives::new(snapshot, processes);
        let mut before = std::mem::take(&mut self.list);
        self.list.reserve_exact(before.len());
        let mut texts = RuleTexts::default();
        let mut last = None;
        let mut candidates = candidates.into_iter().peekable();
        while let Some(mut candidate) = candidates.next() {
            let identity = candidate.process;
            let is_of_it = |it: &Candidate| it.process == identity && it.rule == candidate.rule;
            let others: Vec<Candidate> =
                std::iter::from_fn(|| candidates.next_if(is_of_it)).collect();
            if last == Some(identity) {
                continue;
            }
            candidate.join(others);
            let Some(process) = processes.get(identity.pid) else {
                continue;
            };
            let Some(known) = history.process(identity) else {
                continue;
            };
            let input = SuspectInput {
                now: snapshot.time,
                process,
                known,
                life: lives.of(identity.pid),
                candidate,
            };
            let about = (input.candidate.kind, &input.candidate.rule);
            if process.identity() == identity
                && input.is_suspect()
                && exemption::kept_by(keep_rules, (process, Some(known)), about, snapshot).is_none()
            {
                texts.be_of(&input.candidate);
                let suspect = match self.last_of(&input, &mut before) {
                    Some(last) => {
                        let gpus = std::mem::take(&mut last.gpus);
                        input.suspect(&texts, Arc::clone(&last.message), gpus)
                    }
                    None => input.named(&texts),
                };
                self.list.push(suspect);
                last = Some(identity);
            }
        }
        // A suspect is large: it is put into its place once, and not moved about until it has it.
        let rank = |it: &Suspect| (it.memory_bytes, Reverse(it.process.pid));
        self.list.sort_by_cached_key(|it| Reverse(rank(it)));
        self.find_places();
    }

    /// The suspect of the last sample, where it is called the same and holds the same.
    fn last_of<'a>(
        &mut self,
        input: &SuspectInput<'_>,
        before: &'a mut [Suspect],
    ) -> Option<&'a mut Suspect> {
        let (process, candidate) = (input.process, &input.candidate);
        if let Some(named) = self.named.get(&candidate.process)
            && named.is_name_of(process)
            && let Some(last) = before.get_mut(named.at)
            && (last.kind, last.process.identity) == (candidate.kind, candidate.process)
            && hold_the_same(&last.gpus, candidate.gpus.as_slice())
        {
            return Some(last);
        }
        self.named.insert(candidate.process, NamedSuspect::new(process));
        None
    }

    /// Takes down where each is, and forgets who is none any more.
    fn find_places(&mut self) {
        if self.named.len() > self.list.len() {
            let ids: HashSet<Identity> = self.list.iter().map(|it| it.process.identity).collect();
            self.named.retain(|id, _| ids.contains(id));
        }
        for (at, suspect) in self.list.iter().enumerate() {
            if let Some(named) = self.named.get_mut(&suspect.process.identity) {
                named.at = at;
            }
        }
    }
}

impl Candidate {
    /// Takes in what the same rule says of other GPUs of the process: it is so since it is so on all of them.
    fn join(&mut self, others: Vec<Self>) {
        if others.is_empty() {
            return;
        }
        let mut gpus = self.gpus.as_slice().to_vec();
        for other in others {
            gpus.extend_from_slice(other.gpus.as_slice());
            if other.since > self.since {
                (self.since, self.began) = (other.since, other.began);
            }
            self.samples = self.samples.min(other.samples);
            self.needed = self.needed.max(other.needed);
            self.max_cpu_percent = self.max_cpu_percent.min(other.max_cpu_percent);
        }
        self.gpus = CandidateGpus::Several(subject::by_gpu(gpus.into_iter()));
    }
}

/// What is written alike of all suspects of a rule that asks for the same time: the command.
#[derive(Default)]
struct RuleTexts {
    of: Option<(Arc<str>, f64)>,
    command: Arc<str>,
}

impl RuleTexts {
    fn be_of(&mut self, candidate: &Candidate) {
        let needed = candidate.needed;
        let is_same = |(rule, time): &(Arc<str>, f64)| *rule == candidate.rule && *time == needed;
        if !self.of.as_ref().is_some_and(is_same) {
            self.of = Some((Arc::clone(&candidate.rule), needed));
            self.command = command(&candidate.rule, needed).into();
        }
    }
}

/// How much of its life a process used GPUs, by the driver's accounting.
#[derive(Clone, Copy)]
struct GpuLife {
    /// On the GPU that it used most of the time, in percent.
    percent: u32,
    /// Since when that GPU's account of it is.
    since: Time,
    /// Whether there is an account of it on every GPU that it is on.
    is_whole: bool,
}

/// The lives of all processes of which the driver keeps accounts.
#[derive(Default)]
struct GpuLives(HashMap<u32, GpuLife>);

impl GpuLives {
    fn new(snapshot: &Snapshot, processes: &ProcessesByPid<'_>) -> Self {
        let rows = || {
            let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
            let rows = rows.flatten();
            rows.filter(|row| row.kind != ProcessType::Graphics)
        };
        let mut lives: HashMap<u32, GpuLife> = HashMap::default();
        if !rows().any(|row| row.lifetime_percent.is_some()) {
            return Self::default();
        }
        let mut unknown = HashSet::default();
        for row in rows() {
            let process = processes.get(row.pid);
            let Some((percent, since)) = process.and_then(|it| row.lifetime_of(it)) else {
                unknown.insert(row.pid);
                continue;
            };
            let life = GpuLife { percent, since, is_whole: true };
            let known = lives.entry(row.pid).or_insert(life);
            if percent > known.percent {
                *known = life;
            }
        }
        for pid in unknown {
            if let Some(life) = lives.get_mut(&pid) {
                life.is_whole = false;
            }
        }
        Self(lives)
    }

    fn of(&self, pid: u32) -> Option<GpuLife> {
        self.0.get(&pid).copied()
    }
}

/// A candidate, and what is known of it now.
struct SuspectInput<'a> {
    now: Time,
    process: &'a Process,
    known: &'a ProcessHistory,
    life: Option<GpuLife>,
    candidate: Candidate,
}

impl SuspectInput<'_> {
    /// For how long it was seen so, in seconds.
    fn seconds(&self) -> f64 {
        self.now.seconds_since(self.candidate.since).max(0.0)
    }

    fn is_suspect(&self) -> bool {
        // A process that is stopped does nothing, whatever was seen of it before.
        if self.candidate.kind == Kind::Stopped {
            return true;
        }
        let mean = self.known.cpu().mean(self.candidate.needed);
        self.is_quiet(mean) && (self.is_known_quiet() || self.was_seen_quiet(mean.is_some()))
    }

    /// Whether nothing shows it at work: neither on any GPU that it is on, nor on the CPU, of which both
    /// are known. `mean` is its CPU use over the time that the rule asks for.
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
            // It reads or writes a disk.
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

    /// What is known without a history says that it waits.
    fn is_known_quiet(&self) -> bool {
        let needed = self.candidate.needed;
        if let Some(seconds) = self.inactive_seconds() {
            return seconds >= needed;
        }
        let Some((cpu, age)) = self.lifetime().filter(|(_, age)| *age >= needed) else {
            return false;
        };
        // Who hardly used a GPU may have done more on the CPU, but not what would be work by the rule.
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

    /// Whether the driver has it at work on a GPU for most of its life.
    fn works_mostly(&self) -> bool {
        self.life.is_some_and(|it| it.percent > MUCH_GPU_PERCENT)
    }

    /// It was seen to wait for some seconds, and did not start just now.
    fn was_seen_quiet(&self, has_cpu: bool) -> bool {
        let needed = self.candidate.needed;
        let share = needed * LEAST_SHARE;
        let least = match self.candidate.began {
            Began::Unwitnessed if !self.works_mostly() => LEAST_SECONDS.min(share),
            Began::Unwitnessed | Began::Witnessed | Began::AfterDeviceUse => share,
        };
        let is_settled = self.age_seconds().is_none_or(|age| age >= share);
        // What it uses of the CPU tells only from the second sample on.
        is_settled && has_cpu && self.watched_seconds() >= least
    }

    /// How long it was seen so, with the time before the first sample of which the driver told; seconds.
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

    /// What it uses of the CPU, with its descendants; `None` where that is not known.
    fn cpu_percent(&self) -> Option<f64> {
        let own = self.process.cpu_percent?;
        match self.process.descendants.as_deref() {
            Some(below) => Some(own + below.cpu_percent?),
            None => Some(own),
        }
    }

    /// What it and its descendants used of the CPU since it started, and how long ago that was; seconds.
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

    /// How long ago a notebook was last active, where its server calls it idle.
    fn inactive_seconds(&self) -> Option<f64> {
        let kernel = self.process.jupyter.as_deref()?;
        let is_idle = kernel.execution_state.as_deref() == Some("idle");
        let last = self.process.last_activity().filter(|_| is_idle)?;
        Some(self.now.seconds_since(last).max(0.0))
    }

    /// Its rows but for those of graphics.
    fn rows(&self) -> impl Iterator<Item = &RowHistory> {
        let rows = self.known.rows().iter();
        rows.filter(|row| row.kind() != ProcessType::Graphics)
    }

    fn evidence(&self) -> SuspectEvidence {
        let candidate = &self.candidate;
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
        let name = subject::name(self.process);
        let held = subject::held(self.candidate.gpus.as_slice());
        format!("{name} ({}) holds {held} and {looks}", self.process.pid)
    }

    /// The suspect that it is, with a sentence of its own.
    fn named(self, texts: &RuleTexts) -> Suspect {
        let (message, gpus) = (self.message().into(), self.candidate.gpus.clone());
        self.suspect(texts, message, gpus.into_vec())
    }

    /// The suspect that it is; `gpus` are the candidate's.
    fn suspect(self, texts: &RuleTexts, message: Arc<str>, gpus: Vec<FindingGpu>) -> Suspect {
        let candidate = &self.candidate;
        let (seconds, needed) = (self.seconds(), candidate.needed);
        let kind = candidate.kind;
        let due = candidate.since.plus_seconds(needed);
        let wait = due.seconds_since(self.now).ceil();
        Suspect {
            rule: Arc::clone(&candidate.rule),
            kind,
            process: subject::process(self.process),
            memory_bytes: subject::sum(&gpus),
            since: candidate.since,
            seen_seconds: seconds,
            needed_seconds: needed,
            due,
            evidence: self.evidence(),
            mark: SeenSoFar { kind, seconds: seconds as u64, needed: Span::from_seconds(needed) },
            message,
            missing: StillMissing {
                seconds: wait.max(0.0) as u64,
                is_witnessed: candidate.began == Began::Witnessed,
            },
            command: Arc::clone(&texts.command),
            gpus,
        }
    }
}

/// The command that watches for as long as the rule asks for.
fn command(rule: &str, needed: f64) -> String {
    let window = Span::from_seconds((needed + MARGIN_SECONDS).ceil()).exact();
    match quote(rule) {
        Some(rule) => format!("gpumem check --rule {rule} --window {window}"),
        None => format!("gpumem check --window {window}"),
    }
}

#[cfg(test)]
mod tests;
