//! Defines kinds, rules, and the inputs and outputs of their callbacks.
//!
//! A [`RuleKind`] defines defaults, callbacks and messages. A [`Rule`] is a kind with a name, settings, and overrides
//! for some processes.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::engine::ActiveFindings;
use super::lasting::UnusedJobs;
use super::scope::{Scope, ScopeInput};
use super::setting;
use super::subject;
use super::suspect::Candidate;
use super::undecided_reason::{Doubts, UndecidedReason};
use crate::history::{Began, Device, HighStretch, History, ProcessHistory, RowHistory};
use crate::model::escape::escape;
use crate::model::finding::{
    Action, Ends, Evidence, Finding, FindingGpu, FindingProcess, Kind, Pending, Severity,
};
use crate::model::{Gpu, GpuProcess, Identity, Process, Snapshot, Time};
use crate::units::{Bytes, Percent, Span};

/// Settings of all kinds. Each kind uses only the settings in [`RuleKind::settings`].
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
    /// Values of the settings that a kind does not use.
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

/// A kind of rule: pure callbacks that compute findings from the history and the snapshot.
///
/// The engine calls each rule for each process, then for each GPU, then for each row whose process is uncertain. A
/// kind implements only the callbacks that it needs.
#[derive(Debug)]
pub struct RuleKind {
    pub kind: Kind,
    pub meaning: &'static str,
    pub(super) settings: &'static [(&'static str, &'static str)],
    pub(super) defaults: Settings,
    pub(super) evidence: fn(&mut SchemaGenerator) -> Schema,
    /// Describes how to correct contradictory settings. Returns `None` if the settings are consistent.
    pub(super) contradiction: fn(&Settings) -> Option<String>,
    /// Describes a setting without effect. Returns `None` if all settings have an effect.
    pub(super) remark: fn(&Settings) -> Option<String>,
    /// Called for each process that has a history and is not parked. For desktops and virtual machines, only a few
    /// kinds are called.
    pub(super) process: fn(ProcessInput<'_>, &mut RuleOutput),
    pub(super) gpu: fn(RuleInput<'_>, &Gpu, &Device, &mut RuleOutput),
    /// Called for each row whose process is uncertain: /proc does not list the pid, or the process in /proc may be a
    /// different one. The process argument is the snapshot's entry, if any. Not called for GPUs that did not answer.
    pub(super) unresolved_row:
        fn(RuleInput<'_>, &Gpu, &GpuProcess, Option<&Process>, &mut RuleOutput),
}

impl PartialEq for RuleKind {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl RuleKind {
    /// Creates a kind whose callbacks do nothing and whose evidence has type `E`. Override the callbacks with struct
    /// update syntax.
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

#[derive(Clone, PartialEq, Debug)]
pub struct Override {
    pub scope: Scope,
    pub changes: Table,
}

impl Override {
    fn apply_to(&self, settings: Settings) -> Settings {
        // The changes were validated when they were added, so applying them does not fail.
        setting::changed(&settings, self.changes.clone()).unwrap_or(settings)
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    pub name: Arc<str>,
    pub made_of: &'static RuleKind,
    /// Processes that the rule covers. An empty scope means all processes.
    pub scope: Scope,
    pub settings: Settings,
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

    /// Returns whether this is the built-in rule of its kind, which has the kind's name.
    pub fn is_own(&self) -> bool {
        *self.name == *self.kind().name()
    }

    /// Returns the settings as TOML values, in display order.
    pub fn values(&self) -> Vec<(&'static str, Value)> {
        let mut table = Table::try_from(self.settings).unwrap_or_default();
        let names = self.made_of.setting_names();
        names.filter_map(|name| Some((name, table.remove(name)?))).collect()
    }

    /// Changes a setting.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is invalid.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<(), toml::de::Error> {
        let change = Table::from_iter([(name.to_owned(), value.clone())]);
        self.settings = setting::changed(&self.settings, change)?;
        Ok(())
    }

    /// Describes how to correct contradictory settings, or returns `None` if the settings are consistent, both alone
    /// and with each override.
    pub fn contradiction(&self) -> Option<String> {
        let changed = self.overrides.iter().map(|change| change.apply_to(self.settings));
        [self.settings]
            .into_iter()
            .chain(changed)
            .find_map(|settings| (self.made_of.contradiction)(&settings))
    }

    pub fn remarks(&self) -> Vec<String> {
        let remark = |settings: &Settings| (self.made_of.remark)(settings);
        let mut remarks: Vec<String> = remark(&self.settings).into_iter().collect();
        for change in &self.overrides {
            // Report a remark that also applies to the base settings only once.
            if let Some(remark) = remark(&change.apply_to(self.settings))
                && !remarks.iter().any(|earlier| earlier.ends_with(&*remark))
            {
                remarks.push(format!("override for {}: {remark}", change.scope));
            }
        }
        remarks
    }

    /// Returns whether the rule is enabled, at least for some processes.
    pub fn is_run(&self) -> bool {
        let switches_on = |change: &Override| {
            change.changes.get("enabled").and_then(Value::as_bool) == Some(true)
        };
        self.settings.enabled || self.overrides.iter().any(switches_on)
    }

    /// Returns the settings for a process on a GPU, or `None` if the rule is disabled or does not apply to the
    /// process. All matching overrides are applied in order, so the last one takes precedence.
    pub fn settings_for(&self, input: &ScopeInput<'_>) -> Option<Settings> {
        if !self.scope.fits(input) {
            return None;
        }
        let fitting = self.overrides.iter().filter(|change| change.scope.fits(input));
        let settings = fitting.fold(self.settings, |settings, change| change.apply_to(settings));
        settings.enabled.then_some(settings)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RuleInput<'a> {
    pub rule: &'a Rule,
    pub history: &'a History,
    pub snapshot: &'a Snapshot,
    pub(super) active: &'a ActiveFindings,
    /// Unused memory of jobs, which is computed when a rule first needs it.
    pub(super) jobs: &'a OnceCell<UnusedJobs>,
}

impl<'a> RuleInput<'a> {
    /// Returns the rule's finding on a process in the previous snapshot. To avoid flicker, rules require less to keep
    /// an active finding than to begin one.
    pub fn active_finding(self, process: Identity) -> Option<&'a Finding> {
        let active = self.active.of_process(&self.rule.name, process);
        active.filter(|finding| self.is_remembered(finding))
    }

    pub fn active_finding_on(self, gpu: &Gpu) -> Option<&'a Finding> {
        let active = self.active.of_gpu(&self.rule.name, gpu);
        active.filter(|finding| self.is_remembered(finding))
    }

    /// Returns the same as [`active_finding_on`](Self::active_finding_on) if `stretch`, the current period of the
    /// condition, began before the finding's last sample. Otherwise, returns `None`, because the samples of the
    /// condition have a gap.
    pub fn lasting_on(self, gpu: &Gpu, stretch: Option<&HighStretch>) -> Option<&'a Finding> {
        self.active_finding_on(gpu).filter(|finding| {
            let until = finding.since.plus_seconds(finding.duration_seconds);
            stretch.is_some_and(|stretch| stretch.since <= until)
        })
    }

    /// Returns whether the history reaches back to the finding's start. If not, the machine rebooted or suspended, or
    /// the clock changed, since the finding began.
    fn is_remembered(self, finding: &Finding) -> bool {
        self.history.first_time() <= Some(finding.since) && finding.since <= self.snapshot.time
    }

    /// Returns the settings for a GPU or, if `process` is given, for that process on the GPU. The process's memory is
    /// treated as unknown.
    pub fn settings_on(self, process: Option<&Process>, gpu: &Gpu) -> Option<Settings> {
        self.rule.settings_for(&self.scope_on(process, gpu))
    }

    pub fn scope_on<'s>(self, process: Option<&'s Process>, gpu: &Gpu) -> ScopeInput<'s>
    where
        'a: 's,
    {
        ScopeInput { process, index: gpu.index, held_bytes: None, snapshot: self.snapshot }
    }

    /// Creates a pending finding, which becomes active `needed` seconds after `since` if nothing changes.
    pub fn pending(self, pid: Option<u32>, gpu: u32, since: Time, needed: f64) -> Pending {
        let due = since.plus_seconds(needed);
        Pending { rule: self.rule.name.clone(), kind: self.rule.kind(), pid, gpu, since, due }
    }

    /// Reports a pending finding on a GPU. If the condition held in the first sample of the history, also reports
    /// that the rule is undecided, because the condition may have begun earlier.
    pub fn add_pending_on(self, gpu: &Gpu, since: Time, needed: f64, output: &mut RuleOutput) {
        if Some(since) <= self.history.first_time() {
            let observed = self.snapshot.time.seconds_since(since);
            output.add_doubt(UndecidedReason::ShortHistory { needed, observed });
        }
        output.pending.push(self.pending(None, gpu.index, since, needed));
    }

    /// Creates a finding on a process or, if `process` is `None`, on the GPUs. Its only action is to notify the owner.
    pub(super) fn finding(self, process: Option<&Process>, parts: FindingParts) -> Finding {
        Finding {
            id: subject::finding_id(&self.rule.name, &parts.gpus, process),
            rule: self.rule.name.clone(),
            kind: self.rule.kind(),
            severity: parts.severity,
            since: parts.since,
            duration_seconds: parts.until.seconds_since(parts.since),
            resolved_at: None,
            memory_bytes: subject::total_bytes(&parts.gpus),
            gpus: parts.gpus,
            process: process.map(FindingProcess::new),
            evidence: parts.evidence,
            // The message contains names that processes control, and emails do not escape it again.
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
    pub rule_input: RuleInput<'a>,
    pub process: &'a Process,
    pub process_history: &'a ProcessHistory,
}

impl<'a> ProcessInput<'a> {
    pub fn name(self) -> String {
        format!("{} ({})", super::name_of(self.process), self.process.pid)
    }

    pub fn is_active(self) -> bool {
        self.rule_input.active_finding(self.process.identity()).is_some()
    }

    pub fn settings(self, row: &RowHistory) -> Option<Settings> {
        self.rule_input.rule.settings_for(&ScopeInput {
            process: Some(self.process),
            index: self.rule_input.history.gpu_index(row),
            held_bytes: row.used_bytes(),
            snapshot: self.rule_input.snapshot,
        })
    }

    /// Returns a minimum or, to avoid flicker, three quarters of it if the process has an active finding.
    pub(super) fn lowered(self, least: u64) -> u64 {
        if self.is_active() { least - least / 4 } else { least }
    }

    /// Returns whether the process holds enough memory on a row's GPU, or `None` if the driver does not report the
    /// memory. If the process's job has used no GPU for the settings' duration, the memory of the whole job counts.
    pub(super) fn holds_enough(self, row: &RowHistory, settings: &Settings) -> Option<bool> {
        let bytes = row.used_bytes()?;
        let least = settings.min_memory.0;
        let reaches = |bytes: u64| bytes >= least || bytes >= self.lowered(least);
        let seconds = settings.duration.seconds();
        let job_reaches = || {
            let RuleInput { snapshot, history, jobs, .. } = self.rule_input;
            let jobs = jobs.get_or_init(|| UnusedJobs::new(snapshot, history));
            reaches(jobs.bytes(self.process.pid, history.gpu_index(row), seconds))
        };
        // Computing families is slow, so this comes last and only for unused processes.
        let is_unused = || row.run().is_some_and(|run| run.seconds() >= seconds);
        Some(bytes > 0 && (reaches(bytes) || (is_unused() && job_reaches())))
    }

    pub fn finding_gpu(self, row: &RowHistory) -> FindingGpu {
        FindingGpu {
            index: self.rule_input.history.gpu_index(row),
            uuid: self.rule_input.history.gpu_uuid(row).cloned(),
            used_bytes: row.used_bytes(),
        }
    }

    pub fn add_pending(self, gpu: u32, since: Time, needed: f64, output: &mut RuleOutput) {
        output.pending.push(self.rule_input.pending(Some(self.process.pid), gpu, since, needed));
    }

    /// Creates a candidate: the process meets the conditions of the rule on these GPUs, but not yet for the duration.
    pub(super) fn candidate(
        self,
        gpus: Vec<FindingGpu>,
        (since, began): (Time, Began),
        samples: u64,
        needed: f64,
    ) -> Candidate {
        Candidate {
            rule: self.rule_input.rule.name.clone(),
            kind: self.rule_input.rule.kind(),
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

#[derive(Debug, Default)]
pub struct RuleOutput {
    pub(super) findings: Vec<Finding>,
    pub(super) pending: Vec<Pending>,
    pub(super) doubts: Vec<Doubts>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) rule_index: usize,
}

impl RuleOutput {
    /// Adds a candidate. Drops candidates of kinds that `reap` does not include by default, because these kinds have
    /// no suspects.
    pub(super) fn add_candidate(&mut self, candidate: Candidate) {
        if candidate.kind.ends() == Ends::Always {
            self.candidates.push(candidate);
        }
    }

    pub fn add_doubt(&mut self, doubt: UndecidedReason) {
        if self.doubts.len() <= self.rule_index {
            self.doubts.resize_with(self.rule_index + 1, Doubts::default);
        }
        self.doubts[self.rule_index].add(doubt);
    }
}
