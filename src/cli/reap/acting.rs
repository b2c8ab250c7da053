//! Carrying targets out on this machine: one at a time, each to its end, with a look at the machine
//! before every step.
//!
//! What is done, and whether it may be, is decided in [`crate::reclaim`]; here it is driven: sampled,
//! judged anew, and told on standard error as it happens. Nothing is sent without the lock, nor before
//! the ledger has it.

use std::fs;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::geteuid;

use super::interrupt::Interrupt;
use super::page;
use crate::cli::{complain, store};
use crate::host::Roots;
use crate::model::{Snapshot, Time};
use crate::reclaim::ask_servers;
use crate::reclaim::guard::Call;
use crate::reclaim::ledger::{self, Actor, Entry, Event, Record};
use crate::reclaim::policy::Pace;
use crate::reclaim::{
    Act, Guard, Ledger, Lock, Moment, Outcome, Pidfds, Progress, Target, standing,
};
use crate::rules::Engine;
use crate::source::live::Live;
use crate::units::Span;

/// The ledger, in the directory of state.
pub(super) const LEDGER: &str = "reap.jsonl";
/// The lock, beside it.
const LOCK: &str = "reap.lock";
/// What is read of the ledger's end: some thousand acts.
pub(super) const MOST_LEDGER_BYTES: u64 = 16 << 20;
/// Between two looks while something is being ended.
const INTERVAL: Duration = Duration::from_millis(250);

/// What nothing is done without.
pub(in crate::cli) struct Taken {
    pub(in crate::cli) lock: Lock,
    pub(in crate::cli) ledger: Ledger,
    /// When acts of the past began that did something.
    pub(in crate::cli) acts: Vec<Time>,
}

impl Taken {
    /// Takes the lock of a directory of state, which is there, and opens the ledger in it.
    ///
    /// # Errors
    ///
    /// Another reaper is at work, or there can be no ledger.
    pub(in crate::cli) fn take(folder: &Path) -> anyhow::Result<Self> {
        let lock = Lock::take(&folder.join(LOCK))?;
        let path = folder.join(LEDGER);
        let ledger = Ledger::open(&path)?;
        let acts = ledger::read(&path, MOST_LEDGER_BYTES)?.times();
        Ok(Self { lock, ledger, acts })
    }

    /// As [`Taken::take`], of this user's directory of state, which is made where it is missing.
    ///
    /// # Errors
    ///
    /// As there, and where the directory cannot be made.
    pub(in crate::cli) fn take_here() -> anyhow::Result<Self> {
        let folder = store::state()?;
        fs::create_dir_all(&folder).with_context(|| {
            let name = folder.display();
            format!("cannot make the directory {name} for the ledger; nothing is done without one")
        })?;
        Self::take(&folder)
    }
}

/// Who carries targets out.
pub(super) struct Reaper {
    live: Live,
    engine: Engine,
    guard: Arc<Guard>,
    actor: Actor,
    ledger: Ledger,
    _lock: Lock,
    /// When acts began that did something.
    acts: Vec<Time>,
    pace: Pace,
    interrupt: Interrupt,
}

/// What became of a target.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Ended {
    /// This.
    With(Outcome),
    /// A signal came meanwhile: it is as it was left.
    Interrupted {
        /// Which.
        signal: i32,
        /// What had been sent until then, in words.
        sent: Vec<String>,
    },
}

impl Reaper {
    /// Takes the lock and opens the ledger; nothing is done yet. `engine` has judged what `live` has shown
    /// so far, and goes on doing so.
    ///
    /// # Errors
    ///
    /// Another reaper is at work, or there can be no ledger.
    pub(super) fn new(
        live: Live,
        engine: Engine,
        guard: Guard,
        actor: Actor,
    ) -> anyhow::Result<Self> {
        let Taken { lock, ledger, acts } = Taken::take_here()?;
        let interrupt = Interrupt::catch()?;
        Ok(Self {
            live,
            engine,
            guard: Arc::new(guard),
            actor,
            ledger,
            _lock: lock,
            acts,
            pace: Pace::default(),
            interrupt,
        })
    }

