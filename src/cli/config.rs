//! `gpumem config`: show, find or prove the configuration. Trying it is in [`trial`](super::trial).

use std::env;
use std::path::PathBuf;

use super::args::{Config as Args, ConfigAction, Global};
use super::exit::Exit;
use super::{print, trial};
use crate::config::reap::Response;
use crate::config::{self, Config};
use crate::model::Time;
use crate::report::escape::escape;
use crate::rules::keep::Keep;
use crate::rules::rule::Rule;
use crate::rules::setting::Value;

pub(super) fn run(args: &Args, global: &Global) -> anyhow::Result<Exit> {
    match &args.action {
        ConfigAction::Show => print(&load(global)?.to_toml())?,
        ConfigAction::Path => {
            let mut text = String::new();
            for path in paths(global) {
                let there = if path.exists() { "" } else { " (not there)" };
                text.push_str(&format!("{}{there}\n", path.display()));
            }
            print(&text)?;
        }
        ConfigAction::Check { file: Some(file) } => {
            let config = config::load_file(file)?;
            print(&proved(std::slice::from_ref(file), &config, now()))?;
        }
        ConfigAction::Check { file: None } => {
            let config = load(global)?;
            let mut files = paths(global);
            files.retain(|path| path.exists());
            print(&proved(&files, &config, now()))?;
        }
        ConfigAction::Test { json, recorded } => trial::run(*json, recorded, global)?,
    }
    Ok(Exit::Clean)
}

/// The files that are in order, and a line for each rule and exemption that they come to.
fn proved(files: &[PathBuf], config: &Config, now: Time) -> String {
    let mut text = String::new();
    for file in files {
        text.push_str(&format!("{}: ok\n", escape(&file.display().to_string())));
    }
    for rule in config.rules.rules() {
        let response = config.reap.response(rule.name());
        text.push_str(&format!("  rule {}\n", rule_line(&**rule, response)));
    }
    for keep in config.rules.keeps() {
        text.push_str(&format!("  keep {}\n", keep_line(keep, now)));
    }
    text
}

fn rule_line(rule: &dyn Rule, response: Response) -> String {
    let mut words = Vec::new();
    if **rule.name() != *rule.kind().name() {
        words.push(rule.kind().to_string());
        words.push(format!("for {}", rule.scope()));
    }
    let severity = rule
        .settings()
        .into_iter()
        .find_map(|setting| match setting.value {
            Value::Severity(severity) => Some(severity.to_string()),
            _ => None,
        });
    words.extend(severity);
    match rule.overrides().len() {
        0 => {}
        1 => words.push("1 override".to_owned()),
        count => words.push(format!("{count} overrides")),
    }
    if response == Response::Reap {
        words.push("reaped by reap --watch".to_owned());
    }
    if !rule.is_run() {
        words.push("switched off".to_owned());
    }
    format!("{}: {}", rule.name(), words.join("; "))
}

fn keep_line(keep: &Keep, now: Time) -> String {
    let mut words = vec![keep.scope.to_string()];
    let kinds = keep.kinds.iter().map(ToString::to_string);
    let names: Vec<String> = kinds
        .chain(keep.rules.iter().map(ToString::to_string))
        .collect();
    if !names.is_empty() {
        words.push(format!("only from {}", names.join(", ")));
    }
    match keep.until {
        Some(until) if keep.is_expired(now) => {
            words.push(format!("expired at {until}, without effect"));
        }
        Some(until) => words.push(format!("until {until}")),
        None => {}
    }
    words.push(escape(&keep.reason).to_string());
    words.join("; ")
}

/// To say which exemptions have expired; judging goes by the snapshots' time.
pub(super) fn now() -> Time {
    Time::from_unix_milliseconds(jiff::Timestamp::now().as_millisecond())
}

/// The configuration in force.
pub(super) fn load(global: &Global) -> Result<Config, config::Error> {
    config::load(&paths(global), global.config.is_some())
}

/// Where configuration is looked for, the later over the earlier.
pub(super) fn paths(global: &Global) -> Vec<PathBuf> {
    let (xdg, home) = (env::var_os("XDG_CONFIG_HOME"), env::var_os("HOME"));
    config::paths(global.config.as_deref(), xdg.as_deref(), home.as_deref())
}
