//! What an act does to others: it is written down, done, and what came of it written down.
//!
//! Whether it may be done was asked by `act` just before.

use std::sync::Arc;

use super::guard::Protection;
use super::hands::{Handle, Hands, NotSent, Request};
use super::held::Held;
use super::ledger::{Deed, Entry, Error, Event, Failure, Process, Record};
use super::policy::Signal;
use super::verify::Outcome;
use crate::model::Time;

/// What may be done at one moment.
pub(super) struct Deeds<'a> {
    /// Of this act.
    pub act: &'a Arc<str>,
    pub now: Time,
    pub held: &'a Held,
    pub hands: &'a mut dyn Hands,
    pub record: &'a mut dyn Record,
    /// Somebody who was stopped was made to go on.
    pub has_continued: bool,
}

impl Deeds<'_> {
    fn note(&mut self, event: Event) -> Result<(), Error> {
        self.record.write(&Entry {
            time: self.now,
            act: Arc::clone(self.act),
            event,
        })
    }

    /// Begins to ask somebody.
    pub fn ask(&mut self, request: Request) -> Result<Deed, Error> {
        let deed = match &request {
            Request::ShutKernel { kernel, .. } => Deed::ShutKernel {
                kernel_id: Arc::clone(&kernel.id),
            },
            Request::TerminateClient { pids, .. } => Deed::TerminateClient { pids: pids.clone() },
        };
        self.note(Event::Intended(deed.clone()))?;
        self.hands.ask(request);
        Ok(deed)
    }

    /// Sends a signal, and to those that are stopped one to go on; the youngest first, so that none of a
    /// family has time to start another. An outcome ends the act.
    ///
    /// None is stopped before it is killed: where the leader of a process group ends while others of the
    /// group are stopped, the kernel sends SIGHUP to the whole group, whoever is in it
    /// (`kill_orphaned_pgrp` in `kernel/exit.c`).
    pub fn send(&mut self, signal: Signal, whom: &[Handle]) -> Result<Option<Outcome>, Error> {
        let resumes = !matches!(signal, Signal::Kill | Signal::Stop | Signal::Cont);
        let (mut moving, mut stopped) = (Vec::new(), Vec::new());
        for (handle, process) in self.batch(whom).into_iter().rev() {
            let facts = self.hands.look(process.pid);
            let is_stopped = facts
                .is_some_and(|it| it.start_ticks == process.start_ticks && it.state == Some('T'));
            match resumes && is_stopped {
                true => stopped.push((handle, process)),
                false => moving.push((handle, process)),
            }
        }
        let mut outcome = None;
        for (signals, batch) in [
            (&[signal][..], moving),
            (&[signal, Signal::Cont][..], stopped),
        ] {
            if batch.is_empty() {
                continue;
            }
            self.has_continued |= signals.contains(&Signal::Cont);
            self.announce(signals, &batch)?;
            let failures = self.deliver(signals, &batch, &mut outcome);
            self.tell(signals, &batch, failures)?;
        }
        Ok(outcome)
    }

    fn batch(&self, whom: &[Handle]) -> Vec<(Handle, Process)> {
        whom.iter()
            .filter_map(|&handle| Some((handle, self.held.get(handle)?.process())))
            .collect()
    }

    fn announce(&mut self, signals: &[Signal], batch: &[(Handle, Process)]) -> Result<(), Error> {
        self.note(Event::Intended(deed(signals, batch)))
    }

    fn tell(
        &mut self,
        signals: &[Signal],
        batch: &[(Handle, Process)],
        failures: Vec<Failure>,
    ) -> Result<(), Error> {
        let deed = deed(signals, batch);
        self.note(Event::Done { deed, failures })
    }

    /// Sends to each of them all signals. What was refused is not tried again.
    fn deliver(
        &mut self,
        signals: &[Signal],
        batch: &[(Handle, Process)],
        outcome: &mut Option<Outcome>,
    ) -> Vec<Failure> {
        let mut failures = Vec::new();
        for (handle, process) in batch {
            let sent = signals
                .iter()
                .try_for_each(|&signal| self.hands.signal(*handle, signal));
            if let Err(error) = sent {
                failures.push(Failure {
                    pid: Some(process.pid),
                    error: error.to_string(),
                });
                *outcome = outcome.take().or(of(error));
            }
        }
        failures
    }
}

fn deed(signals: &[Signal], batch: &[(Handle, Process)]) -> Deed {
    Deed::Signal {
        signals: signals.to_vec(),
        processes: batch.iter().map(|(_, process)| *process).collect(),
    }
}

/// Whether what kept a signal from being sent ends the act: that a process is gone does not.
fn of(error: NotSent) -> Option<Outcome> {
    match error {
        NotSent::Gone => None,
        NotSent::NotPermitted => Some(Outcome::NotPermitted),
        NotSent::Failed(error) => Some(Outcome::Protected {
            why: Protection::NotHeld {
                error: error.into(),
            },
        }),
    }
}
