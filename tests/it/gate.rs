//! `check` as a gate: what is asked of it, and the exit code that answers.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use mock_nvml::scene::{Fault, Gpu, Process, Scene};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs;
use crate::support::{self, Output, run, wait_until};

/// GPUs of 80 GiB with so much used and, of that, so much held by one process; in GiB.
fn gpu(index: u32, used: u64, held: Option<u64>) -> Value {
    json!({"index": index, "uuid": format!("GPU-{index}"),
        "memory": {"total_bytes": 80 * GIB, "reserved_bytes": GIB, "used_bytes": used * GIB,
            "free_bytes": (79 - used) * GIB},
        "processes": [{"pid": 7, "type": "compute", "used_bytes": held.map(|held| held * GIB)}]})
}

/// A recording with a snapshot a line: its second, and its GPUs.
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

fn is(code: i32, status: &str) -> (i32, String) {
    (code, status.to_owned())
}

#[test]
fn a_gpu_may_use_so_much_and_no_more() {
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
        assert_eq!(status(&output), is(code, word), "{arguments:?}: {output:?}");
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
    let last = text.stdout.lines().last().unwrap();
    assert!(last.contains("2 limits exceeded on 2 GPUs"), "{last}");
}

#[test]
fn a_limit_on_what_is_not_known_is_never_green() {
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
    assert_eq!(status(&output), is(3, "error"));
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
    for (arguments, code, last) in [
        (&["--max-used", "90%"][..], 0, "within limits on 1 GPU"),
        (&["--max-used", "50%"], 1, "1 limit exceeded on 1 GPU"),
        (&["--max-used", "50GiB", "--gpu", "0"], 1, "1 limit exceeded on 1 GPU"),
    ] {
        let output = machine.run(&[&["check", "--no-store"], arguments].concat());
        assert_eq!(output.code, code, "{arguments:?}: {output:?}");
        assert_eq!(output.stdout.lines().last(), Some(last), "{arguments:?}");
    }
    let alone = machine.run(&["check", "--json", "--max-used", "90%"]).json();
    assert_eq!((&alone["rules_applied"], &alone["window_seconds"]), (&json!(false), &json!(0.0)));
    assert_eq!(alone["undecided"], json!([]));
    // Who asks for findings gets them, and the limit at the end.
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
        let own = format!("\"/proc/{}\"", holder.pid());
        let trace = std::fs::read_to_string(&trace).unwrap();
        trace.lines().filter(|line| line.contains(&own)).count()
    };
    assert_eq!(opens(&["check", "--max-used", "99%"]), 0);
    assert!(opens(&["ps"]) > 0, "an open of a process's folder is seen");
}

#[test]
fn waiting_ends_when_so_much_is_free() {
    let (_folder, path) = recording(&[
        (0, vec![gpu(0, 79, None), gpu(1, 60, None)]),
        (60, vec![gpu(0, 69, None), gpu(1, 79, None)]),
        (120, vec![gpu(0, 49, None), gpu(1, 39, None)]),
        (900, vec![gpu(0, 0, None), gpu(1, 0, None)]),
    ]);
    for (arguments, code, gpu, free, waited) in [
        (&["--wait-free", "8GiB"][..], 0, 1, 19, 0.0),
        // So much and no more is enough.
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
fn who_waits_fails_on_findings_only_on_request() {
    let plain =
        run(&["check", "--demo", "--gpu", "1", "--wait-free", "31GiB:1", "--timeout", "1h"]);
    let free = plain.stdout.contains("free: GPU 1");
    assert!(free, "{plain:?}");
    for (more, code) in [(&[][..], 0), (&["--fail-on", "critical"], 0), (&["--max-used", "1%"], 1)]
    {
        let arguments = [&["check", "--demo", "--wait-free", "1GiB"], more].concat();
        assert_eq!(run(&arguments).code, code, "{more:?}");
    }
    let corpus = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/corpus/idle_notebook_after_training-101.jsonl"
    );
    // Memory for which it waits until the end, when the notebook has long been idle.
    let wait = ["--wait-free", "31GiB", "--timeout", "2h"];
    let idle = check(corpus.as_ref(), &wait);
    assert_eq!(idle.json()["counts"]["warning"], 1);
    assert_eq!(status(&idle), is(1, "findings"));
}

#[test]
fn what_is_lost_is_waited_for_and_hides_no_other() {
    let whole = Scene::new().gpu(Gpu::default()).gpu(Gpu::default());
    let machine = Machine::new(&whole.fault(Fault::error("*", 15).on(1)));
    let short = ["check", "--json", "--interval", "100ms"];
    let check = |more: &[&str]| machine.run(&[&short, more].concat());
    let window = ["--window", "300ms"];
    assert_eq!(status(&check(&window)), is(3, "error"));
    let one = check(&[&window[..], &["--gpu", "0"]].concat());
    assert_eq!(status(&one), is(0, "ok"));
    assert_eq!(one.json()["errors"], json!([]));
    let wait = |wanted| check(&["--wait-free", wanted, "--timeout", "300ms"]);
    assert_eq!(status(&wait("1GiB:0")), is(0, "ok"));
    assert_eq!(status(&wait("1GiB")), is(0, "ok"));
    let blind = wait("1GiB:1");
    assert_eq!(status(&blind), is(3, "error"));
    assert!(blind.json()["wait"][0]["free_bytes"].is_null());
}

#[test]
fn memory_that_becomes_free_ends_the_wait() {
    let machine = Machine::new(&Scene::new().gpu(Gpu::default().unattributed(138 * GIB)));
    let arguments = ["check", "--json", "--interval", "100ms", "--wait-free", "100GiB:0"];
    let in_time = machine.run(&[&arguments[..], &["--timeout", "300ms"]].concat());
    assert_eq!(status(&in_time), is(1, "findings"));
    assert!(in_time.stderr.is_empty(), "{in_time:?}");
    let waiting = sampling(&machine, &arguments);
    machine.play(&Scene::new().gpu(Gpu::default()));
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["status"], "ok");
    assert!(document["wait"][0]["waited_seconds"].as_f64() > Some(0.0), "{document}");
}

