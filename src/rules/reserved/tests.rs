//! Jobs and containers that were given a GPU and run nothing on it, and others.

use std::sync::Arc;

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::Action;
use crate::model::process::{Container, Slurm};
use crate::rules::testing::{
    Case, Found, Nothing, PID, assert_clean, count, each, judge, only, reasons,
};
use crate::units::GIB;

const MINUTE: f64 = 60.0;

/// Two unused GPUs, and a sample every 10 s.
fn scene() -> Scene {
    every(10.0)
}

fn every(seconds: f64) -> Scene {
    let mut scene = Scene::new(2, seconds);
    scene.now.host.pid_namespace = Some(PidNamespace::Host);
    for index in 0..2 {
        scene.memory(index, GIB / 2, 80 * GIB);
    }
    scene
}

fn job(scene: &Scene, age: f64, devices: &[&str]) -> Reservation {
    Reservation {
        pid: 90,
        since: Some(scene.now.time.plus_seconds(-age)),
        user: Some("ann".into()),
        slurm: Some(Arc::new(Slurm {
            job_id: Some("812".into()),
            step_id: Some("batch".into()),
            ..Slurm::default()
        })),
        variable: "SLURM_JOB_GPUS".into(),
        devices: devices.iter().map(|it| Arc::from(*it)).collect(),
        ..Reservation::default()
    }
}

fn give(scene: &mut Scene, reservations: &[Reservation]) {
    scene.now.reservations = Some(reservations.into());
}

/// As [`scene`], with both GPUs given an hour ago.
fn given() -> Scene {
    let mut scene = scene();
    let job = job(&scene, 3600.0, &["0", "1"]);
    give(&mut scene, &[job]);
    scene
}

#[test]
fn a_job_that_runs_nothing_is_found_after_the_duration() {
    let mut scene = given();
    let start = scene.now.time;
    let mut engine = judge(&mut scene, 29.0 * MINUTE);
    assert_eq!(count(&engine, Kind::Reserved), 0);
    assert_eq!(engine.pending()[0].kind, Kind::Reserved);
    assert_eq!(reasons(&engine, Kind::Reserved).len(), 1, "it is not known yet");
    scene.play(2.0 * MINUTE, |snapshot| engine.observe(snapshot));
    let finding = only(&engine, Kind::Reserved);
    assert_eq!(finding.severity, Severity::Info);
    assert_eq!((finding.since, finding.process.as_ref()), (start, None));
    assert_eq!(
        finding.message,
        "Slurm job 812 of ann holds GPUs 0 and 1 and has run nothing on them for 31m 00s"
    );
    let quoted = format!("info: reserved: {}", finding.message);
    assert!(include_str!("../../../man/gpumem-rules.1").contains(&quoted));
    assert!(finding.advice[1].contains("`scancel 812`"), "{:?}", finding.advice);
    assert_eq!(finding.actions, [Action::Notify]);
    assert_eq!(reasons(&engine, Kind::Reserved), [""; 0]);

    // It begins on one of them, and the other is reported; when it begins there too, nothing is left.
    scene.holder(PID, &[0], 20 * GIB);
    engine.observe(scene.step());
    let finding = only(&engine, Kind::Reserved);
    assert!(finding.message.contains("holds GPU 1 and has run nothing on it"));
    scene.holder(PID + 1, &[1], 20 * GIB);
    engine.observe(scene.step());
    assert_clean(&engine, Kind::Reserved);
}

#[test]
fn a_container_is_named_and_its_time_counts_from_its_start() {
    let mut scene = scene();
    let container = Reservation {
        slurm: None,
        container: Some(Arc::new(Container {
            runtime: Some("docker".into()),
            id: Some("0123456789ab".into()),
            name: Some("lab".into()),
            ..Container::default()
        })),
        variable: "NVIDIA_VISIBLE_DEVICES".into(),
        ..job(&scene, 0.0, &["1"])
    };
    give(&mut scene, &[]);
    let mut engine = judge(&mut scene, 60.0 * MINUTE);
    let container = Reservation { since: Some(scene.now.time), ..container };
    give(&mut scene, &[container]);
    scene.play(29.0 * MINUTE, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::Reserved), 0, "it has just begun");
    scene.play(2.0 * MINUTE, |snapshot| engine.observe(snapshot));
    let finding = only(&engine, Kind::Reserved);
    assert!(finding.message.contains("lab"), "{}", finding.message);
    assert!(finding.message.contains("of ann holds GPU 1"), "{}", finding.message);
}

#[test]
fn a_job_not_known_to_keep_a_gpu_from_others_is_not_found() {
    let cases: &[Case] = &[
        ("given and unused", Found, |_| ()),
        ("another works on it", Nothing, |it| it.holder(PID, &[0, 1], GIB)),
        ("it is used", Nothing, |it| {
            it.now.gpus.iter_mut().for_each(|gpu| gpu.gpu_percent = Some(3));
        }),
        ("in a container", Nothing, |it| {
            it.now.host.pid_namespace = Some(PidNamespace::Container);
        }),
        ("not known where", Nothing, |it| it.now.host.pid_namespace = None),
        ("no list", Nothing, |it| {
            it.now.gpus.iter_mut().for_each(|gpu| gpu.processes = None);
        }),
        ("in parts", Nothing, |it| {
            it.now.gpus.iter_mut().for_each(|gpu| gpu.mig_mode = Some(true));
        }),
        ("a recording of before", Nothing, |it| it.now.reservations = None),
        ("not known since when, or of what else", Nothing, |it| {
            let unknown = Reservation { since: None, ..job(it, 3600.0, &["0"]) };
            let other = job(it, 3600.0, &["MIG-0", "7"]);
            give(it, &[unknown, other]);
        }),
    ];
    each(Kind::Reserved, given, 90.0 * MINUTE, cases);
}

#[test]
fn a_pipeline_that_uses_the_gpu_now_and_then_is_not_found() {
    let mut scene = given();
    let mut engine = judge(&mut scene, 10.0 * MINUTE);
    for _ in 0..6 {
        scene.holder(PID, &[0, 1], GIB);
        scene.play(30.0, |snapshot| engine.observe(snapshot));
        for index in 0..2 {
            scene.gpu(index).processes = Some(Vec::new());
        }
        scene.play(20.0 * MINUTE, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Reserved), 0);
    }
}

#[test]
fn samples_a_minute_apart_may_be_late_or_lost() {
    let mut scene = every(MINUTE);
    let job = job(&scene, 3600.0, &["0", "1"]);
    give(&mut scene, &[job]);
    let mut engine = judge(&mut scene, 10.0 * MINUTE);
    for _ in 0..3 {
        scene.pass(2.0 * MINUTE);
        scene.play(10.0 * MINUTE, |snapshot| engine.observe(snapshot));
    }
    assert_eq!(count(&engine, Kind::Reserved), 1);
}
