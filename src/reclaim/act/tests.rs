//! Every outcome, with simulated process control and time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::host::{Guarded, JobUsage};
use crate::model::finding::Finding;
use crate::model::snapshot::{Jupyter, PidNamespace};
use crate::model::{Gpu, Kind, Process};
use crate::reclaim::ledger::Deed;
use crate::reclaim::policy::{Keeps, Signal, Targets};
use crate::reclaim::process_control::NotSent;
use crate::reclaim::target::{Request, Step};
use crate::reclaim::testing::{
    FakeControl, Pages, Shared, at, facts, finding, gpu, guard, plan_of, process, snapshot,
};
use crate::units::GIB;

mod children;
mod kernels;
mod relatives;
mod release;

struct ActScene {
    act: Act,
    control: Shared<FakeControl>,
    pages: Pages,
    seen: Snapshot,
    recheck: Recheck,
    now: f64,
}

impl ActScene {
    fn of(target: Target, seen: Snapshot, guard: Guard) -> Self {
        Self {
            act: Act::new(target, Arc::new(guard), Actor::default()),
            control: Shared::new(FakeControl::of(&seen)),
            pages: Pages::default(),
            seen,
            recheck: Recheck::StillTrue,
            now: 0.0,
        }
    }

    /// An act for a finding of this kind on each process.
    fn found(kind: Kind, processes: &[Process]) -> Self {
        let findings: Vec<Finding> = processes.iter().map(|it| finding(kind, it)).collect();
        Self::planned(processes, &findings, guard())
    }

    /// An act for processes that a person named.
    fn named(processes: &[Process], mut guard: Guard) -> Self {
        guard.policy.targets = Targets::named(vec![processes[0].pid], Vec::new()).unwrap();
        Self::planned(processes, &[], guard)
    }

    fn planned(processes: &[Process], findings: &[Finding], mut guard: Guard) -> Self {
        guard.policy.grace.get_or_insert(Duration::from_secs(10));
        let rows: Vec<(u32, u64)> = processes.iter().map(|it| (it.pid, GIB)).collect();
        let seen = snapshot(at(0.0), processes, vec![gpu(0, &rows, 0)]);
        let mut plan = plan_of(findings, &seen, &guard);
        assert_eq!(plan.targets.len(), 1, "{:?}", plan.refused);
        Self::of(plan.targets.remove(0), seen, guard)
    }

    fn with_steps(mut self, change: impl FnOnce(&mut Vec<Step>)) -> Self {
        let mut target = self.act.target().clone();
        change(&mut target.steps);
        self.act = Act::new(target, Arc::new(guard()), Actor::default());
        self
    }

    /// Sets NVML's view: the living processes, and unaccounted memory.
    fn show(&mut self, loose: u64) {
        let alive = |it: &&Process| self.control.get().processes.contains_key(&it.pid);
        let processes: Vec<Process> = self.seen.processes.iter().filter(alive).cloned().collect();
        let rows: Vec<(u32, u64)> = processes.iter().map(|it| (it.pid, GIB)).collect();
        self.shows(processes, vec![gpu(0, &rows, loose)]);
    }

    fn shows(&mut self, processes: Vec<Process>, gpus: Vec<Gpu>) {
        self.seen = snapshot(at(self.now), &processes, gpus);
    }

    fn advance(&mut self) -> ActProgress {
        self.try_advance().unwrap()
    }

    fn try_advance(&mut self) -> Result<ActProgress, ledger::LedgerError> {
        let moment = StepInput { now: at(self.now), snapshot: &self.seen, recheck: self.recheck };
        self.act.advance(moment, &mut self.control, &mut self.pages)
    }

    /// Advances at the given time, with a snapshot taken then.
    fn at(&mut self, seconds: f64) -> ActProgress {
        self.now = seconds;
        self.show(0);
        self.advance()
    }

    /// Advances second by second to the end.
    fn play_on(&mut self) -> Outcome {
        for second in 0..200 {
            match self.at(self.now + f64::from(second > 0)) {
                ActProgress::Ended(outcome) => return outcome,
                ActProgress::Waiting { until } => assert!(until >= at(self.now)),
            }
        }
        panic!("no end: {:?}", self.control.get().sent);
    }

