//! The parts of a kind, and a rule made from one.
//!
//! A kind is a [`RuleKind`]: thresholds, functions and words. A [`Rule`] is a kind with a name, values for its
//! settings, and overrides for some processes.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::engine::ActiveFindings;
use super::scope::{Scope, ScopeInput};
use super::setting;
use super::subject;
use super::suspect::Candidate;
use super::undecided_reason::{Doubts, UndecidedReason};
use super::unused_jobs::UnusedJobs;
use crate::history::{Began, Device, HighStretch, History, ProcessHistory, RowHistory};
use crate::model::escape::escape;
use crate::model::finding::{
    Action, Ends, Evidence, Finding, FindingGpu, FindingProcess, Kind, Pending, Severity,
};
use crate::model::{Gpu, GpuProcess, Identity, Process, Snapshot, Time};
use crate::units::{Bytes, Percent, Span};

/// The settings of all kinds. Each kind uses some of them: see [`RuleKind::settings`].
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub enabled: bool,
    pub min_memory: Bytes,
    pub duration: Span,
    pub max_cpu_percent: Percent,
    pub max_busy: Span,
    pub min_growth: Bytes,
    pub window: Span,
    pub out_of_memory_within: Span,
    pub min_utilization: Percent,
    pub max_power_share: Percent,
    pub min_free: Bytes,
    pub min_free_warning: Bytes,
    pub severity: Severity,
}

impl Settings {
    /// The values of settings that a kind does not use.
    pub(super) const NONE: Self = Self {
        enabled: true,
        min_memory: Bytes(0),
        duration: seconds(86_400),
        max_cpu_percent: Percent(100.0),
        max_busy: seconds(86_400),
        min_growth: Bytes(0),
        window: seconds(86_400),
        out_of_memory_within: seconds(86_400),
        min_utilization: Percent(100.0),
        max_power_share: Percent(100.0),
        min_free: Bytes(0),
        min_free_warning: Bytes(0),
        severity: Severity::Warning,
    };
}

pub(super) const fn seconds(seconds: u64) -> Span {
    Span(Duration::from_secs(seconds))
}

const ENABLED: (&str, &str) = ("enabled", "whether the rule is applied");
pub(super) const SEVERITY: (&str, &str) =
    ("severity", "severity of a finding: info, warning or critical");

