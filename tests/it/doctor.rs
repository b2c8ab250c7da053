//! `gpumem doctor` on machines with a defect. The diagnosis is correct, and `doctor` neither hangs nor changes
//! anything.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use mock_nvml::scene::{Fault, Gpu, Process, Scene};
use serde_json::Value;

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::place::{in_namespace, unshare};
use crate::support::{self, Output, finish, run};

const NOWHERE: &str = "/nonexistent/libnvidia-ml.so.1";

struct Diagnosis(Value);

impl Diagnosis {
    fn run(machine: &Machine, arguments: &[&str], code: i32) -> Self {
        let arguments = [&["doctor", "--json"], arguments].concat();
        Self::from(machine.run(&arguments), code)
    }

    fn from(output: Output, code: i32) -> Self {
        assert_eq!((output.code, output.stderr.as_str()), (code, ""), "{output:?}");
        let diagnosis = Self(output.json());
        assert_eq!(diagnosis.0["works"], code == 0);
        diagnosis
    }

    fn checks(&self, id: &str) -> Vec<&Value> {
        let checks = self.0["checks"].as_array().unwrap().iter();
        checks.filter(|check| check["id"] == id).collect()
    }

    fn check(&self, id: &str) -> &Value {
        let checks = self.checks(id);
        assert_eq!(checks.len(), 1, "{id} in {}", self.0);
        checks[0]
    }

    /// Asserts the verdict of the only check with this id, and that the check's JSON contains `words`.
    #[track_caller]
    fn assert_check(&self, id: &str, verdict: &str, words: &[&str]) {
        let check = self.check(id);
        let text = check.to_string();
        assert_eq!(check["verdict"], verdict, "{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
    }

    fn summary(&self) -> &str {
        self.0["summary"].as_str().unwrap()
    }
}

fn gpu(pid: u32) -> Gpu {
    Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB).process(Process::compute(pid, 2 * GIB))
}

#[test]
fn doctor_reports_a_missing_driver() {
    let output = run(&["doctor", "--nvml-library", NOWHERE]);
    assert_eq!((output.code, output.stderr.as_str()), (3, ""));

    let diagnosis = Diagnosis::from(run(&["doctor", "--json", "--nvml-library", NOWHERE]), 3);
    diagnosis.assert_check("library", "broken", &[NOWHERE]);
    diagnosis.assert_check("driver", "unknown", &["not queried"]);
    diagnosis.assert_check("pidfd", "ok", &[]);
    diagnosis.assert_check("version", "ok", &[env!("CARGO_PKG_VERSION")]);
    assert!(diagnosis.checks("gpu").is_empty());
}

#[test]
fn doctor_is_ok_when_the_driver_answers() {
    let child = Running::sleep();
    let on = Gpu { persistence: Some(true), mig: Some(false), ..gpu(child.pid()) };
    let machine = Machine::new(&Scene::new().gpu(on.clone()).gpu(on));
    let diagnosis = Diagnosis::run(&machine, &[], 0);
    let library = fs::canonicalize(machine.library()).unwrap();
    diagnosis.assert_check("library", "ok", &[library.to_str().unwrap()]);
    diagnosis.assert_check("driver", "ok", &["580.159.03", "NVML 13.580.159.03", "CUDA 13.0"]);
    for (id, expected) in [
        ("gpu", "NVIDIA H100 80GB HBM3, 80.0 GiB"),
        ("persistence", "on"),
        ("process-utilization", "reported"),
        ("process-memory", "reported"),
        ("mig", "off"),
    ] {
        diagnosis.assert_check(id, "ok", &[expected]);
        assert_eq!(diagnosis.check(id)["gpus"], serde_json::json!([0, 1]), "{id}");
    }
    assert!(diagnosis.summary().contains("2 of 2 GPUs can be read"));
}

#[test]
fn doctor_accepts_one_lost_gpu_of_two() {
    let scene = Scene::new().gpu(gpu(7)).gpu(gpu(7));
    let machine = Machine::new(&scene.clone().fault(Fault::error("*", 15).on(1)));
    let diagnosis = Diagnosis::run(&machine, &[], 0);
    let answers = diagnosis.checks("gpu");
    assert_eq!((&answers[0]["verdict"], &answers[0]["gpus"][0]), (&"ok".into(), &0.into()));
    assert_eq!((&answers[1]["verdict"], &answers[1]["gpus"][0]), (&"broken".into(), &1.into()));
    assert!(diagnosis.summary().contains("1 of 2 GPUs"));

    machine.play(&scene.fault(Fault::error("*", 15)));
    Diagnosis::run(&machine, &[], 3).assert_check("gpu", "broken", &["GPU_IS_LOST"]);
    machine.play(&Scene::new());
    Diagnosis::run(&machine, &[], 3).assert_check("gpu", "broken", &["lists no GPU"]);
}

