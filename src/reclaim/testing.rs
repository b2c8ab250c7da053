//! Fixtures for tests: snapshots, findings, and simulated process control.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use super::guard::Guard;
use super::ledger::{LedgerEntry, LedgerError, LedgerSink};
use super::plan::{Plan, PlanInput, plan};
use super::policy::{Policy, Signal, Targets};
use super::prepare::guarded_by_snapshot;
use super::process_control::{
    ApprovedProcess, Handle, NotOpened, NotSent, ProcessControl, RequestResult,
};
use super::target::{Request, Target};
use crate::host::{Guarded, JobUsage, ListedProcess, Ourselves};
use crate::model::family::{Family, families};
use crate::model::finding::{
    Action, Evidence, Finding, FindingGpu, FindingProcess, Kind, Severity,
};
use crate::model::snapshot::{Memory, PidNamespace};
use crate::model::{Gpu, GpuProcess, Process, Snapshot, Time};
use crate::rules::stopped::StoppedEvidence;
use crate::units::GIB;

pub const BOOT: &str = "boot";
pub const OWNER: u32 = 1000;

/// Returns a process of user 1000 that leads its own session and group. Its start ticks are ten times its pid.
pub fn process(pid: u32, command: &str) -> Process {
    Process {
        pid,
        start_ticks: Some(u64::from(pid) * 10),
        start_time: Some(at(-86_400.0)),
        ppid: Some(1),
        process_group: Some(pid),
        session: Some(pid),
        state: Some('S'),
        uid: Some(OWNER),
        user: Some("ann".into()),
        comm: Some("python3".into()),
        command: Some(command.split(' ').map(Arc::from).collect()),
        environment: Some(Arc::default()),
        executable: Some("/usr/bin/python3.11".into()),
        cpu_percent: Some(0.0),
        gpu_files: Some(Arc::from(vec![Arc::from("/dev/nvidia0")])),
        ..Process::default()
    }
}

pub fn at(seconds: f64) -> Time {
    Time::from_unix_milliseconds(1_700_000_000_000).plus_seconds(seconds)
}

/// Returns a GPU with the rows (pid, bytes), and with `loose` unattributed bytes.
pub fn gpu(index: u32, rows: &[(u32, u64)], loose: u64) -> Gpu {
    let used = rows.iter().map(|row| row.1).sum::<u64>() + loose;
    Gpu {
        index,
        uuid: Some(format!("GPU-{index}").into()),
        minor_number: Some(index),
        memory: Some(Memory {
            total_bytes: 80 * GIB,
            reserved_bytes: Some(0),
            used_bytes: used,
            free_bytes: 80 * GIB - used,
        }),
        processes: Some(
            rows.iter()
                .map(|&(pid, bytes)| GpuProcess {
                    pid,
                    used_bytes: Some(bytes),
                    sm_percent: Some(0),
                    ..GpuProcess::default()
                })
                .collect(),
        ),
        ..Gpu::default()
    }
}

pub fn snapshot(time: Time, processes: &[Process], gpus: Vec<Gpu>) -> Snapshot {
    let mut snapshot = Snapshot::new(time);
    snapshot.host.boot_id = Some(BOOT.into());
    snapshot.host.pid_namespace = Some(PidNamespace::Host);
    snapshot.processes = processes.to_vec();
    snapshot.gpus = gpus;
    snapshot
}

/// Returns a snapshot of GPU 0, on which each of these processes holds 1 GiB.
pub fn on_gpu(processes: &[Process]) -> Snapshot {
    let rows: Vec<(u32, u64)> = processes.iter().map(|process| (process.pid, GIB)).collect();
    snapshot(at(0.0), processes, vec![gpu(0, &rows, 0)])
}

/// Returns a child of process 70 in its session.
pub fn child(pid: u32) -> Process {
    let group = Some(70);
    Process { ppid: group, process_group: group, session: group, ..process(pid, "python train.py") }
}

