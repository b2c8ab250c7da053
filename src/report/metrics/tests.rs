//! Tests the series on the metrics page.

use super::*;
use crate::model::finding::{Evidence, Kind, Severity};
use crate::model::snapshot::Slurm;
use crate::reclaim::testing;
use crate::rules::leak::LeakEvidence;

fn snapshot(json: &str) -> Snapshot {
    serde_json::from_str(json).unwrap()
}

fn page_of(snapshot: &Snapshot) -> String {
    page_with(snapshot, &[])
}

fn page_with(snapshot: &Snapshot, findings: &[Finding]) -> String {
    let mut reclaimable = Reclaimable::default();
    reclaimable.is_undecided = true;
    let input = MetricsInput {
        snapshot,
        findings,
        undecided: &[],
        reclaimable,
        waste: &Waste::default(),
        reclaimed: &Reclaimed::default(),
        idle_since: &|_, _| None,
        is_live: true,
    };
    page(&input)
}

fn samples<'p>(page: &'p str, metric: &str) -> Vec<&'p str> {
    page.lines()
        .filter_map(|line| line.strip_prefix(metric))
        .filter(|sample| !sample.starts_with('_'))
        .collect()
}

#[test]
fn unknown_values_are_absent_and_a_lost_gpu_is_down() {
    let snapshot = snapshot(
        r#"{"schema":"gpumem.snapshot/1","time":"2026-11-20T12:00:00Z","gpus":[
        {"index":0,"uuid":"GPU-a","memory":{"total_bytes":100,"used_bytes":40,"free_bytes":60},
         "processes":[{"pid":7,"type":"compute"},{"pid":8,"type":"compute","used_bytes":30,"sm_percent":50}]},
        {"index":1,"uuid":"GPU-b","power_watts":3},
        {"index":2,"uuid":"GPU-c","memory":{"total_bytes":100,"used_bytes":40,"free_bytes":60},
         "stale_seconds":20,"processes":[{"pid":9,"type":"compute","used_bytes":30}]}],
        "errors":[{"call":"nvmlDeviceGetMemoryInfo","gpu":1,"error":"lost"}]}"#,
    );
    let page = page_of(&snapshot);
    let up = samples(&page, "gpumem_gpu_up");
    let ends: Vec<&str> = up.iter().map(|sample| &sample[sample.len() - 3..]).collect();
    assert_eq!(ends, ["1.0", "0.0", "0.0"]);
    assert_eq!(samples(&page, "gpumem_gpu_memory_total_bytes").len(), 1);
    let parts = samples(&page, "gpumem_gpu_memory_bytes");
    assert_eq!(parts.len(), 1, "reserved and process memory are unknown: {parts:?}");
    assert!(samples(&page, "gpumem_gpu_power_watts").is_empty());
    let held = samples(&page, "gpumem_process_memory_bytes");
    assert_eq!(held.len(), 1);
    assert!(held[0].contains("pid=\"8\"") && held[0].ends_with(" 30.0"), "{held:?}");
    assert_eq!(samples(&page, "gpumem_process_utilization_ratio").len(), 1);
    let idle = samples(&page, "gpumem_process_idle_seconds");
    assert!(idle.len() == 1 && idle[0].ends_with("\"} 0.0"), "{idle:?}");
    assert!(samples(&page, "gpumem_reclaimable_memory_bytes").is_empty());
    assert_eq!(samples(&page, "gpumem_sample_errors"), ["{call=\"nvmlDeviceGetMemoryInfo\"} 1.0"]);
    assert_eq!(samples(&page, "gpumem_last_sample_timestamp_seconds"), [" 1795176000.0"]);
}

