//! Represents a TOML file as tables and entries with positions, and creates errors that name the file, line and key.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::de::{DeserializeOwned, IntoDeserializer as _};
use serde::{Deserialize as _, Serialize};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::ConfigError;
use crate::rules::rule::Rule;
use crate::rules::setting::{self, near};
use crate::rules::{KINDS, RuleSet};

pub(super) struct File<'a> {
    pub(super) text: &'a str,
    pub(super) path: &'a Path,
}

impl File<'_> {
    /// Returns the line and column of a byte offset, both counted from 1.
    pub(super) fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (line, before[start..].chars().count() + 1)
    }

    pub(super) fn origin(&self, at: &Range<usize>) -> String {
        format!("{}:{}", self.path.display(), self.position(at.start).0)
    }

    pub(super) fn wrong(&self, at: Range<usize>, key: &str, message: String) -> ConfigError {
        ConfigError::Wrong {
            path: self.path.to_owned(),
            line: self.position(at.start).0,
            key: key.to_owned(),
            message,
        }
    }
}

pub(super) struct Section<'f> {
    pub(super) file: &'f File<'f>,
    /// Dotted key of the table, or an empty string for the whole file.
    pub(super) key: String,
    pub(super) at: Range<usize>,
    pub(super) entries: Vec<Entry<'f>>,
}

pub(super) struct Entry<'f> {
    pub(super) file: &'f File<'f>,
    pub(super) name: &'f str,
    pub(super) key: String,
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
        Self { file, key: key.to_owned(), at, entries }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Entry<'f>> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    pub(super) fn allow(&self, allowed: &[&str]) -> Result<(), ConfigError> {
        self.entries.iter().try_for_each(|entry| entry.allow(allowed))
    }

    pub(super) fn origin(&self) -> String {
        self.file.origin(&self.at)
    }

    pub(super) fn wrong(&self, message: impl Into<String>) -> ConfigError {
        self.file.wrong(self.at.clone(), &self.key, message.into())
    }
}

impl<'f> Entry<'f> {
    pub(super) fn origin(&self) -> String {
        self.file.origin(&self.at)
    }

    pub(super) fn allow(&self, allowed: &[&str]) -> Result<(), ConfigError> {
        if allowed.contains(&self.name) {
            return Ok(());
        }
        let hint = near(self.name, allowed.iter().copied());
        let message = format!("unknown key{hint}; allowed: {}", allowed.join(", "));
        Err(self.file.wrong(self.at.clone(), &self.key, message))
    }

    pub(super) fn section(&self) -> Result<Section<'f>, ConfigError> {
        let (at, source) = (self.source.span(), self.source.get_ref());
        match source.as_table() {
            Some(table) => Ok(Section::new(self.file, &self.key, at, table)),
            None => Err(self.error(format!("must be a table; write [{}]", self.key))),
        }
    }

    pub(super) fn sections(&self) -> Result<Vec<Section<'f>>, ConfigError> {
        let name = self.name;
        let wrong = |at| {
            let message = format!("must be a list of tables; begin each with [[{name}]]");
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

    /// Creates an error about a value. `write` describes the allowed values.
    pub(super) fn wrong(&self, write: &str) -> ConfigError {
        let written = setting::shown(&self.value);
        self.error(format!("{written} is not allowed; write {write}"))
    }

    pub(super) fn error(&self, message: String) -> ConfigError {
        self.file.wrong(self.source.span(), &self.key, message)
    }

    /// Converts an error from `toml`. If the error has no position, uses the position of the value.
    pub(super) fn refuse(&self, wrong: &toml::de::Error) -> ConfigError {
        let at = wrong.span().unwrap_or_else(|| self.source.span());
        self.file.wrong(at, &self.key, wrong.message().to_owned())
    }

    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.value.clone().try_into().map_err(|wrong| self.refuse(&wrong))
    }

    pub(super) fn change(&self) -> Table {
        Table::from_iter([(self.name.to_owned(), self.value.clone())])
    }

    /// Reads a list that must not be empty.
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

/// Applies settings in file order, so that the first mistake in the file is reported.
pub(super) fn settings<T: DeserializeOwned + Serialize>(
    settings: &mut T,
    names: &[&str],
    section: &Section<'_>,
    origins: &mut BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    for entry in &section.entries {
        entry.allow(names)?;
        *settings =
            setting::changed(settings, entry.change()).map_err(|error| entry.refuse(&error))?;
        origins.insert(entry.key.clone(), entry.origin());
    }
    Ok(())
}

/// Returns the value without its span. An out-of-range number becomes infinity.
fn value(source: &Spanned<DeValue<'_>>) -> Value {
    Value::deserialize(source.clone().into_deserializer()).unwrap_or(Value::Float(f64::INFINITY))
}

pub(super) fn setting_names(rule: &Rule) -> Vec<&'static str> {
    rule.made_of.setting_names().collect()
}

/// Returns the names of all kinds, which are also the names of the built-in rules.
pub(super) fn kind_names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.kind.name()).collect()
}

pub(super) fn rule_names(rules: &RuleSet) -> Vec<&str> {
    rules.rules().iter().map(|rule| &*rule.name).collect()
}
