//! Runs `tests/gpu/run` on a GPU if `GPUMEM_TEST_GPU` is set, and on the mock driver. On the mock driver, the checks
//! must pass, and must fail if the driver is broken.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use mock_nvml::Counts;
use serde_json::Value;

use crate::holders::Namespace;
use crate::support::{self, Output};

/// A broken driver that reports a wrong size, keeps the memory of exited processes, fails, and is slow.
const BROKEN_DRIVER: &str = r#"{
    "gpu": {"fan": 40, "memory": {"total": 171798691840, "reserved": 643825664, "used": 1}},
    "process": {"used_bytes": 4194304, "sm": 0},
    "keep": true,
    "scene": {"faults": [
        {"function": "nvmlDeviceGetName", "delay_ms": 150},
        {"function": "nvmlDeviceGetPowerUsage", "error": 999}
    ]}
}"#;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu")
}

/// Runs the script on the mock driver. `broken` overrides parts of the driver's answers.
fn run_on_mock(python: &Path, gpumem: &Path, out: &Path, only: &str, broken: &str) -> Output {
    let mut command = Command::new(python);
    command.arg("-B").arg(folder().join("run")).arg(gpumem).arg(out);
    command.arg("--mock").arg(mock_nvml::library()).args(["--only", only]);
    support::clean_environment(&mut command);
    command.env("GPUMEM_TEST_GPU_BREAK", broken);
    command.env("GPUMEM_MOCK_COUNTS", out.with_extension("counts"));
    support::finish(&mut command)
}

/// Returns the names of the checks with the given value of `passed`, which is `null` for a check that was not run.
fn checks(out: &Path, passed: &Value) -> BTreeSet<String> {
    let report = fs::read(out.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let rows = report["checks"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["passed"] == *passed);
    rows.map(|row| row["check"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn hardware_checks_pass_on_a_gpu() {
    if env::var_os("GPUMEM_TEST_GPU").is_none() {
        eprintln!("skipped: GPUMEM_TEST_GPU is not set (needs an NVIDIA GPU)");
        return;
    }
    let python = or_skip!(support::find("python3", "python3"));
    let out = Path::new(support::NOWHERE).join("gpu");
    let mut command = Command::new(python);
    command.arg(folder().join("run")).arg(support::gpumem()).arg(&out);
    let output = support::finish(&mut command);
    eprintln!("{}\n{}", output.stdout, out.display());
    output.exits(0);
}

#[test]
fn hardware_checks_pass_on_the_mock_and_detect_faults() {
    let python = or_skip!(support::find("python3", "python3"));
    or_skip!(support::root("a /dev with a GPU's files"));
    // The script needs permission to create a namespace.
    or_skip!(Namespace::new());
    // Run these tests in parallel, because they mostly sleep.
    std::thread::scope(|scope| {
        scope.spawn(|| assert_checks_pass(&python));
        scope.spawn(|| assert_broken_driver_fails(&python));
    });
}

fn assert_checks_pass(python: &Path) {
    let temporary = tempfile::tempdir().unwrap();
    let out = temporary.path().join("out");
    let gpumem = Path::new(support::gpumem());
    let output = run_on_mock(python, gpumem, &out, "1,2,3,4,5,6,7,8", "{}");
    assert_eq!(output.code, 0, "{}", output.stdout);
    assert!(checks(&out, &Value::Bool(true)).len() >= 45, "{}", output.stdout);
    let files = fs::read_dir(&out).unwrap().count();
    assert!((7..=8).contains(&files), "{files}");
    // checks.py must time every NVML call of gpumem.
    let timed = fs::read_to_string(folder().join("checks.py")).unwrap();
    for (name, _) in Counts::read(&out.with_extension("counts")).unwrap().keys() {
        let name = name.strip_prefix("nvml").unwrap();
        assert!(timed.contains(name), "checks.py does not time nvml{name}");
    }
}

fn assert_broken_driver_fails(python: &Path) {
    let temporary = tempfile::tempdir().unwrap();
    let out = temporary.path().join("out");
    let gpumem = Path::new(support::gpumem());
    let output = run_on_mock(python, gpumem, &out, "1,2,6,7", BROKEN_DRIVER);
    assert_eq!(output.code, 1, "{}", output.stdout);
    let failed = checks(&out, &Value::Bool(false));
    let alone = [
        "1 tools: ps --json",
        "1 tools: check",
        "1 tools: record",
        "1 tools: ps --replay",
        "1 tools: GPU 0: memory adds up",
        "1 tools: fields of a snapshot",
        "2 frameworks: jax: preallocated",
        "6 advice: plain: take(2 << 30)",
        "6 advice: plain: take(-2 << 30)",
        "7 cost: NVML calls",
    ];
    let mut expected: Vec<String> = alone.map(str::to_owned).to_vec();
    for kind in ["torch", "jax", "cupy"] {
        for check in
            ["bytes on the GPU", "reserved and a context", "SM utilization under load", "exited"]
        {
            expected.push(format!("2 frameworks: {kind}: {check}"));
        }
    }
    for check in expected {
        assert!(failed.contains(&check), "{check}: {}", output.stdout);
    }
}
