//! Tests that a finding is marked as reclaimable if and only if a plan for all users includes it.

use std::sync::Arc;

use super::*;
use crate::model::finding::{Action, Kind};
use crate::model::keep::Exempt;
use crate::model::snapshot::{PidNamespace, ProcessType};
use crate::model::testing::rounds;
use crate::model::{Identity, Reclaimable};
use crate::reclaim::target::{Reason, Target};
use crate::reclaim::testing::{BOOT, at, facts, finding, gpu, plan_with, process, snapshot};
use crate::units::GIB;
use crate::watch::sample::dice::Dice;

/// Returns a guard for root. No process of the tests is an ancestor of gpumem.
fn root(policy: Policy) -> Guard {
    Guard {
        policy,
        ourselves: Ourselves {
            pid: 900,
            may_signal_others: true,
            pid_namespace: Some(PidNamespace::Host),
            boot_id: Some(BOOT.into()),
            ..Ourselves::default()
        },
    }
}

/// Picks a random machine, findings and configuration. Members of the machine's jobs can be exempt, working,
/// graphics-only, serving, protected, in another pid namespace, or without a finding.
fn machine(dice: &mut Dice) -> (Vec<Finding>, Snapshot, Policy) {
    let mut processes: Vec<Process> = Vec::new();
    let (mut findings, mut policy) = (Vec::new(), default_policy());
    let mut rows: Vec<(u32, u64)> = Vec::new();
    for job in 0..1 + dice.roll(6) as u32 {
        let leader = 1000 + job * 10;
        for pid in leader..=leader + dice.roll(4) as u32 {
            let command = match dice.roll(8) {
                0 => "vllm serve m",
                1 => "sshd -D",
                _ => "python train.py",
            };
            let keep = [(Arc::from("GPUMEM_KEEP"), Arc::from("yes"))];
            let variables = match dice.roll(10) {
                0 => keep.into(),
                _ => BTreeMap::new(),
            };
            let mut process = Process {
                ppid: Some(if pid == leader { 1 } else { leader }),
                process_group: Some(leader),
                session: Some(leader),
                environment: Some(Arc::new(variables)),
                uid: Some(1000 + dice.roll(2) as u32),
                cpu_percent: Some(if dice.chance() { 90.0 } else { 0.0 }),
                unresolved: (dice.roll(15) == 0).then(|| "who knows".into()),
                ..process(pid, command)
            };
            if command.starts_with("sshd") {
                process.executable = Some("/usr/sbin/sshd".into());
            }
            if dice.roll(12) == 0 {
                process.gpu_files = Some(Arc::default());
            }
            if dice.roll(12) == 0 {
                policy.kept.push(Exempt {
                    identity: process.identity(),
                    kinds: match dice.chance() {
                        true => vec![Kind::Orphan],
                        false => Vec::new(),
                    },
                    rules: Vec::new(),
                    reason: "night run".into(),
                    until: None,
                });
            }
            let bytes = (1 + dice.roll(8)) * GIB / 4;
            if dice.roll(5) > 0 {
                rows.push((pid, bytes));
            }
            let kinds = [Kind::Idle, Kind::Orphan, Kind::Stopped, Kind::Placeholder, Kind::Leak];
            for kind in kinds {
                if dice.roll(3) > 0 {
                    continue;
                }
                let mut found = finding(kind, &process);
                found.memory_bytes = Some(bytes);
                if dice.chance() {
                    found.actions.retain(|action| *action == Action::Notify);
                }
                findings.push(found);
            }
            // A process can have exited since the finding was made.
            if dice.roll(15) > 0 {
                processes.push(process);
            }
        }
    }
    let mut snapshot = snapshot(at(0.0), &processes, vec![gpu(0, &rows, 0), gpu(1, &[], 0)]);
    for row in snapshot.gpus[0].processes.iter_mut().flatten() {
        if dice.roll(10) == 0 {
            row.kind = ProcessType::Graphics;
        }
    }
    match dice.roll(12) {
        0 => snapshot.host.pid_namespace = Some(PidNamespace::Container),
        1 => snapshot.gpus[1].processes = None,
        _ => {}
    }
    (findings, snapshot, policy)
}

fn accused(target: &Target) -> Vec<u32> {
    match &target.reason {
        Reason::Found { findings } => findings.iter().map(|finding| finding.pid).collect(),
        Reason::Named => Vec::new(),
    }
}

