//! The published schemas: what gpumem writes is valid, what is broken is not, and they name exactly
//! the fields that are written.

mod explain;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use gpumem::model::evidence::*;
use gpumem::model::finding::{
    Action, Also, Finding, FindingGpu, FindingProcess, Kept, Pending, Undecided,
};
use gpumem::model::snapshot::*;
use gpumem::model::{Identity, Kind, Severity, Start, Time};
use gpumem::report::check::{Counts, Limit, LimitVerdict, Report, Status, WaitVerdict};
use gpumem::report::doctor::{self, Group, Topic, Verdict};
use gpumem::report::schema;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::support::run;

fn schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn validator(text: &str) -> Validator {
    let schema = schema(text);
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::draft202012::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap()
}

#[track_caller]
fn valid(validator: &Validator, document: &Value) {
    let errors: Vec<String> = validator
        .iter_errors(document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:?} in {document}");
}

fn corpus() -> Vec<std::path::PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/corpus");
    let files = fs::read_dir(folder).unwrap();
    let recordings: Vec<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect();
    assert!(recordings.len() >= 14);
    recordings
}

#[test]
fn they_are_printed_as_they_are_committed() {
    for (name, text) in [
        ("check", schema::CHECK),
        ("doctor", schema::DOCTOR),
        ("explain", schema::EXPLAIN),
        ("snapshot", schema::SNAPSHOT),
    ] {
        let printed = run(&["schema", name]);
        assert_eq!((printed.code, printed.stdout.as_str()), (0, text));
    }
    let unknown = run(&["schema", "findings"]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.stderr.contains("check, doctor, explain, snapshot"),
        "{unknown:?}"
    );
}

#[test]
fn every_snapshot_is_valid() {
    let validator = validator(schema::SNAPSHOT);
    for path in corpus() {
        for line in fs::read_to_string(path).unwrap().lines() {
            valid(&validator, &serde_json::from_str(line).unwrap());
        }
    }
    let mut demo =
        gpumem::source::replay::Replay::demo(gpumem::source::replay::Pace::AsFast).unwrap();
    while let Some(snapshot) = gpumem::source::Source::next(&mut demo).unwrap() {
        valid(&validator, &serde_json::to_value(snapshot).unwrap());
    }
    let child = Running::sleep();
    let machine = Machine::new(&one_gpu(&[child.pid(), 4_190_000]));
    valid(&validator, &machine.snapshot(0).0);
    let lost = one_gpu(&[]).fault(mock_nvml::scene::Fault::error("*", 15));
    valid(&validator, &Machine::new(&lost).snapshot(3).0);
}

