//! Formats the configuration as TOML, with the origin of each value.

use std::fmt::{self, Write as _};

use serde::Serialize;
use toml::{Table, Value};

use super::reap::{ACTION, SETTINGS};
use super::{Config, PARK, SAMPLE};
use crate::rules::rule::Rule;
use crate::rules::scope::Scope;

pub(super) fn document(config: &Config) -> String {
    let mut out = String::new();
    let _ = write_all(config, &mut out);
    out
}

fn write_all(config: &Config, out: &mut String) -> fmt::Result {
    writeln!(out, "# the current configuration, with the origin of each value\n")?;
    write_settings(config, "sample", values(&config.sample, SAMPLE), out)?;
    writeln!(out, "\n# what `gpumem reap --watch` does about findings")?;
    write_settings(config, "reap", values(&config.reap, SETTINGS), out)?;
    writeln!(out, "\n# what `gpumem park` may use")?;
    write_settings(config, "park", values(&config.park, PARK), out)?;
    let (kinds, named): (Vec<&Rule>, Vec<&Rule>) =
        config.rules.rules().iter().partition(|rule| rule.is_own());
    for rule in &kinds {
        writeln!(out, "\n# {}", rule.made_of.meaning)?;
        let settings = settings_and_action(config, rule);
        write_settings(config, &format!("rules.{}", rule.name), settings, out)?;
    }
    for rule in &named {
        let kind = rule.kind().name();
        let mut values = vec![("name", Value::from(&*rule.name)), ("kind", Value::from(kind))];
        values.extend(scope(&rule.scope));
        values.extend(settings_and_action(config, rule));
        write_entry(config, "rule", &format!("rule.{}", rule.name), &values, out)?;
    }
    for rule in kinds.iter().chain(&named) {
        for (index, change) in rule.overrides.iter().enumerate() {
            let mut values = vec![("rule", Value::from(&*rule.name))];
            values.extend(scope(&change.scope));
            let changes = change.changes.iter();
            values.extend(changes.map(|(key, value)| (key.as_str(), value.clone())));
            let key = format!("override.{}.{index}", rule.name);
            write_entry(config, "override", &key, &values, out)?;
        }
    }
    for (index, keep) in config.rules.keeps().iter().enumerate() {
        let until = keep.until.map(|until| until.to_string());
        let kinds: Vec<&str> = keep.kinds.iter().map(|kind| kind.name()).collect();
        let rules: Vec<&str> = keep.rules.iter().map(|rule| &**rule).collect();
        let mut values = vec![("reason", Value::from(&*keep.reason))];
        values.extend(until.map(|until| ("until", Value::from(until))));
        values.extend((!kinds.is_empty()).then(|| ("kinds", Value::from(kinds))));
        values.extend((!rules.is_empty()).then(|| ("rules", Value::from(rules))));
        values.extend(scope(&keep.scope));
        write_entry(config, "keep", &format!("keep.{index}"), &values, out)?;
    }
    Ok(())
}

fn values<T: Serialize>(settings: &T, names: &[&'static str]) -> Vec<(&'static str, Value)> {
    let mut table = Table::try_from(settings).unwrap_or_default();
    names.iter().filter_map(|name| Some((*name, table.remove(*name)?))).collect()
}

fn write_settings(
    config: &Config,
    name: &str,
    settings: Vec<(&'static str, Value)>,
    out: &mut String,
) -> fmt::Result {
    writeln!(out, "[{name}]")?;
    for (key, value) in settings {
        let origin = origin(config, &format!("{name}.{key}"));
        writeln!(out, "{key} = {value} # {origin}")?;
    }
    Ok(())
}

fn settings_and_action(config: &Config, rule: &Rule) -> Vec<(&'static str, Value)> {
    let mut settings = rule.values();
    if rule.kind().may_be_reaped() || rule.kind().may_be_released() {
        let action = Value::try_from(config.reap.response(&rule.name)).ok();
        settings.extend(action.map(|action| (ACTION, action)));
    }
    settings
}

/// Writes an entry of a list of tables. `key` determines the entry's origin.
fn write_entry(
    config: &Config,
    name: &str,
    key: &str,
    values: &[(&str, Value)],
    out: &mut String,
) -> fmt::Result {
    writeln!(out, "\n[[{name}]] # {}", origin(config, key))?;
    values.iter().try_for_each(|(key, value)| writeln!(out, "{key} = {value}"))
}

fn scope(scope: &Scope) -> Option<(&'static str, Value)> {
    Some(("where", Value::from(scope.selector.as_ref()?.to_string())))
}

/// Returns the origin of a value for a comment. A newline in a path would end the comment, so paths are escaped.
fn origin(config: &Config, key: &str) -> String {
    config
        .origins
        .get(key)
        .map_or_else(|| "default".to_owned(), |origin| origin.escape_debug().to_string())
}
