//! Suspects are reported after the first sample, and gpumem never acts on them.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::process::Signal;
use serde_json::json;

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs;
use crate::support::wait_until;

/// A rule with a short duration.
const QUICK: &str = "[rules.idle]\nduration = \"8s\"\n";

#[test]
fn a_suspect_changes_no_exit_code_and_is_not_reaped() {
    // In the same process group, both processes would be one family, and the busy process would protect the idle
    // process.
    let idle = Running::start(Command::new("sleep").arg("600").process_group(0));
    let busy = Running::sleep();
    let gpu = Gpu::default()
        .process(Process::compute(idle.pid(), 4 * GIB))
        .process(Process::compute(busy.pid(), 2 * GIB).sm(70));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    machine.configure(QUICK);
    let check = ["check", "--window", "1s", "--interval", "200ms"];
    let output = machine.run(&[&check[..], &["--json"]].concat());
    let document = output.json();
    assert_eq!((output.code, &document["status"]), (0, &json!("ok")));
    let [suspect] = &document["suspects"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!(suspect["process"]["pid"], idle.pid());
    assert!(suspect["process"]["start_ticks"].is_u64());
    assert_eq!((&suspect["kind"], &suspect["memory_bytes"]), (&json!("idle"), &json!(4 * GIB)));
    assert_eq!(
        document["reclaimable"],
        json!({"bytes": 0, "processes": 0, "users": 0,
            "suspected_bytes": 4 * GIB, "suspected_processes": 1})
    );
    for strict in [&["--fail-on", "info"][..], &["--kind", "idle"]] {
        let output = machine.run(&[&check[..], strict].concat());
        assert_eq!(output.code, 0, "{strict:?}: {output:?}");
    }
    // gpumem does not kill the suspect, even if all users and all idle processes are selected.
    let reap = machine.run_line("reap --yes --json --all-users --kind idle --window 1s");
    assert_eq!(reap.json()["targets"], json!([]), "{reap:?}");
    // The command that the suspect suggests runs long enough to decide whether the process is idle.
    let command = suspect["command"].as_str().unwrap();
    assert_eq!(command, "gpumem check --kind idle --window 13s");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let decided = machine.run(&[&words[..], &["--json"]].concat());
    let document = decided.json();
    assert_eq!(decided.code, 1, "{document}");
    assert_eq!(document["findings"][0]["process"]["pid"], idle.pid());
    assert_eq!(document["suspects"], json!([]));
    assert_eq!(
        document["reclaimable"],
        json!({"bytes": 4 * GIB, "processes": 1, "users": 1,
            "suspected_bytes": 0, "suspected_processes": 0}),
        "{document}"
    );
}

/// One sample is enough to suspect the stopped process. Other rules need more time.
#[test]
fn ps_marks_suspects_after_one_sample() {
    let (stopped, other) = (Running::sleep(), Running::sleep());
    procs::send(stopped.pid(), Signal::STOP);
    let machine = Machine::new(&one_gpu(&[stopped.pid(), other.pid()]));
    let is_stopped = || machine.snapshot(0).process(stopped.pid())["state"] == "T";
    wait_until("the process is stopped", is_stopped);
    let ps = machine.run(&["ps"]);
    let second = ps.stdout.lines().nth(1).unwrap();
    assert!(second.starts_with("reclaimable: not known") && second.ends_with("2.0 GiB suspected"));
    let marked: Vec<&str> = ps.stdout.lines().filter(|line| line.contains("? ")).collect();
    let [marked] = marked[..] else { panic!("{ps:?}") };
    assert!(marked.contains(&stopped.pid().to_string()), "{marked}");
    assert!(marked.contains("stopped? 0s of 2m"), "{marked}");
    // If the configuration is invalid, `ps` works without rules.
    machine.configure("[rules.idel]\n");
    let without = machine.run(&["ps"]);
    assert_eq!(without.code, 0);
    assert!(without.stdout.starts_with("Free: GPU 0 ") && !without.stdout.contains("stopped?"));
    assert!(without.stderr.contains("findings and suspects are not shown"), "{without:?}");
}
