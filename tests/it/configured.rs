//! Named rules and exemptions through the binary: proved, shown, tried, and judged by.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{Output, run};

const NOTEBOOK: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/corpus/idle_notebook_after_training-101.jsonl"
);

fn under(toml: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, toml).unwrap();
    run(&[arguments, &["--config", path.to_str().unwrap()]].concat())
}

fn check(toml: &str) -> Output {
    under(toml, &["check", "--json", "--replay", NOTEBOOK])
}

/// The rules of the findings that last.
fn found(output: &Output) -> Vec<String> {
    let document = output.json();
    let findings = document["findings"].as_array().unwrap();
    let lasting = findings.iter().filter(|it| it["resolved_at"].is_null());
    lasting.map(|it| it["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_named_rule_finds_under_its_own_name_and_only_in_its_scope() {
    let off = "[rules.idle]\nenabled = false\n";
    let named = |scope: &str| format!("{off}[[rule]]\nname = \"naps\"\nkind = \"idle\"\n{scope}\n");
    for scope in
        ["", "where = \"user=dora notebook:.ipynb framework:pytorch\"", "where = \"mem>1GiB\""]
    {
        let output = check(&named(scope));
        assert_eq!(output.code, 1, "{scope}: {output:?}");
        assert_eq!(found(&output), ["naps"], "{scope}");
    }
    for scope in [
        "where = \"user=ann\"",
        "where = \"user=dora framework:jax\"",
        "where = \"mem>1TiB\"",
        "where = \"container=docker\"",
        "where = \"gpu:7\"",
        "duration = \"5h\"",
    ] {
        let output = check(&named(scope));
        assert_eq!((output.code, found(&output).len()), (0, 0), "{scope}: {output:?}");
    }
}

#[test]
fn an_exemption_keeps_its_processes_until_it_ends() {
    let keep = |rest: &str| format!("[[keep]]\nreason = \"thesis week\"\n{rest}\n");
    for (rest, code) in [
        ("where = \"user=dora\"", 0),
        ("where = \"user=ann\"", 1),
        ("where = \"user=dora\"\nkinds = [\"idle\"]", 0),
        // By the clock of the recording, which is of 2025 or later, not of this machine.
        ("where = \"user=dora\"\nuntil = 2020-01-01T00:00:00Z", 1),
        ("where = \"user=dora\"\nuntil = 2099-01-01T00:00:00Z", 0),
        ("where = \"container=docker\"", 1),
        ("where = \"command:ipykernel*\"", 0),
        ("where = \"user=d?r*\"", 0),
        ("where = \"user=\\\"d*\\\"\"", 1),
    ] {
        let output = check(&keep(rest));
        assert_eq!(output.code, code, "{rest}: {output:?}");
        assert_eq!(found(&output).len(), code as usize, "{rest}");
        let document = output.json();
        let kept = document["kept"].as_array().unwrap();
        assert_eq!(kept.len(), 1 - code as usize, "{rest}");
        for kept in kept {
            assert_eq!(kept["reason"], "thesis week");
            assert_eq!(kept["finding"]["kind"], "idle");
        }
    }
    let text = under(&keep("where = \"user=dora\""), &["check", "--replay", NOTEBOOK]);
    assert!(text.stdout.contains("\nkept: idle: "), "{text:?}");
    assert!(text.stdout.contains("no findings, 1 kept by the configuration on 1 GPU"), "{text:?}");
}

#[test]
fn a_config_test_shows_what_each_rule_would_have_found_and_when() {
    let toml = "[[rule]]\nname = \"long-naps\"\nkind = \"idle\"\nduration = \"5h\"\n\
         [[rule]]\nname = \"dora-naps\"\nkind = \"idle\"\nwhere = \"user=dora\"\nseverity = \"critical\"\n\
         [[rule]]\nname = \"off\"\nkind = \"idle\"\nenabled = false\n\
         [[keep]]\nwhere = \"user=dora\"\nrules = [\"dora-naps\"]\nreason = \"thesis week\"\n";
    let arguments = ["config", "test", "--replay", NOTEBOOK];
    let output = under(toml, &[&arguments[..], &["--json"]].concat()).exits(0);
    let document = output.json();
    assert_eq!(document["schema"], "gpumem.test/1");
    let events = document["events"].as_array().unwrap();
    let of = |rule: &str| -> Vec<&Value> {
        events.iter().filter(|it| it["finding"]["rule"] == rule).collect()
    };
    let [began] = of("idle")[..] else { panic!("{document}") };
    assert_eq!((&began["event"], &began["kept"]), (&"began".into(), &Value::Null));
    assert_eq!(began["finding"]["severity"], "warning");
    let [kept] = of("dora-naps")[..] else { panic!("{document}") };
    assert_eq!(kept["kept"], "thesis week");
    assert_eq!(kept["time"], began["time"]);
    let summary = |rule: &str| {
        let rules = document["rules"].as_array().unwrap();
        rules.iter().find(|it| it["rule"] == rule).cloned()
    };
    assert_eq!(summary("idle").unwrap()["findings"], 1);
    assert_eq!(summary("long-naps").unwrap()["findings"], 0);
    assert_eq!(summary("off"), None);

    let text = under(toml, &arguments).stdout;
    for part in [
        " began: warning: idle: ",
        " began: critical: idle (rule dora-naps): ",
        "\n    kept: thesis week\n",
        "\nlong-naps: 0 findings\n",
        "\ndora-naps: 1 finding\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let without = run(&["config", "test"]);
    assert_eq!(without.code, 2);
    assert!(without.stderr.contains("--replay FILE, or --demo"), "{without:?}");
    assert_eq!(run(&["config", "test", "--demo"]).code, 0);
}

#[test]
fn a_finding_is_reported_from_when_its_exemption_ends() {
    let whole = run(&["config", "test", "--json", "--replay", NOTEBOOK]).json();
    let began = whole["events"][0]["time"].as_str().unwrap().to_owned();
    let end = whole["to"].as_str().unwrap().to_owned();
    // By the clock of the recording: a minute before its end.
    let minute = |time: &str| time[14..16].parse::<u32>().unwrap();
    assert!(minute(&end) >= 1, "{end}");
    let until = format!("{}{:02}{}", &end[..14], minute(&end) - 1, &end[16..]);
    assert!(began < until);
    let toml = format!("[[keep]]\nwhere = \"user=dora\"\nreason = \"thesis\"\nuntil = {until}\n");
    let trial = under(&toml, &["config", "test", "--json", "--replay", NOTEBOOK]).json();
    let events: Vec<(&str, bool)> = trial["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["event"].as_str().unwrap(), it["kept"].is_null()))
        .collect();
    assert_eq!(events, [("began", false), ("ended", false), ("began", true)]);
}

#[test]
fn a_config_test_shows_when_a_finding_becomes_worse_or_better() {
    let leak =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus/leak_linear-100.jsonl");
    let recording = fs::read_to_string(leak).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("near.jsonl");
    // Its GPU is nearly full, and has room again after 20 minutes.
    let lines = recording.lines().enumerate().take(60).map(|(at, line)| {
        let mut snapshot: Value = serde_json::from_str(line).unwrap();
        let free: u64 = if at < 40 { 2 << 30 } else { 30 << 30 };
        snapshot["gpus"][0]["memory"]["free_bytes"] = free.into();
        snapshot.to_string() + "\n"
    });
    fs::write(&path, lines.collect::<String>()).unwrap();
    let trial = run(&["config", "test", "--json", "--replay", path.to_str().unwrap()]).json();
    let events: Vec<(&str, &str)> = trial["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["finding"]["rule"] == "leak")
        .map(|it| (it["event"].as_str().unwrap(), it["finding"]["severity"].as_str().unwrap()))
        .collect();
    assert_eq!(events, [("began", "critical"), ("changed", "warning")]);
    let leak = trial["rules"].as_array().unwrap().iter().find(|it| it["rule"] == "leak");
    assert_eq!(leak.unwrap()["findings"], 1);
}

#[test]
fn dev_null_is_no_configuration_though_everybody_may_write_to_it() {
    for arguments in [&["check", "--demo"][..], &["config", "show"]] {
        let none = run(&[arguments, &["--config", "/dev/null"]].concat());
        assert_eq!((none.code, &*none.stderr), (run(arguments).code, ""), "{none:?}");
    }
}
