//! Reads one file over what is in force, and says what is wrong with it.
//!
//! The tables are walked by hand rather than by serde: every key has its place in the file, and what
//! is allowed there is known only to the rules. Here are the tables that stand once in a file, and what
//! all reading shares; the entries of which there may be many are in [`entry`](super::entry).

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::{Config, ConfigError, entry, reap};
use crate::rules::RuleSet;
use crate::rules::rule::SettingValue;
use crate::rules::setting::{TomlValue, Written, whole_milliseconds};
use crate::units::Span;

const TOP: &[&str] = &["sample", "reap", "rules", "rule", "override", "keep"];
const SAMPLE: &[&str] = &["interval"];
/// Sampling faster than this is a load, and slower the history takes every interval for a gap.
const INTERVAL_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=600.0;

pub(super) type SpannedKey<'a> = Spanned<DeString<'a>>;
pub(super) type SpannedEntry<'a> = Spanned<DeValue<'a>>;

/// Reads `text`, the content of `path`, over `config`.
pub(super) fn layer(config: &mut Config, text: &str, path: &Path) -> Result<(), ConfigError> {
    let file = File { text, path };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let (line, column) = file.place(at);
        ConfigError::Syntax {
            path: path.to_owned(),
            line,
            column,
            message: error.message().lines().collect::<Vec<_>>().join("; "),
        }
    })?;
    let document = in_order(document.get_ref());
    if let Some((key, _)) = document
        .iter()
        .find(|(key, _)| !TOP.contains(&&**key.get_ref()))
    {
        return Err(file.unknown(key, "", TOP.iter().copied()));
    }
    // Wherever they stand: a rule starts from what is in force for its kind, an override changes rules,
    // and an exemption names them.
    for name in TOP {
        let Some((_, value)) = document.iter().find(|(key, _)| key.get_ref() == name) else {
            continue;
        };
        match *name {
            "sample" => sample(config, &file, file.table(name, value)?)?,
            "reap" => reap::table(config, &file, file.table(name, value)?)?,
            "rules" => rules(config, &file, file.table(name, value)?)?,
            _ => entry::all(config, &file, name, value)?,
        }
    }
    match config.reap.contradiction() {
        Some(message) => {
            // It is this file that makes it one, by what it says of warnings or of rules.
            let says = |name| document.iter().find(|(key, _)| key.get_ref() == name);
            let at = ["reap", "rule", "rules"].into_iter().find_map(says);
            let at = at.map_or(0..0, |(key, _)| key.span());
            Err(file.wrong(at, "reap", message.to_owned()))
        }
        None => Ok(()),
    }
}

fn sample(config: &mut Config, file: &File<'_>, table: &DeTable<'_>) -> Result<(), ConfigError> {
    for (key, value) in in_order(table) {
        if key.get_ref() != "interval" {
            return Err(file.unknown(key, "sample.", SAMPLE.iter().copied()));
        }
        let name = "sample.interval";
        let written = written(value.get_ref());
        let interval = match written {
            Written::Text(text) => text.parse::<Span>().ok(),
            _ => None,
        };
        config.sample.interval = interval
            .map(whole_milliseconds)
            .filter(|interval| INTERVAL_SECONDS.contains(&interval.seconds()))
            .ok_or_else(|| {
                let message = format!(
                    "{written} is not allowed; write a duration such as \"1s\" or \"500ms\", from \
                     100ms to 10m"
                );
                file.wrong(value.span(), name, message)
            })?;
        config
            .origins
            .insert(name.to_owned(), file.origin(key.span()));
    }
    Ok(())
}

fn rules(config: &mut Config, file: &File<'_>, table: &DeTable<'_>) -> Result<(), ConfigError> {
    for (key, value) in in_order(table) {
        let name = &**key.get_ref();
        let known = settings_of_kind(&config.rules, name)
            .ok_or_else(|| file.unknown(key, "rules.", kind_names(&config.rules)))?;
        let prefix = format!("rules.{name}");
        let mut last = key.span();
        for (key, value) in in_order(file.table(&prefix, value)?) {
            if key.get_ref() == reap::ACTION {
                let rule = config.rules.rule_mut(name);
                if let Some((name, kind)) = rule.map(|rule| (rule.name().clone(), rule.kind())) {
                    let response = reap::action(file, &prefix, kind, value)?;
                    config.reap.set_response(name, response);
                }
                let origin = file.origin(key.span());
                config
                    .origins
                    .insert(format!("{prefix}.{}", reap::ACTION), origin);
                continue;
            }
            let (setting, value) = file.setting(&prefix, &[reap::ACTION], &known, key, value)?;
            last = key.span();
            if let Some(rule) = config.rules.rule_mut(name) {
                rule.set(setting, value);
            }
            config
                .origins
                .insert(format!("{prefix}.{setting}"), file.origin(key.span()));
        }
        let rule = config.rules.rule_mut(name);
        if let Some(message) = rule.and_then(|rule| rule.contradiction()) {
            return Err(file.wrong(last, &prefix, message));
        }
    }
    Ok(())
}

