//! `gpumem explain` through the binary: whole pages, exit codes, and a machine that is looked at.

use std::path::Path;

use crate::machine::{Machine, Running, one_gpu};
use crate::support::{command, compare_or_bless, finish, run};

/// A page of a recording, 80 columns wide.
fn page(arguments: &[&str]) -> String {
    let mut command = command(&[&["explain"], arguments].concat());
    let output = finish(command.env("COLUMNS", "80"));
    assert_eq!((output.code, &*output.stderr), (0, ""), "{output:?}");
    output.stdout
}

fn corpus(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus");
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn pages_of_recordings_are_as_they_are_committed() {
    let hidden = corpus("unattributed_hidden_holder-100.jsonl");
    let dead = corpus("dead_pid_missing-100.jsonl");
    let stopped = corpus("stopped_trainer-100.jsonl");
    let pages: [(&str, &[&str]); 9] = [
        ("notebook", &["--demo", "398120"]),
        ("leak", &["--demo", "leak"]),
        ("orphan", &["--demo", "402519"]),
        ("server", &["--demo", "207344"]),
        ("gpu", &["--demo", "gpu:3"]),
        ("hidden-holder", &["--replay", &hidden, "2656442"]),
        ("hidden-gpu", &["--replay", &hidden, "unattributed"]),
        ("dead", &["--replay", &dead, "3456528"]),
        ("stopped", &["--replay", &stopped, "stopped"]),
    ];
    for (name, arguments) in pages {
        compare_or_bless(&format!("tests/data/explain/{name}-80.txt"), &page(arguments));
    }
    for name in ["pytorch", "tensorflow"] {
        let file = format!("tests/data/explain/framework-{name}-80.txt");
        compare_or_bless(&file, &page(&["--framework", name]));
    }
}

#[test]
fn without_a_driver_it_is_blind_and_a_framework_needs_none() {
    let nowhere = ["--nvml-library", "/nonexistent/libnvidia-ml.so.1"];
    let blind = run(&[&["explain", "7"], &nowhere[..]].concat());
    assert_eq!((blind.code, &*blind.stdout), (3, ""), "{blind:?}");
    let list = run(&[&["explain", "--framework"], &nowhere[..]].concat());
    assert_eq!((list.code, &*list.stderr), (0, ""), "{list:?}");
    assert!(list.stdout.contains("pytorch"), "{list:?}");
    let one = run(&[&["explain", "--framework", "Torch", "--json"], &nowhere[..]].concat());
    assert_eq!(one.json()["title"], "PyTorch (pytorch)");
}

#[test]
fn a_living_process_is_explained_and_its_end_noticed() {
    let child = Running::sleep();
    let pid = child.pid();
    let machine = Machine::new(&one_gpu(&[pid]));
    let typed = pid.to_string();
    let output = machine.run(&["explain", &typed, "--window", "200ms", "--no-store"]).exits(0);
    for part in [
        &*format!("sleep 600 (pid {pid})"),
        "2.0 GiB of 80.0 GiB",
        "gpumem record --store",
        &*format!("`gpumem kill {pid}`"),
    ] {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }
    // Nothing is waited for: what the first sample tells is the page.
    let page = machine.run(&["explain", &typed, "--json", "--no-store"]);
    assert_eq!(page.json()["window_seconds"], 0.0, "{page:?}");
    let gpu = machine.run(&["explain", "gpu:0", "--no-store"]).exits(0);
    assert!(gpu.stdout.contains(&typed), "{gpu:?}");
    machine.play(&one_gpu(&[]));
    let gone = machine.run(&["explain", &typed, "--window", "200ms", "--no-store"]).exits(2);
    assert!(gone.stderr.contains("NVML lists no process on any GPU"), "{gone:?}");
}

#[test]
fn a_gpu_that_cannot_be_read_is_blindness() {
    let lost = one_gpu(&[]).fault(mock_nvml::scene::Fault::error("*", 15));
    let machine = Machine::new(&lost);
    for typed in ["gpu:0", "4242"] {
        machine.run(&["explain", typed, "--window", "100ms", "--no-store"]).exits(3);
    }
}
