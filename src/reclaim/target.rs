//! A target: what is ended together, why, by which steps, and what is done and asked for it. Plain data, as it
//! is shown and written; what a step does is in `step`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guard::Call;
use super::policy::Signal;
use super::release::{ReleaseOptions, ReleaseWay};
use crate::model::finding::{Finding, Kind};
use crate::model::process::AskedRelease;
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

    /// Whether it is asked while it works: its GPU is nearly full, and it has announced a signal for that.
    pub(super) fn may_work(&self) -> bool {
        match &self.reason {
            Reason::Found { findings } => findings.iter().all(|it| it.kind == Kind::Pressure),
            Reason::Named => false,
        }
    }

    /// Whether it is only asked to release memory.
    pub fn is_release(&self) -> bool {
        let is_release = |step: &Step| matches!(step, Step::Release { .. });
        !self.steps.is_empty() && self.steps.iter().all(is_release)
    }

    /// Whether it is there because of a finding.
    pub fn is_for(&self, finding: &Finding) -> bool {
        match &self.reason {
            Reason::Found { findings } => findings.iter().any(|because| because.id == finding.id),
            Reason::Named => false,
        }
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
    /// The sentence. One line: control and invisible characters of names in it are escaped.
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
    /// What it is called, as findings name it. Chosen by the process: escape it for a terminal.
    pub name: Arc<str>,
    /// Where it holds memory by NVML's list, or has a GPU open.
    pub gpus: Vec<MemberGpu>,
    /// NVML lists it.
    pub is_listed: bool,
    /// Its process group.
    pub process_group: Option<u32>,
    /// Its session.
    pub session: Option<u32>,
    /// It is stopped: a signal that asks it to end is followed by SIGCONT, as it handles no other until it goes on.
    #[serde(default)]
    pub is_stopped: bool,
}

impl TargetProcess {
    /// Who it is.
    pub fn identity(&self) -> Identity {
        Identity { pid: self.pid, start: Start::Ticks(self.start_ticks) }
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

/// One thing to do.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Have a process give memory back and live on.
    Release {
        /// By which way.
        way: ReleaseWay,
        /// What is asked of it.
        options: ReleaseOptions,
        /// How long to wait.
        grace_seconds: f64,
    },
    /// Ask the notebook server to shut the kernel down.
    ShutKernel {
        /// Which, and where.
        kernel: KernelAtServer,
        /// How long to wait.
        grace_seconds: f64,
    },
    /// Send a signal.
    Signal {
        /// Which.
        signal: Signal,
        /// To which processes; `whom` in JSON.
        #[serde(rename = "whom")]
        recipients: Recipients,
        /// How long to wait.
        grace_seconds: f64,
    },
    /// Only say what to type.
    Advise {
        /// That. Holds names that others chose: escape it for a terminal.
        command: Arc<str>,
    },
}

/// A notebook kernel at its server.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct KernelAtServer {
    /// The kernel's id.
    pub id: Arc<str>,
    /// Its process.
    pub pid: u32,
    /// Clock ticks from boot to the process's start.
    pub start_ticks: u64,
    /// The server's last word of activity; what is later is not what the plan was made of.
    pub last_activity: Option<Time>,
    /// The server.
    pub server_url: Arc<str>,
    /// The server's process.
    pub server_pid: Option<u32>,
    /// The notebook.
    pub notebook: Option<Arc<str>>,
}

/// To which processes a signal goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recipients {
    /// What started the members.
    Launcher,
    /// The member that the others depend on.
    Leader,
    /// All members.
    Family,
}

/// One thing that is done, as it is written down.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "deed", rename_all = "snake_case")]
pub enum Deed {
    /// Signals are sent, to each of the processes all of them in this order.
    Signal {
        /// Which.
        signals: Vec<Signal>,
        /// To which processes.
        processes: Vec<LedgerProcess>,
    },
    /// A process is to give memory back.
    Release {
        /// By which way; of a kernel with when its server saw its last activity.
        way: ReleaseWay,
    },
    /// A notebook server is asked to shut a kernel down.
    ShutKernel {
        /// Which.
        kernel_id: Arc<str>,
    },
}

/// A process, as the ledger has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct LedgerProcess {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
}

impl LedgerProcess {
    /// Who is asked to give memory back.
    pub fn of(way: &ReleaseWay) -> Self {
        Self { pid: way.pid, start_ticks: way.start_ticks }
    }
}

/// What is asked of somebody else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Of a process: to give memory back.
    Release {
        /// By which way.
        way: ReleaseWay,
        /// What is asked of it.
        options: ReleaseOptions,
    },
    /// Of a notebook server: to shut a kernel down.
    ShutKernel {
        /// Which.
        kernel: KernelAtServer,
        /// Also where it is at work now.
        even_at_work: bool,
        /// When it was asked to release memory, which is no work.
        asked: Vec<AskedRelease>,
    },
}

/// Pids as a sentence lists them.
pub fn listed<'p>(pids: impl IntoIterator<Item = &'p u32>) -> String {
    let words: Vec<String> = pids.into_iter().map(ToString::to_string).collect();
    words.join(", ")
}
