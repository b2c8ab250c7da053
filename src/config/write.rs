//! Writes the configuration in force as TOML, with where each value comes from.

use std::fmt::{self, Write as _};

use super::Config;
use super::reap::ACTION;
use crate::rules::exemption::Exemption;
use crate::rules::hours::DAYS;
use crate::rules::rule::{Override, Rule};
use crate::rules::scope::{GpuName, Scope};
use crate::rules::setting::TomlValue;

pub(super) fn document(config: &Config) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(config, &mut out);
    out
}

fn write_all(config: &Config, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "# what gpumem goes by, and where each value comes from\n"
    )?;
    writeln!(out, "[sample]")?;
    let interval = TomlValue::Span(config.sample.interval);
    let origin = origin(config, "sample.interval");
    writeln!(out, "interval = {interval} # {origin}")?;
    write_reap(config, out)?;
    let is_named = |rule: &dyn Rule| **rule.name() != *rule.kind().name();
    let (named, kinds): (Vec<_>, Vec<_>) = config
        .rules
        .rules()
        .iter()
        .partition(|rule| is_named(&***rule));
    for rule in &kinds {
        write_kind(config, &***rule, out)?;
    }
    for rule in &named {
        write_named(config, &***rule, out)?;
    }
    for rule in kinds.iter().chain(&named) {
        for (place, change) in rule.overrides().iter().enumerate() {
            write_override(config, &***rule, place, change, out)?;
        }
    }
    for (place, keep) in config.rules.keeps().iter().enumerate() {
        write_keep(config, place, keep, out)?;
    }
    Ok(())
}

fn write_reap(config: &Config, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "\n# what `gpumem reap --watch` does about findings\n[reap]"
    )?;
    let reap = &config.reap;
    let span = |span| TomlValue::Span(span).to_string();
    for (key, value) in [
        ("warn", span(reap.warn)),
        ("grace", span(reap.grace)),
        ("settle", span(reap.settle)),
        ("most", reap.most.to_string()),
        ("within", span(reap.within)),
        ("notify", list(&reap.notify)),
        ("warn_terminal", reap.warn_terminal.to_string()),
        ("never", list(&reap.never)),
    ] {
        let origin = origin(config, &format!("reap.{key}"));
        writeln!(out, "{key} = {value} # {origin}")?;
    }
    Ok(())
}

fn write_kind(config: &Config, rule: &dyn Rule, out: &mut String) -> fmt::Result {
    let name = rule.name();
    writeln!(out, "\n# {}\n[rules.{name}]", rule.meaning())?;
    for setting in rule.settings() {
        let key = format!("rules.{name}.{}", setting.name);
        writeln!(
            out,
            "{} = {} # {}",
            setting.name,
            setting.value,
            origin(config, &key)
        )?;
    }
    if rule.kind().may_be_reaped() {
        let origin = origin(config, &format!("rules.{name}.{ACTION}"));
        writeln!(
            out,
            "{ACTION} = \"{}\" # {origin}",
            config.reap.response(name)
        )?;
    }
    Ok(())
}

fn write_named(config: &Config, rule: &dyn Rule, out: &mut String) -> fmt::Result {
    let name = rule.name();
    let origin = origin(config, &format!("rule.{name}"));
    writeln!(out, "\n[[rule]] # {origin}\nname = {}", quoted(name))?;
    writeln!(out, "kind = {}", quoted(rule.kind().name()))?;
    write_scope(rule.scope(), out)?;
    for setting in rule.settings() {
        writeln!(out, "{} = {}", setting.name, setting.value)?;
    }
    if rule.kind().may_be_reaped() {
        writeln!(out, "{ACTION} = \"{}\"", config.reap.response(name))?;
    }
    Ok(())
}

fn write_override(
    config: &Config,
    rule: &dyn Rule,
    place: usize,
    (scope, changes): &Override,
    out: &mut String,
) -> fmt::Result {
    let name = rule.name();
    let origin = origin(config, &format!("override.{name}.{place}"));
    writeln!(out, "\n[[override]] # {origin}\nrule = {}", quoted(name))?;
    write_scope(scope, out)?;
    for (setting, value) in changes {
        writeln!(out, "{setting} = {value}")?;
    }
    Ok(())
}

fn write_keep(config: &Config, place: usize, keep: &Exemption, out: &mut String) -> fmt::Result {
    let origin = origin(config, &format!("keep.{place}"));
    writeln!(
        out,
        "\n[[keep]] # {origin}\nreason = {}",
        quoted(&keep.reason)
    )?;
    if let Some(until) = keep.until {
        writeln!(out, "until = {until}")?;
    }
    let kinds: Vec<&str> = keep.kinds.iter().map(|kind| kind.name()).collect();
    let rules: Vec<&str> = keep.rules.iter().map(|rule| &**rule).collect();
    write_list("kinds", &kinds, out)?;
    write_list("rules", &rules, out)?;
    write_scope(&keep.scope, out)
}

fn write_scope(scope: &Scope, out: &mut String) -> fmt::Result {
    for (key, value) in [
        ("user", &scope.user),
        ("command", &scope.command),
        ("framework", &scope.framework),
        ("container", &scope.container),
        ("notebook", &scope.notebook),
    ] {
        if let Some(value) = value {
            writeln!(out, "{key} = {}", quoted(value))?;
        }
    }
    match &scope.gpu {
        Some(GpuName::Index(index)) => writeln!(out, "gpu = {index}")?,
        Some(GpuName::Uuid(uuid)) => writeln!(out, "gpu = {}", quoted(uuid))?,
        None => {}
    }
    for (key, bytes) in [
        ("memory_above", scope.memory_above),
        ("memory_below", scope.memory_below),
    ] {
        if let Some(bytes) = bytes {
            writeln!(out, "{key} = {}", TomlValue::Bytes(bytes))?;
        }
    }
    let Some(hours) = &scope.hours else {
        return Ok(());
    };
    if let Some(stretch) = hours.stretch {
        writeln!(out, "time = \"{stretch}\"")?;
        write_list("days", &hours.day_names(), out)?;
    } else {
        // Without a stretch the days are what there is, all seven of them too.
        let named = DAYS.iter().zip(hours.days);
        let days: Vec<&str> = named.filter_map(|(day, is)| is.then_some(*day)).collect();
        write_list("days", &days, out)?;
    }
    match hours.zone.name() {
        Some(zone) => writeln!(out, "timezone = {}", quoted(zone)),
        None => Ok(()),
    }
}

fn write_list(key: &str, names: &[&str], out: &mut String) -> fmt::Result {
    if names.is_empty() {
        return Ok(());
    }
    writeln!(out, "{key} = {}", list(names))
}

fn list<N: AsRef<str>>(names: &[N]) -> String {
    let names: Vec<String> = names.iter().map(|name| quoted(name.as_ref())).collect();
    format!("[{}]", names.join(", "))
}

/// Where a value comes from; a path may hold what a comment may not.
fn origin(config: &Config, key: &str) -> String {
    config.origins.get(key).map_or_else(
        || "default".to_owned(),
        |origin| origin.escape_debug().to_string(),
    )
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
