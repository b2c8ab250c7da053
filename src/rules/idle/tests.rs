use std::sync::Arc;

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::{Action, Evidence, Finding, Severity};
use crate::model::process::{AskedRelease, Descendants, Parent};
use crate::model::snapshot::Jupyter;
use crate::rules::rule::Override;
use crate::rules::testing::{
    Case, Change, Found, Nothing, PID, Unsure, assert_clean, check_cases, count, cpu_unknown,
    engine_with_rule, evidence_json, judge_only, only, reasons, scope, set_executable,
    unidentified, written,
};
use crate::rules::{Engine, RuleSet as AllSettings};
use crate::units::MIB;

const OTHER: u32 = PID + 1;
const NO_USE: &str = "the driver gives no per-process utilization on GPU 0";

/// Returns a scene with two GPUs, sampled every 10 s. `python train.py` holds 20 GiB on GPU 0.
fn scene() -> Scene {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(PID, &[0], 20 * GIB);
    scene
}

fn judge(scene: &mut Scene, seconds: f64) -> Engine {
    judge_only("idle", scene, seconds)
}

fn blind(scene: &mut Scene) {
    let row = scene.row(0, PID);
    (row.sm_percent, row.memory_percent) = (None, None);
}

fn shared(scene: &mut Scene) -> &mut GpuProcess {
    scene.holder(OTHER, &[0], GIB / 2);
    scene.row(0, OTHER)
}

/// Turns the process into a notebook kernel whose server reports `state`, and activity `seconds_ago`.
fn notebook(scene: &mut Scene, state: Option<&str>, seconds_ago: Option<f64>) {
    let now = scene.now.time;
    scene.process(PID).jupyter = Some(Arc::new(Jupyter {
        kernel_id: Some("k".into()),
        notebook_path: Some("a.ipynb".into()),
        execution_state: state.map(Into::into),
        last_activity: seconds_ago.map(|seconds| now.plus_seconds(-seconds)),
        ..Jupyter::default()
    }));
}

#[test]
fn every_condition_is_required() {
    const NO_CPU: &str = "the CPU use of process 4242 is unknown";
    const NO_IDENTITY: &str = "pid 4242 on GPU 0 cannot be matched to a process with certainty";
    let cases: &[Case] = &[
        ("idle", Found, |_| ()),
        ("another process uses the GPU", Found, |scene| {
            shared(scene).sm_percent = Some(100);
            scene.gpu(0).gpu_percent = Some(100);
        }),
        ("unattributed use of the GPU", Unsure("GPU 0 was used"), |scene| {
            scene.gpu(0).gpu_percent = Some(90);
        }),
        ("a compositor uses a few percent", Found, |scene| {
            shared(scene).kind = ProcessType::Graphics;
            scene.gpu(0).gpu_percent = Some(4);
        }),
        ("only device utilization, high power", Unsure(NO_USE), |scene| {
            blind(scene);
            let gpu = scene.gpu(0);
            (gpu.power_limit_watts, gpu.power_watts) = (Some(700.0), Some(430.0));
        }),
        ("only device utilization, low power", Found, |scene| {
            blind(scene);
            let gpu = scene.gpu(0);
            (gpu.power_limit_watts, gpu.power_watts) = (Some(700.0), Some(120.0));
        }),
        ("no utilization is known", Unsure(NO_USE), |scene| {
            blind(scene);
            scene.gpu(0).gpu_percent = None;
        }),
        ("less than the minimum", Nothing, |scene| scene.row(0, PID).used_bytes = Some(GIB - 1)),
        ("exactly the minimum", Found, |scene| scene.row(0, PID).used_bytes = Some(GIB)),
        (
            "memory unknown",
            Unsure("the driver does not report the memory of process 4242 on GPU 0"),
            |scene| scene.row(0, PID).used_bytes = None,
        ),
        ("little CPU", Found, |scene| scene.process(PID).cpu_percent = Some(19.9)),
        ("some CPU", Nothing, |scene| scene.process(PID).cpu_percent = Some(20.0)),
        ("much CPU", Nothing, |scene| scene.process(PID).cpu_percent = Some(400.0)),
        ("CPU unknown", Unsure(NO_CPU), cpu_unknown),
        ("little CPU, with only percentages recorded", Found, |scene| {
            let process = scene.process(PID);
            (process.cpu_percent, process.cpu_seconds) = (Some(5.0), None);
        }),
        ("much CPU, with only percentages recorded", Nothing, |scene| {
            let process = scene.process(PID);
            (process.cpu_percent, process.cpu_seconds) = (Some(50.0), None);
        }),
        ("CPU use of descendants unknown", Unsure(NO_CPU), |scene| {
            scene.process(PID).descendants = descendants(None, &[]);
        }),
        ("active now", Nothing, |scene| notebook(scene, Some("idle"), Some(-300.0))),
        ("active later", Nothing, |scene| notebook(scene, Some("idle"), Some(-9_999.0))),
        ("a cell that has run for long", Nothing, |scene| {
            notebook(scene, Some("busy"), Some(5_000.0));
        }),
        ("a cell runs", Nothing, |scene| notebook(scene, Some("busy"), None)),
        ("an idle notebook", Found, |scene| notebook(scene, Some("idle"), None)),
        ("an idle notebook that was active", Found, |scene| {
            notebook(scene, Some("idle"), Some(0.0));
        }),
        ("a thread spins in an idle notebook", Nothing, |scene| {
            notebook(scene, Some("idle"), Some(9_999.0));
            scene.process(PID).cpu_percent = Some(100.0);
        }),
        ("graphics", Nothing, |scene| scene.row(0, PID).kind = ProcessType::Graphics),
        ("a daemon of MPS", Nothing, |scene| {
            set_executable(scene, "/usr/bin/nvidia-cuda-mps-server");
        }),
        ("a server that listens", Nothing, |scene| served(scene, Some(true))),
        ("a server that may listen", Nothing, |scene| served(scene, None)),
        ("a server's library", Found, |scene| served(scene, Some(false))),
        ("stopped", Nothing, |scene| scene.process(PID).state = Some('T')),
        ("in a debugger", Nothing, |scene| scene.process(PID).state = Some('t')),
        ("a zombie", Nothing, |scene| scene.process(PID).state = Some('Z')),
        ("dead", Nothing, |scene| scene.process(PID).state = Some('X')),
        ("stuck", Nothing, |scene| scene.process(PID).state = Some('D')),
        ("runs", Found, |scene| scene.process(PID).state = Some('R')),
        ("no identity", Unsure(NO_IDENTITY), unidentified),
        ("no process", Unsure(NO_IDENTITY), |scene| scene.now.processes.clear()),
    ];
    check_cases(Kind::Idle, scene, 700.0, cases);
}

