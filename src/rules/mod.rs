//! A file per kind of finding, and the engine that runs them.
//!
//! A kind is one file: its settings with their units and defaults, a pure function from what was seen
//! of a process or a GPU to findings, and its tests; and one line in `kinds` below. What it is made of is
//! in [`rule`], how its settings are written in [`setting`], which processes a rule or an override is for in
//! [`scope`], which ones none is to accuse in [`exemption`], why a rule may be undecided in [`undecided_reason`]. [`Engine`]
//! feeds snapshots to the history, asks every rule, and makes one accusation of what several say of one
//! process.
//! What a rule cannot prove yet and already looks so is a suspect ([`suspect`]), never a finding.
//!
//! A rule accuses only on evidence: what is unknown makes it undecided, which is said. Nothing here
//! asks a clock, reads a file or acts.

pub mod dead;
mod engine;
pub mod exemption;
pub mod hung;
pub mod idle;
mod lasting;
pub mod leak;
mod listening;
pub mod orphan;
pub mod placeholder;
pub mod pressure;
pub mod reserved;
pub mod rule;
pub mod scope;
mod server;
pub mod server_idle;
pub mod setting;
pub mod stopped;
pub mod stuck;
mod subject;
mod suspect;
#[cfg(test)]
pub(crate) mod testing;
pub mod unattributed;
pub mod undecided_reason;

pub use engine::Engine;
use exemption::{Exemption, KeepRules};
use rule::{ConfiguredRule, Rule};
pub use server::serves;
pub use subject::name as name_of;

use std::sync::Arc;
use std::time::Duration;

use schemars::{Schema, SchemaGenerator};
use toml::Value;

use crate::model::Kind;
use crate::model::Severity;
use crate::units::Span;

/// Every kind of rule, with its defaults.
fn kinds() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(ConfiguredRule::<dead::DeadSettings>::default()),
        Box::new(ConfiguredRule::<stuck::StuckSettings>::default()),
        Box::new(ConfiguredRule::<orphan::OrphanSettings>::default()),
        Box::new(ConfiguredRule::<stopped::StoppedSettings>::default()),
        Box::new(ConfiguredRule::<hung::HungSettings>::default()),
        Box::new(ConfiguredRule::<placeholder::PlaceholderSettings>::default()),
        Box::new(ConfiguredRule::<idle::IdleSettings>::default()),
        Box::new(ConfiguredRule::<leak::LeakSettings>::default()),
        Box::new(ConfiguredRule::<server_idle::ServerIdleSettings>::default()),
        Box::new(ConfiguredRule::<reserved::ReservedSettings>::default()),
        Box::new(ConfiguredRule::<unattributed::UnattributedSettings>::default()),
        Box::new(ConfiguredRule::<pressure::PressureSettings>::default()),
    ]
}

/// What the findings of each kind rest on, as schemas.
pub fn evidence(generator: &mut SchemaGenerator) -> Vec<(Kind, Schema)> {
    let rules = kinds().into_iter();
    rules.map(|rule| (rule.kind(), rule.evidence(generator))).collect()
}

/// A kind of rule as the manual describes it.
#[derive(Clone, PartialEq, Debug)]
pub struct KindManual {
    /// The rule's name, as it stands in `[rules.NAME]`.
    pub name: String,
    /// The kind of its findings.
    pub kind: Kind,
    /// What it finds, in a line.
    pub meaning: &'static str,
    /// Its settings, with their defaults.
    pub settings: Vec<(&'static str, Value)>,
}

impl KindManual {
    /// The severity of its findings by default.
    pub fn severity(&self) -> Option<Severity> {
        severity(&self.settings)
    }
}

/// The severity among settings.
pub fn severity(settings: &[(&str, Value)]) -> Option<Severity> {
    let mut settings = settings.iter();
    let (_, value) = settings.find(|(name, _)| *name == "severity")?;
    value.clone().try_into().ok()
}

/// All kinds of rules, their settings, defaults and meaning.
pub fn catalogue() -> Vec<KindManual> {
    let describe = |rule: Box<dyn Rule>| KindManual {
        name: rule.name().to_string(),
        kind: rule.kind(),
        meaning: rule.meaning(),
        settings: rule.settings(),
    };
    kinds().into_iter().map(describe).collect()
}

/// Every rule, with its settings, and the processes that none of them is to accuse.
#[derive(Clone, PartialEq, Debug)]
pub struct RuleSet {
    rules: Vec<Box<dyn Rule>>,
    keeps: Vec<Exemption>,
    never: Vec<Arc<str>>,
}

impl Default for RuleSet {
    fn default() -> Self {
        Self { rules: kinds(), keeps: Vec::new(), never: Vec::new() }
    }
}

/// A rule was named that there is not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no rule {name:?}; the rules are: {known}")]
pub struct UnknownRule {
    name: String,
    known: String,
}

impl RuleSet {
    /// The rules.
    pub fn rules(&self) -> &[Box<dyn Rule>] {
        &self.rules
    }

