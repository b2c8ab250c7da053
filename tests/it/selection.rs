//! A selection with `--where` or a short form gives the same rows in every command.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{run, short_demo};

const GIB: u64 = 1 << 30;
type Pids = BTreeSet<u64>;

fn pid(value: &Value) -> Option<u64> {
    value["pid"].as_u64()
}

/// Returns the processes that `ps` shows, including processes that are not on a GPU.
fn ps(replay: &str, more: &[&str]) -> Pids {
    let output = run(&[&["ps", "--json", "--replay", replay], more].concat());
    assert_eq!((output.code, &*output.stderr), (0, ""), "{more:?}");
    let snapshot = output.json();
    let gpus = snapshot["gpus"].as_array().unwrap().iter();
    let rows = gpus.flat_map(|gpu| gpu["processes"].as_array().unwrap());
    let listed: Pids = rows.filter_map(pid).collect();
    let processes = snapshot["processes"].as_array().unwrap().iter();
    let is_monitor = |process: &&Value| {
        let command = process["command"][0].as_str().unwrap_or_default();
        command.contains("nvidia-persistenced")
    };
    let processes = processes.filter(|process| !is_monitor(process));
    listed.into_iter().chain(processes.filter_map(pid)).collect()
}

/// Returns the processes in the findings of `check`.
fn check(replay: &str, more: &[&str]) -> Pids {
    let output = run(&[&["check", "--json", "--fail-on=info", "--replay", replay], more].concat());
    let findings = output.json()["findings"].clone();
    let findings = findings.as_array().unwrap().iter();
    let pids: Pids = findings.filter_map(|finding| pid(&finding["process"])).collect();
    assert_eq!(output.code, i32::from(!pids.is_empty()), "{output:?}");
    pids
}

/// Returns the targets and refusals of `reap` if all processes are named.
fn reap(replay: &str, all: &Pids, more: &[&str]) -> Pids {
    let all: Vec<String> = all.iter().map(u64::to_string).collect();
    let all = all.join(",");
    let output = run(&[
        &["reap", "-n", "--json", "--servers", "--graphics", "--pid", &all, "--replay", replay],
        more,
    ]
    .concat());
    let plan = output.json();
    let list = |key: &str| plan[key].as_array().unwrap().clone();
    let targets = list("targets").into_iter();
    let members = targets.flat_map(|target| target["members"].as_array().unwrap().clone());
    members.chain(list("refused")).filter_map(|process| pid(&process)).collect()
}

/// Returns the processes in the table of `watch`.
fn watch(replay: &str, more: &[&str]) -> Pids {
    let output =
        run(&[&["watch", "--once", "--size=150x60", "--replay", replay], more].concat()).exits(0);
    let lines = output
        .stdout
        .lines()
        .skip_while(|line| !(line.trim_start().starts_with("GPU") && line.contains(" PID")));
    // After the table, the screen can contain findings, or a blank line and charts.
    let is_row = |line: &&str| !line.trim().is_empty() && !line.starts_with(['─', '┌']);
    let rows = lines.skip(1).take_while(is_row);
    let pid = |line: &str| {
        // Marks for a finding or the selection can precede the GPU.
        let word = line.trim_start_matches(['▌', '▸', ' ']).split_whitespace().nth(1)?;
        word.split('/').next()?.parse().ok()
    };
    rows.filter_map(pid).collect()
}

/// Asserts that all four commands select the same processes, and returns these processes.
fn assert_same_rows(replay: &str, more: &[&str], all: &Pids, found: &Pids, screen: &str) -> Pids {
    let rows = ps(replay, more);
    assert_eq!(watch(replay, &[&format!("--where={screen}")]), rows, "watch {more:?}");
    let of_found: Pids = rows.intersection(found).copied().collect();
    assert_eq!(check(replay, more), of_found, "check {more:?}");
    assert_eq!(reap(replay, all, more), rows, "reap {more:?}");
    rows
}

#[test]
fn a_selection_gives_the_same_rows_in_every_command() {
    let demo = short_demo();
    let (all, found) = (ps(demo, &[]), check(demo, &[]));
    assert!(all.len() > found.len() && !found.is_empty());
    let terms = "idle>10m mem>4GiB";
    let rows = assert_same_rows(demo, &[&format!("--where={terms}")], &all, &found, terms);
    assert_eq!(rows, Pids::from([207_344, 398_120, 448_016]));
    // The short forms select the same processes.
    let of_gpu = assert_same_rows(
        demo,
        &["--gpu=1", "--user=ben,chen"],
        &all,
        &found,
        "gpu:1 user=ben,chen",
    );
    assert_eq!(of_gpu, Pids::from([398_120, 455_102]));
}

