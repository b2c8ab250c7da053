//! Each clause of the rule, on scenes made by hand.

use super::*;
use crate::history::testing::Scene;
use crate::rules::testing::written;
use crate::rules::testing::{PID, assert_clean, count, judge, judge_with, only, reasons};
use crate::units::MIB;

/// Works on GPU 1 with 20 GiB, and holds 500 MiB on GPU 0.
fn stray() -> Scene {
    let mut scene = Scene::new(3, 10.0);
    scene.holder(PID, &[0, 1], 20 * GIB);
    scene.row(0, PID).used_bytes = Some(500 * MIB);
    scene.row(1, PID).sm_percent = Some(90);
    scene
}

#[test]
fn it_is_found_after_the_duration_and_never_killed() {
    let mut scene = stray();
    let mut engine = judge(&mut scene, 590.0);
    assert_eq!(count(&engine, Kind::StrayContext), 0);
    assert_eq!(reasons(&engine, Kind::StrayContext), ["can tell in 10s: it needs 10m of history"]);
    engine.observe(scene.step());
    let finding = only(&engine, Kind::StrayContext);
    assert_eq!(finding.severity, Severity::Info);
    assert_eq!(
        finding.message,
        "python train.py (4242) works elsewhere and has held 500.0 MiB on GPU 0 without using it \
         for 10m 00s"
    );
    assert_eq!(
        finding.evidence,
        Evidence::new(StrayContextEvidence { works_on: vec![1], samples: 61 })
    );
    assert_eq!(finding.gpus.len(), 1);
    assert_eq!(finding.actions, [Action::Notify]);
    assert!(finding.advice[0].contains("CUDA_VISIBLE_DEVICES"));
    assert_eq!(engine.findings().len(), 1);
    assert_eq!(reasons(&engine, Kind::StrayContext), [""; 0]);
}

#[test]
fn a_pause_of_its_work_does_not_make_it_flicker() {
    let mut scene = stray();
    let mut engine = judge(&mut scene, 700.0);
    for _ in 0..3 {
        scene.row(1, PID).sm_percent = Some(0);
        scene.step();
        scene.play(100.0, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::StrayContext), 1);
        scene.row(1, PID).sm_percent = Some(90);
        engine.observe(scene.step());
        assert_eq!(count(&engine, Kind::StrayContext), 1);
    }
    // One that works nowhere is idle, or nothing.
    scene.row(1, PID).sm_percent = Some(0);
    scene.play(700.0, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::StrayContext), 0);
}

#[test]
fn each_clause_is_needed() {
    for change in [
        (|scene| scene.row(1, PID).sm_percent = Some(0)) as fn(&mut Scene),
        |scene| scene.row(0, PID).sm_percent = Some(1),
        |scene| scene.row(0, PID).memory_percent = Some(1),
        |scene| scene.row(0, PID).used_bytes = Some(GIB),
        |scene| scene.row(0, PID).used_bytes = Some(0),
        |scene| scene.row(0, PID).kind = ProcessType::Graphics,
        |scene| scene.rows(0).clear(),
        |scene| scene.rows(1).clear(),
        |scene| scene.process(PID).start_ticks = None,
    ] {
        let mut scene = stray();
        scene.process(PID).start_time = None;
        change(&mut scene);
        assert_clean(&judge(&mut scene, 700.0), Kind::StrayContext);
    }
}

#[test]
fn unknown_memory_is_undecided() {
    let mut scene = stray();
    scene.row(0, PID).used_bytes = None;
    let engine = judge(&mut scene, 700.0);
    assert_eq!(count(&engine, Kind::StrayContext), 0);
    assert_eq!(
        reasons(&engine, Kind::StrayContext),
        ["the driver does not report the memory of process 4242 on GPU 0"]
    );
}

#[test]
fn instances_of_the_gpu_that_it_works_on_are_not_elsewhere() {
    let mut scene = stray();
    scene.rows(0).clear();
    let mut instance = *scene.row(1, PID);
    instance.gpu_instance_id = Some(2);
    instance.sm_percent = Some(0);
    instance.used_bytes = Some(300 * MIB);
    scene.rows(1).push(instance);
    assert_clean(&judge(&mut scene, 700.0), Kind::StrayContext);
}

#[test]
fn the_bound_is_a_setting() {
    let bound = written(Bytes(400 * MIB));
    let engine = judge_with("stray-context", "max_memory", bound, &mut stray(), 700.0);
    assert_clean(&engine, Kind::StrayContext);
}
