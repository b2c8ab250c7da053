//! A killed process has a thread that waits for a hung file system. The process keeps its memory, and no signal ends
//! it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use gpumem::api::model::Snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::holders::Namespace;
use crate::machine::{Machine, Running, one_gpu};
use crate::procs;
use crate::support::{self, finish, finish_with_input, wait_until};

const HANGING: &str = include_str!("stuck/hanging_fs.py");

/// Opens a GPU, and starts a thread that accesses a file on the hung file system. The first thread sleeps.
const PROGRAM: &str = "import os, sys, threading, time
device = open('/dev/nvidia0')
threading.Thread(target=os.stat, args=(sys.argv[1] + '/file',)).start()
time.sleep(600)";

#[test]
fn a_killed_process_with_a_waiting_thread_is_stuck() {
    let python = or_skip!(support::find("python3", "python3"));
    let folder = tempfile::tempdir().unwrap();
    let mut server = Command::new(&python);
    server.args(["-c", HANGING]).arg(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Running(server.spawn().unwrap());
    let mut line = String::new();
    let mut output = BufReader::new(server.0.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    if line != "mounted\n" {
        support::skip("a file system that hangs", "as root, with the kernel module fuse");
        return;
    }
    let namespace = or_skip!(Namespace::new());
    let mut holder = namespace.command(python.to_str().unwrap());
    holder.args(["-c", PROGRAM]).arg(folder.path());
    let mut holder = Running(holder.spawn().unwrap());
    // Shadow the variable, so that the server is dropped before the holder. Otherwise, dropping the holder would hang.
    let server = server;
    output.read_line(&mut line).unwrap();
    let pid = holder.pid();
    procs::send(pid, Signal::KILL);
    wait_until("the first thread has ended", || procs::state(pid) == Some('Z'));

    let machine = Machine::new(&one_gpu(&[pid]));
    let snapshot = finish(&mut namespace.gpumem(&machine, &["ps", "--json"])).json();
    let mut processes = snapshot["processes"].as_array().unwrap().iter();
    let process = processes.find(|process| process["pid"] == pid).unwrap();
    assert_eq!((&process["state"], &process["left_thread_state"]), (&json!("Z"), &json!("D")));
    assert_eq!(process["gpu_files"], json!(["/dev/nvidia0"]), "its thread has the file open");

    let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
    let mut recording = String::new();
    for sample in 0..20 {
        let time = snapshot.time.plus_seconds(f64::from(sample) * 10.0);
        let snapshot = Snapshot { time, ..snapshot.clone() };
        recording.push_str(&serde_json::to_string(&snapshot).unwrap());
        recording.push('\n');
    }
    let mut check = machine.command(&["check", "--json", "--replay", "-"]);
    let verdict = finish_with_input(&mut check, recording.as_bytes()).exits(1);
    let verdict = verdict.json();
    let [finding] = verdict["findings"].as_array().unwrap().as_slice() else {
        panic!("{verdict}");
    };
    assert_eq!((&finding["kind"], &finding["severity"]), (&json!("stuck"), &json!("critical")));
    assert_eq!(finding["evidence"]["of_a_thread"], true);
    assert_eq!(finding["actions"], json!(["notify"]), "no signal can end it");
    if rustix::process::geteuid().is_root() {
        assert!(finding["advice"][0].as_str().unwrap().contains("FUSE"), "{finding}");
    }

    // The wait ends when the file system's server exits.
    drop(server);
    wait_until("the holder has ended", || holder.0.try_wait().unwrap().is_some());
    let _ = Command::new("umount").arg("-l").arg(folder.path()).status();
}
