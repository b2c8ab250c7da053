//! `idle`: a process holds memory on a GPU and has not used that GPU for some time.
//!
//! All of the following must be known:
//!
//! - how much memory the process holds;
//! - that the driver saw no use of the GPU by the process throughout the duration, with samples for three quarters
//!   of it. If the driver does not attribute use to processes, no process may have used the GPU;
//! - that the process used little CPU and neither allocated nor freed GPU memory meanwhile;
//! - for a notebook, that its server reports it neither busy nor recently active, or that its `cell` has run for
//!   hours without a sign of work.
//!
//! CPU and files cannot show whether a kernel waits for a network, another process or a person, so only its
//! server's report counts. If the report is missing, as for other users' kernels, the finding says so, has severity
//! `info`, and offers no action that ends the kernel. Nor does a finding on a kernel without a server, as in an
//! editor. A GPU that draws as much power as at work does not count as unused. Any unknown fact makes the rule
//! undecided.
//!
//! Never idle:
//!
//! - graphics: a desktop draws only when something changes;
//! - an inference server that listens: waiting is its work, and it has its own kind;
//! - a daemon of the Multi-Process Service, which waits for clients;
//! - a stopped process (`T`, `t`): an owner, a scheduler or a debugger stopped it and will resume it. The time
//!   before it was resumed does not count either;
//! - a dead process or zombie (`Z`, `X`), or a process in uninterruptible sleep (`D`) for two minutes: it can
//!   neither use a GPU nor be ended, and has other kinds. A shorter `D` is disk I/O;
//! - a desktop's compositor, whatever the driver lists it as, and a program that both draws and computes (Blender,
//!   a browser's GPU process): it is in both of the driver's lists, with a display in its environment;
//! - a process with a descendant working on a GPU. Descendants' CPU use counts as the process's own.
//!
//! A process that resumed work after a pause will probably do so again (a client waiting for its round, a worker
//! waiting for its queue). It is idle once this pause is 1.5 times its longest; until then it is a suspect. If it
//! resumed at least twice, the severity is `info` until the pause is three times its longest.
//!
//! A process that has not used its GPU since it started may still prepare its work, such as a compilation on
//! another machine. It is idle after three times the duration.
//!
//! One finding covers all idle GPUs of a process. If the process works on another GPU, no action ends it.
//!
//! [`server_idle`](super::server_idle) also uses `judge`.

mod cell;
mod finding;

use std::cell::OnceCell;

use super::lasting::{LEAST_COVERAGE, LEAST_CPU_SHARE, OLDEST_CPU_SECONDS, is_at_work, is_covered};
use super::rule::{ProcessInput, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::scope::ScopeInput;
use super::suspect::Candidate;
use super::undecided_reason::UndecidedReason;
use super::{server, stuck};
use crate::history::{Began, Device, ProcessHistory, RowHistory, Use};
use crate::model::finding::{FindingGpu, Kind, Severity};
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Process, Time};
use crate::units::{Bytes, GIB, Percent};
use cell::Cell;
pub use finding::IdleEvidence;
use finding::{IdleOn, finding};

pub static KIND: RuleKind = RuleKind {
    remark,
    process: judge,
    gpu,
    unresolved_row,
    ..RuleKind::new::<IdleEvidence>(
        Kind::Idle,
        "a process holds memory on a GPU and has not used that GPU for the duration",
        &[
            MIN_MEMORY,
            DURATION,
            MAX_CPU_PERCENT,
            (
                MAX_BUSY,
                "how long a running cell protects its notebook without output, CPU or GPU use",
            ),
            SEVERITY,
        ],
        DEFAULTS,
    )
};

/// Shared by the two kinds that measure idleness.
pub(super) const MIN_MEMORY: (&str, &str) =
    ("min_memory", "a job that holds less than this on a GPU is ignored");
pub(super) const DURATION: (&str, &str) = ("duration", "how long the GPU has to be unused");
pub(super) const MAX_CPU_PERCENT: (&str, &str) =
    ("max_cpu_percent", "with this mean CPU use or more it counts as working (one core is 100)");
