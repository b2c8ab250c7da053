//! `idle`: a process holds memory on a GPU and has not used that GPU for a while.
//!
//! A finding requires the following facts:
//!
//! - the process holds a known amount of memory, at least `min_memory`;
//! - the process did not use the GPU for the duration, and driver samples cover three quarters of the duration. If
//!   the driver does not attribute GPU use to processes, the whole GPU must be unused;
//! - the process used little CPU during this time, and neither allocated nor freed GPU memory;
//! - for a notebook kernel, its server reports it as neither busy nor recently active, or its cell has run for hours
//!   without a sign of work (`cell`).
//!
//! Neither CPU use nor files show whether a kernel waits for a network, another process or a person. Only the
//! notebook server knows. Without the server's report, as for other users' kernels, the finding is `info` and no
//! action ends the kernel. A kernel without a server, such as an editor's, is not ended either. A GPU that draws as
//! much power as a working GPU is not considered unused. If a required fact is unknown, the rule is undecided.
//!
//! Never idle:
//!
//! - graphics processes, because a desktop draws only when something changes;
//! - an inference server that listens, because waiting for requests is its work (see `server-idle`);
//! - a daemon of the Multi-Process Service (MPS), which waits for clients;
//! - a stopped process (`T`, `t`), because an owner, a scheduler or a debugger intends to resume it. When the process
//!   resumes, the duration starts again;
//! - a zombie or dead process (`Z`, `X`), or a process that has been in uninterruptible sleep (`D`) for two minutes:
//!   other kinds report them. A shorter `D` is disk I/O;
//! - a desktop's compositor, and a program that both draws and computes (Blender, a browser's GPU process). The
//!   driver lists such a program as a graphics and as a compute process, and its environment names a display;
//! - a process whose descendants use a GPU. The CPU use of descendants is added to that of the process;
//! - a process that is connected to a process of the same user that uses a GPU, because a trainer waits for its
//!   inference server.
//!
//! A process that resumed work after a pause, such as a worker that waits for its queue, will probably resume again.
//! It is idle once the current pause exceeds 1.5 times its longest earlier pause; until then, it is a suspect. If it
//! resumed at least twice, the severity is `info` until the pause exceeds three times the longest earlier pause.
//!
//! A process that was observed from its start and has not used its GPU yet may still be preparing, for example
//! compiling on another machine. Such a process is idle after three times the duration.
//!
//! One finding covers all idle GPUs of a process. If the process uses another GPU, no action ends the process.
//!
//! `server-idle`: an inference server holds memory on a GPU and receives no requests. The conditions are those of
//! `idle`, which skips servers and their workers (see [`server`]). Somebody may need the server, so gpumem ends it only
//! if the user requests this kind.

mod cell;
mod finding;

use std::cell::OnceCell;
use std::sync::Arc;

use super::lasting::{
    FACTOR_TO_STAY, LEAST_COVERAGE, LEAST_CPU_SHARE, OLDEST_CPU_SECONDS, is_covered, is_working,
};
use super::rule::{ProcessInput, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::scope::ScopeInput;
use super::suspect::Candidate;
use super::undecided_reason::UndecidedReason;
use super::{server, stuck};
use crate::history::{Began, Device, ProcessHistory, RowHistory, Use};
use crate::model::finding::{Kind, Severity};
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Process, Time};
use crate::units::{Bytes, GIB, Percent};
use cell::Cell;
pub use finding::IdleEvidence;
use finding::{IdleGpu, finding};

