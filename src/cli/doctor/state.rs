//! gpumem's own files: the configuration in force and the stored history.
//!
//! They may lie on a server that hangs: what is read here is read on a thread that no one has to wait
//! for, and comes without anything that is tied to it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::super::args::Global;
use super::super::config;
use super::super::store::{self, Surveyed};
use crate::model::Time;
use crate::model::snapshot::Host;
use crate::report::doctor::{CheckStatus, DoctorCheck, Topic};
use crate::units::{Bytes, Span};

/// The configuration: the files that there are, and what they come to or what is wrong with them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Configuration {
    files: Vec<PathBuf>,
    outcome: Result<ConfigSummary, String>,
}

/// What a configuration comes to.
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
    let topic = Topic::Configuration;
    let Some(Configuration { files, outcome }) = configuration else {
        return super::too_long(topic);
    };
    let rules = match outcome {
        Ok(rules) => rules,
        Err(error) => {
            return DoctorCheck::new(topic, CheckStatus::Broken, error)
                .means("check and watch do not start with it")
                .next("correct it, then: gpumem config check");
        }
    };
    let names: Vec<String> = files.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let from = if names.is_empty() { "no file, the defaults".to_owned() } else { names.join(", ") };
    let mut seen = format!("{from}; {} rules", rules.all);
    if rules.run < rules.all {
        seen.push_str(&format!(", {} of them switched off", rules.all - rules.run));
    }
    if rules.keeps > 0 {
        seen.push_str(&format!(", exemptions: {}", rules.keeps));
    }
    DoctorCheck::new(topic, CheckStatus::Ok, seen)
}

/// The stored history, and where it would be written.
#[derive(Debug)]
pub(super) struct StoredHistory {
    stores: Vec<Surveyed>,
    /// Where `record --store` writes, and whether this user may.
    to_write: Option<(PathBuf, bool)>,
}

pub(super) fn read_history(global: &Global, host: &Host, now: Time) -> StoredHistory {
    let survey = store::survey(global, host, now);
    StoredHistory {
        stores: survey.stores,
        to_write: survey.to_write.map(|folder| {
            let may = may_write(&folder);
            (folder, may)
        }),
    }
}

/// Whether a folder can be written, or made where it is not there. Nothing is made to find out.
fn may_write(folder: &Path) -> bool {
    let there = folder.ancestors().find(|path| path.exists());
    there.is_some_and(|path| {
        let may = Access::WRITE_OK | Access::EXEC_OK;
        path.is_dir() && accessat(CWD, path, may, AtFlags::EACCESS).is_ok()
    })
}

