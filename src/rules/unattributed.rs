//! `unattributed`: a GPU has memory in use that no listed process holds.
//!
//! Possible causes are a worker that outlived the process whose context it inherited, a client in another pid
//! namespace, and managed memory (`cudaMallocManaged`), which NVML attributes to no process. The finding reports the
//! amount, and the unlisted processes that have the GPU's device file open.
//!
//! The rule requires the host's pid namespace, a complete process list and known memory. The rule does not apply
//! under MIG, where memory is reported per instance, and under WSL, where Windows processes are not listed. It does
//! not apply either if the GPU shares memory with the system (Grace, GB10, Jetson), because that memory also holds
//! pages of the kernel. While NVML lists the pid of a dead process, its memory is attributed.
//!
//! A finding begins at the threshold and ends below three quarters of the threshold.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{FindingParts, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::Device;
use crate::model::finding::{Evidence, Kind, KindEvidence, samples};
use crate::model::snapshot::{Memory, PidNamespace};
use crate::model::{Gpu, Process, Snapshot};
use crate::units::{Bytes, GIB, Span, number_of};

pub static KIND: RuleKind = RuleKind {
    gpu,
    ..RuleKind::new::<UnattributedEvidence>(
        Kind::Unattributed,
        "a GPU has memory in use that no process listed on it accounts for",
        &[
            ("min_memory", "minimum unattributed memory"),
            ("duration", "how long the condition must last"),
            SEVERITY,
        ],
        Settings { min_memory: Bytes(GIB), duration: seconds(60), ..Settings::NONE },
    )
};

/// Allowance for the driver's reserve, which memory info v1 includes in used memory. With v1, an idle GPU shows 300
/// to 900 MiB as used.
const RESERVED_ALLOWANCE_BYTES: u64 = GIB;
/// Minimum number of samples. A single sample can show the condition by chance.
const LEAST_SAMPLES: u64 = 2;
const MOST_HOLDERS: usize = 16;
/// Maximum number of holders that the message names. If there are more, the message gives their number.
const MOST_NAMED: usize = 3;

/// Evidence that some of a GPU's used memory is held by no process that NVML lists.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct UnattributedEvidence {
    /// Used memory of the GPU, without memory that the driver reserves, in bytes.
    pub used_bytes: u64,
    /// Sum of the memory that the listed processes hold, in bytes.
    pub attributed_bytes: u64,
    /// Used memory that no listed process holds, in bytes.
    pub unattributed_bytes: u64,
    /// Number of listed processes.
    pub listed: u64,
    /// Number of samples that show the condition.
    pub samples: u64,
    /// Processes that have the GPU's device file open and are not listed on it.
    pub holders: Vec<DeviceFileHolder>,
}

/// A process that has a GPU's device file open.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct DeviceFileHolder {
    /// Process ID.
    pub pid: u32,
    /// User name of the owner.
    pub user: Option<Arc<str>>,
    /// Name of the process. Chosen by the process: escape it for a terminal.
    pub name: String,
}

impl KindEvidence for UnattributedEvidence {
    fn words(&self) -> String {
        let mut words = format!(
            "{} used, {} by {} listed, in {}",
            Bytes(self.used_bytes),
            Bytes(self.attributed_bytes),
            self.listed,
            samples(self.samples)
        );
        if !self.holders.is_empty() {
            let holder = |holder: &DeviceFileHolder| match &holder.user {
                Some(user) => format!("{} ({}, {user})", holder.name, holder.pid),
                None => format!("{} ({})", holder.name, holder.pid),
            };
            let holders: Vec<String> = self.holders.iter().map(holder).collect();
            let _ = write!(words, "; its device file is open in {}", holders.join(", "));
        }
        words
    }
}

