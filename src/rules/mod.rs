//! A file per kind of finding, and the engine that runs them.
//!
//! A kind is one file: its thresholds with their units and defaults, a pure function from what was seen
//! of a process or a GPU to findings, its words, and its tests; and one line in [`KINDS`]. What it is made of is
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

pub use crate::model::process_name::name_of;
pub use engine::Engine;
use exemption::{Exemption, KeepRules};
use rule::{Rule, RuleKind};
pub use server::serves;

use std::sync::Arc;
use std::time::Duration;

use schemars::{Schema, SchemaGenerator};

use crate::model::Kind;
use crate::units::Span;

/// Every kind of rule.
pub static KINDS: [&RuleKind; 12] = [
    &dead::KIND,
    &stuck::KIND,
    &orphan::KIND,
    &stopped::KIND,
    &hung::KIND,
    &placeholder::KIND,
    &idle::KIND,
    &leak::KIND,
    &server_idle::KIND,
    &reserved::KIND,
    &unattributed::KIND,
    &pressure::KIND,
];

/// What the findings of each kind rest on, as schemas.
pub fn evidence(generator: &mut SchemaGenerator) -> Vec<(Kind, Schema)> {
    KINDS.iter().map(|it| (it.kind, (it.evidence)(generator))).collect()
}

/// Every rule, with its settings, and the processes that none of them is to accuse.
#[derive(Clone, PartialEq, Debug)]
pub struct RuleSet {
    rules: Vec<Rule>,
    keeps: Vec<Exemption>,
    never: Vec<Arc<str>>,
}

impl Default for RuleSet {
    fn default() -> Self {
        let rules = KINDS.iter().map(|kind| Rule::new(kind)).collect();
        Self { rules, keeps: Vec::new(), never: Vec::new() }
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
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rules, to change them.
    pub fn rules_mut(&mut self) -> &mut [Rule] {
        &mut self.rules
    }

    /// Adds a rule after the others.
    pub fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// The longest time that a rule which is switched on asks for.
    pub fn longest(&self) -> Duration {
        let run = self.rules.iter().filter(|rule| rule.settings.enabled);
        let values = run.flat_map(|rule| {
            let changes = rule.overrides.iter().flat_map(|it| it.changes.clone());
            let own = rule.values().into_iter().map(|(name, value)| (name.to_owned(), value));
            own.chain(changes)
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
    pub fn rule_mut(&mut self, name: &str) -> Option<&mut Rule> {
        self.rules.iter_mut().find(|rule| &*rule.name == name)
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
        let is_named = |rule: &Rule| names.iter().any(|name| name.as_ref() == &*rule.name);
        for name in names.iter().map(AsRef::as_ref) {
            if self.rule_mut(name).is_none() {
                let known: Vec<&str> = self.rules.iter().map(|rule| &*rule.name).collect();
                return Err(UnknownRule { name: name.to_owned(), known: known.join(", ") });
            }
        }
        if !names.is_empty() {
            self.rules.retain(is_named);
            self.rules.iter_mut().for_each(|rule| rule.settings.enabled = true);
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
    fn every_setting_of_a_kind_has_a_value_and_a_meaning() {
        for kind in KINDS {
            let values = Rule::new(kind).values();
            let written: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
            assert_eq!(written, kind.setting_names().collect::<Vec<_>>(), "{}", kind.kind);
            assert!(kind.settings().all(|(_, meaning)| !meaning.is_empty()), "{}", kind.kind);
        }
    }

    #[test]
    fn rules_are_selected_by_name_and_an_unknown_one_lists_the_known() {
        let mut settings = RuleSet::default();
        settings.select::<&str>(&[]).unwrap();
        assert_eq!(settings, RuleSet::default());
        let error = settings.select(&["idel"]).unwrap_err();
        let names: Vec<&str> = settings.rules().iter().map(|rule| &*rule.name).collect();
        assert_eq!(
            error.to_string(),
            format!("there is no rule \"idel\"; the rules are: {}", names.join(", "))
        );
        let idle = settings.rule_mut("idle").unwrap();
        assert!(idle.set("enabled", &written(false)).is_ok());
        assert!(idle.set("enabled", &written(Percent(1.0))).is_err());
        settings.select(&["idle"]).unwrap();
        let [idle] = settings.rules() else { panic!("{settings:?}") };
        assert!(&*idle.name == "idle" && idle.is_run());
    }
}
