//! `gpumem ps`: lists the processes that hold GPU memory.

use std::time::Duration;

use anyhow::Context as _;

use super::args::{Global, Ps};
use super::exit::Exit;
use super::hosts::HostOutput;
use super::output::shows_unicode;
use super::selection::{RecordedUsers, Selection};
use super::{
    config, hosts, live, print, recorded, session, store, style, terminal_width, unreadable, warn,
};
use crate::model::field::Field;
use crate::model::finding::{Finding, FindingProcess};
use crate::model::json::{self, document};
use crate::model::row::{ProcessRow, places};
use crate::model::totals::Total;
use crate::model::{self, Process, Snapshot};
use crate::reclaim::prepare;
use crate::report::processes::{self, RuleResults};
use crate::report::totals::{self, TotalsReport};
use crate::rules::{Engine, RuleSet};
use crate::source::Source as _;
use crate::source::remote::RemoteHost;

/// Sampling time for a remote host. NVML reports utilization from the second sample on.
const REMOTE_WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of additional samples, one second apart, while notebook servers have not answered.
const NOTEBOOK_SAMPLES: usize = 2;

const NO_SAMPLE: &str = "no sample could be taken; run `gpumem doctor`";

pub(super) fn run(args: &Ps, global: &Global) -> anyhow::Result<Exit> {
    let selection = Selection::new(&args.selected);
    let is_listed_only = args.json && args.by.is_none();
    let rules = match (selection.needs_history(), is_listed_only) {
        (true, _) => Some(config::load(global)?.rules),
        (false, true) => None,
        (false, false) => match config::load(global) {
            Ok(config) => Some(config.rules),
            Err(error) => {
                warn(&format!("{error:#}; findings and suspects are not shown"));
                None
            }
        },
    };
    let hosts = hosts::named(&args.others)?;
    if !hosts.is_empty() {
        return of_hosts(args, global, &selection, rules, hosts);
    }
    let mut engine = rules.map(Engine::new);
    let snapshot = match recorded(&args.recorded)? {
        Some(replay) => {
            let mut users = RecordedUsers::default();
            let last = session::last(replay, |snapshot| {
                users.observe(snapshot);
                engine.iter_mut().for_each(|engine| engine.observe(snapshot));
            })?;
            selection.check_recorded_users(&users)?;
            last
        }
        None => {
            selection.check_users()?;
            sample_machine(args, global, engine.as_mut(), selection.needs_history())?
        }
    };
    let (listing, exit) = list(args, global, &selection, (snapshot, engine), None)?;
    if let HostOutput::Text(text) = listing {
        print(&text)?;
    }
    Ok(exit)
}

fn of_hosts(
    args: &Ps,
    global: &Global,
    selection: &Selection,
    rules: Option<RuleSet>,
    named: Vec<RemoteHost>,
) -> anyhow::Result<Exit> {
    let needed = rules.as_ref().map_or(Duration::ZERO, RuleSet::longest);
    let request = hosts::request(REMOTE_WINDOW, Some(REMOTE_WINDOW), args.stored, needed);
    let answers = hosts::ask_all(named, REMOTE_WINDOW, move |host, hangup| {
        let mut engine = rules.clone().map(Engine::new);
        let last = hosts::sample_host(host, request, hangup, |snapshot| {
            engine.iter_mut().for_each(|engine| engine.observe(snapshot));
            Ok(())
        })?;
        Ok((last, engine))
    });
    let printed = answers.map(|(host, answer)| {
        let output =
            answer.and_then(|sampled| list(args, global, selection, sampled, Some(&host.name)));
        (host, output)
    });
    hosts::print_answers(printed, args.json, false, style(global.color))
}