    fn sent(&self) -> Vec<(u32, Signal)> {
        self.control.get().sent.clone()
    }
}

fn python() -> Process {
    process(70, "python train.py")
}

fn ends_on(play: &mut ActScene, pid: u32, signals: &[Signal]) {
    play.control.get().ends_on.insert(pid, signals.to_vec());
}

const TERM: Signal = Signal::Term;
const KILL: Signal = Signal::Kill;

#[test]
fn who_obeys_is_asked_once_and_its_memory_seen_back() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    ends_on(&mut play, 70, &[TERM]);
    assert_eq!(play.advance(), ActProgress::Waiting { until: at(10.0) });
    assert_eq!(play.sent(), [(70, TERM)]);
    assert!(play.act.outcome().is_none());
    // It has exited, but older snapshots prove nothing.
    play.shows(Vec::new(), vec![gpu(0, &[], 0)]);
    play.now = 0.4;
    assert_eq!(play.advance(), ActProgress::Waiting { until: at(10.0) });
    assert!(play.act.alive().is_empty());
    let freed = Outcome::Freed { bytes: GIB, ms: 1500 };
    // The memory is freed. The act now watches for a successor.
    assert_eq!(play.at(1.5), ActProgress::Waiting { until: at(5.0) });
    assert_eq!(play.at(5.4), ActProgress::Ended(freed.clone()));
    assert_eq!(play.act.outcome(), Some(&freed));
    assert_eq!(play.sent().len(), 1, "no SIGKILL");
    // Later calls return the same outcome and do nothing.
    assert_eq!(play.at(99.0), ActProgress::Ended(freed));
    assert_eq!(play.sent().len(), 1);
}

