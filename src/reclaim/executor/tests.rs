//! Tests the order of targets, rechecks, and the events for observers.

use super::*;
use crate::model::{Kind, Process as Shown};
use crate::reclaim::policy::{Policy, Signal, Targets};
use crate::reclaim::testing::{
    FakeControl, MemoryLedger, Shared, at, finding, gpu, guard, plan_of, process, snapshot,
};
use crate::units::GIB;

#[derive(Default)]
struct Notes(Vec<(usize, String)>);

impl Observer for Notes {
    fn intended(&mut self, index: usize, deed: &Deed) {
        let Deed::Signal { signals, processes } = deed else {
            panic!("{deed:?}");
        };
        self.0.push((index, format!("{} to {}", signals[0], processes[0].pid)));
    }

    fn failed(&mut self, index: usize, failures: &[Failure]) {
        self.0.push((index, format!("failed {}", failures.len())));
    }

    fn saving(&mut self, index: usize, words: &str) {
        self.0.push((index, words.to_owned()));
    }

    fn waiting(&mut self, index: usize, _: Time) {
        self.0.push((index, "waiting".to_owned()));
    }

    fn ended(&mut self, index: usize, target: &Target, outcome: &Outcome) {
        let is_success = outcome.is_success();
        self.0.push((index, format!("{} ended {is_success}", target.leader)));
    }
}

/// Two stopped processes on GPU 0, their findings, and what an executor needs to end both.
struct Simulation {
    control: Shared<FakeControl>,
    ledger: Shared<MemoryLedger>,
    processes: Vec<Shown>,
    now: f64,
    is_doubtful: bool,
    /// Time of the last sample.
    last: f64,
    snapshot: Snapshot,
    findings: Vec<Finding>,
}

impl Simulation {
    fn new() -> (Self, Executor) {
        let processes =
            [70, 71].map(|pid| Shown { state: Some('T'), ..process(pid, "python train.py") });
        let rows = [(70, 2 * GIB), (71, GIB)];
        let snapshot = snapshot(at(0.0), &processes, vec![gpu(0, &rows, 0)]);
        let control = Shared::new(FakeControl::of(&snapshot));
        let findings = processes.each_ref().map(|process| finding(Kind::Stopped, process));
        let plan = plan_of(&findings, &snapshot, &guard());
        assert_eq!(plan.targets.len(), 2, "{:?}", plan.refused);
        let ledger = Shared::new(MemoryLedger::default());
        let tools = Tools::new(Box::new(control.clone()), Box::new(ledger.clone()));
        let executor = Executor::new(plan.targets, guard(), Actor::default(), tools);
        let simulation = Self {
            control,
            ledger,
            processes: processes.to_vec(),
            now: 0.0,
            is_doubtful: false,
            last: f64::INFINITY,
            snapshot,
            findings: findings.to_vec(),
        };
        (simulation, executor)
    }
}

impl Simulation {
    fn sample(&mut self) -> Option<FreshSample<'_>> {
        if self.now > self.last {
            return None;
        }
        let control = self.control.get();
        let is_alive = |process: &Shown| control.processes.contains_key(&process.pid);
        self.processes.retain(is_alive);
        drop(control);
        let rows: Vec<(u32, u64)> =
            self.processes.iter().map(|process| (process.pid, GIB)).collect();
        self.snapshot = snapshot(at(self.now), &self.processes, vec![gpu(0, &rows, 0)]);
        Some(FreshSample {
            now: at(self.now),
            snapshot: &self.snapshot,
            found: (!self.is_doubtful).then(|| self.findings.iter().collect()),
        })
    }

    /// Takes a sample each second until an act ends.
    fn run(
        &mut self,
        executor: &mut Executor,
        notes: &mut Notes,
    ) -> Result<Option<Outcome>, ledger::LedgerError> {
        while let Some(sample) = self.sample() {
            match executor.advance(&sample, notes)? {
                Some(ActProgress::Waiting { .. }) => self.now += 1.0,
                Some(ActProgress::Ended(outcome)) => return Ok(Some(outcome)),
                None => break,
            }
        }
        Ok(None)
    }
}

