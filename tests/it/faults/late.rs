//! A GPU that answers late delays only its own data.

use std::process::Command;
use std::thread;

use mock_nvml::scene::{Fault, Gpu, Scene};

use crate::machine::{Machine, Running, Snapshot, one_gpu};

const QUICK: &str = "[rules.idle]\nduration = \"3s\"\n";

#[test]
fn a_slow_gpu_does_not_hide_findings_on_others() {
    let holder = Running::start(Command::new("sleep").arg("62000"));
    let scene = one_gpu(&[holder.pid()]).gpu(Gpu::default());
    let assert_found_despite = |function: &str| {
        let late = scene.clone().fault(Fault::delay(function, 3000).on(1));
        let machine = Machine::new(&late);
        machine.configure(QUICK);
        let arguments = ["check", "--json", "--interval", "500ms", "--window", "8s"];
        let checked = machine.run(&arguments).json();
        let findings = checked["findings"].as_array().unwrap();
        let is_expected = |finding: &&serde_json::Value| {
            finding["process"]["pid"] == holder.pid() && finding["kind"] == "idle"
        };
        assert!(findings.iter().any(|finding| is_expected(&finding)), "{function}: {checked}");
    };
    thread::scope(|scope| {
        scope.spawn(|| assert_found_despite("nvmlDeviceGetTemperature"));
        scope.spawn(|| assert_found_despite("nvmlDeviceGetComputeRunningProcesses_v3"));
    });
}

#[test]
fn only_a_slow_gpu_is_stale_until_it_answers() {
    let scene = (0..8).fold(Scene::new(), |scene, _| scene.gpu(Gpu::default()));
    let machine = Machine::new(&scene);
    let mut recording = machine.record(&["--interval", "100ms", "--nvml-timeout", "2s"]);
    // Returns the age of the first GPU's values. Asserts that the other GPUs' values are not stale.
    let age = |snapshot: &Snapshot| {
        let age_of = |index| snapshot.gpu(index)["stale_seconds"].as_f64();
        assert!((1..8).all(|index| age_of(index).is_none()), "{snapshot:?}");
        age_of(0)
    };
    recording
        .until(|snapshot| (0..8).all(|index| snapshot.gpu(index).get("stale_seconds").is_none()));
    machine.play(&scene.clone().fault(Fault::delay("nvmlDeviceGetTemperature", 5000).on(0)));
    let mut last = age(&recording.until(|snapshot| age(snapshot).is_some()));
    // gpumem uses the late answer: the age grows at first, and then drops.
    recording.until(|snapshot| {
        let before = std::mem::replace(&mut last, age(snapshot));
        last < before
    });
    machine.play(&scene);
    recording.until(|snapshot| age(snapshot).is_none());
}
