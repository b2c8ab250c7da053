//! Tests whether findings still hold after the plan was made.

use super::*;
use crate::model::finding::Kind;
use crate::model::{Gpu, Process, Time};
use crate::reclaim::target::MemberGpu;
use crate::reclaim::testing;

fn member(pid: u32) -> TargetProcess {
    TargetProcess {
        pid,
        start_ticks: 100,
        uid: 1000,
        user: None,
        name: "python".into(),
        gpus: vec![MemberGpu { index: 0, uuid: None, used_bytes: Some(1) }],
        is_listed: true,
        process_group: None,
        session: None,
        is_stopped: false,
        is_parked: false,
    }
}

fn because(pid: u32) -> Because {
    Because {
        id: "x".into(),
        rule: "idle".into(),
        kind: Kind::Idle,
        pid,
        since: Time::default(),
        message: String::new(),
        evidence: serde_json::Value::Null,
    }
}

fn finding(rule: &str, pid: u32, start_ticks: u64) -> Finding {
    let process = Process { start_ticks: Some(start_ticks), ..testing::process(pid, "python") };
    Finding { rule: rule.into(), ..testing::finding(Kind::Idle, &process) }
}

fn snapshot(pids: &[u32]) -> Snapshot {
    let mut snapshot = Snapshot::new(Time::default());
    snapshot.gpus = vec![Gpu { processes: Some(Vec::new()), ..Gpu::default() }];
    snapshot.processes = pids
        .iter()
        .map(|&pid| Process { pid, start_ticks: Some(100), ..Process::default() })
        .collect();
    snapshot
}

/// Rechecks a target with two members: process 7, which is a target because of a finding, and process 8, which had
/// none. `found` contains the current findings.
fn recheck_both(found: &[Finding], snapshot: &Snapshot) -> Recheck {
    let (seven, eight) = (member(7), member(8));
    let found: Vec<&Finding> = found.iter().collect();
    recheck_members(&[&seven, &eight], &[because(7)], &found, snapshot)
}

#[test]
fn a_finding_holds_while_its_rule_finds_the_process() {
    let here = snapshot(&[7, 8]);
    assert_eq!(recheck_both(&[finding("idle", 7, 100)], &here), Recheck::StillTrue);
    for other in [finding("night", 7, 100), finding("idle", 8, 100), finding("idle", 7, 101)] {
        assert_eq!(recheck_both(&[other], &here), Recheck::NoLonger);
    }
    assert_eq!(recheck_both(&[], &here), Recheck::NoLonger);
}

#[test]
fn a_missing_process_or_gpu_makes_the_verdict_unknown() {
    let found = [finding("idle", 7, 100)];
    assert_eq!(recheck_both(&found, &snapshot(&[8])), Recheck::Unknown);
    let changes: [fn(&mut Snapshot); 3] = [
        |snapshot| snapshot.processes[0].start_ticks = Some(101),
        |snapshot| snapshot.gpus[0].stale_seconds = Some(3.0),
        |snapshot| snapshot.gpus[0].processes = None,
    ];
    for change in changes {
        let mut snapshot = snapshot(&[7]);
        change(&mut snapshot);
        assert_eq!(recheck_both(&found, &snapshot), Recheck::Unknown, "{snapshot:?}");
    }
}

#[test]
fn every_living_members_finding_must_hold() {
    let here = snapshot(&[7, 8]);
    let (seven, eight) = (member(7), member(8));
    let becauses = [because(7), because(8)];
    let of = |alive: &[&TargetProcess], found: &[&Finding]| {
        recheck_members(alive, &becauses, found, &here)
    };
    let (of_7, of_8) = (finding("idle", 7, 100), finding("idle", 8, 100));
    assert_eq!(of(&[&seven, &eight], &[&of_7, &of_8]), Recheck::StillTrue);
    assert_eq!(of(&[&seven, &eight], &[&of_7]), Recheck::NoLonger);
    assert_eq!(of(&[&seven], &[&of_7]), Recheck::StillTrue, "8 has exited");
}

#[test]
fn possible_work_on_an_unread_gpu_makes_activity_unknown() {
    let mut snapshot = snapshot(&[1]);
    let files = ["/dev/nvidia0".into(), "/dev/nvidia1".into()];
    snapshot.processes[0].gpu_files = Some(files.into());
    let found = [finding("idle", 1, 100)];
    let found: Vec<&Finding> = found.iter().collect();
    let (one, because) = (member(1), [because(1)]);
    let recheck = |snapshot: &Snapshot| recheck_members(&[&one], &because, &found, snapshot);
    assert_eq!(recheck(&snapshot), Recheck::StillTrue);
    snapshot.gpus.push(Gpu { index: 1, ..Gpu::default() });
    assert_eq!(recheck(&snapshot), Recheck::Unknown, "one of its GPUs could not be read");
    snapshot.gpus[1].processes = Some(Vec::new());
    assert_eq!(recheck(&snapshot), Recheck::StillTrue);
}

#[test]
fn work_is_a_tenth_of_a_core_or_a_megabyte_per_second() {
    for (seconds, cpu_seconds, bytes, works) in [
        (0.3, 0.3, 1_000_000, false),
        (8.0, 0.9, 9_000_000, false),
        (8.0, 1.0, 0, true),
        (8.0, 0.0, 10_000_000, true),
        (60.0, 5.9, 59_000_000, false),
        (60.0, 6.0, 0, true),
        (60.0, 0.0, 60_000_000, true),
    ] {
        let used = JobWork { seconds, cpu_seconds, bytes };
        assert_eq!(is_work(used), works, "{used:?}");
    }
}

#[test]
fn saving_is_detected_even_if_it_starts_late() {
    for (seconds, cpu_seconds, bytes, saves) in [
        (30.0, 0.4, 1_000_000, false),
        (30.0, 0.6, 0, true),
        (5.0, 0.4, 0, false),
        (30.0, 0.0, 1 << 20, true),
        (0.4, 0.05, 0, true),
        (0.0, 0.0, 0, false),
    ] {
        let used = JobWork { seconds, cpu_seconds, bytes };
        assert_eq!(is_saving(used), saves, "{used:?}");
    }
}
