//! `orphan`: a process outlived the job that started it and keeps memory on a GPU.
//!
//! For example, a DataLoader worker whose trainer was killed: a reaper adopted it, its process group's leader is
//! gone, and it waits for work that will not come. All of the following must be known, and must have lasted
//! together for the duration:
//!
//! - The parent is a reaper and the process group's leader is gone. For a notebook kernel, which leads its own
//!   group, the server must be gone instead (`host::jupyter` proves that). For an inference server's worker, which
//!   only a front end starts, and for a worker that Python's `multiprocessing` spawned, it is enough that the
//!   parent is a reaper.
//! - The process used none of the GPUs that list it, by the driver's samples for it, or else by those for the whole
//!   GPU. If no GPU lists it, it must have open the device file of a GPU with unexplained memory: at least 1 GiB,
//!   or memory listed for the dead leader. No process may use that GPU, or only others while the process's own CPU
//!   time stands still.
//! - The process and its descendants used little CPU. An orphan could also spin, but a `nohup` job whose shell is
//!   gone looks the same while it prepares data, and an owner notices a spinning process.
//!
//! Never an orphan:
//!
//! - a leader of its own process group, such as a process started by `nohup`, `setsid`, tmux or a notebook server,
//!   unless that server is proved gone;
//! - monitors, the driver's daemons, displays (`model::program`), and graphics;
//! - a systemd service's daemon, which forks twice and so loses parent and leader. This excludes processes left
//!   behind by a service that runs other people's programs (Slurm's daemon, cron, a job runner, JupyterHub;
//!   `model::unit`), processes older than the unit's present main process, and processes in a user's own session;
//! - an inference server that listens, and its helpers;
//! - a notebook kernel that is busy, connected or recently active;
//! - a process that cannot be ended (`Z`, `X`, long in `D`) or is being debugged (`t`).
//!
//! A stopped process (`T`) may be an orphan, but no action ends it.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{LEAST_CPU_SHARE, is_at_work};
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
            ("duration", "how long its job has to be gone and the GPU unused"),
            idle::MAX_CPU_PERCENT,
            SEVERITY,
        ],
        Settings { duration: seconds(120), max_cpu_percent: Percent(20.0), ..Settings::NONE },
    )
};

/// With fewer samples, the result may be chance.
const LEAST_SAMPLES: u64 = 3;

/// Evidence that a process outlived its job.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct OrphanEvidence {
    /// PID of the reaper that adopted the process; `None` if it still has another parent.
    pub ppid: Option<u32>,
    /// ID of the process group whose leader is gone; `None` if the leader need not be gone.
    pub process_group: Option<u32>,
    /// Whether the program that started the process is gone, whatever the leader of its group; true only
    /// for a notebook kernel, an inference server's worker, and a worker that Python's `multiprocessing`
    /// spawned.
    pub starter_gone: bool,
    /// Whether the session leader still exists.
    pub session_leader_alive: Option<bool>,
    /// How long no GPU use was observed, in seconds.
    #[schemars(range(min = 0))]
    pub unused_seconds: f64,
    /// Mean CPU use over the rule's duration, in percent; one core is 100.
    #[schemars(range(min = 0))]
    pub cpu_percent_mean: Option<f64>,
    /// Number of samples in which the condition held.
    pub samples: u64,
    /// Whether NVML lists the process; if not, it has a device file open of a GPU with unattributed
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

fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let ProcessInput { seen, process, known } = it;
    // The cheapest test first: nearly every process has a parent or leads its own group.
    let parentage = match (process.parent_is_reaper, process.group_leader_alive) {
        _ if process.has_lost_starter() => known.abandoned(),
        (Some(false), _) | (_, Some(true)) | (None, None) => return,
        (Some(true), Some(false)) => known.abandoned(),
        _ => None,
    };
    let Some(unused) = unused(it, verdicts) else {
        return;
    };
    let (settings, pid) = (unused.settings, process.pid);
    let needed = settings.duration.seconds();
    if is_never_orphan(it, needed) {
        return;
    }
    let Some(parentage) = parentage else {
        if unused.seconds() >= needed {
            verdicts.doubt(UndecidedReason::NoParentage { pid });
        }
        return;
    };
    let since = unused.since.max(parentage.since);
    let until = unused.until.min(parentage.until);
    let seconds = until.seconds_since(since);
    let samples = unused.samples.min(parentage.samples);
    if seconds < needed || samples < LEAST_SAMPLES {
        let later = if parentage.since >= unused.since { parentage.began } else { unused.began };
        let began = match later {
            Began::Witnessed => {
                it.expect(unused.gpus[0].index, since, needed, verdicts);
                Began::Witnessed
            }
            Began::Unwitnessed | Began::AfterDeviceUse => {
                let seen = seconds.max(0.0);
                verdicts.doubt(UndecidedReason::ShortHistory { needed, seen });
                Began::Unwitnessed
            }
        };
        verdicts.suspect(Candidate {
            max_cpu_percent: settings.max_cpu_percent.0,
            ..it.candidate(unused.gpus, (since, began), samples, needed)
        });
        return;
    }
    let mean = known.cpu().mean(needed).filter(|mean| mean.seconds >= needed * LEAST_CPU_SHARE);
    let Some(mean) = mean else {
        verdicts.doubt(UndecidedReason::NoCpu { pid });
        return;
    };
    let most = settings.max_cpu_percent.0;
    if mean.percent >= most || is_at_work(known, most, needed) {
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
        format!("has held {}", subject::held(&unused.gpus))
    } else {
        let gpus = subject::gpus(&unused.gpus);
        format!("holds {gpus} open, whose memory no listed process accounts for,")
    };
    let message = format!(
        "{} outlived the {starter} that started it and {holds} without using a GPU for {}",
        it.name(),
        Span::from_seconds(seconds),
    );
    let is_adopted = process.parent_is_reaper == Some(true);
    let evidence = OrphanEvidence {
        ppid: process.ppid.filter(|_| is_adopted),
        // The process group may still exist.
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
        advice: lines(process),
    };
    let mut finding = seen.finding(Some(process), parts);
    if !process.is_stopped() {
        finding.actions.push(Action::Terminate);
    }
    verdicts.find(finding);
}

/// The GPUs on which a process holds memory, and the time in which it used none of them.
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

    /// Adds a GPU; the process is unused since its last use of any GPU.
    fn add(&mut self, gpu: FindingGpu, (since, until): (Time, Time), began: Began, samples: u64) {
        self.gpus.push(gpu);
        if since > self.since || self.gpus.len() == 1 {
            (self.since, self.began) = (since, began);
        }
        self.until = self.until.max(until);
        self.samples = self.samples.min(samples);
    }
}

