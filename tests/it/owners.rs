//! Who owns a process, with real owners: a Slurm of one node, podman, runc. The command that gpumem shows
//! is typed as it stands, and ends what it is shown for and nothing beside it.

pub(crate) mod containers;
mod slurm;
mod supervisors;

use std::path::Path;

use serde_json::Value;

use crate::machine::{Machine, one_gpu};
use crate::support::{self, wait_until};

/// The pid that a program writes into a file as soon as it runs.
fn pid_in(path: &Path) -> u32 {
    let mut pid = None;
    wait_until("the program has written its pid", || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|pid| pid.parse().ok());
        pid.is_some()
    });
    pid.unwrap()
}

/// What gpumem knows of a process that holds a GPU, and the first step of a plan that would end it.
fn seen(pid: u32) -> (Value, Value) {
    let machine = Machine::new(&one_gpu(&[pid]));
    let process = machine.snapshot(0).process(pid).clone();
    let output = machine.run(&["reap", "--dry-run", "--json", "--pid", &pid.to_string()]);
    let plan = output.json();
    let step = plan["targets"][0]["steps"][0].clone();
    assert!(step.is_object(), "{output:?}");
    (process, step)
}

/// The command of a step that only names one.
fn command(step: &Value) -> &str {
    assert_eq!(step["step"], "advise", "{step}");
    step["command"].as_str().unwrap()
}

/// What it takes to start daemons and containers.
fn root() -> Option<()> {
    support::root("the right to start daemons and containers")
}