/// A kind of rule: pure functions from history and snapshot to findings.
///
/// The engine calls every rule for each process, then for each GPU, then for each row whose process is uncertain. A
/// kind implements the functions that it needs.
#[derive(Debug)]
pub struct RuleKind {
    pub kind: Kind,
    /// The condition, in one line.
    pub meaning: &'static str,
    /// The settings besides `enabled`, in order, and their meanings.
    pub(super) settings: &'static [(&'static str, &'static str)],
    pub(super) defaults: Settings,
    pub(super) evidence: fn(&mut SchemaGenerator) -> Schema,
    /// Describes contradictory settings and how to correct them; `None` if there are none.
    pub(super) contradiction: fn(&Settings) -> Option<String>,
    /// Describes settings that have no effect although they seem to; `None` if all have an effect.
    pub(super) remark: fn(&Settings) -> Option<String>,
    /// Called for each process whose identity is certain.
    pub(super) process: fn(ProcessInput<'_>, &mut RuleOutput),
    pub(super) gpu: fn(RuleInput<'_>, &Gpu, &Device, &mut RuleOutput),
    /// Called for each row of a GPU that answered whose process is uncertain: /proc does not list the pid, or its
    /// entry may belong to another process. The process is the snapshot's entry, if any.
    pub(super) unresolved_row:
        fn(RuleInput<'_>, &Gpu, &GpuProcess, Option<&Process>, &mut RuleOutput),
}

impl PartialEq for RuleKind {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl RuleKind {
    /// A kind without functions yet, with evidence of this type.
    pub(super) const fn new<E: JsonSchema>(
        kind: Kind,
        meaning: &'static str,
        settings: &'static [(&'static str, &'static str)],
        defaults: Settings,
    ) -> Self {
        Self {
            kind,
            meaning,
            settings,
            defaults,
            evidence: |generator| generator.subschema_for::<E>(),
            contradiction: |_| None,
            remark: |_| None,
            process: |_, _| {},
            gpu: |_, _, _, _| {},
            unresolved_row: |_, _, _, _, _| {},
        }
    }

    pub fn setting_names(&self) -> impl Iterator<Item = &'static str> {
        self.settings().map(|(name, _)| name)
    }

    pub fn settings(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        [ENABLED].into_iter().chain(self.settings.iter().copied())
    }
}

/// Settings for some processes that the configuration overrides.
#[derive(Clone, PartialEq, Debug)]
pub struct Override {
    pub scope: Scope,
    pub changes: Table,
}

impl Override {
    fn over(&self, settings: Settings) -> Settings {
        // Each change was parsed when it was added.
        setting::changed(&settings, self.changes.clone()).unwrap_or(settings)
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    pub name: Arc<str>,
    pub made_of: &'static RuleKind,
    /// The processes that the rule applies to; empty means all.
    pub scope: Scope,
    pub settings: Settings,
    /// In the order in which they are applied.
    pub overrides: Vec<Override>,
}

impl Rule {
    pub fn new(made_of: &'static RuleKind) -> Self {
        Self {
            name: made_of.kind.name().into(),
            made_of,
            scope: Scope::default(),
            settings: made_of.defaults,
            overrides: Vec::new(),
        }
    }

    pub fn kind(&self) -> Kind {
        self.made_of.kind
    }

    /// Whether the rule has its kind's name, rather than one of its own.
    pub fn is_own(&self) -> bool {
        *self.name == *self.kind().name()
    }

    /// The values of the settings as written, in order.
    pub fn values(&self) -> Vec<(&'static str, Value)> {
        let mut table = Table::try_from(self.settings).unwrap_or_default();
        let names = self.made_of.setting_names();
        names.filter_map(|name| Some((name, table.remove(name)?))).collect()
    }

    /// Changes a setting.
    ///
    /// # Errors
    ///
    /// If the value is not allowed.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<(), toml::de::Error> {
        let change = Table::from_iter([(name.to_owned(), value.clone())]);
        self.settings = setting::changed(&self.settings, change)?;
        Ok(())
    }

    /// Describes contradictory settings, with or without an override.
    pub fn contradiction(&self) -> Option<String> {
        let changed = self.overrides.iter().map(|change| change.over(self.settings));
        [self.settings].into_iter().chain(changed).find_map(|it| (self.made_of.contradiction)(&it))
    }

    /// Lists settings and overrides that have no effect although they seem to, one per line.
    pub fn remarks(&self) -> Vec<String> {
        let remark = |settings: &Settings| (self.made_of.remark)(settings);
        let mut remarks: Vec<String> = remark(&self.settings).into_iter().collect();
        for change in &self.overrides {
            // Do not repeat a remark that applies without the override.
            if let Some(remark) = remark(&change.over(self.settings))
                && !remarks.iter().any(|known| known.ends_with(&*remark))
            {
                remarks.push(format!("override for {}: {remark}", change.scope));
            }
        }
        remarks
    }

    /// Whether the rule is enabled for any process.
    pub fn is_run(&self) -> bool {
        let switches_on = |change: &Override| {
            change.changes.get("enabled").and_then(Value::as_bool) == Some(true)
        };
        self.settings.enabled || self.overrides.iter().any(switches_on)
    }

    /// The settings for a process on a GPU. Every matching override is applied; the last one wins. `None` if the
    /// rule is disabled or does not apply to the process.
    pub fn settings_for(&self, input: &ScopeInput<'_>) -> Option<Settings> {
        if !self.scope.fits(input) {
            return None;
        }
        let fitting = self.overrides.iter().filter(|change| change.scope.fits(input));
        let settings = fitting.fold(self.settings, |settings, change| change.over(settings));
        settings.enabled.then_some(settings)
    }
}

/// A rule's input: the snapshot, and the history that already includes it.
#[derive(Clone, Copy, Debug)]
pub struct RuleInput<'a> {
    pub rule: &'a Rule,
    pub history: &'a History,
    pub snapshot: &'a Snapshot,
    /// The findings that were active after the previous snapshot.
    pub(super) active: &'a ActiveFindings,
    /// Created when a rule first needs it.
    pub(super) jobs: &'a OnceCell<UnusedJobs>,
}

impl<'a> RuleInput<'a> {
    /// The rule's finding on a process at the last snapshot. To avoid flicker, it ends at a lower threshold.
    pub fn active_finding(self, process: Identity) -> Option<&'a Finding> {
        let active = self.active.of_process(&self.rule.name, process);
        active.filter(|finding| self.is_remembered(finding))
    }

    pub fn active_finding_on(self, gpu: &Gpu) -> Option<&'a Finding> {
        let active = self.active.of_gpu(&self.rule.name, gpu);
        active.filter(|finding| self.is_remembered(finding))
    }

