//! Injects NVML errors into gpumem's calls: on one GPU or on all GPUs, permanently or once. Compares each run with a
//! run without faults.
//!
//! The mock driver counts the calls in the run without faults. Snapshots have timestamps minutes apart, and the
//! mock's clock runs faster, so that the rules can decide without waiting. A process can play only one scene, so the
//! test starts its binary again for each worker.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpumem::api::model::{Snapshot, Time};
use gpumem::api::rules::{Engine, RuleSet};
use gpumem::api::source::{Live, nvml};
use mock_nvml::Counts;
use mock_nvml::scene::{Fault, Gpu, MigDevice, Process, ProcessKind, Scene};
use serde_json::Value;

use crate::machine::{GIB, Machine, Running};
use crate::support;

/// Environment variable that selects the part of the matrix for the test binary to run, for example `0/2`.
const PART: &str = "GPUMEM_TEST_FAULTS_PART";
/// Environment variable. `all` selects the whole matrix. By default, the test runs a sample that changes daily.
const EXTENT: &str = "GPUMEM_TEST_FAULTS";
const WORKERS: usize = 2;
/// The default sample contains one in `SHARE` combinations.
const SHARE: u64 = 16;

/// Errors that a driver can return (nvml.h, nvmlReturn_enum).
const ERRORS: [u32; 19] = [1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 25, 999];
/// One error of each kind that gpumem distinguishes, and TIMEOUT, which gpumem does not treat specially.
const KINDS: [u32; 8] = [1, 3, 4, 6, 7, 10, 15, 999];
/// Errors that mean "not supported". A driver can return these without a fault.
const UNSUPPORTED: [u32; 3] = [3, 13, 25];
const UNKNOWN: u32 = 999;
const NOT_FOUND: u32 = 6;
/// Values that some GPUs do not support, so a snapshot can lack them without an error.
const OPTIONAL: [&str; 21] = [
    "memory_percent",
    "gpu_percent",
    "temperature_celsius",
    "power_watts",
    "power_limit_watts",
    "sm_clock_mhz",
    "fan_percent",
    "performance_state",
    "compute_mode",
    "persistence_mode",
    "accounting_mode",
    "lifetime_percent",
    "lifetime_since",
    "mig_mode",
    "minor_number",
    "pci_bus_id",
    "sm_percent",
    "encoder_percent",
    "decoder_percent",
    "reserved_bytes",
    "profile",
];

/// Number of snapshots per run. Together, they cover more time than the slowest rule needs.
const SNAPSHOTS: usize = 5;
/// Values that can differ between runs without a fault, because gpumem reads them rarely or measures them over time.
const TIME_DEPENDENT: [&str; 10] = [
    "sampled_seconds",
    "memory_clock_mhz",
    "throttle_reasons",
    "encoder_percent",
    "decoder_percent",
    "jpeg_percent",
    "optical_flow_percent",
    "ecc_uncorrected_errors",
    "pcie_received_bytes_per_second",
    "pcie_sent_bytes_per_second",
];
const STEP_SECONDS: f64 = 300.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Start,
    Middle,
    Once,
}

#[derive(Clone, PartialEq, Debug)]
struct Combination {
    function: String,
    code: u32,
    /// `None` selects all GPUs.
    gpu: Option<u32>,
    when: When,
    /// Number of calls per GPU in the run without faults.
    calls: u64,
}

impl Combination {
    fn fault(&self) -> Fault {
        let mut fault = Fault::error(&*self.function, self.code);
        fault.gpu = self.gpu;
        match self.when {
            When::Start => fault,
            When::Middle => fault.after(self.calls / 2),
            When::Once => fault.times(1),
        }
    }

    fn affects(&self, gpu: u64) -> bool {
        self.gpu.is_none_or(|index| u64::from(index) == gpu)
    }
}

