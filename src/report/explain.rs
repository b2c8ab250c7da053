//! `gpumem explain`: one page about a process, a GPU or a framework, as JSON and for people.
//!
//! [`ExplainReport`] is what is known and concluded, put together by the command; its JSON is the format
//! `gpumem.explain/1`. [`text`] lays it out on a page of a given width, and [`chart`] draws how memory
//! moved. Nothing here looks anything up, and nothing a process chose reaches the page unescaped.

pub mod chart;
mod framework;
mod gpu;
mod page;
mod parts;
mod process;
pub mod text;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::finding::{Finding, Kept, Pending, Undecided};
use crate::model::snapshot::{Parent, ReadError};
use crate::model::{Gpu, Process, Time};

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.explain/1";

/// What another format describes: a snapshot, or a verdict.
type Object = serde_json::Map<String, serde_json::Value>;

/// The page that `gpumem explain --json` prints: one of process, gpu and frameworks is there. Units are
/// in the names. What is not known is absent or `null`, never 0. A reader ignores fields that it does
/// not know.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ExplainReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the last snapshot: RFC 3339, UTC; `null` where none was needed.
    pub time: Option<Time>,
    /// The span of history that the page rests on, in seconds.
    pub window_seconds: f64,
    /// The process that was asked about.
    pub process: Option<ProcessPage>,
    /// The GPU that was asked about.
    pub gpu: Option<GpuPage>,
    /// The framework that was asked about, or all of them; empty where a process or a GPU was.
    pub frameworks: Vec<FrameworkPage>,
    /// What the page lacks, and what would add it.
    pub notes: Vec<String>,
    /// What could not be read; each as in gpumem.check/1.
    #[schemars(with = "Vec<Object>")]
    pub errors: Vec<ReadError>,
}

impl ExplainReport {
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

    /// The findings on the page.
    pub fn findings_mut(&mut self) -> impl Iterator<Item = &mut Finding> {
        let process = self.process.iter_mut().map(|page| &mut page.verdict);
        let gpu = self.gpu.iter_mut().map(|page| &mut page.verdict);
        process.chain(gpu).flat_map(|verdict| &mut verdict.findings)
    }
}

/// The page about a process.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ProcessPage {
    /// What to call it. Holds names that a process chose: escape it for a terminal.
    pub name: String,
    /// Its framework, as people write it.
    pub framework_title: Option<String>,
    /// What Linux knows of it, as in gpumem.snapshot/1; of an unresolved one, the pid and the
    /// reason only.
    #[schemars(with = "Object")]
    pub process: Process,
    /// When it was first seen; it may have been there before.
    pub first_seen: Option<Time>,
    /// Whether the history had begun before it was first seen; if not, it may have been there before.
    pub arrival_seen: bool,
    /// From its start to the last snapshot, in seconds.
    pub runtime_seconds: Option<f64>,
    /// Mean CPU use over the history; one core is 100.
    pub cpu_percent_mean: Option<f64>,
    /// What it holds on each GPU, or on each instance of one.
    pub gpus: Vec<OnGpu>,
    /// What belongs together with it.
    pub kin: Kin,
    /// What the rules say.
    #[serde(flatten)]
    pub verdict: RuleVerdict,
    /// What would give the memory back, gentlest first.
    pub steps: Vec<ExplainStep>,
    /// The command by which it gives back what it caches and lives on; absent where no way is seen. Made of a
    /// number, and no text of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
}

/// A process's share of a GPU, or of an instance of it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct OnGpu {
    /// NVML's index.
    pub gpu: u32,
    /// `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// The MIG device's GPU instance.
    pub gpu_instance_id: Option<u32>,
    /// Whether NVML lists it there; else it holds the GPU's device file open.
    pub listed: bool,
    /// What it holds, in bytes.
    pub used_bytes: Option<u64>,
    /// Why that is not known, where that is no failure.
    pub used_unavailable: Option<Arc<str>>,
    /// All the memory that there is, in bytes.
    pub total_bytes: Option<u64>,
    /// Memory of the GPU in use that no listed process holds, in bytes.
    pub unattributed_bytes: Option<u64>,
    /// Its SM utilization at the last snapshot.
    pub sm_percent: Option<u32>,
    /// Its mean SM utilization over the history.
    pub sm_percent_mean: Option<f64>,
    /// Share of the time since lifetime_since in which it had a kernel running there, by the driver's
    /// accounting. Percent.
    pub lifetime_percent: Option<u32>,
    /// When it started, by the driver's accounting.
    pub lifetime_since: Option<Time>,
    /// Since when it is known not to have used the GPU.
    pub unused_since: Option<Time>,
    /// How it moved.
    pub course: MemoryCurve,
}

/// How memory moved over the history.
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
pub struct MemoryCurve {
    /// How many samples show it.
    pub samples: u64,
    /// Stretches of time, oldest first; 240 at most.
    pub points: Vec<MemoryPoint>,
    /// Of how many milliseconds after it a sample tells, for a chart.
    #[serde(skip)]
    pub vouched_milliseconds: i64,
}

