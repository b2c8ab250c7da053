use super::*;
use crate::history::testing::Scene;
use crate::model::GpuProcess;
use crate::model::finding::{Action, Severity};
use crate::model::snapshot::MigDevice;
use crate::rules::Engine;
use crate::rules::testing::{
    Case, Change, Found, Nothing, PID, Unsure, check_cases, engine_with_rule, evidence_json,
    judge_only, reasons,
};
use crate::units::MIB;

const TOTAL: u64 = 80 * GIB;

/// Returns a scene with two GPUs. On GPU 0, a trainer holds 20 GiB, and `hidden` more bytes are used.
fn scene(hidden: u64) -> Scene {
    let mut scene = Scene::new(2, 10.0);
    scene.now.host.pid_namespace = Some(PidNamespace::Host);
    scene.holder(PID, &[0], 20 * GIB);
    scene.memory(0, 20 * GIB + hidden, TOTAL);
    scene.memory(1, 0, TOTAL);
    scene
}

fn judge(scene: &mut Scene, seconds: f64) -> Engine {
    judge_only("unattributed", scene, seconds)
}

/// Makes GPU 0 report used memory that includes the driver's reserve.
fn with_reserved(scene: &mut Scene, hidden: u64) {
    scene.memory(0, 20 * GIB + hidden, TOTAL);
    scene.gpu(0).memory.as_mut().unwrap().reserved_bytes = None;
}

#[test]
fn unattributed_memory_is_reported_after_the_duration() {
    let mut scene = scene(11 * GIB);
    let start = scene.now.time;
    scene.holder(7, &[], 0);
    scene.process(7).gpu_files = Some(["/dev/nvidiactl".into(), "/dev/nvidia0".into()].into());
    let mut engine = judge(&mut scene, 50.0);
    assert_eq!(engine.findings(), []);
    assert_eq!(
        (engine.pending()[0].gpu, engine.pending()[0].pid, engine.pending()[0].due),
        (0, None, start.plus_seconds(60.0))
    );
    assert_eq!(reasons(&engine, Kind::Unattributed), ["decided in 10s (needs 1m of history)"]);
    scene.play(10.0, |snapshot| engine.observe(snapshot));
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    assert_eq!(&*finding.id, "unattributed:GPU-0");
    assert_eq!((finding.since, finding.duration_seconds), (start, 60.0));
    assert_eq!(finding.process, None);
    assert_eq!(
        (finding.severity, finding.memory_bytes, &*finding.actions),
        (Severity::Warning, Some(11 * GIB), &[Action::Notify][..])
    );
    let holder =
        DeviceFileHolder { pid: 7, user: Some("ann".into()), name: "python train.py".to_owned() };
    assert_eq!(
        finding.evidence,
        Evidence::new(UnattributedEvidence {
            used_bytes: 31 * GIB,
            attributed_bytes: 20 * GIB,
            unattributed_bytes: 11 * GIB,
            listed: 1,
            samples: 7,
            holders: vec![holder],
        })
    );
    assert_eq!((engine.pending(), &*engine.undecided()), (&[][..], &[][..]));
}

#[test]
fn only_a_large_and_meaningful_difference_is_found() {
    let cases: &[Case] = &[
        ("11 GiB", Found, |_| ()),
        ("exactly the minimum", Found, |scene| scene.memory(0, 21 * GIB, TOTAL)),
        ("below the minimum", Nothing, |scene| scene.memory(0, 21 * GIB - 1, TOTAL)),
        ("shared memory is counted twice", Nothing, |scene| scene.memory(0, 3 * GIB, TOTAL)),
        ("reserved and little", Nothing, |scene| with_reserved(scene, 1900 * MIB)),
        ("reserved and much", Found, |scene| with_reserved(scene, 2100 * MIB)),
        ("in a container", Nothing, |scene| {
            scene.now.host.pid_namespace = Some(PidNamespace::Container);
        }),
        ("under MIG", Nothing, |scene| scene.gpu(0).mig_mode = Some(true)),
        ("instances", Nothing, |scene| scene.gpu(0).mig_devices = vec![MigDevice::default()]),
        ("memory of the system", Nothing, |scene| {
            scene.gpu(0).name = Some("NVIDIA GH200 480GB".into());
        }),
        ("memory that is a node of the system", Nothing, |scene| scene.gpu(0).numa_node = Some(1)),
        ("in WSL", Nothing, |scene| {
            scene.now.host.kernel = Some("5.15.1-microsoft-standard-WSL2".into());
        }),
        ("no answer", Nothing, |scene| scene.gpu(0).stale_seconds = Some(5.0)),
        ("an unknown pid accounts for it", Nothing, |scene| {
            let used_bytes = Some(11 * GIB);
            scene.rows(0).push(GpuProcess { pid: 999, used_bytes, ..GpuProcess::default() });
        }),
        (
            "unknown pid namespace",
            Unsure("it is unknown whether the pids are the host's"),
            |scene| {
                scene.now.host.pid_namespace = None;
            },
        ),
        ("unknown list", Unsure("the process list of GPU 0 could not be read"), |scene| {
            scene.gpu(0).processes = None;
        }),
        (
            "a process's memory is unknown",
            Unsure("the driver does not report the memory of process 4242 on GPU 0"),
            |scene| scene.row(0, PID).used_bytes = None,
        ),
        ("unknown memory", Unsure("the memory of GPU 0 is unknown"), |scene| {
            scene.gpu(0).memory = None;
        }),
        ("little memory in use and nothing known", Nothing, |scene| {
            scene.now.host.pid_namespace = None;
            scene.gpu(1).processes = None;
            scene.memory(0, 900 * MIB, TOTAL);
            scene.row(0, PID).used_bytes = None;
        }),
    ];
    check_cases(Kind::Unattributed, || scene(11 * GIB), 600.0, cases);
}

