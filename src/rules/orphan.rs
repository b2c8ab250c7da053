//! `orphan`: a process outlived the job that started it and keeps memory on a GPU.
//!
//! An example is a DataLoader worker whose trainer was killed: a reaper adopted the worker, the leader of its process
//! group is gone, and the worker waits for work forever. The following must be known, and must all hold for the
//! duration:
//!
//! - The parent is a reaper and the leader of the process group is gone. A notebook kernel leads its own group, so
//!   its server must be gone instead (`host::jupyter` proves this). A worker of an inference server or of Python's
//!   `multiprocessing` only needs a reaper as its parent.
//! - According to the driver's samples for the process or the whole GPU, the process used none of the GPUs that list
//!   it. If no GPU lists the process, it must have open the device file of a GPU with at least 1 GiB of unattributed
//!   memory, or with memory listed for the dead leader. That GPU must be unused, or the process must use no CPU time.
//! - The process and its descendants used little CPU. Orphans that use much CPU are not reported: they cannot be told
//!   apart from a `nohup` job that prepares data after its shell has exited.
//!
//! Never an orphan:
//!
//! - the leader of a process group, such as a process started by `nohup`, `setsid`, tmux or a notebook server, unless
//!   that server is known to be gone;
//! - monitors, the driver's daemons, display servers (`model::program`), and graphics processes;
//! - a daemon of a systemd service, which has lost its parent and its group leader because it forked twice. The
//!   following processes can nevertheless be orphans: processes left by a service that runs other users' programs
//!   (slurmd, cron, a job runner, JupyterHub; `model::unit`), processes older than the unit's main process, and
//!   processes in login sessions;
//! - an inference server that listens, and its workers;
//! - a notebook kernel that is busy, connected or recently active;
//! - a process that cannot be ended (`Z`, `X`, or `D` for two minutes) or is being debugged (`t`).
//!
//! A stopped process (`T`) may be an orphan, but no action ends it.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{FACTOR_TO_STAY, LEAST_CPU_SHARE, is_working};
use super::rule::{FindingParts, ProcessInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::suspect::Candidate;
use super::undecided_reason::UndecidedReason;
use super::{idle, server, stuck, subject};
use crate::advice;
use crate::history::{Began, Use};
use crate::model::finding::{Action, Evidence, FindingGpu, Kind, KindEvidence, samples};
use crate::model::snapshot::{PidNamespace, ProcessType};
use crate::model::unit::{Role, role};
use crate::model::{Process, Snapshot, Time};
use crate::units::{Percent, Span};

pub static KIND: RuleKind = RuleKind {
    process,
    ..RuleKind::new::<OrphanEvidence>(
        Kind::Orphan,
        "a process on a GPU outlived the job that started it and does not use the GPU",
        &[
            ("duration", "how long the job must have ended and the GPU been unused"),
            idle::MAX_CPU_PERCENT,
            SEVERITY,
        ],
        Settings { duration: seconds(120), max_cpu_percent: Percent(20.0), ..Settings::NONE },
    )
};

/// Minimum number of samples. One or two samples can show the condition by chance.
const LEAST_SAMPLES: u64 = 3;

/// Evidence that a process outlived its job.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct OrphanEvidence {
    /// PID of the reaper that adopted the process; `null` if the process still has another parent.
    pub ppid: Option<u32>,
    /// ID of the process group whose leader is gone; `null` if instead the program that started the process is gone.
    pub process_group: Option<u32>,
    /// Whether the program that started the process is gone, regardless of the group's leader. Can be true only for a
    /// notebook kernel, an inference server's worker, or a worker that Python's `multiprocessing` spawned.
    pub starter_gone: bool,
    /// Whether the session leader still exists.
    pub session_leader_alive: Option<bool>,
    /// Time without observed GPU use, in seconds.
    #[schemars(range(min = 0))]
    pub unused_seconds: f64,
    /// Mean CPU use over the rule's duration, in percent; one core is 100.
    #[schemars(range(min = 0))]
    pub cpu_percent_mean: Option<f64>,
    /// Number of samples that show the condition.
    pub samples: u64,
    /// Whether NVML lists the process. If not, the process has opened the device file of a GPU with unattributed
    /// memory.
    pub listed: bool,
    /// GPU device files that the process has open; `null` if they could not be read.
    pub gpu_files: Option<Vec<Arc<str>>>,
}

