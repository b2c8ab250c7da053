//! The effects of actions: killed processes, freed memory, and the audit log.

use std::fs::{self, File};
use std::process::Child;
use std::time::Duration;

use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Holder, IGNORES, OBEYS, Stage, outcome};
use crate::machine::GIB;
use crate::procs::send;
use crate::pty::Terminal;
use crate::support::{self, Output};

/// Waits for a child with piped output. Returns the signal that ended the child, or 0, and the output.
fn finish(child: Child) -> (i32, Output) {
    use std::os::unix::process::ExitStatusExt as _;
    let output = child.wait_with_output().unwrap();
    let signal = output.status.signal().unwrap_or(0);
    let output = Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    };
    (signal, output)
}

/// Returns the signals of each "done" line in the audit log.
fn sent_signals(stage: &Stage) -> Vec<Value> {
    let lines = stage.lines();
    let done = lines.iter().filter(|line| line["event"] == "done");
    done.map(|line| line["signals"].clone()).collect()
}

#[test]
fn an_obedient_process_exits_and_its_memory_is_freed() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    stage.release(&holder, Duration::ZERO);
    let output = stage.reap(&holder, &[]).exits(0);
    let document = output.json();
    assert_eq!(document["status"], "done");
    assert_eq!(document["freed_bytes"], 2 * GIB);
    let outcome = outcome(&output);
    assert_eq!((&outcome["outcome"], &outcome["bytes"]), (&json!("freed"), &json!(2 * GIB)));
    assert!(!holder.is_alive());

    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    let first = &stage.lines()[0];
    assert_eq!(first["target"]["members"][0]["pid"], holder.pid);
    assert_eq!(first["actor"]["uid"], rustix::process::geteuid().as_raw());
    let history = stage.run(&["reap", "--history"]);
    let line = history.stdout.lines().nth(1).unwrap_or_default();
    for word in [&*holder.pid.to_string(), "SIGTERM to"] {
        assert!(line.contains(word), "no {word} in {history:?}");
    }
    let history = stage.run(&["reap", "--history", "--json"]).json();
    assert_eq!(history["acts"][0]["outcome"]["outcome"], "freed");
    assert_eq!(history["acts"][0]["deeds"][0]["signals"], json!(["TERM"]));
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_the_grace() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    stage.release(&holder, Duration::ZERO);
    let pid = holder.pid.to_string();
    stage.run(&["kill", &pid, "--yes", "--grace", "1s"]).exits(0);
    assert_eq!(sent_signals(&stage), [json!(["TERM"]), json!(["KILL"])]);
}

#[test]
fn a_named_process_outside_the_filter_is_left_alone() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    stage.release(&holder, Duration::ZERO);
    let pid = holder.pid.to_string();
    let uid = rustix::process::geteuid().as_raw();
    for terms in ["user:4294967294", "mem>3GiB", "!gpu:0", "idle>1h"] {
        let terms = format!("--where={terms}");
        let output = stage.run(&["kill", &pid, "--yes", &terms]);
        assert_eq!(output.code, 1, "{terms}: {output:?}");
        assert!(holder.is_alive() && stage.events().is_empty(), "{terms}");
    }
    let terms = format!("--where=user:{uid} mem>1GiB gpu:0");
    stage.run(&["kill", &pid, "--yes", &terms]).exits(0);
    assert!(!holder.is_alive());
}

#[test]
fn memory_that_is_not_freed_is_not_a_success() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    // Wait for the exited holder, so that it is not a zombie, while the driver still lists the pid.
    let child = std::sync::Arc::clone(&holder.child);
    let waiter = std::thread::spawn(move || {
        support::wait_until("the holder has exited", || {
            child.lock().unwrap().try_wait().unwrap().is_some()
        });
    });
    let output = stage.reap(&holder, &[]);
    waiter.join().unwrap();
    let outcome = outcome(&output);
    assert_eq!((output.code, &outcome["outcome"]), (1, &json!("exited_not_freed")), "{output:?}");
    // Processes of other tests hold files with the same name, so the list can contain more pids.
    let holders = outcome["holders"].as_array().unwrap();
    assert!(holders.contains(&json!(holder.pid)), "{outcome}");
    assert_eq!(output.json()["status"], "incomplete");
}

#[test]
fn a_full_disk_prevents_any_signal() {
    let stage = or_skip!(Stage::new());
    let state = stage.machine.path("state");
    fs::create_dir(&state).unwrap();
    let mut mount = stage.namespace.command("mount");
    // The file system has a single page, which the lock file occupies.
    mount.args(["-t", "tmpfs", "-o", "size=4k,mode=0700", "none"]).arg(&state);
    assert_eq!(support::finish(&mut mount).code, 0);
    let holder = stage.holder(OBEYS);
    let output = stage.reap(&holder, &[]).exits(1);
    assert!(output.stderr.contains("cannot write to the audit log"), "{output:?}");
    let document = output.json();
    assert_eq!((&document["status"], &document["freed_bytes"]), (&json!("error"), &json!(0)));
    assert!(holder.is_alive());
}

