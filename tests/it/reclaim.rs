//! Actions on real processes through the library. The tests construct NVML's data, and all other data comes from Linux.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::host::{
    Guarded, KernelCandidate, Processes, Roots, read_all, read_clocks, read_guarded, read_host,
    read_kernel, read_ourselves,
};
use gpumem::api::model::{Kind, PidNamespace, Process, Snapshot, Time, families};
use gpumem::api::reclaim::ledger::{Actor, Deed, LedgerSummary, read};
use gpumem::api::reclaim::{
    Act, ActProgress, Guard, Ledger, Outcome, PidfdControl, Plan, PlanInput, Policy, Recheck,
    Signal, StepInput, Target, Targets, pids, plan,
};

use crate::scenarios::random::Random;
use crate::support::{self, python_with};

mod chance;
mod reuse;
mod saves;
mod strangers;
mod torchrun;

pub const GIB: u64 = 1 << 30;

const NOBODY: u32 = 65534;

/// Real processes, and snapshots of a GPU that lists them while they exist.
pub struct Stage {
    processes: Processes,
    pub guard: Guard,
    /// Pids that NVML lists.
    listed: Vec<u32>,
    /// Pids of processes whose children NVML lists.
    heirs_of: Vec<u32>,
    /// If set, NVML lists exactly the processes with an open device file.
    lists_holders: bool,
    start: Instant,
    folder: tempfile::TempDir,
}

