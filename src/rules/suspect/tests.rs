//! Tests suspects in the first sample, and processes that are never suspects.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::history::testing::Scene;
use crate::model::Reclaimable;
use crate::model::finding::{Action, Finding};
use crate::model::keep::KeptBy;
use crate::model::process::{Descendants, Jupyter};
use crate::model::snapshot::GpuProcess;
use crate::rules::exemption::Exemption;
use crate::rules::testing::{Change, PID, count, cpu_unknown, judge, scope, unidentified};
use crate::rules::{Engine, RuleSet};
use crate::units::GIB;

/// Returns a scene, sampled every 2 s, with `python train.py`, which holds 24 GiB on GPU 0 and has used 1000 s of CPU
/// time in a day.
fn idle() -> Scene {
    let mut scene = Scene::new(2, 2.0);
    scene.holder(PID, &[0], 24 * GIB);
    scene
}

fn worked() -> Scene {
    let mut scene = idle();
    scene.process(PID).cpu_seconds = Some(80_000.0);
    scene
}

fn kernel(scene: &mut Scene, state: &str, seconds_ago: f64) {
    let last = scene.now.time.plus_seconds(-seconds_ago);
    scene.process(PID).jupyter = Some(Arc::new(Jupyter {
        application: Some("jupyter".into()),
        kernel_id: Some("k".into()),
        server_url: Some("http://localhost:8888/".into()),
        server_pid: Some(99),
        execution_state: Some(state.into()),
        last_activity: Some(last),
        ..Jupyter::default()
    }));
}

fn marks(engine: &Engine) -> Vec<String> {
    let suspects = engine.suspects().iter();
    suspects.map(|suspect| suspect.mark.to_string()).collect()
}

#[track_caller]
fn only(engine: &Engine) -> &Suspect {
    let [suspect] = engine.suspects() else { panic!("{:?}", engine.suspects()) };
    suspect
}

fn also_on_gpu_1(scene: &mut Scene) -> &mut GpuProcess {
    scene.rows(1).push(GpuProcess {
        pid: PID,
        kind: ProcessType::Compute,
        used_bytes: Some(GIB),
        sm_percent: Some(0),
        ..GpuProcess::default()
    });
    scene.row(1, PID)
}

fn keeping(terms: &str, kinds: &[Kind]) -> RuleSet {
    let mut settings = RuleSet::default();
    settings.add_keep(Exemption {
        scope: scope(terms),
        reason: "hers".into(),
        until: None,
        kinds: kinds.to_vec(),
        rules: Vec::new(),
    });
    settings
}

#[test]
fn low_lifetime_cpu_use_makes_a_suspect_at_once() {
    let engine = judge(&mut idle(), 0.0);
    let suspect = only(&engine);
    assert_eq!((suspect.kind, &*suspect.rule), (Kind::Idle, "idle"));
    assert_eq!(suspect.process.pid, PID);
    assert_eq!(suspect.process.start_ticks, Some(u64::from(PID) * 100));
    assert_eq!(suspect.memory_bytes, Some(24 * GIB));
    assert_eq!(suspect.mark.to_string(), "idle? 0s of 10m");
    assert_eq!(suspect.evidence.words(), "no GPU use in 1 sample, CPU time 16m 40s in 1d 00h");
    assert_eq!(&*suspect.command, "gpumem check --kind idle --window 10m5s");
    assert_eq!(engine.findings(), []);
}

#[test]
fn a_suspect_stays_until_reported_or_active() {
    let mut scene = idle();
    let mut engine = judge(&mut scene, 12.0);
    assert_eq!(only(&engine).mark.to_string(), "idle? 12s of 10m");
    assert!(only(&engine).missing.to_string().starts_with("decided in 9m 48s"));
    let (mut at_work, mut of_work) = (scene.clone(), judge(&mut idle(), 12.0));
    at_work.process(PID).cpu_percent = Some(150.0);
    of_work.observe(at_work.step());
    assert_eq!(marks(&of_work), [""; 0]);
    scene.play(586.0, |snapshot| engine.observe(snapshot));
    assert_eq!((count(&engine, Kind::Idle), engine.suspects().len()), (0, 1));
    engine.observe(scene.step());
    assert_eq!((count(&engine, Kind::Idle), engine.suspects().len()), (1, 0));
}