/// Returns four GPUs. GPU 0: a busy process, an idle process and a desktop. GPU 1: an idle process, an MPS client and
/// unattributed memory. GPU 2: a busy process. GPU 3: two MIG devices.
fn scene(pids: &[u32]) -> Scene {
    let gpu = || Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    let desktop = |pid| Process::compute(pid, 4 * GIB).kind(ProcessKind::Graphics);
    let client = |pid| Process::compute(pid, 2 * GIB).kind(ProcessKind::Mps);
    let instance = |index, pid| {
        let mut device = MigDevice::new(index, "1g.10gb", 10 * GIB);
        (device.gpu_instance_id, device.compute_instance_id) = (index + 7, 0);
        device.process(Process::compute(pid, 3 * GIB))
    };
    let mut scene = Scene::new()
        .gpu(
            Gpu { accounting: Some(true), ..gpu() }
                .utilization(90, 40)
                .process(Process::compute(pids[0], 20 * GIB).account(1, 1_763_000_000_000_000))
                .process(Process::compute(pids[1], 20 * GIB).sm(90))
                .process(desktop(pids[2])),
        )
        .gpu(
            gpu()
                .unattributed(3 * GIB)
                .process(Process::compute(pids[3], 20 * GIB))
                .process(client(pids[4])),
        )
        .gpu(gpu().utilization(90, 40).process(Process::compute(pids[5], 20 * GIB).sm(90)))
        .gpu(gpu().mig_device(instance(0, pids[6])).mig_device(instance(1, pids[7])));
    scene.speed = Some(1000.0);
    scene
}

const PROCESSES: usize = 8;
const LAST: u32 = 3;

/// The snapshots of a run as JSON, and its findings as rule, GPUs and pid.
struct Run {
    snapshots: Vec<Value>,
    findings: BTreeSet<(String, Vec<u32>, Option<u32>)>,
}

fn observe(library: &Path) -> Result<Run, nvml::NvmlFailure> {
    let options =
        nvml::NvmlOptions { library: Some(library.to_owned()), ..nvml::NvmlOptions::default() };
    let mut live = match Live::open(options, Duration::from_secs(1)) {
        Ok(live) => live,
        Err(gpumem::api::source::SourceError::Nvml(error)) => return Err(error),
        Err(error) => panic!("{error}"),
    };
    let mut engine = Engine::new(RuleSet::default());
    let mut snapshots = Vec::new();
    let start = Time::from_unix_milliseconds(1_763_706_000_000);
    let mut findings = BTreeSet::new();
    for step in 0..SNAPSHOTS {
        let mut snapshot = live.sample();
        snapshot.time = start.plus_seconds(step as f64 * STEP_SECONDS);
        engine.observe(&snapshot);
        for finding in engine.findings() {
            findings.insert((
                finding.rule.to_string(),
                finding.gpus.iter().map(|gpu| gpu.index).collect(),
                finding.process.as_ref().map(|process| process.pid),
            ));
        }
        snapshots.push(json(&snapshot));
    }
    Ok(Run { snapshots, findings })
}

/// Returns a snapshot as JSON, without the values that depend on time.
fn json(snapshot: &Snapshot) -> Value {
    let mut value = serde_json::to_value(snapshot).unwrap();
    for gpu in value["gpus"].as_array_mut().unwrap() {
        gpu.as_object_mut().unwrap().retain(|name, _| !TIME_DEPENDENT.contains(&&**name));
    }
    value
}

#[test]
fn faults_cause_no_false_findings_and_are_reported() {
    if let Ok(part) = env::var(PART) {
        return run_part(&part);
    }
    // Start the processes in separate sessions. Other tests listen on sockets in this test's session, which would
    // make the processes look like servers.
    let start_alone = || Running::start(Command::new("setsid").args(["sleep", "600"]));
    let processes: Vec<Running> = (0..PROCESSES).map(|_| start_alone()).collect();
    for process in &processes {
        let name = format!("/proc/{}/comm", process.pid());
        let is_sleep = || std::fs::read_to_string(&name).is_ok_and(|text| text.trim() == "sleep");
        support::wait_until("setsid has started sleep", is_sleep);
    }
    let pids: Vec<u32> = processes.iter().map(Running::pid).collect();
    let machines: Vec<Machine> = (0..WORKERS).map(|_| Machine::new(&scene(&pids))).collect();
    let start = |(part, machine): (usize, &Machine)| {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "faults::matrix::faults_cause_no_false_findings_and_are_reported"]);
        command.args(["--nocapture", "--test-threads=1"]);
        machine.environment(&mut command);
        command.env(PART, format!("{part}/{WORKERS}"));
        let output = command.stdout(std::process::Stdio::piped());
        output.stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let workers: Vec<_> = machines.iter().enumerate().map(start).collect();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        let messages = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{messages}");
        println!("{messages}");
    }
}