/// What was held in a stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct MemoryPoint {
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
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
pub struct Kin {
    /// Its evidence, in words.
    pub ties: Vec<String>,
    /// Who started them, or it: as parent in gpumem.snapshot/1.
    #[schemars(with = "Option<Object>")]
    pub launcher: Option<Arc<Parent>>,
    /// All of them as a tree, itself among them: a parent comes before its children. Empty if it
    /// belongs to no family.
    pub members: Vec<FamilyLine>,
}

/// A line of a family's tree: a holder, and where it stands.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct FamilyLine {
    /// 0 at a root, one more for each generation.
    pub depth: usize,
    /// Who it is, and what it holds.
    #[serde(flatten)]
    pub holder: GpuHolder,
}

/// What the rules say of it.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct RuleVerdict {
    /// What the rules find, as in gpumem.check/1: the one that was asked about first; also what ceased
    /// within the history.
    #[schemars(with = "Vec<Object>")]
    pub findings: Vec<Finding>,
    /// What will be a finding when its rule's duration is over, as in gpumem.check/1.
    #[schemars(with = "Vec<Object>")]
    pub pending: Vec<Pending>,
    /// What an exemption of the configuration keeps from being a finding, as in gpumem.check/1.
    #[schemars(with = "Vec<Object>")]
    pub kept: Vec<Kept>,
    /// Rules that are undecided for it or in general, as in gpumem.check/1; they produce no finding.
    #[schemars(with = "Vec<Object>")]
    pub undecided: Vec<Undecided>,
}

/// The page about a GPU.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct GpuPage {
    /// What NVML reports of it, as in gpumem.snapshot/1.
    #[schemars(with = "Object")]
    pub device: Gpu,
    /// Where its memory is; `None` where NVML does not tell.
    pub balance: Option<GpuBalance>,
    /// Who holds it: those that NVML lists, the largest first, then those that only have its device
    /// file open.
    pub holders: Vec<GpuHolder>,
    /// Processes of the machine whose open files may not be read: whether they hold it is not known.
    /// Null where that was not checked.
    pub unread_processes: Option<u32>,
    /// Mean utilization over the history.
    pub gpu_percent_mean: Option<f64>,
    /// How its used memory moved.
    pub course: MemoryCurve,
    /// What the rules say, first of the GPU itself, then of the processes on it.
    #[serde(flatten)]
    pub verdict: RuleVerdict,
    /// What would give memory back, gentlest first.
    pub steps: Vec<ExplainStep>,
}

/// Where a GPU's memory is: total = free + reserved + processes + unattributed; `null` where NVML
/// does not report it.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct GpuBalance {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// Free, in bytes.
    pub free_bytes: u64,
    /// Held by driver and firmware, in bytes; `null` where the driver counts it as used without telling
    /// it.
    pub reserved_bytes: Option<u64>,
    /// Held by the processes that NVML lists, in bytes.
    pub processes_bytes: Option<u64>,
    /// In use by no process that NVML lists, in bytes.
    pub unattributed_bytes: Option<u64>,
    /// Why that is not known.
    pub unattributed_unknown: Option<String>,
}

/// A process that holds a GPU.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct GpuHolder {
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
    /// What it holds, in bytes.
    pub used_bytes: Option<u64>,
    /// Its SM utilization at the last snapshot.
    pub sm_percent: Option<u32>,
}

/// When something can be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenPossible {
    /// Now; the process goes on.
    Now,
    /// Now; it ends the process.
    End,
    /// When it starts the next time.
    NextStart,
}

/// Something to do.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct ExplainStep {
    /// `now`: the process goes on; `end`: it ends; `next-start`: before it starts again.
    pub moment: WhenPossible,
    /// The words. May hold names that a process chose: escape it for a terminal.
    pub text: String,
    /// Where it is documented or was seen; `None` where it follows from what the page says.
    pub source: Option<String>,
    /// What measured it; `null` where it was not measured.
    pub measured: Option<String>,
}

/// What there is to say of a framework.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct FrameworkPage {
    /// As a snapshot names it.
    pub name: String,
    /// As people write it.
    pub title: String,
    /// How it takes memory, and what NVML shows of that.
    pub takes: AdviceLine,
    /// What returns memory while the process goes on, gentlest first.
    pub inside: Vec<AdviceLine>,
    /// What makes it take less at its next start.
    pub at_start: Vec<AdviceLine>,
    /// What people try that returns nothing to the driver.
    pub unchanged: Vec<AdviceLine>,
    /// How to end it without loss or leftovers, where there is more to it than a signal.
    pub at_end: Vec<AdviceLine>,
}

/// A line of the table of advice.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct AdviceLine {
    /// The words.
    pub text: String,
    /// Where it is documented or was seen.
    pub source: String,
    /// What measured it; `None` where it was not measured.
    pub measured: Option<String>,
}
