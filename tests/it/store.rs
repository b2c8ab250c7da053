//! `record --store` with real processes on the mock driver, and `check` with the stored history.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use gpumem::api::model::Snapshot;
use gpumem::api::recording::{RecordingReader, Store};
use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::support::{self, Output, wait_until};

/// The rule needs more time than the windows in these tests, so that only the stored history can decide.
const RULE: &str = "[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2500ms\"\n";

fn machine(scene: &Scene) -> Machine {
    let machine = Machine::new(scene);
    machine.configure(RULE);
    machine
}

fn store(machine: &Machine) -> String {
    machine.path("store").to_str().unwrap().to_owned()
}

/// Runs `record --store` with a short interval.
fn record(machine: &Machine, more: &[&str]) -> Output {
    let folder = store(machine);
    let arguments = ["record", "--store", "--store-dir", &folder, "--interval", "100ms"];
    machine.run(&[&arguments[..], more].concat())
}

fn start_recorder(machine: &Machine, interval: &str) -> Child {
    let folder = store(machine);
    let arguments = ["record", "--store", "--store-dir", &folder, "--interval", interval];
    let mut command = machine.command(&arguments);
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// Checks the idle rule with a short window and the store.
fn check(machine: &Machine, more: &[&str]) -> Output {
    let folder = store(machine);
    let options = ["--window", "200ms", "--interval", "100ms", "--store-dir", &folder];
    machine.run(&[&["check", "--json", "--kind", "idle"], &options[..], more].concat())
}

fn accused(output: &Output) -> Vec<u64> {
    let verdict = output.json();
    let findings = verdict["findings"].as_array().unwrap().iter();
    let unresolved = findings.filter(|finding| finding["resolved_at"].is_null());
    let mut pids: Vec<u64> =
        unresolved.map(|finding| finding["process"]["pid"].as_u64().unwrap()).collect();
    pids.sort_unstable();
    pids
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "zst"))
        .collect();
    paths.sort();
    paths
}

fn snapshots(folder: &Path) -> Vec<Snapshot> {
    let read = |path: PathBuf| RecordingReader::open(&path).unwrap().map(Result::unwrap);
    segments(folder).into_iter().flat_map(read).collect()
}

#[test]
fn a_stored_history_decides_immediately() {
    let (idle, busy) = (Running::sleep(), Running::sleep());
    let gpu = Gpu::default()
        .utilization(80, 10)
        .process(Process::compute(idle.pid(), 20 * GIB))
        .process(Process::compute(busy.pid(), 20 * GIB).sm(80));
    let machine = machine(&Scene::new().gpu(gpu));
    record(&machine, &["--duration", "4s"]).exits(0);

    let verdict = check(&machine, &[]);
    assert_eq!((verdict.code, verdict.stderr.as_str()), (1, ""), "{verdict:?}");
    assert_eq!(accused(&verdict), [u64::from(idle.pid())]);
    let json = verdict.json();
    assert!(json["window_seconds"].as_f64() > Some(3.0), "{json}");
    assert!(json["findings"][0]["duration_seconds"].as_f64() > Some(3.0), "{json}");
    assert_eq!(json["undecided"], json!([]));
    assert_eq!(json["errors"], json!([]));

    // Without the store, the window is too short for the rule.
    let without = check(&machine, &["--no-store"]);
    assert_eq!((without.code, accused(&without)), (0, vec![]), "{without:?}");
    assert_eq!(without.json()["undecided"][0]["rule"], "idle");

    // With a fresh store, `check` takes samples for 2 s by default, and otherwise for 30 s.
    let folder = store(&machine);
    record(&machine, &["--duration", "500ms"]).exits(0);
    let before = machine.counts();
    let check = machine.run(&["check", "--kind", "idle", "--store-dir", &folder]).exits(1);
    let name = ("nvmlDeviceGetMemoryInfo_v2".to_owned(), Some(0));
    let samples = machine.counts()[&name] - before[&name];
    // In 30 s, `check` would take at least 30 samples, even on a busy machine.
    assert!((1..10).contains(&samples), "{samples}");
    // `ps` and `watch` show the same headline. No page suggests starting a recorder if the store is fresh.
    let first = |page: &str| page.lines().next().unwrap().to_owned();
    let ps = machine.run(&["ps", "--store-dir", &folder]);
    assert_eq!(ps.stdout.lines().nth(1), check.stdout.lines().next(), "{ps:?}");
    let watch = machine.run(&["watch", "--once", "--size", "200x40", "--store-dir", &folder]);
    assert!(first(&watch.stdout).contains(&first(&check.stdout)), "{watch:?}");
    let pid = busy.pid().to_string();
    let explain = machine.run(&["explain", &pid, "--store-dir", &folder]);
    for page in [ps, check, explain] {
        assert!(!page.stdout.contains("record --store"), "{page:?}");
    }
}

