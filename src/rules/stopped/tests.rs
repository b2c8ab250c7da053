use std::sync::Arc;

use super::*;
use crate::history::testing::Scene;
use crate::model::dice::Dice;
use crate::model::finding::{Action, Severity};
use crate::model::json::is_hostile;
use crate::model::snapshot::{Jupyter, Slurm};
use crate::rules::testing::written;
use crate::rules::testing::{
    Found, Nothing, PID, assert_clean, count, cpu_unknown, each, judge, judge_with, only, reasons,
    unidentified,
};
use crate::units::{Bytes, GIB};

/// `python train.py` with 1 GiB, stopped all along.
fn all_along() -> Scene {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], GIB);
    scene.process(PID).state = Some('T');
    scene
}

/// `python train.py` that works on GPU 0 for a minute and is then stopped; a sample every 10 s.
fn stopped(seconds: f64) -> (Scene, crate::rules::Engine) {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], 20 * GIB);
    scene.process(PID).terminal = Some("pts/3".into());
    let mut engine = judge(&mut scene, 60.0);
    scene.process(PID).state = Some('T');
    scene.step();
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    (scene, engine)
}

#[test]
fn it_is_found_after_the_duration_and_never_ended() {
    let (mut scene, mut engine) = stopped(110.0);
    assert_clean(&engine, Kind::Stopped);
    assert_eq!(engine.pending()[0].kind, Kind::Stopped);
    engine.observe(scene.step());
    let finding = only(&engine, Kind::Stopped);
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!(finding.duration_seconds, 120.0);
    assert_eq!(
        finding.evidence,
        Evidence::new(StoppedEvidence {
            state: 'T',
            samples: 13,
            terminal: Some("pts/3".into()),
            is_frozen: false
        })
    );
    assert_eq!(finding.actions, [Action::Notify]);
    assert!(finding.advice[0].contains("fg") && finding.advice[1].contains("kill -CONT 4242"));
    assert_eq!(engine.pending(), []);
}

#[test]
fn a_frozen_cgroup_is_stopped_and_not_idle() {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], 20 * GIB);
    let process = scene.process(PID);
    (process.frozen, process.cgroup) = (Some(true), Some("/system.slice/docker-a.scope".into()));
    let engine = judge(&mut scene, 1_200.0);
    let finding = only(&engine, Kind::Stopped);
    assert_eq!(finding.actions, [Action::Notify]);
    assert!(finding.advice[0].starts_with("thaw it") && finding.advice.len() == 1, "{finding:?}");
    assert_eq!(count(&engine, Kind::Idle), 0);
}

#[test]
fn one_sample_that_runs_ends_it() {
    let (mut scene, mut engine) = stopped(300.0);
    scene.process(PID).state = Some('S');
    engine.observe(scene.step());
    assert_clean(&engine, Kind::Stopped);
    assert!(engine.resolved()[0].resolved_at.is_some());
    scene.process(PID).state = Some('T');
    scene.step();
    scene.play(110.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine, Kind::Stopped);
}

#[test]
fn a_history_that_begins_while_it_is_stopped_is_undecided_until_it_is_long_enough() {
    let mut scene = all_along();
    let mut engine = judge(&mut scene, 50.0);
    assert_eq!(reasons(&engine, Kind::Stopped), ["decided in 1m 10s (needs 2m of history)"]);
    scene.play(80.0, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::Stopped), 1);
}

#[test]
fn a_gap_ends_it_unless_the_cpu_seconds_vouch_for_it() {
    for (cpu_known, found) in [(true, 1), (false, 0)] {
        let (mut scene, mut engine) = stopped(100.0);
        if !cpu_known {
            cpu_unknown(&mut scene);
        }
        engine.observe(scene.pass(300.0));
        assert_eq!(count(&engine, Kind::Stopped), found, "{cpu_known}");
    }
}

#[test]
fn a_debugged_process_or_one_without_memory_is_not_stopped() {
    each(
        Kind::Stopped,
        all_along,
        200.0,
        &[
            ("stopped", Found, |_| ()),
            ("in a debugger", Nothing, |it| it.process(PID).state = Some('t')),
            ("goes on", Nothing, |it| it.process(PID).state = Some('S')),
            ("state not told", Nothing, |it| it.process(PID).state = None),
            ("no memory", Nothing, |it| it.row(0, PID).used_bytes = Some(0)),
            ("a byte", Found, |it| it.row(0, PID).used_bytes = Some(1)),
            ("memory not told", Found, |it| it.row(0, PID).used_bytes = None),
            ("graphics", Nothing, |it| it.row(0, PID).kind = ProcessType::Graphics),
            ("on no GPU", Nothing, |it| it.rows(0).clear()),
            ("no identity", Nothing, unidentified),
        ],
    );
}

#[test]
fn settings_and_slurm_change_the_finding() {
    let mut scene = all_along();
    scene.process(PID).slurm =
        Some(Arc::new(Slurm { job_id: Some("77".into()), ..Slurm::default() }));
    let least = written(Bytes(2 * GIB));
    let engine = judge_with("stopped", "min_memory", least, &mut scene, 200.0);
    assert_clean(&engine, Kind::Stopped);
    let long = written(Span::from_seconds(600.0));
    let engine = judge_with("stopped", "duration", long, &mut scene, 200.0);
    assert_eq!(count(&engine, Kind::Stopped), 0);
    let engine = judge(&mut scene, 200.0);
    let advice = &only(&engine, Kind::Stopped).advice;
    assert!(advice[0].contains("scontrol resume 77"), "{advice:?}");
}

/// Every message goes into mails and logs as it is.
#[test]
fn a_message_is_one_line_whatever_a_name_holds() {
    let mut dice = Dice::new(7);
    let pieces =
        ["a", "train.py", "\n", "\r", "\t", "\u{1b}[2J", "\u{7f}", "\u{85}", "\u{9b}", "\u{202e}"];
    for round in 0..60 {
        let name: String =
            (0..1 + dice.place(8)).map(|_| pieces[dice.place(pieces.len())]).collect();
        let mut scene = all_along();
        let process = scene.process(PID);
        match round % 3 {
            0 => process.command = Some([Arc::from(&*name), Arc::from("x")].into()),
            1 => {
                let jupyter =
                    Jupyter { notebook_path: Some((&*name).into()), ..Jupyter::default() };
                process.jupyter = Some(Arc::new(jupyter));
            }
            _ => (process.command, process.comm) = (None, Some((&*name).into())),
        }
        let mut engine = judge(&mut scene, 30.0);
        let suspects = engine.suspects().to_vec();
        scene.play(120.0, |snapshot| engine.observe(snapshot));
        let found = only(&engine, Kind::Stopped).message.clone();
        assert_eq!(suspects.len(), 1);
        for message in [&*found, &*suspects[0].message] {
            assert!(!message.contains(is_hostile), "{message:?}");
        }
    }
}