fn served(scene: &mut Scene, listening: Option<bool>) {
    let process = scene.process(PID);
    (process.framework, process.listening) = (Some("vllm".into()), listening);
}

#[test]
fn an_idle_process_is_reported_after_the_duration() {
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
        finding.evidence,
        Evidence::new(IdleEvidence {
            sm_percent_max: Some(0),
            gpu_percent_max: None,
            cpu_percent_mean: Some(0.0),
            samples: 61,
            coverage: 1.0,
            last_activity: None,
            busy_seconds: None,
            is_kernel_unknown: false,
        })
    );
    assert_eq!(finding.actions, [Action::Notify, Action::Terminate]);
    assert_eq!(engine.undecided(), []);
}

#[test]
fn a_short_history_is_undecided_unless_the_gpu_was_used() {
    let mut scene = scene();
    let engine = judge(&mut scene, 30.0);
    assert_eq!(reasons(&engine, Kind::Idle), ["decided in 9m 30s (needs 10m of history)"]);

    scene.row(0, PID).sm_percent = Some(40);
    let mut engine = judge(&mut scene, 30.0);
    assert_clean(&engine, Kind::Idle);
    scene.row(0, PID).sm_percent = Some(0);
    scene.play(100.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine, Kind::Idle);

    assert_clean(&judge(&mut Scene::new(1, 10.0), 30.0), Kind::Idle);
}

#[test]
fn allocating_or_freeing_memory_is_work() {
    let mut scene = scene();
    let mut engine = judge(&mut scene, 500.0);
    scene.row(0, PID).used_bytes = Some(20 * GIB + 63 * MIB);
    engine.observe(scene.step());
    scene.row(0, PID).used_bytes = Some(19 * GIB);
    engine.observe(scene.step());
    let moved_at = scene.now.time;
    scene.play(590.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine, Kind::Idle);
    engine.observe(scene.step());
    assert_eq!(engine.findings()[0].since, moved_at);
}

