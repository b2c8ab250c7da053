//! What a kind of rule is made of, and a rule that is made of one.
//!
//! A kind is its thresholds, its functions and its words: a [`RuleKind`]. A [`Rule`] is a kind with a name,
//! values for its settings, and other values for some processes.

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
use crate::history::{Began, Device, HighStretch, History, ProcessHistory, RowHistory};
use crate::model::escape::escape;
use crate::model::evidence::Evidence;
use crate::model::finding::{
    Action, Ends, Finding, FindingGpu, FindingProcess, Kind, Pending, Severity,
};
use crate::model::{Gpu, GpuProcess, Identity, Process, Snapshot, Time};
use crate::units::{Bytes, Percent, Span};

/// What rules can be tuned by. A kind has some of these: see [`RuleKind::settings`].
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
    /// Those that a kind does not have.
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

/// A length of time, for a table of defaults.
pub(super) const fn seconds(seconds: u64) -> Span {
    Span(Duration::from_secs(seconds))
}

/// The first setting of every kind.
const ENABLED: (&str, &str) = ("enabled", "whether the rule is run");
/// The last setting of most kinds.
pub(super) const SEVERITY: (&str, &str) =
    ("severity", "how bad a finding is: info, warning or critical");

/// A kind of rule. All of it is pure: history and snapshot to verdicts.
///
/// The engine asks every rule about each process, then about each GPU, then about each row of a
/// process that is not known for certain. A kind answers to what it is about.
#[derive(Debug)]
pub struct RuleKind {
    /// The kind of its findings.
    pub kind: Kind,
    /// What it finds, in a line.
    pub meaning: &'static str,
    /// Its settings besides `enabled`, in their order, and what each means.
    pub(super) settings: &'static [(&'static str, &'static str)],
    /// The values of the settings by default.
    pub(super) defaults: Settings,
    /// What its verdicts rest on.
    pub(super) evidence: fn(&mut SchemaGenerator) -> Schema,
    /// What is wrong with settings together, and what would be right; `None` where nothing is.
    pub(super) contradiction: fn(&Settings) -> Option<String>,
    /// What settings say that cannot hold: allowed, and without the effect that it seems to have.
    pub(super) remark: fn(&Settings) -> Option<String>,
    /// Judges a process of the snapshot whose identity is certain.
    pub(super) process: fn(ProcessInput<'_>, &mut RuleOutput),
    /// Judges a GPU of the snapshot.
    pub(super) gpu: fn(RuleInput<'_>, &Gpu, &Device, &mut RuleOutput),
    /// Judges a row of a GPU that answered, whose process is not known for certain: /proc does not know
    /// the pid, or what it knows is not believed. The process is what the snapshot has of it all the same.
    pub(super) unresolved_row:
        fn(RuleInput<'_>, &Gpu, &GpuProcess, Option<&Process>, &mut RuleOutput),
}

impl PartialEq for RuleKind {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl RuleKind {
    /// A kind that judges nothing yet, and whose verdicts rest on facts of this type.
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

    /// The names of its settings, in their order.
    pub fn setting_names(&self) -> impl Iterator<Item = &'static str> {
        self.settings().map(|(name, _)| name)
    }

    /// Its settings, in their order, and what each means.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        [ENABLED].into_iter().chain(self.settings.iter().copied())
    }
}

/// Other values for some, as the configuration gives them.
#[derive(Clone, PartialEq, Debug)]
pub struct Override {
    /// Which processes they are for.
    pub scope: Scope,
    /// Settings and their values.
    pub changes: Table,
}

impl Override {
    fn over(&self, settings: Settings) -> Settings {
        // Each was read when it was added.
        setting::changed(&settings, self.changes.clone()).unwrap_or(settings)
    }
}

/// A rule: a kind with a name, values for its settings, and other values for some.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Its name; findings carry it.
    pub name: Arc<str>,
    /// What it is made of.
    pub made_of: &'static RuleKind,
    /// Which processes it is for; empty where it is for all.
    pub scope: Scope,
    /// The settings without overrides.
    pub settings: Settings,
    /// Other values for some, in the order in which they are applied.
    pub overrides: Vec<Override>,
}

impl Rule {
    /// The rule of a kind, with its defaults.
    pub fn new(made_of: &'static RuleKind) -> Self {
        Self {
            name: made_of.kind.name().into(),
            made_of,
            scope: Scope::default(),
            settings: made_of.defaults,
            overrides: Vec::new(),
        }
    }

    /// The kind of its findings.
    pub fn kind(&self) -> Kind {
        self.made_of.kind
    }

    /// Whether it is the kind's own, without a name of its own.
    pub fn is_own(&self) -> bool {
        *self.name == *self.kind().name()
    }

