//! Processes that hold a GPU's device file and that NVML does not list. The tests use plain files named like devices,
//! in the /dev of a mount namespace.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::json;

use crate::machine::{GIB, LineProcess, Machine, Recording, Running, Snapshot};
use crate::procs;
use crate::support::{self, clean_environment, finish_with_input, gpumem};

/// Rules with short durations.
const QUICK: &str = "[rules.orphan]\nduration = \"2s\"\n[rules.dead]\nduration = \"2s\"\n";

/// A mount namespace with a private /dev. `keeper` is killed on drop.
pub struct Namespace {
    keeper: Running,
    has_user: bool,
}

impl Namespace {
    /// Creates a namespace. If that is not permitted, prints the reason and returns `None`.
    pub fn new() -> Option<Self> {
        support::find("unshare", "util-linux")?;
        support::find("nsenter", "util-linux")?;
        let script = "mount -t tmpfs none /dev && cd /dev && : > null && : > nvidia0 && : > nvidia1 \
            && : > nvidiactl && : > nvidia-uvm && echo ready && exec sleep 600";
        let has_user = !rustix::process::geteuid().is_root();
        let mut command = Command::new("unshare");
        command.args(has_user.then_some("-r"));
        let (keeper, line) = support::start_and_read_line(command.args(["-m", "sh", "-c", script]));
        let namespace = Self { keeper: Running(keeper), has_user };
        if line != "ready" {
            support::skip("a mount namespace", "not permitted here; run as root");
            return None;
        }
        Some(namespace)
    }

    /// Returns a command in this namespace. nsenter does not fork, so the child's pid is the pid of the program.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.keeper.pid().to_string(), "--mount"]);
        if self.has_user {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg(program);
        command
    }

    /// Returns a command that runs gpumem in this namespace with the machine's driver.
    pub fn gpumem(&self, machine: &Machine, arguments: &[&str]) -> Command {
        let mut command = self.command(gpumem());
        command.args(arguments);
        command.arg("--nvml-library").arg(machine.library());
        clean_environment(&mut command);
        machine.environment(&mut command);
        command
    }

    fn snapshot(&self, machine: &Machine) -> Snapshot {
        let output = support::finish(&mut self.gpumem(machine, &["ps", "--json"])).exits(0);
        Snapshot(output.json())
    }

    /// Starts a shell that leads its own process group.
    fn shell(&self, script: &str) -> LineProcess {
        LineProcess::start(self.command("sh").args(["-c", script]).process_group(0))
    }
}

/// A process that is not a child of the test. The process is killed on drop.
struct Stranger(u32);

impl Drop for Stranger {
    fn drop(&mut self) {
        procs::send(self.0, rustix::process::Signal::KILL);
    }
}

fn record(namespace: &Namespace, machine: &Machine) -> Recording {
    let arguments = ["record", "--interval", "200ms", "--duration", "600s"];
    Recording::start(&mut namespace.gpumem(machine, &arguments))
}

fn contains(snapshot: &Snapshot, pid: u32) -> bool {
    let mut processes = snapshot.0["processes"].as_array().unwrap().iter();
    processes.any(|process| process["pid"] == pid)
}

