//! Reads `[[rule]]`, `[[override]]` and `[[keep]]`: the entries of which there may be many.

use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time as TimeOfDay};
use toml::de::{DeTable, DeValue};

use super::read::written;
use super::read::{
    File, SpannedEntry, SpannedKey, in_order, kind_names, near, rule_names, settings_of_kind,
};
use super::scope::{KEYS, ScopeField, ScopeKeys};
use super::{Config, ConfigError, reap};
use crate::model::finding::KindSubject;
use crate::model::{Kind, Time};
use crate::rules::exemption::Exemption;
use crate::rules::rule::{Rule, SettingValue};
use crate::rules::scope::Scope;
use crate::rules::setting::TomlValue;

/// What names a `[[rule]]`.
const RULE: &[&str] = &["name", "kind", reap::ACTION];
/// What a `[[keep]]` may hold beside its scope.
const KEEP: &[&str] = &["reason", "until", "kinds", "rules"];
/// A reason is a sentence.
const LONGEST_REASON: usize = 500;

/// Reads every entry of the list `name`.
pub(super) fn all(
    config: &mut Config,
    file: &File<'_>,
    name: &str,
    value: &SpannedEntry<'_>,
) -> Result<(), ConfigError> {
    let not_tables = |span| {
        let message = format!("is to be a list of tables; begin each with [[{name}]]");
        file.wrong(span, name, message)
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
        let one = match name {
            "rule" => add_rule,
            "override" => add_override,
            _ => add_keep,
        };
        one(config, file, entry.span(), table)?;
    }
    Ok(())
}

fn add_rule(
    config: &mut Config,
    file: &File<'_>,
    span: Range<usize>,
    table: &DeTable<'_>,
) -> Result<(), ConfigError> {
    let name = rule_name(config, file, &span, table)?;
    let (base, known) = kind_of(config, file, &span, table)?;
    let mut scope = ScopeKeys::default();
    let mut changes = Vec::new();
    for (key, value) in in_order(table) {
        if RULE.contains(&&**key.get_ref()) || scope.take(file, "rule", key, value)? {
            continue;
        }
        let others = [RULE, KEYS].concat();
        changes.push(file.setting("rule", &others, &known, key, value)?);
    }
    let scope = scope.finish(file, "rule", span.clone(), false)?;
    refuse_processes(base.kind(), &scope, file, &span, "rule")?;
    let mut rule = base.named(Arc::clone(&name), scope);
    // Who writes a rule wants it, even where the kind's own is switched off.
    rule.set("enabled", TomlValue::Flag(true));
    for (setting, value) in changes {
        rule.set(setting, value);
    }
    if let Some(message) = rule.contradiction() {
        return Err(file.wrong(span, "rule", message));
    }
    if let Some(value) = table.get(reap::ACTION) {
        let response = reap::action(file, "rule", rule.kind(), value)?;
        config.reap.set_response(Arc::clone(&name), response);
    }
    config.rules.add(rule);
    let origin = file.origin(span);
    config.origins.insert(format!("rule.{name}"), origin);
    Ok(())
}

fn rule_name(
    config: &Config,
    file: &File<'_>,
    span: &Range<usize>,
    table: &DeTable<'_>,
) -> Result<Arc<str>, ConfigError> {
    let Some(value) = table.get("name") else {
        let message = "has no name; add name = NAME, such as \"idle-notebooks\"";
        return Err(file.wrong(span.clone(), "rule", message.to_owned()));
    };
    let field = field(file, "rule.name", value);
    let name = field.name()?;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(is_plain) {
        return Err(field.wrong("a name of the letters a-z, digits and \"-\""));
    }
    if Kind::ALL.iter().any(|kind| kind.name() == &*name) {
        let message = format!(
            "{name:?} is a kind, whose own rule is set under [rules.{name}]; write another name"
        );
        return Err(field.error_at(message));
    }
    if let Some(first) = config.origins.get(&format!("rule.{name}")) {
        let message = format!("there is a rule {name:?} already, at {first}; write another name");
        return Err(field.error_at(message));
    }
    Ok(name)
}

