//! A machine for tests: the mock driver playing a scene, and gpumem running on it.

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

/// The mock driver and the scene that it plays.
pub struct Machine {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Machine {
    /// A machine that plays this scene.
    pub fn new(scene: &Scene) -> Self {
        Self::with_library(scene, mock_nvml::library())
    }

    /// A machine with another build of the mock driver.
    pub fn with_library(scene: &Scene, library: PathBuf) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap(), library };
        machine.play(scene);
        machine
    }

    /// Plays another scene from now on.
    pub fn play(&self, scene: &Scene) {
        scene.write(&self.path("scene.json")).unwrap();
    }

    /// A path in the machine's own folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// gpumem with these arguments on this machine.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = support::command(arguments);
        command.arg("--nvml-library").arg(&self.library);
        self.environment(&mut command);
        command
    }

    /// Points a program at this machine's driver and configuration.
    pub fn environment(&self, command: &mut Command) {
        command.env("GPUMEM_MOCK_SCENE", self.path("scene.json"));
        command.env("GPUMEM_MOCK_COUNTS", self.path("counts"));
        command.env("XDG_CONFIG_HOME", self.folder.path());
        // The real machine's claims on its GPUs do not apply.
        command.env("GPUMEM_CLAIM_DIR", self.path("pci"));
    }

    pub fn configure(&self, toml: &str) {
        std::fs::create_dir_all(self.path("gpumem")).unwrap();
        std::fs::write(self.path("gpumem/config.toml"), toml).unwrap();
    }

    /// Runs gpumem on this machine and waits for its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        support::finish(&mut self.command(arguments))
    }

    /// Like [`Self::run`], with the arguments as one line.
    pub fn run_line(&self, line: &str) -> Output {
        self.run(&line.split(' ').collect::<Vec<_>>())
    }

    /// Like [`Self::run`], with a state directory in the machine's folder.
    pub fn act(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        support::finish(command.env("STATE_DIRECTORY", self.path("state")))
    }

    /// `gpumem record` with these arguments.
    pub fn record(&self, more: &[&str]) -> Recording {
        Recording::start(&mut self.command(&[&["record"], more].concat()))
    }

    /// gpumem's output for a recording, with this machine's configuration.
    pub fn replay(&self, arguments: &[&str], file: &str) -> String {
        let mut command = support::command(arguments);
        self.environment(&mut command);
        support::finish(command.args(["--replay", file])).stdout
    }

    /// `gpumem ps --json`, which must exit with `code`.
    pub fn snapshot(&self, code: i32) -> Snapshot {
        let output = self.run(&["ps", "--json"]);
        assert_eq!(output.code, code, "{output:?}");
        Snapshot(output.json())
    }

    /// How often each NVML function was called on each GPU.
    pub fn counts(&self) -> BTreeMap<(String, Option<u32>), u64> {
        Counts::read(&self.path("counts")).unwrap()
    }

    pub fn library(&self) -> &Path {
        &self.library
    }
}

/// A snapshot as JSON.
#[derive(Debug)]
pub struct Snapshot(pub Value);

impl Snapshot {
    pub fn gpu(&self, index: usize) -> &Value {
        &self.0["gpus"][index]
    }

    /// The pids listed on a GPU.
    pub fn pids(&self, index: usize) -> Vec<u64> {
        let rows = self.gpu(index)["processes"].as_array();
        rows.unwrap_or_else(|| panic!("{self:?}"))
            .iter()
            .map(|row| row["pid"].as_u64().unwrap())
            .collect()
    }

    /// A process's row on a GPU.
    pub fn row(&self, index: usize, pid: u32) -> &Value {
        let rows = self.gpu(index)["processes"].as_array();
        let found = rows.into_iter().flatten().find(|row| row["pid"] == pid);
        found.unwrap_or_else(|| panic!("{pid} is not on GPU {index}: {self:?}"))
    }

    /// A process's facts from Linux.
    pub fn process(&self, pid: u32) -> &Value {
        let found = self.0["processes"].as_array().unwrap().iter().find(|row| row["pid"] == pid);
        found.unwrap_or_else(|| panic!("{pid} is not in {self:?}"))
    }

    /// The errors, each with its GPU and call in front.
    pub fn errors(&self) -> Vec<String> {
        let errors = self.0["errors"].as_array().unwrap().iter();
        errors.map(|e| format!("{} {} {}", e["gpu"], e["call"], e["error"])).collect()
    }
}

/// `gpumem record` to standard output; killed when dropped.
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

    /// The next snapshot's line.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("the recording has another line").unwrap()
    }

    pub fn next(&mut self) -> Snapshot {
        Snapshot(serde_json::from_str(&self.line()).unwrap())
    }

    /// All remaining snapshots.
    pub fn rest(&mut self) -> impl Iterator<Item = Snapshot> {
        self.lines.by_ref().map(|line| Snapshot(serde_json::from_str(&line.unwrap()).unwrap()))
    }

    /// Reads up to the first snapshot that meets the condition.
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

/// A real child process; killed when dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts a program without input or output in its own process group, as a shell does, so that it is not taken
    /// for a part of the test's job.
    pub fn start(command: &mut Command) -> Self {
        // setsid forks if it is a group leader.
        if command.get_program() != "setsid" {
            command.process_group(0);
        }
        let null = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(null.spawn().unwrap())
    }

    /// `sleep`, longer than a test runs.
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

/// A child process with line-based input and output; killed when dropped.
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

    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }
}

/// A scene of one GPU on which each of these processes holds 2 GiB.
pub fn one_gpu(pids: &[u32]) -> Scene {
    let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    let gpu = pids.iter().fold(gpu, |gpu, &pid| gpu.process(Process::compute(pid, 2 * GIB)));
    Scene::new().gpu(gpu)
}
