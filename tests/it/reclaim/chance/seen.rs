//! Constructs NVML's data and findings: a GPU that lists living processes, and findings about processes.

use gpumem::api::model::{
    Action, Evidence, Finding, FindingGpu, FindingProcess, Gpu, GpuProcess, Kind, Memory, Process,
    Severity, Snapshot, Time,
};
use gpumem::api::rules::StoppedEvidence;

use crate::reclaim::GIB;

pub fn gpu(index: u32, snapshot: &Snapshot, listed: &dyn Fn(u32) -> Option<u32>) -> Gpu {
    let is_on_gpu = |process: &&Process| listed(process.pid) == Some(index);
    let rows: Vec<GpuProcess> = snapshot
        .processes
        .iter()
        .filter(is_on_gpu)
        .map(|process| GpuProcess {
            pid: process.pid,
            used_bytes: Some(GIB),
            ..GpuProcess::default()
        })
        .collect();
    let used_bytes = rows.len() as u64 * GIB;
    Gpu {
        index,
        uuid: Some(format!("GPU-{index}").into()),
        minor_number: Some(index),
        memory: Some(Memory {
            total_bytes: 80 * GIB,
            reserved_bytes: Some(0),
            used_bytes,
            free_bytes: 80 * GIB - used_bytes,
        }),
        processes: Some(rows),
        ..Gpu::default()
    }
}

pub fn finding(kind: Kind, process: &Process, now: Time) -> Finding {
    Finding {
        id: format!("{kind}:GPU-0:{}", process.pid).into(),
        rule: kind.name().into(),
        kind,
        severity: Severity::Warning,
        since: now.plus_seconds(-7200.0),
        duration_seconds: 7200.0,
        resolved_at: None,
        gpus: vec![FindingGpu { index: 0, uuid: Some("GPU-0".into()), used_bytes: Some(GIB) }],
        process: Some(FindingProcess {
            pid: process.pid,
            start_ticks: process.start_ticks,
            start_time: process.start_time,
            user: process.user.clone(),
            command: process.command.clone(),
            identity: process.identity(),
        }),
        memory_bytes: Some(GIB),
        evidence: Evidence::new(StoppedEvidence {
            state: 'T',
            samples: 9,
            terminal: None,
            is_frozen: false,
        }),
        message: format!("{} is {kind}", process.pid),
        advice: Vec::new(),
        actions: vec![Action::Notify, Action::Terminate],
        commands: Vec::new(),
        also: Vec::new(),
        kept_by: None,
        skipped: None,
        more_bytes: None,
    }
}
