//! `check` in scripts: limits, waits and exit codes.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use mock_nvml::scene::{Fault, Gpu, Process, Scene};
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::support::{self, Output, run, short_demo, wait_until};

/// Returns a GPU with 80 GiB, of which `used` GiB are in use. One process holds `held` GiB, or an unknown amount if
/// `held` is `None`.
fn gpu(index: u32, used: u64, held: Option<u64>) -> Value {
    json!({"index": index, "uuid": format!("GPU-{index}"),
        "memory": {"total_bytes": 80 * GIB, "reserved_bytes": GIB, "used_bytes": used * GIB,
            "free_bytes": (79 - used) * GIB},
        "processes": [{"pid": 7, "type": "compute", "used_bytes": held.map(|held| held * GIB)}]})
}

/// Writes a recording. Each snapshot consists of a time in seconds and GPUs.
fn recording(snapshots: &[(u32, Vec<Value>)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    let line = |(second, gpus): &(u32, Vec<Value>)| {
        let (minute, second) = (second / 60, second % 60);
        let snapshot = json!({"schema": "gpumem.snapshot/1", "gpus": gpus,
            "time": format!("2025-12-04T08:{minute:02}:{second:02}Z"),
            "host": {"pid_namespace": "host", "boot_id": "b"}});
        format!("{snapshot}\n")
    };
    std::fs::write(&path, snapshots.iter().map(line).collect::<String>()).unwrap();
    (folder, path)
}

fn check(path: &std::path::Path, more: &[&str]) -> Output {
    run(&[&["check", "--json", "--replay", path.to_str().unwrap()], more].concat())
}

fn status(output: &Output) -> (i32, String) {
    let document = output.json();
    assert_eq!(document["schema"], "gpumem.check/1");
    (output.code, document["status"].as_str().unwrap().to_owned())
}

fn outcome(code: i32, status: &str) -> (i32, String) {
    (code, status.to_owned())
}

#[test]
fn limits_on_used_and_unattributed_memory_decide_the_exit_code() {
    let (_folder, path) = recording(&[
        (0, vec![gpu(0, 70, Some(1)), gpu(1, 70, Some(1))]),
        (10, vec![gpu(0, 10, Some(10)), gpu(1, 50, Some(45))]),
    ]);
    for (arguments, code) in [
        (&["--max-used", "50GiB"][..], 0),
        (&["--max-used", "49GiB"], 1),
        (&["--max-used", "62.5%"], 0),
        (&["--max-used", "62%"], 1),
        (&["--max-used", "10GiB", "--gpu", "0"], 0),
        (&["--max-used", "10GiB", "--gpu", "GPU-0"], 0),
        (&["--max-used", "10GiB", "--gpu", "GPU-1"], 1),
        (&["--max-used", "0", "--gpu", "0"], 1),
        (&["--max-unattributed", "5GiB"], 0),
        (&["--max-unattributed", "4GiB"], 1),
        (&["--max-unattributed", "0", "--gpu", "0"], 0),
        (&["--max-unattributed", "6%"], 1),
        (&["--max-used", "90%", "--max-unattributed", "1GiB"], 1),
    ] {
        let output = check(&path, arguments);
        let word = if code == 0 { "ok" } else { "findings" };
        assert_eq!(status(&output), outcome(code, word), "{arguments:?}: {output:?}");
    }
    let document = check(&path, &["--max-used", "20GiB"]).json();
    assert_eq!(
        document["limits"],
        json!([
            {"limit": "max-used", "gpu": 0, "uuid": "GPU-0", "limit_bytes": 20 * GIB,
             "actual_bytes": 10 * GIB, "exceeded": false},
            {"limit": "max-used", "gpu": 1, "uuid": "GPU-1", "limit_bytes": 20 * GIB,
             "actual_bytes": 50 * GIB, "exceeded": true},
        ])
    );
    let path = path.to_str().unwrap();
    let text =
        run(&["check", "--replay", path, "--max-used", "20GiB", "--max-unattributed", "1GiB"]);
    let lines: Vec<&str> = text.stdout.lines().filter(|l| l.starts_with("limit")).collect();
    assert_eq!(
        lines,
        [
            "limit: GPU 1: 50.0 GiB in use, more than 20.0 GiB (--max-used)",
            "limit: GPU 1: 5.0 GiB unattributed, more than 1.0 GiB \
             (--max-unattributed)",
        ]
    );
}

#[test]
fn a_limit_on_an_unknown_value_exits_with_3() {
    let lost = json!({"index": 1, "uuid": "GPU-1"});
    let (_folder, path) = recording(&[(0, vec![gpu(0, 10, None), lost])]);
    for (arguments, code) in [
        (&["--gpu", "0"][..], 0),
        (&["--gpu", "0", "--max-used", "20GiB"], 0),
        (&["--gpu", "0", "--max-unattributed", "20GiB"], 3),
        (&["--gpu", "1", "--max-used", "20GiB"], 3),
        (&["--max-used", "20GiB"], 3),
        (&["--max-used", "5GiB"], 1),
    ] {
        let output = check(&path, arguments);
        assert_eq!(output.code, code, "{arguments:?}: {output:?}");
    }
    let output = check(&path, &["--gpu", "0", "--max-unattributed", "20GiB"]);
    assert_eq!(status(&output), outcome(3, "error"));
    let document = output.json();
    assert!(document["limits"][0]["exceeded"].is_null());
    assert_eq!(
        document["errors"],
        json!([{"gpu": 0, "call": "--max-unattributed",
            "error": "the memory of one of the processes is unknown"}])
    );
}

#[test]
fn a_limit_alone_is_decided_by_the_first_sample() {
    let used =
        Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB).process(Process::compute(1, 60 * GIB));
    let machine = Machine::new(&Scene::new().gpu(used));
    for (arguments, code) in [
        (&["--max-used", "90%"][..], 0),
        (&["--max-used", "50%"], 1),
        (&["--max-used", "50GiB", "--gpu", "0"], 1),
    ] {
        let output = machine.run(&[&["check", "--no-store"], arguments].concat());
        assert_eq!(output.code, code, "{arguments:?}: {output:?}");
    }
    let alone = machine.run(&["check", "--json", "--max-used", "90%"]).json();
    assert_eq!((&alone["rules_applied"], &alone["window_seconds"]), (&json!(false), &json!(0.0)));
    assert_eq!(alone["undecided"], json!([]));
    // With `--window`, the rules are applied in addition to the limit.
    let both = ["check", "--json", "--max-used", "90%", "--window", "1s"];
    let both = machine.run(&both).json();
    assert_eq!(both["rules_applied"], true);
    assert!(both["window_seconds"].as_f64().unwrap() > 0.5, "{both}");
    assert_eq!(both["limits"][0]["exceeded"], false);
}

