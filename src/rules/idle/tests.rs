//! Each clause of the rule, on scenes made by hand.

use crate::model::dice::Dice;
use std::sync::Arc;

use super::*;
use crate::history::testing::{Scene, disorder};
use crate::model::Snapshot;
use crate::model::evidence::Evidence;
use crate::model::finding::{Action, Finding, Severity};
use crate::model::process::{AskedRelease, Descendants, Parent};
use crate::model::snapshot::Jupyter;
use crate::rules::rule::{Override, Rule};
use crate::rules::scope::ScopeInput;
use crate::rules::testing::only;
use crate::rules::testing::{facts, scope, written};
use crate::rules::{Engine, RuleSet as AllSettings};
use crate::units::MIB;

const PID: u32 = 4242;

/// `python train.py` that holds 20 GiB on GPU 0 of two, and a sample every 10 s.
fn scene() -> Scene {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(PID, &[0], 20 * GIB);
    scene
}

fn only_idle() -> AllSettings {
    let mut settings = AllSettings::default();
    settings.select(&["idle"]).unwrap();
    settings
}

fn judge_with(settings: AllSettings, scene: &mut Scene, seconds: f64) -> Engine {
    let mut engine = Engine::new(settings);
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    engine
}

fn judge(scene: &mut Scene, seconds: f64) -> Engine {
    judge_with(only_idle(), scene, seconds)
}

fn reasons(engine: &Engine) -> Vec<String> {
    engine.undecided().into_iter().map(|undecided| undecided.reason).collect()
}

#[track_caller]
fn assert_clean(engine: &Engine) {
    assert_eq!(engine.findings(), [], "accused");
    assert_eq!(reasons(engine), [""; 0], "undecided");
}

#[test]
fn it_is_found_after_the_duration_with_its_evidence() {
    let mut scene = scene();
    let start = scene.now.time;
    let mut engine = judge(&mut scene, 590.0);
    assert_eq!(engine.findings(), []);
    engine.observe(scene.step());
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    assert_eq!(&*finding.id, "idle:GPU-0:4242:424200");
    assert_eq!((finding.kind, finding.severity), (Kind::Idle, Severity::Warning));
    assert_eq!((finding.since, finding.duration_seconds), (start, 600.0));
    assert_eq!(finding.memory_bytes, Some(20 * GIB));
    assert_eq!(
        finding.message,
        "python train.py (4242) has held 20.0 GiB on GPU 0 without using it for 10m 00s"
    );
    assert_eq!(
        finding.evidence,
        Evidence::new(IdleEvidence {
            sm_percent_max: Some(0),
            gpu_percent_max: None,
            cpu_percent_mean: Some(0.0),
            samples: 61,
            coverage: 1.0,
            last_activity: None,
            busy_seconds: None,
        })
    );
    assert_eq!(finding.actions, [Action::Notify, Action::Terminate]);
    assert_eq!(engine.undecided(), []);
}

#[test]
fn a_known_placeholder_is_only_notified() {
    let mut scene = scene();
    let keeper = ["python", "-m", "keep_gpu.cli"].map(Arc::from);
    scene.process(PID).command = Some(Arc::from(keeper));
    let engine = judge(&mut scene, 700.0);
    assert_eq!(only(&engine, Kind::Idle).actions, [Action::Notify]);
}

#[test]
fn a_short_history_is_undecided_only_while_it_may_be_idle() {
    let mut scene = scene();
    let engine = judge(&mut scene, 30.0);
    assert_eq!(reasons(&engine), ["can tell in 9m 30s: it needs 10m of history"]);

    scene.row(0, PID).sm_percent = Some(40);
    let mut engine = judge(&mut scene, 30.0);
    assert_clean(&engine);
    scene.row(0, PID).sm_percent = Some(0);
    scene.play(100.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine);

    assert_clean(&judge(&mut Scene::new(1, 10.0), 30.0));
}

#[test]
fn of_several_short_histories_the_shortest_is_reported() {
    let mut scene = scene();
    let mut engine = judge(&mut scene, 100.0);
    // Where the list could not be read before, what appears may have been there all the time.
    scene.gpu(1).processes = None;
    engine.observe(scene.step());
    scene.holder(7, &[1], GIB);
    engine.observe(scene.step());
    engine.observe(scene.step());
    assert_eq!(reasons(&engine), ["can tell in 9m 50s: it needs 10m of history"]);
}

#[test]
fn use_of_any_engine_is_use() {
    for change in [
        (|row| row.sm_percent = Some(1)) as fn(&mut GpuProcess),
        |row| row.memory_percent = Some(1),
        |row| row.encoder_percent = Some(1),
        |row| row.decoder_percent = Some(1),
    ] {
        let mut scene = scene();
        let mut engine = judge(&mut scene, 1_000.0);
        assert_eq!(engine.findings().len(), 1);
        change(scene.row(0, PID));
        engine.observe(scene.step());
        assert_clean(&engine);
        assert_eq!(engine.resolved()[0].resolved_at, Some(scene.now.time));
    }
}

