//! `gpumem rules`: describes the rules and their settings.

use super::args::{Global, RulesArgs as Args};
use super::exit::Exit;
use super::{UsageError, config, print};
use crate::rules::RuleSet;
use crate::rules::rule::Rule;
use crate::units::number_of;

pub(super) fn run(args: &Args, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let chosen = choose(&config.rules, args.name.as_deref())?;
    let texts: Vec<String> = chosen.into_iter().map(text).collect();
    print(&texts.join("\n")).map(|()| Exit::Clean)
}

/// Returns the rule or the rules of the kind with this name. Returns all rules if `name` is `None`.
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

fn text(rule: &Rule) -> String {
    let mut text = rule.name.to_string();
    if !rule.is_own() {
        text.push_str(&format!(" ({}, for {})", rule.kind(), rule.scope));
    }
    text.push_str(&format!("\n  {}\n", rule.made_of.meaning));
    let defaults = Rule::new(rule.made_of).values();
    let settings = rule.values().into_iter().zip(rule.made_of.settings()).zip(defaults);
    for (((name, value), (_, meaning)), (_, default)) in settings {
        let beside = match value == default {
            true => String::new(),
            false => format!(" (default {default})"),
        };
        text.push_str(&format!("\n  {name} = {value}{beside}\n      {meaning}\n"));
    }
    if !rule.overrides.is_empty() {
        let overrides = number_of(rule.overrides.len(), "override");
        text.push_str(&format!("\n  {overrides} for some processes; see `gpumem config show`\n"));
    }
    text
}
