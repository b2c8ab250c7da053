//! What keeps a process from being ended, whatever a rule finds: its owner by `GPUMEM_KEEP`, the configuration,
//! its program, or that it serves.
//!
//! A value of `GPUMEM_KEEP` is a day or an instant until which the process must not be touched. It protects, so
//! anything unclear means to keep. `rules::exemption::kept_by` combines the reasons; the guard in `reclaim`
//! checks them one by one, because a policy may skip some.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;

use jiff::civil::{Date, DateTime};
use jiff::{Timestamp, tz::Offset};

use schemars::JsonSchema;
use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use super::{Finding, Identity, Kind, Process, Time};

/// The variable in a process's environment.
pub const VARIABLE: &str = "GPUMEM_KEEP";
/// Words that mean no.
const NO: [&str; 4] = ["0", "no", "false", "off"];
/// The UTC offset, in hours, at which a day ends last: a value does not say whose day it is.
const LAST_ZONE_HOURS: i8 = -12;

/// The meaning of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepEnd {
    /// Do not keep it.
    No,
    /// Keep it until then.
    Until(Time),
    /// Keep it.
    Always,
}

impl KeepEnd {
    /// Parses a value: `2026-12-01` (through that day, wherever it ends last), RFC 3339, or a word.
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

    /// Whether it applies at a time.
    pub fn is_in_force(self, now: Time) -> bool {
        match self {
            Self::No => false,
            Self::Until(end) => now < end,
            Self::Always => true,
        }
    }

    /// `None` if unlimited.
    pub fn until(self) -> Option<Time> {
        match self {
            Self::Until(end) => Some(end),
            Self::No | Self::Always => None,
        }
    }
}

/// What exempts a process from being killed.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
#[serde(tag = "by", rename_all = "lowercase")]
pub enum KeptBy {
    /// The owner's `GPUMEM_KEEP`.
    Owner {
        /// End of the exemption; absent if unlimited.
        until: Option<Time>,
    },
    /// An exemption in the configuration that covers the process, or may cover it.
    Configuration {
        /// Reason given in the configuration.
        reason: Arc<str>,
        /// End of the exemption; absent if unlimited.
        until: Option<Time>,
    },
    /// The process is a program that is never killed.
    Program {
        /// Name of the program.
        name: Arc<str>,
    },
    /// The process is an inference server, which `reap` targets only on request.
    Server,
}

impl KeptBy {
    /// `None` if unlimited.
    fn until(&self) -> Option<Time> {
        match self {
            Self::Owner { until } | Self::Configuration { until, .. } => *until,
            Self::Program { .. } | Self::Server => None,
        }
    }
}

impl fmt::Display for KeptBy {
    /// Contains a reason written by others: escape it for a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = match self.until() {
            Some(until) => format!(" until {}", until.local()),
            None => String::new(),
        };
        match self {
            Self::Owner { .. } => write!(f, "its owner keeps it{until} ({VARIABLE})"),
            Self::Configuration { reason, .. } => {
                write!(f, "the configuration keeps it{until}: {reason}")
            }
            Self::Program { name } => write!(f, "{name} is never killed"),
            Self::Server => f.write_str("it is an inference server"),
        }
    }
}

/// A process that the configuration keeps, on any of its GPUs.
#[derive(Clone, PartialEq, Debug)]
pub struct Exempt {
    pub identity: Identity,
    /// Covers only findings of these kinds and of the rules below; if both are empty, everything.
    pub kinds: Vec<Kind>,
    /// Covers only findings of these rules and of the kinds above.
    pub rules: Vec<Arc<str>>,
    /// Reason given in the configuration.
    pub reason: Arc<str>,
    /// `None` if unlimited.
    pub until: Option<Time>,
}

impl Exempt {
    /// Whether the process must not be ended for any reason.
    pub fn is_from_all(&self, process: Identity, now: Time) -> bool {
        let is_limited = !(self.kinds.is_empty() && self.rules.is_empty());
        !is_limited && self.is_in_force(process, now)
    }

    /// Whether the process must not be ended for this finding.
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
    /// Whether its owner keeps it, as far as its environment is known.
    pub fn kept_by_owner(&self, now: Time) -> Option<KeptBy> {
        let keep = KeepEnd::parse(self.environment.as_ref()?.get(VARIABLE)?);
        let until = keep.until();
        keep.is_in_force(now).then_some(KeptBy::Owner { until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Time {
        text.parse().unwrap()
    }

    #[test]
    fn an_instant_ends_it_and_a_day_lasts_to_its_last_end() {
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
    fn what_is_not_clear_keeps() {
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
