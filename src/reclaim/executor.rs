//! The one driver of a plan: target after target, each to its end, whoever asked for it.
//!
//! A command, the screen and the service each supply judged samples and are told what happens as an
//! [`Observer`]; everything else is here and in [`Act`]: the recheck of what the rules said, the ledger
//! before every step, and the lock, which is held for as long as the executor lives. [`Executor::run`]
//! is for who waits, [`Executor::advance`] for who is called with each sample.
//!
//! Sends nothing itself (see `act`) and asks no clock.

use std::path::Path;
use std::sync::Arc;

use super::act::{Act, ActProgress, Recheck, StepInput};
use super::guard::Guard;
use super::ledger::{self, Actor, Deed, Failure, Ledger, LedgerEntry, LedgerEvent, LedgerSink};
use super::lock::{self, Lock};
use super::past_release::{PastRelease, past_releases};
use super::policy::ReapPace;
use super::process_control::{PidfdControl, ProcessControl};
use super::recheck::{UsedAtPlan, recheck};
use super::step::perform_requests;
use super::target::Target;
use super::verify::Outcome;
use crate::host::{Roots, read_host};
use crate::model::finding::Finding;
use crate::model::{Snapshot, Time};

/// Why nothing can be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// Another reaper is at work, or the lock cannot be taken.
    #[error(transparent)]
    Lock(#[from] lock::LockError),
    /// There can be no ledger.
    #[error(transparent)]
    Ledger(#[from] ledger::LedgerError),
}

/// What nothing is done without: the lock, the ledger, and control of processes.
pub struct Tools {
    control: Box<dyn ProcessControl + Send>,
    record: Box<dyn LedgerSink + Send>,
    unattended: Vec<Time>,
    /// Who was asked to release memory, and when.
    releases: Vec<PastRelease>,
    _lock: Option<Lock>,
}

impl Tools {
    /// Takes the lock of a directory of state, which exists, and opens the ledger in it.
    ///
    /// # Errors
    ///
    /// Another reaper is at work, or there can be no ledger.
    pub fn open(folder: &Path, roots: &Roots) -> Result<Self, ExecutorError> {
        let lock = Lock::acquire(&folder.join(lock::FILE_NAME))?;
        let path = folder.join(ledger::FILE_NAME);
        let ledger = Ledger::open(&path)?;
        let past = ledger::read(&path, ledger::MOST_READ_BYTES)?;
        let control =
            PidfdControl::new(roots.clone()).with_requests(perform_requests(roots.clone()));
        let boot_id = read_host(roots).boot_id;
        Ok(Self {
            unattended: past.unattended_times(),
            releases: past_releases(&past, boot_id.as_deref()),
            _lock: Some(lock),
            ..Self::new(Box::new(control), Box::new(ledger))
        })
    }

    /// Of other process control and another ledger, without a lock.
    pub(crate) fn new(
        control: Box<dyn ProcessControl + Send>,
        record: Box<dyn LedgerSink + Send>,
    ) -> Self {
        Self { control, record, unattended: Vec::new(), releases: Vec::new(), _lock: None }
    }

    /// With unattended acts of the past that began then.
    #[cfg(test)]
    pub(crate) fn after(self, unattended: Vec<Time>) -> Self {
        Self { unattended, ..self }
    }

    /// When an unattended act may begin at this pace; not before `now`.
    pub fn earliest(&self, pace: ReapPace, now: Time) -> Time {
        pace.next(&self.unattended, now)
    }
}

impl std::fmt::Debug for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tools").field("unattended", &self.unattended).finish_non_exhaustive()
    }
}

/// A sample, and what the rules say by it.
#[derive(Clone, Debug)]
pub struct JudgedSample<'a> {
    /// Now, by the clock of the snapshots.
    pub now: Time,
    /// The newest one.
    pub snapshot: &'a Snapshot,
    /// All that the rules find in it and no exemption keeps; `None` where that is not known any more:
    /// the sample is old, or other rules are in force.
    pub found: Option<Vec<&'a Finding>>,
}

/// Who supplies samples to [`Executor::run`].
pub trait SampleSource {
    /// The newest sample; `None` where nothing more is to be sent.
    fn sample(&mut self) -> Option<JudgedSample<'_>>;

    /// Nothing is due before this time, unless a process exits or a newer snapshot comes: waits for a
    /// while, at most until then.
    fn wait(&mut self, until: Time);
}

/// Who is told what an executor does. `place` is that of the target in the plan.
pub trait Observer {
    /// This is in the ledger, and is done next.
    fn intended(&mut self, place: usize, deed: &Deed);

    /// Of what was done last, this failed.
    fn failed(&mut self, place: usize, failures: &[Failure]);

    /// The target has until then.
    fn waiting(&mut self, place: usize, until: Time);

    /// The target is at its end.
    fn ended(&mut self, place: usize, target: &Target, outcome: &Outcome);
}