#[test]
fn a_busy_gpu_shows_nothing_of_one_process_where_use_is_known_by_process() {
    let mut scene = scene();
    scene.holder(PID + 1, &[0], GIB / 2);
    scene.row(0, PID + 1).sm_percent = Some(100);
    scene.gpu(0).gpu_percent = Some(100);
    assert_eq!(judge(&mut scene, 700.0).findings().len(), 1);
}

#[test]
fn memory_that_comes_or_goes_is_work() {
    let mut scene = scene();
    let mut engine = judge(&mut scene, 500.0);
    scene.row(0, PID).used_bytes = Some(20 * GIB + 63 * MIB);
    engine.observe(scene.step());
    scene.row(0, PID).used_bytes = Some(19 * GIB);
    engine.observe(scene.step());
    let moved_at = scene.now.time;
    scene.play(590.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine);
    engine.observe(scene.step());
    assert_eq!(engine.findings()[0].since, moved_at);
}

#[test]
fn a_gpu_that_draws_the_power_of_work_does_not_prove_that_it_is_unused() {
    let mut scene = scene();
    scene.row(0, PID).sm_percent = None;
    scene.row(0, PID).memory_percent = None;
    scene.gpu(0).power_limit_watts = Some(700.0);
    scene.gpu(0).power_watts = Some(430.0);
    let engine = judge(&mut scene, 900.0);
    assert_eq!(engine.findings(), []);
    assert_eq!(reasons(&engine), ["the driver gives no per-process utilization on GPU 0"]);
    scene.gpu(0).power_watts = Some(120.0);
    assert_eq!(judge(&mut scene, 600.0).findings().len(), 1);
}

#[test]
fn the_whole_gpu_counts_where_use_is_not_known_by_process() {
    let mut scene = scene();
    scene.row(0, PID).sm_percent = None;
    scene.row(0, PID).memory_percent = None;
    let mut engine = judge(&mut scene, 600.0);
    let facts = facts(&engine.findings()[0]);
    assert!(facts["sm_percent_max"].is_null() && facts["gpu_percent_max"] == 0);

    scene.gpu(0).gpu_percent = Some(3);
    engine.observe(scene.step());
    assert_eq!(engine.findings(), [], "nobody can tell who it was");
    let unknown = ["the driver gives no per-process utilization on GPU 0"];
    assert_eq!(reasons(&engine), unknown);
    scene.gpu(0).gpu_percent = Some(0);
    engine.observe(scene.step());
    assert_eq!(reasons(&engine), unknown, "it may have been idle before, too");

    scene.gpu(0).gpu_percent = None;
    let engine = judge(&mut scene, 700.0);
    assert_eq!(engine.findings(), []);
    assert_eq!(reasons(&engine), unknown);
}

#[test]
fn little_memory_or_unknown_memory_is_no_finding() {
    let mut scene = scene();
    scene.row(0, PID).used_bytes = Some(GIB - 1);
    assert_clean(&judge(&mut scene, 700.0));
    scene.row(0, PID).used_bytes = Some(GIB);
    assert_eq!(judge(&mut scene, 700.0).findings().len(), 1);
    scene.row(0, PID).used_bytes = None;
    let engine = judge(&mut scene, 700.0);
    assert_eq!(engine.findings(), []);
    assert_eq!(
        reasons(&engine),
        ["the driver does not report the memory of process 4242 on GPU 0"]
    );
}

#[test]
fn work_on_the_cpu_is_a_veto_and_unknown_work_a_doubt() {
    for (percent, found) in [(19.9, 1), (20.0, 0), (400.0, 0)] {
        let mut scene = scene();
        scene.process(PID).cpu_percent = Some(percent);
        let engine = judge(&mut scene, 700.0);
        assert_eq!((engine.findings().len(), reasons(&engine).len()), (found, 0), "{percent} %");
    }
    // What it did before the duration does not count.
    let mut scene = scene();
    scene.process(PID).cpu_percent = Some(800.0);
    let mut engine = judge(&mut scene, 3_600.0);
    scene.process(PID).cpu_percent = Some(1.0);
    scene.play(620.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings().len(), 1);

    scene.process(PID).cpu_percent = None;
    scene.process(PID).cpu_seconds = None;
    let engine = judge(&mut scene, 700.0);
    assert_eq!(engine.findings(), []);
    assert_eq!(reasons(&engine), ["the CPU use of process 4242 is not known"]);
}

#[test]
fn a_stream_with_percentages_only_is_judged_by_them() {
    for (percent, found) in [(5.0, 1), (50.0, 0)] {
        let mut scene = scene();
        scene.process(PID).cpu_seconds = None;
        scene.process(PID).cpu_percent = Some(percent);
        assert_eq!(judge(&mut scene, 700.0).findings().len(), found, "{percent} %");
    }
}

