//! `server-idle`: an inference server holds memory on a GPU and nobody has asked it for anything.
//!
//! Judged as [`idle`], of those whom `idle` leaves alone because waiting is their work: a
//! process that looks like an inference server and is not known not to listen, and those that work for
//! one. Somebody may want the memory, so it is said; nothing is ever offered that would end it.

use super::idle::{self, IdleEvidence, Idleness, Whose};
use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use super::setting::{Setting, SettingField};
use crate::history::ProcessHistory;
use crate::model::Process;
use crate::model::finding::{Kind, Severity};

/// What the rule is tuned by: as [`idle::IdleSettings`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ServerIdleSettings {
    idle: idle::IdleSettings,
}

impl Default for ServerIdleSettings {
    fn default() -> Self {
        let idle = idle::IdleSettings {
            severity: Severity::Info,
            ..idle::IdleSettings::default()
        };
        Self { idle }
    }
}

impl Idleness for ServerIdleSettings {
    const WHOSE: Whose = Whose::Server;

    fn thresholds(&self) -> idle::IdleSettings {
        self.idle
    }
}

impl RuleKind for ServerIdleSettings {
    const KIND: Kind = Kind::ServerIdle;
    const MEANING: &'static str =
        "an inference server holds memory on a GPU and has not used it for the duration";
    type Evidence = IdleEvidence;
    const SETTINGS: &'static [Setting<Self>] = &[
        Setting {
            name: "enabled",
            meaning: "whether the rule is run",
            field: SettingField::Flag(|settings| &mut settings.idle.enabled),
        },
        Setting {
            name: "min_memory",
            meaning: "less memory than this on a GPU is ignored",
            field: SettingField::Bytes(|settings| &mut settings.idle.min_memory),
        },
        Setting {
            name: "duration",
            meaning: "how long the GPU has to be unused",
            field: SettingField::Span(|settings| &mut settings.idle.duration),
        },
        Setting {
            name: "max_cpu_percent",
            meaning: "with this mean CPU use or more meanwhile it is at work (one core is 100)",
            field: SettingField::Percent(|settings| &mut settings.idle.max_cpu_percent),
        },
        Setting {
            name: "severity",
            meaning: "how bad a finding is: info, warning or critical",
            field: SettingField::Severity(|settings| &mut settings.idle.severity),
        },
    ];

    fn is_enabled(&self) -> bool {
        self.idle.enabled
    }

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