#[test]
fn a_limit_alone_reads_no_process_files() {
    let strace = or_skip!(support::find("strace", "strace"));
    let holder = Running::sleep();
    let machine = Machine::new(&one_gpu(&[holder.pid()]));
    let trace = machine.path("trace");
    let opens = |arguments: &[&str]| {
        let gpumem = machine.command(arguments);
        let mut command = Command::new(&strace);
        command.args(["-f", "-qq", "-e", "trace=openat", "-o"]).arg(&trace);
        support::finish(support::before(&mut command, &gpumem)).exits(0);
        let folder = format!("\"/proc/{}\"", holder.pid());
        let trace = std::fs::read_to_string(&trace).unwrap();
        trace.lines().filter(|line| line.contains(&folder)).count()
    };
    assert_eq!(opens(&["check", "--max-used", "99%"]), 0);
    assert!(opens(&["ps"]) > 0, "strace reports an open of a process's folder");
}

#[test]
fn wait_free_ends_when_enough_memory_is_free() {
    let (_folder, path) = recording(&[
        (0, vec![gpu(0, 79, None), gpu(1, 60, None)]),
        (60, vec![gpu(0, 69, None), gpu(1, 79, None)]),
        (120, vec![gpu(0, 49, None), gpu(1, 39, None)]),
        (900, vec![gpu(0, 0, None), gpu(1, 0, None)]),
    ]);
    for (arguments, code, gpu, free, waited) in [
        (&["--wait-free", "8GiB"][..], 0, 1, 19, 0.0),
        // A size that equals the free memory is enough.
        (&["--wait-free", "10GiB:0"], 0, 0, 10, 60.0),
        (&["--wait-free", "8GiB:GPU-0"], 0, 0, 10, 60.0),
        (&["--wait-free", "8GiB", "--gpu", "0"], 0, 0, 10, 60.0),
        (&["--wait-free", "30GiB:0", "--wait-free", "8GiB"], 0, 0, 30, 120.0),
        (&["--wait-free", "50GiB"], 1, 1, 40, 120.0),
        (&["--wait-free", "8GiB:0", "--timeout", "59s"], 1, 0, 0, 0.0),
        (&["--wait-free", "8GiB:0", "--timeout", "0s"], 1, 0, 0, 0.0),
        (&["--wait-free", "50GiB", "--timeout", "15m"], 0, 0, 79, 900.0),
        (&["--wait-free", "81GiB"], 1, 1, 19, 0.0),
    ] {
        let output = check(&path, arguments);
        let wait = &output.json()["wait"][0];
        assert_eq!(output.code, code, "{arguments:?}: {output:?}");
        assert_eq!(wait["satisfied"], code == 0, "{arguments:?}");
        let found = (&wait["gpu"], &wait["free_bytes"], &wait["waited_seconds"]);
        let expected = (&json!(gpu), &json!(free * GIB), &json!(waited));
        assert_eq!(found, expected, "{arguments:?}");
    }
    let path = path.to_str().unwrap();
    let text = run(&["check", "--replay", path, "--wait-free", "50GiB", "--wait-free", "8GiB:0"]);
    assert_eq!(text.code, 1);
    assert!(
        text.stdout.starts_with(
            "not free: 50.0 GiB wanted, waited 2m 00s; at most 40.0 GiB was free on GPU 1\n\
             free: GPU 0: 30.0 GiB free, 8.0 GiB wanted, after 2m 00s\n"
        ),
        "{text:?}"
    );
}