/// Returns a finding on a process on GPU 0 that began two hours ago.
pub fn finding(kind: Kind, process: &Process) -> Finding {
    let mut actions = vec![Action::Notify];
    if matches!(kind, Kind::Idle | Kind::Orphan) {
        actions.push(Action::Terminate);
    }
    Finding {
        id: format!("{kind}:GPU-0:{}", process.pid).into(),
        rule: kind.name().into(),
        kind,
        severity: Severity::Warning,
        since: at(-7200.0),
        duration_seconds: 7200.0,
        resolved_at: None,
        gpus: vec![FindingGpu { index: 0, uuid: Some("GPU-0".into()), used_bytes: Some(GIB) }],
        process: Some(FindingProcess {
            pid: process.pid,
            start_ticks: process.start_ticks,
            start_time: process.start_time,
            user: process.user.clone(),
            command: process.command.clone(),
            identity: process.identity(),
        }),
        memory_bytes: Some(GIB),
        evidence: Evidence::new(StoppedEvidence {
            state: 'T',
            samples: 9,
            terminal: None,
            is_frozen: false,
        }),
        message: format!("{} is {kind}", process.pid),
        advice: Vec::new(),
        actions,
        commands: Vec::new(),
        also: Vec::new(),
        kept_by: None,
        skipped: None,
        more_bytes: None,
    }
}

/// Returns the facts about the snapshot's processes as if they had been read from /proc.
pub fn facts(snapshot: &Snapshot) -> BTreeMap<u32, Guarded> {
    let processes = snapshot.processes.iter();
    processes.filter_map(|process| Some((process.pid, guarded_by_snapshot(process)?))).collect()
}

pub fn guard() -> Guard {
    Guard {
        policy: Policy::default(),
        ourselves: Ourselves {
            pid: 900,
            uid: OWNER,
            session: Some(800),
            ancestors: vec![850, 800, 1],
            may_signal_others: false,
            pid_namespace: Some(PidNamespace::Host),
            boot_id: Some(BOOT.into()),
        },
    }
}

/// Returns the guard of the owner, for a policy that names these pids.
pub fn guard_naming(pids: &[u32]) -> Guard {
    let mut guard = guard();
    guard.policy.targets = Targets::named(pids.to_vec(), Vec::new()).unwrap();
    guard
}

/// Returns the target for an idle process.
pub fn target(process: &Process) -> Target {
    let snapshot = on_gpu(std::slice::from_ref(process));
    plan_of(&[finding(Kind::Idle, process)], &snapshot, &guard()).targets.remove(0)
}

/// Plans for a snapshot, with its families and the facts from [`facts`].
pub fn plan_of(findings: &[Finding], snapshot: &Snapshot, guard: &Guard) -> Plan {
    plan_with(findings, snapshot, &families(snapshot), &facts(snapshot), guard)
}

pub fn plan_with(
    findings: &[Finding],
    snapshot: &Snapshot,
    families: &[Family],
    facts: &BTreeMap<u32, Guarded>,
    guard: &Guard,
) -> Plan {
    plan(&PlanInput { findings, snapshot, families, facts }, guard)
}

/// Simulated process control that records signals and requests.
#[derive(Debug, Default)]
pub struct FakeControl {
    pub processes: BTreeMap<u32, Guarded>,
    /// Errors when processes are opened, by pid.
    pub refuses: HashMap<u32, NotOpened>,
    /// Errors when processes are signalled, by pid.
    pub rejects: HashMap<u32, NotSent>,
    /// Signals that end a process, by pid.
    pub ends_on: HashMap<u32, Vec<Signal>>,
    /// Children that a process starts when it receives a signal, by pid.
    pub forks: HashMap<u32, Vec<(u32, Guarded)>>,
    /// Kernel functions in which processes are blocked, by pid.
    pub wait_channels: HashMap<u32, String>,
    /// A process that exits by itself as soon as a check has found it alive.
    pub exits_unseen: Option<u32>,
    pub answer: Option<RequestResult>,
    pub usage: JobUsage,
    pub asked: Vec<Request>,
    pub sent: Vec<(u32, Signal)>,
    opened: Vec<ApprovedProcess>,
    exited: HashSet<(u32, u64)>,
}

impl FakeControl {
    pub fn of(snapshot: &Snapshot) -> Self {
        Self { processes: facts(snapshot), ..Self::default() }
    }

