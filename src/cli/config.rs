//! `gpumem config`: show, find or prove the configuration.

use std::env;
use std::path::PathBuf;

use super::args::{Config as Args, ConfigAction, Global};
use super::exit::Exit;
use super::print;
use crate::config::{self, Config};

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
            config::load_file(file)?;
            print(&format!("{}: ok\n", file.display()))?;
        }
        ConfigAction::Check { file: None } => {
            load(global)?;
            for path in paths(global).iter().filter(|path| path.exists()) {
                print(&format!("{}: ok\n", path.display()))?;
            }
        }
    }
    Ok(Exit::Clean)
}

/// The configuration in force.
pub(super) fn load(global: &Global) -> Result<Config, config::Error> {
    config::load(&paths(global), global.config.is_some())
}

fn paths(global: &Global) -> Vec<PathBuf> {
    let (xdg, home) = (env::var_os("XDG_CONFIG_HOME"), env::var_os("HOME"));
    config::paths(global.config.as_deref(), xdg.as_deref(), home.as_deref())
}
