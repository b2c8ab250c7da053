//! `gpumem park` and `gpumem unpark` with mock drivers: NVML plays a scene, and CUDA moves the rows of its processes.
//!
//! The processes are real, and have a file with the name of a device open. Most tests start the helper directly,
//! because planning and acting take longer than the operation. The driver must be called only for the processes of the
//! test.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use mock_cuda::{CHECKPOINTED, CallFault, FAILED, LOCKED, RUNNING, Script};
use mock_nvml::scene::{Driver, Gpu, Process, ProcessKind, Scene};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running};
use crate::notebook::{Kernel, Server};
use crate::procs;
use crate::reap::{Holder, Stage};
use crate::reap_notebook;
use crate::run::make_claimable;
use crate::scenarios::random::Random;
use crate::support::{self, Output, finish, python_with, wait_until};

const MIB: u64 = 1 << 20;
/// Calls of the driver, in the order in which parking and unparking make them.
const CALLS: [&str; 7] =
    ["RestoreThreadId", "Lock", "Checkpoint", "State", "cuInit", "Restore", "Unlock"];
/// Error codes that the driver's documentation lists.
const CODES: [i32; 10] = [1, 2, 3, 34, 201, 304, 401, 600, 801, 999];

/// Returns the number of random rounds of a test. CI sets `GPUMEM_TEST_ROUNDS`, which multiplies the number.
fn rounds(few: u64) -> u64 {
    few * std::env::var("GPUMEM_TEST_ROUNDS").map_or(1, |times| times.parse().unwrap())
}

struct ParkStage {
    stage: Stage,
    holders: Vec<Holder>,
}

impl ParkStage {
    /// Creates a machine with one GPU of 80 GiB, and one process for each size in `held`, in GiB.
    fn new(held: &[u64]) -> Option<Self> {
        let mut stage = Self { stage: Stage::new()?, holders: Vec::new() };
        stage.holders.extend(held.iter().map(|_| stage.stage.holder("")));
        let rows = stage.holders.iter().zip(held);
        let rows = rows.map(|(holder, gib)| Process::compute(holder.pid, gib * GIB));
        stage.play(rows.fold(gpu(), Gpu::process));
        make_restorable(&stage.stage.machine);
        Some(stage)
    }

    fn play(&self, gpu: Gpu) {
        self.stage.machine.play(&Scene::new().gpu(gpu));
    }

    fn pid(&self) -> u32 {
        self.holders[0].pid
    }

    fn script_path(&self) -> PathBuf {
        self.stage.machine.path("cuda.json")
    }

    fn script<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        Script::change(&self.script_path(), change).unwrap()
    }

    fn fault(&self, fault: CallFault) {
        self.script(|script| script.faults = vec![fault]);
    }

    /// Returns the state of a process in the driver.
    fn truth(&self, pid: u32) -> u32 {
        self.script(|script| script.processes.get(&pid).map_or(RUNNING, |process| process.state))
    }

    fn count(&self, function: &str) -> usize {
        self.script(|script| script.calls.iter().filter(|call| call.0.ends_with(function)).count())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.stage.command(arguments);
        command.env("GPUMEM_MOCK_CUDA", self.script_path());
        command.env("GPUMEM_CUDA_LIBRARY", mock_cuda::library());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        finish(&mut self.command(arguments))
    }

    fn park(&self, more: &[&str]) -> Output {
        self.run(&[&["park", &*self.pid().to_string()], more].concat())
    }

    fn unpark(&self) -> Output {
        self.run(&["unpark", &*self.pid().to_string()])
    }

    fn list(&self) -> String {
        self.run(&["park", "--list"]).exits(0).stdout
    }

    fn helper(&self, operation: &str, pid: u32) -> Command {
        let host = gpumem::api::host::read_host(&gpumem::api::host::Roots::default());
        let start = gpumem::api::host::read_start_ticks("/proc".as_ref(), pid).unwrap();
        let request = json!({
            "operation": operation,
            "process": {
                "pid": pid,
                "start_ticks": start.unwrap_or(0),
                "uid": rustix::process::getuid().as_raw(),
                "name": "sleep",
                "notebook": null,
                "bytes": 0,
                "has_release": false,
            },
            "boot_id": host.boot_id,
            "settings": {
                "journals": [self.stage.machine.path("state/park")],
                "check_interval": { "secs": 0, "nanos": 1_000_000 },
                "nvml_library": self.stage.machine.library(),
                "nvml_timeout": { "secs": 5, "nanos": 0 },
                "most_bytes": null,
            },
        });
        let mut command = self.command(&[]);
        // Remove the arguments of gpumem's commands, because the helper has its own.
        command = without_arguments(&command);
        command.args(["park-helper", &request.to_string()]);
        command
    }

    /// Runs a helper, and returns its answer.
    fn ask(&self, operation: &str, pid: u32) -> Value {
        let output = finish(&mut self.helper(operation, pid));
        serde_json::from_str(&output.stdout).unwrap_or(json!({ "result": "none" }))
    }

    fn start(&self, operation: &str, pid: u32) -> Child {
        let mut command = self.helper(operation, pid);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Returns the steps in the journal of the process.
    fn steps(&self) -> Vec<String> {
        let folder = self.stage.machine.path("state/park");
        let files = fs::read_dir(folder).into_iter().flatten().map(|file| file.unwrap().path());
        let ours = format!("/{}@", self.pid());
        let journal = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
        let mut journal = journal.filter(|path| path.display().to_string().contains(&ours));
        let text = journal.next().map(|path| fs::read_to_string(path).unwrap_or_default());
        let step = |line: &str| {
            let entry: Value = serde_json::from_str(line).ok()?;
            Some(entry["step"].as_str()?.to_owned())
        };
        text.unwrap_or_default().lines().filter_map(step).collect()
    }

    fn bytes_on_gpu(&self) -> u64 {
        let snapshot = self.stage.machine.run(&["ps", "--json"]).json();
        snapshot["gpus"][0]["memory"]["used_bytes"].as_u64().unwrap()
    }
}

