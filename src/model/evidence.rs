//! What a verdict rests on: a struct a kind of finding.
//!
//! Numbers as they were seen or worked out, with their units in their names; what is not known is
//! `null`. The words for them are in [`crate::report`].

use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::finding::Kind;
use super::time::Time;

/// What a verdict rests on.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
#[schemars(with = "serde_json::Map<String, serde_json::Value>")]
#[serde(untagged)]
pub enum Evidence {
    /// Of [`Kind::Dead`](super::Kind::Dead).
    Dead(DeadEvidence),
    /// Of [`Kind::Stuck`](super::Kind::Stuck).
    Stuck(StuckEvidence),
    /// Of [`Kind::Orphan`](super::Kind::Orphan).
    Orphan(OrphanEvidence),
    /// Of [`Kind::Stopped`](super::Kind::Stopped).
    Stopped(StoppedEvidence),
    /// Of [`Kind::Hung`](super::Kind::Hung).
    Hung(HungEvidence),
    /// Of [`Kind::Placeholder`](super::Kind::Placeholder).
    Placeholder(PlaceholderEvidence),
    /// Of [`Kind::Leak`](super::Kind::Leak).
    Leak(LeakEvidence),
    /// Of [`Kind::Idle`](super::Kind::Idle) and [`Kind::ServerIdle`](super::Kind::ServerIdle).
    Idle(IdleEvidence),
    /// Of [`Kind::StrayContext`](super::Kind::StrayContext).
    StrayContext(StrayContextEvidence),
    /// Of [`Kind::Hoard`](super::Kind::Hoard).
    Hoard(HoardEvidence),
    /// Of [`Kind::Reserved`](super::Kind::Reserved).
    Reserved(ReservedEvidence),
    /// Of [`Kind::Unattributed`](super::Kind::Unattributed).
    Unattributed(UnattributedEvidence),
    /// Of [`Kind::Pressure`](super::Kind::Pressure).
    Pressure(PressureEvidence),
}

impl Evidence {
    /// The schema of the evidence of a kind of finding.
    pub fn schema(kind: Kind, generator: &mut SchemaGenerator) -> Schema {
        match kind {
            Kind::Dead => generator.subschema_for::<DeadEvidence>(),
            Kind::Stuck => generator.subschema_for::<StuckEvidence>(),
            Kind::Orphan => generator.subschema_for::<OrphanEvidence>(),
            Kind::Stopped => generator.subschema_for::<StoppedEvidence>(),
            Kind::Hung => generator.subschema_for::<HungEvidence>(),
            Kind::Placeholder => generator.subschema_for::<PlaceholderEvidence>(),
            Kind::Idle | Kind::ServerIdle => generator.subschema_for::<IdleEvidence>(),
            Kind::Leak => generator.subschema_for::<LeakEvidence>(),
            Kind::StrayContext => generator.subschema_for::<StrayContextEvidence>(),
            Kind::Hoard => generator.subschema_for::<HoardEvidence>(),
            Kind::Reserved => generator.subschema_for::<ReservedEvidence>(),
            Kind::Unattributed => generator.subschema_for::<UnattributedEvidence>(),
            Kind::Pressure => generator.subschema_for::<PressureEvidence>(),
        }
    }
}

/// What says that NVML lists a process that is none any more.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct DeadEvidence {
    /// `Z` or `X`, as in /proc; `null` where /proc does not know the pid.
    pub state: Option<char>,
    /// Samples in which it was so without a break.
    pub samples: u64,
}

/// What says that a process cannot go on.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StuckEvidence {
    /// `D`, as in /proc.
    pub state: char,
    /// Samples in which it was so without a break.
    pub samples: u64,
}

/// What says that a process outlived its job.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct OrphanEvidence {
    /// The reaper that adopted it; `None` of a kernel that still has another parent.
    pub ppid: Option<u32>,
    /// The process group whose leader is gone; `None` of a kernel, which leads its own.
    pub process_group: Option<u32>,
    /// It is a notebook kernel, and the server that started it is gone.
    pub server_gone: bool,
    /// Whether the session's leader still exists.
    pub session_leader_alive: Option<bool>,
    /// How long no use of a GPU was seen, in seconds.
    #[schemars(range(min = 0))]
    pub unused_seconds: f64,
    /// Mean CPU use over the rule's duration, in percent; one core is 100.
    #[schemars(range(min = 0))]
    pub cpu_percent_mean: Option<f64>,
    /// Samples in which it was so.
    pub samples: u64,
    /// Whether NVML lists it; else it holds a device file of a GPU that has unattributed memory.
    pub listed: bool,
    /// The GPU device files that it holds open; `null` where they could not be read.
    pub gpu_files: Option<Vec<Arc<str>>>,
}

/// What says that a process was stopped.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StoppedEvidence {
    /// `T`, as in /proc.
    pub state: char,
    /// Samples in which it was so without a break.
    pub samples: u64,
    /// Its controlling terminal, where it has one: `fg` there would let it go on.
    pub terminal: Option<Arc<str>>,
}

/// What says that a process spins without working.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HungEvidence {
    /// The least use that the GPU reported meanwhile. Percent, 0 to 100.
    pub gpu_percent_min: u32,
    /// Mean power of the GPU meanwhile, in watts.
    pub power_watts_mean: f64,
    /// Mean power of the GPU before, while the same process was at work.
    pub power_watts_before: f64,
    /// Mean memory traffic of the GPU meanwhile. Percent, 0 to 100.
    pub memory_percent_mean: Option<f64>,
    /// Mean memory traffic of the GPU while the same process was at work. Percent, 0 to 100.
    pub memory_percent_before: Option<f64>,
    /// Samples in which it was so.
    pub samples: u64,
}

