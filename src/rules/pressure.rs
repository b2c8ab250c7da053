//! `pressure`: a GPU has less free memory than a threshold.
//!
//! A full GPU is not a fault: TensorFlow, JAX and vLLM reserve nearly all memory by design. The severity is therefore
//! `info`. Administrators who want a warning set `min_free_warning`, whose default of 0 means never.
//!
//! The rule does not apply under MIG, where an instance can be full while the GPU is not, or if the GPU shares memory
//! with the system. A finding begins below the threshold and ends at 1.25 times the threshold.

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{FindingParts, RuleInput, RuleKind, RuleOutput, Settings, seconds};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::{Device, HighStretch};
use crate::model::Gpu;
use crate::model::finding::{Evidence, Finding, Kind, KindEvidence, Severity, samples};
use crate::units::{Bytes, MIB, Span};

pub static KIND: RuleKind = RuleKind {
    contradiction,
    gpu,
    ..RuleKind::new::<PressureEvidence>(
        Kind::Pressure,
        "a GPU has little memory left",
        &[
            ("min_free", "report if less memory than this is free"),
            ("min_free_warning", "warn if less memory than this is free (0B: never)"),
            ("duration", "how long the condition must last"),
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

/// Minimum number of samples. A single sample can show the condition by chance.
const LEAST_SAMPLES: u64 = 2;

/// Evidence that a GPU is nearly full.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PressureEvidence {
    /// Free memory of the GPU, in bytes.
    pub free_bytes: u64,
    /// Total memory of the GPU, in bytes.
    pub total_bytes: u64,
    /// Number of samples that show the condition.
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

fn gpu(input: RuleInput<'_>, gpu: &Gpu, device: &Device, output: &mut RuleOutput) {
    if gpu.is_divided() || gpu.is_unified() || gpu.stale_seconds.is_some() {
        return;
    }
    let Some(settings) = input.settings_on(None, gpu) else {
        return;
    };
    if gpu.memory.is_none() && gpu.processes.as_ref().is_some_and(|rows| !rows.is_empty()) {
        output.add_doubt(UndecidedReason::NoReading { gpu: gpu.index, quantity: "memory" });
    }
    let needed = settings.duration.seconds();
    let lasts =
        |stretch: &HighStretch| stretch.seconds() >= needed && stretch.samples >= LEAST_SAMPLES;
    let ends_at = |free: u64| free.saturating_add(free / 4);
    let (begins, ends) = (settings.min_free.0, ends_at(settings.min_free.0));
    let active = input.lasting_on(gpu, device.fuller_than(ends).as_ref());
    let Some(stretch) = device.fuller_than(if active.is_some() { ends } else { begins }) else {
        return;
    };
    let since = active.map_or(stretch.since, |finding| finding.since);
    if active.is_none() && !lasts(&stretch) {
        input.add_pending_on(gpu, since, needed, output);
        return;
    }
    let Some(memory) = gpu.memory else {
        // The reading is missing in this sample, so an earlier finding stays. `stretch` ends if the reading is
        // missing for too long.
        output.findings.extend(active.cloned());
        return;
    };
    let second = settings.min_free_warning.0;
    let warns = match active {
        Some(finding) if finding.severity >= Severity::Warning => {
            device.fuller_than(ends_at(second)).is_some()
        }
        _ => device.fuller_than(second).as_ref().is_some_and(lasts),
    };
    let min_severity = if warns { Severity::Warning } else { settings.severity };
    let parts = FindingParts {
        severity: settings.severity.max(min_severity),
        gpus: vec![subject::finding_gpu(gpu, Some(memory.used_bytes))],
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
    output.findings.push(Finding { memory_bytes: None, ..input.finding(None, parts) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::Action;
    use crate::rules::rule::Rule;
    use crate::rules::testing::{
        Case, Found, Nothing, PID, Unsure, check_cases, judge_only, judge_with, written,
    };
    use crate::units::GIB;

    const TOTAL: u64 = 80 * GIB;

    fn scene(free: u64) -> Scene {
        let mut scene = Scene::new(2, 10.0);
        scene.holder(PID, &[0], 20 * GIB);
        scene.memory(0, TOTAL - free, TOTAL);
        scene.memory(1, 0, TOTAL);
        scene
    }

    #[test]
    fn a_full_gpu_is_reported_as_info_after_the_duration() {
        let mut scene = scene(300 * MIB);
        let start = scene.now.time;
        let mut engine = judge_only("pressure", &mut scene, 50.0);
        assert_eq!(engine.findings(), []);
        assert_eq!(engine.pending()[0].due, start.plus_seconds(60.0));
        engine.observe(scene.step());
        let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
        assert_eq!(&*finding.id, "pressure:GPU-0");
        assert_eq!((finding.severity, finding.since), (Severity::Info, start));
        assert_eq!(
            finding.evidence,
            Evidence::new(PressureEvidence {
                free_bytes: 300 * MIB,
                total_bytes: TOTAL,
                samples: 7
            })
        );
        assert_eq!((finding.actions.as_slice(), &finding.process), (&[Action::Notify][..], &None));
    }

    #[test]
    fn only_low_dedicated_memory_is_reported() {
        let cases: &[Case] = &[
            ("full", Found, |_| ()),
            ("little", Found, |scene| scene.memory(0, TOTAL - 512 * MIB + 1, TOTAL)),
            ("enough", Nothing, |scene| scene.memory(0, TOTAL - 512 * MIB, TOTAL)),
            ("under MIG", Nothing, |scene| scene.gpu(0).mig_mode = Some(true)),
            ("shared with the system", Nothing, |scene| {
                scene.gpu(0).name = Some("NVIDIA GB10".into());
            }),
            ("no answer", Nothing, |scene| scene.gpu(0).stale_seconds = Some(1.0)),
            ("unknown", Unsure("the memory of GPU 0 is unknown"), |scene| {
                scene.gpu(0).memory = None;
            }),
        ];
        check_cases(Kind::Pressure, || scene(0), 600.0, cases);
    }

    #[test]
    fn min_free_warning_above_min_free_is_contradictory() {
        for (first, second, is_wrong) in [(512, 0, false), (512, 512, false), (512, 513, true)] {
            let mut rule = Rule::new(&KIND);
            rule.settings.min_free = Bytes(first * MIB);
            rule.settings.min_free_warning = Bytes(second * MIB);
            assert_eq!(rule.contradiction().is_some(), is_wrong, "{second}");
        }
    }

    #[test]
    fn findings_do_not_flicker_at_either_threshold() {
        let threshold = written(Bytes(100 * MIB));
        let mut scene = scene(99 * MIB);
        let mut engine = judge_with("pressure", "min_free_warning", threshold, &mut scene, 60.0);
        let mut severity_at = |free: u64| {
            scene.memory(0, TOTAL - free * MIB, TOTAL);
            engine.observe(scene.step());
            engine
                .findings()
                .iter()
                .find(|finding| finding.kind == Kind::Pressure)
                .map(|finding| finding.severity)
        };
        for free in [110, 99, 124] {
            assert_eq!(severity_at(free), Some(Severity::Warning), "{free}");
        }
        for free in [125, 110, 100, 511, 520, 639] {
            assert_eq!(severity_at(free), Some(Severity::Info), "{free}");
        }
        assert_eq!(severity_at(640), None);
        assert_eq!(severity_at(520), None);
        assert_eq!(engine.resolved().len(), 1);
    }

    #[test]
    fn unknown_memory_keeps_a_finding_briefly() {
        let mut scene = scene(0);
        let mut engine = judge_only("pressure", &mut scene, 60.0);
        scene.gpu(0).memory = None;
        scene.gpu(1).memory = None;
        engine.observe(scene.step());
        assert_eq!((engine.findings().len(), engine.undecided().len()), (1, 1));
        assert_eq!(engine.undecided()[0].reason, "the memory of GPU 0 is unknown");
        scene.play(120.0, |snapshot| engine.observe(snapshot));
        assert_eq!(engine.findings(), []);
    }
}