#[test]
fn the_headline_matches_a_plan_for_all_users() {
    let (mut taken, mut left) = (0, 0);
    for seed in 1..=rounds(200) {
        let mut dice = Dice(seed * 0x9e37_79b9);
        let (mut findings, snapshot, policy) = machine(&mut dice);
        let whole = Reclaimable::new(findings.iter(), [].iter());
        let (by_snapshot, _) = plan_by_snapshot(policy.clone(), &findings, &snapshot);
        let marks = marks(&findings, &by_snapshot);
        findings.iter_mut().for_each(|finding| finding.mark_planned(&marks));
        let headline = Reclaimable::new(findings.iter(), [].iter());

        let families = families(&snapshot);
        let plan = plan_with(&findings, &snapshot, &families, &facts(&snapshot), &root(policy));
        let pids: Vec<u32> = plan.targets.iter().flat_map(accused).collect();
        let mut identities: Vec<Identity> = Vec::new();
        for finding in findings.iter().filter(|finding| finding.is_reclaimable()) {
            let process = finding.process.as_ref().unwrap();
            assert!(pids.contains(&process.pid), "{seed}: {finding:?}\n{plan:?}");
            identities.push(process.identity);
        }
        identities.sort_unstable_by_key(|process| process.pid);
        identities.dedup();
        assert!(headline.processes <= identities.len(), "{seed}");
        // The headline counts exactly the processes in the plan.
        let mut planned = pids.clone();
        planned.sort_unstable();
        planned.dedup();
        assert_eq!(headline.processes, planned.len(), "{seed}: {plan:?}");
        let bytes: u64 = plan.targets.iter().filter_map(|target| target.bytes).sum();
        assert!(headline.bytes >= bytes, "{seed}: {headline:?} {plan:?}");
        let unlisted =
            |pid: &&u32| snapshot.gpus[0].processes.iter().flatten().all(|row| row.pid != **pid);
        if !planned.iter().any(|pid| unlisted(&pid)) {
            assert_eq!(headline.bytes, bytes, "{seed}: {headline:?} {plan:?}");
        }
        taken += headline.processes;
        left += whole.processes - headline.processes;
    }
    // Both outcomes must be common.
    assert!(taken > 50 && left > 50, "{taken} {left}");
}

#[test]
fn a_family_with_an_exempt_member_is_skipped() {
    let job = |pid| Process {
        process_group: Some(70),
        session: Some(70),
        ..process(pid, "python train.py")
    };
    let (idle, kept) = (job(70), job(71));
    let snapshot =
        snapshot(at(0.0), &[idle.clone(), kept.clone()], vec![gpu(0, &[(70, GIB), (71, GIB)], 0)]);
    let mut policy = default_policy();
    policy.kept.push(Exempt {
        identity: kept.identity(),
        kinds: Vec::new(),
        rules: Vec::new(),
        reason: "night run".into(),
        until: None,
    });
    // Process 71 is exempt from all rules, so it has no finding.
    let mut found = [finding(Kind::Idle, &idle)];
    let marks_of = |found: &[Finding], policy: &Policy| {
        marks(found, &plan_by_snapshot(policy.clone(), found, &snapshot).0)
    };
    found[0].mark_planned(&marks_of(&found, &policy));
    let why = found[0].skipped.as_deref().unwrap();
    assert!(why.contains("71 of its job have no finding"), "{why}");
    assert!(found[0].is_offered() && !found[0].is_reclaimable());
    let sum = Reclaimable::new(found.iter(), [].iter());
    assert_eq!((sum.bytes, sum.processes), (0, 0));

    policy.kept.clear();
    let both = [finding(Kind::Idle, &idle), finding(Kind::Idle, &kept)];
    assert!(marks_of(&both, &policy).iter().all(|mark| mark.skipped.is_none()));
}

#[test]
fn a_run_with_its_launcher_off_gpu_is_reclaimable() {
    let launcher = Arc::new(crate::model::snapshot::Parent {
        pid: 60,
        start_ticks: Some(600),
        comm: Some("torchrun".into()),
        command: Some(["/venv/bin/torchrun", "train.py"].map(Arc::from).into()),
        ..crate::model::snapshot::Parent::default()
    });
    let rank = |pid| Process {
        ppid: Some(60),
        parent: Some(Arc::clone(&launcher)),
        process_group: Some(60),
        session: Some(60),
        ..process(pid, "python -u train.py")
    };
    let ranks = [rank(70), rank(71)];
    let gpus = vec![gpu(0, &[(70, GIB), (71, GIB)], 0)];
    let snapshot = snapshot(at(0.0), &ranks, gpus);
    let found = ranks.each_ref().map(|rank| finding(Kind::Idle, rank));
    let marks_of =
        |found: &[Finding]| marks(found, &plan_by_snapshot(default_policy(), found, &snapshot).0);
    assert!(marks_of(&found).iter().all(|mark| mark.skipped.is_none()));
    let one = marks_of(&found[..1]);
    assert!(one[0].skipped.as_deref().unwrap().contains("71 of its job"), "{one:?}");
}
