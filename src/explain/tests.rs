//! Tests of pages about synthetic machines, with hostile names and uncertain identities.

use std::sync::Arc;

use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use super::*;
use crate::advice;
use crate::history::testing::Scene;
use crate::model::finding::{OwnCommands, Undecided};
use crate::model::json;
use crate::model::snapshot::{ReadError, Slurm};
use crate::report::explain::{PageStyle, text as text_of};
use crate::report::style::Style;
use crate::rules::RuleSet;
use crate::units::GIB;

const WIDTHS: [usize; 3] = [40, 80, 120];

fn style_of(width: usize) -> PageStyle {
    PageStyle { width, style: Style::default(), ascii: false }
}

struct Observed {
    engine: Engine,
    all_series: AllSeries,
    last: Snapshot,
    more: More,
}

impl Observed {
    fn input(&self) -> ExplainInput<'_> {
        ExplainInput {
            engine: &self.engine,
            all_series: &self.all_series,
            last: &self.last,
            needed: self.engine.settings().longest(),
            more: self.more,
            commands: &|_, _| OwnCommands::default(),
        }
    }
}

fn observe(scene: &mut Scene, steps: usize, change: impl Fn(&mut Scene, usize)) -> Observed {
    let mut engine = Engine::new(RuleSet::default());
    let mut all_series = AllSeries::default();
    let mut last = scene.now.clone();
    for step in 0..steps {
        change(scene, step);
        last = scene.step().clone();
        engine.observe(&last);
        all_series.follow(engine.history(), &last);
    }
    Observed { engine, all_series, last, more: More::Nowhere }
}

fn words(text: &str) -> Option<Arc<str>> {
    Some(text.into())
}

fn machine() -> Scene {
    let mut scene = Scene::new(1, 10.0);
    scene.memory(0, 3 * GIB, 80 * GIB);
    scene.holder(7, &[0], 2 * GIB);
    scene
}

/// Returns the page about a PID or about `gpu:0`, and checks that no line is too wide.
#[track_caller]
fn page(observed: &Observed, subject: &str) -> (ExplainPage, String) {
    let report = match subject.strip_prefix("gpu:") {
        Some(position) => gpu(observed.input(), position.parse().unwrap(), None),
        None => process(observed.input(), subject.parse().unwrap(), None),
    };
    for width in WIDTHS {
        let text = text_of(&report, style_of(width));
        for line in text.lines() {
            assert!(line.width() <= width, "{width}: {line:?}");
        }
        let hostile = |c: char| c != '\n' && c.is_control();
        assert!(!text.contains(hostile), "{text:?}");
        assert!(text.lines().count() < 250, "{text}");
    }
    serde_json::from_str::<serde_json::Value>(&json::document(&report).unwrap()).unwrap();
    let text = text_of(&report, style_of(80));
    (report, text)
}

fn steps(page: &ExplainPage) -> Vec<&str> {
    let section = page.sections.iter().find(|section| section.heading.ends_with("gentlest first"));
    let rows = section.unwrap().rows.iter();
    rows.filter_map(|row| match row {
        Row::Item { text, .. } => Some(&**text),
        _ => None,
    })
    .collect()
}

#[test]
fn a_page_lists_no_undecided_rule_about_another_process() {
    let mut scene = Scene::new(2, 10.0);
    for (pid, gpu) in [(7, 0), (8, 1)] {
        scene.memory(gpu, 21 * GIB, 80 * GIB);
        scene.holder(pid, &[gpu], 20 * GIB);
    }
    let observed = observe(&mut scene, 300, |scene, _| {
        for (pid, gpu) in [(7, 0), (8, 1)] {
            scene.row(gpu, pid).used_bytes = None;
        }
    });
    let doubts = observed.engine.undecided();
    let doubts_about = |pid| doubts.iter().filter(move |doubt| doubt.pid == Some(pid));
    assert!(doubts_about(7).count() > 0 && doubts_about(8).count() > 0, "{doubts:?}");
    let others: Vec<&Undecided> = doubts_about(8).collect();
    for shown in [page(&observed, "7").1, page(&observed, "gpu:0").1] {
        assert!(doubts_about(7).any(|doubt| shown.contains(&format!("undecided: {}", doubt.rule))));
        assert!(!others.iter().any(|doubt| shown.contains(&*doubt.reason)), "{shown}");
    }
}

#[test]
fn an_unresolved_pid_shows_only_the_reason() {
    let mut scene = machine();
    let process = scene.process(7);
    process.start_ticks = None;
    process.start_time = None;
    process.unresolved = words("it started after NVML named the pid");
    // Because the pid is not resolved, these facts may belong to another process.
    process.command = Some(["/opt/secret".into()].into());
    process.user = words("stranger");
    let observed = observe(&mut scene, 300, |_, _| {});
    let (report, text) = page(&observed, "7");
    assert!(text.starts_with("pid 7: not resolved\n"), "{text}");
    assert!(text.contains("it started after NVML named the pid"), "{text}");
    let json = json::document(&report).unwrap();
    for strange in ["secret", "stranger", "`kill"] {
        assert!(!text.contains(strange) && !json.contains(strange), "{text}{json}");
    }
    let (_, gpu) = page(&observed, "gpu:0");
    assert!(gpu.contains("(not resolved: it started"), "{gpu}");
    assert!(!gpu.contains("secret") && !gpu.contains("stranger"), "{gpu}");
}

