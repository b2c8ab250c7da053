//! Data types for release requests and answers.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::advice::recipe::ReleaseReport;
use crate::model::Time;
use crate::reclaim::policy::Signal;

/// Default time limit for a release, in milliseconds.
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
    pub(in crate::reclaim) fn server_ms(&self) -> u64 {
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
