//! `gpumem explain` on recordings and on a live machine.

use std::path::Path;

use mock_nvml::scene::{Gpu, Process, Scene};

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::support::{command, compare_or_bless, finish, run, short_demo};

/// Runs `gpumem explain` with 80 columns. Returns standard output.
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
fn pages_match_the_committed_files() {
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
fn without_a_driver_only_frameworks_are_explained() {
    let nowhere = ["--nvml-library", "/nonexistent/libnvidia-ml.so.1"];
    let process = run(&[&["explain", "7"], &nowhere[..]].concat());
    assert_eq!((process.code, &*process.stdout), (3, ""), "{process:?}");
    let list = run(&[&["explain", "--framework"], &nowhere[..]].concat());
    assert_eq!((list.code, &*list.stderr), (0, ""), "{list:?}");
    assert!(list.stdout.contains("pytorch"), "{list:?}");
    let one = run(&[&["explain", "--framework", "Torch", "--json"], &nowhere[..]].concat());
    assert_eq!(one.json()["title"], "PyTorch (pytorch)");
}

#[test]
fn a_live_process_is_explained_until_it_exits() {
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
    // `explain` prints the page after the first sample.
    let page = machine.run(&["explain", &typed, "--json", "--no-store"]);
    assert_eq!(page.json()["window_seconds"], 0.0, "{page:?}");
    let gpu = machine.run(&["explain", "gpu:0", "--no-store"]).exits(0);
    assert!(gpu.stdout.contains(&typed), "{gpu:?}");
    machine.play(&one_gpu(&[]));
    machine.run(&["explain", &typed, "--window", "200ms", "--no-store"]).exits(2);
}

/// Runs `explain --oom` on the demo. Returns the exit code, and the last section or the error.
fn explain_oom(arguments: &str) -> (i32, String) {
    let words = ["explain", "--oom", "--json", "--replay", short_demo()];
    let words: Vec<&str> = words.into_iter().chain(arguments.split(' ')).collect();
    let output = run(&words);
    if output.code != 0 {
        return (output.code, output.stderr);
    }
    let page = output.json();
    let sections = page["sections"].as_array().unwrap();
    let last = sections
        .iter()
        .find(|section| section["heading"] == "What would have been enough")
        .unwrap();
    (0, last["rows"].to_string())
}

#[test]
fn explain_oom_names_unused_memory_that_would_have_been_enough() {
    // GPU 1 has about 30 GiB free, and an idle notebook holds 38 GiB.
    for (arguments, code, expected) in [
        ("--gpu 1 --asked 60GiB", 0, "freeing notebook thesis/fine-tune.ipynb (398120) of ben"),
        ("--gpu 1 --asked 31GiB --at 13:36", 0, "(not proven)"),
        ("--gpu 1 --asked 75GiB", 0, "after freeing all unused memory"),
        ("--gpu 3 --at 12:00", 2, "--at is before the recording"),
        ("--at noon", 2, "--at noon: not a time"),
        ("398120", 2, "cannot be used with"),
    ] {
        let (exit, found) = explain_oom(arguments);
        assert_eq!(exit, code, "{arguments}: {found}");
        assert!(found.contains(expected), "{arguments}: {found}");
    }
}

#[test]
fn no_failure_is_claimed_and_the_fullest_moment_is_named() {
    let holder = Running::sleep();
    let gpu = || Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    let held = |bytes| gpu().process(Process::compute(holder.pid(), bytes));
    let machine = Machine::new(&Scene::new().gpu(held(60 * GIB)).gpu(gpu()));
    let store = machine.path("store");
    let record = format!("record --store --store-dir {}", store.display());
    machine.run_line(&format!("{record} --interval 100ms --duration 1s")).exits(0);
    // After the memory is freed, GPU 1 is the fullest GPU, but less full than GPU 0 was.
    machine.play(&Scene::new().gpu(held(10 * GIB)).gpu(held(20 * GIB)));
    let explain = |visible: Option<&str>| {
        let store = store.to_str().unwrap();
        let mut command = machine.command(&["explain", "--oom", "--store-dir", store]);
        command.envs(visible.map(|value| ("CUDA_VISIBLE_DEVICES", value)));
        finish(&mut command)
    };
    let page = explain(None).exits(0).stdout;
    assert!(page.contains("free on GPU 0") && !page.contains("out of memory"), "{page}");
    assert!(page.contains("50.0 GiB more in use than now"), "{page}");
    let page = explain(Some("1")).exits(0).stdout;
    assert!(page.contains("free on GPU 1") && !page.contains("Fullest"), "{page}");
    let nothing = explain(Some("-1")).exits(2);
    assert!(nothing.stderr.contains("CUDA_VISIBLE_DEVICES=-1 names no GPU"), "{nothing:?}");
    let oom = |at: &str| {
        let store = store.display();
        machine.run_line(&format!("explain --oom --json --gpu 0 --store-dir {store} --at {at}"))
    };
    // At a time in the store, the page names a process that has left the GPU.
    machine.play(&Scene::new().gpu(gpu()).gpu(gpu()));
    let page = oom("-0s").exits(0).json();
    assert_eq!(page["gpu"]["processes"][0]["pid"], holder.pid(), "{page}");
    oom("-1h").exits(3);
}
