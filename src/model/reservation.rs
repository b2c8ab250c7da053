//! GPUs allocated to a job or container, whether or not they are used.
//!
//! The allocation is read from the environment of a process. This module maps the allocated GPUs to the GPUs of a
//! snapshot, and determines whether a GPU is unused.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::process::{Container, Kubernetes, Slurm};
use super::snapshot::ProcessType;
use super::time::Time;
use super::{Gpu, Process, Snapshot};
use crate::units::GIB;

/// If no process is listed on a GPU but at least this much memory is used, an unlisted process may be using it.
/// Drivers that count their reserve as used memory reserve less than this.
const UNLISTED_BYTES: u64 = GIB;

/// GPUs allocated to a job or container, according to the environment of the oldest process that names the GPUs.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Reservation {
    /// PID of the process whose environment names the GPUs.
    pub pid: u32,
    /// Start time of the process whose environment names the GPUs. The allocation is at least as old.
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
    /// GPUs as written in the variable: `3`, `GPU-…`. Never a word for all GPUs, such as `all`.
    pub devices: Arc<[Arc<str>]>,
}

/// Slurm's variable with the GPUs of a job, numbered as on the machine, regardless of GPUs that a cgroup hides.
const SLURM_JOB: &str = "SLURM_JOB_GPUS";
const SLURM_STEP: &str = "SLURM_STEP_GPUS";
/// Within a job, numbers in this variable are relative to the job's GPUs, so only UUIDs are used.
const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const CONTAINER: &str = "NVIDIA_VISIBLE_DEVICES";