    /// The values of its settings as they are written, in their order.
    pub fn values(&self) -> Vec<(&'static str, Value)> {
        let mut table = Table::try_from(self.settings).unwrap_or_default();
        let names = self.made_of.setting_names();
        names.filter_map(|name| Some((name, table.remove(name)?))).collect()
    }

    /// Changes a setting.
    ///
    /// # Errors
    ///
    /// A value that is not allowed.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<(), toml::de::Error> {
        let change = Table::from_iter([(name.to_owned(), value.clone())]);
        self.settings = setting::changed(&self.settings, change)?;
        Ok(())
    }

    /// What is wrong with its settings together, with and without each override.
    pub fn contradiction(&self) -> Option<String> {
        let changed = self.overrides.iter().map(|change| change.over(self.settings));
        [self.settings].into_iter().chain(changed).find_map(|it| (self.made_of.contradiction)(&it))
    }

    /// What of its settings and overrides cannot hold, each in a line: allowed, and without the effect that
    /// it seems to have.
    pub fn remarks(&self) -> Vec<String> {
        let remark = |settings: &Settings| (self.made_of.remark)(settings);
        let mut remarks: Vec<String> = remark(&self.settings).into_iter().collect();
        for change in &self.overrides {
            // What it shares with the rule is said once.
            if let Some(remark) = remark(&change.over(self.settings))
                && !remarks.iter().any(|known| known.ends_with(&*remark))
            {
                remarks.push(format!("override for {}: {remark}", change.scope));
            }
        }
        remarks
    }

    /// Whether it is run for anybody.
    pub fn is_run(&self) -> bool {
        let switches_on = |change: &Override| {
            change.changes.get("enabled").and_then(Value::as_bool) == Some(true)
        };
        self.settings.enabled || self.overrides.iter().any(switches_on)
    }

    /// The settings for a process on a GPU: every override that fits is applied, the later one last.
    /// `None` where the rule is not for it, or switched off.
    pub fn settings_for(&self, input: &ScopeInput<'_>) -> Option<Settings> {
        if !self.scope.fits(input) {
            return None;
        }
        let fitting = self.overrides.iter().filter(|change| change.scope.fits(input));
        let settings = fitting.fold(self.settings, |settings, change| change.over(settings));
        settings.enabled.then_some(settings)
    }
}

/// What a rule judges by: the history, into which the snapshot has been taken, and the snapshot.
#[derive(Clone, Copy, Debug)]
pub struct RuleInput<'a> {
    /// The rule that is asked.
    pub rule: &'a Rule,
    /// All that was seen.
    pub history: &'a History,
    /// The last of it.
    pub snapshot: &'a Snapshot,
    /// What stood after the snapshot before it.
    pub(super) active: &'a ActiveFindings,
}

impl<'a> RuleInput<'a> {
    /// What the rule found in a process at the last snapshot. A finding ends at a lower threshold than it
    /// begins, so that nothing flickers.
    pub fn active_finding(self, process: Identity) -> Option<&'a Finding> {
        let active = self.active.of_process(&self.rule.name, process);
        active.filter(|finding| self.is_remembered(finding))
    }

    /// What the rule found on a GPU at the last snapshot.
    pub fn active_finding_on(self, gpu: &Gpu) -> Option<&'a Finding> {
        let active = self.active.of_gpu(&self.rule.name, gpu);
        active.filter(|finding| self.is_remembered(finding))
    }

    /// As [`active_finding_on`](Self::active_finding_on), where what it rests on has lasted since: across a hole in
    /// the samples nothing does.
    pub fn lasting_on(self, gpu: &Gpu, stretch: Option<&HighStretch>) -> Option<&'a Finding> {
        self.active_finding_on(gpu).filter(|finding| {
            let until = finding.since.plus_seconds(finding.duration_seconds);
            stretch.is_some_and(|stretch| stretch.since <= until)
        })
    }

    /// Whether the history reaches back to when it began; else it is of another boot, of before the
    /// machine slept, or of a clock that was set.
    fn is_remembered(self, finding: &Finding) -> bool {
        self.history.first_time() <= Some(finding.since) && finding.since <= self.snapshot.time
    }

    /// The settings for a GPU, or for a process there of which no row is known.
    pub fn settings_on(self, process: Option<&Process>, gpu: &Gpu) -> Option<Settings> {
        self.rule.settings_for(&self.scope_on(process, gpu))
    }

    /// A GPU as a scope asks for it.
    pub fn scope_on<'s>(self, process: Option<&'s Process>, gpu: &Gpu) -> ScopeInput<'s>
    where
        'a: 's,
    {
        ScopeInput { process, index: gpu.index, held_bytes: None, snapshot: self.snapshot }
    }

    /// What will be so `needed` seconds after `since` if nothing changes.
    pub fn pending(self, pid: Option<u32>, gpu: u32, since: Time, needed: f64) -> Pending {
        let due = since.plus_seconds(needed);
        Pending { rule: self.rule.name.clone(), kind: self.rule.kind(), pid, gpu, since, due }
    }

    /// It will be so on a GPU if nothing changes; where it may have begun before the history did, that it is
    /// not so yet cannot be told either.
    pub fn expect_on(self, gpu: &Gpu, since: Time, needed: f64, verdicts: &mut RuleOutput) {
        if Some(since) <= self.history.first_time() {
            let seen = self.snapshot.time.seconds_since(since);
            verdicts.doubt(UndecidedReason::ShortHistory { needed, seen });
        }
        verdicts.expect(self.pending(None, gpu.index, since, needed));
    }

    /// A finding of the rule, about a process or else about the first of the GPUs. Nothing is offered but to
    /// notify its owner.
    pub(super) fn finding(self, process: Option<&Process>, told: Told) -> Finding {
        Finding {
            id: subject::id(&self.rule.name, &told.gpus, process),
            rule: self.rule.name.clone(),
            kind: self.rule.kind(),
            severity: told.severity,
            since: told.since,
            duration_seconds: told.until.seconds_since(told.since),
            resolved_at: None,
            memory_bytes: subject::sum(&told.gpus),
            gpus: told.gpus,
            process: process.map(FindingProcess::of),
            evidence: told.evidence,
            // Who is sent it as a mail has nothing else between them and the names in it.
            message: escape(&told.message).into_owned(),
            advice: told.advice,
            actions: vec![Action::Notify],
            commands: Vec::new(),
            also: Vec::new(),
            kept_by: None,
            skipped: None,
            more_bytes: None,
        }
    }
}

