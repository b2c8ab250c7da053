use std::sync::Arc;

use super::*;
use crate::history::testing::Scene;
use crate::model::GpuProcess;
use crate::model::finding::Severity;
use crate::model::snapshot::{Jupyter, MigDevice};
use crate::rules::Engine;
use crate::rules::testing::{
    Case, Expected, Found, Nothing, PID, Unsure, assert_clean, check_cases, count, cpu_unknown,
    evidence_json, judge, only, reasons, set_executable, unidentified,
};
use crate::units::{GIB, MIB};

/// Returns a scene, sampled every 10 s, with a worker that a reaper has adopted and that holds 2 GiB on GPU 0.
fn orphan() -> Scene {
    let mut scene = Scene::new(2, 10.0);
    scene.now.host.pid_namespace = Some(PidNamespace::Host);
    scene.orphan(PID, &[0], 2 * GIB);
    scene
}

/// Plays a minute in which the worker's job is alive, ends the job, and plays `seconds` more.
fn orphaned(seconds: f64) -> (Scene, Engine) {
    let mut scene = orphan();
    let process = scene.process(PID);
    (process.parent_is_reaper, process.group_leader_alive) = (Some(false), Some(true));
    let mut engine = judge(&mut scene, 60.0);
    let process = scene.process(PID);
    (process.parent_is_reaper, process.group_leader_alive) = (Some(true), Some(false));
    scene.step();
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    (scene, engine)
}

/// Returns a scene with a worker that NVML does not list. The worker has the device file of GPU 0 open, where about
/// 10 GiB are unattributed.
fn hidden() -> Scene {
    let mut scene = orphan();
    scene.rows(0).clear();
    scene.gpu(0).minor_number = Some(5);
    scene.memory(0, 10 * GIB, 80 * GIB);
    scene.gpu(0).memory.as_mut().unwrap().reserved_bytes = Some(600 * MIB);
    let files = ["/dev/nvidiactl".into(), "/dev/nvidia-uvm".into(), "/dev/nvidia5".into()];
    scene.process(PID).gpu_files = Some(files.into());
    scene
}

#[test]
fn an_orphan_is_reported_after_the_duration() {
    let (mut scene, mut engine) = orphaned(110.0);
    assert_clean(&engine, Kind::Orphan);
    let pending = engine.pending().iter().find(|pending| pending.kind == Kind::Orphan);
    assert_eq!(pending.unwrap().pid, Some(PID));
    let since = scene.now.time.plus_seconds(-110.0);
    engine.observe(scene.step());
    let finding = only(&engine, Kind::Orphan);
    assert_eq!(&*finding.id, "orphan:GPU-0:4242:424200");
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!((finding.since, finding.duration_seconds), (since, 120.0));
    assert_eq!(finding.memory_bytes, Some(2 * GIB));
    assert_eq!(
        finding.evidence,
        Evidence::new(OrphanEvidence {
            ppid: Some(1),
            process_group: Some(4241),
            starter_gone: false,
            session_leader_alive: Some(false),
            unused_seconds: 190.0,
            cpu_percent_mean: Some(0.0),
            samples: 13,
            listed: true,
            gpu_files: None,
        })
    );
    assert_eq!(finding.actions, [Action::Notify, Action::Terminate]);
    assert!(finding.advice[0].contains("pgrep -a -g 4241"));
    assert_eq!(reasons(&engine, Kind::Orphan), [""; 0]);
}

fn unit(scene: &mut Scene, name: &str) {
    scene.process(PID).systemd_unit = Some(name.into());
}

fn abandoned(scene: &mut Scene) {
    kernel(scene, |kernel| kernel.server_alive = Some(false));
    scene.process(PID).group_leader_alive = Some(true);
}

/// Returns a scene with a `multiprocessing` worker whose starter has exited, while the leader of the process group is
/// alive.
fn of_a_sweep() -> Scene {
    let mut scene = orphan();
    let code = "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7)";
    let command = ["python3", "-c", code, "--multiprocessing-fork"].map(Arc::from);
    let process = scene.process(PID);
    (process.command, process.group_leader_alive) = (Some(command.into()), Some(true));
    scene
}

