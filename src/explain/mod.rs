//! Pages about a process, a GPU or a framework: memory, findings, and how to free the memory.
//!
//! An [`ExplainPage`] is computed from the last snapshot, the history, the findings and the table of advice. `gpumem
//! explain` prints the page with [`crate::report::explain`], and `gpumem watch` shows it. `verdict` adds the results of
//! the rules, and `steps` adds the advice.

mod gpu;
mod out_of_memory;
pub mod page;
mod process;
mod steps;
mod verdict;

use std::time::Duration;

use crate::advice::{self, AdviceText};
use crate::history::memory_series::{AllSeries, MemorySeries};
use crate::model::finding::{Finding, OwnCommands};
use crate::model::{Identity, Process, Snapshot, Time};
use crate::report::table::{Align, Table};
use crate::rules::{self, Engine};
use crate::units::{Bytes, Span, number_of};
pub use gpu::{Marks, gpu, holders_table};
pub use out_of_memory::{Shortage, out_of_memory};
use page::{ExplainPage, MemoryCurve, MemoryPoint, Row, Section};
pub use process::process;
use steps::at_start;

/// Changes of memory below this size are shown as no change.
const STILL_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy)]
pub struct ExplainInput<'k> {
    pub engine: &'k Engine,
    pub all_series: &'k AllSeries,
    pub last: &'k Snapshot,
    /// The longest history that any rule needs.
    pub needed: Duration,
    /// How the user can get a longer history.
    pub more: More,
    /// Adds commands to findings and returns the commands for the process. The commands come from a plan.
    pub commands: &'k FillIn<'k>,
}

pub type FillIn<'k> = dyn Fn(&mut [Finding], Option<&Process>) -> OwnCommands + 'k;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// The source is a recording, which has no more history.
    Nowhere,
    /// Run the command for longer, or record a store.
    ByWindow,
    /// Wait, or record a store.
    ByWaiting,
}

impl ExplainInput<'_> {
    fn page(self, title: String, is_asked: impl Fn(u32) -> bool) -> ExplainPage {
        let seconds = self.engine.history().span_seconds();
        let mut page = ExplainPage::new(title, Some(self.last.time), seconds);
        let errors = self.last.errors.iter();
        page.errors = errors.filter(|error| error.gpu.is_none_or(&is_asked)).cloned().collect();
        if Duration::try_from_secs_f64(seconds).is_ok_and(|span| span < self.needed) {
            let (span, needed) = (Span::from_seconds(seconds), Span(self.needed));
            let exact = needed.exact();
            let keeps = match self.more != More::Nowhere && !self.engine.has_recorder() {
                true => "; run `gpumem record --store` to keep a longer history",
                false => "",
            };
            let waits = match self.more {
                More::ByWindow => format!("; or use --window {exact}"),
                More::Nowhere | More::ByWaiting => String::new(),
            };
            page.notes.push(format!(
                "the history covers {span}, but some rules need {needed}{keeps}{waits}"
            ));
        }
        page
    }

    fn ago(self, time: Time) -> String {
        let span = Span::from_seconds(self.last.time.seconds_since(time));
        format!("{}, {span} ago", time.local())
    }
}

/// Returns whether the snapshot contains this process, rather than another process with the same PID. A process with an
/// uncertain identity is also considered present if a GPU lists its PID and the snapshot has no facts about the PID.
pub fn is_there(identity: Identity, snapshot: &Snapshot) -> bool {
    match snapshot.process(identity.pid) {
        Some(current) => current.identity() == identity,
        None => {
            let mut rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter());
            !identity.is_certain()
                && rows.any(|rows| rows.iter().any(|row| row.pid == identity.pid))
        }
    }
}

/// Returns a process's name and owner. If the identity is uncertain, returns the reason instead of the name.
pub fn who(last: &Snapshot, pid: u32) -> (String, Option<&str>) {
    let process = last.process(pid);
    let name = match process {
        Some(process) if process.identity().is_certain() => {
            return (rules::name_of(process), process.user.as_deref());
        }
        Some(Process { unresolved: Some(reason), .. }) => format!("(not resolved: {reason})"),
        Some(gone) if gone.ended().is_some() => format!("(ended: {})", rules::name_of(gone)),
        _ => "(no such process)".to_owned(),
    };
    (name, process.and_then(|process| process.ended()?.user.as_deref()))
}

/// Formats the known values, as in `12% now, 30% on average`.
fn utilization_text(now: Option<u32>, mean: Option<f64>) -> Option<String> {
    match (now, mean) {
        (Some(now), Some(mean)) => Some(format!("{now}% now, {mean:.0}% on average")),
        (None, Some(mean)) => Some(format!("{mean:.0}% on average")),
        (Some(now), None) => Some(format!("{now}% now")),
        (None, None) => None,
    }
}

fn add_memory_chart(section: &mut Section, series: Option<&MemorySeries>, lines: usize) {
    let Some(series) = series.filter(|series| series.samples() >= 2) else {
        return;
    };
    let points = series.buckets();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return;
    };
    let low = points.iter().map(|point| point.low).min().unwrap_or(0);
    let high = points.iter().map(|point| point.high).max().unwrap_or(0);
    let span = Span::from_seconds(last.until.seconds_since(first.since));
    let samples = number_of(series.samples(), "sample");
    if high - low < STILL_BYTES {
        return section.entry("", format!("unchanged for {span} ({samples})"));
    }
    section.rows.push(Row::Curve(MemoryCurve {
        points: points.iter().map(MemoryPoint::from).collect(),
        vouched_milliseconds: last.vouched,
        lines,
    }));
    let moved = if last.last >= first.low {
        format!("{} more", Bytes(last.last - first.low))
    } else {
        format!("{} less", Bytes(first.low - last.last))
    };
    section.entry(
        "",
        format!(
            "between {} and {}, now {}: {moved} than {span} ago ({samples})",
            Bytes(low),
            Bytes(high),
            Bytes(last.last)
        ),
    );
}

/// Returns the page about a framework. The case and punctuation of `name` are ignored.
pub fn framework(name: &str) -> Option<ExplainPage> {
    let row = advice::find(name)?;
    let mut page = ExplainPage::new(format!("{} ({})", row.title, row.name), None, 0.0);
    let mut returns = section("What frees its memory, gentlest first", &row.inside);
    if row.inside.is_empty() {
        returns = Section::new("What frees its memory");
        returns.item("- ", "nothing while the process runs; its exit frees all of its memory");
    }
    page.sections = vec![
        section("How it allocates memory", std::slice::from_ref(&row.takes)),
        returns,
        section("At its next start", &row.at_start),
        section("What does not free its memory", &row.unchanged),
        section("How to end the process", &row.at_end),
    ];
    page.sections.retain(|section| !section.rows.is_empty());
    Some(page)
}

pub fn frameworks() -> ExplainPage {
    let title = "Frameworks; gpumem explain --framework NAME shows one";
    let mut page = ExplainPage::new(title.to_owned(), None, 0.0);
    let mut table = Table::new(&[("NAME", Align::Left), ("FRAMEWORK", Align::Left)]);
    for row in advice::frameworks() {
        table.row(vec![row.name.to_string(), row.title.to_string()]);
    }
    page.sections.push(Section { rows: vec![Row::Table(table)], ..Section::default() });
    page
}

fn section(heading: &str, lines: &[AdviceText]) -> Section {
    let mut section = Section::new(heading);
    for line in lines {
        section.item("- ", at_start(&line.text_for(&Process::default())));
        section.item("  source: ", &*line.source);
    }
    section
}

#[cfg(test)]
mod tests;
