//! `gpumem explain` through the binary: whole pages, exit codes, and a machine that is looked at.

use std::path::Path;

use mock_nvml::scene::{Gpu, Process, Scene};

use crate::machine::{GIB, Machine, Running, one_gpu};
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

/// What `explain --oom` says of the demo: which of its lines is the last section's.
fn sufficient(arguments: &str) -> (i32, String) {
    let words: Vec<&str> =
        ["explain", "--oom", "--demo", "--json"].into_iter().chain(arguments.split(' ')).collect();
    let output = run(&words);
    if output.code != 0 {
        return (output.code, output.stderr);
    }
    let page = output.json();
    let sections = page["sections"].as_array().unwrap();
    let last = sections.iter().find(|it| it["heading"] == "What would have been enough").unwrap();
    (0, last["rows"].to_string())
}

#[test]
fn who_held_a_full_gpu_and_did_not_use_it_would_have_sufficed() {
    // GPU 1 has some 30 GiB free, and a notebook that has been idle holds 38.
    for (arguments, code, says) in [
        ("--gpu 1 --asked 60GiB", 0, "freeing notebook thesis/fine-tune.ipynb (398120) of ben"),
        ("--gpu 1 --asked 31GiB --at 13:36", 0, "which is not proved"),
        ("--gpu 1 --asked 31GiB", 0, "GPU 2 had"),
        ("--gpu 1 --asked 75GiB", 0, "after freeing all unused memory"),
        ("--gpu 1 --asked 1GiB", 0, "which is enough"),
        ("--gpu 1", 0, "the requested size is unknown"),
        ("--gpu 3 --at 12:00", 2, "--at is before the recording"),
        ("--at noon", 2, "--at noon: not a time"),
        ("--gpu 9", 2, "--gpu 9: there is no such GPU"),
        ("398120", 2, "cannot be used with"),
    ] {
        let (exit, found) = sufficient(arguments);
        assert_eq!(exit, code, "{arguments}: {found}");
        assert!(found.contains(says), "{arguments}: {found}");
    }
    for alone in ["--asked 2GiB", "--at 13:40", "--gpu 1"] {
        let words = ["explain", "--demo", "398120"].into_iter().chain(alone.split(' '));
        assert_eq!(run(&words.collect::<Vec<&str>>()).code, 2, "{alone} is of --oom");
    }
}

#[test]
fn no_failure_is_claimed_and_the_fullest_moment_is_named() {
    let holder = Running::sleep();
    let gpu = || Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    let held = |bytes| gpu().process(Process::compute(holder.pid(), bytes));
    let machine = Machine::new(&Scene::new().gpu(held(60 * GIB)).gpu(gpu()));
    let store = machine.path("store");
    let record = ["record", "--store", "--store-dir", store.to_str().unwrap()];
    machine
        .run(&[&record as &[&str], &["--interval", "100ms", "--duration", "1s"]].concat())
        .exits(0);
    // The memory is freed, and another GPU is fuller now, but not as full as the first one was.
    machine.play(&Scene::new().gpu(held(10 * GIB)).gpu(held(20 * GIB)));
    let explain = |visible: Option<&str>| {
        let store = store.to_str().unwrap();
        let mut command = machine.command(&["explain", "--oom", "--store-dir", store]);
        command.envs(visible.map(|value| ("CUDA_VISIBLE_DEVICES", value)));
        finish(&mut command)
    };
    let page = explain(None).exits(0).stdout;
    assert!(page.contains("free on GPU 0") && !page.contains("out of memory"), "{page}");
    assert!(page.contains("50.0 GiB more used than now"), "{page}");
    let page = explain(Some("1")).exits(0).stdout;
    assert!(page.contains("free on GPU 1") && !page.contains("Fullest"), "{page}");
    let nothing = explain(Some("-1")).exits(2);
    assert!(nothing.stderr.contains("CUDA_VISIBLE_DEVICES=-1 names no GPU"), "{nothing:?}");
}

#[test]
fn a_moment_of_the_stored_history_is_explained() {
    let holder = Running::sleep();
    let machine = Machine::new(&one_gpu(&[holder.pid()]));
    let store = machine.path("store");
    let dir = store.to_str().unwrap();
    let recorded =
        ["record", "--store", "--store-dir", dir, "--interval", "100ms", "--duration", "1s"];
    machine.run(&recorded).exits(0);
    machine.play(&one_gpu(&[]));
    let oom =
        |at: &str| machine.run(&["explain", "--oom", "--json", "--store-dir", dir, "--at", at]);
    // Who has left since is named.
    let page = oom("-0s").exits(0).json();
    assert_eq!(page["gpu"]["processes"][0]["pid"], holder.pid(), "{page}");
    let before = oom("-1h").exits(3);
    assert!(before.stderr.contains("no history of this boot is stored up to"), "{before:?}");
}
