//! Carries out plans: one target after another or, on request, named targets at the same time.
//!
//! The command line, the screen and the service supply samples with findings, and implement [`Observer`] to receive
//! events. This module checks the findings again before every step, and [`Act`] writes each action to the ledger. The
//! executor holds the reaper lock until it is dropped.
//!
//! The executor itself sends no signals (see `act`) and reads no clock.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::act::{Act, ActProgress};
use super::guard::Guard;
use super::ledger::{self, Actor, Deed, Failure, Ledger, LedgerEntry, LedgerEvent, LedgerSink};
use super::past_acts::{PastRelease, past_releases};
use super::policy::next_act;
use super::process_control::{PidfdControl, ProcessControl};
use super::recheck::recheck;
use super::step::StepInput;
use super::target::Target;
use super::verify::Outcome;
use crate::config::reap::ReapConfig;
use crate::host::{Roots, open_output, read_host};
use crate::model::finding::Finding;
use crate::model::{Snapshot, Time};
use crate::units::system_message;

#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// Another reaper is running, or the lock could not be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Ledger(#[from] ledger::LedgerError),
}

pub struct Tools {
    control: Box<dyn ProcessControl + Send>,
    record: Box<dyn LedgerSink + Send>,
    unattended: Vec<Time>,
    releases: Vec<PastRelease>,
    _lock: Option<Lock>,
}

impl Tools {
    /// Takes the reaper lock in an existing state directory and opens the ledger in the same directory. Returns an
    /// error if another reaper is running or the ledger cannot be opened or read.
    pub fn open(folder: &Path, roots: &Roots) -> Result<Self, ExecutorError> {
        let lock = Lock::acquire(&folder.join(LOCK_FILE))?;
        let path = folder.join(ledger::FILE_NAME);
        let ledger = Ledger::open(&path)?;
        let past = ledger::read(&path, ledger::MOST_READ_BYTES)?;
        let control = PidfdControl::new(roots.clone());
        let boot_id = read_host(roots).boot_id;
        Ok(Self {
            unattended: past.unattended_times(),
            releases: past_releases(&past, boot_id.as_deref()),
            _lock: Some(lock),
            ..Self::new(Box::new(control), Box::new(ledger))
        })
    }

    pub(crate) fn new(
        control: Box<dyn ProcessControl + Send>,
        record: Box<dyn LedgerSink + Send>,
    ) -> Self {
        Self { control, record, unattended: Vec::new(), releases: Vec::new(), _lock: None }
    }

    #[cfg(test)]
    pub(crate) fn after(self, unattended: Vec<Time>) -> Self {
        Self { unattended, ..self }
    }

    pub fn earliest(&self, reap: &ReapConfig, now: Time) -> Time {
        next_act(reap, &self.unattended, now)
    }
}

impl std::fmt::Debug for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tools").field("unattended", &self.unattended).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct FreshSample<'a> {
    pub now: Time,
    pub snapshot: &'a Snapshot,
    /// All findings that are not exempt, or `None` if the findings are unknown because the sample is old or the act
    /// was revoked.
    pub found: Option<Vec<&'a Finding>>,
}

pub trait Observer {
    /// Called immediately before an action, after the action was written to the ledger.
    fn intended(&mut self, index: usize, deed: &Deed);

    fn failed(&mut self, index: usize, failures: &[Failure]);

    /// Called while the executor waits for a step to take effect, at most until the given time.
    fn waiting(&mut self, _index: usize, _until: Time) {}

    /// Called when the target gets more time because it is still working. `words` describes the work.
    fn saving(&mut self, index: usize, words: &str);

    fn ended(&mut self, index: usize, target: &Target, outcome: &Outcome);
}

#[derive(Debug)]
pub struct Executor {
    targets: Vec<Target>,
    /// Index of the first target that has not begun.
    next: usize,
    /// The running acts, with the indexes of their targets.
    acts: Vec<(usize, Act)>,
    is_together: bool,
    guard: Arc<Guard>,
    actor: Actor,
    tools: Tools,
}

impl Executor {
    /// Creates an executor that acts on the targets in this order. `guard` is the guard that made the plan.
    pub fn new(targets: Vec<Target>, guard: Guard, actor: Actor, tools: Tools) -> Self {
        let guard = Arc::new(guard);
        Self { targets, next: 0, acts: Vec::new(), is_together: false, guard, actor, tools }
    }

    /// Acts at the same time on consecutive named targets whose steps send no requests.
    pub fn together(self) -> Self {
        Self { is_together: true, ..self }
    }

    /// Returns the targets of the running acts or, if none is running, the next target.
    pub fn running(&self) -> impl Iterator<Item = &Target> {
        let next = self.acts.is_empty().then_some(self.next);
        let running = self.acts.iter().map(|(index, _)| *index);
        running.chain(next).filter_map(|index| self.targets.get(index))
    }