#[test]
fn only_one_reaper_runs_at_a_time() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    fs::create_dir(stage.machine.path("state")).unwrap();
    let lock = File::create(stage.machine.path("state/reap.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let output = stage.reap(&holder, &[]).exits(1);
    assert!(output.stderr.contains("another reaper is running"), "{output:?}");
    assert!(holder.is_alive() && !stage.ledger().exists());
}

#[test]
fn an_interrupted_reaper_sends_nothing_more() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    let reaper = stage.start_waiting(&holder);
    send(reaper.id(), Signal::INT);
    let (signal, output) = finish(reaper);
    assert_eq!(signal, Signal::INT.as_raw(), "{output:?}");
    let pid = holder.pid;
    assert!(output.stderr.contains(&format!("it was sent: SIGTERM to {pid}")), "{output:?}");
    assert_eq!(output.json()["status"], "interrupted");
    assert_eq!(outcome(&output), Value::Null);
    assert!(holder.is_alive());
    assert_eq!(sent_signals(&stage), [json!(["TERM"])]);
}

#[test]
fn a_killed_reaper_leaves_a_record_of_its_signals() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    let reaper = stage.start_waiting(&holder);
    send(reaper.id(), Signal::KILL);
    assert_eq!(finish(reaper).0, Signal::KILL.as_raw());
    let history = stage.run(&["reap", "--history"]).exits(0);
    let line = history.stdout.lines().nth(1).unwrap();
    assert!(line.contains(&format!("SIGTERM to {}", holder.pid)), "{history:?}");
    // The kernel has released the lock of the killed reaper.
    stage.release(&holder, Duration::ZERO);
    assert_eq!(stage.reap(&holder, &["--signal", "KILL"]).code, 0);
}

/// Starts `gpumem kill` on a terminal, and waits for the question.
fn start_kill(stage: &Stage, holder: &Holder) -> Terminal {
    let command = stage.command(&["kill", &holder.pid.to_string()]);
    let terminal = Terminal::start(&[], &command, 40, 160);
    terminal.wait_for("question", |text| text.contains("[y/N]"));
    assert!(holder.is_alive());
    terminal
}

#[test]
fn kill_on_a_terminal_needs_an_explicit_yes() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    for answer in ["n\r", "\r", "maybe\r", "\u{4}"] {
        let mut terminal = start_kill(&stage, &holder);
        terminal.press(answer);
        assert_eq!(terminal.wait_for_exit().code(), Some(1), "{answer:?}");
        assert!(holder.is_alive() && !stage.ledger().exists());
    }
    let mut terminal = start_kill(&stage, &holder);
    stage.release(&holder, Duration::ZERO);
    terminal.press("y\r");
    assert_eq!(terminal.wait_for_exit().code(), Some(0));
    assert!(!holder.is_alive());
}

/// Starts a process that a rule finds idle within seconds. In another pid namespace, asserts that the rule kills no
/// process, and returns `None`.
pub fn idle_holder(stage: &Stage, script: &str) -> Option<Holder> {
    stage.machine.configure(
        "[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n[rules.orphan]\nenabled = false\n",
    );
    let holder = stage.holder(script);
    if stage.machine.snapshot(0).0["host"]["pid_namespace"] == "host" {
        return Some(holder);
    }
    let output = stage.run(&["reap", "--yes", "--json", "--window", "4s"]);
    assert_eq!(output.json()["targets"], json!([]));
    let refused = &output.json()["refused"][0]["why"]["protection"];
    assert_eq!(refused["reason"], "other_namespace", "{output:?}");
    assert!(holder.is_alive());
    None
}

pub fn scene(pid: u32, sm_percent: u32) -> Scene {
    let process = Process::compute(pid, 2 * GIB).sm(sm_percent);
    let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    Scene::new().gpu(gpu.process(process))
}

const BY_RULE: &[&str] = &["reap", "--yes", "--json", "--window", "4s"];

#[test]
fn a_finding_confirmed_with_yes_is_acted_on_immediately() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(idle_holder(&stage, OBEYS));
    stage.release(&holder, Duration::ZERO);
    let output = stage.run(BY_RULE);
    assert_eq!((output.code, &outcome(&output)["outcome"]), (0, &json!("freed")), "{output:?}");
    assert!(!output.stderr.contains("waiting"), "{output:?}");
    assert!(!holder.is_alive());
    let begun = &stage.lines()[0];
    assert_eq!(begun["actor"]["is_unattended"], false, "{begun}");
    assert_eq!(begun["target"]["reason"]["findings"][0]["rule"], "idle");
    assert!(begun["target"]["reason"]["findings"][0]["evidence"].is_object());
}

#[test]
fn activity_during_the_grace_period_cancels() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(idle_holder(&stage, IGNORES));
    let reaper = stage.start_waiting_with(&[BY_RULE, &["--grace", "60s"]].concat());
    stage.machine.play(&scene(holder.pid, 80));
    let (_, output) = finish(reaper);
    let expected = json!({"outcome": "rule_no_longer_true"});
    assert_eq!((output.code, outcome(&output)), (1, expected), "{output:?}");
    assert!(holder.is_alive());
    assert_eq!(sent_signals(&stage), [json!(["TERM"])]);
}