    /// Like [`active_finding_on`](Self::active_finding_on), if the condition has lasted since. No condition lasts
    /// across a gap in the samples.
    pub fn lasting_on(self, gpu: &Gpu, stretch: Option<&HighStretch>) -> Option<&'a Finding> {
        self.active_finding_on(gpu).filter(|finding| {
            let until = finding.since.plus_seconds(finding.duration_seconds);
            stretch.is_some_and(|stretch| stretch.since <= until)
        })
    }

    /// Whether the history reaches back to the finding's start. If not, the finding is from another boot, from
    /// before a suspend, or from before the clock was set.
    fn is_remembered(self, finding: &Finding) -> bool {
        self.history.first_time() <= Some(finding.since) && finding.since <= self.snapshot.time
    }

    /// The settings for a GPU, or for a process there without a known row.
    pub fn settings_on(self, process: Option<&Process>, gpu: &Gpu) -> Option<Settings> {
        self.rule.settings_for(&self.scope_on(process, gpu))
    }

    pub fn scope_on<'s>(self, process: Option<&'s Process>, gpu: &Gpu) -> ScopeInput<'s>
    where
        'a: 's,
    {
        ScopeInput { process, index: gpu.index, held_bytes: None, snapshot: self.snapshot }
    }

    /// A finding that becomes active `needed` seconds after `since` if nothing changes.
    pub fn pending(self, pid: Option<u32>, gpu: u32, since: Time, needed: f64) -> Pending {
        let due = since.plus_seconds(needed);
        Pending { rule: self.rule.name.clone(), kind: self.rule.kind(), pid, gpu, since, due }
    }

    /// Reports a pending finding on a GPU, and doubt if its condition may predate the history.
    pub fn expect_on(self, gpu: &Gpu, since: Time, needed: f64, verdicts: &mut RuleOutput) {
        if Some(since) <= self.history.first_time() {
            let seen = self.snapshot.time.seconds_since(since);
            verdicts.doubt(UndecidedReason::ShortHistory { needed, seen });
        }
        verdicts.expect(self.pending(None, gpu.index, since, needed));
    }

    /// A finding about a process, or else the first of the GPUs. Its only action is to notify the owner.
    pub(super) fn finding(self, process: Option<&Process>, parts: FindingParts) -> Finding {
        Finding {
            id: subject::id(&self.rule.name, &parts.gpus, process),
            rule: self.rule.name.clone(),
            kind: self.rule.kind(),
            severity: parts.severity,
            since: parts.since,
            duration_seconds: parts.until.seconds_since(parts.since),
            resolved_at: None,
            memory_bytes: subject::sum(&parts.gpus),
            gpus: parts.gpus,
            process: process.map(FindingProcess::of),
            evidence: parts.evidence,
            // Mails contain the message, including untrusted names, without further escaping.
            message: escape(&parts.message).into_owned(),
            advice: parts.advice,
            actions: vec![Action::Notify],
            commands: Vec::new(),
            also: Vec::new(),
            kept_by: None,
            skipped: None,
            more_bytes: None,
        }
    }
}

