//! The real driver, where `GPUMEM_TEST_GPU` is set on a machine that has one: what is seen of a process,
//! and whether the table of advice is true (the scripts in `tests/gpu`).
//!
//! With `GPUMEM_TEST_GPU_RECORD=FILE` the run is kept as a recording too.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use serde_json::Value;

use crate::machine::Running;
use crate::support::{self, run};

/// Allocates 2 GiB, computes for a while, then idles until it is killed.
const TORCH: &str = "
import sys, time, torch
block = torch.empty(2 << 30, dtype=torch.uint8, device='cuda')
a = torch.randn(8192, 8192, device='cuda')
print('allocated', flush=True)
end = time.monotonic() + 15
while time.monotonic() < end:
    a = (a @ a).tanh()
torch.cuda.synchronize()
print('idle', flush=True)
time.sleep(600)
";

/// One test at a time uses the GPU: some take all of its memory.
static GPU: Mutex<()> = Mutex::new(());

fn snapshot() -> Value {
    let output = run(&["ps", "--json"]).exits(0);
    output.json()
}

/// A process's row on whichever GPU, and what Linux says of it.
fn find(snapshot: &Value, pid: u32) -> Option<(Value, Value)> {
    let on_gpu = snapshot["gpus"]
        .as_array()?
        .iter()
        .flat_map(|gpu| gpu["processes"].as_array().into_iter().flatten())
        .find(|row| row["pid"] == pid)?;
    let process = snapshot["processes"].as_array()?.iter().find(|row| row["pid"] == pid)?;
    Some((on_gpu.clone(), process.clone()))
}

#[test]
fn the_real_driver_and_a_real_pytorch_process() {
    if env::var_os("GPUMEM_TEST_GPU").is_none() {
        eprintln!("skipped: GPUMEM_TEST_GPU is not set (needs an NVIDIA GPU)");
        return;
    }
    let _gpu = GPU.lock().unwrap_or_else(PoisonError::into_inner);
    let before = snapshot();
    for gpu in before["gpus"].as_array().unwrap() {
        let memory = &gpu["memory"];
        let bytes = |name: &str| memory[name].as_u64().unwrap_or(0);
        let sum = bytes("reserved_bytes") + bytes("used_bytes") + bytes("free_bytes");
        assert!(bytes("total_bytes").abs_diff(sum) <= 4 << 20, "{gpu}");
        assert!(gpu["uuid"].as_str().unwrap().starts_with("GPU-"), "{gpu}");
    }
    assert!(run(&["--version"]).stdout.contains("driver "));

    let python = or_skip!(support::python_with(&["torch"]));
    let mut command = Command::new(python);
    let child = command.args(["-c", TORCH]).stdout(Stdio::piped()).spawn().unwrap();
    let mut child = Running(child);
    let pid = child.0.id();
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "allocated");
    support::wait_until("the process is seen at work", || {
        find(&snapshot(), pid).is_some_and(|(row, _)| row["sm_percent"].as_u64() > Some(0))
    });
    let (row, process) = find(&snapshot(), pid).unwrap();
    assert!(row["used_bytes"].as_u64().unwrap() >= 2 << 30, "{row}");
    assert_eq!(process["framework"], "pytorch", "{process}");
    let files = process["gpu_files"].as_array().unwrap();
    assert!(files.iter().any(|file| file == "/dev/nvidiactl"), "{process}");

    assert_eq!(lines.next().unwrap().unwrap(), "idle");
    support::wait_until("the driver's samples have run out", || {
        find(&snapshot(), pid).is_some_and(|(row, _)| row["sm_percent"] == 0)
    });
    if let Some(file) = env::var_os("GPUMEM_TEST_GPU_RECORD") {
        let file = file.to_str().unwrap();
        run(&["record", file, "--interval", "1s", "--duration", "20s"]).exits(0);
        assert!(fs::read_to_string(file).unwrap().lines().count() >= 19);
    }
}

#[test]
fn the_table_of_advice_is_true_as_nvml_measures_it() {
    if env::var_os("GPUMEM_TEST_GPU").is_none() {
        eprintln!("skipped: GPUMEM_TEST_GPU is not set (needs an NVIDIA GPU)");
        return;
    }
    let _gpu = GPU.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu");
    for (module, script) in [
        ("torch", "measure_pytorch.py"),
        ("jax", "measure_jax.py"),
        ("tensorflow", "measure_tensorflow.py"),
    ] {
        let Some(python) = support::python_with(&[module]) else {
            continue;
        };
        let mut command = Command::new(python);
        command.arg("-B").arg(folder.join(script));
        let output = support::finish(&mut command);
        let report = output.json();
        eprintln!("{report:#}");
        let runs = report["runs"].as_array().unwrap();
        let claims: Vec<_> =
            runs.iter().flat_map(|run| run["claims"].as_array().unwrap()).collect();
        assert!(!claims.is_empty(), "{script} claims nothing");
        for claim in claims {
            assert_eq!(claim["holds"], true, "{script}: {claim}");
        }
        assert_eq!(output.code, 0, "{output:?}");
    }
}
