//! Tests the life of a finding from pending to resolved, attached findings, and the loss of history.

use super::*;
use crate::history::testing::{Scene, disorder};
use crate::model::testing::rounds;
use crate::model::{Kind, Severity};
use crate::rules::testing::{PID, judge};
use crate::units::GIB;

fn idle() -> Scene {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], 20 * GIB);
    scene
}

fn kinds(engine: &Engine) -> Vec<(Kind, Vec<Kind>)> {
    let also = |finding: &Finding| finding.also.iter().map(|also| also.kind).collect();
    engine.findings().iter().map(|finding| (finding.kind, also(finding))).collect()
}

#[test]
fn a_finding_keeps_its_id_from_pending_to_resolved() {
    let mut scene = idle();
    // The GPU is in use at first, so the engine observes the beginning of the idle time.
    scene.row(0, PID).sm_percent = Some(90);
    let mut engine = judge(&mut scene, 60.0);
    assert_eq!(engine.pending(), []);
    scene.row(0, PID).sm_percent = Some(0);
    engine.observe(scene.step());
    let began = scene.now.time;
    scene.play(100.0, |snapshot| engine.observe(snapshot));
    let [pending] = engine.pending() else { panic!("{:?}", engine.pending()) };
    assert_eq!((pending.kind, pending.pid, pending.gpu), (Kind::Idle, Some(PID), 0));
    assert_eq!((pending.since, pending.due), (began, began.plus_seconds(600.0)));
    assert_eq!(engine.findings(), []);

    scene.play(500.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.pending(), []);
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    let (id, since) = (Arc::clone(&finding.id), finding.since);
    assert_eq!((since, finding.resolved_at), (began, None));

    scene.row(0, PID).sm_percent = Some(5);
    engine.observe(scene.step());
    assert_eq!(engine.findings(), []);
    let [resolved] = engine.resolved() else { panic!("{:?}", engine.resolved()) };
    assert_eq!((&resolved.id, resolved.since), (&id, began));
    assert_eq!(resolved.resolved_at, Some(scene.now.time));
    assert_eq!(resolved.actions, [Action::Notify]);
}

#[test]
fn findings_are_unique_in_any_snapshot_order() {
    let mut found = 0;
    for seed in 1..=rounds(15) {
        let snapshots = if seed % 15 == 1 { 300 } else { 100 };
        let mut engine = Engine::new(RuleSet::default());
        disorder(seed, snapshots, |snapshot| {
            let mut snapshot = snapshot.clone();
            for gpu in snapshot.gpus.iter_mut().filter(|_| seed % 3 == 0) {
                gpu.gpu_percent = Some(100);
                let second = snapshot.time.unix_milliseconds() / 100_000;
                gpu.power_watts = Some(if second % 20 < 10 { 300.0 } else { 50.0 });
            }
            engine.observe(&snapshot);
            for finding in engine.findings() {
                assert!(finding.resolved_at.is_none());
                assert!(finding.gpus.is_sorted_by(|a, b| a.index < b.index), "{finding:?}");
                if finding.kind == Kind::Idle {
                    assert!(finding.duration_seconds >= 600.0, "{finding:?}");
                    found += 1;
                }
            }
            let mut ids: Vec<_> = engine.findings().iter().map(|finding| &finding.id).collect();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), engine.findings().len());
        });
    }
    assert!(found > 0, "no round produced a finding");
}

#[test]
fn a_restart_reports_the_same_findings_and_ids() {
    let mut scene = idle();
    let mut recorded = Vec::new();
    scene.play(1_200.0, |snapshot| recorded.push(snapshot.clone()));
    let judge = |snapshots: &[Snapshot]| {
        let mut engine = Engine::new(RuleSet::default());
        snapshots.iter().for_each(|snapshot| engine.observe(snapshot));
        engine.findings().iter().map(|finding| Arc::clone(&finding.id)).collect::<Vec<_>>()
    };
    assert_eq!(judge(&recorded), judge(&recorded[40..]));
    assert_eq!(judge(&recorded).len(), 1);
}

