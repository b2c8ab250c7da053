//! A machine for tests: the mock driver plays a scene, and gpumem uses the mock driver.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use mock_nvml::Counts;
use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::Value;

use crate::support::{self, Output};

pub const GIB: u64 = 1 << 30;

pub struct Machine {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Machine {
    /// Creates a machine. Its library lacks the functions that the scene's driver lacks.
    pub fn new(scene: &Scene) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let missing = &scene.driver.missing;
        let library = match missing.is_empty() {
            true => mock_nvml::library(),
            false => mock_nvml::library_without(missing, folder.path()).unwrap(),
        };
        let machine = Self { folder, library };
        machine.play(scene);
        machine
    }

    /// Replaces the scene. Running programs notice the change.
    pub fn play(&self, scene: &Scene) {
        scene.write(&self.path("scene.json")).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command that runs gpumem on this machine.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = support::command(arguments);
        command.arg("--nvml-library").arg(&self.library);
        self.environment(&mut command);
        command
    }

    /// Makes a program use this machine's driver and configuration.
    pub fn environment(&self, command: &mut Command) {
        command.env("GPUMEM_MOCK_SCENE", self.path("scene.json"));
        command.env("GPUMEM_MOCK_COUNTS", self.path("counts"));
        command.env("XDG_CONFIG_HOME", self.folder.path());
        // Ignore claims on GPUs of the real machine.
        command.env("GPUMEM_CLAIM_DIR", self.path("pci"));
    }

    pub fn configure(&self, toml: &str) {
        std::fs::create_dir_all(self.path("gpumem")).unwrap();
        std::fs::write(self.path("gpumem/config.toml"), toml).unwrap();
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        support::finish(&mut self.command(arguments))
    }

    /// Runs gpumem with the arguments in `line`.
    pub fn run_line(&self, line: &str) -> Output {
        self.run(&line.split(' ').collect::<Vec<_>>())
    }

    /// Runs gpumem with a state directory, so that commands can write the audit log.
    pub fn act(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        support::finish(command.env("STATE_DIRECTORY", self.path("state")))
    }

    pub fn record(&self, more: &[&str]) -> Recording {
        Recording::start(&mut self.command(&[&["record"], more].concat()))
    }

    /// Replays a recording with this machine's configuration. Returns standard output.
    pub fn replay(&self, arguments: &[&str], file: &str) -> String {
        let mut command = support::command(arguments);
        self.environment(&mut command);
        support::finish(command.args(["--replay", file])).stdout
    }

    /// Runs `gpumem ps --json`, which must exit with `code`.
    pub fn snapshot(&self, code: i32) -> Snapshot {
        let output = self.run(&["ps", "--json"]);
        assert_eq!(output.code, code, "{output:?}");
        Snapshot(output.json())
    }

    /// Returns the number of calls of each NVML function, by GPU.
    pub fn counts(&self) -> BTreeMap<(String, Option<u32>), u64> {
        Counts::read(&self.path("counts")).unwrap()
    }

    pub fn library(&self) -> &Path {
        &self.library
    }
}

#[derive(Debug)]
pub struct Snapshot(pub Value);

impl Snapshot {
    pub fn gpu(&self, index: usize) -> &Value {
        &self.0["gpus"][index]
    }

    pub fn pids(&self, index: usize) -> Vec<u64> {
        let rows = self.gpu(index)["processes"].as_array();
        rows.unwrap_or_else(|| panic!("{self:?}"))
            .iter()
            .map(|row| row["pid"].as_u64().unwrap())
            .collect()
    }

    pub fn row(&self, index: usize, pid: u32) -> &Value {
        let rows = self.gpu(index)["processes"].as_array();
        let found = rows.into_iter().flatten().find(|row| row["pid"] == pid);
        found.unwrap_or_else(|| panic!("{pid} is not on GPU {index}: {self:?}"))
    }

    /// Returns the entry of a process in `processes`, which contains facts from Linux.
    pub fn process(&self, pid: u32) -> &Value {
        let found = self.0["processes"].as_array().unwrap().iter().find(|row| row["pid"] == pid);
        found.unwrap_or_else(|| panic!("{pid} is not in {self:?}"))
    }

    /// Returns the errors as lines of GPU, call and message.
    pub fn errors(&self) -> Vec<String> {
        let errors = self.0["errors"].as_array().unwrap().iter();
        errors.map(|e| format!("{} {} {}", e["gpu"], e["call"], e["error"])).collect()
    }
}

/// `gpumem record` to standard output. gpumem is killed on drop.
pub struct Recording {
    pub running: Running,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Recording {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { running: Running(child), lines }
    }

    pub fn line(&mut self) -> String {
        self.lines.next().expect("the recording has another line").unwrap()
    }

    pub fn next(&mut self) -> Snapshot {
        Snapshot(serde_json::from_str(&self.line()).unwrap())
    }

    pub fn rest(&mut self) -> impl Iterator<Item = Snapshot> {
        self.lines.by_ref().map(|line| Snapshot(serde_json::from_str(&line.unwrap()).unwrap()))
    }

    /// Skips snapshots until the condition is met.
    pub fn until(&mut self, mut is_wanted: impl FnMut(&Snapshot) -> bool) -> Snapshot {
        let start = Instant::now();
        loop {
            let snapshot = self.next();
            if is_wanted(&snapshot) {
                return snapshot;
            }
            assert!(
                start.elapsed() < support::PATIENCE,
                "no snapshot met the condition; last: {snapshot:?}"
            );
        }
    }
}

/// A child process, which is killed on drop.
pub struct Running(pub Child);

impl Running {
    /// Starts a program without input and output. As in a shell, the program gets its own process group, so that
    /// gpumem does not mistake the program for part of the test's job.
    pub fn start(command: &mut Command) -> Self {
        // setsid forks if it is a process group leader.
        if command.get_program() != "setsid" {
            command.process_group(0);
        }
        let null = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(null.spawn().unwrap())
    }

    /// Starts `sleep` for longer than any test runs.
    pub fn sleep() -> Self {
        Self::start(Command::new("sleep").arg("600"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child process that reads and writes lines, and is killed on drop.
pub struct LineProcess {
    pub running: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl LineProcess {
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { running: Running(child), input, output }
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Writes a last line. Returns the exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.say("end");
        self.running.0.wait().unwrap().code()
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }
}

/// Returns a scene with one GPU, on which each process holds 2 GiB.
pub fn one_gpu(pids: &[u32]) -> Scene {
    let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    let gpu = pids.iter().fold(gpu, |gpu, &pid| gpu.process(Process::compute(pid, 2 * GIB)));
    Scene::new().gpu(gpu)
}
