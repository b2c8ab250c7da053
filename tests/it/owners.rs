//! Real owners of processes: Slurm on one node, podman, runc and containerd. The tests run the commands that gpumem
//! advises. Each command must end the target, and nothing else.

pub(crate) mod containers;
mod slurm;
mod supervisors;

use std::path::Path;

use serde_json::Value;

use crate::machine::{Machine, one_gpu};
use crate::support::{self, wait_until};

/// Waits until a program has written its pid to a file.
fn wait_for_pid(path: &Path) -> u32 {
    let mut pid = None;
    wait_until("the program has written its pid", || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|pid| pid.parse().ok());
        pid.is_some()
    });
    pid.unwrap()
}

/// Returns the data that gpumem reports about a process on a GPU, and the first step of the plan to kill the process.
fn process_and_step(pid: u32) -> (Value, Value) {
    let machine = Machine::new(&one_gpu(&[pid]));
    let process = machine.snapshot(0).process(pid).clone();
    let output = machine.run(&["reap", "--dry-run", "--json", "--pid", &pid.to_string()]);
    let plan = output.json();
    let step = plan["targets"][0]["steps"][0].clone();
    assert!(step.is_object(), "{output:?}");
    (process, step)
}

/// Returns the command of a step that advises a command.
fn advised_command(step: &Value) -> &str {
    assert_eq!(step["step"], "advise", "{step}");
    step["command"].as_str().unwrap()
}

fn require_root() -> Option<()> {
    support::root("the right to start daemons and containers")
}
