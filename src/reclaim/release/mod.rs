//! How a process gives memory back and lives on: by which way, what is asked of it and what came of that.
//!
//! Plain data here, and the list of ways. Each way is a file beside this one with two functions: `find` says by a
//! snapshot alone whether the way is there, and `ask` proves that the process rests and, where it is meant, does it.
//! `ask` takes seconds and is called on a thread of its own. When it is done, and that it helped as NVML sees it, is
//! `step::release`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod announced;
pub mod kernel;
pub mod python;
pub mod server;

use super::policy::Signal;
use crate::host::Roots;
pub use crate::model::release::{Reference, ReleaseReport};
use crate::model::{Gpu, Process, Snapshot, Time};

/// How long a release may take, unless somebody says otherwise.
const DEFAULT_WAIT_MS: u64 = 10_000;

/// For how long an inference server must be seen to do no request, unless somebody says otherwise.
pub const DEFAULT_IDLE_MS: u64 = 60_000;

/// Who gives memory back and lives on, and how.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ReleaseWay {
    /// The process that is asked; of a server the one that listens.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
    /// How it is asked.
    #[serde(flatten)]
    pub by: ReleaseBy,
}

/// How a process is asked to give memory back.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum ReleaseBy {
    /// An inference server unloads its models.
    Server(ServerUnload),
    /// A Jupyter kernel runs a recipe.
    Kernel {
        /// Its id at its server, where it has one.
        kernel_id: Option<Arc<str>>,
        /// The notebook, where it has one.
        notebook: Option<Arc<str>>,
        /// When a server saw the last message before gpumem's.
        last_activity: Option<Time>,
    },
    /// CPython 3.14 or later runs a recipe (PEP 768).
    Python,
    /// The process has announced a signal for this.
    Signal {
        /// Which.
        signal: Signal,
    },
}

/// By which way a process gives memory back: a server's own unload before all, what it has announced
/// before what it has not. Pure.
///
/// # Errors
///
/// By none: why, of each that might have been.
pub fn find(process: &Process, snapshot: &Snapshot) -> Result<ReleaseWay, String> {
    let mut refusals = Vec::new();
    for find in [server::find, kernel::find, announced::find, python::find] {
        match find(process, snapshot) {
            Some(Ok(way)) => return Ok(way),
            Some(Err(why)) => refusals.push(why),
            None => {}
        }
    }
    Err(match refusals.is_empty() {
        true => "it is not an inference server that can unload its models, a Jupyter kernel or CPython 3.14, and \
            announces no signal (GPUMEM_RELEASE_SIGNAL)"
            .to_owned(),
        false => refusals.join("; "),
    })
}

/// Why a process that computes on a GPU runs no recipe: what gives memory back waits for that to end, which a
/// kernel of CUDA's that hangs never does, and the process would wait with it. By its own samples, or where the
/// driver has none, by the GPU's.
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

/// Whether it could be done now. Changes nothing; may take seconds.
pub fn probe(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions) -> ReleaseAnswer {
    ask(roots, way, options, false)
}

/// Does it, having looked again whether it may be done; may take as long as the options say.
pub fn perform(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions) -> ReleaseAnswer {
    ask(roots, way, options, true)
}

fn ask(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions, is_deed: bool) -> ReleaseAnswer {
    match &way.by {
        ReleaseBy::Server(server) => server::ask(roots, way, server, options, is_deed),
        ReleaseBy::Kernel { .. } => kernel::ask(roots, way, options, is_deed),
        ReleaseBy::Python => python::ask(roots, way, options, is_deed),
        ReleaseBy::Signal { signal } => announced::ask(roots, way, *signal, is_deed),
    }
}

/// An inference server, and where it is asked.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ServerUnload {
    /// Its row in the table: `"vllm"`.
    pub server: Arc<str>,
    /// Where, as a snapshot has it: `"tcp:127.0.0.1:8000"`, `"unix:/run/x.sock"`.
    pub address: Arc<str>,
    /// What its processes hold of all GPUs together, in bytes: its weights are no more than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
}

/// What is asked of a process.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ReleaseOptions {
    /// Collect garbage first, which runs finalizers of the user's objects.
    pub collects: bool,
    /// Name what still holds memory.
    pub references: bool,
    /// A person named the target.
    pub is_named: bool,
    /// That person accepts that something is lost, or that host memory may not suffice.
    pub insists: bool,
    /// How long it may take, in milliseconds.
    pub wait_ms: u64,
    /// For how long before that an inference server must be seen to do no request, in milliseconds.
    pub idle_ms: u64,
    /// PCI bus ids of the GPUs on which NVML lists the process.
    pub pci_bus_ids: Vec<Arc<str>>,
}

impl ReleaseOptions {
    /// What is asked where a rule found the process, and no person named it.
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

    /// How long a server may take, with the time in which it is looked at, in milliseconds.
    pub(super) fn server_ms(&self) -> u64 {
        self.wait_ms.saturating_add(self.idle_ms)
    }
}

/// What came of a release; of a probe, that it rests and could be done, and what is known of it.
pub type ReleaseAnswer = Result<ReleaseReport, NotReleased>;

/// Why a process gives nothing back now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotReleased {
    /// It is at work, and was left alone. Why.
    Busy(String),
    /// It cannot be reached or gives nothing back. Why.
    NoWayIn(String),
    /// It can be reached and must not be, or has said no. Why, and what to do.
    Refused(String),
    /// It did not answer in time; whether it still will is said.
    TimedOut(String),
}

impl NotReleased {
    /// The words.
    pub fn why(&self) -> &str {
        match self {
            Self::Busy(why) | Self::NoWayIn(why) | Self::Refused(why) | Self::TimedOut(why) => why,
        }
    }
}