#[test]
fn every_verdict_is_valid() {
    let validator = validator(schema::CHECK);
    let check = |arguments: &[&str]| {
        let output = run(&[&["check", "--json"], arguments].concat());
        valid(&validator, &output.json());
    };
    for path in corpus() {
        check(&[
            "--replay",
            path.to_str().unwrap(),
            "--max-used",
            "50%",
            "--max-unattributed",
            "0",
        ]);
    }
    check(&["--demo", "--fail-on", "info"]);
    check(&["--demo", "--wait-free", "1GiB", "--wait-free", "79GiB:0"]);
    check(&["--demo", "--gpu", "9"]);
    check(&["--rule", "idel"]);
    check(&["--jsn"]);
    check(&["--replay", "/nonexistent.jsonl"]);
    check(&["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    let lost = one_gpu(&[]).fault(mock_nvml::scene::Fault::error("*", 15));
    let output =
        Machine::new(&lost).run(&["check", "--json", "--window", "0s", "--max-used", "1%"]);
    assert_eq!(output.code, 3);
    valid(&validator, &output.json());
    valid(&validator, &report());
}

#[test]
fn every_diagnosis_is_valid() {
    let validator = validator(schema::DOCTOR);
    let none = run(&[
        "doctor",
        "--json",
        "--nvml-library",
        "/nonexistent/libnvidia-ml.so.1",
    ]);
    assert_eq!(none.code, 3, "{none:?}");
    valid(&validator, &none.json());
    let lost = mock_nvml::scene::Fault::error("*", 15).on(0);
    let one_lost = one_gpu(&[])
        .gpu(mock_nvml::scene::Gpu::default())
        .fault(lost);
    for scene in [one_gpu(&[7]), one_lost, one_gpu(&[]).init_error(18)] {
        valid(
            &validator,
            &Machine::new(&scene).run(&["doctor", "--json"]).json(),
        );
    }
    valid(&validator, &diagnosis());
}

#[test]
fn what_is_broken_is_not_valid() {
    let snapshots = validator(schema::SNAPSHOT);
    let checks = validator(schema::CHECK);
    let (snapshot, report) = (serde_json::to_value(snapshot()).unwrap(), report());
    let (doctors, diagnosis) = (validator(schema::DOCTOR), diagnosis());
    for (validator, whole, pointer, wrong) in [
        (&snapshots, &snapshot, "/schema", json!("gpumem.snapshot/2")),
        (&snapshots, &snapshot, "/time", json!(1_763_706_000)),
        (&snapshots, &snapshot, "/time", json!("yesterday")),
        (&snapshots, &snapshot, "/gpus", json!({})),
        (&snapshots, &snapshot, "/gpus/0/index", json!(-1)),
        (
            &snapshots,
            &snapshot,
            "/gpus/0/memory/used_bytes",
            json!(null),
        ),
        (
            &snapshots,
            &snapshot,
            "/gpus/0/memory/used_bytes",
            json!("5 GiB"),
        ),
        (
            &snapshots,
            &snapshot,
            "/gpus/0/processes/0/sm_percent",
            json!(-1),
        ),
        (
            &snapshots,
            &snapshot,
            "/gpus/0/mig_devices/0/memory",
            json!(7),
        ),
        (
            &snapshots,
            &snapshot,
            "/processes/0/command",
            json!("python train.py"),
        ),
        (
            &snapshots,
            &snapshot,
            "/processes/0/state",
            json!("sleeping"),
        ),
        (&snapshots, &snapshot, "/errors/0", json!({"gpu": 0})),
        (&checks, &report, "/schema", json!("gpumem.check/2")),
        (&checks, &report, "/status", json!("fine")),
        (&checks, &report, "/counts", json!({"info": 0})),
        (&checks, &report, "/findings/0/kind", json!("lazy")),
        (&checks, &report, "/findings/0/severity", json!("fatal")),
        (&checks, &report, "/findings/0/gpus/0/index", json!("0")),
        (&checks, &report, "/findings/0/evidence", json!({})),
        (&checks, &report, "/findings/0/also/0/evidence", json!({})),
        (&checks, &report, "/limits/0/exceeded", json!("yes")),
        (&checks, &report, "/wait/0/satisfied", json!(null)),
        (&checks, &report, "/errors/0", json!("it failed")),
        (&doctors, &diagnosis, "/schema", json!("gpumem.doctor/2")),
        (&doctors, &diagnosis, "/works", json!("yes")),
        (&doctors, &diagnosis, "/checks/0/id", json!("Two Words")),
        (&doctors, &diagnosis, "/checks/0/verdict", json!("fine")),
        (&doctors, &diagnosis, "/checks/0/seen", json!(null)),
        (&doctors, &diagnosis, "/checks/0/gpus/0", json!("0")),
        (&doctors, &diagnosis, "/checks/0/next", json!("reboot")),
    ] {
        valid(validator, whole);
        let mut broken = whole.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong.clone();
        assert!(!validator.is_valid(&broken), "{pointer} = {wrong}");
    }
    // A reader ignores what it does not know.
    let mut later = report.clone();
    later["findings"][0]["colour"] = json!("red");
    valid(&checks, &later);
}

/// The dotted names of all fields that a document holds; `[]` is each element.
fn written(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = format!("{path}.{name}");
                fields.insert(path.clone());
                // Its names are data.
                if name != "environment" {
                    written(value, &path, fields);
                }
            }
        }
        Value::Array(array) => {
            for value in array {
                written(value, &format!("{path}[]"), fields);
            }
        }
        _ => {}
    }
}