#[test]
fn a_process_that_worked_before_must_be_observed_waiting() {
    let mut scene = worked();
    let mut engine = judge(&mut scene, 8.0);
    assert_eq!(marks(&engine), [""; 0]);
    engine.observe(scene.step());
    assert_eq!(marks(&engine), ["idle? 10s of 10m"]);
    // The driver's first answer covers the previous 10 s, but CPU use is known only from the second sample on.
    let mut scene = worked();
    scene.gpu(0).sampled_seconds = Some(10.0);
    let mut engine = judge(&mut scene, 0.0);
    assert_eq!(marks(&engine), [""; 0]);
    engine.observe(scene.step());
    assert_eq!(marks(&engine), ["idle? 2s of 10m"]);
}

/// Sets the process's GPU use in the last `hours`, according to the driver's accounting.
fn account(scene: &mut Scene, gpu: u32, percent: u32, hours: f64) {
    let since = scene.now.time.plus_seconds(-hours * 3600.0);
    let row = scene.row(gpu, PID);
    (row.lifetime_percent, row.lifetime_since) = (Some(percent), Some(since));
}

fn ran_3_hours(cpu_percent: f64) -> Scene {
    let mut scene = idle();
    let start = scene.now.time.plus_seconds(-3.0 * 3600.0);
    let process = scene.process(PID);
    process.start_time = Some(start);
    process.cpu_seconds = Some(3.0 * 36.0 * cpu_percent);
    scene
}

#[test]
fn low_accounted_gpu_use_makes_a_suspect_at_once() {
    // Without accounting, this CPU use is too high for a suspect.
    assert_eq!(marks(&judge(&mut ran_3_hours(12.0), 0.0)), [""; 0]);
    let mut scene = ran_3_hours(12.0);
    account(&mut scene, 0, 0, 3.0);
    let engine = judge(&mut scene, 0.0);
    assert_eq!(
        only(&engine).evidence.words(),
        "no GPU use in 1 sample, GPU busy 0% of 3h 00m (driver accounting), CPU time 21m 36s in 3h 00m"
    );
    assert_eq!(engine.findings(), []);
    assert_eq!(engine.reclaimable().bytes, 0, "an account proves nothing");
}

#[test]
fn accounted_gpu_use_prevents_a_suspect() {
    // Each case: its name, the lifetime CPU use in percent, and the driver's accounting.
    let innocents: [(&str, f64, Change); 8] = [
        ("most of its life", 1.0, |scene| account(scene, 0, 93, 3.0)),
        ("half of its life", 1.0, |scene| account(scene, 0, 50, 3.0)),
        ("a tenth of it", 1.0, |scene| account(scene, 0, 10, 3.0)),
        ("on another GPU", 1.0, |scene| {
            also_on_gpu_1(scene);
            account(scene, 0, 0, 3.0);
            account(scene, 1, 70, 3.0);
        }),
        ("works on the CPU", 60.0, |scene| account(scene, 0, 0, 3.0)),
        ("started to use the GPU just now", 12.0, |scene| account(scene, 0, 0, 0.1)),
        ("of an earlier process with the pid", 12.0, |scene| account(scene, 0, 0, 90.0)),
        ("of one GPU of two", 12.0, |scene| {
            account(scene, 0, 0, 3.0);
            also_on_gpu_1(scene);
        }),
    ];
    for (name, cpu_percent, change) in innocents {
        let mut scene = ran_3_hours(cpu_percent);
        change(&mut scene);
        assert_eq!(marks(&judge(&mut scene, 0.0)), [""; 0], "{name}");
    }
}

#[test]
fn high_accounted_gpu_use_delays_a_suspect() {
    for (percent, expected) in [(10, "idle? 10s of 10m"), (93, "")] {
        let mut scene = ran_3_hours(1.0);
        account(&mut scene, 0, percent, 3.0);
        let mut engine = judge(&mut scene, 10.0);
        assert_eq!(marks(&engine).concat(), expected, "{percent}");
        scene.play(50.0, |snapshot| engine.observe(snapshot));
        assert_eq!(marks(&engine), ["idle? 1m of 10m"], "{percent}");
        // The notebook server's report takes precedence over the driver's accounting.
        let mut scene = ran_3_hours(1.0);
        account(&mut scene, 0, percent, 3.0);
        kernel(&mut scene, "idle", 3600.0);
        assert_eq!(marks(&judge(&mut scene, 0.0)), ["idle? 0s of 10m"]);
    }
}

