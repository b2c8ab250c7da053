//! Tests the outcomes of an act with simulated process control and time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::host::{Guarded, JobUsage};
use crate::model::finding::Finding;
use crate::model::keep::KeptBy;
use crate::model::snapshot::{Jupyter, PidNamespace};
use crate::model::{Gpu, Kind, Process, Snapshot};
use crate::reclaim::ledger::LedgerEntry;
use crate::reclaim::policy::{Signal, Targets};
use crate::reclaim::process_control::NotSent;
use crate::reclaim::target::{Request, Step};
use crate::reclaim::testing::{
    FakeControl, MemoryLedger, Shared, at, child, facts, finding, gpu, guard, on_gpu, plan_of,
    process, snapshot,
};
use crate::units::GIB;

mod kernels;
mod relatives;
mod release;

struct ActTest {
    act: Act,
    control: Shared<FakeControl>,
    ledger: MemoryLedger,
    snapshot: Snapshot,
    recheck: Recheck,
    now: f64,
}

impl ActTest {
    fn new(target: Target, snapshot: Snapshot, guard: Guard) -> Self {
        Self {
            act: Act::new(target, Arc::new(guard), Actor::default()),
            control: Shared::new(FakeControl::of(&snapshot)),
            ledger: MemoryLedger::default(),
            snapshot,
            recheck: Recheck::StillTrue,
            now: 0.0,
        }
    }

    fn for_findings(kind: Kind, processes: &[Process]) -> Self {
        let findings: Vec<Finding> =
            processes.iter().map(|process| finding(kind, process)).collect();
        Self::for_plan(processes, &findings, guard())
    }

    fn for_named(processes: &[Process], mut guard: Guard) -> Self {
        guard.policy.targets = Targets::named(vec![processes[0].pid], Vec::new()).unwrap();
        Self::for_plan(processes, &[], guard)
    }

    fn for_plan(processes: &[Process], findings: &[Finding], mut guard: Guard) -> Self {
        guard.policy.grace.get_or_insert(Duration::from_secs(10));
        let snapshot = on_gpu(processes);
        let mut plan = plan_of(findings, &snapshot, &guard);
        assert_eq!(plan.targets.len(), 1, "{:?}", plan.refused);
        Self::new(plan.targets.remove(0), snapshot, guard)
    }

    fn with_steps(mut self, change: impl FnOnce(&mut Vec<Step>)) -> Self {
        let mut target = self.act.target().clone();
        change(&mut target.steps);
        self.act = Act::new(target, Arc::new(guard()), Actor::default());
        self
    }

    /// Takes a snapshot in which each living process holds 1 GiB, and `unattributed` bytes belong to no process.
    fn take_snapshot(&mut self, unattributed: u64) {
        let alive = |process: &&Process| self.control.get().processes.contains_key(&process.pid);
        let processes: Vec<Process> =
            self.snapshot.processes.iter().filter(alive).cloned().collect();
        let rows: Vec<(u32, u64)> = processes.iter().map(|process| (process.pid, GIB)).collect();
        self.set_snapshot(processes, vec![gpu(0, &rows, unattributed)]);
    }

    fn set_snapshot(&mut self, processes: Vec<Process>, gpus: Vec<Gpu>) {
        self.snapshot = snapshot(at(self.now), &processes, gpus);
    }

    fn advance(&mut self) -> ActProgress {
        self.try_advance().unwrap()
    }

    fn try_advance(&mut self) -> Result<ActProgress, LedgerError> {
        let input =
            StepInput { now: at(self.now), snapshot: &self.snapshot, recheck: self.recheck };
        self.act.advance(input, &mut self.control, &mut self.ledger)
    }

    fn advance_at(&mut self, seconds: f64) -> ActProgress {
        self.now = seconds;
        self.take_snapshot(0);
        self.advance()
    }

