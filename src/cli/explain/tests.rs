//! Tests that `explain` finds existing targets, and suggests targets if the requested target does not exist.

use std::sync::Arc;

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::OwnCommands;
use crate::model::snapshot::{Memory, MigDevice};
use crate::report::style::Style;
use crate::units::GIB;

/// Observes `steps` snapshots of a scene. `change` modifies the scene before each snapshot.
fn observe_scene(
    scene: &mut Scene,
    steps: usize,
    change: impl Fn(&mut Scene, usize),
) -> SampledHistory {
    let mut history = SampledHistory::new(RuleSet::default());
    for step in 0..steps {
        change(scene, step);
        history.observe(scene.step().clone());
    }
    history
}

#[track_caller]
fn shown(history: &SampledHistory, typed: &str) -> (ExplainPage, String) {
    let last = history.last.as_ref().unwrap();
    let target = TypedTarget::parse(typed).unwrap();
    let found = target.find(history, last).unwrap();
    let page = page(&target, &found, history.known_so_far(last, &|_, _| OwnCommands::default()));
    let page_style = PageStyle { width: 80, style: Style::default(), ascii: false };
    let text = text(&page, page_style);
    (page, text)
}

#[track_caller]
fn refused(history: &SampledHistory, typed: &str) -> (Exit, String) {
    let target = TypedTarget::parse(typed).unwrap();
    let error = target.find(history, history.last.as_ref().unwrap()).unwrap_err();
    (Exit::from_error(&error), format!("{error:#}"))
}

fn words(text: &str) -> Option<Arc<str>> {
    Some(text.into())
}

#[test]
fn a_mig_device_selects_its_gpu_and_a_process_shows_its_instance() {
    let mut scene = Scene::new(1, 10.0);
    let memory = |total_bytes| Memory {
        total_bytes,
        reserved_bytes: Some(0),
        used_bytes: GIB,
        free_bytes: total_bytes - GIB,
    };
    scene.memory(0, 2 * GIB, 80 * GIB);
    scene.gpu(0).mig_mode = Some(true);
    scene.gpu(0).mig_devices = [1, 2]
        .map(|instance| MigDevice {
            index: Some(instance - 1),
            gpu_instance_id: Some(instance),
            uuid: words(&format!("MIG-{instance}")),
            profile: words("1g.10gb"),
            memory: Some(memory(10 * GIB)),
            ..MigDevice::default()
        })
        .to_vec();
    scene.holder(7, &[0], GIB);
    scene.row(0, 7).gpu_instance_id = Some(2);
    let history = observe_scene(&mut scene, 3, |_, _| {});
    let (_, text) = shown(&history, "MIG-2");
    assert!(text.contains("GPU instance 2 of this GPU"), "{text}");
    assert!(text.contains("1g.10gb") && text.contains("under MIG"), "{text}");
    let (_, text) = shown(&history, "7");
    assert!(text.contains("GPU 0/2   1.0 GiB of 10.0 GiB (10%)"), "{text}");
    let (exit, message) = refused(&history, "MIG-9");
    assert_eq!(exit, Exit::Usage);
    assert!(message.contains("there are 0"), "{message}");
}

#[test]
fn unknown_memory_is_shown_as_not_available_with_its_reason() {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(7, &[0], GIB);
    scene.row(0, 7).used_bytes = None;
    scene.gpu(0).memory_unavailable = words("it shares the machine's memory");
    scene.gpu(0).process_memory_unavailable = words("the driver does not tell it under WSL");
    let history = observe_scene(&mut scene, 3, |_, _| {});
    let (report, text) = shown(&history, "gpu:0");
    assert!(text.contains("n/a: it shares the machine's memory"), "{text}");
    assert!(!is_blind(&report), "a GPU without framebuffer is no failure");
    let (_, text) = shown(&history, "7");
    assert!(text.contains("memory n/a: the driver does not tell it under WSL"), "{text}");
    assert!(!text.contains("frees"), "{text}");
}

#[test]
fn a_missing_target_is_a_usage_error_that_lists_existing_targets() {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(7, &[0], GIB);
    scene.holder(8, &[0], GIB);
    let mut history = observe_scene(&mut scene, 3, |_, _| {});
    scene.now.processes.retain(|process| process.pid != 8);
    scene.rows(0).retain(|row| row.pid != 8);
    history.observe(scene.step().clone());
    for (typed, part) in [
        ("9", "processes: 7 (python train.py) on GPU 0"),
        ("1", "to name GPU 1, write gpu:1"),
        ("8", "was on GPU 0 until 2025-11-21"),
        ("gpu:5", "there are 0, 1"),
        ("GPU-", "gpu:0, gpu:1"),
        ("GPU-7", "no such GPU"),
        ("nonsense", "there are no findings"),
    ] {
        let (exit, message) = refused(&history, typed);
        assert_eq!(exit, Exit::Usage, "{message}");
        assert!(message.contains(part), "{typed}: {message}");
    }
    // The process could be on the GPU that cannot be read.
    scene.gpu(1).processes = None;
    history.observe(scene.step().clone());
    assert_eq!(refused(&history, "9").0, Exit::CannotMeasure);
    let (report, text) = shown(&history, "gpu:1");
    assert!(is_blind(&report));
    assert!(text.contains("could not be read"), "{text}");
}

#[test]
fn a_findings_id_and_its_prefix_select_its_process() {
    let mut scene = Scene::new(1, 10.0);
    scene.memory(0, 21 * GIB, 80 * GIB);
    scene.holder(7, &[0], 20 * GIB);
    let history = observe_scene(&mut scene, 300, |_, _| {});
    let (report, text) = shown(&history, "7");
    let id = report.findings[0].id.to_string();
    for typed in [&*id, "idle", "idle:GPU-0"] {
        assert_eq!(shown(&history, typed).1, text);
    }
}
