//! Reads one file over what is in force, and says what is wrong with it.
//!
//! The values are read by serde, each table as the struct that it becomes (see [`setting`]); what is
//! wrong is told with the place in the file. Here are the tables that stand once in a file, and what all
//! reading shares; the entries of which there may be many are in [`entry`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::de::{DeserializeOwned, IntoDeserializer as _};
use serde::{Deserialize as _, Serialize};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::{Config, ConfigError, entry, reap};
use crate::rules::RuleSet;
use crate::rules::rule::Rule;
use crate::rules::setting::{self, WrongValue, keys, near};

const TOP: &[&str] = &["sample", "reap", "rules", "rule", "override", "keep"];

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
    let document = Section::new(&file, "", 0..0, document.get_ref());
    document.allow(TOP)?;
    // Wherever they stand: a rule starts from what is in force for its kind, an override changes rules,
    // and an exemption names them.
    for entry in TOP.iter().filter_map(|name| document.get(name)) {
        match entry.name {
            "sample" => settings(&mut config.sample, &entry.section()?, &mut config.origins)?,
            "reap" => reap::section(config, &entry.section()?)?,
            "rules" => rules(config, &entry.section()?)?,
            _ => entry::all(config, entry)?,
        }
    }
    match config.reap.contradiction() {
        Some(message) => {
            // It is this file that makes it one, by what it says of warnings or of rules.
            let mut places = ["reap", "rule", "rules"].into_iter();
            let at = places.find_map(|name| document.get(name));
            let at = at.map_or(0..0, |entry| entry.at.clone());
            Err(file.wrong(at, "reap", message.to_owned()))
        }
        None => Ok(()),
    }
}

/// Reads settings over those in force, in the order of the file, so that of two mistakes the first is told.
pub(super) fn settings<T: DeserializeOwned + Serialize>(
    settings: &mut T,
    section: &Section<'_>,
    origins: &mut BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    for entry in &section.entries {
        entry.allow(keys::<T>())?;
        let change = [(entry.name, &entry.value)].into_iter();
        *settings = setting::changed(settings, change).map_err(|wrong| entry.refuse(wrong))?;
        origins.insert(entry.key.clone(), entry.origin());
    }
    Ok(())
}

fn rules(config: &mut Config, section: &Section<'_>) -> Result<(), ConfigError> {
    let kinds: Vec<&str> = kind_names(&config.rules).collect();
    for kind in &section.entries {
        kind.allow(&kinds)?;
        let section = kind.section()?;
        let mut last = &kind.at;
        let Some(rule) = config.rules.rule_mut(kind.name) else {
            continue;
        };
        let known = [&[reap::ACTION], &*setting_names(&**rule)].concat();
        for entry in &section.entries {
            entry.allow(&known)?;
            if entry.name == reap::ACTION {
                let response = reap::action(entry, rule.kind())?;
                config.reap.set_response(rule.name().clone(), response);
            } else {
                let set = rule.set(entry.name, &entry.value);
                set.map_err(|wrong| entry.refuse(wrong))?;
                last = &entry.at;
            }
            config.origins.insert(entry.key.clone(), entry.origin());
        }
        if let Some(message) = rule.contradiction() {
            return Err(section.file.wrong(last.clone(), &section.key, message));
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

    pub(super) fn origin(&self, at: &Range<usize>) -> String {
        format!("{}:{}", self.path.display(), self.place(at.start).0)
    }

    pub(super) fn wrong(&self, at: Range<usize>, key: &str, message: String) -> ConfigError {
        ConfigError::Wrong {
            path: self.path.to_owned(),
            line: self.place(at.start).0,
            key: key.to_owned(),
            message,
        }
    }
}

/// A table of a file.
pub(super) struct Section<'f> {
    pub(super) file: &'f File<'f>,
    /// Its dotted key; empty of the whole file.
    pub(super) key: String,
    pub(super) at: Range<usize>,
    /// As they stand in the file.
    pub(super) entries: Vec<Entry<'f>>,
}

/// A key and its value.
pub(super) struct Entry<'f> {
    pub(super) file: &'f File<'f>,
    pub(super) name: &'f str,
    /// The dotted key.
    pub(super) key: String,
    /// Where the key stands.
    pub(super) at: Range<usize>,
    pub(super) value: Value,
    pub(super) source: &'f Spanned<DeValue<'f>>,
}