#[test]
fn device_utilization_is_used_without_process_utilization() {
    let mut scene = scene();
    blind(&mut scene);
    let mut engine = judge(&mut scene, 600.0);
    let evidence_json = evidence_json(&engine.findings()[0]);
    assert!(evidence_json["sm_percent_max"].is_null() && evidence_json["gpu_percent_max"] == 0);

    for (percent, why) in [
        (3, "the process that used the GPU is unknown"),
        (0, "the process may have been idle before"),
    ] {
        scene.gpu(0).gpu_percent = Some(percent);
        engine.observe(scene.step());
        assert_eq!(
            (engine.findings(), reasons(&engine, Kind::Idle)),
            (&[][..], vec![NO_USE.to_owned()]),
            "{why}"
        );
    }
}

#[test]
fn cpu_use_before_the_duration_is_ignored() {
    let cases: [(Change, Change); 2] = [
        (
            |scene| scene.process(PID).cpu_percent = Some(800.0),
            |scene| {
                scene.process(PID).cpu_percent = Some(1.0);
            },
        ),
        // The descendants used this CPU time before gpumem first observed the process.
        (|_| (), |scene| scene.process(PID).descendants = descendants(Some(90_000.0), &[])),
    ];
    for (before, after) in cases {
        let mut scene = scene();
        before(&mut scene);
        let mut engine = judge(&mut scene, 3_600.0);
        after(&mut scene);
        scene.play(700.0, |snapshot| engine.observe(snapshot));
        assert_eq!(engine.findings().len(), 1);
    }
}

#[test]
fn a_notebook_is_shut_down_by_its_living_server() {
    use Action::{JupyterShutdown, Notify, Terminate};
    for (alive, actions) in [
        (None, &[Notify, JupyterShutdown, Terminate][..]),
        (Some(true), &[Notify, JupyterShutdown, Terminate]),
        (Some(false), &[Notify, Terminate]),
    ] {
        let mut scene = scene();
        notebook(&mut scene, alive.is_none_or(|is_alive| is_alive).then_some("idle"), Some(0.0));
        Arc::make_mut(scene.process(PID).jupyter.as_mut().unwrap()).server_alive = alive;
        let engine = judge(&mut scene, 700.0);
        let finding = only(&engine, Kind::Idle);
        assert_eq!(finding.actions, actions, "{alive:?}");
        assert!(finding.message.starts_with("notebook a.ipynb (4242)"), "{}", finding.message);
    }
}

#[test]
fn a_kernel_of_unknown_state_is_not_killed() {
    for (application, is_served, severity, actions) in [
        // A server knows the state, but gpumem does not get an answer. The kernel may be waiting for input.
        (Some("jupyter"), true, Severity::Info, &[Action::Notify][..]),
        (Some("jupyterhub"), true, Severity::Info, &[Action::Notify]),
        (Some("voila"), true, Severity::Info, &[Action::Notify]),
        (Some("kernelgateway"), true, Severity::Info, &[Action::Notify]),
        (Some("databricks"), true, Severity::Info, &[Action::Notify]),
        (None, true, Severity::Info, &[Action::Notify]),
        (Some("jupyter"), false, Severity::Info, &[Action::Notify]),
        // There is no server that could know the state, so the finding is a warning, but no action ends the process.
        (Some("vscode"), false, Severity::Warning, &[Action::Notify]),
        (Some("marimo"), false, Severity::Warning, &[Action::Notify]),
        (Some("jupyter-console"), false, Severity::Warning, &[Action::Notify]),
        (Some("spyder"), false, Severity::Warning, &[Action::Notify]),
        (Some("positron"), false, Severity::Warning, &[Action::Notify]),
        (Some("ipykernel"), false, Severity::Warning, &[Action::Notify]),
        // papermill runs the notebook as a batch job, so the kernel is treated like a script.
        (Some("papermill"), false, Severity::Warning, &[Action::Notify, Action::Terminate]),
    ] {
        let mut scene = scene();
        scene.process(PID).jupyter = Some(Arc::new(Jupyter {
            application: application.map(Into::into),
            server_error: is_served.then(|| "it takes a password only".into()),
            server_alive: is_served.then_some(true),
            server_pid: is_served.then_some(50),
            ..Jupyter::default()
        }));
        let engine = judge(&mut scene, 700.0);
        let finding = only(&engine, Kind::Idle);
        assert_eq!((finding.severity, &*finding.actions), (severity, actions), "{application:?}");
        let doubts = finding.evidence.words().contains("kernel state unknown");
        assert_eq!(doubts, severity == Severity::Info, "{finding:?}");
    }
}