#[test]
fn doctor_survives_a_gpu_that_hangs() {
    let hang = Fault::hang("nvmlDeviceGetMemoryInfo_v2").on(0);
    let machine = Machine::new(&Scene::new().gpu(gpu(7)).gpu(gpu(7)).fault(hang));
    let diagnosis = Diagnosis::run(&machine, &["--nvml-timeout", "2s"], 0);
    let answers = diagnosis.checks("gpu");
    assert!(answers.iter().any(|check| check["verdict"] == "broken"
        && check["gpus"][0] == 0
        && check["seen"].as_str().unwrap().contains("no answer for")));
}

#[test]
fn doctor_separates_unsupported_from_failed_queries() {
    let limited = Gpu {
        persistence: Some(false),
        mig: Some(true),
        ..Gpu::new("L4").process(Process { pid: 7, used_bytes: None, ..Process::default() })
    };
    let scene = Scene::new().gpu(limited);
    let call = "nvmlDeviceGetProcessUtilization";
    let machine = Machine::new(&scene.clone().fault(Fault::error(call, 3)));
    let diagnosis = Diagnosis::run(&machine, &[], 0);
    diagnosis.assert_check("process-utilization", "limited", &["not reported"]);
    diagnosis.assert_check("process-memory", "limited", &["memory by process is unknown"]);
    diagnosis.assert_check("persistence", "limited", &["nvidia-smi -pm 1"]);
    diagnosis.assert_check("mig", "limited", &["undecided"]);

    machine.play(&scene.fault(Fault::error(call, 999)));
    Diagnosis::run(&machine, &[], 0).assert_check("process-utilization", "unknown", &["failed"]);
    machine.play(&one_gpu(&[]));
    let idle = Diagnosis::run(&machine, &[], 0);
    idle.assert_check("process-memory", "unknown", &["no process"]);
    idle.assert_check("mig", "not-applicable", &[]);
}

#[test]
fn doctor_warns_about_pids_in_a_pid_namespace() {
    let unshare = or_skip!(unshare("p"));
    let machine = Machine::new(&one_gpu(&[7]));
    let mut command = in_namespace(&machine, &unshare, "\"$@\" doctor --json");
    let diagnosis = Diagnosis::from(finish(&mut command), 0);
    diagnosis.assert_check("pid-namespace", "limited", &["--pid=host", "unattributed"]);
    // The namespace contains no process of another user.
    diagnosis.assert_check("descriptors", "ok", &["pid 1 could be read"]);
    // If the test itself runs in a container, both runs are in a container's namespace.
    if machine.snapshot(0).0["host"]["pid_namespace"] == "host" {
        let host = Diagnosis::run(&machine, &[], 0);
        assert_ne!(host.check("pid-namespace")["seen"], diagnosis.check("pid-namespace")["seen"]);
    }
}

#[test]
fn doctor_tells_a_plain_user_what_is_hidden() {
    const NOBODY: u32 = 65_534;
    or_skip!(support::root("root"));
    // By default, only root can enter the temporary directory.
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    open(folder.path());
    let program = folder.path().join("gpumem");
    support::copy_program(support::gpumem(), &program);
    open(&program);
    let mut command = Command::new(&program);
    command.args(["doctor", "--json", "--nvml-library", NOWHERE]);
    support::clean_environment(&mut command);
    let output = finish(command.uid(NOBODY).gid(NOBODY).current_dir("/"));
    let diagnosis = Diagnosis::from(output, 3);
    let words = ["not root, without CAP_SYS_PTRACE", "could not be read", "sudo gpumem doctor"];
    diagnosis.assert_check("descriptors", "limited", &words);
}

#[test]
fn doctor_times_out_on_files_that_hang() {
    let machine = Machine::new(&one_gpu(&[]));
    let pipe = machine.path("pipe");
    // Opening a named pipe blocks until a writer opens the pipe.
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let diagnosis = Diagnosis::run(&machine, &["--config", pipe.to_str().unwrap()], 0);
    diagnosis.assert_check("configuration", "unknown", &["no answer for 3s"]);
}

#[test]
fn doctor_finds_a_recorder_and_leaves_no_trace() {
    let machine = Machine::new(&one_gpu(&[]));
    let home = machine.path("home");
    fs::create_dir(&home).unwrap();
    let doctor = || {
        let mut command = machine.command(&["doctor", "--json"]);
        command.env_remove("STATE_DIRECTORY");
        for name in ["HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"] {
            command.env(name, &home);
        }
        Diagnosis::from(finish(&mut command), 0)
    };
    doctor();
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "doctor created a file");

    let store = machine.path("store");
    let store = ["--store-dir", store.to_str().unwrap()];
    let diagnosis = Diagnosis::run(&machine, &store, 0);
    diagnosis.assert_check("store", "limited", &["none", "gpumem record --store"]);
    let record = ["record", "--store", "--duration", "1s", "--interval", "200ms"];
    assert_eq!(machine.run(&[&record[..], &store].concat()).code, 0);
    Diagnosis::run(&machine, &store, 0).assert_check("store", "ok", &["a recorder is running"]);
}
