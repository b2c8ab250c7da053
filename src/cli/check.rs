//! `gpumem check`: judge by the rules; the exit code is the verdict.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use super::args::{Check, Global};
use super::exit::Exit;
use super::{complain, config, live, print, recorded, store, style, unreadable, warn_of_damage};
use crate::history::Resets;
use crate::model::finding::Finding;
use crate::model::snapshot::ReadError;
use crate::model::{Severity, Snapshot, Time};
use crate::report::check::{Counts, Report, SCHEMA, Status};
use crate::rules::Engine;
use crate::source::Source;
use crate::source::replay::Pace;
use crate::units::Span;

/// How long this machine is sampled where nothing is known of its past.
const WINDOW: Span = Span(Duration::from_secs(30));
/// And where the stored history leaves only the present to be seen.
const LOOK: Span = Span(Duration::from_secs(2));

/// What has been judged so far.
struct Judged {
    engine: Engine,
    /// The longest time that a rule asks for.
    needed: Duration,
    first: Option<Time>,
    last: Option<Last>,
}

/// What a verdict needs of the last snapshot; not all of it, while the next one is being taken.
struct Last {
    time: Time,
    gpus: usize,
    errors: Vec<ReadError>,
    unreadable: bool,
}

impl Judged {
    fn observe(&mut self, snapshot: Snapshot) {
        self.engine.observe(&snapshot);
        self.first.get_or_insert(snapshot.time);
        self.last = Some(Last {
            time: snapshot.time,
            gpus: snapshot.gpus.len(),
            unreadable: unreadable(&snapshot),
            errors: snapshot.errors,
        });
    }
}

pub(super) fn run(args: &Check, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let mut settings = config.rules.clone();
    settings.select(&args.rule)?;
    let interval = args.interval.unwrap_or(config.sample.interval);
    let mut judged = Judged {
        needed: store::longest(&settings),
        engine: Engine::new(settings),
        first: None,
        last: None,
    };
    let outcome = observe(args, global, interval.0, &mut judged);
    let report = conclude(&judged, args.fail_on, outcome.as_ref().err());
    if args.json {
        print(&report.to_json()?)?;
    }
    outcome?;
    if !args.json && !args.quiet {
        let gpus = judged.last.as_ref().map_or(0, |last| last.gpus);
        print(&report.to_text(gpus, style(global.color)))?;
    }
    Ok(match report.status {
        Status::Ok => Exit::Clean,
        Status::Findings => Exit::Findings,
        Status::Error => Exit::Blind,
    })
}

fn observe(
    args: &Check,
    global: &Global,
    interval: Duration,
    judged: &mut Judged,
) -> anyhow::Result<()> {
    if let Some(mut replay) = recorded(&args.recorded, Pace::AsFast)? {
        while let Some(snapshot) = replay.next()? {
            judged.observe(snapshot);
        }
        if !args.quiet {
            warn_of_damage(&replay);
        }
        return Ok(());
    }
    let mut live = live(
        global,
        args.window.map_or(interval, |window| {
            interval.min(window.0.max(Duration::from_millis(10)))
        }),
    )?;
    // The stored history, where there is one, decides what a look at the machine cannot.
    let ask = store::Ask {
        global,
        stored: args.stored,
        needed: judged.needed,
        most_bytes: store::MOST_FOR_CHECK,
        quiet: args.quiet,
    };
    let fed = store::feed(&mut judged.engine, &live, ask)?;
    judged.first = fed.first;
    let default = if fed.suffices { LOOK } else { WINDOW };
    let window = args.window.unwrap_or(default);
    if !args.quiet && !args.json && io::stderr().is_terminal() {
        complain(&format!("sampling for {window} (--window)"));
    }
    let mut begun = None;
    while let Some(snapshot) = live.next()? {
        let time = snapshot.time;
        judged.observe(snapshot);
        let begun = *begun.get_or_insert(time);
        // Half an interval: the last sample is due at the end of the window, or a little after it.
        if time.seconds_since(begun) + interval.as_secs_f64() / 2.0 >= window.seconds() {
            break;
        }
    }
    Ok(())
}

fn conclude(judged: &Judged, fail_on: Severity, failure: Option<&anyhow::Error>) -> Report {
    let engine = &judged.engine;
    let mut findings: Vec<Finding> = engine.findings().to_vec();
    findings.extend(engine.resolved().iter().cloned());
    let fails = engine
        .findings()
        .iter()
        .any(|finding| finding.severity >= fail_on);
    let mut errors = judged
        .last
        .as_ref()
        .map_or_else(Vec::new, |last| last.errors.clone());
    if judged.last.as_ref().is_some_and(|last| last.gpus == 0) {
        errors.push(ReadError {
            gpu: None,
            call: "nvmlDeviceGetCount_v2".into(),
            error: "the driver reports no GPU: there is nothing to judge".into(),
        });
    }
    errors.extend(forgotten(engine.history().resets()));
    if let Some(failure) = failure {
        errors.push(ReadError {
            gpu: None,
            call: "check".into(),
            error: format!("{failure:#}").into(),
        });
    }
    let blind = failure.is_some() || judged.last.as_ref().is_none_or(|last| last.unreadable);
    let status = match (failure, fails, blind) {
        (Some(_), ..) => Status::Error,
        (None, true, _) => Status::Findings,
        (None, false, true) => Status::Error,
        (None, false, false) => Status::Ok,
    };
    let time = judged.last.as_ref().map(|last| last.time);
    Report {
        schema: SCHEMA,
        time,
        window_seconds: judged
            .first
            .zip(time)
            .map_or(0.0, |(first, last)| last.seconds_since(first)),
        status,
        counts: Counts::of(&findings),
        findings,
        undecided: engine.undecided(),
        errors,
    }
}

/// What made the history start afresh: nothing before it counts.
fn forgotten(resets: Resets) -> Vec<ReadError> {
    [
        (resets.slept, "the machine was suspended"),
        (resets.other_boot, "another boot or another host followed"),
        (resets.clock_went_back, "the clock went back"),
        (resets.gap, "an hour or more passed without a snapshot"),
    ]
    .into_iter()
    .filter(|(times, _)| *times > 0)
    .map(|(times, why)| ReadError {
        gpu: None,
        call: "history".into(),
        error: format!("{why} ({times}×); the history before it was dropped").into(),
    })
    .collect()
}