/// The kind's own rule, from which a rule starts, and its settings.
fn kind_of(
    config: &Config,
    file: &File<'_>,
    span: &Range<usize>,
    table: &DeTable<'_>,
) -> Result<(Box<dyn Rule>, Vec<SettingValue>), ConfigError> {
    let kinds = || kind_names(&config.rules).collect::<Vec<_>>().join(", ");
    let Some(value) = table.get("kind") else {
        let message = format!("has no kind; add kind = KIND, one of: {}", kinds());
        return Err(file.wrong(span.clone(), "rule", message));
    };
    let kind = value.get_ref().as_str().unwrap_or_default();
    let rules = config.rules.rules().iter();
    let base = rules.clone().find(|rule| &**rule.name() == kind);
    match (base, settings_of_kind(&config.rules, kind)) {
        (Some(base), Some(known)) => Ok((base.clone(), known)),
        _ => {
            let hint = near(kind, kind_names(&config.rules));
            let written = written(value.get_ref());
            let message = format!("{written} is no kind{hint}; the kinds are: {}", kinds());
            Err(file.wrong(value.span(), "rule.kind", message))
        }
    }
}

fn add_override(
    config: &mut Config,
    file: &File<'_>,
    span: Range<usize>,
    table: &DeTable<'_>,
) -> Result<(), ConfigError> {
    let names = || rule_names(&config.rules).collect::<Vec<_>>().join(", ");
    let Some(named) = table.get("rule") else {
        let message = format!("names no rule; add rule = NAME, one of: {}", names());
        return Err(file.wrong(span, "override", message));
    };
    let name = rule_in(config, &field(file, "override.rule", named))?;
    let mut rules = config.rules.rules().iter();
    let Some(rule) = rules.find(|rule| **rule.name() == *name) else {
        return Ok(());
    };
    let (kind, known) = (rule.kind(), rule.settings());
    let mut scope = ScopeKeys::default();
    let mut changes: Vec<(&'static str, TomlValue)> = Vec::new();
    for (key, value) in in_order(table) {
        if key.get_ref() == "rule" || scope.take(file, "override", key, value)? {
            continue;
        }
        changes.push(file.setting("override", KEYS, &known, key, value)?);
    }
    let scope = scope.finish(file, "override", span.clone(), false)?;
    if scope.is_empty() {
        let message = format!(
            "is for nobody in particular; add one of {}, or write the settings {}",
            KEYS.join(", "),
            if kind.name() == &*name {
                format!("under [rules.{name}]")
            } else {
                format!("in the [[rule]] {name:?} itself")
            }
        );
        return Err(file.wrong(span, "override", message));
    }
    refuse_processes(kind, &scope, file, &span, "override")?;
    if changes.is_empty() {
        let settings: Vec<&str> = known.iter().map(|setting| setting.name).collect();
        let message = format!("changes nothing; add one of {}", settings.join(", "));
        return Err(file.wrong(span, "override", message));
    }
    if let Some(rule) = config.rules.rule_mut(&name) {
        let place = rule.overrides().len();
        rule.add_override(scope, changes);
        if let Some(message) = rule.contradiction() {
            return Err(file.wrong(span, "override", message));
        }
        config
            .origins
            .insert(format!("override.{name}.{place}"), file.origin(span));
    }
    Ok(())
}

fn add_keep(
    config: &mut Config,
    file: &File<'_>,
    span: Range<usize>,
    table: &DeTable<'_>,
) -> Result<(), ConfigError> {
    let (mut reason, mut until) = (None, None);
    let (mut kinds, mut rules) = (Vec::new(), Vec::new());
    let mut scope = ScopeKeys::default();
    for (key, value) in in_order(table) {
        let field = field(file, &format!("keep.{}", key.get_ref()), value);
        match &**key.get_ref() {
            "reason" => reason = Some(reason_in(&field)?),
            "until" => until = Some(value),
            "kinds" => {
                let example = "a list of kinds such as [\"idle\"]";
                kinds = field.list(example, |field| kind_in(config, field))?;
            }
            "rules" => {
                let example = "a list of rules such as [\"idle\"]";
                rules = field.list(example, |field| rule_in(config, field))?;
            }
            _ if scope.take(file, "keep", key, value)? => {}
            _ => return Err(unknown_in_keep(file, key)),
        }
    }
    let until = match until {
        Some(value) => Some(until_in(&field(file, "keep.until", value), &scope)?),
        None => None,
    };
    let scope = scope.finish(file, "keep", span.clone(), until.is_some())?;
    let Some(reason) = reason else {
        let message = "gives no reason; add reason = \"why it is exempt\"";
        return Err(file.wrong(span, "keep", message.to_owned()));
    };
    if scope.is_empty() {
        let message = format!(
            "is for nobody in particular; add one of {}, or switch rules off with enabled = false",
            KEYS.join(", ")
        );
        return Err(file.wrong(span, "keep", message));
    }
    if let ([kind, ..], []) = (kinds.as_slice(), rules.as_slice())
        && kinds.iter().all(|kind| kind.about() == KindSubject::Gpu)
    {
        refuse_processes(*kind, &scope, file, &span, "keep")?;
    }
    let place = config.rules.keeps().len();
    config.rules.add_keep(Exemption {
        scope,
        reason,
        until,
        kinds,
        rules,
    });
    let origin = file.origin(span);
    config.origins.insert(format!("keep.{place}"), origin);
    Ok(())
}

fn unknown_in_keep(file: &File<'_>, key: &SpannedKey<'_>) -> ConfigError {
    let known = KEYS.iter().chain(KEEP).copied();
    file.unknown(key, "keep.", known)
}

fn reason_in(field: &ScopeField<'_, '_>) -> Result<Arc<str>, ConfigError> {
    let reason = field.name()?;
    let is_blank = reason.trim().is_empty();
    if is_blank || reason.len() > LONGEST_REASON {
        return Err(field.wrong("why it is exempt, in a sentence"));
    }
    Ok(reason)
}

/// When an exemption ends: an instant, or what the clock in its time zone shows. With a date alone it
/// lasts to the end of that day, because an exemption protects.
fn until_in(field: &ScopeField<'_, '_>, scope: &ScopeKeys) -> Result<Time, ConfigError> {
    let wrong = || field.wrong("a date such as 2026-12-31 or 2026-12-31T18:00:00Z");
    let text = match field.value.get_ref() {
        DeValue::Datetime(date) => date.to_string(),
        DeValue::String(text) => text.to_string(),
        _ => return Err(wrong()),
    };
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(Time::from_unix_milliseconds(instant.as_millisecond()));
    }
    let has_time = text.contains(['T', 't', ' ']);
    let shown = if has_time {
        text.parse::<DateTime>().ok()
    } else {
        let day = text.parse::<Date>().and_then(Date::tomorrow);
        day.ok().map(|date| date.to_datetime(TimeOfDay::midnight()))
    };
    let zone = scope.zone(field.file, field.value.span(), &field.key)?;
    shown
        .and_then(|shown| zone.instant(shown))
        .ok_or_else(wrong)
}

