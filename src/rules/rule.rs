//! What a kind of rule is made of, and what the engine sees of it.
//!
//! A kind is a struct of settings with defaults that implements [`RuleKind`] by one pure function. [`ConfiguredRule`] adds a name and overrides, and is the [`Rule`] that engine, configuration
//! and catalogue work with.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Value;

use super::engine::ActiveFindings;
use super::scope::{Scope, ScopeInput};
use super::setting::{self, WrongValue};
use super::suspect::Candidate;
use super::undecided_reason::{Doubts, UndecidedReason};
use crate::history::{Device, HighStretch, History, ProcessHistory, RowHistory};
use crate::model::evidence::KindEvidence;
use crate::model::finding::{Ends, Finding, Kind, Pending};
use crate::model::{Gpu, GpuProcess, Identity, Process, Snapshot};

/// What a rule judges by: the history, into which the snapshot has been taken, and the snapshot.
#[derive(Clone, Copy, Debug)]
pub struct RuleInput<'a> {
    /// All that was seen.
    pub history: &'a History,
    /// The last of it.
    pub snapshot: &'a Snapshot,
    /// What stood after the snapshot before it.
    pub(super) active: &'a ActiveFindings,
}

impl<'a> RuleInput<'a> {
    /// What the rule of this name found in a process at the last snapshot. A finding ends at a lower
    /// threshold than it begins, so that nothing flickers.
    pub fn active_finding(self, rule: &Arc<str>, process: Identity) -> Option<&'a Finding> {
        self.active.of_process(rule, process).filter(|finding| self.is_remembered(finding))
    }

    /// What the rule of this name found on a GPU at the last snapshot.
    pub fn active_finding_on(self, rule: &Arc<str>, gpu: &Gpu) -> Option<&'a Finding> {
        self.active.of_gpu(rule, gpu).filter(|finding| self.is_remembered(finding))
    }

    /// As [`active_finding_on`](Self::active_finding_on), where what it rests on has lasted since: across a hole in
    /// the samples nothing does.
    pub fn lasting_on(
        self,
        rule: &Arc<str>,
        gpu: &Gpu,
        stretch: Option<&HighStretch>,
    ) -> Option<&'a Finding> {
        self.active_finding_on(rule, gpu).filter(|finding| {
            let until = finding.since.plus_seconds(finding.duration_seconds);
            stretch.is_some_and(|stretch| stretch.since <= until)
        })
    }

    /// Whether the history reaches back to when it began; else it is of another boot, of before the
    /// machine slept, or of a clock that was set.
    fn is_remembered(self, finding: &Finding) -> bool {
        self.history.first_time() <= Some(finding.since) && finding.since <= self.snapshot.time
    }

    /// It will be so if nothing changes; where it may have begun before the history did, that it is not
    /// so yet cannot be told either.
    pub fn expect(self, pending: Pending, verdicts: &mut RuleOutput) {
        if Some(pending.since) <= self.history.first_time() {
            verdicts.doubt(UndecidedReason::ShortHistory {
                needed: pending.due.seconds_since(pending.since),
                seen: self.snapshot.time.seconds_since(pending.since),
            });
        }
        verdicts.expect(pending);
    }

    /// A process on the GPU of a row, as a scope asks for it.
    pub fn scope_of(self, process: &'a Process, row: &RowHistory) -> ScopeInput<'a> {
        ScopeInput {
            process: Some(process),
            index: self.history.gpu_index(row),
            held_bytes: row.used_bytes(),
            snapshot: self.snapshot,
        }
    }

    /// A GPU as a scope asks for it.
    pub fn scope_on(self, process: Option<&'a Process>, gpu: &'a Gpu) -> ScopeInput<'a> {
        ScopeInput { process, index: gpu.index, held_bytes: None, snapshot: self.snapshot }
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

/// A kind of rule: its settings and what it concludes. All is pure: history and snapshot to verdicts.
/// The first of the settings is `enabled`; how they are read and written is in [`setting`].
///
/// The engine asks every rule about each process, then about each GPU, then about each row of a
/// process that is not known for certain. A kind answers to what it is about.
pub trait RuleKind:
    Clone
    + PartialEq
    + Debug
    + Default
    + DeserializeOwned
    + JsonSchema
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// The kind of its findings.
    const KIND: Kind;
    /// What it finds, in a line.
    const MEANING: &'static str;
    /// What its verdicts rest on.
    type Evidence: KindEvidence;

    /// What is wrong with these settings together, and what would be right; `None` where nothing is.
    fn contradiction(&self) -> Option<String> {
        None
    }

    /// What these settings say that cannot hold: allowed, and without the effect that it seems to have.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Judges a process of the snapshot whose identity is certain.
    fn process(
        _rule: &ConfiguredRule<Self>,
        _seen: RuleInput<'_>,
        _process: &Process,
        _known: &ProcessHistory,
        _verdicts: &mut RuleOutput,
    ) {
    }

    /// Judges a GPU of the snapshot.
    fn gpu(
        _rule: &ConfiguredRule<Self>,
        _seen: RuleInput<'_>,
        _gpu: &Gpu,
        _known: &Device,
        _verdicts: &mut RuleOutput,
    ) {
    }

    /// Judges a row of a GPU that answered, whose process is not known for certain: /proc does not know
    /// the pid, or what it knows is not believed. `process` is what the snapshot has of it all the same.
    fn unresolved_row(
        _rule: &ConfiguredRule<Self>,
        _seen: RuleInput<'_>,
        _gpu: &Gpu,
        _row: &GpuProcess,
        _process: Option<&Process>,
        _verdicts: &mut RuleOutput,
    ) {
    }
}

