//! Suspects are reported after the first sample, and gpumem never acts on them. A working process is never a suspect.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use gpumem::api::model::{Snapshot, Suspect};
use gpumem::api::rules::{Engine, RuleSet};
use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::process::Signal;
use serde_json::json;

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs;
use crate::support::wait_until;

/// A rule with a short duration.
const QUICK: &str = "[rules.idle]\nduration = \"8s\"\n";

#[test]
fn a_suspect_changes_no_exit_code_and_is_not_reaped() {
    // In the same process group, both processes would be one family, and the busy process would protect the idle
    // process.
    let idle = Running::start(Command::new("sleep").arg("600").process_group(0));
    let busy = Running::sleep();
    let gpu = Gpu::default()
        .process(Process::compute(idle.pid(), 4 * GIB))
        .process(Process::compute(busy.pid(), 2 * GIB).sm(70));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    machine.configure(QUICK);
    let check = ["check", "--window", "1s", "--interval", "200ms"];
    let output = machine.run(&[&check[..], &["--json"]].concat());
    let document = output.json();
    assert_eq!((output.code, &document["status"]), (0, &json!("ok")));
    let [suspect] = &document["suspects"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!(suspect["process"]["pid"], idle.pid());
    assert!(suspect["process"]["start_ticks"].is_u64());
    assert_eq!((&suspect["kind"], &suspect["memory_bytes"]), (&json!("idle"), &json!(4 * GIB)));
    assert_eq!(
        document["reclaimable"],
        json!({"bytes": 0, "processes": 0, "users": 0,
            "suspected_bytes": 4 * GIB, "suspected_processes": 1})
    );
    for strict in [&["--fail-on", "info"][..], &["--kind", "idle"]] {
        let output = machine.run(&[&check[..], strict].concat());
        assert_eq!(output.code, 0, "{strict:?}: {output:?}");
    }
    // gpumem does not kill the suspect, even if all users and all idle processes are selected.
    let reap = machine.run_line("reap --yes --json --all-users --kind idle --window 1s");
    assert_eq!(reap.json()["targets"], json!([]), "{reap:?}");
    // The command that the suspect suggests runs long enough to decide whether the process is idle.
    let command = suspect["command"].as_str().unwrap();
    assert_eq!(command, "gpumem check --kind idle --window 13s");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let decided = machine.run(&[&words[..], &["--json"]].concat());
    let document = decided.json();
    assert_eq!(decided.code, 1, "{document}");
    assert_eq!(document["findings"][0]["process"]["pid"], idle.pid());
    assert_eq!(document["suspects"], json!([]));
    assert_eq!(
        document["reclaimable"],
        json!({"bytes": 4 * GIB, "processes": 1, "users": 1,
            "suspected_bytes": 0, "suspected_processes": 0}),
        "{document}"
    );
}

/// One sample is enough to suspect the stopped process. Other rules need more time.
#[test]
fn ps_marks_suspects_after_one_sample() {
    let (stopped, other) = (Running::sleep(), Running::sleep());
    procs::send(stopped.pid(), Signal::STOP);
    let machine = Machine::new(&one_gpu(&[stopped.pid(), other.pid()]));
    let is_stopped = || machine.snapshot(0).process(stopped.pid())["state"] == "T";
    wait_until("the process is stopped", is_stopped);
    let ps = machine.run(&["ps"]);
    let second = ps.stdout.lines().nth(1).unwrap();
    assert!(second.starts_with("reclaimable: not known") && second.ends_with("2.0 GiB suspected"));
    let marked: Vec<&str> = ps.stdout.lines().filter(|line| line.contains("? ")).collect();
    let [marked] = marked[..] else { panic!("{ps:?}") };
    assert!(marked.contains(&stopped.pid().to_string()), "{marked}");
    assert!(marked.contains("stopped? 0s of 2m"), "{marked}");
    // If the configuration is invalid, `ps` works without rules.
    machine.configure("[rules.idel]\n");
    let without = machine.run(&["ps"]);
    assert_eq!(without.code, 0);
    assert!(without.stdout.starts_with("Free: GPU 0 ") && !without.stdout.contains("stopped?"));
    assert!(without.stderr.contains("findings and suspects are not shown"), "{without:?}");
}

/// Returns the names and snapshots of the recordings in a directory.
fn recordings(folder: &str) -> Vec<(String, Vec<Snapshot>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder);
    let mut recordings = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        let bytes = match name.rsplit('.').next() {
            Some("zst") => zstd::decode_all(&*bytes).unwrap(),
            Some("jsonl") => bytes,
            _ => continue,
        };
        let text = String::from_utf8(bytes).unwrap();
        let read = |line| serde_json::from_str(line).unwrap();
        recordings.push((name, text.lines().map(read).collect()));
    }
    recordings.sort_by(|a, b| a.0.cmp(&b.0));
    recordings
}

