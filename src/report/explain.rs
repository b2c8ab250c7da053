//! `gpumem explain`: one page about a process, a GPU or a framework, as JSON and for people.
//!
//! [`Report`] is what is known and concluded, put together by the command; its JSON is the format
//! `gpumem.explain/1`. [`text`] lays it out on a page of a given width, and [`chart`] draws how memory
//! moved. Nothing here looks anything up, and nothing a process chose reaches the page unescaped.

pub mod chart;
mod framework;
mod gpu;
pub(super) mod page;
mod process;
pub mod text;

use std::sync::Arc;

use serde::Serialize;

use crate::model::finding::{Finding, Kept, Pending, Undecided};
use crate::model::json;
use crate::model::snapshot::{Parent, ReadError};
use crate::model::{Gpu, Process, Time};

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.explain/1";

/// A page; one of `process`, `gpu` and `frameworks` is there.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Format and major version.
    pub schema: &'static str,
    /// Time of the last snapshot; `None` where none was needed.
    pub time: Option<Time>,
    /// The span of history that it rests on.
    pub window_seconds: f64,
    /// The process that was asked about.
    pub process: Option<ProcessPage>,
    /// The GPU that was asked about.
    pub gpu: Option<GpuPage>,
    /// The frameworks that were asked about; all of them for a list.
    pub frameworks: Vec<FrameworkPage>,
    /// What the page lacks, and what would tell it.
    pub notes: Vec<String>,
    /// What could not be read.
    pub errors: Vec<ReadError>,
}

impl Report {
    /// A page without anything on it yet.
    pub fn new(time: Option<Time>, window_seconds: f64) -> Self {
        Self {
            schema: SCHEMA,
            time,
            window_seconds,
            process: None,
            gpu: None,
            frameworks: Vec::new(),
            notes: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// The JSON document, with a newline at its end.
    ///
    /// # Errors
    ///
    /// None that can be met: the maps in it have text for keys, and no number in it is one that JSON
    /// lacks.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        json::to_string_pretty(self).map(|json| json + "\n")
    }
}

/// What there is to say of a process.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ProcessPage {
    /// What to call it. Holds names that a process chose: escape it for a terminal.
    pub name: String,
    /// Its framework, as people write it.
    pub framework_title: Option<String>,
    /// What Linux knows of it; of one that could not be told for certain, the pid and the reason only.
    pub process: Process,
    /// When it was first seen; it may have been there before.
    pub first_seen: Option<Time>,
    /// Whether the history began before it was first seen.
    pub arrival_seen: bool,
    /// From its start to the last snapshot.
    pub runtime_seconds: Option<f64>,
    /// Mean CPU use over the history; one core is 100.
    pub cpu_percent_mean: Option<f64>,
    /// What it holds on each GPU.
    pub gpus: Vec<OnGpu>,
    /// What belongs together with it.
    pub kin: Kin,
    /// What the rules say.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What would give the memory back, gentlest first.
    pub steps: Vec<Step>,
}

/// A process's share of a GPU, or of an instance of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OnGpu {
    /// NVML's index.
    pub gpu: u32,
    /// `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// The MIG device's GPU instance.
    pub gpu_instance_id: Option<u32>,
    /// Whether NVML lists it there; else it holds the GPU's device file open.
    pub listed: bool,
    /// What it holds.
    pub used_bytes: Option<u64>,
    /// Why that is not known, where the reason is.
    pub used_unavailable: Option<Arc<str>>,
    /// All that there is.
    pub total_bytes: Option<u64>,
    /// What the GPU has in use that nobody who is listed holds.
    pub unattributed_bytes: Option<u64>,
    /// Its SM utilization at the last snapshot.
    pub sm_percent: Option<u32>,
    /// Its mean SM utilization over the history.
    pub sm_percent_mean: Option<f64>,
    /// Since when it is known not to have used it.
    pub unused_since: Option<Time>,
    /// How it moved.
    pub course: Course,
}

/// How memory moved over the history.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Course {
    /// How many samples told it.
    pub samples: u64,
    /// Stretches of time, oldest first.
    pub points: Vec<Point>,
}

