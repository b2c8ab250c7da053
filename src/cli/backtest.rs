//! `gpumem config test`: what each rule would have found in a recording, and when.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;

use super::args::{Global, Recorded};
use super::{UsageError, config, print, recorded, session};
use crate::model::finding::{Finding, Kept, Kind};
use crate::model::json;
use crate::model::{Severity, Snapshot, Time};
use crate::report::escape::escape;
use crate::rules::{Engine, RuleSet};
use crate::units::Span;

/// The `schema` that this version writes.
const SCHEMA: &str = "gpumem.test/1";

pub(super) fn run(json: bool, from: &Recorded, global: &Global) -> anyhow::Result<()> {
    let config = config::load(global)?;
    let Some(replay) = recorded(from)? else {
        let message = "config test needs a recording: add --replay FILE, or --demo";
        return Err(UsageError(message.to_owned()).into());
    };
    let mut backtest = Backtest::new(config.rules);
    session::play_all(replay, |snapshot| backtest.observe(&snapshot))?;
    let outcome = backtest.conclude();
    if json { print(&json::document(&outcome)?) } else { print(&outcome.to_text()) }
}

/// The most events that are listed; others are only counted, because a recording may have any number of
/// them.
const MOST_EVENTS: usize = 100_000;

/// Result of the backtest: the document that `--json` prints.
#[derive(Serialize)]
struct BacktestOutcome {
    schema: &'static str,
    /// Times of the recording's first and last snapshot; `null` if it has none.
    from: Option<Time>,
    to: Option<Time>,
    /// Events, in chronological order.
    events: Vec<BacktestEvent>,
    /// Number of events that are not listed; they count in `rules`.
    #[serde(skip_serializing_if = "is_zero")]
    events_left_out: u64,
    /// Totals, in the order of the rules.
    rules: Vec<Summary>,
}

// By reference, as serde asks.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A finding began, changed its severity, or ended.
#[derive(Clone, Serialize)]
struct BacktestEvent {
    /// Time of the snapshot that showed it.
    time: Time,
    event: Change,
    rule: Arc<str>,
    kind: Kind,
    severity: Severity,
    id: Arc<str>,
    pid: Option<u32>,
    gpus: Vec<u32>,
    /// When the condition began, before the rule's duration.
    since: Time,
    /// Seconds from then to this event.
    duration_seconds: f64,
    message: String,
    /// Reason of the exemption that covers it; `null` if none does.
    kept: Option<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Began,
    /// Its severity changed.
    Changed,
    Ended,
}

/// Totals of one rule.
#[derive(Serialize)]
struct Summary {
    rule: Arc<str>,
    kind: Kind,
    enabled: bool,
    findings: usize,
    /// Number of findings that an exemption covered.
    kept: usize,
    /// Number of findings that are active at the end.
    lasting: usize,
    /// When the first finding was reported.
    first: Option<Time>,
    /// Total duration of the findings, each from when its condition began.
    total_seconds: f64,
    /// Why the rule could not be decided at the end.
    undecided: Vec<String>,
}

/// A backtest while the recording is read.
struct Backtest {
    engine: Engine,
    summaries: Vec<Summary>,
    first: Option<Time>,
    last: Option<Time>,
    /// Active findings as they began, by rule, id and whether an exemption covers them.
    active: HashMap<(Arc<str>, Arc<str>, bool), BacktestEvent>,
    events: Vec<BacktestEvent>,
    events_left_out: u64,
}

impl Backtest {
    fn new(settings: RuleSet) -> Self {
        let summaries = settings.rules().iter().map(|rule| Summary {
            rule: Arc::clone(&rule.name),
            kind: rule.kind(),
            enabled: rule.is_run(),
            findings: 0,
            kept: 0,
            lasting: 0,
            first: None,
            total_seconds: 0.0,
            undecided: Vec::new(),
        });
        Self {
            summaries: summaries.collect(),
            engine: Engine::new(settings),
            first: None,
            last: None,
            active: HashMap::new(),
            events: Vec::new(),
            events_left_out: 0,
        }
    }

    /// Lists an event, if there are not too many already.
    fn list(&mut self, event: BacktestEvent) {
        if self.events.len() < MOST_EVENTS {
            self.events.push(event);
        } else {
            self.events_left_out += 1;
        }
    }

