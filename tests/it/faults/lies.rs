//! Figures that cannot be true are shown as unknown, with an error, and nobody is accused for them.

use mock_nvml::scene::{Gpu, Growth, Memory, Process, Sample, Scene, Utilization};
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, Snapshot};

const QUICK: &str = "[rules.idle]\nduration = \"1s\"\n[rules.unattributed]\nduration = \"1s\"\n\
    [rules.dead]\nduration = \"60s\"\n";

/// What `ps` and `check` make of a scene: a snapshot with an error that says this, and no finding.
fn contained(gpu: Gpu, error: &str) -> Snapshot {
    let machine = Machine::new(&Scene::new().gpu(gpu));
    machine.configure(QUICK);
    let output = machine.run(&["ps", "--json"]);
    assert!([0, 3].contains(&output.code), "{output:?}");
    let snapshot = Snapshot(output.json());
    let errors = snapshot.errors();
    assert!(errors.iter().any(|it| it.contains(error)), "{error}: {errors:?}");
    let text = machine.run(&["ps"]);
    assert!([0, 3].contains(&text.code), "{text:?}");
    let check = machine.run(&["check", "--json", "--window", "2s", "--interval", "200ms"]);
    assert_eq!(check.json()["findings"], json!([]), "{check:?}");
    let reap = machine.run(&["reap", "--json", "--window", "2s"]);
    assert_eq!(reap.json()["targets"], json!([]), "{reap:?}");
    snapshot
}

fn gpu() -> Gpu {
    Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB)
}

#[test]
fn a_process_that_holds_more_than_there_is_holds_what_is_not_known() {
    let running = Running::sleep();
    let memory =
        Memory { total: (80 * GIB).into(), used: Some((4 * GIB).into()), ..Memory::default() };
    let gpu = Gpu { memory: Some(memory), ..gpu() };
    // 2^64 - 2 is not what the driver says where it does not know. A scene's numbers are floating
    // point, and this one's next is 2^64: as far up as they go.
    let lie = Process::compute(running.pid(), 1.8e19);
    let snapshot = contained(gpu.process(lie), "is not known");
    assert_eq!(snapshot.row(0, running.pid()).get("used_bytes"), None);
}

#[test]
fn use_beyond_all_of_it_is_not_known() {
    let running = Running::sleep();
    let absurd = f64::from(u32::MAX);
    let gpu = Gpu {
        utilization: Some(Utilization { gpu: absurd.into(), memory: absurd.into() }),
        utilization_samples: vec![Sample { pid: running.pid(), sm: u32::MAX, ..Sample::default() }],
        ..gpu()
    };
    let snapshot =
        contained(gpu.process(Process::compute(running.pid(), 20 * GIB)), "4294967295 percent");
    assert_eq!(snapshot.gpu(0).get("gpu_percent"), None);
    assert_eq!(snapshot.row(0, running.pid()).get("sm_percent"), None);
}

#[test]
fn pid_0_is_no_process() {
    let snapshot = contained(gpu().process(Process::compute(0, 20 * GIB)), "pid 0");
    assert_eq!(snapshot.pids(0), [0u64; 0]);
}

#[test]
fn one_that_is_listed_forty_times_is_there_once() {
    let running = Running::sleep();
    // It works, so that only its forty rows could accuse it.
    let row = || Process::compute(running.pid(), 20 * GIB).sm(50);
    let memory =
        Memory { total: (80 * GIB).into(), used: Some((30 * GIB).into()), ..Memory::default() };
    let gpu = Gpu { memory: Some(memory), ..gpu().utilization(50, 10) };
    let gpu = (0..40).fold(gpu, |gpu, _| gpu.process(row()));
    let snapshot = contained(gpu, "more than once");
    assert_eq!(snapshot.pids(0), [u64::from(running.pid())]);
}

#[test]
fn five_thousand_rows_are_taken_in() {
    let gpu = Gpu { grow_list: Some(Growth { entries: 5000, calls: 1 }), ..gpu() };
    let machine = Machine::new(&Scene::new().gpu(gpu));
    machine.configure(QUICK);
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.pids(0).len(), 5000);
    let check = machine.run(&["check", "--json", "--window", "2s"]);
    assert_eq!(check.json()["findings"], json!([]), "{}", check.stderr);
    let reap = machine.run(&["reap", "--json", "--window", "2s"]);
    assert_eq!(reap.json()["targets"], json!([]), "{}", reap.stderr);
}

#[test]
fn a_total_below_what_is_in_use_is_no_total() {
    let running = Running::sleep();
    let memory =
        Memory { total: (8 * GIB).into(), used: Some((20 * GIB).into()), ..Memory::default() };
    let gpu = Gpu { memory: Some(memory), ..gpu().utilization(50, 10) };
    let busy = Process::compute(running.pid(), 20 * GIB).sm(50);
    let snapshot = contained(gpu.process(busy), "cannot be true");
    assert_eq!(snapshot.gpu(0).get("memory"), None);
}

#[test]
fn names_that_are_none_are_reported() {
    let garbled = Gpu { garbled: true, ..gpu() };
    let snapshot = contained(garbled, "not UTF-8");
    let gpu_of = |snapshot: &Snapshot, name: &str| snapshot.gpu(0).get(name).cloned();
    assert_eq!(gpu_of(&snapshot, "name"), None::<Value>);
    assert_eq!(gpu_of(&snapshot, "uuid"), None::<Value>);
    let empty = Gpu { name: String::new(), uuid: Some(String::new()), ..gpu() };
    let snapshot = contained(empty, "empty");
    assert_eq!(gpu_of(&snapshot, "name"), None::<Value>);
    assert_eq!(gpu_of(&snapshot, "uuid"), None::<Value>);
}
