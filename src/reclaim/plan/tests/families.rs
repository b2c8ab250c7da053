//! Tests that families (runs, sessions, trainers and their workers) end as a whole or not at all.

use super::*;
use crate::reclaim::launcher::find_launcher;

#[test]
fn a_launcher_is_recognised_by_its_ranks_despite_its_name() {
    let launched_by = |program: &str, numbers: [&str; 2]| {
        let run = Run::new(|processes| {
            for (process, number) in processes.iter_mut().zip(numbers) {
                let parent = process.parent.clone().unwrap();
                let command = Some([Arc::from(program), "--control-port".into()].into());
                process.parent = Some(Arc::new(Parent { command, ..(*parent).clone() }));
                process.environment =
                    Some(Arc::new([(Arc::from("PMI_RANK"), Arc::from(number))].into()));
            }
        });
        find_launcher(&run.snapshot.processes[0], &run.snapshot).is_some()
    };
    for program in ["/usr/bin/hydra_pmi_proxy", "prted", "python"] {
        assert!(launched_by(program, ["0", "1"]), "{program}");
        assert!(launched_by(program, ["7", "6"]), "{program}");
        // A rank's own workers have the same number as the rank. Numbers that are not adjacent are from different runs.
        assert!(!launched_by(program, ["0", "0"]), "{program}");
        assert!(!launched_by(program, ["0", "4"]), "{program}");
        assert!(!launched_by(program, ["0", "x"]), "{program}");
    }
    assert!(!launched_by("-bash", ["0", "1"]) && !launched_by("/bin/sh", ["0", "1"]));
}

/// Returns the processes of a run: two ranks that torchrun started in separate sessions, and a worker of the first
/// rank.
fn processes_of_run() -> (Vec<Process>, Vec<Gpu>) {
    let launcher = Arc::new(Parent {
        pid: 60,
        start_ticks: Some(600),
        comm: Some("torchrun".into()),
        command: Some(["/venv/bin/python", "/venv/bin/torchrun", "train.py"].map(Arc::from).into()),
        ..Parent::default()
    });
    let rank = |pid, number: &str| Process {
        ppid: Some(60),
        parent: Some(Arc::clone(&launcher)),
        environment: Some(Arc::new(
            [
                ("TORCHELASTIC_RUN_ID", "7f3a"),
                ("RANK", number),
                ("LOCAL_RANK", number),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "localhost"),
                ("MASTER_PORT", "29500"),
            ]
            .map(|(name, value)| (Arc::from(name), Arc::from(value)))
            .into(),
        )),
        ..process(pid, "python -u train.py")
    };
    let worker = Process {
        ppid: Some(70),
        process_group: Some(70),
        session: Some(70),
        ..process(72, "python -u train.py")
    };
    let gpus = vec![gpu(0, &[(70, GIB)], 0), gpu(1, &[(71, GIB)], 0)];
    (vec![rank(70, "0"), rank(71, "1"), worker], gpus)
}

fn launcher_facts() -> Guarded {
    let torchrun = process(60, "python torchrun train.py");
    facts(&snapshot(at(0.0), &[torchrun], Vec::new()))[&60].clone()
}

struct Run {
    snapshot: Snapshot,
    families: Vec<Family>,
    facts: BTreeMap<u32, Guarded>,
    both: Vec<Finding>,
}

impl Run {
    fn new(change: impl FnOnce(&mut [Process])) -> Self {
        let (mut processes, gpus) = processes_of_run();
        change(&mut processes);
        Self {
            snapshot: snapshot(at(0.0), &processes, gpus),
            families: family(&[70, 71, 72], processes[0].parent.clone()),
            facts: facts(&snapshot(at(0.0), &processes, Vec::new())),
            both: processes[..2].iter().map(|process| finding(Kind::Idle, process)).collect(),
        }
    }

    fn plan(&self, findings: &[Finding], guard: &Guard) -> Plan {
        plan_with(findings, &self.snapshot, &self.families, &self.facts, guard)
    }
}

fn family(members: &[u32], launcher: Option<Arc<Parent>>) -> Vec<Family> {
    vec![Family {
        id: "family:70".into(),
        members: members.to_vec(),
        ties: std::collections::BTreeSet::new(),
        launcher,
        user: Some("ann".into()),
    }]
}