#[test]
fn a_server_that_is_gone_is_not_to_shut_its_kernel_down() {
    for (alive, can) in [(None, true), (Some(true), true), (Some(false), false)] {
        let mut scene = scene();
        scene.process(PID).jupyter = Some(Arc::new(Jupyter {
            kernel_id: Some("k".into()),
            execution_state: alive.is_none_or(|it| it).then(|| "idle".into()),
            server_alive: alive,
            ..Jupyter::default()
        }));
        let engine = judge(&mut scene, 700.0);
        let actions = &only(&engine, Kind::Idle).actions;
        assert_eq!(actions.contains(&Action::JupyterShutdown), can, "{alive:?}");
        assert!(actions.contains(&Action::Terminate));
    }
}

#[test]
fn a_notebook_is_believed_by_its_server() {
    let notebook = |scene: &mut Scene, state: Option<&str>, active_ago: Option<f64>| {
        let now = scene.now.time;
        scene.process(PID).jupyter = Some(Arc::new(Jupyter {
            kernel_id: Some("k".into()),
            notebook_path: Some("a.ipynb".into()),
            execution_state: state.map(Into::into),
            last_activity: active_ago.map(|seconds| now.plus_seconds(-seconds)),
            ..Jupyter::default()
        }));
    };
    for (state, active_ago, found) in [
        (Some("idle"), Some(0.0), 1),
        (Some("idle"), Some(-300.0), 0),
        (Some("idle"), Some(-9_999.0), 0),
        (Some("busy"), Some(5_000.0), 0),
        (Some("busy"), None, 0),
        (Some("idle"), None, 1),
    ] {
        let mut scene = scene();
        notebook(&mut scene, state, active_ago);
        let engine = judge(&mut scene, 700.0);
        assert_eq!(engine.findings().len(), found, "{state:?} {active_ago:?}");
        assert_eq!(reasons(&engine).len(), 0);
        if let [finding] = engine.findings() {
            assert_eq!(
                finding.actions,
                [Action::Notify, Action::JupyterShutdown, Action::Terminate]
            );
            assert!(finding.message.starts_with("notebook a.ipynb (4242)"), "{}", finding.message);
            assert!(finding.advice[0].starts_with("shut the kernel down"));
        }
    }
}

#[test]
fn a_kernel_of_unknown_state_is_not_killed() {
    let judged = |kernel: Jupyter| {
        let mut scene = scene();
        scene.process(PID).jupyter = Some(Arc::new(kernel));
        judge(&mut scene, 700.0)
    };
    // A server knows it, and does not say: it may wait for a network, a person, another process.
    let served = |application: Option<&str>| Jupyter {
        application: application.map(Into::into),
        server_error: Some("it takes a password only".into()),
        server_alive: Some(true),
        server_pid: Some(50),
        ..Jupyter::default()
    };
    let unread = Jupyter { application: Some("jupyter".into()), ..Jupyter::default() };
    let applications = ["jupyter", "jupyterhub", "voila", "kernelgateway", "databricks"];
    let applications = applications.map(Some).into_iter().chain([None]);
    for kernel in applications.map(served).chain([unread]) {
        let shown = format!("{kernel:?}");
        let engine = judged(kernel);
        assert_eq!(engine.findings().len(), 0, "{shown}");
        let reasons = reasons(&engine);
        assert!(reasons[0].contains("is not known"), "{reasons:?}");
    }
    // Nothing could ever say: it is found, and its end is not offered.
    for application in ["vscode", "marimo", "jupyter-console", "spyder", "ipykernel"] {
        let engine =
            judged(Jupyter { application: Some(application.into()), ..Jupyter::default() });
        assert_eq!(only(&engine, Kind::Idle).actions, [Action::Notify], "{application}");
    }
    // A program that runs a notebook through is as any script.
    let engine = judged(Jupyter { application: Some("papermill".into()), ..Jupyter::default() });
    assert!(only(&engine, Kind::Idle).actions.contains(&Action::Terminate));
}

#[test]
fn a_kernel_that_spins_in_a_thread_is_not_idle_whatever_its_server_reports() {
    for (percent, found) in [(100.0, 0), (1.0, 1)] {
        let mut scene = scene();
        let long_ago = scene.now.time.plus_seconds(-9_999.0);
        let process = scene.process(PID);
        process.cpu_percent = Some(percent);
        process.jupyter = Some(Arc::new(Jupyter {
            execution_state: Some("idle".into()),
            last_activity: Some(long_ago),
            ..Jupyter::default()
        }));
        let engine = judge(&mut scene, 700.0);
        assert_eq!(engine.findings().len(), found, "{percent} %");
    }
}