    fn run_to_end(&mut self) -> Outcome {
        for second in 0..200 {
            match self.advance_at(self.now + f64::from(second > 0)) {
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

fn kept_by_owner() -> Outcome {
    let why = Protection::Kept { kept_by: KeptBy::Owner { user: Some("ann".into()), until: None } };
    Outcome::Protected { why }
}

fn exit_on(test: &mut ActTest, pid: u32, signals: &[Signal]) {
    test.control.get().ends_on.insert(pid, signals.to_vec());
}

const TERM: Signal = Signal::Term;
const KILL: Signal = Signal::Kill;

#[test]
fn a_process_that_exits_on_sigterm_is_freed_without_sigkill() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    exit_on(&mut test, 70, &[TERM]);
    assert_eq!(test.advance(), ActProgress::Waiting { until: at(10.0) });
    assert_eq!(test.sent(), [(70, TERM)]);
    assert!(test.act.outcome().is_none());
    // The process has exited, but this snapshot was taken before the signal, so it proves nothing.
    test.set_snapshot(Vec::new(), vec![gpu(0, &[], 0)]);
    test.now = 0.4;
    assert_eq!(test.advance(), ActProgress::Waiting { until: at(10.0) });
    assert!(test.act.alive().is_empty());
    let freed = Outcome::Freed { bytes: GIB, ms: 1500 };
    // The memory is free, and the act waits for a possible restart.
    assert_eq!(test.advance_at(1.5), ActProgress::Waiting { until: at(5.0) });
    assert_eq!(test.advance_at(5.4), ActProgress::Ended(freed.clone()));
    assert_eq!(test.act.outcome(), Some(&freed));
    assert_eq!(test.sent().len(), 1, "no SIGKILL");
    assert_eq!(test.advance_at(99.0), ActProgress::Ended(freed));
    assert_eq!(test.sent().len(), 1);
}

#[test]
fn a_stopped_process_that_gpumem_continued_is_not_active() {
    let mut stopped = python();
    stopped.state = Some('T');
    let mut test = ActTest::for_findings(Kind::Stopped, &[stopped.clone()]);
    exit_on(&mut test, 70, &[KILL]);
    test.advance();
    test.control.get().processes.get_mut(&70).unwrap().state = Some('S');
    test.recheck = Recheck::NoLonger;
    assert_eq!(test.advance_at(5.0), ActProgress::Waiting { until: at(10.0) });
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));

    // If the process uses the GPU, the finding ended because the process works.
    let mut test = ActTest::for_findings(Kind::Stopped, &[stopped]);
    test.advance();
    test.recheck = Recheck::NoLonger;
    test.now = 5.0;
    test.take_snapshot(0);
    test.snapshot.gpus[0].processes.as_mut().unwrap()[0].sm_percent = Some(40);
    assert_eq!(test.advance(), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert_eq!(test.sent().len(), 2);
}

#[test]
fn activity_cancels_an_act_of_a_rule() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.recheck = Recheck::NoLonger;
    assert_eq!(test.advance(), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert!(test.sent().is_empty());
    // A finding that ends during the grace period cancels the later signals.
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.advance();
    test.recheck = Recheck::NoLonger;
    assert_eq!(test.advance_at(3.0), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert_eq!(test.sent(), [(70, TERM)]);
    // If a person named the target, the end of a finding does not cancel the act.
    let mut test = ActTest::for_named(&[python()], guard());
    exit_on(&mut test, 70, &[KILL]);
    test.recheck = Recheck::NoLonger;
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));
}

#[test]
fn an_unknown_verdict_delays_and_then_cancels() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.recheck = Recheck::Unknown;
    assert_eq!(test.advance(), ActProgress::Waiting { until: at(30.0) });
    assert_eq!(test.advance_at(29.0), ActProgress::Waiting { until: at(30.0) });
    test.recheck = Recheck::StillTrue;
    test.advance_at(29.5);
    assert_eq!(test.sent(), [(70, TERM)]);
    // An unknown verdict delays the next signal, and then cancels it.
    test.recheck = Recheck::Unknown;
    assert_eq!(test.advance_at(45.0), ActProgress::Waiting { until: at(75.0) });
    assert_eq!(test.advance_at(75.0), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert_eq!(test.sent(), [(70, TERM)]);
}

#[test]
fn an_exited_process_ends_the_act_at_once() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.control.get().end(70);
    assert_eq!(test.advance(), ActProgress::Ended(Outcome::AlreadyGone));
    assert!(test.sent().is_empty());
    // The process frees its memory before the act begins.
    let mut test = ActTest::for_named(&[python()], guard());
    let mut free = python();
    free.gpu_files = Some(Arc::default());
    test.set_snapshot(vec![free], vec![gpu(0, &[], 0)]);
    assert_eq!(test.advance(), ActProgress::Ended(Outcome::AlreadyGone));
    assert!(test.sent().is_empty());
}

