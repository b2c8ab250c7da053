//! Computes totals of past actions from the audit log.
//!
//! Each update reads only the lines appended since the previous update. The totals never decrease, even if the log is
//! truncated.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::ledger::{self, LedgerEntry, LedgerEvent};
use super::release::ReleaseBy;
use super::target::Deed;
use crate::model::waste::{How, Reclaimed};

#[derive(Debug)]
pub struct ReclaimLog {
    path: PathBuf,
    /// Inode of the file. `read` counts the bytes read from this file.
    inode: u64,
    read: u64,
    open: HashMap<Arc<str>, OpenAct>,
    sums: Reclaimed,
}

#[derive(Debug, Default)]
struct OpenAct {
    user: Arc<str>,
    /// Method of the last action, or `None` if no action was taken yet.
    method: Option<How>,
}

impl ReclaimLog {
    pub fn new(path: PathBuf) -> Self {
        let (open, sums) = (HashMap::new(), Reclaimed::default());
        Self { path, inode: 0, read: 0, open, sums }
    }

    /// Reads new entries and returns the totals. Returns the previous totals if the log cannot be read.
    pub fn sums(&mut self) -> &Reclaimed {
        let _ = self.read_on();
        &self.sums
    }

    fn read_on(&mut self) -> io::Result<()> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        let metadata = file.metadata()?;
        if metadata.ino() != self.inode || metadata.len() < self.read {
            // The file was replaced or truncated, so read it from the start.
            (self.inode, self.read) = (metadata.ino(), 0);
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut file = BufReader::new(file.take(metadata.len() - self.read));
        let mut line = Vec::new();
        // If the last line has no newline, it is still being written.
        while file.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            self.read += line.len() as u64;
            if let Some(entry) = ledger::parse(&line) {
                self.add(entry);
            }
            line.clear();
        }
        Ok(())
    }

    fn add(&mut self, entry: LedgerEntry) {
        match entry.event {
            LedgerEvent::Begun { target, .. } => {
                let leader = target.members.iter().find(|member| member.pid == target.leader);
                let user = leader.and_then(|leader| leader.user.clone()).unwrap_or_default();
                self.open.insert(entry.act, OpenAct { user, method: None });
            }
            LedgerEvent::Intended(deed) | LedgerEvent::Done { deed, .. } => {
                self.open.entry(entry.act).or_default().method = Some(method_of(&deed));
            }
            LedgerEvent::Ended(outcome) => {
                let Some(OpenAct { user, method: Some(method) }) = self.open.remove(&entry.act)
                else {
                    return;
                };
                *self.sums.acts.entry((method, outcome.name())).or_default() += 1;
                if outcome.freed_bytes() > 0 {
                    *self.sums.bytes.entry((method, user)).or_default() += outcome.freed_bytes();
                }
            }
        }
    }
}

fn method_of(deed: &Deed) -> How {
    match deed {
        Deed::Release { way } if matches!(way.by, ReleaseBy::Server(_)) => "unload",
        Deed::Release { .. } => "release",
        Deed::Park { .. } => "park",
        Deed::Signal { .. } | Deed::ShutKernel { .. } => "end",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::Kind;
    use crate::reclaim::Outcome;
    use crate::reclaim::ledger::{Actor, Ledger, LedgerSink as _};
    use crate::reclaim::testing::{at, finding, gpu, guard, plan_of, process, snapshot};
    use crate::units::GIB;

    fn append(path: &std::path::Path, act: &str, events: Vec<LedgerEvent>) {
        let mut ledger = Ledger::open(path).unwrap();
        for event in events {
            ledger.write(&LedgerEntry { time: at(0.0), act: act.into(), event }).unwrap();
        }
    }

    fn begun() -> LedgerEvent {
        let mut python = process(70, "python");
        python.user = Some("ann".into());
        let snapshot =
            snapshot(at(0.0), std::slice::from_ref(&python), vec![gpu(0, &[(70, GIB)], 0)]);
        let mut plan = plan_of(&[finding(Kind::Idle, &python)], &snapshot, &guard());
        let target = Box::new(plan.targets.remove(0));
        LedgerEvent::Begun { actor: Actor::default(), target }
    }

    fn term() -> LedgerEvent {
        LedgerEvent::Intended(Deed::ShutKernel { kernel_id: "k".into() })
    }

    fn freed() -> LedgerEvent {
        LedgerEvent::Ended(Outcome::Freed { bytes: GIB, ms: 900 })
    }

    #[test]
    fn an_act_is_counted_once_and_totals_never_decrease() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reap.jsonl");
        let mut log = ReclaimLog::new(path.clone());
        assert_eq!(log.sums(), &Reclaimed::default(), "no log");
        // The entries of an act can be read at different times, and an act without actions is not included.
        append(&path, "a", vec![begun(), term()]);
        assert_eq!(log.sums(), &Reclaimed::default());
        append(&path, "a", vec![freed()]);
        append(&path, "b", vec![begun(), LedgerEvent::Ended(Outcome::RuleNoLongerTrue)]);
        append(&path, "c", vec![begun(), term(), LedgerEvent::Ended(Outcome::StillAlive)]);
        let expected = |freed: u64| Reclaimed {
            bytes: [(("end", "ann".into()), freed * GIB)].into(),
            acts: [(("end", "freed".into()), freed), (("end", "still_alive".into()), 1)].into(),
        };
        assert_eq!(log.sums(), &expected(1));
        assert_eq!(log.sums(), &expected(1), "it is not read again");
        // First, the log is replaced with a new file. Then, it is truncated.
        fs::rename(&path, folder.path().join("old")).unwrap();
        append(&path, "d", vec![begun(), term(), freed()]);
        assert_eq!(log.sums(), &expected(2));
        fs::write(&path, "").unwrap();
        assert_eq!(log.sums(), &expected(2));
        append(&path, "e", vec![begun(), term(), freed()]);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], b"{\"schema\":\"gpu"].concat()).unwrap();
        assert_eq!(log.sums(), &expected(3));
        append(&path, "f", vec![begun(), term(), freed()]);
        assert_eq!(log.sums(), &expected(4));
    }
}