/// The setting for how long a cell may run without a sign of work.
pub(super) const MAX_BUSY: &str = "max_busy";
pub(super) const DEFAULTS: Settings = Settings {
    min_memory: Bytes(GIB),
    duration: seconds(600),
    max_cpu_percent: Percent(20.0),
    max_busy: seconds(7200),
    ..Settings::NONE
};

/// A pause must exceed the longest one after which the process resumed work by this factor.
const LONGER_THAN_PAUSES: f64 = 1.5;
/// The same factor before any action may end a process that resumed work at least [`OFTEN`] times.
const SURELY_LONGER_THAN_PAUSES: f64 = 3.0;
const OFTEN: u32 = 2;
/// The duration is multiplied by this for a process that has not used its GPU since it started.
const START_FACTOR: f64 = 3.0;
/// A process counts as observed from its start if its first sample without use is at most this many seconds later.
const FROM_START_SECONDS: f64 = 120.0;
/// With fewer samples, the result may be chance.
const LEAST_SAMPLES: u64 = 3;

fn remark(settings: &Settings) -> Option<String> {
    let (busy, duration) = (settings.max_busy, settings.duration);
    (busy < duration).then(|| {
        format!("max_busy {busy} is raised to {duration}: it cannot be less than the duration")
    })
}

fn gpu(seen: RuleInput<'_>, gpu: &Gpu, _known: &Device, verdicts: &mut RuleOutput) {
    if let Some(doubt) = UndecidedReason::of_silent(gpu)
        && seen.settings_on(None, gpu).is_some()
    {
        verdicts.doubt(doubt);
    }
}

fn unresolved_row(
    seen: RuleInput<'_>,
    gpu: &Gpu,
    row: &GpuProcess,
    process: Option<&Process>,
    verdicts: &mut RuleOutput,
) {
    if row.kind == ProcessType::Graphics || Use::of(gpu, row) == Use::Used {
        return;
    }
    let subject = ScopeInput { held_bytes: row.used_bytes, ..seen.scope_on(process, gpu) };
    let may_hold =
        |settings: &Settings| row.used_bytes.is_none_or(|bytes| bytes >= settings.min_memory.0);
    if seen.rule.settings_for(&subject).is_some_and(|settings| may_hold(&settings)) {
        verdicts.doubt(UndecidedReason::Unresolved { pid: row.pid, gpu: gpu.index });
    }
}

pub(super) fn judge(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let ProcessInput { seen, process, known } = it;
    // The cheapest test first: nearly every process of a busy machine ends here.
    if known.rows_summary().uses_all {
        return;
    }
    let mut is_exempt = None;
    let is_active = OnceCell::new();
    let mut idle: Vec<IdleOn<'_>> = Vec::new();
    for row in known.rows() {
        if row.last_use() == Use::Used || row.kind() == ProcessType::Graphics {
            continue;
        }
        let Some(settings) = it.settings(row) else {
            continue;
        };
        if it.holds_enough(row, &settings) == Some(false) {
            continue;
        }
        let is_active = || *is_active.get_or_init(|| it.is_active());
        if *is_exempt.get_or_insert_with(|| is_never_idle(it)) {
            return;
        }
        let at = (seen.history, seen.snapshot.time);
        let cell = match cell::of(at, process, known, &settings, is_active) {
            Cell::None => None,
            Cell::Sleeps { since } => Some(since),
            Cell::Runs => return,
            Cell::Unknown(doubt) => {
                verdicts.doubt(doubt);
                continue;
            }
        };
        let candidate =
            IdleCandidate { it, row, index: seen.history.gpu_index(row), settings, cell };
        let needed = candidate.needed();
        match candidate.judge() {
            IdleAnswer::No => {}
            IdleAnswer::Unknown(doubt) => verdicts.doubt(doubt),
            IdleAnswer::NotYet { since } => {
                verdicts.suspect(candidate.suspect(since, Began::Witnessed));
                it.expect(candidate.index, since, needed, verdicts);
            }
            IdleAnswer::TooShort { since, seen } => {
                verdicts.suspect(candidate.suspect(since, Began::Unwitnessed));
                verdicts.doubt(UndecidedReason::ShortHistory { needed, seen });
            }
            IdleAnswer::Idle { evidence, since, until, bytes } => {
                let gpu = FindingGpu { used_bytes: Some(bytes), ..it.on(row) };
                let may_resume = row.resumed() >= OFTEN
                    && until.seconds_since(since) < SURELY_LONGER_THAN_PAUSES * row.longest_pause();
                let severity = if may_resume { Severity::Info } else { settings.severity };
                let on = IdleOn { row, gpu, severity, may_resume, needed, evidence, since, until };
                idle.push(on);
            }
        }
    }
    let least = idle.iter().map(|on| on.needed).fold(f64::INFINITY, f64::min);
    if !idle.is_empty() && descendants_use_a_gpu(seen, process, least) {
        return;
    }
    verdicts.findings.extend(finding(it, idle));
}

