//! Reads one file over what is in force, and says what is wrong with it.
//!
//! The tables are walked by hand rather than by serde: every key has its place in the file, and what
//! is allowed there is known only to the rules.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::{Config, Error};
use crate::rules::Settings;
use crate::rules::rule::SettingValue;
use crate::rules::scope::{GpuName, Scope};
use crate::rules::setting::{Value, Written, whole_milliseconds};
use crate::units::Span;

const TOP: &[&str] = &["sample", "rules", "override"];
const SAMPLE: &[&str] = &["interval"];
const SCOPE: &[&str] = &["user", "command", "gpu", "framework"];
/// Sampling faster than this is a load, slower shows nothing.
const INTERVAL_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

type Key<'a> = Spanned<DeString<'a>>;
type Entry<'a> = Spanned<DeValue<'a>>;

/// Reads `text`, the content of `path`, over `config`.
pub(super) fn layer(config: &mut Config, text: &str, path: &Path) -> Result<(), Error> {
    let file = File { text, path };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let (line, column) = file.place(at);
        Error::Syntax {
            path: path.to_owned(),
            line,
            column,
            message: error.message().lines().collect::<Vec<_>>().join("; "),
        }
    })?;
    for (key, value) in in_order(document.get_ref()) {
        match &**key.get_ref() {
            "sample" => sample(config, &file, file.table("sample", value)?)?,
            "rules" => rules(config, &file, file.table("rules", value)?)?,
            "override" => overrides(config, &file, value)?,
            _ => return Err(file.unknown(key, "", TOP.iter().copied())),
        }
    }
    Ok(())
}

fn sample(config: &mut Config, file: &File<'_>, table: &DeTable<'_>) -> Result<(), Error> {
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
                     100ms to 1h"
                );
                file.wrong(value.span(), name, message)
            })?;
        config
            .origins
            .insert(name.to_owned(), file.origin(key.span()));
    }
    Ok(())
}

fn rules(config: &mut Config, file: &File<'_>, table: &DeTable<'_>) -> Result<(), Error> {
    for (key, value) in in_order(table) {
        let name = &**key.get_ref();
        let known = settings_of(&config.rules, name)
            .ok_or_else(|| file.unknown(key, "rules.", rule_names(&config.rules)))?;
        let prefix = format!("rules.{name}");
        for (key, value) in in_order(file.table(&prefix, value)?) {
            let (setting, value) = file.setting(&prefix, &known, key, value)?;
            if let Some(rule) = config.rules.rule_mut(name) {
                rule.set(setting, value);
            }
            config
                .origins
                .insert(format!("{prefix}.{setting}"), file.origin(key.span()));
        }
    }
    Ok(())
}

fn overrides(config: &mut Config, file: &File<'_>, value: &Entry<'_>) -> Result<(), Error> {
    let not_tables = |span| {
        let message = "is to be a list of tables; begin each with [[override]]";
        file.wrong(span, "override", message.to_owned())
    };
    let list = value
        .get_ref()
        .as_array()
        .ok_or_else(|| not_tables(value.span()))?;
    for entry in list.iter() {
        let table = entry
            .get_ref()
            .as_table()
            .ok_or_else(|| not_tables(entry.span()))?;
        add_override(config, file, entry.span(), table)?;
    }
    Ok(())
}

