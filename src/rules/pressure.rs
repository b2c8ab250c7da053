//! `pressure`: a GPU has less free memory than a threshold.
//!
//! A full GPU is no fault: TensorFlow, JAX and vLLM reserve all of it and train and serve well. So it
//! is worth a word (`info`) and no more. Whether the next allocation fails is known only to who knows what
//! will be asked for; `min_free_warning` is theirs to set, and nothing is less than its default of 0.
//!
//! Not under MIG, where an instance is what may be full, and not where the GPU's memory is the system's
//! too. It begins below the threshold, and ends at five quarters of it.

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{RuleInput, RuleKind, RuleOutput, Settings, Told, seconds};
use super::undecided_reason::UndecidedReason;
use crate::history::{Device, HighStretch};
use crate::model::Gpu;
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{Finding, FindingGpu, Kind, Severity};
use crate::units::{Bytes, MIB, Span};

pub static KIND: RuleKind = RuleKind {
    contradiction,
    gpu,
    ..RuleKind::new::<PressureEvidence>(
        Kind::Pressure,
        "a GPU has little memory left",
        &[
            ("min_free", "less free memory than this is found"),
            ("min_free_warning", "less than this is a warning; 0B is never"),
            ("duration", "how long it has to be so"),
            ("severity", "how bad it is above the second threshold: info, warning or critical"),
        ],
        Settings {
            min_free: Bytes(512 * MIB),
            min_free_warning: Bytes(0),
            duration: seconds(60),
            severity: Severity::Info,
            ..Settings::NONE
        },
    )
};

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

fn contradiction(settings: &Settings) -> Option<String> {
    let (free, warning) = (settings.min_free, settings.min_free_warning);
    (warning > free).then(|| {
        format!(
            "min_free_warning ({warning}) is above min_free ({free}): nothing would be found before it is \
             a warning; write less"
        )
    })
}

fn gpu(seen: RuleInput<'_>, gpu: &Gpu, device: &Device, verdicts: &mut RuleOutput) {
    if gpu.is_divided() || gpu.is_unified() || gpu.stale_seconds.is_some() {
        return;
    }
    let Some(settings) = seen.settings_on(None, gpu) else {
        return;
    };
    if gpu.memory.is_none() && gpu.processes.as_ref().is_some_and(|rows| !rows.is_empty()) {
        verdicts.doubt(UndecidedReason::NoReading { gpu: gpu.index, what: "memory" });
    }
    let needed = settings.duration.seconds();
    let lasts =
        |stretch: &HighStretch| stretch.seconds() >= needed && stretch.samples >= LEAST_SAMPLES;
    let ends_at = |free: u64| free.saturating_add(free / 4);
    let (begins, ends) = (settings.min_free.0, ends_at(settings.min_free.0));
    let active = seen.lasting_on(gpu, device.fuller_than(ends).as_ref());
    let Some(stretch) = device.fuller_than(if active.is_some() { ends } else { begins }) else {
        return;
    };
    let since = active.map_or(stretch.since, |finding| finding.since);
    if active.is_none() && !lasts(&stretch) {
        seen.expect_on(gpu, since, needed, verdicts);
        return;
    }
    let Some(memory) = gpu.memory else {
        // What it was last stands as long as a gap may be.
        verdicts.findings.extend(active.cloned());
        return;
    };
    let second = settings.min_free_warning.0;
    let warns = match active {
        Some(finding) if finding.severity >= Severity::Warning => {
            device.fuller_than(ends_at(second)).is_some()
        }
        _ => device.fuller_than(second).as_ref().is_some_and(lasts),
    };
    let least = if warns { Severity::Warning } else { settings.severity };
    let told = Told {
        severity: settings.severity.max(least),
        gpus: vec![FindingGpu {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            used_bytes: Some(memory.used_bytes),
        }],
        since,
        until: stretch.until,
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
            Span::from_seconds(stretch.until.seconds_since(since)),
        ),
        advice: vec![format!(
            "`gpumem ps --gpu {}` shows who holds it; where a framework reserves all of it at its start, \
             this is how it works",
            gpu.index
        )],
    };
    verdicts.find(Finding { memory_bytes: None, ..seen.finding(None, told) });
}

#[cfg(test)]
mod tests;
