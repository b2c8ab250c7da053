//! Documents in which nothing is unknown: filled in by hand, so that a new field has to be filled in here
//! too, and the schema has to know it.

use std::sync::Arc;

use gpumem::api::model::*;
use gpumem::api::model::{
    Action, Also, Descendants, Evidence, Finding, FindingGpu, FindingProcess, Identity, Kept,
    KeptBy, Kind, Pending, Relation, Relative, Severity, Start, Time, Undecided,
};
use gpumem::api::report::check::{
    CheckOutcome, CheckReport, Counts, Limit, LimitVerdict, WaitVerdict,
};
use gpumem::api::report::doctor::{self, CheckGroup, CheckStatus, Topic};
use gpumem::api::rules::{
    DeadEvidence, DeviceFileHolder, HoardEvidence, HungEvidence, IdleEvidence, LeakEvidence,
    OrphanEvidence, PlaceholderEvidence, PressureEvidence, ReservedEvidence, SlowingEvidence,
    StoppedEvidence, StrayContextEvidence, StuckEvidence, UnattributedEvidence,
};
use gpumem::api::units::Span;
use serde_json::Value;

use crate::machine::GIB;

pub(super) fn text(text: &str) -> Option<Arc<str>> {
    Some(text.into())
}

/// A snapshot in which nothing is unknown. Without `..Default`: a new field does not compile here
/// until it is filled in, and then the schema has to know it.
pub(super) fn snapshot() -> Snapshot {
    let memory = Memory {
        total_bytes: 80 * GIB,
        reserved_bytes: Some(GIB),
        used_bytes: 50 * GIB,
        free_bytes: 29 * GIB,
    };
    let mut snapshot = Snapshot {
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
            memory_limit_bytes: Some(40 * GIB),
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
            accounting_mode: Some(true),
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
            sampled_seconds: Some(10.0),
            processes: Some(vec![GpuProcess {
                pid: 7,
                kind: ProcessType::Compute,
                used_bytes: Some(GIB),
                sm_percent: Some(1),
                memory_percent: Some(1),
                encoder_percent: Some(0),
                decoder_percent: Some(0),
                lifetime_percent: Some(1),
                lifetime_since: Some(Time::default()),
                gpu_instance_id: Some(1),
                compute_instance_id: Some(0),
            }]),
        }],
        processes: vec![Process {
            asked: Some(Arc::new(AskedRelease {
                since: Time::default(),
                until: Time::default(),
                last_activity: Some(Time::default()),
            })),
            pid: 7,
            start_ticks: Some(1),
            start_time: Some(Time::default()),
            unresolved: text("why"),
            last_known: Some(Arc::new(LastKnown {
                start_ticks: Some(1),
                start_time: Some(Time::default()),
                user: text("ann"),
                comm: text("python"),
                command: Some(["python".into()].into()),
            })),
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
            listening: Some(true),
            sockets: Some(2),
            io_bytes: Some(4300),
            listening_on: Some(["tcp:0.0.0.0:8000".into()].into()),
            listening_relatives: Some(
                [Relative {
                    start_ticks: Some(300),
                    pid: 1,
                    relation: Relation::Ancestor,
                    command: Some(["uvicorn".into()].into()),
                    listening_on: ["unix:/run/x".into()].into(),
                }]
                .into(),
            ),
            descendants: Some(Arc::new(Descendants {
                count: Some(2),
                cpu_percent: Some(100.5),
                cpu_seconds: Some(3.5),
                listed: vec![8],
            })),
            gpu_files: Some(["/dev/nvidia0".into()].into()),
            framework: text("pytorch"),
            framework_version: text("2.9.1"),
            libraries: Some(["nccl".into()].into()),
            cgroup: text("/system.slice/docker-0123.scope"),
            container: Some(Arc::new(Container {
                runtime: text("docker"),
                namespace: text("moby"),
                user: text("ann"),
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
                array_job_id: text("11"),
                array_task_id: text("1"),
                over: Some(true),
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
                asking: Some(true),
                notebook_path: text("a.ipynb"),
                execution_state: text("idle"),
                last_activity: Some(Time::default()),
                connections: Some(1),
            })),
        }],
        reservations: None,
        errors: errors(),
    };
    let of = snapshot.processes[0].clone();
    let reservation = Reservation {
        pid: of.pid,
        since: of.start_time,
        user: of.user,
        slurm: of.slurm,
        container: of.container,
        kubernetes: of.kubernetes,
        variable: "SLURM_JOB_GPUS".into(),
        devices: ["0".into()].into(),
    };
    snapshot.reservations = Some([reservation].into());
    snapshot
}