/// Other values for some, as the configuration gives them.
#[derive(Clone, PartialEq, Debug)]
pub struct Override {
    /// Which processes they are for.
    pub scope: Scope,
    /// Settings and their values.
    pub changes: Vec<(&'static str, Value)>,
}

impl Override {
    fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.changes.iter().map(|(name, value)| (*name, value))
    }
}

/// A rule: a kind with a name, values for its settings, and other values for some.
#[derive(Clone, PartialEq, Debug)]
pub struct ConfiguredRule<S> {
    name: Arc<str>,
    scope: Scope,
    settings: Switched<S>,
    overrides: Vec<Override>,
    /// The settings with each override alone.
    overridden: Vec<Switched<S>>,
}

/// Settings, and whether the rule is run with them.
#[derive(Clone, PartialEq, Debug)]
struct Switched<S> {
    settings: S,
    is_enabled: bool,
}

impl<S: RuleKind> From<S> for Switched<S> {
    fn from(settings: S) -> Self {
        let is_enabled = setting::values(&settings).contains(&("enabled", true.into()));
        Self { settings, is_enabled }
    }
}

impl<S: RuleKind> Default for ConfiguredRule<S> {
    fn default() -> Self {
        Self {
            name: S::KIND.name().into(),
            scope: Scope::default(),
            settings: S::default().into(),
            overrides: Vec::new(),
            overridden: Vec::new(),
        }
    }
}

impl<S: RuleKind> ConfiguredRule<S> {
    /// The rule's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The settings without overrides.
    pub fn settings(&self) -> &S {
        &self.settings.settings
    }