#[test]
fn observed_work_delays_a_suspect() {
    let mut scene = idle();
    scene.row(0, PID).sm_percent = Some(90);
    let mut engine = judge(&mut scene, 4.0);
    scene.row(0, PID).sm_percent = Some(0);
    engine.observe(scene.step());
    scene.play(58.0, |snapshot| engine.observe(snapshot));
    assert_eq!(marks(&engine), [""; 0]);
    engine.observe(scene.step());
    assert_eq!(marks(&engine), ["idle? 1m of 10m"]);
    assert_eq!(only(&engine).missing.to_string(), "decided in 9m 00s");
}

#[test]
fn a_notebook_is_a_suspect_if_its_server_reports_idle() {
    let mut scene = worked();
    kernel(&mut scene, "idle", 3.0 * 3600.0);
    let engine = judge(&mut scene, 0.0);
    assert_eq!(
        only(&engine).evidence.words(),
        "no GPU use in 1 sample, notebook last active 3h 00m ago, CPU time 22h 13m in 1d 00h"
    );
    for (state, seconds_ago) in [("busy", 3.0 * 3600.0), ("idle", 60.0), ("starting", 60.0)] {
        let mut scene = idle();
        kernel(&mut scene, state, seconds_ago);
        assert_eq!(marks(&judge(&mut scene, 20.0)), [""; 0], "{state}");
    }
    // If the server reports nothing, GPU and CPU use decide.
    let mut scene = idle();
    kernel(&mut scene, "idle", 0.0);
    let mut silent = (**scene.process(PID).jupyter.as_ref().unwrap()).clone();
    (silent.execution_state, silent.last_activity) = (None, None);
    scene.process(PID).jupyter = Some(Arc::new(silent));
    assert_eq!(marks(&judge(&mut scene, 20.0)), ["idle? 20s of 10m"]);
}

#[test]
fn a_stopped_process_is_a_suspect_in_its_first_two_minutes() {
    let mut scene = worked();
    scene.process(PID).state = Some('T');
    let mut engine = judge(&mut scene, 0.0);
    let suspect = only(&engine);
    assert_eq!((suspect.kind, &*suspect.mark.to_string()), (Kind::Stopped, "stopped? 0s of 2m"));
    assert_eq!(suspect.evidence.words(), "suspended (T: Ctrl-Z, SIGSTOP) in 1 sample");
    scene.play(120.0, |snapshot| engine.observe(snapshot));
    assert_eq!((count(&engine, Kind::Stopped), engine.suspects().len()), (1, 0));
    scene.process(PID).state = Some('t');
    assert_eq!(marks(&judge(&mut scene, 0.0)), [""; 0], "a debugger's");
}

#[test]
fn an_orphan_is_suspected_as_orphan_first() {
    let mut scene = Scene::new(1, 2.0);
    scene.orphan(PID, &[0], 24 * GIB);
    let engine = judge(&mut scene, 4.0);
    let suspect = only(&engine);
    assert_eq!((suspect.kind, &*suspect.mark.to_string()), (Kind::Orphan, "orphan? 4s of 2m"));
}

