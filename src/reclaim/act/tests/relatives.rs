//! Processes related to the target: supervisors, children, groups, launchers and their ranks.

use super::*;
use crate::reclaim::testing::OWNER;

#[test]
fn a_supervisor_that_takes_the_memory_again_is_reported() {
    let shell = Process { gpu_files: Some(Arc::default()), ..process(60, "bash run.sh") };
    let mut child = python();
    (child.ppid, child.parent_is_reaper) = (Some(60), Some(false));
    let mut play = ActScene::found(Kind::Idle, &[child]);
    ends_on(&mut play, 70, &[TERM]);
    play.control
        .get()
        .processes
        .insert(60, facts(&snapshot(at(0.0), &[shell], Vec::new()))[&60].clone());
    play.advance();
    play.at(0.5);
    // A second later the parent starts the next try, with other arguments.
    let (pid, mut next) = born(&play_world(), 95, 60, 60);
    next.command = Some(["python", "train.py", "--try", "2"].map(Arc::from).into());
    play.control.get().processes.insert(pid, next);
    play.now = 2.0;
    let mut again = process(95, "python train.py --try 2");
    again.start_ticks = Some(9095);
    play.shows(vec![again.clone()], vec![gpu(0, &[], 0)]);
    // It has the GPU open, and NVML does not list it yet.
    assert!(matches!(play.advance(), ActProgress::Waiting { .. }));
    play.now = 3.0;
    play.shows(vec![again], vec![gpu(0, &[(95, GIB / 2)], 0)]);
    let bytes = GIB / 2;
    let outcome = Outcome::Respawned { pid: 95, bytes };
    assert_eq!(play.advance(), ActProgress::Ended(outcome));
    assert!(play.sent().iter().all(|it| it.0 == 70));
}

fn play_world() -> ActScene {
    ActScene::found(Kind::Idle, &[python()])
}

#[test]
fn what_was_adopted_meanwhile_does_not_take_its_place() {
    let started_again = |takes: bool, change: fn(&mut Guarded)| {
        let mut play = ActScene::found(Kind::Idle, &[python()]);
        ends_on(&mut play, 70, &[TERM]);
        let (pid, mut next) = born(&play, 95, 1, 95);
        change(&mut next);
        play.advance();
        play.control.get().processes.insert(pid, next);
        play.now = 1.0;
        let again = Process { start_ticks: Some(9095), ..process(95, "python train.py") };
        let rows: &[(u32, u64)] = if takes { &[(95, GIB)] } else { &[] };
        play.shows(vec![again], vec![gpu(0, rows, 0)]);
        matches!(play.advance(), ActProgress::Ended(Outcome::Respawned { pid: 95, .. }))
    };
    assert!(started_again(false, |_| {}));
    assert!(started_again(false, |next| next.session = Some(70)));
    // The same command from another login or another user does not count.
    assert!(!started_again(false, |next| next.session = Some(93)));
    assert!(!started_again(false, |next| next.uid = Some(OWNER + 1)));
    // It forked, or restarted itself in its own session, and holds the GPU.
    assert!(started_again(true, |next| next.session = Some(93)));
    assert!(!started_again(true, |next| next.uid = Some(OWNER + 1)));
    assert!(!started_again(true, |next| next.command = None));
}

#[test]
fn a_rule_ends_none_whose_children_hold_a_gpu_and_are_not_in_the_plan() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    let mut between = play.control.get().processes[&70].clone();
    (between.start_ticks, between.ppid) = (701, Some(70));
    between.gpu_files = Some(Arc::default());
    let mut grandchild = between.clone();
    (grandchild.start_ticks, grandchild.ppid) = (702, Some(71));
    grandchild.gpu_files = python().gpu_files;
    play.control.get().processes.insert(71, between);
    play.control.get().processes.insert(72, grandchild);
    let why = Protection::Descendants { pids: vec![72] };
    let outcome = Outcome::Protected { why };
    assert_eq!(play.advance(), ActProgress::Ended(outcome));
    assert!(play.sent().is_empty());
}

#[test]
fn who_was_there_before_is_not_taken_for_a_child() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    // `python train.py | tee log` is one process group.
    let mut tee = play.control.get().processes[&70].clone();
    tee.start_ticks = 701;
    (tee.ppid, tee.process_group) = (Some(60), Some(70));
    play.control.get().processes.insert(71, tee);
    ends_on(&mut play, 70, &[KILL]);
    assert!(matches!(play.play_on(), Outcome::Freed { .. }));
    assert!(play.sent().iter().all(|it| it.0 == 70), "{:?}", play.sent());
}

#[test]
fn a_group_that_is_not_its_own_is_not_swept() {
    // A process that a script starts next is in the same group but not in the family.
    let mut in_script = python();
    in_script.process_group = Some(60);
    in_script.session = Some(50);
    let mut play = ActScene::found(Kind::Idle, &[in_script]);
    let mut script = play.control.get().processes[&70].clone();
    (script.start_ticks, script.ppid) = (600, Some(50));
    play.control.get().processes.insert(60, script.clone());
    (script.start_ticks, script.ppid) = (500, Some(1));
    (script.process_group, script.session) = (Some(50), Some(50));
    play.control.get().processes.insert(50, script);
    let mut next = play.control.get().processes[&70].clone();
    (next.start_ticks, next.ppid) = (9000, Some(60));
    next.command = Some(["python", "next.py"].map(Arc::from).into());
    play.control.get().forks.insert(70, vec![(91, next)]);
    ends_on(&mut play, 70, &[KILL]);
    play.play_on();
    assert!(play.sent().iter().all(|it| it.0 == 70), "{:?}", play.sent());
}

#[test]
fn the_launcher_goes_first_and_the_ranks_are_swept() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    let mut torchrun = play.control.get().processes[&70].clone();
    (torchrun.start_ticks, torchrun.ppid) = (600, Some(50));
    (torchrun.process_group, torchrun.session) = (Some(60), Some(60));
    let mut target = play.act.target().clone();
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
    play.act = Act::new(target.clone(), Arc::new(guard()), Actor::default());
    play.control.get().processes.insert(60, torchrun.clone());
    ends_on(&mut play, 70, &[TERM]);
    assert_eq!(play.advance(), ActProgress::Waiting { until: at(35.0) });
    assert_eq!(play.sent(), [(60, TERM)]);
    play.control.get().end(60);
    // The launcher exited without its rank, so the rank is signalled at once.
    play.at(2.0);
    assert_eq!(play.sent(), [(60, TERM), (70, TERM)]);
    assert!(matches!(play.play_on(), Outcome::Freed { .. }));

    // The launcher ends the rank itself, so no process is left to signal.
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.act = Act::new(target, Arc::new(guard()), Actor::default());
    play.control.get().processes.insert(60, torchrun);
    play.advance();
    play.control.get().end(70);
    assert!(matches!(play.play_on(), Outcome::Freed { .. }));
    assert_eq!(play.sent(), [(60, TERM)]);
}
