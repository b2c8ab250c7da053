//! The command line: usage errors, exit codes, recordings and closed pipes.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;

use mock_nvml::scene::{Fault, Scene};

use crate::machine::{Machine, one_gpu};
use crate::support::{self, Output, run, short_demo};

fn corpus(name: &str) -> String {
    format!("{}/tests/data/corpus/{name}.jsonl", env!("CARGO_MANIFEST_DIR"))
}

fn check(file: &str, more: &[&str]) -> Output {
    run(&[&["check", "--replay", file], more].concat())
}

/// Writes a file to a new directory, which is removed when the guard is dropped.
fn file(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    fs::write(&path, content).unwrap();
    (folder, path)
}

#[test]
fn wrong_usage_exits_with_2_and_a_hint() {
    for (arguments, hint) in [
        (&["pss"][..], "ps"),
        (&["check", "--jsn"], "--json"),
        (&["kill", "--demo", "42"], "reap, metrics, serve and config test accept --demo"),
        (&["check", "--window", "10"], "30s, 10m, 2h"),
        (&["check", "--fail-on", "fatal"], "critical"),
        (&["record", "--store", "--store-size", "8 apples"], "8GiB"),
        (&["record", "--store", "--store-size", "256"], "write 8GiB, 512MiB"),
        (&["watch", "--demo", "--speed", "-1"], "0.01"),
        (&["ps", "--demo", "--replay", "x"], "cannot be used with"),
        (&["ps", "--replay", short_demo(), "--gpu", "9"], "0, 1, 2, 3"),
        (&["ps", "--replay", short_demo(), "--user", "bne"], "ann, ben, "),
        (&["ps", "--demo", "--nvml-timeout", "never"], "30s"),
        (&["ps", "--replay", "/"], "is a directory"),
    ] {
        let output = run(arguments);
        assert_eq!(output.code, 2, "{arguments:?}: {output:?}");
        assert!(output.stderr.contains(hint), "{arguments:?}: {output:?}");
        assert_eq!(output.stdout, "", "{arguments:?}");
    }
}

#[test]
fn a_library_that_is_not_nvml_is_named_in_the_error() {
    let (_folder, path) = file(b"not an ELF file");
    let output = run(&["ps", "--nvml-library", path.to_str().unwrap()]);
    assert_eq!(output.code, 3);
    assert!(output.stderr.contains("cannot use") && output.stderr.contains("recording.jsonl"));
}

#[test]
fn without_a_readable_gpu_there_is_no_verdict() {
    let lost = Machine::new(&one_gpu(&[]).fault(Fault::error("*", 15)));
    for line in ["explain gpu:0 --no-store", "explain 4242 --no-store", "watch --once --no-store"] {
        lost.run_line(line).exits(3);
    }
    let none = Machine::new(&Scene::new());
    none.run(&["ps"]).exits(0);
    none.run(&["check", "--window", "0s"]).exits(3);
}

#[test]
fn the_verdict_decides_the_exit_code() {
    let idle = check(&corpus("idle_notebook_after_training-101"), &["--json"]).exits(1);
    let document = idle.json();
    assert_eq!(document["status"], "findings");
    assert_eq!(document["counts"]["warning"], 1);
    let finding = &document["findings"][0];
    assert_eq!(finding["kind"], "idle");
    assert_eq!(finding["process"]["pid"], 12385);
    assert!(finding["resolved_at"].is_null());

    assert_eq!(
        check(&corpus("idle_notebook_after_training-101"), &["--fail-on", "critical"]).code,
        0
    );
    check(&corpus("nohup_active-100"), &[]).exits(0);
    let quiet = check(&corpus("idle_shared_gpu-100"), &["--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (1, "", ""));
}

#[test]
fn standard_input_and_compressed_recordings_are_read() {
    let bytes = fs::read(corpus("idle_shared_gpu-100")).unwrap();
    support::finish_with_input(&mut support::command(&["check", "--replay", "-"]), &bytes).exits(1);
    let packed = zstd::encode_all(bytes.as_slice(), 3).unwrap();
    let (_folder, path) = file(&packed);
    assert_eq!(check(path.to_str().unwrap(), &[]).code, 1);
}

#[test]
fn control_characters_in_names_are_escaped() {
    let line = r#"{"schema":"gpumem.snapshot/1","time":"2025-12-04T08:15:38Z","gpus":[{"index":0,
        "name":"\u001b[2JGPU","memory":{"total_bytes":9,"used_bytes":5,"free_bytes":4},
        "processes":[{"pid":7,"type":"compute","used_bytes":5}]}],"processes":[{"pid":7,
        "start_ticks":1,"user":"a\nb","command":["\u001b]0;x\u0007\u202etxt.sh","two words"]}]}"#;
    let (_folder, path) = file(line.replace('\n', "").as_bytes());
    let output = run(&["ps", "--replay", path.to_str().unwrap()]).exits(0);
    assert!(!output.stdout.chars().any(|c| c.is_control() && c != '\n'), "{output:?}");
    assert!(output.stdout.contains(r"\e]0;x\u{7}\u{202e}txt.sh 'two words'"), "{output:?}");
}

