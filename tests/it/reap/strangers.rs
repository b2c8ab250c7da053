//! The binary, and somebody else's training that the same ended login has left.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::host::{Roots, read_guarded};
use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::process::Signal;
use serde_json::json;

use super::Stage;
use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs::{lives, send};
use crate::support;

/// Two jobs, a group each, in a session whose leader is gone: one that ignores SIGTERM and is idle, and a training
/// that starts loaders all the while and tells if one of them ends otherwise than it should.
const LOGIN: &str = "exec 3</dev/nvidia0
exec 2>/dev/null
set -m
sh -c 'trap \"\" TERM; exec sleep 630' & idle=$!
sh -c 'while :; do for loader in 1 2 3 4; do
    sh -c \"sleep 0.3; exit 7\"; code=$?; [ $code = 7 ] || echo $code >> \"$0\"
done; done' \"$1\" > /dev/null & echo $idle $!";

/// What such a login has left; ended with it.
struct Left {
    idle: u32,
    training: u32,
    witness: PathBuf,
    login: Child,
}

impl Left {
    fn new(stage: &Stage) -> Self {
        let witness = stage.machine.path("witness");
        let mut command = stage.namespace.command("setsid");
        let (mut login, line) =
            support::hear(command.args(["bash", "-c", LOGIN, "login"]).arg(&witness));
        let (idle, training) = line.split_once(' ').unwrap();
        login.wait().unwrap();
        Self { idle: idle.parse().unwrap(), training: training.parse().unwrap(), witness, login }
    }

    fn scene(&self, of: &[u32]) -> Scene {
        let mut gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
        for &pid in of {
            let percent = if pid == self.training { 80 } else { 0 };
            gpu = gpu.process(Process::compute(pid, 2 * GIB).sm(percent));
        }
        Scene::new().gpu(gpu)
    }

    /// Ends the idle one by these arguments, and sees that the training has not noticed.
    fn is_alone_ended(&self, stage: &Stage, arguments: &[&str]) {
        stage.machine.play(&self.scene(&[self.idle, self.training]));
        let path = stage.machine.path("scene.json");
        let (idle, after) = (self.idle, self.scene(&[self.training]));
        let release = thread::spawn(move || {
            let begun = Instant::now();
            while lives(idle) && begun.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(10));
            }
            // The test may be over.
            let _ = after.write(&path);
        });
        let output = stage.run(arguments);
        release.join().unwrap();
        assert_eq!(output.code, 0, "{output:?}");
        assert!(!lives(self.idle), "{output:?}");
        assert!(lives(self.training), "{output:?}");
        let logged = fs::read_to_string(&self.witness).unwrap_or_default();
        assert_eq!(logged, "", "{output:?}");
        for line in stage.lines() {
            for process in line["processes"].as_array().into_iter().flatten() {
                assert_ne!(process["pid"], json!(self.training), "{line}");
            }
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        for pid in [self.training, self.idle] {
            if lives(pid) {
                send(pid, Signal::KILL);
            }
        }
        let _ = self.login.wait();
    }
}

#[test]
fn reap_leaves_the_training_of_the_same_login_alone() {
    let (Some(stage), Some(_)) = (Stage::new(), support::find("bash", "bash")) else {
        return;
    };
    stage.machine.configure(
        "[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n[rules.orphan]\nenabled = false\n",
    );
    let left = Left::new(&stage);
    let both = [left.idle, left.training];
    stage.machine.play(&left.scene(&both));
    let pid = left.idle.to_string();
    // Elsewhere rules end nobody, whatever they find.
    let is_host = stage.machine.snapshot(0).0["host"]["pid_namespace"] == "host";
    let by_rule = ["reap", "--yes", "--window", "4s", "--grace", "1s"];
    let named = ["reap", "--yes", "--grace", "1s", "--pid", &pid];
    let arguments: &[&str] = if is_host { &by_rule } else { &named };
    left.is_alone_ended(&stage, arguments);
}

/// What setproctitle leaves of the environment that a program was given.
const TITLED: &str = "import ctypes, time
fields = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
begin, end = int(fields[47]), int(fields[48])
ctypes.memset(begin, 0, end - begin)
print('titled', flush=True)
time.sleep(600)";

#[test]
fn a_keep_that_was_written_over_is_unknown_and_not_absent() {
    let python = or_skip!(support::find("python3", "python3"));
    let mut command = Command::new(python);
    let (program, line) = support::hear(command.args(["-c", TITLED]).env("GPUMEM_KEEP", "yes"));
    assert_eq!(line, "titled");
    let program = Running(program);
    let pid = program.pid();
    let facts = read_guarded(&Roots::default(), pid).unwrap().unwrap();
    assert_eq!(facts.environment, None);
    let machine = Machine::new(&one_gpu(&[pid]));
    assert!(machine.snapshot(0).process(pid).get("environment").is_none());
    // Whoever names it is told.
    let planned = machine.run(&["reap", "--dry-run", "--pid", &pid.to_string()]);
    assert!(planned.stderr.contains("whether its owner keeps it is not known"), "{planned:?}");
}
