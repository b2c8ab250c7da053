//! Tests relatives of the target: supervisors, children that start during the act, launchers and their ranks.

use super::*;
use crate::reclaim::testing::OWNER;
use crate::rules::exemption::Exemption;
use crate::rules::testing::scope;

#[test]
fn a_restart_by_the_supervisor_is_reported() {
    let shell = Process { gpu_files: Some(Arc::default()), ..process(60, "bash run.sh") };
    let mut child = python();
    (child.ppid, child.parent_is_reaper) = (Some(60), Some(false));
    let mut test = ActTest::for_findings(Kind::Idle, &[child]);
    exit_on(&mut test, 70, &[TERM]);
    test.control
        .get()
        .processes
        .insert(60, facts(&snapshot(at(0.0), &[shell], Vec::new()))[&60].clone());
    test.advance();
    test.advance_at(0.5);
    // A second later, the parent restarts the program with different arguments.
    let (pid, mut next) = new_child(&python_test(), 95, 60, 60);
    next.command = Some(["python", "train.py", "--try", "2"].map(Arc::from).into());
    test.control.get().processes.insert(pid, next);
    test.now = 2.0;
    let mut again = process(95, "python train.py --try 2");
    again.start_ticks = Some(9095);
    test.set_snapshot(vec![again.clone()], vec![gpu(0, &[], 0)]);
    // The new process has a GPU open, but NVML does not list it yet.
    assert!(matches!(test.advance(), ActProgress::Waiting { .. }));
    test.now = 3.0;
    test.set_snapshot(vec![again], vec![gpu(0, &[(95, GIB / 2)], 0)]);
    let bytes = GIB / 2;
    let outcome = Outcome::Respawned { pid: 95, bytes };
    assert_eq!(test.advance(), ActProgress::Ended(outcome));
    assert!(test.sent().iter().all(|sent| sent.0 == 70));
}

fn python_test() -> ActTest {
    ActTest::for_findings(Kind::Idle, &[python()])
}

#[test]
fn an_unrelated_adopted_process_is_not_a_successor() {
    let started_again = |takes: bool, change: fn(&mut Guarded)| {
        let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
        exit_on(&mut test, 70, &[TERM]);
        let (pid, mut next) = new_child(&test, 95, 1, 95);
        change(&mut next);
        test.advance();
        test.control.get().processes.insert(pid, next);
        test.now = 1.0;
        let again = Process { start_ticks: Some(9095), ..process(95, "python train.py") };
        let rows: &[(u32, u64)] = if takes { &[(95, GIB)] } else { &[] };
        test.set_snapshot(vec![again], vec![gpu(0, rows, 0)]);
        matches!(test.advance(), ActProgress::Ended(Outcome::Respawned { pid: 95, .. }))
    };
    assert!(started_again(false, |_| {}));
    assert!(started_again(false, |next| next.session = Some(70)));
    // A process with the same command in another session or of another user is not a successor.
    assert!(!started_again(false, |next| next.session = Some(93)));
    assert!(!started_again(false, |next| next.uid = Some(OWNER + 1)));
    // A successor in its own session must hold the GPU. The ended process may have forked, or restarted itself.
    assert!(started_again(true, |next| next.session = Some(93)));
    assert!(!started_again(true, |next| next.uid = Some(OWNER + 1)));
    assert!(!started_again(true, |next| next.command = None));
}

#[test]
fn a_rule_spares_parents_of_unplanned_gpu_processes() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    let mut between = test.control.get().processes[&70].clone();
    (between.start_ticks, between.ppid) = (701, Some(70));
    between.gpu_files = Some(Arc::default());
    let mut grandchild = between.clone();
    (grandchild.start_ticks, grandchild.ppid) = (702, Some(71));
    grandchild.gpu_files = python().gpu_files;
    test.control.get().processes.insert(71, between);
    test.control.get().processes.insert(72, grandchild);
    let why = Protection::Descendants { pids: vec![72] };
    let outcome = Outcome::Protected { why };
    assert_eq!(test.advance(), ActProgress::Ended(outcome));
    assert!(test.sent().is_empty());
}

#[test]
fn an_existing_process_is_not_added_as_a_child() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    // `python train.py | tee log` runs as one process group.
    let mut tee = test.control.get().processes[&70].clone();
    tee.start_ticks = 701;
    (tee.ppid, tee.process_group) = (Some(60), Some(70));
    test.control.get().processes.insert(71, tee);
    exit_on(&mut test, 70, &[KILL]);
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));
    assert!(test.sent().iter().all(|sent| sent.0 == 70), "{:?}", test.sent());
}