/// The same of a schema; every field has to say what it means.
fn described(root: &Value, schema: &Value, path: &str, fields: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#'));
        described(root, target.expect(reference), path, fields);
    }
    for part in ["allOf", "anyOf"] {
        for schema in schema[part].as_array().into_iter().flatten() {
            described(root, schema, path, fields);
        }
    }
    // What a kind's evidence holds; the kinds themselves are described already.
    if schema.get("then").is_some() {
        described(root, &schema["then"], path, fields);
    }
    if schema.get("items").is_some() {
        described(root, &schema["items"], &format!("{path}[]"), fields);
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let said = schema.to_string();
        assert!(
            said.contains("description") || said.contains("$ref"),
            "{path} is not described"
        );
        fields.insert(path.clone());
        described(root, schema, &path, fields);
    }
}

#[test]
fn they_name_exactly_the_fields_that_are_written() {
    for (text, document) in [
        (schema::SNAPSHOT, serde_json::to_value(snapshot()).unwrap()),
        (schema::CHECK, report()),
        (schema::DOCTOR, diagnosis()),
        (schema::EXPLAIN, explain::page()),
    ] {
        let schema = schema(text);
        let (mut is, mut said) = (BTreeSet::new(), BTreeSet::new());
        written(&document, "", &mut is);
        described(&schema, &schema, "", &mut said);
        let missing: Vec<_> = is.difference(&said).collect();
        let invented: Vec<_> = said.difference(&is).collect();
        assert!(missing.is_empty(), "not in the schema: {missing:?}");
        assert!(invented.is_empty(), "never written: {invented:?}");
        for (name, definition) in schema["$defs"].as_object().unwrap() {
            assert!(
                definition["description"].is_string(),
                "{name} is not described"
            );
        }
    }
}

fn text(text: &str) -> Option<Arc<str>> {
    Some(text.into())
}

/// A snapshot in which nothing is unknown. Without `..Default`: a new field does not compile here
/// until it is filled in, and then the schema has to know it.
fn snapshot() -> Snapshot {
    let memory = Memory {
        total_bytes: 80 * GIB,
        reserved_bytes: Some(GIB),
        used_bytes: 50 * GIB,
        free_bytes: 29 * GIB,
    };
    Snapshot {
        schema: Schema,
        time: Time::default(),
        host: Host {
            hostname: text("host"),
            boot_id: text("b"),
            kernel: text("6.12"),
            pid_namespace: Some(PidNamespace::Host),
            suspended_seconds: Some(0),
            unread_processes: Some(0),
        },
        driver: Driver {
            version: text("580"),
            nvml_version: text("13.580"),
            cuda_version: text("13.0"),
        },
        gpus: vec![Gpu {
            index: 0,
            uuid: text("GPU-0"),
            name: text("H200"),
            pci_bus_id: text("00000000:17:00.0"),
            minor_number: Some(0),
            memory: Some(memory),
            memory_unavailable: text("why"),
            process_memory_unavailable: text("why"),
            gpu_percent: Some(1),
            memory_percent: Some(1),
            temperature_celsius: Some(30),
            power_watts: Some(75.5),
            power_limit_watts: Some(700.0),
            sm_clock_mhz: Some(345),
            fan_percent: Some(40),
            performance_state: Some(0),
            compute_mode: text("default"),
            persistence_mode: Some(true),
            mig_mode: Some(true),
            mig_devices: vec![MigDevice {
                index: Some(0),
                gpu_instance_id: Some(1),
                compute_instance_id: Some(0),
                uuid: text("MIG-0"),
                profile: text("1g.10gb"),
                memory: Some(memory),
            }],
            stale_seconds: Some(1.5),
            processes: Some(vec![GpuProcess {
                pid: 7,
                kind: ProcessType::Compute,
                used_bytes: Some(GIB),
                sm_percent: Some(1),
                memory_percent: Some(1),
                encoder_percent: Some(0),
                decoder_percent: Some(0),
                gpu_instance_id: Some(1),
                compute_instance_id: Some(0),
            }]),
        }],
        processes: vec![Process {
            pid: 7,
            start_ticks: Some(1),
            start_time: Some(Time::default()),
            unresolved: text("why"),
            ppid: Some(1),
            process_group: Some(7),
            session: Some(7),
            parent_is_reaper: Some(true),
            group_leader_alive: Some(true),
            session_leader_alive: Some(true),
            state: Some('S'),
            namespace_pid: Some(1),
            parent: Some(Arc::new(Parent {
                pid: 1,
                start_ticks: Some(1),
                comm: text("torchrun"),
                command: Some(["torchrun".into()].into()),
            })),
            uid: Some(1000),
            user: text("ann"),
            comm: text("python"),
            command: Some(["python".into()].into()),
            environment: Some(Arc::new([("RANK".into(), "0".into())].into())),
            executable: text("/usr/bin/python3"),
            cpu_percent: Some(100.5),
            cpu_seconds: Some(3.5),
            rss_bytes: Some(1),
            threads: Some(1),
            terminal: text("pts/3"),
            listening: Some(false),
            gpu_files: Some(["/dev/nvidia0".into()].into()),
            framework: text("pytorch"),
            framework_version: text("2.9.1"),
            libraries: Some(["nccl".into()].into()),
            cgroup: text("/system.slice/docker-0123.scope"),
            container: Some(Arc::new(Container {
                runtime: text("docker"),
                id: text("0123"),
                name: text("trainer"),
            })),
            kubernetes: Some(Arc::new(Kubernetes {
                pod_uid: text("u"),
                pod_name: text("p"),
                namespace: text("n"),
                container_name: text("c"),
                qos: text("burstable"),
            })),
            slurm: Some(Arc::new(Slurm {
                job_id: text("12"),
                step_id: text("batch"),
                job_name: text("train"),
            })),
            systemd_unit: text("train.service"),
            jupyter: Some(Arc::new(Jupyter {
                application: text("jupyter"),
                kernel_id: text("k"),
                connection_file: text("/run/kernel-k.json"),
                server_url: text("http://127.0.0.1:8888/"),
                server_pid: Some(6),
                server_alive: Some(true),
                server_root: text("/home/ann"),
                server_error: text("why"),
                notebook_path: text("a.ipynb"),
                execution_state: text("idle"),
                last_activity: Some(Time::default()),
                connections: Some(1),
            })),
        }],
        errors: errors(),
    }
}