#[test]
fn spikes_are_ignored_and_findings_do_not_flicker() {
    let mut scene = scene(0);
    let mut engine = engine_with_rule("unattributed");
    for step in 0..97 {
        let hidden = if step % 6 == 0 { 0 } else { 5 * GIB };
        scene.memory(0, 20 * GIB + hidden, TOTAL);
        engine.observe(scene.step());
        assert_eq!(engine.findings(), []);
    }
    scene.memory(0, 21 * GIB, TOTAL);
    let since = scene.now.time.plus_seconds(10.0);
    engine.observe(scene.step());
    assert_eq!(
        (engine.pending().len(), reasons(&engine, Kind::Unattributed).len()),
        (1, 0),
        "the start was observed"
    );
    scene.play(60.0, |snapshot| engine.observe(snapshot));
    for step in 0..100 {
        let hidden = if step % 2 == 0 { 800 * MIB } else { 1100 * MIB };
        scene.memory(0, 20 * GIB + hidden, TOTAL);
        engine.observe(scene.step());
        assert_eq!(engine.findings().len(), 1, "{step}");
        assert_eq!(engine.findings()[0].since, since);
    }
    scene.memory(0, 20 * GIB + 700 * MIB, TOTAL);
    engine.observe(scene.step());
    assert_eq!((engine.findings().len(), engine.resolved().len()), (0, 1));
}

#[test]
fn a_short_read_error_keeps_the_finding() {
    let forget: [Change; 3] = [
        |scene| scene.gpu(0).processes = None,
        |scene| scene.row(0, PID).used_bytes = None,
        |scene| scene.gpu(0).memory = None,
    ];
    for forget in forget {
        let mut scene = scene(11 * GIB);
        let mut engine = judge(&mut scene, 120.0);
        let since = engine.findings()[0].since;
        let saved_gpu = scene.now.gpus[0].clone();
        forget(&mut scene);
        engine.observe(scene.step());
        engine.observe(scene.step());
        assert_eq!((engine.findings().len(), engine.undecided().len()), (1, 1));
        scene.now.gpus[0] = saved_gpu;
        engine.observe(scene.step());
        assert_eq!((engine.findings()[0].since, engine.undecided().len()), (since, 0));
    }
}

#[test]
fn monitors_and_listed_processes_are_not_holders() {
    let mut scene = scene(11 * GIB);
    scene.gpu(0).minor_number = Some(3);
    let file = |number: u32| Some([format!("/dev/nvidia{number}").into()].into());
    for (pid, command, held) in [
        (1, "/usr/bin/nvidia-persistenced", 3),
        (2, "python3 /usr/bin/nvitop", 3),
        (3, "gpumem watch", 3),
        (4, "python other.py", 0),
        (5, "python mine.py", 3),
        (6, "python more.py", 3),
        (8, "python most.py", 3),
        (9, "python last.py", 3),
    ] {
        scene.holder(pid, &[], 0);
        scene.process(pid).command = Some(command.split(' ').map(Into::into).collect());
        scene.process(pid).gpu_files = file(held);
    }
    scene.process(PID).gpu_files = file(3);
    let engine = judge(&mut scene, 60.0);
    let holders = evidence_json(&engine.findings()[0])["holders"].clone();
    let pids = holders.as_array().unwrap().iter().map(|holder| holder["pid"].as_u64().unwrap());
    assert_eq!(pids.collect::<Vec<_>>(), [5, 6, 8, 9]);
}