#[test]
fn processes_in_another_leaders_group_are_not_signalled() {
    // The script may start unrelated processes later, and they are in the same group.
    let mut in_script = python();
    in_script.process_group = Some(60);
    in_script.session = Some(50);
    let mut test = ActTest::for_findings(Kind::Idle, &[in_script]);
    let mut script = test.control.get().processes[&70].clone();
    (script.start_ticks, script.ppid) = (600, Some(50));
    test.control.get().processes.insert(60, script.clone());
    (script.start_ticks, script.ppid) = (500, Some(1));
    (script.process_group, script.session) = (Some(50), Some(50));
    test.control.get().processes.insert(50, script);
    let mut next = test.control.get().processes[&70].clone();
    (next.start_ticks, next.ppid) = (9000, Some(60));
    next.command = Some(["python", "next.py"].map(Arc::from).into());
    test.control.get().forks.insert(70, vec![(91, next)]);
    exit_on(&mut test, 70, &[KILL]);
    test.run_to_end();
    assert!(test.sent().iter().all(|sent| sent.0 == 70), "{:?}", test.sent());
}

#[test]
fn the_launcher_is_signalled_before_its_ranks() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    let mut torchrun = test.control.get().processes[&70].clone();
    (torchrun.start_ticks, torchrun.ppid) = (600, Some(50));
    (torchrun.process_group, torchrun.session) = (Some(60), Some(60));
    let mut target = test.act.target().clone();
    let member = target.members[0].clone();
    target.launcher = Some(TargetProcess {
        pid: 60,
        start_ticks: 600,
        gpus: Vec::new(),
        is_listed: false,
        process_group: Some(60),
        session: Some(60),
        ..member
    });
    let signal = |signal, to, grace_seconds| Step::Signal { signal, recipients: to, grace_seconds };
    target.steps = vec![
        signal(TERM, Recipients::Launcher, 35.0),
        signal(TERM, Recipients::Family, 10.0),
        signal(KILL, Recipients::Launcher, 5.0),
        signal(KILL, Recipients::Family, 5.0),
    ];
    test.act = Act::new(target.clone(), Arc::new(guard()), Actor::default());
    test.control.get().processes.insert(60, torchrun.clone());
    exit_on(&mut test, 70, &[TERM]);
    assert_eq!(test.advance(), ActProgress::Waiting { until: at(35.0) });
    assert_eq!(test.sent(), [(60, TERM)]);
    test.control.get().end(60);
    // The launcher exited, but its rank did not, so the rank is signalled immediately.
    test.advance_at(2.0);
    assert_eq!(test.sent(), [(60, TERM), (70, TERM)]);
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));

    // If the rank ends together with its launcher, only the launcher is signalled.
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.act = Act::new(target, Arc::new(guard()), Actor::default());
    test.control.get().processes.insert(60, torchrun);
    test.advance();
    test.control.get().end(70);
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));
    assert_eq!(test.sent(), [(60, TERM)]);
}

#[test]
fn a_child_started_during_the_act_is_killed() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    let child = new_child(&test, 91, 70, 70);
    // Process 92 is in the target's group and session, but is not a child of the target.
    let mut in_group = new_child(&test, 92, 1, 70);
    in_group.1.command = None;
    let stranger = new_child(&test, 93, 60, 93);
    test.control.get().forks.insert(70, vec![child, in_group, stranger]);
    for pid in [70, 91, 92, 93] {
        exit_on(&mut test, pid, &[KILL]);
    }
    let outcome = test.run_to_end();
    assert!(matches!(outcome, Outcome::Freed { .. }), "{outcome:?}");
    assert_eq!(killed_pids(&test), [91, 70], "only the family, its leader last");
    let to_others = |sent: &&(u32, Signal)| sent.0 > 91;
    assert_eq!(test.sent().iter().find(to_others), None);
    let is_named = |line: &LedgerEntry| match &line.event {
        LedgerEvent::Intended(Deed::Signal { processes, .. }) => {
            processes.iter().any(|process| process.pid == 91)
        }
        _ => false,
    };
    assert!(test.ledger.lines.iter().any(is_named), "the ledger names it");
}

