//! Every recording of the corpus is judged as its labels say.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use gpumem::model::finding::{Action, Finding};
use gpumem::model::{Kind, Severity, Snapshot};
use gpumem::rules::{Engine, Settings};
use serde_json::Value;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus")
}

fn judge(file: &str) -> (Engine, Snapshot) {
    let mut engine = Engine::new(Settings::default());
    let mut last = None;
    for line in fs::read_to_string(corpus().join(file)).unwrap().lines() {
        let snapshot: Snapshot = serde_json::from_str(line).unwrap();
        engine.observe(&snapshot);
        last = Some(snapshot);
    }
    (engine, last.unwrap())
}

/// The pids that a list of labels names for a kind.
fn pids(labels: &Value, kind: &str) -> BTreeSet<u64> {
    labels
        .as_array()
        .unwrap()
        .iter()
        .filter(|label| label["kind"] == kind)
        .map(|label| label["process"].as_u64().unwrap())
        .collect()
}

#[test]
fn the_idle_are_found_and_nobody_else() {
    let labels = fs::read_to_string(corpus().join("labels.json")).unwrap();
    let labels: Value = serde_json::from_str(&labels).unwrap();
    let traces = labels["traces"].as_array().unwrap();
    let mut expected_in_all = 0;
    for trace in traces {
        let file = trace["file"].as_str().unwrap();
        let (engine, last) = judge(file);
        let idle: Vec<&Finding> = engine
            .findings()
            .iter()
            .filter(|finding| finding.kind == Kind::Idle)
            .collect();
        let found: BTreeSet<u64> = idle
            .iter()
            .map(|finding| finding.process.as_ref().unwrap().pid.into())
            .collect();
        let expected = pids(&trace["expected"], "idle");
        let allowed = pids(&trace["allowed"], "idle");
        expected_in_all += expected.len();
        assert!(expected.is_subset(&found), "{file}: {expected:?} missed");
        assert!(
            found
                .iter()
                .all(|pid| expected.contains(pid) || allowed.contains(pid)),
            "{file}: {found:?} accused"
        );
        for finding in idle {
            assert_eq!(finding.severity, Severity::Warning);
            assert!(finding.since <= last.time && finding.duration_seconds >= 600.0);
            let pid = finding.process.as_ref().unwrap().pid.to_string();
            assert!(
                trace["kill_ok"][&pid] == true || !finding.actions.contains(&Action::Terminate),
                "{file}: offers to end {pid}"
            );
        }
    }
    assert!(
        expected_in_all >= 2 && traces.len() >= 14,
        "the labels are there"
    );
}

#[test]
fn half_an_hour_and_more_leaves_nothing_undecided_but_what_is_unknown() {
    for (file, reasons) in [
        ("nohup_active-100.jsonl", &[][..]),
        ("idle_shared_gpu-100.jsonl", &[]),
        ("pid_reuse-100.jsonl", &[]),
        ("vllm_never_used-100.jsonl", &[]),
        ("dataloader_stall-101.jsonl", &[]),
        (
            "dead_pid_missing-100.jsonl",
            &["GPU 0 lists process 3456528, and who that is cannot be told for certain"],
        ),
    ] {
        let undecided = judge(file).0.undecided();
        let found: Vec<&str> = undecided.iter().map(|doubt| &*doubt.reason).collect();
        assert_eq!(found, reasons, "{file}");
    }
}