#[test]
fn graphics_and_servers_are_never_idle() {
    let mut desktop = scene();
    desktop.row(0, PID).kind = ProcessType::Graphics;
    assert_clean(&judge(&mut desktop, 700.0));
    let mut mps = scene();
    mps.process(PID).executable = Some("/usr/bin/nvidia-cuda-mps-server".into());
    assert_clean(&judge(&mut mps, 700.0));
    for (listening, found) in [(Some(true), 0), (None, 0), (Some(false), 1)] {
        let mut scene = scene();
        scene.process(PID).framework = Some("vllm".into());
        scene.process(PID).listening = listening;
        let engine = judge(&mut scene, 700.0);
        assert_eq!((engine.findings().len(), reasons(&engine).len()), (found, 0), "{listening:?}");
    }
}

#[test]
fn a_desktop_is_accused_of_nothing() {
    for (program, service) in [
        ("/usr/bin/gnome-shell", Some("org.gnome.Shell@wayland.service")),
        ("/usr/lib/xorg/Xorg", None),
        ("/usr/bin/kwin_wayland", Some("plasma-kwin_wayland.service")),
        ("sway", None),
    ] {
        let mut scene = scene();
        scene.row(0, PID).kind = ProcessType::ComputeGraphics;
        let desktop = scene.process(PID);
        desktop.command = Some([program.into()].into());
        desktop.systemd_unit = service.map(Arc::from);
        // It lost whoever started it, too.
        desktop.parent_is_reaper = Some(true);
        desktop.group_leader_alive = Some(false);
        let mut engine = Engine::new(AllSettings::default());
        let mut bytes = 20 * GIB;
        for _ in 0..400 {
            bytes += 16 * MIB;
            scene.row(0, PID).used_bytes = Some(bytes);
            engine.observe(scene.step());
        }
        let own = |finding: &&Finding| finding.process.is_some();
        assert_eq!(engine.findings().iter().find(own), None, "{program}");
    }
}

/// What descendants used of the CPU in total, and those of them on a GPU.
fn descendants(cpu_seconds: Option<f64>, listed: &[u32]) -> Option<Arc<Descendants>> {
    Some(Arc::new(Descendants {
        count: Some(1),
        cpu_percent: None,
        cpu_seconds,
        listed: listed.to_vec(),
    }))
}

#[test]
fn what_children_do_counts_as_its_own_work() {
    // A core, a trace, and a recording of before such a field.
    for (percent, found) in [(Some(100.0), 0), (Some(1.0), 1), (None, 1)] {
        let mut scene = scene();
        let mut engine = Engine::new(only_idle());
        let mut used = 50.0;
        for _ in 0..80 {
            used += percent.unwrap_or_default() / 100.0 * 10.0;
            scene.process(PID).descendants = percent.and_then(|_| descendants(Some(used), &[]));
            engine.observe(scene.step());
        }
        let findings = engine.findings();
        assert_eq!(findings.len(), found, "{percent:?}");
        if let (Some(percent), Some(finding)) = (percent, findings.first()) {
            let mean = facts(finding)["cpu_percent_mean"].as_f64().unwrap();
            assert!((mean - percent).abs() < 0.01, "{mean}");
        }
    }
    // Looked at without success: it is not known, and not found.
    let mut scene = scene();
    scene.process(PID).descendants = descendants(None, &[]);
    let engine = judge(&mut scene, 800.0);
    assert_eq!(engine.findings(), []);
    assert!(reasons(&engine)[0].contains("CPU"), "{:?}", reasons(&engine));
}

#[test]
fn what_children_did_before_they_were_first_looked_at_is_no_work_of_now() {
    let mut scene = scene();
    let mut engine = Engine::new(only_idle());
    scene.play(300.0, |snapshot| engine.observe(snapshot));
    scene.process(PID).descendants = descendants(Some(90_000.0), &[]);
    scene.play(700.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings().len(), 1);
}

#[test]
fn whose_child_is_at_work_on_a_gpu_is_not_idle() {
    const CHILD: u32 = 4300;
    for (percent, found) in [(90, 0), (0, 2)] {
        let mut scene = scene();
        scene.holder(CHILD, &[1], 20 * GIB);
        scene.row(1, CHILD).sm_percent = Some(percent);
        scene.process(PID).descendants = descendants(Some(0.0), &[CHILD]);
        let engine = judge(&mut scene, 700.0);
        assert_eq!(engine.findings().len(), found, "{percent}");
    }
}

#[test]
fn a_worker_that_is_started_again_is_not_to_be_ended_alone() {
    for (command, parent, words) in [
        ("ray::IDLE", "raylet", "the raylet (pid 9) keeps it for the next task; its task is over"),
        ("ray::Trainer.step", "raylet", "the raylet (pid 9) starts another one"),
        ("python celery -A t worker", "python celery -A t worker", "control shutdown"),
        ("python celery -A t worker", "bash", "waits for its work"),
    ] {
        let mut scene = scene();
        let argv = |words: &str| Some(words.split(' ').map(Arc::from).collect());
        let worker = scene.process(PID);
        worker.command = argv(command);
        worker.ppid = Some(9);
        worker.parent_is_reaper = Some(false);
        worker.parent =
            Some(Arc::new(Parent { pid: 9, command: argv(parent), ..Parent::default() }));
        let engine = judge(&mut scene, 700.0);
        let finding = &engine.findings()[0];
        assert_eq!(finding.actions, [Action::Notify], "{command}");
        assert!(finding.advice[0].contains(words), "{:?}", finding.advice);
    }
}

