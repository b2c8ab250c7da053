//! Impossible values are reported as unknown with an error, and cause no finding.

use std::thread;

use mock_nvml::scene::{Gpu, Growth, Memory, Process, Sample, Scene, Utilization};
use serde_json::json;

use crate::machine::{GIB, Machine, Running, Snapshot};

const QUICK: &str = "[rules.idle]\nduration = \"1s\"\n[rules.unattributed]\nduration = \"1s\"\n\
    [rules.dead]\nduration = \"60s\"\n";

/// Runs `ps`, `check` and `reap` on a GPU, and asserts that an error contains `error` and that there are no findings
/// and targets. Returns the snapshot.
fn assert_contained(gpu: Gpu, error: &str) -> Snapshot {
    let machine = Machine::new(&Scene::new().gpu(gpu));
    machine.configure(QUICK);
    let output = machine.run(&["ps", "--json"]);
    assert!([0, 3].contains(&output.code), "{output:?}");
    let snapshot = Snapshot(output.json());
    let errors = snapshot.errors();
    assert!(errors.iter().any(|message| message.contains(error)), "{error}: {errors:?}");
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

/// Checks that a snapshot lacks the impossible values. The arguments are the snapshot and the pid of the process.
type Check = fn(&Snapshot, u32);

fn assert_absent(snapshot: &Snapshot, names: &[&str]) {
    for name in names {
        assert_eq!(snapshot.gpu(0).get(name), None, "{name}");
    }
}

#[test]
fn impossible_values_are_unknown_and_cause_no_finding() {
    let running = Running::sleep();
    let pid = running.pid();
    let holding = |total: u64, used: u64| {
        let (total, used) = ((total * GIB).into(), Some((used * GIB).into()));
        Gpu { memory: Some(Memory { total, used, ..Memory::default() }), ..gpu() }
    };
    let held = Process::compute(pid, 20 * GIB);
    // The process works, so only an impossible value can cause a finding.
    let busy = || Process::compute(pid, 20 * GIB).sm(50);
    let absurd = f64::from(u32::MAX);
    let beyond_all = Gpu {
        utilization: Some(Utilization { gpu: absurd.into(), memory: absurd.into() }),
        utilization_samples: vec![Sample { pid, sm: u32::MAX }],
        ..gpu()
    };
    let forty = holding(80, 30).utilization(50, 10);
    let forty = (0..40).fold(forty, |gpu, _| gpu.process(busy()));
    let lies: [(Gpu, &str, Check); 7] = [
        // 1.8e19 is above the memory of any GPU, but differs from `u64::MAX`, the driver's value for "unknown".
        (holding(80, 4).process(Process::compute(pid, 1.8e19)), "is unknown", |snapshot, pid| {
            assert_eq!(snapshot.row(0, pid).get("used_bytes"), None);
        }),
        (beyond_all.process(held), "4294967295 percent", |snapshot, pid| {
            assert_absent(snapshot, &["gpu_percent"]);
            assert_eq!(snapshot.row(0, pid).get("sm_percent"), None);
        }),
        (gpu().process(Process::compute(0, 20 * GIB)), "pid 0", |snapshot, _| {
            assert_eq!(snapshot.pids(0), [0u64; 0]);
        }),
        (forty, "more than once", |snapshot, pid| assert_eq!(snapshot.pids(0), [u64::from(pid)])),
        (holding(8, 20).utilization(50, 10).process(busy()), "cannot be true", |snapshot, _| {
            assert_absent(snapshot, &["memory"]);
        }),
        (Gpu { garbled: true, ..gpu() }, "not UTF-8", |snapshot, _| {
            assert_absent(snapshot, &["name", "uuid"]);
        }),
        (
            Gpu { name: String::new(), uuid: Some(String::new()), ..gpu() },
            "empty",
            |snapshot, _| {
                assert_absent(snapshot, &["name", "uuid"]);
            },
        ),
    ];
    thread::scope(|scope| {
        for (gpu, error, check) in lies {
            scope.spawn(move || check(&assert_contained(gpu, error), pid));
        }
    });
}

#[test]
fn five_thousand_processes_are_listed() {
    let gpu = Gpu { grow_list: Some(Growth { entries: 5000, calls: 1 }), ..gpu() };
    let machine = Machine::new(&Scene::new().gpu(gpu));
    machine.configure(QUICK);
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.pids(0).len(), 5000);
    let reap = machine.run(&["reap", "--json", "--window", "2s"]);
    assert_eq!(reap.json()["targets"], json!([]), "{}", reap.stderr);
}