/// What says that a process only keeps a GPU from others.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PlaceholderEvidence {
    /// The known program that it runs; `None` where its conduct tells.
    pub program: Option<Arc<str>>,
    /// How often it used the GPU for a moment at a constant period; `None` of a known program.
    pub bursts: Option<u64>,
    /// The mean period, in seconds.
    pub period_seconds: Option<f64>,
    /// The most that the GPU drew meanwhile, in percent of its power limit.
    pub power_percent_max: Option<f64>,
    /// Samples that were judged.
    pub samples: u64,
}

/// What says that a process's memory grows without end.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct LeakEvidence {
    /// Growth of the lower envelope, in bytes a second.
    pub bytes_per_second: f64,
    /// The lower bound of it.
    pub bytes_per_second_low: f64,
    /// The upper bound of it.
    pub bytes_per_second_high: f64,
    /// The window that was judged, in seconds.
    #[schemars(range(min = 0))]
    pub span_seconds: f64,
    /// Samples in the window.
    pub samples: u64,
    /// By how much the lower envelope grew in it, in bytes.
    pub grown_bytes: u64,
    /// The share of the window in which it grew, 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    pub growing_share: f64,
    /// How long ago it stopped growing, in seconds; `null` while it grows.
    #[schemars(range(min = 0))]
    pub stopped_seconds: Option<f64>,
    /// What the GPU had free at the end of it, in bytes.
    pub free_bytes: Option<u64>,
    /// Seconds until that is used up at this rate; `null` where it cannot be told.
    pub out_of_memory_seconds: Option<f64>,
    /// The soonest, by the upper bound of the rate.
    pub out_of_memory_seconds_low: Option<f64>,
    /// The latest, by the lower bound of the rate.
    pub out_of_memory_seconds_high: Option<f64>,
    /// The curve by which it grows ever more slowly, and by which the forecast is then made; absent where it
    /// grows evenly.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SlowingEvidence")]
    pub slowing: Option<SlowingEvidence>,
}

/// A curve that fits growth which becomes ever slower.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct SlowingEvidence {
    /// `power` of time, `logarithm` of time, or approach to a `level`.
    #[schemars(extend("enum" = ["power", "logarithm", "level"]))]
    pub curve: &'static str,
    /// The power of time, below 1; absent for the other curves.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0, max = 1))]
    pub power: Option<f64>,
    /// How far the curve is off, as a share of the growth: the root of the mean square.
    #[schemars(range(min = 0))]
    pub error_share: f64,
}

/// What says that a process was idle.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct IdleEvidence {
    /// The highest use of the SMs meanwhile; `null` where the device's own stood in for it. Percent, 0
    /// to 100.
    pub sm_percent_max: Option<u32>,
    /// The highest use of the device meanwhile, where that was the evidence. Percent, 0 to 100.
    pub gpu_percent_max: Option<u32>,
    /// Mean CPU use over the rule's duration. Percent; one core is 100.
    pub cpu_percent_mean: Option<f64>,
    /// Samples in the run that showed no use.
    pub samples: u64,
    /// The share of the time that those samples cover, 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    pub coverage: f64,
    /// When the notebook was last active, as its server says; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Time>,
    /// How long a notebook's cell has run with no output, no CPU and no GPU use; absent where none runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0))]
    pub busy_seconds: Option<f64>,
}

/// What says that a context is there by mistake.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StrayContextEvidence {
    /// The GPUs on which the process works, by NVML's index.
    pub works_on: Vec<u32>,
    /// Samples in which this one was not used.
    pub samples: u64,
}

/// What says that memory was reserved rather than needed.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HoardEvidence {
    /// What the process held when it had settled after its start, in bytes.
    pub first_bytes: u64,
    /// Its share of the GPU's memory, 0 to 1.
    #[schemars(range(min = 0))]
    pub share: f64,
    /// Mean memory traffic of the process, else of the GPU. Percent, 0 to 100.
    pub memory_percent_mean: Option<f64>,
    /// Mean use of the SMs by the process, else of the GPU. Percent, 0 to 100.
    pub sm_percent_mean: Option<f64>,
    /// Samples that were judged.
    pub samples: u64,
}

/// What says that a GPU was given to somebody who runs nothing on it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ReservedEvidence {
    /// The job, pod or container, in words.
    pub holder: Arc<str>,
    /// Its owner's name.
    pub user: Option<Arc<str>>,
    /// The process whose environment says so.
    pub pid: u32,
    /// The variable that names the GPUs.
    pub variable: Arc<str>,
    /// All of its GPUs, as the variable names them.
    pub devices: Vec<Arc<str>>,
    /// When that process started: since then at least the GPUs are its own.
    pub given_at: Time,
    /// Samples in which nobody was on any of them.
    pub samples: u64,
}

/// What says that memory is held by nobody that NVML lists.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct UnattributedEvidence {
    /// What the GPU has in use, without what the driver reserves, in bytes.
    pub used_bytes: u64,
    /// The sum of what the listed processes hold, in bytes.
    pub attributed_bytes: u64,
    /// The difference, in bytes.
    pub unattributed_bytes: u64,
    /// How many processes are listed.
    pub listed: u64,
    /// Samples in which it was so.
    pub samples: u64,
    /// Processes that hold the GPU's device file open and are not listed on it.
    pub holders: Vec<Holder>,
}

/// A process that holds a GPU's device file open.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// Its owner.
    pub user: Option<Arc<str>>,
    /// What to call it. Holds names that a process chose: escape it for a terminal.
    pub name: String,
}

/// What says that a GPU is nearly full.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PressureEvidence {
    /// What is free, in bytes.
    pub free_bytes: u64,
    /// All that there is, in bytes.
    pub total_bytes: u64,
    /// Samples in which it was so.
    pub samples: u64,
}
