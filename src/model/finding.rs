//! A finding: the conclusion of a rule, its evidence, and the actions that it offers.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::keep::KeptBy;
use super::process::Identity;
use super::process::Process;
use super::time::Time;
use crate::units::number_of;

/// Severity of a finding.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Memory is wasted.
    Warning,
    /// Work is at risk.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KindSubject {
    Process,
    Gpu,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// `reap` includes the kind unless other kinds are requested. The service includes it if the rule has `action =
    /// "reap"`.
    Always,
    /// `reap` includes the kind if the kind or the rule is named. The service includes it if the rule has `action =
    /// "reap"`.
    Configured,
    /// `reap` includes the kind only if the kind or the rule is named, because the process may hold the memory on
    /// purpose.
    Named,
    /// `reap` never includes the kind, because the cause is uncertain, or because ending the process would not help.
    Never,
}

/// Declares the kinds, each with its name, its subject, and when `reap` includes it. Everything else is in the kind's
/// module in `rules`.
macro_rules! kinds {
    ($($(#[$meaning:meta])* $kind:ident = $name:literal, $about:ident, $ends:ident;)*) => {
        /// Kind of finding. If a process has several equally severe findings, the finding whose kind is declared
        /// first is reported, because kinds are declared in order of urgency.
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
            JsonSchema, Serialize, Deserialize,
        )]
        pub enum Kind {
            $($(#[$meaning])* #[serde(rename = $name)] $kind,)*
        }

        impl Kind {
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            pub const fn about(self) -> KindSubject {
                match self {
                    $(Self::$kind => KindSubject::$about,)*
                }
            }

            pub const fn ends(self) -> Ends {
                match self {
                    $(Self::$kind => Ends::$ends,)*
                }
            }
        }
    };
}

kinds! {
    /// NVML lists a process that is defunct or does not exist.
    Dead = "dead", Process, Never;
    /// A process that holds GPU memory stays in uninterruptible sleep.
    Stuck = "stuck", Process, Never;
    /// A process outlived the job that started it.
    Orphan = "orphan", Process, Always;
    /// A process that holds memory was stopped by a signal or a terminal.
    Stopped = "stopped", Process, Always;
    /// The GPU reports full utilization, but its power draw is a fraction of the former power draw.
    Hung = "hung", Process, Configured;
    /// A process runs a program that is known to only occupy a GPU.
    Placeholder = "placeholder", Process, Named;
    /// A process holds memory and has not used the GPU for the rule's duration.
    Idle = "idle", Process, Always;
    /// A process's memory grows and does not level off.
    Leak = "leak", Process, Configured;
    /// Like idle, but the process is an inference server that waits for requests.
    ServerIdle = "server-idle", Process, Named;
    /// A job or container has been allocated a GPU but runs nothing on it.
    Reserved = "reserved", Gpu, Never;
    /// A GPU has more memory in use than its processes hold.
    Unattributed = "unattributed", Gpu, Never;
    /// A GPU has little memory left.
    Pressure = "pressure", Gpu, Never;
}

impl Kind {
    pub const fn may_be_reaped(self) -> bool {
        matches!(self.ends(), Ends::Always | Ends::Configured)
    }

    pub const fn is_unused(self) -> bool {
        use Kind::{Idle, Orphan, Placeholder, ServerIdle, Stopped};
        matches!(self, Orphan | Stopped | Placeholder | Idle | ServerIdle)
    }

    /// Returns whether a process with this kind of finding can be asked to release memory. If a GPU is nearly full,
    /// even a busy process can be asked, because it can handle a release signal.
    pub const fn may_be_released(self) -> bool {
        matches!(self, Self::Idle | Self::ServerIdle | Self::Pressure)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A problem that a rule found.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Finding {
    /// Identifier of the finding; stays the same while the finding lasts, even if gpumem restarts.
    pub id: Arc<str>,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Kind of the finding.
    pub kind: Kind,
    /// Severity of the finding.
    pub severity: Severity,
    /// When the condition began, even if gpumem noticed it later.
    pub since: Time,
    /// Time from `since` to the last snapshot that shows the condition, in seconds.
    pub duration_seconds: f64,
    /// When the finding was resolved; `null` while it is active.
    pub resolved_at: Option<Time>,
    /// The GPUs that the finding is about.
    pub gpus: Vec<FindingGpu>,
    /// The process that the finding is about; `null` if it is about a GPU.
    pub process: Option<FindingProcess>,
    /// GPU memory affected, in bytes.
    pub memory_bytes: Option<u64>,
    /// Evidence for the finding; its fields depend on `kind`.
    #[schemars(with = "serde_json::Map<String, Value>")]
    pub evidence: Evidence,
    /// The finding as one sentence on one line, for display. Control and invisible characters in names are escaped.
    pub message: String,
    /// Ways to reclaim the memory, gentlest first.
    pub advice: Vec<String>,
    /// Complete commands to run next: `gpumem kill 4242`, a command of the scheduler or supervisor that owns the
    /// process, or `gpumem explain` if there is nothing to kill. Reports take the commands from a plan; rules leave
    /// them empty. They can contain untrusted names, quoted for a shell: escape them for a terminal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Actions that gpumem may take by default: `notify`, `jupyter-shutdown`, `terminate`.
    pub actions: Vec<Action>,
    /// Less urgent findings on the same process, which are not reported separately; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    /// Why the process is exempt from being killed for this finding; absent if no exemption is known. `reap` skips an
    /// exempt process, and the memory of the process is not reclaimable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<KeptBy>,
    /// Why `reap` skips a process that is not itself exempt: another process of its job is exempt or has no finding,
    /// or the process only uses graphics. Absent if the snapshot shows no reason. The memory of a skipped process is
    /// not reclaimable. Reports take the reason from a plan; rules leave it empty. Contains untrusted text: escape it
    /// for a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Arc<str>>,
    /// Bytes that a plan frees in addition to [`Finding::memory_bytes`], if known.
    #[serde(skip)]
    pub more_bytes: Option<u64>,
}

/// A finding attached to a more urgent finding on the same process.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Also {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Kind of the finding.
    pub kind: Kind,
    /// Severity of the finding.
    pub severity: Severity,
    /// When the condition began.
    pub since: Time,
    /// Evidence for the finding; its fields depend on `kind`.
    #[schemars(with = "serde_json::Map<String, Value>")]
    pub evidence: Evidence,
    /// The finding as one sentence, for display.
    pub message: String,
}

impl From<&Finding> for Also {
    fn from(finding: &Finding) -> Self {
        Self {
            rule: Arc::clone(&finding.rule),
            kind: finding.kind,
            severity: finding.severity,
            since: finding.since,
            evidence: finding.evidence.clone(),
            message: finding.message.clone(),
        }
    }
}

/// A finding that gpumem neither reports nor acts on, because the configuration exempts it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Kept {
    /// The finding that would be reported.
    pub finding: Finding,
    /// Reason given in the configuration.
    pub reason: Arc<str>,
    /// End of the exemption; `null` if unlimited.
    pub until: Option<Time>,
    /// Whether the exemption is known to cover the process. If `false`, a condition of the exemption is unknown, but
    /// the exemption still applies.
    pub certain: bool,
}

/// A GPU in a finding.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct FindingGpu {
    /// NVML index.
    pub index: u32,
    /// UUID: `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// Memory that the process holds on this GPU, in bytes.
    pub used_bytes: Option<u64>,
}

/// The process that a finding or figure is about.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct FindingProcess {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// Start time as wall-clock time.
    pub start_time: Option<Time>,
    /// User name of the owner.
    pub user: Option<Arc<str>>,
    /// The process's argv.
    pub command: Option<Arc<[Arc<str>]>>,
    #[serde(skip)]
    pub identity: Identity,
}