pub(super) fn history(history: Option<StoredHistory>) -> DoctorCheck {
    let topic = Topic::Store;
    let Some(StoredHistory { stores, to_write }) = history else {
        return super::too_long(topic);
    };
    let describe = |store: &Surveyed| {
        let size = store.bytes.as_ref().map_or(0, |&bytes| bytes);
        let last = store.age_seconds.map_or_else(
            || "nothing of this boot".to_owned(),
            |age| format!("last snapshot {} ago", Span::from_seconds(age.max(0.0))),
        );
        format!("{}, {}, {last}", store.folder.display(), Bytes(size))
    };
    let readable = |store: &&Surveyed| store.bytes.is_ok();
    if let Some(open) = stores.iter().filter(readable).find(|it| !it.is_trusted) {
        let name = open.folder.display();
        return DoctorCheck::new(
            topic,
            CheckStatus::Limited,
            format!("{name} is open to others, and not used"),
        )
        .means("whoever may write to a history may forge it")
        .next(format!("chmod go-w {name}"));
    }
    if let Some(fresh) = stores.iter().find(|it| it.is_fresh) {
        let seen = format!("{}; a recorder is running", describe(fresh));
        return DoctorCheck::new(topic, CheckStatus::Ok, seen);
    }
    let no_news = [ErrorKind::NotFound, ErrorKind::PermissionDenied];
    let strange = stores
        .iter()
        .find_map(|it| Some((it, it.bytes.as_ref().err()?)))
        .filter(|(_, error)| !no_news.contains(&error.kind()));
    if let Some((store, error)) = strange {
        let seen = format!("{}: {error}", store.folder.display());
        return DoctorCheck::new(topic, CheckStatus::Limited, seen)
            .means("check and watch know only what they sample themselves");
    }
    let seen = stores.iter().find(readable).map_or_else(
        || "none".to_owned(),
        |store| format!("{}; no recorder is running", describe(store)),
    );
    let check = DoctorCheck::new(topic, CheckStatus::Limited, seen)
        .means("a short check cannot decide rules that need minutes of history");
    match to_write {
        None => check.next("there is no HOME to keep it in: gpumem record --store --store-dir DIR"),
        Some((folder, false)) => {
            let name = folder.display();
            check.next(format!("{name} cannot be written: gpumem record --store --store-dir DIR"))
        }
        Some((_, true)) => {
            check.next("gpumem record --store    (or the unit gpumem-record.service)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(outcome: Result<ConfigSummary, String>, files: &[&str]) -> DoctorCheck {
        configuration(Some(Configuration {
            files: files.iter().map(PathBuf::from).collect(),
            outcome,
        }))
    }

    #[test]
    fn a_configuration_shows_its_effect() {
        let rules = ConfigSummary { all: 13, run: 12, keeps: 2 };
        assert_eq!(
            outcome(Ok(rules), &["/etc/gpumem/config.toml"]).seen,
            "/etc/gpumem/config.toml; 13 rules, 1 of them switched off, exemptions: 2"
        );
        let plain = ConfigSummary { all: 12, run: 12, keeps: 0 };
        assert_eq!(outcome(Ok(plain), &[]).seen, "no file, the defaults; 12 rules");
        let broken = outcome(Err("/x:3: sample: no".to_owned()), &["/x"]);
        assert_eq!(
            (broken.verdict, broken.seen.as_str()),
            (CheckStatus::Broken, "/x:3: sample: no")
        );
        assert_eq!(configuration(None).verdict, CheckStatus::Unknown);
    }

    fn surveyed(bytes: Result<u64, ErrorKind>, age: Option<f64>) -> Surveyed {
        Surveyed {
            folder: "/s".into(),
            bytes: bytes.map_err(Into::into),
            is_trusted: true,
            age_seconds: age,
            is_fresh: age.is_some_and(|age| age < 20.0),
        }
    }

    fn judged(stores: Vec<Surveyed>, to_write: Option<bool>) -> DoctorCheck {
        history(Some(StoredHistory { stores, to_write: to_write.map(|may| ("/s".into(), may)) }))
    }

    #[test]
    fn a_recorder_at_work_is_well_and_none_is_a_limit() {
        let well = judged(vec![surveyed(Ok(1 << 20), Some(5.0))], Some(false));
        assert_eq!(
            (well.verdict, well.seen.as_str()),
            (CheckStatus::Ok, "/s, 1.0 MiB, last snapshot 5s ago; a recorder is running")
        );
        let old = judged(vec![surveyed(Ok(1 << 20), None)], Some(true));
        assert_eq!(old.verdict, CheckStatus::Limited);
        assert!(old.seen.ends_with("nothing of this boot; no recorder is running"));
        for error in [ErrorKind::NotFound, ErrorKind::PermissionDenied] {
            assert_eq!(judged(vec![surveyed(Err(error), None)], Some(true)).seen, "none");
        }
        let strange = judged(vec![surveyed(Err(ErrorKind::NotADirectory), None)], None);
        assert!(strange.seen.starts_with("/s: "), "{strange:?}");
        assert!(judged(Vec::new(), None).next[0].contains("no HOME"));
        assert!(judged(Vec::new(), Some(false)).next[0].contains("cannot be written"));
    }

    #[test]
    fn a_history_that_others_may_write_is_not_well_though_it_is_fresh() {
        let mut open = surveyed(Ok(1), Some(1.0));
        open.is_trusted = false;
        let check = judged(vec![open], Some(true));
        assert_eq!(
            (check.verdict, check.next[0].as_str()),
            (CheckStatus::Limited, "chmod go-w /s")
        );
    }

    #[test]
    fn a_folder_that_is_not_there_can_be_written_where_it_can_be_made() {
        let folder = tempfile::tempdir().unwrap();
        assert!(may_write(&folder.path().join("a/b/c")));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!may_write(&file.join("store")));
        assert!(!file.join("store").exists());
    }
}