/// Asserts that the driver was called only for processes that the test started.
impl Drop for ParkStage {
    fn drop(&mut self) {
        if thread::panicking() || !self.script_path().exists() {
            return;
        }
        let called: Vec<u32> =
            self.script(|script| script.calls.iter().map(|call| call.1).collect());
        assert!(called.iter().all(|pid| self.holders.iter().any(|holder| holder.pid == *pid)));
    }
}

/// Returns the command without gpumem's arguments, but with the arguments of nsenter, which come first.
fn without_arguments(command: &Command) -> Command {
    let mut bare = Command::new(command.get_program());
    let gpumem = support::gpumem();
    let end = command.get_args().position(|argument| argument == gpumem).unwrap();
    bare.args(command.get_args().take(end + 1));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bare.env(name, value),
            None => bare.env_remove(name),
        };
    }
    bare
}

/// Creates a state directory, and files like those in sysfs that a restore locks.
fn make_restorable(machine: &Machine) {
    make_claimable(machine);
    fs::create_dir_all(machine.path("state")).unwrap();
    for gpu in fs::read_dir(machine.path("pci")).unwrap() {
        fs::write(gpu.unwrap().path().join("class"), "0x030200\n").unwrap();
    }
}

fn gpu() -> Gpu {
    let mut gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    gpu.memory.get_or_insert_default().reserved = 0.into();
    gpu
}

#[test]
fn a_process_is_parked_listed_and_restored() {
    let stage = or_skip!(ParkStage::new(&[2]));
    let pid = stage.pid().to_string();
    assert_eq!(stage.list(), "no process is parked\n");
    let plan = stage.park(&["--dry-run"]).exits(0);
    assert!(
        plan.stdout.contains("move 2.0 GiB") && plan.stderr.contains("experimental"),
        "{plan:?}"
    );
    assert!(stage.steps().is_empty() && stage.count("Lock") == 0, "a plan calls nothing");

    let parked = stage.park(&["--yes"]).exits(0);
    assert!(parked.stdout.contains("parked 2.0 GiB in host memory"), "{parked:?}");
    assert_eq!((stage.truth(stage.pid()), stage.bytes_on_gpu()), (CHECKPOINTED, 0));
    assert_eq!(stage.steps(), ["intent", "locking", "checkpointing", "parked"]);
    assert_eq!(stage.stage.events(), ["begun", "intended", "done", "ended"]);
    assert_eq!(stage.stage.lines()[3]["outcome"], "parked");
    assert!(stage.holders[0].is_alive());
    let list = stage.list();
    assert!(list.starts_with(&pid) && list.contains("parked 2.0 GiB of GPU 0"), "{list}");
    assert!(list.contains("there is room to restore it"), "{list}");
    assert!(!stage.park(&["--yes"]).exits(1).stdout.contains("parked 2.0 GiB"));

    // Without room, nothing is restored, and the holder of the memory is named.
    stage.play(gpu().process(Process::compute(stage.pid() + 1, 79 * GIB)));
    let full = stage.unpark().exits(1);
    assert!(full.stdout.contains("are free; held by"), "{full:?}");
    assert_eq!((stage.count("Restore"), stage.truth(stage.pid())), (0, CHECKPOINTED));
    assert!(stage.list().contains("no room"));
    let mut waiting = stage.command(&["unpark", "all", "--wait-free", "100s"]);
    let waiting = waiting.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    stage.play(gpu());
    let restored = waiting.wait_with_output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!((stage.truth(stage.pid()), stage.bytes_on_gpu()), (RUNNING, 2 * GIB));
    assert_eq!(stage.list(), "no process is parked\n");
    stage.unpark().exits(1);
    assert_eq!(stage.count("Restore"), 1);
}

