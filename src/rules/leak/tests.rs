//! Tests how the rule judges growth. The tests of `history::growth` cover the detection of growth.

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::Action;
use crate::rules::testing::{PID, engine_with_rule, evidence_json, written};
use crate::rules::{Engine, RuleSet as AllSettings};
use crate::units::GIB;

/// Returns a scene with two GPUs, sampled every 10 s. `python train.py` holds 8 GiB of 80 GiB on GPU 0.
fn scene() -> Scene {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(PID, &[0], 8 * GIB);
    scene.row(0, PID).sm_percent = Some(90);
    scene.memory(0, 8 * GIB, 80 * GIB);
    scene.memory(1, 8 * GIB, 80 * GIB);
    scene
}

fn grow(scene: &mut Scene, engine: &mut Engine, gpu: u32, minutes: u64, by: u64) {
    for _ in 0..minutes * 6 {
        scene.step();
        let used = scene.row(gpu, PID).used_bytes.unwrap_or(0) + by / 6;
        scene.row(gpu, PID).used_bytes = Some(used);
        if let Some(memory) = &mut scene.gpu(gpu).memory {
            memory.used_bytes = used;
            memory.free_bytes = memory.total_bytes.saturating_sub(used);
        }
        engine.observe(&scene.now);
    }
}

#[track_caller]
fn only(engine: &Engine) -> &Finding {
    crate::rules::testing::only(engine, Kind::Leak)
}

fn number(finding: &Finding, name: &str) -> Option<f64> {
    evidence_json(finding)[name].as_f64()
}

fn engine_with(setting: &str, value: impl Serialize) -> Engine {
    let mut settings = AllSettings::default();
    settings.select(&["leak"]).unwrap();
    settings.rule_mut("leak").unwrap().set(setting, &written(value)).unwrap();
    Engine::new(settings)
}

#[test]
fn a_leak_is_reported_with_rate_start_and_forecast() {
    let (mut scene, mut engine) = (scene(), engine_with_rule("leak"));
    let start = scene.now.time;
    grow(&mut scene, &mut engine, 0, 14, 60 * MIB);
    assert_eq!(engine.findings(), []);
    grow(&mut scene, &mut engine, 0, 16, 60 * MIB);
    let finding = only(&engine);
    assert_eq!(&*finding.id, "leak:GPU-0:4242:424200");
    assert_eq!((finding.kind, finding.severity), (Kind::Leak, Severity::Warning));
    assert!(finding.since.seconds_since(start) < 60.0);
    assert_eq!(finding.actions, [Action::Notify]);
    let evidence = |name: &str| number(finding, name);
    let seconds = evidence("out_of_memory_seconds").unwrap();
    // 70.2 GiB are free, which last for 1198 minutes.
    assert!((68_000.0..76_000.0).contains(&seconds), "{seconds}");
    assert!(evidence("samples").unwrap() >= 150.0);
    assert!(!finding.advice.is_empty());
}

#[test]
fn a_leak_is_critical_if_the_gpu_fills_soon() {
    for is_known in [true, false] {
        let (mut scene, mut engine) = (scene(), engine_with_rule("leak"));
        if !is_known {
            scene.gpu(0).memory = None;
        }
        grow(&mut scene, &mut engine, 0, 30, 2 * GIB);
        let finding = only(&engine);
        assert_eq!(finding.severity == Severity::Critical, is_known);
        let seconds = number(finding, "out_of_memory_seconds");
        assert_eq!(seconds.map(|seconds| seconds < 1800.0), is_known.then_some(true));
    }
}

#[test]
fn growth_that_may_be_zero_has_no_forecast() {
    let trend = |low| Trend {
        since: crate::model::Time::default(),
        bytes_per_second: 1e6,
        bytes_per_second_low: low,
        span_seconds: 900.0,
        samples: 90,
        grown_bytes: GIB,
        rising_seconds: 900.0,
        quiet_seconds: 0.0,
        longest_pause_seconds: 0.0,
    };
    assert_eq!(forecast(&trend(0.0), GIB), None);
    assert_eq!(forecast(&trend(1.0), 80 * GIB), None);
    assert_eq!(forecast(&trend(5e5), GIB), Some(GIB as f64 / 1e6));
}