/// What a finding says, and of when.
pub(super) struct Told {
    pub(super) severity: Severity,
    pub(super) gpus: Vec<FindingGpu>,
    pub(super) since: Time,
    pub(super) until: Time,
    pub(super) evidence: Evidence,
    pub(super) message: String,
    pub(super) advice: Vec<String>,
}

/// A process that a rule is asked about.
#[derive(Clone, Copy, Debug)]
pub struct ProcessInput<'a> {
    /// What it is judged by.
    pub seen: RuleInput<'a>,
    /// The process as the snapshot has it.
    pub process: &'a Process,
    /// What the history has of it.
    pub known: &'a ProcessHistory,
}

impl<'a> ProcessInput<'a> {
    /// `python train.py (4242)`.
    pub fn name(self) -> String {
        format!("{} ({})", super::name_of(self.process), self.process.pid)
    }

    /// Whether the rule found something in it at the last snapshot.
    pub fn is_active(self) -> bool {
        self.seen.active_finding(self.process.identity()).is_some()
    }

    /// The settings for the GPU of one of its rows.
    pub fn settings(self, row: &RowHistory) -> Option<Settings> {
        self.seen.rule.settings_for(&ScopeInput {
            process: Some(self.process),
            index: self.seen.history.gpu_index(row),
            held_bytes: row.used_bytes(),
            snapshot: self.seen.snapshot,
        })
    }

    /// The GPU of one of its rows, as a finding carries it.
    pub fn on(self, row: &RowHistory) -> FindingGpu {
        FindingGpu {
            index: self.seen.history.gpu_index(row),
            uuid: self.seen.history.gpu_uuid(row).cloned(),
            used_bytes: row.used_bytes(),
        }
    }

    /// Says that there will be a finding `needed` seconds after `since`.
    pub fn expect(self, gpu: u32, since: Time, needed: f64, verdicts: &mut RuleOutput) {
        verdicts.expect(self.seen.pending(Some(self.process.pid), gpu, since, needed));
    }

    /// What meets the conditions of the rule on these GPUs but for the time that it takes.
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

/// What the rules conclude from a snapshot.
#[derive(Debug, Default)]
pub struct RuleOutput {
    pub(super) findings: Vec<Finding>,
    pub(super) pending: Vec<Pending>,
    /// By the place of the rule.
    pub(super) doubts: Vec<Doubts>,
    /// What looks so and is not proved.
    pub(super) candidates: Vec<Candidate>,
    /// The place of the rule that is being asked.
    pub(super) rule: usize,
}

impl RuleOutput {
    /// It is so.
    pub fn find(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// It will be so if nothing changes.
    pub fn expect(&mut self, pending: Pending) {
        self.pending.push(pending);
    }

    /// It looks so, and has not been seen for long enough.
    pub(super) fn suspect(&mut self, candidate: Candidate) {
        if candidate.kind.ends() == Ends::Always {
            self.candidates.push(candidate);
        }
    }

    /// It cannot be decided. The same doubt is listed once.
    pub fn doubt(&mut self, doubt: UndecidedReason) {
        if self.doubts.len() <= self.rule {
            self.doubts.resize_with(self.rule + 1, Doubts::default);
        }
        self.doubts[self.rule].add(doubt);
    }
}
