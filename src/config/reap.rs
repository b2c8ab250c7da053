//! `[reap]` and a rule's `action`: what is done about findings while nobody looks.
//!
//! A rule only tells, unless it says `action = "reap"`; then what it finds is ended, but not before its
//! owner was warned. Values only; what they lead to is in `gpumem reap --watch`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use toml::de::DeTable;

use super::read::{File, SpannedEntry, in_order, near, written};
use super::scope::ScopeField;
use super::{Config, ConfigError};
use crate::model::Kind;
use crate::rules::setting::{TomlValue, ValueKind, Written};
use crate::units::Span;

/// The key of a rule that says what is done about its findings.
pub(super) const ACTION: &str = "action";
/// The keys of `[reap]`.
const KEYS: &[&str] = &[
    "warn",
    "grace",
    "settle",
    "most",
    "within",
    "notify",
    "warn_terminal",
    "never",
];
/// More acts than this in any time are no limit.
const MOST_ACTS: f64 = 1000.0;
/// A command has fewer words, and a machine fewer programs that are never touched.
const MOST_WORDS: usize = 256;
/// A path is not longer.
const LONGEST_WORD: usize = 4096;

/// What is done about a rule's findings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Response {
    /// Their owner is told, and no more.
    #[default]
    Notify,
    /// Their owner is warned, then they are ended.
    Reap,
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Notify => "notify",
            Self::Reap => "reap",
        })
    }
}

/// How it is done.
#[derive(Clone, PartialEq, Debug)]
pub struct ReapConfig {
    /// From the first warning to the last.
    pub warn: Span,
    /// From the last warning to the act.
    pub grace: Span,
    /// After each act.
    pub settle: Span,
    /// So many acts
    pub most: usize,
    /// within this time.
    pub within: Span,
    /// A program by its whole path, and its arguments; empty where there is none.
    pub notify: Vec<Arc<str>>,
    /// Whether a warning is written to the owner's terminals.
    pub warn_terminal: bool,
    /// File names of programs that are never touched.
    pub never: Vec<Arc<str>>,
    /// By the rule's name; one that is not there only tells.
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
            warn_terminal: true,
            never: Vec::new(),
            responses: BTreeMap::new(),
        }
    }
}

impl ReapConfig {
    /// What is done about the findings of a rule.
    pub fn response(&self, rule: &str) -> Response {
        self.responses.get(rule).copied().unwrap_or_default()
    }

    /// The rules of which what they find is ended.
    pub fn reaping(&self) -> impl Iterator<Item = &Arc<str>> {
        let rules = self.responses.iter();
        rules.filter_map(|(rule, response)| (*response == Response::Reap).then_some(rule))
    }

    pub(super) fn set_response(&mut self, rule: Arc<str>, response: Response) {
        // What a rule says and what it is by default are the same.
        self.responses.remove(&rule);
        if response != Response::default() {
            self.responses.insert(rule, response);
        }
    }

    /// What is wrong with it as a whole.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let warns = self.warn_terminal || !self.notify.is_empty();
        (!warns && self.reaping().next().is_some()).then_some(
            "a rule says action = \"reap\", and nobody would be warned; give a notify command, or \
             warn_terminal = true",
        )
    }
}

/// Reads a rule's `action`.
pub(super) fn action(
    file: &File<'_>,
    prefix: &str,
    kind: Kind,
    value: &SpannedEntry<'_>,
) -> Result<Response, ConfigError> {
    let key = format!("{prefix}.{ACTION}");
    let field = ScopeField { file, key, value };
    match value.get_ref().as_str() {
        Some("notify") => Ok(Response::Notify),
        Some("reap") if kind.may_be_reaped() => Ok(Response::Reap),
        Some("reap") => Err(field.error_at(format!(
            "what {kind} finds is never ended while nobody looks; write \"notify\""
        ))),
        text => {
            let hint = near(text.unwrap_or_default(), ["notify", "reap"].into_iter());
            let written = written(value.get_ref());
            Err(field.error_at(format!(
                "{written} is not allowed{hint}; write \"notify\" or \"reap\""
            )))
        }
    }
}

