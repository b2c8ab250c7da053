//! Reasons not to kill a process despite findings: `GPUMEM_KEEP`, the configuration, a protected program, or the
//! possibility that the process is a server.
//!
//! `GPUMEM_KEEP` contains the date or time until which the process must not be killed. A value that gpumem cannot parse
//! sets no end, so that only `longest_keep` limits the protection. `rules::exemption::kept_by` combines all reasons.
//! The guard in `reclaim` checks each reason separately, because a policy can ignore some reasons.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;

use jiff::civil::{Date, DateTime};
use jiff::{Timestamp, tz::Offset};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::names::Hypervisor;
use super::{Finding, Identity, Kind, Process, Time};
use crate::units::Span;

pub const VARIABLE: &str = "GPUMEM_KEEP";
const NO: [&str; 4] = ["0", "no", "false", "off"];
/// UTC offset, in hours, of the time zone in which each day ends last. `GPUMEM_KEEP=DATE` names no time zone, so it
/// protects the process until the day has ended in this zone.
const LAST_ZONE_HOURS: i8 = -12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepEnd {
    No,
    Until(Time),
    Always,
}

impl KeepEnd {
    /// Parses an RFC 3339 time, a date, or a word such as `no`. A date protects until the day has ended in all time
    /// zones.
    pub fn parse(value: &str) -> Self {
        let value = value.trim();
        if NO.iter().any(|no| value.eq_ignore_ascii_case(no)) {
            return Self::No;
        }
        let until = |timestamp: Timestamp| {
            Self::Until(Time::from_unix_milliseconds(timestamp.as_millisecond()))
        };
        if let Ok(timestamp) = Timestamp::from_str(value) {
            return until(timestamp);
        }
        let is_day = value.len() == "2026-12-01".len();
        let end = if is_day {
            Date::from_str(value).and_then(Date::tomorrow).map(|date| date.at(0, 0, 0, 0))
        } else {
            DateTime::from_str(value)
        };
        end.and_then(|end| Offset::constant(LAST_ZONE_HOURS).to_timestamp(end))
            .map_or(Self::Always, until)
    }

    pub fn is_in_force(self, now: Time) -> bool {
        match self {
            Self::No => false,
            Self::Until(end) => now < end,
            Self::Always => true,
        }
    }

    pub fn until(self) -> Option<Time> {
        match self {
            Self::Until(end) => Some(end),
            Self::No | Self::Always => None,
        }
    }
}

/// Why a process is exempt from being killed.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "lowercase")]
pub enum KeptBy {
    /// The owner has set `GPUMEM_KEEP`.
    Owner {
        /// Name of the owner.
        user: Option<Arc<str>>,
        /// End of the exemption, as set by `GPUMEM_KEEP` or limited by `longest_keep`; absent if unlimited.
        until: Option<Time>,
    },
    /// An exemption in the configuration covers, or might cover, the process.
    Configuration {
        /// Reason given in the configuration.
        reason: Arc<str>,
        /// End of the exemption; absent if unlimited.
        until: Option<Time>,
    },
    /// The process runs a program that gpumem never kills.
    Program {
        /// Name of the program.
        name: Arc<str>,
    },
    /// The process is an inference server, which `reap` targets only on request.
    Server,
}

impl KeptBy {
    fn until(&self) -> Option<Time> {
        match self {
            Self::Owner { until, .. } | Self::Configuration { until, .. } => *until,
            Self::Program { .. } | Self::Server => None,
        }
    }
}