#[test]
fn who_is_stopped_dead_or_stuck_is_not_idle() {
    for (state, found) in [('T', 0), ('t', 0), ('Z', 0), ('X', 0), ('D', 0), ('S', 1), ('R', 1)] {
        let mut scene = scene();
        scene.process(PID).state = Some(state);
        let engine = judge(&mut scene, 700.0);
        assert_eq!((engine.findings().len(), reasons(&engine).len()), (found, 0), "{state}");
    }
    let mut scene = scene();
    let mut engine = judge(&mut scene, 700.0);
    scene.process(PID).state = Some('D');
    engine.observe(scene.step());
    assert_eq!(engine.findings().len(), 1, "it reads a disk");
}

#[test]
fn the_time_while_it_was_stopped_does_not_count_when_it_goes_on() {
    let mut scene = scene();
    scene.process(PID).state = Some('T');
    let mut engine = judge(&mut scene, 3_000.0);
    scene.process(PID).state = Some('S');
    let resumed = scene.now.time.plus_seconds(10.0);
    scene.play(590.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine);
    scene.play(20.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings()[0].since, resumed);
}

#[test]
fn a_process_without_an_identity_is_doubted_and_never_accused() {
    for forget in [
        (|scene| {
            let process = scene.process(PID);
            (process.start_ticks, process.start_time) = (None, None);
        }) as fn(&mut Scene),
        |scene| scene.now.processes.clear(),
    ] {
        let mut scene = scene();
        forget(&mut scene);
        let engine = judge(&mut scene, 700.0);
        assert_eq!(engine.findings(), []);
        assert_eq!(reasons(&engine), ["GPU 0 lists pid 4242, whose process is not certain"]);
    }
}

#[test]
fn a_gpu_that_does_not_answer_is_doubted_and_its_findings_stay_for_a_while() {
    let mut scene = scene();
    let mut engine = judge(&mut scene, 700.0);
    scene.gpu(0).stale_seconds = Some(12.0);
    engine.observe(scene.step());
    assert_eq!(engine.findings().len(), 1);
    assert_eq!(reasons(&engine)[0], "GPU 0 has not answered for 12s");
    scene.gpu(0).stale_seconds = None;
    scene.gpu(0).processes = None;
    scene.now.processes.clear();
    engine.observe(scene.step());
    assert_eq!(engine.findings().len(), 1, "the process may still be there");
    assert_eq!(reasons(&engine), ["the process list of GPU 0 could not be read"]);
    scene.play(700.0, |snapshot| engine.observe(snapshot));
    assert_eq!((engine.findings().len(), engine.resolved().len()), (0, 1));
}

#[test]
fn samples_with_holes_are_no_proof() {
    let mut scene = scene();
    scene.process(PID).cpu_percent = Some(10.0);
    scene.gpu(0).gpu_percent = None;
    let mut engine = Engine::new(only_idle());
    for sample in 0..100 {
        scene.row(0, PID).sm_percent = (sample % 3 == 0).then_some(0);
        engine.observe(scene.step());
    }
    assert_eq!(engine.findings(), []);
    assert_eq!(
        reasons(&engine),
        ["34 samples cover 33 % of the time on GPU 0, 75 % and 3 samples are needed"]
    );
}

#[test]
fn gaps_sleep_and_another_identity_start_the_clock_afresh() {
    for disturb in [
        (|scene| {
            scene.pass(7_000.0);
        }) as fn(&mut Scene),
        |scene| scene.now.host.suspended_seconds = Some(90),
        |scene| scene.now.host.boot_id = Some("boot-2".into()),
        |scene| {
            scene.pass(-60.0);
        },
        |scene| scene.process(PID).start_ticks = Some(1),
    ] {
        let mut scene = scene();
        scene.now.host.suspended_seconds = Some(0);
        let mut engine = judge(&mut scene, 700.0);
        assert_eq!(engine.findings().len(), 1);
        disturb(&mut scene);
        scene.play(590.0, |snapshot| engine.observe(snapshot));
        // The first snapshot is a duplicate where only time was changed.
        assert_eq!(engine.findings(), []);
        assert_eq!(engine.resolved().len(), 1);
        // Two more where the first two were taken for strays.
        scene.play(40.0, |snapshot| engine.observe(snapshot));
        assert_eq!(engine.findings().len(), 1);
    }
}

