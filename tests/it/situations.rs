//! Situations from public bug reports, as recordings: who is found, and what the printed plan ends.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::support::run;

const MIB: u64 = 1 << 20;

/// A recording, the exit status of `check`, its findings and who `reap` would end.
struct Situation {
    file: &'static str,
    code: i32,
    /// Kind and pid.
    found: &'static [(&'static str, u64)],
    ends: &'static [u64],
}

const SITUATIONS: &[Situation] = &[
    Situation { file: "container", code: 1, found: &[("idle", 9593)], ends: &[9593] },
    Situation { file: "sweep", code: 1, found: &[("orphan", 6001)], ends: &[6001] },
    Situation { file: "vllm-store", code: 1, found: &[("orphan", 10129)], ends: &[10129] },
    Situation { file: "zombie", code: 1, found: &[("stuck", 10078)], ends: &[] },
];

fn json(command: &str, file: &str, more: &[&str]) -> (i32, Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/situations");
    let path = path.join(format!("{file}.jsonl.zst"));
    let mut arguments = vec![command, "--replay", path.to_str().unwrap()];
    arguments.extend(["--config", "/dev/null", "--json"]);
    arguments.extend(more);
    let output = run(&arguments);
    (output.code, output.json())
}

fn found(report: &Value) -> Vec<(&str, u64)> {
    let findings = report["findings"].as_array().unwrap().iter();
    let kinds_and_pids = findings.map(|finding| {
        (finding["kind"].as_str().unwrap(), finding["process"]["pid"].as_u64().unwrap())
    });
    kinds_and_pids.collect()
}

fn ends(plan: &Value) -> BTreeSet<u64> {
    let targets = plan["targets"].as_array().unwrap().iter();
    let members = targets.flat_map(|target| target["members"].as_array().unwrap());
    members.map(|member| member["pid"].as_u64().unwrap()).collect()
}

#[test]
fn each_is_judged_correctly() {
    for Situation { file, code, found: expected, ends: ended } in SITUATIONS {
        let (exit, report) = json("check", file, &[]);
        assert_eq!((exit, found(&report)), (*code, expected.to_vec()), "{file}: {report:#}");
        let (_, plan) = json("reap", file, &["--dry-run"]);
        assert_eq!(ends(&plan), ended.iter().copied().collect(), "{file}: {plan:#}");
    }
}

#[test]
fn small_workers_of_one_job_are_found_together() {
    let (exit, report) = json("check", "many-small", &[]);
    let workers: Vec<(&str, u64)> = (5000..5024).map(|pid| ("idle", pid)).collect();
    assert_eq!((exit, found(&report)), (1, workers));
    assert_eq!(report["reclaimable"]["bytes"], 24 * 800 * MIB, "{report:#}");
    assert_eq!(ends(&json("reap", "many-small", &["--dry-run"]).1), (5000..5024).collect());
}
