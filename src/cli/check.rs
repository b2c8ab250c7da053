//! `gpumem check`: judge by the rules; the exit code is the verdict.
//!
//! Here snapshots are fetched and the report is printed, one JSON document also on failure. What
//! they come to is in `verdict`, the limits on a GPU's memory in `limit`, waiting for free memory in
//! `wait`, and what a signal does in `interrupt`.

mod interrupt;
mod limit;
mod verdict;
mod wait;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::CommandFactory as _;

use self::verdict::{CheckVerdict, VerdictProgress};
use super::args::{CheckArgs, Cli, Global};
use super::commands::{self, CommandSource};
use super::exit::Exit;
use super::reap::json::ReapReport;
use super::release::json::ReleaseDocument;
use super::session::{self, SampleWindow};
use super::watch::shows_unicode;
use super::{config, live, print, recorded, store, style, terminal_width, warn, warn_of_damage};
use crate::model::Kind;
use crate::model::json::document;
use crate::report::check::{CheckOutcome, CheckReport};
use crate::rules::RuleSet;
use crate::source::replay::PlaybackPace;
use crate::units::Span;

/// How long this machine is sampled where the stored history leaves only the present to be seen.
const LOOK: Span = Span(Duration::from_secs(2));

pub(super) fn run(args: &CheckArgs, global: &Global) -> anyhow::Result<Exit> {
    let prepared = prepare(args, global).and_then(|(verdict, interval)| {
        interrupt::report_on_signal(&verdict, args.json, args.quiet)?;
        Ok((verdict, interval))
    });
    let (verdict, interval) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            if args.json {
                print(&document(&CheckReport::failed(&format!("{error:#}")))?)?;
            }
            return Err(error);
        }
    };
    let outcome = observe(args, global, interval, &verdict);
    let failure = outcome.as_ref().err().map(|error| format!("{error:#}"));
    let (report, gpus) = {
        let mut verdict = lock(&verdict);
        verdict.conclude();
        (verdict.report(failure.as_deref()), verdict.gpus())
    };
    if args.json {
        print(&document(&report)?)?;
    }
    outcome?;
    if report.status == CheckOutcome::Error && !args.quiet {
        warn(&could_not_measure(&report));
    }
    if !args.json && !args.quiet {
        commands::warn_of_recorded(&args.recorded, &report.findings);
        let ascii = !shows_unicode();
        print(&report.to_text(gpus, style(global.color), terminal_width(), ascii))?;
    }
    Ok(match report.status {
        CheckOutcome::Ok => Exit::Clean,
        CheckOutcome::Findings => Exit::Findings,
        CheckOutcome::Error => Exit::CannotMeasure,
    })
}

/// Why the exit code is that of blindness, in a line.
fn could_not_measure(report: &CheckReport) -> String {
    let mut reasons = report.errors.iter();
    let Some(first) = reasons.next() else {
        return "could not measure everything".to_owned();
    };
    let gpu = first.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
    let more = match reasons.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    format!("could not measure everything: {gpu}{}: {}{more}", first.call, first.error)
}

/// What is asked, and the interval between samples.
fn prepare(
    args: &CheckArgs,
    global: &Global,
) -> anyhow::Result<(Arc<Mutex<CheckVerdict>>, Duration)> {
    let config = config::load(global)?;
    let mut settings = config.rules.clone();
    choose(&mut settings, &args.kind)?;
    if asks_only_for_limits(args) {
        settings.clear();
    }
    let commands = CommandSource::new(&config, &args.recorded);
    let interval = args.interval.unwrap_or(config.sample.interval);
    Ok((Arc::new(Mutex::new(CheckVerdict::new(args, settings, commands))), interval.0))
}

