//! The pages of `explain`: each is valid, and so is what it takes from the other formats.

use gpumem::api::model::{Gpu, Process, Time};
use gpumem::api::report::explain::{
    AdviceLine, ExplainReport, ExplainStep, FamilyLine, FrameworkPage, GpuBalance, GpuHolder,
    GpuPage, Kin, MemoryCurve, MemoryPoint, OnGpu, ProcessPage, RuleVerdict, SCHEMA, WhenPossible,
};
use gpumem::api::report::schema;
use serde_json::{Value, json};

use super::documents::{report, snapshot, text};
use super::{valid, validator};
use crate::machine::GIB;
use crate::support::run;

#[test]
fn every_page_is_valid_and_so_is_what_it_takes_from_other_formats() {
    let pages = validator(schema::EXPLAIN);
    let snapshots = validator(schema::SNAPSHOT);
    let checks = validator(schema::CHECK);
    let prove = |arguments: &[&str]| {
        let output = run(&[&["explain", "--json"], arguments].concat());
        assert_eq!(output.code, 0, "{output:?}");
        let page = output.json();
        valid(&pages, &page);
        let (process, gpu) = (&page["process"], &page["gpu"]);
        let mut snapshot = serde_json::to_value(snapshot()).unwrap();
        let mut check = report();
        for (part, whole) in [("process", process), ("device", gpu)] {
            if !whole.is_null() {
                let place = if part == "process" { "processes" } else { "gpus" };
                snapshot[place] = json!([whole[part]]);
                for list in ["findings", "pending", "kept", "undecided"] {
                    check[list] = whole[list].clone();
                }
            }
        }
        check["errors"] = page["errors"].clone();
        valid(&snapshots, &snapshot);
        valid(&checks, &check);
    };
    for target in ["398120", "leak", "2914", "gpu:0", "gpu:3"] {
        prove(&["--demo", target]);
    }
    for (recording, target) in [
        ("dead_pid_missing-100", "3456528"),
        ("unattributed_hidden_holder-100", "2656442"),
        ("unattributed_hidden_holder-100", "gpu:0"),
        ("orphan_dataloader_workers-101", "967097"),
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/corpus");
        let recording = format!("{folder}/{recording}.jsonl");
        prove(&["--replay", &recording, target]);
    }
    prove(&["--framework"]);
    prove(&["--framework", "pytorch"]);
    let mut broken = page();
    valid(&pages, &broken);
    broken["process"]["steps"][0]["moment"] = json!("later");
    assert!(!pages.is_valid(&broken));
}

/// A page on which nothing is unknown; what it takes from the other formats is proved by theirs, and is
/// empty here.
pub(super) fn page() -> Value {
    let holder = GpuHolder {
        pid: 8,
        name: "python".into(),
        user: text("ann"),
        listed: true,
        is_monitor: false,
        gpu_instance_id: Some(1),
        used_bytes: Some(GIB),
        sm_percent: Some(1),
    };
    let course = MemoryCurve {
        samples: 1,
        points: vec![MemoryPoint {
            since: Time::default(),
            until: Time::default(),
            low_bytes: 1,
            high_bytes: 2,
            last_bytes: 2,
        }],
        vouched_milliseconds: 0,
    };
    let step = ExplainStep {
        moment: WhenPossible::Now,
        text: "do".into(),
        source: Some("a page".into()),
        measured: Some("a script".into()),
    };
    let line = AdviceLine {
        text: "do".into(),
        source: "a page".into(),
        measured: Some("a script".into()),
    };
    let page = ExplainReport {
        schema: SCHEMA,
        time: Some(Time::default()),
        window_seconds: 1.0,
        process: Some(ProcessPage {
            name: "python".into(),
            framework_title: Some("PyTorch".into()),
            process: Process::default(),
            first_seen: Some(Time::default()),
            arrival_seen: true,
            runtime_seconds: Some(1.0),
            cpu_percent_mean: Some(1.0),
            gpus: vec![OnGpu {
                gpu: 0,
                uuid: text("GPU-0"),
                gpu_instance_id: Some(1),
                listed: true,
                used_bytes: Some(GIB),
                used_unavailable: text("why"),
                total_bytes: Some(GIB),
                unattributed_bytes: Some(GIB),
                sm_percent: Some(1),
                sm_percent_mean: Some(1.0),
                lifetime_percent: Some(1),
                lifetime_since: Some(Time::default()),
                unused_since: Some(Time::default()),
                course: course.clone(),
            }],
            kin: Kin {
                ties: vec!["one session".into()],
                launcher: None,
                members: vec![FamilyLine { depth: 1, holder: holder.clone() }],
            },
            verdict: RuleVerdict::default(),
            steps: vec![step.clone()],
            release: Some("gpumem release 1".into()),
        }),
        gpu: Some(GpuPage {
            device: Gpu::default(),
            balance: Some(GpuBalance {
                total_bytes: GIB,
                free_bytes: GIB,
                reserved_bytes: Some(0),
                processes_bytes: Some(0),
                unattributed_bytes: Some(0),
                unattributed_unknown: Some("why".into()),
            }),
            holders: vec![holder],
            unread_processes: Some(1),
            gpu_percent_mean: Some(1.0),
            course,
            verdict: RuleVerdict::default(),
            steps: vec![step],
        }),
        frameworks: vec![FrameworkPage {
            name: "pytorch".into(),
            title: "PyTorch".into(),
            takes: line.clone(),
            inside: vec![line.clone()],
            at_start: vec![line.clone()],
            unchanged: vec![line.clone()],
            at_end: vec![line],
        }],
        notes: vec!["short".into()],
        errors: Vec::new(),
    };
    let mut page = serde_json::to_value(page).unwrap();
    page["process"]["process"] = json!({});
    page["gpu"]["device"] = json!({});
    page
}
