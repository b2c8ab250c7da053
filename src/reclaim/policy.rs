//! Defines requests of a user or the configuration: targets, method, and pace. `plan` and `guard` make the decisions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal as KernelSignal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::ReleaseOptions;
use crate::config::reap::ReapConfig;
use crate::model::finding::Ends;
use crate::model::keep::Exempt;
use crate::model::selector::Selected;
use crate::model::{Kind, Time};
use crate::rules::exemption::Exemption;
use crate::units::Span;

/// Minimum CPU use, in percent of a core, of a family member that works although NVML does not list it.
pub(super) const WORKING_CPU_PERCENT: f64 = 10.0;

/// By default, a policy covers only the caller's own processes, and SIGTERM is sent first.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub targets: Targets,
    /// Processes that a selector matched. If set, the plan contains no other processes.
    pub selected: Option<Selected>,
    pub all_users: bool,
    pub graphics: bool,
    /// Whether to include inference servers that rules found.
    pub servers: bool,
    /// Whether to signal processes that a scheduler, service manager or container runtime owns, instead of showing the
    /// owner's command.
    pub direct: bool,
    /// Whether to include named processes even if their owner or the configuration exempts them.
    pub even_kept: bool,
    pub release: Release,
    /// Names of the rules whose findings only lead to release requests.
    pub releasing: Vec<Arc<str>>,
    /// Whether to park all targets instead of ending them.
    pub parks: bool,
    /// Names of the rules whose findings only lead to parking.
    pub parking: Vec<Arc<str>>,
    pub signal: Option<Signal>,
    /// Grace period after each signal, or `None` for the defaults, which depend on the recipients.
    pub grace: Option<Duration>,
    /// File names of programs that are protected in addition to the built-in ones.
    pub never: Vec<Arc<str>>,
    /// Maximum time for which `GPUMEM_KEEP` protects a process, or `None` if unlimited.
    pub longest_keep: Option<Span>,
    /// Processes in the snapshot that are exempt.
    pub kept: Vec<Exempt>,
    /// Exemptions, which also apply to processes that start after the plan.
    pub keeps: Vec<Exemption>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Release {
    #[default]
    Never,
    /// Asks idle targets of rules first, except inference servers. Ends them if the finding still holds.
    First(ReleaseOptions),
    /// Only asks targets. Ends no process.
    Only(ReleaseOptions),
}

#[derive(Clone, PartialEq, Debug)]
pub enum Targets {
    Named {
        pids: Vec<u32>,
        /// Names of GPUs, notebooks, kernels or inference servers, exact names of processes, and ids or id prefixes of
        /// findings.
        words: Vec<Arc<str>>,
    },
    Found(FindingSelector),
}

impl Default for Targets {
    fn default() -> Self {
        Self::Found(FindingSelector::default())
    }
}

impl Targets {
    /// Selects processes by pid and by other names. Returns `None` if no name is given.
    pub fn named(pids: Vec<u32>, words: Vec<Arc<str>>) -> Option<Self> {
        let has_names = !pids.is_empty() || !words.is_empty();
        has_names.then_some(Self::Named { pids, words })
    }

    pub fn is_named(&self) -> bool {
        matches!(self, Self::Named { .. })
    }

    /// Returns whether a name may be a finding's id, which contains a colon.
    pub fn names_findings(&self) -> bool {
        match self {
            Self::Named { words, .. } => words.iter().any(|word| word.contains(':')),
            Self::Found(_) => false,
        }
    }

    /// Returns whether findings of this rule and kind are requested.
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

/// Selects findings that match all nonempty fields. A field matches if one of its values does.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FindingSelector {
    /// PIDs of the processes. If empty, all processes match.
    pub pids: Vec<u32>,
    /// Kinds of findings. If `kinds` and `rules` are empty, the kinds with [`Ends::Always`] match.
    pub kinds: Vec<Kind>,
    pub rules: Vec<Arc<str>>,
}

/// Returns when the next unattended act may start. `acts` contains the start times of earlier acts in any order. The
/// next act waits for a pause, so that a sample can show the effect of the last act, and for the rate limit. If the
/// clock was set back, start times in the future are treated as `now`.
pub(super) fn next_act(reap: &ReapConfig, acts: &[Time], now: Time) -> Time {
    let after = |time: Time, pause: Span| time.plus_seconds(pause.0.as_secs_f64());
    let mut acts: Vec<Time> = acts.iter().map(|&act| act.min(now)).collect();
    acts.sort_unstable();
    let settled = acts.last().map(|&last| after(last, reap.settle));
    let allowed = match reap.most.checked_sub(1) {
        // If `most` is 0, the next act is always a whole period away, so it never starts.
        None => Some(after(now, reap.within)),
        Some(others) => acts.iter().rev().nth(others).map(|&act| after(act, reap.within)),
    };
    [settled, allowed].into_iter().flatten().fold(now, Time::max)
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
    /// Signals that a user can request.
    pub const ASKED: [Self; 7] =
        [Self::Term, Self::Int, Self::Hup, Self::Quit, Self::Usr1, Self::Usr2, Self::Kill];

    const TABLE: [(Self, &'static str, KernelSignal); 9] = [
        (Self::Hup, "SIGHUP", KernelSignal::HUP),
        (Self::Int, "SIGINT", KernelSignal::INT),
        (Self::Quit, "SIGQUIT", KernelSignal::QUIT),
        (Self::Usr1, "SIGUSR1", KernelSignal::USR1),
        (Self::Usr2, "SIGUSR2", KernelSignal::USR2),
        (Self::Term, "SIGTERM", KernelSignal::TERM),
        (Self::Kill, "SIGKILL", KernelSignal::KILL),
        (Self::Cont, "SIGCONT", KernelSignal::CONT),
        (Self::Stop, "SIGSTOP", KernelSignal::STOP),
    ];

    pub const fn kernel(self) -> KernelSignal {
        Self::TABLE[self as usize].2
    }

    pub const fn name(self) -> &'static str {
        Self::TABLE[self as usize].1
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a signal that gpumem sends; use TERM, INT, HUP, QUIT, USR1, USR2 or KILL")]
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
    fn signal_names_are_parsed_in_any_case() {
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
    fn the_rate_limit_delays_the_next_act() {
        let at = |seconds: i64| Time::from_unix_milliseconds(seconds * 1000);
        let reap = ReapConfig::default();
        let next = |acts: &[Time], now| next_act(&reap, acts, now);
        assert_eq!(next(&[], at(0)), at(0));
        assert_eq!(next(&[at(100)], at(105)), at(115));
        assert_eq!(next(&[at(100)], at(116)), at(116));
        let three = [at(140), at(100), at(120)];
        assert_eq!(next(&three, at(200)), at(700), "three in ten minutes");
        assert_eq!(next(&three, at(701)), at(701));
        assert_eq!(next(&[at(900)], at(100)), at(115), "a clock set back");
        let mut none = reap.clone();
        none.most = 0;
        assert_eq!(next_act(&none, &[], at(0)), at(600));
    }

    #[test]
    fn an_empty_list_of_names_is_not_a_target() {
        assert_eq!(Targets::named(Vec::new(), Vec::new()), None);
        let named = Targets::named(vec![7], Vec::new()).unwrap();
        assert!(named.is_named());
        assert!(!named.concerns(&"idle".into(), Kind::Idle), "a named target concerns no rule");
    }

    #[test]
    fn a_request_concerns_its_rules_and_kinds() {
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