/// Whether limits are asked for and no rule is, so that one snapshot has the answer.
fn asks_only_for_limits(args: &CheckArgs) -> bool {
    let has_limit = args.max_used.is_some() || args.max_unattributed.is_some();
    let selects_findings =
        !(args.kind.is_empty() && args.user.is_empty() && args.terms.terms.is_empty())
            || args.fail_on.is_some();
    has_limit && !selects_findings && args.wait_free.is_empty() && args.window.is_none()
}

/// Keeps the rules of these kinds, also where they are switched off; none given means any.
fn choose(settings: &mut RuleSet, kinds: &[Kind]) -> anyhow::Result<()> {
    let rules = settings.rules().iter().filter(|rule| kinds.contains(&rule.kind()));
    let chosen: Vec<Arc<str>> = rules.map(|rule| Arc::clone(&rule.name)).collect();
    Ok(settings.select(&chosen)?)
}

fn observe(
    args: &CheckArgs,
    global: &Global,
    interval: Duration,
    verdict: &Mutex<CheckVerdict>,
) -> anyhow::Result<()> {
    if let Some(mut replay) = recorded(&args.recorded, PlaybackPace::AsFast)? {
        session::play(&mut replay, |snapshot| {
            let mut verdict = lock(verdict);
            if verdict.is_too_late(snapshot.time)
                || verdict.observe(snapshot) == VerdictProgress::Answered
            {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if !args.quiet {
            warn_of_damage(&replay);
        }
        return lock(verdict).prove_gpus().map_err(Into::into);
    }
    lock(verdict).check_users()?;
    let asked = if args.wait_free.is_empty() { args.window } else { Some(args.timeout) };
    let mut live = live(
        global,
        asked.map_or(interval, |asked| interval.min(asked.0.max(Duration::from_millis(10)))),
    )?;
    // The stored history, where there is one, decides what a look at the machine cannot.
    let at_once = asks_only_for_limits(args);
    if at_once {
        live = live.of_gpus_only();
    }
    let suffices = at_once || lock(verdict).feed(&live, args, global)?.suffices;
    let patience = asked.unwrap_or(if suffices { LOOK } else { store::WINDOW });
    if !at_once && !args.quiet && !args.json && io::stderr().is_terminal() {
        warn(&lock(verdict).purpose(patience));
    }
    let window = SampleWindow { interval, length: patience, begins_answered: true };
    session::sample(&mut live, window, |snapshot| {
        let mut verdict = lock(verdict);
        let progress = verdict.observe(snapshot);
        verdict.prove_gpus()?;
        Ok(match progress {
            VerdictProgress::Answered => ControlFlow::Break(()),
            VerdictProgress::Open => ControlFlow::Continue(()),
        })
    })
}

/// What a panic left is still true.
fn lock(verdict: &Mutex<CheckVerdict>) -> MutexGuard<'_, CheckVerdict> {
    verdict.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arguments that could not be parsed: who asked `check` or `reap` for JSON gets a document
/// nevertheless.
pub(super) fn report_misuse(error: &clap::Error, arguments: impl Iterator<Item = OsString>) {
    let arguments: Vec<OsString> = arguments.skip(1).take_while(|word| word != "--").collect();
    let cli = Cli::command();
    let is_command = |word: &&OsString| cli.get_subcommands().any(|c| **word == *c.get_name());
    let command = arguments.iter().find(is_command).and_then(|it| it.to_str());
    let fails: fn(&str) -> Result<String, serde_json::Error> = match command {
        Some("check") => |why| document(&CheckReport::failed(why)),
        Some("reap") => |why| document(&ReapReport::failed(why)),
        Some("release") => |why| document(&ReleaseDocument::failed(why)),
        _ => return,
    };
    if !arguments.iter().any(|word| word == "--json") {
        return;
    }
    let message = error.render().to_string();
    // The usage and the hints after the first paragraph are for people.
    let first = message.split("\n\n").next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    if let Ok(json) = fails(first.trim_end()) {
        // Standard error has the message too, should standard output be closed.
        let _ = print(&json);
    }
}