#[test]
fn a_run_is_ended_as_a_whole_through_its_launcher() {
    let mut run = Run::new(|_| ());
    run.facts.insert(60, launcher_facts());
    let both = run.both.clone();
    let plan = run.plan(&both, &guard());
    let [target] = &plan.targets[..] else {
        panic!("{plan:?}");
    };
    assert_eq!(pids(target), [70, 71, 72]);
    assert_eq!(target.launcher.as_ref().map(|launcher| launcher.pid), Some(60));
    let to = target.steps.iter().map(|step| match step {
        Step::Signal { recipients, grace_seconds, .. } => (*recipients, *grace_seconds),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        to.collect::<Vec<_>>(),
        [
            (Recipients::Launcher, 35.0),
            (Recipients::Family, 30.0),
            (Recipients::Launcher, 5.0),
            (Recipients::Family, 5.0)
        ]
    );
    assert_eq!(target.bytes, Some(2 * GIB));

    // Only one rank has a finding, so no rank is ended.
    let plan = run.plan(&both[..1], &guard());
    assert_eq!(reasons(&plan), [&Why::Family { pids: vec![71] }]);
    // The other rank is on GPU 1, so the selector does not match it.
    let mut on_other = both.clone();
    on_other[1].gpus[0].index = 1;
    let mut first = guard();
    first.policy.selected = selected(&run.snapshot, &on_other, "gpu:0");
    let plan = run.plan(&on_other, &first);
    assert_eq!(reasons(&plan), [&Why::Family { pids: vec![71] }]);
    // If a person names one rank, the plan refuses it: the launcher would restart the rank or end all ranks. The
    // refusal therefore names the launcher.
    let plan = run.plan(&[], &guard_naming(&[70]));
    let rank =
        Why::Rank { launcher: 60, program: "python torchrun train.py".into(), pids: vec![71] };
    assert_eq!((reasons(&plan), plan.targets.len()), (vec![&rank], 0));
    assert!(rank.to_string().contains("gpumem kill 60"), "{rank}");
    // The launcher's pid, or the pids of all of its ranks, select the whole run.
    for pids_named in [&[60][..], &[70, 71]] {
        let plan = run.plan(&[], &guard_naming(pids_named));
        assert_eq!(pids(&plan.targets[0]), [70, 71, 72]);
        assert_eq!(plan.targets[0].launcher.as_ref().map(|launcher| launcher.pid), Some(60));
        assert!(plan.refused.is_empty());
    }
    // Here, the ranks are separate families with the same launcher.
    let launcher = run.families[0].launcher.clone();
    run.families =
        [&[70, 72][..], &[71]].map(|members| family(members, launcher.clone()).remove(0)).into();
    let plan = run.plan(&both[..1], &guard());
    assert_eq!(reasons(&plan), [&Why::Family { pids: vec![71] }]);
    let plan = run.plan(&both, &guard());
    assert_eq!(pids(&plan.targets[0]), [70, 71, 72]);
    assert_eq!(plan.targets[0].launcher.as_ref().map(|launcher| launcher.pid), Some(60));
}

#[test]
fn an_exemption_of_the_launcher_is_respected() {
    let mut run = Run::new(|_| ());
    let keep = BTreeMap::from([(Arc::from("GPUMEM_KEEP"), Arc::from("yes"))]);
    run.facts.insert(60, Guarded { environment: Some(Arc::new(keep)), ..launcher_facts() });
    let even_kept = |mut guard: Guard| {
        guard.policy.even_kept = true;
        guard
    };
    let both = run.both.clone();
    for (findings, guard, is_taken) in [
        (&both[..], guard(), false),
        (&both[..], even_kept(guard()), false),
        (&[], guard_naming(&[60]), false),
        (&[], even_kept(guard_naming(&[60])), true),
    ] {
        let plan = run.plan(findings, &guard);
        assert_eq!(plan.targets.len(), usize::from(is_taken), "{plan:?}");
        let refused = |why: &&Why| matches!(why, Why::Protected { pid: 60, .. });
        assert_eq!(reasons(&plan).iter().any(refused), !is_taken, "{plan:?}");
    }
    // If the launcher's environment is unknown, the owner may have exempted it, so no rule ends it.
    run.facts.insert(60, Guarded { environment: None, ..launcher_facts() });
    assert!(run.plan(&both, &guard()).targets.is_empty());
    assert_eq!(run.plan(&[], &guard_naming(&[60])).targets.len(), 1);
}

#[test]
fn an_unrelated_process_in_the_session_is_not_a_member() {
    let in_session = |pid, ppid, command| Process {
        ppid: Some(ppid),
        process_group: Some(70),
        session: Some(70),
        ..process(pid, command)
    };
    let python = process(70, "python train.py");
    let processes = [
        python.clone(),
        in_session(71, 70, "python train.py"),
        in_session(72, 1, "python other.py"),
    ];
    let snapshot = snapshot(at(0.0), &processes, vec![gpu(0, &[(70, GIB)], 0)]);
    let families = family(&[70, 71, 72], None);
    for (findings, guard) in
        [(&[finding(Kind::Idle, &python)][..], guard()), (&[], guard_naming(&[70]))]
    {
        let plan = plan_with(findings, &snapshot, &families, &facts(&snapshot), &guard);
        assert_eq!(pids(&plan.targets[0]), [70, 71], "only its child");
    }
}

#[test]
fn a_protected_launcher_protects_its_run() {
    let others = Guarded { uid: Some(OWNER + 1), ..launcher_facts() };
    let another = Guarded { start_ticks: 1, ..launcher_facts() };
    for (launcher, is_unknown) in [(None, true), (Some(others), false), (Some(another), true)] {
        let mut run = Run::new(|_| ());
        run.facts.extend(launcher.map(|facts| (60, facts)));
        let plan = run.plan(&run.both, &guard());
        assert!(plan.targets.is_empty());
        let [Why::Protected { pid: 60, protection }, _] = reasons(&plan)[..] else {
            panic!("{plan:?}");
        };
        assert_eq!(matches!(protection, Protection::Unknown { .. }), is_unknown, "{plan:?}");
        assert_eq!(matches!(protection, Protection::OtherUser { .. }), !is_unknown, "{plan:?}");
    }
}

#[test]
fn an_exempt_member_protects_the_family() {
    let mut run = Run::new(|processes| {
        let kept = BTreeMap::from([("GPUMEM_KEEP".into(), "2999-01-01".into())]);
        processes[2].environment = Some(Arc::new(kept));
    });
    run.families[0].launcher = None;
    let plan = run.plan(&run.both, &guard());
    let [Why::Protected { pid: 72, protection }, _] = reasons(&plan)[..] else {
        panic!("{plan:?}");
    };
    assert!(matches!(protection, Protection::Kept { .. }));
}

#[test]
fn a_working_member_protects_idle_members() {
    for cpu_percent in [Some(80.0), None] {
        let mut run = Run::new(|processes| processes[2].cpu_percent = cpu_percent);
        run.families[0].launcher = None;
        let plan = run.plan(&run.both, &guard());
        let family = &Why::Family { pids: vec![72] };
        assert_eq!(reasons(&plan), [family, family], "every finding is listed");
    }
}

#[test]
fn workers_that_hold_a_dead_trainers_memory_are_ended() {
    let dead = Process { pid: 70, ..Process::default() };
    let worker = |pid| Process {
        process_group: Some(70),
        session: Some(70),
        ..process(pid, "python train.py")
    };
    let processes = [dead, worker(71), worker(72)];
    let snapshot = snapshot(at(0.0), &processes, vec![gpu(0, &[(70, 5 * GIB)], 0)]);
    let findings: Vec<Finding> =
        processes[1..].iter().map(|worker| finding(Kind::Orphan, worker)).collect();
    let families = family(&[70, 71, 72], None);
    let plan = plan_with(&findings, &snapshot, &families, &facts(&snapshot), &guard());
    let target = &plan.targets[0];
    assert_eq!((pids(target), &target.dead[..]), (vec![71, 72], &[70][..]));
    assert_eq!(target.bytes, Some(5 * GIB));
}
