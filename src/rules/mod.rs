//! The rules, one module for each kind of finding, and the engine that runs them.
//!
//! A kind's module contains its thresholds and defaults, the pure functions that turn observations into findings, its
//! messages, and its tests. [`KINDS`] lists the kinds.
//!
//! [`rule`] defines kinds, rules and their inputs, and [`setting`] parses settings. [`scope`] selects the processes
//! of a rule, override or exemption, and [`exemption`] decides which findings an exemption covers.
//! [`undecided_reason`] lists the reasons why a rule can be undecided. [`Engine`] feeds snapshots to the history,
//! runs every rule, and merges findings on the same process. A process that looks like waste but is not yet proven to
//! be waste is a suspect ([`suspect`]), not a finding.
//!
//! Rules report only what they can prove. If a required fact is unknown, the rule is undecided, and gpumem says so.
//! This module reads no clock and no file, and takes no action.

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
pub use lasting::WORK_BYTES_PER_SECOND;
use rule::{Rule, RuleKind};
pub use server::serves;

use std::sync::Arc;
use std::time::Duration;

use schemars::{Schema, SchemaGenerator};

use crate::model::Kind;
use crate::units::Span;

pub static KINDS: [&RuleKind; 12] = [
    &dead::KIND,
    &stuck::KIND,
    &orphan::KIND,
    &stopped::KIND,
    &hung::KIND,
    &placeholder::KIND,
    &idle::KIND,
    &leak::KIND,
    &idle::SERVER_KIND,
    &reserved::KIND,
    &unattributed::KIND,
    &pressure::KIND,
];

pub fn evidence(generator: &mut SchemaGenerator) -> Vec<(Kind, Schema)> {
    KINDS.iter().map(|rule_kind| (rule_kind.kind, (rule_kind.evidence)(generator))).collect()
}

#[derive(Clone, PartialEq, Debug)]
pub struct RuleSet {
    rules: Vec<Rule>,
    keeps: Vec<Exemption>,
    never: Vec<Arc<str>>,
    /// Maximum time for which `GPUMEM_KEEP` protects a process, or `None` if unlimited.
    pub longest_keep: Option<Span>,
}

impl Default for RuleSet {
    fn default() -> Self {
        let rules = KINDS.iter().map(|kind| Rule::new(kind)).collect();
        Self { rules, keeps: Vec::new(), never: Vec::new(), longest_keep: None }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no rule {name:?}; the rules are: {known}")]
pub struct UnknownRule {
    name: String,
    known: String,
}

impl RuleSet {
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub fn rules_mut(&mut self) -> &mut [Rule] {
        &mut self.rules
    }

    pub fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    pub fn longest(&self) -> Duration {
        let enabled = self.rules.iter().filter(|rule| rule.settings.enabled);
        let values = enabled.flat_map(|rule| {
            let changes = rule.overrides.iter().flat_map(|change| change.changes.clone());
            let base = rule.values().into_iter().map(|(name, value)| (name.to_owned(), value));
            base.chain(changes)
        });
        let spans = values.filter_map(|(name, value)| {
            // Do not wait for `max_busy`, because only notebooks with a running cell need so much history.
            let span: Span = value.try_into().ok()?;
            (name != idle::MAX_BUSY).then_some(span.0)
        });
        spans.max().unwrap_or_default()
    }

    pub fn keeps(&self) -> &[Exemption] {
        &self.keeps
    }

    pub fn add_keep(&mut self, keep: Exemption) {
        self.keeps.push(keep);
    }

    pub fn never(&self) -> &[Arc<str>] {
        &self.never
    }

    fn keep_rules(&self) -> KeepRules<'_> {
        let Self { keeps, never, longest_keep, .. } = self;
        KeepRules { keeps, never, longest_keep: *longest_keep }
    }

    pub fn set_never(&mut self, names: Vec<Arc<str>>) {
        self.never = names;
    }

    pub fn rule_mut(&mut self, name: &str) -> Option<&mut Rule> {
        self.rules.iter_mut().find(|rule| &*rule.name == name)
    }

    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// Keeps only the named rules and enables them. Does nothing if `names` is empty.
    ///
    /// # Errors
    ///
    /// Returns an error and changes nothing if a name is unknown.
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
    fn selecting_an_unknown_rule_lists_the_valid_names() {
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
