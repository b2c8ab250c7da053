//! Formats the configuration as TOML, with the origin of each value.

use std::fmt::{self, Write as _};

use serde::Serialize;
use toml::{Table, Value};

use super::reap::{ACTION, SETTINGS};
use super::{Config, PARK, SAMPLE};
use crate::rules::exemption::Exemption;
use crate::rules::rule::{Override, Rule};
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
        write_named(config, rule, out)?;
    }
    for rule in kinds.iter().chain(&named) {
        for (index, change) in rule.overrides.iter().enumerate() {
            write_override(config, &rule.name, index, change, out)?;
        }
    }
    for (index, keep) in config.rules.keeps().iter().enumerate() {
        write_keep(config, index, keep, out)?;
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
        let response = config.reap.response(&rule.name);
        settings.push((ACTION, response.to_string().into()));
    }
    settings
}

fn write_values(values: &[(&'static str, Value)], out: &mut String) -> fmt::Result {
    let mut values = values.iter();
    values.try_for_each(|(key, value)| writeln!(out, "{key} = {value}"))
}

fn write_named(config: &Config, rule: &Rule, out: &mut String) -> fmt::Result {
    let name = &rule.name;
    let origin = origin(config, &format!("rule.{name}"));
    writeln!(out, "\n[[rule]] # {origin}\nname = {}", quoted(name))?;
    writeln!(out, "kind = {}", quoted(rule.kind().name()))?;
    write_scope(&rule.scope, out)?;
    write_values(&settings_and_action(config, rule), out)
}

fn write_override(
    config: &Config,
    rule: &str,
    index: usize,
    change: &Override,
    out: &mut String,
) -> fmt::Result {
    let origin = origin(config, &format!("override.{rule}.{index}"));
    writeln!(out, "\n[[override]] # {origin}\nrule = {}", quoted(rule))?;
    write_scope(&change.scope, out)?;
    out.write_str(&change.changes.to_string())
}

fn write_keep(config: &Config, index: usize, keep: &Exemption, out: &mut String) -> fmt::Result {
    let origin = origin(config, &format!("keep.{index}"));
    writeln!(out, "\n[[keep]] # {origin}\nreason = {}", quoted(&keep.reason))?;
    if let Some(until) = keep.until {
        writeln!(out, "until = {until}")?;
    }
    let kinds: Vec<&str> = keep.kinds.iter().map(|kind| kind.name()).collect();
    let rules: Vec<&str> = keep.rules.iter().map(|rule| &**rule).collect();
    write_list("kinds", kinds, out)?;
    write_list("rules", rules, out)?;
    write_scope(&keep.scope, out)
}

fn write_scope(scope: &Scope, out: &mut String) -> fmt::Result {
    match &scope.selector {
        Some(selector) => writeln!(out, "where = {}", quoted(&selector.to_string())),
        None => Ok(()),
    }
}

fn write_list(key: &'static str, names: Vec<&str>, out: &mut String) -> fmt::Result {
    let list = (!names.is_empty()).then(|| (key, names.into()));
    write_values(list.as_slice(), out)
}

/// Returns the origin of a value for a comment. A newline in a path would end the comment, so paths are escaped.
fn origin(config: &Config, key: &str) -> String {
    config
        .origins
        .get(key)
        .map_or_else(|| "default".to_owned(), |origin| origin.escape_debug().to_string())
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
