//! A target: what is ended together, why, and by which steps. Plain data, as it is shown and written.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guard::Call;
pub use super::step::{KernelAtServer, Recipients, Step};
use crate::model::finding::{Finding, Kind};
use crate::model::{Identity, Start, Time};

/// What is ended together.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Target {
    /// `pid:start` of its leader.
    pub id: Arc<str>,
    /// The boot that start ticks count from.
    pub boot_id: Option<Arc<str>>,
    /// Why.
    pub reason: Reason,
    /// The processes to kill, oldest first; never empty.
    pub members: Vec<TargetProcess>,
    /// What started them and would start them again; killed before them.
    pub launcher: Option<TargetProcess>,
    /// The member that the others depend on.
    pub leader: u32,
    /// Pids without a process that NVML lists; the members hold what they took.
    pub dead: Vec<u32>,
    /// What should come back; `None` where NVML does not say of one.
    pub bytes: Option<u64>,
    /// What to do, gentlest first; the next where one does not help.
    pub steps: Vec<Step>,
    /// For how long to look out for one that is started in its place, in seconds.
    pub respawn_seconds: f64,
}

impl Target {
    /// Whether a person named it, or a rule found it.
    pub fn call(&self) -> Call {
        match self.reason {
            Reason::Named => Call::Named,
            Reason::Found { .. } => Call::Rule,
        }
    }

    /// Whether rules found it, so that what they said has to hold still.
    pub fn is_found(&self) -> bool {
        self.call() == Call::Rule
    }

    /// Whether there is only something to say.
    pub fn is_advice(&self) -> bool {
        self.steps.iter().all(|step| step.advice().is_some())
    }
}

/// Why something is a target.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Reason {
    /// A person named it.
    Named,
    /// Rules found it.
    Found {
        /// What they found.
        findings: Vec<Because>,
    },
}

/// A finding as it is written down.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Because {
    /// Its id.
    pub id: Arc<str>,
    /// The rule's name.
    pub rule: Arc<str>,
    /// Its kind.
    pub kind: Kind,
    /// The process.
    pub pid: u32,
    /// When the state began.
    pub since: Time,
    /// The sentence. Holds names that a process chose: escape it for a terminal.
    pub message: String,
    /// What the verdict rests on.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub evidence: serde_json::Value,
}

impl Because {
    pub(super) fn of(finding: &Finding, pid: u32) -> Self {
        Self {
            id: Arc::clone(&finding.id),
            rule: Arc::clone(&finding.rule),
            kind: finding.kind,
            pid,
            since: finding.since,
            message: finding.message.clone(),
            // Plain data is always a value; were it not, there would be no evidence.
            evidence: serde_json::to_value(&finding.evidence).unwrap_or_default(),
        }
    }
}

/// A process that is ended, and who it is.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct TargetProcess {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
    /// Its owner.
    pub uid: u32,
    /// The owner's name.
    pub user: Option<Arc<str>>,
    /// Its command, or its short name. Chosen by the process: escape it for a terminal.
    pub name: Arc<str>,
    /// Where it holds memory by NVML's list, or has a GPU open.
    pub gpus: Vec<MemberGpu>,
    /// NVML lists it.
    pub is_listed: bool,
    /// Its process group.
    pub process_group: Option<u32>,
    /// Its session.
    pub session: Option<u32>,
}

impl TargetProcess {
    /// Who it is.
    pub fn identity(&self) -> Identity {
        Identity {
            pid: self.pid,
            start: Start::Ticks(self.start_ticks),
        }
    }
}

/// A GPU on which memory is held.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct MemberGpu {
    /// NVML's index.
    pub index: u32,
    /// `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// How much; `None` where NVML does not say.
    pub used_bytes: Option<u64>,
}
