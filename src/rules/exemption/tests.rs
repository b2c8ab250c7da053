//! Tests which findings an exemption covers.

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::{Action, Evidence, FindingGpu, FindingProcess, Severity};
use crate::model::{Gpu, GpuProcess};
use crate::rules::stopped::StoppedEvidence;
use crate::rules::testing::scope;
use crate::rules::{Engine, RuleSet};

fn at(text: &str) -> Time {
    text.parse().unwrap()
}

fn keep(terms: &str) -> Exemption {
    Exemption {
        scope: scope(terms),
        reason: "nightly benchmark".into(),
        until: None,
        kinds: Vec::new(),
        rules: Vec::new(),
    }
}

fn process() -> Process {
    Process {
        pid: 42,
        start_ticks: Some(1000),
        user: Some("ann".into()),
        uid: Some(1000),
        command: Some(["python".into(), "train.py".into()].into()),
        ..Process::default()
    }
}

fn snapshot(process: Process) -> Snapshot {
    let row = GpuProcess { pid: process.pid, used_bytes: Some(1 << 30), ..GpuProcess::default() };
    let mut snapshot = Snapshot::new(at("2026-11-21T12:00:00Z"));
    let gpu =
        |index| Gpu { index, processes: Some(vec![row; usize::from(index < 2)]), ..Gpu::default() };
    snapshot.gpus = (0..3).map(gpu).collect();
    snapshot.processes = vec![process];
    snapshot
}

#[test]
fn a_launcher_without_a_gpu_is_kept_by_known_facts() {
    use crate::model::snapshot::Parent;
    let parent = Parent {
        pid: 60,
        start_ticks: Some(900),
        command: Some(["torchrun".into(), "nightly.py".into()].into()),
        ..Parent::default()
    };
    let rank = Process { ppid: Some(60), parent: Some(Arc::new(parent)), ..process() };
    let snapshot = snapshot(rank);
    let kept = |terms: &str| -> Vec<u32> {
        exempt_processes(&[keep(terms)], &snapshot)
            .iter()
            .map(|exempt| exempt.identity.pid)
            .collect()
    };
    assert_eq!(kept("command:nightly"), [60]);
    assert_eq!(kept("user=ann"), [42, 60]);
    assert_eq!(kept("user=ben"), [0; 0]);
    // Because the rank's framework is unknown, the exemption protects the rank, but not its launcher.
    assert_eq!(kept("framework=jax"), [42]);
    assert_eq!(kept("gpu:1"), [42]);
}

/// Returns a finding on these GPUs about the snapshot's first process or, if the snapshot has no process, about the
/// GPUs themselves.
fn finding(snapshot: &Snapshot, gpus: &[u32]) -> Finding {
    let on = |index: &u32| FindingGpu { index: *index, uuid: None, used_bytes: Some(1 << 30) };
    Finding {
        id: "nap:0".into(),
        rule: "nap".into(),
        kind: Kind::Stopped,
        severity: Severity::Warning,
        since: snapshot.time,
        duration_seconds: 0.0,
        resolved_at: None,
        gpus: gpus.iter().map(on).collect(),
        process: snapshot.processes.first().map(|process| FindingProcess {
            pid: process.pid,
            start_ticks: process.start_ticks,
            start_time: None,
            user: process.user.clone(),
            command: process.command.clone(),
            identity: process.identity(),
        }),
        memory_bytes: None,
        evidence: Evidence::new(StoppedEvidence {
            state: 'T',
            samples: 1,
            terminal: None,
            is_frozen: false,
        }),
        message: String::new(),
        advice: Vec::new(),
        actions: vec![Action::Notify, Action::Terminate],
        commands: Vec::new(),
        also: Vec::new(),
        kept_by: None,
        skipped: None,
        more_bytes: None,
    }
}

