//! For every recording of the corpus, the findings of `check` match the labels.

use std::fs;
use std::path::{Path, PathBuf};

use gpumem::api::model::Snapshot;
use serde_json::Value;

use crate::scenarios::judge;
use crate::scenarios::scenario::Labels;

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
        let found = judge::play(&snapshots(file), |_, _| ()).0;
        for complaint in judge::complaints(&Labels::read(trace), &found) {
            failures.push(format!("{file}: {complaint}; found {found:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(traces.len() >= 14, "labels are missing");
}