#[test]
fn output_to_a_closed_pipe_ends_quietly() {
    for arguments in [&["ps", "--demo", "--json"][..], &["man"]] {
        let mut child = support::command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        child.wait().unwrap();
        assert_eq!(stderr, "", "{arguments:?}");
    }
}

#[test]
fn output_to_a_full_disk_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = support::command(&["man"]);
    let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("cannot write to standard output"), "{stderr}");
}

#[test]
fn ps_selects_and_sorts() {
    let one = run(&["ps", "--replay", short_demo(), "--json", "--gpu", "1"]).json();
    assert_eq!(one["gpus"].as_array().unwrap().len(), 1);
    let listed: Vec<_> =
        one["gpus"][0]["processes"].as_array().unwrap().iter().map(|row| &row["pid"]).collect();
    assert!(one["processes"].as_array().unwrap().iter().all(|process| {
        listed.contains(&&process["pid"])
                // nvidia-persistenced opens the device file of every GPU, but NVML lists it on none.
                || process["comm"] == "nvidia-persistenced"
                || process["command"][0].as_str().unwrap().ends_with("nvidia-persistenced")
    }));
    let sorted = run(&["ps", "--replay", short_demo(), "--sort", "memory"]).stdout;
    let position = |user: &str| sorted.find(&format!(" {user} ")).unwrap();
    assert!(position("ann") < position("ben"), "{sorted}");
    assert!(position("ben") < position("svc-llm"), "{sorted}");
    assert!(position("svc-llm") < position("gdm"), "{sorted}");
}

/// Runs `check` with a configuration on the recording of an idle notebook.
fn idle_notebook_under(toml: &str) -> Output {
    let (_folder, path) = file(toml.as_bytes());
    let recording = corpus("idle_notebook_after_training-101");
    let config = path.to_str().unwrap();
    run(&["check", "--config", config, "--replay", &recording])
}

#[test]
fn an_override_applies_only_to_matching_processes() {
    assert_eq!(idle_notebook_under("").code, 1);
    for (scope, code) in [("user=dora gpu:0 !framework:jax", 0), ("gpu:0 !user=dora", 1)] {
        let scope = format!("where = \"{scope}\"\nduration = \"2h\"");
        let output = idle_notebook_under(&format!("[[override]]\nrule = \"idle\"\n{scope}\n"));
        assert_eq!(output.code, code, "{scope}: {output:?}");
    }
    let worse = "[rules.idle]\nseverity = \"critical\"\n";
    assert!(idle_notebook_under(worse).stdout.contains("\ncritical: idle"));
}

#[test]
fn a_configuration_error_names_file_line_and_key() {
    let (_folder, path) = file(b"[rules.idle]\n\nduration = 10\n");
    let config = path.to_str().unwrap();
    for command in [&["config", "check", config][..], &["check", "--demo", "--config", config]] {
        let output = run(command).exits(2);
        assert!(
            output.stderr.contains(&format!("{config}:3: rules.idle.duration: ")),
            "{output:?}"
        );
    }
    assert_eq!(run(&["config", "check", "/nonexistent.toml"]).code, 2);
}
