//! A target: the processes to act on together, the reason, and the steps. This file contains the data that is shown and
//! logged; `step` contains the behaviour.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guard::Call;
use super::policy::Signal;
use super::release::{ReleaseOptions, ReleaseWay};
use crate::host::JobUsage;
use crate::model::finding::{Finding, Kind};
use crate::model::process::AskedRelease;
use crate::model::{Identity, Start, Time};

/// Processes that gpumem kills together, or asks together to release memory.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Target {
    /// Identifier: PID and start ticks of the leader, as `pid:start`.
    pub id: Arc<str>,
    /// ID of the boot that the start ticks count from.
    pub boot_id: Option<Arc<str>>,
    /// Why the processes are a target.
    pub reason: Reason,
    /// The processes to act on, oldest first; never empty.
    pub members: Vec<TargetProcess>,
    /// The process that started the members and would restart them; killed before the members.
    pub launcher: Option<TargetProcess>,
    /// PID of the member that the other members depend on.
    pub leader: u32,
    /// PIDs of exited processes that NVML still lists. The members hold the memory of these processes.
    pub dead: Vec<u32>,
    /// Memory that should be freed, in bytes; `None` if NVML does not report it for one of the processes.
    pub bytes: Option<u64>,
    /// The supervisor or scheduler that owns the processes, and the owner's command that ends them; `None` if there
    /// is no owner, or if a step shows the command. Contains untrusted names: escape it for a terminal.
    #[serde(default)]
    pub owner: Option<Arc<str>>,
    /// The steps, gentlest first. The act stops at the first step that helps.
    pub steps: Vec<Step>,
    /// How long to watch for a replacement of an ended process, in seconds.
    pub respawn_seconds: f64,
    /// The job's usage when the plan was made or the last warning was sent. Later work cancels the act.
    #[serde(skip)]
    pub used_at_plan: Option<Arc<JobUsage>>,
    /// Command that keeps an idle notebook and moves its memory to the host; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Arc<str>>,
}

impl Target {
    pub fn call(&self) -> Call {
        match self.reason {
            Reason::Named => Call::Named,
            Reason::Found { .. } => Call::Rule,
        }
    }

    /// Returns whether rules found the target. Their findings must then still hold when gpumem acts.
    pub fn is_found(&self) -> bool {
        self.call() == Call::Rule
    }

    pub fn identities(&self) -> Vec<(u32, u64)> {
        self.members.iter().map(|member| (member.pid, member.start_ticks)).collect()
    }

    /// Returns whether the target can be asked while it is working, because it was selected only for its nearly full
    /// GPU.
    pub(super) fn may_work(&self) -> bool {
        match &self.reason {
            Reason::Found { findings } => {
                findings.iter().all(|finding| finding.kind == Kind::Pressure)
            }
            Reason::Named => false,
        }
    }

    pub fn is_release(&self) -> bool {
        let is_release = |step: &Step| matches!(step, Step::Release { .. });
        !self.steps.is_empty() && self.steps.iter().all(is_release)
    }

    pub fn is_park(&self) -> bool {
        matches!(self.steps[..], [Step::Park { to_end: false, .. }])
    }

    /// Returns whether a step sends a request. Only one act at a time can wait for an answer.
    pub(super) fn makes_requests(&self) -> bool {
        let is_request = |step: &Step| {
            matches!(step, Step::Release { .. } | Step::Park { .. } | Step::ShutKernel { .. })
        };
        self.steps.iter().any(is_request)
    }

    /// Returns whether the act succeeds only once the members have exited, because the GPU memory of a parked process
    /// is free before the process exits.
    pub(super) fn must_exit(&self) -> bool {
        let parks_to_end = |step: &Step| matches!(step, Step::Park { to_end: true, .. });
        self.members.iter().any(|member| member.is_parked) || self.steps.iter().any(parks_to_end)
    }

    pub fn is_for(&self, finding: &Finding) -> bool {
        match &self.reason {
            Reason::Found { findings } => findings.iter().any(|because| because.id == finding.id),
            Reason::Named => false,
        }
    }

    pub fn is_advice(&self) -> bool {
        self.steps.iter().all(|step| step.advice().is_some())
    }
}

/// Why processes are a target.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Reason {
    /// A person named the processes.
    Named,
    /// Rules found the processes.
    Found {
        /// The findings.
        findings: Vec<Because>,
    },
}

/// A finding as recorded in the audit log.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Because {
    /// Identifier of the finding.
    pub id: Arc<str>,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Kind of the finding.
    pub kind: Kind,
    /// PID of the process.
    pub pid: u32,
    /// When the condition began.
    pub since: Time,
    /// The finding as one sentence on one line. Control and invisible characters in names are escaped.
    pub message: String,
    /// Evidence for the finding.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub evidence: serde_json::Value,
}

impl Because {
    pub(super) fn new(finding: &Finding, pid: u32) -> Self {
        Self {
            id: Arc::clone(&finding.id),
            rule: Arc::clone(&finding.rule),
            kind: finding.kind,
            pid,
            since: finding.since,
            message: finding.message.clone(),
            evidence: serde_json::to_value(&finding.evidence).unwrap_or_default(),
        }
    }
}

