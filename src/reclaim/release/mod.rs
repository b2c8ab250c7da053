//! Makes processes release memory and keep running.
//!
//! This file contains the data types and lists the methods. Each method is a module with two functions. `find` checks
//! in a snapshot whether a process supports the method. `ask` verifies that the process can be asked now and, if
//! `is_deed` is set, sends the request, which can take seconds. `ask` therefore runs on a separate thread.
//! `step::release` decides when a release is done, and whether NVML shows an effect.

mod announced;
pub mod kernel;
pub mod server;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::Signal;
use super::target::{Step, Target};
use super::verify::Outcome;
pub use crate::advice::recipe::ReleaseReport;
use crate::deadline::Task;
use crate::host::Roots;
use crate::model::{Gpu, Process, Snapshot, Time};

const MAX_PROBES: usize = 16;
/// Minimum time limit of a probe.
const PROBE_TIME: Duration = Duration::from_secs(10);

const DEFAULT_WAIT_MS: u64 = 10_000;

/// Default time, in milliseconds, for which an inference server must be observed without requests.
const DEFAULT_IDLE_MS: u64 = 60_000;

/// A process that can release memory and keep running, and how to ask it.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ReleaseWay {
    /// PID of the process to ask; for a server, PID of the listening process.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    #[serde(flatten)]
    pub by: ReleaseBy,
}

#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum ReleaseBy {
    /// An inference server unloads its models.
    Server(ServerUnload),
    /// A Jupyter kernel runs code that releases memory.
    Kernel {
        /// ID by which the notebook server knows the kernel, if there is a server.
        kernel_id: Option<Arc<str>>,
        /// Path of the notebook, if the kernel has one.
        notebook: Option<Arc<str>>,
        /// Last activity before gpumem's request, as reported by a server.
        last_activity: Option<Time>,
    },
    /// The process has announced a signal that makes it release memory.
    Signal {
        /// The signal.
        signal: Signal,
    },
}

/// An inference server and its address.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ServerUnload {
    /// Name of the server in gpumem's table: `"vllm"`.
    pub server: Arc<str>,
    /// Address of the server, as in a snapshot: `"tcp:127.0.0.1:8000"`, `"unix:/run/x.sock"`.
    pub address: Arc<str>,
    /// Total memory of the server's processes on all GPUs, in bytes: an upper bound for the size of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
}

/// Options of a request to release memory.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ReleaseOptions {
    /// Whether to run Python's garbage collector first. It runs finalizers of the user's objects.
    pub collects: bool,
    /// Whether to list the objects that still hold memory.
    pub references: bool,
    /// Whether a person named the target.
    pub is_named: bool,
    /// Whether to ask despite possible losses or insufficient host memory (`--force`).
    pub insists: bool,
    /// Time limit of the request, in milliseconds.
    pub wait_ms: u64,
    /// How long an inference server must have been without requests before gpumem asks it, in milliseconds.
    pub idle_ms: u64,
    /// PCI bus IDs of the GPUs on which NVML lists the process.
    pub pci_bus_ids: Vec<Arc<str>>,
}

impl ReleaseOptions {
    pub fn by_rule() -> Self {
        Self {
            collects: true,
            references: false,
            is_named: false,
            insists: false,
            wait_ms: DEFAULT_WAIT_MS,
            idle_ms: DEFAULT_IDLE_MS,
            pci_bus_ids: Vec::new(),
        }
    }

    /// Returns the time limit for a server, in milliseconds, including the time for which it is observed.
    pub(super) fn server_ms(&self) -> u64 {
        self.wait_ms.saturating_add(self.idle_ms)
    }
}

/// Result of a release or a probe. A successful probe means that the process is idle and can be asked.
pub type ReleaseAnswer = Result<ReleaseReport, NotReleased>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotReleased {
    /// The process is working and was left alone. Contains an explanation.
    Busy(String),
    /// The process cannot be reached, or has nothing to release. Contains an explanation.
    NoWayIn(String),
    /// The process must not be asked, or it refused. Contains an explanation and advice.
    Refused(String),
    /// The process did not answer in time. The text says whether it may still release memory.
    TimedOut(String),
}

impl NotReleased {
    pub fn why(&self) -> &str {
        match self {
            Self::Busy(why) | Self::NoWayIn(why) | Self::Refused(why) | Self::TimedOut(why) => why,
        }
    }
}