/// In each case, gpumem does not lock the process, and the plan contains the reason.
#[test]
fn unsafe_cases_are_refused_before_the_first_call() {
    let stage = or_skip!(ParkStage::new(&[2]));
    let pid = stage.pid();
    let row = || Process::compute(pid, 2 * GIB);
    let with = |change: fn(&mut Gpu)| {
        let mut gpu = gpu().process(row());
        change(&mut gpu);
        Scene::new().gpu(gpu)
    };
    let old = Driver { version: "565.57.01".into(), ..Driver::default() };
    let cases = [
        ("requires driver 570", with(|_| {}).driver(old)),
        ("MIG mode", with(|gpu| gpu.mig = Some(true))),
        ("persistence mode is off", with(|gpu| gpu.persistence = Some(false))),
        ("managed memory", with(|gpu| *gpu = gpu.clone().unattributed(GIB))),
        ("for graphics or", with(|gpu| gpu.processes[0].kind = ProcessKind::ComputeGraphics)),
        ("it works on GPU 0", with(|gpu| gpu.processes[0].sm = 7.into())),
        ("not report its memory", with(|gpu| gpu.processes[0].used_bytes = None)),
        (
            "of host memory",
            with(|gpu| {
                *gpu = gpu.clone().total(8000 * GIB);
                gpu.processes[0].used_bytes = Some((7000 * GIB).into());
            }),
        ),
    ];
    for (reason, scene) in cases {
        stage.stage.machine.play(&scene);
        let output = stage.park(&["--yes"]).exits(1);
        assert!(output.stdout.contains(reason), "{reason}: {output:?}");
        let answer = stage.ask("park", pid);
        assert_eq!(answer["result"], "refused", "{reason}: {answer}");
    }
    stage.play(gpu().process(row()));
    type Change = fn(&mut Script);
    let changes: [(&str, Change); 2] = [
        ("older than 570", |script| script.version = 12_070),
        ("may not use CUDA", |script| script.faults.push(CallFault::error("RestoreThreadId", 1))),
    ];
    for (reason, change) in changes {
        stage.script(change);
        let output = stage.park(&["--yes"]).exits(1);
        assert!(output.stdout.contains(reason), "{reason}: {output:?}");
        stage
            .script(|script| *script = Script { calls: script.calls.clone(), ..Script::default() });
    }
    let mut other_driver = stage.command(&["park", "--yes", &pid.to_string()]);
    let output = finish(other_driver.env("GPUMEM_CUDA_LIBRARY", mock_nvml::library())).exits(1);
    assert!(output.stdout.contains("the driver lacks cuInit"), "{output:?}");
    let send = |signal| procs::send(pid, signal);
    send(Signal::STOP);
    assert!(stage.park(&["--yes"]).exits(1).stdout.contains("stopped or frozen"));
    send(Signal::CONT);
    assert_eq!((stage.count("Lock"), stage.truth(pid)), (0, RUNNING));
}

/// Starts a holder with this shell script. Asserts that gpumem refuses to park the holder for this reason.
fn assert_refused(script: &str, reason: &str) {
    let mut stage = or_skip!(ParkStage::new(&[2]));
    stage.holders.insert(0, stage.stage.holder(script));
    stage.play(gpu().process(Process::compute(stage.pid(), 2 * GIB)));
    let output = stage.park(&["--yes"]).exits(1);
    assert!(output.stdout.contains(reason), "{reason}: {output:?}");
    assert_eq!(stage.count("Lock"), 0);
}

