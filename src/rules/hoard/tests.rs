//! Each clause of the rule, on scenes made by hand.

use super::*;
use crate::history::testing::Scene;
use crate::rules::{Engine, RuleSet as AllSettings};
use crate::units::{GIB, MIB};

const PID: u32 = 4242;
const TOTAL: u64 = 80 * GIB;

fn only_hoard() -> AllSettings {
    let mut settings = AllSettings::default();
    settings.select(&["hoard"]).unwrap();
    settings
}

/// `python train.py`, started two minutes ago, holds `held` of 80 GiB and uses 8 % of the GPU.
fn scene(held: u64) -> Scene {
    let mut scene = Scene::new(2, 30.0);
    scene.holder(PID, &[0], held);
    scene.process(PID).start_time = Some(scene.now.time.plus_seconds(-120.0));
    scene.memory(0, held, TOTAL);
    scene.row(0, PID).sm_percent = Some(8);
    scene.row(0, PID).memory_percent = Some(3);
    scene
}

fn judge(scene: &mut Scene, seconds: f64) -> Engine {
    let mut engine = Engine::new(only_hoard());
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    engine
}

fn found(change: impl FnOnce(&mut Scene)) -> (usize, Vec<String>) {
    let mut scene = scene(60 * GIB);
    change(&mut scene);
    let engine = judge(&mut scene, 1800.0);
    let reasons = engine.undecided().into_iter().map(|it| it.reason);
    (engine.findings().len(), reasons.collect())
}

#[test]
fn it_is_found_after_the_duration_with_its_evidence() {
    let mut scene = scene(60 * GIB);
    scene.process(PID).framework = Some("jax".into());
    let start = scene.now.time;
    let mut engine = judge(&mut scene, 1770.0);
    assert_eq!(engine.findings(), []);
    assert_eq!(engine.pending()[0].due, start.plus_seconds(1800.0));
    engine.observe(scene.step());
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    assert_eq!(&*finding.id, "hoard:GPU-0:4242:424200");
    assert_eq!((finding.severity, finding.since), (Severity::Info, start));
    assert_eq!(
        finding.message,
        "python train.py (4242) reserved 75% of GPU 0 when it started and has used 8% of its time \
         there in 30m 00s"
    );
    assert_eq!(
        finding.evidence,
        Evidence::new(HoardEvidence {
            first_bytes: 60 * GIB,
            share: 0.75,
            memory_percent_mean: Some(3.0),
            sm_percent_mean: Some(8.0),
            samples: 61,
        })
    );
    assert!(finding.advice[0].contains("XLA_PYTHON_CLIENT_PREALLOCATE=false"));
    assert_eq!(finding.actions, [Action::Notify]);
    assert_eq!((engine.pending(), &*engine.undecided()), (&[][..], &[][..]));
}

#[test]
fn less_than_nearly_all_is_none() {
    for (held, found) in [(57 * GIB, 1), (55 * GIB, 0)] {
        let engine = judge(&mut scene(held), 1800.0);
        assert_eq!(engine.findings().len(), found, "{held}");
        assert_eq!(engine.undecided(), []);
    }
}

#[test]
fn who_uses_the_gpu_hoards_nothing() {
    for (sm, memory, count) in [(19, 3, 1), (20, 3, 0), (8, 20, 0), (0, 0, 1)] {
        let (found, reasons) = found(|scene| {
            scene.row(0, PID).sm_percent = Some(sm);
            scene.row(0, PID).memory_percent = Some(memory);
        });
        assert_eq!((found, reasons.len()), (count, 0), "{sm} {memory}");
    }
}

#[test]
fn where_use_is_not_known_by_process_the_gpu_counts_or_it_is_undecided() {
    for (gpu, count, doubts) in [(Some(5), 1, 0), (Some(60), 0, 0), (None, 0, 1)] {
        let (found, reasons) = found(|scene| {
            scene.row(0, PID).sm_percent = None;
            scene.gpu(0).gpu_percent = gpu;
        });
        assert_eq!((found, reasons.len()), (count, doubts), "{gpu:?}");
    }
}

#[test]
fn memory_that_came_later_was_needed() {
    let mut grown = scene(10 * GIB);
    let mut engine = judge(&mut grown, 1200.0);
    grown.row(0, PID).used_bytes = Some(70 * GIB);
    grown.memory(0, 70 * GIB, TOTAL);
    grown.play(3600.0, |snapshot| engine.observe(snapshot));
    assert_eq!((engine.findings(), &*engine.undecided()), (&[][..], &[][..]));
    // A context that grows a little is the same reservation.
    let mut scene = scene(60 * GIB);
    let mut engine = judge(&mut scene, 900.0);
    scene.row(0, PID).used_bytes = Some(60 * GIB + 600 * MIB);
    scene.play(900.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings().len(), 1);
}

#[test]
fn an_unseen_start_is_undecided_unless_the_framework_shows_it() {
    for (framework, expected) in [
        (Some("tensorflow"), (1, 0)),
        (Some("jax"), (1, 0)),
        (Some("pytorch"), (0, 1)),
        (None, (0, 1)),
    ] {
        let (count, reasons) = found(|scene| {
            scene.process(PID).start_time = Some(scene.now.time.plus_seconds(-86_400.0));
            scene.process(PID).framework = framework.map(Into::into);
        });
        assert_eq!((count, reasons.len()), expected, "{framework:?}");
    }
}

#[test]
fn one_that_comes_to_the_gpu_before_our_eyes_begins_there() {
    let mut late = scene(60 * GIB);
    late.process(PID).start_time = Some(late.now.time.plus_seconds(-86_400.0));
    let row = late.rows(0).pop().unwrap();
    let mut engine = judge(&mut late, 60.0);
    late.rows(0).push(row);
    engine.observe(late.step());
    late.play(1800.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings().len(), 1);
}

#[test]
fn servers_graphics_and_instances_are_exempt() {
    let exempt: [fn(&mut Scene); 3] = [
        |scene| {
            scene.process(PID).framework = Some("vllm".into());
            scene.process(PID).listening = Some(true);
        },
        |scene| scene.row(0, PID).kind = ProcessType::Graphics,
        |scene| scene.row(0, PID).gpu_instance_id = Some(1),
    ];
    for exempt in exempt {
        assert_eq!(found(exempt), (0, Vec::new()));
    }
}

#[test]
fn nothing_flickers_at_the_threshold() {
    let mut scene = scene(60 * GIB);
    scene.row(0, PID).sm_percent = Some(19);
    let mut engine = judge(&mut scene, 1800.0);
    assert_eq!(engine.findings().len(), 1);
    scene.row(0, PID).sm_percent = Some(24);
    scene.play(7200.0, |snapshot| {
        engine.observe(snapshot);
        assert_eq!(engine.findings().len(), 1);
    });
    scene.row(0, PID).sm_percent = Some(90);
    scene.play(3600.0, |snapshot| engine.observe(snapshot));
    assert_eq!((engine.findings().len(), engine.resolved().len()), (0, 1));
}

#[test]
fn shares_above_all_contradict() {
    for (share, use_percent, is_wrong) in
        [(100.0, 20.0, false), (101.0, 20.0, true), (49.0, 20.0, true), (70.0, 200.0, true)]
    {
        let settings = HoardSettings {
            min_memory_share: Percent(share),
            max_use_percent: Percent(use_percent),
            ..HoardSettings::default()
        };
        assert_eq!(settings.contradiction().is_some(), is_wrong, "{settings:?}");
    }
}