#[test]
fn hostile_values_are_refused_with_a_hint() {
    for (arguments, hint) in [
        (&["--max-used", "8GB"][..], "write 8GiB, 512MiB or 90%"),
        (&["--max-used=-1%"], "0% to 100%"),
        (&["--max-used", "10"], "write 10GiB, 10MiB or 10%"),
        (&["--wait-free", "0"], "always free"),
        // It was 8 bytes, which are free at once.
        (&["--wait-free", "8"], "no unit; write 8GiB or 8MiB"),
        (&["--wait-free", "8GiB:"], "8GiB:0"),
        (&["--wait-free", "8GiB:7"], "there are 0, 1, 2, 3"),
        (&["--wait-free", "8GiB:1", "--gpu", "0"], "there are 0"),
        (&["--wait-free", "8GiB", "--timeout", "10"], "30s, 10m"),
        (&["--wait-free", "8GiB", "--window", "10s"], "cannot be used with"),
        (&["--timeout", "10s"], "--wait-free"),
        (&["--gpu", "4"], "there are 0, 1, 2, 3"),
    ] {
        let output = run(&[&["check", "--demo", "--json"], arguments].concat());
        assert_eq!(status(&output), is(2, "error"), "{arguments:?}");
        assert!(output.stderr.contains(hint), "{arguments:?}: {output:?}");
    }
}

#[test]
fn every_failure_is_one_json_document() {
    let nowhere = "/nonexistent/libnvidia-ml.so.1";
    let (folder, path) = recording(&[]);
    let wrong = folder.path().join("config.toml");
    std::fs::write(&wrong, "[rules.idel]\n").unwrap();
    let (path, wrong) = (path.to_str().unwrap(), wrong.to_str().unwrap());
    for (arguments, code, word) in [
        (&["check", "--json", "--jsn"][..], 2, "--jsn"),
        (&["check", "--fail-on", "fatal", "--json"], 2, "fatal"),
        (&["--nvml-timeout", "soon", "check", "--json"], 2, "soon"),
        (&["check", "--json", "--kind", "idel"], 2, "idel"),
        (&["check", "--json", "--config", wrong, "--demo"], 2, "rules.idel"),
        (&["check", "--json", "--config", "/nonexistent.toml"], 2, "/nonexistent.toml"),
        (&["check", "--json", "--replay", "/nonexistent.jsonl"], 2, "/nonexistent.jsonl"),
        (&["check", "--json", "--replay", path], 3, "empty"),
        (&["check", "--json", "--interval", "0s"], 2, "--interval"),
        (&["check", "--json", "--nvml-library", nowhere], 3, "no NVIDIA driver"),
    ] {
        let output = run(arguments);
        assert_eq!(status(&output), is(code, "error"), "{arguments:?}");
        let document = output.json();
        let error = document["errors"].as_array().unwrap().last().unwrap();
        let error = error["error"].as_str().unwrap();
        assert!(error.contains(word), "{arguments:?}: {error}");
        assert!(output.stderr.contains(word), "{output:?}");
    }
    // Whoever did not ask for it gets none.
    for arguments in [
        &["check", "--jsn"][..],
        &["ps", "--json", "--jsn"],
        &["check", "--jsn", "--", "--json"],
        &["--json", "--jsn"],
    ] {
        let output = run(arguments);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments:?}");
    }
}