pub static KIND: RuleKind = RuleKind {
    remark,
    process: judge,
    gpu,
    unresolved_row,
    ..RuleKind::new::<IdleEvidence>(
        Kind::Idle,
        "a process holds memory on a GPU and has not used that GPU for the rule's duration",
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

/// The setting `max_busy` is missing, because it applies only to notebooks.
pub static SERVER_KIND: RuleKind = RuleKind {
    process: judge,
    ..RuleKind::new::<IdleEvidence>(
        Kind::ServerIdle,
        "an inference server holds memory on a GPU and has not used it for the rule's duration",
        &[MIN_MEMORY, DURATION, MAX_CPU_PERCENT, SEVERITY],
        Settings { severity: Severity::Info, ..DEFAULTS },
    )
};

const MIN_MEMORY: (&str, &str) = ("min_memory", "minimum memory of a job on a GPU");
const DURATION: (&str, &str) = ("duration", "how long the GPU must be unused");
pub(super) const MAX_CPU_PERCENT: (&str, &str) =
    ("max_cpu_percent", "mean CPU use at which a process is considered working (one core is 100)");
/// Maximum time for which a running cell without a sign of work protects its kernel.
pub(super) const MAX_BUSY: &str = "max_busy";
const DEFAULTS: Settings = Settings {
    min_memory: Bytes(GIB),
    duration: seconds(600),
    max_cpu_percent: Percent(20.0),
    max_busy: seconds(7200),
    ..Settings::NONE
};

/// A process that resumed work earlier is idle once its pause exceeds its longest earlier pause by this factor.
const LONGER_THAN_PAUSES: f64 = 1.5;
/// A finding on a process that resumed work at least [`OFTEN`] times is only `info` until the pause exceeds the
/// longest earlier pause by this factor.
const SURELY_LONGER_THAN_PAUSES: f64 = 3.0;
const OFTEN: u32 = 2;
/// Factor by which the required duration is multiplied while the process may still be preparing.
const START_FACTOR: f64 = 3.0;
/// Maximum time, in seconds, between the start and the first sample of a process that was observed from its start.
const FROM_START_SECONDS: f64 = 120.0;
/// Minimum number of samples. One or two samples can show the condition by chance.
const LEAST_SAMPLES: u64 = 3;

fn remark(settings: &Settings) -> Option<String> {
    let (busy, duration) = (settings.max_busy, settings.duration);
    (busy < duration).then(|| {
        format!("max_busy {busy} is raised to {duration}: it cannot be less than the duration")
    })
}

fn gpu(input: RuleInput<'_>, gpu: &Gpu, _device: &Device, output: &mut RuleOutput) {
    if let Some(doubt) = UndecidedReason::for_unresponsive_gpu(gpu)
        && input.settings_on(None, gpu).is_some()
    {
        output.add_doubt(doubt);
    }
}

fn unresolved_row(
    input: RuleInput<'_>,
    gpu: &Gpu,
    row: &GpuProcess,
    process: Option<&Process>,
    output: &mut RuleOutput,
) {
    if row.kind == ProcessType::Graphics || Use::from_row(gpu, row) == Use::Used {
        return;
    }
    let subject = ScopeInput { held_bytes: row.used_bytes, ..input.scope_on(process, gpu) };
    let may_hold =
        |settings: &Settings| row.used_bytes.is_none_or(|bytes| bytes >= settings.min_memory.0);
    if input.rule.settings_for(&subject).is_some_and(|settings| may_hold(&settings)) {
        output.add_doubt(UndecidedReason::Unresolved { pid: row.pid, gpu: gpu.index });
    }
}

fn judge(input: ProcessInput<'_>, output: &mut RuleOutput) {
    let ProcessInput { rule_input, process, process_history } = input;
    // On a busy machine, nearly every process uses all of its GPUs, so this check comes first.
    if process_history.rows_summary().uses_all {
        return;
    }
    let mut is_exempt = None;
    let is_active = OnceCell::new();
    let mut idle: Vec<IdleGpu<'_>> = Vec::new();
    for row in process_history.rows() {
        if row.last_use() == Use::Used || row.kind() == ProcessType::Graphics {
            continue;
        }
        let Some(settings) = input.settings(row) else {
            continue;
        };
        if input.holds_enough(row, &settings) == Some(false) {
            continue;
        }
        let is_active = || *is_active.get_or_init(|| input.is_active());
        let seconds = settings.duration.seconds();
        let is_exempt_now = || is_never_idle(input) || waits_for_server(input, seconds);
        if *is_exempt.get_or_insert_with(is_exempt_now) {
            return;
        }
        let at = (rule_input.history, rule_input.snapshot.time);
        let cell = match cell::judge_cell(at, process, process_history, &settings, is_active) {
            Cell::None => None,
            Cell::Sleeps { since } => Some(since),
            Cell::Runs => return,
            Cell::Unknown(doubt) => {
                output.add_doubt(doubt);
                continue;
            }
        };
        let candidate =
            IdleCandidate { input, row, index: rule_input.history.gpu_index(row), settings, cell };
        let needed = candidate.needed();
        match candidate.judge() {
            IdleAnswer::No => {}
            IdleAnswer::Unknown(doubt) => output.add_doubt(doubt),
            IdleAnswer::NotYet { since } => {
                output.add_candidate(candidate.to_candidate(since, Began::Witnessed));
                input.add_pending(candidate.index, since, needed, output);
            }
            IdleAnswer::TooShort { since, observed } => {
                output.add_candidate(candidate.to_candidate(since, Began::Unwitnessed));
                output.add_doubt(UndecidedReason::ShortHistory { needed, observed });
            }
            IdleAnswer::Idle { .. } if may_serve(input) => {
                output.add_doubt(UndecidedReason::MayServe { pid: process.pid });
            }
            IdleAnswer::Idle { evidence, since, until } => {
                let gpu = input.finding_gpu(row);
                let may_resume = row.resumed >= OFTEN
                    && until.seconds_since(since) < SURELY_LONGER_THAN_PAUSES * row.longest_pause;
                let severity = if may_resume { Severity::Info } else { settings.severity };
                let idle_gpu =
                    IdleGpu { row, gpu, severity, may_resume, needed, evidence, since, until };
                idle.push(idle_gpu);
            }
        }
    }
    let shortest_needed = idle.iter().map(|idle_gpu| idle_gpu.needed).fold(f64::INFINITY, f64::min);
    if !idle.is_empty() && descendants_use_a_gpu(rule_input, process, shortest_needed) {
        return;
    }
    output.findings.extend(finding(input, idle));
}

/// Returns whether a descendant may have used a GPU within the last `seconds`. Graphics use does not count.
pub(super) fn descendants_use_a_gpu(input: RuleInput<'_>, process: &Process, seconds: f64) -> bool {
    let descendants = process.descendants.as_deref();
    let descendants = descendants.into_iter().flat_map(|descendants| &descendants.listed);
    descendants
        .filter_map(|pid| input.snapshot.process(*pid))
        .any(|descendant| may_have_used_a_gpu(input, descendant, seconds))
}

/// Returns whether the process is connected to another process of the same user that may have used a GPU within the
/// last `seconds`. For example, a trainer is connected to its inference server. Connections to a notebook server or
/// kernel do not count, because they say nothing about waiting.
fn waits_for_server(input: ProcessInput<'_>, seconds: f64) -> bool {
    let ProcessInput { rule_input, process, .. } = input;
    let servers = process.connected_to.as_deref().unwrap_or_default();
    if servers.is_empty() {
        return false;
    }
    let listens = |addresses: &[Arc<str>]| addresses.iter().any(|on| servers.contains(on));
    let serves = |other: &Process| {
        let relatives = other.listening_relatives.as_deref().unwrap_or_default();
        listens(other.listening_on.as_deref().unwrap_or_default())
            || relatives.iter().any(|relative| listens(&relative.listening_on))
    };
    rule_input.snapshot.processes.iter().any(|other| {
        other.pid != process.pid
            && other.jupyter.is_none()
            && other.uid.is_some()
            && other.uid == process.uid
            && serves(other)
            && may_have_used_a_gpu(rule_input, other, seconds)
    })
}

fn may_have_used_a_gpu(input: RuleInput<'_>, process: &Process, seconds: f64) -> bool {
    let rows = input.history.process(process.identity()).into_iter().flat_map(ProcessHistory::rows);
    rows.filter(|row| row.kind() != ProcessType::Graphics)
        .any(|row| row.run().is_none_or(|run| run.seconds() < seconds))
}

/// Returns whether the rule does not apply to the process, regardless of the history of its GPUs. The module
/// documentation lists the reasons.
fn is_never_idle(input: ProcessInput<'_>) -> bool {
    let ProcessInput { rule_input, process, process_history } = input;
    let is_for_servers = is_for_servers(input);
    let is_busy = is_for_servers && cell::is_busy(process);
    let is_stopped = matches!(process_history.state(), Some(('T' | 't', _)));
    let cannot_run = is_stopped || stuck::is_beyond_signals(rule_input, process_history);
    // MPS daemons hold memory on behalf of their clients.
    let is_mps = process_history.names().has_mps_role;
    is_busy
        || cannot_run
        || is_mps
        || process_history.is_desktop_or_machine()
        || (server::is_server(process, process_history, rule_input.snapshot) == Some(true))
            != is_for_servers
}

/// Returns whether the process may be a server: clients could connect to it, but no connection was observed.
fn may_serve(input: ProcessInput<'_>) -> bool {
    let ProcessInput { rule_input, process, process_history } = input;
    !is_for_servers(input)
        && server::is_server(process, process_history, rule_input.snapshot).is_none()
}

fn is_for_servers(input: ProcessInput<'_>) -> bool {
    input.rule_input.rule.kind() == Kind::ServerIdle
}

struct IdleCandidate<'a> {
    input: ProcessInput<'a>,
    row: &'a RowHistory,
    index: u32,
    settings: Settings,
    /// Time of the last sign of work in the notebook's running cell, or `None` if no cell is running.
    cell: Option<Time>,
}

enum IdleAnswer {
    No,
    NotYet {
        since: Time,
    },
    /// The observed idle time is too short, but the GPU may have been idle before the history began.
    TooShort {
        since: Time,
        observed: f64,
    },
    Unknown(UndecidedReason),
    Idle {
        evidence: IdleEvidence,
        since: Time,
        until: Time,
    },
}

impl IdleCandidate<'_> {
    fn required_seconds(&self) -> f64 {
        let duration = self.settings.duration.seconds();
        match self.cell {
            Some(_) => duration.max(self.settings.max_busy.seconds()),
            None if self.is_starting() => duration * START_FACTOR,
            None => duration,
        }
    }

    /// Returns whether the process was observed from its start and has not used the GPU yet. For durations of less
    /// than a minute, always returns false, because users who set such a duration want findings immediately.
    fn is_starting(&self) -> bool {
        if self.settings.duration.seconds() < 60.0 {
            return false;
        }
        let began = self.row.run().map(|run| run.since);
        let after_start = began.zip(self.input.process.start_time);
        !self.row.has_been_used
            && after_start.is_some_and(|(began, start)| {
                began.seconds_since(start).abs() <= FROM_START_SECONDS
            })
    }

    fn needed(&self) -> f64 {
        self.required_seconds().max(LONGER_THAN_PAUSES * self.row.longest_pause)
    }

    fn judge(&self) -> IdleAnswer {
        let ProcessInput { rule_input, process, process_history } = self.input;
        let (gpu, pid, needed) = (self.index, process.pid, self.needed());
        let Some(run) = self.row.run() else {
            return match (self.row.last_use(), self.row.before) {
                (Use::DeviceUsed, _) => IdleAnswer::Unknown(UndecidedReason::NoUtilization { gpu }),
                // Report no doubt about a row that is missing from the snapshot: the row has just disappeared, or a
                // separate doubt says why the GPU has no rows.
                (Use::Unknown, Began::Unwitnessed) if self.is_shown() => {
                    IdleAnswer::Unknown(UndecidedReason::NoUtilization { gpu })
                }
                _ => IdleAnswer::No,
            };
        };
        // Do not count time in which the process was stopped, allocated or freed memory, or its cell showed a sign of
        // work.
        let since = [process_history.resumed_at(), self.row.moved_at, self.cell]
            .into_iter()
            .flatten()
            .fold(run.since, Time::max);
        let seconds = run.until.seconds_since(since);
        if self.was_active_within(needed, run.until) {
            return IdleAnswer::No;
        }
        if seconds < needed {
            return match run.began {
                // A running cell protects the kernel until `max_busy` has passed, so the process is not a suspect.
                _ if self.cell.is_some() => IdleAnswer::No,
                _ if since > run.since => IdleAnswer::NotYet { since },
                Began::Witnessed => IdleAnswer::NotYet { since },
                Began::AfterDeviceUse => {
                    IdleAnswer::Unknown(UndecidedReason::NoUtilization { gpu })
                }
                Began::Unwitnessed => IdleAnswer::TooShort { since, observed: seconds.max(0.0) },
            };
        }
        if run.is_unexplained() {
            return IdleAnswer::Unknown(UndecidedReason::Unexplained { gpu });
        }
        let cpu = process_history.cpu();
        let is_known = |at: Time| rule_input.snapshot.time.seconds_since(at) <= OLDEST_CPU_SECONDS;
        let asked = self.required_seconds();
        let mean = cpu.known_at().filter(|at| is_known(*at)).and_then(|_| cpu.mean(asked));
        let Some(mean) = mean.filter(|mean| mean.seconds >= asked * LEAST_CPU_SHARE) else {
            return IdleAnswer::Unknown(UndecidedReason::NoCpu { pid });
        };
        let is_active = self.input.is_active();
        let max_cpu_percent = self.settings.max_cpu_percent.0;
        let factor = if is_active { FACTOR_TO_STAY } else { 1.0 };
        if mean.percent >= max_cpu_percent * factor
            || is_working(process_history, max_cpu_percent, asked, is_active)
        {
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
        if self.row.used_bytes().is_none() {
            return IdleAnswer::Unknown(UndecidedReason::NoMemory { pid, gpu });
        }
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
        }
    }

    fn to_candidate(&self, since: Time, began: Began) -> Candidate {
        let samples = self.row.run().map_or(0, |run| run.samples);
        let gpus = vec![self.input.finding_gpu(self.row)];
        Candidate {
            max_cpu_percent: self.settings.max_cpu_percent.0,
            longest_pause: self.row.longest_pause,
            ..self.input.candidate(gpus, (since, began), samples, self.needed())
        }
    }

    /// Returns whether the kernel's server exists but does not report the kernel's state.
    fn is_kernel_unknown(&self) -> bool {
        let kernel = self.input.process.jupyter.as_deref();
        kernel.is_some_and(|kernel| kernel.may_be_restarted() && kernel.execution_state.is_none())
    }

    fn is_shown(&self) -> bool {
        self.row.last_seen() == self.input.rule_input.snapshot.time
    }

    fn last_activity(&self) -> Option<Time> {
        self.input.process.last_activity()
    }

    fn was_active_within(&self, seconds: f64, until: Time) -> bool {
        self.last_activity().is_some_and(|active| until.seconds_since(active) < seconds)
    }
}

#[cfg(test)]
mod tests;
