//! What there is to say of a process, a GPU or a framework, as a page: who it is, what it holds and since
//! when, what the rules say of it, what holds it, and what would give the memory back.
//!
//! An [`ExplainPage`] is put together from the last snapshot, the history, the findings and the table of advice,
//! for `gpumem explain` and for the page that `gpumem watch` opens, which are the same. Each kind of page is a file:
//! [`process()`], [`gpu()`], [`framework()`], [`out_of_memory()`]; what the rules say is in `verdict`, what to do in `steps`.
//!
//! Pure: nothing here reads, waits or prints. How a page looks is in [`crate::report::explain`].

mod framework;
mod gpu;
mod out_of_memory;
pub mod page;
mod process;
mod steps;
#[cfg(test)]
mod tests;
mod verdict;

use std::time::Duration;

use crate::history::memory_series::{Courses, MemorySeries};
use crate::model::finding::{Finding, OwnCommands};
use crate::model::{Identity, Process, Snapshot, Time};
use crate::rules::{self, Engine};
use crate::units::{Bytes, Span, number_of};

pub use framework::{framework, frameworks};
pub use gpu::{Marks, gpu, holders_table};
pub use out_of_memory::{Shortage, out_of_memory};
use page::{ExplainPage, MemoryCurve, Row, Section};
pub use process::process;

/// Less than this between the least and the most is standing still, as for the rule of leaks.
const STILL_BYTES: u64 = 16 << 20;

/// What is known, and of how long a time.
#[derive(Clone, Copy)]
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
    /// Fills in what to type about findings, and returns what to type about a process itself; a plan tells both.
    pub commands: &'k FillIn<'k>,
}

/// What [`KnownSoFar::commands`] does.
pub type FillIn<'k> = dyn Fn(&mut [Finding], Option<&Process>) -> OwnCommands + 'k;

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

impl KnownSoFar<'_> {
    /// A page without sections: when, on how much history, and what more of it would tell.
    fn page(self, title: String, is_asked: impl Fn(u32) -> bool) -> ExplainPage {
        let seconds = self.engine.history().span_seconds();
        let mut page = ExplainPage::new(title, Some(self.last.time), seconds);
        let errors = self.last.errors.iter();
        page.errors = errors.filter(|it| it.gpu.is_none_or(&is_asked)).cloned().collect();
        if Duration::try_from_secs_f64(seconds).is_ok_and(|span| span < self.needed) {
            let (span, needed) = (Span::from_seconds(seconds), Span(self.needed));
            let needed_is = needed.exact();
            let keeps = match self.more != More::Nowhere && !self.engine.has_recorder() {
                true => "; `gpumem record --store` keeps one",
                false => "",
            };
            let waits = match self.more {
                More::ByWindow => format!("; --window {needed_is} waits for it"),
                More::Nowhere | More::ByWaiting => String::new(),
            };
            page.notes.push(format!(
                "the history is {span} long, and some rules look back {needed}{keeps}{waits}"
            ));
        }
        page
    }

    /// A time, and how long that is before the page's.
    fn ago(self, time: Time) -> String {
        let span = Span::from_seconds(self.last.time.seconds_since(time));
        format!("{}, {span} ago", time.local())
    }
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

/// What the process that a pid names is called, and its owner; nothing of one that is not known for certain.
pub fn who(last: &Snapshot, pid: u32) -> (String, Option<&str>) {
    let process = last.process(pid);
    let name = match process {
        Some(known) if known.identity().is_certain() => {
            return (rules::name_of(known), known.user.as_deref());
        }
        Some(Process { unresolved: Some(reason), .. }) => format!("(not resolved: {reason})"),
        Some(gone) if gone.ended().is_some() => format!("(ended: {})", rules::name_of(gone)),
        _ => "(no such process)".to_owned(),
    };
    (name, process.and_then(|it| it.ended()?.user.as_deref()))
}

/// `12% now, 30% on average`, as far as it is known.
fn used(now: Option<u32>, mean: Option<f64>) -> Option<String> {
    match (now, mean) {
        (Some(now), Some(mean)) => Some(format!("{now}% now, {mean:.0}% on average")),
        (None, Some(mean)) => Some(format!("{mean:.0}% on average")),
        (Some(now), None) => Some(format!("{now}% now")),
        (None, None) => None,
    }
}

/// How memory moved: a chart where it did, a line where it did not.
fn course(section: &mut Section, past: Option<&MemorySeries>, lines: usize) {
    let Some(past) = past.filter(|past| past.samples() >= 2) else {
        return;
    };
    let points = past.buckets();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return;
    };
    let low = points.iter().map(|point| point.low_bytes).min().unwrap_or(0);
    let high = points.iter().map(|point| point.high_bytes).max().unwrap_or(0);
    let span = Span::from_seconds(last.until.seconds_since(first.since));
    let samples = number_of(past.samples(), "sample");
    if high - low < STILL_BYTES {
        return section.entry("", format!("the same for {span} ({samples})"));
    }
    section.rows.push(Row::Curve(MemoryCurve {
        points: points.to_vec(),
        vouched_milliseconds: last.vouched,
        lines,
    }));
    let moved = if last.last_bytes >= first.low_bytes {
        format!("{} more", Bytes(last.last_bytes - first.low_bytes))
    } else {
        format!("{} less", Bytes(first.low_bytes - last.last_bytes))
    };
    section.entry(
        "",
        format!(
            "{} at least, {} at most, now {}: {moved} than {span} ago ({samples})",
            Bytes(low),
            Bytes(high),
            Bytes(last.last_bytes)
        ),
    );
}