#[test]
fn names_are_truncated_and_escaped_without_arguments() {
    let name = "é\\\"\\n".repeat(20);
    let json = format!(
        r#"{{"schema":"gpumem.snapshot/1","time":"2026-11-20T12:00:00Z","gpus":[{{"index":0,
        "memory":{{"total_bytes":100,"used_bytes":40,"free_bytes":60}},
        "processes":[{{"pid":7,"type":"compute","used_bytes":30}}]}}],
        "processes":[{{"pid":7,"start_ticks":1,"executable":"/opt/{name}","command":["x","--password=hunter2"]}}]}}"#
    );
    let page = page_of(&snapshot(&json));
    let held = samples(&page, "gpumem_process_memory_bytes");
    assert_eq!(held.len(), 1, "line breaks are escaped: {page}");
    assert!(held[0].contains(r#"command="é\"\né\"\n"#), "{held:?}");
    let command = held[0].split("command=\"").nth(1).unwrap().split("\",slurm_job").next().unwrap();
    assert!(command.replace("\\n", "\n").replace("\\\"", "\"").len() <= NAME_BYTES_MAX);
    assert!(!page.contains("hunter2"));
}

#[test]
fn process_series_are_limited_and_the_rest_is_summed() {
    let mut snapshot = snapshot(
        r#"{"schema":"gpumem.snapshot/1","time":"2026-11-20T12:00:00Z","gpus":[{"index":0,
        "memory":{"total_bytes":100,"used_bytes":40,"free_bytes":60},"processes":[]}]}"#,
    );
    let row: GpuProcess =
        serde_json::from_str(r#"{"pid":1,"type":"compute","used_bytes":1}"#).unwrap();
    let rows = (1..=10_000).map(|pid| {
        let mut row = row;
        (row.pid, row.used_bytes) = (pid, Some(u64::from(pid)));
        row
    });
    snapshot.gpus[0].processes = Some(rows.collect());
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    let all = (10_000.0 * 10_001.0) / 2.0;
    // The sums for each user and job are exact, although only the largest processes have their own series.
    let owned = |pid: u32| Process {
        pid,
        start_ticks: Some(1),
        user: Some(["ann", "ben", "chen"][pid as usize % 3].into()),
        slurm: pid
            .is_multiple_of(2)
            .then(|| Slurm { job_id: Some("812".into()), ..Slurm::default() }.into()),
        ..Process::default()
    };
    snapshot.processes = (1..=10_000).map(owned).collect();
    let grouped = page_of(&snapshot);
    let held = samples(&grouped, "gpumem_process_memory_bytes");
    assert_eq!(held.len(), PROCESSES_MAX + 6);
    assert_eq!(samples(&grouped, "gpumem_process_series_dropped"), [" 9488.0"]);
    let sum_of = |label: &str| {
        held.iter().filter(|line| line.contains(label)).map(|line| value(line)).sum::<f64>()
    };
    let users = ["ann", "ben", "chen"].map(|user| sum_of(&format!("user=\"{user}\"")));
    assert_eq!(users, [3, 1, 2].map(|first| f64::from((first..=10_000).step_by(3).sum::<u32>())));
    assert_eq!(sum_of("slurm_job=\"812\""), 5_000.0 * 5_001.0);
    // If each process has a different user, the number of series is limited as well.
    for process in &mut snapshot.processes {
        process.user = Some(format!("u{}", process.pid).into());
    }
    let page = page_of(&snapshot);
    let held = samples(&page, "gpumem_process_memory_bytes");
    assert_eq!(held.len(), 2 * PROCESSES_MAX + 1);
    assert_eq!(held.iter().map(|line| value(line)).sum::<f64>(), all);
    assert!(held.iter().any(|line| line.contains("user=\"(others)\"")));
}

#[test]
fn a_process_in_two_mig_instances_has_two_series() {
    let snapshot = snapshot(
        r#"{"schema":"gpumem.snapshot/1","time":"2026-11-20T12:00:00Z","gpus":[{"index":0,
        "memory":{"total_bytes":100,"used_bytes":40,"free_bytes":60},"mig_devices":[{"index":3,"gpu_instance_id":1,
        "compute_instance_id":0,"uuid":"MIG-1","profile":"1g.5gb","memory":{"total_bytes":50,"used_bytes":6,"free_bytes":44}}],
        "processes":[
        {"pid":7,"type":"compute","used_bytes":5,"gpu_instance_id":1,"compute_instance_id":0},
        {"pid":7,"type":"compute","used_bytes":6,"gpu_instance_id":2,"compute_instance_id":0}]}]}"#,
    );
    let mut finding = testing::finding(Kind::Idle, &Process { pid: 7, ..Process::default() });
    finding.gpus = vec![FindingGpu { index: 0, uuid: None, used_bytes: Some(11) }];
    let page = page_with(&snapshot, &[finding]);
    let held = samples(&page, "gpumem_process_memory_bytes");
    assert_eq!(held.len(), 2);
    assert!(held[0].contains("mig=\"0:gi2/ci0\"") && held[1].contains("mig=\"0:3\""), "{held:?}");
    let active = samples(&page, "gpumem_finding_active");
    assert!(active[0].contains("mig=\"0:3,0:gi2/ci0\""), "{active:?}");
    let device = r#"gpu="0",uuid="",mig="0:3""#;
    let info = format!("{{{device},mig_uuid=\"MIG-1\",profile=\"1g.5gb\"}} 1.0");
    assert_eq!(samples(&page, "gpumem_mig_info"), [info]);
    assert_eq!(samples(&page, "gpumem_mig_memory_total_bytes"), [format!("{{{device}}} 50.0")]);
    let parts = [("free", 44), ("used", 6)]
        .map(|(part, bytes)| format!("{{{device},part=\"{part}\"}} {bytes}.0"));
    assert_eq!(samples(&page, "gpumem_mig_memory_bytes"), parts);
}

