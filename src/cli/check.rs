//! `gpumem check`: applies the rules, and returns the verdict as the exit code.
//!
//! This module fetches snapshots and prints the report. With `--format`, the report is a complete document even on
//! failure. `verdict` evaluates the snapshots. `limit` checks limits on GPU memory, `baseline` compares with an
//! earlier snapshot, and `wait` waits for free memory.

mod baseline;
mod limit;
pub(super) mod verdict;
mod wait;

use std::io::{self, IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use self::verdict::{CheckQuestion, CheckVerdict};
use super::args::{CheckArgs, CheckFormat, Global, GpuName};
use super::devices::callers_visible;
use super::exit::Exit;
use super::hosts::{self, HostOutput};
use super::output::shows_unicode;
use super::session::{self, SampleWindow};
use super::{
    UsageError, config, live, print, recorded, store, style, terminal_width, warn, warn_of_damage,
};
use crate::config::Config;
use crate::host::{self, Roots};
use crate::model::json::document;
use crate::model::{Kind, Time};
use crate::reclaim::commands::CommandSource;
use crate::report::check::{CheckOutcome, CheckReport, TextLook};
use crate::report::style::Style;
use crate::rules::RuleSet;
use crate::source::remote::RemoteHost;
use crate::units::Span;

/// Sampling time if the stored history is long enough for the rules.
const STORED_WINDOW: Span = Span(Duration::from_secs(2));

pub(super) fn run(args: &CheckArgs, global: &Global) -> anyhow::Result<Exit> {
    let format = args.format();
    let others = hosts::named(&args.others)?;
    if !others.is_empty() {
        return of_hosts(args, global, others);
    }
    let (mut verdict, interval) = match prepare(args, global) {
        Ok(prepared) => prepared,
        Err(error) => {
            print(&format.render(&CheckReport::failed(&format!("{error:#}")))?)?;
            return Err(error);
        }
    };
    let outcome = observe(args, global, interval, &mut verdict);
    let failure = outcome.as_ref().err().map(|error| format!("{error:#}"));
    let report = verdict.report(failure.as_deref());
    print(&format.render(&report)?)?;
    outcome?;
    if report.status == CheckOutcome::Error && !args.quiet {
        warn(&could_not_measure(&report));
    }
    if format == CheckFormat::Text && !args.quiet {
        session::warn_of_recorded(&args.recorded, &report.findings);
        print_text(&report, args, global)?;
    }
    if let (Some(gpu_name), CheckOutcome::Ok) = (args.print, report.status) {
        print(&free_gpus(&report, gpu_name)?)?;
    }
    Ok(exit_of(&report))
}

impl CheckFormat {
    /// Formats the report as a complete document, or returns an empty string for the text format.
    fn render(self, report: &CheckReport) -> anyhow::Result<String> {
        let now = jiff::Timestamp::now().as_millisecond();
        Ok(match self {
            Self::Text => String::new(),
            Self::Json => document(report)?,
            Self::Junit => {
                let host = host::read_host(&Roots::default());
                report.to_junit(Time::from_unix_milliseconds(now), host.hostname)
            }
            Self::Github => report.to_github(),
        })
    }
}

/// With `--print`, prints the report to standard error, because standard output contains the free GPUs.
fn print_text(report: &CheckReport, args: &CheckArgs, global: &Global) -> anyhow::Result<()> {
    let text_look = text_look(args, global);
    if args.print.is_some() {
        let plain = TextLook { style: Style::default(), width: None, ..text_look };
        // Ignore the error: a failure to write to standard error cannot be reported.
        let _ = io::stderr().write_all(report.to_text(plain).as_bytes());
        return Ok(());
    }
    print(&report.to_text(text_look))
}

fn text_look(args: &CheckArgs, global: &Global) -> TextLook {
    TextLook {
        ascii: !shows_unicode(),
        verbose: args.verbose,
        style: style(global.color),
        width: terminal_width(),
    }
}

/// Formats the GPUs that satisfy the request as a value of CUDA_VISIBLE_DEVICES.
fn free_gpus(report: &CheckReport, gpu_name: GpuName) -> anyhow::Result<String> {
    let mut gpus: Vec<String> = Vec::new();
    for wait in &report.wait {
        let name = match gpu_name {
            GpuName::Uuid => wait.uuid.as_deref().map(str::to_owned),
            // CUDA selects MIG devices only by UUID.
            GpuName::Index if wait.mig.is_some() => wait.uuid.as_deref().map(str::to_owned),
            GpuName::Index => wait.gpu.map(|index| index.to_string()),
        };
        let name = name.context("the GPU's UUID is unknown; use --print index")?;
        if !gpus.contains(&name) {
            gpus.push(name);
        }
    }
    Ok(gpus.join(",") + "\n")
}

fn could_not_measure(report: &CheckReport) -> String {
    let mut reasons = report.errors.iter();
    let Some(first) = reasons.next() else {
        return "could not measure everything".to_owned();
    };
    let more = match reasons.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    format!("could not measure everything: {first}{more}")
}

fn of_hosts(args: &CheckArgs, global: &Global, named: Vec<RemoteHost>) -> anyhow::Result<Exit> {
    if !args.wait_free.is_empty() || args.baseline.is_some() {
        let why = "--wait-free and --baseline cannot be combined with --host; run them on that machine: ssh \
            HOST gpumem check";
        return Err(UsageError(why.to_owned()).into());
    }
    if !matches!(args.format(), CheckFormat::Text | CheckFormat::Json) {
        let why = "--format junit and github are for one machine; with --host use text or json";
        return Err(UsageError(why.to_owned()).into());
    }
    let rules = chosen_rules(args, &config::load(global)?)?;
    let interval = args.interval.map_or(hosts::INTERVAL, |interval| interval.0);
    let needed = rules.longest();
    let windows = match args.window {
        Some(window) => vec![window.0],
        None => vec![STORED_WINDOW.0, store::WINDOW.0],
    };
    let time = windows.iter().sum();
    let asked = args.clone();
    let answers = hosts::ask_all(named, time, move |host, hangup| {
        let commands = CommandSource::on_host(&rules, host.clone());
        let question = CheckQuestion::from_args(&asked)?;
        let mut verdict = CheckVerdict::new(question, rules.clone(), commands, true);
        let mut stored = asked.stored;
        for window in &windows {
            // A short window is enough if the host has a stored history. Otherwise, the loop continues with a longer
            // window.
            let request = hosts::request(interval.min(*window), Some(*window), stored, needed);
            hosts::sample_host(host, request, hangup, |snapshot| {
                // Ignore a final result, because the host samples for the whole window anyway.
                let _ = verdict.observe(snapshot.clone());
                Ok(())
            })?;
            if verdict.engine().history().span_seconds()
                >= needed.min(store::WINDOW.0).as_secs_f64()
            {
                break;
            }
            stored.no_store = true;
        }
        verdict.prove_machine()?;
        Ok(verdict.report(None))
    });
    let printed = answers.map(|(host, answer)| {
        let output = answer.and_then(|report: CheckReport| {
            let output = match args.format() {
                CheckFormat::Json => HostOutput::Document(serde_json::to_value(&report)?),
                _ if args.quiet => HostOutput::Nothing,
                _ => HostOutput::Text(report.to_text(text_look(args, global))),
            };
            Ok((output, exit_of(&report)))
        });
        (host, output)
    });
    hosts::print_answers(
        printed,
        args.format() == CheckFormat::Json,
        args.quiet,
        style(global.color),
    )
}

fn exit_of(report: &CheckReport) -> Exit {
    match report.status {
        CheckOutcome::Ok => Exit::Clean,
        CheckOutcome::Findings => Exit::Findings,
        CheckOutcome::Error => Exit::CannotMeasure,
    }
}

fn prepare(args: &CheckArgs, global: &Global) -> anyhow::Result<(CheckVerdict, Duration)> {
    let config = config::load(global)?;
    let interval = args.interval.unwrap_or(config.sample.interval);
    let is_live = args.recorded.is_live();
    let commands = CommandSource::new(&config.rules, is_live);
    let (question, rules) = (CheckQuestion::from_args(args)?, chosen_rules(args, &config)?);
    Ok((CheckVerdict::new(question, rules, commands, is_live), interval.0))
}

fn chosen_rules(args: &CheckArgs, config: &Config) -> anyhow::Result<RuleSet> {
    let mut settings = config.rules.clone();
    keep_kinds(&mut settings, &args.kind)?;
    if asks_only_for_memory(args) {
        settings.clear();
    }
    Ok(settings)
}

/// Returns whether only limits or a baseline were requested, for which a single snapshot is enough.
fn asks_only_for_memory(args: &CheckArgs) -> bool {
    let has_limit = args.max_used.is_some() || args.max_unattributed.is_some();
    let selected = &args.selected;
    let selects_processes = !selected.user.is_empty() || !selected.terms.terms.is_empty();
    let selects_findings = !args.kind.is_empty()
        || args.fail_on.is_some()
        || (selects_processes && args.baseline.is_none());
    (has_limit || args.baseline.is_some())
        && !selects_findings
        && args.wait_free.is_empty()
        && args.window.is_none()
}

/// Enables the rules of these kinds and removes all other rules. Keeps all rules if `kinds` is empty.
fn keep_kinds(settings: &mut RuleSet, kinds: &[Kind]) -> anyhow::Result<()> {
    let rules = settings.rules().iter().filter(|rule| kinds.contains(&rule.kind()));
    let chosen: Vec<Arc<str>> = rules.map(|rule| Arc::clone(&rule.name)).collect();
    Ok(settings.select(&chosen)?)
}

fn observe(
    args: &CheckArgs,
    global: &Global,
    interval: Duration,
    verdict: &mut CheckVerdict,
) -> anyhow::Result<()> {
    if let Some(mut replay) = recorded(&args.recorded)? {
        session::play(&mut replay, |snapshot| match verdict.is_too_late(snapshot.time) {
            true => ControlFlow::Break(()),
            false => verdict.observe(snapshot),
        })?;
        if !args.quiet {
            warn_of_damage(&replay);
        }
        return verdict.prove_machine().map_err(Into::into);
    }
    verdict.prepare_live(callers_visible())?;
    let asked = if args.wait_free.is_empty() { args.window } else { Some(args.timeout) };
    let mut live = live(
        global,
        asked.map_or(interval, |asked| interval.min(asked.0.max(Duration::from_millis(10)))),
    )?;
    let at_once = asks_only_for_memory(args);
    if at_once && args.baseline.is_none() {
        live = live.of_gpus_only();
    }
    let ask = store::Ask {
        quiet: args.quiet,
        ..store::Ask::new(global, args.stored, store::MOST_FOR_CHECK)
    };
    let suffices = at_once || verdict.feed(&live, ask)?.suffices;
    let patience = asked.unwrap_or(if suffices { STORED_WINDOW } else { store::WINDOW });
    if !at_once && !args.quiet && args.format() == CheckFormat::Text && io::stderr().is_terminal() {
        warn(&verdict.purpose(patience));
    }
    let window = SampleWindow { interval, length: patience, begins_answered: true };
    session::sample(&mut live, window, |mut snapshot| {
        // This process may use the GPUs that its ancestors have claimed.
        for gpu in &mut snapshot.gpus {
            gpu.claim.take_if(|claim| {
                let own = std::process::id();
                claim.pid.is_some_and(|pid| host::descends_from(&Roots::default(), own, pid))
            });
        }
        let progress = verdict.observe(snapshot);
        verdict.prove_machine()?;
        Ok(progress)
    })
}
