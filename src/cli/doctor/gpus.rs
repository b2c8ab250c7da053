//! Checks which data each GPU reports, and which settings prevent a GPU from reporting more.

use super::driver::RuntimeEnvironment;
use crate::host::MpsDaemons;
use crate::model::Gpu;
use crate::report::doctor::{DoctorCheck, Topic, merge};
use crate::source::nvml::{NvmlSample, SampledGpu};
use crate::units::Bytes;

pub(super) fn is_readable(gpu: &Gpu) -> bool {
    gpu.processes.is_some() && gpu.stale_seconds.is_none()
}

pub(super) fn checks(sample: &NvmlSample, environment: RuntimeEnvironment) -> Vec<DoctorCheck> {
    if sample.gpus.is_empty() {
        return vec![no_gpu(sample, environment)];
    }
    merge(sample.gpus.iter().map(|sampled| {
        let gpu = &sampled.gpu;
        let mut checks = vec![answers(gpu, sample)];
        // Skip the other checks if the GPU does not answer.
        if is_readable(gpu) {
            checks.push(persistence(gpu));
            checks.push(process_utilization(sampled));
            checks.push(accounting(gpu));
            checks.push(process_memory(gpu));
            checks.push(mig(gpu));
        }
        (gpu.index, checks)
    }))
}

fn no_gpu(sample: &NvmlSample, environment: RuntimeEnvironment) -> DoctorCheck {
    let error = sample.errors.first();
    let observation = error.map_or_else(
        || "NVML answers but lists no GPU".to_owned(),
        |error| format!("{}: {}", error.call, error.error),
    );
    let check = Topic::GPU.broken(observation);
    match environment {
        RuntimeEnvironment::Container(_) => check.advise("gpus-in-container"),
        _ => check.advise("no-gpu-listed"),
    }
}

fn answers(gpu: &Gpu, sample: &NvmlSample) -> DoctorCheck {
    let name = gpu.name.as_deref().unwrap_or("a GPU without a name");
    let topic = Topic::GPU;
    let errors: Vec<String> = sample
        .errors
        .iter()
        .filter(|error| error.gpu == Some(gpu.index))
        .map(|error| format!("{}: {}", error.call, error.error))
        .collect();
    let error_or = |otherwise: &str| match errors.as_slice() {
        [] => otherwise.to_owned(),
        errors => errors.join("; "),
    };
    if !is_readable(gpu) {
        return topic.broken(format!("{name}: {}", error_or("no answer"))).advise("gpu-silent");
    }
    match (&gpu.memory, &gpu.memory_unavailable) {
        (Some(memory), _) => {
            let observation = format!("{name}, {}", Bytes(memory.total_bytes));
            let Some(limit) = gpu.memory_limit_bytes else {
                return topic.ok(observation);
            };
            let limit = Bytes(limit);
            topic
                .limited(format!(
                    "{observation}; the driver limits the cgroup that gpumem runs in to {limit} of it"
                ))
                .advise("memory-limited")
        }
        (None, why) => {
            let why = why.as_deref().map_or_else(|| error_or("not reported"), str::to_owned);
            topic.limited(format!("{name}; its memory: {why}")).advise("free-memory-unknown")
        }
    }
}

fn persistence(gpu: &Gpu) -> DoctorCheck {
    let topic = Topic::PERSISTENCE;
    match gpu.persistence_mode {
        Some(true) => topic.ok("on"),
        // Without persistence mode, the first client waits 1 to 3 s for the GPU's initialization (NVIDIA, "Driver
        // Persistence").
        Some(false) => topic.limited("off").advise("persistence-off"),
        None => topic.not_applicable("not reported"),
    }
}

fn process_utilization(sampled: &SampledGpu) -> DoctorCheck {
    let topic = Topic::PROCESS_UTILIZATION;
    match sampled.process_utilization {
        Some(true) => topic.ok("reported"),
        Some(false) if sampled.gpu.gpu_percent.is_some() => {
            topic.limited("not reported by this driver for this GPU").advise("process-use-unknown")
        }
        Some(false) => topic
            .limited("not reported, and neither is the utilization of the whole GPU")
            .advise("use-unknown"),
        None => topic.unknown("the call failed").advise("use-failed"),
    }
}

/// Reports disabled accounting as ok, because the driver disables accounting by default.
fn accounting(gpu: &Gpu) -> DoctorCheck {
    let topic = Topic::ACCOUNTING;
    match gpu.accounting_mode {
        Some(true) => topic.ok("on"),
        Some(false) => topic.ok("off").advise("accounting-off"),
        None => topic.not_applicable("not reported"),
    }
}

fn process_memory(gpu: &Gpu) -> DoctorCheck {
    let topic = Topic::PROCESS_MEMORY;
    if let Some(why) = &gpu.process_memory_unavailable {
        return topic.limited(&**why).advise("process-memory-unknown");
    }
    let rows = gpu.processes.as_deref().unwrap_or_default();
    let reported = rows.iter().filter(|row| row.used_bytes.is_some()).count();
    match (rows.len(), reported) {
        (0, _) => topic
            .unknown("no process uses this GPU, so this was not tested")
            .advise("no-process-to-test"),
        (all, reported) if all == reported => topic.ok("reported"),
        (_, 0) => topic.limited("not reported for any process").advise("process-memory-unknown"),
        (all, reported) => topic
            .limited(format!("reported for {reported} of {all} processes"))
            .advise("process-memory-partial"),
    }
}

fn mig(gpu: &Gpu) -> DoctorCheck {
    match gpu.mig_mode {
        // NVML does not support utilization queries while MIG is enabled (nvml.h).
        Some(true) => Topic::MIG.limited("on").advise("mig-on"),
        Some(false) => Topic::MIG.ok("off"),
        None => Topic::MIG.not_applicable("this GPU has none"),
    }
}

/// Checks the Multi-Process Service. One daemon can serve several GPUs, so this check is not per GPU.
pub(super) fn mps(daemons: Option<MpsDaemons>) -> DoctorCheck {
    let topic = Topic::MPS;
    match daemons {
        None => topic.unknown("processes cannot be listed"),
        Some(MpsDaemons { controls: 0, servers: 0 }) => topic.ok("no daemon found"),
        Some(daemons) => topic
            .limited(format!("control daemons: {}, servers: {}", daemons.controls, daemons.servers))
            .advise("mps"),
    }
}
