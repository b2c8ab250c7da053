use super::*;
use crate::history::testing::Scene;
use crate::model::finding::Action;
use crate::rules::Engine;
use crate::rules::testing::{
    Found, Nothing, PID, assert_clean, count, cpu_unknown, each, judge, only, reasons, unidentified,
};
use crate::units::GIB;

/// `python train.py` that has hung in the driver all along.
fn all_along(interval: f64) -> Scene {
    let mut scene = Scene::new(1, interval);
    scene.holder(PID, &[0], GIB);
    scene.process(PID).state = Some('D');
    scene
}

/// `python train.py` that hangs in the driver after a minute; a sample every `interval` seconds.
fn stuck(interval: f64, seconds: f64) -> (Scene, Engine) {
    let mut scene = Scene::new(1, interval);
    scene.holder(PID, &[0], 20 * GIB);
    let mut engine = judge(&mut scene, 60.0);
    scene.process(PID).state = Some('D');
    scene.step();
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    (scene, engine)
}

#[test]
fn it_is_found_after_the_duration_and_nothing_is_done() {
    let (mut scene, mut engine) = stuck(10.0, 110.0);
    assert_clean(&engine, Kind::Stuck);
    assert_eq!(engine.pending()[0].kind, Kind::Stuck);
    engine.observe(scene.step());
    let finding = only(&engine, Kind::Stuck);
    assert_eq!(finding.severity, Severity::Critical);
    assert_eq!((finding.duration_seconds, finding.memory_bytes), (120.0, Some(20 * GIB)));
    assert_eq!(
        finding.evidence,
        Evidence::new(StuckEvidence { state: 'D', of_a_thread: false, wchan: None, samples: 13 })
    );
    assert_eq!(finding.actions, [Action::Notify]);
}

#[test]
fn one_sample_in_another_state_ends_it() {
    for state in ['S', 'R'] {
        let (mut scene, mut engine) = stuck(10.0, 300.0);
        scene.process(PID).state = Some(state);
        engine.observe(scene.step());
        assert_clean(&engine, Kind::Stuck);
        scene.process(PID).state = Some('D');
        scene.step();
        scene.play(110.0, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Stuck), 0);
    }
}

#[test]
fn a_process_whose_cpu_time_advances_is_not_stuck() {
    for (percent, found) in [(0.0, 1), (0.5, 1), (3.0, 0), (90.0, 0)] {
        let mut scene = all_along(60.0);
        scene.process(PID).cpu_percent = Some(percent);
        let engine = judge(&mut scene, 1_200.0);
        assert_eq!(count(&engine, Kind::Stuck), found, "{percent} %");
    }
    // It begins when the CPU seconds stop, not with the first sample in D.
    let mut scene = all_along(10.0);
    scene.process(PID).cpu_percent = Some(40.0);
    let mut engine = judge(&mut scene, 300.0);
    let stops = scene.now.time;
    scene.process(PID).cpu_percent = Some(0.0);
    scene.step();
    scene.play(200.0, |snapshot| engine.observe(snapshot));
    assert_eq!(only(&engine, Kind::Stuck).since, stops);
}

#[test]
fn without_cpu_seconds_more_samples_are_needed() {
    for (interval, seconds, found) in
        [(60.0, 120.0, 0), (60.0, 180.0, 0), (60.0, 240.0, 1), (30.0, 120.0, 1)]
    {
        let mut scene = all_along(interval);
        cpu_unknown(&mut scene);
        let engine = judge(&mut scene, seconds);
        assert_eq!(count(&engine, Kind::Stuck), found, "{interval} {seconds}");
    }
}

#[test]
fn a_process_without_memory_or_of_uncertain_identity_is_not_stuck() {
    each(
        Kind::Stuck,
        || all_along(10.0),
        200.0,
        &[
            ("stuck", Found, |_| ()),
            ("memory not told", Found, |it| it.row(0, PID).used_bytes = None),
            ("no memory", Nothing, |it| it.row(0, PID).used_bytes = Some(0)),
            ("on no GPU", Nothing, |it| it.rows(0).clear()),
            ("asleep", Nothing, |it| it.process(PID).state = Some('S')),
            ("no identity", Nothing, unidentified),
        ],
    );
}

#[test]
fn a_gap_longer_than_its_cpu_seconds_vouch_for_begins_it_anew() {
    let (mut scene, mut engine) = stuck(10.0, 100.0);
    engine.observe(scene.pass(700.0));
    assert_eq!(count(&engine, Kind::Stuck), 0);
    assert_eq!(reasons(&engine, Kind::Stuck), ["decided in 2m 00s (needs 2m of history)"]);
}

#[test]
fn a_first_thread_that_has_ended_leaves_the_state_to_the_others() {
    for (left, percent, found) in [
        (Some('D'), 0.0, 1),
        // A recording without this field: the other threads do not show, and change nothing.
        (None, 0.0, 1),
        // `pthread_exit` in `main`.
        (Some('S'), 0.0, 0),
        (Some('R'), 90.0, 0),
        (None, 90.0, 0),
    ] {
        let mut scene = Scene::new(1, 10.0);
        scene.holder(PID, &[0], GIB);
        let process = scene.process(PID);
        (process.state, process.threads) = (Some('Z'), Some(2));
        (process.left_thread_state, process.wchan) = (left, Some("request_wait_answer".into()));
        process.cpu_percent = Some(percent);
        let engine = judge(&mut scene, 200.0);
        assert_eq!(count(&engine, Kind::Stuck), found, "{left:?} {percent} %");
        assert_eq!(count(&engine, Kind::Dead), 0, "{left:?} {percent} %");
        if found == 1 {
            let finding = only(&engine, Kind::Stuck);
            assert!(finding.advice[0].contains("FUSE") && finding.actions == [Action::Notify]);
        }
    }
}