#[test]
fn desktops_full_gpus_and_unreported_memory_do_not_leak() {
    let (mut desktop, mut engine) = (scene(), engine_with_rule("leak"));
    desktop.row(0, PID).kind = ProcessType::Graphics;
    grow(&mut desktop, &mut engine, 0, 40, 100 * MIB);
    assert_eq!(engine.findings(), []);
    assert_eq!(engine.undecided(), []);
    // The GPU is more than 95 % full.
    let (mut pinned, mut engine) = (scene(), engine_with_rule("leak"));
    pinned.row(0, PID).used_bytes = Some(77 * GIB);
    grow(&mut pinned, &mut engine, 0, 60, 20 * MIB);
    assert_eq!(engine.findings(), []);

    let mut unknown = scene();
    unknown.row(0, PID).used_bytes = None;
    let mut engine = engine_with_rule("leak");
    unknown.play(1200.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings(), []);
    assert_eq!(
        engine.undecided()[0].reason,
        "the driver does not report the memory of process 4242 on GPU 0"
    );
}

#[test]
fn a_stopped_leak_loses_forecast_and_severity() {
    let (mut scene, mut engine) = (scene(), engine_with_rule("leak"));
    grow(&mut scene, &mut engine, 0, 60, GIB);
    assert_eq!(only(&engine).severity, Severity::Critical);
    grow(&mut scene, &mut engine, 0, 4, 0);
    assert_eq!(only(&engine).severity, Severity::Critical);
    grow(&mut scene, &mut engine, 0, 8, 0);
    let finding = only(&engine);
    assert_eq!(finding.severity, Severity::Info);
    assert_eq!(number(finding, "out_of_memory_seconds"), None);
    assert!(finding.message.contains("stopped growing 11m"), "{}", finding.message);
    assert_eq!(engine.resolved(), []);
    grow(&mut scene, &mut engine, 0, 40, 0);
    assert_eq!((engine.findings().len(), engine.resolved().len()), (0, 1));
}

#[test]
fn the_window_is_at_least_15_minutes() {
    let (mut scene, mut engine) = (scene(), engine_with("window", Span::from_seconds(60.0)));
    for _ in 0..10 {
        grow(&mut scene, &mut engine, 0, 1, 200 * MIB);
        let undecided = engine.undecided();
        let [only] = &undecided[..] else {
            panic!("{undecided:?}");
        };
        assert!(only.reason.ends_with("(needs 15m of history)"));
    }
}

#[test]
fn a_refuted_forecast_is_withdrawn() {
    let (mut scene, mut engine) = (scene(), engine_with_rule("leak"));
    // After 35 minutes, 2 of 72 GiB are left, which last for one more minute.
    grow(&mut scene, &mut engine, 0, 35, 2 * GIB);
    grow(&mut scene, &mut engine, 0, 1, 0);
    let finding = only(&engine);
    assert_eq!(finding.severity, Severity::Critical);
    assert!(number(finding, "out_of_memory_seconds").unwrap() < 120.0);
    grow(&mut scene, &mut engine, 0, 2, 0);
    let finding = only(&engine);
    assert_eq!(finding.severity, Severity::Info);
    assert_eq!(number(finding, "out_of_memory_seconds"), None);
}

#[test]
fn a_leaking_desktop_is_reported_without_terminate() {
    for (by, found) in [(60 * MIB, 0), (500 * MIB, 1)] {
        let mut scene = scene();
        scene.process(PID).executable = Some("/usr/bin/gnome-shell".into());
        scene.process(PID).executable_is_roots = Some(true);
        scene.row(0, PID).kind = ProcessType::Graphics;
        let mut engine = Engine::new(AllSettings::default());
        grow(&mut scene, &mut engine, 0, 30, by);
        assert_eq!(engine.findings().len(), found, "{:?}", engine.findings());
        if let [finding] = engine.findings() {
            assert_eq!((finding.kind, &finding.actions[..]), (Kind::Leak, &[Action::Notify][..]));
            assert!(finding.advice[0].contains("save your work"));
        }
    }
}

#[test]
fn a_leak_does_not_flicker_at_the_threshold() {
    let (mut scene, mut engine) = (scene(), engine_with("min_growth", Bytes(800 * MIB)));
    grow(&mut scene, &mut engine, 0, 30, 40 * MIB);
    only(&engine);
    scene.row(0, PID).used_bytes = Some(scene.row(0, PID).used_bytes.unwrap() - 100 * MIB);
    grow(&mut scene, &mut engine, 0, 1, 40 * MIB);
    only(&engine);
}

#[test]
fn a_critical_leak_does_not_flicker_at_the_threshold() {
    let (mut scene, mut engine) = (scene(), engine_with_rule("leak"));
    // 28 GiB are free, which last for 28 minutes. Then other processes free memory.
    grow(&mut scene, &mut engine, 0, 44, GIB);
    for (freed, severity) in
        [(0, Severity::Critical), (6 * GIB, Severity::Critical), (10 * GIB, Severity::Warning)]
    {
        scene.gpu(0).memory.as_mut().unwrap().total_bytes += freed;
        grow(&mut scene, &mut engine, 0, 1, GIB);
        assert_eq!(only(&engine).severity, severity, "{freed}");
    }
}