    pub fn target(&self) -> Option<&Target> {
        self.running().next()
    }

    fn begin(&mut self) {
        while let Some(target) = self.targets.get(self.next) {
            let is_alone = !self.is_together || target.is_found() || target.makes_requests();
            if is_alone && !self.acts.is_empty() {
                break;
            }
            let act = Act::new(target.clone(), Arc::clone(&self.guard), self.actor.clone());
            self.acts.push((self.next, act.after(self.tools.releases.clone())));
            self.next += 1;
            if is_alone {
                break;
            }
        }
    }

    /// Takes the steps that are due. If acts end, returns the outcome of one of them; the observer receives all. After
    /// all running acts end, the next call starts the next target. Returns `None` if no target is left. If the ledger
    /// cannot be written, returns the error without taking the next action; the caller must stop then.
    pub fn advance(
        &mut self,
        sample: &FreshSample<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Option<ActProgress>, ledger::LedgerError> {
        if self.acts.is_empty() {
            self.begin();
        }
        let mut progress = None;
        for (index, act) in &mut self.acts {
            let input = StepInput {
                now: sample.now,
                snapshot: sample.snapshot,
                recheck: recheck(
                    act.target(),
                    &act.alive(),
                    sample.found.as_deref(),
                    sample.snapshot,
                ),
            };
            let mut record = ObservedRecord {
                record: &mut *self.tools.record,
                index: *index,
                observer: &mut *observer,
                releases: &mut self.tools.releases,
            };
            let was_saving = act.saving().is_some();
            let latest = act.advance(input, &mut *self.tools.control, &mut record)?;
            if let Some(words) = act.saving().filter(|_| !was_saving) {
                observer.saving(*index, words);
            }
            match &latest {
                ActProgress::Waiting { until } => observer.waiting(*index, *until),
                ActProgress::Ended(outcome) => observer.ended(*index, act.target(), outcome),
            }
            progress = Some(match (progress, latest) {
                (Some(ended @ ActProgress::Ended(_)), _) => ended,
                (Some(ActProgress::Waiting { until: first }), ActProgress::Waiting { until }) => {
                    ActProgress::Waiting { until: first.min(until) }
                }
                (_, latest) => latest,
            });
        }
        self.acts.retain(|(_, act)| act.outcome().is_none());
        if self.acts.is_empty() {
            self.tools.control.release();
        }
        Ok(progress)
    }
}

/// Passes each entry to the observer after writing it to the ledger.
struct ObservedRecord<'a> {
    record: &'a mut dyn LedgerSink,
    index: usize,
    observer: &'a mut dyn Observer,
    releases: &'a mut Vec<PastRelease>,
}

impl LedgerSink for ObservedRecord<'_> {
    fn write(&mut self, entry: &LedgerEntry) -> Result<(), ledger::LedgerError> {
        self.record.write(entry)?;
        match &entry.event {
            LedgerEvent::Intended(deed) => {
                if let Deed::Release { way } = deed {
                    self.releases.push(PastRelease::new(way, entry.time, None));
                }
                self.observer.intended(self.index, deed);
            }
            LedgerEvent::Done { failures, .. } if !failures.is_empty() => {
                self.observer.failed(self.index, failures);
            }
            LedgerEvent::Begun { .. } | LedgerEvent::Done { .. } | LedgerEvent::Ended(_) => {}
        }
        Ok(())
    }
}

pub(super) const LOCK_FILE: &str = "reap.lock";

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another reaper{} is running ({} is locked); wait for it to exit", holder(*pid), path.display())]
    Held { path: PathBuf, pid: Option<u32> },
    #[error("cannot lock {}: {}; nothing is done without the lock", path.display(), system_message(cause))]
    Failed { path: PathBuf, cause: io::Error },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" ({pid})"))
}

/// The reaper lock. When its holder exits for any reason, the kernel releases the lock.
#[derive(Debug)]
pub struct Lock {
    _held: File,
}

impl Lock {
    /// Locks the file, which is created if it is missing. Returns an error immediately if another process holds the
    /// lock, or if locking fails.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let failed = |cause| LockError::Failed { path: path.to_owned(), cause };
        // With mode 0600, only the owner can open the file. Any user who could open it, even for reading, could take
        // the lock and block the reaper.
        let mut file = open_output(path, OFlags::empty(), 0o600).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = file.take(16).read_to_string(&mut text);
                return Err(LockError::Held {
                    path: path.to_owned(),
                    pid: read.ok().and_then(|_| text.trim().parse().ok()),
                });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        // The pid is only shown to users, so errors are ignored.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", process::id()));
        Ok(Self { _held: file })
    }
}

#[cfg(test)]
mod tests;