pub(super) fn errors() -> Vec<ReadError> {
    vec![ReadError {
        gpu: Some(1),
        call: "nvmlDeviceGetMemoryInfo_v2".into(),
        error: "GPU is lost".into(),
    }]
}

/// Evidence of every kind in which nothing is unknown.
pub(super) fn evidence(kind: Kind) -> Evidence {
    let samples = 3;
    match kind {
        Kind::Dead => Evidence::new(DeadEvidence { state: Some('Z'), samples }),
        Kind::Stuck => Evidence::new(StuckEvidence { state: 'D', samples }),
        Kind::Orphan => Evidence::new(OrphanEvidence {
            ppid: Some(1),
            process_group: Some(7),
            server_gone: false,
            session_leader_alive: Some(false),
            unused_seconds: 130.0,
            cpu_percent_mean: Some(0.1),
            samples,
            listed: true,
            gpu_files: Some(vec!["/dev/nvidia0".into()]),
        }),
        Kind::Stopped => {
            Evidence::new(StoppedEvidence { state: 'T', samples, terminal: text("pts/3") })
        }
        Kind::Hung => Evidence::new(HungEvidence {
            gpu_percent_min: 99,
            power_watts_mean: 100.5,
            power_watts_before: 600.5,
            memory_percent_mean: Some(0.5),
            memory_percent_before: Some(40.5),
            samples,
        }),
        Kind::Leak => Evidence::new(LeakEvidence {
            bytes_per_second: 1e6,
            bytes_per_second_low: 9e5,
            bytes_per_second_high: 2e6,
            span_seconds: 900.0,
            samples,
            grown_bytes: GIB,
            growing_share: 0.9,
            stopped_seconds: Some(300.0),
            free_bytes: Some(GIB),
            out_of_memory_seconds: Some(1000.0),
            out_of_memory_seconds_low: Some(900.0),
            out_of_memory_seconds_high: Some(2000.0),
            slowing: Some(SlowingEvidence { curve: "power", power: Some(0.5), error_share: 0.004 }),
        }),
        Kind::Placeholder => Evidence::new(PlaceholderEvidence {
            program: text("keep-gpu"),
            bursts: Some(60),
            period_seconds: Some(60.0),
            power_percent_max: Some(30.0),
            samples,
        }),
        Kind::Idle | Kind::ServerIdle => Evidence::new(IdleEvidence {
            sm_percent_max: Some(0),
            gpu_percent_max: Some(0),
            cpu_percent_mean: Some(0.1),
            samples,
            coverage: 1.0,
            last_activity: Some(Time::default()),
            busy_seconds: Some(7200.0),
        }),
        Kind::StrayContext => Evidence::new(StrayContextEvidence { works_on: vec![1], samples }),
        Kind::Hoard => Evidence::new(HoardEvidence {
            first_bytes: 75 * GIB,
            share: 0.94,
            memory_percent_mean: Some(1.5),
            sm_percent_mean: Some(2.5),
            samples,
        }),
        Kind::Reserved => Evidence::new(ReservedEvidence {
            holder: "Slurm job 7".into(),
            user: text("ann"),
            pid: 7,
            variable: "SLURM_JOB_GPUS".into(),
            devices: vec!["0".into()],
            given_at: Time::default(),
            samples,
        }),
        Kind::Unattributed => Evidence::new(UnattributedEvidence {
            used_bytes: 11 * GIB,
            attributed_bytes: 0,
            unattributed_bytes: 11 * GIB,
            listed: 0,
            samples,
            holders: vec![DeviceFileHolder {
                pid: 9,
                user: text("ben"),
                name: "python".to_owned(),
            }],
        }),
        Kind::Pressure => {
            Evidence::new(PressureEvidence { free_bytes: GIB, total_bytes: 80 * GIB, samples })
        }
    }
}