impl KindEvidence for OrphanEvidence {
    fn words(&self) -> String {
        let mut words = match self.process_group {
            _ if self.starter_gone => "the program that started it is gone".to_owned(),
            Some(group) => format!("the leader of its process group ({group}) is gone"),
            None => "the leader of its process group is gone".to_owned(),
        };
        if let Some(ppid) = self.ppid {
            let _ = write!(words, ", adopted by {ppid}");
        }
        let unused = Span::from_seconds(self.unused_seconds);
        let _ = write!(words, ", no use of a GPU for {unused} in {}", samples(self.samples));
        if let Some(cpu) = self.cpu_percent_mean {
            let _ = write!(words, ", CPU {cpu:.1}%");
        }
        if !self.listed {
            words.push_str(", not listed by NVML");
        }
        if let Some(files) = self.gpu_files.as_ref().filter(|files| !files.is_empty()) {
            let _ = write!(words, ", holds {}", files.join(" "));
        }
        words
    }
}

fn process(input: ProcessInput<'_>, output: &mut RuleOutput) {
    let ProcessInput { rule_input, process, process_history } = input;
    // Nearly every process has a living parent or leads its own group, so most processes are dismissed here.
    let parentage = match (process.parent_is_reaper, process.group_leader_alive) {
        _ if process.has_lost_starter() => process_history.abandoned(),
        (Some(false), _) | (_, Some(true)) | (None, None) => return,
        (Some(true), Some(false)) => process_history.abandoned(),
        _ => None,
    };
    let Some(unused) = unused(input, output) else {
        return;
    };
    let (settings, pid) = (unused.settings, process.pid);
    let needed = settings.duration.seconds();
    if is_never_orphan(input, needed) {
        return;
    }
    let Some(parentage) = parentage else {
        if unused.seconds() >= needed {
            output.add_doubt(UndecidedReason::NoParentage { pid });
        }
        return;
    };
    let since = unused.since.max(parentage.since);
    let until = unused.until.min(parentage.until);
    let seconds = until.seconds_since(since);
    let samples = unused.samples.min(parentage.samples);
    if seconds < needed || samples < LEAST_SAMPLES {
        let later_began =
            if parentage.since >= unused.since { parentage.began } else { unused.began };
        let began = match later_began {
            Began::Witnessed => {
                input.add_pending(unused.gpus[0].index, since, needed, output);
                Began::Witnessed
            }
            Began::Unwitnessed | Began::AfterDeviceUse => {
                let observed = seconds.max(0.0);
                output.add_doubt(UndecidedReason::ShortHistory { needed, observed });
                Began::Unwitnessed
            }
        };
        output.add_candidate(Candidate {
            max_cpu_percent: settings.max_cpu_percent.0,
            ..input.candidate(unused.gpus, (since, began), samples, needed)
        });
        return;
    }
    let mean =
        process_history.cpu().mean(needed).filter(|mean| mean.seconds >= needed * LEAST_CPU_SHARE);
    let Some(mean) = mean else {
        output.add_doubt(UndecidedReason::NoCpu { pid });
        return;
    };
    let (max_cpu_percent, is_active) = (settings.max_cpu_percent.0, input.is_active());
    let factor = if is_active { FACTOR_TO_STAY } else { 1.0 };
    if mean.percent >= max_cpu_percent * factor
        || is_working(process_history, max_cpu_percent, needed, is_active)
    {
        return;
    }
    let starter_gone = process.has_lost_starter();
    let is_served = process.has_lost_server() || process.is_worker_of_a_server();
    let starter = match starter_gone {
        true if is_served => "server",
        true => "program",
        false => "job",
    };
    let holds = if unused.is_listed {
        format!("has held {}", subject::describe_memory(&unused.gpus))
    } else {
        let gpus = subject::gpus(&unused.gpus);
        format!("has {gpus} open, with unattributed memory,")
    };
    let message = format!(
        "{} outlived the {starter} that started it and {holds} without using a GPU for {}",
        input.name(),
        Span::from_seconds(seconds),
    );
    let is_adopted = process.parent_is_reaper == Some(true);
    let evidence = OrphanEvidence {
        ppid: process.ppid.filter(|_| is_adopted),
        // The evidence names the process group only if the death of its leader is the reason.
        process_group: process.process_group.filter(|_| !starter_gone),
        starter_gone,
        session_leader_alive: process.session_leader_alive,
        unused_seconds: unused.seconds(),
        cpu_percent_mean: Some(mean.percent),
        samples,
        listed: unused.is_listed,
        gpu_files: process.gpu_files.as_ref().map(|files| files.to_vec()),
    };
    let parts = FindingParts {
        severity: settings.severity,
        gpus: unused.gpus,
        since,
        until,
        evidence: Evidence::new(evidence),
        message,
        advice: advice_lines(process),
    };
    let mut finding = rule_input.finding(Some(process), parts);
    if !process.is_stopped() {
        finding.actions.push(Action::Terminate);
    }
    output.findings.push(finding);
}

