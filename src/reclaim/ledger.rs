//! What was done, when, to which process and why: an append-only file of JSON Lines.
//!
//! A line is on the disk before what it announces is done, so that whatever ends gpumem in the middle
//! of an act, the ledger says what was sent or was about to be. A line that cannot be written stops the
//! act. The last line of a file may be torn: the next writer begins a new one, and the reader goes on
//! behind it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target::Target;
pub use super::target::{Deed, LedgerProcess};
use super::verify::Outcome;
use crate::model::Time;
use crate::model::json;

/// Its name, in the directory of state.
pub const FILE_NAME: &str = "reap.jsonl";
/// What is read of its end: some thousand acts.
pub const MOST_READ_BYTES: u64 = 16 << 20;
/// The `schema` of each line.
pub const SCHEMA: &str = "gpumem.ledger/1";
/// A line is not longer; a family of a thousand members is half as long.
const MOST_LINE_BYTES: usize = 1 << 20;

/// What keeps the ledger from being written or read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// It cannot be opened to write.
    #[error("cannot open the audit log {}: {cause}; nothing is killed without one", path.display())]
    Open { path: PathBuf, cause: io::Error },
    /// A line could not be written.
    #[error("cannot write to the audit log {}: {cause}; the action was not carried out", path.display())]
    Write { path: PathBuf, cause: io::Error },
    /// It cannot be read.
    #[error("cannot read the audit log {}: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
}

/// A line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LedgerEntry {
    pub time: Time,
    /// The act that it is of.
    pub act: Arc<str>,
    #[serde(flatten)]
    pub event: LedgerEvent,
}

/// What a line says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LedgerEvent {
    /// An act begins.
    Begun {
        actor: Actor,
        /// Upon what: with the reason, its evidence and all steps.
        target: Box<Target>,
    },
    /// Something is about to be done; whether it was is in a later line, if gpumem lived to write it.
    Intended(Deed),
    Done {
        #[serde(flatten)]
        deed: Deed,
        /// Processes to which it was not done, and why.
        failures: Vec<Failure>,
    },
    /// The act is over.
    Ended(Outcome),
}

/// Who acts.
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Actor {
    /// gpumem's process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The user's name.
    pub user: Option<Arc<str>>,
    /// Who became that user by sudo.
    pub sudo_user: Option<Arc<str>>,
    /// No person was asked: `gpumem reap --watch` acted by itself.
    #[serde(default)]
    pub is_unattended: bool,
}

/// What was not done.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Failure {
    /// The process; `None` where somebody was asked.
    pub pid: Option<u32>,
    /// Why.
    pub error: String,
}

/// Where lines go.
pub trait LedgerSink {
    /// Writes a line; when it returns, the line is on the disk.
    ///
    /// # Errors
    ///
    /// Where it is not.
    fn write(&mut self, entry: &LedgerEntry) -> Result<(), LedgerError>;
}

/// The ledger, open to append to.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    /// The last line has no end.
    is_torn: bool,
}

impl Ledger {
    /// Opens a ledger, which is created where it is missing; only its owner may read it, because it
    /// tells what others ran.
    ///
    /// # Errors
    ///
    /// Where it cannot be opened, or is no ordinary file.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let failed = |cause| LedgerError::Open { path: path.to_owned(), cause };
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            // A pipe would hang, a link would lead elsewhere.
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path)
            .map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("no ordinary file")));
        }
        let mut last = [b'\n'];
        if let Some(end) = metadata.len().checked_sub(1) {
            file.read_exact_at(&mut last, end).map_err(failed)?;
        }
        // That it exists has to be on the disk as well.
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
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
        if line.len() > MOST_LINE_BYTES {
            return Err(failed(io::Error::other("the line would be too long")));
        }
        // Until the whole of it is there.
        self.is_torn = true;
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(failed)?;
        self.is_torn = false;
        Ok(())
    }
}

/// What a ledger tells.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LedgerSummary {
    /// The acts, oldest first.
    pub acts: Vec<PastAct>,
    /// Lines that are torn, or of a later version.
    pub unread_lines: usize,
    /// There is more before them.
    pub is_cut: bool,
}

/// An act as the ledger tells it. What the ledger does not hold of it is `None`.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PastAct {
    /// Its name.
    pub id: Arc<str>,
    /// When it began, or was first heard of.
    pub time: Time,
    /// Who acted.
    pub actor: Option<Actor>,
    /// Upon what.
    pub target: Option<Box<Target>>,
    /// What was done, in order.
    pub deeds: Vec<PastDeed>,
    /// What it came to; `None` where gpumem did not live to see it.
    pub outcome: Option<Outcome>,
}

/// An act as the audit log has it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PastDeed {
    /// When it was announced or reported.
    pub time: Time,
    /// What.
    #[serde(flatten)]
    pub deed: Deed,
    /// What of it was not done; `None` where it is not known whether anything was.
    pub failures: Option<Vec<Failure>>,
    /// When that was known; absent where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
}

/// Reads the end of a ledger, `most_bytes` of it at most. One that does not exist is empty.
///
/// # Errors
///
/// Where it cannot be read.
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
        // The rest of a line.
        lines.next();
    }
    let mut places = HashMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        match parse(line) {
            Some(entry) => past.apply(entry, &mut places),
            None => past.unread_lines += 1,
        }
    }
    Ok(past)
}

fn parse(line: &[u8]) -> Option<LedgerEntry> {
    #[derive(Deserialize)]
    struct Header {
        schema: String,
    }
    let header: Header = serde_json::from_slice(line).ok()?;
    (header.schema == SCHEMA).then(|| serde_json::from_slice(line).ok())?
}

impl LedgerSummary {
    /// When acts began that did something without asking a person, for a
    /// [`ReapPace`](super::policy::ReapPace). What a person has said yes to is no automaton's; an act of which
    /// the ledger does not hold whose it was counts.
    pub fn unattended_times(&self) -> Vec<Time> {
        let is_unattended = |act: &&PastAct| act.actor.as_ref().is_none_or(|it| it.is_unattended);
        let acts = self.acts.iter().filter(|act| !act.deeds.is_empty());
        acts.filter(is_unattended).map(|act| act.time).collect()
    }

    fn apply(&mut self, entry: LedgerEntry, places: &mut HashMap<Arc<str>, usize>) {
        let time = entry.time;
        let place = *places.entry(Arc::clone(&entry.act)).or_insert_with(|| {
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
        let act = &mut self.acts[place];
        match entry.event {
            LedgerEvent::Begun { actor, target } => {
                act.actor = Some(actor);
                act.target = Some(target);
            }
            LedgerEvent::Intended(deed) => {
                act.deeds.push(PastDeed { time, deed, failures: None, ended: None });
            }
            LedgerEvent::Done { deed, failures } => {
                let known = act.deeds.last_mut();
                match known.filter(|it| it.deed == deed && it.failures.is_none()) {
                    Some(known) => {
                        (known.failures, known.ended) = (Some(failures), Some(time));
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
mod tests;
