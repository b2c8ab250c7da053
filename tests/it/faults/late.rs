//! A GPU that answers late holds up no other: what is found on the others is found all the same.

use std::process::Command;
use std::thread;

use mock_nvml::scene::{Fault, Gpu, Scene};

use crate::machine::{Machine, Running, Snapshot, one_gpu};

const QUICK: &str = "[rules.idle]\nduration = \"3s\"\n";

#[test]
fn what_is_found_on_a_gpu_stays_while_another_answers_in_three_seconds() {
    let holder = Running::start(Command::new("sleep").arg("62000"));
    let scene = one_gpu(&[holder.pid()]).gpu(Gpu::default());
    let found_while = |function: &str| {
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
    };
    thread::scope(|scope| {
        scope.spawn(|| found_while("nvmlDeviceGetTemperature"));
        scope.spawn(|| found_while("nvmlDeviceGetComputeRunningProcesses_v3"));
    });
}

#[test]
fn one_gpu_that_is_late_is_stale_alone_and_taken_when_it_answers() {
    let scene = (0..8).fold(Scene::new(), |scene, _| scene.gpu(Gpu::default()));
    let machine = Machine::new(&scene);
    let mut recording = machine.record(&["--interval", "100ms", "--nvml-timeout", "2s"]);
    // How old the first GPU's figures are; the others' are always new.
    let age = |snapshot: &Snapshot| {
        let of = |index| snapshot.gpu(index)["stale_seconds"].as_f64();
        assert!((1..8).all(|index| of(index).is_none()), "{snapshot:?}");
        of(0)
    };
    recording.until(|snapshot| (0..8).all(|it| snapshot.gpu(it).get("stale_seconds").is_none()));
    machine.play(&scene.clone().fault(Fault::delay("nvmlDeviceGetTemperature", 5000).on(0)));
    let mut last = age(&recording.until(|snapshot| age(snapshot).is_some()));
    // What it answers late is taken all the same: its figures grow older, and then are newer again.
    recording.until(|snapshot| {
        let before = std::mem::replace(&mut last, age(snapshot));
        last < before
    });
    machine.play(&scene);
    recording.until(|snapshot| age(snapshot).is_none());
}