/// What was held in a stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Point {
    /// The first sample in it.
    pub since: Time,
    /// The last one.
    pub until: Time,
    /// The least.
    pub low_bytes: u64,
    /// The most.
    pub high_bytes: u64,
    /// At the last sample.
    pub last_bytes: u64,
}

/// What belongs together with a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Kin {
    /// What says so, in words.
    pub ties: Vec<String>,
    /// Who started them, or it.
    pub launcher: Option<Arc<Parent>>,
    /// All of them as a tree, itself among them: whoever started another comes before it. Empty where it
    /// belongs to nobody.
    pub members: Vec<Member>,
}

/// A line of a family's tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Member {
    /// 0 at a root, one more for each generation.
    pub depth: usize,
    /// Who it is, and what it holds.
    #[serde(flatten)]
    pub holder: Holder,
}

/// What the rules say of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Verdict {
    /// What they find, the one that was asked about first; with what ceased within the history.
    pub findings: Vec<Finding>,
    /// What will be a finding when its rule's duration is over.
    pub pending: Vec<Pending>,
    /// What an exemption keeps from being a finding.
    pub kept: Vec<Kept>,
    /// Rules that could not be decided of it, or of nobody in particular.
    pub undecided: Vec<Undecided>,
}

/// What there is to say of a GPU.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GpuPage {
    /// What NVML tells of it.
    pub device: Gpu,
    /// Where its memory is; `None` where NVML does not tell.
    pub balance: Option<Balance>,
    /// Who holds it: those that NVML lists, then those that only have its device file open.
    pub holders: Vec<Holder>,
    /// Processes whose open files may not be read: whether they hold it is not known; `None` where
    /// nobody looked.
    pub unread_processes: Option<u32>,
    /// Mean utilization over the history.
    pub gpu_percent_mean: Option<f64>,
    /// How its used memory moved.
    pub course: Course,
    /// What the rules say, first of the GPU itself, then of the processes on it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What would give memory back, gentlest first.
    pub steps: Vec<Step>,
}

/// Where a GPU's memory is: total = free + reserved + processes + unattributed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Balance {
    /// All of it.
    pub total_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Held by driver and firmware; `None` where the driver counts it as used without telling it.
    pub reserved_bytes: Option<u64>,
    /// Held by the processes that NVML lists.
    pub processes_bytes: Option<u64>,
    /// In use by no process that NVML lists.
    pub unattributed_bytes: Option<u64>,
    /// Why that is not known.
    pub unattributed_unknown: Option<String>,
}

/// A process that holds a GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// What to call it. Holds names that a process chose: escape it for a terminal.
    pub name: String,
    /// Its owner.
    pub user: Option<Arc<str>>,
    /// Whether NVML lists it; else it holds a device file open.
    pub listed: bool,
    /// Whether it is a program that watches GPUs or serves the driver.
    pub is_monitor: bool,
    /// The MIG device's GPU instance.
    pub gpu_instance_id: Option<u32>,
    /// What it holds.
    pub used_bytes: Option<u64>,
    /// Its SM utilization at the last snapshot.
    pub sm_percent: Option<u32>,
}

/// When something can be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// Now; the process goes on.
    Now,
    /// Now; it ends the process.
    End,
    /// When it starts the next time.
    NextStart,
}

/// Something to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Step {
    /// When, and whether the process goes on.
    pub moment: Moment,
    /// The words. May hold names that a process chose: escape it for a terminal.
    pub text: String,
    /// Where it is documented or was seen; `None` where it follows from what the page says.
    pub source: Option<String>,
    /// What measured it.
    pub measured: Option<String>,
}

/// What there is to say of a framework.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FrameworkPage {
    /// As a snapshot names it.
    pub name: String,
    /// As people write it.
    pub title: String,
    /// How it takes memory, and what NVML shows of that.
    pub takes: Line,
    /// What returns memory while the process goes on, gentlest first.
    pub inside: Vec<Line>,
    /// What makes it take less at its next start.
    pub at_start: Vec<Line>,
    /// What people try that returns nothing.
    pub unchanged: Vec<Line>,
    /// How to end it.
    pub at_end: Vec<Line>,
}

/// A line of the table of advice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Line {
    /// The words.
    pub text: String,
    /// Where it is documented or was seen.
    pub source: String,
    /// What measured it; `None` where it was not measured.
    pub measured: Option<String>,
}
