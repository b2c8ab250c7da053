//! Which processes the rule takes from `idle`, and what it offers.

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::Action;
use crate::rules::testing::{PID, assert_clean, count, judge, only, reasons};
use crate::units::GIB;

fn server() -> Scene {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], 60 * GIB);
    scene.process(PID).command = Some(["vllm".into(), "serve".into(), "x".into()].into());
    scene.process(PID).framework = Some("vllm".into());
    scene.process(PID).listening = Some(true);
    scene
}

#[test]
fn a_server_that_waits_is_found_and_never_killed() {
    let mut scene = server();
    let mut engine = judge(&mut scene, 590.0);
    assert_eq!(engine.findings(), []);
    engine.observe(scene.step());
    let finding = only(&engine, Kind::ServerIdle);
    assert_eq!(finding.severity, Severity::Info);
    assert_eq!(&*finding.id, "server-idle:GPU-0:4242:424200");
    assert_eq!(finding.actions, [Action::Notify]);
    assert_eq!(
        finding.message,
        "vllm serve (4242) has held 60.0 GiB on GPU 0 without using it for 10m 00s"
    );
    assert_eq!(engine.findings().len(), 1);
    assert_eq!(reasons(&engine, Kind::ServerIdle), [""; 0]);
}

#[test]
fn who_is_idle_and_who_is_an_idle_server_exclude_each_other() {
    let mut scene = server();
    scene.process(PID).listening = Some(false);
    let engine = judge(&mut scene, 700.0);
    assert_eq!((count(&engine, Kind::Idle), count(&engine, Kind::ServerIdle)), (1, 0));
    assert!(only(&engine, Kind::Idle).actions.contains(&Action::Terminate));
}

#[test]
fn a_server_that_is_asked_or_busy_is_not_idle() {
    for change in [
        (|scene| scene.row(0, PID).sm_percent = Some(1)) as fn(&mut Scene),
        |scene| scene.process(PID).cpu_percent = Some(80.0),
        |scene| scene.process(PID).state = Some('T'),
        |scene| scene.row(0, PID).used_bytes = Some(GIB - 1),
    ] {
        let mut scene = server();
        change(&mut scene);
        assert_clean(&judge(&mut scene, 700.0), Kind::ServerIdle);
    }
}
