use super::*;
use crate::history::testing::Scene;
use crate::model::finding::Action;
use crate::rules::rule::Rule;
use crate::rules::testing::{
    Case, Found, Nothing, PID, Unsure, each, judge_only, judge_with, written,
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
        Evidence::new(PressureEvidence { free_bytes: 300 * MIB, total_bytes: TOTAL, samples: 7 })
    );
    assert_eq!((finding.actions.as_slice(), &finding.process), (&[Action::Notify][..], &None));
}

#[test]
fn only_a_gpus_own_memory_below_the_threshold_counts() {
    let cases: &[Case] = &[
        ("full", Found, |_| ()),
        ("little", Found, |it| it.memory(0, TOTAL - 512 * MIB + 1, TOTAL)),
        ("enough", Nothing, |it| it.memory(0, TOTAL - 512 * MIB, TOTAL)),
        ("in instances", Nothing, |it| it.gpu(0).mig_mode = Some(true)),
        ("the system's", Nothing, |it| it.gpu(0).name = Some("NVIDIA GB10".into())),
        ("no answer", Nothing, |it| it.gpu(0).stale_seconds = Some(1.0)),
        ("not known", Unsure("the memory of GPU 0 is not known"), |it| it.gpu(0).memory = None),
    ];
    each(Kind::Pressure, || scene(0), 600.0, cases);
}

#[test]
fn a_warning_above_the_first_threshold_contradicts() {
    for (first, second, is_wrong) in [(512, 0, false), (512, 512, false), (512, 513, true)] {
        let mut rule = Rule::new(&KIND);
        rule.settings.min_free = Bytes(first * MIB);
        rule.settings.min_free_warning = Bytes(second * MIB);
        assert_eq!(rule.contradiction().is_some(), is_wrong, "{second}");
    }
}

#[test]
fn nothing_flickers_at_either_threshold_and_a_warning_is_configured() {
    let least = written(Bytes(100 * MIB));
    let mut scene = scene(99 * MIB);
    let mut engine = judge_with("pressure", "min_free_warning", least, &mut scene, 60.0);
    let mut severity_at = |free: u64| {
        scene.memory(0, TOTAL - free * MIB, TOTAL);
        engine.observe(scene.step());
        engine.findings().iter().find(|it| it.kind == Kind::Pressure).map(|it| it.severity)
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
fn unknown_memory_is_undecided_and_keeps_a_finding_for_a_moment() {
    let mut scene = scene(0);
    let mut engine = judge_only("pressure", &mut scene, 60.0);
    scene.gpu(0).memory = None;
    scene.gpu(1).memory = None;
    engine.observe(scene.step());
    assert_eq!((engine.findings().len(), engine.undecided().len()), (1, 1));
    assert_eq!(engine.undecided()[0].reason, "the memory of GPU 0 is not known");
    scene.play(120.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings(), []);
}
