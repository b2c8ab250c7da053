//! Real processes whose environment names the GPUs that their job was given, below what stands for the daemon of
//! its step: what is seen of them, and what the rule makes of it.

use std::process::Command;

use serde_json::Value;

use crate::machine::{Machine, Running, Snapshot, one_gpu};
use crate::procs;
use crate::support::{self, wait_until};

const QUICK: &str = "[rules.reserved]\nduration = \"2s\"\n";

/// A program of root's of the name of Slurm's step daemon, and with its title, which starts one process with these
/// variables.
fn step(folder: &std::path::Path, title: &str, variables: &[(&str, &str)]) -> Running {
    let daemon = folder.join("slurmstepd");
    if !daemon.exists() {
        support::copy_program("/bin/bash", &daemon);
    }
    let variables: Vec<String> = variables.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let line = format!("env {} sleep 600 & wait", variables.join(" "));
    let mut command = Command::new(daemon);
    std::os::unix::process::CommandExt::arg0(&mut command, title);
    command.args(["-c", &line]);
    // Its child ends with it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Running::start(&mut command)
}

fn reservation(snapshot: &Snapshot, job: &str) -> Option<Value> {
    let all = snapshot.0["reservations"].as_array()?.iter();
    let mut own = all.filter(|it| it["slurm"]["job_id"] == job);
    own.next().cloned()
}

fn findings(machine: &Machine) -> Vec<Value> {
    let output = machine.run(&["check", "--json", "--window", "5s", "--interval", "200ms"]);
    let verdict = output.json();
    let findings = verdict["findings"].as_array().unwrap().iter();
    findings.filter(|it| it["kind"] == "reserved").cloned().collect()
}

#[test]
fn a_job_that_was_given_a_gpu_and_runs_nothing_on_it_is_reported() {
    or_skip!(support::root("a step daemon, which is root's"));
    let folder = tempfile::tempdir().unwrap();
    let (job, other) = ("90812", "90813");
    let given = [("SLURM_JOB_ID", job), ("SLURM_JOB_GPUS", "0")];
    let daemon = step(folder.path(), &format!("slurmstepd: [{job}.batch]"), &given);
    // One that was given none by name, and a copy of the environment beside the job.
    let all = [("SLURM_JOB_ID", other), ("CUDA_VISIBLE_DEVICES", "0")];
    let unnamed = step(folder.path(), &format!("slurmstepd: [{other}.batch]"), &all);
    let mut copy = Command::new("sleep");
    let copy =
        Running::start(copy.arg("600").env("SLURM_JOB_ID", "90814").env("SLURM_JOB_GPUS", "0"));

    let machine = Machine::new(&one_gpu(&[]));
    machine.configure(QUICK);
    let mut seen = machine.snapshot(0);
    if seen.0["host"]["pid_namespace"] == "host" {
        wait_until("its environment is seen", || {
            seen = machine.snapshot(0);
            reservation(&seen, job).is_some()
        });
        let reserved = reservation(&seen, job).unwrap();
        assert_eq!(reserved["variable"], "SLURM_JOB_GPUS", "{reserved}");
        assert_eq!(reserved["devices"], serde_json::json!(["0"]), "{reserved}");
        assert_eq!(reserved["user"], "root", "{reserved}");
        for stranger in [other, "90814"] {
            assert_eq!(reservation(&seen, stranger), None, "{stranger}");
        }
        let found = findings(&machine);
        assert_eq!(found.len(), 1, "{found:?}");
        let message = found[0]["message"].as_str().unwrap();
        let words = format!("Slurm job {job} of root holds GPU 0 and has run nothing on it for ");
        assert!(message.starts_with(&words), "{message}");
        assert_eq!(found[0]["severity"], "info");
        assert_eq!(found[0]["actions"], serde_json::json!(["notify"]));
        assert!(found[0]["advice"].to_string().contains(&format!("scancel {job}")));
        // Somebody else works on it.
        let machine = Machine::new(&one_gpu(&[copy.pid()]));
        machine.configure(QUICK);
        assert_eq!(findings(&machine), [Value::Null; 0]);
    } else {
        // Who is on a GPU is not seen from here.
        assert_eq!(findings(&machine), [Value::Null; 0]);
    }
    procs::kill_group(daemon.pid());
    procs::kill_group(unnamed.pid());
}