#[test]
fn profilers_ranks_and_jobs_are_refused() {
    assert_refused("export CUDA_INJECTION64_PATH=/x.so;", "a profiler is attached");
    assert_refused("export WORLD_SIZE=2;", "rank of a distributed run");
    assert_refused("sleep 30 & ", "its job has other GPU processes");
    let python = or_skip!(python_with(&["ctypes"]));
    let stage = or_skip!(ParkStage::new(&[2]));
    let trace = "import ctypes, sys, time\n\
        assert ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0\n\
        print('ready', flush=True)\ntime.sleep(600)";
    let mut tracer = Command::new(python);
    let tracer = tracer.args(["-c", trace, &stage.pid().to_string()]);
    let (tracer, line) = support::start_and_read_line(tracer);
    let tracer = Running(tracer);
    assert_eq!(line, "ready");
    assert!(stage.park(&["--yes"]).exits(1).stdout.contains("traces it"));
    assert_eq!(stage.count("Lock"), 0);
    // Drop the tracer before the holder, because the kernel reports the exit of a traced process to its tracer first.
    drop(tracer);
}

/// The memory limit of the process's cgroup applies in addition to the machine's memory.
#[test]
fn a_memory_cgroup_that_is_too_small_is_refused() {
    let v1 = PathBuf::from("/sys/fs/cgroup/memory");
    let (root, limit) = match v1.is_dir() {
        true => (v1, "memory.limit_in_bytes"),
        false => (PathBuf::from("/sys/fs/cgroup"), "memory.max"),
    };
    let stage = or_skip!(ParkStage::new(&[2]));
    let folder = root.join(format!("gpumem-test-{}", stage.pid()));
    let set = |name: &str, text: &str| fs::write(folder.join(name), text);
    let made = fs::create_dir(&folder)
        .and_then(|()| set(limit, "1073741824"))
        .and_then(|()| set("cgroup.procs", &stage.pid().to_string()));
    let output = made.is_ok().then(|| stage.park(&["--yes"]));
    let _ = fs::write(root.join("cgroup.procs"), stage.pid().to_string());
    let _ = fs::remove_dir(&folder);
    let Some(output) = output else {
        return support::skip("a memory cgroup", "run as root");
    };
    assert!(output.stdout.contains("of host memory, and"), "{output:?}");
    assert_eq!(stage.count("Lock"), 0);
}

/// After a call, the driver reports a lost or unknown state.
#[test]
fn a_lost_or_unknown_state_is_said() {
    for (state, words) in [(FAILED, "its CUDA state is lost"), (5, "its state is unknown")] {
        let stage = or_skip!(ParkStage::new(&[2]));
        let fault = CallFault::error("Checkpoint", 999);
        stage.fault(CallFault { state: Some(state), ..fault });
        let answer = stage.ask("park", stage.pid());
        assert_eq!(answer["result"], "failed", "{answer}");
        let list = stage.list();
        assert!(list.contains(words), "{list}");
        stage.unpark().exits(1);
        assert_eq!((stage.count("Restore"), stage.truth(stage.pid())), (0, state));
    }
    // The driver reports that the memory is on the host, but NVML still shows it on the GPU.
    let stage = or_skip!(ParkStage::new(&[2]));
    let keeps =
        CallFault { function: "Checkpoint".to_owned(), keeps_rows: true, ..CallFault::default() };
    stage.fault(keeps);
    let answer = stage.ask("park", stage.pid());
    assert!(answer["text"].as_str().unwrap().contains("NVML still shows 2.0 GiB"), "{answer}");
}

/// An operation on a process, and the fault or kill that interrupts the operation.
#[derive(Clone, Debug)]
struct Case {
    operation: &'static str,
    fault: CallFault,
    /// Time from the start of the helper to its kill, in milliseconds. `None` if the helper is not killed.
    kill_after_ms: Option<u64>,
}

/// Number of GPUs in a batch, and of threads. Each thread uses one GPU, because gpumem restores one process at a time
/// on a GPU.
const THREADS: usize = 4;

