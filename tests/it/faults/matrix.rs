//! Every NVML error at every call that is made, on the first GPU, the last and all of them, from the
//! start, from the middle, and once: what the run without a fault saw is what the others are held to.
//!
//! The calls are those that the mock driver counted in that run. Snapshots are taken as fast as the
//! machine gives them and stamped minutes apart, so that the rules decide; the mock's time runs faster,
//! too. A process plays one scene, so that each worker is this test binary again, in an environment
//! of its own.

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

/// Says to this binary which part of the matrix it is to do, as `part/parts`.
const PART: &str = "GPUMEM_TEST_FAULTS_PART";
/// `all` for all of the matrix; else some of it, other ones every day.
const EXTENT: &str = "GPUMEM_TEST_FAULTS";
const WORKERS: usize = 2;
/// Without `all`, one in so many.
const SHARE: u64 = 16;

/// NVML's errors that a driver may answer with: nvml.h, enum nvmlReturn_enum.
const ERRORS: [u32; 19] = [1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 25, 999];
/// Those that say that there is no such value, which is an answer.
const UNSUPPORTED: [u32; 3] = [3, 13, 25];
const UNKNOWN: u32 = 999;
const NOT_FOUND: u32 = 6;
/// Values that a GPU need not have, and that may be absent where the driver says so.
const OPTIONAL: [&str; 20] = [
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
];

/// Snapshots of a run, and the seconds between them: longer than any rule asks for that is decided by few.
const SNAPSHOTS: usize = 8;
/// What depends on when a run is at which snapshot, not on a fault: how much time a call of the driver covered, and
/// what is read by the clock, twice a minute; and the video engines, whose failure only leaves them unknown.
const OF_THE_MOMENT: [&str; 10] = [
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
    /// `None` for all of them.
    gpu: Option<u32>,
    when: When,
    /// How often the run without faults makes the call on a GPU.
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

    fn strikes(&self, gpu: u64) -> bool {
        self.gpu.is_none_or(|index| u64::from(index) == gpu)
    }
}

/// A GPU at work beside an idle process and a desktop; one with an idle process, an MPS client and memory
/// that is nobody's; one at work; one that is divided.
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

/// What a run saw and what the rules made of it: each finding as its rule, the GPUs and the process.
struct Run {
    snapshots: Vec<Snapshot>,
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
        snapshots.push(snapshot);
    }
    Ok(Run { snapshots, findings })
}

#[test]
fn every_fault_invents_nothing_and_is_reported() {
    if let Ok(part) = env::var(PART) {
        return work(&part);
    }
    // In sessions of their own: the tests beside this one listen in the one that it is in, for moments, and
    // would be their front end then.
    let alone = || Running::start(Command::new("setsid").args(["sleep", "600"]));
    let processes: Vec<Running> = (0..PROCESSES).map(|_| alone()).collect();
    for process in &processes {
        let name = format!("/proc/{}/comm", process.pid());
        let is_sleep = || std::fs::read_to_string(&name).is_ok_and(|it| it.trim() == "sleep");
        support::wait_until("setsid has started it", is_sleep);
    }
    let pids: Vec<u32> = processes.iter().map(Running::pid).collect();
    let machines: Vec<Machine> = (0..WORKERS).map(|_| Machine::new(&scene(&pids))).collect();
    let start = |(part, machine): (usize, &Machine)| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "faults::matrix::every_fault_invents_nothing_and_is_reported"]);
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

/// Does a part of the matrix, in a process that plays its own scene.
fn work(part: &str) {
    let (part, parts) = part.split_once('/').unwrap();
    let (part, parts): (usize, usize) = (part.parse().unwrap(), parts.parse().unwrap());
    let path = env::var_os("GPUMEM_MOCK_SCENE").unwrap();
    let path = Path::new(&path);
    let library = mock_nvml::library();
    let scene = Scene::from_json(&std::fs::read(path).unwrap()).unwrap();
    let counts_at = env::var_os("GPUMEM_MOCK_COUNTS").unwrap();
    let oracle = observe(&library).unwrap();
    let all = combinations(Path::new(&counts_at));
    assert!(all.len() > 3000, "{} combinations", all.len());
    let is_all = env::var(EXTENT).is_ok_and(|extent| extent == "all");
    let mut wrong = Vec::new();
    let mut done = 0;
    for (place, combination) in all.iter().enumerate() {
        let is_chosen = is_all || is_drawn(place as u64);
        // By the error, for two runs need not count the same calls (a library that is let go of late).
        if combination.code as usize % parts != part || !is_chosen {
            continue;
        }
        done += 1;
        let mut faulty = scene.clone();
        faulty.faults = vec![combination.fault()];
        faulty.write(path).unwrap();
        match observe(&library) {
            Ok(run) => {
                let complaints = compare(combination, &oracle, &run);
                // One tells enough: the snapshots after it say the same.
                let first = complaints.into_iter().next();
                wrong.extend(first.map(|it| (combination.clone(), it)));
            }
            Err(error) => assert!(error.to_string().len() > 20, "{error}"),
        }
    }
    eprintln!("{done} of {} combinations", all.len());
    assert!(oracle.findings.len() >= 3, "{:?}", oracle.findings);
    let shown = wrong.iter().take(200);
    let shown: String = shown.map(|it| format!("{it:?}\n")).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{shown}", wrong.len());
}