#[test]
fn only_the_worst_finding_of_a_process_is_reported() {
    let mut scene = Scene::new(1, 10.0);
    scene.orphan(PID, &[0], 20 * GIB);
    let mut engine = judge(&mut scene, 700.0);
    assert_eq!(kinds(&engine), [(Kind::Orphan, vec![Kind::Idle])]);
    let of_idle = engine.findings()[0].also[0].since;

    scene.process(PID).state = Some('T');
    scene.play(130.0, |snapshot| engine.observe(snapshot));
    // `idle` does not apply to a stopped process, so the attached idle finding disappears without being listed as
    // resolved.
    assert_eq!(kinds(&engine), [(Kind::Orphan, vec![Kind::Stopped])]);
    assert_eq!(engine.resolved(), []);

    scene.process(PID).group_leader_alive = Some(true);
    engine.observe(scene.step());
    assert_eq!(kinds(&engine), [(Kind::Stopped, vec![])]);
    let resolved: Vec<Kind> = engine.resolved().iter().map(|finding| finding.kind).collect();
    assert_eq!(resolved, [Kind::Orphan]);
    assert!(of_idle < scene.now.time);
}

#[test]
fn severity_takes_precedence_over_kind() {
    let mut scene = Scene::new(1, 10.0);
    scene.orphan(PID, &[0], 20 * GIB);
    let mut settings = RuleSet::default();
    let orphan = settings.rule_mut("orphan").unwrap();
    assert!(orphan.set("severity", &crate::rules::testing::written(Severity::Info)).is_ok());
    let mut engine = Engine::new(settings);
    scene.play(700.0, |snapshot| engine.observe(snapshot));
    assert_eq!(kinds(&engine), [(Kind::Idle, vec![Kind::Orphan])]);
}

#[test]
fn a_process_listed_twice_gets_one_finding() {
    let mut scene = idle();
    let twin = scene.now.processes[0].clone();
    scene.now.processes.push(twin);
    let engine = judge(&mut scene, 700.0);
    assert_eq!(kinds(&engine), [(Kind::Idle, vec![])]);
}

fn idle_beside_gpu_1() -> Scene {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(PID, &[0], 20 * GIB);
    scene.holder(PID + 1, &[0], 20 * GIB);
    let files = ["/dev/nvidia0".into(), "/dev/nvidia1".into()];
    scene.process(PID).gpu_files = Some(files.into());
    scene
}

fn pids_with_findings(engine: &Engine) -> Vec<u32> {
    let findings = engine.findings().iter();
    findings.map(|finding| finding.process.as_ref().unwrap().pid).collect()
}

#[test]
fn a_process_that_may_be_on_an_unread_gpu_gets_no_finding() {
    let mut scene = idle_beside_gpu_1();
    scene.gpu(1).processes = None;
    let engine = judge(&mut scene, 700.0);
    assert_eq!(pids_with_findings(&engine), [PID + 1], "the other process is still reported");
    let undecided = engine.undecided();
    let mut undecided = undecided.iter();
    let reason = undecided.find(|entry| entry.pid == Some(PID)).unwrap();
    assert_eq!((reason.gpu, &*reason.rule), (Some(1), "idle"));
    assert!(engine.pending().iter().all(|pending| pending.pid != Some(PID)));
}

#[test]
fn findings_stay_without_actions_while_a_gpu_is_unread() {
    let mut scene = idle_beside_gpu_1();
    let mut engine = judge(&mut scene, 700.0);
    assert_eq!(pids_with_findings(&engine).len(), 2);
    scene.gpu(1).stale_seconds = Some(5.0);
    engine.observe(scene.step());
    let actions = |engine: &Engine, pid: u32| {
        let mut findings = engine.findings().iter();
        let is_about = |finding: &&Finding| finding.process.as_ref().unwrap().pid == pid;
        findings.find(is_about).map(|finding| finding.actions.len())
    };
    assert_eq!(actions(&engine, PID), Some(1), "it only notifies");
    assert_eq!(actions(&engine, PID + 1), Some(2));
    scene.gpu(1).stale_seconds = None;
    engine.observe(scene.step());
    assert_eq!(actions(&engine, PID), Some(2));
    // The finding ends when the process works, even if another GPU cannot be read.
    scene.gpu(1).stale_seconds = Some(5.0);
    scene.row(0, PID).sm_percent = Some(50);
    engine.observe(scene.step());
    assert_eq!(actions(&engine, PID), None);
}