#[test]
fn a_stopped_process_that_gpumem_continued_is_not_active() {
    let mut stopped = python();
    stopped.state = Some('T');
    let mut play = ActScene::found(Kind::Stopped, &[stopped.clone()]);
    ends_on(&mut play, 70, &[KILL]);
    play.advance();
    play.control.get().processes.get_mut(&70).unwrap().state = Some('S');
    play.recheck = Recheck::NoLonger;
    assert_eq!(play.at(5.0), ActProgress::Waiting { until: at(10.0) });
    assert!(matches!(play.play_on(), Outcome::Freed { .. }));

    // But using the GPU is activity.
    let mut play = ActScene::found(Kind::Stopped, &[stopped]);
    play.advance();
    play.recheck = Recheck::NoLonger;
    play.now = 5.0;
    play.show(0);
    play.seen.gpus[0].processes.as_mut().unwrap()[0].sm_percent = Some(40);
    assert_eq!(play.advance(), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert_eq!(play.sent().len(), 2);
}

#[test]
fn activity_cancels() {
    // Before the first signal.
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.recheck = Recheck::NoLonger;
    assert_eq!(play.advance(), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert!(play.sent().is_empty());
    // During the grace period, later signals are cancelled.
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.advance();
    play.recheck = Recheck::NoLonger;
    assert_eq!(play.at(3.0), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert_eq!(play.sent(), [(70, TERM)]);
    // No rule cancels what a person named.
    let mut play = ActScene::named(&[python()], guard());
    ends_on(&mut play, 70, &[KILL]);
    play.recheck = Recheck::NoLonger;
    assert!(matches!(play.play_on(), Outcome::Freed { .. }));
}

#[test]
fn what_is_not_known_waits_and_is_then_given_up() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.recheck = Recheck::Unknown;
    assert_eq!(play.advance(), ActProgress::Waiting { until: at(30.0) });
    assert_eq!(play.at(29.0), ActProgress::Waiting { until: at(30.0) });
    play.recheck = Recheck::StillTrue;
    play.at(29.5);
    assert_eq!(play.sent(), [(70, TERM)]);
    // An unknown verdict delays escalation.
    play.recheck = Recheck::Unknown;
    assert_eq!(play.at(45.0), ActProgress::Waiting { until: at(75.0) });
    assert_eq!(play.at(75.0), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert_eq!(play.sent(), [(70, TERM)]);
}

#[test]
fn who_is_gone_already_needs_nothing() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.control.get().end(70);
    assert_eq!(play.advance(), ActProgress::Ended(Outcome::AlreadyGone));
    assert!(play.sent().is_empty());
    // The process has released its memory.
    let mut play = ActScene::named(&[python()], guard());
    let mut free = python();
    free.gpu_files = Some(Arc::default());
    play.shows(vec![free], vec![gpu(0, &[], 0)]);
    assert_eq!(play.advance(), ActProgress::Ended(Outcome::AlreadyGone));
    assert!(play.sent().is_empty());
}

#[test]
fn another_process_of_that_number_is_never_sent_anything() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.control.get().processes.get_mut(&70).unwrap().start_ticks = 7777;
    assert_eq!(play.advance(), ActProgress::Ended(Outcome::IdentityChanged));
    // The pid is reused during the act.
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.advance();
    let mut other = play.control.get().processes[&70].clone();
    other.start_ticks = 7777;
    other.command = None;
    play.control.get().end(70);
    play.control.get().processes.insert(70, other);
    let mut stranger = python();
    stranger.start_ticks = Some(7777);
    play.now = 20.0;
    play.shows(vec![stranger], vec![gpu(0, &[(70, GIB)], 0)]);
    assert_eq!(play.advance(), ActProgress::Waiting { until: at(25.0) });
    play.now = 25.0;
    let outcome = play.advance();
    assert_eq!(play.sent(), [(70, TERM)]);
    assert!(
        matches!(outcome, ActProgress::Ended(Outcome::Freed { bytes: GIB, .. })),
        "{outcome:?}"
    );
}

#[test]
fn one_who_is_another_fails_the_whole_family() {
    let child = Process {
        ppid: Some(70),
        process_group: Some(70),
        session: Some(70),
        ..process(71, "python train.py")
    };
    for (error, outcome) in [
        (NotOpened::Changed(71), Outcome::IdentityChanged),
        (NotOpened::NoPidfd(71), Outcome::of(Protection::NoPidfd)),
        (
            NotOpened::Failed { pid: 71, error: "x".to_owned() },
            Outcome::of(Protection::NotHeld { error: "x".into() }),
        ),
    ] {
        let mut play = ActScene::found(Kind::Idle, &[python(), child.clone()]);
        play.control.get().refuses.insert(71, error);
        assert_eq!(play.advance(), ActProgress::Ended(outcome));
        assert!(play.sent().is_empty());
    }
    let mut play = ActScene::found(Kind::Idle, &[python(), child]);
    play.control.get().end(71);
    ends_on(&mut play, 70, &[TERM]);
    assert!(matches!(play.play_on(), Outcome::Freed { .. }));
    assert_eq!(play.sent(), [(70, TERM)]);
}

#[test]
fn what_protects_is_asked_again_at_the_deed() {
    type Change = fn(&mut Guarded);
    let tmux = || "tmux".into();
    let cases: [(Protection, Change); 2] = [
        (Protection::OomProtected, |it| it.oom_score_adj = Some(-1000)),
        (Protection::Program { name: tmux() }, |it| it.executable = Some("/usr/bin/tmux".into())),
    ];
    for (why, change) in cases {
        let mut play = ActScene::found(Kind::Idle, &[python()]);
        change(play.control.get().processes.get_mut(&70).unwrap());
        assert_eq!(play.advance(), ActProgress::Ended(Outcome::of(why)));
        assert!(play.sent().is_empty());
    }
    // Between two signals.
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.advance();
    play.now = 10.0;
    play.show(0);
    let keep = BTreeMap::from([("GPUMEM_KEEP".into(), "yes".into())]);
    play.control.get().processes.get_mut(&70).unwrap().environment = Some(Arc::new(keep));
    let kept = Outcome::of(Protection::KeptByOwner { user: Some("ann".into()), until: None });
    assert_eq!(play.advance(), ActProgress::Ended(kept));
    assert_eq!(play.sent(), [(70, TERM)]);
}

#[test]
fn in_another_namespace_no_rule_acts() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.seen.host.pid_namespace = Some(PidNamespace::Container);
    assert_eq!(play.advance(), ActProgress::Ended(Outcome::OtherNamespace));
    assert!(play.sent().is_empty());
}