fn gpu(input: RuleInput<'_>, gpu: &Gpu, device: &Device, output: &mut RuleOutput) {
    let host = &input.snapshot.host;
    // In a container, NVML lists only the container's processes, so unattributed memory is normal.
    if host.pid_namespace == Some(PidNamespace::Container) || has_no_figures(input.snapshot, gpu) {
        return;
    }
    let Some(settings) = input.settings_on(None, gpu) else {
        return;
    };
    if let Some(doubt) = doubt_of_figures(input.snapshot, gpu) {
        output.add_doubt(doubt);
        // While the value is unknown, an earlier finding stays.
        output.findings.extend(input.active_finding_on(gpu).cloned());
        return;
    }
    let threshold = threshold(gpu.memory, &settings);
    if let Some(doubt) = doubt(gpu, threshold) {
        output.add_doubt(doubt);
    }
    let ends_at = threshold - threshold / 4;
    let active = input.lasting_on(gpu, device.unattributed(ends_at).as_ref());
    let min_bytes = if active.is_some() { ends_at } else { threshold };
    let Some(stretch) = device.unattributed(min_bytes) else {
        return;
    };
    if host.pid_namespace.is_none() {
        output.add_doubt(UndecidedReason::NoNamespace);
        return;
    }
    let since = active.map_or(stretch.since, |finding| finding.since);
    let needed = settings.duration.seconds();
    if active.is_none() && (stretch.seconds() < needed || stretch.samples < LEAST_SAMPLES) {
        input.add_pending_on(gpu, since, needed, output);
        return;
    }
    let Some(evidence) = evidence(input.snapshot, gpu, stretch.samples) else {
        // The value is unknown in this sample, so an earlier finding stays. The history resets `device.unattributed`
        // if the value remains unknown for too long.
        output.findings.extend(active.cloned());
        return;
    };
    let bytes = evidence.unattributed_bytes;
    let mut message = format!(
        "GPU {} has had {} in use for {} that no listed process accounts for",
        gpu.index,
        Bytes(bytes),
        Span::from_seconds(stretch.until.seconds_since(since)),
    );
    if !evidence.holders.is_empty() {
        let holders = name_holders(&evidence.holders);
        message.push_str(&format!("; {} is open in {holders}", gpu.device_file()));
    }
    let parts = FindingParts {
        severity: settings.severity,
        gpus: vec![subject::finding_gpu(gpu, Some(bytes))],
        since,
        until: stretch.until,
        advice: advice(gpu, &evidence),
        evidence: Evidence::new(evidence),
        message,
    };
    output.findings.push(input.finding(None, parts));
}

/// Returns whether the GPU has no meaningful figure for unattributed memory, or does not answer.
fn has_no_figures(snapshot: &Snapshot, gpu: &Gpu) -> bool {
    let is_wsl = snapshot
        .host
        .kernel
        .as_deref()
        .is_some_and(|kernel| kernel.to_ascii_lowercase().contains("microsoft"));
    is_wsl || gpu.is_divided() || gpu.is_unified() || gpu.stale_seconds.is_some()
}

fn threshold(memory: Option<Memory>, settings: &Settings) -> u64 {
    let reserved_is_apart = memory.is_none_or(|memory| memory.reserved_bytes.is_some());
    let allowance = if reserved_is_apart { 0 } else { RESERVED_ALLOWANCE_BYTES };
    // With a threshold of 0, the rule would report every GPU.
    settings.min_memory.0.max(1).saturating_add(allowance)
}

/// Returns the failed reading (process list, MIG mode or GPU name) if the figures cannot be trusted without it.
fn doubt_of_figures(snapshot: &Snapshot, gpu: &Gpu) -> Option<UndecidedReason> {
    let index = gpu.index;
    let lacks = |call: &str, quantity| {
        let has_failed = snapshot.has_failed(gpu, call);
        has_failed.then_some(UndecidedReason::NoReading { gpu: index, quantity })
    };
    if gpu.processes.is_some() && !snapshot.lists_all(gpu) {
        return Some(UndecidedReason::NoList { gpu: index });
    }
    lacks("nvmlDeviceGetMigMode", "MIG mode")
        .or_else(|| gpu.name.is_none().then(|| lacks("nvmlDeviceGetName", "name"))?)
}