#[test]
fn a_desktop_gets_no_finding() {
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
        desktop.parent_is_reaper = Some(true);
        desktop.group_leader_alive = Some(false);
        let mut engine = Engine::new(AllSettings::default());
        let mut bytes = 20 * GIB;
        for _ in 0..400 {
            // Opening windows allocates memory, but less than `leak` reports on a desktop.
            bytes += 8 * MIB;
            scene.row(0, PID).used_bytes = Some(bytes);
            engine.observe(scene.step());
        }
        let is_about_process = |finding: &&Finding| finding.process.is_some();
        assert_eq!(engine.findings().iter().find(is_about_process), None, "{program}");
    }
}

fn descendants(cpu_seconds: Option<f64>, listed: &[u32]) -> Option<Arc<Descendants>> {
    Some(Arc::new(Descendants {
        count: Some(1),
        cpu_percent: None,
        io_bytes: None,
        cpu_seconds,
        listed: listed.to_vec(),
    }))
}

#[test]
fn cpu_use_of_descendants_is_work() {
    // The descendants use a full core, 1 % of a core or, in an old recording, an unknown amount.
    for (percent, found) in [(Some(100.0), 0), (Some(1.0), 1), (None, 1)] {
        let mut scene = scene();
        let mut engine = engine_with_rule("idle");
        let mut used = 50.0;
        for _ in 0..80 {
            used += percent.unwrap_or_default() / 100.0 * 10.0;
            scene.process(PID).descendants = percent.and_then(|_| descendants(Some(used), &[]));
            engine.observe(scene.step());
        }
        let findings = engine.findings();
        assert_eq!(findings.len(), found, "{percent:?}");
        if let (Some(percent), Some(finding)) = (percent, findings.first()) {
            let mean = evidence_json(finding)["cpu_percent_mean"].as_f64().unwrap();
            assert!((mean - percent).abs() < 0.01, "{mean}");
        }
    }
}

#[test]
fn a_process_whose_child_uses_a_gpu_is_not_idle() {
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
fn placeholders_and_restarted_workers_are_not_terminated() {
    for (command, parent) in [
        ("python -m keep_gpu.cli", "bash"),
        ("ray::IDLE", "raylet"),
        ("ray::Trainer.step", "raylet"),
        ("python celery -A t worker", "python celery -A t worker"),
        ("python celery -A t worker", "bash"),
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
        assert_eq!(only(&engine, Kind::Idle).actions, [Action::Notify], "{command}");
    }
}

#[test]
fn a_process_title_alone_does_not_protect() {
    for title in ["ray::IDLE", "VLLM::EngineCore", "dask worker [tcp://127.0.0.1:4]"] {
        let mut scene = scene();
        let process = scene.process(PID);
        process.command = Some([title.into()].into());
        (process.ppid, process.parent_is_reaper) = (Some(9), Some(false));
        let command = Some(["bash".into()].into());
        process.parent = Some(Arc::new(Parent { pid: 9, command, ..Parent::default() }));
        let engine = judge(&mut scene, 700.0);
        let actions = &only(&engine, Kind::Idle).actions;
        assert!(actions.contains(&Action::Terminate), "{title}: {actions:?}");
    }
}

#[test]
fn a_process_in_disk_sleep_is_not_terminated() {
    let mut scene = scene();
    let mut engine = judge(&mut scene, 700.0);
    assert!(engine.findings()[0].actions.contains(&Action::Terminate));
    scene.process(PID).state = Some('D');
    engine.observe(scene.step());
    assert_eq!(engine.findings()[0].actions, [Action::Notify]);
}

#[test]
fn stopped_time_does_not_count_as_idle() {
    let mut scene = scene();
    scene.process(PID).state = Some('T');
    let mut engine = judge(&mut scene, 3_000.0);
    scene.process(PID).state = Some('S');
    let resumed = scene.now.time.plus_seconds(10.0);
    scene.play(590.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine, Kind::Idle);
    scene.play(20.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings()[0].since, resumed);
}

#[test]
fn findings_on_an_unresponsive_gpu_stay_for_a_while() {
    let mut scene = scene();
    let mut engine = judge(&mut scene, 700.0);
    scene.gpu(0).stale_seconds = Some(12.0);
    engine.observe(scene.step());
    assert_eq!(engine.findings().len(), 1);
    assert_eq!(reasons(&engine, Kind::Idle)[0], "GPU 0 has not answered for 12s");
    scene.gpu(0).stale_seconds = None;
    scene.gpu(0).processes = None;
    scene.now.processes.clear();
    engine.observe(scene.step());
    assert_eq!(engine.findings().len(), 1, "the process may still be there");
    assert_eq!(reasons(&engine, Kind::Idle), ["the process list of GPU 0 could not be read"]);
    scene.play(700.0, |snapshot| engine.observe(snapshot));
    assert_eq!((engine.findings().len(), engine.resolved().len()), (0, 1));
}

#[test]
fn sparse_samples_are_undecided() {
    let mut scene = scene();
    scene.process(PID).cpu_percent = Some(10.0);
    scene.gpu(0).gpu_percent = None;
    let mut engine = engine_with_rule("idle");
    for sample in 0..100 {
        scene.row(0, PID).sm_percent = (sample % 3 == 0).then_some(0);
        engine.observe(scene.step());
    }
    assert_eq!(engine.findings(), []);
    assert_eq!(
        reasons(&engine, Kind::Idle),
        ["34 samples cover 33 % of the time on GPU 0, 75 % and 3 samples are needed"]
    );
}

#[test]
fn gaps_suspends_and_pid_reuse_restart_the_duration() {
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
        // If `disturb` set the clock back, the history skips snapshots until the clock has caught up.
        assert_eq!(engine.findings(), []);
        assert_eq!(engine.resolved().len(), 1);
        // Four more samples, in case the history skipped the first ones.
        scene.play(40.0, |snapshot| engine.observe(snapshot));
        assert_eq!(engine.findings().len(), 1);
    }
}