    /// The settings for a process on a GPU: every override that fits is applied, the later one last.
    /// `None` where the rule is not for it, or switched off.
    pub fn settings_for(&self, input: &ScopeInput<'_>) -> Option<Cow<'_, S>> {
        if !self.scope.is_empty() && !self.scope.fits(input) {
            return None;
        }
        let overrides = self.overrides.iter().zip(&self.overridden);
        let mut fitting = overrides.filter(|(change, _)| change.scope.fits(input));
        let first = fitting.next().map_or(&self.settings, |(_, first)| first);
        let (mut settings, mut is_enabled) = (Cow::Borrowed(&first.settings), first.is_enabled);
        for (change, _) in fitting {
            // Each was read when it was added.
            if let Ok(changed) = setting::changed(&*settings, change.values()) {
                let changed = Switched::from(changed);
                (settings, is_enabled) = (Cow::Owned(changed.settings), changed.is_enabled);
            }
        }
        is_enabled.then_some(settings)
    }
}

/// A rule of any kind.
pub trait Rule: Debug + Send + Sync {
    /// Its name; findings carry it, and `--rule` takes it.
    fn name(&self) -> &Arc<str>;
    /// The kind of its findings.
    fn kind(&self) -> Kind;
    /// What it finds, in a line.
    fn meaning(&self) -> &'static str;
    /// The schema of what its findings rest on.
    fn evidence(&self, generator: &mut SchemaGenerator) -> Schema;
    /// Its settings and their values, without overrides.
    fn settings(&self) -> Vec<(&'static str, Value)>;
    /// What its settings mean, each in a line.
    fn meanings(&self) -> Vec<String>;
    /// Gives a setting a value.
    ///
    /// # Errors
    ///
    /// A value that is not allowed; nothing is changed then. A setting that it has not is none.
    fn set(&mut self, name: &str, value: &Value) -> Result<(), WrongValue>;
    /// Other values for some, in the order in which they are applied.
    fn overrides(&self) -> &[Override];
    /// Adds values for some, which win over all before them.
    ///
    /// # Errors
    ///
    /// A value that is not allowed; nothing is added then.
    fn add_override(&mut self, scope: Scope, changes: &[(&str, Value)]) -> Result<(), WrongValue>;
    /// Which processes it is for; empty where it is for all.
    fn scope(&self) -> &Scope;
    /// What is wrong with its settings together, with and without each override.
    fn contradiction(&self) -> Option<String>;
    /// See [`RuleKind::remark`]; of the settings, then of the settings with each override.
    fn remarks(&self) -> Vec<Option<String>>;
    /// Whether it is run for anybody.
    fn is_run(&self) -> bool;
    /// The same rule under another name, for some only, without the overrides.
    fn named(&self, name: Arc<str>, scope: Scope) -> Box<dyn Rule>;
    /// See [`RuleKind::process`].
    fn process(
        &self,
        seen: RuleInput<'_>,
        process: &Process,
        known: &ProcessHistory,
        verdicts: &mut RuleOutput,
    );
    /// See [`RuleKind::gpu`].
    fn gpu(&self, seen: RuleInput<'_>, gpu: &Gpu, known: &Device, verdicts: &mut RuleOutput);
    /// See [`RuleKind::unresolved_row`].
    fn unresolved_row(
        &self,
        seen: RuleInput<'_>,
        gpu: &Gpu,
        row: &GpuProcess,
        process: Option<&Process>,
        verdicts: &mut RuleOutput,
    );
    /// A copy.
    fn boxed(&self) -> Box<dyn Rule>;
}

impl<S: RuleKind> Rule for ConfiguredRule<S> {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn kind(&self) -> Kind {
        S::KIND
    }

    fn meaning(&self) -> &'static str {
        S::MEANING
    }

    fn evidence(&self, generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<S::Evidence>()
    }

    fn settings(&self) -> Vec<(&'static str, Value)> {
        setting::values(self.settings())
    }

    fn meanings(&self) -> Vec<String> {
        setting::meanings::<S>()
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), WrongValue> {
        let settings = setting::changed(self.settings(), [(name, value)].into_iter())?;
        let overridden = self.overrides.iter().map(|change| {
            let changed = setting::changed(&settings, change.values());
            changed.map(Switched::from)
        });
        self.overridden = overridden.collect::<Result<_, _>>()?;
        self.settings = settings.into();
        Ok(())
    }

    fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    fn add_override(&mut self, scope: Scope, changes: &[(&str, Value)]) -> Result<(), WrongValue> {
        let given = || changes.iter().map(|(name, value)| (*name, value));
        let settings = setting::changed(self.settings(), given())?;
        // As they are written again.
        let mut values = setting::values(&settings);
        values.retain(|(name, _)| given().any(|(given, _)| given == *name));
        self.overrides.push(Override { scope, changes: values });
        self.overridden.push(settings.into());
        Ok(())
    }

    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn contradiction(&self) -> Option<String> {
        let mut all = [&self.settings].into_iter().chain(&self.overridden);
        all.find_map(|it| it.settings.contradiction())
    }

    fn remarks(&self) -> Vec<Option<String>> {
        let all = [&self.settings].into_iter().chain(&self.overridden);
        all.map(|it| it.settings.remark()).collect()
    }

    fn is_run(&self) -> bool {
        let switches_on = |change: &Override| {
            let mut values = change.values();
            values.any(|value| value == ("enabled", &Value::Boolean(true)))
        };
        self.settings.is_enabled || self.overrides.iter().any(switches_on)
    }

    fn named(&self, name: Arc<str>, scope: Scope) -> Box<dyn Rule> {
        Box::new(Self {
            name,
            scope,
            settings: self.settings.clone(),
            overrides: Vec::new(),
            overridden: Vec::new(),
        })
    }

    fn process(
        &self,
        seen: RuleInput<'_>,
        process: &Process,
        known: &ProcessHistory,
        verdicts: &mut RuleOutput,
    ) {
        S::process(self, seen, process, known, verdicts);
    }

    fn gpu(&self, seen: RuleInput<'_>, gpu: &Gpu, known: &Device, verdicts: &mut RuleOutput) {
        S::gpu(self, seen, gpu, known, verdicts);
    }

    fn unresolved_row(
        &self,
        seen: RuleInput<'_>,
        gpu: &Gpu,
        row: &GpuProcess,
        process: Option<&Process>,
        verdicts: &mut RuleOutput,
    ) {
        S::unresolved_row(self, seen, gpu, row, process, verdicts);
    }

    fn boxed(&self) -> Box<dyn Rule> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Rule> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}

impl PartialEq for dyn Rule {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
            && self.kind() == other.kind()
            && self.settings() == other.settings()
            && self.scope() == other.scope()
            && self.overrides() == other.overrides()
    }
}
