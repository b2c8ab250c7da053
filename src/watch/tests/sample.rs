//! Plausible snapshots for tests.

pub mod dice;

use std::sync::Arc;

use crate::history::memory_series::AllSeries;
use crate::model::finding::{Evidence, Finding, FindingGpu, Kind};
use crate::model::snapshot::{
    Container, Gpu, GpuProcess, Memory, MigDevice, Process, ReadError, Snapshot,
};
use crate::model::time::Time;
use crate::reclaim::target::{MemberGpu, Reason, Recipients, Step, TargetProcess};
use crate::reclaim::worker::Proposal;
use crate::reclaim::{Plan, Signal, Target, testing};
use crate::rules::idle::IdleEvidence;
use crate::units::{GIB, MIB};

const COMMANDS: [&[&str]; 5] = [
    &["python", "train.py", "--config", "configs/base.yaml"],
    &["python", "-m", "ipykernel_launcher", "-f", "kernel-3f.json"],
    &["python", "-m", "vllm.entrypoints.openai.api_server"],
    &["./llama-server", "-m", "model.gguf", "--port", "8080"],
    &["python", "eval.py"],
];

pub fn pid(gpu: u32, entry: u32) -> u32 {
    4000 + gpu * 100 + entry
}

/// Returns a host with `gpus` GPUs and `processes` processes on each.
pub fn snapshot(gpus: u32, processes: u32) -> Snapshot {
    let time: Time = "2026-11-21T10:04:05.123Z".parse().unwrap();
    let mut snapshot = Snapshot::new(time);
    snapshot.host.hostname = Some("gpu26".into());
    snapshot.driver.version = Some("580.159.03".into());
    snapshot.driver.cuda_version = Some("13.0".into());
    for gpu in 0..gpus {
        let rows: Vec<GpuProcess> = (0..processes).map(|at| row(gpu, at)).collect();
        let held: u64 = rows.iter().filter_map(|row| row.used_bytes).sum();
        let used = held + u64::from(gpu % 3) * 4 * GIB;
        snapshot.gpus.push(Gpu {
            index: gpu,
            uuid: Some(format!("GPU-{gpu:04}").into()),
            name: Some("NVIDIA H100 80GB HBM3".into()),
            memory: Some(Memory {
                total_bytes: 80 * GIB,
                reserved_bytes: Some(614 * MIB),
                used_bytes: used,
                free_bytes: (80 * GIB - 614 * MIB).saturating_sub(used),
            }),
            gpu_percent: Some((gpu * 37) % 101),
            temperature_celsius: Some(34 + gpu % 40),
            power_watts: Some(71.3 + f64::from(gpu) * 31.0 % 600.0),
            power_limit_watts: Some(700.0),
            performance_state: Some(0),
            processes: Some(rows),
            ..Gpu::default()
        });
        snapshot.processes.extend((0..processes).map(|at| process(gpu, at, time)));
    }
    snapshot
}

pub fn later(gpus: u32, processes: u32, seconds: f64) -> Snapshot {
    let snapshot = snapshot(gpus, processes);
    Snapshot { time: snapshot.time.plus_seconds(seconds), ..snapshot }
}

fn row(gpu: u32, at: u32) -> GpuProcess {
    GpuProcess {
        pid: pid(gpu, at),
        used_bytes: Some(u64::from(at + 1) * 3 * GIB + u64::from(gpu) * 256 * MIB),
        sm_percent: Some(if at.is_multiple_of(2) { 0 } else { 40 + at }),
        ..GpuProcess::default()
    }
}

fn process(gpu: u32, at: u32, time: Time) -> Process {
    let number = gpu + at;
    let command: Vec<Arc<str>> =
        COMMANDS[number as usize % COMMANDS.len()].iter().map(|&word| word.into()).collect();
    let seconds = 90.0 + f64::from(gpu * 5000 + at * 700);
    Process {
        pid: pid(gpu, at),
        start_ticks: Some(u64::from(gpu * 1000 + at)),
        start_time: Some(time.plus_seconds(-seconds)),
        ppid: Some(1200),
        state: Some(['S', 'R', 'D', 'T'][number as usize % 4]),
        user: Some(["ann", "bob", "hana"][number as usize % 3].into()),
        command: Some(command.into()),
        executable: Some("/usr/bin/python3.12".into()),
        cpu_percent: Some(f64::from(at * 7) * 14.3),
        rss_bytes: Some(u64::from(at + 2) * 700 * MIB),
        threads: Some(38),
        terminal: Some("pts/3".into()),
        framework: Some(["pytorch", "jax", "vllm"][number as usize % 3].into()),
        ..Process::default()
    }
}

pub fn entry(snapshot: &mut Snapshot, gpu: usize, at: usize) -> &mut GpuProcess {
    &mut snapshot.gpus[gpu].processes.as_mut().unwrap()[at]
}

pub fn lose(snapshot: &mut Snapshot, gpu: usize) {
    let lost = &mut snapshot.gpus[gpu];
    *lost = Gpu {
        index: lost.index,
        uuid: lost.uuid.clone(),
        name: lost.name.clone(),
        ..Gpu::default()
    };
    snapshot.errors.push(ReadError {
        gpu: Some(gpu as u32),
        call: "nvmlDeviceGetMemoryInfo_v2".into(),
        error: "GPU is lost; it has fallen off the bus or is otherwise inaccessible".into(),
    });
}