#[test]
fn what_the_kernel_refuses_is_tried_once() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.control.get().rejects.insert(70, NotSent::NotPermitted);
    assert_eq!(play.advance(), ActProgress::Ended(Outcome::NotPermitted));
    let failures = play.pages.lines.iter().find_map(|line| match &line.event {
        LedgerEvent::Done { failures, .. } => Some(failures.len()),
        _ => None,
    });
    assert_eq!(failures, Some(1));
}

#[test]
fn a_process_that_outlives_every_signal_is_shown_with_its_wait_channel() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    assert_eq!(play.play_on(), Outcome::StillAlive);
    assert_eq!(play.sent().last(), Some(&(70, KILL)));
    assert_eq!(killed(&play), [70], "it is not tried again");

    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.control.get().held_up.insert(70, "uvm_spin_loop".to_owned());
    let wchan = "uvm_spin_loop".into();
    assert_eq!(play.play_on(), Outcome::StuckInDriver { wchan });
}

#[test]
fn to_exit_is_not_to_free() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    ends_on(&mut play, 70, &[TERM]);
    play.advance();
    let worker = process(71, "python train.py");
    for second in 1..10 {
        play.now = f64::from(second);
        play.shows(vec![worker.clone()], vec![gpu(0, &[], GIB)]);
        assert!(matches!(play.advance(), ActProgress::Waiting { .. }), "{second}");
    }
    play.now = 10.0;
    let holders = vec![71];
    assert_eq!(play.advance(), ActProgress::Ended(Outcome::ExitedNotFreed { holders }));
}

#[test]
fn who_takes_the_memory_again_is_not_done_with() {
    let mut play = ActScene::named(&[python()], guard());
    ends_on(&mut play, 70, &[KILL]);
    play.advance();
    let mut free = python();
    free.gpu_files = Some(Arc::default());
    play.now = 2.0;
    play.shows(vec![free], vec![gpu(0, &[], 0)]);
    assert!(matches!(play.advance(), ActProgress::Waiting { .. }));
    // Three seconds later the process holds as much as before.
    assert_eq!(play.at(5.0), ActProgress::Waiting { until: at(10.0) });
    assert!(matches!(play.play_on(), Outcome::Freed { .. }));
    assert_eq!(play.sent(), [(70, TERM), (70, KILL)]);
}

#[test]
fn who_still_works_is_waited_for() {
    // Bytes and CPU ticks in each second.
    let saving = [(1 << 21, 0), (0, 50)];
    let cases = [(0, 10), (7, 15), (22, 30), (5000, 600)];
    for ((bytes, ticks), (works_for, killed_at)) in
        saving.iter().flat_map(|it| cases.map(|case| (*it, case)))
    {
        let mut play = ActScene::found(Kind::Idle, &[python()]);
        ends_on(&mut play, 70, &[KILL]);
        for second in 0..=killed_at {
            let worked = u64::min(second, works_for);
            play.control.get().usage =
                JobUsage::of_one(70, second as f64, worked * ticks, worked * bytes);
            assert!(!play.sent().contains(&(70, KILL)), "{works_for}: before {second}");
            play.at(second as f64);
            let more_time = play.act.saving().is_some_and(|it| it.contains("still works"));
            assert_eq!(more_time, second >= 10 && second < killed_at, "{works_for}: at {second}");
        }
        assert!(play.sent().contains(&(70, KILL)), "{works_for}");
    }
}

#[test]
fn who_uses_the_gpu_after_a_signal_is_waited_for() {
    let mut play = ActScene::named(&[python()], guard());
    ends_on(&mut play, 70, &[KILL]);
    for (second, sm_percent, is_killed) in [(0, 0, false), (10, 30, false), (15, 0, true)] {
        play.now = f64::from(second);
        play.show(0);
        play.seen.gpus[0].processes.as_mut().unwrap()[0].sm_percent = Some(sm_percent);
        play.advance();
        assert_eq!(play.sent().contains(&(70, KILL)), is_killed, "{second}");
    }
}