/// Returns the outcome for one finding: `kept`, `kept?` if the exemption only may match, `part`, `unseen` or `no`.
fn outcome(keeps: &[Exemption], process: Process, gpus: &[u32]) -> &'static str {
    let snapshot = snapshot(process);
    name(exempts(keeps, &finding(&snapshot, gpus), &snapshot))
}

fn name(exempts: ExemptionMatch<'_>) -> &'static str {
    match exempts {
        ExemptionMatch::No => "no",
        ExemptionMatch::InPart => "part",
        ExemptionMatch::Unseen => "unseen",
        ExemptionMatch::Wholly(_, true) => "kept",
        ExemptionMatch::Wholly(_, false) => "kept?",
    }
}

#[test]
fn an_unknown_match_protects_an_identified_process() {
    let ann = [keep("user=ann")];
    let somebody = Process { user: None, uid: None, ..process() };
    assert_eq!(outcome(&ann, somebody.clone(), &[0]), "kept?");
    let certain = keep("gpu:0");
    assert_eq!(outcome(&[ann[0].clone(), certain], somebody.clone(), &[0]), "kept");
    // gpumem never ends a process of uncertain identity, so the process needs no protection.
    let unidentified = Process { start_ticks: None, ..somebody };
    assert_eq!(outcome(&ann, unidentified, &[0]), "no");
    assert_eq!(outcome(&[keep("user=bob"), keep("user=ann")], process(), &[0]), "kept");
}

#[test]
fn each_gpu_of_a_process_is_matched_separately() {
    let somebody = Process { user: None, uid: None, ..process() };
    for (terms, process, gpus, expected) in [
        ("user:ann", process(), &[0][..], "kept"),
        ("user=1000", process(), &[0], "kept"),
        ("user=bob", process(), &[0], "no"),
        ("user=1001", process(), &[0], "no"),
        ("!user:ann", process(), &[0], "no"),
        ("user:ann", somebody.clone(), &[0], "kept?"),
        ("!user:ann", somebody.clone(), &[0], "kept?"),
        // A known mismatch excludes the process, even if other facts are unknown.
        ("gpu:2 user:ann", somebody, &[0], "no"),
        ("gpu:0", process(), &[0], "kept"),
        ("gpu:0", process(), &[0, 1], "part"),
        // The process is also on GPU 0, which the exemption covers.
        ("gpu:0", process(), &[1], "part"),
        ("gpu:0", process(), &[], "part"),
        ("gpu:2", process(), &[0, 1], "no"),
        ("mem>512MiB", process(), &[0, 1], "kept"),
        ("mem>2GiB", process(), &[0, 1], "no"),
    ] {
        assert_eq!(outcome(&[keep(terms)], process, gpus), expected, "{terms} {gpus:?}");
    }
    // `may_exempt` does not know how much memory the process holds, so the exemption may match.
    let snapshot = snapshot(process());
    let keeps = [keep("mem>2GiB")];
    assert!(may_exempt(&keeps, &snapshot.processes[0], &snapshot));
}

#[test]
fn a_gpu_finding_matches_only_gpu_exemptions() {
    let mut snapshot = snapshot(process());
    snapshot.processes.clear();
    let finding = finding(&snapshot, &[1]);
    for (terms, expected) in [("gpu:1", "kept"), ("gpu:0", "no"), ("user=ann", "no")] {
        let keeps = [keep(terms)];
        assert_eq!(name(exempts(&keeps, &finding, &snapshot)), expected);
    }
}

#[test]
fn an_exemption_expires_by_snapshot_time() {
    let until = |text: &str| Exemption { until: Some(at(text)), ..keep("user=ann") };
    let ended = until("2026-11-21T12:00:00Z");
    assert!(ended.is_expired(at("2026-11-21T12:00:00Z")));
    assert_eq!(outcome(&[ended], process(), &[0]), "no");
    assert_eq!(outcome(&[until("2026-11-21T12:00:00.001Z")], process(), &[0]), "kept");
}

#[test]
fn an_exemption_can_be_limited_to_kinds_and_rules() {
    let from = |kinds: &[Kind], rules: &[&str]| Exemption {
        kinds: kinds.to_vec(),
        rules: rules.iter().map(|rule| Arc::from(*rule)).collect(),
        ..keep("user=ann")
    };
    for (keep, expected) in [
        (from(&[Kind::Stopped], &[]), "kept"),
        (from(&[Kind::Idle], &[]), "no"),
        (from(&[], &["nap"]), "kept"),
        (from(&[], &["idle"]), "no"),
        (from(&[Kind::Idle], &["nap"]), "kept"),
    ] {
        assert_eq!(outcome(&[keep], process(), &[0]), expected);
    }
}

#[test]
fn a_process_missing_from_the_snapshot_keeps_its_result() {
    let mut snapshot = snapshot(process());
    let finding = finding(&snapshot, &[0]);
    snapshot.processes[0].start_ticks = Some(2000);
    let keeps = [keep("user=bob")];
    assert_eq!(name(exempts(&keeps, &finding, &snapshot)), "unseen");
}

/// Plays twenty minutes of an idle process on two GPUs, with one exemption.
fn judged(terms: &str) -> (Engine, Scene) {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(7, &[0, 1], 20 << 30);
    scene.process(7).user = Some("ann".into());
    let mut settings = RuleSet::default();
    settings.select(&["idle"]).unwrap();
    settings.add_keep(keep(terms));
    let mut engine = Engine::new(settings);
    scene.play(1200.0, |snapshot| engine.observe(snapshot));
    (engine, scene)
}

#[test]
fn an_exempt_finding_is_listed_with_its_reason() {
    let (mut engine, mut scene) = judged("user=ann");
    assert_eq!((engine.findings().len(), engine.resolved().len()), (0, 0));
    let [kept] = engine.kept() else {
        panic!("{:?}", engine.kept());
    };
    assert_eq!((&*kept.reason, kept.certain), ("nightly benchmark", true));
    assert_eq!(kept.finding.process.as_ref().map(|process| process.pid), Some(7));
    assert_eq!(engine.active_findings().count(), 1);
    for gpu in [0, 1] {
        scene.row(gpu, 7).sm_percent = Some(90);
    }
    engine.observe(scene.step());
    assert_eq!((engine.kept().len(), engine.resolved().len()), (0, 0));
}

#[test]
fn a_partly_exempt_finding_only_notifies() {
    let (engine, _) = judged("gpu:0");
    let [finding] = engine.findings() else {
        panic!("{:?}", engine.findings());
    };
    assert_eq!(finding.actions, [Action::Notify]);
    let (engine, _) = judged("gpu:7");
    assert!(engine.findings()[0].actions.contains(&Action::Terminate));
}

#[test]
fn an_exemption_holds_while_the_gpus_do_not_answer() {
    let (mut engine, mut scene) = judged("user=ann");
    for index in [0, 1] {
        let gpu = scene.gpu(index);
        gpu.stale_seconds = Some(10.0);
        gpu.processes = None;
    }
    scene.now.processes.clear();
    engine.observe(scene.step());
    assert_eq!((engine.findings().len(), engine.kept().len()), (0, 1));
}

#[test]
fn a_process_exempt_on_one_gpu_is_never_ended() {
    let owned = snapshot(process());
    let kept = |keep: Exemption, snapshot: &Snapshot| exempt_processes(&[keep], snapshot).len();
    for (terms, expected) in [("user=ann", 1), ("user=bob", 0), ("gpu:1", 1), ("gpu:2", 0)] {
        assert_eq!(kept(keep(terms), &owned), expected, "{terms}");
    }
    assert_eq!(
        kept(Exemption { until: Some(owned.time), ..keep("user=ann") }, &owned),
        0,
        "expired"
    );
    let ownerless = snapshot(Process { user: None, ..process() });
    assert_eq!(kept(keep("user=ann"), &ownerless), 1, "the owner is unknown");
}
