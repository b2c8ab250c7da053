//! `gpumem park` and `gpumem unpark` with mock drivers: NVML plays a scene, and CUDA moves the rows of its processes.
//!
//! The processes are real and hold a file named like a device. Most tests start the helper as `gpumem park` does, because
//! a plan and an act take longer than the operation. After each test, the driver was called only for its processes.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use mock_cuda::{CHECKPOINTED, CallFault, FAILED, LOCKED, RUNNING, Script};
use mock_nvml::scene::{Driver, Gpu, Process, ProcessKind, Scene};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running};
use crate::procs;
use crate::reap::{Holder, Stage};
use crate::reap_notebook;
use crate::run::make_claimable;
use crate::scenarios::random::Random;
use crate::support::{self, Output, finish, python_with, wait_until};

/// Calls of the driver, in the order in which parking and unparking make them.
const CALLS: [&str; 7] =
    ["RestoreThreadId", "Lock", "Checkpoint", "State", "cuInit", "Restore", "Unlock"];
/// Error codes that the driver's documentation lists.
const CODES: [i32; 10] = [1, 2, 3, 34, 201, 304, 401, 600, 801, 999];

/// Returns how many random rounds a test runs. CI multiplies the number.
fn rounds(few: u64) -> u64 {
    few * std::env::var("GPUMEM_TEST_ROUNDS").map_or(1, |times| times.parse().unwrap())
}

struct ParkStage {
    stage: Stage,
    holders: Vec<Holder>,
}

impl ParkStage {
    /// Creates a machine with one GPU of 80 GiB and processes that each hold this many GiB of it.
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
            "pid": pid,
            "start_ticks": start.unwrap_or(0),
            "uid": rustix::process::getuid().as_raw(),
            "name": "sleep",
            "notebook": null,
            "bytes": 0,
            "boot_id": host.boot_id,
            "settings": {
                "states": [self.stage.machine.path("state")],
                "nvml_library": self.stage.machine.library(),
                "nvml_timeout": { "secs": 5, "nanos": 0 },
                "most_bytes": null,
            },
        });
        let mut command = self.command(&[]);
        // The helper's arguments are not those of a command.
        command = without_arguments(&command);
        command.args(["park-helper", &request.to_string()]);
        command
    }

    /// Runs a helper, and returns its answer.
    fn ask(&self, operation: &str, pid: u32) -> Value {
        let output = finish(&mut self.helper(operation, pid));
        serde_json::from_str(&output.stdout).unwrap_or(json!({ "answer": "none" }))
    }

    fn start(&self, operation: &str) -> Child {
        let mut command = self.helper(operation, self.pid());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Returns the steps in the journal of the process.
    fn steps(&self) -> Vec<String> {
        let folder = self.stage.machine.path("state/park");
        let files = fs::read_dir(folder).into_iter().flatten().map(|file| file.unwrap().path());
        let ours = format!("-{}-", self.pid());
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

/// No process is called that the test did not start.
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

/// Returns the command without gpumem's arguments, which nsenter's own precede.
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

/// Creates a state directory, and the file in sysfs that a restore locks.
fn make_restorable(machine: &Machine) {
    make_claimable(machine);
    fs::create_dir_all(machine.path("state")).unwrap();
    let gpu = fs::read_dir(machine.path("pci")).unwrap().next().unwrap().unwrap();
    fs::write(gpu.path().join("class"), "0x030200\n").unwrap();
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

/// Each of these prevents the first call, and the plan gives the reason.
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
        ("requires 570", with(|_| {}).driver(old)),
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
        assert_eq!(answer["answer"], "refused", "{reason}: {answer}");
    }
    stage.play(gpu().process(row()));
    type Change = fn(&mut Script);
    let changes: [(&str, Change); 3] = [
        ("older than 570", |script| script.version = 12_070),
        ("lacks cuCheckpointProcessLock", |script| {
            script.missing.push("cuCheckpointProcessLock".to_owned());
        }),
        ("may not use CUDA", |script| script.faults.push(CallFault::error("RestoreThreadId", 1))),
    ];
    for (reason, change) in changes {
        stage.script(change);
        let output = stage.park(&["--yes"]).exits(1);
        assert!(output.stdout.contains(reason), "{reason}: {output:?}");
        stage
            .script(|script| *script = Script { calls: script.calls.clone(), ..Script::default() });
    }
    let send = |signal| procs::send(pid, signal);
    send(Signal::STOP);
    assert!(stage.park(&["--yes"]).exits(1).stdout.contains("stopped or frozen"));
    send(Signal::CONT);
    assert_eq!((stage.count("Lock"), stage.truth(pid)), (0, RUNNING));
}

/// Starts a holder by this shell script, and expects that it is refused for this reason.
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
    // The exit of a traced process is reported to its tracer first.
    drop(tracer);
}

