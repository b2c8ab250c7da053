//! After a process has exited, gpumem shows the last known name while NVML still lists the process.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::machine::{Machine, Running, one_gpu};
use crate::support::wait_until;

#[test]
fn a_dead_process_keeps_its_name() {
    let unnamed = Running::sleep();
    let listed_dead = unnamed.pid();
    drop(unnamed);
    let child = Running::sleep();
    let pid = child.pid();
    let machine = Machine::new(&one_gpu(&[pid, listed_dead]));
    machine.configure("[rules.dead]\nduration = \"1s\"\n");
    let file = machine.path("day.jsonl");
    let file = file.to_str().unwrap();
    let mut command = machine.command(&["record", file, "--interval", "100ms"]);
    let mut recording = command.stderr(Stdio::null()).spawn().unwrap();
    let snapshots = || -> Vec<Value> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let whole = text.lines().map(serde_json::from_str);
        whole.filter_map(Result::ok).collect()
    };
    let process = |snapshot: &Value, pid: u32| {
        let all = snapshot["processes"].as_array().unwrap();
        all.iter().find(|process| process["pid"] == pid).unwrap().clone()
    };
    wait_until("a snapshot with the living process", || !snapshots().is_empty());
    let alive = process(&snapshots()[0], pid);
    drop(child);
    let is_dead = |snapshot: &&Value| process(snapshot, pid).get("start_ticks").is_none();
    wait_until("two seconds of snapshots with the dead process", || {
        snapshots().iter().filter(is_dead).count() > 20
    });
    kill_process(Pid::from_child(&recording), Signal::TERM).unwrap();
    recording.wait().unwrap();

    let snapshots = snapshots();
    let last = snapshots.last().unwrap();
    let dead = process(last, pid);
    if last["host"]["pid_namespace"] != "host" {
        // Outside the host's pid namespace, gpumem cannot match the pid to the exited process.
        assert!(dead.get("last_known").is_none() && dead["unresolved"].is_string());
        return;
    }
    let last_known = &dead["last_known"];
    for name in ["start_ticks", "start_time", "user", "comm", "command"] {
        assert!(!alive[name].is_null(), "{name}: {alive}");
        assert_eq!(last_known[name], alive[name], "{name}");
    }
    assert_eq!(dead.as_object().unwrap().len(), 2, "unexpected fields: {dead}");
    assert_eq!(process(last, listed_dead).as_object().unwrap().len(), 1);

    let ps = machine.replay(&["ps"], file);
    let has = |pid: u32, words: &str| {
        ps.lines().any(|line| line.contains(&pid.to_string()) && line.contains(words))
    };
    assert!(has(pid, "(ended: sleep 600)") && has(listed_dead, "(no such process)"), "{ps}");
    let check = machine.replay(&["check"], file);
    let sentence = format!("sleep 600 ({pid}) no longer exists and is still listed");
    assert!(check.contains(&sentence), "{check}");
}
