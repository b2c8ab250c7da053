//! What is ended, what comes back, and what is written of it.

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

/// What a child that was started with pipes comes to.
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

/// The signals of each deed that the ledger says was done.
fn done(stage: &Stage) -> Vec<Value> {
    let lines = stage.lines();
    let done = lines.iter().filter(|line| line["event"] == "done");
    done.map(|line| line["signals"].clone()).collect()
}

#[test]
fn one_that_obeys_is_asked_and_its_memory_is_seen_to_come_back() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    stage.release(&holder, Duration::ZERO);
    let output = stage.reap(&holder, &[]).exits(0);
    let document = output.json();
    assert_eq!(document["status"], "done");
    assert_eq!(document["freed_bytes"], 2 * GIB);
    let outcome = outcome(&output);
    assert_eq!((&outcome["outcome"], &outcome["bytes"]), (&json!("freed"), &json!(2 * GIB)));
    assert!(output.stderr.contains(&format!("SIGTERM to {}", holder.pid)), "{output:?}");
    assert!(!holder.is_alive());

    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    let first = &stage.lines()[0];
    assert_eq!(first["target"]["members"][0]["pid"], holder.pid);
    assert_eq!(first["actor"]["uid"], rustix::process::geteuid().as_raw());
    let history = stage.run(&["reap", "--history"]);
    let line = history.stdout.lines().nth(1).unwrap_or_default();
    for word in [&*holder.pid.to_string(), "named", "SIGTERM to", "freed 2.0 GiB in"] {
        assert!(line.contains(word), "no {word} in {history:?}");
    }
    let history = stage.run(&["reap", "--history", "--json"]).json();
    assert_eq!(history["acts"][0]["outcome"]["outcome"], "freed");
    assert_eq!(history["acts"][0]["deeds"][0]["signals"], json!(["TERM"]));
}

#[test]
fn one_that_ignores_it_is_killed_after_the_grace() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    stage.release(&holder, Duration::ZERO);
    let pid = holder.pid.to_string();
    let output = stage.run(&["kill", &pid, "--yes", "--grace", "1s"]).exits(0);
    assert!(output.stdout.contains(&format!("{pid}: freed 2.0 GiB in ")), "{output:?}");
    assert!(output.stdout.ends_with("freed 2.0 GiB; 1 of 1 done\n"), "{output:?}");
    assert_eq!(done(&stage), [json!(["TERM"]), json!(["KILL"])]);
}

#[test]
fn what_is_named_and_does_not_fit_is_left_alone() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    stage.release(&holder, Duration::ZERO);
    let pid = holder.pid.to_string();
    let own = rustix::process::geteuid().as_raw();
    for terms in ["user:4294967294", "mem>3GiB", "!gpu:0", "idle>1h"] {
        let terms = format!("--where={terms}");
        let output = stage.run(&["kill", &pid, "--yes", &terms]);
        assert_eq!(output.code, 1, "{terms}: {output:?}");
        assert!(holder.is_alive() && stage.events().is_empty(), "{terms}");
    }
    let terms = format!("--where=user:{own} mem>1GiB gpu:0");
    stage.run(&["kill", &pid, "--yes", &terms]).exits(0);
    assert!(!holder.is_alive());
}

#[test]
fn memory_that_stays_is_no_success() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    // It is taken away when it has ended, and the driver goes on listing it.
    let child = std::sync::Arc::clone(&holder.child);
    let waited = std::thread::spawn(move || {
        support::wait_until("it has ended", || child.lock().unwrap().try_wait().unwrap().is_some());
    });
    let output = stage.reap(&holder, &[]);
    waited.join().unwrap();
    let outcome = outcome(&output);
    assert_eq!((output.code, &outcome["outcome"]), (1, &json!("exited_not_freed")), "{output:?}");
    // Those of other tests hold a file of that name, too.
    let holders = outcome["holders"].as_array().unwrap();
    assert!(holders.contains(&json!(holder.pid)), "{outcome}");
    assert_eq!(output.json()["status"], "incomplete");
}

#[test]
fn a_full_disk_stops_the_reaper_and_nothing_is_sent() {
    let stage = or_skip!(Stage::new());
    let state = stage.machine.path("state");
    fs::create_dir(&state).unwrap();
    let mut mount = stage.namespace.command("mount");
    // One page, which the lock takes.
    mount.args(["-t", "tmpfs", "-o", "size=4k,mode=0700", "none"]).arg(&state);
    assert_eq!(support::finish(&mut mount).code, 0);
    let holder = stage.holder(OBEYS);
    let output = stage.reap(&holder, &[]).exits(1);
    assert!(output.stderr.contains("cannot write to the audit log"), "{output:?}");
    assert!(output.stderr.contains("the action was not carried out"), "{output:?}");
    let document = output.json();
    assert_eq!((&document["status"], &document["freed_bytes"]), (&json!("error"), &json!(0)));
    assert!(holder.is_alive());
}