fn run_part(part: &str) {
    let (part, parts) = part.split_once('/').unwrap();
    let (part, parts): (usize, usize) = (part.parse().unwrap(), parts.parse().unwrap());
    let path = env::var_os("GPUMEM_MOCK_SCENE").unwrap();
    let path = Path::new(&path);
    let library = mock_nvml::library();
    let scene = Scene::from_json(&std::fs::read(path).unwrap()).unwrap();
    let counts_path = env::var_os("GPUMEM_MOCK_COUNTS").unwrap();
    let baseline = observe(&library).unwrap();
    let all = combinations(Path::new(&counts_path));
    assert!(all.len() > 2000, "{} combinations", all.len());
    let is_all = env::var(EXTENT).is_ok_and(|extent| extent == "all");
    let mut wrong = Vec::new();
    let mut done = 0;
    for (position, combination) in all.iter().enumerate() {
        let is_chosen = is_all || is_in_todays_sample(position as u64);
        // Divide the work by function, because the workers can count different calls if a library is closed late.
        if combination.function.len() % parts != part || !is_chosen {
            continue;
        }
        done += 1;
        let mut faulty = scene.clone();
        faulty.faults = vec![combination.fault()];
        faulty.write(path).unwrap();
        match observe(&library) {
            Ok(run) => {
                let complaints = compare(combination, &baseline, &run);
                // Keep only the first complaint, because later snapshots repeat it.
                let first = complaints.into_iter().next();
                wrong.extend(first.map(|complaint| (combination.clone(), complaint)));
            }
            Err(error) => assert!(error.to_string().len() > 20, "{error}"),
        }
    }
    eprintln!("{done} of {} combinations", all.len());
    assert!(baseline.findings.len() >= 3, "{:?}", baseline.findings);
    let shown = wrong.iter().take(200);
    let shown: String = shown.map(|failure| format!("{failure:?}\n")).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{shown}", wrong.len());
}