#[test]
fn one_finding_covers_all_idle_gpus_of_a_process() {
    let mut scene = Scene::new(3, 10.0);
    scene.holder(PID, &[2, 0], 20 * GIB);
    let mut second = *scene.row(2, PID);
    scene.row(2, PID).gpu_instance_id = Some(1);
    second.gpu_instance_id = Some(2);
    scene.rows(2).push(second);
    let mut engine = judge(&mut scene, 700.0);
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    let held: Vec<_> = finding.gpus.iter().map(|gpu| (gpu.index, gpu.used_bytes)).collect();
    assert_eq!(held, [(0, Some(20 * GIB)), (2, Some(40 * GIB))]);
    assert_eq!(finding.memory_bytes, Some(60 * GIB));
    let id = finding.id.clone();
    assert_eq!(&*id, "idle:GPU-0:4242:424200");

    // When the process works on one GPU again, the finding covers less memory and no action ends the process, but the
    // id stays.
    scene.row(0, PID).sm_percent = Some(90);
    engine.observe(scene.step());
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    assert_eq!((&finding.id, finding.memory_bytes), (&id, Some(40 * GIB)));
    assert_eq!(finding.actions, [Action::Notify]);
    assert_eq!(engine.resolved(), []);
}

#[test]
fn resolved_findings_are_limited_and_sorted() {
    let mut scene = Scene::new(1, 10.0);
    let mut engine = engine_with_rule("idle");
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
fn an_override_enables_or_disables_the_rule_by_scope() {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(1, &[0], GIB);
    scene.holder(2, &[1], GIB);
    for (base, terms, found) in
        [(true, "gpu:0", &[2][..]), (false, "gpu:0", &[1]), (false, "gpu:7", &[])]
    {
        let mut settings = AllSettings::default();
        settings.select(&["idle"]).unwrap();
        let idle = settings.rule_mut("idle").unwrap();
        idle.set("enabled", &written(base)).unwrap();
        let changes = format!("enabled = {}", !base).parse().unwrap();
        idle.overrides.push(Override { scope: scope(terms), changes });
        let mut engine = Engine::new(settings);
        scene.clone().play(700.0, |snapshot| engine.observe(snapshot));
        let pids = engine.findings().iter().map(|finding| finding.process.as_ref().unwrap().pid);
        assert_eq!(pids.collect::<Vec<_>>(), found, "{base} {terms}");
        assert_eq!(reasons(&engine, Kind::Idle), [""; 0]);
    }
}

#[test]
fn rare_unattributed_device_use_is_tolerated() {
    for (every, is_found) in [(20, true), (4, false)] {
        let mut scene = scene();
        let mut engine = engine_with_rule("idle");
        for step in 0..80 {
            scene.gpu(0).gpu_percent = Some(if step % every == 3 { 30 } else { 0 });
            engine.observe(scene.step());
        }
        assert_eq!(engine.findings().len(), usize::from(is_found), "{every}");
    }
}

#[test]
fn rare_snapshots_need_driver_samples_or_low_cpu_use() {
    for (sampled_seconds, cpu_percent, found) in [
        // The driver's samples cover the time between snapshots.
        (Some(60.0), 8.0, 1),
        (Some(50.0), 8.0, 1),
        (Some(40.0), 8.0, 0),
        (Some(10.0), 8.0, 0),
        (Some(f64::NAN), 8.0, 0),
        (None, 8.0, 0),
        // The CPU use is too low for work on the GPU.
        (Some(10.0), 0.3, 1),
        (None, 0.3, 1),
    ] {
        let mut scene = scene();
        scene.interval_seconds = 60.0;
        scene.gpu(0).sampled_seconds = sampled_seconds;
        scene.process(PID).cpu_percent = Some(cpu_percent);
        let engine = judge(&mut scene, 3_600.0);
        let case = (sampled_seconds, cpu_percent);
        assert_eq!(engine.findings().len(), found, "{case:?}");
        assert_eq!(engine.undecided().len(), 1 - found, "{case:?}");
    }
    // At intervals of 30 s, driver samples between snapshots are not needed.
    let mut scene = scene();
    scene.interval_seconds = 30.0;
    scene.process(PID).cpu_percent = Some(8.0);
    assert_eq!(judge(&mut scene, 3_600.0).findings().len(), 1);
}

fn resting_kernel() -> (Scene, Engine) {
    let mut scene = scene();
    notebook(&mut scene, Some("idle"), Some(3600.0));
    let engine = judge(&mut scene, 700.0);
    assert_eq!(only(&engine, Kind::Idle).memory_bytes, Some(20 * GIB));
    (scene, engine)
}

/// Simulates a release that leaves `left` bytes: the server reports activity, and the kernel uses three seconds of
/// CPU time and frees GPU memory.
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
fn a_release_by_gpumem_is_not_activity() {
    let cases: [(&str, Change); 4] = [
        ("memory is freed", |scene| scene.row(0, PID).used_bytes = Some(14 * GIB)),
        ("memory is allocated", |scene| scene.row(0, PID).used_bytes = Some(16 * GIB)),
        ("the user is active again", |scene| {
            let now = scene.now.time;
            Arc::make_mut(scene.process(PID).jupyter.as_mut().unwrap()).last_activity = Some(now);
        }),
        ("the GPU is used", |scene| scene.row(0, PID).sm_percent = Some(40)),
    ];
    for (case, change) in cases {
        let (mut scene, mut engine) = resting_kernel();
        let asked = release(&mut scene, 15 * GIB);
        scene.process(PID).asked = Some(Arc::new(asked));
        for _ in 0..30 {
            engine.observe(scene.step());
            let finding = only(&engine, Kind::Idle);
            assert_eq!(finding.memory_bytes, Some(15 * GIB));
            assert!(finding.duration_seconds > 600.0);
        }
        change(&mut scene);
        engine.observe(scene.step());
        assert_eq!(engine.findings(), [], "{case}");
    }
    // If gpumem did not cause the activity, the kernel has resumed work, so the finding ends. The finding also ends if
    // little memory remains.
    for (left, is_asked) in [(15 * GIB, false), (GIB / 2, true)] {
        let (mut scene, mut engine) = resting_kernel();
        let asked = release(&mut scene, left);
        scene.process(PID).asked = is_asked.then(|| Arc::new(asked));
        engine.observe(scene.step());
        assert_eq!(engine.findings(), [], "{left}");
    }
}

#[test]
fn current_cpu_use_overrides_a_low_mean() {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], 8 * GIB);
    let mut engine = judge(&mut scene, 1_200.0);
    assert_eq!(count(&engine, Kind::Idle), 1);
    // The process uses a full core for a minute, which is a tenth of the rule's duration.
    scene.process(PID).cpu_percent = Some(100.0);
    scene.play(60.0, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::Idle), 0, "it works");
    scene.process(PID).cpu_percent = Some(0.0);
    scene.play(120.0, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::Idle), 1, "work for a tenth of the time is below the mean");
}