impl FindingProcess {
    /// Describes a process for a finding. If the process has exited, keeps its names but no start, because another
    /// process may have its pid now.
    pub fn new(process: &Process) -> Self {
        let (user, command) = match process.ended() {
            Some(ended) => (&ended.user, &ended.command),
            None => (&process.user, &process.command),
        };
        Self {
            pid: process.pid,
            start_ticks: process.start_ticks,
            start_time: process.start_time,
            user: user.clone(),
            command: command.clone(),
            identity: process.identity(),
        }
    }
}

/// An action that gpumem may take by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Notify the owner.
    Notify,
    /// Ask the notebook server to shut the kernel down.
    JupyterShutdown,
    /// Terminate the process.
    Terminate,
}

/// A condition that becomes a finding if it lasts for the rule's duration.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Pending {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Kind of the finding.
    pub kind: Kind,
    /// PID of the process; `null` if the finding would be about a GPU.
    pub pid: Option<u32>,
    /// NVML index of the GPU.
    pub gpu: u32,
    /// When the condition began.
    pub since: Time,
    /// When the rule's duration is over.
    pub due: Time,
}

/// A rule that could not be decided, with the reason.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct Undecided {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// PID of the process for which the rule is undecided; `null` if no particular process is affected.
    pub pid: Option<u32>,
    /// NVML index of the GPU for which the rule is undecided; `null` if no particular GPU is affected.
    pub gpu: Option<u32>,
    /// Why the rule is undecided.
    pub reason: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnCommands {
    /// The command that makes the process release memory and keep running. `None` if the process is not known to
    /// support this.
    pub release: Option<String>,
    pub kill: Option<String>,
}

// The evidence of a finding consists of the facts that the rule observed. Their names include units, and unknown
// numbers are `null`. Each kind's module in `rules` defines its facts and their wording. The common part is in this
// file, so that modules that do not depend on `rules` can use findings.

/// The facts of one kind of finding, serialized as `evidence`.
pub trait KindEvidence: Serialize + JsonSchema {
    /// Describes the facts on one line. The text may contain names that a process chose, so callers must escape it for
    /// a terminal.
    fn words(&self) -> String;

    /// Returns when the GPU's memory will be used up, if the facts include a forecast.
    fn forecast(&self) -> Option<Exhaustion> {
        None
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Exhaustion {
    pub free_bytes: u64,
    pub seconds: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(transparent)]
pub struct Evidence {
    facts: Arc<Value>,
    #[serde(skip)]
    words: Arc<str>,
    #[serde(skip)]
    forecast: Option<Exhaustion>,
}

impl Evidence {
    pub fn new(facts: impl KindEvidence) -> Self {
        Self {
            words: facts.words().into(),
            forecast: facts.forecast(),
            facts: serde_json::to_value(facts).unwrap_or_default().into(),
        }
    }

    pub fn words(&self) -> &str {
        &self.words
    }

    pub fn forecast(&self) -> Option<Exhaustion> {
        self.forecast
    }
}

pub fn samples(count: u64) -> String {
    number_of(count, "sample")
}