pub(super) fn finding(kind: Kind) -> Finding {
    Finding {
        id: "idle:GPU-0:7:1".into(),
        rule: kind.name().into(),
        kind,
        severity: Severity::Warning,
        since: Time::default(),
        duration_seconds: 600.0,
        resolved_at: None,
        gpus: vec![FindingGpu { index: 0, uuid: text("GPU-0"), used_bytes: Some(GIB) }],
        process: Some(FindingProcess {
            pid: 7,
            start_ticks: Some(1),
            start_time: Some(Time::default()),
            user: text("ann"),
            command: Some(["python".into()].into()),
            identity: Identity { pid: 7, start: Start::Ticks(1) },
        }),
        memory_bytes: Some(GIB),
        evidence: evidence(kind),
        message: "python (7) has held 1.0 GiB".to_owned(),
        advice: vec!["end it".to_owned()],
        actions: vec![Action::Notify, Action::JupyterShutdown, Action::Terminate],
        commands: vec!["gpumem kill 4242".to_owned()],
        also: vec![Also {
            rule: kind.name().into(),
            kind,
            severity: Severity::Info,
            since: Time::default(),
            evidence: evidence(kind),
            message: "python (7) is idle".to_owned(),
        }],
        skipped: Some("why".into()),
        kept_by: Some(match kind {
            Kind::Orphan => KeptBy::Program { name: "init".into() },
            Kind::Stopped => {
                KeptBy::Configuration { reason: "nightly".into(), until: Some(Time::default()) }
            }
            _ => KeptBy::Owner { until: Some(Time::default()) },
        }),
    }
}

/// A suspect of which everything is known.
fn suspect() -> Suspect {
    let of = finding(Kind::Idle);
    Suspect {
        rule: of.rule,
        kind: of.kind,
        process: of.process.unwrap(),
        gpus: of.gpus,
        memory_bytes: of.memory_bytes,
        since: of.since,
        seen_seconds: 12.0,
        needed_seconds: 600.0,
        due: Time::default(),
        evidence: SuspectEvidence {
            samples: 3,
            sm_percent_max: Some(0),
            gpu_percent_max: Some(0),
            cpu_seconds: Some(3480.0),
            age_seconds: Some(432_000.0),
            lifetime_percent: Some(1),
            lifetime_seconds: Some(432_000.0),
            last_activity: Some(Time::default()),
            inactive_seconds: Some(10_800.0),
            state: Some('T'),
            job_gone: Some(true),
        },
        mark: SeenSoFar { kind: of.kind, seconds: 12, needed: Span::from_seconds(600.0) },
        message: "python (7) holds 1.0 GiB on GPU 0 and looks idle".into(),
        missing: StillMissing { seconds: 588, is_witnessed: true },
        command: "gpumem check --rule idle --window 10m5s".into(),
    }
}

/// A report with a finding of every kind, in which nothing is unknown.
pub(super) fn report() -> Value {
    let findings: Vec<Finding> = Kind::ALL.iter().copied().map(finding).collect();
    let report = CheckReport {
        schema: gpumem::api::report::check::SCHEMA,
        time: Some(Time::default()),
        window_seconds: 600.0,
        status: CheckOutcome::Findings,
        counts: Counts::of(&findings),
        reclaimable: Reclaimable::new(findings.iter(), [].iter(), 600.0),
        rules_applied: true,
        findings,
        suspects: vec![suspect()],
        pending: vec![Pending {
            rule: "idle".into(),
            kind: Kind::Idle,
            pid: Some(7),
            gpu: 0,
            since: Time::default(),
            due: Time::default(),
        }],
        kept: Kind::ALL
            .iter()
            .copied()
            .map(|kind| Kept {
                finding: finding(kind),
                reason: "the demo of next week".into(),
                until: Some(Time::default()),
                certain: true,
            })
            .collect(),
        undecided: vec![Undecided {
            rule: "leak".into(),
            pid: Some(7),
            gpu: Some(0),
            reason: "can tell in 5m 00s: it needs 15m of history".to_owned(),
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
    serde_json::from_str(&document(&report).unwrap()).unwrap()
}

/// A diagnosis in which nothing is left out.
pub(super) fn diagnosis() -> Value {
    let check = doctor::DoctorCheck {
        id: Topic::Persistence,
        group: CheckGroup::Gpus,
        title: "persistence mode",
        gpus: vec![0, 1],
        verdict: CheckStatus::Limited,
        seen: "off".to_owned(),
        means: Some("each look takes longer".to_owned()),
        next: vec!["nvidia-smi -pm 1".to_owned()],
    };
    let report = doctor::DoctorReport {
        schema: doctor::SCHEMA,
        version: "1.0.0",
        works: true,
        summary: "gpumem can do its work here".to_owned(),
        checks: vec![check],
    };
    serde_json::from_str(&document(&report).unwrap()).unwrap()
}