#[test]
fn a_short_duration_does_not_flicker() {
    for (duration, interval) in [(2, 0.25), (2, 0.5), (5, 1.0), (10, 1.0), (15, 2.0), (31, 5.0)] {
        let mut settings = AllSettings::default();
        let idle = settings.rule_mut("idle").unwrap();
        idle.set("duration", &written(format!("{duration}s"))).unwrap();
        let mut engine = Engine::new(settings);
        let mut scene = Scene::new(1, interval);
        scene.holder(PID, &[0], 8 * GIB);
        let mut began = 0;
        let mut was_found = false;
        scene.play(200.0, |snapshot| {
            engine.observe(snapshot);
            let is_found = count(&engine, Kind::Idle) == 1;
            began += usize::from(is_found && !was_found);
            was_found = is_found;
        });
        assert!(began == 1 && was_found, "{duration} s every {interval} s: began {began} times");
    }
}

#[test]
fn waiting_for_a_cpu_is_work() {
    for (waits, found) in [(0.0, 1), (0.1, 1), (0.6, 0)] {
        let mut scene = Scene::new(1, 10.0);
        scene.holder(PID, &[0], 8 * GIB);
        scene.process(PID).cpu_percent = Some(5.0);
        let mut engine = judge(&mut scene, 10.0);
        for sample in 1..120 {
            // The wait time accumulated before the first sample must not matter.
            scene.process(PID).cpu_wait_seconds = Some(9_000.0 + f64::from(sample) * 10.0 * waits);
            engine.observe(scene.step());
        }
        assert_eq!(count(&engine, Kind::Idle), found, "{waits}");
    }
}

