//! `gpumem reap` and `gpumem kill` on the mock driver: plans, and actions on real processes.
//!
//! The processes hold a plain file named `/dev/nvidia0` in a mount namespace, so that gpumem can match NVML's pid to
//! a process even if the tests run outside the host's pid namespace. Outside that namespace, gpumem ends a process
//! that a person names, but refuses to end a process because of a rule.

mod acts;
mod plans;

pub use acts::{idle_holder, scene};

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::holders::Namespace;
use crate::machine::{Machine, one_gpu};
use crate::support::{self, Output};

/// A process that exits on SIGTERM.
pub const OBEYS: &str = "";
/// A process that ignores SIGTERM. An ignored signal stays ignored after exec.
pub const IGNORES: &str = "trap '' TERM;";

/// A machine with a state directory, and a namespace in which processes hold GPU files.
pub struct Stage {
    namespace: Namespace,
    pub machine: Machine,
}

impl Stage {
    /// Creates a stage. If a namespace cannot be created, prints the reason and returns `None`.
    pub fn new() -> Option<Self> {
        Some(Self { namespace: Namespace::new()?, machine: Machine::new(&one_gpu(&[])) })
    }

    /// Starts a process that holds 2 GiB until it exits.
    pub fn holder(&self, script: &str) -> Holder {
        self.holder_by(&[], script)
    }

    /// Starts a holder through `starter`, a program and its arguments.
    fn holder_by(&self, starter: &[&str], script: &str) -> Holder {
        // Each holder sleeps for a different time, because gpumem takes a process with the same parent and command
        // for a successor.
        static STARTED: AtomicU32 = AtomicU32::new(61_000);
        let seconds = STARTED.fetch_add(1, Ordering::Relaxed);
        let script = format!("exec 3</dev/nvidia0; {script} echo ready; exec sleep {seconds}");
        let words = [starter, &["sh", "-c", &script]].concat();
        let mut command = self.namespace.command(words[0]);
        command.args(&words[1..]);
        let holder = Holder::start(command.process_group(0));
        self.machine.play(&one_gpu(&[holder.pid]));
        holder
    }

    /// Removes the memory from the scene once `after` has passed since the holder's exit.
    pub fn release(&self, holder: &Holder, after: Duration) {
        let (child, path) = (Arc::clone(&holder.child), self.machine.path("scene.json"));
        thread::spawn(move || {
            while child.lock().unwrap().try_wait().unwrap().is_none() {
                thread::sleep(Duration::from_millis(10));
            }
            thread::sleep(after);
            // Ignore the error: the test can end first and remove the directory.
            let _ = one_gpu(&[]).write(&path);
        });
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.namespace.gpumem(&self.machine, arguments);
        command.env("STATE_DIRECTORY", self.machine.path("state"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        support::finish(&mut self.command(arguments))
    }

    /// Runs `gpumem reap --yes --json` with the holder as the target.
    fn reap(&self, holder: &Holder, more: &[&str]) -> Output {
        let pid = holder.pid.to_string();
        self.run(&[&["reap", "--yes", "--json", "--pid", &pid], more].concat())
    }

    pub fn ledger(&self) -> PathBuf {
        self.machine.path("state/reap.jsonl")
    }

    /// Returns the lines of the audit log, if it exists.
    pub fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.ledger()).unwrap_or_default();
        let lines = text.lines();
        // Skip a line that is not complete yet.
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub fn events(&self) -> Vec<String> {
        let lines = self.lines();
        lines.iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect()
    }

    /// Starts a reaper whose target ignores SIGTERM, and waits until SIGTERM has been sent.
    fn start_waiting(&self, holder: &Holder) -> Child {
        let pid = holder.pid.to_string();
        self.start_waiting_with(&["reap", "--yes", "--json", "--grace", "60s", "--pid", &pid])
    }

    /// Starts a reaper, and waits until a signal has been sent.
    fn start_waiting_with(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let reaper = command.spawn().unwrap();
        support::wait_until("a signal was sent", || self.events().contains(&"done".into()));
        reaper
    }
}

/// A process that holds a GPU, and is killed on drop.
pub struct Holder {
    pub pid: u32,
    child: Arc<Mutex<Child>>,
}

impl Holder {
    fn start(command: &mut Command) -> Self {
        let (child, line) = support::start_and_read_line(command);
        assert_eq!(line, "ready");
        Self { pid: child.id(), child: Arc::new(Mutex::new(child)) }
    }

    pub fn is_alive(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_none()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns the outcome of the only target in a document.
pub fn outcome(output: &Output) -> Value {
    let document = output.json();
    let targets = document["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 1, "{output:?}");
    targets[0]["outcome"].clone()
}