/// Whether this one is among those of today.
fn is_drawn(place: u64) -> bool {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let mut number = place.wrapping_add(since_1970.as_secs() / 86_400 * 0x9E37_79B9);
    number = (number ^ (number >> 7)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (number >> 33).is_multiple_of(SHARE)
}

/// Each call that the run without faults made, with each error, where and when.
fn combinations(counts: &Path) -> Vec<Combination> {
    let counts = Counts::read(counts).unwrap();
    let functions: BTreeSet<&String> = counts.keys().map(|(function, _)| function).collect();
    let mut all = Vec::new();
    for function in functions {
        let of = |gpu: Option<u32>| counts.get(&(function.clone(), gpu)).copied();
        let places: Vec<(Option<u32>, u64)> = [Some(0), Some(LAST)]
            .into_iter()
            .filter_map(|gpu| Some((gpu, of(gpu)?)))
            .chain([(None, of(Some(LAST)).or(of(Some(0))).or(of(None)).unwrap_or(1))])
            .collect();
        for (gpu, calls) in places {
            for when in [When::Start, When::Middle, When::Once] {
                all.extend(ERRORS.map(|code| Combination {
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

/// What a run with a fault says that it must not, or leaves out without a word.
fn compare(combination: &Combination, oracle: &Run, run: &Run) -> Vec<String> {
    let mut wrong = Vec::new();
    for finding in run.findings.difference(&oracle.findings) {
        wrong.push(format!("invents {finding:?}"));
    }
    for finding in oracle.findings.difference(&run.findings) {
        if !finding.1.iter().any(|&gpu| combination.strikes(gpu.into())) {
            wrong.push(format!("does not find {finding:?} on a healthy GPU"));
        }
    }
    for (step, (sound, faulty)) in oracle.snapshots.iter().zip(&run.snapshots).enumerate() {
        let json = |snapshot: &Snapshot| {
            let mut value = serde_json::to_value(snapshot).unwrap();
            for gpu in value["gpus"].as_array_mut().unwrap() {
                gpu.as_object_mut().unwrap().retain(|name, _| !OF_THE_MOMENT.contains(&&**name));
            }
            value
        };
        let (sound, faulty) = (json(sound), json(faulty));
        let errors = faulty["errors"].as_array().unwrap();
        let is_reported = |gpu: &Value| {
            let is_of = |error: &Value| error.get("gpu").is_none_or(|of| of == gpu);
            errors.iter().any(is_of)
        };
        let mut lacking = Vec::new();
        absent("driver", &sound["driver"], &faulty["driver"], &mut lacking);
        if !lacking.is_empty() && !is_reported(&Value::Null) {
            wrong.push(format!("{step}: {lacking:?} without an error"));
        }
        for gpu in sound["gpus"].as_array().unwrap() {
            let index = &gpu["index"];
            let mut gpus = faulty["gpus"].as_array().unwrap().iter();
            let Some(other) = gpus.find(|other| other["index"] == *index) else {
                wrong.push(format!("{step}: GPU {index} is not there"));
                continue;
            };
            if !combination.strikes(index.as_u64().unwrap()) {
                if gpu != other {
                    wrong.push(format!("{step}: GPU {index} differs: {gpu} is {other}"));
                }
                continue;
            }
            let mut lacking = Vec::new();
            absent("", gpu, other, &mut lacking);
            let may_lack = |path: &String| {
                let name = path.rsplit('.').next().unwrap_or(path);
                // Under WSL v2 of memory info is not known, and v1, which has all else, stands for it.
                let is_v1 = combination.code == UNKNOWN && name == "reserved_bytes";
                is_v1 || (UNSUPPORTED.contains(&combination.code) && OPTIONAL.contains(&name))
            };
            // There need not be an account of a process.
            let is_account = |path: &String| {
                combination.code == NOT_FOUND
                    && combination.function == "nvmlDeviceGetAccountingStats"
                    && path.contains("lifetime_")
            };
            // A reason is as good as an error.
            let has_reason =
                |path: &String| path == ".memory" && other["memory_unavailable"].is_string();
            lacking.retain(|path| !may_lack(path) && !is_account(path) && !has_reason(path));
            if !lacking.is_empty() && !is_reported(index) {
                wrong.push(format!("{step}: GPU {index}: {lacking:?} without an error"));
            }
        }
    }
    wrong
}

/// The values of one that the other lacks.
fn absent(path: &str, sound: &Value, faulty: &Value, lacking: &mut Vec<String>) {
    match (sound, faulty) {
        (Value::Object(sound), Value::Object(faulty)) => {
            for (name, value) in sound {
                let path = format!("{path}.{name}");
                match faulty.get(name) {
                    Some(other) => absent(&path, value, other, lacking),
                    None => lacking.push(path),
                }
            }
        }
        (Value::Array(sound), Value::Array(faulty)) => {
            for value in sound {
                // A row is known by its pid, a MIG device by its index.
                let key = ["pid", "index"].into_iter().find(|key| value.get(key).is_some());
                let Some(key) = key else {
                    continue;
                };
                let path = format!("{path}[{}]", value[key]);
                match faulty.iter().find(|other| other[key] == value[key]) {
                    Some(other) => absent(&path, value, other, lacking),
                    None => lacking.push(path),
                }
            }
        }
        _ => {}
    }
}
