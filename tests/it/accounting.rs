//! What the driver's accounting has of processes: the share of their life in which they used the GPU.

use std::time::{SystemTime, UNIX_EPOCH};

use mock_nvml::scene::{Account, Fault, Gpu, Process, Scene};
use serde_json::json;

use crate::machine::{GIB, Machine, Running};

const CALL: &str = "nvmlDeviceGetAccountingStats";
const FIVE_DAYS: u64 = 5 * 24 * 3600;

/// Microseconds since 1970, so many seconds ago.
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
fn a_process_has_what_the_driver_kept_of_it_and_is_looked_up_once_a_minute() {
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
    assert_eq!(calls(&machine), 2, "once for each program");

    // This process is seconds old: five days are an earlier one's of its number.
    let explained = |machine: &Machine| {
        let pid = child.pid().to_string();
        machine.run(&["explain", &pid, "--window", "1s"]).stdout
    };
    let line = "SM busy 3% of its ";
    let page = explained(&machine);
    assert!(!page.contains(line), "{page}");
    let process = Process::compute(child.pid(), GIB).account(3, ago(0));
    machine.play(&scene(Some(true), vec![process]));
    let page = explained(&machine);
    assert!(page.contains(line) && page.contains("by the driver's accounting"), "{page}");
}

#[test]
fn without_an_account_nothing_is_known_and_nothing_is_wrong() {
    let child = Running::sleep();
    let process = || Process::compute(child.pid(), GIB);
    let ended = Process {
        account: Some(Account { gpu: 90, start_us: five_days_ago(), has_ended: true }),
        ..process()
    };
    for (why, accounting, process, looked_up) in [
        ("off", Some(false), process().account(3, five_days_ago()), 0),
        ("no such thing", None, process().account(3, five_days_ago()), 0),
        ("older than its switching on", Some(true), process(), 1),
        ("an earlier process of this pid", Some(true), ended, 1),
        ("no start", Some(true), process().account(3, 0), 1),
        ("not available", Some(true), process().account(u32::MAX, five_days_ago()), 1),
    ] {
        let machine = Machine::new(&scene(accounting, vec![process]));
        let snapshot = machine.snapshot(0);
        let row = snapshot.row(0, child.pid());
        for name in ["lifetime_percent", "lifetime_since"] {
            assert!(row.get(name).is_none(), "{why}: {row}");
        }
        assert_eq!(snapshot.0["errors"], json!([]), "{why}");
        assert_eq!(calls(&machine), looked_up, "{why}");
    }
}

#[test]
fn a_figure_that_cannot_be_true_and_a_call_that_fails_are_said() {
    let child = Running::sleep();
    let process = |percent| Process::compute(child.pid(), GIB).account(percent, five_days_ago());
    let absurd = scene(Some(true), vec![process(4_000_000)]);
    let failing = scene(Some(true), vec![process(3)]).fault(Fault::error(CALL, 999));
    for (scene, words) in [(absurd, "4000000 percent"), (failing, "UNKNOWN")] {
        let snapshot = Machine::new(&scene).snapshot(0);
        let row = snapshot.row(0, child.pid());
        assert!(row.get("lifetime_percent").is_none(), "{row}");
        assert_eq!(row["used_bytes"], GIB);
        let errors = snapshot.errors();
        let is_it = |error: &String| error.contains(CALL) && error.contains(words);
        assert!(errors.iter().any(is_it), "{words}: {errors:?}");
    }
}