#[test]
fn a_spawned_worker_is_an_orphan_once_its_starter_exits() {
    let cases: &[Case] = &[
        ("its starter has exited", Found, |_| ()),
        ("its starter is alive", Nothing, |scene| {
            scene.process(PID).parent_is_reaper = Some(false);
        }),
        ("unknown", Nothing, |scene| scene.process(PID).parent_is_reaper = None),
        ("in its own group", Nothing, |scene| scene.process(PID).process_group = Some(PID)),
        ("first in a container", Nothing, |scene| scene.process(PID).process_group = Some(1)),
        ("working", Nothing, |scene| scene.row(0, PID).sm_percent = Some(1)),
        ("forked, not spawned", Nothing, |scene| {
            scene.process(PID).command = Some(["python3".into(), "train.py".into()].into());
        }),
        ("another program's code", Nothing, |scene| {
            let code = "import multiprocessing.spawn; serve()";
            scene.process(PID).command = Some(["python3", "-c", code].map(Arc::from).into());
        }),
    ];
    check_cases(Kind::Orphan, of_a_sweep, 200.0, cases);
    let engine = judge(&mut of_a_sweep(), 200.0);
    let finding = only(&engine, Kind::Orphan);
    assert!(finding.message.contains("outlived the program that started it"), "{finding:?}");
    assert!(!finding.advice.iter().any(|line| line.contains("pgrep")), "its group is working");
}

