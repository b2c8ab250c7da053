//! `gpumem check`: applies the rules, and returns the verdict as the exit code.
//!
//! This module fetches snapshots and prints the report. With `--format`, the report is a complete document even on
//! failure. `verdict` evaluates the snapshots. `limit` checks limits on GPU memory, `baseline` compares with an
//! earlier snapshot, and `wait` waits for free memory.

mod baseline;
mod limit;
pub(super) mod verdict;
mod wait;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory as _, ValueEnum as _};
use signal_hook::consts::{SIGINT, SIGTERM};

use self::verdict::{CheckQuestion, CheckVerdict, VerdictProgress};
use super::args::{CheckArgs, CheckFormat, Cli, Global, GpuName};
use super::devices::callers_visible;
use super::exit::Exit;
use super::hosts::{self, HostOutput};
use super::output::shows_unicode;
use super::session::{self, SampleWindow};
use super::{
    UsageError, config, live, print, recorded, store, style, terminal_width, warn, warn_of_damage,
};
use crate::cli::signals;
use crate::config::Config;
use crate::host::{self, Roots};
use crate::model::json::document;
use crate::model::{Kind, Time};
use crate::reclaim::commands::CommandSource;
use crate::report::check::{CheckOutcome, CheckReport, TextLook, error_line};
use crate::report::reap::ReapReport;
use crate::report::release::ReleaseDocument;
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
    let prepared = prepare(args, global).and_then(|(verdict, interval)| {
        report_on_signal(&verdict, format, args.quiet)?;
        Ok((verdict, interval))
    });
    let (verdict, interval) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            print(&format.render(&CheckReport::failed(&format!("{error:#}")))?)?;
            return Err(error);
        }
    };
    let outcome = observe(args, global, interval, &verdict);
    let failure = outcome.as_ref().err().map(|error| format!("{error:#}"));
    let report = {
        let mut verdict = lock(&verdict);
        verdict.conclude();
        verdict.report(failure.as_deref())
    };
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

/// Prints the report as text. With `--print`, the report goes to standard error, because standard output contains the
/// free GPUs.
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
    format!("could not measure everything: {}{more}", error_line(first))
}