/// Returns why the unattributed memory is unknown, or `None` if it is known or cannot reach the threshold.
fn doubt(gpu: &Gpu, threshold: u64) -> Option<UndecidedReason> {
    let index = gpu.index;
    let Some(rows) = &gpu.processes else {
        let may_be = gpu.memory.is_none_or(|memory| memory.used_bytes >= threshold);
        return may_be.then_some(UndecidedReason::NoList { gpu: index });
    };
    let Some(memory) = gpu.memory else {
        return (!rows.is_empty())
            .then_some(UndecidedReason::NoReading { gpu: index, quantity: "memory" });
    };
    let unknown = rows.iter().find(|row| row.used_bytes.is_none())?;
    let listed = rows.iter().filter_map(|row| row.used_bytes).fold(0, u64::saturating_add);
    (memory.used_bytes.saturating_sub(listed) >= threshold)
        .then_some(UndecidedReason::NoMemory { pid: unknown.pid, gpu: index })
}

fn evidence(snapshot: &Snapshot, gpu: &Gpu, samples: u64) -> Option<UnattributedEvidence> {
    let (memory, attributed) = (gpu.memory?, gpu.process_bytes()?);
    Some(UnattributedEvidence {
        used_bytes: memory.used_bytes,
        attributed_bytes: attributed,
        unattributed_bytes: memory.used_bytes.saturating_sub(attributed),
        listed: gpu.processes.as_ref().map_or(0, Vec::len) as u64,
        samples,
        holders: holders(snapshot, gpu),
    })
}

fn holders(snapshot: &Snapshot, gpu: &Gpu) -> Vec<DeviceFileHolder> {
    let rows = gpu.processes.as_deref().unwrap_or_default();
    let holds = |process: &&Process| {
        gpu.is_open_in(process) == Some(true)
            && !rows.iter().any(|row| row.pid == process.pid)
            && !process.is_monitor()
    };
    let mut holders: Vec<&Process> = snapshot.processes.iter().filter(holds).collect();
    holders.sort_by_key(|process| process.pid);
    holders.dedup_by_key(|process| process.pid);
    holders
        .into_iter()
        .take(MOST_HOLDERS)
        .map(|process| DeviceFileHolder {
            pid: process.pid,
            user: process.user.clone(),
            name: super::name_of(process),
        })
        .collect()
}

fn name_holders(holders: &[DeviceFileHolder]) -> String {
    let name = |holder: &DeviceFileHolder| format!("{} ({})", holder.name, holder.pid);
    let names: Vec<String> = holders.iter().take(MOST_NAMED).map(name).collect();
    match holders.len().saturating_sub(MOST_NAMED) {
        0 => names.join(", "),
        others => format!("{} and {}", names.join(", "), number_of(others as u64, "other")),
    }
}

fn advice(gpu: &Gpu, evidence: &UnattributedEvidence) -> Vec<String> {
    let file = gpu.device_file();
    let mut lines = Vec::new();
    if evidence.holders.is_empty() {
        lines.push(format!(
            "as root, `fuser -v {file}` lists every process that has it open; other users' are not \
             shown otherwise"
        ));
    } else {
        lines.push(format!(
            "ask the owner of each process that has {file} open: the memory is freed when the one \
            that holds it exits"
        ));
    }
    if evidence.listed > 0 {
        lines.push(
            "memory from cudaMallocManaged is attributed to no process: it is freed when its \
            process exits"
                .to_owned(),
        );
    }
    if evidence.holders.is_empty() {
        lines.push(format!(
            "if no process has it open, the driver has kept the memory: `nvidia-smi --gpu-reset \
            -i {}` once the \
             GPU is unused",
            gpu.index
        ));
    }
    lines
}

#[cfg(test)]
mod tests;