/// Divides a GPU into two instances. The first process uses the first instance.
pub fn divide(snapshot: &mut Snapshot, gpu: usize) {
    let divided = &mut snapshot.gpus[gpu];
    divided.mig_mode = Some(true);
    divided.gpu_percent = None;
    let mut held = [0, 0];
    for (at, row) in divided.processes.iter_mut().flatten().enumerate() {
        let part = at.min(1);
        row.sm_percent = None;
        row.gpu_instance_id = Some([7, 9][part]);
        row.compute_instance_id = Some(0);
        held[part] = row.used_bytes.map_or(held[part], |bytes| bytes.saturating_add(held[part]));
    }
    let device = |index, instance, total_gib: u64, profile: &str, used: u64| MigDevice {
        index: Some(index),
        gpu_instance_id: Some(instance),
        compute_instance_id: Some(0),
        uuid: Some(format!("MIG-{instance}").into()),
        profile: Some(profile.into()),
        memory: Some(Memory {
            total_bytes: total_gib * GIB,
            reserved_bytes: Some(40 * MIB),
            used_bytes: used.saturating_add(2 * GIB),
            free_bytes: (total_gib * GIB - 40 * MIB).saturating_sub(used.saturating_add(2 * GIB)),
        }),
    };
    divided.mig_devices =
        vec![device(0, 7, 40, "3g.40gb", held[0]), device(2, 9, 20, "1c.2g.20gb", held[1])];
}

/// Adds a forked worker that has two GPUs open but is not listed by NVML.
pub fn hide(snapshot: &mut Snapshot) -> u32 {
    let files = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"];
    let worker = Process {
        pid: 3999,
        command: Some(
            vec!["python".into(), "-c".into(), "from multiprocessing.spawn".into()].into(),
        ),
        gpu_files: Some(files.iter().map(|&file| file.into()).collect()),
        namespace_pid: Some(17),
        container: Some(
            Container {
                runtime: Some("docker".into()),
                id: Some("3f1c9a".into()),
                name: Some("bert".into()),
                ..Container::default()
            }
            .into(),
        ),
        framework_version: Some("2.9.1".into()),
        ..process(0, 0, snapshot.time)
    };
    let pid = worker.pid;
    snapshot.processes.push(worker);
    pid
}

/// Returns a finding that a process has been idle for half an hour.
pub fn finding(snapshot: &Snapshot, gpu: u32, at: u32) -> Finding {
    let process = snapshot.process(pid(gpu, at)).unwrap();
    let used_bytes =
        snapshot.gpus[gpu as usize].processes.as_ref().unwrap()[at as usize].used_bytes;
    Finding {
        id: format!("idle:GPU-{gpu:04}:{}:{at}", process.pid).into(),
        since: snapshot.time.plus_seconds(-1790.0),
        duration_seconds: 1790.0,
        gpus: vec![FindingGpu { index: gpu, uuid: None, used_bytes }],
        memory_bytes: used_bytes,
        evidence: Evidence::new(IdleEvidence {
            sm_percent_max: Some(0),
            gpu_percent_max: None,
            cpu_percent_mean: Some(0.1),
            samples: 180,
            coverage: 1.0,
            last_activity: None,
            busy_seconds: None,
            is_kernel_unknown: false,
        }),
        message: format!(
            "python train.py ({}) has held {} on GPU {gpu} without using it for 29m 50s",
            process.pid,
            crate::units::Bytes(used_bytes.unwrap_or(0))
        ),
        advice: vec!["call torch.cuda.empty_cache(), or end the process".to_owned()],
        ..testing::finding(Kind::Idle, process)
    }
}

/// Returns `minutes` of memory history, in which each GPU's second process leaks and the third starts late.
pub fn all_series(snapshot: &Snapshot, minutes: u32) -> AllSeries {
    let mut all_series = AllSeries::default();
    let seconds = minutes * 60;
    for before in (0..=seconds).rev().step_by(10) {
        let mut then = snapshot.clone();
        then.time = snapshot.time.plus_seconds(-f64::from(before));
        for gpu in &mut then.gpus {
            let rows = gpu.processes.iter_mut().flatten();
            for (at, row) in rows.enumerate() {
                let share = if at == 1 { before / 2 } else { 0 };
                let late = at == 2 && before > seconds / 2;
                let held = row.used_bytes.filter(|_| !late);
                row.used_bytes =
                    held.map(|bytes| bytes - bytes / u64::from(seconds.max(1)) * u64::from(share));
            }
        }
        all_series.observe(&then);
    }
    all_series
}

pub fn target(pid: u32) -> Target {
    Target {
        id: format!("{pid}:1").into(),
        boot_id: None,
        reason: Reason::Named,
        members: vec![TargetProcess {
            pid,
            start_ticks: 1,
            uid: 1000,
            user: None,
            name: "python".into(),
            gpus: vec![MemberGpu { index: 0, uuid: None, used_bytes: Some(6 * GIB) }],
            is_listed: true,
            process_group: None,
            session: None,
            is_stopped: false,
            is_parked: false,
        }],
        launcher: None,
        leader: pid,
        dead: Vec::new(),
        bytes: Some(6 * GIB),
        steps: vec![Step::Signal {
            signal: Signal::Term,
            recipients: Recipients::Family,
            grace_seconds: 10.0,
        }],
        owner: None,
        respawn_seconds: 0.0,
        instead: None,
        used_at_plan: None,
    }
}

pub fn proposal(targets: Vec<Target>) -> Proposal {
    let titles: Vec<String> =
        targets.iter().map(|target| format!("{} ann: 6.0 GiB: python", target.leader)).collect();
    let mut lines = titles.clone();
    lines.push("summary".to_owned());
    Proposal {
        plan: Arc::new(Plan { time: Time::default(), targets, refused: Vec::new() }),
        lines,
        titles,
    }
}
