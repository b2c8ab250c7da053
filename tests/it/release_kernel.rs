//! Real kernels that free memory on request over the kernel protocol, and hostile kernels. The modules in `release`
//! imitate libraries, and write their memory use to the mock driver's scene.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpumem::api::host::{Roots, read_start_ticks};
use gpumem::api::reclaim::{
    NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseReport, ReleaseWay,
    perform_release, probe_release,
};
use mock_nvml::scene::Scene;
use serde_json::{Value, json};

use crate::machine::{LineProcess, Machine, Running};
use crate::notebook::{JupyterHome, assert_no_secret};
use crate::support;

mod command;
mod hostile;
mod memory;
mod notebooks;

const MIB: u64 = 1 << 20;
/// PCI bus id of the first GPU in `release/fake_gpu.py`, in NVML's format.
const BUS_ID: &str = "00000000:17:00.0";

/// Returns the directory of the modules that imitate PyTorch and other libraries.
fn modules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/release")
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/release_kernel").join(name)
}

fn python() -> Option<PathBuf> {
    support::python_with(&["ipykernel", "jupyter_client", "zmq"])
}

/// Makes a Python program import the modules, which write to this machine's scene.
fn use_modules<'a>(command: &'a mut Command, machine: &Machine) -> &'a mut Command {
    command
        .env("PYTHONPATH", modules())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GPUMEM_FAKE_SCENE", machine.path("scene.json"))
}

fn options() -> ReleaseOptions {
    ReleaseOptions { pci_bus_ids: vec![BUS_ID.into()], ..crate::release::options(30_000) }
}

fn way(pid: u32) -> ReleaseWay {
    ReleaseWay {
        pid,
        start_ticks: read_start_ticks("/proc".as_ref(), pid).unwrap().unwrap(),
        by: ReleaseBy::Kernel { kernel_id: None, notebook: None, last_activity: None },
    }
}

fn perform_with(pid: u32, options: &ReleaseOptions) -> ReleaseAnswer {
    let answer = perform_release(&Roots::default(), &way(pid), options);
    assert_no_secret(&[&format!("{answer:?}")]);
    answer
}

fn probe(pid: u32) -> ReleaseAnswer {
    let answer = probe_release(&Roots::default(), &way(pid), &options());
    assert_no_secret(&[&format!("{answer:?}")]);
    answer
}

/// Repeats the request until the kernel has answered, because an idle kernel on a busy machine can look busy.
fn release(pid: u32, options: &ReleaseOptions) -> ReleaseReport {
    let mut report = None;
    support::wait_until("the kernel has answered", || {
        match perform_with(pid, options) {
            Ok(done) => report = Some(done),
            Err(NotReleased::Busy(_)) => {}
            other => panic!("{other:?}"),
        }
        report.is_some()
    });
    report.unwrap()
}

/// A kernel without a server, like the kernels that people and editors start.
struct RawKernel {
    machine: Machine,
    home: JupyterHome,
    running: Running,
    file: PathBuf,
    python: PathBuf,
}

impl RawKernel {
    fn start(name: &str) -> Option<Self> {
        let python = python()?;
        let (home, machine) = (JupyterHome::new(), Machine::new(&Scene::new()));
        let file = home.path(name);
        let mut command = home.command(&python);
        command.args(["-m", "ipykernel_launcher", "-f"]).arg(&file);
        let running = Running::start(use_modules(&mut command, &machine));
        support::wait_until("the kernel has written its file", || {
            fs::read(&file).is_ok_and(|text| serde_json::from_slice::<Value>(&text).is_ok())
        });
        Some(Self { machine, home, running, file, python })
    }

    fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn client(&self) -> Client {
        Client::connect(&self.home, &self.python, &self.file)
    }

    fn used_bytes(&self) -> Option<u64> {
        used_bytes(&self.machine, self.pid())
    }
}

/// Returns the memory of a process on the first GPU, or `None` if NVML does not list the process.
fn used_bytes(machine: &Machine, pid: u32) -> Option<u64> {
    let snapshot = machine.snapshot(0);
    let rows = snapshot.gpu(0)["processes"].as_array().cloned();
    let rows = rows.unwrap_or_default();
    rows.iter().find(|row| row["pid"] == pid)?["used_bytes"].as_u64()
}

/// A client of a kernel, implemented in `client.py`.
struct Client(LineProcess);

impl Client {
    fn connect(home: &JupyterHome, python: &Path, file: &Path) -> Self {
        let mut command = home.command(python);
        let mut client = Self(LineProcess::start(command.arg(script("client.py")).arg(file)));
        assert_eq!(client.answer(), "ready");
        client
    }

    fn send(&mut self, request: &Value) {
        self.0.say(&request.to_string());
    }

    fn answer(&mut self) -> Value {
        let line = self.0.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.answer()
    }

    /// Executes a cell, which must succeed. Returns the output.
    fn run(&mut self, code: &str) -> String {
        let answer = self.ask(&json!({"run": code}));
        assert_eq!(answer["status"], "ok", "{answer}");
        answer["text"].as_str().unwrap().to_owned()
    }

    /// Returns the state that a release must not change.
    fn state(&mut self) -> Value {
        // The first request imports modules, which changes the state.
        self.ask(&json!({"state": true}));
        self.ask(&json!({"state": true}))
    }
}