#[test]
fn busy_and_protected_processes_are_never_suspects() {
    let innocents: [(&str, Change); 21] = [
        ("SM", |scene| scene.row(0, PID).sm_percent = Some(1)),
        ("copies", |scene| scene.row(0, PID).memory_percent = Some(1)),
        ("encoder", |scene| scene.row(0, PID).encoder_percent = Some(3)),
        ("SM unknown, GPU used", |scene| {
            scene.row(0, PID).sm_percent = None;
            scene.gpu(0).gpu_percent = Some(40);
        }),
        ("nothing told", |scene| {
            scene.row(0, PID).sm_percent = None;
            scene.gpu(0).gpu_percent = None;
        }),
        ("use that no sample explains", |scene| scene.gpu(0).gpu_percent = Some(80)),
        ("CPU", |scene| scene.process(PID).cpu_percent = Some(100.0)),
        ("CPU unknown", cpu_unknown),
        ("children's CPU", |scene| {
            scene.process(PID).descendants = Some(Arc::new(Descendants {
                count: Some(8),
                cpu_percent: Some(600.0),
                cpu_seconds: Some(1000.0),
                ..Descendants::default()
            }));
        }),
        ("children's CPU unknown", |scene| {
            scene.process(PID).descendants =
                Some(Arc::new(Descendants { count: Some(8), ..Descendants::default() }));
        }),
        ("reads a disk", |scene| scene.process(PID).state = Some('D')),
        ("a debugger's", |scene| scene.process(PID).state = Some('t')),
        ("graphics", |scene| scene.row(0, PID).kind = ProcessType::Graphics),
        ("a server that listens", |scene| {
            let process = scene.process(PID);
            process.listening = Some(true);
            process.listening_on = Some(["tcp:0.0.0.0:8000".into()].into());
            process.command = Some(["vllm", "serve", "m"].map(Arc::from).into());
        }),
        ("a daemon of MPS", |scene| {
            let command = ["nvidia-cuda-mps-server"].map(Arc::from);
            scene.process(PID).command = Some(command.into());
            scene.process(PID).comm = Some("nvidia-cuda-mps".into());
        }),
        ("working on another GPU", |scene| {
            also_on_gpu_1(scene).sm_percent = Some(70);
        }),
        ("little memory", |scene| scene.row(0, PID).used_bytes = Some(GIB / 2)),
        ("unidentified", unidentified),
        ("on a GPU that does not answer", |scene| scene.gpu(0).stale_seconds = Some(5.0)),
        ("perhaps on a GPU that could not be read", |scene| {
            scene.gpu(1).processes = None;
            scene.gpu(1).minor_number = Some(1);
            scene.process(PID).gpu_files = Some(["/dev/nvidia1".into()].into());
        }),
        ("just started", |scene| {
            let now = scene.now.time;
            scene.process(PID).start_time = Some(now.plus_seconds(-5.0));
            scene.process(PID).cpu_seconds = Some(0.0);
        }),
    ];
    for (name, change) in innocents {
        for mut scene in [idle(), worked()] {
            change(&mut scene);
            let mut engine = Engine::new(RuleSet::default());
            scene.play(30.0, |snapshot| {
                engine.observe(snapshot);
                assert_eq!(marks(&engine), [""; 0], "{name}");
            });
        }
    }
}

#[test]
fn an_exempt_process_or_a_disabled_rule_gives_no_suspect() {
    let mut off = RuleSet::default();
    off.select(&["leak"]).unwrap();
    for settings in [keeping("user:ann", &[]), off] {
        let mut engine = Engine::new(settings);
        idle().play(20.0, |snapshot| engine.observe(snapshot));
        assert_eq!(marks(&engine), [""; 0]);
    }
}

/// Plays `seconds` of a scene with `python train.py` on GPU 0. Returns its finding's reason for being kept (the outer
/// `None` means no finding), the number of suspects, and the reclaimable bytes.
fn kept(
    change: impl Fn(&mut Scene),
    settings: RuleSet,
    seconds: f64,
) -> (Option<Option<KeptBy>>, usize, u64) {
    let mut scene = idle();
    change(&mut scene);
    let mut engine = Engine::new(settings);
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    let finding = engine.findings().first();
    let kept_by = finding.map(|finding| finding.kept_by.clone());
    (kept_by, engine.suspects().len(), engine.reclaimable().bytes)
}

#[test]
fn a_kept_process_is_neither_suspected_nor_reclaimable() {
    let until = "2999-01-01T00:00:00Z".parse().unwrap();
    let owner = |until| Some(KeptBy::Owner { user: Some("ann".into()), until });
    let program = |name: &str| Some(KeptBy::Program { name: name.into() });
    for (variable, executable, never, expected) in [
        (Some("yes"), None, None, owner(None)),
        (Some("2999-01-01T00:00:00Z"), None, None, owner(Some(until))),
        (Some("ask me"), None, None, owner(None)),
        (None, Some("/usr/sbin/slurmstepd"), None, program("slurmstepd")),
        (None, Some("/opt/render"), Some("render"), program("render")),
        // Values of `GPUMEM_KEEP` that have expired, mean no, or are empty.
        (Some("2001-01-01"), None, None, None),
        (Some("0"), None, None, None),
        (Some(""), None, None, None),
        (None, None, None, None),
        // A different program, a longer name, and a directory with the program's name.
        (None, Some("/usr/bin/python3.12"), None, None),
        (None, Some("/opt/renderer"), Some("render"), None),
        (None, Some("/opt/slurmstepd/train"), None, None),
    ] {
        let change = |scene: &mut Scene| {
            let process = scene.process(PID);
            process.executable = executable.map(Into::into);
            process.environment = variable.map(|value: &str| {
                let variables = (!value.is_empty()).then(|| ("GPUMEM_KEEP".into(), value.into()));
                Arc::new(BTreeMap::from_iter(variables))
            });
        };
        let mut settings = RuleSet::default();
        if let Some(name) = never {
            settings.set_never(vec![name.into()]);
        }
        let bytes = if expected.is_some() { 0 } else { 24 * GIB };
        let first = kept(change, settings.clone(), 0.0);
        assert_eq!(first, (None, usize::from(bytes > 0), 0), "{variable:?} {executable:?}");
        let found = kept(change, settings, 700.0);
        assert_eq!(found, (Some(expected), 0, bytes), "{variable:?} {executable:?}");
    }
}