#[test]
fn a_child_younger_than_a_second_is_not_added() {
    // Between fork and exec, a child has its parent's program and open files, so the act waits until the child is a
    // second old.
    for (seconds, expected) in [(9.5, &[70][..]), (9.0, &[91, 70])] {
        let mut test = ActTest::for_named(&[python()], guard());
        test.advance();
        test.now = seconds;
        let child = new_child(&test, 91, 70, 70);
        test.control.get().processes.insert(child.0, child.1);
        test.take_snapshot(0);
        test.advance();
        test.advance_at(10.0);
        assert_eq!(killed_pids(&test), expected);
    }
}

#[test]
fn the_current_environment_of_a_child_is_checked() {
    let mut test = ActTest::for_named(&[python()], guard());
    let child = new_child(&test, 91, 70, 70);
    test.control.get().forks.insert(70, vec![child]);
    test.advance();
    test.advance_at(0.1);
    test.advance_at(2.0);
    // The act has added the child. The child's exemption is newer than the snapshot.
    let kept = BTreeMap::from([("GPUMEM_KEEP".into(), "yes".into())]);
    test.control.get().processes.get_mut(&91).unwrap().environment = Some(Arc::new(kept));
    let mut child = python();
    (child.pid, child.start_ticks) = (91, Some(9091));
    test.now = 10.0;
    test.set_snapshot(vec![python(), child], vec![gpu(0, &[(70, GIB), (91, GIB)], 0)]);
    assert_eq!(test.advance(), ActProgress::Ended(kept_by_owner()));
    assert!(killed_pids(&test).is_empty());
}

type Change = fn(&mut Guarded);

#[test]
fn a_new_child_must_pass_every_check() {
    let keep = |value: &str| {
        let keep = BTreeMap::from([("GPUMEM_KEEP".into(), value.into())]);
        Some(Arc::new(keep))
    };
    let cases: [(&str, Change); 5] = [
        ("no GPU open", |facts| facts.gpu_files = Some(Arc::default())),
        ("unknown descriptors", |facts| facts.gpu_files = None),
        ("another owner", |facts| facts.uid = Some(4711)),
        ("protected", |facts| facts.oom_score_adj = Some(-1000)),
        ("unknown environment", |facts| facts.environment = None),
    ];
    for (why, change) in cases {
        let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
        let (pid, mut facts) = new_child(&test, 91, 70, 70);
        change(&mut facts);
        test.control.get().forks.insert(70, vec![(pid, facts)]);
        exit_on(&mut test, 70, &[KILL]);
        test.run_to_end();
        // A child that is not added but may hold a GPU would lose its parent, so an act for a rule spares the target.
        let expected: &[u32] = if why == "no GPU open" { &[70] } else { &[] };
        assert_eq!(killed_pids(&test), expected, "{why}");
        assert!(test.sent().iter().all(|sent| sent.0 == 70), "{why}");
    }
    for (value, expected) in [("yes", &[][..]), ("no", &[91, 70])] {
        let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
        let (pid, mut facts) = new_child(&test, 91, 70, 70);
        facts.environment = keep(value);
        test.control.get().forks.insert(70, vec![(pid, facts)]);
        for pid in [70, 91] {
            exit_on(&mut test, pid, &[KILL]);
        }
        test.run_to_end();
        assert_eq!(killed_pids(&test), expected, "GPUMEM_KEEP={value}");
    }
    let mut guard = guard();
    guard.policy.keeps = vec![Exemption {
        scope: scope("pid=91"),
        reason: "a demonstration".into(),
        until: None,
        kinds: Vec::new(),
        rules: Vec::new(),
    }];
    let mut test = ActTest::for_named(&[python()], guard);
    let child = new_child(&test, 91, 70, 70);
    test.control.get().forks.insert(70, vec![child]);
    exit_on(&mut test, 70, &[KILL]);
    test.run_to_end();
    assert_eq!(killed_pids(&test), [70]);
}

#[test]
fn a_child_that_saves_work_is_left_alone() {
    // The child keeps running after the target has exited, or while the target still runs.
    for outlives in [false, true] {
        let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
        let (pid, mut upload) = new_child(&test, 91, 70, 91);
        upload.gpu_files = Some(Arc::default());
        upload.command = Some(["aws", "s3", "cp"].map(Arc::from).into());
        test.control.get().forks.insert(70, vec![(pid, upload)]);
        exit_on(&mut test, 70, if outlives { &[KILL] } else { &[TERM] });
        let outcome = test.run_to_end();
        assert!(matches!(outcome, Outcome::Freed { .. }), "{outcome:?}");
        assert!(test.sent().iter().all(|sent| sent.0 == 70), "{:?}", test.sent());
        assert!(test.control.get().processes.contains_key(&91));
    }
}