impl<'f> Section<'f> {
    pub(super) fn new(
        file: &'f File<'f>,
        key: &str,
        at: Range<usize>,
        table: &'f DeTable<'f>,
    ) -> Self {
        let dot = if key.is_empty() { "" } else { "." };
        let entry = |(name, source): (&'f Spanned<_>, &'f Spanned<DeValue<'f>>)| {
            let at = name.span();
            let name: &'f toml::de::DeString<'f> = name.get_ref();
            Entry {
                file,
                name,
                key: format!("{key}{dot}{}", name.escape_debug()),
                at,
                value: value(source),
                source,
            }
        };
        let mut entries: Vec<_> = table.iter().map(entry).collect();
        entries.sort_by_key(|entry| entry.at.start);
        Self {
            file,
            key: key.to_owned(),
            at,
            entries,
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Entry<'f>> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Refuses what is none of these.
    pub(super) fn allow(&self, known: &[&str]) -> Result<(), ConfigError> {
        self.entries.iter().try_for_each(|entry| entry.allow(known))
    }

    /// Reads what `T` has of it.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let entries = self.entries.iter();
        let known = entries.filter(|entry| keys::<T>().contains(&entry.name));
        setting::read(known.map(|entry| (entry.name, &entry.value)))
            .map_err(|wrong| self.refuse(wrong))
    }

    pub(super) fn origin(&self) -> String {
        self.file.origin(&self.at)
    }

    pub(super) fn refuse(&self, wrong: WrongValue) -> ConfigError {
        match self.get(&wrong.key) {
            Some(entry) => entry.refuse(wrong),
            None => self.wrong(wrong.message),
        }
    }

    /// What is wrong with it as a whole.
    pub(super) fn wrong(&self, message: impl Into<String>) -> ConfigError {
        self.file.wrong(self.at.clone(), &self.key, message.into())
    }
}

impl<'f> Entry<'f> {
    pub(super) fn origin(&self) -> String {
        self.file.origin(&self.at)
    }

    /// Refuses what is called otherwise.
    pub(super) fn allow(&self, known: &[&str]) -> Result<(), ConfigError> {
        if known.contains(&self.name) {
            return Ok(());
        }
        let hint = near(self.name, known.iter().copied());
        let message = format!("is not known{hint}; allowed: {}", known.join(", "));
        Err(self.file.wrong(self.at.clone(), &self.key, message))
    }

    pub(super) fn section(&self) -> Result<Section<'f>, ConfigError> {
        let (at, source) = (self.source.span(), self.source.get_ref());
        match source.as_table() {
            Some(table) => Ok(Section::new(self.file, &self.key, at, table)),
            None => Err(self.error(format!("is to be a table; write [{}]", self.key))),
        }
    }

    /// A list of tables.
    pub(super) fn sections(&self) -> Result<Vec<Section<'f>>, ConfigError> {
        let name = self.name;
        let wrong = |at| {
            let message = format!("is to be a list of tables; begin each with [[{name}]]");
            self.file.wrong(at, name, message)
        };
        let section = |source: &'f Spanned<DeValue<'f>>| {
            let table = source.get_ref().as_table();
            let table = table.ok_or_else(|| wrong(source.span()))?;
            Ok(Section::new(self.file, name, source.span(), table))
        };
        let list = self.source.get_ref().as_array();
        let list = list.ok_or_else(|| wrong(self.source.span()))?;
        list.iter().map(section).collect()
    }

    /// What was written is not allowed; `write` says what is.
    pub(super) fn wrong(&self, write: &str) -> ConfigError {
        let written = setting::shown(&self.value);
        self.error(format!("{written} is not allowed; write {write}"))
    }

    /// What is wrong with it, in other words.
    pub(super) fn error(&self, message: String) -> ConfigError {
        self.file.wrong(self.source.span(), &self.key, message)
    }

    pub(super) fn refuse(&self, wrong: WrongValue) -> ConfigError {
        self.error(wrong.message)
    }

    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        setting::read_value(&self.value).map_err(|wrong| self.refuse(wrong))
    }

    /// The entries of a list, of which there is at least one, each read by `read`.
    pub(super) fn list<T>(
        &self,
        example: &str,
        read: impl Fn(&Self) -> Result<T, ConfigError>,
    ) -> Result<Vec<T>, ConfigError> {
        let DeValue::Array(list) = self.source.get_ref() else {
            return Err(self.wrong(example));
        };
        if list.is_empty() {
            return Err(self.error(format!("is empty; write {example}, or leave it out")));
        }
        let item = |source: &'f Spanned<DeValue<'f>>| Entry {
            key: self.key.clone(),
            at: source.span(),
            value: value(source),
            source,
            ..*self
        };
        list.iter().map(|source| read(&item(source))).collect()
    }
}

/// It without its place; a number that is none of TOML's is larger than any that is allowed.
fn value(source: &Spanned<DeValue<'_>>) -> Value {
    Value::deserialize(source.clone().into_deserializer()).unwrap_or(Value::Float(f64::INFINITY))
}

pub(super) fn setting_names(rule: &dyn Rule) -> Vec<&'static str> {
    rule.settings().into_iter().map(|(name, _)| name).collect()
}

/// The kinds of rules, each of which has a rule of its own name.
pub(super) fn kind_names(rules: &RuleSet) -> impl Iterator<Item = &'static str> {
    let rules = rules.rules().iter();
    rules.filter_map(|rule| Some(rule.kind().name()).filter(|kind| **rule.name() == **kind))
}

pub(super) fn rule_names(rules: &RuleSet) -> impl Iterator<Item = &str> {
    rules.rules().iter().map(|rule| &**rule.name())
}
