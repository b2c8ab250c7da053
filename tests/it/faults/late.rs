//! A GPU that answers late holds up no other: what is found on the others is found all the same.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use mock_nvml::scene::{Fault, Gpu, Scene};

use crate::machine::{Machine, Running, one_gpu};
use crate::support::wait_until;

const QUICK: &str = "[rules.idle]\nduration = \"3s\"\n";

#[test]
fn what_is_found_on_a_gpu_stays_while_another_answers_in_three_seconds() {
    let holder = Running::start(Command::new("sleep").arg("62000"));
    let scene = one_gpu(&[holder.pid()]).gpu(Gpu::default());
    for function in ["nvmlDeviceGetTemperature", "nvmlDeviceGetComputeRunningProcesses_v3"] {
        let late = scene.clone().fault(Fault::delay(function, 3000).on(1));
        let machine = Machine::new(&late);
        machine.configure(QUICK);
        let arguments = ["check", "--json", "--interval", "500ms", "--window", "8s"];
        let checked = machine.run(&arguments).json();
        let findings = checked["findings"].as_array().unwrap();
        let is_it = |finding: &&serde_json::Value| {
            finding["process"]["pid"] == holder.pid() && finding["kind"] == "idle"
        };
        assert!(findings.iter().any(|it| is_it(&it)), "{function}: {checked}");
    }
}

#[test]
fn one_gpu_that_is_late_is_stale_alone_until_it_answers_again() {
    let scene = (0..8).fold(Scene::new(), |scene, _| scene.gpu(Gpu::default()));
    let machine = Machine::new(&scene);
    let mut command =
        machine.command(&["record", "--interval", "100ms", "--nvml-timeout", "800ms"]);
    let recording = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut recording = Running(recording);
    let mut lines = BufReader::new(recording.0.stdout.take().unwrap()).lines();
    let mut next = move || -> Vec<bool> {
        let line = lines.next().unwrap().unwrap();
        let snapshot: serde_json::Value = serde_json::from_str(&line).unwrap();
        let gpus = snapshot["gpus"].as_array().unwrap();
        gpus.iter().map(|gpu| gpu.get("stale_seconds").is_some()).collect()
    };
    wait_until("all answer", || !next().contains(&true));
    let late = Fault::delay("nvmlDeviceGetTemperature", 3000).on(0);
    machine.play(&scene.clone().fault(late));
    wait_until("it alone is late", || {
        let stale = next();
        assert!(!stale[1..].contains(&true), "{stale:?}");
        stale[0]
    });
    machine.play(&scene);
    wait_until("it answers again", || !next().contains(&true));
}
