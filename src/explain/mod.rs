//! What there is to say of a process, a GPU or a framework, as a page: who it is, what it holds and since
//! when, what the rules say of it, what holds it, and what would give the memory back.
//!
//! Here is chosen and put together what a [`ExplainReport`](crate::report::explain::ExplainReport) says, from the last
//! snapshot, the history, the findings and the table of advice: for `gpumem explain` and for the page that
//! `gpumem watch` opens, which are the same. A process and a GPU are in `subject`, what belongs together
//! in `kin`, what to do in `steps`, a framework's row in `framework`.
//!
//! Pure: nothing here reads, waits or prints. How a page looks is in [`crate::report::explain`].

mod framework;
mod kin;
mod steps;
mod subject;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::history::memory_series::Courses;
use crate::model::{Identity, Snapshot};
use crate::rules::Engine;

pub use framework::{framework, frameworks};
pub use subject::{gpu, process};

/// What is known, and of how long a time.
#[derive(Clone, Copy, Debug)]
pub struct KnownSoFar<'k> {
    /// What the rules have judged.
    pub engine: &'k Engine,
    /// How memory moved, in the time that the engine has judged.
    pub courses: &'k Courses,
    /// The snapshot that the page is of: the last one that the engine has judged.
    pub last: &'k Snapshot,
    /// The longest time that a rule asks for.
    pub needed: Duration,
    /// How more history is to be had, where there is less than that.
    pub more: More,
}

/// How more history is to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// Not at all: a recording is as long as it is.
    Nowhere,
    /// By asking the command to wait, or from a store.
    ByWindow,
    /// By itself, as time passes, or from a store.
    ByWaiting,
}

/// Whether a process is in a snapshot, and not another one of its number. One that cannot be told for
/// certain is there while a GPU lists its number and no process is known by it.
pub fn is_there(who: Identity, snapshot: &Snapshot) -> bool {
    match snapshot.process(who.pid) {
        Some(now) => now.identity() == who,
        None => {
            let mut rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter());
            !who.is_certain() && rows.any(|rows| rows.iter().any(|row| row.pid == who.pid))
        }
    }
}
