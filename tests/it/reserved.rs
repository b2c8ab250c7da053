//! Processes whose environments name the GPUs of a job, as children of an imitated slurmstepd. The tests check the data
//! that gpumem reports about these processes, and the findings of the rule `reserved`.

use std::process::Command;

use serde_json::Value;

use crate::machine::{Machine, Running, Snapshot, one_gpu};
use crate::procs;
use crate::support::{self, wait_until};

const QUICK: &str = "[rules.reserved]\nduration = \"2s\"\n";

/// Starts a copy of bash with the name and the process title of slurmstepd. The copy starts a process with the given
/// variables.
fn start_step(folder: &std::path::Path, title: &str, variables: &[(&str, &str)]) -> Running {
    let daemon = folder.join("slurmstepd");
    if !daemon.exists() {
        support::copy_program("/bin/bash", &daemon);
    }
    let variables: Vec<String> = variables.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let line = format!("env {} sleep 600 & wait", variables.join(" "));
    let mut command = Command::new(daemon);
    std::os::unix::process::CommandExt::arg0(&mut command, title);
    command.args(["-c", &line]);
    // The child is in the same process group, so that both can be killed together.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Running::start(&mut command)
}

fn reservation(snapshot: &Snapshot, job: &str) -> Option<Value> {
    let all = snapshot.0["reservations"].as_array()?.iter();
    let mut of_job = all.filter(|reservation| reservation["slurm"]["job_id"] == job);
    of_job.next().cloned()
}

fn findings(machine: &Machine) -> Vec<Value> {
    let output = machine.run(&["check", "--json", "--window", "5s", "--interval", "200ms"]);
    let verdict = output.json();
    let findings = verdict["findings"].as_array().unwrap().iter();
    findings.filter(|finding| finding["kind"] == "reserved").cloned().collect()
}

#[test]
fn an_allocated_but_unused_gpu_is_reported() {
    or_skip!(support::root("a step daemon, which is root's"));
    let folder = tempfile::tempdir().unwrap();
    let (job, other) = ("90812", "90813");
    let given = [("SLURM_JOB_ID", job), ("SLURM_JOB_GPUS", "0")];
    let daemon = start_step(folder.path(), &format!("slurmstepd: [{job}.batch]"), &given);
    // Slurm does not name the GPU of the first job. The second process is outside the job, and has a copy of the job's
    // environment.
    let all = [("SLURM_JOB_ID", other), ("CUDA_VISIBLE_DEVICES", "0")];
    let unnamed = start_step(folder.path(), &format!("slurmstepd: [{other}.batch]"), &all);
    let mut copy = Command::new("sleep");
    let copy =
        Running::start(copy.arg("600").env("SLURM_JOB_ID", "90814").env("SLURM_JOB_GPUS", "0"));

    let machine = Machine::new(&one_gpu(&[]));
    machine.configure(QUICK);
    let mut snapshot = machine.snapshot(0);
    if snapshot.0["host"]["pid_namespace"] == "host" {
        wait_until("the reservation is listed", || {
            snapshot = machine.snapshot(0);
            reservation(&snapshot, job).is_some()
        });
        let reserved = reservation(&snapshot, job).unwrap();
        assert_eq!(reserved["variable"], "SLURM_JOB_GPUS", "{reserved}");
        assert_eq!(reserved["devices"], serde_json::json!(["0"]), "{reserved}");
        assert_eq!(reserved["user"], "root", "{reserved}");
        for stranger in [other, "90814"] {
            assert_eq!(reservation(&snapshot, stranger), None, "{stranger}");
        }
        let found = findings(&machine);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0]["severity"], "info");
        assert_eq!(found[0]["actions"], serde_json::json!(["notify"]));
        // The GPU is used by another process.
        let machine = Machine::new(&one_gpu(&[copy.pid()]));
        machine.configure(QUICK);
        assert_eq!(findings(&machine), [Value::Null; 0]);
    } else {
        // In another pid namespace, the processes on the GPU are unknown.
        assert_eq!(findings(&machine), [Value::Null; 0]);
    }
    procs::kill_group(daemon.pid());
    procs::kill_group(unnamed.pid());
}