impl fmt::Display for KeptBy {
    /// The text may contain a reason from the configuration, so callers must escape it for a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = match self.until() {
            Some(until) => format!(" until {}", until.local()),
            None => String::new(),
        };
        match self {
            Self::Owner { user, .. } => {
                let user = user.as_deref().map_or_else(String::new, |user| format!(" {user}"));
                write!(f, "protected by its owner{user}{until} ({VARIABLE})")
            }
            Self::Configuration { reason, .. } => {
                write!(f, "protected by the configuration{until}: {reason}")
            }
            Self::Program { name } => match Hypervisor::of_program(name) {
                Some(hypervisor) => f.write_str(&hypervisor.advice()),
                None => write!(f, "{name} is never killed"),
            },
            Self::Server => f.write_str("it is an inference server"),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Exempt {
    pub identity: Identity,
    /// Kinds whose findings are exempt. If `kinds` and `rules` are both empty, all findings are exempt.
    pub kinds: Vec<Kind>,
    /// Names of rules whose findings are exempt, in addition to the findings of `kinds`.
    pub rules: Vec<Arc<str>>,
    pub reason: Arc<str>,
    /// End of the exemption, or `None` if it never ends.
    pub until: Option<Time>,
}

impl Exempt {
    pub fn is_from_all(&self, process: Identity, now: Time) -> bool {
        let is_limited = !(self.kinds.is_empty() && self.rules.is_empty());
        !is_limited && self.is_in_force(process, now)
    }

    pub fn is_for(&self, finding: &Finding, now: Time) -> bool {
        let about = finding.process.as_ref();
        let is_from = (self.kinds.is_empty() && self.rules.is_empty())
            || self.kinds.contains(&finding.kind)
            || self.rules.contains(&finding.rule);
        is_from && about.is_some_and(|about| self.is_in_force(about.identity, now))
    }

    fn is_in_force(&self, process: Identity, now: Time) -> bool {
        self.identity == process && self.until.is_none_or(|until| now < until)
    }
}

impl Process {
    /// Returns the protection by the owner's `GPUMEM_KEEP`, if it is in effect. The protection ends at the latest
    /// `longest` after the start of the process, because the owner cannot forge the start. If the start is unknown,
    /// only the value of the variable limits the protection.
    pub fn kept_by_owner(&self, now: Time, longest: Option<Span>) -> Option<KeptBy> {
        let keep = KeepEnd::parse(self.environment.as_ref()?.get(VARIABLE)?);
        let until = keep.until().into_iter().chain(self.keep_limit(longest)).min();
        let user = self.user.clone();
        let is_over = !keep.is_in_force(now) || self.is_past_keep_limit(now, longest);
        (!is_over).then_some(KeptBy::Owner { user, until })
    }

    pub fn is_past_keep_limit(&self, now: Time, longest: Option<Span>) -> bool {
        self.keep_limit(longest).is_some_and(|limit| now >= limit)
    }

    fn keep_limit(&self, longest: Option<Span>) -> Option<Time> {
        let (longest, start) = longest.zip(self.start_time)?;
        Some(start.plus_seconds(longest.seconds()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Time {
        text.parse().unwrap()
    }

    #[test]
    fn a_keep_ends_at_its_instant_or_after_its_day() {
        for (value, end) in [
            ("2026-12-01T10:00:00Z", "2026-12-01T10:00:00Z"),
            ("2026-12-01T10:00:00+02:00", "2026-12-01T08:00:00Z"),
            ("2026-12-01T10:00:00", "2026-12-01T22:00:00Z"),
            ("2026-12-01 10:00", "2026-12-01T22:00:00Z"),
            (" 2026-12-01 ", "2026-12-02T12:00:00Z"),
        ] {
            let keep = KeepEnd::parse(value);
            assert_eq!(keep.until(), Some(time(end)), "{value}");
            assert!(keep.is_in_force(time(end).plus_seconds(-1.0)));
            assert!(!keep.is_in_force(time(end)));
        }
    }

    #[test]
    fn a_keep_is_limited_from_the_start_of_its_process() {
        let kept = |value: &str, start: Option<&str>, days: Option<f64>| {
            let process = Process {
                user: Some("ann".into()),
                start_time: start.map(time),
                environment: Some(Arc::new([(VARIABLE.into(), value.into())].into())),
                ..Process::default()
            };
            let longest = days.map(|days| Span::from_seconds(days * 86_400.0));
            process.kept_by_owner(time("2026-12-01T10:00:00Z"), longest)
        };
        let owner = |until: Option<&str>| {
            Some(KeptBy::Owner { user: Some("ann".into()), until: until.map(time) })
        };
        let start = Some("2026-12-01T00:00:00Z");
        assert_eq!(kept("yes", start, None), owner(None));
        assert_eq!(kept("yes", start, Some(7.0)), owner(Some("2026-12-08T00:00:00Z")));
        assert_eq!(kept("2999-01-01", start, Some(7.0)), owner(Some("2026-12-08T00:00:00Z")));
        let sooner = "2026-12-01T12:00:00Z";
        assert_eq!(kept(sooner, start, Some(7.0)), owner(Some(sooner)));
        assert_eq!(kept("2999-01-01", Some("2026-11-01T00:00:00Z"), Some(7.0)), None);
        assert_eq!(kept("yes", None, Some(7.0)), owner(None));
        assert_eq!(kept("0", start, Some(7.0)), None);
    }

    #[test]
    fn an_unclear_value_keeps_the_process() {
        for value in [
            "",
            "1",
            "yes",
            "until",
            "tomorrow",
            "2026-13-01",
            "2026-1-1",
            "01.12.2026",
            "…",
            "20261201T",
            "9999-12-31",
        ] {
            assert_eq!(KeepEnd::parse(value), KeepEnd::Always, "{value}");
        }
        for value in ["0", "No", " off ", "FALSE"] {
            assert!(!KeepEnd::parse(value).is_in_force(time("2026-01-01T00:00:00Z")));
        }
    }
}
