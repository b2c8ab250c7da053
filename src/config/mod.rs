//! TOML and defaults to one checked value.
//!
//! Layers, each setting by setting over the one before: the defaults, `/etc/gpumem/config.toml`, the
//! user's `config.toml`; or the defaults and the one file that was named. `[[override]]`s of all layers
//! are applied in their order, every one that fits, so that the later wins. A `[[rule]]` starts from what
//! is in force for its kind where it is read: the defaults, the layers before, and its own file. A
//! `[[keep]]` of any layer exempts, and so does a program of `[reap]`'s `never`. An error names file, line and key and what is allowed. What the rules'
//! settings are is in [`crate::rules`], what is done about findings unattended in [`reap`];
//! reading is in `read`, `entry` and `section`, writing in `write`.

mod entry;
mod read;
pub mod reap;
mod section;
mod write;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

pub use reap::ReapConfig;

use serde::{Deserialize, Deserializer, Serialize};

use crate::rules::{RuleSet, setting};
use crate::units::Span;

/// The administrator's configuration.
const SYSTEM: &str = "/etc/gpumem/config.toml";
/// The user's, below the folder of configurations.
const USER: &str = "gpumem/config.toml";
/// A configuration is a page or two; what is larger is none.
const MOST_BYTES: u64 = 1 << 20;

/// Sampling faster than this is a load, and slower the history takes every interval for a gap.
const INTERVAL_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=600.0;

/// What is in force.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// How it is observed.
    pub sample: SampleConfig,
    /// How it is judged.
    pub rules: RuleSet,
    /// What is done about it unattended.
    pub reap: ReapConfig,
    /// Where each value that is not a default comes from, by its dotted key.
    origins: BTreeMap<String, String>,
}

/// Two configurations are the same when they have the same effect, wherever their values come from.
impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.sample == other.sample && self.rules == other.rules && self.reap == other.reap
    }
}

/// How it is observed.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
pub struct SampleConfig {
    /// Time between two samples.
    #[serde(deserialize_with = "interval")]
    pub interval: Span,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { interval: Span::from_seconds(1.0) }
    }
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
    let example = "a duration such as \"1s\" or \"500ms\", from 100ms to 10m";
    let is_allowed = |span: &Span| INTERVAL_SECONDS.contains(&span.seconds());
    setting::parsed(from, example, |written| setting::span(written).filter(is_allowed))
}

/// A configuration that cannot be used. Lines and columns count from 1, keys are dotted: `rules.idle.duration`.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there or may not be read.
    #[error("cannot read the configuration {}; check its path and permissions", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// It is a directory.
    #[error("the configuration {} is a directory; name a file in it", path.display())]
    Directory { path: PathBuf },
    /// It is larger than any configuration.
    #[error("the configuration {} is larger than 1 MiB; is it the right file?", path.display())]
    TooLarge { path: PathBuf },
    /// It is not text.
    #[error("{}:{line}: not UTF-8 text; save the file as UTF-8", path.display())]
    NotText { path: PathBuf, line: usize },
    /// It is not TOML.
    #[error("{}:{line}:{column}: not TOML: {message}", path.display())]
    Syntax { path: PathBuf, line: usize, column: usize, message: String },
    /// Others may change it, and so decide what is done with more rights than theirs.
    #[error("the configuration {} is refused: {why}", path.display())]
    NotOurs { path: PathBuf, why: String },
    /// Others may change the command that is run with more rights than theirs.
    #[error("{origin}: reap.notify: {} is refused: {why}", path.display())]
    CommandNotOurs { origin: String, path: PathBuf, why: String },
    /// A key or a value that is not allowed.
    #[error("{}:{line}: {key}: {message}", path.display())]
    Wrong { path: PathBuf, line: usize, key: String, message: String },
}

/// Where configuration is looked for, the later over the earlier: the system's file and the user's, or
/// only the `chosen` one.
///
/// `xdg_config_home` and `home` are the environment's `XDG_CONFIG_HOME` and `HOME`; a path in them that
/// is not absolute is ignored.
pub fn paths(
    chosen: Option<&Path>,
    xdg_config_home: Option<&OsStr>,
    home: Option<&OsStr>,
) -> Vec<PathBuf> {
    if let Some(chosen) = chosen {
        // /dev/null means no configuration. It is always empty, so its mode does not matter.
        let is_null = chosen == Path::new("/dev/null");
        return if is_null { Vec::new() } else { vec![chosen.to_owned()] };
    }
    let absolute = |path: Option<&OsStr>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let folder =
        absolute(xdg_config_home).or_else(|| absolute(home).map(|home| home.join(".config")));
    let user = folder.map(|folder| folder.join(USER));
    [PathBuf::from(SYSTEM)].into_iter().chain(user).collect()
}

/// Reads the files in their order over the defaults. One that does not exist is passed over, unless it
/// is `required`.
///
/// # Errors
///
/// A file that cannot be read, is no TOML, or holds what is not allowed.
pub fn load(paths: &[PathBuf], required: bool) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    for path in paths {
        match text(path) {
            Ok(text) => read::layer(&mut config, &text, path)?,
            Err(ConfigError::Unreadable { source, .. }) if !required && is_absent(&source) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(config)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn text(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(ConfigError::Directory { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        ConfigError::NotText {
            path: path.to_owned(),
            line: 1 + valid.iter().filter(|byte| **byte == b'\n').count(),
        }
    })
}

impl Config {
    /// Whether a file says what a key is, such as `sample.interval`; else it has its default.
    pub fn sets(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// Where a file says what a key is; `None` where it has its default.
    pub fn origin(&self, key: &str) -> Option<&str> {
        self.origins.get(key).map(String::as_str)
    }

    /// The configuration in force as TOML that reads back as the same value; a comment on each line
    /// says where its value comes from.
    pub fn to_toml(&self) -> String {
        write::document(self)
    }
}

#[cfg(test)]
mod tests;
