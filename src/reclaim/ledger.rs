//! The audit log: an append-only JSON Lines file that records each action with its time, process and reason.
//!
//! The line for an intended action is on disk before the action. The ledger therefore shows what gpumem had done, or
//! was about to do, when it died. If a line cannot be written, the act stops. The last line can be incomplete. The next
//! writer then starts a new line, and readers skip the incomplete one.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::process::geteuid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::target::Deed;
use super::target::Target;
use super::verify::Outcome;
use crate::host::open_output;
use crate::model::json;
use crate::model::{Snapshot, Time};
use crate::units::system_message;

pub const FILE_NAME: &str = "reap.jsonl";
/// Maximum number of bytes read from the end of the file, enough for a few thousand acts.
pub const MOST_READ_BYTES: u64 = 16 << 20;
pub const SCHEMA: &str = "gpumem.ledger/1";
/// Maximum length of a line, in bytes. The line for a family of a thousand members is about half as long.
const MAX_LINE_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("cannot open the audit log {}: {}; nothing is killed without one", path.display(), system_message(cause))]
    Open { path: PathBuf, cause: io::Error },
    #[error("cannot write to the audit log {}: {}; the action was not carried out", path.display(), system_message(cause))]
    Write { path: PathBuf, cause: io::Error },
    #[error("cannot read the audit log {}: {}", path.display(), system_message(cause))]
    Read { path: PathBuf, cause: io::Error },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LedgerEntry {
    pub time: Time,
    pub act: Arc<str>,
    #[serde(flatten)]
    pub event: LedgerEvent,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LedgerEvent {
    Begun {
        actor: Actor,
        target: Box<Target>,
    },
    /// An action is about to happen. Unless gpumem dies, a later line records the result.
    Intended(Deed),
    Done {
        #[serde(flatten)]
        deed: Deed,
        failures: Vec<Failure>,
    },
    Ended(Outcome),
}

/// The process and user that performed an act.
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Actor {
    /// PID of gpumem.
    pub pid: u32,
    /// User ID of gpumem.
    pub uid: u32,
    /// User name.
    pub user: Option<Arc<str>>,
    /// User name before sudo.
    pub sudo_user: Option<Arc<str>>,
    /// Whether `gpumem reap --watch` acted by itself, without asking a person.
    #[serde(default)]
    pub is_unattended: bool,
}

impl Actor {
    /// Returns the actor for this process. Takes the user name from a process of the same user in the snapshot, if
    /// there is one.
    pub fn of_gpumem(snapshot: &Snapshot) -> Self {
        let uid = geteuid().as_raw();
        let process = snapshot.processes.iter().find(|process| process.uid == Some(uid));
        Self {
            pid: std::process::id(),
            uid,
            user: process.and_then(|process| process.user.clone()),
            sudo_user: std::env::var("SUDO_USER").ok().map(Into::into),
            is_unattended: false,
        }
    }
}

/// A failed part of an action.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Failure {
    /// PID of the process; `None` if the action is a request.
    pub pid: Option<u32>,
    /// The error message.
    pub error: String,
}

pub trait LedgerSink {
    /// Writes a line. Returns only after the line is on disk.
    fn write(&mut self, entry: &LedgerEntry) -> Result<(), LedgerError>;
}

#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    /// Whether the last line may be incomplete.
    is_torn: bool,
}

impl Ledger {
    /// Opens the ledger, or creates it if it is missing. Only its owner can read the file, because it contains the
    /// command lines of other users. Returns an error if the file cannot be opened or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let failed = |cause| LedgerError::Open { path: path.to_owned(), cause };
        let file = open_output(path, OFlags::APPEND, 0o600).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut last = [b'\n'];
        if let Some(end) = metadata.len().checked_sub(1) {
            file.read_exact_at(&mut last, end).map_err(failed)?;
        }
        // Sync the directory, too, so that a newly created file survives a crash.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))
            .and_then(|folder| folder.sync_all())
            .map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, is_torn: last != [b'\n'] })
    }
}