    /// Adds a rule after the others.
    pub fn add(&mut self, rule: Box<dyn Rule>) {
        self.rules.push(rule);
    }

    /// The longest time that a rule which is switched on asks for.
    pub fn longest(&self) -> Duration {
        let is_off = |values: &[(&str, Value)]| values.contains(&("enabled", false.into()));
        let values = self.rules.iter().flat_map(|rule| {
            let mut values = rule.settings();
            match is_off(&values) {
                true => values.clear(),
                false => {
                    let others = rule.overrides().iter();
                    values.extend(others.flat_map(|change| change.changes.clone()));
                }
            }
            values
        });
        let spans = values.filter_map(|(name, value)| {
            // How long a cell may sleep is asked of notebooks in which one runs; all others are decided sooner.
            let span: Span = value.try_into().ok()?;
            (name != idle::MAX_BUSY).then_some(span.0)
        });
        spans.max().unwrap_or_default()
    }

    /// The exemptions, in their order.
    pub fn keeps(&self) -> &[Exemption] {
        &self.keeps
    }

    /// Adds an exemption.
    pub fn add_keep(&mut self, keep: Exemption) {
        self.keeps.push(keep);
    }

    /// File names of programs that are never killed, besides those that are compiled in.
    pub fn never(&self) -> &[Arc<str>] {
        &self.never
    }

    /// What they exempt.
    fn keep_rules(&self) -> KeepRules<'_> {
        KeepRules { keeps: &self.keeps, never: &self.never }
    }

    /// Names the programs that are never killed.
    pub fn set_never(&mut self, names: Vec<Arc<str>>) {
        self.never = names;
    }

    /// A rule, to change it.
    pub fn rule_mut(&mut self, name: &str) -> Option<&mut Box<dyn Rule>> {
        self.rules.iter_mut().find(|rule| &**rule.name() == name)
    }

    /// Puts a rule in the place of all that there are.
    #[cfg(test)]
    pub(crate) fn replace(&mut self, rule: Box<dyn Rule>) {
        self.rules = vec![rule];
    }

    /// Leaves no rule: nothing will be found.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// Keeps the named rules only, and runs them also where they are switched off: who asks for a rule
    /// by name wants its verdict. Without any name nothing changes.
    ///
    /// # Errors
    ///
    /// A name that no rule has; nothing is changed then.
    pub fn select<N: AsRef<str>>(&mut self, names: &[N]) -> Result<(), UnknownRule> {
        let is_named = |rule: &dyn Rule| names.iter().any(|name| name.as_ref() == &**rule.name());
        for name in names.iter().map(AsRef::as_ref) {
            if self.rule_mut(name).is_none() {
                let known: Vec<&str> = self.rules.iter().map(|rule| &**rule.name()).collect();
                return Err(UnknownRule { name: name.to_owned(), known: known.join(", ") });
            }
        }
        if !names.is_empty() {
            self.rules.retain(|rule| is_named(&**rule));
            for rule in &mut self.rules {
                // Every kind has this setting, a test holds.
                let _ = rule.set("enabled", &true.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::written;
    use super::*;
    use crate::units::Percent;

    #[test]
    fn every_kind_can_be_switched_and_describes_its_meaning() {
        for entry in catalogue() {
            assert_eq!(entry.name, entry.kind.to_string());
            assert!(!entry.meaning.is_empty() && entry.severity().is_some());
            let names: Vec<&str> = entry.settings.iter().map(|(name, _)| *name).collect();
            assert_eq!(names[0], "enabled", "select switches it on by this name");
            let rule = kinds().into_iter().find(|rule| rule.kind() == entry.kind);
            let meanings = rule.unwrap().meanings();
            assert_eq!(meanings.len(), names.len(), "{}", entry.name);
            assert!(!meanings.contains(&String::new()), "{}", entry.name);
        }
    }

    #[test]
    fn rules_are_selected_by_name_and_an_unknown_one_lists_the_known() {
        let mut settings = RuleSet::default();
        settings.select::<&str>(&[]).unwrap();
        assert_eq!(settings, RuleSet::default());
        let error = settings.select(&["idel"]).unwrap_err();
        let names: Vec<&str> = settings.rules().iter().map(|rule| &**rule.name()).collect();
        assert_eq!(
            error.to_string(),
            format!("there is no rule \"idel\"; the rules are: {}", names.join(", "))
        );
        let idle = settings.rule_mut("idle").unwrap();
        assert!(idle.set("enabled", &written(false)).is_ok());
        assert!(
            idle.set("enabled", &written(Percent(1.0))).is_err()
                && idle.set("nothing", &written(true)).is_err()
        );
        settings.select(&["idle"]).unwrap();
        let [idle] = settings.rules() else { panic!("{settings:?}") };
        assert!(&**idle.name() == "idle" && idle.is_run());
    }
}
