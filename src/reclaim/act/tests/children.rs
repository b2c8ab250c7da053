//! Children that start while their parents are being ended.

use super::*;

#[test]
fn a_child_that_is_born_while_its_parent_is_killed_is_killed_too() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    let own = born(&play, 91, 70, 70);
    // In the same group and session, but no child of a held process, so it may be unrelated.
    let mut in_group = born(&play, 92, 1, 70);
    in_group.1.command = None;
    let stranger = born(&play, 93, 60, 93);
    play.control.get().forks.insert(70, vec![own, in_group, stranger]);
    for pid in [70, 91, 92, 93] {
        ends_on(&mut play, pid, &[KILL]);
    }
    let outcome = play.play_on();
    assert!(matches!(outcome, Outcome::Freed { .. }), "{outcome:?}");
    assert_eq!(killed(&play), [91, 70], "and no other; its leader last");
    let to_others = |it: &&(u32, Signal)| it.0 > 91;
    assert_eq!(play.sent().iter().find(to_others), None);
    let named = |line: &LedgerEntry| match &line.event {
        LedgerEvent::Intended(Deed::Signal { processes, .. }) => {
            processes.iter().any(|it| it.pid == 91)
        }
        _ => false,
    };
    assert!(play.pages.lines.iter().any(named), "the ledger names it");
}

#[test]
fn what_was_just_born_is_not_added() {
    // Between fork and exec a child looks like its parent.
    for (seconds, expected) in [(9.5, &[70][..]), (9.0, &[91, 70])] {
        let mut play = ActScene::named(&[python()], guard());
        play.advance();
        play.now = seconds;
        let child = born(&play, 91, 70, 70);
        play.control.get().processes.insert(child.0, child.1);
        play.show(0);
        play.advance();
        play.at(10.0);
        assert_eq!(killed(&play), expected);
    }
}

#[test]
fn what_executes_another_program_is_asked_for_its_own_environment() {
    let mut play = ActScene::named(&[python()], guard());
    let child = born(&play, 91, 70, 70);
    play.control.get().forks.insert(70, vec![child]);
    play.advance();
    play.at(0.1);
    play.at(2.0);
    // The child has a handle by now, and the snapshot still shows the old state.
    let kept = BTreeMap::from([("GPUMEM_KEEP".into(), "yes".into())]);
    play.control.get().processes.get_mut(&91).unwrap().environment = Some(Arc::new(kept));
    let mut child = python();
    (child.pid, child.start_ticks) = (91, Some(9091));
    play.now = 10.0;
    play.shows(vec![python(), child], vec![gpu(0, &[(70, GIB), (91, GIB)], 0)]);
    let kept = Outcome::of(Protection::KeptByOwner { user: Some("ann".into()), until: None });
    assert_eq!(play.advance(), ActProgress::Ended(kept));
    assert!(killed(&play).is_empty());
}

type Change = fn(&mut Guarded);

#[test]
fn what_is_born_is_asked_all_that_a_member_is_asked() {
    let keep = |value: &str| {
        let keep = BTreeMap::from([("GPUMEM_KEEP".into(), value.into())]);
        Some(Arc::new(keep))
    };
    let cases: [(&str, Change); 5] = [
        ("no GPU open", |it| it.gpu_files = Some(Arc::default())),
        ("descriptors not known", |it| it.gpu_files = None),
        ("another owner", |it| it.uid = Some(4711)),
        ("protected", |it| it.oom_score_adj = Some(-1000)),
        ("environment not known", |it| it.environment = None),
    ];
    for (why, change) in cases {
        let mut play = ActScene::found(Kind::Idle, &[python()]);
        let (pid, mut facts) = born(&play, 91, 70, 70);
        change(&mut facts);
        play.control.get().forks.insert(70, vec![(pid, facts)]);
        ends_on(&mut play, 70, &[KILL]);
        play.play_on();
        // A rule does not end a target if a child that may hold a GPU would remain.
        let expected: &[u32] = if why == "no GPU open" { &[70] } else { &[] };
        assert_eq!(killed(&play), expected, "{why}");
        assert!(play.sent().iter().all(|it| it.0 == 70), "{why}");
    }
    for (value, expected) in [("yes", &[][..]), ("no", &[91, 70])] {
        let mut play = ActScene::found(Kind::Idle, &[python()]);
        let (pid, mut facts) = born(&play, 91, 70, 70);
        facts.environment = keep(value);
        play.control.get().forks.insert(70, vec![(pid, facts)]);
        for pid in [70, 91] {
            ends_on(&mut play, pid, &[KILL]);
        }
        play.play_on();
        assert_eq!(killed(&play), expected, "GPUMEM_KEEP={value}");
    }
    let mut guard = guard();
    guard.policy.keeps = Keeps::new(|process, _| process.pid == 91);
    let mut play = ActScene::named(&[python()], guard);
    let child = born(&play, 91, 70, 70);
    play.control.get().forks.insert(70, vec![child]);
    ends_on(&mut play, 70, &[KILL]);
    play.play_on();
    assert_eq!(killed(&play), [70]);
}

#[test]
fn what_a_handler_starts_to_save_its_work_is_left_alone() {
    // The target ends, and its child keeps running after the memory is freed.
    for outlives in [false, true] {
        let mut play = ActScene::found(Kind::Idle, &[python()]);
        let (pid, mut upload) = born(&play, 91, 70, 91);
        upload.gpu_files = Some(Arc::default());
        upload.command = Some(["aws", "s3", "cp"].map(Arc::from).into());
        play.control.get().forks.insert(70, vec![(pid, upload)]);
        ends_on(&mut play, 70, if outlives { &[KILL] } else { &[TERM] });
        let outcome = play.play_on();
        assert!(matches!(outcome, Outcome::Freed { .. }), "{outcome:?}");
        assert!(play.sent().iter().all(|it| it.0 == 70), "{:?}", play.sent());
        assert!(play.control.get().processes.contains_key(&91));
    }
}