#[test]
fn targets_run_in_order_and_each_outcome_is_reported() {
    let (mut simulation, mut executor) = Simulation::new();
    for pid in [70, 71] {
        simulation.control.get().ends_on.insert(pid, vec![Signal::Cont]);
    }
    let mut notes = Notes::default();
    for leader in [70, 71] {
        assert_eq!(executor.target().unwrap().leader, leader);
        let outcome = simulation.run(&mut executor, &mut notes).unwrap().unwrap();
        assert!(outcome.is_success(), "{outcome:?}");
    }
    assert_eq!(executor.target(), None);
    assert_eq!(simulation.run(&mut executor, &mut notes).unwrap(), None);
    notes.0.retain(|(_, words)| words != "waiting");
    let reported: Vec<(usize, &str)> =
        notes.0.iter().map(|(index, words)| (*index, &**words)).collect();
    let expected =
        [(0, "SIGTERM to 70"), (0, "70 ended true"), (1, "SIGTERM to 71"), (1, "71 ended true")];
    assert_eq!(reported, expected);
    let ledger = simulation.ledger.get();
    let intended = ledger.lines.iter();
    let intended = intended.filter(|entry| matches!(entry.event, LedgerEvent::Intended(_)));
    assert_eq!(intended.count(), 2);
}

#[test]
fn named_targets_are_ended_at_the_same_time() {
    let (mut simulation, _) = Simulation::new();
    for pid in [70, 71] {
        simulation.control.get().ends_on.insert(pid, vec![Signal::Kill]);
    }
    let named = Targets::named(vec![70, 71], Vec::new()).unwrap();
    let guard = Guard { policy: Policy { targets: named, ..Policy::default() }, ..guard() };
    let plan = plan_of(&[], &simulation.snapshot, &guard);
    assert_eq!(plan.targets.len(), 2, "{:?}", plan.refused);
    let tools =
        Tools::new(Box::new(simulation.control.clone()), Box::new(simulation.ledger.clone()));
    let mut executor = Executor::new(plan.targets, guard, Actor::default(), tools).together();
    let mut notes = Notes::default();
    while simulation.run(&mut executor, &mut notes).unwrap().is_some() {}
    assert_eq!(executor.running().count(), 0);
    notes.0.retain(|(_, words)| words != "waiting");
    let reported: Vec<(usize, &str)> =
        notes.0.iter().map(|(index, words)| (*index, &**words)).collect();
    let expected = [
        (0, "SIGTERM to 70"),
        (1, "SIGTERM to 71"),
        (0, "SIGKILL to 70"),
        (1, "SIGKILL to 71"),
        (0, "70 ended true"),
        (1, "71 ended true"),
    ];
    assert_eq!(reported, expected);
}

#[test]
fn nothing_is_sent_while_findings_are_unknown() {
    let (mut simulation, mut executor) = Simulation::new();
    simulation.is_doubtful = true;
    let mut notes = Notes::default();
    let outcome = simulation.run(&mut executor, &mut notes).unwrap();
    assert_eq!(outcome, Some(Outcome::RuleNoLongerTrue));
    assert!(simulation.now >= 30.0, "not at once: {}", simulation.now);
    assert_eq!(simulation.control.get().sent, []);
}

#[test]
fn the_sample_source_can_stop_between_steps() {
    let (mut simulation, mut executor) = Simulation::new();
    simulation.last = 3.0;
    let mut notes = Notes::default();
    assert_eq!(simulation.run(&mut executor, &mut notes).unwrap(), None);
    assert_eq!(executor.target().unwrap().leader, 70);
    let sent = simulation.control.get().sent.clone();
    assert_eq!(sent, [(70, Signal::Term), (70, Signal::Cont)]);
}

#[test]
fn without_a_ledger_nothing_is_sent_or_reported() {
    let (mut simulation, mut executor) = Simulation::new();
    simulation.ledger.get().capacity = 1;
    let mut notes = Notes::default();
    assert!(simulation.run(&mut executor, &mut notes).is_err());
    assert_eq!(simulation.control.get().sent, []);
    assert_eq!(notes.0, []);
}

#[test]
fn a_lock_is_exclusive_until_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let lock = Lock::acquire(&path).unwrap();
    let error = Lock::acquire(&path).unwrap_err();
    assert!(
        matches!(&error, LockError::Held { pid, .. } if *pid == Some(process::id())),
        "{error}"
    );
    drop(lock);
    Lock::acquire(&path).unwrap();
}