fn add_override(
    config: &mut Config,
    file: &File<'_>,
    span: Range<usize>,
    table: &DeTable<'_>,
) -> Result<(), Error> {
    let names = || rule_names(&config.rules).collect::<Vec<_>>().join(", ");
    let Some(rule) = table.get("rule") else {
        let message = format!("names no rule; add rule = NAME, one of: {}", names());
        return Err(file.wrong(span, "override", message));
    };
    let name = rule.get_ref().as_str().unwrap_or_default();
    let Some(known) = settings_of(&config.rules, name) else {
        let written = written(rule.get_ref());
        let hint = near(name, rule_names(&config.rules));
        let message = format!("{written} is no rule{hint}; the rules are: {}", names());
        return Err(file.wrong(rule.span(), "override.rule", message));
    };
    let mut scope = Scope::default();
    let mut changes: Vec<(&'static str, Value)> = Vec::new();
    for (key, value) in in_order(table) {
        match &**key.get_ref() {
            "rule" => {}
            "user" => scope.user = Some(file.name("user", value)?),
            "command" => scope.command = Some(file.name("command", value)?),
            "framework" => scope.framework = Some(file.name("framework", value)?),
            "gpu" => scope.gpu = Some(file.gpu(value)?),
            _ => changes.push(file.setting("override", &known, key, value)?),
        }
    }
    if scope.is_empty() {
        let message = format!(
            "is for nobody in particular; add one of {}, or write the settings under [rules.{name}]",
            SCOPE.join(", ")
        );
        return Err(file.wrong(span, "override", message));
    }
    if changes.is_empty() {
        let settings: Vec<&str> = known.iter().map(|setting| setting.name).collect();
        let message = format!("changes nothing; add one of {}", settings.join(", "));
        return Err(file.wrong(span, "override", message));
    }
    let name = name.to_owned();
    if let Some(rule) = config.rules.rule_mut(&name) {
        let place = rule.overrides().len();
        rule.add_override(scope, changes);
        config
            .origins
            .insert(format!("override.{name}.{place}"), file.origin(span));
    }
    Ok(())
}

/// A file that is being read.
struct File<'a> {
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

    fn origin(&self, span: Range<usize>) -> String {
        format!("{}:{}", self.path.display(), self.place(span.start).0)
    }

    fn wrong(&self, span: Range<usize>, key: &str, message: String) -> Error {
        Error::Wrong {
            path: self.path.to_owned(),
            line: self.place(span.start).0,
            key: key.to_owned(),
            message,
        }
    }

    fn unknown<'k>(
        &self,
        key: &Key<'_>,
        prefix: &str,
        known: impl Iterator<Item = &'k str>,
    ) -> Error {
        let known: Vec<&str> = known.collect();
        let hint = near(key.get_ref(), known.iter().copied());
        let dotted = format!("{prefix}{}", key.get_ref().escape_debug());
        let message = format!("is not known{hint}; allowed: {}", known.join(", "));
        self.wrong(key.span(), &dotted, message)
    }

    fn table<'t, 'i>(&self, key: &str, value: &'t Entry<'i>) -> Result<&'t DeTable<'i>, Error> {
        value.get_ref().as_table().ok_or_else(|| {
            let message = format!("is to be a table; write [{key}]");
            self.wrong(value.span(), key, message)
        })
    }

    /// A setting of a rule and its value.
    fn setting(
        &self,
        prefix: &str,
        known: &[SettingValue],
        key: &Key<'_>,
        value: &Entry<'_>,
    ) -> Result<(&'static str, Value), Error> {
        let name = &**key.get_ref();
        let Some(setting) = known.iter().find(|setting| setting.name == name) else {
            let scope: &[&str] = if prefix == "override" { SCOPE } else { &[] };
            let names = scope
                .iter()
                .copied()
                .chain(known.iter().map(|setting| setting.name));
            return Err(self.unknown(key, &format!("{prefix}."), names));
        };
        let value_of = setting.form.read(written(value.get_ref()));
        let value = value_of
            .map_err(|message| self.wrong(value.span(), &format!("{prefix}.{name}"), message))?;
        Ok((setting.name, value))
    }

    fn name(&self, key: &str, value: &Entry<'_>) -> Result<Arc<str>, Error> {
        match value.get_ref().as_str() {
            Some(text) if !text.is_empty() => Ok(text.into()),
            _ => {
                let written = written(value.get_ref());
                let message = format!("{written} is not allowed; write a name in quotes");
                Err(self.wrong(value.span(), &format!("override.{key}"), message))
            }
        }
    }

    fn gpu(&self, value: &Entry<'_>) -> Result<GpuName, Error> {
        let written = written(value.get_ref());
        let name = match written {
            Written::Number(number)
                if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) =>
            {
                Some(GpuName::Index(number as u32))
            }
            Written::Text(text) if text.starts_with("GPU-") => Some(GpuName::Uuid(text.into())),
            _ => None,
        };
        name.ok_or_else(|| {
            let message = format!(
                "{written} is not allowed; write an index such as 0 or a uuid such as \"GPU-89d1f0e5-…\""
            );
            self.wrong(value.span(), "override.gpu", message)
        })
    }
}

fn settings_of(rules: &Settings, name: &str) -> Option<Vec<SettingValue>> {
    let rule = rules.rules().iter().find(|rule| &**rule.name() == name)?;
    Some(rule.settings())
}

fn rule_names(rules: &Settings) -> impl Iterator<Item = &str> {
    rules.rules().iter().map(|rule| &**rule.name())
}

/// As it stands in the file: of two mistakes the first is told.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Key<'i>, &'t Entry<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn written<'v>(value: &'v DeValue<'_>) -> Written<'v> {
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
fn near<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
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
