//! GPUs that a job or container was given, whether or not it runs anything on them.
//!
//! Only the environment of one of its processes is observed; this file computes which GPUs of a snapshot it
//! means, and whether one is unused.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::process::{Container, Kubernetes, Slurm};
use super::snapshot::ProcessType;
use super::time::Time;
use super::{Gpu, Process, Snapshot};
use crate::units::GIB;

/// Memory in use without a listed process from which an unlisted one may be on a GPU; less is the driver's, if
/// it does not report its reserve.
const UNLISTED_BYTES: u64 = GIB;

/// GPUs allocated to a job or container, according to the environment of its oldest process that names
/// them.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Reservation {
    /// PID of that process.
    pub pid: u32,
    /// Start time of that process: the allocation is at least that old.
    pub since: Option<Time>,
    /// User name of the owner.
    pub user: Option<Arc<str>>,
    /// The Slurm job.
    pub slurm: Option<Arc<Slurm>>,
    /// The container.
    pub container: Option<Arc<Container>>,
    /// The Kubernetes pod.
    pub kubernetes: Option<Arc<Kubernetes>>,
    /// Environment variable that names the GPUs: `SLURM_JOB_GPUS`, `SLURM_STEP_GPUS`,
    /// `CUDA_VISIBLE_DEVICES`, `NVIDIA_VISIBLE_DEVICES`.
    pub variable: Arc<str>,
    /// The GPUs as the variable names them: `3`, `GPU-…`. Never a word that stands for all GPUs.
    pub devices: Arc<[Arc<str>]>,
}

/// Slurm's variable with the machine's own GPU numbers, whatever a cgroup hides.
const SLURM_JOB: &str = "SLURM_JOB_GPUS";
const SLURM_STEP: &str = "SLURM_STEP_GPUS";
/// Within a job its numbers are relative, so only UUIDs count.
const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const CONTAINER: &str = "NVIDIA_VISIBLE_DEVICES";

impl Reservation {
    /// The allocation of its job or container that a process's environment shows; `None` if it shows none of
    /// its own, or the process is in neither.
    ///
    /// Sources: sbatch(1) and srun(1), output environment variables (global numbers; `SLURM_JOB_GPUS` is set
    /// for the batch script and interactive jobs, and is inherited by steps on other nodes, where it means
    /// nothing); NVIDIA Container Toolkit, `NVIDIA_VISIBLE_DEVICES`.
    pub fn of(process: &Process) -> Option<Self> {
        if process.is_monitor() {
            return None;
        }
        let environment = process.environment.as_deref()?;
        let named = |variable: &'static str| {
            let devices = devices(environment.get(variable)?)?;
            Some((variable, devices))
        };
        let is_uuid = |device: &Arc<str>| device.starts_with("GPU-");
        let (variable, devices) = match process.slurm.as_deref() {
            Some(slurm) if slurm.over != Some(true) => {
                let job = environment.get("SLURM_JOB_ID")?;
                if slurm.job_id.as_ref() != Some(job) {
                    return None;
                }
                let own = match slurm.step_id.as_deref() {
                    Some("batch" | "interactive") => named(SLURM_JOB),
                    _ => named(SLURM_STEP),
                };
                own.or_else(|| named(CUDA).filter(|(_, devices)| devices.iter().all(is_uuid)))?
            }
            Some(_) => return None,
            None => {
                let container = process.container.as_deref();
                let is_known = container.is_some_and(|it| it.id.is_some());
                if !is_known && process.kubernetes.is_none() {
                    return None;
                }
                named(CONTAINER)?
            }
        };
        Some(Self {
            pid: process.pid,
            since: process.start_time,
            user: process.user.clone(),
            slurm: process.slurm.clone(),
            container: process.container.clone(),
            kubernetes: process.kubernetes.clone(),
            variable: variable.into(),
            devices,
        })
    }

    /// The indexes of its GPUs in a snapshot, in order; unknown ones are left out.
    pub fn places(&self, gpus: &[Gpu]) -> Vec<usize> {
        let mut places: Vec<usize> =
            self.devices.iter().filter_map(|device| self.position(device, gpus)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    fn position(&self, device: &str, gpus: &[Gpu]) -> Option<usize> {
        if device.starts_with("GPU-") {
            let is_named = |gpu: &Gpu| gpu.uuid.as_deref().is_some_and(|it| it.starts_with(device));
            let mut found = (0..gpus.len()).filter(|&place| is_named(&gpus[place]));
            // A UUID may be shortened if only one GPU's begins like that.
            return found.next().filter(|_| found.next().is_none());
        }
        let number: u32 = device.parse().ok()?;
        let place = gpus.iter().position(|gpu| gpu.index == number)?;
        // Slurm counts device files, and NVML by bus: if they differ, it is unknown which is meant.
        let is_by_slurm = *self.variable != *CONTAINER;
        let differs = gpus[place].minor_number.is_some_and(|it| it != number);
        (!(is_by_slurm && differs)).then_some(place)
    }
}

/// Whether a variable's value may name GPUs given to its process alone.
pub fn names_devices(value: &str) -> bool {
    devices(value).is_some()
}

/// The GPUs in a list; `None` if it names none, or all in one word (`all`, `none`, `void`, a CDI path).
fn devices(list: &str) -> Option<Arc<[Arc<str>]>> {
    let is_device = |word: &str| {
        let is_number = (1..=4).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_digit());
        is_number || word.starts_with("GPU-") || word.starts_with("MIG-")
    };
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    let all = words.iter().all(|word| is_device(word));
    all.then(|| words.into_iter().map(Arc::from).collect())
}

impl Snapshot {
    /// Whether a GPU is unused: no process listed, none with its file open, no utilization, and no more memory
    /// than the driver's. Monitors and desktops do not count. `None` if unknown.
    pub fn is_unused(&self, gpu: &Gpu) -> Option<bool> {
        if gpu.stale_seconds.is_some() || !self.lists_all(gpu) {
            return None;
        }
        let mut rows = gpu.processes.as_ref()?.iter();
        let works = |pid| !self.process(pid).is_some_and(Process::is_monitor);
        if rows.any(|row| row.kind != ProcessType::Graphics && works(row.pid))
            || gpu.gpu_percent.is_some_and(|percent| percent > 0)
        {
            return Some(false);
        }
        if gpu.memory?.used_bytes >= UNLISTED_BYTES {
            return Some(false);
        }
        let is_open = |process: &Process| {
            !process.is_monitor() && !process.is_display() && gpu.is_open_in(process) == Some(true)
        };
        Some(!self.processes.iter().any(is_open))
    }
}

#[cfg(test)]
mod tests;