impl LedgerSink for Ledger {
    fn write(&mut self, entry: &LedgerEntry) -> Result<(), LedgerError> {
        #[derive(Serialize)]
        struct LedgerLine<'a> {
            schema: &'static str,
            #[serde(flatten)]
            entry: &'a LedgerEntry,
        }
        let failed = |cause| LedgerError::Write { path: self.path.clone(), cause };
        let mut line = match self.is_torn {
            true => vec![b'\n'],
            false => Vec::new(),
        };
        let whole = LedgerLine { schema: SCHEMA, entry };
        json::append(&mut line, &whole).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        if line.len() > MAX_LINE_BYTES {
            return Err(failed(io::Error::other("the line would be too long")));
        }
        // Until the write succeeds, the last line may be incomplete.
        self.is_torn = true;
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(failed)?;
        self.is_torn = false;
        Ok(())
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct LedgerSummary {
    pub acts: Vec<PastAct>,
    /// Number of lines that could not be parsed, because they are incomplete or written by a later version.
    pub unread_lines: usize,
    /// Whether only the end of the file was read, because the file is too long.
    pub is_cut: bool,
}

/// An act from the audit log. Values missing from the log are `None`.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PastAct {
    /// Identifier of the act.
    pub id: Arc<str>,
    /// When the act began, or the time of the act's first line if the log does not contain the beginning.
    pub time: Time,
    /// The process and user that performed the act.
    pub actor: Option<Actor>,
    /// The target of the act.
    pub target: Option<Box<Target>>,
    /// The actions taken, in order.
    pub deeds: Vec<PastDeed>,
    /// Outcome of the act; `None` if gpumem exited before the outcome was known.
    pub outcome: Option<Outcome>,
}

/// One action of an act, from the audit log.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PastDeed {
    /// When the log first mentions the action.
    pub time: Time,
    #[serde(flatten)]
    pub deed: Deed,
    /// Failed parts of the action; `None` if unknown.
    pub failures: Option<Vec<Failure>>,
    /// When the result was recorded; absent if the log contains no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
}

/// Reads at most the last `most_bytes` of a ledger. A missing ledger is treated as empty. Returns an error if the
/// file cannot be read.
pub fn read(path: &Path, most_bytes: u64) -> Result<LedgerSummary, LedgerError> {
    let failed = |cause| LedgerError::Read { path: path.to_owned(), cause };
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(LedgerSummary::default());
        }
        Err(error) => return Err(failed(error)),
    };
    let length = file.metadata().map_err(failed)?.len();
    let begin = length.saturating_sub(most_bytes);
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(begin)).map_err(failed)?;
    file.take(most_bytes).read_to_end(&mut content).map_err(failed)?;
    let mut past = LedgerSummary { is_cut: begin > 0, ..LedgerSummary::default() };
    let mut lines = content.split(|&byte| byte == b'\n');
    if past.is_cut {
        // The first line is incomplete, because reading started in the middle of the file.
        lines.next();
    }
    let mut indexes = HashMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        match parse(line) {
            Some(entry) => past.apply(entry, &mut indexes),
            None => past.unread_lines += 1,
        }
    }
    Ok(past)
}

pub(super) fn parse(line: &[u8]) -> Option<LedgerEntry> {
    #[derive(Deserialize)]
    struct Header {
        schema: String,
    }
    let header: Header = serde_json::from_slice(line).ok()?;
    (header.schema == SCHEMA).then(|| serde_json::from_slice(line).ok())?
}

impl LedgerSummary {
    /// Returns the start times of acts that no person confirmed, including acts of unknown origin. Acts without actions
    /// are left out.
    pub fn unattended_times(&self) -> Vec<Time> {
        let is_unattended =
            |act: &&PastAct| act.actor.as_ref().is_none_or(|actor| actor.is_unattended);
        let acts = self.acts.iter().filter(|act| !act.deeds.is_empty());
        acts.filter(is_unattended).map(|act| act.time).collect()
    }

