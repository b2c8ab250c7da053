//! Tests children that start while their parents are being ended.

use super::*;

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
    let kept =
        Outcome::from_protection(Protection::KeptByOwner { user: Some("ann".into()), until: None });
    assert_eq!(test.advance(), ActProgress::Ended(kept));
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
    guard.policy.keeps = Keeps::new(|process, _| process.pid == 91);
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