/// The limit of the process's own cgroup counts, not only that of the machine.
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

/// After a failure, gpumem reports the true state, and `unpark` restores whatever the driver can.
fn assert_true_report(stage: &ParkStage, case: &str) {
    let pid = stage.pid();
    stage.script(|script| script.faults.clear());
    if !stage.holders[0].is_alive() {
        assert_eq!(stage.list(), "no process is parked\n", "{case}");
        return;
    }
    let (list, truth) = (stage.list(), stage.truth(pid));
    let words = match truth {
        RUNNING => "no process is parked",
        LOCKED => "locked: its CUDA calls wait",
        CHECKPOINTED => "parked 2.0 GiB",
        _ => "CUDA state is lost",
    };
    assert!(list.contains(words), "{case}: state {truth}: {list}; {:?}", stage.steps());
    let (is_stuck, is_recorded) = (
        stage.script(|script| script.processes.get(&pid).is_some_and(|p| p.is_stuck)),
        truth != RUNNING,
    );
    if is_recorded {
        stage.ask("unpark", pid);
    }
    let expected = if truth == FAILED { FAILED } else { RUNNING };
    let now = stage.truth(pid);
    assert!(now == expected || is_stuck, "{case}: {now}, not {expected}; {:?}", stage.steps());
}

/// Every call fails with every documented code, with and without effect, while a process is parked and restored.
#[test]
fn any_error_leaves_a_process_in_a_reported_state() {
    let all: Vec<(&str, i32, bool)> = CALLS
        .iter()
        .flat_map(|call| CODES.map(|code| [(*call, code, false), (*call, code, true)]))
        .flatten()
        .collect();
    let count = usize::try_from(rounds(12)).unwrap().min(all.len());
    let mut random = Random::new("park errors", rounds(1));
    let start = usize::try_from(random.whole(0, all.len() as u64 - 1)).unwrap();
    let chosen: Vec<_> =
        (0..count).map(|at| all[(start + at * all.len() / count) % all.len()]).collect();
    in_parallel(chosen, |(call, code, has_effect)| {
        for operation in ["park", "unpark"] {
            let stage = or_skip!(ParkStage::new(&[2]));
            if operation == "unpark" {
                assert_eq!(stage.ask("park", stage.pid())["answer"], "parked");
            }
            let fault = CallFault::error(call, code);
            stage.fault(CallFault { has_effect, times: Some(1), ..fault });
            let answer = stage.ask(operation, stage.pid());
            assert_true_report(
                &stage,
                &format!("{operation} {call} {code} {has_effect}: {answer}"),
            );
        }
    });
}

/// A state that the driver reports after a call.
#[test]
fn a_lost_or_unknown_state_is_said() {
    for (state, words) in [(FAILED, "its CUDA state is lost"), (5, "its state is unknown")] {
        let stage = or_skip!(ParkStage::new(&[2]));
        let fault = CallFault::error("Checkpoint", 999);
        stage.fault(CallFault { state: Some(state), ..fault });
        let answer = stage.ask("park", stage.pid());
        assert_eq!(answer["answer"], "failed", "{answer}");
        let list = stage.list();
        assert!(list.contains(words), "{list}");
        stage.unpark().exits(1);
        assert_eq!((stage.count("Restore"), stage.truth(stage.pid())), (0, state));
    }
    // The driver says that the memory is on the host, but NVML still shows it.
    let stage = or_skip!(ParkStage::new(&[2]));
    let keeps =
        CallFault { function: "Checkpoint".to_owned(), keeps_rows: true, ..CallFault::default() };
    stage.fault(keeps);
    let answer = stage.ask("park", stage.pid());
    assert!(answer["why"].as_str().unwrap().contains("NVML still shows 2.0 GiB"), "{answer}");
}