/// Whether a descendant used a GPU recently, or was not observed for long enough to exclude it.
pub(super) fn descendants_use_a_gpu(seen: RuleInput<'_>, process: &Process, seconds: f64) -> bool {
    let below = process.descendants.as_deref();
    let below = below.into_iter().flat_map(|it| &it.listed);
    below
        .filter_map(|pid| seen.history.process(seen.snapshot.process(*pid)?.identity()))
        .flat_map(ProcessHistory::rows)
        .any(|row| {
            row.kind() != ProcessType::Graphics
                && row.run().is_none_or(|run| run.seconds() < seconds)
        })
}

/// The exceptions that need no history; see the module's documentation.
fn is_never_idle(it: ProcessInput<'_>) -> bool {
    let ProcessInput { seen, process, known } = it;
    let asks_servers = asks_servers(it);
    // For other processes, the time in this state decides.
    let is_busy = asks_servers && cell::is_busy(process);
    let is_stopped = matches!(known.state(), Some(('T' | 't', _)));
    let cannot_run = is_stopped || stuck::is_beyond_signals(seen, known);
    // The MPS daemons wait for clients and hold memory for them.
    let is_mps = known.names().has_mps_role;
    is_busy
        || cannot_run
        || is_mps
        || known.is_desktop_or_machine()
        || server::is_server(process, known, seen.snapshot) != asks_servers
}

/// Whether the rule is for inference servers, for which waiting is work, or for all other processes.
fn asks_servers(it: ProcessInput<'_>) -> bool {
    it.seen.rule.kind() == Kind::ServerIdle
}

/// A process that may be idle on one GPU.
struct IdleCandidate<'a> {
    it: ProcessInput<'a>,
    row: &'a RowHistory,
    index: u32,
    settings: Settings,
    /// Since when the notebook's cell has run without a sign of work.
    cell: Option<Time>,
}

enum IdleAnswer {
    No,
    NotYet {
        since: Time,
    },
    /// The start was not observed, and the history is too short to decide.
    TooShort {
        since: Time,
        seen: f64,
    },
    Unknown(UndecidedReason),
    Idle {
        evidence: IdleEvidence,
        since: Time,
        until: Time,
        bytes: u64,
    },
}