#[test]
fn every_condition_is_required() {
    const NO_JOB: Expected = Unsure("it is unknown whether process 4242 outlived its job");
    const NO_USE: Expected = Unsure("the driver gives no per-process utilization on GPU 0");
    let cases: &[Case] = &[
        ("memory unknown", Found, |scene| scene.row(0, PID).used_bytes = None),
        ("no memory", Found, |scene| scene.row(0, PID).used_bytes = Some(0)),
        ("a parent", Nothing, |scene| scene.process(PID).parent_is_reaper = Some(false)),
        ("a leader", Nothing, |scene| scene.process(PID).group_leader_alive = Some(true)),
        ("uses the GPU", Nothing, |scene| scene.row(0, PID).sm_percent = Some(1)),
        ("copies", Nothing, |scene| scene.row(0, PID).memory_percent = Some(1)),
        ("encodes", Nothing, |scene| scene.row(0, PID).encoder_percent = Some(1)),
        ("may encode", NO_USE, |scene| scene.gpu(0).encoder_percent = Some(1)),
        ("some CPU", Nothing, |scene| scene.process(PID).cpu_percent = Some(20.0)),
        ("much CPU", Nothing, |scene| scene.process(PID).cpu_percent = Some(150.0)),
        ("on no GPU", Nothing, |scene| scene.rows(0).clear()),
        ("graphics", Nothing, |scene| scene.row(0, PID).kind = ProcessType::Graphics),
        ("no identity", Nothing, unidentified),
        ("the driver's daemon", Nothing, |scene| {
            set_executable(scene, "/usr/bin/nvidia-persistenced");
        }),
        ("a daemon of MPS", Nothing, |scene| {
            set_executable(scene, "/usr/bin/nvidia-cuda-mps-server");
        }),
        ("a desktop", Nothing, |scene| set_executable(scene, "/usr/lib/xorg/Xorg")),
        ("a service", Nothing, |scene| unit(scene, "inference.service")),
        ("a service of the boot", Nothing, |scene| unit(scene, "rc-local.service")),
        ("a server that listens", Nothing, |scene| {
            let process = scene.process(PID);
            (process.framework, process.listening) = (Some("vllm".into()), Some(true));
        }),
        ("a zombie", Nothing, |scene| scene.process(PID).state = Some('Z')),
        ("in a debugger", Nothing, |scene| scene.process(PID).state = Some('t')),
        ("a cell runs", Nothing, |scene| {
            kernel(scene, |kernel| kernel.execution_state = Some("busy".into()));
        }),
        ("a browser is open", Nothing, |scene| {
            kernel(scene, |kernel| kernel.connections = Some(1));
        }),
        ("a notebook in use", Nothing, |scene| {
            let soon = scene.now.time.plus_seconds(350.0);
            kernel(scene, |kernel| kernel.last_activity = Some(soon));
        }),
        ("in a user's manager", Found, |scene| unit(scene, "user@1000.service")),
        ("in a login", Found, |scene| unit(scene, "session-3.scope")),
        ("started by Slurm", Found, |scene| unit(scene, "slurmd.service")),
        ("started by a runner", Found, |scene| unit(scene, "gitlab-runner.service")),
        ("started by cron", Found, |scene| unit(scene, "cron.service")),
        ("started by a hub", Found, |scene| unit(scene, "jupyterhub.service")),
        ("a kernel", Found, |scene| kernel(scene, |_| ())),
        ("a kernel without its server is no daemon", Found, |scene| {
            abandoned(scene);
            unit(scene, "lab.service");
        }),
        ("a kernel without its server uses the GPU", Nothing, |scene| {
            abandoned(scene);
            scene.row(0, PID).sm_percent = Some(5);
        }),
        ("a kernel without its server computes", Nothing, |scene| {
            abandoned(scene);
            scene.process(PID).cpu_percent = Some(100.0);
        }),
        ("neither parent nor leader known", Nothing, |scene| {
            let process = scene.process(PID);
            (process.parent_is_reaper, process.group_leader_alive) = (None, None);
        }),
        ("leader unknown", NO_JOB, |scene| scene.process(PID).group_leader_alive = None),
        ("parent unknown", NO_JOB, |scene| scene.process(PID).parent_is_reaper = None),
        ("CPU unknown", Unsure("the CPU use of process 4242 is unknown"), cpu_unknown),
        ("only device utilization, used", NO_USE, |scene| {
            scene.row(0, PID).sm_percent = None;
            scene.gpu(0).gpu_percent = Some(40);
        }),
        ("no utilization is known", NO_USE, |scene| {
            scene.row(0, PID).sm_percent = None;
            scene.gpu(0).gpu_percent = None;
        }),
        ("only device utilization, unused", Found, |scene| scene.row(0, PID).sm_percent = None),
    ];
    check_cases(Kind::Orphan, orphan, 400.0, cases);
}

#[test]
fn a_process_that_works_on_another_gpu_is_not_an_orphan() {
    let mut scene = Scene::new(2, 10.0);
    scene.orphan(PID, &[0, 1], GIB);
    scene.row(1, PID).sm_percent = Some(50);
    assert_clean(&judge(&mut scene, 400.0), Kind::Orphan);
    scene.row(1, PID).sm_percent = Some(0);
    let engine = judge(&mut scene, 400.0);
    assert_eq!(only(&engine, Kind::Orphan).memory_bytes, Some(2 * GIB));
}

#[test]
fn a_unit_exempts_only_its_present_daemon() {
    for (main_start, main_session, found) in [
        // The main process is younger than this process, so it cannot have started this process.
        (900_000, 50, 1),
        // The main process may have started this process.
        (1_000, 50, 0),
        // The unit has no recognizable main process, so this process may be the main process.
        (900_000, 49, 0),
    ] {
        let mut scene = orphan();
        scene.holder(50, &[1], GIB);
        let unit = || Some("train.service".into());
        let main = scene.process(50);
        (main.systemd_unit, main.start_ticks) = (unit(), Some(main_start));
        (main.process_group, main.session) = (Some(main_session), Some(main_session));
        main.parent_is_reaper = Some(true);
        scene.process(PID).systemd_unit = unit();
        let engine = judge(&mut scene, 400.0);
        assert_eq!(count(&engine, Kind::Orphan), found, "{main_start} {main_session}");
    }
}