#[test]
fn wait_free_ignores_findings_by_default() {
    for (more, code) in [(&[][..], 0), (&["--max-used", "1%"], 1)] {
        let wait = ["check", "--replay", short_demo(), "--wait-free", "1GiB"];
        assert_eq!(run(&[&wait, more].concat()).code, code, "{more:?}");
    }
    let corpus = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/corpus/idle_notebook_after_training-101.jsonl"
    );
    // The wait lasts until the end of the recording, when the notebook is idle.
    let wait = ["--wait-free", "31GiB", "--timeout", "2h"];
    let idle = check(corpus.as_ref(), &wait);
    assert_eq!(idle.json()["counts"]["warning"], 1);
    assert_eq!(status(&idle), outcome(1, "findings"));
}

#[test]
fn a_lost_gpu_is_waited_for_and_hides_no_other() {
    let whole = Scene::new().gpu(Gpu::default()).gpu(Gpu::default());
    let machine = Machine::new(&whole.fault(Fault::error("*", 15).on(1)));
    let short = ["check", "--json", "--interval", "100ms"];
    let check = |more: &[&str]| machine.run(&[&short, more].concat());
    let window = ["--window", "300ms"];
    assert_eq!(status(&check(&window)), outcome(3, "error"));
    let one = check(&[&window[..], &["--gpu", "0"]].concat());
    assert_eq!(status(&one), outcome(0, "ok"));
    assert_eq!(one.json()["errors"], json!([]));
    let wait = |wanted| check(&["--wait-free", wanted, "--timeout", "300ms"]);
    assert_eq!(status(&wait("1GiB:0")), outcome(0, "ok"));
    assert_eq!(status(&wait("1GiB")), outcome(0, "ok"));
    let blind = wait("1GiB:1");
    assert_eq!(status(&blind), outcome(3, "error"));
    assert!(blind.json()["wait"][0]["free_bytes"].is_null());
}

#[test]
fn wait_free_ends_when_memory_becomes_free() {
    let machine = Machine::new(&Scene::new().gpu(Gpu::default().unattributed(138 * GIB)));
    let arguments = ["check", "--json", "--interval", "100ms", "--wait-free", "100GiB:0"];
    let timed_out = machine.run(&[&arguments[..], &["--timeout", "300ms"]].concat());
    assert_eq!(status(&timed_out), outcome(1, "findings"));
    assert!(timed_out.stderr.is_empty(), "{timed_out:?}");
    // The first call creates the file with the counts.
    machine.snapshot(0);
    let samples = || {
        let call = ("nvmlDeviceGetMemoryInfo_v2".to_owned(), Some(0));
        machine.counts().get(&call).copied().unwrap_or(0)
    };
    let before = samples();
    let mut command = machine.command(&arguments);
    let waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("two samples", || samples() > before + 3);
    machine.play(&Scene::new().gpu(Gpu::default()));
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["status"], "ok");
    assert!(document["wait"][0]["waited_seconds"].as_f64() > Some(0.0), "{document}");
}

