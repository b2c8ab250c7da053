//! Processes in other pid namespaces, in a distributed run, and in a family of a parent and forked workers.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use gpumem::api::model::{Snapshot as Model, Tie, families, member};
use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs::{self, children};
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
fn in_a_namespace_a_pid_without_a_process_is_unresolved() {
    let unshare = or_skip!(unshare("p"));
    let machine = Machine::new(&idle_gpu(&[3_999_999, 4_000_000]));
    machine.configure(QUICK);
    let run = |arguments: &str| {
        let script = format!("\"$@\" {arguments}");
        support::finish(&mut in_namespace(&machine, &unshare, &script))
    };
    let output = run("ps --json").exits(0);
    let snapshot = output.json();
    assert_eq!(snapshot["host"]["pid_namespace"], "container");
    for process in snapshot["processes"].as_array().unwrap() {
        assert!(process["unresolved"].is_string(), "{process}");
        assert_eq!(process["start_ticks"], Value::Null, "{process}");
    }
    let verdict = run("check --json --window 3s --interval 200ms").json();
    assert_eq!(verdict["findings"], json!([]), "{verdict}");
}

#[test]
fn in_a_namespace_without_listed_processes_memory_is_still_in_use() {
    let unshare = or_skip!(unshare("p"));
    let machine = Machine::new(&Scene::new().gpu(Gpu::default().unattributed(20 * GIB)));
    let output = support::finish(&mut in_namespace(&machine, &unshare, "\"$@\" ps")).exits(0);
    let text = "No process is listed, but 20.0 GiB of GPU memory are in use.";
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

#[test]
fn a_runs_environment_is_shown_without_secrets() {
    let rank = |rank: &str| {
        Running::start(
            Command::new("sleep")
                .arg("600")
                .env("TORCHELASTIC_RUN_ID", "run-7")
                .env("RANK", rank)
                .env("WORLD_SIZE", "2")
                .env("MASTER_ADDR", "localhost")
                .env("MASTER_PORT", "29400")
                .env("JUPYTER_TOKEN", "do-not-show")
                .process_group(0),
        )
    };
    let (zero, one, other) = (rank("0"), rank("1"), Running::sleep());
    let machine = Machine::new(&one_gpu(&[zero.pid(), one.pid(), other.pid()]));
    let output = machine.run(&["ps", "--json"]);
    assert!(!output.stdout.contains("do-not-show"));
    let snapshot = output.json();
    let find = |pid: u32| {
        let all = snapshot["processes"].as_array().unwrap();
        all.iter().find(|process| process["pid"] == pid).unwrap()
    };
    let environment = &find(one.pid())["environment"];
    assert_eq!(environment["RANK"], "1", "{environment}");
    assert_eq!(environment["MASTER_PORT"], "29400");
    let parent = &find(one.pid())["parent"];
    assert_eq!(parent["pid"], std::process::id(), "{parent}");
    assert!(parent["start_ticks"].is_u64() && parent["command"].is_array());

    let typed: Model = serde_json::from_str(&output.stdout).unwrap();
    let families = families(&typed);
    let family = member(&families, zero.pid()).unwrap();
    let mut ranks = [zero.pid(), one.pid()];
    ranks.sort_unstable();
    assert_eq!(family.members, ranks);
    assert!(family.ties.contains(&Tie::Run), "{family:?}");
    assert_eq!(family.launcher.as_ref().unwrap().pid, std::process::id());
    assert_eq!(member(&families, other.pid()).unwrap().members, [other.pid()]);
}

/// A process group, which is killed on drop.
struct Group(Running);

impl Drop for Group {
    fn drop(&mut self) {
        procs::kill_group(self.0.pid());
    }
}

#[test]
fn forked_workers_stay_one_family_after_their_parent_died() {
    let python = or_skip!(support::python_with(&["os"]));
    let program = "import os, time\n\
        for _ in range(2):\n    \
            if os.fork() == 0: time.sleep(600)\n\
        time.sleep(600)\n";
    let mut command = Command::new(python);
    command.args(["-c", program]).process_group(0);
    command.stdin(Stdio::null());
    let mut trainer = Group(Running::start(&mut command));
    let pid = trainer.0.pid();
    let mut workers = Vec::new();
    wait_until("both workers are forked", || {
        workers = children(pid);
        workers.len() == 2
    });
    let mut all = workers.clone();
    all.push(pid);
    all.sort_unstable();
    let machine = Machine::new(&one_gpu(&all));
    let assert_family = |ties: &[Tie]| {
        let output = machine.run(&["ps", "--json"]);
        let snapshot: Model = serde_json::from_str(&output.stdout).unwrap();
        let families = families(&snapshot);
        let family = member(&families, workers[0]).unwrap();
        assert_eq!(family.members, all, "{families:?}");
        for tie in ties {
            assert!(family.ties.contains(tie), "{family:?}");
        }
        let tree = family.tree(&snapshot);
        assert_eq!((tree[0].pid, tree[0].depth), (pid, 0));
        assert!(tree[1..].iter().all(|branch| branch.depth == 1), "{tree:?}");
        family.id.clone()
    };
    let before = assert_family(&[Tie::ProcessGroup, Tie::Parent]);
    trainer.0.0.kill().unwrap();
    trainer.0.0.wait().unwrap();
    // In another pid namespace, gpumem cannot know that a pid without a process was the trainer.
    let snapshot = machine.snapshot(0);
    if snapshot.0["host"]["pid_namespace"] == "host" {
        assert_eq!(assert_family(&[Tie::ProcessGroup]), before);
    }
}