fn kind_in(config: &Config, field: &ScopeField<'_, '_>) -> Result<Kind, ConfigError> {
    let name = field.name()?;
    let rules = config.rules.rules().iter();
    let mut kinds = rules.map(|rule| rule.kind());
    kinds.find(|kind| kind.name() == &*name).ok_or_else(|| {
        let names: Vec<&str> = kind_names(&config.rules).collect();
        let hint = near(&name, names.iter().copied());
        field.error_at(format!(
            "{name:?} is no kind{hint}; the kinds are: {}",
            names.join(", ")
        ))
    })
}

fn rule_in(config: &Config, field: &ScopeField<'_, '_>) -> Result<Arc<str>, ConfigError> {
    let text = field.value.get_ref().as_str().unwrap_or_default();
    let rules = config.rules.rules().iter();
    let mut names = rules.map(|rule| rule.name());
    names.find(|name| ***name == *text).cloned().ok_or_else(|| {
        let names: Vec<&str> = rule_names(&config.rules).collect();
        let hint = near(text, names.iter().copied());
        field.error_at(format!(
            "{} is no rule{hint}; the rules are: {}",
            written(field.value.get_ref()),
            names.join(", ")
        ))
    })
}

/// A rule about GPUs accuses no process, and so none can be asked who it is.
fn refuse_processes(
    kind: Kind,
    scope: &Scope,
    file: &File<'_>,
    span: &Range<usize>,
    prefix: &str,
) -> Result<(), ConfigError> {
    let is_about_gpus = kind.about() == KindSubject::Gpu;
    match scope.asks_of_processes().filter(|_| is_about_gpus) {
        None => Ok(()),
        Some(key) => {
            let message = format!(
                "{kind} is about a GPU and not about a process, so that nobody fits; write gpu, time or \
                 days"
            );
            Err(file.wrong(span.clone(), &format!("{prefix}.{key}"), message))
        }
    }
}

fn field<'f, 'v>(file: &'f File<'f>, key: &str, value: &'f SpannedEntry<'v>) -> ScopeField<'f, 'v> {
    ScopeField {
        file,
        key: key.to_owned(),
        value,
    }
}
