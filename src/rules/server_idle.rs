//! `server-idle`: an inference server holds memory on a GPU and nobody has asked it for anything.
//!
//! Judged as [`idle`], of those whom `idle` leaves alone because waiting is their work: a
//! process that looks like an inference server and is not known not to listen, and those that work for
//! one. Somebody may want the memory, so it is said; nothing is ever offered that would end it.

use super::idle::{self, IdleEvidence, Idleness, Whose};
use super::rule::{Judge, Seen, Tuned, Verdicts};
use super::setting::{Field, Setting};
use crate::history::ProcessHistory;
use crate::model::Process;
use crate::model::finding::{Kind, Severity};

/// What the rule is tuned by: as [`idle::Settings`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    idle: idle::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        let idle = idle::Settings {
            severity: Severity::Info,
            ..idle::Settings::default()
        };
        Self { idle }
    }
}

impl Idleness for Settings {
    const WHOSE: Whose = Whose::Server;

    fn thresholds(&self) -> idle::Settings {
        self.idle
    }
}

impl Judge for Settings {
    const KIND: Kind = Kind::ServerIdle;
    const MEANING: &'static str =
        "an inference server holds memory on a GPU and has not used it for the duration";
    type Evidence = IdleEvidence;
    const SETTINGS: &'static [Setting<Self>] = &[
        Setting {
            name: "enabled",
            meaning: "whether the rule is run",
            field: Field::Flag(|settings| &mut settings.idle.enabled),
        },
        Setting {
            name: "min_memory",
            meaning: "less memory than this on a GPU is ignored",
            field: Field::Bytes(|settings| &mut settings.idle.min_memory),
        },
        Setting {
            name: "duration",
            meaning: "how long the GPU has to be unused",
            field: Field::Span(|settings| &mut settings.idle.duration),
        },
        Setting {
            name: "max_cpu_percent",
            meaning: "with this mean CPU use or more meanwhile it is at work (one core is 100)",
            field: Field::Percent(|settings| &mut settings.idle.max_cpu_percent),
        },
        Setting {
            name: "severity",
            meaning: "how bad a finding is: info, warning or critical",
            field: Field::Severity(|settings| &mut settings.idle.severity),
        },
    ];

    fn is_enabled(&self) -> bool {
        self.idle.enabled
    }

    fn process(
        rule: &Tuned<Self>,
        seen: Seen<'_>,
        process: &Process,
        known: &ProcessHistory,
        verdicts: &mut Verdicts,
    ) {
        if let Some(finding) = idle::judge(rule, seen, process, known, verdicts) {
            verdicts.find(finding);
        }
    }
}

#[cfg(test)]
mod tests;