/// Writes a recording with hostile names. All processes are stopped, so that each identified process has a finding.
fn hostile_recording() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.jsonl");
    let process = |pid: u32, user: &str, uid: u32, command: &[&str], more: Value| {
        let mut process = json!({"pid": pid, "start_ticks": pid, "start_time": "2026-01-01T00:00:00Z",
            "user": user, "uid": uid, "state": "T", "command": command, "comm": "x) R (",
            "gpu_files": ["/dev/nvidia0"], "rss_bytes": u64::from(pid) * GIB, "cpu_percent": 1.0,
            "cpu_seconds": 5.0, "ppid": 1, "environment": {}});
        let more = more.as_object().unwrap().clone();
        process.as_object_mut().unwrap().extend(more);
        process
    };
    let processes = json!([
        process(11, "1002", 1001, &["user:ben", "gpu:0"], json!({"framework": "pytorch"})),
        process(12, "ben", 1002, &["python", "a \"b\" \\ c.py"], json!({
            "jupyter": {"notebook_path": "\u{1b}[2J, idle>1h \"x\".ipynb"}})),
        process(13, "Ben", 1003, &["\u{202e}evil\n; rm -rf /", "--lr=3"], json!({
            "container": {"runtime": "docker", "id": "3f2a9c0d11e2aabb", "name": "!user:ben"}})),
        process(14, "o'hara, mem>1GiB", 1004, &["日本語", "-v"], json!({
            "slurm": {"job_id": "812", "job_name": "-gpu:0"}, "framework": "jax"})),
        {"pid": 15, "unresolved": "user:ben of another namespace", "user": "ben", "uid": 1002},
        process(16, "ben", 1002, &["holder"], json!({
            "gpu_files": ["/dev/nvidia1", "/dev/nvidia-uvm"], "systemd_unit": "a b.service"})),
    ]);
    let row = |pid: u32, gib: u64| json!({"pid": pid, "type": "compute", "used_bytes": gib * GIB, "sm_percent": 0});
    let gpu = |index: u32, used: u64, rows: Value| {
        json!({"index": index, "minor_number": index,
        "uuid": format!("GPU-{index}abc-0:1"), "name": "NVIDIA \u{1b}[31mH100, 80GB",
        "memory": {"total_bytes": 80 * GIB, "reserved_bytes": 0, "used_bytes": used * GIB, "free_bytes": (80 - used) * GIB},
        "mig_devices": [], "processes": rows})
    };
    let gpus = json!([
        gpu(0, 7, json!([row(11, 1), row(12, 2), row(15, 4)])),
        gpu(1, 20, json!([row(11, 8), row(13, 3), row(14, 9)])),
    ]);
    let lines = (0..80).map(|index| {
        let snapshot = json!({"schema": "gpumem.snapshot/1", "gpus": gpus, "processes": processes,
    "time": format!("2026-01-01T01:{:02}:{:02}Z", index * 45 / 60, index * 45 % 60),
            "host": {"pid_namespace": "host", "boot_id": "b"}});
        format!("{snapshot}\n")
    });
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    (folder, path)
}

#[test]
fn hostile_names_do_not_change_a_selection() {
    let (_folder, path) = hostile_recording();
    let replay = path.to_str().unwrap();
    let (all, found) = (ps(replay, &[]), check(replay, &[]));
    assert_eq!(all, Pids::from([11, 12, 13, 14, 15, 16]));
    assert_eq!(found, Pids::from([11, 12, 13, 14]), "listed and identified");
    for (terms, expected) in [
        // The user name is a number, which is also the uid of another user.
        ("user:1002", &[11, 12, 16][..]),
        ("user:\"o'hara, mem>1GiB\"", &[14]),
        ("!user:ben", &[11, 14]),
        ("gpu:0", &[11, 12, 15]),
        ("name:\"x) r (\"", &[11, 12, 13, 14, 16]),
        ("command:\"; RM -rf\"", &[13]),
        ("notebook:\"idle>1h\"", &[12]),
        ("container:\"!user:ben\"", &[13]),
        ("finding:stopped", &[11, 12, 13, 14]),
        ("is:unlisted", &[16]),
        ("idle>30m", &[11, 12, 13, 14]),
    ] {
        let rows = assert_same_rows(replay, &[&format!("--where={terms}")], &all, &found, terms);
        assert_eq!(rows, expected.iter().copied().collect(), "{terms}");
    }
    let rows = assert_same_rows(
        replay,
        &["--where=user:ben", "--where=gpu:0"],
        &all,
        &found,
        "user:ben gpu:0",
    );
    assert_eq!(rows, Pids::from([12]), "both terms must match");
}

#[test]
fn totals_include_only_the_selection() {
    let totals = |more: &[&str]| {
        let arguments =
            [&["ps", "--replay", short_demo(), "--json", "--by", "user"], more].concat();
        run(&arguments).json()["totals"].clone()
    };
    let all = totals(&[]);
    let names: Vec<&str> =
        all.as_array().unwrap().iter().filter_map(|total| total["name"].as_str()).collect();
    assert!(names.contains(&"ben") && names.contains(&"emre"), "{names:?}");
    let emre = totals(&["--where", "user:emre"]);
    assert_eq!(emre.as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&emre[0]["name"], &emre[0]["processes"], &emre[0]["gpus"]),
        (&json!("emre"), &json!(3), &json!([3]))
    );
    let both = run(&["ps", "--replay", short_demo(), "--by", "user", "--sort", "pid"]);
    assert_eq!(both.code, 2);
}