#[test]
fn labels_name_the_pod_and_use_the_uid_without_a_user_name() {
    let snapshot = snapshot(
        r#"{"schema":"gpumem.snapshot/1","time":"2026-11-20T12:00:00Z","gpus":[{"index":0,
        "memory":{"total_bytes":100,"used_bytes":40,"free_bytes":60},"processes":[
        {"pid":7,"type":"compute","used_bytes":6},{"pid":8,"type":"compute","used_bytes":5}]}],
        "processes":[{"pid":7,"start_ticks":1,"uid":1000,"kubernetes":{"pod_uid":"u","pod_name":"bert-0",
        "namespace":"train","container_name":"main","qos":"burstable"}},
        {"pid":8,"start_ticks":1,"uid":0,"user":"root"}]}"#,
    );
    let mut finding = testing::finding(Kind::Idle, &snapshot.processes[0]);
    finding.gpus = vec![FindingGpu { index: 0, uuid: None, used_bytes: Some(6) }];
    let page = page_with(&snapshot, &[finding]);
    let pod = r#"pod="bert-0",namespace="train",container="main""#;
    let held = samples(&page, "gpumem_process_memory_bytes");
    assert!(held[0].contains("user=\"1000\"") && held[0].contains(pod), "{held:?}");
    assert!(held[1].contains("user=\"root\""), "{held:?}");
    assert!(held[1].contains(r#"pod="",namespace="",container="""#), "{held:?}");
    let active = samples(&page, "gpumem_finding_active");
    assert!(active[0].contains("user=\"1000\"") && active[0].contains(pod), "{active:?}");
}

#[test]
fn finding_series_are_limited_to_the_worst_findings() {
    let snapshot =
        snapshot(r#"{"schema":"gpumem.snapshot/1","time":"2026-11-20T12:00:00Z","gpus":[]}"#);
    let finding = |pid: u32| {
        let mut finding = testing::finding(Kind::Idle, &Process { pid, ..Process::default() });
        let used_bytes = Some(u64::from(pid));
        (finding.memory_bytes, finding.severity) = (used_bytes, Severity::Warning);
        finding.gpus = vec![FindingGpu { index: 0, uuid: None, used_bytes }];
        finding
    };
    let mut findings: Vec<Finding> = (1..=10_000).map(finding).collect();
    findings[0].severity = Severity::Critical;
    let page = page_with(&snapshot, &findings);
    let active = samples(&page, "gpumem_finding_active");
    assert_eq!(active.len(), FINDINGS_MAX);
    assert!(active[0].contains("pid=\"1\"") && active[1].contains("pid=\"10000\""));
    assert_eq!(samples(&page, "gpumem_finding_series_dropped"), [" 9488.0"]);
}

#[test]
fn equal_labels_are_one_series_and_a_two_gpu_leak_has_no_rate() {
    let snapshot =
        snapshot(r#"{"schema":"gpumem.snapshot/1","time":"2026-11-20T12:00:00Z","gpus":[]}"#);
    let mut leak = testing::finding(Kind::Leak, &Process { pid: 7, ..Process::default() });
    leak.evidence = Evidence::new(LeakEvidence {
        bytes_per_second: 5.0,
        span_seconds: 1500.0,
        samples: 300,
        grown_bytes: 7500,
        free_bytes: Some(50),
        out_of_memory_seconds: Some(10.0),
    });
    let figures = |findings: &[Finding]| {
        let page = page_with(&snapshot, findings);
        ["gpumem_finding_active", "gpumem_leak_bytes_per_second", "gpumem_oom_eta_seconds"]
            .map(|metric| samples(&page, metric).len())
    };
    assert_eq!(figures(&[leak.clone(), leak.clone()]), [1, 1, 1]);
    leak.gpus.push(FindingGpu { index: 1, ..leak.gpus[0].clone() });
    assert_eq!(figures(&[leak]), [2, 0, 0]);
}
