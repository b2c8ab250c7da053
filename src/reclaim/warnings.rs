//! Stores on disk which warnings were given before unattended acts, so that they survive a restart.
//!
//! Each warning is about one finding on one process or GPU, and is valid only until the next boot. gpumem warns when
//! the finding appears, and again shortly before the act. If a finding ends and returns, the warnings start over. They
//! also start over if gpumem was restarted and the finding began later than the stored warning. The file is replaced
//! atomically. If it is unreadable, all warnings are lost, which only delays acts. This module reads no clock and sends
//! nothing.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::config::reap::ReapConfig;
use crate::host::replace_file;
use crate::model::finding::Finding;
use crate::model::json;
use crate::model::{Start, Time};
use crate::units::system_message;

const SCHEMA: &str = "gpumem.warnings/1";
/// Maximum number of warnings in the file. No machine needs nearly as many.
const MAX_WARNINGS: usize = 4096;
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Time, in seconds, after which a warning from an earlier run expires if its finding has not returned.
const EXPIRY_SECONDS: f64 = 2.0 * 86_400.0;

#[derive(Debug, thiserror::Error)]
pub enum WarningsError {
    #[error("cannot read the warnings in {}: {}; affected owners will be warned again", path.display(), system_message(cause))]
    Read { path: PathBuf, cause: io::Error },
    #[error("cannot write the warnings to {}: {}; owners without a saved warning count as not warned", path.display(), system_message(cause))]
    Write { path: PathBuf, cause: io::Error },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WarningDue {
    First,
    Last,
    Act,
    Nothing,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Warning {
    pub finding: Arc<str>,
    /// Pid of the process, or `None` if the finding is on a GPU.
    pub pid: Option<u32>,
    /// Start time in clock ticks since boot.
    pub start_ticks: Option<u64>,
    pub first: Time,
    pub last: Option<Time>,
    /// Whether the warning said that the process will be ended or parked. Otherwise, it is a notice about the finding.
    pub is_of_end: bool,
    /// Whether the act was tried. It must not be repeated.
    pub is_over: bool,
    /// Whether an earlier run gave the warning and the finding has not been seen since.
    #[serde(skip)]
    is_old: bool,
}

impl Warning {
    pub fn due(&self, now: Time, reap: &ReapConfig) -> WarningDue {
        let (since, wait, due) = match self.last {
            None => (self.first, reap.warn, WarningDue::Last),
            Some(last) => (last, reap.grace, WarningDue::Act),
        };
        match now >= since.plus_seconds(wait.0.as_secs_f64()) {
            true => due,
            false => WarningDue::Nothing,
        }
    }

    fn is_for(&self, (finding, is_of_end): (&Finding, bool)) -> bool {
        let about = finding.process.as_ref();
        let start_ticks = about.and_then(|about| match about.identity.start {
            Start::Ticks(ticks) => Some(ticks),
            Start::Time(_) | Start::Unknown => None,
        });
        self.finding == finding.id
            && self.is_of_end == is_of_end
            && self.pid == about.map(|about| about.pid)
            && self.start_ticks == start_ticks
    }
}

#[derive(Serialize, Deserialize)]
struct WarningsDocument {
    schema: String,
    /// ID of the boot that `start_ticks` counts from.
    boot_id: Arc<str>,
    warnings: Vec<Warning>,
}

#[derive(Debug)]
pub struct Warnings {
    path: PathBuf,
    boot_id: Arc<str>,
    warnings: Vec<Warning>,
}

impl Warnings {
    /// Reads the warnings given since boot. A missing file is not an error. If the file cannot be read, returns no
    /// warnings, and the error.
    pub fn open(path: &Path, boot_id: Arc<str>) -> (Self, Option<WarningsError>) {
        let (mut warnings, error) = match read(path) {
            Ok(document) if document.boot_id == boot_id => (document.warnings, None),
            Ok(_) => (Vec::new(), None),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => (Vec::new(), None),
            Err(cause) => (Vec::new(), Some(WarningsError::Read { path: path.to_owned(), cause })),
        };
        for warning in &mut warnings {
            warning.is_old = true;
        }
        (Self { path: path.to_owned(), boot_id, warnings }, error)
    }

    pub fn all(&self) -> &[Warning] {
        &self.warnings
    }

    /// Returns the warning about a finding: the one about the end of the process if `is_of_end` is set, otherwise the
    /// notice.
    pub fn find(&self, finding: &Finding, is_of_end: bool) -> Option<&Warning> {
        let mut current = self.warnings.iter();
        current.find(|warning| warning.is_for((finding, is_of_end)))
    }

    /// Updates the warnings. `found` contains all current findings and whether each of them leads to the end of the
    /// process. Drops a warning if its finding is gone, if its time is in the future, or if it is from an earlier run
    /// and the finding began later. If the finding of a warning from an earlier run is gone, drops the warning
    /// [`EXPIRY_SECONDS`] after it was given. Returns an error if the file cannot be written.
    pub fn update(&mut self, found: &[(&Finding, bool)], now: Time) -> Result<(), WarningsError> {
        let before = self.warnings.len();
        self.warnings.retain_mut(|warning| {
            let finding = found.iter().find(|entry| warning.is_for(**entry));
            let finding = finding.map(|entry| entry.0);
            let is_of_the_past =
                warning.first <= now && warning.last.is_none_or(|last| last <= now);
            let lasts = match finding {
                Some(finding) if warning.is_old => finding.since <= warning.first,
                Some(_) => true,
                // After a restart, the rules find nothing until enough history has been collected.
                None => warning.is_old && now.seconds_since(warning.first) < EXPIRY_SECONDS,
            };
            warning.is_old &= finding.is_none();
            lasts && is_of_the_past
        });
        match self.warnings.len() == before {
            true => Ok(()),
            false => self.write(&self.warnings),
        }
    }

    /// Records the first or last warning, or a notice. If the file cannot be written, returns an error and does not
    /// record the warning.
    pub fn note(
        &mut self,
        finding: &Finding,
        is_of_end: bool,
        now: Time,
    ) -> Result<(), WarningsError> {
        let mut current = self.warnings.clone();
        match current.iter_mut().find(|warning| warning.is_for((finding, is_of_end))) {
            Some(warning) => warning.last = Some(now),
            None => {
                if current.len() >= MAX_WARNINGS {
                    return Err(WarningsError::Write {
                        path: self.path.clone(),
                        cause: io::Error::other("there are too many warnings"),
                    });
                }
                let about = finding.process.as_ref();
                current.push(Warning {
                    finding: Arc::clone(&finding.id),
                    pid: about.map(|about| about.pid),
                    start_ticks: about.and_then(|about| about.start_ticks),
                    first: now,
                    last: None,
                    is_of_end,
                    is_over: false,
                    is_old: false,
                });
            }
        }
        self.replace(current)
    }

    /// Records that the act on these findings was tried. Returns an error if the file cannot be written.
    pub fn conclude(&mut self, findings: &[Arc<str>]) -> Result<(), WarningsError> {
        let mut current = self.warnings.clone();
        for warning in &mut current {
            warning.is_over |= findings.contains(&warning.finding);
        }
        self.replace(current)
    }

    pub fn forget(&mut self, findings: &[Arc<str>]) -> Result<(), WarningsError> {
        let mut current = self.warnings.clone();
        current.retain(|warning| !findings.contains(&warning.finding));
        self.replace(current)
    }

    fn replace(&mut self, current: Vec<Warning>) -> Result<(), WarningsError> {
        self.write(&current)?;
        self.warnings = current;
        Ok(())
    }

    fn write(&self, current: &[Warning]) -> Result<(), WarningsError> {
        let document = WarningsDocument {
            schema: SCHEMA.to_owned(),
            boot_id: Arc::clone(&self.boot_id),
            warnings: current.to_vec(),
        };
        let write = || {
            let text = json::document(&document)?;
            replace_file(&self.path, text.as_bytes(), 0o600)
        };
        write().map_err(|cause| WarningsError::Write { path: self.path.clone(), cause })
    }
}

fn read(path: &Path) -> io::Result<WarningsDocument> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
    let document: WarningsDocument = serde_json::from_slice(&text)?;
    match document.schema == SCHEMA {
        true => Ok(document),
        false => Err(io::Error::other("its schema version is not supported")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::{BOOT, at, finding, process};
    use super::*;
    use crate::model::Kind;

    fn found() -> Finding {
        finding(Kind::Idle, &process(70, "python train.py"))
    }

    fn new() -> (tempfile::TempDir, Warnings, Finding) {
        let folder = tempfile::tempdir().unwrap();
        let warnings = open(&folder.path().join("warnings"));
        (folder, warnings, found())
    }

    fn open(path: &Path) -> Warnings {
        let (warnings, error) = Warnings::open(path, BOOT.into());
        assert!(error.is_none(), "{error:?}");
        warnings
    }

    fn due(warnings: &Warnings, finding: &Finding, now: Time) -> WarningDue {
        // The default configuration waits 900 s after the first warning, and 60 s after the last.
        let due = |warning: &Warning| warning.due(now, &ReapConfig::default());
        warnings.find(finding, true).map_or(WarningDue::First, due)
    }

    #[test]
    fn an_act_is_due_after_two_warnings() {
        let (_folder, mut warnings, found) = new();
        assert_eq!(due(&warnings, &found, at(0.0)), WarningDue::First);
        warnings.note(&found, true, at(0.0)).unwrap();
        assert_eq!(due(&warnings, &found, at(0.0)), WarningDue::Nothing);
        assert_eq!(due(&warnings, &found, at(899.9)), WarningDue::Nothing);
        assert_eq!(
            due(&warnings, &found, at(5000.0)),
            WarningDue::Last,
            "the last warning comes first"
        );
        warnings.note(&found, true, at(5000.0)).unwrap();
        assert_eq!(due(&warnings, &found, at(5059.0)), WarningDue::Nothing);
        assert_eq!(due(&warnings, &found, at(5060.0)), WarningDue::Act);
        warnings.conclude(&[Arc::clone(&found.id)]).unwrap();
        assert!(warnings.find(&found, true).unwrap().is_over);
    }

    #[test]
    fn warnings_start_over_if_the_finding_ends_and_returns() {
        let (_folder, mut warnings, found) = new();
        warnings.note(&found, true, at(0.0)).unwrap();
        warnings.update(&[(&found, true)], at(10.0)).unwrap();
        assert!(warnings.find(&found, true).is_some());
        warnings.update(&[], at(20.0)).unwrap();
        assert_eq!(due(&warnings, &found, at(2000.0)), WarningDue::First);
    }

    #[test]
    fn a_notice_does_not_count_as_a_warning() {
        let (_folder, mut warnings, found) = new();
        warnings.note(&found, false, at(0.0)).unwrap();
        warnings.conclude(&[Arc::clone(&found.id)]).unwrap();
        // The rule now ends the process, so the earlier notice is not a sufficient warning.
        warnings.update(&[(&found, true)], at(2000.0)).unwrap();
        assert_eq!(due(&warnings, &found, at(2000.0)), WarningDue::First);
        assert!(warnings.all().is_empty());
    }

    #[test]
    fn a_warning_does_not_apply_to_a_reused_pid() {
        let (_folder, mut warnings, found) = new();
        warnings.note(&found, true, at(0.0)).unwrap();
        let mut later = process(70, "python train.py");
        later.start_ticks = Some(99_999);
        let mut other = finding(Kind::Idle, &later);
        // The processes differ although the ids of their findings are equal.
        other.id = Arc::clone(&found.id);
        assert!(warnings.find(&other, true).is_none());
    }

    #[test]
    fn a_restart_keeps_warnings_of_lasting_findings() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warnings");
        let found = found();
        open(&path).note(&found, true, at(0.0)).unwrap();
        let mut again = open(&path);
        // After the restart, the rules have no history yet.
        again.update(&[], at(100.0)).unwrap();
        again.update(&[(&found, true)], at(101.0)).unwrap();
        assert_eq!(due(&again, &found, at(900.0)), WarningDue::Last);
        // Since the finding has been seen again, its absence deletes the warning.
        again.update(&[], at(902.0)).unwrap();
        assert!(again.find(&found, true).is_none() && open(&path).all().is_empty());
    }

    #[test]
    fn a_finding_that_began_after_its_warning_starts_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warnings");
        let mut found = found();
        open(&path).note(&found, true, at(0.0)).unwrap();
        let mut again = open(&path);
        found.since = at(1.0);
        again.update(&[(&found, true)], at(5000.0)).unwrap();
        assert!(again.find(&found, true).is_none());
        let (other, _) = Warnings::open(&path, "another boot".into());
        assert!(other.all().is_empty());
    }

    #[test]
    fn warnings_from_the_future_are_dropped() {
        let (_folder, mut warnings, found) = new();
        warnings.note(&found, true, at(1000.0)).unwrap();
        warnings.update(&[(&found, true)], at(500.0)).unwrap();
        assert!(warnings.find(&found, true).is_none());
    }

    #[test]
    fn unwritten_warnings_do_not_count_and_bad_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warnings");
        let mut lost = open(&folder.path().join("absent/warnings"));
        let found = found();
        let error = lost.note(&found, true, at(0.0)).unwrap_err();
        assert!(matches!(error, WarningsError::Write { .. }), "{error}");
        assert!(lost.find(&found, true).is_none());
        for text in [
            "",
            "{",
            "\0\u{1b}[2J",
            "{\"schema\":\"gpumem.warnings/2\",\"boot_id\":\"boot\",\"warnings\":[]}",
            "{\"schema\":\"gpumem.warnings/1\",\"boot_id\":\"boot\",\"warnings\":[{\"finding\":7}]}",
        ] {
            fs::write(&path, text).unwrap();
            let (mut warnings, error) = Warnings::open(&path, BOOT.into());
            assert!(matches!(error, Some(WarningsError::Read { .. })), "{text}");
            assert!(warnings.all().is_empty());
            warnings.note(&found, true, at(0.0)).unwrap();
        }
        assert_eq!(open(&path).all().len(), 1, "the file is valid again");
    }
}
