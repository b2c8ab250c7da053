//! For every recording of the corpus, the findings of `check` match the labels.

use std::fs;
use std::path::{Path, PathBuf};

use gpumem::api::model::Snapshot;
use serde_json::Value;

use crate::scenarios::judge;
use crate::scenarios::scenario::Labels;
use crate::support::run;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus")
}

fn snapshots(file: &str) -> Vec<Snapshot> {
    let text = fs::read_to_string(corpus().join(file)).unwrap();
    let read = |line| serde_json::from_str(line).unwrap();
    text.lines().map(read).collect()
}

fn traces() -> Vec<Value> {
    let text = fs::read_to_string(corpus().join("labels.json")).unwrap();
    let labels: Value = serde_json::from_str(&text).unwrap();
    labels["traces"].as_array().unwrap().clone()
}

#[test]
fn findings_match_the_labels() {
    let mut failures = Vec::new();
    let traces = traces();
    for trace in &traces {
        let file = trace["file"].as_str().unwrap();
        let found = judge::play(&snapshots(file), 60.0).0;
        for complaint in judge::complaints(&Labels::read(trace), &found) {
            failures.push(format!("{file}: {complaint}; found {found:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(traces.len() >= 14, "labels are missing");
}

#[test]
fn a_finding_names_its_processs_start_and_gpus() {
    let mut compared = 0;
    for trace in traces() {
        let file = trace["file"].as_str().unwrap();
        let path = corpus().join(file);
        let output = run(&["check", "--replay", path.to_str().unwrap(), "--json"]);
        let report = output.json();
        let findings = report["findings"].as_array().unwrap();
        let lasting = || findings.iter().filter(|finding| finding["resolved_at"].is_null());
        let is_grave = |finding: &Value| finding["severity"] != "info";
        assert_eq!(output.code, i32::from(lasting().any(is_grave)), "{file}: {output:?}");
        for label in trace["expected"].as_array().unwrap() {
            let is_labelled = |finding: &&Value| {
                finding["kind"] == label["kind"] && finding["process"]["pid"] == label["process"]
            };
            // Skip missing findings, which `findings_match_the_labels` reports.
            let finding = lasting().find(is_labelled).filter(|_| label["process"].is_u64());
            let Some(finding) = finding else {
                continue;
            };
            assert_eq!(finding["process"]["start_time"], label["start_time"], "{file}");
            let gpus = finding["gpus"].as_array().unwrap().iter();
            let indexes: Vec<&Value> = gpus.map(|gpu| &gpu["index"]).collect();
            assert_eq!(
                indexes,
                label["gpus"].as_array().unwrap().iter().collect::<Vec<_>>(),
                "{file}"
            );
            compared += 1;
        }
    }
    assert!(compared >= 2, "{compared} findings compared");
}
