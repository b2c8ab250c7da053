//! `pressure`: a GPU has less free memory than a threshold.
//!
//! A full GPU is no fault: TensorFlow, JAX and vLLM reserve all of it and train and serve well. So it
//! is worth a word (`info`) and no more. Whether the next allocation fails is known only to who knows what
//! will be asked for; `min_free_warning` is theirs to set, and nothing is less than its default of 0.
//!
//! Not under MIG, where an instance is what may be full, and not where the GPU's memory is the system's
//! too. It begins below the threshold, and ends at five quarters of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use super::subject;
use super::unattributed::{is_shared_out, is_unified};
use super::undecided_reason::UndecidedReason;
use crate::history::{Device, HighStretch};
use crate::model::Gpu;
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{Action, Finding, FindingGpu, Kind, Pending, Severity};
use crate::units::{Bytes, MIB, Span};

/// A coincidence has fewer samples.
const LEAST_SAMPLES: u64 = 2;

/// What says that a GPU is nearly full.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PressureEvidence {
    /// What is free, in bytes.
    pub free_bytes: u64,
    /// All that there is, in bytes.
    pub total_bytes: u64,
    /// Samples in which it was so.
    pub samples: u64,
}

impl KindEvidence for PressureEvidence {
    fn words(&self) -> String {
        format!(
            "{} free of {} in {}",
            Bytes(self.free_bytes),
            Bytes(self.total_bytes),
            samples(self.samples)
        )
    }
}

/// What the rule is tuned by.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, JsonSchema, Serialize)]
pub struct PressureSettings {
    /// Whether the rule is run.
    pub enabled: bool,
    /// Less free memory than this is found.
    pub min_free: Bytes,
    /// Less than this is a warning; 0B is never.
    pub min_free_warning: Bytes,
    /// How long it has to be so.
    pub duration: Span,
    /// How bad it is above the second threshold: info, warning or critical.
    pub severity: Severity,
}

impl Default for PressureSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            min_free: Bytes(512 * MIB),
            min_free_warning: Bytes(0),
            duration: Span::from_seconds(60.0),
            severity: Severity::Info,
        }
    }
}

impl RuleKind for PressureSettings {
    const KIND: Kind = Kind::Pressure;
    const MEANING: &'static str = "a GPU has little memory left";
    type Evidence = PressureEvidence;

    fn contradiction(&self) -> Option<String> {
        (self.min_free_warning > self.min_free).then(|| {
            format!(
                "min_free_warning ({}) is above min_free ({}): nothing would be found before it is a \
                 warning; write less",
                self.min_free_warning, self.min_free
            )
        })
    }

    fn gpu(
        rule: &ConfiguredRule<Self>,
        seen: RuleInput<'_>,
        gpu: &Gpu,
        device: &Device,
        verdicts: &mut RuleOutput,
    ) {
        if is_shared_out(gpu) || is_unified(gpu) || gpu.stale_seconds.is_some() {
            return;
        }
        let Some(settings) = rule.settings_for(&seen.scope_on(None, gpu)) else {
            return;
        };
        if gpu.memory.is_none() && gpu.processes.as_ref().is_some_and(|rows| !rows.is_empty()) {
            verdicts.doubt(UndecidedReason::NoReading { gpu: gpu.index, what: "memory" });
        }
        let seconds = settings.duration.seconds();
        let lasts = |stretch: &HighStretch| {
            stretch.seconds() >= seconds && stretch.samples >= LEAST_SAMPLES
        };
        let ends_at = |free: u64| free.saturating_add(free / 4);
        let kept = device.fuller_than(ends_at(settings.min_free.0));
        let active = seen.lasting_on(rule.name(), gpu, kept.as_ref());
        let bound = match active {
            Some(_) => ends_at(settings.min_free.0),
            None => settings.min_free.0,
        };
        let Some(stretch) = device.fuller_than(bound) else {
            return;
        };
        let since = active.map_or(stretch.since, |finding| finding.since);
        if active.is_none() && !lasts(&stretch) {
            let pending = Pending {
                rule: rule.name().clone(),
                kind: Kind::Pressure,
                pid: None,
                gpu: gpu.index,
                since,
                due: since.plus_seconds(seconds),
            };
            seen.expect(pending, verdicts);
            return;
        }
        let Some(memory) = gpu.memory else {
            // What it was last stands as long as a gap may be.
            if let Some(active) = active {
                verdicts.find(active.clone());
            }
            return;
        };
        let second = settings.min_free_warning.0;
        let warns = match active {
            Some(finding) if finding.severity >= Severity::Warning => {
                device.fuller_than(ends_at(second)).is_some()
            }
            _ => device.fuller_than(second).as_ref().is_some_and(lasts),
        };
        let duration_seconds = stretch.until.seconds_since(since);
        verdicts.find(Finding {
            id: subject::id_on(rule.name(), gpu),
            rule: rule.name().clone(),
            kind: Kind::Pressure,
            severity: if warns {
                settings.severity.max(Severity::Warning)
            } else {
                settings.severity
            },
            since,
            duration_seconds,
            resolved_at: None,
            gpus: vec![FindingGpu {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                used_bytes: Some(memory.used_bytes),
            }],
            process: None,
            memory_bytes: None,
            evidence: Evidence::new(PressureEvidence {
                free_bytes: memory.free_bytes,
                total_bytes: memory.total_bytes,
                samples: stretch.samples,
            }),
            message: format!(
                "GPU {} has {} of {} free, and has had little for {}",
                gpu.index,
                Bytes(memory.free_bytes),
                Bytes(memory.total_bytes),
                Span::from_seconds(duration_seconds),
            ),
            advice: vec![format!(
                "`gpumem ps --gpu {}` shows who holds it; where a framework reserves all of it at its \
                 start, this is how it works",
                gpu.index
            )],
            actions: vec![Action::Notify],
            commands: Vec::new(),
            also: Vec::new(),
            kept_by: None,
            skipped: None,
        });
    }
}

#[cfg(test)]
mod tests;