#[test]
fn io_is_work() {
    for (bytes_a_second, found) in [(0, 1), (100_000, 1), (5_000_000, 0)] {
        let mut scene = Scene::new(1, 10.0);
        scene.holder(PID, &[0], 8 * GIB);
        scene.process(PID).io_bytes = Some(0);
        let mut engine = judge(&mut scene, 10.0);
        for sample in 1..120_u64 {
            // I/O counters are read only twice a minute.
            scene.process(PID).io_bytes = Some(sample / 3 * 30 * bytes_a_second);
            engine.observe(scene.step());
        }
        assert_eq!(count(&engine, Kind::Idle), found, "{bytes_a_second}");
    }
}

fn worker(scene: &mut Scene, pid: u32, group: u32, bytes: u64) {
    scene.holder(pid, &[0], bytes);
    let process = scene.process(pid);
    (process.process_group, process.uid) = (Some(group), Some(1000));
}

#[test]
fn small_workers_are_judged_by_their_jobs_memory() {
    let workers = |bytes: u64| {
        let mut scene = Scene::new(2, 10.0);
        (0..4).for_each(|index| worker(&mut scene, PID + index, PID, bytes));
        scene
    };
    assert_eq!(count(&judge(&mut workers(386 * MIB), 700.0), Kind::Idle), 4);
    assert_clean(&judge(&mut workers(200 * MIB), 700.0), Kind::Idle);
    // Memory of unrelated processes is not added to that of the job, nor is memory on other GPUs.
    let mut strangers = workers(386 * MIB);
    (0..4).for_each(|index| strangers.process(PID + index).process_group = Some(PID + index));
    assert_clean(&judge(&mut strangers, 700.0), Kind::Idle);
    let mut spread = workers(386 * MIB);
    let moved: Vec<GpuProcess> = spread.rows(0).drain(2..).collect();
    spread.rows(1).extend(moved);
    assert_clean(&judge(&mut spread, 700.0), Kind::Idle);
    // If one process of the job works, the other processes are not idle either.
    let mut at_work = workers(386 * MIB);
    at_work.row(0, PID + 3).sm_percent = Some(40);
    let mut engine = engine_with_rule("idle");
    at_work.play(700.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine, Kind::Idle);
    at_work.row(0, PID + 3).sm_percent = Some(0);
    at_work.play(500.0, |snapshot| engine.observe(snapshot));
    assert_clean(&engine, Kind::Idle);
    at_work.play(200.0, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::Idle), 4);
}

#[test]
fn an_unattributed_busy_video_engine_is_undecided() {
    const UNEXPLAINED: &str = "GPU 0 was used";
    let cases: &[Case] = &[
        ("no engine is busy", Found, |scene| scene.gpu(0).decoder_percent = Some(0)),
        ("not known", Found, |scene| scene.gpu(0).decoder_percent = None),
        ("decoder", Unsure(UNEXPLAINED), |scene| scene.gpu(0).decoder_percent = Some(35)),
        ("encoder", Unsure(UNEXPLAINED), |scene| scene.gpu(0).encoder_percent = Some(1)),
        ("JPEG", Unsure(UNEXPLAINED), |scene| scene.gpu(0).jpeg_percent = Some(9)),
        ("optical flow", Unsure(UNEXPLAINED), |scene| scene.gpu(0).optical_flow_percent = Some(9)),
        ("another process decodes", Found, |scene| {
            scene.gpu(0).decoder_percent = Some(35);
            shared(scene).decoder_percent = Some(35);
        }),
        ("another process computes and may decode", Unsure(UNEXPLAINED), |scene| {
            scene.gpu(0).decoder_percent = Some(35);
            shared(scene).sm_percent = Some(60);
        }),
        ("another process computes and may read JPEGs", Found, |scene| {
            scene.gpu(0).jpeg_percent = Some(35);
            shared(scene).sm_percent = Some(60);
        }),
    ];
    check_cases(Kind::Idle, scene, 700.0, cases);
}