/// GPUs on which a process holds memory, and the period in which it used none of them.
struct Unused {
    settings: Settings,
    gpus: Vec<FindingGpu>,
    is_listed: bool,
    since: Time,
    until: Time,
    began: Began,
    samples: u64,
}

impl Unused {
    fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }

    /// Adds a GPU. The period begins when the last of the GPUs became unused.
    fn add(&mut self, gpu: FindingGpu, (since, until): (Time, Time), began: Began, samples: u64) {
        self.gpus.push(gpu);
        if since > self.since || self.gpus.len() == 1 {
            (self.since, self.began) = (since, began);
        }
        self.until = self.until.max(until);
        self.samples = self.samples.min(samples);
    }
}

/// Collects the GPUs on which the process holds memory without using them. Returns `None` if the process uses a GPU,
/// holds no memory, or its GPU use is unknown. In the last case, also reports that the rule is undecided if the
/// process would otherwise be an orphan.
fn unused(input: ProcessInput<'_>, output: &mut RuleOutput) -> Option<Unused> {
    let ProcessInput { rule_input, process, process_history } = input;
    let mut unused = Unused {
        settings: rule_input.rule.settings,
        gpus: Vec::new(),
        is_listed: false,
        since: process_history.first_seen(),
        until: process_history.first_seen(),
        began: Began::Unwitnessed,
        samples: u64::MAX,
    };
    let mut unknown_gpu = None;
    for row in process_history.rows() {
        if row.last_use() == Use::Used {
            return None;
        }
        let graphics = row.kind() == ProcessType::Graphics;
        let Some(settings) = input.settings(row).filter(|_| !graphics) else {
            continue;
        };
        let Some(run) = row.run().filter(|run| !run.is_unexplained()) else {
            unknown_gpu = Some(rule_input.history.gpu_index(row));
            continue;
        };
        unused.settings = settings;
        unused.is_listed = true;
        unused.add(input.finding_gpu(row), (run.since, run.until), run.began, run.samples);
    }
    if let Some(gpu) = unknown_gpu {
        let lasted = process_history
            .abandoned()
            .is_some_and(|streak| streak.seconds() >= unused.settings.duration.seconds());
        if lasted && !is_never_orphan(input, 0.0) {
            output.add_doubt(UndecidedReason::NoUtilization { gpu });
        }
        return None;
    }
    let is_host = rule_input.snapshot.host.pid_namespace == Some(PidNamespace::Host);
    for hidden in process_history.hidden().iter().filter(|_| is_host) {
        let Some(streak) = hidden.streak() else {
            continue;
        };
        let Some(gpu) = rule_input.history.hidden_gpu(hidden, rule_input.snapshot) else {
            continue;
        };
        let Some(settings) = rule_input.settings_on(Some(process), gpu) else {
            continue;
        };
        // Another GPU lists the process, so there is enough evidence without this GPU. Adding it would only shorten
        // the period.
        if unused.is_listed && streak.seconds() < settings.duration.seconds() {
            continue;
        }
        unused.settings = settings;
        unused.add(
            subject::finding_gpu(gpu, None),
            (streak.since, streak.until),
            streak.began,
            streak.samples,
        );
    }
    if unused.gpus.is_empty() {
        return None;
    }
    unused.gpus = subject::merge_rows(unused.gpus.into_iter());
    Some(unused)
}

