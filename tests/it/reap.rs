//! `gpumem reap` and `gpumem kill`: plans, and processes that are really ended, on the mock driver.
//!
//! The processes hold a plain file that is called `/dev/nvidia0` in a mount namespace of their own, so
//! that what a person names may be ended where the pids are not the host's, too. What rules find is
//! ended only on a host; elsewhere the tests see that it is refused.

mod acts;
mod plans;

pub use acts::{idle, scene};

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

/// Sleeps, and ends when it is told to.
pub const OBEYS: &str = "";
/// What a program ignores it goes on ignoring after exec.
pub const IGNORES: &str = "trap '' TERM;";

/// A machine with a namespace in which GPUs' files can be held, and a place for the ledger.
pub struct Stage {
    namespace: Namespace,
    pub machine: Machine,
}

impl Stage {
    /// `None`, after a printed reason, where there can be no namespace.
    pub fn new() -> Option<Self> {
        Some(Self { namespace: Namespace::new()?, machine: Machine::new(&one_gpu(&[])) })
    }

    /// A process that holds 2 GiB until it ends.
    pub fn holder(&self, script: &str) -> Holder {
        self.holder_by(&[], script)
    }

    /// As [`Stage::holder`], started by another program with these arguments.
    fn holder_by(&self, starter: &[&str], script: &str) -> Holder {
        // One that is started by the same parent with the same command would be its successor.
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

    /// From now on its memory comes back so long after its end.
    pub fn release(&self, holder: &Holder, after: Duration) {
        let (child, path) = (Arc::clone(&holder.child), self.machine.path("scene.json"));
        thread::spawn(move || {
            while child.lock().unwrap().try_wait().unwrap().is_none() {
                thread::sleep(Duration::from_millis(10));
            }
            thread::sleep(after);
            // The test may be over.
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

    /// `gpumem reap --pid` of this process with `--yes --json`.
    fn reap(&self, holder: &Holder, more: &[&str]) -> Output {
        let pid = holder.pid.to_string();
        self.run(&[&["reap", "--yes", "--json", "--pid", &pid], more].concat())
    }

    pub fn ledger(&self) -> PathBuf {
        self.machine.path("state/reap.jsonl")
    }

    /// The ledger's lines; none where there is no ledger.
    pub fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.ledger()).unwrap_or_default();
        let lines = text.lines();
        // The last one may be in the making.
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub fn events(&self) -> Vec<String> {
        let lines = self.lines();
        lines.iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect()
    }

    /// Starts a reaper that waits for a process which ignores it.
    fn waiting(&self, holder: &Holder) -> Child {
        let pid = holder.pid.to_string();
        self.waiting_by(&["reap", "--yes", "--json", "--grace", "60s", "--pid", &pid])
    }

    /// The same, of whoever these arguments find.
    fn waiting_by(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let reaper = command.spawn().unwrap();
        support::wait_until("something was sent", || self.events().contains(&"done".into()));
        reaper
    }
}

/// A process that holds a GPU; killed at the end.
pub struct Holder {
    pub pid: u32,
    child: Arc<Mutex<Child>>,
}

impl Holder {
    /// Starts a program that says `ready`.
    fn start(command: &mut Command) -> Self {
        let (child, line) = support::hear(command);
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

/// How the only target of a document ended.
pub fn outcome(output: &Output) -> Value {
    let document = output.json();
    let targets = document["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 1, "{output:?}");
    targets[0]["outcome"].clone()
}