/// Carries targets out, one after another.
#[derive(Debug)]
pub struct Executor {
    targets: Vec<Target>,
    place: usize,
    act: Option<Act>,
    guard: Arc<Guard>,
    actor: Actor,
    tools: Tools,
    /// As of the first sample: the plan was just made.
    at_plan: Option<UsedAtPlan>,
    /// Something was done to the target that it is at: what that uses now, it uses to end.
    has_acted: bool,
}

impl Executor {
    /// Carries these out, in this order, under the guard that they were planned by. Nothing is done yet.
    pub fn new(targets: Vec<Target>, guard: Guard, actor: Actor, tools: Tools) -> Self {
        Self {
            targets,
            place: 0,
            act: None,
            guard: Arc::new(guard),
            actor,
            tools,
            at_plan: None,
            has_acted: false,
        }
    }

    /// The target that it is at; `None` where all are at their end.
    pub fn target(&self) -> Option<&Target> {
        self.targets.get(self.place)
    }

    /// Does what is due by a sample; `None` where no target is left. After the end of one, the next
    /// call begins the next.
    ///
    /// # Errors
    ///
    /// The ledger cannot be written: the action was not carried out, and no other may be.
    pub fn advance(
        &mut self,
        sample: &JudgedSample<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Option<ActProgress>, ledger::LedgerError> {
        let place = self.place;
        let Some(target) = self.targets.get(place) else {
            return Ok(None);
        };
        let at_plan = self.at_plan.get_or_insert_with(|| UsedAtPlan::new(sample.snapshot));
        let has_acted = &mut self.has_acted;
        let act = self.act.get_or_insert_with(|| {
            *has_acted = false;
            let guard = Arc::clone(&self.guard);
            let act = Act::new(target.clone(), guard, self.actor.clone());
            act.after(self.tools.releases.clone())
        });
        let moment = StepInput {
            now: sample.now,
            snapshot: sample.snapshot,
            recheck: recheck_by(act, sample, at_plan, *has_acted),
        };
        let mut record = ObservedRecord {
            record: &mut *self.tools.record,
            place,
            observer: &mut *observer,
            releases: &mut self.tools.releases,
            has_acted,
        };
        let progress = act.advance(moment, &mut *self.tools.control, &mut record)?;
        match &progress {
            ActProgress::Waiting { until } => observer.waiting(place, *until),
            ActProgress::Ended(outcome) => {
                self.act = None;
                self.tools.control.release();
                self.place += 1;
                observer.ended(place, target, outcome);
            }
        }
        Ok(Some(progress))
    }

    /// Carries the next target out, to its end; `None` where none is left, or the supplier of samples
    /// wants nothing more sent.
    ///
    /// # Errors
    ///
    /// As [`advance`](Self::advance).
    pub fn run(
        &mut self,
        samples: &mut dyn SampleSource,
        observer: &mut dyn Observer,
    ) -> Result<Option<Outcome>, ledger::LedgerError> {
        while let Some(sample) = samples.sample() {
            match self.advance(&sample, observer)? {
                Some(ActProgress::Waiting { until }) => samples.wait(until),
                Some(ActProgress::Ended(outcome)) => return Ok(Some(outcome)),
                None => break,
            }
        }
        Ok(None)
    }
}

/// Whether what the rules said of a target is still so; what a person named is.
fn recheck_by(
    act: &Act,
    sample: &JudgedSample<'_>,
    at_plan: &UsedAtPlan,
    has_acted: bool,
) -> Recheck {
    let has_begun_work = || !has_acted && at_plan.has_begun_work(&act.alive(), sample.snapshot);
    if act.target().is_found() && !act.target().may_work() && has_begun_work() {
        return Recheck::NoLonger;
    }
    match &sample.found {
        Some(found) => recheck(act, found.iter().copied(), sample.snapshot),
        None if act.target().is_found() => Recheck::Unknown,
        None => Recheck::StillTrue,
    }
}

/// The ledger, and who is told what it was told.
struct ObservedRecord<'a> {
    record: &'a mut dyn LedgerSink,
    place: usize,
    observer: &'a mut dyn Observer,
    releases: &'a mut Vec<PastRelease>,
    has_acted: &'a mut bool,
}

impl LedgerSink for ObservedRecord<'_> {
    fn write(&mut self, entry: &LedgerEntry) -> Result<(), ledger::LedgerError> {
        self.record.write(entry)?;
        match &entry.event {
            LedgerEvent::Intended(deed) => {
                *self.has_acted = true;
                if let Deed::Release { way } = deed {
                    self.releases.push(PastRelease::new(way, entry.time, None));
                }
                self.observer.intended(self.place, deed);
            }
            LedgerEvent::Done { failures, .. } if !failures.is_empty() => {
                self.observer.failed(self.place, failures);
            }
            LedgerEvent::Begun { .. } | LedgerEvent::Done { .. } | LedgerEvent::Ended(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
