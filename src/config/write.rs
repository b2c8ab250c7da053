//! Writes the configuration in force as TOML, with where each value comes from.

use std::fmt::{self, Write as _};

use super::Config;
use crate::rules::rule::{Override, Rule};
use crate::rules::scope::GpuName;
use crate::rules::setting::Value;

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
    let interval = Value::Span(config.sample.interval);
    let origin = origin(config, "sample.interval");
    writeln!(out, "interval = {interval} # {origin}")?;
    for rule in config.rules.rules() {
        write_rule(config, &**rule, out)?;
    }
    for rule in config.rules.rules() {
        for (place, change) in rule.overrides().iter().enumerate() {
            write_override(config, &**rule, place, change, out)?;
        }
    }
    Ok(())
}

fn write_rule(config: &Config, rule: &dyn Rule, out: &mut String) -> fmt::Result {
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
    for (key, value) in [
        ("user", &scope.user),
        ("command", &scope.command),
        ("framework", &scope.framework),
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
    for (setting, value) in changes {
        writeln!(out, "{setting} = {value}")?;
    }
    Ok(())
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
