//! `gpumem explain`: prints a page about a process, a GPU, a finding or a framework.
//!
//! This module takes samples and prints the page. `target` parses the argument, and `oom` implements `--oom`.
//! [`crate::explain`] composes the page, and [`crate::report::explain`] formats the page.

mod oom;
mod target;

use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Context as _;

use self::target::ExplainSubject;
pub(super) use self::target::TypedTarget;
use super::args::{Explain, Global};
use super::exit::Exit;
use super::output::shows_unicode;
use super::session::{self, SampleWindow};
use super::{UsageError, config, live, print, recorded, store, style, terminal_width, warn};
use crate::advice;
use crate::explain::page::ExplainPage;
use crate::explain::{self, ExplainInput, FillIn, More};
use crate::history::memory_series::AllSeries;
use crate::model::finding::Finding;
use crate::model::json::document;
use crate::model::{Process, Snapshot};
use crate::reclaim::commands::{self, CommandSource};
use crate::reclaim::prepare;
use crate::report::explain::{PageStyle, text};
use crate::rules::{Engine, RuleSet};
use crate::units::Span;

/// Default maximum sampling time for a finding, notebook or server. Sampling stops when the target is found. Rules
/// about utilization need two samples.
const MAX_FINDING_WAIT: Span = Span(Duration::from_secs(2));
/// The value of `--framework` that selects all frameworks.
const LIST: &str = "list";
/// Width of the page if the output is not a terminal and COLUMNS is not set.
const WIDTH: usize = 80;

pub(super) fn run(args: &Explain, global: &Global) -> anyhow::Result<Exit> {
    let page_style = PageStyle {
        width: terminal_width().unwrap_or_else(columns),
        style: style(global.color),
        ascii: !shows_unicode(),
    };
    if args.snippet {
        let named = args.framework.as_deref();
        named.map(frameworks).transpose()?;
        let named = named.and_then(advice::find);
        let ends = named.is_some_and(|framework| framework.name.starts_with("tensorflow"));
        let snippet = if ends { advice::TENSORFLOW_SNIPPET } else { advice::SNIPPET };
        return print(snippet).map(|()| Exit::Clean);
    }
    if let Some(name) = &args.framework {
        return print_page(&frameworks(name)?, args.json, page_style).map(|()| Exit::Clean);
    }
    if args.oom {
        return oom::run(args, global, page_style);
    }
    let typed = args.target.as_deref().unwrap_or_default();
    let target = TypedTarget::parse(typed)?;
    let config = config::load(global)?;
    let source = CommandSource::new(&config.rules, args.recorded.is_live());
    let mut history = SampledHistory::new(config.rules);
    observe(&mut history, &target, args, global)?;
    let page = history.page(&source, |history, known_so_far| {
        let found = target.find(history, known_so_far.last)?;
        Ok(page(&target, &found, known_so_far))
    })?;
    if !args.json {
        session::warn_of_recorded(&args.recorded, history.engine.findings());
    }
    print_page(&page, args.json, page_style)?;
    Ok(if is_blind(&page) {
        warn("the GPU could not be read; see the errors on the page");
        Exit::CannotMeasure
    } else {
        Exit::Clean
    })
}

fn page(
    target: &TypedTarget,
    found: &ExplainSubject,
    known_so_far: ExplainInput<'_>,
) -> ExplainPage {
    let mut page = match found {
        ExplainSubject::Process(pid, asked) => explain::process(known_so_far, *pid, asked.as_ref()),
        ExplainSubject::Gpu(index, asked) => explain::gpu(known_so_far, *index, asked.as_ref()),
    };
    page.notes.extend(target.note(found, known_so_far.last));
    page
}

fn frameworks(name: &str) -> Result<ExplainPage, UsageError> {
    if name == LIST {
        return Ok(explain::frameworks());
    }
    explain::framework(name).ok_or_else(|| {
        let names: Vec<&str> =
            advice::frameworks().iter().map(|framework| &*framework.name).collect();
        UsageError(format!(
            "--framework {name}: unknown framework; known frameworks: {}",
            names.join(", ")
        ))
    })
}