/// Interrupts one operation per case, each on its own process. Asserts that gpumem then reports the true states, and
/// that `unpark` restores every process that the driver can restore.
fn assert_true_reports(cases: &[Case]) {
    let mut stage = ParkStage { stage: or_skip!(Stage::new()), holders: Vec::new() };
    stage.holders.extend(cases.iter().map(|_| stage.stage.holder("")));
    let pids: Vec<u32> = stage.holders.iter().map(|holder| holder.pid).collect();
    let mut gpus = vec![gpu(); THREADS];
    for (at, &pid) in pids.iter().enumerate() {
        let gpu = &mut gpus[at % THREADS];
        *gpu = gpu.clone().process(Process::compute(pid, 64 * MIB));
    }
    stage.stage.machine.play(&gpus.into_iter().fold(Scene::new(), Scene::gpu));
    make_restorable(&stage.stage.machine);
    let stage = &stage;
    let each = |test: &(dyn Fn(usize, u32) + Sync)| {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let pids = pids.iter().copied().enumerate().skip(thread).step_by(THREADS);
                scope.spawn(move || pids.for_each(|(at, pid)| test(at, pid)));
            }
        });
    };
    each(&|at, pid| {
        if cases[at].operation == "unpark" {
            let answer = stage.ask("park", pid);
            assert_eq!(answer["result"], "parked", "{answer}");
        }
    });
    let fault = |(case, &pid): (&Case, &u32)| CallFault { pid: Some(pid), ..case.fault.clone() };
    stage.script(|script| script.faults = cases.iter().zip(&pids).map(fault).collect());
    each(&|at, pid| {
        let Some(milliseconds) = cases[at].kill_after_ms else {
            stage.ask(cases[at].operation, pid);
            return;
        };
        let mut helper = stage.start(cases[at].operation, pid);
        thread::sleep(Duration::from_millis(milliseconds));
        // Kill while the script is locked, so that the mock driver is not killed during a write.
        stage.script(|_| helper.kill().unwrap());
        helper.wait().unwrap();
    });
    let killed = |fault: &CallFault| fault.kills_target && fault.times == Some(0);
    let killed: Vec<u32> = stage.script(|script| {
        let killed = script.faults.drain(..).filter(killed);
        killed.filter_map(|fault| fault.pid).collect()
    });
    let is_alive = |at: usize| stage.holders[at].is_alive();
    wait_until("processes exit", || {
        pids.iter().enumerate().all(|(at, pid)| !killed.contains(pid) || !is_alive(at))
    });
    let list = stage.list();
    each(&|at, pid| {
        let mut lines = list.lines();
        let line = lines.find(|line| line.starts_with(&format!("{pid} ")));
        let truth = stage.truth(pid);
        let expected = match truth {
            _ if !is_alive(at) => None,
            RUNNING => None,
            LOCKED => Some("locked: its CUDA calls wait"),
            CHECKPOINTED => Some("parked 64.0 MiB"),
            _ => Some("CUDA state is lost"),
        };
        let case = &cases[at];
        match (line, expected) {
            (None, None) => return,
            (Some(line), Some(words)) => assert!(line.contains(words), "{case:?}: {line}"),
            _ => panic!("{case:?}: state {truth}: {line:?}"),
        }
        let is_stuck = stage.script(|script| script.processes[&pid].is_stuck);
        let answer = stage.ask("unpark", pid);
        let expected = if truth == FAILED { FAILED } else { RUNNING };
        assert!(stage.truth(pid) == expected || is_stuck, "{case:?}: {answer}");
    });
}

/// Every call fails with every documented code, with and without effect, while a process is parked and restored.
#[test]
fn any_error_leaves_a_process_in_a_reported_state() {
    let all: Vec<Case> = CALLS
        .iter()
        .flat_map(|call| CODES.map(|code| [(*call, code, false), (*call, code, true)]))
        .flatten()
        .flat_map(|(call, code, has_effect)| {
            let fault = CallFault { has_effect, times: Some(1), ..CallFault::error(call, code) };
            let case = |operation| Case { operation, fault: fault.clone(), kill_after_ms: None };
            ["park", "unpark"].map(case)
        })
        .collect();
    let count = usize::try_from(rounds(BATCH as u64)).unwrap().min(all.len());
    let mut random = Random::new("park errors", rounds(1));
    let start = usize::try_from(random.whole(0, all.len() as u64 - 1)).unwrap();
    let chosen = (0..count).map(|at| all[(start + at * all.len() / count) % all.len()].clone());
    chosen.collect::<Vec<_>>().chunks(BATCH).for_each(assert_true_reports);
}

/// Number of processes that are interrupted before one `park --list` reports them.
const BATCH: usize = 20;

/// Kills the helper or the process before, during or after a call, or at a random time.
#[test]
fn a_kill_at_any_moment_leaves_a_true_report() {
    let case = |seed: u64| {
        let mut random = Random::new("park kills", seed);
        let kills_target = random.chance(0.3);
        let is_at_call = random.chance(0.7);
        let fault = CallFault {
            function: random.pick(&CALLS).to_owned(),
            kills_target,
            kills_caller: !kills_target,
            kills_late: random.chance(0.5),
            times: Some(1),
            ..CallFault::default()
        };
        Case {
            operation: random.pick(&["park", "unpark"]),
            fault: if is_at_call { fault } else { CallFault::default() },
            kill_after_ms: (!is_at_call).then(|| random.whole(0, 150)),
        }
    };
    let cases: Vec<Case> = (0..rounds(50)).map(case).collect();
    cases.chunks(BATCH).for_each(assert_true_reports);
}