/// Checks the named hosts, and prints their reports in the order of the command line.
fn of_hosts(args: &CheckArgs, global: &Global, named: Vec<RemoteHost>) -> anyhow::Result<Exit> {
    if !args.wait_free.is_empty() || args.baseline.is_some() {
        let why = "--wait-free and --baseline cannot be combined with --host; run them on that machine: ssh \
            HOST gpumem check";
        return Err(UsageError(why.to_owned()).into());
    }
    if !args.format().is_for_hosts() {
        let (usable, others) = (CheckFormat::names(true), CheckFormat::names(false));
        let (usable, others) = (usable.join(" or "), others.join(" and "));
        let why = format!("--format {others} are for one machine; with --host use {usable}");
        return Err(UsageError(why).into());
    }
    let rules = chosen_rules(args, &config::load(global)?)?;
    let interval = args.interval.map_or(hosts::INTERVAL, |interval| interval.0);
    CheckQuestion::from_args(args)?;
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
            // The short window is enough if the host has a stored history.
            let request = hosts::request(interval.min(*window), Some(*window), stored, needed);
            hosts::sample_host(host, request, hangup, |snapshot| {
                verdict.observe(snapshot.clone());
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
        verdict.conclude();
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

fn prepare(
    args: &CheckArgs,
    global: &Global,
) -> anyhow::Result<(Arc<Mutex<CheckVerdict>>, Duration)> {
    let config = config::load(global)?;
    let settings = chosen_rules(args, &config)?;
    let commands = CommandSource::new(&config.rules, args.recorded.is_live());
    let interval = args.interval.unwrap_or(config.sample.interval);
    let question = CheckQuestion::from_args(args)?;
    let verdict = CheckVerdict::new(question, settings, commands, args.recorded.is_live());
    Ok((Arc::new(Mutex::new(verdict)), interval.0))
}

fn chosen_rules(args: &CheckArgs, config: &Config) -> anyhow::Result<RuleSet> {
    let mut settings = config.rules.clone();
    keep_kinds(&mut settings, &args.kind)?;
    if asks_only_for_memory(args) {
        settings.clear();
    }
    Ok(settings)
}

/// Returns whether the arguments request only limits or a baseline, for which a single snapshot is enough.
fn asks_only_for_memory(args: &CheckArgs) -> bool {
    let has_limit = args.max_used.is_some() || args.max_unattributed.is_some();
    let selects_processes = !args.user.is_empty() || !args.terms.terms.is_empty();
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
    verdict: &Mutex<CheckVerdict>,
) -> anyhow::Result<()> {
    if let Some(mut replay) = recorded(&args.recorded)? {
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
        return lock(verdict).prove_machine().map_err(Into::into);
    }
    lock(verdict).check_users()?;
    lock(verdict).restrict(callers_visible());
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
    let suffices = at_once || lock(verdict).feed(&live, ask)?.suffices;
    let patience = asked.unwrap_or(if suffices { STORED_WINDOW } else { store::WINDOW });
    if !at_once && !args.quiet && args.format() == CheckFormat::Text && io::stderr().is_terminal() {
        warn(&lock(verdict).purpose(patience));
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
        let mut verdict = lock(verdict);
        let progress = verdict.observe(snapshot);
        verdict.prove_machine()?;
        Ok(match progress {
            VerdictProgress::Answered => ControlFlow::Break(()),
            VerdictProgress::Open => ControlFlow::Continue(()),
        })
    })
}

/// Locks the verdict and ignores poisoning, because the state is valid even after a panic.
fn lock(verdict: &Mutex<CheckVerdict>) -> MutexGuard<'_, CheckVerdict> {
    verdict.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a usage error of `check`, `reap` or `release` as a document, if the arguments select a document format.
pub(super) fn report_misuse(error: &clap::Error, arguments: impl Iterator<Item = OsString>) {
    let arguments: Vec<OsString> = arguments.skip(1).take_while(|word| word != "--").collect();
    let cli = Cli::command();
    let is_command = |word: &&OsString| cli.get_subcommands().any(|c| **word == *c.get_name());
    let command = arguments.iter().find(is_command).and_then(|word| word.to_str());
    let words: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
    let is_json = words.contains(&"--json");
    let format = words.iter().enumerate().find_map(|(at, word)| match *word {
        "--format" => words.get(at + 1).copied(),
        word => word.strip_prefix("--format="),
    });
    let format = match format.and_then(|name| CheckFormat::from_str(name, false).ok()) {
        None if is_json => CheckFormat::Json,
        format => format.unwrap_or(CheckFormat::Text),
    };
    let fails = |why: &str| match command {
        Some("check") => format.render(&CheckReport::failed(why)),
        Some("reap") if is_json => Ok(document(&ReapReport::failed(why))?),
        Some("release") if is_json => Ok(document(&ReleaseDocument::failed(why))?),
        _ => Ok(String::new()),
    };
    let message = error.render().to_string();
    // Print only the first paragraph, because the usage and the hints after it are for people.
    let first = message.split("\n\n").next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    if let Ok(document) = fails(first.trim_end()) {
        // Ignore the error: clap has also printed the message to standard error.
        let _ = print(&document);
    }
}

/// Starts a thread that prints an incomplete report and ends gpumem on SIGINT or SIGTERM.
fn report_on_signal(
    verdict: &Arc<Mutex<CheckVerdict>>,
    format: CheckFormat,
    quiet: bool,
) -> anyhow::Result<()> {
    signals::end_on_second(&[SIGINT, SIGTERM])?;
    let verdict = Arc::clone(verdict);
    signals::on_thread(&[SIGINT, SIGTERM], move |signal| {
        let mut verdict = verdict.lock().unwrap_or_else(PoisonError::into_inner);
        // The main thread is already printing the final report.
        if verdict.is_concluded() {
            return true;
        }
        let why = format!("interrupted by {} before the verdict", signals::name(signal));
        // Ignore the error: standard output can be closed.
        let _ = format.render(&verdict.report(Some(&why))).and_then(|document| print(&document));
        if !quiet {
            warn(&why);
        }
        let _ = signals::end_as_by(signal);
        std::process::exit(i32::from(Exit::CannotMeasure.code()));
    })
}
