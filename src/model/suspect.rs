//! A suspect: a process that looks like waste already, while the rule that would find it has not seen
//! enough to say so.
//!
//! It is no finding and never becomes a target: nothing that kills or frees memory reads it, and no
//! exit code counts it. Plain data; `rules::suspect` makes it.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_with_macros::skip_serializing_none;

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
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "String")]
    pub mark: SeenSoFar,
    /// The sentence a person reads. One line: control and invisible characters of names in it are escaped.
    pub message: Arc<str>,
    /// What is missing until a rule can tell.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "String")]
    pub missing: StillMissing,
    /// The command that decides it.
    pub command: Arc<str>,
}

/// What is written of a suspect once it is shown: there may be many in each sample.
fn as_text<S: Serializer>(text: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(text)
}

/// For how long a process was seen so, of the time that the rule asks for: `idle? 12s of 10m`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenSoFar {
    /// What it is suspected to be.
    pub kind: Kind,
    /// In whole seconds.
    pub seconds: u64,
    /// What the rule asks for.
    pub needed: Span,
}

impl fmt::Display for SeenSoFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By its largest unit.
        let (number, unit) = match self.seconds {
            seconds @ 0..60 => (seconds, "s"),
            seconds @ 60..3600 => (seconds / 60, "m"),
            seconds @ 3600..86_400 => (seconds / 3600, "h"),
            seconds => (seconds / 86_400, "d"),
        };
        write!(f, "{}? {number}{unit} of {}", self.kind, self.needed.exact())
    }
}

/// What is missing until a rule can tell: `can tell in 9m 48s`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StillMissing {
    /// In whole seconds, begun ones too; 0 where the next samples tell.
    pub seconds: u64,
    /// It was seen to begin, or a recorder runs: no other history would know more.
    pub is_recorded: bool,
}

impl fmt::Display for StillMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seconds {
            0 => f.write_str("can tell with the next samples")?,
            seconds => write!(f, "can tell in {}", Span(Duration::from_secs(seconds)))?,
        }
        match self.is_recorded {
            true => Ok(()),
            false => f.write_str("; `gpumem record --store` would know"),
        }
    }
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
    /// The longest time without use after which it went back to work, in seconds; absent where none was seen.
    #[schemars(range(min = 0))]
    pub paused_seconds: Option<f64>,
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
            let count = samples(self.samples);
            parts.push(format!("suspended ({state}: Ctrl-Z, SIGSTOP) in {count}"));
        }
        if self.job_gone == Some(true) {
            parts.push("the job or server that started it is gone".to_owned());
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
                0 => format!("no use of the whole GPU in {count}"),
                _ => format!("the whole GPU {percent}% at most in {count}"),
            });
        }
        if let (Some(percent), Some(life)) = (self.lifetime_percent, self.lifetime_seconds) {
            parts.push(format!("GPU busy {percent}% of {} by accounting", span(life)));
        }
        if let Some(paused) = self.paused_seconds {
            parts.push(format!("went back to work after {} before", span(paused)));
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