    fn apply(&mut self, entry: LedgerEntry, indexes: &mut HashMap<Arc<str>, usize>) {
        let time = entry.time;
        let index = *indexes.entry(Arc::clone(&entry.act)).or_insert_with(|| {
            self.acts.push(PastAct {
                id: Arc::clone(&entry.act),
                time,
                actor: None,
                target: None,
                deeds: Vec::new(),
                outcome: None,
            });
            self.acts.len() - 1
        });
        let act = &mut self.acts[index];
        match entry.event {
            LedgerEvent::Begun { actor, target } => {
                act.actor = Some(actor);
                act.target = Some(target);
            }
            LedgerEvent::Intended(deed) => {
                act.deeds.push(PastDeed { time, deed, failures: None, ended: None });
            }
            LedgerEvent::Done { deed, failures } => {
                let last = act.deeds.last_mut();
                match last.filter(|last| last.deed == deed && last.failures.is_none()) {
                    Some(last) => {
                        (last.failures, last.ended) = (Some(failures), Some(time));
                    }
                    None => act.deeds.push(PastDeed {
                        time,
                        deed,
                        failures: Some(failures),
                        ended: Some(time),
                    }),
                }
            }
            LedgerEvent::Ended(outcome) => act.outcome = Some(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::keep::KeptBy;
    use crate::reclaim::guard::Protection;
    use crate::reclaim::policy::Signal;
    use crate::reclaim::target::LedgerProcess;
    use crate::reclaim::testing::{self, at, process};
    use crate::units::GIB;

    fn target() -> Box<Target> {
        Box::new(testing::target(&process(70, "python \u{1b}[31mtrain.py")))
    }

    fn entry(act: &str, seconds: f64, event: LedgerEvent) -> LedgerEntry {
        LedgerEntry { time: at(seconds), act: act.into(), event }
    }

    fn term() -> Deed {
        Deed::Signal {
            signals: vec![Signal::Term, Signal::Cont],
            processes: vec![LedgerProcess { pid: 70, start_ticks: u64::MAX }],
        }
    }

    fn actor() -> Actor {
        Actor {
            pid: 900,
            uid: 0,
            user: Some("root".into()),
            sudo_user: Some("ann".into()),
            is_unattended: true,
        }
    }

    fn all() -> Vec<LedgerEntry> {
        let outcome = Outcome::Freed { bytes: GIB, ms: 900 };
        vec![
            entry("a", 0.0, LedgerEvent::Begun { actor: actor(), target: target() }),
            entry("a", 0.0, LedgerEvent::Intended(term())),
            entry(
                "a",
                0.1,
                LedgerEvent::Done {
                    deed: term(),
                    failures: vec![Failure { pid: Some(70), error: "gone".to_owned() }],
                },
            ),
            entry("a", 1.0, LedgerEvent::Ended(outcome)),
        ]
    }

    #[test]
    fn written_entries_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        for entry in all() {
            ledger.write(&entry).unwrap();
        }
        drop(ledger);
        let mut ledger = Ledger::open(&path).unwrap();
        let asked = Deed::ShutKernel { kernel_id: "k".into() };
        ledger.write(&entry("b", 2.0, LedgerEvent::Intended(asked.clone()))).unwrap();
        let kept_by = KeptBy::Configuration { reason: "demo".into(), until: None };
        let kept = Outcome::Protected { why: Protection::Kept { kept_by } };
        ledger.write(&entry("c", 3.0, LedgerEvent::Ended(kept.clone()))).unwrap();
        let past = read(&path, 1 << 20).unwrap();
        assert_eq!((past.unread_lines, past.is_cut), (0, false));
        let [first, second, third] = &past.acts[..] else {
            panic!("{past:?}");
        };
        assert_eq!(third.outcome, Some(kept));
        assert_eq!(first.actor, Some(actor()));
        assert_eq!(first.target.as_deref(), Some(&*target()));
        assert_eq!(first.deeds.len(), 1);
        assert_eq!(first.deeds[0].deed, term());
        assert_eq!(first.deeds[0].failures.as_ref().map(Vec::len), Some(1));
        assert!(first.outcome.as_ref().is_some_and(Outcome::is_success));
        assert_eq!(second.deeds[0].failures, None, "the result is unknown");
        assert_eq!((&second.outcome, &second.deeds[0].deed), (&None, &asked));
        assert_eq!(past.unattended_times(), [at(0.0), at(2.0)]);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().all(|line| line.starts_with(r#"{"schema":"gpumem.ledger/1","#)));
        assert!(!text.contains('\u{1b}'), "control characters are escaped");
    }

    #[test]
    fn a_torn_line_loses_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        for entry in all() {
            ledger.write(&entry).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        let last = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
        for cut in [last + 2, last + 9, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut ledger = Ledger::open(&path).unwrap();
            ledger.write(&entry("b", 3.0, LedgerEvent::Intended(term()))).unwrap();
            ledger.write(&entry("b", 4.0, LedgerEvent::Ended(Outcome::AlreadyGone))).unwrap();
            let past = read(&path, 1 << 20).unwrap();
            let is_whole = cut == whole.len() - 1;
            assert_eq!(past.unread_lines, usize::from(!is_whole), "{cut}");
            assert_eq!(past.acts.len(), 2);
            assert_eq!(past.acts[0].outcome.is_some(), is_whole);
            assert_eq!(past.acts[1].outcome, Some(Outcome::AlreadyGone));
        }
        // None of these four lines is an entry of the current version.
        let strange = b"\xff\n{}\n[1]\n{\"schema\":\"gpumem.ledger/2\",\"event\":\"begun\"}\n\n";
        fs::write(&path, strange).unwrap();
        let past = read(&path, 1 << 20).unwrap();
        assert_eq!((past.acts.len(), past.unread_lines), (0, 4));
    }

    #[test]
    fn only_the_end_of_a_long_ledger_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        assert_eq!(read(&path, 100).unwrap(), LedgerSummary::default(), "no ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        for number in 0..100 {
            let act = number.to_string();
            ledger.write(&entry(&act, 1.0, LedgerEvent::Ended(Outcome::StillAlive))).unwrap();
        }
        let past = read(&path, 1000).unwrap();
        assert!(past.is_cut && past.unread_lines == 0);
        assert!((5..15).contains(&past.acts.len()), "{}", past.acts.len());
        assert_eq!(past.acts.last().map(|act| &*act.id), Some("99"));
        assert!(past.unattended_times().is_empty(), "no action was taken");
    }

    #[test]
    fn a_ledger_that_cannot_be_written_is_an_error() {
        let Ok(mut full) = OpenOptions::new().append(true).open("/dev/full") else {
            return;
        };
        assert!(full.write_all(b"x").is_err());
        let error = Ledger::open(Path::new("/dev/full")).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
        let mut ledger = Ledger { path: "/dev/full".into(), file: full, is_torn: false };
        let error = ledger.write(&all()[0]).unwrap_err();
        assert!(matches!(error, LedgerError::Write { .. }), "{error}");
        assert!(ledger.is_torn);
        let folder = tempfile::tempdir().unwrap();
        assert!(Ledger::open(&folder.path().join("no/ledger")).is_err());
    }

    #[test]
    fn only_the_owner_can_read_a_ledger() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        Ledger::open(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }

    #[test]
    fn only_unattended_acts_count_for_the_rate_limit() {
        let deed = PastDeed { ended: None, time: at(0.0), deed: term(), failures: None };
        let act = |seconds, is_unattended: Option<bool>| PastAct {
            id: "a".into(),
            time: at(seconds),
            actor: is_unattended.map(|is_unattended| Actor { is_unattended, ..actor() }),
            target: None,
            deeds: vec![deed.clone()],
            outcome: None,
        };
        let mut idle = act(4.0, Some(true));
        idle.deeds.clear();
        let past = LedgerSummary {
            acts: vec![act(1.0, Some(false)), act(2.0, Some(true)), act(3.0, None), idle],
            ..LedgerSummary::default()
        };
        assert_eq!(past.unattended_times(), [at(2.0), at(3.0)]);
    }
}