/// If gpumem is killed while the helper runs, the helper still completes the operation.
#[test]
fn the_helper_finishes_without_its_parent() {
    for round in 0..3 {
        let stage = or_skip!(ParkStage::new(&[2]));
        stage.fault(CallFault { delay_ms: 100, ..CallFault::default() });
        let mut command = stage.command(&["park", "--yes", &stage.pid().to_string()]);
        let mut parent = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let step = ["intent", "locking", "checkpointing"][round];
        wait_until("the step", || stage.steps().contains(&step.to_owned()));
        parent.kill().unwrap();
        parent.wait().unwrap();
        wait_until("the helper finishes", || stage.steps().contains(&"parked".to_owned()));
        wait_until("the helper exits", || !stage.list().contains("at work"));
        assert_eq!(stage.truth(stage.pid()), CHECKPOINTED);
        stage.unpark().exits(0);
    }
}

/// While a lock call hangs, gpumem reports the helper. After the helper is killed, the process runs.
#[test]
fn a_lock_that_never_returns_is_reported() {
    let stage = or_skip!(ParkStage::new(&[2]));
    stage.fault(CallFault { function: "Lock".to_owned(), hangs: true, ..CallFault::default() });
    let mut helper = stage.start("park", stage.pid());
    wait_until("the lock", || stage.steps().contains(&"locking".to_owned()));
    let list = stage.list();
    assert!(list.contains(&format!("the helper ({}) is at work", helper.id())), "{list}");
    assert!(stage.park(&["--yes"]).exits(1).stdout.contains("a helper is parking"));
    assert_eq!(stage.ask("unpark", stage.pid())["result"], "refused");
    helper.kill().unwrap();
    helper.wait().unwrap();
    assert_eq!((stage.truth(stage.pid()), &*stage.list()), (RUNNING, "no process is parked\n"));
}

/// The free memory is enough for one of two processes. Exactly one is restored, and the other stays parked.
#[test]
fn two_restores_share_the_last_bytes() {
    for _ in 0..2 {
        let stage = or_skip!(ParkStage::new(&[30, 30]));
        let pids: Vec<u32> = stage.holders.iter().map(|holder| holder.pid).collect();
        // The host can lack memory for two processes of 30 GiB, so show 1 GiB each while they are parked.
        stage.play(pids.iter().fold(gpu(), |gpu, &pid| gpu.process(Process::compute(pid, GIB))));
        for &pid in &pids {
            assert_eq!(stage.ask("park", pid)["result"], "parked");
        }
        stage.play(gpu().unattributed(80 * GIB - 7 * GIB / 4));
        let start = |pid: u32| {
            let mut command = stage.helper("unpark", pid);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let helpers: Vec<Child> = pids.iter().map(|&pid| start(pid)).collect();
        for helper in helpers {
            helper.wait_with_output().unwrap();
        }
        let mut states: Vec<u32> = pids.iter().map(|&pid| stage.truth(pid)).collect();
        states.sort_unstable();
        assert_eq!((states, stage.count("Restore")), (vec![RUNNING, CHECKPOINTED], 1));
    }
}

/// A reloaded driver has lost the state of the process. After a process has exited, another process can get its pid.
#[test]
fn another_driver_or_process_is_not_restored() {
    let stage = or_skip!(ParkStage::new(&[2]));
    assert_eq!(stage.ask("park", stage.pid())["result"], "parked");
    let newer = Driver { version: "590.44.01".into(), ..Driver::default() };
    stage.stage.machine.play(&Scene::new().gpu(gpu()).driver(newer));
    assert!(stage.unpark().exits(1).stdout.contains("the driver is 590.44.01 now"));
    assert_eq!(stage.count("Restore"), 0);
    // Make the journal belong to an earlier process with the same pid.
    let folder = stage.stage.machine.path("state/park");
    for file in fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()) {
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("\"start_ticks\":", "\"start_ticks\":9")).unwrap();
    }
    let calls = stage.count("");
    assert_eq!(stage.list(), "no process is parked\n");
    stage.unpark().exits(1);
    assert_eq!(stage.count(""), calls);
}