/// Lists the processes of one host. `host` is the name of a remote host, or `None` for this machine.
fn list(
    args: &Ps,
    global: &Global,
    selection: &Selection,
    (mut snapshot, mut engine): (Snapshot, Option<Engine>),
    host: Option<&str>,
) -> anyhow::Result<(HostOutput, Exit)> {
    let warn = |text: &str| match host {
        Some(host) => warn(&format!("{host}: {text}")),
        None => warn(text),
    };
    if let Some(engine) = &mut engine {
        let marks = prepare::plan_marks(engine, &snapshot);
        engine.mark_planned(&marks);
    }
    let unreadable = unreadable(&snapshot);
    selection.check_gpus(&snapshot.gpus)?;
    let everyone = selection.narrow(&mut snapshot, engine.as_ref());
    let is_blind = unreadable && !snapshot.gpus.is_empty();
    let by = args.by.map(|field| (field, sums(&snapshot, engine.as_ref(), field)));
    let is_judged = engine.as_ref().is_some_and(|engine| engine.reclaimable().is_known());
    // A machine without GPUs is not an error.
    let exit = if is_blind { Exit::CannotMeasure } else { Exit::Clean };
    if args.json {
        if is_blind {
            warn("not every GPU could be read; see the snapshot's errors");
        }
        let totals = by.map(|(field, sums)| TotalsReport::new(&snapshot, field, sums, is_judged));
        let listing = match (totals, host) {
            (Some(totals), Some(_)) => HostOutput::Document(serde_json::to_value(totals)?),
            (Some(totals), None) => HostOutput::Text(document(&totals)?),
            (None, Some(_)) => HostOutput::Document(serde_json::to_value(snapshot)?),
            // A snapshot is one line, as in a recording.
            (None, None) => HostOutput::Text(json::to_string(&snapshot)? + "\n"),
        };
        return Ok((listing, exit));
    }
    for error in &snapshot.errors {
        warn(&error.to_string());
    }
    let options = processes::ProcessesOptions {
        sort: args.sort,
        width: terminal_width(),
        style: style(global.color),
        everyone,
    };
    let headline = engine.as_ref().and_then(|engine| headline(engine, &snapshot, is_blind));
    let results = RuleResults {
        findings: engine.as_ref().map_or(&[], Engine::findings),
        suspects: engine.as_ref().map_or(&[], Engine::suspects),
        headline: headline.as_deref(),
    };
    let text = match by {
        Some((_, sums)) if sums.is_empty() => processes::no_rows(&snapshot, everyone) + "\n",
        Some((field, sums)) => totals::table(field, &sums, is_judged, options.width, options.style),
        None => processes::write(&snapshot, results, options),
    };
    Ok((HostOutput::Text(text), exit))
}

fn sums(shown: &Snapshot, engine: Option<&Engine>, by: Field) -> Vec<Total> {
    let findings: Vec<Finding> =
        engine.map_or_else(Vec::new, |engine| engine.unkept().cloned().collect());
    let rows: Vec<ProcessRow<'_>> = places(shown, &findings)
        .into_iter()
        .map(|place| ProcessRow::new(shown, &findings, place))
        .collect();
    let is_reclaimable = |row: &ProcessRow<'_>| row.finding.is_some_and(Finding::is_reclaimable);
    model::totals::totals(&rows, by, is_reclaimable)
}

/// Describes the reclaimable memory of the shown processes. Returns `None` if the amount is unknown.
fn headline(engine: &Engine, shown: &Snapshot, is_blind: bool) -> Option<String> {
    let is_shown = |process: &FindingProcess| {
        let shown = shown.process(process.pid);
        shown.is_some_and(|shown| shown.identity() == process.identity)
    };
    let is_asked = |finding: &Finding| match &finding.process {
        Some(process) if process.identity.is_certain() => is_shown(process),
        _ => finding.gpus.iter().any(|on| shown.gpus.iter().any(|gpu| gpu.index == on.index)),
    };
    let suspects = engine.suspects().iter().filter(|suspect| is_shown(&suspect.process));
    let sum = engine.reclaimable_of(is_asked, suspects);
    let is_known = !is_blind && !shown.gpus.is_empty();
    (is_known || !sum.is_nothing()).then(|| sum.headline(!shows_unicode()))
}

/// Samples this machine, after applying the rules to the stored history.
fn sample_machine(
    args: &Ps,
    global: &Global,
    engine: Option<&mut Engine>,
    needs_history: bool,
) -> anyhow::Result<Snapshot> {
    let mut live = live(global, Duration::from_secs(1))?;
    let Some(engine) = engine else {
        return live.next()?.context(NO_SAMPLE);
    };
    let ask = store::Ask::new(global, args.stored, store::MOST_FOR_WATCH);
    if store::feed(engine, &live, ask)?.first.is_none() && needs_history {
        warn(
            "idle times and findings need a stored history (gpumem record --store) or longer \
            sampling (gpumem check); unknown values never match",
        );
    }
    let mut snapshot = live.next()?.context(NO_SAMPLE)?;
    engine.observe(&snapshot);
    // Without the answer of a notebook's server, the verdict would depend on how fast the server is.
    let asks = |process: &Process| {
        process.jupyter.as_ref().is_some_and(|kernel| kernel.asking == Some(true))
    };
    for _ in 0..NOTEBOOK_SAMPLES {
        if !snapshot.processes.iter().any(asks) {
            break;
        }
        snapshot = live.next()?.context(NO_SAMPLE)?;
        engine.observe(&snapshot);
    }
    Ok(snapshot)
}