#[test]
fn work_since_the_plan_cancels_what_a_rule_found() {
    let planned = |mut play: ActScene, cpu_ticks: u64| {
        let mut target = play.act.target().clone();
        target.used_at_plan = Some(Arc::new(JobUsage::of_one(70, 0.0, 100, 0)));
        play.act = Act::new(target, Arc::new(guard()), Actor::default());
        play.control.get().usage = JobUsage::of_one(70, 8.0, cpu_ticks, 0);
        play
    };
    let mut play = planned(ActScene::found(Kind::Idle, &[python()]), 900);
    assert_eq!(play.at(8.0), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert!(play.sent().is_empty());
    // A little CPU time is not work, and usage after a signal does not count.
    let mut play = planned(ActScene::found(Kind::Idle, &[python()]), 110);
    assert!(matches!(play.at(8.0), ActProgress::Waiting { .. }));
    assert_eq!(play.sent(), [(70, TERM)]);
    play.control.get().usage = JobUsage::of_one(70, 9.0, 900, 0);
    assert!(matches!(play.at(9.0), ActProgress::Waiting { .. }));
    // A named target continues.
    let mut play = planned(ActScene::named(&[python()], guard()), 900);
    play.at(8.0);
    assert_eq!(play.sent(), [(70, TERM)]);
}

#[test]
fn who_lets_go_and_lives_on_is_left_alone() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.advance();
    let mut free = python();
    free.gpu_files = Some(Arc::default());
    play.now = 2.0;
    play.shows(vec![free], vec![gpu(0, &[], 0)]);
    // The rule reports nothing, because the process holds nothing.
    play.recheck = Recheck::NoLonger;
    play.advance();
    play.now = 7.0;
    let outcome = play.advance();
    assert!(matches!(outcome, ActProgress::Ended(Outcome::Freed { .. })), "{outcome:?}");
    assert_eq!(play.sent(), [(70, TERM)]);
}

/// A process like 70 that started after the plan, with this parent and process group.
fn born(play: &ActScene, pid: u32, ppid: u32, group: u32) -> (u32, Guarded) {
    let mut facts = play.control.get().processes[&70].clone();
    facts.start_ticks = 9000 + u64::from(pid);
    (facts.ppid, facts.process_group, facts.session) = (Some(ppid), Some(group), Some(group));
    (pid, facts)
}

fn killed(play: &ActScene) -> Vec<u32> {
    let kills = play.sent().into_iter().filter(|it| it.1 == KILL);
    kills.map(|it| it.0).collect()
}

#[test]
fn who_ends_before_anything_is_sent_was_gone_already() {
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.recheck = Recheck::Unknown;
    assert!(matches!(play.advance(), ActProgress::Waiting { .. }));
    play.control.get().end(70);
    play.recheck = Recheck::StillTrue;
    assert_eq!(play.at(1.0), ActProgress::Ended(Outcome::AlreadyGone));
    // The process has a handle by then, and the rule's verdict is unknown.
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.control.get().rejects.insert(70, NotSent::Gone);
    play.advance();
    play.control.get().end(70);
    assert!(matches!(play.play_on(), Outcome::Freed { .. }), "it was tried");
}

#[test]
fn what_is_only_advised_is_not_done() {
    let command = || "scancel 12".into();
    let mut play = ActScene::found(Kind::Idle, &[python()])
        .with_steps(|steps| *steps = vec![Step::Advise { command: command() }]);
    let owned = Outcome::of(Protection::Owned { command: command() });
    assert_eq!(play.advance(), ActProgress::Ended(owned));
    assert!(play.sent().is_empty());
}

#[test]
fn nothing_is_done_that_is_not_written_down_before() {
    // Two lines precede the first signal: the start of the act, and the intended action.
    for room in 0..2 {
        let mut play = ActScene::found(Kind::Idle, &[python()]);
        play.pages.room = room;
        assert!(play.try_advance().is_err());
        assert!(play.sent().is_empty() && play.act.outcome().is_some());
    }
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.pages.room = 2;
    assert!(play.try_advance().is_err(), "the result cannot be told");
    assert_eq!(play.sent(), [(70, TERM)]);
    play.pages.room = 99;
    play.now = 99.0;
    play.advance();
    assert_eq!(play.sent().len(), 1, "the act is over");
    // The disk is full before SIGKILL, so SIGKILL is not sent.
    let mut play = ActScene::found(Kind::Idle, &[python()]);
    play.pages.room = 3;
    play.advance();
    play.now = 10.0;
    play.show(0);
    assert!(play.try_advance().is_err());
    assert_eq!(play.sent(), [(70, TERM)]);
}
