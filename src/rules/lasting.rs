//! What the kinds share that rest on a state which lasts while memory is held.

use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::{Began, ProcessHistory, RowHistory, Streak};
use crate::model::evidence::Evidence;
use crate::model::finding::{Action, Finding, FindingGpu, Pending, Severity};
use crate::model::{Process, Time};

/// Of a time that has to be without use, samples have to cover this share: now and then one is missing,
/// and what was seen before and after it speaks for it.
pub(super) const LEAST_COVERAGE: f64 = 0.75;
/// What is found already stays so down to this share.
const COVERAGE_TO_STAY: f64 = 0.5;

/// Whether samples cover enough of a time, for what `stands` already or does not.
pub(super) fn is_covered(coverage: f64, is_active: bool) -> bool {
    let least = if is_active { COVERAGE_TO_STAY } else { LEAST_COVERAGE };
    coverage >= least
}

/// What a process holds, of the GPUs on which a rule is for it.
#[derive(Debug)]
pub(super) struct HeldRows<S> {
    /// The settings; of several that differ by GPU, the most severe.
    pub settings: S,
    /// The GPUs, the lowest first; never empty.
    pub gpus: Vec<FindingGpu>,
}

/// The rows of a process that count; `None` where none does.
pub(super) fn held<S: RuleKind>(
    rule: &ConfiguredRule<S>,
    seen: RuleInput<'_>,
    process: &Process,
    known: &ProcessHistory,
    severity: fn(&S) -> Severity,
    counts: impl Fn(&S, &RowHistory) -> bool,
) -> Option<HeldRows<S>> {
    let mut worst: Option<S> = None;
    let mut gpus = Vec::new();
    for row in known.rows() {
        let Some(settings) = rule
            .settings_for(&seen.scope_of(process, row))
            .filter(|settings| counts(settings, row))
        else {
            continue;
        };
        if worst.as_ref().is_none_or(|worst| severity(worst) < severity(&settings)) {
            worst = Some(settings.into_owned());
        }
        gpus.push(on(seen, row));
    }
    Some(HeldRows { settings: worst?, gpus: subject::by_gpu(gpus.into_iter()) })
}

/// The GPU of a row, as a finding carries it.
pub(super) fn on(seen: RuleInput<'_>, row: &RowHistory) -> FindingGpu {
    FindingGpu {
        index: seen.history.gpu_index(row),
        uuid: seen.history.gpu_uuid(row).cloned(),
        used_bytes: row.used_bytes(),
    }
}

/// Whether the row is shown, or cannot be seen while the finding stood.
pub(super) fn is_listed<S: RuleKind>(
    rule: &ConfiguredRule<S>,
    seen: RuleInput<'_>,
    process: &Process,
    row: &RowHistory,
) -> bool {
    row.last_seen() == seen.snapshot.time
        || (!seen.history.is_listed(row)
            && seen.active_finding(rule.name(), process.identity()).is_some())
}

/// Says of something that has not lasted long enough when it will have. Where its beginning was not
/// seen it may have already, and the history is too short to tell.
pub(super) fn wait<S: RuleKind>(
    rule: &ConfiguredRule<S>,
    process: &Process,
    gpu: u32,
    streak: &Streak,
    needed: f64,
    verdicts: &mut RuleOutput,
) {
    if streak.began == Began::Witnessed {
        expect(rule, process, gpu, streak.since, needed, verdicts);
    } else {
        verdicts.doubt(UndecidedReason::ShortHistory { needed, seen: streak.seconds() });
    }
}

/// Says that there will be a finding `needed` seconds after `since`.
pub(super) fn expect<S: RuleKind>(
    rule: &ConfiguredRule<S>,
    process: &Process,
    gpu: u32,
    since: Time,
    needed: f64,
    verdicts: &mut RuleOutput,
) {
    verdicts.expect(Pending {
        rule: rule.name().clone(),
        kind: S::KIND,
        pid: Some(process.pid),
        gpu,
        since,
        due: since.plus_seconds(needed),
    });
}

/// A finding about a process, but for what it says: evidence, message, advice, actions.
pub(super) struct ProcessFinding<'a, S> {
    pub rule: &'a ConfiguredRule<S>,
    pub process: &'a Process,
    pub severity: Severity,
    pub gpus: Vec<FindingGpu>,
    pub since: Time,
    pub until: Time,
}

impl<S: RuleKind> ProcessFinding<'_, S> {
    /// `python train.py (4242)`.
    pub(super) fn name(&self) -> String {
        format!("{} ({})", subject::name(self.process), self.process.pid)
    }

    /// From `since` to `until`.
    pub(super) fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }

    pub(super) fn finding(self, content: FindingText) -> Finding {
        Finding {
            id: subject::id(self.rule.name(), &self.gpus, self.process),
            rule: self.rule.name().clone(),
            kind: S::KIND,
            severity: self.severity,
            since: self.since,
            duration_seconds: self.seconds(),
            resolved_at: None,
            process: Some(subject::process(self.process)),
            memory_bytes: subject::sum(&self.gpus),
            gpus: self.gpus,
            evidence: content.evidence,
            message: content.message,
            advice: content.advice,
            actions: content.actions,
            commands: Vec::new(),
            also: Vec::new(),
            kept_by: None,
            skipped: None,
        }
    }
}

/// What a finding says.
pub(super) struct FindingText {
    pub evidence: Evidence,
    pub message: String,
    pub advice: Vec<String>,
    pub actions: Vec<Action>,
}
