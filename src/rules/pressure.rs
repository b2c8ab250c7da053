//! `pressure`: a GPU has less free memory than a threshold.
//!
//! A full GPU is no fault: TensorFlow, JAX and vLLM reserve all of it and work well. So it is reported as
//! `info` and no more. Only the owner knows whether the next allocation fails; `min_free_warning` is theirs to
//! set, and its default of 0 never applies.
//!
//! Not under MIG, where an instance may be full rather than the GPU, nor if GPU and system share memory. It
//! begins below the threshold, and ends at five quarters of it.

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{FindingParts, RuleInput, RuleKind, RuleOutput, Settings, seconds};
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
            ("min_free", "less free memory than this is reported"),
            ("min_free_warning", "less free memory than this is a warning; 0B for never"),
            ("duration", "how long this has to last"),
            ("severity", "severity above the second threshold: info, warning or critical"),
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

/// The fewest samples; fewer may be chance.
const LEAST_SAMPLES: u64 = 2;

/// Evidence that a GPU is nearly full.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PressureEvidence {
    /// Free memory of the GPU, in bytes.
    pub free_bytes: u64,
    /// Total memory of the GPU, in bytes.
    pub total_bytes: u64,
    /// Number of samples in which the condition held.
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
            "min_free_warning ({warning}) is above min_free ({free}): every finding would be a \
            warning; write less"
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
        // An earlier finding stays for as long as a gap is allowed.
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
    let parts = FindingParts {
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
            "`gpumem ps --gpu {}` shows who holds it; if a framework reserves all memory at its \
            start, this is normal",
            gpu.index
        )],
    };
    verdicts.find(Finding { memory_bytes: None, ..seen.finding(None, parts) });
}

#[cfg(test)]
mod tests;