#[test]
fn the_store_has_every_snapshot_after_a_signal() {
    let child = Running::sleep();
    let machine = machine(&one_gpu(&[child.pid()]));
    let folder = machine.path("store");
    let mut written = 0;
    for signal in [Signal::TERM, Signal::INT] {
        let recorder = start_recorder(&machine, "50ms");
        let before = segments(&folder).len();
        wait_until("a new segment", || segments(&folder).len() > before);
        let memory = ("nvmlDeviceGetMemoryInfo_v2".to_owned(), Some(0));
        let samples = || machine.counts()[&memory];
        let first = samples();
        wait_until("more samples", || samples() > first + 3);
        kill_process(Pid::from_child(&recorder), signal).unwrap();
        let output = recorder.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let summary = String::from_utf8(output.stderr).unwrap();
        let end = format!(" to the store {}\n", folder.display());
        let count = summary.strip_prefix("gpumem: recorded ").unwrap();
        let count = count.strip_suffix(&end).unwrap().split(' ').next().unwrap();
        written += count.parse::<usize>().unwrap();
        let stored = snapshots(&folder);
        assert_eq!(stored.len(), written);
        assert!(stored.iter().all(|snapshot| snapshot.process(child.pid()).is_some()));
    }
    assert!(written > 6, "{written}");
    // Each segment is a complete recording and a valid zstd file.
    let segment = segments(&folder).remove(0);
    support::run(&["ps", "--replay", segment.to_str().unwrap()]).exits(0);
    if let Some(zstd) = support::find("zstd", "zstd") {
        support::finish(std::process::Command::new(zstd).arg("-t").arg(&segment)).exits(0);
    }
}

#[test]
fn a_killed_recorder_leaves_a_valid_store() {
    // Record many processes, so that compressed frames fill quickly.
    let children: Vec<Running> = (0..60).map(|_| Running::sleep()).collect();
    let pids: Vec<u32> = children.iter().map(Running::pid).collect();
    let machine = machine(&one_gpu(&pids));
    let folder = machine.path("store");
    let mut recorder = start_recorder(&machine, "50ms");
    let span = || {
        let times: Vec<_> = stored_times(&folder);
        times.first().zip(times.last()).map_or(0, |(first, last)| last - first)
    };
    wait_until("the store exists", || folder.exists());
    wait_until("the recording is long enough", || {
        // Readers must not report damage while the recorder writes.
        let output = check(&machine, &[]);
        let empty =
            format!("gpumem: the store {} contains no snapshot of this boot\n", folder.display());
        assert_eq!(output.stderr.replace(&empty, ""), "", "{output:?}");
        span() > 3500
    });
    recorder.kill().unwrap();
    recorder.wait().unwrap();

    let mut children = children;
    let gone = children.pop().unwrap().pid();
    machine.play(&one_gpu(&pids[..59]));
    // On a slow machine, the gap after the last frame is longer than the rule's duration, so the window must cover it.
    let options = ["--window", "4s", "--interval", "100ms", "--store-dir", &store(&machine)];
    let output = machine.run(&[&["check", "--json", "--kind", "idle"], &options[..]].concat());
    let accused = accused(&output.exits(1));
    assert_eq!(accused.len(), 59);
    assert!(!accused.contains(&u64::from(gone)), "the process has exited");

    // The next recorder starts a new segment.
    let before = segments(&folder);
    record(&machine, &["--duration", "300ms"]).exits(0);
    assert_eq!(segments(&folder).len(), before.len() + 1);
}

/// Returns the times of the stored snapshots in milliseconds.
fn stored_times(folder: &Path) -> Vec<i64> {
    let Ok(store) = Store::open(folder) else {
        return Vec::new();
    };
    let epoch = gpumem::api::model::Time::default();
    let snapshots = store.since(epoch).map(Result::unwrap);
    snapshots.map(|snapshot| snapshot.time.unix_milliseconds()).collect()
}

#[test]
fn an_unusable_store_is_a_usage_error() {
    let machine = machine(&one_gpu(&[]));
    fs::write(machine.path("store"), "a file").unwrap();
    let file = store(&machine);
    let none = machine.path("none").to_str().unwrap().to_owned();
    for (arguments, hint) in [
        (&["record", "--store", "--store-dir", &file][..], "--store-dir"),
        (&["check", "--store-dir", &file], "not a directory"),
        (&["check", "--store-dir", &none], "gpumem record --store"),
        (&["record", "--store", "x.jsonl"], "cannot be used with"),
        (&["record", "--store-age", "2h"], "--store"),
        (&["record", "--store", "--store-age", "5s"], "24h"),
        (&["record", "--store", "--store-size", "4KiB"], "256MiB"),
    ] {
        let output = machine.run(arguments);
        assert_eq!(output.code, 2, "{arguments:?}: {output:?}");
        assert!(output.stderr.contains(hint), "{arguments:?}: {output:?}");
    }
    // Without `--store-dir`, a missing store is not an error.
    let silent = machine.run(&["check", "--window", "0s"]);
    assert_eq!((silent.code, silent.stderr.as_str()), (0, ""));
}

#[test]
fn state_directory_and_configured_interval_are_used() {
    let machine = machine(&one_gpu(&[]));
    let recorder = |machine: &Machine| machine.act(&["record", "--store", "--duration", "2s"]);
    let folder = machine.path("state/store");
    let once = recorder(&machine).exits(0);
    assert!(once.stderr.contains("recorded 1 snapshot to"), "the default is 5 s: {once:?}");
    machine.configure("[sample]\ninterval = \"100ms\"\n");
    let often = recorder(&machine).exits(0);
    assert!(snapshots(&folder).len() >= 4, "{often:?}");
    let verdict = machine.act(&["check", "--json", "--window", "0s"]).json();
    assert!(verdict["window_seconds"].as_f64() > Some(0.3), "{verdict}");
}
