//! `tests/gpu/run`: on a GPU where `GPUMEM_TEST_GPU` is set, and on the mock driver, where it is seen that a check
//! passes, and that it fails if what it checks is broken.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use mock_nvml::Counts;
use serde_json::Value;

use crate::holders::Namespace;
use crate::support::{self, Output};

/// A gpumem that does nothing right: it shows nothing of a process, finds nothing, frees nothing, and exits as it should not.
const BROKEN: &str = r#"
import json, subprocess, sys
arguments = sys.argv[1:]
commands = ("--version", "doctor", "ps", "check", "watch", "record", "kill", "reap", "run")
command = next(word for word in arguments if word in commands)
if command in ("doctor", "run"):
    sys.exit(subprocess.run([REAL, *arguments]).returncode + 7)
if command == "check":
    subprocess.run([REAL, *arguments, "--kind", "leak"])
    sys.exit(7)
if command == "ps":
    snapshot = json.loads(subprocess.run([REAL, *arguments], stdout=subprocess.PIPE).stdout)
    for gpu in snapshot["gpus"]:
        for row in gpu["processes"]:
            row["used_bytes"], row["sm_percent"] = 0, None
        gpu["memory"]["used_bytes"] += 1 << 30
    snapshot["processes"] = []
    snapshot["errors"] = [{"call": "broken", "error": "broken"}]
    print(json.dumps(snapshot))
"#;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu")
}

/// The script with this binary, on the mock driver, of which something may be broken.
fn on_the_mock(python: &Path, gpumem: &Path, out: &Path, only: &str, broken: &str) -> Output {
    let mut command = Command::new(python);
    command.arg("-B").arg(folder().join("run")).arg(gpumem).arg(out);
    command.arg("--mock").arg(mock_nvml::library()).args(["--only", only]);
    support::clean_environment(&mut command);
    command.env("GPUMEM_TEST_GPU_BREAK", broken);
    command.env("GPUMEM_MOCK_COUNTS", out.with_extension("counts"));
    support::finish(&mut command)
}

/// The names of the checks in a report that came out like this: true, false, or null for one that was not tried.
fn checks(out: &Path, passed: &Value) -> BTreeSet<String> {
    let report = fs::read(out.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let rows = report["checks"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["passed"] == *passed);
    rows.map(|row| row["check"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_check_passes_on_a_gpu() {
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
fn every_check_passes_on_the_mock_driver_and_fails_if_anything_is_broken() {
    let python = or_skip!(support::find("python3", "python3"));
    or_skip!(support::root("a /dev with a GPU's files"));
    // The script makes a namespace of its own.
    or_skip!(Namespace::new());
    // Most of their time they wait for time to pass.
    std::thread::scope(|scope| {
        scope.spawn(|| passes(&python));
        scope.spawn(|| sees_a_broken_gpumem(&python));
        scope.spawn(|| sees_a_broken_driver(&python));
    });
}

fn passes(python: &Path) {
    let temporary = tempfile::tempdir().unwrap();
    let out = temporary.path().join("out");
    let gpumem = Path::new(support::gpumem());
    let output = on_the_mock(python, gpumem, &out, "1,2,3,4,5,6,7,8", "");
    assert_eq!(output.code, 0, "{}", output.stdout);
    assert!(checks(&out, &Value::Bool(true)).len() >= 45, "{}", output.stdout);
    let files = fs::read_dir(&out).unwrap().count();
    assert!((7..=8).contains(&files), "{files}");

    // It times the calls that gpumem makes: all of them, and no others.
    let timed = fs::read_to_string(folder().join("nvml.py")).unwrap();
    let timed: BTreeSet<&str> = timed
        .lines()
        .filter_map(|line| line.strip_prefix("    \"nvml")?.split_once("\": [").map(|it| it.0))
        .collect();
    let counted = Counts::read(&out.with_extension("counts")).unwrap();
    for (name, _) in counted.keys() {
        let name = name.strip_prefix("nvml").unwrap();
        assert!(timed.contains(name), "nvml.py does not time nvml{name}");
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source/nvml");
    let sources = fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path());
    let sources: String = sources.map(|path| fs::read_to_string(path).unwrap()).collect();
    for name in timed {
        assert!(sources.contains(&format!("nvml{name}")), "gpumem does not call nvml{name}");
    }
}

fn sees_a_broken_gpumem(python: &Path) {
    let temporary = tempfile::tempdir().unwrap();
    let (out, broken) = (temporary.path().join("out"), temporary.path().join("gpumem"));
    let text = BROKEN.replace("REAL", &format!("{:?}", support::gpumem()));
    fs::write(&broken, format!("#!/usr/bin/env python3{text}")).unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let output = on_the_mock(python, &broken, &out, "1,2,3,4,5", "");
    assert_eq!(output.code, 1, "{}", output.stdout);
    let passed = checks(&out, &Value::Bool(true));
    // What they try is not gpumem, or that it shows nothing.
    let others = [
        "2 frameworks: cupy: bytes on the GPU",
        "2 frameworks: cupy: exited",
        "2 frameworks: jax: bytes on the GPU",
        "2 frameworks: jax: exited",
        "2 frameworks: torch: bytes on the GPU",
        "2 frameworks: torch: exited",
        "3 verdicts: only copies memory",
        "3 verdicts: works on the CPU only",
    ];
    assert!(passed.iter().eq(others), "{passed:?}\n{}", output.stdout);
    assert!(checks(&out, &Value::Bool(false)).len() >= 38, "{}", output.stdout);
}

fn sees_a_broken_driver(python: &Path) {
    let temporary = tempfile::tempdir().unwrap();
    let out = temporary.path().join("out");
    let gpumem = Path::new(support::gpumem());
    let broken = "memory,error,field,bytes,framework,work,freed,lazy,copy,slow";
    let output = on_the_mock(python, gpumem, &out, "1,2,3,5,7", broken);
    assert_eq!(output.code, 1, "{}", output.stdout);
    let failed = checks(&out, &Value::Bool(false));
    let mut expected = vec![
        "1 tools: ps --json".to_owned(),
        "1 tools: check".to_owned(),
        "1 tools: record".to_owned(),
        "1 tools: GPU 0 in use: memory adds up".to_owned(),
        "1 tools: fields of a snapshot".to_owned(),
        "3 verdicts: only copies memory".to_owned(),
        "3 verdicts: works on the CPU only".to_owned(),
        "5 run: --max-peak above the peak".to_owned(),
        "5 run: --max-peak below the peak".to_owned(),
        "7 cost: NVML calls".to_owned(),
    ];
    for kind in ["torch", "jax", "cupy"] {
        for what in [
            "bytes on the GPU",
            "reserved and a context",
            "framework",
            "SM utilization at work",
            "exited",
        ] {
            expected.push(format!("2 frameworks: {kind}: {what}"));
        }
    }
    for check in expected {
        assert!(failed.contains(&check), "{check}: {}", output.stdout);
    }
}
