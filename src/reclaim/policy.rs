//! What a person or a configuration asks for: which targets, how, and at what pace. Plain data.
//!
//! Nothing is decided here; see `plan` and `guard`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::ReleaseOptions;
use crate::model::finding::Ends;
pub use crate::model::keep::Exempt;
use crate::model::selector::Selected;
use crate::model::{Kind, Process, Snapshot, Time};

/// A member of a family that NVML does not list, and no rule judges, is at work from here on.
pub(super) const WORKING_CPU_PERCENT: f64 = 10.0;

/// Whether a process of a snapshot is an inference server, for which waiting is work.
pub type Serves = fn(&Process, &Snapshot) -> bool;

/// What may be done, and to which processes.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What a plan is about.
    pub targets: Targets,
    /// Only what a selector means of the snapshot that is planned from; `None` means all of it.
    pub selected: Option<Selected>,
    /// Processes of other users too.
    pub all_users: bool,
    /// Graphics-only processes, too.
    pub graphics: bool,
    /// Inference servers too, by a rule.
    pub servers: bool,
    /// What a scheduler, a service manager or a container runtime owns, too: by signals, instead of
    /// naming the command that would do it properly.
    pub direct: bool,
    /// What its owner or the configuration keeps, too; only what is named.
    pub even_kept: bool,
    /// Whether targets are to give memory back and live on.
    pub release: Release,
    /// What these rules find is asked to release memory and never ended.
    pub releasing: Vec<Arc<str>>,
    /// Instead of SIGTERM.
    pub signal: Option<Signal>,
    /// How long to wait for each signal's effect, instead of what is usual for its recipients.
    pub grace: Option<Duration>,
    /// File names of programs never to be touched, besides those that are compiled in.
    pub never: Vec<Arc<str>>,
    /// What the configuration keeps.
    pub kept: Vec<Exempt>,
    /// The same, to be asked of a process that was born after the plan.
    pub keeps: Keeps,
    /// Who is a server.
    pub serves: Serves,
}

impl Policy {
    /// The defaults: one's own processes, gently.
    pub fn new(targets: Targets, serves: Serves) -> Self {
        Self {
            targets,
            selected: None,
            all_users: false,
            graphics: false,
            servers: false,
            direct: false,
            even_kept: false,
            release: Release::Never,
            releasing: Vec::new(),
            signal: None,
            grace: None,
            never: Vec::new(),
            kept: Vec::new(),
            keeps: Keeps::default(),
            serves,
        }
    }
}

/// Whether targets are to give memory back and live on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Release {
    /// They are ended.
    #[default]
    Never,
    /// Those that rules find idle are asked first, inference servers excepted, and ended where what they
    /// found is still so.
    First(ReleaseOptions),
    /// They are asked, and none is ended.
    Only(ReleaseOptions),
}

/// Whether the configuration keeps a process, from whatever.
type KeepCheck = dyn Fn(&Process, &Snapshot) -> bool + Send + Sync;

/// What the configuration keeps, asked of a process at any time. Without a question it keeps none.
#[derive(Clone, Default)]
pub struct Keeps(Option<Arc<KeepCheck>>);

impl Keeps {
    /// Keeps those for which `keep` answers yes.
    pub fn new(keep: impl Fn(&Process, &Snapshot) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(keep)))
    }

    /// Whether it keeps this process.
    pub fn has(&self, process: &Process, snapshot: &Snapshot) -> bool {
        self.0.as_ref().is_some_and(|keep| keep(process, snapshot))
    }
}

impl fmt::Debug for Keeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keeps").field(&self.0.is_some()).finish()
    }
}

/// What a plan is about. A list of names that is empty is neither: nothing is asked for then.
#[derive(Clone, PartialEq, Debug)]
pub enum Targets {
    /// These processes, whatever the rules say of them.
    Named(NamedProcesses),
    /// The processes of these findings.
    Found(FindingSelector),
}

impl Targets {
    /// Processes by number; `None` where there is no number.
    pub fn of_pids(pids: &[u32]) -> Option<Self> {
        let names = ProcessNames { pids: pids.to_vec(), ..ProcessNames::default() };
        NamedProcesses::new(names).map(Self::Named)
    }