#[test]
fn there_is_one_reaper_at_a_time() {
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
fn interrupted_it_sends_nothing_more_and_shows_what_it_sent() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    let reaper = stage.waiting(&holder);
    send(reaper.id(), Signal::INT);
    let (signal, output) = finish(reaper);
    assert_eq!(signal, Signal::INT.as_raw(), "{output:?}");
    let pid = holder.pid;
    let message = format!(
        "interrupted by SIGINT at {pid}: nothing more is sent; it was sent: SIGTERM to {pid}"
    );
    assert!(output.stderr.contains(&message), "{output:?}");
    assert_eq!(output.json()["status"], "interrupted");
    assert_eq!(outcome(&output), Value::Null);
    assert!(holder.is_alive());
    assert_eq!(done(&stage), [json!(["TERM"])]);
}

#[test]
fn killed_in_the_middle_it_leaves_what_was_sent() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    let reaper = stage.waiting(&holder);
    send(reaper.id(), Signal::KILL);
    assert_eq!(finish(reaper).0, Signal::KILL.as_raw());
    let history = stage.run(&["reap", "--history"]).exits(0);
    let line = history.stdout.lines().nth(1).unwrap();
    assert!(line.contains(&format!("SIGTERM to {}", holder.pid)), "{history:?}");
    assert!(line.contains("unknown: gpumem exited first"), "{history:?}");
    // The lock went with it.
    stage.release(&holder, Duration::ZERO);
    assert_eq!(stage.reap(&holder, &["--signal", "KILL"]).code, 0);
}

/// `gpumem kill` on a terminal, that has asked.
fn asked(stage: &Stage, holder: &Holder) -> Terminal {
    let command = stage.command(&["kill", &holder.pid.to_string()]);
    let terminal = Terminal::start(&[], &command, 40, 160);
    let text = terminal.wait_for("question", |text| text.contains("[y/N]"));
    assert!(text.contains("Kill 1 process to free 2.0 GiB? [y/N]"), "{text}");
    assert!(holder.is_alive());
    terminal
}

#[test]
fn on_a_terminal_it_asks_and_only_yes_is_yes() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    for answer in ["n\r", "\r", "maybe\r", "\u{4}"] {
        let mut terminal = asked(&stage, &holder);
        terminal.press(answer);
        assert_eq!(terminal.end().code(), Some(1), "{answer:?}");
        terminal.wait_for("refusal", |text| text.contains("nothing was sent"));
        assert!(holder.is_alive() && !stage.ledger().exists());
    }
    let mut terminal = asked(&stage, &holder);
    stage.release(&holder, Duration::ZERO);
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.wait_for("outcome", |text| text.contains("freed 2.0 GiB in"));
    assert!(!holder.is_alive());
}

/// An idle process that rules find within a test; `None` where these pids are not the host's: there
/// it is seen that rules end nobody.
pub fn idle(stage: &Stage, script: &str) -> Option<Holder> {
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

/// Whether the process works, by the driver.
pub fn scene(pid: u32, sm_percent: u32) -> Scene {
    let process = Process::compute(pid, 2 * GIB).sm(sm_percent);
    let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    Scene::new().gpu(gpu.process(process))
}

/// Three acts of just now, by which something was done.
fn have_acted(stage: &Stage) {
    fs::create_dir(stage.machine.path("state")).unwrap();
    let now = stage.machine.snapshot(0).0["time"].clone();
    let lines: String = (0..3)
        .map(|act| {
            let line = json!({
                "schema": "gpumem.ledger/1", "time": now, "act": format!("{act}"),
                "event": "intended", "deed": "shut_kernel", "kernel_id": "7",
            });
            format!("{line}\n")
        })
        .collect();
    fs::write(stage.ledger(), lines).unwrap();
}

const BY_RULE: &[&str] = &["reap", "--yes", "--json", "--window", "4s"];

#[test]
fn what_a_rule_found_is_ended_at_once_by_who_confirms_it() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(idle(&stage, OBEYS));
    // More would be too many for a service.
    have_acted(&stage);
    stage.release(&holder, Duration::ZERO);
    let output = stage.run(BY_RULE);
    assert_eq!((output.code, &outcome(&output)["outcome"]), (0, &json!("freed")), "{output:?}");
    assert!(!output.stderr.contains("waiting"), "{output:?}");
    assert!(!holder.is_alive());
    let begun = &stage.lines()[3];
    assert_eq!(begun["actor"]["is_unattended"], false, "{begun}");
    assert_eq!(begun["target"]["reason"]["findings"][0]["rule"], "idle");
    assert!(begun["target"]["reason"]["findings"][0]["evidence"].is_object());
}

#[test]
fn activity_in_the_grace_cancels() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(idle(&stage, IGNORES));
    let reaper = stage.waiting_by(&[BY_RULE, &["--grace", "60s"]].concat());
    stage.machine.play(&scene(holder.pid, 80));
    let (_, output) = finish(reaper);
    let expected = json!({"outcome": "rule_no_longer_true"});
    assert_eq!((output.code, outcome(&output)), (1, expected), "{output:?}");
    assert!(holder.is_alive());
    assert_eq!(done(&stage), [json!(["TERM"])]);
}
