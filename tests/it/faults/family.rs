//! A launcher, an idle rank on GPU 0 and a busy rank on GPU 1. If a process list cannot be read, gpumem reports no
//! finding and kills no process of the family.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;

use gpumem::api::model::Snapshot;
use gpumem::api::recording::{Access, StoreLimits, StoreWriter};
use mock_nvml::scene::{Fault, Gpu, Process, Scene};
use serde_json::{Value, json};

use crate::holders::Namespace;
use crate::machine::{GIB, Machine};
use crate::procs::{self, lives};
use crate::support::{self, Output};

/// The history covers eleven minutes.
const STEPS: i64 = 22;
const STEP_SECONDS: f64 = 30.0;

struct Family {
    launcher: Child,
    ranks: Vec<u32>,
}

impl Family {
    fn start(namespace: &Namespace) -> Self {
        let rank = |rank: u32| {
            format!(
                "RANK={rank} LOCAL_RANK={rank} sh -c 'exec 3</dev/nvidia{rank}; echo $$; exec sleep 600' &"
            )
        };
        let script = format!("{} {} wait", rank(0), rank(1));
        let mut command = namespace.command("sh");
        command.args(["-c", &script]).process_group(0);
        for (name, value) in [
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29511"),
            ("TORCHELASTIC_RUN_ID", "faults"),
        ] {
            command.env(name, value);
        }
        let mut launcher = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
        let mut line = || lines.next().unwrap().unwrap().parse().unwrap();
        let ranks = vec![line(), line()];
        let mut family = Self { launcher, ranks };
        // The ranks can print their pids in either order.
        if family.holds(family.ranks[0], 1) {
            family.ranks.reverse();
        }
        family
    }

    fn holds(&self, pid: u32, gpu: u32) -> bool {
        let target = std::fs::read_link(format!("/proc/{pid}/fd/3")).unwrap();
        target == Path::new(&format!("/dev/nvidia{gpu}"))
    }

    fn are_alive(&self) -> bool {
        lives(self.launcher.id()) && self.ranks.iter().all(|&pid| lives(pid))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        procs::kill_group(self.launcher.id());
        let _ = self.launcher.wait();
    }
}

fn scene(family: &Family, fault: Option<Fault>) -> Scene {
    let gpu = || Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    let working = Process::compute(family.ranks[1], 20 * GIB).sm(90);
    let scene = Scene::new()
        .gpu(gpu().process(Process::compute(family.ranks[0], 20 * GIB)))
        .gpu(gpu().utilization(90, 40).process(working));
    fault.into_iter().fold(scene, Scene::fault)
}

struct Stage<'a> {
    namespace: &'a Namespace,
    machine: Machine,
}

impl Stage<'_> {
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.namespace.gpumem(&self.machine, arguments);
        command.env("STATE_DIRECTORY", self.machine.path("state"));
        support::finish(&mut command)
    }

    /// Fills the store with eleven minutes of copies of the current snapshot.
    fn fill_store(&self) {
        let output = self.run(&["ps", "--json"]);
        let now: Snapshot = serde_json::from_str(&output.stdout).unwrap();
        let folder = self.machine.path("state/store");
        let _ = std::fs::remove_dir_all(&folder);
        let limits =
            StoreLimits { max_age: std::time::Duration::from_secs(7200), max_bytes: 1 << 24 };
        let mut store = StoreWriter::open(&folder, limits, Access::Owner).unwrap();
        for step in (0..STEPS).rev() {
            let mut snapshot = now.clone();
            snapshot.time = now.time.plus_seconds(-1.0 - step as f64 * STEP_SECONDS);
            store.write(&snapshot).unwrap();
        }
        store.flush().unwrap();
    }

    fn check(&self) -> Output {
        self.run(&["check", "--json", "--window", "2s", "--interval", "500ms"])
    }
}

/// Returns the pids in the findings of a check.
fn accused(check: &Output) -> Vec<Value> {
    let document = check.json();
    let findings = document["findings"].as_array().unwrap().iter();
    findings.map(|finding| finding["process"]["pid"].clone()).collect()
}

#[test]
fn a_family_with_an_unreadable_gpu_is_left_alone() {
    let namespace = or_skip!(Namespace::new());
    let family = Family::start(&namespace);
    let stage =
        |fault| Stage { namespace: &namespace, machine: Machine::new(&scene(&family, fault)) };
    // If both GPUs are readable, gpumem finds the first rank idle.
    let readable = stage(None);
    readable.fill_store();
    assert_eq!(accused(&readable.check()), [json!(family.ranks[0])]);
    let assert_left_alone = |list: &str| {
        let function = format!("nvmlDeviceGet{list}RunningProcesses_v3");
        let fault = Fault::error(function, 10).on(1);
        let stage = stage(Some(fault));
        stage.fill_store();
        let check = stage.check();
        assert_eq!(accused(&check), [Value::Null; 0], "{list}: {check:?}");
        assert_eq!(check.code, 3, "{list}: {check:?}");
        let document = check.json();
        let undecided = document["undecided"].as_array().unwrap();
        let is_expected = |entry: &&Value| {
            entry["pid"] == family.ranks[0]
                && entry["gpu"] == 1
                && entry["rule"] == "idle"
                && entry["reason"].as_str().unwrap().contains("may be on GPU 1")
        };
        assert!(undecided.iter().any(|entry| is_expected(&entry)), "{list}: {document}");

        let reap = stage.run(&["reap", "--yes", "--json", "--window", "2s"]);
        assert_eq!(reap.json()["targets"], json!([]), "{list}: {reap:?}");
        assert!(family.are_alive(), "{list}: {reap:?}");
        let ledger = stage.machine.path("state/reap.jsonl");
        assert!(!ledger.exists(), "{list}: {reap:?}");
    };
    thread::scope(|scope| {
        for list in ["Graphics", "Compute", "MPSCompute"] {
            let assert_left_alone = &assert_left_alone;
            scope.spawn(move || assert_left_alone(list));
        }
    });
    // The history is complete, and the process list fails only now.
    let fault = Fault::error("nvmlDeviceGetGraphicsRunningProcesses_v3", 10).on(1);
    readable.machine.play(&scene(&family, Some(fault)));
    let reap = readable.run(&["reap", "--yes", "--json", "--window", "2s"]);
    assert_eq!(reap.json()["targets"], json!([]), "{reap:?}");
    assert!(family.are_alive(), "{reap:?}");
    assert!(!readable.machine.path("state/reap.jsonl").exists(), "{reap:?}");
}
