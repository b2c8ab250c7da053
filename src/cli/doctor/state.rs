//! Checks the configuration and the stored history. A separate thread with a timeout reads the files, because a network
//! file system can hang.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::super::args::Global;
use super::super::config;
use super::super::store::{self, Survey};
use crate::model::Time;
use crate::model::snapshot::Host;
use crate::report::doctor::{DoctorCheck, Topic};
use crate::units::{Bytes, Span};

/// The configuration files that exist, and the result of loading them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Configuration {
    files: Vec<PathBuf>,
    outcome: Result<ConfigSummary, String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ConfigSummary {
    all: usize,
    run: usize,
    keeps: usize,
}

pub(super) fn read_configuration(global: &Global) -> Configuration {
    let mut files = config::paths(global);
    files.retain(|path| path.exists());
    let outcome = config::load_to_act(global).map_err(|error| error.to_string());
    Configuration {
        files,
        outcome: outcome.map(|config| {
            let rules = config.rules.rules();
            ConfigSummary {
                all: rules.len(),
                run: rules.iter().filter(|rule| rule.is_run()).count(),
                keeps: config.rules.keeps().len(),
            }
        }),
    }
}

pub(super) fn configuration(configuration: Option<Configuration>) -> DoctorCheck {
    let topic = Topic::CONFIGURATION;
    let Some(Configuration { files, outcome }) = configuration else {
        return super::too_long(topic);
    };
    let rules = match outcome {
        Ok(rules) => rules,
        Err(error) => {
            return topic.broken(error).advise("bad-configuration");
        }
    };
    let names: Vec<String> = files.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let from = if names.is_empty() { "no file, the defaults".to_owned() } else { names.join(", ") };
    let mut observation = format!("{from}; {} rules", rules.all);
    if rules.run < rules.all {
        observation.push_str(&format!(", {} of them disabled", rules.all - rules.run));
    }
    if rules.keeps > 0 {
        observation.push_str(&format!(", exemptions: {}", rules.keeps));
    }
    topic.ok(observation)
}

pub(super) fn read_history(global: &Global, host: &Host, now: Time) -> (Survey, bool) {
    let survey = store::survey(global, host, now);
    let can_write = survey.to_write.as_deref().is_ok_and(is_writable);
    (survey, can_write)
}

/// Returns whether a directory is writable or could be created.
fn is_writable(folder: &Path) -> bool {
    let existing = folder.ancestors().find(|path| path.exists());
    existing.is_some_and(|path| {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        path.is_dir() && accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
    })
}

pub(super) fn history(history: Option<(Survey, bool)>) -> DoctorCheck {
    let topic = Topic::STORE;
    let Some((survey, can_write)) = history else {
        return super::too_long(topic);
    };
    let observation = match &survey.used {
        Some((folder, bytes, age)) => {
            let (name, size) = (folder.display(), Bytes(*bytes));
            let age = Span::from_seconds(age.max(0.0));
            format!("{name}, {size}, last snapshot {age} ago")
        }
        None => "none from this boot".to_owned(),
    };
    if survey.is_fresh {
        return topic.ok(format!("{observation}; a recorder is running"));
    }
    let mut check =
        topic.limited(format!("{observation}; no recorder is running")).advise("short-history");
    check.next.extend(survey.warnings);
    match survey.to_write {
        Err(why) => check.next(format!("{why}: gpumem record --store --store-dir DIR")),
        Ok(folder) if !can_write => {
            let name = folder.display();
            check.next(format!("{name} cannot be written: gpumem record --store --store-dir DIR"))
        }
        Ok(_) => check.advise("start-recorder"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_writable_if_it_can_be_created() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_writable(&folder.path().join("a/b/c")));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!is_writable(&file.join("store")));
        assert!(!file.join("store").exists());
    }
}
