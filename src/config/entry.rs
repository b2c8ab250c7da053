//! The tables that can occur several times: `[[rule]]`, `[[override]]` and `[[keep]]`.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time as TimeOfDay};
use jiff::tz::TimeZone;
use toml::{Table, Value};

use super::section::{Entry, Section, kind_names, rule_names, setting_names};
use super::{Config, ConfigError, reap};
use crate::model::finding::KindSubject;
use crate::model::{Kind, Time};
use crate::rules::exemption::Exemption;
use crate::rules::rule::{Override, Rule, Settings};
use crate::rules::scope::Scope;
use crate::rules::setting::{changed, near, shown, text};

/// Keys of a `[[rule]]`, except `where` and the settings of the rule's kind.
const RULE: &[&str] = &["name", "kind", reap::ACTION];
const WHERE: &[&str] = &["where"];
/// Keys of a `[[keep]]`, except `where`.
const KEEP: &[&str] = &["reason", "until", "kinds", "rules"];
const LONGEST_REASON: usize = 500;

pub(super) fn read_entries(config: &mut Config, list: &Entry<'_>) -> Result<(), ConfigError> {
    let read_entry = match list.name {
        "rule" => add_rule,
        "override" => add_override,
        _ => add_keep,
    };
    for section in list.sections()? {
        read_entry(config, &section)?;
    }
    Ok(())
}

fn add_rule(config: &mut Config, section: &Section<'_>) -> Result<(), ConfigError> {
    let name = rule_name(config, section)?;
    let base = kind_of(config, section)?;
    let names = setting_names(base);
    section.allow(&[RULE, WHERE, &names].concat())?;
    let scope = scope(section)?;
    refuse_processes(base.kind(), &scope, section)?;
    // A new rule is enabled even if the built-in rule of its kind is disabled.
    let settings = Settings { enabled: true, ..base.settings };
    let name_of_rule = Arc::clone(&name);
    let mut rule =
        Rule { name: name_of_rule, scope, settings, overrides: Vec::new(), made_of: base.made_of };
    let settings = section.entries.iter();
    for entry in settings.filter(|entry| names.contains(&entry.name)) {
        let set = rule.set(entry.name, &entry.value);
        set.map_err(|wrong| entry.refuse(&wrong))?;
    }
    if let Some(message) = rule.contradiction() {
        return Err(section.wrong(message));
    }
    if let Some(entry) = section.get(reap::ACTION) {
        let response = reap::action(entry, rule.kind())?;
        config.reap.set_response(Arc::clone(&name), response);
    }
    config.rules.add(rule);
    let origin = section.origin();
    config.origins.insert(format!("rule.{name}"), origin);
    Ok(())
}

fn rule_name(config: &Config, section: &Section<'_>) -> Result<Arc<str>, ConfigError> {
    let Some(entry) = section.get("name") else {
        return Err(section.wrong("has no name; add name = NAME, such as \"idle-notebooks\""));
    };
    let name = text(&entry.value).ok_or_else(|| entry.wrong("a name in quotes"))?;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(is_plain) {
        return Err(entry.wrong("a name that consists of a-z, 0-9 and \"-\""));
    }
    if Kind::ALL.iter().any(|kind| kind.name() == &*name) {
        return Err(entry.error(format!(
            "{name:?} is the name of a kind, which is configured in [rules.{name}]; choose another name"
        )));
    }
    match config.origins.get(&format!("rule.{name}")) {
        None => Ok(name),
        Some(first) => Err(entry.error(format!(
            "a rule named {name:?} already exists, at {first}; choose another name"
        ))),
    }
}

/// Returns the built-in rule of the section's kind. The section's rule starts with the settings of this built-in rule.
fn kind_of<'c>(config: &'c Config, section: &Section<'_>) -> Result<&'c Rule, ConfigError> {
    let kinds = kind_names();
    let Some(entry) = section.get("kind") else {
        let kinds = kinds.join(", ");
        return Err(section.wrong(format!("has no kind; add kind = KIND, one of: {kinds}")));
    };
    let kind = one_of(entry, &kinds, "kind")?;
    let mut rules = config.rules.rules().iter();
    rules.find(|rule| rule.name == kind).ok_or_else(|| section.wrong("has no kind"))
}

fn add_override(config: &mut Config, section: &Section<'_>) -> Result<(), ConfigError> {
    let Some(entry) = section.get("rule") else {
        let names = rule_names(&config.rules).join(", ");
        return Err(section.wrong(format!("names no rule; add rule = NAME, one of: {names}")));
    };
    let name = rule_in(config, entry)?;
    let Some(rule) = config.rules.rule_mut(&name) else {
        return Ok(());
    };
    let names = setting_names(rule);
    let allowed = [WHERE, &*names].concat();
    let mut entries = section.entries.iter();
    entries.try_for_each(|entry| match entry.name {
        "rule" => Ok(()),
        _ => entry.allow(&allowed),
    })?;
    let scope = scope(section)?;
    let kind = rule.kind();
    if scope.is_empty() {
        return Err(section.wrong(format!(
            "matches every process; add where = TERMS, or write the settings {}",
            if rule.is_own() {
                format!("under [rules.{name}]")
            } else {
                format!("in the [[rule]] {name:?} itself")
            }
        )));
    }
    refuse_processes(kind, &scope, section)?;
    let mut changes = Table::new();
    for entry in section.entries.iter().filter(|entry| names.contains(&entry.name)) {
        changed(&rule.settings, entry.change()).map_err(|wrong| entry.refuse(&wrong))?;
        changes.extend(entry.change());
    }
    if changes.is_empty() {
        let names = names.join(", ");
        return Err(section.wrong(format!("changes nothing; add one of {names}")));
    }
    let index = rule.overrides.len();
    rule.overrides.push(Override { scope, changes });
    if let Some(message) = rule.contradiction() {
        return Err(section.wrong(message));
    }
    let origin = section.origin();
    config.origins.insert(format!("override.{name}.{index}"), origin);
    Ok(())
}

