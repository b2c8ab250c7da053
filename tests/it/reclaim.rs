//! Acts upon real processes, through the library: signals are sent and families end. What NVML shows
//! is made here; what Linux shows is what there is.

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
    Act, ActProgress, FindingSelector, Guard, Ledger, Outcome, PidfdControl, Plan, PlanInput,
    Policy, Recheck, Signal, StepInput, Target, Targets, perform_requests, pids, plan,
};

use crate::scenarios::random::Random;
use crate::support::{self, python_with};

mod chance;
mod reuse;
mod saves;
mod strangers;
mod torchrun;

pub const GIB: u64 = 1 << 30;

/// The uid and gid of nobody.
const NOBODY: u32 = 65534;

/// Real processes, and a GPU on which they are listed for as long as they live.
pub struct Stage {
    processes: Processes,
    pub guard: Guard,
    /// Those that NVML lists.
    listed: Vec<u32>,
    /// Those that have a GPU open and are not listed.
    hidden: Vec<u32>,
    /// Whose children NVML lists, too.
    heirs_of: Vec<u32>,
    /// NVML lists whoever has the device file open, and no other.
    lists_holders: bool,
    begun: Instant,
    folder: tempfile::TempDir,
}

impl Stage {
    pub fn new(listed: &[u32]) -> Self {
        let found = Targets::Found(FindingSelector::default());
        let targets = Targets::named(listed.to_vec(), Vec::new()).unwrap_or(found);
        let mut policy = Policy::new(targets, |_, _| false);
        policy.grace = Some(Duration::from_millis(400));
        let mut ourselves = read_ourselves(&Roots::default()).unwrap();
        // These pids are told by whoever made the snapshot, which is this test.
        ourselves.pid_namespace = Some(PidNamespace::Host);
        Self {
            processes: Processes::new(Roots::default()),
            guard: Guard { policy, ourselves },
            listed: listed.to_vec(),
            hidden: Vec::new(),
            heirs_of: Vec::new(),
            lists_holders: false,
            begun: Instant::now(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Where processes find device files that stand for those of GPUs: a file `nvidia0`.
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
        let elapsed = self.begun.elapsed().as_millis();
        Time::from_unix_milliseconds(1_700_000_000_000 + i64::try_from(elapsed).unwrap())
    }

    pub fn look(&mut self) -> Snapshot {
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
            let heirs = all.iter().filter(|it| it.ppid.is_some_and(is_heir));
            listed.extend(heirs.map(|it| it.pid));
            listed.sort_unstable();
            listed.dedup();
        }
        let pids: Vec<u32> = listed.iter().chain(&self.hidden).copied().collect();
        let sample = self.processes.sample(&pids, read_clocks().boottime_ns);
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
        let snapshot = self.look();
        let families = families(&snapshot);
        let facts: BTreeMap<u32, Guarded> = pids(&snapshot, &families)
            .into_iter()
            .filter_map(|pid| Some((pid, read_guarded(&Roots::default(), pid).ok()??)))
            .collect();
        let seen =
            PlanInput { findings: &[], snapshot: &snapshot, families: &families, facts: &facts };
        plan(&seen, &self.guard)
    }

    pub fn target(&mut self) -> Target {
        let mut plan = self.plan();
        assert_eq!(plan.targets.len(), 1, "{plan:?}");
        plan.targets.remove(0)
    }

    /// The target of a rule that has found this process idle.
    fn found(&mut self, pid: u32) -> Target {
        let snapshot = self.look();
        let found = chance::finding(Kind::Idle, snapshot.process(pid).unwrap(), snapshot.time);
        self.guard.policy.targets = Targets::Found(FindingSelector::default());
        let families = families(&snapshot);
        let known = |pid| Some((pid, read_guarded(&Roots::default(), pid).ok()??));
        let facts = pids(&snapshot, &families).into_iter().filter_map(known).collect();
        let findings = [found];
        let seen = PlanInput {
            findings: &findings,
            snapshot: &snapshot,
            families: &families,
            facts: &facts,
        };
        let mut plan = plan(&seen, &self.guard);
        plan.note_usage(&Roots::default());
        assert_eq!(plan.targets.len(), 1, "{plan:?}");
        plan.targets.remove(0)
    }

    /// Carries a target out, to its end.
    pub fn act(&mut self, target: Target) -> (Outcome, LedgerSummary) {
        let path = self.folder.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        let mut control =
            PidfdControl::new(self.roots()).with_requests(perform_requests(Roots::default()));
        let mut act = Act::new(target, Arc::new(self.guard.clone()), Actor::default());
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < Duration::from_secs(180), "no end");
            let snapshot = self.look();
            let moment =
                StepInput { now: self.now(), snapshot: &snapshot, recheck: Recheck::StillTrue };
            match act.advance(moment, &mut control, &mut ledger).unwrap() {
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

/// Who has a file open, as the kernel tells.
fn holders(path: &Path) -> Vec<u32> {
    let all = read_all(&Roots::default()).unwrap();
    let holds = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|it| fs::read_link(it.path()).ok()).any(|link| link == path)
    };
    all.iter().map(|it| it.pid).filter(|&pid| holds(pid)).collect()
}

/// The signals that were sent to a process, by the ledger.
pub fn sent(past: &LedgerSummary, to: u32) -> Vec<Signal> {
    let deeds = past.acts.iter().flat_map(|act| &act.deeds);
    deeds
        .filter_map(|it| match &it.deed {
            Deed::Signal { signals, processes } => {
                let is_to = processes.iter().any(|process| process.pid == to);
                (is_to && it.failures.is_some()).then_some(signals)
            }
            _ => None,
        })
        .flatten()
        .copied()
        .collect()
}

/// A child that is killed with all of its session when the test is over.
struct Cast(Child);

impl Cast {
    /// Starts a program in a session of its own; it says `ready` when it is.
    fn new(command: &mut Command) -> Self {
        let (child, line) = support::hear(command);
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

    /// Waits for those of its session that have said so by being there.
    fn session(&self, count: usize) -> Vec<u32> {
        let begun = Instant::now();
        loop {
            let all = read_all(&Roots::default()).unwrap();
            let mut pids: Vec<u32> =
                all.iter().filter(|it| it.session == Some(self.pid())).map(|it| it.pid).collect();
            if pids.len() >= count {
                pids.sort_unstable();
                return pids;
            }
            assert!(begun.elapsed() < support::PATIENCE, "{pids:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        for it in read_all(&Roots::default()).unwrap_or_default() {
            if it.session == Some(self.pid()) {
                crate::procs::send(it.pid, rustix::process::Signal::KILL);
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
fn one_that_forks_while_it_is_killed_is_killed_with_its_children() {
    let python = or_skip!(python_with(&["signal"]));
    let mut stage = Stage::new(&[]);
    let device = stage.dev().join("nvidia0");
    // Bounded by themselves: so many, for so long. They inherit the open GPU.
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
    let cast = Cast::python(&python, &script);
    cast.session(20);
    stage.listed = vec![cast.pid()];
    stage.guard.policy.targets = Targets::named(vec![cast.pid()], Vec::new()).unwrap();
    // Children are added when they are a second old.
    stage.guard.policy.grace = Some(Duration::from_secs(2));
    let (outcome, past) = stage.end();
    assert!(is_freed(&outcome), "{outcome:?}");
    let killed: usize = past.acts[0]
        .deeds
        .iter()
        .map(|it| match &it.deed {
            Deed::Signal { signals, processes } if signals.contains(&Signal::Kill) => {
                processes.len()
            }
            _ => 0,
        })
        .sum();
    assert!(killed > 1, "some were found meanwhile");
    // Those that there were before it began are the plan's business only, and what was just born is not
    // told from what it may execute next; none is left to fork. The dead are taken away one by one.
    let left = cast.session(0).len();
    thread::sleep(Duration::from_millis(300));
    assert!(cast.session(0).len() <= left, "nobody forks any more");
}

#[test]
fn who_saves_after_a_signal_is_not_sent_it_again() {
    let python = or_skip!(python_with(&["signal"]));
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    // The leader saves for longer than it has; its workers do not end by themselves.
    let script = format!(
        "def told(*_):
    os.write(file, b'x')
file = os.open({told:?}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for _ in range(2):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: signal.pause()
signal.signal(signal.SIGTERM, told)
print('ready', flush=True)
while True: signal.pause()"
    );
    let cast = Cast::python(&python, &script);
    let family = cast.session(3);
    let mut stage = Stage::new(&[cast.pid()]);
    stage.hidden = family[1..].to_vec();
    // A busy machine lets it hear of the signal before it is killed.
    stage.guard.policy.grace = Some(Duration::from_secs(5));
    let target = stage.target();
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(fs::read(&told).unwrap(), b"x", "by what it was delivered");
    for pid in family {
        assert_eq!(sent(&past, pid), [Signal::Term, Signal::Kill], "{pid}");
    }
}

/// Holds a file as a process holds a GPU, and does this when it is told to end.
const TAKES: &str = r#"
import os, signal, sys, time
path, manner, delay = sys.argv[1], sys.argv[2], float(sys.argv[3])
held = open(path)
def told(*_):
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
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
while True: signal.pause()
"#;

/// Whatever the target does and when: a while after "freed", none of its processes holds memory.
#[test]
fn freed_means_that_no_process_of_the_target_holds_memory() {
    let python = or_skip!(python_with(&["signal"]));
    const MANNERS: [&str; 5] = ["exits", "ignores", "takes_again", "forks", "starts_again"];
    thread::scope(|scope| {
        for seed in 0..10 {
            let python = &python;
            scope.spawn(move || {
                let mut random = Random::new("freed", seed);
                let manner = MANNERS[seed as usize % MANNERS.len()];
                // Well before the end of its time, and of that in which its memory is watched: 4 and 5 seconds.
                let delay = random.range(0.1, 1.5);
                let mut stage = Stage::new(&[]);
                let file = stage.dev().join("nvidia0");
                let mut command = Command::new(python);
                command.args(["-c", TAKES]).arg(&file).args([manner, &delay.to_string()]);
                let cast = Cast::new(command.process_group(0));
                // Another program of the same user holds the GPU, too, and lives.
                let other = "import os, sys, time\nheld = open(sys.argv[1])\nprint('ready', flush=True)\ntime.sleep(600)";
                let mut command = Command::new(python);
                let mut innocent = Cast::new(command.args(["-c", other]).arg(&file).process_group(0));
                stage.lists_holders = true;
                stage.guard.policy.targets = Targets::named(vec![cast.pid()], Vec::new()).unwrap();
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
                let kills = sent(&past, cast.pid()).contains(&Signal::Kill);
                assert_eq!(kills, ["ignores", "takes_again"].contains(&manner), "{case}");
                assert!(innocent.is_alive() && sent(&past, innocent.pid()).is_empty(), "{case}");
            });
        }
    });
}

#[test]
fn a_worker_that_a_subreaper_took_in_is_ended_and_the_subreaper_is_not() {
    let python = or_skip!(python_with(&["ctypes"]));
    // PR_SET_CHILD_SUBREAPER is 36. The trainer, in a session of its own, dies and leaves a worker.
    let script = "import ctypes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
trainer = os.fork()
if trainer == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: signal.pause()
    os._exit(0)
os.waitpid(trainer, 0)
print('ready', flush=True)
time.sleep(600)";
    let mut cast = Cast::python(&python, script);
    let all = read_all(&Roots::default()).unwrap();
    let worker = all.iter().find(|it| it.ppid == Some(cast.pid())).unwrap();
    assert_ne!(worker.session, Some(cast.pid()));
    let (outcome, past) = Stage::new(&[worker.pid]).end();
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(sent(&past, worker.pid).last(), Some(&Signal::Kill));
    assert!(sent(&past, cast.pid()).is_empty() && cast.is_alive());
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
    let cast = Cast::python(&python, script);
    let mut stage = Stage::new(&[cast.pid()]);
    support::wait_until("its first thread has ended", || {
        let snapshot = stage.look();
        snapshot.process(cast.pid()).and_then(|it| it.state) == Some('Z')
    });
    let (outcome, past) = stage.end();
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(sent(&past, cast.pid()), [Signal::Term, Signal::Kill], "it had outlived the grace");
}

#[test]
fn without_the_right_to_it_is_tried_once() {
    or_skip!(support::root("root"));
    let mut command = Command::new("sh");
    let mut cast = Cast::new(command.args(["-c", "echo ready; exec sleep 630"]));
    let pid = cast.pid();
    let acted = thread::spawn(move || {
        let mut stage = Stage::new(&[pid]);
        stage.guard.policy.all_users = true;
        // As a plan that was made with more rights, or by one who was told wrong of them.
        let target = stage.target();
        let other_user = rustix::process::Uid::from_raw(NOBODY);
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(stage.folder.path(), everybody).unwrap();
        // Of this thread only.
        rustix::thread::set_thread_uid(other_user).unwrap();
        stage.act(target)
    });
    let (outcome, past) = acted.join().unwrap();
    assert_eq!(outcome, Outcome::NotPermitted);
    assert_eq!(past.acts[0].deeds.len(), 1);
    assert!(cast.is_alive());
}