#[test]
fn a_worker_that_outlived_its_trainer_is_an_orphan() {
    let namespace = or_skip!(Namespace::new());
    // The trainer opens the device, and a DataLoader worker inherits the open file.
    let script = "exec 3< /dev/nvidia0 4< /dev/nvidia-uvm; sleep 600 < /dev/null > /dev/null & echo $!; read wait";
    let mut trainer = namespace.shell(script);
    let worker = Stranger(trainer.line().parse().unwrap());
    let trainer_pid = trainer.running.pid();
    let bystander = Running::sleep();
    let gpu = Gpu::default().process(Process::compute(trainer_pid, 11 * GIB));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    machine.configure(QUICK);

    let mut recording = record(&namespace, &machine);
    let first = recording.line();
    let snapshot = Snapshot(serde_json::from_str(&first).unwrap());
    assert!(contains(&snapshot, worker.0), "before the trainer exits: {snapshot:?}");
    trainer.running.0.kill().unwrap();
    trainer.running.0.wait().unwrap();

    let snapshot = namespace.snapshot(&machine);
    assert_eq!(snapshot.pids(0), [u64::from(trainer_pid)]);
    let process = snapshot.process(worker.0);
    assert_eq!(process["gpu_files"], json!(["/dev/nvidia-uvm", "/dev/nvidia0"]));
    assert_eq!(process["command"], json!(["sleep", "600"]));
    assert_eq!(process["process_group"], trainer_pid);
    assert_eq!(process["group_leader_alive"], false);
    assert!(process.get("unresolved").is_none(), "{process}");
    assert!(snapshot.process(trainer_pid).get("state").is_none());
    assert!(!contains(&snapshot, bystander.pid()) && !contains(&snapshot, namespace.keeper.pid()));
    let unread = &snapshot.0["host"]["unread_processes"];
    // Even root cannot read a process that has more capabilities than the test.
    assert!(unread.is_u64(), "{unread}");

    // A recording of the orphan must produce the finding. The recorded pids are valid even if the test runs in a
    // container, so the recording states that it was made on the host.
    let mut lines = vec![first];
    let mut since = None;
    loop {
        let line = recording.line();
        let snapshot = Snapshot(serde_json::from_str(&line).unwrap());
        lines.push(line);
        if contains(&snapshot, trainer_pid) && snapshot.process(trainer_pid).get("state").is_none()
        {
            let lasted = *since.get_or_insert(lines.len());
            if lines.len() >= lasted + 20 {
                break;
            }
        }
    }
    drop(recording);
    let input = lines.join("\n").replace("\"container\"", "\"host\"") + "\n";
    let mut check = machine.command(&["check", "--json", "--replay", "-"]);
    let verdict = finish_with_input(&mut check, input.as_bytes()).exits(1);
    let verdict = verdict.json();
    let findings = verdict["findings"].as_array().unwrap();
    let orphan = findings.iter().find(|finding| finding["kind"] == "orphan");
    let orphan = orphan.unwrap_or_else(|| panic!("{verdict}"));
    assert_eq!(orphan["process"]["pid"], worker.0);
    assert_eq!(orphan["evidence"]["listed"], false);
    assert_eq!(orphan["evidence"]["gpu_files"], json!(["/dev/nvidia-uvm", "/dev/nvidia0"]));
    if snapshot.0["host"]["pid_namespace"] == "host" {
        let dead = findings.iter().find(|finding| finding["kind"] == "dead");
        assert_eq!(dead.unwrap()["process"]["pid"], trainer_pid, "{verdict}");
    }
    assert!(findings.len() <= 2, "unexpected findings: {verdict}");
}

#[test]
fn unattributed_memory_triggers_a_scan_of_every_process() {
    let namespace = or_skip!(Namespace::new());
    let script = "echo begun; read go; exec 3< /dev/nvidiactl; echo opened; read wait";
    let mut holder = namespace.shell(script);
    assert_eq!(holder.line(), "begun");
    let pid = holder.running.pid();
    let machine = Machine::new(&Scene::new().gpu(Gpu::default()));
    let mut recording = record(&namespace, &machine);
    let snapshot = recording.next();
    assert!(!contains(&snapshot, pid), "before it opens a device: {snapshot:?}");

    assert_eq!(holder.ask("go"), "opened");
    machine.play(&Scene::new().gpu(Gpu::default().unattributed(3 * GIB)));
    let snapshot = loop {
        let snapshot = recording.next();
        if snapshot.gpu(0)["memory"]["used_bytes"] == 3 * GIB {
            break snapshot;
        }
    };
    // gpumem finds the process in this sample, and does not wait for the next regular scan.
    assert_eq!(snapshot.process(pid)["gpu_files"], json!(["/dev/nvidiactl"]));
    assert_eq!(snapshot.pids(0), [] as [u64; 0]);
}