impl Stage {
    pub fn new(listed: &[u32]) -> Self {
        let targets = Targets::named(listed.to_vec(), Vec::new()).unwrap_or_default();
        let mut policy = Policy { targets, ..Policy::default() };
        policy.grace = Some(Duration::from_millis(400));
        let mut ourselves = read_ourselves(&Roots::default()).unwrap();
        // Pids in the snapshots are valid in this namespace, because the test makes the snapshots.
        ourselves.pid_namespace = Some(PidNamespace::Host);
        Self {
            processes: Processes::new(Roots::default()),
            guard: Guard { policy, ourselves },
            listed: listed.to_vec(),
            heirs_of: Vec::new(),
            lists_holders: false,
            start: Instant::now(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Returns a directory that replaces /dev and contains the file `nvidia0`.
    pub fn dev(&self) -> PathBuf {
        let path = self.folder.path().join("dev");
        fs::create_dir_all(&path).unwrap();
        File::options().create(true).append(true).open(path.join("nvidia0")).unwrap();
        path
    }

    fn roots(&self) -> Roots {
        Roots { dev: self.folder.path().join("dev"), ..Roots::default() }
    }

    fn now(&self) -> Time {
        let elapsed = self.start.elapsed().as_millis();
        Time::from_unix_milliseconds(1_700_000_000_000 + i64::try_from(elapsed).unwrap())
    }

    pub fn observe(&mut self) -> Snapshot {
        let mut snapshot = Snapshot::new(self.now());
        snapshot.host = read_host(&Roots::default());
        snapshot.host.pid_namespace = Some(PidNamespace::Host);
        let mut listed = match self.lists_holders {
            true => holders(&self.dev().join("nvidia0")),
            false => self.listed.clone(),
        };
        if !self.heirs_of.is_empty() {
            let all = read_all(&Roots::default()).unwrap();
            let is_heir = |ppid: u32| self.heirs_of.contains(&ppid);
            let heirs = all.iter().filter(|process| process.ppid.is_some_and(is_heir));
            listed.extend(heirs.map(|process| process.pid));
            listed.sort_unstable();
            listed.dedup();
        }
        let sample = self.processes.sample(&listed, read_clocks().boottime_ns);
        let lives = |process: &Process| {
            process.state != Some('Z') || process.threads.is_some_and(|threads| threads > 1)
        };
        snapshot.processes = sample.processes.into_iter().filter(lives).collect();
        for process in &mut snapshot.processes {
            let files = [Arc::from("/dev/nvidia0")];
            process.gpu_files = Some(Arc::from(files.to_vec()));
            process.environment.get_or_insert_default();
            let kernel = process.start_ticks.zip(process.jupyter.clone());
            if let Some((start_ticks, jupyter)) = kernel {
                let candidate =
                    KernelCandidate { pid: process.pid, start_ticks, jupyter: Some(jupyter) };
                let kernel = read_kernel(&Roots::default(), &candidate);
                process.jupyter = kernel.map(|kernel| kernel.jupyter.into());
            }
        }
        let on_gpu = |pid| listed.contains(&pid).then_some(0);
        snapshot.gpus = vec![chance::seen::gpu(0, &snapshot, &on_gpu)];
        snapshot
    }

    pub fn plan(&mut self) -> Plan {
        let snapshot = self.observe();
        let families = families(&snapshot);
        let facts: BTreeMap<u32, Guarded> = pids(&snapshot, &families)
            .into_iter()
            .filter_map(|pid| Some((pid, read_guarded(&Roots::default(), pid).ok()??)))
            .collect();
        let input =
            PlanInput { findings: &[], snapshot: &snapshot, families: &families, facts: &facts };
        plan(&input, &self.guard)
    }

    pub fn target(&mut self) -> Target {
        let mut plan = self.plan();
        assert_eq!(plan.targets.len(), 1, "{plan:?}");
        plan.targets.remove(0)
    }

    /// Returns a target as if a rule had found the process idle.
    fn found(&mut self, pid: u32) -> Target {
        let snapshot = self.observe();
        let finding = chance::finding(Kind::Idle, snapshot.process(pid).unwrap(), snapshot.time);
        self.guard.policy.targets = Targets::default();
        let families = families(&snapshot);
        let facts_of = |pid| Some((pid, read_guarded(&Roots::default(), pid).ok()??));
        let facts = pids(&snapshot, &families).into_iter().filter_map(facts_of).collect();
        let findings = [finding];
        let input = PlanInput {
            findings: &findings,
            snapshot: &snapshot,
            families: &families,
            facts: &facts,
        };
        let mut plan = plan(&input, &self.guard);
        plan.note_usage(&Roots::default());
        assert_eq!(plan.targets.len(), 1, "{plan:?}");
        plan.targets.remove(0)
    }

    /// Acts on a target until the action ends.
    pub fn act(&mut self, target: Target) -> (Outcome, LedgerSummary) {
        let path = self.folder.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        let mut control = PidfdControl::new(self.roots());
        let mut act = Act::new(target, Arc::new(self.guard.clone()), Actor::default());
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(180), "the action does not end");
            let snapshot = self.observe();
            let input =
                StepInput { now: self.now(), snapshot: &snapshot, recheck: Recheck::StillTrue };
            match act.advance(input, &mut control, &mut ledger).unwrap() {
                ActProgress::Ended(outcome) => return (outcome, read(&path, 1 << 24).unwrap()),
                ActProgress::Waiting { .. } => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    pub fn end(&mut self) -> (Outcome, LedgerSummary) {
        let target = self.target();
        self.act(target)
    }
}

/// Returns the processes that have a file open.
fn holders(path: &Path) -> Vec<u32> {
    let all = read_all(&Roots::default()).unwrap();
    let holds = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files
            .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
            .any(|link| link == path)
    };
    all.iter().map(|process| process.pid).filter(|&pid| holds(pid)).collect()
}

/// Returns the signals sent to a process, according to the audit log.
pub fn signals_to(past: &LedgerSummary, to: u32) -> Vec<Signal> {
    let deeds = past.acts.iter().flat_map(|act| &act.deeds);
    deeds
        .filter_map(|record| match &record.deed {
            Deed::Signal { signals, processes } => {
                let is_to = processes.iter().any(|process| process.pid == to);
                (is_to && record.failures.is_some()).then_some(signals)
            }
            _ => None,
        })
        .flatten()
        .copied()
        .collect()
}

/// A child that leads a session. The whole session is killed on drop.
struct SessionLeader(Child);

impl SessionLeader {
    /// Starts a program in a new session, and waits until it prints `ready`.
    fn new(command: &mut Command) -> Self {
        let (child, line) = support::start_and_read_line(command);
        assert_eq!(line, "ready");
        Self(child)
    }

    fn python(python: &PathBuf, script: &str) -> Self {
        let whole = format!("import os, signal, sys, time\nos.setsid()\n{script}");
        Self::new(Command::new(python).args(["-c", &whole]))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until the session contains `count` processes. Returns their pids.
    fn wait_for_session(&self, count: usize) -> Vec<u32> {
        let start = Instant::now();
        loop {
            let all = read_all(&Roots::default()).unwrap();
            let mut pids: Vec<u32> = all
                .iter()
                .filter(|process| process.session == Some(self.pid()))
                .map(|process| process.pid)
                .collect();
            if pids.len() >= count {
                pids.sort_unstable();
                return pids;
            }
            assert!(start.elapsed() < support::PATIENCE, "{pids:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for SessionLeader {
    fn drop(&mut self) {
        for process in read_all(&Roots::default()).unwrap_or_default() {
            if process.session == Some(self.pid()) {
                crate::procs::send(process.pid, rustix::process::Signal::KILL);
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn is_freed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Freed { .. })
}

#[test]
fn a_process_that_forks_while_it_is_killed_ends_with_its_children() {
    let python = or_skip!(python_with(&["signal"]));
    let mut stage = Stage::new(&[]);
    let device = stage.dev().join("nvidia0");
    // Limit the number and lifetime of the children, which inherit the open GPU.
    let script = format!(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.alarm(120)
gpu = open({device:?})
print('ready', flush=True)
for _ in range(1000):
    if os.fork() == 0:
        signal.alarm(120)
        if os.fork() == 0:
            signal.alarm(120)
        while True: signal.pause()
    time.sleep(0.015)
while True: signal.pause()"
    );
    let leader = SessionLeader::python(&python, &script);
    leader.wait_for_session(20);
    stage.listed = vec![leader.pid()];
    stage.guard.policy.targets = Targets::named(vec![leader.pid()], Vec::new()).unwrap();
    // gpumem adds a child to the target when the child is one second old, so the grace period must be longer.
    stage.guard.policy.grace = Some(Duration::from_secs(2));
    let (outcome, past) = stage.end();
    assert!(is_freed(&outcome), "{outcome:?}");
    let killed: usize = past.acts[0]
        .deeds
        .iter()
        .map(|record| match &record.deed {
            Deed::Signal { signals, processes } if signals.contains(&Signal::Kill) => {
                processes.len()
            }
            _ => 0,
        })
        .sum();
    assert!(killed > 1, "no child was added");
    // gpumem spares processes that were forked immediately before the end, because they could still execute another
    // program. None of them forks again.
    let left = leader.wait_for_session(0).len();
    thread::sleep(Duration::from_millis(300));
    assert!(leader.wait_for_session(0).len() <= left, "a process still forks");
}

/// Holds a file that stands for a GPU. The second argument selects the reaction to SIGTERM.
const HOLD_FILE: &str = r#"
import os, signal, sys, time
path, manner, delay = sys.argv[1], sys.argv[2], float(sys.argv[3])
held = open(path)
def on_term(*_):
    global held
    if manner == "exits": os._exit(0)
    if manner == "ignores": return
    held.close()
    if manner == "takes_again":
        time.sleep(delay)
        held = open(path)
        return
    if os.fork() == 0:
        os.setsid()
        time.sleep(delay)
        if manner == "starts_again":
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        held = open(path)
        while True: signal.pause()
    os._exit(0)
signal.signal(signal.SIGTERM, on_term)
print("ready", flush=True)
while True: signal.pause()
"#;

/// The outcome is "freed" exactly if no process of the target still holds the file, however the target reacts.
#[test]
fn freed_means_no_process_of_the_target_holds_memory() {
    let python = or_skip!(python_with(&["signal"]));
    const MANNERS: [&str; 5] = ["exits", "ignores", "takes_again", "forks", "starts_again"];
    thread::scope(|scope| {
        for seed in 0..10 {
            let python = &python;
            scope.spawn(move || {
                let mut random = Random::new("freed", seed);
                let manner = MANNERS[seed as usize % MANNERS.len()];
                // The delay is shorter than the grace period of 4 s, and shorter than the 5 s for which gpumem
                // watches the memory.
                let delay = random.range(0.1, 1.5);
                let mut stage = Stage::new(&[]);
                let file = stage.dev().join("nvidia0");
                let mut command = Command::new(python);
                command.args(["-c", HOLD_FILE]).arg(&file).args([manner, &delay.to_string()]);
                let leader = SessionLeader::new(command.process_group(0));
                // Another program of the same user also holds the GPU, and must survive.
                let script = "import os, sys, time\nheld = open(sys.argv[1])\nprint('ready', flush=True)\ntime.sleep(600)";
                let mut command = Command::new(python);
                let mut innocent =
                SessionLeader::new(command.args(["-c", script]).arg(&file).process_group(0));
                stage.lists_holders = true;
                stage.guard.policy.targets = Targets::named(vec![leader.pid()], Vec::new()).unwrap();
                stage.guard.policy.grace = Some(Duration::from_secs(4));
                let (outcome, past) = stage.end();
                thread::sleep(Duration::from_secs(1));
                let mut left = holders(&file);
                left.retain(|&pid| pid != innocent.pid());
                left.iter().for_each(|&pid| crate::procs::send(pid, rustix::process::Signal::KILL));
                let case = format!("{manner} after {delay:.1} s: {outcome:?}, left {left:?}");
                assert_eq!(is_freed(&outcome), left.is_empty(), "{case}");
                let ends = ["exits", "ignores", "takes_again"].contains(&manner);
                assert_eq!(is_freed(&outcome), ends, "{case}");
                let kills = signals_to(&past, leader.pid()).contains(&Signal::Kill);
                assert_eq!(kills, ["ignores", "takes_again"].contains(&manner), "{case}");
                assert!(innocent.is_alive() && signals_to(&past, innocent.pid()).is_empty(), "{case}");
            });
        }
    });
}

#[test]
fn a_zombie_with_a_live_thread_is_not_dead() {
    let python = or_skip!(python_with(&["ctypes", "threading"]));
    let script = "import ctypes, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def rest():
    time.sleep(0.1)
    print('ready', flush=True)
    time.sleep(600)
threading.Thread(target=rest).start()
ctypes.CDLL(None).pthread_exit(None)";
    let leader = SessionLeader::python(&python, script);
    let mut stage = Stage::new(&[leader.pid()]);
    support::wait_until("the first thread has ended", || {
        let snapshot = stage.observe();
        snapshot.process(leader.pid()).and_then(|process| process.state) == Some('Z')
    });
    let (outcome, past) = stage.end();
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(
        signals_to(&past, leader.pid()),
        [Signal::Term, Signal::Kill],
        "it outlived the grace"
    );
}

#[test]
fn an_action_without_permission_is_tried_once() {
    or_skip!(support::root("root"));
    let mut command = Command::new("sh");
    let mut leader = SessionLeader::new(command.args(["-c", "echo ready; exec sleep 630"]));
    let pid = leader.pid();
    let acted = thread::spawn(move || {
        let mut stage = Stage::new(&[pid]);
        stage.guard.policy.all_users = true;
        // The plan is made with more privileges than the action has.
        let target = stage.target();
        let other_user = rustix::process::Uid::from_raw(NOBODY);
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(stage.folder.path(), everybody).unwrap();
        // This call changes only the calling thread.
        rustix::thread::set_thread_uid(other_user).unwrap();
        stage.act(target)
    });
    let (outcome, past) = acted.join().unwrap();
    assert_eq!(outcome, Outcome::NotPermitted);
    assert_eq!(past.acts[0].deeds.len(), 1);
    assert!(leader.is_alive());
}
