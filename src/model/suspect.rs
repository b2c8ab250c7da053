//! A suspect: a process that looks like waste already, while the rule that would find it has not seen
//! enough to say so.
//!
//! It is no finding and never becomes a target: nothing that kills or frees memory reads it, and no
//! exit code counts it. Plain data; `rules::suspect` makes it.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_with::skip_serializing_none;

use super::evidence::samples;
use super::finding::{FindingGpu, FindingProcess, Kind};
use super::time::Time;
use crate::units::Span;

/// A process that looks like waste, before a rule can prove it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Suspect {
    /// The rule that would find it.
    pub rule: Arc<str>,
    /// The kind that the finding would have.
    pub kind: Kind,
    /// The process.
    pub process: FindingProcess,
    /// The GPUs on which it holds memory, as far as the rule counts them.
    pub gpus: Vec<FindingGpu>,
    /// What it holds there, in bytes; `null` where that is not known.
    pub memory_bytes: Option<u64>,
    /// Since when it has been seen so; it may have been so before.
    pub since: Time,
    /// For how long it has been seen so, in seconds.
    #[schemars(range(min = 0))]
    pub seen_seconds: f64,
    /// For how long it has to be so until the rule finds it, in seconds.
    #[schemars(range(min = 0))]
    pub needed_seconds: f64,
    /// When the rule can tell at the latest, if samples go on.
    pub due: Time,
    /// What it is suspected for.
    pub evidence: SuspectEvidence,
    /// A mark for a cell of a table: `idle? 12s of 10m`.
    pub mark: String,
    /// The sentence a person reads. Holds names that a process chose: escape it for a terminal.
    pub message: String,
    /// What is missing until a rule can tell.
    pub missing: String,
    /// The command that decides it.
    pub command: String,
}

/// What a process is suspected for; what is not known is absent.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct SuspectEvidence {
    /// Samples in which it was so.
    pub samples: u64,
    /// The highest use of the SMs in these samples; absent where the whole GPU's use stood in for it.
    /// Percent, 0 to 100.
    pub sm_percent_max: Option<u32>,
    /// The highest use of the whole GPU in these samples, where that is the evidence. Percent, 0 to 100.
    pub gpu_percent_max: Option<u32>,
    /// What it and its descendants have used of the CPU since it started, in seconds.
    #[schemars(range(min = 0))]
    pub cpu_seconds: Option<f64>,
    /// For how long it has run, in seconds.
    #[schemars(range(min = 0))]
    pub age_seconds: Option<f64>,
    /// Share of its life in which it had a kernel running, by the driver's accounting, on the GPU where that is
    /// most. Percent, 0 to 100.
    pub lifetime_percent: Option<u32>,
    /// How long that life is, in seconds.
    #[schemars(range(min = 0))]
    pub lifetime_seconds: Option<f64>,
    /// When the notebook was last active, as its server says.
    pub last_activity: Option<Time>,
    /// How long ago that is, in seconds.
    #[schemars(range(min = 0))]
    pub inactive_seconds: Option<f64>,
    /// The state of a stopped process, `T`, as in /proc.
    pub state: Option<char>,
    /// The parent and the process group's leader are gone, or the notebook's server is.
    pub job_gone: Option<bool>,
}

impl SuspectEvidence {
    /// The facts in a line.
    pub fn words(&self) -> String {
        let span = |seconds: f64| Span::from_seconds(seconds);
        let mut parts = Vec::new();
        if let Some(state) = self.state {
            parts.push(format!("state {state} in {}", samples(self.samples)));
        }
        if self.job_gone == Some(true) {
            parts.push("the job or server that started it is gone".to_owned());
        }
        if let Some(percent) = self.sm_percent_max {
            parts.push(format!("SM {percent}% in {}", samples(self.samples)));
        }
        if let Some(percent) = self.gpu_percent_max {
            let count = samples(self.samples);
            parts.push(format!("the whole GPU {percent}% in {count}"));
        }
        if let (Some(percent), Some(life)) = (self.lifetime_percent, self.lifetime_seconds) {
            parts.push(format!(
                "GPU busy {percent}% of {} by accounting",
                span(life)
            ));
        }
        if let Some(inactive) = self.inactive_seconds {
            parts.push(format!("notebook last active {} ago", span(inactive)));
        }
        if let (Some(cpu), Some(age)) = (self.cpu_seconds, self.age_seconds) {
            let mut words = format!("CPU time {}", span(cpu.round()));
            let _ = write!(words, " in {}", span(age));
            parts.push(words);
        }
        parts.join(", ")
    }
}
