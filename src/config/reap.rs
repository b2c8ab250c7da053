//! The table `[reap]` and the `action` of a rule: what `gpumem reap --watch` does about findings.
//!
//! By default, a rule only notifies. With `action = "release"`, gpumem also asks processes to release memory. With
//! `action = "park"` or `"reap"`, gpumem warns the owners of processes, and then parks or kills the processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use toml::Value;

use super::section::{Entry, Section, settings};
use super::{Config, ConfigError};
use crate::model::Kind;
use crate::rules::setting;
use crate::units::Span;

pub(super) const ACTION: &str = "action";
pub(super) const SETTINGS: &[&str] =
    &["warn", "grace", "settle", "most", "within", "notify", "never", "longest_keep"];
/// Maximum value of `most`. A larger number would not be an effective limit.
const MOST_ACTS: i64 = 1000;
/// Maximum number of words in a command, and of programs in `never`.
const MOST_WORDS: usize = 256;
/// Maximum length of a word in bytes (`PATH_MAX`).
const LONGEST_WORD: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    #[default]
    Notify,
    /// Notify the owners, and ask the processes to release memory.
    Release,
    /// Warn the owners, then move the memory of the processes to host memory.
    Park,
    /// Warn the owners, then kill the processes.
    Reap,
}

#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct ReapConfig {
    /// Time from the first warning to the last.
    pub warn: Span,
    /// Time from the last warning until the process is killed or parked.
    pub grace: Span,
    pub settle: Span,
    /// Maximum number of unattended acts in the period `within`, including release requests.
    #[serde(deserialize_with = "most")]
    pub most: usize,
    /// Period to which `most` applies. If a GPU is nearly full, each process on it is asked to release memory at most
    /// once per period.
    pub within: Span,
    /// Absolute path of the notify program, and its arguments. Empty without a notify command.
    #[serde(deserialize_with = "command")]
    pub notify: Vec<Arc<str>>,
    /// File names of programs whose processes are always protected.
    #[serde(deserialize_with = "programs")]
    pub never: Vec<Arc<str>>,
    /// Maximum age of a process that `GPUMEM_KEEP` protects. `None` means no limit.
    #[serde(default, deserialize_with = "longest_keep")]
    pub longest_keep: Option<Span>,
    #[serde(skip)]
    responses: BTreeMap<Arc<str>, Response>,
}

impl Default for ReapConfig {
    fn default() -> Self {
        Self {
            warn: Span::from_seconds(900.0),
            grace: Span::from_seconds(60.0),
            settle: Span::from_seconds(15.0),
            most: 3,
            within: Span::from_seconds(600.0),
            notify: Vec::new(),
            never: Vec::new(),
            longest_keep: None,
            responses: BTreeMap::new(),
        }
    }
}

impl ReapConfig {
    pub fn response(&self, rule: &str) -> Response {
        self.responses.get(rule).copied().unwrap_or_default()
    }

    pub fn reaping(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules_with(Response::Reap)
    }

    pub fn releasing(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules_with(Response::Release)
    }

    pub fn parking(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules_with(Response::Park)
    }

    fn rules_with(&self, response: Response) -> impl Iterator<Item = &Arc<str>> {
        let rules = self.responses.iter();
        rules.filter_map(move |(rule, configured)| (*configured == response).then_some(rule))
    }

    pub(super) fn set_response(&mut self, rule: Arc<str>, response: Response) {
        // Do not store the default, so that an explicit `notify` and a missing action compare equal.
        self.responses.remove(&rule);
        if response != Response::default() {
            self.responses.insert(rule, response);
        }
    }

    /// Returns a message if the settings contradict each other.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let message = if self.reaping().next().is_some() {
            "a rule has action = \"reap\", but owners cannot be warned; set notify"
        } else if self.parking().next().is_some() {
            "a rule has action = \"park\", but owners cannot be warned; set notify"
        } else {
            return None;
        };
        self.notify.is_empty().then_some(message)
    }
}

pub(super) fn action(entry: &Entry<'_>, kind: Kind) -> Result<Response, ConfigError> {
    match entry.read()? {
        Response::Reap if !kind.may_be_reaped() => Err(entry.error(format!(
            "processes found by {kind} are never killed unattended; write \"notify\""
        ))),
        Response::Park if kind != Kind::Idle => Err(entry.error(format!(
            "processes found by {kind} are not parked; write \"notify\", or set this action for a rule of idle"
        ))),
        Response::Release if !kind.may_be_released() => Err(entry.error(format!(
            "processes found by {kind} are not asked to release memory; write \"notify\", or set this action \
             for a rule of idle, server-idle or pressure"
        ))),
        response => Ok(response),
    }
}

pub(super) fn section(config: &mut Config, section: &Section<'_>) -> Result<(), ConfigError> {
    let before = config.reap.clone();
    settings(&mut config.reap, SETTINGS, section, &mut config.origins)?;
    config.reap.responses = before.responses;
    // The programs in `never` accumulate across files, like exemptions.
    let named = std::mem::replace(&mut config.reap.never, before.never);
    for name in named {
        if !config.reap.never.contains(&name) {
            config.reap.never.push(name);
        }
    }
    config.rules.set_never(config.reap.never.clone());
    config.rules.longest_keep = config.reap.longest_keep;
    Ok(())
}

fn most<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    setting::parsed(from, "a number of kills such as 3, up to 1000", |written| {
        let most = match written {
            Value::Float(number) if number.fract() == 0.0 => *number as i64,
            number => number.as_integer()?,
        };
        usize::try_from(most).ok().filter(|_| most <= MOST_ACTS)
    })
}

/// Accepts more than a day, unlike the durations of rules, because protected jobs can run for days.
fn longest_keep<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Span>, D::Error> {
    setting::parsed(from, "a duration such as \"7d\"", setting::span).map(Some)
}

fn words(written: &Value) -> Option<Vec<Arc<str>>> {
    let list = written.as_array().filter(|list| list.len() <= MOST_WORDS)?;
    let word = |entry: &Value| {
        let text = entry.as_str()?;
        let is_sound = text.len() <= LONGEST_WORD && !text.contains('\0');
        is_sound.then(|| Arc::from(text))
    };
    list.iter().map(word).collect()
}

fn command<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Arc<str>>, D::Error> {
    let example = "a program by its absolute path and its arguments, such as \
                   [\"/usr/local/bin/notify-owner\", \"--mail\"]";
    // A program found in a search path might belong to another user, so require an absolute path.
    let is_absolute =
        |words: &Vec<Arc<str>>| words.first().is_none_or(|program| program.starts_with('/'));
    setting::parsed(from, example, |written| words(written).filter(is_absolute))
}

fn programs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Arc<str>>, D::Error> {
    let example = "a list of programs' file names such as [\"tensorboard\"]";
    // A pattern would match no file name and would silently protect nothing.
    let is_name = |name: &Arc<str>| !name.is_empty() && !name.contains(['/', '*', '?', '[']);
    let are_names = |names: &Vec<Arc<str>>| names.iter().all(is_name);
    setting::parsed(from, example, |written| words(written).filter(are_names))
}