fn add_keep(config: &mut Config, section: &Section<'_>) -> Result<(), ConfigError> {
    section.allow(&[WHERE, KEEP].concat())?;
    let reason = section.get("reason").map(reason_in).transpose()?;
    let kinds = section.get("kinds").map(|entry| {
        let example = "a list of kinds such as [\"idle\"]";
        entry.list(example, kind_in)
    });
    let rules = section.get("rules").map(|entry| {
        let example = "a list of rules such as [\"idle\"]";
        entry.list(example, |entry| rule_in(config, entry))
    });
    let kinds = kinds.transpose()?.unwrap_or_default();
    let rules = rules.transpose()?.unwrap_or_default();
    let until = section.get("until").map(until_in).transpose()?;
    let scope = scope(section)?;
    let Some(reason) = reason else {
        return Err(section.wrong("gives no reason; add reason = \"why it is exempt\""));
    };
    if scope.is_empty() {
        return Err(section.wrong(
            "matches every process; add where = TERMS, or disable rules with enabled = false",
        ));
    }
    if let ([kind, ..], []) = (kinds.as_slice(), rules.as_slice())
        && kinds.iter().all(|kind| kind.about() == KindSubject::Gpu)
    {
        refuse_processes(*kind, &scope, section)?;
    }
    let index = config.rules.keeps().len();
    config.rules.add_keep(Exemption { scope, reason, until, kinds, rules });
    let origin = section.origin();
    config.origins.insert(format!("keep.{index}"), origin);
    Ok(())
}

fn reason_in(entry: &Entry<'_>) -> Result<Arc<str>, ConfigError> {
    let reason = text(&entry.value).ok_or_else(|| entry.wrong("a sentence in quotes"))?;
    if reason.trim().is_empty() || reason.len() > LONGEST_REASON {
        return Err(entry.wrong("a sentence that explains the exemption"));
    }
    Ok(reason)
}

/// Reads the end of an exemption: an instant, or a date or time in this machine's time zone. An exemption that ends on
/// a date includes the whole day.
fn until_in(entry: &Entry<'_>) -> Result<Time, ConfigError> {
    let wrong = || entry.wrong("a date such as 2026-12-31 or 2026-12-31T18:00:00Z");
    let text = match &entry.value {
        Value::Datetime(date) => date.to_string(),
        Value::String(text) => text.clone(),
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
    let zone = TimeZone::try_system().map_err(|_| {
        entry.error("the time zone of this machine is unknown; add Z or an offset".to_owned())
    })?;
    let instant = shown.and_then(|shown| zone.to_timestamp(shown).ok()).ok_or_else(wrong)?;
    Ok(Time::from_unix_milliseconds(instant.as_millisecond()))
}

fn kind_in(entry: &Entry<'_>) -> Result<Kind, ConfigError> {
    one_of(entry, &kind_names(), "kind")?;
    entry.read()
}

fn rule_in(config: &Config, entry: &Entry<'_>) -> Result<Arc<str>, ConfigError> {
    one_of(entry, &rule_names(&config.rules), "rule")
}

/// Reads a name that must be in `names`. Error messages use `noun` for such a name.
fn one_of(entry: &Entry<'_>, names: &[&str], noun: &str) -> Result<Arc<str>, ConfigError> {
    let name = entry.value.as_str().unwrap_or_default();
    if names.contains(&name) {
        return Ok(name.into());
    }
    let (shown, hint) = (shown(&entry.value), near(name, names.iter().copied()));
    let names = names.join(", ");
    Err(entry.error(format!("{shown} is not a {noun}{hint}; the {noun}s are: {names}")))
}

fn scope(section: &Section<'_>) -> Result<Scope, ConfigError> {
    section.get("where").map_or_else(|| Ok(Scope::default()), Entry::read)
}

/// Returns an error if a rule about GPUs has a scope that selects processes.
fn refuse_processes(kind: Kind, scope: &Scope, section: &Section<'_>) -> Result<(), ConfigError> {
    if kind.about() != KindSubject::Gpu || !scope.is_of_processes() {
        return Ok(());
    }
    let message = format!("{kind} applies to GPUs, not to processes; use only gpu:");
    let key = format!("{}.where", section.key);
    Err(section.file.wrong(section.at.clone(), &key, message))
}
