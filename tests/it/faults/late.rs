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

/// The names of a process's threads that read GPUs.
fn readers(pid: u32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(thread.unwrap().path().join("comm"));
        // One may have ended meanwhile.
        name.unwrap_or_default().trim_end().to_owned()
    };
    let mut names: Vec<String> = threads.map(name).collect();
    names.retain(|name| name.starts_with("nvml"));
    names.sort();
    names
}

#[test]
fn healthy_gpus_share_a_thread_and_one_that_is_late_has_its_own() {
    let scene = (0..8).fold(Scene::new(), |scene, _| scene.gpu(Gpu::default()));
    let machine = Machine::new(&scene);
    let mut command =
        machine.command(&["record", "--interval", "100ms", "--nvml-timeout", "800ms"]);
    let recording = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut recording = Running(recording);
    let pid = recording.0.id();
    let mut lines = BufReader::new(recording.0.stdout.take().unwrap()).lines();
    let mut next = move || -> Vec<bool> {
        let line = lines.next().unwrap().unwrap();
        let snapshot: serde_json::Value = serde_json::from_str(&line).unwrap();
        let gpus = snapshot["gpus"].as_array().unwrap();
        let is_stale = |gpu: &serde_json::Value| gpu.get("stale_seconds").is_some();
        gpus.iter().map(is_stale).collect()
    };
    let mut until = |what: &str, is_so: &dyn Fn(&[bool], &[String]) -> bool| {
        wait_until(what, || is_so(&next(), &readers(pid)));
    };
    let only = |stale: &[bool], which: Option<usize>| {
        let mut gpus = stale.iter().enumerate();
        gpus.all(|(gpu, &is_stale)| is_stale == (Some(gpu) == which))
    };
    let shared = ["nvml".to_owned()];
    until("one thread reads all", &|stale, threads| only(stale, None) && threads == shared);

    // The first of them takes its time: those that come after it are read in the same sample.
    let late = Fault::delay("nvmlDeviceGetTemperature", 3000).on(0);
    machine.play(&scene.clone().fault(late));
    until("it alone is late", &|stale, threads| {
        assert!(!stale[1..].contains(&true), "{stale:?}");
        only(stale, Some(0)) && threads.len() == 2
    });
    until("its own thread reads it", &|stale, threads| {
        assert!(!stale[1..].contains(&true), "{stale:?}");
        threads == ["nvml".to_owned(), "nvml-gpu0".to_owned()]
    });
    machine.play(&scene);
    until("it answers and is one of them again", &|stale, threads| {
        only(stale, None) && threads == shared
    });
}
