//! A finding: what a rule concluded, with its evidence and what can be done about it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::identity::Identity;
use super::time::Time;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Memory is wasted.
    Warning,
    /// Work is in danger.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

/// What kind of waste it is. A kind enters with the rule that finds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Holds memory and has not used the GPU for the rule's duration.
    Idle,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Idle => "idle",
        })
    }
}

/// What a rule found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// `rule:gpu uuid:pid:start`; the same after a restart.
    pub id: Arc<str>,
    /// The rule's name.
    pub rule: Arc<str>,
    /// Its kind.
    pub kind: Kind,
    /// How bad it is.
    pub severity: Severity,
    /// When the state began, not when it was noticed.
    pub since: Time,
    /// From `since` to the last snapshot in which it was so.
    pub duration_seconds: f64,
    /// When it ceased; `null` while it lasts.
    pub resolved_at: Option<Time>,
    /// The GPUs it is about.
    pub gpus: Vec<FindingGpu>,
    /// The process it is about; `null` where it is about a GPU.
    pub process: Option<FindingProcess>,
    /// The memory at stake.
    pub memory_bytes: Option<u64>,
    /// What the verdict rests on.
    pub evidence: Evidence,
    /// The sentence a person reads. Holds names that a process chose: escape it for a terminal.
    pub message: String,
    /// What would give the memory back, gentlest first.
    pub advice: Vec<String>,
    /// What gpumem may do about it by default.
    pub actions: Vec<Action>,
}

/// A GPU in a finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FindingGpu {
    /// NVML's index.
    pub index: u32,
    /// `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// What the process holds there.
    pub used_bytes: Option<u64>,
}

/// A process in a finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FindingProcess {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: Option<u64>,
    /// The same for people.
    pub start_time: Option<Time>,
    /// Its owner.
    pub user: Option<Arc<str>>,
    /// argv.
    pub command: Option<Arc<[Arc<str>]>>,
    /// The whole of who it is.
    #[serde(skip)]
    pub identity: Identity,
}

/// What a verdict rests on; a struct a kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Evidence {
    /// Of [`Kind::Idle`].
    Idle(IdleEvidence),
}

/// What says that a process was idle.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct IdleEvidence {
    /// The highest SM utilization in the run: 0; `null` where the device's own stood in for it.
    pub sm_percent_max: Option<u32>,
    /// The highest utilization of the device in the run, where that was the evidence.
    pub gpu_percent_max: Option<u32>,
    /// Mean CPU use over the rule's duration; one core is 100.
    pub cpu_percent_mean: Option<f64>,
    /// Samples in the run that showed no use.
    pub samples: u64,
    /// Share of the run that those samples cover, 0 to 1.
    pub coverage: f64,
    /// The notebook server's last activity, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Time>,
}

/// What gpumem may do about a finding by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Tell the owner.
    Notify,
    /// Ask the notebook server to shut the kernel down.
    JupyterShutdown,
    /// End the process.
    Terminate,
}

/// A rule that could not be decided, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Undecided {
    /// The rule's name.
    pub rule: Arc<str>,
    /// Why, in words.
    pub reason: String,
}