impl Reservation {
    /// Returns the GPUs allocated to the process's job or container, according to the environment. Returns `None` if
    /// the process is a monitoring program, if it is in no container and no running job, or if its environment is
    /// from another job or names no GPUs.
    ///
    /// Sources: sbatch(1) and srun(1), output environment variables (global numbers). Slurm sets `SLURM_JOB_GPUS` for
    /// the batch script and interactive jobs. Steps on other nodes inherit the variable, but it is meaningless there.
    /// NVIDIA Container Toolkit: `NVIDIA_VISIBLE_DEVICES`.
    pub fn from_environment(process: &Process) -> Option<Self> {
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
                let slurm_list = match slurm.step_id.as_deref() {
                    Some("batch" | "interactive") => named(SLURM_JOB),
                    _ => named(SLURM_STEP),
                };
                slurm_list
                    .or_else(|| named(CUDA).filter(|(_, devices)| devices.iter().all(is_uuid)))?
            }
            Some(_) => return None,
            None => {
                let container = process.container.as_deref();
                let is_known = container.is_some_and(|container| container.id.is_some());
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

    /// Returns the positions of the reserved GPUs in `gpus`, in ascending order. Unknown GPUs are omitted.
    pub fn gpu_indices(&self, gpus: &[Gpu]) -> Vec<usize> {
        let mut places: Vec<usize> =
            self.devices.iter().filter_map(|device| self.position(device, gpus)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    fn position(&self, device: &str, gpus: &[Gpu]) -> Option<usize> {
        if device.starts_with("GPU-") {
            let is_named =
                |gpu: &Gpu| gpu.uuid.as_deref().is_some_and(|uuid| uuid.starts_with(device));
            let mut found = (0..gpus.len()).filter(|&index| is_named(&gpus[index]));
            // A prefix of a UUID must match exactly one GPU.
            return found.next().filter(|_| found.next().is_none());
        }
        let number: u32 = device.parse().ok()?;
        let index = gpus.iter().position(|gpu| gpu.index == number)?;
        // Slurm numbers GPUs by device file or, with AutoDetect=nvml, by NVML's index. If the two numbers differ, the
        // GPU is unknown.
        let is_by_slurm = *self.variable != *CONTAINER;
        let differs = gpus[index].minor_number.is_some_and(|minor| minor != number);
        (!(is_by_slurm && differs)).then_some(index)
    }
}

pub fn names_devices(value: &str) -> bool {
    devices(value).is_some()
}

/// Parses a list of GPUs. Returns `None` if a word does not name a GPU, such as `all`, `none`, `void` or a CDI name.
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
    /// Returns whether a GPU is unused: NVML lists no process on it and reports no utilization, no process is known
    /// to have its device file open, and little memory is used. Monitors and desktops are ignored. Returns `None` if
    /// the GPU does not answer, or its process lists or memory are unknown.
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
mod tests {
    use super::*;
    use crate::model::snapshot::Memory;
    use crate::model::testing::environment;
    use crate::model::{GpuProcess, Time};

    fn of_job(step: &str, variables: &[(&str, &str)]) -> Process {
        Process {
            pid: 7,
            slurm: Some(Arc::new(Slurm {
                job_id: Some("812".into()),
                step_id: Some(step.into()),
                ..Slurm::default()
            })),
            environment: environment(&[&[("SLURM_JOB_ID", "812")], variables].concat()),
            ..Process::default()
        }
    }

    fn in_container(variables: &[(&str, &str)]) -> Process {
        Process {
            pid: 7,
            container: Some(Arc::new(Container {
                id: Some("0123".into()),
                ..Container::default()
            })),
            environment: environment(variables),
            ..Process::default()
        }
    }

    fn given(process: &Process) -> Option<String> {
        let reservation = Reservation::from_environment(process)?;
        Some(format!("{}={}", reservation.variable, reservation.devices.join(",")))
    }

    #[test]
    fn a_job_has_the_gpus_that_slurm_numbers_on_its_node() {
        let both = [("SLURM_JOB_GPUS", "0,1"), ("SLURM_STEP_GPUS", "3")];
        let batch = of_job("batch", &both);
        assert_eq!(given(&batch).as_deref(), Some("SLURM_JOB_GPUS=0,1"));
        // A step can inherit the job's variable from another node.
        let step = of_job("0", &both);
        assert_eq!(given(&step).as_deref(), Some("SLURM_STEP_GPUS=3"));
        assert_eq!(given(&of_job("0", &both[..1])), None);
        // Numbers are relative to the job's GPUs, so only UUIDs identify a GPU.
        let visible = |value| of_job("0", &[("CUDA_VISIBLE_DEVICES", value)]);
        assert_eq!(given(&visible("0")), None);
        assert_eq!(
            given(&visible("GPU-1,GPU-2")).as_deref(),
            Some("CUDA_VISIBLE_DEVICES=GPU-1,GPU-2")
        );
        // The environment was copied from another job.
        let mut other = of_job("batch", &both);
        other.environment = environment(&[("SLURM_JOB_ID", "9"), both[0]]);
        assert_eq!(given(&other), None);
        // The job has ended.
        let mut over = of_job("batch", &both);
        Arc::make_mut(over.slurm.as_mut().unwrap()).over = Some(true);
        assert_eq!(given(&over), None);
        let without_environment = Process { slurm: None, ..of_job("batch", &both) };
        assert_eq!(given(&without_environment), None);
    }

    #[test]
    fn a_container_has_the_gpus_that_are_named_one_by_one() {
        let visible = |value| in_container(&[("NVIDIA_VISIBLE_DEVICES", value)]);
        for value in ["0", "0,3", "GPU-1", "MIG-1"] {
            let expected = format!("NVIDIA_VISIBLE_DEVICES={value}");
            assert_eq!(given(&visible(value)), Some(expected));
        }
        for value in ["all", "none", "void", "", "0,all", "nvidia.com/gpu=0", "-1", "99999"] {
            assert_eq!(given(&visible(value)), None, "{value}");
        }
        assert_eq!(given(&in_container(&[("CUDA_VISIBLE_DEVICES", "0")])), None);
        let mut outside = visible("0");
        outside.container = Some(Arc::new(Container::default()));
        assert_eq!(given(&outside), None, "the container is unknown");
        let mut monitor = visible("0");
        monitor.command = Some(["/usr/bin/dcgm-exporter".into()].into());
        assert_eq!(given(&monitor), None);
        let mut unread = visible("0");
        unread.environment = None;
        assert_eq!(given(&unread), None);
    }

    fn gpu(index: u32, minor: u32) -> Gpu {
        Gpu {
            index,
            minor_number: Some(minor),
            uuid: Some(format!("GPU-{index}a").into()),
            memory: Some(Memory { used_bytes: 5, ..Memory::default() }),
            gpu_percent: Some(0),
            processes: Some(Vec::new()),
            ..Gpu::default()
        }
    }

    #[test]
    fn an_ambiguous_gpu_number_is_ignored() {
        let places = |variable: &str, devices: &[&str], gpus: &[Gpu]| {
            let reservation = Reservation {
                variable: variable.into(),
                devices: devices.iter().map(|device| Arc::from(*device)).collect(),
                ..Reservation::default()
            };
            reservation.gpu_indices(gpus)
        };
        let straight = [gpu(0, 0), gpu(1, 1)];
        let crossed = [gpu(0, 1), gpu(1, 0)];
        let two = ["1", "0", "1", "7", "MIG-0"];
        assert_eq!(places("SLURM_JOB_GPUS", &two, &straight), [0, 1]);
        assert_eq!(places("SLURM_JOB_GPUS", &two, &crossed), [0; 0]);
        assert_eq!(places("NVIDIA_VISIBLE_DEVICES", &two, &crossed), [0, 1]);
        assert_eq!(places("NVIDIA_VISIBLE_DEVICES", &["GPU-1"], &crossed), [1]);
        assert_eq!(places("NVIDIA_VISIBLE_DEVICES", &["GPU-"], &crossed), [0; 0]);
    }

    #[test]
    fn a_gpu_is_unused_if_no_process_can_be_on_it() {
        let row = |gpu: &mut Gpu, kind| {
            gpu.processes = Some(vec![GpuProcess { pid: 7, kind, ..GpuProcess::default() }]);
        };
        type Case<'a> = (&'a str, &'a dyn Fn(&mut Gpu), Option<bool>);
        let changes: [Case<'_>; 9] = [
            ("nothing", &|_| {}, Some(true)),
            ("unknown use", &|gpu| gpu.gpu_percent = None, Some(true)),
            ("use", &|gpu| gpu.gpu_percent = Some(1), Some(false)),
            ("a process", &|gpu| row(gpu, ProcessType::Compute), Some(false)),
            ("a desktop", &|gpu| row(gpu, ProcessType::Graphics), Some(true)),
            ("an unread list", &|gpu| gpu.processes = None, None),
            ("an old answer", &|gpu| gpu.stale_seconds = Some(9.0), None),
            ("unknown memory", &|gpu| gpu.memory = None, None),
            ("memory", &|gpu| gpu.memory.as_mut().unwrap().used_bytes = GIB, Some(false)),
        ];
        let mut snapshot = Snapshot::new(Time::default());
        for (case, change, expected) in changes {
            let mut gpu = gpu(0, 0);
            change(&mut gpu);
            snapshot.gpus = vec![gpu];
            assert_eq!(snapshot.is_unused(&snapshot.gpus[0]), expected, "{case}");
        }
        let holder = |name: &str| Process {
            pid: 7,
            command: Some([name.into()].into()),
            gpu_files: Some(["/dev/nvidia0".into()].into()),
            ..Process::default()
        };
        snapshot.gpus = vec![gpu(0, 0)];
        for (name, expected) in [("python", false), ("nvidia-smi", true), ("Xorg", true)] {
            snapshot.processes = vec![holder(name)];
            assert_eq!(snapshot.is_unused(&snapshot.gpus[0]), Some(expected), "{name}");
        }
    }
}
