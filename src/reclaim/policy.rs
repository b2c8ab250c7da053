//! What a person or configuration asks for: which targets, how, and how fast. Plain data.
//!
//! Nothing is decided here; see `plan` and `guard`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::way::ReleaseOptions;
use crate::model::finding::Ends;
pub use crate::model::keep::Exempt;
use crate::model::selector::Selected;
use crate::model::{Kind, Process, Snapshot, Time};
use crate::units::Span;

/// The CPU share from which a family member that NVML does not list, and no rule judges, counts as working.
pub(super) const WORKING_CPU_PERCENT: f64 = 10.0;

/// Whether a process in a snapshot is an inference server, for which waiting is normal.
pub type Serves = fn(&Process, &Snapshot) -> bool;

#[derive(Clone, Debug)]
pub struct Policy {
    pub targets: Targets,
    /// Only what a selector selected from the snapshot; `None` means everything.
    pub selected: Option<Selected>,
    /// Include other users' processes.
    pub all_users: bool,
    /// Include graphics-only processes.
    pub graphics: bool,
    /// Include inference servers that a rule found.
    pub servers: bool,
    /// Signal what a scheduler, service manager or container runtime owns, instead of naming the proper
    /// command.
    pub direct: bool,
    /// Include named processes that their owner or the configuration keeps.
    pub even_kept: bool,
    pub release: Release,
    /// Rules whose findings are asked to release memory, never ended.
    pub releasing: Vec<Arc<str>>,
    /// Replaces SIGTERM.
    pub signal: Option<Signal>,
    /// How long to wait for each signal's effect, instead of the recipients' usual time.
    pub grace: Option<Duration>,
    /// File names of programs never to be touched, besides the built-in ones.
    pub never: Vec<Arc<str>>,
    /// How long `GPUMEM_KEEP` protects a process at most.
    pub longest_keep: Option<Span>,
    /// What the configuration keeps.
    pub kept: Vec<Exempt>,
    /// The same, as a check for processes that start after the plan.
    pub keeps: Keeps,
    pub serves: Serves,
}

impl Policy {
    /// The defaults: the caller's own processes, gently.
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
            longest_keep: None,
            kept: Vec::new(),
            keeps: Keeps::default(),
            serves,
        }
    }
}

/// Whether targets release memory and live on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Release {
    #[default]
    Never,
    /// Targets that rules find idle, except inference servers, are asked first, and ended if the finding still
    /// holds.
    First(ReleaseOptions),
    /// They are asked, and none is ended.
    Only(ReleaseOptions),
}

/// Whether the configuration keeps a process.
type KeepCheck = dyn Fn(&Process, &Snapshot) -> bool + Send + Sync;

/// The configuration's keeps, as a check that can run at any time. The default keeps nothing.
#[derive(Clone, Default)]
pub struct Keeps(Option<Arc<KeepCheck>>);

impl Keeps {
    /// Keeps processes for which `keep` returns true.
    pub fn new(keep: impl Fn(&Process, &Snapshot) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(keep)))
    }

    pub fn has(&self, process: &Process, snapshot: &Snapshot) -> bool {
        self.0.as_ref().is_some_and(|keep| keep(process, snapshot))
    }
}

impl fmt::Debug for Keeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keeps").field(&self.0.is_some()).finish()
    }
}

/// What a plan is about. An empty list of names is neither: nothing is requested then.
#[derive(Clone, PartialEq, Debug)]
pub enum Targets {
    /// These processes, whatever rules found.
    Named(ProcessNames),
    /// The processes of these findings.
    Found(FindingSelector),
}

impl Targets {
    /// Processes by pid, and by other names; `None` if there is no name.
    pub fn named(pids: Vec<u32>, words: Vec<Arc<str>>) -> Option<Self> {
        let has_names = !pids.is_empty() || !words.is_empty();
        has_names.then_some(Self::Named(ProcessNames { pids, words }))
    }

    /// Whether processes are named, so that no finding is needed.
    pub fn is_named(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// Whether a name may be a finding's, which contain colons; processes' names do not.
    pub fn names_findings(&self) -> bool {
        match self {
            Self::Named(named) => named.words.iter().any(|word| word.contains(':')),
            Self::Found(_) => false,
        }
    }

    /// Whether findings by this rule, of this kind, are requested.
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

/// Processes by name; any of these, and there is one.
#[derive(Clone, PartialEq, Debug)]
pub struct ProcessNames {
    pub pids: Vec<u32>,
    /// Any of these: a GPU, a notebook, a kernel, a finding's id or its beginning, an inference server's name.
    pub words: Vec<Arc<str>>,
}

/// Selects findings. All set fields have to match; of a field's values any.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FindingSelector {
    /// Only on these processes, by pid; on any if there is none.
    pub pids: Vec<u32>,
    /// Kinds; if empty, those with [`Ends::Always`].
    pub kinds: Vec<Kind>,
    /// Rules by name.
    pub rules: Vec<Arc<str>>,
}

/// How fast unattended acts may follow each other. The ledger has the times of earlier ones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReapPace {
    /// Pause after each act, so that its effect shows before the next.
    pub settle: Duration,
    /// The most acts in `within`.
    pub most: usize,
    /// The period that `most` applies to.
    pub within: Duration,
}

impl Default for ReapPace {
    fn default() -> Self {
        Self { settle: Duration::from_secs(15), most: 3, within: Duration::from_secs(600) }
    }
}

impl ReapPace {
    /// When the next act may begin, by the start times of earlier ones in any order; not before `now`. An act
    /// in the future, from a clock that was set back, counts as now.
    pub fn next(&self, acts: &[Time], now: Time) -> Time {
        let mut acts: Vec<Time> = acts.iter().map(|&act| act.min(now)).collect();
        acts.sort_unstable();
        let settled = acts.last().map(|last| last.plus_seconds(self.settle.as_secs_f64()));
        let allowed = match self.most.checked_sub(1) {
            // None at all: always one period away.
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

/// A signal to a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// SIGHUP: hang up.
    Hup,
    /// SIGINT: interrupt, as by Ctrl-C.
    Int,
    /// SIGQUIT: quit with a core dump, as by Ctrl-\.
    Quit,
    /// SIGUSR1: defined by the program.
    Usr1,
    /// SIGUSR2: defined by the program.
    Usr2,
    /// SIGTERM: terminate.
    Term,
    /// SIGKILL: kill.
    Kill,
    /// SIGCONT: continue.
    Cont,
    /// SIGSTOP: stop.
    Stop,
}

impl Signal {
    /// Signals that a person may ask for.
    pub const ASKED: [Self; 7] =
        [Self::Term, Self::Int, Self::Hup, Self::Quit, Self::Usr1, Self::Usr2, Self::Kill];

    /// Name and number of each, on the machines that NVIDIA's driver supports (signal(7)).
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

    /// Linux's number.
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

/// The text names no signal that gpumem sends.
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
        assert_eq!(Targets::named(Vec::new(), Vec::new()), None);
        let named = Targets::named(vec![7], Vec::new()).unwrap();
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