#[test]
fn one_finding_for_a_process_over_all_its_idle_gpus() {
    let mut scene = Scene::new(3, 10.0);
    scene.holder(PID, &[2, 0], 20 * GIB);
    let mut engine = judge(&mut scene, 700.0);
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    let indices: Vec<u32> = finding.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!((indices, finding.memory_bytes), (vec![0, 2], Some(40 * GIB)));
    assert!(finding.message.contains("has held 40.0 GiB on GPUs 0 and 2 without using them for"));
    let id = finding.id.clone();
    assert_eq!(&*id, "idle:GPU-0:4242:424200");

    // It goes to work on one of them: less is at stake, it is not to be ended, the name stays.
    scene.row(0, PID).sm_percent = Some(90);
    engine.observe(scene.step());
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    assert_eq!((&finding.id, finding.memory_bytes), (&id, Some(20 * GIB)));
    assert_eq!(finding.actions, [Action::Notify]);
    assert_eq!(engine.resolved(), []);
}

#[test]
fn instances_of_one_gpu_are_summed() {
    let mut scene = scene();
    let mut second = *scene.row(0, PID);
    scene.row(0, PID).gpu_instance_id = Some(1);
    second.gpu_instance_id = Some(2);
    scene.rows(0).push(second);
    let engine = judge(&mut scene, 700.0);
    let finding = &engine.findings()[0];
    assert_eq!(finding.gpus.len(), 1);
    assert_eq!(finding.gpus[0].used_bytes, Some(40 * GIB));
}

#[test]
fn what_has_ceased_is_kept_in_bounded_number_latest_first() {
    let mut scene = Scene::new(1, 10.0);
    let mut engine = Engine::new(only_idle());
    for round in 0..3 {
        for pid in 1..=100 {
            scene.holder(round * 100 + pid, &[0], GIB);
        }
        scene.play(620.0, |snapshot| engine.observe(snapshot));
        assert_eq!(engine.findings().len(), 100);
        scene.now.processes.clear();
        scene.rows(0).clear();
        engine.observe(scene.step());
    }
    assert_eq!(engine.resolved().len(), 256);
    assert!(engine.resolved().is_sorted_by(|a, b| a.resolved_at >= b.resolved_at));
}

#[test]
fn overrides_apply_where_they_fit_and_the_later_wins() {
    let mut rule = Rule::new(&KIND);
    for (terms, changes) in [
        ("user:ann", "duration = \"2h\""),
        ("user:ann", "min_memory = \"1MiB\""),
        ("gpu:0", "duration = \"1m\""),
        ("gpu:1", "duration = \"1h\""),
    ] {
        rule.overrides.push(Override { scope: scope(terms), changes: changes.parse().unwrap() });
    }
    let process = Process { user: Some("ann".into()), ..Process::default() };
    let row = GpuProcess { pid: process.pid, ..GpuProcess::default() };
    let gpu = Gpu { index: 1, processes: Some(vec![row]), ..Gpu::default() };
    let snapshot = Snapshot { gpus: vec![gpu], ..Snapshot::new(Time::default()) };
    let subject =
        ScopeInput { process: Some(&process), index: 1, held_bytes: None, snapshot: &snapshot };
    let settings = rule.settings_for(&subject).unwrap();
    assert_eq!(settings.duration, seconds(3600));
    assert_eq!(settings.min_memory, Bytes(MIB));
}

#[test]
fn an_override_switches_the_rule_off_for_one_and_on_for_another() {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(1, &[0], GIB);
    scene.holder(2, &[1], GIB);
    for (base, gpu, found) in [(true, 0, 2), (false, 0, 1)] {
        let mut settings = only_idle();
        let idle = settings.rule_mut("idle").unwrap();
        idle.settings.enabled = base;
        let changes = format!("enabled = {}", !base).parse().unwrap();
        idle.overrides.push(Override { scope: scope(&format!("gpu:{gpu}")), changes });
        let engine = judge_with(settings, &mut scene.clone(), 700.0);
        let pids: Vec<u32> =
            engine.findings().iter().map(|finding| finding.process.as_ref().unwrap().pid).collect();
        assert_eq!(pids, [found]);
    }
    let mut settings = only_idle();
    settings.rule_mut("idle").unwrap().set("enabled", &written(false)).unwrap();
    assert_clean(&judge_with(settings, &mut scene, 30.0));
}

#[test]
fn whatever_comes_in_whatever_order_a_finding_is_one_of_its_kind() {
    let mut found = 0;
    for seed in 1..=200 {
        let mut engine = Engine::new(only_idle());
        disorder(seed, 100, |snapshot| {
            engine.observe(snapshot);
            found += engine.findings().len();
            for finding in engine.findings() {
                assert!(finding.resolved_at.is_none());
                assert!(finding.duration_seconds >= 600.0, "{finding:?}");
                assert!(finding.gpus.is_sorted_by(|a, b| a.index < b.index), "{finding:?}");
            }
            let mut ids: Vec<_> = engine.findings().iter().map(|finding| &finding.id).collect();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), engine.findings().len());
        });
    }
    assert!(found > 0, "disorder that never comes to a finding tests nothing");
}