#[test]
fn a_reused_pid_is_never_signalled() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.control.get().processes.get_mut(&70).unwrap().start_ticks = 7777;
    assert_eq!(test.advance(), ActProgress::Ended(Outcome::IdentityChanged));
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.advance();
    let mut other = test.control.get().processes[&70].clone();
    other.start_ticks = 7777;
    other.command = None;
    test.control.get().end(70);
    test.control.get().processes.insert(70, other);
    let mut stranger = python();
    stranger.start_ticks = Some(7777);
    test.now = 20.0;
    test.set_snapshot(vec![stranger], vec![gpu(0, &[(70, GIB)], 0)]);
    assert_eq!(test.advance(), ActProgress::Waiting { until: at(25.0) });
    test.now = 25.0;
    let outcome = test.advance();
    assert_eq!(test.sent(), [(70, TERM)]);
    assert!(
        matches!(outcome, ActProgress::Ended(Outcome::Freed { bytes: GIB, .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_member_that_cannot_be_opened_cancels_the_act() {
    let child = child(71);
    for (error, outcome) in [
        (NotOpened::Changed(71), Outcome::IdentityChanged),
        (NotOpened::NoPidfd(71), Outcome::from_protection(Protection::NoPidfd)),
        (
            NotOpened::Failed { pid: 71, error: "x".to_owned() },
            Outcome::from_protection(Protection::NotHeld { error: "x".into() }),
        ),
    ] {
        let mut test = ActTest::for_findings(Kind::Idle, &[python(), child.clone()]);
        test.control.get().refuses.insert(71, error);
        assert_eq!(test.advance(), ActProgress::Ended(outcome));
        assert!(test.sent().is_empty());
    }
    let mut test = ActTest::for_findings(Kind::Idle, &[python(), child]);
    test.control.get().end(71);
    exit_on(&mut test, 70, &[TERM]);
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));
    assert_eq!(test.sent(), [(70, TERM)]);
}

#[test]
fn protection_is_checked_before_each_signal() {
    type Change = fn(&mut Guarded);
    let cases: [(Protection, Change); 2] = [
        (Protection::OomProtected, |facts| facts.oom_score_adj = Some(-1000)),
        (Protection::Kept { kept_by: KeptBy::Program { name: "tmux".into() } }, |facts| {
            facts.executable = Some("/usr/bin/tmux".into());
        }),
    ];
    for (why, change) in cases {
        let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
        change(test.control.get().processes.get_mut(&70).unwrap());
        assert_eq!(test.advance(), ActProgress::Ended(Outcome::from_protection(why)));
        assert!(test.sent().is_empty());
    }
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.advance();
    test.now = 10.0;
    test.take_snapshot(0);
    let keep = BTreeMap::from([("GPUMEM_KEEP".into(), "yes".into())]);
    test.control.get().processes.get_mut(&70).unwrap().environment = Some(Arc::new(keep));
    assert_eq!(test.advance(), ActProgress::Ended(kept_by_owner()));
    assert_eq!(test.sent(), [(70, TERM)]);
}

#[test]
fn no_rule_acts_in_another_pid_namespace() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.snapshot.host.pid_namespace = Some(PidNamespace::Container);
    let why = Protection::OtherNamespace;
    assert_eq!(test.advance(), ActProgress::Ended(Outcome::Protected { why }));
    assert!(test.sent().is_empty());
}

#[test]
fn a_rejected_signal_is_not_retried() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.control.get().rejects.insert(70, NotSent::NotPermitted);
    assert_eq!(test.advance(), ActProgress::Ended(Outcome::NotPermitted));
    let failures = test.ledger.lines.iter().find_map(|line| match &line.event {
        LedgerEvent::Done { failures, .. } => Some(failures.len()),
        _ => None,
    });
    assert_eq!(failures, Some(1));
}

#[test]
fn a_survivor_is_reported_with_its_wait_channel() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    assert_eq!(test.run_to_end(), Outcome::StillAlive);
    assert_eq!(test.sent().last(), Some(&(70, KILL)));
    assert_eq!(killed_pids(&test), [70], "SIGKILL is sent once");

    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.control.get().wait_channels.insert(70, "uvm_spin_loop".to_owned());
    let wchan = "uvm_spin_loop".into();
    assert_eq!(test.run_to_end(), Outcome::StuckInDriver { wchan });
}

