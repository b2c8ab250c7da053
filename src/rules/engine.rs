//! Feeds snapshots to the history, asks every rule, and keeps the findings: what is so and what ceased.
//!
//! A finding has a life. It is *pending* while what it says has not lasted long enough; *active* from
//! then on, under the same id for as long as it lasts; *resolved* once it has ceased. What cannot be seen
//! any more, because a GPU does not answer, neither lasts nor ceases.
//!
//! Several that are so of one process are one accusation: the worst, and of equals the one about
//! which something has to be done first. The others stay as its evidence, and come forward when it goes.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Settings;
use super::rule::{Seen, Verdicts};
use crate::history::History;
use crate::model::finding::{Also, Finding, Pending, Undecided};
use crate::model::{Gpu, Identity, Snapshot};

/// How many findings that have ceased are kept.
const MOST_RESOLVED: usize = 256;

/// Judges snapshots as they come.
#[derive(Debug, Default)]
pub struct Engine {
    settings: Settings,
    history: History,
    standing: Standing,
    findings: Vec<Finding>,
    resolved: Vec<Finding>,
    pending: Vec<Pending>,
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
        let verdicts = self.judge(snapshot);
        self.undecided = self.name_doubts(&verdicts);
        self.pending = verdicts.pending;
        let before = std::mem::take(&mut self.standing);
        self.standing = self.carry_over(before, verdicts.findings, snapshot);
        self.findings = accusations(self.standing.findings());
    }

    fn judge(&self, snapshot: &Snapshot) -> Verdicts {
        let mut verdicts = Verdicts::default();
        let seen = Seen {
            history: &self.history,
            snapshot,
            standing: &self.standing,
        };
        let rules = || self.settings.rules().iter().enumerate();
        let is_run: Vec<bool> = rules().map(|(_, rule)| rule.is_run()).collect();
        let rules = || rules().filter(|(place, _)| is_run[*place]);
        // Everything of a process is judged while it is at hand.
        for process in &snapshot.processes {
            if let Some(known) = self.history.process(process.identity()) {
                for (place, rule) in rules() {
                    verdicts.rule = place;
                    rule.process(seen, process, known, &mut verdicts);
                }
            }
        }
        for gpu in &snapshot.gpus {
            if let Some(known) = self.history.device(gpu) {
                for (place, rule) in rules() {
                    verdicts.rule = place;
                    rule.gpu(seen, gpu, known, &mut verdicts);
                }
            }
        }
        for (gpu, row) in self.history.nobodies(snapshot) {
            let process = snapshot.process(row.pid);
            for (place, rule) in rules() {
                verdicts.rule = place;
                rule.nobody(seen, gpu, row, process, &mut verdicts);
            }
        }
        verdicts
    }

    fn name_doubts(&self, verdicts: &Verdicts) -> Vec<Undecided> {
        let rules = self.settings.rules().iter();
        rules
            .zip(&verdicts.doubts)
            .flat_map(|(rule, doubts)| {
                doubts.reasons().map(|reason| Undecided {
                    rule: Arc::clone(rule.name()),
                    reason,
                })
            })
            .collect()
    }

    /// What stands now: each finding of before lasts, cannot be seen, or has ceased.
    fn carry_over(
        &mut self,
        before: Standing,
        found: Vec<Finding>,
        snapshot: &Snapshot,
    ) -> Standing {
        let mut standing = Standing::default();
        for mut finding in found {
            // The GPUs that it is about may have changed; it keeps its name.
            if let Some(known) = before.get(&Subject::of(&finding)) {
                finding.id = Arc::clone(&known.id);
            }
            standing.add(finding);
        }
        let accused: HashSet<Arc<str>> =
            self.findings.iter().map(|it| Arc::clone(&it.id)).collect();
        for mut finding in before.findings {
            if standing.get(&Subject::of(&finding)).is_some() {
                continue;
            }
            if self.may_be_hidden(&finding, snapshot) {
                standing.add(finding);
            } else if accused.contains(&finding.id) {
                finding.resolved_at = Some(snapshot.time);
                self.resolved.truncate(MOST_RESOLVED - 1);
                self.resolved.insert(0, finding);
            }
        }
        standing
    }

    /// Whether what a finding is about may be there all the same: its GPU did not answer.
    fn may_be_hidden(&self, finding: &Finding, snapshot: &Snapshot) -> bool {
        match &finding.process {
            Some(process) if process.identity.is_certain() => {
                self.history.may_be_hidden(process.identity)
            }
            _ => finding.gpus.iter().any(|on| {
                let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == on.index);
                gpu.is_some_and(|gpu| gpu.stale_seconds.is_some() || gpu.processes.is_none())
            }),
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

    /// What will be so if nothing changes.
    pub fn pending(&self) -> &[Pending] {
        &self.pending
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

/// One accusation a process, worst first.
fn accusations(standing: &[Finding]) -> Vec<Finding> {
    let mut ordered: Vec<&Finding> = standing.iter().collect();
    ordered.sort_by(|a, b| {
        let rank = |finding: &Finding| (Reverse(finding.severity), finding.kind);
        rank(a).cmp(&rank(b))
    });
    let mut accusations: Vec<Finding> = Vec::with_capacity(ordered.len());
    let mut places: HashMap<Identity, usize> = HashMap::new();
    for finding in ordered {
        let identity = finding.process.as_ref().map(|process| process.identity);
        match identity.and_then(|identity| places.get(&identity)) {
            Some(place) => accusations[*place].also.push(Also {
                rule: Arc::clone(&finding.rule),
                kind: finding.kind,
                severity: finding.severity,
                since: finding.since,
                evidence: finding.evidence.clone(),
                message: finding.message.clone(),
            }),
            None => {
                if let Some(identity) = identity {
                    places.insert(identity, accusations.len());
                }
                accusations.push(finding.clone());
            }
        }
    }
    accusations.sort_by(|a, b| {
        let rank = |finding: &Finding| {
            (
                Reverse(finding.severity),
                Reverse(finding.memory_bytes),
                finding.since,
            )
        };
        rank(a).cmp(&rank(b)).then_with(|| a.id.cmp(&b.id))
    });
    accusations
}

/// What every rule found, before it is put into order.
#[derive(Debug, Default)]
pub(super) struct Standing {
    findings: Vec<Finding>,
    places: HashMap<Subject, usize>,
}

impl Standing {
    /// Adds a finding. A recording may show a process twice; it is accused once.
    fn add(&mut self, finding: Finding) {
        let place = self.findings.len();
        if let std::collections::hash_map::Entry::Vacant(entry) =
            self.places.entry(Subject::of(&finding))
        {
            entry.insert(place);
            self.findings.push(finding);
        }
    }

    fn get(&self, subject: &Subject) -> Option<&Finding> {
        self.places.get(subject).map(|place| &self.findings[*place])
    }

    fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub(super) fn of_process(&self, rule: &Arc<str>, process: Identity) -> Option<&Finding> {
        if self.findings.is_empty() {
            return None;
        }
        self.get(&Subject::Process(Arc::clone(rule), process))
    }

    pub(super) fn of_gpu(&self, rule: &Arc<str>, gpu: &Gpu) -> Option<&Finding> {
        if self.findings.is_empty() {
            return None;
        }
        self.get(&Subject::gpu(
            Arc::clone(rule),
            gpu.uuid.as_ref(),
            gpu.index,
        ))
    }
}

/// Two findings are the same one at two times when a rule found them in the same process or on the
/// same GPU.
#[derive(PartialEq, Eq, Hash, Debug)]
enum Subject {
    Process(Arc<str>, Identity),
    Gpu(Arc<str>, Arc<str>),
    /// A GPU without a uuid, by NVML's index.
    Unnamed(Arc<str>, u32),
}

impl Subject {
    fn of(finding: &Finding) -> Self {
        let rule = Arc::clone(&finding.rule);
        match (&finding.process, finding.gpus.first()) {
            (Some(process), _) => Self::Process(rule, process.identity),
            (None, Some(gpu)) => Self::gpu(rule, gpu.uuid.as_ref(), gpu.index),
            (None, None) => Self::gpu(rule, None, 0),
        }
    }

    fn gpu(rule: Arc<str>, uuid: Option<&Arc<str>>, index: u32) -> Self {
        match uuid {
            Some(uuid) => Self::Gpu(rule, Arc::clone(uuid)),
            None => Self::Unnamed(rule, index),
        }
    }
}
