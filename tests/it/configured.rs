//! Named rules and exemptions in `check` and `config test`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{Output, run};

const NOTEBOOK: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/corpus/idle_notebook_after_training-101.jsonl"
);

fn run_with_config(toml: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, toml).unwrap();
    run(&[arguments, &["--config", path.to_str().unwrap()]].concat())
}

fn check(toml: &str) -> Output {
    run_with_config(toml, &["check", "--json", "--replay", NOTEBOOK])
}

fn lasting_rules(output: &Output) -> Vec<String> {
    let document = output.json();
    let findings = document["findings"].as_array().unwrap();
    let lasting = findings.iter().filter(|finding| finding["resolved_at"].is_null());
    lasting.map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_named_rule_applies_only_to_its_scope() {
    let off = "[rules.idle]\nenabled = false\n";
    let named = |scope: &str| format!("{off}[[rule]]\nname = \"naps\"\nkind = \"idle\"\n{scope}\n");
    for scope in ["", "where = \"user=dora notebook:.ipynb framework:pytorch mem>1GiB\""] {
        let output = check(&named(scope));
        assert_eq!(output.code, 1, "{scope}: {output:?}");
        assert_eq!(lasting_rules(&output), ["naps"], "{scope}");
    }
    for scope in ["where = \"user=dora framework:jax\"", "duration = \"5h\""] {
        let output = check(&named(scope));
        assert_eq!((output.code, lasting_rules(&output).len()), (0, 0), "{scope}: {output:?}");
    }
}

#[test]
fn an_exemption_protects_matching_processes_until_it_ends() {
    let keep = |rest: &str| format!("[[keep]]\nreason = \"thesis week\"\n{rest}\n");
    for (rest, code) in [
        ("where = \"user=dora\"", 0),
        ("where = \"user=ann\"", 1),
        ("where = \"user=dora\"\nkinds = [\"idle\"]", 0),
        // An exemption's end is compared with the time of the recording, which is in 2025 or later.
        ("where = \"user=dora\"\nuntil = 2020-01-01T00:00:00Z", 1),
        ("where = \"user=dora\"\nuntil = 2099-01-01T00:00:00Z", 0),
    ] {
        let output = check(&keep(rest));
        assert_eq!(output.code, code, "{rest}: {output:?}");
        assert_eq!(lasting_rules(&output).len(), code as usize, "{rest}");
        let document = output.json();
        let kept = document["kept"].as_array().unwrap();
        assert_eq!(kept.len(), 1 - code as usize, "{rest}");
        for kept in kept {
            assert_eq!(kept["reason"], "thesis week");
            assert_eq!(kept["finding"]["kind"], "idle");
        }
    }
}

#[test]
fn config_test_shows_each_rules_findings() {
    let toml = "[[rule]]\nname = \"long-naps\"\nkind = \"idle\"\nduration = \"5h\"\n\
         [[rule]]\nname = \"dora-naps\"\nkind = \"idle\"\nwhere = \"user=dora\"\nseverity = \"critical\"\n\
         [[rule]]\nname = \"off\"\nkind = \"idle\"\nenabled = false\n\
         [[keep]]\nwhere = \"user=dora\"\nrules = [\"dora-naps\"]\nreason = \"thesis week\"\n";
    let arguments = ["config", "test", "--replay", NOTEBOOK];
    let output = run_with_config(toml, &[&arguments[..], &["--json"]].concat()).exits(0);
    let document = output.json();
    assert_eq!(document["schema"], "gpumem.test/1");
    let events = document["events"].as_array().unwrap();
    let events_of = |rule: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["finding"]["rule"] == rule).collect()
    };
    let [began] = events_of("idle")[..] else { panic!("{document}") };
    assert_eq!((&began["event"], &began["kept"]), (&"began".into(), &Value::Null));
    assert_eq!(began["finding"]["severity"], "warning");
    let [kept] = events_of("dora-naps")[..] else { panic!("{document}") };
    assert_eq!(kept["kept"], "thesis week");
    assert_eq!(kept["time"], began["time"]);
    let summary = |rule: &str| {
        let rules = document["rules"].as_array().unwrap();
        rules.iter().find(|entry| entry["rule"] == rule).cloned()
    };
    assert_eq!(summary("idle").unwrap()["findings"], 1);
    assert_eq!(summary("long-naps").unwrap()["findings"], 0);
    assert_eq!(summary("off"), None);

    assert_eq!(run(&["config", "test"]).code, 2);
    assert_eq!(run(&["config", "test", "--demo"]).code, 0);
}

#[test]
fn a_finding_is_reported_when_its_exemption_ends() {
    let whole = run(&["config", "test", "--json", "--replay", NOTEBOOK]).json();
    let began = whole["events"][0]["time"].as_str().unwrap().to_owned();
    let end = whole["to"].as_str().unwrap().to_owned();
    // Let the exemption end one minute before the end of the recording.
    let minute = |time: &str| time[14..16].parse::<u32>().unwrap();
    assert!(minute(&end) >= 1, "{end}");
    let until = format!("{}{:02}{}", &end[..14], minute(&end) - 1, &end[16..]);
    assert!(began < until);
    let toml = format!("[[keep]]\nwhere = \"user=dora\"\nreason = \"thesis\"\nuntil = {until}\n");
    let trial = run_with_config(&toml, &["config", "test", "--json", "--replay", NOTEBOOK]).json();
    let events: Vec<(&str, bool)> = trial["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["event"].as_str().unwrap(), event["kept"].is_null()))
        .collect();
    assert_eq!(events, [("began", false), ("ended", false), ("began", true)]);
}

#[test]
fn config_test_shows_when_a_severity_changes() {
    let leak =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus/leak_linear-100.jsonl");
    let recording = fs::read_to_string(leak).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("near.jsonl");
    // Make the GPU nearly full in the first 20 minutes.
    let lines = recording.lines().enumerate().take(60).map(|(index, line)| {
        let mut snapshot: Value = serde_json::from_str(line).unwrap();
        let free: u64 = if index < 40 { 2 << 30 } else { 30 << 30 };
        snapshot["gpus"][0]["memory"]["free_bytes"] = free.into();
        snapshot.to_string() + "\n"
    });
    fs::write(&path, lines.collect::<String>()).unwrap();
    let trial = run(&["config", "test", "--json", "--replay", path.to_str().unwrap()]).json();
    let events: Vec<(&str, &str)> = trial["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["finding"]["rule"] == "leak")
        .map(|event| {
            (event["event"].as_str().unwrap(), event["finding"]["severity"].as_str().unwrap())
        })
        .collect();
    assert_eq!(events, [("began", "critical"), ("changed", "warning")]);
    let leak = trial["rules"].as_array().unwrap().iter().find(|entry| entry["rule"] == "leak");
    assert_eq!(leak.unwrap()["findings"], 1);
}