/// A file that is being read.
pub(super) struct File<'a> {
    text: &'a str,
    path: &'a Path,
}

impl File<'_> {
    /// Line and character, from 1, of a place in the text.
    fn place(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (line, before[start..].chars().count() + 1)
    }

    pub(super) fn origin(&self, span: Range<usize>) -> String {
        format!("{}:{}", self.path.display(), self.place(span.start).0)
    }

    pub(super) fn wrong(&self, span: Range<usize>, key: &str, message: String) -> ConfigError {
        ConfigError::Wrong {
            path: self.path.to_owned(),
            line: self.place(span.start).0,
            key: key.to_owned(),
            message,
        }
    }

    pub(super) fn unknown<'k>(
        &self,
        key: &SpannedKey<'_>,
        prefix: &str,
        known: impl Iterator<Item = &'k str>,
    ) -> ConfigError {
        let known: Vec<&str> = known.collect();
        let hint = near(key.get_ref(), known.iter().copied());
        let dotted = format!("{prefix}{}", key.get_ref().escape_debug());
        let message = format!("is not known{hint}; allowed: {}", known.join(", "));
        self.wrong(key.span(), &dotted, message)
    }

    fn table<'t, 'i>(
        &self,
        key: &str,
        value: &'t SpannedEntry<'i>,
    ) -> Result<&'t DeTable<'i>, ConfigError> {
        value.get_ref().as_table().ok_or_else(|| {
            let message = format!("is to be a table; write [{key}]");
            self.wrong(value.span(), key, message)
        })
    }

    /// A setting of a rule and its value, in a table that allows the `others` as well.
    pub(super) fn setting(
        &self,
        prefix: &str,
        others: &[&'static str],
        known: &[SettingValue],
        key: &SpannedKey<'_>,
        value: &SpannedEntry<'_>,
    ) -> Result<(&'static str, TomlValue), ConfigError> {
        let name = &**key.get_ref();
        let Some(setting) = known.iter().find(|setting| setting.name == name) else {
            let settings = known.iter().map(|setting| setting.name);
            let names = others.iter().copied().chain(settings);
            return Err(self.unknown(key, &format!("{prefix}."), names));
        };
        let value_of = setting.form.read(written(value.get_ref()));
        let value = value_of
            .map_err(|message| self.wrong(value.span(), &format!("{prefix}.{name}"), message))?;
        Ok((setting.name, value))
    }
}

/// The settings of the rule that is a kind's own.
pub(super) fn settings_of_kind(rules: &RuleSet, name: &str) -> Option<Vec<SettingValue>> {
    let is_kind = kind_names(rules).any(|kind| kind == name);
    let rule = rules.rules().iter().find(|rule| &**rule.name() == name)?;
    is_kind.then(|| rule.settings())
}

/// The kinds of rules, each of which has a rule of its own name.
pub(super) fn kind_names(rules: &RuleSet) -> impl Iterator<Item = &'static str> {
    let rules = rules.rules().iter();
    rules.filter_map(|rule| Some(rule.kind().name()).filter(|kind| **rule.name() == **kind))
}

pub(super) fn rule_names(rules: &RuleSet) -> impl Iterator<Item = &str> {
    rules.rules().iter().map(|rule| &**rule.name())
}

/// As it stands in the file: of two mistakes the first is told.
pub(super) fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t SpannedKey<'i>, &'t SpannedEntry<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

pub(super) fn written<'v>(value: &'v DeValue<'_>) -> Written<'v> {
    let number = |number: Option<f64>| number.map_or(Written::Other("number"), Written::Number);
    match value {
        DeValue::String(text) => Written::Text(text),
        DeValue::Boolean(flag) => Written::Flag(*flag),
        DeValue::Integer(integer) => number(
            i64::from_str_radix(integer.as_str(), integer.radix())
                .ok()
                .map(|integer| integer as f64),
        ),
        DeValue::Float(float) => number(float.as_str().parse().ok()),
        DeValue::Datetime(_) => Written::Other("date"),
        DeValue::Array(_) => Written::Other("list"),
        DeValue::Table(_) => Written::Other("table"),
    }
}

/// `; did you mean "duration"?`, where a known name is a typing error away.
pub(super) fn near<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    known
        .map(|known| (distance(name, known), known))
        .filter(|(distance, known)| *distance <= 2 && *distance < known.len())
        .min()
        .map_or_else(String::new, |(_, known)| {
            format!("; did you mean {known:?}?")
        })
}

/// How many letters have to be added, dropped or changed to turn one name into another.
fn distance(from: &str, to: &str) -> usize {
    // Longer than any name: nothing is near it, and it shall cost nothing.
    if from.len() > 64 {
        return usize::MAX;
    }
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}