pub(super) struct FindingParts {
    pub(super) severity: Severity,
    pub(super) gpus: Vec<FindingGpu>,
    pub(super) since: Time,
    pub(super) until: Time,
    pub(super) evidence: Evidence,
    pub(super) message: String,
    pub(super) advice: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct ProcessInput<'a> {
    pub seen: RuleInput<'a>,
    pub process: &'a Process,
    pub known: &'a ProcessHistory,
}

impl<'a> ProcessInput<'a> {
    pub fn name(self) -> String {
        format!("{} ({})", super::name_of(self.process), self.process.pid)
    }

    /// Whether the rule had a finding on the process at the last snapshot.
    pub fn is_active(self) -> bool {
        self.seen.active_finding(self.process.identity()).is_some()
    }

    pub fn settings(self, row: &RowHistory) -> Option<Settings> {
        self.seen.rule.settings_for(&ScopeInput {
            process: Some(self.process),
            index: self.seen.history.gpu_index(row),
            held_bytes: row.used_bytes(),
            snapshot: self.seen.snapshot,
        })
    }

    /// Whether the process holds enough memory on a row's GPU, alone or with its job if the job has used no GPU for
    /// the settings' duration. A finding ends at three quarters of the threshold, to avoid flicker. `None` if the
    /// driver does not report the memory.
    pub(super) fn holds_enough(self, row: &RowHistory, settings: &Settings) -> Option<bool> {
        let bytes = row.used_bytes()?;
        let least = settings.min_memory.0;
        let reaches =
            |bytes: u64| bytes >= least || (bytes >= least - least / 4 && self.is_active());
        let seconds = settings.duration.seconds();
        let job_reaches = || {
            let RuleInput { snapshot, history, jobs, .. } = self.seen;
            let jobs = jobs.get_or_init(|| UnusedJobs::new(snapshot, history));
            reaches(jobs.bytes(self.process.pid, history.gpu_index(row), seconds))
        };
        // Families are computed only if the process itself is unused.
        let is_unused = || row.run().is_some_and(|run| run.seconds() >= seconds);
        Some(bytes > 0 && (reaches(bytes) || (is_unused() && job_reaches())))
    }

    pub fn on(self, row: &RowHistory) -> FindingGpu {
        FindingGpu {
            index: self.seen.history.gpu_index(row),
            uuid: self.seen.history.gpu_uuid(row).cloned(),
            used_bytes: row.used_bytes(),
        }
    }

    /// Reports a finding that becomes active `needed` seconds after `since`.
    pub fn expect(self, gpu: u32, since: Time, needed: f64, verdicts: &mut RuleOutput) {
        verdicts.expect(self.seen.pending(Some(self.process.pid), gpu, since, needed));
    }

    /// A candidate that meets the rule's conditions on these GPUs, except for the time.
    pub(super) fn candidate(
        self,
        gpus: Vec<FindingGpu>,
        (since, began): (Time, Began),
        samples: u64,
        needed: f64,
    ) -> Candidate {
        Candidate {
            rule: self.seen.rule.name.clone(),
            kind: self.seen.rule.kind(),
            process: self.process.identity(),
            gpus,
            since,
            began,
            samples,
            needed,
            max_cpu_percent: f64::INFINITY,
            longest_pause: 0.0,
        }
    }
}

/// The results of the rules for a snapshot.
#[derive(Debug, Default)]
pub struct RuleOutput {
    pub(super) findings: Vec<Finding>,
    pub(super) pending: Vec<Pending>,
    pub(super) doubts: Vec<Doubts>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) rule: usize,
}

impl RuleOutput {
    pub fn find(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub fn expect(&mut self, pending: Pending) {
        self.pending.push(pending);
    }

    /// Reports a candidate that has not been observed for long enough.
    pub(super) fn suspect(&mut self, candidate: Candidate) {
        if candidate.kind.ends() == Ends::Always {
            self.candidates.push(candidate);
        }
    }

    /// Reports why the rule is undecided; each reason is kept once.
    pub fn doubt(&mut self, doubt: UndecidedReason) {
        if self.doubts.len() <= self.rule {
            self.doubts.resize_with(self.rule + 1, Doubts::default);
        }
        self.doubts[self.rule].add(doubt);
    }
}