fn errors() -> Vec<ReadError> {
    vec![ReadError {
        gpu: Some(1),
        call: "nvmlDeviceGetMemoryInfo_v2".into(),
        error: "GPU is lost".into(),
    }]
}

/// Evidence of every kind in which nothing is unknown.
fn evidence(kind: Kind) -> Evidence {
    let samples = 3;
    match kind {
        Kind::Dead => Evidence::Dead(DeadEvidence {
            state: Some('Z'),
            samples,
        }),
        Kind::Stuck => Evidence::Stuck(StuckEvidence {
            state: 'D',
            samples,
        }),
        Kind::Orphan => Evidence::Orphan(OrphanEvidence {
            ppid: Some(1),
            process_group: Some(7),
            session_leader_alive: Some(false),
            unused_seconds: 130.0,
            cpu_percent_mean: Some(0.1),
            samples,
            listed: true,
            gpu_files: Some(vec!["/dev/nvidia0".into()]),
        }),
        Kind::Stopped => Evidence::Stopped(StoppedEvidence {
            state: 'T',
            samples,
            terminal: text("pts/3"),
        }),
        Kind::Hung => Evidence::Hung(HungEvidence {
            gpu_percent_min: 99,
            power_watts_mean: 100.5,
            power_watts_before: 600.5,
            memory_percent_mean: Some(0.5),
            memory_percent_before: Some(40.5),
            samples,
        }),
        Kind::Leak => Evidence::Leak(LeakEvidence {
            bytes_per_second: 1e6,
            bytes_per_second_low: 9e5,
            bytes_per_second_high: 2e6,
            span_seconds: 900.0,
            samples,
            grown_bytes: GIB,
            growing_share: 0.9,
            free_bytes: Some(GIB),
            out_of_memory_seconds: Some(1000.0),
            out_of_memory_seconds_low: Some(900.0),
            out_of_memory_seconds_high: Some(2000.0),
        }),
        Kind::Idle | Kind::ServerIdle => Evidence::Idle(IdleEvidence {
            sm_percent_max: Some(0),
            gpu_percent_max: Some(0),
            cpu_percent_mean: Some(0.1),
            samples,
            coverage: 1.0,
            last_activity: Some(Time::default()),
        }),
        Kind::StrayContext => Evidence::StrayContext(StrayContextEvidence {
            works_on: vec![1],
            samples,
        }),
        Kind::Hoard => Evidence::Hoard(HoardEvidence {
            first_bytes: 75 * GIB,
            share: 0.94,
            memory_percent_mean: Some(1.5),
            sm_percent_mean: Some(2.5),
            samples,
        }),
        Kind::Unattributed => Evidence::Unattributed(UnattributedEvidence {
            used_bytes: 11 * GIB,
            attributed_bytes: 0,
            unattributed_bytes: 11 * GIB,
            listed: 0,
            samples,
            holders: vec![Holder {
                pid: 9,
                user: text("ben"),
                name: "python".to_owned(),
            }],
        }),
        Kind::Pressure => Evidence::Pressure(PressureEvidence {
            free_bytes: GIB,
            total_bytes: 80 * GIB,
            samples,
        }),
    }
}