    /// Whether processes are named, so that no finding is needed.
    pub fn is_named(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// Whether a name may be that of a finding: of no process it has a colon.
    pub fn names_findings(&self) -> bool {
        match self {
            Self::Named(named) => named.names().words.iter().any(|word| word.contains(':')),
            Self::Found(_) => false,
        }
    }

    /// Whether findings of a rule, of this kind, are asked for.
    pub fn concerns(&self, rule: &Arc<str>, kind: Kind) -> bool {
        let Self::Found(FindingSelector { kinds, rules, .. }) = self else {
            return false;
        };
        match kinds.is_empty() && rules.is_empty() {
            true => kind.ends() == Ends::Always,
            false => kinds.contains(&kind) || rules.contains(rule),
        }
    }
}

/// Processes by what they are called; any of them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProcessNames {
    pub pids: Vec<u32>,
    /// Notebooks by their paths, or the ends of their paths.
    pub notebooks: Vec<Arc<str>>,
    /// Notebook kernels by their ids.
    pub kernels: Vec<Arc<str>>,
    /// Any of these: a GPU, a notebook, a kernel, a finding by its id or the beginning of it, an inference
    /// server by its name.
    pub words: Vec<Arc<str>>,
}

impl ProcessNames {
    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.pids.is_empty()
            && self.notebooks.is_empty()
            && self.kernels.is_empty()
            && self.words.is_empty()
    }
}

/// Names of processes, at least one.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedProcesses(ProcessNames);

impl NamedProcesses {
    /// `None` where there is no name.
    pub fn new(names: ProcessNames) -> Option<Self> {
        (!names.is_empty()).then_some(Self(names))
    }

    pub fn names(&self) -> &ProcessNames {
        &self.0
    }
}

/// Which findings. Those that are set have all to fit; of several values of one, any.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FindingSelector {
    /// Of these processes only; of any where there is no name.
    pub names: ProcessNames,
    /// Kinds; where there are none, those of [`Ends::Always`].
    pub kinds: Vec<Kind>,
    /// Rules by name.
    pub rules: Vec<Arc<str>>,
}

/// How fast unattended acts may follow each other. When something was done stands in the ledger.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReapPace {
    /// After each act, for its effect to be seen before the next.
    pub settle: Duration,
    /// So many acts
    pub most: usize,
    /// within this time.
    pub within: Duration,
}

impl Default for ReapPace {
    fn default() -> Self {
        Self { settle: Duration::from_secs(15), most: 3, within: Duration::from_secs(600) }
    }
}

impl ReapPace {
    /// When the next act may begin, by when earlier ones did, in any order; not before `now`. An act of
    /// the future, by a clock that was set back, counts as one of now.
    pub fn next(&self, acts: &[Time], now: Time) -> Time {
        let mut acts: Vec<Time> = acts.iter().map(|&act| act.min(now)).collect();
        acts.sort_unstable();
        let settled = acts.last().map(|last| last.plus_seconds(self.settle.as_secs_f64()));
        let allowed = match self.most.checked_sub(1) {
            // None at all: never in sight.
            None => Some(now.plus_seconds(self.within.as_secs_f64())),
            Some(_) => acts
                .iter()
                .rev()
                .nth(self.most - 1)
                .map(|act| act.plus_seconds(self.within.as_secs_f64())),
        };
        [settled, allowed].into_iter().flatten().fold(now, Time::max)
    }
}

/// A signal that is sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// Hang up.
    Hup,
    /// As Ctrl-C.
    Int,
    /// As Ctrl-\, with a core dump.
    Quit,
    /// A program's own.
    Usr1,
    /// A program's own.
    Usr2,
    /// End, please.
    Term,
    /// End.
    Kill,
    /// Go on.
    Cont,
    /// Rest.
    Stop,
}

impl Signal {
    /// Those that a person may ask for.
    pub const ASKED: [Self; 7] =
        [Self::Term, Self::Int, Self::Hup, Self::Quit, Self::Usr1, Self::Usr2, Self::Kill];

