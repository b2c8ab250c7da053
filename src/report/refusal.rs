//! Describes why gpumem skips a process, with the flag or key that would include it.

use rustix::process::geteuid;

use super::escape::escape;
use super::reap::short;
use crate::model::keep::KeptBy;
use crate::reclaim::guard::Protection;
use crate::reclaim::plan::Why;
use crate::reclaim::{Outcome, Refused};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalPlace {
    Reap,
    Kill,
    Release,
    /// The dialog of `gpumem watch`.
    Screen,
    /// The log of `gpumem reap --watch`.
    Service,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusalReader {
    pub place: RefusalPlace,
    pub is_root: bool,
}

impl RefusalReader {
    pub fn new(place: RefusalPlace) -> Self {
        let is_root = geteuid().is_root();
        Self { place, is_root }
    }
}

pub fn refusal(refused: &Refused, reader: RefusalReader) -> String {
    let mut words = Vec::new();
    if let Some(pid) = refused.pid {
        let mut process = pid.to_string();
        if let Some(user) = &refused.user {
            process = format!("{process} {}", escape(user));
        }
        if let Some(name) = &refused.name {
            process = format!("{process} ({})", short(name));
        }
        words.push(process);
    }
    words.extend(refused.kind.map(|kind| kind.to_string()));
    words.push(why(refused, reader));
    words.join(": ")
}

pub fn why(refused: &Refused, reader: RefusalReader) -> String {
    match &refused.why {
        Why::Protected { pid, protection } if Some(*pid) == refused.pid => {
            return protected(protection, refused.user.as_deref(), reader);
        }
        Why::Protected { pid, protection } => {
            return format!("{pid}: {}", protected(protection, None, reader));
        }
        _ => {}
    }
    let words = refused.why.to_string();
    let words = escape(&words);
    let is_flagged =
        matches!(refused.why, Why::OnlyWhenAsked { .. } | Why::OnlyNotified | Why::Family { .. });
    // The text after `; ` is about a command-line flag, which is useless on the screen and in the log.
    let fact = words.split("; ").next().unwrap_or_default();
    match reader.place {
        RefusalPlace::Screen if is_flagged => {
            format!("{fact}; select it and press x to kill it by name")
        }
        RefusalPlace::Service if is_flagged => fact.to_owned(),
        _ => words.into_owned(),
    }
}

/// Describes why a process is protected and how to override the protection, if possible. `owner` is the process's user.
pub fn protected(protection: &Protection, owner: Option<&str>, reader: RefusalReader) -> String {
    let fact = match (protection, owner) {
        (Protection::OtherUser { .. } | Protection::NotPermitted { .. }, Some(owner)) => {
            format!("owned by {}", escape(owner))
        }
        _ => escape(&protection.to_string()).into_owned(),
    };
    match remedy(protection, reader) {
        Some(remedy) => format!("{fact}; {remedy}"),
        None => fact,
    }
}

pub fn outcome(outcome: &Outcome, reader: RefusalReader) -> String {
    match outcome {
        Outcome::Protected { why } => format!("skipped: {}", protected(why, None, reader)),
        outcome => escape(&outcome.to_string()).into_owned(),
    }
}

/// Describes how to override a protection, for example with a flag, with a key or as root. Returns `None` if it cannot
/// be overridden.
fn remedy(protection: &Protection, reader: RefusalReader) -> Option<&'static str> {
    let by_place = |flag, key, service| match reader.place {
        RefusalPlace::Reap | RefusalPlace::Kill | RefusalPlace::Release => Some(flag),
        RefusalPlace::Screen => Some(key),
        RefusalPlace::Service => service,
    };
    match protection {
        Protection::Graphics => by_place(
            "add --graphics",
            "gpumem kill --graphics kills it",
            Some("the service kills it with --graphics"),
        ),
        Protection::OtherUser { .. } => by_place(
            "add --all-users",
            "press a to include other users",
            Some("the service kills it with --all-users"),
        ),
        Protection::NotPermitted { .. } if reader.is_root => Some("gpumem lacks CAP_KILL"),
        Protection::NotPermitted { .. } => Some("run as that user or as root"),
        Protection::Kept { kept_by: KeptBy::Owner { .. } | KeptBy::Configuration { .. } }
            if reader.place != RefusalPlace::Reap =>
        {
            by_place("add --kept", "gpumem kill --kept kills it", None)
        }
        Protection::Kept { kept_by: KeptBy::Server } => {
            by_place("add --servers", "select it and press x to kill it by name", None)
        }
        Protection::Unknown { .. } if !reader.is_root => Some("run as root"),
        Protection::Owned { .. } => by_place(
            "add --direct to signal it anyway",
            "press d to signal it anyway",
            Some("the service signals it with --direct"),
        ),
        _ => None,
    }
}
