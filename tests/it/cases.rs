//! Recordings that rebuild situations from public bug reports, and what `check` and `reap` must do about them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{self, Output};

const MIB: u64 = 1 << 20;

fn check(name: &str) -> Output {
    let path = recording(name);
    support::run(&["check", "--replay", &path, "--config", "/dev/null"])
}

fn explain(name: &str, pid: &str) -> String {
    let path = recording(name);
    support::run(&["explain", pid, "--replay", &path, "--config", "/dev/null"]).exits(0).stdout
}

fn recording(name: &str) -> String {
    format!("{}/tests/data/cases/{name}.jsonl.zst", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn virtual_machines_are_not_idle_and_not_signalled() {
    let output = check("vgpu").exits(0);
    assert!(!output.stdout.contains("kill"), "{output:?}");
    let page = explain("vgpu", "911");
    assert!(page.contains("virtual machine") && page.contains("`virsh shutdown DOMAIN`"), "{page}");
    assert!(!page.contains("kill"), "{page}");
}

#[test]
fn a_program_under_supervisord_is_stopped_through_it() {
    let output = check("supervisord").exits(1);
    let stop = "supervisorctl stop comfy:comfy";
    assert!(output.stdout.contains(&format!("run: {stop}\n")), "{output:?}");
    assert!(!output.stdout.contains("kill"), "{output:?}");
    let page = explain("supervisord", "7100");
    assert!(page.contains(stop) && !page.contains("gpumem kill"), "{page}");
    let path = recording("supervisord");
    let plan = support::run(&["reap", "--replay", &path, "--config", "/dev/null"]).stdout;
    let (owner, signal) = (plan.find(stop).unwrap(), plan.find("SIGTERM").unwrap());
    assert!(owner < signal, "the owner comes first: {plan}");
}

/// A recording, and the expected exit code of `check`, findings, and pids in the plan of `reap`.
struct Case {
    file: &'static str,
    code: i32,
    /// Kinds and pids of the findings.
    found: &'static [(&'static str, u64)],
    ends: &'static [u64],
}

const CASES: &[Case] = &[
    Case { file: "container", code: 1, found: &[("idle", 9593)], ends: &[9593] },
    Case { file: "sweep", code: 1, found: &[("orphan", 6001)], ends: &[6001] },
    Case { file: "vllm-store", code: 1, found: &[("orphan", 10129)], ends: &[10129] },
    Case { file: "zombie", code: 1, found: &[("stuck", 10078)], ends: &[] },
];

fn json(command: &str, file: &str, more: &[&str]) -> (i32, Value) {
    let path = recording(file);
    let mut arguments = vec![command, "--replay", &path];
    arguments.extend(["--config", "/dev/null", "--json"]);
    arguments.extend(more);
    let output = support::run(&arguments);
    (output.code, output.json())
}

fn findings_of(report: &Value) -> Vec<(&str, u64)> {
    let findings = report["findings"].as_array().unwrap().iter();
    let kinds_and_pids = findings.map(|finding| {
        (finding["kind"].as_str().unwrap(), finding["process"]["pid"].as_u64().unwrap())
    });
    kinds_and_pids.collect()
}

fn planned_pids(plan: &Value) -> BTreeSet<u64> {
    let targets = plan["targets"].as_array().unwrap().iter();
    let members = targets.flat_map(|target| target["members"].as_array().unwrap());
    members.map(|member| member["pid"].as_u64().unwrap()).collect()
}

#[test]
fn each_recording_gives_the_expected_findings_and_plan() {
    for Case { file, code, found: expected, ends: ended } in CASES {
        let (exit, report) = json("check", file, &[]);
        assert_eq!((exit, findings_of(&report)), (*code, expected.to_vec()), "{file}: {report:#}");
        let (_, plan) = json("reap", file, &["--dry-run"]);
        assert_eq!(planned_pids(&plan), ended.iter().copied().collect(), "{file}: {plan:#}");
    }
}

#[test]
fn small_workers_of_one_job_are_grouped() {
    let (exit, report) = json("check", "many-small", &[]);
    let workers: Vec<(&str, u64)> = (5000..5024).map(|pid| ("idle", pid)).collect();
    assert_eq!((exit, findings_of(&report)), (1, workers));
    assert_eq!(report["reclaimable"]["bytes"], 24 * 800 * MIB, "{report:#}");
    // The text output combines similar findings into one paragraph: these findings, and the demo's three orphans.
    assert!(check("many-small").stdout.contains("idle: 24 processes, 18.8 GiB: 5000, 5001"));
    let demo = support::run(&["check", "--replay", support::short_demo()]).stdout;
    assert!(demo.contains("orphan: 3 processes, 1.4 GiB"), "{demo}");
    assert_eq!(planned_pids(&json("reap", "many-small", &["--dry-run"]).1), (5000..5024).collect());
}
