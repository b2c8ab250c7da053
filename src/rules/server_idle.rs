//! `server-idle`: an inference server holds memory on a GPU and got no request.
//!
//! Judged as [`idle`], for the processes that `idle` skips because waiting is their work: a
//! process that looks like an inference server and is not known not to listen, and those that work for
//! one. The memory may be wanted, so it is reported; nothing is ever offered that would end it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::idle::{self, IdleEvidence, IdleSettings, IdleTarget, Idleness};
use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use crate::history::ProcessHistory;
use crate::model::Process;
use crate::model::finding::{Kind, Severity};
use crate::units::{Bytes, Percent, Span};

/// What the rule is tuned by: as [`idle::IdleSettings`], without notebooks, which serve no clients.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, JsonSchema, Serialize)]
pub struct ServerIdleSettings {
    /// Whether the rule is run.
    pub enabled: bool,
    /// Less memory than this on a GPU is ignored.
    pub min_memory: Bytes,
    /// How long the GPU has to be unused.
    pub duration: Span,
    /// With this mean CPU use or more meanwhile it is at work (one core is 100).
    pub max_cpu_percent: Percent,
    /// How bad a finding is: info, warning or critical.
    pub severity: Severity,
}

impl Default for ServerIdleSettings {
    fn default() -> Self {
        let idle = IdleSettings::default();
        Self {
            enabled: idle.enabled,
            min_memory: idle.min_memory,
            duration: idle.duration,
            max_cpu_percent: idle.max_cpu_percent,
            severity: Severity::Info,
        }
    }
}

impl Idleness for ServerIdleSettings {
    const TARGET: IdleTarget = IdleTarget::Server;

    fn thresholds(&self) -> IdleSettings {
        IdleSettings {
            enabled: self.enabled,
            min_memory: self.min_memory,
            duration: self.duration,
            max_cpu_percent: self.max_cpu_percent,
            severity: self.severity,
            ..IdleSettings::default()
        }
    }
}

impl RuleKind for ServerIdleSettings {
    const KIND: Kind = Kind::ServerIdle;
    const MEANING: &'static str =
        "an inference server holds memory on a GPU and has not used it for the duration";
    type Evidence = IdleEvidence;

    fn process(
        rule: &ConfiguredRule<Self>,
        seen: RuleInput<'_>,
        process: &Process,
        known: &ProcessHistory,
        verdicts: &mut RuleOutput,
    ) {
        if let Some(finding) = idle::judge(rule, seen, process, known, verdicts) {
            verdicts.find(finding);
        }
    }
}

#[cfg(test)]
mod tests;