#[test]
fn a_process_exempt_on_another_gpu_is_not_reclaimable() {
    let two_gpus = |scene: &mut Scene| {
        scene.process(PID).state = Some('T');
        also_on_gpu_1(scene).kind = ProcessType::Graphics;
    };
    let configuration = KeptBy::Configuration { reason: "hers".into(), until: None };
    for (terms, kinds, kept_by, bytes) in [
        ("gpu:1", &[][..], Some(configuration), 0),
        // An exemption for another kind, and one for another GPU.
        ("gpu:1", &[Kind::Idle], None, 24 * GIB),
        ("gpu:7", &[], None, 24 * GIB),
    ] {
        let (found, _, reclaimable) = kept(two_gpus, keeping(terms, kinds), 300.0);
        assert_eq!((found, reclaimable), (Some(kept_by), bytes), "{terms} {kinds:?}");
    }
}

/// Plays `seconds` of a scene with an idle process and a stopped process of different users.
fn judged(seconds: f64) -> Engine {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(7, &[0], 4 * GIB);
    scene.holder(8, &[0], 8 * GIB);
    scene.process(8).state = Some('T');
    scene.process(8).user = Some("ben".into());
    let mut engine = Engine::new(RuleSet::default());
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    engine
}

#[test]
fn memory_that_reap_skips_is_not_reclaimable() {
    let engine = judged(700.0);
    let all: Vec<Finding> = engine.unkept().cloned().collect();
    let bytes = |findings: &[Finding]| {
        let sum = Reclaimable::new(findings.iter(), [].iter());
        (sum.processes, sum.bytes)
    };
    assert_eq!(bytes(&all), (2, 12 * GIB));
    let change = |change: fn(&mut Finding)| {
        let mut findings = all.clone();
        findings.iter_mut().for_each(change);
        bytes(&findings)
    };
    let notify = |finding: &mut Finding| finding.actions = vec![Action::Notify];
    assert_eq!(change(notify), (1, 8 * GIB), "a stopped process is still reclaimable");
    for kind in [Kind::ServerIdle, Kind::Leak, Kind::Hung, Kind::Placeholder] {
        let findings: Vec<Finding> =
            all.iter().cloned().map(|finding| Finding { kind, ..finding }).collect();
        assert_eq!(bytes(&findings), (0, 0), "{kind}");
    }
    assert_eq!(change(|finding| finding.resolved_at = Some(finding.since)), (0, 0));
    assert_eq!(change(|finding| finding.process = None), (0, 0));
    // A process that is listed twice is counted once.
    assert_eq!(bytes(&[all.clone(), all.clone()].concat()), (2, 12 * GIB));
}

#[test]
fn an_unknown_size_makes_the_sum_a_lower_bound() {
    let mut findings: Vec<Finding> = judged(700.0).unkept().cloned().collect();
    findings[0].memory_bytes = None;
    let line = Reclaimable::new(findings.iter(), [].iter()).headline(true);
    assert!(line.starts_with("at least ") && line.ends_with("2 processes of 2 users"), "{line}");
    let headline = |findings, is_undecided, suspected_processes| {
        let mut sum = Reclaimable::default();
        sum.findings = findings;
        sum.is_undecided = is_undecided;
        sum.suspected_processes = suspected_processes;
        sum.headline(true)
    };
    assert_eq!(headline(0, false, 0), "nothing to reclaim");
    assert_eq!(headline(0, true, 0), "reclaimable: not known");
    assert_eq!(headline(2, true, 0), "2 findings, none reclaimable by default");
    assert_eq!(headline(0, false, 1), "nothing to reclaim yet, 1 process suspected");
}