fn is_never_orphan(input: ProcessInput<'_>, needed: f64) -> bool {
    let ProcessInput { rule_input, process, process_history } = input;
    let is_traced = matches!(process_history.state(), Some(('t', _)));
    let is_active = process.jupyter.as_ref().is_some_and(|kernel| {
        kernel.execution_state.as_deref() == Some("busy")
            || kernel.connections.is_some_and(|count| count > 0)
            || process
                .last_activity()
                .is_some_and(|at| rule_input.snapshot.time.seconds_since(at) < needed)
    });
    is_traced
        || is_its_units_daemon(process, rule_input.snapshot)
        || is_active
        || stuck::is_beyond_signals(rule_input, process_history)
        || process.is_monitor()
        || process_history.is_desktop_or_machine()
        || idle::descendants_use_a_gpu(rule_input, process, needed)
        || server::is_server(process, process_history, rule_input.snapshot) != Some(false)
}

/// Returns whether a process may be a daemon of its systemd unit, which looks like an orphan if it forked twice. Any
/// process of a unit may be such a daemon, unless the unit runs other users' programs, the process has lost its
/// starter, or the process is older than the unit's main process.
fn is_its_units_daemon(process: &Process, snapshot: &Snapshot) -> bool {
    let Some(unit) = process.systemd_unit.as_deref() else {
        return false;
    };
    match role(unit) {
        Role::Login | Role::Host { .. } => return false,
        Role::Starter => return true,
        Role::Work => {}
    }
    let is_main = |other: &&Process| {
        other.systemd_unit == process.systemd_unit
            && other.cgroup == process.cgroup
            && other.session == Some(other.pid)
            && other.parent_is_reaper == Some(true)
    };
    let is_younger = |other: &Process| match (other.start_ticks, process.start_ticks) {
        (Some(other_start), Some(start)) => other_start > start,
        _ => other.start_time > process.start_time && process.start_time.is_some(),
    };
    let mut mains = snapshot.processes.iter().filter(is_main);
    !process.has_lost_starter() && !mains.any(is_younger)
}

fn advice_lines(process: &Process) -> Vec<String> {
    let mut lines = Vec::new();
    if process.is_stopped() && process.frozen != Some(true) {
        let pid = process.pid;
        lines.push(format!(
            "kill it: `kill -TERM {pid}; kill -CONT {pid}` (a stopped process handles SIGTERM only after SIGCONT)"
        ));
        return lines;
    }
    if process.has_lost_server() {
        // The kernel can no longer be shut down from Jupyter's menu, and its process group contains no other process.
        return advice::place_lines(process);
    }
    if let Some(job) = process.slurm.as_deref().filter(|job| job.over == Some(true)) {
        let job = job.id().as_deref().and_then(advice::quote);
        let job = job.map_or_else(String::new, |job| format!(" {job}"));
        lines.push(format!(
            "its Slurm job{job} has ended, and no step of the job is left on this machine"
        ));
    }
    // If the leader is alive, most of the group belongs to a running job.
    let group = process.process_group.filter(|_| process.group_leader_alive == Some(false));
    if let Some(group) = group {
        lines.push(format!("list what is left of its job: `pgrep -a -g {group}`"));
    }
    // No one can type into the process any more, so only the last line of the general advice, which ends the process,
    // applies.
    let end = advice::lines(process).last().map(|line| line.text.to_owned());
    lines.extend(end);
    lines
}

#[cfg(test)]
mod tests;