/// A process of a target, with its identity.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct TargetProcess {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// User ID of the owner.
    pub uid: u32,
    /// User name of the owner.
    pub user: Option<Arc<str>>,
    /// Name of the process, as in findings. Chosen by the process: escape it for a terminal.
    pub name: Arc<str>,
    /// GPUs on which NVML lists the process, and GPUs that the process has open.
    pub gpus: Vec<MemberGpu>,
    /// Whether NVML lists the process.
    pub is_listed: bool,
    /// Process group ID.
    pub process_group: Option<u32>,
    /// Session ID.
    pub session: Option<u32>,
    /// Whether the process is stopped. A signal that asks it to terminate is then followed by SIGCONT, because a
    /// stopped process does not handle signals.
    #[serde(default)]
    pub is_stopped: bool,
    /// Whether gpumem has moved the GPU memory of the process to host memory.
    #[serde(default)]
    pub is_parked: bool,
}

impl TargetProcess {
    pub fn identity(&self) -> Identity {
        Identity { pid: self.pid, start: Start::Ticks(self.start_ticks) }
    }
}

/// A GPU on which a process may hold memory.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct MemberGpu {
    /// NVML index.
    pub index: u32,
    /// UUID: `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// Memory that the process holds on the GPU, in bytes; `None` if NVML does not report it.
    pub used_bytes: Option<u64>,
}

/// One step of a plan.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Ask a process to release memory and keep running.
    Release {
        /// How to ask the process.
        way: ReleaseWay,
        /// Options of the request.
        options: ReleaseOptions,
        /// How long to wait, in seconds.
        grace_seconds: f64,
    },
    /// Move the GPU memory of a process to host memory. The process keeps running.
    Park {
        /// The process.
        process: ProcessToPark,
        /// Whether later steps end the process, which must be parked first because it was once restored.
        to_end: bool,
    },
    /// Ask the notebook server to shut the kernel down.
    ShutKernel {
        /// The kernel and its server.
        kernel: KernelAtServer,
        /// How long to wait, in seconds.
        grace_seconds: f64,
    },
    /// Send a signal.
    Signal {
        /// The signal.
        signal: Signal,
        /// Recipients of the signal.
        recipients: Recipients,
        /// How long to wait, in seconds.
        grace_seconds: f64,
    },
    /// Only show a command to run.
    Advise {
        /// The command. Contains untrusted names: escape it for a terminal.
        command: Arc<str>,
    },
}

/// A process whose GPU memory can be moved to host memory.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ProcessToPark {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// User ID of the owner.
    pub uid: u32,
    /// Name of the process, as in findings. Chosen by the process: escape it for a terminal.
    pub name: Arc<str>,
    /// Path of the notebook, if the process is a kernel.
    pub notebook: Option<Arc<str>>,
    /// Memory that NVML lists for the process, in bytes.
    pub bytes: u64,
    /// Whether the process can be asked to release memory first.
    pub has_release: bool,
}

/// A notebook kernel and its server.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct KernelAtServer {
    /// ID of the kernel.
    pub id: Arc<str>,
    /// PID of the kernel.
    pub pid: u32,
    /// Start time of the kernel in clock ticks since boot.
    pub start_ticks: u64,
    /// Last activity of the kernel, as reported by the server. Later activity means that the kernel has worked since
    /// the plan.
    pub last_activity: Option<Time>,
    /// URL of the server.
    pub server_url: Arc<str>,
    /// PID of the server.
    pub server_pid: Option<u32>,
    /// Path of the notebook.
    pub notebook: Option<Arc<str>>,
}

/// Recipients of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recipients {
    /// The process that started the members.
    Launcher,
    /// The member that the other members depend on.
    Leader,
    /// All members.
    Family,
}

/// A single action, as recorded in the audit log.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "deed", rename_all = "snake_case")]
pub enum Deed {
    /// Signals are sent to processes. Each process receives all signals, in this order.
    Signal {
        /// The signals.
        signals: Vec<Signal>,
        /// The recipients.
        processes: Vec<LedgerProcess>,
    },
    /// A process is asked to release memory.
    Release {
        /// How the process is asked. For a kernel, this includes the last activity that its server reported.
        way: ReleaseWay,
    },
    /// The GPU memory of a process is moved to host memory.
    Park {
        /// The process.
        process: LedgerProcess,
        /// Memory that NVML lists for the process, in bytes.
        bytes: u64,
    },
    /// A notebook server is asked to shut a kernel down.
    ShutKernel {
        /// ID of the kernel.
        kernel_id: Arc<str>,
    },
}

/// A process, as recorded in the audit log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct LedgerProcess {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

impl LedgerProcess {
    pub fn new(way: &ReleaseWay) -> Self {
        Self { pid: way.pid, start_ticks: way.start_ticks }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Asks a process to release memory.
    Release {
        way: ReleaseWay,
        options: ReleaseOptions,
    },
    Park {
        process: ProcessToPark,
        to_end: bool,
    },
    ShutKernel {
        kernel: KernelAtServer,
        /// Whether to shut the kernel down even if it is working.
        even_at_work: bool,
        /// gpumem's own release requests to the kernel, whose effects are not work.
        asked: Vec<AskedRelease>,
    },
}

pub fn listed<'p>(pids: impl IntoIterator<Item = &'p u32>) -> String {
    let words: Vec<String> = pids.into_iter().map(ToString::to_string).collect();
    words.join(", ")
}