fn is_in_todays_sample(position: u64) -> bool {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let mut number = position.wrapping_add(since_1970.as_secs() / 86_400 * 0x9E37_79B9);
    number = (number ^ (number >> 7)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (number >> 33).is_multiple_of(SHARE)
}

/// Combines each function that the run without faults called with GPUs, times and errors. Includes every error if the
/// function always fails on all GPUs, and the errors in [`KINDS`] otherwise.
fn combinations(counts: &Path) -> Vec<Combination> {
    let counts = Counts::read(counts).unwrap();
    let functions: BTreeSet<&String> = counts.keys().map(|(function, _)| function).collect();
    let mut all = Vec::new();
    for function in functions {
        let calls_on = |gpu: Option<u32>| counts.get(&(function.clone(), gpu)).copied();
        let targets: Vec<(Option<u32>, u64)> = [Some(0), Some(LAST)]
            .into_iter()
            .filter_map(|gpu| Some((gpu, calls_on(gpu)?)))
            .chain([(
                None,
                calls_on(Some(LAST)).or(calls_on(Some(0))).or(calls_on(None)).unwrap_or(1),
            )])
            .collect();
        for (gpu, calls) in targets {
            for when in [When::Start, When::Middle, When::Once] {
                let is_total = gpu.is_none() && when == When::Start;
                let codes = if is_total { &ERRORS[..] } else { &KINDS };
                all.extend(codes.iter().map(|&code| Combination {
                    function: function.clone(),
                    code,
                    gpu,
                    when,
                    calls,
                }));
            }
        }
    }
    all
}

/// Returns the differences from the run without faults, except for missing values and findings that the fault explains.
fn compare(combination: &Combination, baseline: &Run, run: &Run) -> Vec<String> {
    let mut wrong = Vec::new();
    for finding in run.findings.difference(&baseline.findings) {
        wrong.push(format!("false finding {finding:?}"));
    }
    for finding in baseline.findings.difference(&run.findings) {
        if !finding.1.iter().any(|&gpu| combination.affects(gpu.into())) {
            wrong.push(format!("missing finding {finding:?} on a healthy GPU"));
        }
    }
    for (step, (expected, faulty)) in baseline.snapshots.iter().zip(&run.snapshots).enumerate() {
        let errors = faulty["errors"].as_array().unwrap();
        let is_reported = |gpu: &Value| {
            let concerns_gpu = |error: &Value| error.get("gpu").is_none_or(|index| index == gpu);
            errors.iter().any(concerns_gpu)
        };
        let mut missing = Vec::new();
        collect_missing("driver", &expected["driver"], &faulty["driver"], &mut missing);
        if !missing.is_empty() && !is_reported(&Value::Null) {
            wrong.push(format!("{step}: {missing:?} without an error"));
        }
        for gpu in expected["gpus"].as_array().unwrap() {
            let index = &gpu["index"];
            let mut gpus = faulty["gpus"].as_array().unwrap().iter();
            let Some(other) = gpus.find(|other| other["index"] == *index) else {
                wrong.push(format!("{step}: GPU {index} is missing"));
                continue;
            };
            if !combination.affects(index.as_u64().unwrap()) {
                if gpu != other {
                    wrong.push(format!("{step}: GPU {index} differs: {gpu} became {other}"));
                }
                continue;
            }
            let mut missing = Vec::new();
            collect_missing("", gpu, other, &mut missing);
            let may_lack = |path: &String| {
                let name = path.rsplit('.').next().unwrap_or(path);
                // On WSL, version 2 of the memory info fails, and version 1 does not report reserved memory.
                let is_v1 = combination.code == UNKNOWN && name == "reserved_bytes";
                is_v1 || (UNSUPPORTED.contains(&combination.code) && OPTIONAL.contains(&name))
            };
            // NVML can have no accounting record of a process.
            let is_account = |path: &String| {
                combination.code == NOT_FOUND
                    && combination.function == "nvmlDeviceGetAccountingStats"
                    && path.contains("lifetime_")
            };
            // A snapshot that states a reason does not need an error.
            let has_reason =
                |path: &String| path == ".memory" && other["memory_unavailable"].is_string();
            missing.retain(|path| !may_lack(path) && !is_account(path) && !has_reason(path));
            if !missing.is_empty() && !is_reported(index) {
                wrong.push(format!("{step}: GPU {index}: {missing:?} without an error"));
            }
        }
    }
    wrong
}

/// Appends the paths of values that `faulty` lacks.
fn collect_missing(path: &str, expected: &Value, faulty: &Value, missing: &mut Vec<String>) {
    match (expected, faulty) {
        (Value::Object(expected), Value::Object(faulty)) => {
            for (name, value) in expected {
                let path = format!("{path}.{name}");
                match faulty.get(name) {
                    Some(other) => collect_missing(&path, value, other, missing),
                    None => missing.push(path),
                }
            }
        }
        (Value::Array(expected), Value::Array(faulty)) => {
            for value in expected {
                // Match processes by pid, and MIG devices by index.
                let key = ["pid", "index"].into_iter().find(|key| value.get(key).is_some());
                let Some(key) = key else {
                    continue;
                };
                let path = format!("{path}[{}]", value[key]);
                match faulty.iter().find(|other| other[key] == value[key]) {
                    Some(other) => collect_missing(&path, value, other, missing),
                    None => missing.push(path),
                }
            }
        }
        _ => {}
    }
}