#[test]
fn no_process_name_breaks_a_page() {
    let mut scene = machine();
    scene.holder(9, &[0], GIB);
    for part in [
        "\u{1b}[2J\u{1b}]0;owned\u{7}",
        "\n\nWhat to do: nothing",
        "\u{202e}gnp.exe",
        "\u{301}\u{301}",
        "日本語",
        "``` ` `",
    ] {
        let name = part.repeat(200);
        scene.gpu(0).name = Some(name.as_str().into());
        let names = json!({
            "process_group": 50, "session": 50, "user": name, "terminal": name, "framework": name,
            "framework_version": name, "systemd_unit": name, "command": [name, name, name],
            "gpu_files": [name],
            "slurm": {"job_id": name, "step_id": name, "job_name": name, "array_job_id": name,
                "array_task_id": name},
            "container": {"runtime": name, "namespace": name, "user": name, "id": name, "name": name},
            "kubernetes": {"pod_uid": name, "pod_name": name, "namespace": name,
                "container_name": name, "qos": name},
            "jupyter": {"application": name, "kernel_id": name, "server_url": name,
                "server_root": name, "server_error": name, "notebook_path": name,
                "execution_state": name},
        });
        for pid in [7, 9] {
            let mut process = serde_json::to_value(&*scene.process(pid)).unwrap();
            process.as_object_mut().unwrap().extend(names.as_object().unwrap().clone());
            *scene.process(pid) = serde_json::from_value(process).unwrap();
        }
        let name = Arc::<str>::from(name);
        scene.now.errors =
            vec![ReadError { gpu: Some(0), call: name.clone(), error: name.clone() }];
        let mut copy = scene.clone();
        let observed = observe(&mut copy, 3, |_, _| {});
        page(&observed, "7");
        page(&observed, "gpu:0");
    }
}

#[test]
fn a_stopped_job_is_ended_by_its_scheduler_instead_of_a_signal() {
    let mut scene = machine();
    scene.process(7).state = Some('T');
    scene.process(7).slurm = Some(Slurm { job_id: words("42"), ..Slurm::default() }.into());
    let (page, text) = page(&observe(&mut scene, 300, |_, _| {}), "7");
    let steps = steps(&page);
    let position_of = |part: &str| steps.iter().position(|step| step.contains(part)).unwrap();
    assert!(position_of("scontrol resume 42") < position_of("scancel 42"), "{text}");
    assert!(!text.contains("kill -TERM 7"), "{text}");
}

#[test]
fn a_zombie_with_threads_and_a_namespace_init_get_sigkill() {
    let mut scene = Scene::new(1, 1.0);
    scene.holder(4242, &[0], 2 * GIB);
    let zombie = |threads| {
        move |scene: &mut Scene, _| {
            let process = scene.process(4242);
            (process.state, process.left_thread_state) = (Some('Z'), Some('S'));
            process.threads = Some(threads);
        }
    };
    let (_, text) = page(&observe(&mut scene, 3, zombie(2)), "4242");
    assert!(text.contains("its main thread has exited, but its other threads still run"));
    assert!(text.contains("`kill -KILL 4242`") && !text.contains("zombie"));
    let (_, text) = page(&observe(&mut scene, 3, zombie(1)), "4242");
    assert!(text.contains("zombie") && !text.contains("kill"));
    let stuck = |scene: &mut Scene, _| scene.process(4242).state = Some('D');
    let (_, text) = page(&observe(&mut scene, 3, stuck), "4242");
    assert!(text.contains("no signal reaches it") && !text.contains("`kill"), "{text}");

    let mut scene = Scene::new(1, 1.0);
    scene.holder(4242, &[0], 2 * GIB);
    let first = |scene: &mut Scene, _| scene.process(4242).namespace_pid = Some(1);
    let (report, _) = page(&observe(&mut scene, 3, first), "4242");
    let text = json::document(&report).unwrap();
    assert!(text.contains("`kill -KILL 4242` kills everything in the namespace"), "{text}");
}

#[test]
fn every_framework_has_a_page_that_fits() {
    for row in advice::frameworks() {
        let report = framework(&row.name).unwrap();
        for width in WIDTHS {
            let text = text_of(&report, style_of(width));
            assert!(text.lines().all(|line| line.width() <= width), "{text}");
            assert!(text.contains("source: "), "{text}");
        }
    }
    let list = text_of(&frameworks(), style_of(80));
    assert!(list.contains("pytorch"), "{list}");
    assert_eq!(framework("pytroch"), None);
}
