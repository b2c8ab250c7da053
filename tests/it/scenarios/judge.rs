//! Compares gpumem's findings with the labels of a scenario.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpumem::api::model::{Kind, Snapshot, Suspect, Time};
use gpumem::api::rules::{Engine, RuleSet};
use serde_json::Value;

use super::scenario::{Labels, Scenario, Subject};
use super::{NOTED, SCORED};

/// A finding that is unresolved at the end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Found {
    pub kind: String,
    pub subject: Subject,
    pub severity: String,
    /// Set if a default action kills the process.
    pub ends_it: bool,
}

impl Found {
    /// Reads a finding from `check --json`. Returns `None` if the finding is resolved.
    fn read(finding: &Value) -> Option<Self> {
        if !finding["resolved_at"].is_null() {
            return None;
        }
        let subject = match finding["process"]["pid"].as_u64() {
            Some(pid) => Subject::Process(pid as u32),
            None => Subject::Gpu(finding["gpus"][0]["index"].as_u64()? as u32),
        };
        let actions = finding["actions"].as_array().into_iter().flatten();
        Some(Self {
            kind: finding["kind"].as_str()?.to_owned(),
            subject,
            severity: finding["severity"].as_str()?.to_owned(),
            ends_it: actions
                .filter_map(Value::as_str)
                .any(|action| matches!(action, "terminate" | "jupyter-shutdown")),
        })
    }
}

/// Returns a message if a suspect uses a GPU or the CPU, unless it is stopped.
fn suspected_work(suspect: &Suspect, snapshot: &Snapshot) -> Option<String> {
    let pid = suspect.process.pid;
    let mut rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
    let uses_gpu = rows.any(|row| row.pid == pid && row.sm_percent.is_some_and(|sm| sm > 0));
    let uses_cpu = snapshot.process(pid)?.cpu_percent.is_some_and(|percent| percent >= 20.0);
    let works = (uses_gpu || uses_cpu) && suspect.kind != Kind::Stopped;
    works.then(|| format!("{pid} works and is suspected: {}", suspect.message))
}

/// Returns the findings that are unresolved after the last snapshot, and a description of each flicker and of each
/// suspect that works. A finding flickers if it ends and returns within a minute, or if its id changes. Calls `observe`
/// after each snapshot.
pub fn play(
    snapshots: &[Snapshot],
    mut observe: impl FnMut(&Engine, Time),
) -> (Vec<Found>, Vec<String>) {
    let mut engine = Engine::new(RuleSet::default());
    // Maps the rule and the subject to the finding's id and the time at which the finding was last active.
    let mut active: BTreeMap<String, (String, Time)> = BTreeMap::new();
    let mut flickers = Vec::new();
    let mut before: Option<Time> = None;
    for snapshot in snapshots {
        engine.observe(snapshot);
        observe(&engine, snapshot.time);
        let suspects = engine.suspects().iter();
        flickers.extend(suspects.filter_map(|suspect| suspected_work(suspect, snapshot)));
        if engine.history().last_time() != Some(snapshot.time) {
            // The engine ignored the snapshot, because it is out of order.
            continue;
        }
        if engine.history().last_time() < before {
            // The clock was set back, so every finding begins again.
            active.clear();
        }
        for finding in engine.active_findings() {
            let pid = finding.process.as_ref().map(|process| process.identity);
            let gpu = finding.gpus.first().map(|gpu| gpu.index);
            let key = match pid {
                Some(identity) => format!("{} of {identity:?}", finding.rule),
                None => format!("{} on {gpu:?}", finding.rule),
            };
            let id = finding.id.to_string();
            if let Some((active_id, at)) = active.insert(key.clone(), (id.clone(), snapshot.time)) {
                let away = snapshot.time.seconds_since(at);
                let ended = before.is_some_and(|before| at < before);
                if ended && away <= 60.0 {
                    flickers.push(format!("{key} was away for {away} s at {}", snapshot.time));
                }
                if !ended && active_id != id {
                    flickers.push(format!("{key} was {active_id} and is {id}"));
                }
            }
        }
        before = engine.history().last_time();
    }
    let findings = serde_json::to_value(engine.findings()).unwrap();
    (from_json(&findings), flickers)
}

pub fn from_json(findings: &Value) -> Vec<Found> {
    findings.as_array().unwrap().iter().filter_map(Found::read).collect()
}

/// Returns the differences between findings and labels.
pub fn complaints(labels: &Labels, found: &[Found]) -> Vec<String> {
    let grave = || found.iter().filter(|found| found.severity != "info");
    let mut complaints = Vec::new();
    for (kind, subject) in &labels.expected {
        let is_right = |found: &&Found| {
            let is_severe = labels.severity.is_none_or(|severity| severity == found.severity);
            found.kind == *kind && found.subject == *subject && is_severe
        };
        if grave().filter(is_right).count() == 0 {
            complaints.push(format!("missed: {kind} of {subject}"));
        }
    }
    for found in grave() {
        let matches =
            |(kind, subject): &(&str, Subject)| found.kind == *kind && found.subject == *subject;
        // A finding of a kind that is not scored is also false, because it changes the exit code.
        if !labels.expected.iter().chain(&labels.allowed).any(matches) {
            let scored = if SCORED.contains(&&*found.kind) {
                ""
            } else {
                " (not scored, but it fails a check)"
            };
            complaints.push(format!("false: {} of {}{scored}", found.kind, found.subject));
        }
    }
    let noted = || found.iter().filter(|found| NOTED.contains(&&*found.kind));
    let equals = |found: &Found, note: &(&str, Subject)| (&*found.kind, found.subject) == *note;
    for note in &labels.noted {
        if !noted().any(|found| equals(found, note)) {
            complaints.push(format!("not noted: {} of {}", note.0, note.1));
        }
    }
    for found in noted() {
        if !labels.noted.iter().any(|note| equals(found, note)) {
            complaints.push(format!("false note: {} of {}", found.kind, found.subject));
        }
    }
    for found in found.iter().filter(|found| found.ends_it) {
        if let Subject::Process(pid) = found.subject
            && labels.kill_ok.get(&pid) != Some(&true)
        {
            complaints.push(format!("would end {} because of {}", found.subject, found.kind));
        }
    }
    complaints
}

pub fn report(scenario: &Scenario, found: &[Found], complaints: &[String]) -> String {
    let list = |verdicts: &[(&'static str, Subject)]| {
        let words: Vec<String> =
            verdicts.iter().map(|(kind, subject)| format!("{kind} of {subject}")).collect();
        if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
    };
    let found: Vec<String> = found
        .iter()
        .map(|found| format!("{} of {} ({})", found.kind, found.subject, found.severity))
        .collect();
    let mut text = String::new();
    let _ = writeln!(text, "{} seed {}: {}", scenario.family, scenario.seed, complaints.join("; "));
    let _ = writeln!(text, "    {}", scenario.story);
    let _ = writeln!(
        text,
        "    expected {}; allowed {}; found {}",
        list(&scenario.labels.expected),
        list(&scenario.labels.allowed),
        if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
    );
    text
}