#[test]
fn who_waits_for_a_disk_just_now_is_offered_nothing_that_ends_it() {
    let mut scene = scene();
    let mut engine = judge(&mut scene, 700.0);
    assert!(engine.findings()[0].actions.contains(&Action::Terminate));
    scene.process(PID).state = Some('D');
    engine.observe(scene.step());
    assert_eq!(engine.findings()[0].actions, [Action::Notify]);
}

#[test]
fn around_a_threshold_nothing_flickers() {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], GIB + 10 * MIB);
    let mut engine = judge(&mut scene, 700.0);
    for round in 0..60 {
        scene.row(0, PID).used_bytes = Some(if round % 2 == 0 { GIB - 20 * MIB } else { GIB });
        scene.process(PID).cpu_percent = Some(if round % 2 == 0 { 18.0 } else { 23.0 });
        engine.observe(scene.step());
        assert_eq!(engine.findings().len(), 1, "{round}");
    }
    scene.row(0, PID).used_bytes = Some(700 * MIB);
    engine.observe(scene.step());
    assert_eq!(engine.findings(), []);
}

#[test]
fn use_that_no_process_explains_makes_the_zeros_unknown() {
    let mut used = scene();
    used.gpu(0).gpu_percent = Some(90);
    let engine = judge(&mut used, 700.0);
    assert_eq!(engine.findings(), []);
    let reasons = reasons(&engine);
    assert!(reasons.iter().any(|it| it.contains("GPU 0 was used")), "{reasons:?}");

    // Another's samples explain it.
    let mut shared = scene();
    shared.holder(PID + 1, &[0], GIB / 2);
    shared.gpu(0).gpu_percent = Some(90);
    shared.row(0, PID + 1).sm_percent = Some(90);
    assert_eq!(judge(&mut shared, 700.0).findings().len(), 1);
}

#[test]
fn a_sample_that_came_a_moment_later_than_the_gpus_figure_makes_nothing_unknown() {
    for (every, is_found) in [(20, true), (4, false)] {
        let mut scene = scene();
        let mut engine = Engine::new(only_idle());
        for step in 0..80 {
            scene.gpu(0).gpu_percent = Some(if step % every == 3 { 30 } else { 0 });
            engine.observe(scene.step());
        }
        assert_eq!(engine.findings().len(), usize::from(is_found), "{every}");
    }
    // A compositor's few percent are in no process's samples.
    let mut desktop = scene();
    desktop.holder(PID + 1, &[0], GIB / 2);
    desktop.row(0, PID + 1).kind = ProcessType::Graphics;
    desktop.gpu(0).gpu_percent = Some(4);
    assert_eq!(judge(&mut desktop, 700.0).findings().len(), 1);
}

/// Two hours of a process that keeps a GPU warm by a burst every minute or so, in snapshots of which each
/// saw the driver's last ten seconds of a minute; when it was accused, and what was undecided at the end.
fn kept_warm(seed: u64, sampled_seconds: Option<f64>) -> (Vec<f64>, Vec<String>) {
    let mut dice = Dice::new(seed);
    let period = 45.0 + dice.roll(300) as f64 / 10.0;
    let burst = 0.5 + dice.roll(25) as f64 / 10.0;
    let mut phase = dice.roll(600) as f64 / 10.0;
    let mut scene = scene();
    scene.interval_seconds = 60.0;
    scene.gpu(0).sampled_seconds = sampled_seconds;
    let mut engine = Engine::new(only_idle());
    let mut accused = Vec::new();
    for minute in 0..120 {
        engine.observe(&scene.now);
        if !engine.findings().is_empty() {
            accused.push(f64::from(minute) * 60.0);
        }
        let (mut bursts, mut is_seen) = (0.0, false);
        while phase < 60.0 {
            bursts += burst;
            is_seen |= phase + burst > 50.0;
            phase += period;
        }
        phase -= 60.0;
        scene.process(PID).cpu_percent = Some(0.2 + bursts / 0.6);
        scene.row(0, PID).sm_percent = Some(if is_seen { 70 } else { 0 });
        scene.step();
    }
    (accused, reasons(&engine))
}

#[test]
fn what_the_drivers_samples_do_not_cover_is_no_rest() {
    let mut undecided = 0;
    for seed in 1..=200 {
        for sampled_seconds in [None, Some(10.0)] {
            let (accused, reasons) = kept_warm(seed, sampled_seconds);
            assert_eq!(accused, [0.0; 0], "{seed} {sampled_seconds:?}");
            let of_gaps = |it: &String| it.contains("samples cover");
            undecided += usize::from(reasons.iter().any(of_gaps));
        }
    }
    assert!(undecided > 0);
}