/// `None` if the process uses a GPU or holds none. Also `None` if that is unknown, which is reported.
fn unused(it: ProcessInput<'_>, verdicts: &mut RuleOutput) -> Option<Unused> {
    let ProcessInput { seen, process, known } = it;
    let mut unused = Unused {
        settings: seen.rule.settings,
        gpus: Vec::new(),
        is_listed: false,
        since: known.first_seen(),
        until: known.first_seen(),
        began: Began::Unwitnessed,
        samples: u64::MAX,
    };
    let mut unknown_gpu = None;
    for row in known.rows() {
        if row.last_use() == Use::Used {
            return None;
        }
        let graphics = row.kind() == ProcessType::Graphics;
        let Some(settings) = it.settings(row).filter(|_| !graphics) else {
            continue;
        };
        let Some(run) = row.run().filter(|run| !run.is_unexplained()) else {
            unknown_gpu = Some(seen.history.gpu_index(row));
            continue;
        };
        unused.settings = settings;
        unused.is_listed = true;
        unused.add(it.on(row), (run.since, run.until), run.began, run.samples);
    }
    if let Some(gpu) = unknown_gpu {
        let lasted =
            known.abandoned().is_some_and(|it| it.seconds() >= unused.settings.duration.seconds());
        if lasted && !is_never_orphan(it, 0.0) {
            verdicts.doubt(UndecidedReason::NoUtilization { gpu });
        }
        return None;
    }
    let is_host = seen.snapshot.host.pid_namespace == Some(PidNamespace::Host);
    for hidden in known.hidden().iter().filter(|_| is_host) {
        let Some(streak) = hidden.streak() else {
            continue;
        };
        let Some(gpu) = seen.history.hidden_gpu(hidden, seen.snapshot) else {
            continue;
        };
        let Some(settings) = seen.settings_on(Some(process), gpu) else {
            continue;
        };
        // For a listed process, unexplained memory on another GPU adds that GPU without shortening the time.
        if unused.is_listed && streak.seconds() < settings.duration.seconds() {
            continue;
        }
        let gpu = FindingGpu { index: gpu.index, uuid: gpu.uuid.clone(), used_bytes: None };
        unused.settings = settings;
        unused.add(gpu, (streak.since, streak.until), streak.began, streak.samples);
    }
    if unused.gpus.is_empty() {
        return None;
    }
    unused.gpus = subject::by_gpu(unused.gpus.into_iter());
    Some(unused)
}

/// The exceptions; see the module's documentation.
fn is_never_orphan(it: ProcessInput<'_>, needed: f64) -> bool {
    let ProcessInput { seen, process, known } = it;
    let is_traced = matches!(known.state(), Some(('t', _)));
    let is_active = process.jupyter.as_ref().is_some_and(|kernel| {
        kernel.execution_state.as_deref() == Some("busy")
            || kernel.connections.is_some_and(|count| count > 0)
            || process
                .last_activity()
                .is_some_and(|at| seen.snapshot.time.seconds_since(at) < needed)
    });
    is_traced
        || is_its_units_daemon(process, seen.snapshot)
        || is_active
        || stuck::is_beyond_signals(seen, known)
        || process.is_monitor()
        || known.is_desktop_or_machine()
        || idle::descendants_use_a_gpu(seen, process, needed)
        || server::is_server(process, known, seen.snapshot)
}

/// Whether a process may be its unit's daemon. A daemon that forks twice looks like a worker left behind, so any
/// process may be one. Exceptions are processes in a unit that runs other people's programs, kernels without their
/// server, and processes that are older than the unit's main process and in another session.
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
        (Some(other), Some(own)) => other > own,
        _ => other.start_time > process.start_time && process.start_time.is_some(),
    };
    let mut mains = snapshot.processes.iter().filter(is_main);
    !process.has_lost_starter() && !mains.any(is_younger)
}

fn lines(process: &Process) -> Vec<String> {
    let mut lines = Vec::new();
    if process.is_stopped() && process.frozen != Some(true) {
        let pid = process.pid;
        lines.push(format!(
            "kill it: `kill -TERM {pid}; kill -CONT {pid}` (while stopped it does not handle the first)"
        ));
        return lines;
    }
    if process.has_lost_server() {
        // The kernel leads its own group, and no user is at Jupyter's menu any more.
        return advice::place_lines(process);
    }
    if let Some(job) = process.slurm.as_deref().filter(|job| job.over == Some(true)) {
        let job = job.id().as_deref().and_then(advice::quote);
        let job = job.map_or_else(String::new, |job| format!(" {job}"));
        lines.push(format!("its Slurm job{job} is over, no step of it is left on this machine"));
    }
    // If the group is alive, most of it is not left over.
    let group = process.process_group.filter(|_| process.group_leader_alive == Some(false));
    if let Some(group) = group {
        lines.push(format!("see what is left of its job: `pgrep -a -g {group}`"));
    }
    // No user can type into the process any more, so only ending it remains.
    let end = advice::lines(process).last().map(|line| line.text.to_owned());
    lines.extend(end);
    lines
}

#[cfg(test)]
mod tests;