/// Reads `[reap]`.
pub(super) fn table(
    config: &mut Config,
    file: &File<'_>,
    table: &DeTable<'_>,
) -> Result<(), ConfigError> {
    let reap = &mut config.reap;
    for (key, value) in in_order(table) {
        let field = ScopeField {
            file,
            key: format!("reap.{}", key.get_ref()),
            value,
        };
        match &**key.get_ref() {
            "warn" => reap.warn = span(&field)?,
            "grace" => reap.grace = span(&field)?,
            "settle" => reap.settle = span(&field)?,
            "most" => reap.most = most(&field)?,
            "within" => reap.within = span(&field)?,
            "notify" => reap.notify = command(&field)?,
            "warn_terminal" => reap.warn_terminal = flag(&field)?,
            // As an exemption of any layer exempts.
            "never" => {
                for name in programs(&field)? {
                    if !reap.never.contains(&name) {
                        reap.never.push(name);
                    }
                }
            }
            _ => return Err(file.unknown(key, "reap.", KEYS.iter().copied())),
        }
        let origin = file.origin(key.span());
        config.origins.insert(field.key, origin);
    }
    Ok(())
}

fn of_form(field: &ScopeField<'_, '_>, form: ValueKind) -> Result<TomlValue, ConfigError> {
    let value = form.read(written(field.value.get_ref()));
    value.map_err(|message| field.error_at(message))
}

fn span(field: &ScopeField<'_, '_>) -> Result<Span, ConfigError> {
    match of_form(field, ValueKind::Span)? {
        TomlValue::Span(span) => Ok(span),
        _ => Err(field.wrong(ValueKind::Span.example())),
    }
}

fn flag(field: &ScopeField<'_, '_>) -> Result<bool, ConfigError> {
    match of_form(field, ValueKind::Flag)? {
        TomlValue::Flag(flag) => Ok(flag),
        _ => Err(field.wrong(ValueKind::Flag.example())),
    }
}

fn most(field: &ScopeField<'_, '_>) -> Result<usize, ConfigError> {
    match written(field.value.get_ref()) {
        Written::Number(number) if number.fract() == 0.0 && (0.0..=MOST_ACTS).contains(&number) => {
            Ok(number as usize)
        }
        _ => Err(field.wrong("a number of acts such as 3, up to 1000")),
    }
}

fn words(field: &ScopeField<'_, '_>, example: &str) -> Result<Vec<Arc<str>>, ConfigError> {
    let list = field.value.get_ref().as_array();
    let list = list.filter(|list| list.len() <= MOST_WORDS);
    let word = |entry: &SpannedEntry<'_>| {
        let text = entry.get_ref().as_str()?;
        let is_sound = text.len() <= LONGEST_WORD && !text.contains('\0');
        is_sound.then(|| Arc::from(text))
    };
    let words = list.and_then(|list| list.iter().map(word).collect());
    words.ok_or_else(|| field.wrong(example))
}

/// A program and its arguments, as they are run without a shell.
fn command(field: &ScopeField<'_, '_>) -> Result<Vec<Arc<str>>, ConfigError> {
    let example = "a program by its whole path and its arguments, such as \
                   [\"/usr/local/bin/tell\", \"--mail\"]";
    let words = words(field, example)?;
    // What is looked for in a search path may be somebody else's.
    match words.first() {
        Some(program) if !program.starts_with('/') => Err(field.wrong(example)),
        _ => Ok(words),
    }
}

fn programs(field: &ScopeField<'_, '_>) -> Result<Vec<Arc<str>>, ConfigError> {
    let example = "a list of programs' file names such as [\"tensorboard\"]";
    let words = words(field, example)?;
    let is_name = |name: &Arc<str>| !name.is_empty() && !name.contains('/');
    match words.iter().all(is_name) {
        true => Ok(words),
        false => Err(field.wrong(example)),
    }
}
