//! Processes in other pid namespaces.

use std::process::Command;

use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs::children;
use crate::support::{self, wait_until};

/// Returns an `unshare` command that creates these namespaces, and a user namespace if needed. If the kernel or a
/// sandbox refuses, prints the reason and returns `None`.
pub fn unshare(namespaces: &str) -> Option<Vec<String>> {
    let unshare = support::find("unshare", "util-linux")?;
    for user in ["", "r"] {
        let options = [
            unshare.to_str().unwrap().to_owned(),
            format!("-{user}{namespaces}f"),
            "--mount-proc".to_owned(),
            "--kill-child".to_owned(),
        ];
        let tried = Command::new(&options[0]).args(&options[1..]).arg("true").output();
        if tried.is_ok_and(|output| output.status.success()) {
            return Some(options.into());
        }
    }
    support::skip("a new pid namespace", "run as root");
    None
}

/// Returns a command that runs a script in new namespaces. In the script, `"$@"` runs gpumem on this machine.
pub fn in_namespace(machine: &Machine, unshare: &[String], script: &str) -> Command {
    let gpumem = machine.command(&[]);
    let mut command = Command::new(&unshare[0]);
    command.args(&unshare[1..]).args(["sh", "-c", script, "sh"]);
    command.arg(gpumem.get_program()).args(gpumem.get_args());
    support::clean_environment(&mut command);
    machine.environment(&mut command);
    command
}

#[test]
fn a_process_in_another_namespace_has_both_pids() {
    let unshare = or_skip!(unshare("p"));
    let mut command = Command::new(&unshare[0]);
    command.args(&unshare[1..]).args(["sh", "-c", "sleep 600; :"]);
    let running = Running::start(&mut command);
    let mut grandchildren = Vec::new();
    wait_until("the inner shell has a child", || {
        let first = children(running.pid());
        grandchildren = first.iter().copied().flat_map(children).collect();
        !grandchildren.is_empty()
    });
    let sleep = grandchildren[0];
    let machine = Machine::new(&one_gpu(&[sleep, running.pid()]));
    let snapshot = machine.snapshot(0);
    let process = snapshot.process(sleep);
    assert_eq!(process["namespace_pid"], 2, "{process}");
    assert_eq!(process["pid"], sleep);
    // The shell is the init process of the namespace, and therefore also adopts orphans.
    assert_eq!((&process["parent_is_reaper"], &process["parent"]), (&json!(true), &Value::Null));
    let outside = snapshot.process(running.pid());
    assert_eq!(outside["namespace_pid"], Value::Null, "{outside}");
    assert_eq!(outside["parent"]["pid"], std::process::id());
}

/// Returns a GPU on which each process holds 20 GiB without using it.
fn idle_gpu(pids: &[u32]) -> Scene {
    let gpu =
        pids.iter().fold(Gpu::default(), |gpu, &pid| gpu.process(Process::compute(pid, 20 * GIB)));
    Scene::new().gpu(gpu)
}

const QUICK: &str = "[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n";

#[test]
fn in_a_namespace_without_listed_processes_memory_is_still_in_use() {
    let unshare = or_skip!(unshare("p"));
    let machine = Machine::new(&Scene::new().gpu(Gpu::default().unattributed(20 * GIB)));
    let output = support::finish(&mut in_namespace(&machine, &unshare, "\"$@\" ps")).exits(0);
    let text = "No process is listed, but 20.0 GiB of GPU memory is in use.";
    assert!(output.stdout.contains(text), "{output:?}");
    machine.play(&Scene::new().gpu(Gpu::default()));
    let output = support::finish(&mut in_namespace(&machine, &unshare, "\"$@\" ps")).exits(0);
    assert!(output.stdout.contains("No process holds GPU memory."), "{output:?}");
}

/// Starts two processes, of which only the second has a device file open, puts their pids into the scene, and runs
/// gpumem. The caller appends gpumem's arguments.
const TWO_LOCAL_PROCESSES: &str = r#"
    mount -t tmpfs none /dev || exit 99
    : >/dev/null; : >/dev/nvidia0
    sleep 600 & stranger=$!
    exec 4</dev/nvidia0; sleep 600 & holder=$!; exec 4<&-
    own=$GPUMEM_MOCK_SCENE.own
    sed "s/1111111/$stranger/g; s/2222222/$holder/g" "$GPUMEM_MOCK_SCENE" >"$own"
    echo "$holder" >"$own.holder"
    export GPUMEM_MOCK_SCENE="$own"
    "$@" "#;

#[test]
fn in_a_namespace_only_holders_of_device_files_are_resolved() {
    let unshare = or_skip!(unshare("pm"));
    let machine = Machine::new(&idle_gpu(&[1_111_111, 2_222_222, 4_000_000]));
    machine.configure(QUICK);
    let run = |arguments: &str| {
        let script = format!("{TWO_LOCAL_PROCESSES} {arguments}");
        let output = support::finish(&mut in_namespace(&machine, &unshare, &script));
        let holder = std::fs::read_to_string(machine.path("scene.json.own.holder")).unwrap();
        (output, holder.trim().parse::<u64>().unwrap())
    };
    let (output, holder) = run("ps --json");
    assert_eq!(output.code, 0, "{output:?}");
    let snapshot = output.json();
    let processes = snapshot["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 3, "{snapshot}");
    for process in processes {
        if process["pid"] == holder {
            assert_eq!(process["gpu_files"], json!(["/dev/nvidia0"]), "{process}");
            assert_eq!(process["unresolved"], Value::Null);
        } else {
            // gpumem must not match NVML's pid to the process that has the same pid in the namespace.
            assert!(process["unresolved"].is_string(), "{process}");
            assert_eq!(process.as_object().unwrap().len(), 2, "{process}");
        }
    }

    let (output, holder) = run("check --json --window 3s --interval 200ms");
    let verdict = output.json();
    let findings = verdict["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{output:?}");
    assert_eq!(findings[0]["process"]["pid"], holder, "{verdict}");
}
