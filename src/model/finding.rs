//! A finding: what a rule concluded, with its evidence and what can be done about it.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::identity::Identity;
use super::keep::KeptBy;
use super::process::Process;
use super::time::Time;

/// How bad a finding is.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Memory is wasted.
    Warning,
    /// Work is in danger.
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

/// What a kind of finding is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KindSubject {
    /// A process, on one or several GPUs.
    Process,
    /// A GPU.
    Gpu,
}

/// When `reap` ends what is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// Unless other kinds are asked for; and by a rule with `action = "reap"`.
    Always,
    /// When the kind or the rule is named; and by a rule with `action = "reap"`.
    Configured,
    /// Only when the kind or the rule is named: it may be a server's work to wait.
    Named,
    /// Never: nothing certain could be signalled, or it would not help.
    Never,
}

/// A line a kind: its name, what it is about, and when `reap` ends what is found. All else that a kind is
/// stands in its file in `rules`.
macro_rules! kinds {
    ($($(#[$meaning:meta])* $kind:ident = $name:literal, $about:ident, $ends:ident;)*) => {
        /// What kind of waste it is; declared in the order in which something has to be done about it,
        /// so that of several on one process the first is the accusation.
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
            JsonSchema, Serialize, Deserialize,
        )]
        pub enum Kind {
            $($(#[$meaning])* #[serde(rename = $name)] $kind,)*
        }

        impl Kind {
            /// All of them, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// As it is written in a report and a configuration.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// What it is about.
            pub const fn about(self) -> KindSubject {
                match self {
                    $(Self::$kind => KindSubject::$about,)*
                }
            }

            /// When `reap` ends what is found.
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
    /// In uninterruptible sleep, sample after sample.
    Stuck = "stuck", Process, Never;
    /// Outlived the job that started it.
    Orphan = "orphan", Process, Always;
    /// Stopped by a signal or a terminal while it holds memory.
    Stopped = "stopped", Process, Always;
    /// Full use is reported while power has fallen to a fraction of what it was.
    Hung = "hung", Process, Configured;
    /// A program that is made to hold a GPU, or acts as one.
    Placeholder = "placeholder", Process, Named;
    /// Holds memory and has not used the GPU for the rule's duration.
    Idle = "idle", Process, Always;
    /// Grows and does not level off.
    Leak = "leak", Process, Configured;
    /// As idle, but it is an inference server that waits for requests.
    ServerIdle = "server-idle", Process, Named;
    /// A job or a container was given a GPU and runs nothing on it.
    Reserved = "reserved", Gpu, Never;
    /// A GPU's used memory exceeds what its processes hold.
    Unattributed = "unattributed", Gpu, Never;
    /// A GPU has little memory left.
    Pressure = "pressure", Gpu, Never;
}

impl Kind {
    /// Whether what a rule of it finds may be ended without a person to confirm it.
    pub const fn may_be_reaped(self) -> bool {
        matches!(self.ends(), Ends::Always | Ends::Configured)
    }

    /// Whether it says that memory is held and the GPU not used.
    pub const fn is_unused(self) -> bool {
        use Kind::{Idle, Orphan, Placeholder, ServerIdle, Stopped};
        matches!(self, Orphan | Stopped | Placeholder | Idle | ServerIdle)
    }

    /// Whether what a rule of it finds may be asked to release memory: it rests, and lives on; on a GPU that is nearly
    /// full, who has announced a signal for that and works.
    pub const fn may_be_released(self) -> bool {
        matches!(self, Self::Idle | Self::ServerIdle | Self::Pressure)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a rule found.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Finding {
    /// The same for as long as it lasts, and over a restart.
    pub id: Arc<str>,
    /// The rule's name.
    pub rule: Arc<str>,
    /// What kind of waste it is.
    pub kind: Kind,
    /// How bad it is.
    pub severity: Severity,
    /// When the state began, not when it was noticed.
    pub since: Time,
    /// From since to the last snapshot in which it was so, in seconds.
    pub duration_seconds: f64,
    /// When it ceased; `null` while it lasts.
    pub resolved_at: Option<Time>,
    /// The GPUs it is about.
    pub gpus: Vec<FindingGpu>,
    /// The process it is about; `null` where it is about a GPU.
    pub process: Option<FindingProcess>,
    /// The memory at stake, in bytes.
    pub memory_bytes: Option<u64>,
    /// What the verdict rests on; its fields depend on kind.
    pub evidence: Evidence,
    /// The sentence a person reads. One line: control and invisible characters of names in it are escaped.
    pub message: String,
    /// What would give the memory back, gentlest first.
    pub advice: Vec<String>,
    /// What to type next, each a whole command: `gpumem kill 4242`, or the command of what owns the
    /// process; where there is nothing to kill, `gpumem explain`. Rules leave it empty; a report fills it
    /// in from a plan. Holds names that others chose, quoted for a shell: escape it for a terminal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// What gpumem may do about it by default: `notify`, `jupyter-shutdown`, `terminate`.
    pub actions: Vec<Action>,
    /// What else is so of the same process, and would be a finding of its own if this one were not;
    /// absent where nothing is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    /// What keeps the process from being killed for it, as far as that is known; absent where nothing does.
    /// `reap` leaves it alone, and what it holds is not reclaimable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<KeptBy>,
    /// Why `reap` skips it where nothing keeps the process itself: another of its job is kept or has no finding,
    /// or the process only draws, as far as a snapshot shows it; absent where nothing speaks against it. What it
    /// holds is not reclaimable. Rules leave it empty. Holds words that others chose: escape it for a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Arc<str>>,
    /// What a plan frees with it beside [`Finding::memory_bytes`], where it says so.
    #[serde(skip)]
    pub more_bytes: Option<u64>,
}

/// A finding that another one on the same process stands before.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Also {
    /// The rule's name.
    pub rule: Arc<str>,
    /// What kind of waste it is.
    pub kind: Kind,
    /// How bad it is.
    pub severity: Severity,
    /// When the state began.
    pub since: Time,
    /// What the verdict rests on; its fields depend on kind.
    pub evidence: Evidence,
    /// The sentence a person reads.
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

/// A finding that an exemption of the configuration keeps from being reported and acted upon.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Kept {
    /// What would be reported.
    pub finding: Finding,
    /// Why it is not, as the configuration says.
    pub reason: Arc<str>,
    /// Until when; `null` where that is not limited.
    pub until: Option<Time>,
    /// Whether the exemption is known to be for it; `false` where something that it asks for is not
    /// known, and protects.
    pub certain: bool,
}

/// A GPU in a finding.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct FindingGpu {
    /// NVML's index.
    pub index: u32,
    /// `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// What the process holds there, in bytes.
    pub used_bytes: Option<u64>,
}

/// The process that a finding is about; `null` where it is about a GPU.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct FindingProcess {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: Option<u64>,
    /// The same for people.
    pub start_time: Option<Time>,
    /// Its owner.
    pub user: Option<Arc<str>>,
    /// argv.
    pub command: Option<Arc<[Arc<str>]>>,
    /// The whole of who it is.
    #[serde(skip)]
    pub identity: Identity,
}

impl FindingProcess {
    /// The process as a finding carries it; one that has ended by the names that it had, and by no start: what has
    /// its number is another one.
    pub fn of(process: &Process) -> Self {
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

/// What gpumem may do about a finding by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Tell the owner.
    Notify,
    /// Ask the notebook server to shut the kernel down.
    JupyterShutdown,
    /// End the process.
    Terminate,
}

/// What will be a finding when the rule's duration is over, if nothing changes.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Pending {
    /// The rule's name.
    pub rule: Arc<str>,
    /// Its kind.
    pub kind: Kind,
    /// The process it is about; `null` where it is about a GPU.
    pub pid: Option<u32>,
    /// The GPU, by NVML's index.
    pub gpu: u32,
    /// When the state began.
    pub since: Time,
    /// When the duration is over.
    pub due: Time,
}

/// A rule that could not be decided, and why.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct Undecided {
    /// The rule's name.
    pub rule: Arc<str>,
    /// The process of which that is so; `null` where it is so of none in particular.
    pub pid: Option<u32>,
    /// The GPU of which that is so, by NVML's index; `null` where it is so of none in particular.
    pub gpu: Option<u32>,
    /// Why, in words.
    pub reason: String,
}

/// What to type about a process itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnCommands {
    /// By which it gives back what it keeps and lives on: where a snapshot shows a way, and what it has loaded
    /// returns memory by that way.
    pub release: Option<String>,
    /// Which ends it.
    pub kill: Option<String>,
}
