//! `gpumem config`: shows or checks the configuration. [`backtest`] implements `gpumem config test`.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::args::{ConfigAction, ConfigArgs as Args, Global};
use super::exit::Exit;
use super::{backtest, print};
use crate::config::{self, Config};
use crate::host::{NotOurs, prove_ours};
use crate::model::Time;
use crate::report::escape::escape;

pub(super) fn run(args: &Args, global: &Global) -> anyhow::Result<Exit> {
    match &args.action {
        ConfigAction::Show => print(&load(global)?.to_toml())?,
        ConfigAction::Check { file: Some(file) } => {
            let config = load_trusted(std::slice::from_ref(file), true)?;
            prove_notify(&config)?;
            print(&valid_text(std::slice::from_ref(file), &config, now()))?;
        }
        ConfigAction::Check { file: None } => {
            let config = load_to_act(global)?;
            let mut files = paths(global);
            files.retain(|path| path.exists());
            print(&valid_text(&files, &config, now()))?;
        }
        ConfigAction::Test { json, recorded } => backtest::run(*json, recorded, global)?,
    }
    Ok(Exit::Clean)
}

/// Lists the files of a valid configuration, remarks about its rules, and expired exemptions.
fn valid_text(files: &[PathBuf], config: &Config, now: Time) -> String {
    let mut text = String::new();
    for file in files {
        text.push_str(&format!("{}: ok\n", escape(&file.display().to_string())));
    }
    for rule in config.rules.rules() {
        for remark in rule.remarks() {
            text.push_str(&format!("  rule {}: {}\n", rule.name, escape(&remark)));
        }
    }
    for keep in config.rules.keeps().iter().filter(|keep| keep.is_expired(now)) {
        let (scope, reason) = (&keep.scope, escape(&keep.reason));
        text.push_str(&format!("  keep {scope}: expired, without effect: {reason}\n"));
    }
    text
}

/// Returns the current time. The rules use the times of snapshots instead.
pub(super) fn now() -> Time {
    Time::from_unix_milliseconds(jiff::Timestamp::now().as_millisecond())
}

/// Loads the configuration. Fails if a file is invalid or if a less privileged user can change it. Skipping such a file
/// would silently drop its exemptions.
pub(super) fn load(global: &Global) -> Result<Config, config::ConfigError> {
    load_trusted(&paths(global), global.config.is_some())
}

/// Loads the configuration for a command that runs the notify command. Also fails if other users can change the notify
/// command.
pub(super) fn load_to_act(global: &Global) -> Result<Config, config::ConfigError> {
    let config = load(global)?;
    prove_notify(&config)?;
    Ok(config)
}

fn load_trusted(paths: &[PathBuf], required: bool) -> Result<Config, config::ConfigError> {
    // The first check prevents reading an untrusted file. The second check covers files that were created in the
    // meantime.
    check_ours(paths)?;
    let config = config::load(paths, required)?;
    check_ours(paths)?;
    Ok(config)
}

fn check_ours(paths: &[PathBuf]) -> Result<(), config::ConfigError> {
    // Trust /dev/null: every user can write to the device, but it is always empty.
    let exists =
        |path: &&PathBuf| **path != Path::new("/dev/null") && path.symlink_metadata().is_ok();
    for path in paths.iter().filter(exists) {
        prove_ours(path).map_err(|why| not_ours(path, &why))?;
    }
    Ok(())
}

fn not_ours(path: &Path, why: &NotOurs) -> config::ConfigError {
    // sudo can preserve HOME, and root then reads the files of another user.
    let is_of_home = ["XDG_CONFIG_HOME", "HOME"]
        .into_iter()
        .filter_map(env::var_os)
        .any(|home| !home.is_empty() && home != "/" && path.starts_with(home));
    let sudo = match is_of_home {
        true => "; or do not use it: sudo -H, or --config with a file owned by root",
        false => "",
    };
    config::ConfigError::NotOurs { path: path.to_owned(), why: format!("{why}{sudo}") }
}

fn prove_notify(config: &Config) -> Result<(), config::ConfigError> {
    prove_command(&config.reap.notify).map_err(|(path, why)| config::ConfigError::CommandNotOurs {
        origin: config.origin("reap.notify").unwrap_or("here").to_owned(),
        path,
        why: why.to_string(),
    })
}

/// Checks that other users cannot change the program of a command or a file in its arguments, because the file may be a
/// script.
pub(in crate::cli) fn prove_command(words: &[Arc<str>]) -> Result<(), (PathBuf, NotOurs)> {
    let paths = words.iter().map(|word| Path::new(&**word)).enumerate();
    for (at, path) in paths.filter(|(_, path)| path.is_absolute()) {
        if at == 0 || path.is_file() {
            prove_ours(path).map_err(|why| (path.to_owned(), why))?;
        }
    }
    Ok(())
}

/// Returns the configuration files. A later file overrides the earlier files.
pub(super) fn paths(global: &Global) -> Vec<PathBuf> {
    let (xdg, home) = (env::var_os("XDG_CONFIG_HOME"), env::var_os("HOME"));
    config::paths(global.config.as_deref(), xdg.as_deref(), home.as_deref())
}
