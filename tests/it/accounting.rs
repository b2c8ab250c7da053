//! Utilization over a process's lifetime, from the driver's accounting mode.

use std::time::{SystemTime, UNIX_EPOCH};

use mock_nvml::scene::{Account, Gpu, Process, Scene};
use serde_json::json;

use crate::machine::{GIB, Machine, Running};

const CALL: &str = "nvmlDeviceGetAccountingStats";
const FIVE_DAYS: u64 = 5 * 24 * 3600;

fn ago(seconds: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (now.as_secs() - seconds) * 1_000_000
}

fn five_days_ago() -> u64 {
    ago(FIVE_DAYS)
}

fn scene(accounting: Option<bool>, processes: Vec<Process>) -> Scene {
    let gpu = Gpu { accounting, processes, ..Gpu::default() };
    Scene::new().gpu(gpu)
}

fn calls(machine: &Machine) -> u64 {
    let counts = machine.counts();
    counts.get(&(CALL.to_owned(), Some(0))).copied().unwrap_or_default()
}

#[test]
fn accounting_is_shown_and_queried_once_a_minute() {
    let child = Running::sleep();
    let process = Process::compute(child.pid(), GIB).account(3, five_days_ago());
    let machine = Machine::new(&scene(Some(true), vec![process]));
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.gpu(0)["accounting_mode"], true);
    let row = snapshot.row(0, child.pid());
    assert_eq!(row["lifetime_percent"], 3);
    assert!(row["lifetime_since"].is_string(), "{row}");
    assert_eq!(calls(&machine), 1);
    let recording = machine.path("a.jsonl");
    let recording = recording.to_str().unwrap();

    machine.run(&["record", "--interval", "100ms", "--duration", "2s", recording]).exits(0);
    let lines = std::fs::read_to_string(recording).unwrap();
    assert!(lines.lines().count() > 1, "{}", lines.lines().count());
    assert!(lines.lines().all(|line| line.contains("\"lifetime_percent\":3")));
    assert_eq!(calls(&machine), 2, "one call per run of gpumem");

    // The process started seconds ago. A record from five days ago belongs to an earlier process with the same pid.
    let explain = |machine: &Machine| {
        let pid = child.pid().to_string();
        machine.run(&["explain", &pid, "--window", "1s"]).stdout
    };
    let line = "SM busy 3% of its ";
    let page = explain(&machine);
    assert!(!page.contains(line), "{page}");
    let process = Process::compute(child.pid(), GIB).account(3, ago(0));
    machine.play(&scene(Some(true), vec![process]));
    let page = explain(&machine);
    assert!(page.contains(line) && page.contains("(driver accounting)"), "{page}");
}

#[test]
fn without_an_accounting_record_the_fields_are_absent() {
    let child = Running::sleep();
    let process = || Process::compute(child.pid(), GIB);
    let ended = Process {
        account: Some(Account { gpu: 90, start_us: five_days_ago(), has_ended: true }),
        ..process()
    };
    for (case, accounting, process, looked_up) in [
        ("accounting mode off", Some(false), process().account(3, five_days_ago()), 0),
        ("accounting mode not supported", None, process().account(3, five_days_ago()), 0),
        ("process older than accounting mode", Some(true), process(), 1),
        ("record of an earlier process with this pid", Some(true), ended, 1),
        ("no start time", Some(true), process().account(3, 0), 1),
        ("utilization not available", Some(true), process().account(u32::MAX, five_days_ago()), 1),
    ] {
        let machine = Machine::new(&scene(accounting, vec![process]));
        let snapshot = machine.snapshot(0);
        let row = snapshot.row(0, child.pid());
        for name in ["lifetime_percent", "lifetime_since"] {
            assert!(row.get(name).is_none(), "{case}: {row}");
        }
        assert_eq!(snapshot.0["errors"], json!([]), "{case}");
        assert_eq!(calls(&machine), looked_up, "{case}");
    }
}