    /// With the name of each, and its number on the machines that NVIDIA's driver is for (signal(7)).
    const TABLE: [(Self, &'static str, u32); 9] = [
        (Self::Hup, "SIGHUP", 1),
        (Self::Int, "SIGINT", 2),
        (Self::Quit, "SIGQUIT", 3),
        (Self::Usr1, "SIGUSR1", 10),
        (Self::Usr2, "SIGUSR2", 12),
        (Self::Term, "SIGTERM", 15),
        (Self::Kill, "SIGKILL", 9),
        (Self::Cont, "SIGCONT", 18),
        (Self::Stop, "SIGSTOP", 19),
    ];

    /// As Linux numbers it.
    pub const fn number(self) -> u32 {
        Self::TABLE[self as usize].2
    }

    /// `"SIGTERM"`.
    pub const fn name(self) -> &'static str {
        Self::TABLE[self as usize].1
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What was typed is no signal that gpumem sends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no signal for this; write TERM, INT, HUP, QUIT, USR1, USR2 or KILL")]
pub struct NoSignal(String);

impl FromStr for Signal {
    type Err = NoSignal;

    fn from_str(text: &str) -> Result<Self, NoSignal> {
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        Self::ASKED
            .into_iter()
            .find(|signal| signal.name().strip_prefix("SIG") == Some(name))
            .ok_or_else(|| NoSignal(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_typed_as_people_type_them() {
        for text in ["term", "TERM", "SIGTERM", "SigTerm"] {
            assert_eq!(text.parse(), Ok(Signal::Term));
        }
        for text in ["", "SIG", "15", "STOP", "CONT", "SEGV"] {
            assert!(text.parse::<Signal>().is_err(), "{text}");
        }
        assert_eq!(serde_json::to_string(&Signal::Usr1).unwrap(), "\"USR1\"");
        for (place, (signal, name, _)) in Signal::TABLE.into_iter().enumerate() {
            assert_eq!((signal as usize, signal.name()), (place, name));
        }
    }

    #[test]
    fn the_pace_is_kept() {
        let at = |seconds: i64| Time::from_unix_milliseconds(seconds * 1000);
        let pace = ReapPace::default();
        assert_eq!(pace.next(&[], at(0)), at(0));
        assert_eq!(pace.next(&[at(100)], at(105)), at(115));
        assert_eq!(pace.next(&[at(100)], at(116)), at(116));
        let three = [at(140), at(100), at(120)];
        assert_eq!(pace.next(&three, at(200)), at(700), "three in ten minutes");
        assert_eq!(pace.next(&three, at(701)), at(701));
        assert_eq!(pace.next(&[at(900)], at(100)), at(115), "a clock set back");
        let none = ReapPace { most: 0, ..pace };
        assert_eq!(none.next(&[], at(0)), at(600));
    }

    #[test]
    fn no_name_is_no_target_and_not_whatever_rules_found() {
        assert_eq!(Targets::of_pids(&[]), None);
        assert_eq!(NamedProcesses::new(ProcessNames::default()), None);
        let named = Targets::of_pids(&[7]).unwrap();
        assert!(named.is_named());
        assert!(!named.concerns(&"idle".into(), Kind::Idle), "no rule is asked");
    }

    #[test]
    fn what_is_undecided_concerns_who_asked_for_it() {
        let concerns = |kinds: &[Kind], rules: &[&str], rule: &str, kind| {
            let rules = rules.iter().map(|&rule| rule.into()).collect();
            let targets = Targets::Found(FindingSelector {
                kinds: kinds.to_vec(),
                rules,
                ..FindingSelector::default()
            });
            targets.concerns(&rule.into(), kind)
        };
        assert!(concerns(&[], &[], "idle", Kind::Idle));
        assert!(!concerns(&[], &[], "leak", Kind::Leak));
        assert!(concerns(&[Kind::Leak], &[], "leak", Kind::Leak));
        assert!(!concerns(&[Kind::Leak], &[], "idle", Kind::Idle));
        assert!(concerns(&[], &["night"], "night", Kind::Idle));
        assert!(!concerns(&[], &["night"], "idle", Kind::Idle));
    }
}