#[test]
fn invalid_values_are_rejected_with_a_hint() {
    for (arguments, hint) in [
        (&["--max-used", "8GB"][..], "write 8GiB, 512MiB or 90%"),
        (&["--max-used=-1%"], "0% to 100%"),
        (&["--max-used", "10"], "write 8GiB, 512MiB or 90%"),
        (&["--wait-free", "0"], "always free"),
        // Without a unit, the size would be 8 bytes, which are always free.
        (&["--wait-free", "8"], "write 8GiB, 512MiB"),
        (&["--wait-free", "8GiB:"], "8GiB:0"),
        (&["--wait-free", "8GiB:7"], "there are 0, 1, 2, 3"),
        (&["--wait-free", "8GiB", "--timeout", "10"], "30s, 10m"),
        (&["--wait-free", "8GiB", "--window", "10s"], "cannot be used with"),
        (&["--timeout", "10s"], "--wait-free"),
    ] {
        let output = run(&[&["check", "--replay", short_demo()], arguments].concat()).exits(2);
        assert!(output.stderr.contains(hint), "{arguments:?}: {output:?}");
    }
}

#[test]
fn every_failure_with_json_is_one_json_document() {
    let nowhere = "/nonexistent/libnvidia-ml.so.1";
    let (folder, path) = recording(&[]);
    let wrong = folder.path().join("config.toml");
    std::fs::write(&wrong, "[rules.idel]\n").unwrap();
    let (path, wrong) = (path.to_str().unwrap(), wrong.to_str().unwrap());
    for (arguments, code, word) in [
        (&["check", "--json", "--config", wrong, "--demo"][..], 2, "rules.idel"),
        (&["check", "--json", "--replay", "/nonexistent.jsonl"], 2, "/nonexistent.jsonl"),
        (&["check", "--json", "--replay", path], 3, "empty"),
        (&["check", "--json", "--interval", "0s"], 2, "--interval"),
        (&["check", "--json", "--nvml-library", nowhere], 3, "no NVIDIA driver"),
    ] {
        let output = run(arguments);
        assert_eq!(status(&output), outcome(code, "error"), "{arguments:?}");
        let document = output.json();
        let error = document["errors"].as_array().unwrap().last().unwrap();
        let error = error["error"].as_str().unwrap();
        assert!(error.contains(word), "{arguments:?}: {error}");
        assert!(output.stderr.contains(word), "{output:?}");
    }
    // A usage error has no document.
    for arguments in [&["check", "--json", "--jsn"][..], &["check", "--format=junit", "--jsn"]] {
        let output = run(arguments);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments:?}");
    }
}

#[test]
fn a_gpu_missing_from_the_last_snapshot_is_not_judged() {
    let (_folder, path) =
        recording(&[(0, vec![gpu(0, 1, None), gpu(1, 1, None)]), (10, vec![gpu(0, 1, None)])]);
    assert_eq!(status(&check(&path, &["--gpu", "0"])), outcome(0, "ok"));
    let gone = check(&path, &["--gpu", "1", "--max-used", "20GiB"]);
    assert_eq!(status(&gone), outcome(3, "error"));
    assert_eq!(check(&path, &["--gpu", "2"]).code, 2);
    let quiet = run(&["check", "--quiet", "--replay", path.to_str().unwrap(), "--gpu", "1"]);
    assert_eq!((quiet.code, quiet.stdout.as_str()), (3, ""));
}

#[test]
fn config_check_does_not_advise_to_change_devices() {
    assert_eq!(run(&["config", "check", "/dev/null"]).exits(0).stderr, "");
    let refused = run(&["config", "check", "/dev/zero"]).exits(2).stderr;
    assert!(!refused.contains("chmod") && !refused.contains("chown"), "{refused}");
}