fn finding(kind: Kind) -> Finding {
    Finding {
        id: "idle:GPU-0:7:1".into(),
        rule: kind.name().into(),
        kind,
        severity: Severity::Warning,
        since: Time::default(),
        duration_seconds: 600.0,
        resolved_at: None,
        gpus: vec![FindingGpu {
            index: 0,
            uuid: text("GPU-0"),
            used_bytes: Some(GIB),
        }],
        process: Some(FindingProcess {
            pid: 7,
            start_ticks: Some(1),
            start_time: Some(Time::default()),
            user: text("ann"),
            command: Some(["python".into()].into()),
            identity: Identity {
                pid: 7,
                start: Start::Ticks(1),
            },
        }),
        memory_bytes: Some(GIB),
        evidence: evidence(kind),
        message: "python (7) has held 1.0 GiB".to_owned(),
        advice: vec!["end it".to_owned()],
        actions: vec![Action::Notify, Action::JupyterShutdown, Action::Terminate],
        also: vec![Also {
            rule: kind.name().into(),
            kind,
            severity: Severity::Info,
            since: Time::default(),
            evidence: evidence(kind),
            message: "python (7) is idle".to_owned(),
        }],
    }
}

/// A report with a finding of every kind, in which nothing is unknown.
fn report() -> Value {
    let findings: Vec<Finding> = Kind::ALL.into_iter().map(finding).collect();
    let report = Report {
        schema: gpumem::report::check::SCHEMA,
        time: Some(Time::default()),
        window_seconds: 600.0,
        status: Status::Findings,
        counts: Counts::of(&findings),
        findings,
        pending: vec![Pending {
            rule: "idle".into(),
            kind: Kind::Idle,
            pid: Some(7),
            gpu: 0,
            since: Time::default(),
            due: Time::default(),
        }],
        kept: Kind::ALL
            .into_iter()
            .map(|kind| Kept {
                finding: finding(kind),
                reason: "the demo of next week".into(),
                until: Some(Time::default()),
                certain: true,
            })
            .collect(),
        undecided: vec![Undecided {
            rule: "leak".into(),
            reason: "needs 900 s of history, has 600 s".to_owned(),
        }],
        limits: vec![LimitVerdict {
            limit: Limit::MaxUsed,
            gpu: 0,
            uuid: text("GPU-0"),
            limit_bytes: Some(GIB),
            actual_bytes: Some(2 * GIB),
            exceeded: Some(true),
        }],
        wait: vec![WaitVerdict {
            gpu: Some(0),
            uuid: text("GPU-0"),
            free_bytes: Some(GIB),
            wanted_bytes: GIB,
            satisfied: true,
            waited_seconds: 5.0,
        }],
        errors: errors(),
    };
    serde_json::from_str(&report.to_json().unwrap()).unwrap()
}

/// A diagnosis in which nothing is left out.
fn diagnosis() -> Value {
    let check = doctor::Check {
        id: Topic::Persistence,
        group: Group::Gpus,
        title: "persistence mode",
        gpus: vec![0, 1],
        verdict: Verdict::Limited,
        seen: "off".to_owned(),
        means: Some("each look takes longer".to_owned()),
        next: vec!["nvidia-smi -pm 1".to_owned()],
    };
    let report = doctor::Report {
        schema: doctor::SCHEMA,
        version: "1.0.0",
        works: true,
        summary: "gpumem can do its work here".to_owned(),
        checks: vec![check],
    };
    serde_json::from_str(&report.to_json().unwrap()).unwrap()
}