#[test]
fn an_exit_without_freed_memory_is_reported() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    exit_on(&mut test, 70, &[TERM]);
    test.advance();
    let worker = process(71, "python train.py");
    for second in 1..10 {
        test.now = f64::from(second);
        test.set_snapshot(vec![worker.clone()], vec![gpu(0, &[], GIB)]);
        assert!(matches!(test.advance(), ActProgress::Waiting { .. }), "{second}");
    }
    test.now = 10.0;
    let holders = vec![71];
    assert_eq!(test.advance(), ActProgress::Ended(Outcome::ExitedNotFreed { holders }));
}

#[test]
fn a_process_that_allocates_again_is_killed() {
    let mut test = ActTest::for_named(&[python()], guard());
    exit_on(&mut test, 70, &[KILL]);
    test.advance();
    let mut free = python();
    free.gpu_files = Some(Arc::default());
    test.now = 2.0;
    test.set_snapshot(vec![free], vec![gpu(0, &[], 0)]);
    assert!(matches!(test.advance(), ActProgress::Waiting { .. }));
    // Three seconds later, the process holds the memory again.
    assert_eq!(test.advance_at(5.0), ActProgress::Waiting { until: at(10.0) });
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));
    assert_eq!(test.sent(), [(70, TERM), (70, KILL)]);
}

#[test]
fn a_working_process_gets_more_time() {
    // I/O in bytes per second, and CPU time in ticks per second, while the process saves its work.
    let saving = [(1 << 21, 0), (0, 50)];
    let cases = [(0, 10), (7, 15), (22, 30), (5000, 600)];
    for ((bytes, ticks), (works_for, killed_at)) in
        saving.iter().flat_map(|rates| cases.map(|case| (*rates, case)))
    {
        let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
        exit_on(&mut test, 70, &[KILL]);
        for second in 0..=killed_at {
            let worked = u64::min(second, works_for);
            test.control.get().usage =
                JobUsage::of_one(70, second as f64, worked * ticks, worked * bytes);
            assert!(!test.sent().contains(&(70, KILL)), "{works_for}: before {second}");
            test.advance_at(second as f64);
            let more_time = test.act.saving().is_some_and(|words| words.contains("still works"));
            assert_eq!(more_time, second >= 10 && second < killed_at, "{works_for}: at {second}");
        }
        assert!(test.sent().contains(&(70, KILL)), "{works_for}");
    }
}

#[test]
fn a_process_using_the_gpu_gets_more_time() {
    let mut test = ActTest::for_named(&[python()], guard());
    exit_on(&mut test, 70, &[KILL]);
    for (second, sm_percent, is_killed) in [(0, 0, false), (10, 30, false), (15, 0, true)] {
        test.now = f64::from(second);
        test.take_snapshot(0);
        test.snapshot.gpus[0].processes.as_mut().unwrap()[0].sm_percent = Some(sm_percent);
        test.advance();
        assert_eq!(test.sent().contains(&(70, KILL)), is_killed, "{second}");
    }
}

#[test]
fn work_since_the_plan_cancels_an_act_of_a_rule() {
    let planned = |mut test: ActTest, cpu_ticks: u64| {
        let mut target = test.act.target().clone();
        target.used_at_plan = Some(Arc::new(JobUsage::of_one(70, 0.0, 100, 0)));
        test.act = Act::new(target, Arc::new(guard()), Actor::default());
        test.control.get().usage = JobUsage::of_one(70, 8.0, cpu_ticks, 0);
        test
    };
    let mut test = planned(ActTest::for_findings(Kind::Idle, &[python()]), 900);
    assert_eq!(test.advance_at(8.0), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert!(test.sent().is_empty());
    // Little CPU time is not work, and usage after the first signal is ignored.
    let mut test = planned(ActTest::for_findings(Kind::Idle, &[python()]), 110);
    assert!(matches!(test.advance_at(8.0), ActProgress::Waiting { .. }));
    assert_eq!(test.sent(), [(70, TERM)]);
    test.control.get().usage = JobUsage::of_one(70, 9.0, 900, 0);
    assert!(matches!(test.advance_at(9.0), ActProgress::Waiting { .. }));
    let mut test = planned(ActTest::for_named(&[python()], guard()), 900);
    test.advance_at(8.0);
    assert_eq!(test.sent(), [(70, TERM)]);
}

#[test]
fn a_process_that_frees_its_memory_is_not_killed() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.advance();
    let mut free = python();
    free.gpu_files = Some(Arc::default());
    test.now = 2.0;
    test.set_snapshot(vec![free], vec![gpu(0, &[], 0)]);
    // The process no longer holds memory, so the finding ends.
    test.recheck = Recheck::NoLonger;
    test.advance();
    test.now = 7.0;
    let outcome = test.advance();
    assert!(matches!(outcome, ActProgress::Ended(Outcome::Freed { .. })), "{outcome:?}");
    assert_eq!(test.sent(), [(70, TERM)]);
}