fn print_page(page: &ExplainPage, json: bool, page_style: PageStyle) -> anyhow::Result<()> {
    if json { print(&document(page)?) } else { print(&text(page, page_style)) }
}

fn columns() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|text| text.parse().ok());
    columns.filter(|&columns| columns > 0).unwrap_or(WIDTH)
}

/// Returns whether the page is about a GPU that could not be read.
fn is_blind(page: &ExplainPage) -> bool {
    let gpu = page.gpu.as_ref();
    gpu.is_some_and(|gpu| gpu.stale_seconds.is_some() || gpu.processes.is_none())
}

#[derive(Debug)]
struct SampledHistory {
    engine: Engine,
    all_series: AllSeries,
    last: Option<Snapshot>,
    is_live: bool,
}

impl SampledHistory {
    fn new(settings: RuleSet) -> Self {
        Self {
            engine: Engine::new(settings),
            all_series: AllSeries::default(),
            last: None,
            is_live: false,
        }
    }

    fn observe(&mut self, snapshot: Snapshot) {
        self.engine.observe(&snapshot);
        self.all_series.follow(self.engine.history(), &snapshot);
        self.last = Some(snapshot);
    }

    fn page(
        &mut self,
        source: &CommandSource,
        compose: impl FnOnce(&Self, ExplainInput<'_>) -> anyhow::Result<ExplainPage>,
    ) -> anyhow::Result<ExplainPage> {
        let last = self.last.as_ref().context("no sample could be taken")?;
        // As in `check` and `watch`, mark the processes that a plan would include.
        let marks = prepare::plan_marks(&self.engine, last);
        self.engine.mark_planned(&marks);
        let commands = |findings: &mut [Finding], process: Option<&Process>| {
            source.fill_in(findings.iter_mut(), self.engine.findings(), last);
            commands::own_commands(self.engine.settings(), process, last, source.command_user())
        };
        compose(self, self.known_so_far(last, &commands))
    }

    fn known_so_far<'k>(
        &'k self,
        last: &'k Snapshot,
        commands: &'k FillIn<'k>,
    ) -> ExplainInput<'k> {
        ExplainInput {
            engine: &self.engine,
            all_series: &self.all_series,
            last,
            needed: self.engine.settings().longest(),
            more: if self.is_live { More::ByWindow } else { More::Nowhere },
            commands,
        }
    }

    /// Returns all findings. Active findings come first.
    fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.engine.active_findings().chain(self.engine.resolved())
    }
}

fn observe(
    history: &mut SampledHistory,
    target: &TypedTarget,
    args: &Explain,
    global: &Global,
) -> anyhow::Result<()> {
    if let Some(replay) = recorded(&args.recorded)? {
        return session::play_all(replay, |snapshot| history.observe(snapshot));
    }
    history.is_live = true;
    // One sample is enough for a process or a GPU. Users who need utilization pass `--window`.
    let window = args.window.unwrap_or(match target {
        TypedTarget::Name(_) => MAX_FINDING_WAIT,
        _ => Span(Duration::ZERO),
    });
    let interval = config::load(global)?.sample.interval.0;
    // Sample at least every `window`, so that a short window contains two samples.
    let interval = interval.min(window.0.max(Duration::from_millis(100)));
    let mut live = live(global, interval)?;
    let ask = store::Ask::new(global, args.stored, store::MOST_FOR_CHECK);
    let (engine, all_series) = (&mut history.engine, &mut history.all_series);
    store::feed_each(engine, &live, ask, |engine, snapshot| {
        all_series.follow(engine.history(), snapshot);
    })?;
    if args.window.is_some() && io::stderr().is_terminal() {
        warn(&format!("sampling for {window} (--window)"));
    }
    let window = SampleWindow { interval, length: window, begins_answered: false };
    session::sample(&mut live, window, |snapshot| {
        history.observe(snapshot);
        let last = history.last.as_ref().filter(|_| args.window.is_none());
        Ok(match last.is_some_and(|last| target.find(history, last).is_ok()) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    })
}

#[cfg(test)]
mod tests;
