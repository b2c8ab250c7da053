//! A suspect: a process that meets a rule's conditions, but was not observed for long enough.
//!
//! A suspect is not a finding: code that kills processes, frees memory or computes exit codes ignores suspects.
//! `rules::suspect` creates suspects.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_with_macros::skip_serializing_none;

use super::finding::{FindingGpu, FindingProcess, Kind, samples};
use super::time::Time;
use crate::units::Span;

/// A process that a rule suspects of holding memory unused, but for which it needs more evidence.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Suspect {
    /// Name of the rule that would report the process.
    pub rule: Arc<str>,
    /// Kind of the expected finding.
    pub kind: Kind,
    /// The process.
    pub process: FindingProcess,
    /// GPUs on which the process holds memory, if the rule considers them.
    pub gpus: Vec<FindingGpu>,
    /// Memory that the process holds on these GPUs, in bytes; `null` if unknown.
    pub memory_bytes: Option<u64>,
    /// When the condition was first observed. The condition may have begun earlier.
    pub since: Time,
    /// How long the condition has been observed, in seconds.
    #[schemars(range(min = 0))]
    pub seen_seconds: f64,
    /// How long the condition must last before the rule reports the process, in seconds.
    #[schemars(range(min = 0))]
    pub needed_seconds: f64,
    /// Latest time at which the rule can decide, if sampling continues.
    pub due: Time,
    /// Evidence so far.
    pub evidence: SuspectEvidence,
    /// Short form for a table cell: `idle? 12s of 10m`.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "String")]
    pub mark: SeenSoFar,
    /// The suspicion as one sentence on one line, for display. Control and invisible characters in names are escaped.
    pub message: Arc<str>,
    /// What the rule needs before it can decide.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "String")]
    pub missing: StillMissing,
    /// Command that observes the process long enough for a decision.
    pub command: Arc<str>,
}

/// Formats the text only when it is serialized, because few suspects of a sample are shown.
fn as_text<S: Serializer>(text: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(text)
}

/// Observed and required duration of the condition, formatted as `idle? 12s of 10m`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenSoFar {
    pub kind: Kind,
    pub seconds: u64,
    pub needed: Span,
}

impl fmt::Display for SeenSoFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self.seconds {
            seconds @ 0..60 => (seconds, "s"),
            seconds @ 60..3600 => (seconds / 60, "m"),
            seconds @ 3600..86_400 => (seconds / 3600, "h"),
            seconds => (seconds / 86_400, "d"),
        };
        write!(f, "{}? {number}{unit} of {}", self.kind, self.needed.exact())
    }
}

/// Time until a rule can decide, formatted as `decided in 9m 48s` with advice to start a recorder if none runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StillMissing {
    /// Remaining time, rounded up, or 0 if the next samples can decide.
    pub seconds: u64,
    /// Whether the start of the condition was observed, or a recorder is running. If so, advice to start a recorder
    /// would be useless.
    pub is_recorded: bool,
}

impl fmt::Display for StillMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seconds {
            0 => f.write_str("decided after the next samples")?,
            seconds => write!(f, "decided in {}", Span(Duration::from_secs(seconds)))?,
        }
        match self.is_recorded {
            true => Ok(()),
            false => f.write_str("; run `gpumem record --store` to decide at once"),
        }
    }
}

/// Evidence for a suspicion; unknown values are absent.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct SuspectEvidence {
    /// Number of samples that show the condition.
    pub samples: u64,
    /// Highest SM utilization in these samples, in percent, 0 to 100; absent if the whole GPU's
    /// utilization was used instead.
    pub sm_percent_max: Option<u32>,
    /// Highest utilization of the whole GPU in these samples, in percent, 0 to 100; absent unless it is part of the
    /// evidence.
    pub gpu_percent_max: Option<u32>,
    /// CPU time of the process and its descendants since the process started, in seconds.
    #[schemars(range(min = 0))]
    pub cpu_seconds: Option<f64>,
    /// Time since the process started, in seconds.
    #[schemars(range(min = 0))]
    pub age_seconds: Option<f64>,
    /// Share of the process's lifetime during which a kernel of the process was running on a GPU, in percent, 0 to
    /// 100, from the driver's accounting. The highest share if the process uses several GPUs.
    pub lifetime_percent: Option<u32>,
    /// Length of the lifetime to which `lifetime_percent` refers, in seconds.
    #[schemars(range(min = 0))]
    pub lifetime_seconds: Option<f64>,
    /// Last activity of the notebook kernel, as reported by its server.
    pub last_activity: Option<Time>,
    /// Time since `last_activity`, in seconds.
    #[schemars(range(min = 0))]
    pub inactive_seconds: Option<f64>,
    /// Longest pause after which the process used the GPU again, in seconds; absent if none was observed.
    #[schemars(range(min = 0))]
    pub paused_seconds: Option<f64>,
    /// State letter of a stopped process in /proc: `T`.
    pub state: Option<char>,
    /// Whether the job has ended: its parent process and process group leader have exited, or the notebook's server
    /// has.
    pub job_gone: Option<bool>,
}

impl SuspectEvidence {
    pub fn words(&self) -> String {
        let span = |seconds: f64| Span::from_seconds(seconds);
        let mut parts = Vec::new();
        if let Some(state) = self.state {
            let count = samples(self.samples);
            parts.push(format!("suspended ({state}: Ctrl-Z, SIGSTOP) in {count}"));
        }
        if self.job_gone == Some(true) {
            parts.push("the job or server that started it has exited".to_owned());
        }
        if let Some(percent) = self.sm_percent_max {
            let count = samples(self.samples);
            parts.push(match percent {
                0 => format!("no GPU use in {count}"),
                _ => format!("SM {percent}% at most in {count}"),
            });
        }
        if let Some(percent) = self.gpu_percent_max {
            let count = samples(self.samples);
            parts.push(match percent {
                0 => format!("whole GPU unused in {count}"),
                _ => format!("whole GPU at most {percent}% busy in {count}"),
            });
        }
        if let (Some(percent), Some(life)) = (self.lifetime_percent, self.lifetime_seconds) {
            parts.push(format!("GPU busy {percent}% of {} (driver accounting)", span(life)));
        }
        if let Some(paused) = self.paused_seconds {
            parts.push(format!("resumed work after an earlier pause of {}", span(paused)));
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