/// Returns a process that started after the plan as a child of `ppid` in process group `group`. All other facts are
/// those of process 70.
fn new_child(test: &ActTest, pid: u32, ppid: u32, group: u32) -> (u32, Guarded) {
    let mut facts = test.control.get().processes[&70].clone();
    facts.start_ticks = 9000 + u64::from(pid);
    (facts.ppid, facts.process_group, facts.session) = (Some(ppid), Some(group), Some(group));
    (pid, facts)
}

fn killed_pids(test: &ActTest) -> Vec<u32> {
    let kills = test.sent().into_iter().filter(|sent| sent.1 == KILL);
    kills.map(|sent| sent.0).collect()
}

#[test]
fn a_process_that_exits_before_any_signal_was_already_gone() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.recheck = Recheck::Unknown;
    assert!(matches!(test.advance(), ActProgress::Waiting { .. }));
    test.control.get().end(70);
    test.recheck = Recheck::StillTrue;
    assert_eq!(test.advance_at(1.0), ActProgress::Ended(Outcome::AlreadyGone));
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.control.get().rejects.insert(70, NotSent::Gone);
    test.advance();
    test.control.get().end(70);
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }), "a signal was attempted");
}

#[test]
fn a_process_that_exits_between_a_check_and_a_signal_is_a_success() {
    // The process exits before SIGTERM, before SIGKILL, or after the last grace period.
    for at in [0.0, 10.0, 15.0] {
        let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
        for seconds in [0.0, 10.0, 15.0] {
            if seconds == at {
                test.control.get().exits_unseen = Some(70);
            }
            if let ActProgress::Ended(outcome) = test.advance_at(seconds) {
                assert!(outcome.is_success(), "{at}: {outcome:?}");
            }
        }
        assert!(test.run_to_end().is_success(), "{at}");
    }
}

#[test]
fn a_process_gets_sigterm_once() {
    let mut test = ActTest::for_findings(Kind::Idle, &[python(), child(71)]);
    for pid in [70, 71] {
        exit_on(&mut test, pid, &[KILL]);
    }
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));
    // SIGTERM goes to the leader first, then to the rest of the family.
    assert_eq!(test.sent(), [(70, TERM), (71, TERM), (71, KILL), (70, KILL)]);
}

#[test]
fn advice_is_not_carried_out() {
    let command = || "scancel 12".into();
    let mut test = ActTest::for_findings(Kind::Idle, &[python()])
        .with_steps(|steps| *steps = vec![Step::Advise { command: command() }]);
    let owned = Outcome::from_protection(Protection::Owned { command: command() });
    assert_eq!(test.advance(), ActProgress::Ended(owned));
    assert!(test.sent().is_empty());
}

#[test]
fn no_action_happens_without_a_ledger_entry() {
    // Before the first signal, the ledger gets two lines: the beginning of the act, and the intended action.
    for capacity in 0..2 {
        let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
        test.ledger.capacity = capacity;
        assert!(test.try_advance().is_err());
        assert!(test.sent().is_empty() && test.act.outcome().is_some());
    }
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.ledger.capacity = 2;
    assert!(test.try_advance().is_err(), "the result cannot be recorded");
    assert_eq!(test.sent(), [(70, TERM)]);
    test.ledger.capacity = 99;
    test.now = 99.0;
    test.advance();
    assert_eq!(test.sent().len(), 1, "the act is over");
    // The disk is full before SIGKILL, so the act does not send SIGKILL.
    let mut test = ActTest::for_findings(Kind::Idle, &[python()]);
    test.ledger.capacity = 3;
    test.advance();
    test.now = 10.0;
    test.take_snapshot(0);
    assert!(test.try_advance().is_err());
    assert_eq!(test.sent(), [(70, TERM)]);
}