fn kernel(scene: &mut Scene, change: impl Fn(&mut Jupyter)) {
    let mut jupyter = Jupyter::default();
    change(&mut jupyter);
    scene.process(PID).jupyter = Some(Arc::new(jupyter));
}

#[test]
fn a_kernel_without_its_server_is_an_orphan() {
    for (server_alive, parent_is_reaper, found) in [
        (Some(false), Some(true), 1),
        // The shell from which the kernel was started is still alive.
        (Some(false), Some(false), 1),
        (None, Some(true), 0),
        (Some(true), Some(true), 0),
    ] {
        let mut scene = orphan();
        kernel(&mut scene, |jupyter| {
            jupyter.server_alive = server_alive;
            jupyter.notebook_path = Some("/home/ann/a.ipynb".into());
        });
        scene.process(PID).group_leader_alive = Some(true);
        scene.process(PID).parent_is_reaper = parent_is_reaper;
        let engine = judge(&mut scene, 400.0);
        assert_eq!(count(&engine, Kind::Orphan), found, "{server_alive:?}");
        if found == 1 {
            let finding = only(&engine, Kind::Orphan);
            let evidence_json = evidence_json(finding);
            assert!(
                evidence_json["process_group"].is_null() && evidence_json["starter_gone"] == true
            );
            let adopted = (parent_is_reaper == Some(true)).then_some(1);
            assert_eq!(evidence_json["ppid"].as_u64(), adopted);
            assert!(finding.advice.concat().contains("`gpumem kill 4242`"), "{:?}", finding.advice);
        } else {
            assert_clean(&engine, Kind::Orphan);
        }
    }
}

#[test]
fn a_stuck_process_is_not_an_orphan() {
    let (mut scene, mut engine) = orphaned(130.0);
    scene.process(PID).state = Some('D');
    engine.observe(scene.step());
    assert_eq!(count(&engine, Kind::Orphan), 1);
    scene.play(130.0, |snapshot| engine.observe(snapshot));
    assert_eq!(count(&engine, Kind::Orphan), 0);
    assert_eq!(engine.findings()[0].kind, Kind::Stuck);
}

#[test]
fn a_stopped_orphan_gets_one_finding_without_terminate() {
    let mut scene = orphan();
    scene.process(PID).state = Some('T');
    let engine = judge(&mut scene, 700.0);
    let finding = only(&engine, Kind::Orphan);
    assert_eq!(engine.findings().len(), 1);
    let also: Vec<Kind> = finding.also.iter().map(|also| also.kind).collect();
    assert_eq!(also, [Kind::Stopped]);
    assert_eq!(finding.actions, [Action::Notify]);
}

#[test]
fn an_interrupted_condition_restarts_the_duration() {
    for change in [
        (|scene| scene.process(PID).parent_is_reaper = Some(false)) as fn(&mut Scene),
        |scene| scene.process(PID).group_leader_alive = Some(true),
        |scene| scene.row(0, PID).sm_percent = Some(5),
    ] {
        let (mut scene, mut engine) = orphaned(300.0);
        let whole = scene.clone();
        change(&mut scene);
        engine.observe(scene.step());
        assert_clean(&engine, Kind::Orphan);
        let now = scene.now.time;
        scene = whole;
        scene.now.time = now;
        scene.step();
        scene.play(110.0, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Orphan), 0);
        engine.observe(scene.step());
        assert_eq!(count(&engine, Kind::Orphan), 1);
    }
}

#[test]
fn an_orphan_does_not_flicker_at_the_cpu_limit() {
    let (mut scene, mut engine) = orphaned(130.0);
    for (cpu_percent, found) in [(22.0, 1), (30.0, 0), (22.0, 0)] {
        scene.process(PID).cpu_percent = Some(cpu_percent);
        scene.play(300.0, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Orphan), found, "{cpu_percent}");
    }
}