#[test]
fn rest_between_rare_samples_is_known_from_the_driver_or_the_cpu() {
    for (sampled_seconds, cpu_percent, found) in [
        // The driver was asked in between, as gpumem does.
        (Some(60.0), 8.0, 1),
        (Some(50.0), 8.0, 1),
        (Some(40.0), 8.0, 0),
        (Some(10.0), 8.0, 0),
        (Some(f64::NAN), 8.0, 0),
        (None, 8.0, 0),
        // No process did anything.
        (Some(10.0), 0.3, 1),
        (None, 0.3, 1),
    ] {
        let mut scene = scene();
        scene.interval_seconds = 60.0;
        scene.gpu(0).sampled_seconds = sampled_seconds;
        scene.process(PID).cpu_percent = Some(cpu_percent);
        let engine = judge(&mut scene, 3_600.0);
        let of = (sampled_seconds, cpu_percent);
        assert_eq!(engine.findings().len(), found, "{of:?}");
        assert_eq!(engine.undecided().len(), 1 - found, "{of:?}");
    }
    // Nearer snapshots are believed, where they say nothing else.
    let mut scene = scene();
    scene.interval_seconds = 30.0;
    scene.process(PID).cpu_percent = Some(8.0);
    assert_eq!(judge(&mut scene, 3_600.0).findings().len(), 1);
}

/// A notebook's kernel that has rested for an hour and holds 20 GiB.
fn resting_kernel() -> (Scene, Engine) {
    let mut scene = scene();
    let before = scene.now.time.plus_seconds(-3600.0);
    scene.process(PID).jupyter = Some(Arc::new(Jupyter {
        kernel_id: Some("7a1b".into()),
        execution_state: Some("idle".into()),
        last_activity: Some(before),
        ..Jupyter::default()
    }));
    let engine = judge(&mut scene, 700.0);
    assert_eq!(only(&engine, Kind::Idle).memory_bytes, Some(20 * GIB));
    (scene, engine)
}

/// What gpumem's request does to a kernel: its server reports activity, the recipe takes three seconds of CPU,
/// and memory comes back.
fn release(scene: &mut Scene, left: u64) -> AskedRelease {
    let since = scene.now.time.plus_seconds(2.0);
    let until = scene.now.time.plus_seconds(6.0);
    let process = scene.process(PID);
    let kernel = process.jupyter.as_deref().cloned().unwrap();
    let asked = AskedRelease { since, until, last_activity: kernel.last_activity };
    process.jupyter =
        Some(Arc::new(Jupyter { last_activity: Some(since.plus_seconds(1.0)), ..kernel }));
    process.cpu_seconds = process.cpu_seconds.map(|seconds| seconds + 3.0);
    scene.row(0, PID).used_bytes = Some(left);
    asked
}

#[test]
fn a_release_that_gpumem_asked_for_is_no_activity() {
    let (mut scene, mut engine) = resting_kernel();
    let asked = release(&mut scene, 15 * GIB);
    scene.process(PID).asked = Some(Arc::new(asked));
    for _ in 0..30 {
        engine.observe(scene.step());
        let finding = only(&engine, Kind::Idle);
        assert_eq!(finding.memory_bytes, Some(15 * GIB));
        assert!(finding.duration_seconds > 600.0);
    }
    // Without that, it is taken for the process's own work.
    let (mut scene, mut engine) = resting_kernel();
    release(&mut scene, 15 * GIB);
    engine.observe(scene.step());
    assert_eq!(engine.findings(), []);
}

#[test]
fn what_is_left_after_a_release_may_be_too_little_for_the_rule() {
    let (mut scene, mut engine) = resting_kernel();
    let asked = release(&mut scene, GIB / 2);
    scene.process(PID).asked = Some(Arc::new(asked));
    engine.observe(scene.step());
    assert_eq!(engine.findings(), []);
}

#[test]
fn work_after_a_release_is_work() {
    let later = |change: fn(&mut Scene)| {
        let (mut scene, mut engine) = resting_kernel();
        let asked = release(&mut scene, 15 * GIB);
        scene.process(PID).asked = Some(Arc::new(asked));
        for _ in 0..3 {
            engine.observe(scene.step());
        }
        only(&engine, Kind::Idle);
        change(&mut scene);
        engine.observe(scene.step());
        engine.findings().len()
    };
    let moved = |scene: &mut Scene| scene.row(0, PID).used_bytes = Some(14 * GIB);
    let grown = |scene: &mut Scene| scene.row(0, PID).used_bytes = Some(16 * GIB);
    let typed = |scene: &mut Scene| {
        let now = scene.now.time;
        let process = scene.process(PID);
        let kernel = process.jupyter.as_deref().cloned().unwrap();
        process.jupyter = Some(Arc::new(Jupyter { last_activity: Some(now), ..kernel }));
    };
    let used = |scene: &mut Scene| scene.row(0, PID).sm_percent = Some(40);
    for change in [moved, grown, typed, used] {
        assert_eq!(later(change), 0);
    }
    assert_eq!(later(|_| {}), 1);
}
