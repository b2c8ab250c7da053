//! Applies a file to the current configuration.
//!
//! serde reads each table into a struct (see [`crate::rules::setting`]). This module reads the
//! tables that occur once; [`entry`] reads those that can occur several times.

use std::path::Path;

use toml::de::DeTable;

use super::section::{File, Section, kind_names, setting_names, settings};
use super::{Config, ConfigError, PARK, SAMPLE, entry, reap};

const TOP: &[&str] = &["sample", "reap", "park", "rules", "rule", "override", "keep"];

pub(super) fn layer(config: &mut Config, text: &str, path: &Path) -> Result<(), ConfigError> {
    let file = File { text, path };
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
