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
use crate::cli::{complain, config, store};
use crate::host::Roots;
use crate::model::{Snapshot, Time};
use crate::reclaim::ask_servers;
use crate::reclaim::ledger::{self, Actor, Entry, Event, Record};
use crate::reclaim::{
    Act, Guard, Ledger, Lock, Moment, Outcome, Pidfds, Progress, Target, resume, standing,
};
use crate::rules::Engine;
use crate::source::live::Live;

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
    /// When acts of the past began that did something and of which nobody was asked.
    pub(in crate::cli) acts: Vec<Time>,
    /// Whom an earlier gpumem, which was killed, had left stopped, and who go on now; in words.
    pub(in crate::cli) resumed: Option<String>,
}

impl Taken {
    /// Takes the lock of a directory of state, which is there, and opens the ledger in it. Whom an
    /// earlier act has left stopped is made to go on.
    ///
    /// # Errors
    ///
    /// Another reaper is at work, or there can be no ledger.
    pub(in crate::cli) fn take(folder: &Path) -> anyhow::Result<Self> {
        let lock = Lock::take(&folder.join(LOCK))?;
        let path = folder.join(LEDGER);
        let mut ledger = Ledger::open(&path)?;
        let past = ledger::read(&path, MOST_LEDGER_BYTES)?;
        let mut hands = Pidfds::new(Roots::default());
        let resumed = resume(&past, config::now(), &mut hands, &mut ledger)?;
        Ok(Self {
            lock,
            ledger,
            acts: past.unattended_times(),
            resumed: page::resumed(&resumed),
        })
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
        let Taken {
            lock,
            ledger,
            resumed,
            ..
        } = Taken::take_here()?;
        if let Some(words) = resumed {
            complain(&words);
        }
        let interrupt = Interrupt::catch()?;
        Ok(Self {
            live,
            engine,
            guard: Arc::new(guard),
            actor,
            ledger,
            _lock: lock,
            interrupt,
        })
    }

    /// Carries a target out, to its end.
    ///
    /// # Errors
    ///
    /// The ledger cannot be written: what it was to announce was not done.
    pub(super) fn end(&mut self, target: Target) -> Result<Ended, ledger::Error> {
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
            match act.advance(moment, &mut hands, &mut record)? {
                Progress::Ended(outcome) => return Ok(Ended::With(outcome)),
                Progress::Waiting { .. } => thread::sleep(INTERVAL),
            }
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
        is_unattended: false,
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
