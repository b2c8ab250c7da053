//! `gpumem rules`: describes the rules and their settings.

use serde::Serialize;
use toml::Value;

use super::args::{Global, RulesArgs as Args};
use super::exit::Exit;
use super::{UsageError, config, print};
use crate::model::Kind;
use crate::model::json;
use crate::rules::RuleSet;
use crate::rules::rule::Rule;

const SCHEMA: &str = "gpumem.rules/1";

/// The document that `--json` prints.
#[derive(Serialize)]
struct RulesDocument {
    schema: &'static str,
    rules: Vec<ListedRule>,
}

#[derive(Serialize)]
struct ListedRule {
    name: String,
    kind: Kind,
    meaning: &'static str,
    /// The processes to which the rule applies, or `null` for all processes.
    scope: Option<String>,
    settings: Vec<ListedSetting>,
    /// Number of overrides in the configuration.
    overrides: usize,
}

#[derive(Serialize)]
struct ListedSetting {
    name: &'static str,
    meaning: &'static str,
    value: Value,
    default: Value,
}

pub(super) fn run(args: &Args, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let chosen = choose(&config.rules, args.name.as_deref())?;
    if args.json {
        let document =
            RulesDocument { schema: SCHEMA, rules: chosen.into_iter().map(listed).collect() };
        print(&json::document(&document)?)?;
    } else {
        print(&text(&chosen))?;
    }
    Ok(Exit::Clean)
}

/// Returns the rule named `name`, or all rules of the kind named `name`. Returns all rules if `name` is `None`.
fn choose<'r>(rules: &'r RuleSet, name: Option<&str>) -> Result<Vec<&'r Rule>, UsageError> {
    let all = rules.rules().iter();
    let Some(name) = name else {
        return Ok(all.collect());
    };
    let is_chosen = |rule: &&Rule| *rule.name == *name || rule.kind().name() == name;
    let chosen: Vec<&Rule> = all.clone().filter(is_chosen).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = all.map(|rule| &*rule.name).collect();
        return Err(UsageError(format!(
            "there is no rule {name:?}; the rules are: {}",
            names.join(", ")
        )));
    }
    Ok(chosen)
}

fn text(rules: &[&Rule]) -> String {
    let mut text = String::new();
    for (index, rule) in rules.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        text.push_str(&rule.name);
        if !rule.is_own() {
            text.push_str(&format!(" ({}, for {})", rule.kind(), rule.scope));
        }
        text.push_str(&format!("\n  {}\n", rule.made_of.meaning));
        for setting in settings(rule) {
            let (name, value, default) = (setting.name, setting.value, setting.default);
            let beside = match value == default {
                true => String::new(),
                false => format!(" (default {default})"),
            };
            let meaning = setting.meaning;
            text.push_str(&format!("\n  {name} = {value}{beside}\n      {meaning}\n"));
        }
        match rule.overrides.len() {
            0 => {}
            1 => text.push_str("\n  1 override for some processes; see `gpumem config show`\n"),
            count => {
                text.push_str(&format!(
                    "\n  {count} overrides for some processes; see `gpumem config show`\n"
                ));
            }
        }
    }
    text
}

fn listed(rule: &Rule) -> ListedRule {
    ListedRule {
        name: rule.name.to_string(),
        kind: rule.kind(),
        meaning: rule.made_of.meaning,
        scope: (!rule.scope.is_empty()).then(|| rule.scope.to_string()),
        settings: settings(rule),
        overrides: rule.overrides.len(),
    }
}

fn settings(rule: &Rule) -> Vec<ListedSetting> {
    let defaults = Rule::new(rule.made_of).values().into_iter();
    let settings = rule.values().into_iter().zip(rule.made_of.settings());
    settings
        .zip(defaults)
        .map(|(((name, value), (_, meaning)), (_, default))| ListedSetting {
            name,
            meaning,
            value,
            default,
        })
        .collect()
}