/// Kills the helper or the process at a random moment of a park or unpark.
#[test]
fn a_kill_at_any_moment_leaves_a_true_report() {
    let seeds: Vec<u64> = (0..rounds(50)).collect();
    in_parallel(seeds, |seed| {
        let mut random = Random::new("park kills", seed);
        let stage = or_skip!(ParkStage::new(&[2]));
        let operation = random.pick(&["park", "unpark"]);
        if operation == "unpark" {
            assert_eq!(stage.ask("park", stage.pid())["answer"], "parked");
        }
        let kills_target = random.chance(0.3);
        let function = random.pick(&CALLS).to_owned();
        let case = format!("seed {seed}: {operation}, {function}, target {kills_target}");
        let is_killed = if random.chance(0.5) {
            stage.fault(CallFault {
                function,
                kills_target,
                kills_caller: !kills_target,
                times: Some(1),
                ..CallFault::default()
            });
            let _ = stage.ask(operation, stage.pid());
            kills_target && was_called(&stage)
        } else {
            // The kill hits any moment, also those between the driver's calls.
            stage.fault(CallFault { delay_ms: 20, ..CallFault::default() });
            let mut helper = stage.start(operation);
            let before = stage.steps().len();
            let wanted = before + usize::try_from(random.whole(0, 3)).unwrap();
            let is_over = |helper: &mut Child| helper.try_wait().unwrap().is_some();
            wait_until("the step", || stage.steps().len() >= wanted || is_over(&mut helper));
            thread::sleep(Duration::from_millis(random.whole(0, 30)));
            let victim = if kills_target { stage.pid() } else { helper.id() };
            // The lock prevents that the mock driver is killed while it writes.
            stage.script(|_| procs::send(victim, Signal::KILL));
            helper.wait().unwrap();
            kills_target
        };
        let has_exited = || !stage.holders[0].is_alive();
        wait_until("the process exits", || !is_killed || has_exited());
        assert_true_report(&stage, &case);
    });
}

/// Returns whether the fault that kills has applied.
fn was_called(stage: &ParkStage) -> bool {
    stage.script(|script| script.faults.iter().any(|fault| fault.times == Some(0)))
}

/// gpumem can die while the helper is at work. The helper finishes.
#[test]
fn the_helper_finishes_without_its_parent() {
    for round in 0..rounds(2) {
        let stage = or_skip!(ParkStage::new(&[2]));
        stage.fault(CallFault { delay_ms: 300, ..CallFault::default() });
        let mut command = stage.command(&["park", "--yes", &stage.pid().to_string()]);
        let mut parent = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let step = ["intent", "locking", "checkpointing"][(round % 3) as usize];
        wait_until("the step", || stage.steps().contains(&step.to_owned()));
        parent.kill().unwrap();
        parent.wait().unwrap();
        wait_until("the helper finishes", || stage.steps().contains(&"parked".to_owned()));
        wait_until("the helper exits", || !stage.list().contains("at work"));
        assert_eq!(stage.truth(stage.pid()), CHECKPOINTED);
        stage.unpark().exits(0);
    }
}

/// A lock that never returns does not hide what happens, and does no harm once the helper is killed.
#[test]
fn a_lock_that_never_returns_is_reported() {
    let stage = or_skip!(ParkStage::new(&[2]));
    stage.fault(CallFault { function: "Lock".to_owned(), hangs: true, ..CallFault::default() });
    let mut helper = stage.start("park");
    wait_until("the lock", || stage.steps().contains(&"locking".to_owned()));
    let list = stage.list();
    assert!(list.contains(&format!("the helper ({}) is at work", helper.id())), "{list}");
    assert!(stage.park(&["--yes"]).exits(1).stdout.contains("a helper is parking"));
    assert_eq!(stage.ask("unpark", stage.pid())["answer"], "refused");
    helper.kill().unwrap();
    helper.wait().unwrap();
    assert_true_report(&stage, "after a lock that hung");
}

/// Two processes need the same last bytes. Exactly one is restored, and the other stays parked.
#[test]
fn two_restores_share_the_last_bytes() {
    for _ in 0..rounds(2) {
        let stage = or_skip!(ParkStage::new(&[30, 30]));
        let pids: Vec<u32> = stage.holders.iter().map(|holder| holder.pid).collect();
        // Host memory for 30 GiB is not there, so the scene shows less while they are parked.
        stage.play(pids.iter().fold(gpu(), |gpu, &pid| gpu.process(Process::compute(pid, GIB))));
        for &pid in &pids {
            assert_eq!(stage.ask("park", pid)["answer"], "parked");
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

/// A driver that was reloaded has lost the state, and the pid of a process that exited may mean another one.
#[test]
fn another_driver_or_process_is_not_restored() {
    let stage = or_skip!(ParkStage::new(&[2]));
    assert_eq!(stage.ask("park", stage.pid())["answer"], "parked");
    let newer = Driver { version: "590.44.01".into(), ..Driver::default() };
    stage.stage.machine.play(&Scene::new().gpu(gpu()).driver(newer));
    assert!(stage.unpark().exits(1).stdout.contains("the driver is 590.44.01 now"));
    assert_eq!(stage.count("Restore"), 0);
    // The journal is that of a process with this pid that has exited.
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

/// Runs a test for several cases at the same time.
fn in_parallel<T: Clone + Sync>(cases: Vec<T>, test: impl Fn(T) + Sync) {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    test(case.clone());
                }
            });
        }
    });
}