/// A check that has seen at least two samples of this machine.
fn sampling(machine: &Machine, arguments: &[&str]) -> Child {
    // Afterwards there are counts to read.
    machine.snapshot(0);
    let call = ("nvmlDeviceGetMemoryInfo_v2".to_owned(), Some(0));
    let before = machine.counts().get(&call).copied().unwrap_or(0);
    let mut command = machine.command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let check = command.stdin(Stdio::null()).spawn().unwrap();
    wait_until("it has sampled", || machine.counts().get(&call).copied().unwrap_or(0) > before + 3);
    check
}

/// Such a check, ended by a signal.
fn interrupted(machine: &Machine, arguments: &[&str], signal: Signal) -> (i32, String, String) {
    let check = sampling(machine, arguments);
    procs::send(check.id(), signal);
    let output = check.wait_with_output().unwrap();
    use std::os::unix::process::ExitStatusExt as _;
    let code = output.status.signal().map_or(-1, |signal| 128 + signal);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn a_signal_ends_it_with_what_is_known() {
    let child = Running::sleep();
    let gpu = Gpu::default().process(Process::compute(child.pid(), 2 * GIB));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    let window = ["check", "--json", "--window", "10m", "--interval", "50ms"];
    let wait = ["check", "--json", "--wait-free", "141GiB", "--interval", "50ms"];
    for (arguments, signal, code, name) in
        [(&window[..], Signal::INT, 130, "SIGINT"), (&wait, Signal::TERM, 143, "SIGTERM")]
    {
        let (ended, stdout, stderr) = interrupted(&machine, arguments, signal);
        assert_eq!(ended, code, "{stderr}");
        let document: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(document["status"], "error");
        assert!(document["time"].is_string() && document["window_seconds"].as_f64() > Some(0.0));
        let error = document["errors"].as_array().unwrap().last().unwrap()["error"].clone();
        assert_eq!(error, format!("interrupted by {name} before the verdict"));
        assert_eq!(stderr, format!("gpumem: interrupted by {name} before the verdict\n"));
        let waits = document["wait"].as_array().unwrap().len();
        assert_eq!(waits, usize::from(arguments.contains(&"--wait-free")));
    }
    let text = ["check", "--window", "10m", "--interval", "50ms"];
    let (ended, stdout, _) = interrupted(&machine, &text, Signal::INT);
    assert_eq!((ended, stdout.as_str()), (130, ""), "a verdict is whole or absent");
}

#[test]
fn a_gpu_that_left_before_the_end_is_not_judged_as_well() {
    let (_folder, path) =
        recording(&[(0, vec![gpu(0, 1, None), gpu(1, 1, None)]), (10, vec![gpu(0, 1, None)])]);
    assert_eq!(status(&check(&path, &["--gpu", "0"])), is(0, "ok"));
    let gone = check(&path, &["--gpu", "1", "--max-used", "20GiB"]);
    assert_eq!(status(&gone), is(3, "error"));
    let error = gone.json()["errors"][0]["error"].clone();
    assert_eq!(error, "1 is missing in the last snapshot");
    assert_eq!(check(&path, &["--gpu", "2"]).code, 2);
    let quiet = run(&["check", "--quiet", "--replay", path.to_str().unwrap(), "--gpu", "1"]);
    assert_eq!((quiet.code, quiet.stdout.as_str()), (3, ""));
}

#[test]
fn a_user_that_a_recording_lacks_is_a_mistake() {
    for (command, code) in [("check", 1), ("ps", 0), ("reap", 0)] {
        let of = |user: &str| run(&[command, "--demo", "--user", user]);
        let refused = of("bne").exits(2).stderr;
        assert!(refused.contains("--user bne") && refused.contains("ann, ben, "), "{refused}");
        of("ben").exits(code);
        of("1002").exits(code);
    }
}

#[test]
fn no_advice_would_change_the_null_device() {
    assert_eq!(run(&["config", "check", "/dev/null"]).exits(0).stderr, "");
    let refused = run(&["config", "check", "/dev/zero"]).exits(2).stderr;
    assert!(!refused.contains("chmod") && !refused.contains("chown"), "{refused}");
}