impl IdleCandidate<'_> {
    fn asked(&self) -> f64 {
        let duration = self.settings.duration.seconds();
        match self.cell {
            Some(_) => duration.max(self.settings.max_busy.seconds()),
            None if self.is_starting() => duration * START_FACTOR,
            None => duration,
        }
    }

    /// Whether the process was observed from its start and has not used the GPU yet. Does not apply to durations
    /// under a minute, which people set to get findings at once.
    fn is_starting(&self) -> bool {
        if self.settings.duration.seconds() < 60.0 {
            return false;
        }
        let began = self.row.run().map(|run| run.since);
        let after_start = began.zip(self.it.process.start_time);
        !self.row.has_been_used()
            && after_start.is_some_and(|(began, start)| {
                began.seconds_since(start).abs() <= FROM_START_SECONDS
            })
    }

    fn needed(&self) -> f64 {
        self.asked().max(LONGER_THAN_PAUSES * self.row.longest_pause())
    }

    fn judge(&self) -> IdleAnswer {
        let ProcessInput { seen, process, known } = self.it;
        let (gpu, pid, needed) = (self.index, process.pid, self.needed());
        let Some(run) = self.row.run() else {
            return match (self.row.last_use(), self.row.before()) {
                (Use::DeviceUsed, _) => IdleAnswer::Unknown(UndecidedReason::NoUtilization { gpu }),
                // The GPU reports this itself, or the row has just disappeared. Neither is for this row to report.
                (Use::Unknown, Began::Unwitnessed) if self.is_shown() => {
                    IdleAnswer::Unknown(UndecidedReason::NoUtilization { gpu })
                }
                _ => IdleAnswer::No,
            };
        };
        // The process could not work before it was resumed, and a process that allocates or frees is working.
        let since = [known.resumed_at(), self.row.moved_at(), self.cell]
            .into_iter()
            .flatten()
            .fold(run.since, Time::max);
        let seconds = run.until.seconds_since(since);
        if self.was_active_within(needed, run.until) {
            return IdleAnswer::No;
        }
        if seconds < needed {
            return match run.began {
                // Until then, a running cell protects the process.
                _ if self.cell.is_some() => IdleAnswer::No,
                _ if since > run.since => IdleAnswer::NotYet { since },
                Began::Witnessed => IdleAnswer::NotYet { since },
                Began::AfterDeviceUse => {
                    IdleAnswer::Unknown(UndecidedReason::NoUtilization { gpu })
                }
                Began::Unwitnessed => IdleAnswer::TooShort { since, seen: seconds.max(0.0) },
            };
        }
        if run.is_unexplained() {
            return IdleAnswer::Unknown(UndecidedReason::Unexplained { gpu });
        }
        let cpu = known.cpu();
        let is_known = |at: Time| seen.snapshot.time.seconds_since(at) <= OLDEST_CPU_SECONDS;
        let asked = self.asked();
        let mean = cpu.known_at().filter(|at| is_known(*at)).and_then(|_| cpu.mean(asked));
        let Some(mean) = mean.filter(|mean| mean.seconds >= asked * LEAST_CPU_SHARE) else {
            return IdleAnswer::Unknown(UndecidedReason::NoCpu { pid });
        };
        let is_active = self.it.is_active();
        let most = self.settings.max_cpu_percent.0;
        let most = if is_active { most * 1.25 } else { most };
        if mean.percent >= most || is_at_work(known, most, asked) {
            return IdleAnswer::No;
        }
        let is_covered = is_covered(run.coverage(), is_active);
        if !is_covered || run.samples < LEAST_SAMPLES {
            return IdleAnswer::Unknown(UndecidedReason::Gaps {
                gpu,
                covered: run.coverage(),
                samples: run.samples,
                least_covered: LEAST_COVERAGE,
                least_samples: LEAST_SAMPLES,
            });
        }
        let Some(bytes) = self.row.used_bytes() else {
            return IdleAnswer::Unknown(UndecidedReason::NoMemory { pid, gpu });
        };
        let by_device = run.by_device > 0;
        IdleAnswer::Idle {
            evidence: IdleEvidence {
                sm_percent_max: (!by_device).then_some(0),
                gpu_percent_max: by_device.then_some(0),
                cpu_percent_mean: Some(mean.percent),
                samples: run.samples,
                coverage: run.coverage(),
                last_activity: self.last_activity(),
                busy_seconds: self.cell.map(|_| seconds),
                is_kernel_unknown: self.is_kernel_unknown(),
            },
            since,
            until: run.until,
            bytes,
        }
    }

    /// The candidate as a suspect, which looks idle without proof.
    fn suspect(&self, since: Time, began: Began) -> Candidate {
        let samples = self.row.run().map_or(0, |run| run.samples);
        let gpus = vec![self.it.on(self.row)];
        Candidate {
            max_cpu_percent: self.settings.max_cpu_percent.0,
            longest_pause: self.row.longest_pause(),
            ..self.it.candidate(gpus, (since, began), samples, self.needed())
        }
    }

    /// Whether this is a kernel whose server could report its state, but does not.
    fn is_kernel_unknown(&self) -> bool {
        let kernel = self.it.process.jupyter.as_deref();
        kernel.is_some_and(|it| it.may_be_restarted() && it.execution_state.is_none())
    }

    fn is_shown(&self) -> bool {
        self.row.last_seen() == self.it.seen.snapshot.time
    }

    fn last_activity(&self) -> Option<Time> {
        self.it.process.last_activity()
    }

    fn was_active_within(&self, seconds: f64, until: Time) -> bool {
        self.last_activity().is_some_and(|active| until.seconds_since(active) < seconds)
    }
}

#[cfg(test)]
mod tests;
