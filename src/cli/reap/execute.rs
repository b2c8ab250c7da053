//! Carries out a plan on this machine. The executor in [`crate::reclaim`] decides and acts. This module takes a sample
//! before every step, and reports progress on standard error.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::termios::{QueueSelector, tcflush};

use crate::cli::signals::Interrupt;
use crate::cli::{signals, store, warn};
use crate::deadline::{NoAnswer, Task};
use crate::host::Roots;
use crate::model::Snapshot;
use crate::reclaim::ledger::{Actor, Deed, Failure};
use crate::reclaim::target::listed;
use crate::reclaim::{ActProgress, Executor, FreshSample, Guard, Observer, Outcome, Target, Tools};
use crate::report::reap as text;
use crate::rules::Engine;
use crate::source::live::Live;

/// Interval between samples while a plan is carried out.
const INTERVAL: Duration = Duration::from_millis(250);
const ASKING_INTERVAL: Duration = Duration::from_millis(500);

/// Locks an existing state directory and opens the audit log in the directory. Fails if another reaper is running, or
/// if the audit log cannot be opened.
pub(super) fn tools(folder: &Path) -> anyhow::Result<Tools> {
    Ok(Tools::open(folder, &Roots::default())?)
}

/// Locks the caller's state directory and opens the audit log. Creates the directory if it is missing.
pub(in crate::cli) fn tools_here() -> anyhow::Result<Tools> {
    let folder = store::state()?;
    fs::create_dir_all(&folder).with_context(|| {
        let name = folder.display();
        format!("cannot create the directory {name} for the audit log, so nothing is killed")
    })?;
    tools(&folder)
}

/// Supplies samples of this machine until a signal arrives.
struct LiveSamples {
    live: Live,
    engine: Engine,
    snapshot: Snapshot,
    interrupt: Interrupt,
}

impl LiveSamples {
    fn sample(&mut self) -> Option<FreshSample<'_>> {
        self.snapshot = self.live.sample();
        self.engine.observe(&self.snapshot);
        self.interrupt.signal().is_none().then(|| FreshSample {
            now: self.live.now(),
            snapshot: &self.snapshot,
            found: Some(self.engine.unkept().collect()),
        })
    }
}

/// Prints each action to standard error, and keeps unfinished actions for the message after an interrupt.
#[derive(Debug, Default)]
struct TerminalObserver {
    /// Index and description of each action on a target that has not ended.
    sent: Vec<(usize, String)>,
    outcomes: Vec<(usize, Outcome)>,
}

impl Observer for TerminalObserver {
    fn intended(&mut self, index: usize, deed: &Deed) {
        let words = text::deed(deed);
        warn(&words);
        self.sent.push((index, words));
    }

    fn failed(&mut self, _: usize, failures: &[Failure]) {
        let words = text::failures(failures);
        warn(&words);
        if let Some((_, last)) = self.sent.last_mut() {
            *last = format!("{last} ({words})");
        }
    }

    fn saving(&mut self, _: usize, words: &str) {
        warn(words);
    }

    fn ended(&mut self, index: usize, _: &Target, outcome: &Outcome) {
        self.sent.retain(|(other, _)| *other != index);
        self.outcomes.push((index, outcome.clone()));
    }
}

pub(in crate::cli) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Prints a question and reads the answer on another thread, so that sampling continues. Only "y" and "yes" confirm.
fn ask_yes_or_no(question: &str) -> anyhow::Result<Task<bool>> {
    // Discard input that was typed before the question.
    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
    // Ignore the error: a user who does not see the question does not confirm.
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let read = move || {
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        if !matches!(read, Ok(1..)) {
            // At the end of input, the terminal does not start a new line.
            let _ = writeln!(io::stderr());
        }
        read.is_ok() && is_yes(&line)
    };
    Task::start("asking", read).context("cannot start a thread for the question; use --yes")
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Asks for confirmation, and takes samples until the user answers.
pub(in crate::cli) fn confirmed(
    question: &str,
    live: &mut Live,
    engine: &mut Engine,
) -> anyhow::Result<bool> {
    let answer = ask_yes_or_no(question)?;
    let is_yes = loop {
        match answer.wait(ASKING_INTERVAL) {
            Ok(answer) => break answer,
            // Continue to sample, because the rules need a history without gaps.
            Err(NoAnswer::Late) => engine.observe(&live.sample()),
            Err(NoAnswer::Never) => break false,
        }
    };
    if !is_yes {
        warn("nothing was sent");
    }
    Ok(is_yes)
}

/// Carries out a plan, and calls `ended` with the index and outcome of each target. If a signal interrupts the plan,
/// returns the signal and a message.
pub(in crate::cli) fn carry_out(
    (live, engine, snapshot): (Live, Engine, Snapshot),
    guard: Guard,
    targets: Vec<Target>,
    mut ended: impl FnMut(usize, Outcome) -> anyhow::Result<()>,
) -> anyhow::Result<Option<(i32, String)>> {
    let tools = tools_here()?;
    let actor = Actor::of_gpumem(&snapshot);
    // From now on, signals are recorded and do not end gpumem.
    let mut watched = LiveSamples { live, engine, snapshot, interrupt: Interrupt::catch()? };
    let mut executor = Executor::new(targets, guard, actor, tools).together();
    let mut observer = TerminalObserver::default();
    while let Some(sample) = watched.sample() {
        match executor.advance(&sample, &mut observer)? {
            Some(ActProgress::Waiting { .. }) => thread::sleep(INTERVAL),
            Some(ActProgress::Ended(_)) => {
                for (index, outcome) in observer.outcomes.drain(..) {
                    ended(index, outcome)?;
                }
            }
            None => break,
        }
    }
    let leaders: Vec<u32> = executor.running().map(|target| target.leader).collect();
    Ok(watched.interrupt.signal().filter(|_| !leaders.is_empty()).map(|signal| {
        let sent: Vec<&str> = observer.sent.iter().map(|(_, words)| &**words).collect();
        let sent = match &sent[..] {
            [] => String::new(),
            sent => format!("; it was sent: {}", sent.join(", ")),
        };
        let (leaders, name) = (listed(&leaders), signals::name(signal));
        (signal, format!("interrupted by {name} at {leaders}: nothing more is sent{sent}"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_yes_confirms() {
        for line in ["y\n", "Y\n", " yes \r\n", "YES"] {
            assert!(is_yes(line), "{line:?}");
        }
        for line in ["", "\n", "n\n", "no\n", "yy\n", "yes please\n", "ja\n", "\u{1b}y\n"] {
            assert!(!is_yes(line), "{line:?}");
        }
    }
}