/// `ps` and `explain` show a parked process, no rule reports it, and `kill` can end it.
#[test]
fn a_parked_process_is_shown_and_can_be_ended() {
    let stage = or_skip!(ParkStage::new(&[2]));
    let pid = stage.pid().to_string();
    assert_eq!(stage.ask("park", stage.pid())["result"], "parked");
    let shown = stage.run(&["ps"]).exits(0).stdout;
    assert!(shown.contains("parked 2.0 GiB (host memory)"), "{shown}");
    let screen = stage.run(&["watch", "--once"]).exits(0).stdout;
    assert!(screen.contains("[parked"), "{screen}");
    let page = stage.run(&["explain", &pid]);
    assert!(page.stdout.contains(&format!("`gpumem unpark {pid}` restores it")), "{page:?}");
    let checked = stage.run(&["check", "--window", "1s", "--json"]).json();
    assert_eq!(checked["findings"], json!([]), "{checked}");
    let killed = stage.run(&["kill", "--yes", &pid]).exits(0);
    assert!(!stage.holders[0].is_alive(), "{killed:?}");
    assert_eq!((stage.list().as_str(), stage.count("Lock")), ("no process is parked\n", 1));
}

/// Killing a restored process has hung machines, so gpumem parks the process first. If that fails, it does not kill it.
#[test]
fn a_restored_process_is_parked_before_it_is_ended() {
    for works in [true, false] {
        let stage = or_skip!(ParkStage::new(&[2]));
        let pid = stage.pid().to_string();
        assert_eq!(stage.ask("park", stage.pid())["result"], "parked");
        assert_eq!(stage.ask("unpark", stage.pid())["result"], "running");
        if works {
            stage.fault(CallFault::error("Lock", 600));
            let output = stage.run(&["kill", "--yes", &pid]).exits(1);
            assert!(
                output.stdout.contains("not ended, because it was restored once"),
                "{output:?}"
            );
            assert!(stage.holders[0].is_alive() && stage.truth(stage.pid()) == RUNNING);
            continue;
        }
        let output = stage.run(&["kill", "--yes", &pid]).exits(0);
        assert!(!stage.holders[0].is_alive(), "{output:?}");
        assert_eq!(stage.truth(stage.pid()), CHECKPOINTED);
    }
}

/// While a helper parks a process, neither `kill` nor a rule ends the process.
#[test]
fn a_process_is_not_ended_while_it_is_parked() {
    let stage = or_skip!(ParkStage::new(&[2]));
    stage.fault(CallFault {
        function: "Checkpoint".to_owned(),
        delay_ms: 4000,
        ..CallFault::default()
    });
    let mut helper = stage.start("park", stage.pid());
    wait_until("the checkpoint", || stage.steps().contains(&"checkpointing".to_owned()));
    let pid = stage.pid().to_string();
    let output = stage.run(&["kill", "--yes", "--signal", "KILL", &pid]).exits(1);
    assert!(output.stdout.contains("a helper is parking or restoring it"), "{output:?}");
    helper.wait().unwrap();
    assert!(stage.holders[0].is_alive());
    assert_eq!(stage.truth(stage.pid()), CHECKPOINTED);
}

const SERVICE: &str = "[sample]\ninterval = \"200ms\"\n[reap]\nwarn = \"1s\"\ngrace = \"1s\"\n\
    notify = [\"/bin/sh\", \"-c\", \"cat >> $0\", \"NOTICES\"]\n[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"1s\"\n\
    action = \"ACTION\"\n";

/// Configures a service that acts on idle processes, and writes its notices to a file.
fn configure_service(machine: &Machine, action: &str) {
    let notices = machine.path("notices").display().to_string();
    machine.configure(&SERVICE.replace("NOTICES", &notices).replace("ACTION", action));
}

/// `park` and the service act on idle processes at the same time. The service ends only the process that is not parked.
#[test]
fn the_service_does_not_end_a_parked_process() {
    let stage = or_skip!(ParkStage::new(&[2, 2]));
    configure_service(&stage.stage.machine, "reap");
    stage.fault(CallFault {
        function: "Checkpoint".to_owned(),
        delay_ms: 1500,
        ..CallFault::default()
    });
    let mut helper = stage.start("park", stage.pid());
    wait_until("the checkpoint", || stage.steps().contains(&"checkpointing".to_owned()));
    let service = Running::start(&mut stage.command(&["reap", "--watch"]));
    wait_until("the other process is ended", || !stage.holders[1].is_alive());
    helper.wait().unwrap();
    drop(service);
    assert!(stage.holders[0].is_alive());
    assert_eq!((stage.truth(stage.pid()), stage.count("Lock")), (CHECKPOINTED, 1));
    let notices = fs::read_to_string(stage.stage.machine.path("notices")).unwrap();
    assert!(!notices.contains(&format!("\"pid\":{},", stage.pid())), "{notices}");
}