#[test]
fn a_new_process_has_longer_to_use_its_gpu() {
    let started = |scene: &mut Scene, seconds_ago: f64| {
        scene.process(PID).start_time = Some(scene.now.time.plus_seconds(-seconds_ago));
    };
    // For half an hour after its start, the process may still be preparing.
    let mut young = scene();
    started(&mut young, 30.0);
    assert_eq!(count(&judge(&mut young, 1790.0), Kind::Idle), 0);
    let mut engine = engine_with_rule("idle");
    let mut never = scene();
    started(&mut never, 30.0);
    never.play(1810.0, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::Idle), 1);
    // This process started before the history began, so it may already have worked.
    let mut old = scene();
    started(&mut old, 130.0);
    assert_eq!(count(&judge(&mut old, 610.0), Kind::Idle), 1);
    // A process that has used the GPU gets no extra time to prepare.
    let mut used = scene();
    started(&mut used, 0.0);
    used.row(0, PID).sm_percent = Some(50);
    let mut engine = engine_with_rule("idle");
    used.play(60.0, |snapshot| engine.observe(snapshot));
    used.row(0, PID).sm_percent = Some(0);
    used.play(700.0, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::Idle), 1);
}

#[test]
fn a_process_that_resumed_twice_is_info_until_three_pauses() {
    let mut scene = scene();
    let mut engine = engine_with_rule("idle");
    for resumed in 0..4 {
        scene.row(0, PID).sm_percent = Some(50);
        scene.play(60.0, |snapshot| engine.observe(snapshot));
        scene.row(0, PID).sm_percent = Some(0);
        scene.step();
        scene.play(1100.0, |snapshot| engine.observe(snapshot));
        // Before the first pause ends, there is no earlier pause to compare with.
        assert_eq!(count(&engine, Kind::Idle), usize::from(resumed == 0), "{resumed}");
    }
    scene.play(800.0, |snapshot| engine.observe(snapshot));
    let mentioned = only(&engine, Kind::Idle);
    assert_eq!(
        (mentioned.severity, &mentioned.actions[..]),
        (Severity::Info, &[Action::Notify][..])
    );
    assert!(
        mentioned.message.contains("it has resumed work after pauses of up to 18m"),
        "{mentioned:?}"
    );
    scene.play(1600.0, |snapshot| engine.observe(snapshot));
    let idle = only(&engine, Kind::Idle);
    assert_eq!(idle.severity, Severity::Warning);
    assert!(idle.actions.contains(&Action::Terminate));
}

fn server() -> Scene {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], 60 * GIB);
    scene.process(PID).command = Some(["vllm".into(), "serve".into(), "x".into()].into());
    served(&mut scene, Some(true));
    scene
}

#[test]
fn a_waiting_server_is_reported_without_terminate() {
    let mut scene = server();
    let mut engine = Engine::new(AllSettings::default());
    scene.play(590.0, |snapshot| engine.observe(snapshot));
    assert_eq!(engine.findings(), []);
    engine.observe(scene.step());
    let finding = only(&engine, Kind::ServerIdle);
    assert_eq!(finding.severity, Severity::Info);
    assert_eq!(&*finding.id, "server-idle:GPU-0:4242:424200");
    assert_eq!(finding.actions, [Action::Notify]);
    assert_eq!(engine.findings().len(), 1);
    assert_eq!(reasons(&engine, Kind::ServerIdle), [""; 0]);
}

#[test]
fn a_server_with_activity_is_not_idle() {
    let cases: &[Case] = &[
        ("used", Nothing, |scene| scene.row(0, PID).sm_percent = Some(1)),
        ("works on the CPU", Nothing, |scene| scene.process(PID).cpu_percent = Some(80.0)),
        ("stopped", Nothing, |scene| scene.process(PID).state = Some('T')),
        ("little memory", Nothing, |scene| scene.row(0, PID).used_bytes = Some(GIB - 1)),
        // A process that does not listen is not a server, so `idle` judges it.
        ("listens on nothing", Nothing, |scene| scene.process(PID).listening = Some(false)),
    ];
    check_cases(Kind::ServerIdle, server, 700.0, cases);
}