    pub fn end(&mut self, pid: u32) {
        if let Some(facts) = self.processes.remove(&pid) {
            self.exited.insert((pid, facts.start_ticks));
        }
    }

    fn has_ended(&self, approved: &ApprovedProcess) -> bool {
        self.processes
            .get(&approved.pid)
            .is_none_or(|facts| facts.start_ticks != approved.start_ticks)
    }
}

/// A value that a test can still access after moving a clone into an executor.
#[derive(Debug, Default)]
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T> Shared<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(value)))
    }

    pub fn get(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl ProcessControl for Shared<FakeControl> {
    fn open(&mut self, approved: &ApprovedProcess) -> Result<Handle, NotOpened> {
        let mut control = self.get();
        if let Some(error) = control.refuses.get(&approved.pid) {
            return Err(error.clone());
        }
        let Some(facts) = control.processes.get(&approved.pid) else {
            return Err(NotOpened::Gone(approved.pid));
        };
        if facts.start_ticks != approved.start_ticks || approved.boot_id.as_deref() != Some(BOOT) {
            return Err(NotOpened::Changed(approved.pid));
        }
        control.opened.push(approved.clone());
        Ok(Handle(control.opened.len() - 1))
    }

    fn read_guarded(&mut self, pid: u32) -> Option<Guarded> {
        self.get().processes.get(&pid).cloned()
    }

    fn signal(&mut self, handle: Handle, signal: Signal) -> Result<(), NotSent> {
        let mut control = self.get();
        let approved = control.opened[handle.0].clone();
        if control.has_ended(&approved) {
            return Err(NotSent::Gone);
        }
        if let Some(error) = control.rejects.get(&approved.pid) {
            return Err(error.clone());
        }
        control.sent.push((approved.pid, signal));
        if let Some(children) = control.forks.remove(&approved.pid) {
            control.processes.extend(children);
        }
        let ends = control.ends_on.get(&approved.pid);
        if ends.is_some_and(|signals| signals.contains(&signal)) {
            control.end(approved.pid);
        }
        Ok(())
    }

    fn has_exited(&mut self, handle: Handle) -> bool {
        let mut control = self.get();
        let has_ended = control.has_ended(&control.opened[handle.0]);
        if let Some(pid) = control.exits_unseen.take_if(|_| !has_ended) {
            control.end(pid);
        }
        has_ended
    }

    fn list(&mut self) -> Vec<ListedProcess> {
        let control = self.get();
        let all = control.processes.iter();
        all.map(|(&pid, facts)| ListedProcess {
            pid,
            start_ticks: facts.start_ticks,
            ppid: facts.ppid,
            process_group: facts.process_group,
            session: facts.session,
        })
        .collect()
    }

    fn read_usage(&mut self, _: &[(u32, u64)], _: Option<&JobUsage>) -> JobUsage {
        self.get().usage.clone()
    }

    fn held_up(&mut self, pid: u32) -> Option<String> {
        self.get().wait_channels.get(&pid).cloned()
    }

    fn start_request(&mut self, request: Request) {
        self.get().asked.push(request);
    }

    fn answer(&mut self) -> RequestResult {
        self.get().answer.clone().unwrap_or(RequestResult::Waiting)
    }

    fn release(&mut self) {
        self.get().opened.clear();
    }
}

impl LedgerSink for Shared<MemoryLedger> {
    fn write(&mut self, entry: &LedgerEntry) -> Result<(), LedgerError> {
        self.get().write(entry)
    }
}

/// A ledger in memory that accepts a limited number of lines.
#[derive(Debug)]
pub struct MemoryLedger {
    pub lines: Vec<LedgerEntry>,
    pub capacity: usize,
}

impl Default for MemoryLedger {
    fn default() -> Self {
        Self { lines: Vec::new(), capacity: usize::MAX }
    }
}

impl LedgerSink for MemoryLedger {
    fn write(&mut self, entry: &LedgerEntry) -> Result<(), LedgerError> {
        if self.lines.len() >= self.capacity {
            return Err(LedgerError::Write {
                path: "ledger".into(),
                cause: std::io::ErrorKind::StorageFull.into(),
            });
        }
        self.lines.push(entry.clone());
        Ok(())
    }
}