/// A notebook on a real server, and a machine whose driver supports parking.
struct NotebookStage {
    server: Server,
    kernel: Kernel,
    machine: Machine,
}

impl NotebookStage {
    fn new() -> Option<Self> {
        let server = reap_notebook::server(&[])?;
        let kernel = reap_notebook::idle_kernel(&server);
        let machine =
            Machine::new(&Scene::new().gpu(gpu().process(Process::compute(kernel.pid, 2 * GIB))));
        make_restorable(&machine);
        Some(Self { server, kernel, machine })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.command(arguments);
        command.env("GPUMEM_MOCK_CUDA", self.machine.path("cuda.json"));
        command.env("GPUMEM_CUDA_LIBRARY", mock_cuda::library());
        command.env("STATE_DIRECTORY", self.machine.path("state"));
        command
    }

    fn state(&self) -> u32 {
        let state = |script: &mut Script| script.processes.get(&self.kernel.pid).map(|p| p.state);
        Script::change(&self.machine.path("cuda.json"), state).unwrap().unwrap_or(RUNNING)
    }
}

/// A cell that runs while its notebook is parked makes `unpark --watch` restore the notebook.
#[test]
fn a_notebook_is_restored_when_it_runs_a_cell() {
    let stage = or_skip!(NotebookStage::new());
    // `park` accepts the name of the notebook in place of a pid.
    let parked = finish(&mut stage.command(&["park", "--yes", "a.ipynb"]));
    assert_eq!(parked.code, 0, "{parked:?}");
    assert_eq!(stage.state(), CHECKPOINTED);
    assert!(finish(&mut stage.command(&["park", "--list"])).stdout.contains("a.ipynb"));
    let watch = Running::start(&mut stage.command(&["unpark", "--watch"]));
    let cell = reap_notebook::start_busy_cell(&stage.server, &stage.kernel);
    wait_until("the notebook is restored", || stage.state() == RUNNING);
    fs::write(stage.server.home.path("done"), "").unwrap();
    drop((watch, cell));
}

/// A rule with `action = "park"` parks a notebook after two warnings. When a cell runs, the service tells the owner who
/// holds the memory, and restores the notebook once it is free.
#[test]
fn a_rule_parks_a_notebook_and_the_service_restores_it() {
    let stage = or_skip!(NotebookStage::new());
    // A plan that ends the notebook suggests parking it instead.
    configure_service(&stage.machine, "notify");
    let idle = ["reap", "--kind", "idle", "--window", "4s", "--dry-run"];
    let plan = finish(&mut stage.command(&idle)).exits(0);
    let park = format!("or `gpumem park {}`", stage.kernel.pid);
    assert!(plan.stdout.contains(&park), "{plan:?}");
    configure_service(&stage.machine, "park");
    let service = Running::start(&mut stage.command(&["reap", "--watch"]));
    wait_until("the notebook is parked", || stage.state() == CHECKPOINTED);
    let notices = || fs::read_to_string(stage.machine.path("notices")).unwrap_or_default();
    let unpark = format!("gpumem unpark {}", stage.kernel.pid);
    let warnings: Vec<Value> =
        notices().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&Value> = warnings.iter().map(|notice| &notice["notice"]).collect();
    // A busy machine can delay the kernel so that it seems to work, and warnings start over.
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), (&json!("warning"), &json!("last_warning")));
    assert!(warnings.iter().all(|notice| notice["restore"] == unpark), "{warnings:?}");
    stage.machine.play(&Scene::new().gpu(gpu().process(Process::compute(1, 79 * GIB))));
    let cell = reap_notebook::start_busy_cell(&stage.server, &stage.kernel);
    wait_until("the owner is told", || notices().contains("no_room"));
    let told = notices();
    assert!(told.contains("held by 1 ") && told.contains(&unpark), "{told}");
    assert_eq!(stage.state(), CHECKPOINTED);
    stage.machine.play(&Scene::new().gpu(gpu()));
    wait_until("the notebook is restored", || stage.state() == RUNNING);
    fs::write(stage.server.home.path("done"), "").unwrap();
    drop((service, cell));
}