#[test]
fn an_unlisted_orphan_is_found_by_its_device_file() {
    let mut scene = hidden();
    let mut engine = judge(&mut scene, 110.0);
    assert_eq!(count(&engine, Kind::Orphan), 0);
    engine.observe(scene.step());
    let finding = only(&engine, Kind::Orphan);
    assert_eq!(finding.gpus[0].index, 0);
    assert_eq!(finding.memory_bytes, None);
    assert_eq!(evidence_json(finding)["listed"], false);
    assert_eq!(finding.actions, [Action::Notify, Action::Terminate]);
}

#[test]
fn an_open_device_file_alone_is_not_proof() {
    for change in [
        (|scene| scene.gpu(0).memory.as_mut().unwrap().used_bytes = GIB - 1) as fn(&mut Scene),
        |scene| scene.gpu(0).memory = None,
        |scene| {
            let row = GpuProcess { pid: 7, used_bytes: Some(9 * GIB + 1), ..GpuProcess::default() };
            scene.rows(0).push(row);
        },
        |scene| {
            let row = GpuProcess { pid: 7, used_bytes: None, ..GpuProcess::default() };
            scene.rows(0).push(row);
        },
        |scene| scene.gpu(0).processes = None,
        |scene| scene.gpu(0).mig_mode = Some(true),
        |scene| scene.gpu(0).mig_devices = vec![MigDevice::default()],
        |scene| scene.gpu(0).gpu_percent = Some(1),
        |scene| scene.gpu(0).gpu_percent = None,
        |scene| scene.gpu(0).minor_number = Some(4),
        |scene| scene.gpu(0).stale_seconds = Some(1.0),
        |scene| scene.process(PID).gpu_files = None,
        |scene| scene.process(PID).gpu_files = Some(["/dev/nvidiactl".into()].into()),
        |scene| scene.now.host.pid_namespace = None,
        |scene| scene.now.host.pid_namespace = Some(PidNamespace::Container),
        |scene| scene.process(PID).group_leader_alive = Some(true),
        |scene| scene.process(PID).cpu_percent = Some(30.0),
        // Without `reserved_bytes`, used memory includes the driver's own reserve.
        |scene| {
            let memory = scene.gpu(0).memory.as_mut().unwrap();
            (memory.reserved_bytes, memory.used_bytes) = (None, 2 * GIB);
        },
    ] {
        let mut scene = hidden();
        change(&mut scene);
        assert_eq!(count(&judge(&mut scene, 400.0), Kind::Orphan), 0, "{:?}", scene.now);
    }
    let mut scene = hidden();
    scene.gpu(0).memory.as_mut().unwrap().reserved_bytes = None;
    assert_eq!(count(&judge(&mut scene, 400.0), Kind::Orphan), 1);
}

#[test]
fn an_unlisted_orphan_on_a_used_gpu_must_use_no_cpu() {
    for (percent, found) in [(0.0, 1), (5.0, 0)] {
        let mut scene = hidden();
        scene.holder(7, &[0], GIB);
        scene.row(0, 7).sm_percent = Some(90);
        scene.gpu(0).gpu_percent = Some(90);
        scene.process(PID).cpu_percent = Some(percent);
        let engine = judge(&mut scene, 400.0);
        assert_eq!(count(&engine, Kind::Orphan), found, "{percent} %");
    }
}

#[test]
fn memory_listed_for_a_dead_leader_is_held_by_its_workers() {
    let mut scene = hidden();
    scene.now.processes.push(Process { pid: PID - 1, ..Process::default() });
    scene.rows(0).push(GpuProcess {
        pid: PID - 1,
        used_bytes: Some(10 * GIB),
        sm_percent: Some(0),
        ..GpuProcess::default()
    });
    let engine = judge(&mut scene, 200.0);
    assert_eq!(count(&engine, Kind::Orphan), 1);
    assert_eq!(count(&engine, Kind::Dead), 1);
    // The worker is now in another process group, so the dead leader's memory is not attributed to the worker.
    scene.process(PID).process_group = Some(9);
    assert_eq!(count(&judge(&mut scene, 200.0), Kind::Orphan), 0);
}