    /// Carries a target out, to its end.
    ///
    /// # Errors
    ///
    /// The ledger cannot be written: what it was to announce was not done.
    pub(super) fn end(&mut self, target: Target) -> Result<Ended, ledger::Error> {
        // What a person named is no automaton's; one at a time is slow enough.
        if target.call() == Call::Rule
            && !target.is_advice()
            && let Some(signal) = self.wait_for_turn()
        {
            let sent = Vec::new();
            return Ok(Ended::Interrupted { signal, sent });
        }
        let mut act = Act::new(target, Arc::clone(&self.guard), self.actor.clone());
        let roots = Roots::default();
        let mut hands = Pidfds::new(roots.clone()).with_server(ask_servers(roots));
        let mut sent = Vec::new();
        loop {
            let snapshot = self.look();
            if let Some(signal) = self.interrupt.signal() {
                return Ok(Ended::Interrupted { signal, sent });
            }
            let moment = Moment {
                now: self.live.now(),
                snapshot: &snapshot,
                stands: standing(&act, self.engine.unkept(), &snapshot),
            };
            let mut record = Told {
                ledger: &mut self.ledger,
                sent: &mut sent,
            };
            let before = record.sent.len();
            let progress = act.advance(moment, &mut hands, &mut record)?;
            if before == 0 && !sent.is_empty() {
                self.acts.push(moment.now);
            }
            match progress {
                Progress::Ended(outcome) => return Ok(Ended::With(outcome)),
                Progress::Waiting { .. } => thread::sleep(INTERVAL),
            }
        }
    }

    /// Waits until one more act is in keeping with the pace; what was caught, if something was.
    fn wait_for_turn(&mut self) -> Option<i32> {
        let mut is_said = false;
        loop {
            if let Some(signal) = self.interrupt.signal() {
                return Some(signal);
            }
            let now = self.live.now();
            let next = self.pace.next(&self.acts, now);
            if next <= now {
                return None;
            }
            if !is_said {
                let Pace {
                    settle,
                    most,
                    within,
                } = self.pace;
                let (settle, within) = (Span(settle), Span(within));
                let left = Span::from_seconds(next.seconds_since(now));
                complain(&format!(
                    "waiting {left}: {settle} between one and the next, {most} in {within} at most"
                ));
                is_said = true;
            }
            thread::sleep(INTERVAL);
            // The rules have to know what happens meanwhile.
            self.look();
        }
    }

    fn look(&mut self) -> Snapshot {
        let snapshot = self.live.sample();
        self.engine.observe(&snapshot);
        snapshot
    }
}

/// Who acts here. The owners that a snapshot names tell what this user is called.
pub(in crate::cli) fn actor(snapshot: &Snapshot) -> Actor {
    let uid = geteuid().as_raw();
    let own = snapshot.processes.iter().find(|it| it.uid == Some(uid));
    Actor {
        pid: process::id(),
        uid,
        user: own.and_then(|process| process.user.clone()),
        sudo_user: std::env::var("SUDO_USER").ok().map(Into::into),
    }
}

/// The ledger, which tells on standard error what it was told.
struct Told<'a> {
    ledger: &'a mut Ledger,
    /// What was done, in words.
    sent: &'a mut Vec<String>,
}

impl Record for Told<'_> {
    fn write(&mut self, entry: &Entry) -> Result<(), ledger::Error> {
        self.ledger.write(entry)?;
        match &entry.event {
            Event::Intended(deed) => {
                let words = page::deed(deed);
                complain(&words);
                self.sent.push(words);
            }
            Event::Done { failures, .. } if !failures.is_empty() => {
                let words = page::failures(failures);
                complain(&words);
                if let Some(last) = self.sent.last_mut() {
                    *last = format!("{last} ({words})");
                }
            }
            Event::Begun { .. } | Event::Done { .. } | Event::Ended(_) => {}
        }
        Ok(())
    }
}
