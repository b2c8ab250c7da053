//! `gpumem config test`: lists the findings that the rules would have reported while a recording was made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::args::{Global, Recorded};
use super::{UsageError, config, print, recorded, session};
use crate::model::finding::{Finding, Undecided};
use crate::model::json;
use crate::model::{Snapshot, Time};
use crate::report::check::{finding_line, undecided_line};
use crate::report::escape::escape;
use crate::report::style::Style;
use crate::rules::{Engine, RuleSet};
use crate::units::{Span, number_of};

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
    if json { print(&json::document(&outcome)?) } else { print(&outcome.to_string()) }
}

/// Maximum number of events in the output. Later events are only counted.
const MOST_EVENTS: usize = 10_000;

/// The document that `--json` prints.
#[derive(Serialize)]
struct BacktestOutcome {
    schema: &'static str,
    /// Time of the first snapshot, or `null` if the recording is empty.
    from: Option<Time>,
    to: Option<Time>,
    events: Vec<BacktestEvent>,
    /// Number of events beyond [`MOST_EVENTS`].
    events_left_out: u64,
    /// Rules that were undecided at the end of the recording.
    undecided: Vec<Undecided>,
    /// The enabled rules, each with its number of findings.
    rules: Vec<RuleFindings>,
}

/// The beginning or end of a finding, or a change of its severity.
#[derive(Serialize)]
struct BacktestEvent {
    time: Time,
    event: Change,
    finding: Finding,
    /// Why the finding is exempt, or `null` if it is not.
    kept: Option<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Began,
    Changed,
    Ended,
}

#[derive(Serialize)]
struct RuleFindings {
    rule: Arc<str>,
    findings: usize,
}

/// Rule, id and exemption reason of a finding. When an exemption expires, the key changes, so the finding ends and
/// begins again.
type Key = (Arc<str>, Arc<str>, Option<Arc<str>>);

struct Backtest {
    engine: Engine,
    active: BTreeMap<Key, Finding>,
    outcome: BacktestOutcome,
}

impl Backtest {
    fn new(settings: RuleSet) -> Self {
        let rules = settings.rules().iter().filter(|rule| rule.is_run());
        let rules = rules.map(|rule| RuleFindings { rule: Arc::clone(&rule.name), findings: 0 });
        let outcome = BacktestOutcome {
            schema: SCHEMA,
            from: None,
            to: None,
            events: Vec::new(),
            events_left_out: 0,
            undecided: Vec::new(),
            rules: rules.collect(),
        };
        Self { engine: Engine::new(settings), active: BTreeMap::new(), outcome }
    }

    fn observe(&mut self, snapshot: &Snapshot) {
        let Self { engine, active, outcome } = self;
        engine.observe(snapshot);
        let time = snapshot.time;
        outcome.from.get_or_insert(time);
        outcome.to = Some(time);
        let key = |finding: &Finding| -> Key {
            let is_same_finding =
                |rule: &Arc<str>, id: &Arc<str>| (rule, id) == (&finding.rule, &finding.id);
            let mut kept = engine.kept().iter();
            let kept = kept.find(|kept| is_same_finding(&kept.finding.rule, &kept.finding.id));
            let reason = kept.map(|kept| Arc::clone(&kept.reason));
            (Arc::clone(&finding.rule), Arc::clone(&finding.id), reason)
        };
        let shown: Vec<(Key, &Finding)> =
            engine.active_findings().map(|finding| (key(finding), finding)).collect();
        let keys: BTreeSet<&Key> = shown.iter().map(|(key, _)| key).collect();
        active.retain(|key, finding| {
            let is_active = keys.contains(key);
            if !is_active {
                outcome.list(time, Change::Ended, finding, key);
            }
            is_active
        });
        for (key, finding) in &shown {
            let previous = active.get(key).map(|previous| previous.severity);
            let change = match previous {
                Some(severity) if severity == finding.severity => continue,
                Some(_) => Change::Changed,
                None => Change::Began,
            };
            outcome.list(time, change, finding, key);
            active.insert(key.clone(), (*finding).clone());
        }
    }

    fn conclude(self) -> BacktestOutcome {
        BacktestOutcome { undecided: self.engine.undecided(), ..self.outcome }
    }
}

impl BacktestOutcome {
    /// Lists an event. If the list is full, only counts it.
    fn list(&mut self, time: Time, event: Change, finding: &Finding, (_, _, kept): &Key) {
        let mut rules = self.rules.iter_mut();
        if event == Change::Began
            && let Some(counted) = rules.find(|counted| counted.rule == finding.rule)
        {
            counted.findings += 1;
        }
        if self.events.len() < MOST_EVENTS {
            let (finding, kept) = (finding.clone(), kept.clone());
            self.events.push(BacktestEvent { time, event, finding, kept });
        } else {
            self.events_left_out += 1;
        }
    }
}

/// Writes the result as text, with findings and undecided rules in the format of `gpumem check`.
impl fmt::Display for BacktestOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for BacktestEvent { time, event, finding, kept } in &self.events {
            let change = match event {
                Change::Began => "began".to_owned(),
                Change::Changed => "changed".to_owned(),
                Change::Ended => {
                    let lasted = Span::from_seconds(time.seconds_since(finding.since));
                    format!("ended after {lasted}")
                }
            };
            writeln!(
                out,
                "{} {change}: {}",
                time.local(),
                finding_line(finding, Style::default())
            )?;
            if let Some(reason) = kept {
                writeln!(out, "    kept: {}", escape(reason))?;
            }
        }
        if self.events_left_out > 0 {
            writeln!(out, "{} more events are not listed", self.events_left_out)?;
        }
        for undecided in &self.undecided {
            writeln!(out, "{}", undecided_line(undecided))?;
        }
        for RuleFindings { rule, findings } in &self.rules {
            writeln!(out, "{rule}: {}", number_of(*findings, "finding"))?;
        }
        match self.from.zip(self.to) {
            Some((from, to)) => {
                let span = Span::from_seconds(to.seconds_since(from));
                writeln!(out, "checked {span} from {} to {}", from.local(), to.local())
            }
            None => writeln!(out, "the recording contains no snapshot"),
        }
    }
}