/// Chooses the method for a process: a server's unload API, a kernel's shell channel, or an announced signal. If no
/// method works, returns why each method that seemed possible does not.
pub fn find(process: &Process, snapshot: &Snapshot) -> Result<ReleaseWay, String> {
    let mut refusals = Vec::new();
    for find in [server::find, kernel::find, announced::find] {
        match find(process, snapshot) {
            Some(Ok(way)) => return Ok(way),
            Some(Err(why)) => refusals.push(why),
            None => {}
        }
    }
    Err(match refusals.is_empty() {
        true => "it is neither an inference server that can unload its models nor a Jupyter kernel, and announces no \
            signal (GPUMEM_RELEASE_SIGNAL, see gpumem explain --snippet)"
            .to_owned(),
        false => refusals.join("; "),
    })
}

/// If the process is using a GPU, returns the reason not to run the release code in its kernel now. Freeing memory
/// waits for running GPU work, so GPU work that hangs would block the process forever. If the driver does not report
/// the process's use, the GPU's use decides.
fn at_work(pid: u32, snapshot: &Snapshot) -> Option<String> {
    let works = |gpu: &Gpu| {
        let mut rows = gpu.processes.iter().flatten();
        let row = rows.find(|row| row.pid == pid)?;
        let percent = row.sm_percent.or(gpu.gpu_percent)?;
        let index = gpu.index;
        (percent > 0).then(|| match row.sm_percent {
            Some(_) => format!("it used GPU {index} in the last sample (SM {percent}%)"),
            None => {
                format!("GPU {index} was busy in the last sample ({percent}%), perhaps with it")
            }
        })
    };
    let why = snapshot.gpus.iter().find_map(works)?;
    Some(format!("{why}; try again when it is idle"))
}

/// A target and its outcome.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PlannedTarget {
    #[serde(flatten)]
    pub target: Target,
    /// Evidence from the probe of `gpumem release` that the target is idle and can be asked; otherwise `null`.
    /// Contains untrusted text: escape it for a terminal.
    pub proved: Option<Arc<str>>,
    /// Outcome for the target, also if a probe shows that the target cannot be asked; `null` if the plan was not
    /// carried out or not completed for the target.
    pub outcome: Option<Outcome>,
}

impl PlannedTarget {
    pub fn new(target: Target) -> Self {
        Self { target, proved: None, outcome: None }
    }

    /// Returns whether the plan must still be carried out for the target, because the outcome is not known yet.
    pub fn is_due(&self) -> bool {
        self.outcome.is_none()
    }
}

/// Probes whether each target is idle and can be asked, several targets at a time. Changes no process.
pub fn probe_targets(targets: &mut [PlannedTarget]) {
    for batch in targets.chunks_mut(MAX_PROBES) {
        let probes: Vec<_> = batch.iter().map(|planned| begin_probe(&planned.target)).collect();
        for (planned, probe) in batch.iter_mut().zip(probes) {
            match probe.and_then(|(probe, time)| probe.within(time).ok()) {
                Some(Ok(report)) => planned.proved = report.why,
                Some(Err(error)) => planned.outcome = Some(Outcome::of_release(&error)),
                None => {
                    let why = "could not determine in time whether it is idle, and nothing was sent; increase --wait";
                    planned.outcome = Some(Outcome::TimedOut { why: why.into() });
                }
            }
        }
    }
}

/// Starts a probe. Also returns its time limit.
fn begin_probe(target: &Target) -> Option<(Task<ReleaseAnswer>, Duration)> {
    let Some(Step::Release { way, options, .. }) = target.steps.first() else {
        return None;
    };
    let (way, options) = (way.clone(), options.clone());
    let time = PROBE_TIME.max(Duration::from_millis(options.wait_ms));
    let run_probe = move || probe(&Roots::default(), &way, &options);
    Some((Task::start("release-probe", run_probe).ok()?, time))
}

/// Checks whether the process can be asked now. Changes nothing. Can take seconds.
pub fn probe(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions) -> ReleaseAnswer {
    ask(roots, way, options, false)
}

/// Repeats the checks of [`probe`], then performs the release within the time limit in `options`.
pub fn perform(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions) -> ReleaseAnswer {
    ask(roots, way, options, true)
}

fn ask(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions, is_deed: bool) -> ReleaseAnswer {
    match &way.by {
        ReleaseBy::Server(server) => server::ask(roots, way, server, options, is_deed),
        ReleaseBy::Kernel { .. } => kernel::ask(roots, way, options, is_deed),
        ReleaseBy::Signal { signal } => announced::ask(roots, way, *signal, is_deed),
    }
}