    fn observe(&mut self, snapshot: &Snapshot) {
        self.engine.observe(snapshot);
        self.first.get_or_insert(snapshot.time);
        self.last = Some(snapshot.time);
        let mut still_active = HashSet::new();
        let (mut began, mut changed) = (Vec::new(), Vec::new());
        let kept = self.engine.kept().iter();
        let kept: HashSet<&Arc<str>> = kept.map(|kept| &kept.finding.id).collect();
        for finding in self.engine.active_findings() {
            // What an exemption no longer keeps is reported from then on.
            let is_kept = kept.contains(&finding.id);
            let key = (Arc::clone(&finding.rule), Arc::clone(&finding.id), is_kept);
            let event = || began_at(snapshot.time, finding, self.engine.kept());
            match self.active.get_mut(&key) {
                None => began.push((key.clone(), event())),
                Some(known) if known.severity != finding.severity => {
                    known.severity = finding.severity;
                    changed.push(BacktestEvent { event: Change::Changed, ..event() });
                }
                Some(_) => {}
            }
            still_active.insert(key);
        }
        let over = |event: &BacktestEvent| BacktestEvent {
            time: snapshot.time,
            event: Change::Ended,
            duration_seconds: snapshot.time.seconds_since(event.since),
            ..event.clone()
        };
        let mut ended: Vec<BacktestEvent> = self
            .active
            .extract_if(|key, _| !still_active.contains(key))
            .map(|(_, event)| over(&event))
            .collect();
        ended.sort_by(|a, b| (&a.rule, &a.id).cmp(&(&b.rule, &b.id)));
        for event in &ended {
            if let Some(summary) = self.summary(&event.rule) {
                summary.total_seconds += event.duration_seconds;
            }
        }
        changed.sort_by(|a, b| (&a.rule, &a.id).cmp(&(&b.rule, &b.id)));
        ended.into_iter().chain(changed).for_each(|event| self.list(event));
        began.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (key, event) in began {
            if let Some(summary) = self.summary(&event.rule) {
                summary.findings += 1;
                summary.kept += usize::from(event.kept.is_some());
                summary.first.get_or_insert(event.time);
            }
            self.list(event.clone());
            self.active.insert(key, event);
        }
    }

    fn summary(&mut self, rule: &Arc<str>) -> Option<&mut Summary> {
        self.summaries.iter_mut().find(|summary| summary.rule == *rule)
    }

    fn conclude(mut self) -> BacktestOutcome {
        let lasting: Vec<BacktestEvent> = self.active.values().cloned().collect();
        for event in lasting {
            let end = self.last.unwrap_or(event.since);
            if let Some(summary) = self.summary(&event.rule) {
                summary.lasting += 1;
                summary.total_seconds += end.seconds_since(event.since);
            }
        }
        for undecided in self.engine.undecided() {
            if let Some(summary) = self.summary(&undecided.rule) {
                summary.undecided.push(undecided.reason);
            }
        }
        BacktestOutcome {
            schema: SCHEMA,
            from: self.first,
            to: self.last,
            events: self.events,
            events_left_out: self.events_left_out,
            rules: self.summaries,
        }
    }
}

fn began_at(time: Time, finding: &Finding, kept: &[Kept]) -> BacktestEvent {
    let is_this = |kept: &&Kept| kept.finding.rule == finding.rule && kept.finding.id == finding.id;
    let kept = kept.iter().find(is_this);
    BacktestEvent {
        time,
        event: Change::Began,
        rule: Arc::clone(&finding.rule),
        kind: finding.kind,
        severity: finding.severity,
        id: Arc::clone(&finding.id),
        pid: finding.process.as_ref().map(|process| process.pid),
        gpus: finding.gpus.iter().map(|gpu| gpu.index).collect(),
        since: finding.since,
        duration_seconds: time.seconds_since(finding.since),
        message: finding.message.clone(),
        kept: kept.map(|kept| Arc::clone(&kept.reason)),
    }
}

impl BacktestOutcome {
    fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        for event in &self.events {
            event.write(out)?;
        }
        if self.events_left_out > 0 {
            writeln!(out, "and {} more, which are not listed", self.events_left_out)?;
        }
        if !self.events.is_empty() {
            writeln!(out)?;
        }
        for rule in &self.rules {
            rule.write(out)?;
        }
        match self.from.zip(self.to) {
            Some((from, to)) => {
                let span = Span::from_seconds(to.seconds_since(from));
                let (from, to) = (from.local(), to.local());
                writeln!(out, "checked {span} from {from} to {to}")
            }
            None => writeln!(out, "the recording holds no snapshot"),
        }
    }
}

impl BacktestEvent {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let span = Span::from_seconds(self.duration_seconds);
        let (time, rule, message) = (self.time.local(), &self.rule, escape(&self.message));
        match self.event {
            Change::Began | Change::Changed => {
                let change = if self.event == Change::Began { "began" } else { "is now" };
                writeln!(out, "{time} {change} {} {rule}: {message}", self.severity)?;
                match &self.kept {
                    Some(reason) => writeln!(out, "    not reported: {}", escape(reason)),
                    None => Ok(()),
                }
            }
            Change::Ended => writeln!(out, "{time} ended {rule} after {span}: {message}"),
        }
    }
}

impl Summary {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let mut words = match self.findings {
            _ if !self.enabled => vec!["switched off".to_owned()],
            0 => vec!["nothing".to_owned()],
            1 => vec!["1 finding".to_owned()],
            count => vec![format!("{count} findings")],
        };
        if self.kept > 0 {
            words.push(format!("{} of them not reported", self.kept));
        }
        if let Some(first) = self.first {
            words.push(format!("first at {first}"));
            words.push(format!("{} in all", Span::from_seconds(self.total_seconds)));
        }
        if self.lasting > 0 {
            words.push(format!("{} still true at the end", self.lasting));
        }
        writeln!(out, "{}: {}", self.rule, words.join(", "))?;
        for reason in &self.undecided {
            writeln!(out, "    undecided: {}", escape(reason))?;
        }
        Ok(())
    }
}
