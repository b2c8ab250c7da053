//! Feeds snapshots to the history, asks every rule, and keeps the findings: what is so and what ceased.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Settings;
use super::rule::{Seen, Verdicts};
use crate::history::History;
use crate::model::finding::{Finding, Undecided};
use crate::model::{Identity, Snapshot};

/// How many findings that have ceased are kept.
const MOST_RESOLVED: usize = 256;

/// Judges snapshots as they come.
#[derive(Debug, Default)]
pub struct Engine {
    settings: Settings,
    history: History,
    findings: Vec<Finding>,
    resolved: Vec<Finding>,
    undecided: Vec<Undecided>,
}

impl Engine {
    /// An engine without any history.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Takes in the next snapshot and judges again. One of the same time as the last says nothing new.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        if !self.history.observe(snapshot) {
            return;
        }
        let mut verdicts = Verdicts::default();
        let seen = Seen {
            history: &self.history,
            snapshot,
        };
        for rule in self.settings.rules() {
            rule.judge(seen, &mut verdicts);
        }
        let before = std::mem::take(&mut self.findings);
        self.findings = verdicts.findings;
        // A recording may show a process twice; it is accused once.
        let mut subjects = HashSet::new();
        self.findings
            .retain(|finding| subjects.insert(subject(finding)));
        self.undecided = verdicts.undecided;
        self.carry_over(before, snapshot);
        self.findings.sort_by(|a, b| {
            let rank = |finding: &Finding| {
                (
                    Reverse(finding.severity),
                    Reverse(finding.memory_bytes),
                    finding.since,
                )
            };
            rank(a).cmp(&rank(b)).then_with(|| a.id.cmp(&b.id))
        });
    }

    /// What becomes of the findings of the last snapshot: each lasts, cannot be seen, or has ceased.
    fn carry_over(&mut self, before: Vec<Finding>, snapshot: &Snapshot) {
        let mut ids: HashMap<_, _> = before
            .iter()
            .map(|old| (subject(old), Arc::clone(&old.id)))
            .collect();
        for new in &mut self.findings {
            // The GPUs that it is about may have changed; it keeps its name.
            if let Some(id) = ids.remove(&subject(new)) {
                new.id = id;
            }
        }
        for mut old in before {
            if !ids.contains_key(&subject(&old)) {
                continue;
            }
            let process = old.process.as_ref();
            if process.is_some_and(|process| self.history.may_be_hidden(process.identity)) {
                self.findings.push(old);
            } else {
                old.resolved_at = Some(snapshot.time);
                self.resolved.truncate(MOST_RESOLVED - 1);
                self.resolved.insert(0, old);
            }
        }
    }

    /// What is so now, worst first.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What was so and has ceased, latest first; bounded in number.
    pub fn resolved(&self) -> &[Finding] {
        &self.resolved
    }

    /// The rules that could not be decided on the history so far.
    pub fn undecided(&self) -> Vec<Undecided> {
        self.undecided.clone()
    }

    /// What has been seen so far.
    pub fn history(&self) -> &History {
        &self.history
    }
}

/// Two findings are the same one at two times when a rule found them in the same process, or else
/// under the same name.
#[derive(PartialEq, Eq, Hash)]
enum Subject {
    Process(Arc<str>, Identity),
    Other(Arc<str>),
}

fn subject(finding: &Finding) -> Subject {
    match &finding.process {
        Some(process) => Subject::Process(Arc::clone(&finding.rule), process.identity),
        None => Subject::Other(Arc::clone(&finding.id)),
    }
}
