//! What a kind of rule is made of, and what the engine sees of it.
//!
//! A kind is a struct of settings with defaults that implements [`Judge`]: a table of its settings and
//! one pure function. [`Tuned`] adds a name and overrides, and is the [`Rule`] that engine, configuration
//! and catalogue work with.

use std::fmt::Debug;
use std::sync::Arc;

use super::scope::Scope;
use super::setting::{Form, Setting, Value};
use crate::history::History;
use crate::model::finding::{Finding, Kind, Undecided};
use crate::model::{Process, Snapshot};

/// What a rule judges by: the history, into which the snapshot has been taken, and the snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// All that was seen.
    pub history: &'a History,
    /// The last of it.
    pub snapshot: &'a Snapshot,
}

/// What a rule concludes.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// What is so.
    pub findings: Vec<Finding>,
    /// What could not be decided.
    pub undecided: Vec<Undecided>,
}

/// A kind of rule: its settings and one pure function.
pub trait Judge: Clone + PartialEq + Debug + Default + Send + Sync + 'static {
    /// The kind of its findings.
    const KIND: Kind;
    /// What it finds, in a line.
    const MEANING: &'static str;
    /// Its settings.
    const SETTINGS: &'static [Setting<Self>];

    /// Judges what has been seen.
    fn judge(rule: &Tuned<Self>, seen: Seen<'_>, verdicts: &mut Verdicts);
}

/// A rule: a kind with a name, values for its settings, and other values for some.
#[derive(Clone, PartialEq, Debug)]
pub struct Tuned<S> {
    name: Arc<str>,
    settings: S,
    overrides: Vec<(Scope, Vec<(&'static str, Value)>)>,
}

impl<S: Judge> Default for Tuned<S> {
    fn default() -> Self {
        Self {
            name: S::KIND.to_string().into(),
            settings: S::default(),
            overrides: Vec::new(),
        }
    }
}

impl<S: Judge> Tuned<S> {
    /// The rule's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The settings without overrides.
    pub fn settings(&self) -> &S {
        &self.settings
    }

    /// The settings for a process on a GPU: every override that fits is applied, the later one last.
    pub fn settings_for(&self, process: &Process, index: u32, uuid: Option<&str>) -> S {
        let mut settings = self.settings.clone();
        for (scope, changes) in &self.overrides {
            if scope.fits(process, index, uuid) {
                for (name, value) in changes {
                    set(&mut settings, name, *value);
                }
            }
        }
        settings
    }
}

fn set<S: Judge>(settings: &mut S, name: &str, value: Value) -> bool {
    S::SETTINGS
        .iter()
        .find(|setting| setting.name == name)
        .is_some_and(|setting| setting.set(settings, value))
}

/// A setting of some rule, with its value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SettingValue {
    /// As it is written in the configuration.
    pub name: &'static str,
    /// What it means, in a line.
    pub meaning: &'static str,
    /// What kind of value it takes.
    pub form: Form,
    /// Its value.
    pub value: Value,
}

/// Other values for some, as the configuration gives them.
pub type Override = (Scope, Vec<(&'static str, Value)>);

/// A rule of any kind.
pub trait Rule: Debug + Send + Sync {
    /// Its name; findings carry it, and `--rule` takes it.
    fn name(&self) -> &Arc<str>;
    /// The kind of its findings.
    fn kind(&self) -> Kind;
    /// What it finds, in a line.
    fn meaning(&self) -> &'static str;
    /// Its settings, without overrides.
    fn settings(&self) -> Vec<SettingValue>;
    /// Gives a setting a value; `false` where there is none of that name and form.
    fn set(&mut self, name: &str, value: Value) -> bool;
    /// Other values for some, in the order in which they are applied.
    fn overrides(&self) -> &[Override];
    /// Adds values for some, which win over all before them.
    fn add_override(&mut self, scope: Scope, changes: Vec<(&'static str, Value)>);
    /// Judges what has been seen.
    fn judge(&self, seen: Seen<'_>, verdicts: &mut Verdicts);
    /// A copy.
    fn boxed(&self) -> Box<dyn Rule>;
}

impl<S: Judge> Rule for Tuned<S> {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn kind(&self) -> Kind {
        S::KIND
    }

    fn meaning(&self) -> &'static str {
        S::MEANING
    }

    fn settings(&self) -> Vec<SettingValue> {
        S::SETTINGS
            .iter()
            .map(|setting| SettingValue {
                name: setting.name,
                meaning: setting.meaning,
                form: setting.form(),
                value: setting.get(&self.settings),
            })
            .collect()
    }

    fn set(&mut self, name: &str, value: Value) -> bool {
        set(&mut self.settings, name, value)
    }

    fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    fn add_override(&mut self, scope: Scope, changes: Vec<(&'static str, Value)>) {
        self.overrides.push((scope, changes));
    }

    fn judge(&self, seen: Seen<'_>, verdicts: &mut Verdicts) {
        S::judge(self, seen, verdicts);
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
            && self.overrides() == other.overrides()
    }
}
