//! Merges the defaults and the TOML configuration files into one valid configuration.
//!
//! `/etc/gpumem/config.toml` changes the defaults, and the user's `config.toml` changes the result. A file named on the
//! command line replaces both files. All matching `[[override]]`s apply in order, so the last one wins. A `[[rule]]`
//! starts with the settings that its own file and the earlier files give the built-in rule of its kind. `[[keep]]`s and
//! the programs in `never` accumulate.
//!
//! Errors name the file, line and key, and the allowed values. [`crate::rules`] defines the settings of rules, and
//! [`reap`] defines the settings of unattended actions.

mod entry;
pub mod reap;
mod section;
mod write;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::de::DeTable;

pub use reap::ReapConfig;
use section::{File as SourceFile, Section, kind_names, setting_names, settings};

use crate::rules::{RuleSet, setting};
use crate::units::{Amount, Span};

const SYSTEM: &str = "/etc/gpumem/config.toml";
const USER: &str = "gpumem/config.toml";
/// Maximum size of a file, far above that of any real configuration.
const MOST_BYTES: u64 = 1 << 20;

/// Allowed sampling intervals. Shorter intervals cost too much, and longer intervals are too coarse for the rules.
const INTERVAL_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=600.0;

#[derive(Clone, Debug, Default)]
pub struct Config {
    pub sample: SampleConfig,
    pub rules: RuleSet,
    pub reap: ReapConfig,
    pub park: ParkConfig,
    /// File and line of each value that a file sets, by dotted key.
    origins: BTreeMap<String, String>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        let Self { sample, rules, reap, park, origins: _ } = self;
        (sample, rules, reap, park) == (&other.sample, &other.rules, &other.reap, &other.park)
    }
}

/// Keys of `[park]`.
const PARK: &[&str] = &["most_memory"];

#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
pub struct ParkConfig {
    /// Maximum host memory that all parked processes may hold together.
    #[serde(deserialize_with = "amount", serialize_with = "write_amount")]
    pub most_memory: Amount,
}

impl Default for ParkConfig {
    fn default() -> Self {
        Self { most_memory: Amount::Share(50.0) }
    }
}

fn amount<'de, D: Deserializer<'de>>(from: D) -> Result<Amount, D::Error> {
    let example = "a size or a share of the machine's memory such as \"50%\"";
    setting::parsed(from, example, |written| written.as_str()?.parse().ok())
}

fn write_amount<S: Serializer>(amount: &Amount, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(amount)
}

/// Keys of `[sample]`.
const SAMPLE: &[&str] = &["interval", "serve"];

#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
pub struct SampleConfig {
    #[serde(deserialize_with = "interval")]
    pub interval: Span,
    /// Address on which the process that writes the store also serves metrics, or `None` to serve none.
    #[serde(default, deserialize_with = "address")]
    pub serve: Option<SocketAddr>,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { interval: Span::from_seconds(1.0), serve: None }
    }
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
    let example = "a duration such as \"1s\" or \"500ms\", from 100ms to 10m";
    let is_allowed = |span: &Span| INTERVAL_SECONDS.contains(&span.seconds());
    setting::parsed(from, example, |written| setting::span(written).filter(is_allowed))
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let example = "an IP address and a port such as \"127.0.0.1:9836\"";
    setting::parsed(from, example, |written| written.as_str()?.parse().ok()).map(Some)
}

/// Why a configuration was rejected. Lines and columns count from 1; keys are dotted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {}; check its path and permissions", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the configuration {} is larger than 1 MiB; check its path", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}:{line}: not UTF-8 text; save the file as UTF-8", path.display())]
    NotText { path: PathBuf, line: usize },
    #[error("{}:{line}:{column}: not TOML: {message}", path.display())]
    Syntax { path: PathBuf, line: usize, column: usize, message: String },
    /// Other users can change the file, so they could make gpumem act with privileges that they lack.
    #[error("the configuration {} is refused: {why}", path.display())]
    NotOurs { path: PathBuf, why: String },
    /// Other users can change the command, which runs with privileges that they lack.
    #[error("{origin}: reap.notify: {} is refused: {why}", path.display())]
    CommandNotOurs { origin: String, path: PathBuf, why: String },
    #[error("{}:{line}: {key}: {message}", path.display())]
    Wrong { path: PathBuf, line: usize, key: String, message: String },
}