/// Returns the reason why a process must not be a suspect, or `None` if there is none.
fn find_fault(suspect: &Suspect, snapshot: &Snapshot, engine: &Engine) -> Option<String> {
    let pid = suspect.process.pid;
    let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
    let uses = rows
        .filter(|row| row.pid == pid)
        .any(|row| row.sm_percent.is_some_and(|percent| percent > 0));
    let process = snapshot.process(pid)?;
    let cpu = process.cpu_percent.unwrap_or(0.0);
    let is_stopped = suspect.kind.name() == "stopped";
    let mut findings = engine.active_findings();
    let is_found = findings.any(|finding| {
        finding.process.as_ref().is_some_and(|found| found.identity == process.identity())
    });
    let fault = match () {
        () if uses && !is_stopped => "uses a GPU",
        () if cpu >= 20.0 && !is_stopped => "uses the CPU",
        () if is_found => "has a finding",
        () if process.identity() != suspect.process.identity => "is another process",
        () => return None,
    };
    Some(format!("{pid} {fault}: {}", suspect.message))
}

/// Checks every snapshot of every recording, with and without the earlier snapshots. No working process is a suspect,
/// and no process is a suspect twice.
#[test]
fn a_working_process_is_never_a_suspect() {
    let mut suspects = BTreeSet::new();
    let mut complaints = Vec::new();
    let mut checks = 0;
    for (name, snapshots) in ["corpus", "over-time"].into_iter().flat_map(recordings) {
        let mut long = Engine::new(RuleSet::default());
        for (index, snapshot) in snapshots.iter().enumerate() {
            long.observe(snapshot);
            let mut short = Engine::new(RuleSet::default());
            let first = if index % 10 == 0 { index.saturating_sub(1) } else { index };
            for snapshot in &snapshots[first..=index] {
                short.observe(snapshot);
            }
            for engine in [&long, &short] {
                checks += 1;
                let pids: BTreeSet<u32> =
                    engine.suspects().iter().map(|suspect| suspect.process.pid).collect();
                assert_eq!(pids.len(), engine.suspects().len(), "{name}");
                for suspect in engine.suspects() {
                    suspects.insert((name.clone(), suspect.kind.name(), suspect.process.pid));
                    let fault = find_fault(suspect, snapshot, engine);
                    complaints.extend(fault.map(|fault| format!("{name}, {index}: {fault}")));
                }
            }
        }
    }
    assert_eq!(complaints, [""; 0]);
    assert!(checks > 20_000, "{checks}");
    // Later, the recordings contain a finding about each of these processes, except about the idle process whose pid
    // is reused.
    let expected = [
        ("idle_notebook_after_training-101.jsonl", "idle", 12_385),
        ("idle_shared_gpu-100.jsonl", "idle", 3_896_993),
        ("idle_vllm_in_a_notebook-101.jsonl.zst", "idle", 3_892_315),
        ("orphan_dataloader_workers-101.jsonl", "orphan", 967_097),
        ("orphan_dataloader_workers-101.jsonl", "orphan", 2_527_111),
        ("orphan_under_slurmd-101.jsonl", "orphan", 3_279_583),
        ("orphan_under_slurmd-101.jsonl", "orphan", 3_489_305),
        ("orphan_under_slurmd-101.jsonl.zst", "orphan", 3_279_583),
        ("orphan_under_slurmd-101.jsonl.zst", "orphan", 3_489_305),
        ("pid_reuse-100.jsonl", "idle", 1_652_433),
        ("stopped_trainer-100.jsonl", "stopped", 3_258_055),
    ];
    let expected: BTreeSet<(String, &str, u32)> =
        expected.map(|(name, kind, pid)| (name.to_owned(), kind, pid)).into();
    assert_eq!(suspects, expected);
}