/// `ps` and `explain` show a parked process, no rule accuses it, and `kill` can end it.
#[test]
fn a_parked_process_is_shown_and_can_be_ended() {
    let stage = or_skip!(ParkStage::new(&[2]));
    let pid = stage.pid().to_string();
    assert_eq!(stage.ask("park", stage.pid())["answer"], "parked");
    let shown = stage.run(&["ps"]).exits(0).stdout;
    assert!(shown.contains("parked 2.0 GiB (host memory)"), "{shown}");
    let page = stage.run(&["explain", &pid]);
    assert!(page.stdout.contains(&format!("`gpumem unpark {pid}` restores it")), "{page:?}");
    let checked = stage.run(&["check", "--window", "1s", "--json"]).json();
    assert_eq!(checked["findings"], json!([]), "{checked}");
    let killed = stage.run(&["kill", "--yes", &pid]).exits(0);
    assert!(!stage.holders[0].is_alive(), "{killed:?}");
    assert_eq!((stage.list().as_str(), stage.count("Lock")), ("no process is parked\n", 1));
}

/// Killing a restored process has hung machines, so it is parked again first, or else not ended.
#[test]
fn a_restored_process_is_parked_before_it_is_ended() {
    for works in [true, false] {
        let stage = or_skip!(ParkStage::new(&[2]));
        let pid = stage.pid().to_string();
        assert_eq!(stage.ask("park", stage.pid())["answer"], "parked");
        assert_eq!(stage.ask("unpark", stage.pid())["answer"], "running");
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

/// While a helper is at work, neither a person nor a rule ends the process.
#[test]
fn a_process_is_not_ended_while_it_is_parked() {
    let stage = or_skip!(ParkStage::new(&[2]));
    stage.fault(CallFault {
        function: "Checkpoint".to_owned(),
        delay_ms: 4000,
        ..CallFault::default()
    });
    let mut helper = stage.start("park");
    wait_until("the checkpoint", || stage.steps().contains(&"checkpointing".to_owned()));
    let pid = stage.pid().to_string();
    let output = stage.run(&["kill", "--yes", "--signal", "KILL", &pid]).exits(1);
    assert!(output.stdout.contains("a helper is parking or restoring it"), "{output:?}");
    helper.wait().unwrap();
    assert!(stage.holders[0].is_alive());
    assert_eq!(stage.truth(stage.pid()), CHECKPOINTED);
}

/// A cell that runs while its notebook is parked makes `unpark --watch` restore the notebook.
#[test]
fn a_notebook_is_restored_when_it_runs_a_cell() {
    let server = or_skip!(reap_notebook::server(&[]));
    let kernel = reap_notebook::idle_kernel(&server);
    let machine =
        Machine::new(&Scene::new().gpu(gpu().process(Process::compute(kernel.pid, 2 * GIB))));
    make_restorable(&machine);
    let script = machine.path("cuda.json");
    let command = |arguments: &[&str]| {
        let mut command = machine.command(arguments);
        command.env("GPUMEM_MOCK_CUDA", &script);
        command.env("GPUMEM_CUDA_LIBRARY", mock_cuda::library());
        command.env("STATE_DIRECTORY", machine.path("state"));
        command
    };
    let state = || Script::change(&script, |script| script.processes[&kernel.pid].state).unwrap();
    // A notebook has a name.
    let parked = finish(&mut command(&["park", "--yes", "a.ipynb"]));
    assert_eq!(parked.code, 0, "{parked:?}");
    assert_eq!(state(), CHECKPOINTED);
    assert!(finish(&mut command(&["park", "--list"])).stdout.contains("a.ipynb"));
    let watch = Running::start(&mut command(&["unpark", "--watch"]));
    let cell = reap_notebook::start_busy_cell(&server, &kernel);
    wait_until("the notebook is restored", || state() == RUNNING);
    fs::write(server.home.path("done"), "").unwrap();
    drop((watch, cell));
}