/// Returns the system's and the user's configuration files, in this order, or only the `chosen` file.
/// `xdg_config_home` and `home` are the values of environment variables; relative paths are ignored.
pub fn paths(
    chosen: Option<&Path>,
    xdg_config_home: Option<&OsStr>,
    home: Option<&OsStr>,
) -> Vec<PathBuf> {
    if let Some(chosen) = chosen {
        // `/dev/null` means no configuration.
        let is_null = chosen == Path::new("/dev/null");
        return if is_null { Vec::new() } else { vec![chosen.to_owned()] };
    }
    let absolute = |path: Option<&OsStr>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let folder =
        absolute(xdg_config_home).or_else(|| absolute(home).map(|home| home.join(".config")));
    let user = folder.map(|folder| folder.join(USER));
    [PathBuf::from(SYSTEM)].into_iter().chain(user).collect()
}

/// Applies the files to the defaults, in order. Missing files are skipped unless `required` is set.
///
/// # Errors
///
/// Returns an error if a file cannot be read, is not TOML, or contains an invalid key or value.
pub fn load(paths: &[PathBuf], required: bool) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    for path in paths {
        match text(path) {
            Ok(text) => layer(&mut config, &text, path)?,
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

const TOP: &[&str] = &["sample", "reap", "park", "rules", "rule", "override", "keep"];

fn layer(config: &mut Config, text: &str, path: &Path) -> Result<(), ConfigError> {
    let file = SourceFile { text, path };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let (line, column) = file.position(at);
        ConfigError::Syntax {
            path: path.to_owned(),
            line,
            column,
            message: error.message().lines().collect::<Vec<_>>().join("; "),
        }
    })?;
    let document = Section::new(&file, "", 0..0, document.get_ref());
    document.allow(TOP)?;
    // Read the tables in a fixed order: a rule starts with the settings of its kind, an override
    // changes rules, and an exemption names rules.
    for entry in TOP.iter().filter_map(|name| document.get(name)) {
        match entry.name {
            "sample" => {
                let section = entry.section()?;
                settings(&mut config.sample, SAMPLE, &section, &mut config.origins)?;
            }
            "park" => {
                let section = entry.section()?;
                settings(&mut config.park, PARK, &section, &mut config.origins)?;
            }
            "reap" => reap::section(config, &entry.section()?)?,
            "rules" => rules(config, &entry.section()?)?,
            _ => entry::read_entries(config, entry)?,
        }
    }
    match config.reap.contradiction() {
        Some(message) => {
            // The earlier files were consistent, so a table in this file causes the error.
            let mut keys = ["reap", "rule", "rules"].into_iter();
            let at = keys.find_map(|name| document.get(name));
            let at = at.map_or(0..0, |entry| entry.at.clone());
            Err(file.wrong(at, "reap", message.to_owned()))
        }
        None => Ok(()),
    }
}

fn rules(config: &mut Config, section: &Section<'_>) -> Result<(), ConfigError> {
    let kinds = kind_names();
    for kind in &section.entries {
        kind.allow(&kinds)?;
        let section = kind.section()?;
        let mut last = &kind.at;
        let Some(rule) = config.rules.rule_mut(kind.name) else {
            continue;
        };
        let allowed = [&[reap::ACTION], &*setting_names(rule)].concat();
        for entry in &section.entries {
            entry.allow(&allowed)?;
            if entry.name == reap::ACTION {
                let response = reap::action(entry, rule.kind())?;
                config.reap.set_response(rule.name.clone(), response);
            } else {
                let set = rule.set(entry.name, &entry.value);
                set.map_err(|wrong| entry.refuse(&wrong))?;
                last = &entry.at;
            }
            config.origins.insert(entry.key.clone(), entry.origin());
        }
        if let Some(message) = rule.contradiction() {
            return Err(section.file.wrong(last.clone(), &section.key, message));
        }
    }
    Ok(())
}

impl Config {
    pub fn sets(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// Returns the file and line that set the key, or `None` for a default.
    pub fn origin(&self, key: &str) -> Option<&str> {
        self.origins.get(key).map(String::as_str)
    }

    /// Formats the configuration as TOML with the origin of each value. Parsing the result yields an equal
    /// configuration.
    pub fn to_toml(&self) -> String {
        write::document(self)
    }
}

#[cfg(test)]
mod tests;
