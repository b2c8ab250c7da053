//! Short texts that several views show: a process's container, job or unit, its role in the Multi-Process Service
//! (MPS), its part of a GPU, and its open GPU files.
//!
//! Processes and clusters choose many of these names, so this module limits their length, and the writer must escape
//! them.

use foldhash::{HashSet, HashSetExt as _};

use super::device_file::minor_number_of;
use super::process::Process;
use super::program::{COMM_BYTES, program_file};
use super::snapshot::{Gpu, GpuProcess, Host, MigDevice, ProcessType, Snapshot};
use crate::units::some_of;

/// Maximum number of characters of a name. Longer names are truncated.
const NAME_CHARS: usize = 40;
/// Number of characters of an id that are shown. Docker shows the same number.
const ID_CHARS: usize = 12;
/// Maximum number of files that are named.
const FILES_NAMED: usize = 3;

/// Program names of the Multi-Process Service (NVIDIA's MPS documentation).
const MPS_SERVER: &str = "nvidia-cuda-mps-server";
const MPS_CONTROL: &str = "nvidia-cuda-mps-control";

impl Process {
    /// Returns the most specific of the process's pod, job, container and unit, such as `pod:train/bert-0`,
    /// `job:812.0`, `docker:bert` or `vllm.service`. Returns `None` if the process has none of these, as in a login
    /// session, or if they are unknown.
    pub fn place(&self) -> Option<String> {
        let pod = self.kubernetes.as_deref().and_then(|pod| {
            let name = pod.pod_name.as_deref().map(|name| head(name, NAME_CHARS));
            let id = || Some(head(pod.pod_uid.as_deref()?, ID_CHARS));
            let name = name.or_else(id)?;
            Some(match pod.namespace.as_deref() {
                Some(namespace) => format!("pod:{}/{name}", head(namespace, NAME_CHARS)),
                None => format!("pod:{name}"),
            })
        });
        let job = || {
            let slurm = self.slurm.as_deref()?;
            let id = slurm.id()?;
            let job = head(&id, NAME_CHARS);
            Some(match slurm.step_id.as_deref() {
                Some(step) => format!("job:{job}.{}", head(step, ID_CHARS)),
                None => format!("job:{job}"),
            })
        };
        let container = || {
            let container = self.container.as_deref()?;
            let name = container.name.as_deref();
            let name = name.map(|name| head(name, NAME_CHARS));
            let name = name.or_else(|| Some(head(container.id.as_deref()?, ID_CHARS)));
            let runtime = container.runtime.as_deref().unwrap_or("container");
            Some(match name {
                Some(name) => format!("{}:{name}", head(runtime, ID_CHARS)),
                None => head(runtime, ID_CHARS).to_owned(),
            })
        };
        let unit = || {
            let unit = self.systemd_unit.as_deref()?;
            let is_login = unit.starts_with("user@") || unit.starts_with("session-");
            (!is_login).then(|| head(unit, NAME_CHARS).to_owned())
        };
        pod.or_else(job).or_else(container).or_else(unit)
    }

    /// Returns the pid, followed by the pid in the process's own pid namespace if it differs: `4242 (17)`.
    pub fn pid_text(&self) -> String {
        match self.namespace_pid {
            Some(own) => format!("{} ({own})", self.pid),
            None => self.pid.to_string(),
        }
    }

    pub fn framework_text(&self) -> Option<String> {
        let name = head(self.framework.as_deref()?, NAME_CHARS);
        Some(match self.framework_version.as_deref() {
            Some(version) => format!("{name} {}", head(version, ID_CHARS)),
            None => name.to_owned(),
        })
    }

    /// Returns the role of the process in the Multi-Process Service. The server and the control daemon are recognised
    /// by their programs, and clients by NVML's process list.
    pub fn mps_role(&self, on_gpu: Option<&GpuProcess>) -> Option<&'static str> {
        let file = |path: &str| -> Option<&'static str> {
            match program_file(path) {
                MPS_SERVER => Some("mps server"),
                MPS_CONTROL => Some("mps control"),
                _ => None,
            }
        };
        let executable = self.executable.as_deref();
        let program = self.command.as_deref().and_then(|command| command.first());
        let by_program =
            executable.and_then(file).or_else(|| file(program.filter(|_| executable.is_none())?));
        // The kernel truncates the comms of the server and the control daemon to the same text. Without a command line,
        // the two cannot be distinguished.
        let comm = self.comm.as_deref().filter(|_| program.is_none());
        let by_comm = comm.filter(|comm| MPS_SERVER.get(..COMM_BYTES) == Some(comm));
        let is_client = on_gpu.is_some_and(|row| row.kind == ProcessType::Mps);
        by_program.or_else(|| by_comm.map(|_| "mps server")).or(is_client.then_some("mps client"))
    }
}

impl Host {
    /// Returns a warning that unreadable processes may hold GPU memory, or `None` if all processes were read or /proc
    /// was not scanned.
    pub fn unread_text(&self) -> Option<String> {
        let processes = match self.unread_processes? {
            0 => return None,
            1 => "1 process's".to_owned(),
            count => format!("{count} processes'"),
        };
        Some(format!(
            "{processes} files could not be read; only root on the host can see hidden holders"
        ))
    }
}

impl MigDevice {
    /// Returns the name of the device as containers write it: `0:3` is device 3 of GPU 0. If the index is unknown,
    /// the name consists of the instance ids: `0:gi9/ci0`.
    pub fn name_on(&self, gpu: u32) -> String {
        match self.index {
            Some(index) => format!("{gpu}:{index}"),
            None => instances(gpu, self.gpu_instance_id, self.compute_instance_id),
        }
    }
}

fn instances(gpu: u32, gpu_instance: Option<u32>, compute_instance: Option<u32>) -> String {
    let mut name = gpu.to_string();
    if let Some(id) = gpu_instance {
        name.push_str(&format!(":gi{id}"));
    }
    if let Some(id) = compute_instance.filter(|_| gpu_instance.is_some()) {
        name.push_str(&format!("/ci{id}"));
    }
    name
}

impl Gpu {
    pub fn mig_device(
        &self,
        gpu_instance: Option<u32>,
        compute_instance: Option<u32>,
    ) -> Option<&MigDevice> {
        gpu_instance?;
        self.mig_devices.iter().find(|device| {
            device.gpu_instance_id == gpu_instance
                && (compute_instance.is_none() || device.compute_instance_id == compute_instance)
        })
    }

    /// Returns the name of the GPU or of an instance on it, such as `0`, `0:3` or `0:gi9/ci0`.
    pub fn part_name(&self, gpu_instance: Option<u32>, compute_instance: Option<u32>) -> String {
        match self.mig_device(gpu_instance, compute_instance) {
            Some(device) => device.name_on(self.index),
            None => instances(self.index, gpu_instance, compute_instance),
        }
    }
}

impl Snapshot {
    /// Returns the processes that seem to hold GPU memory according to their open files, but that NVML lists on no GPU.
    /// Includes parked processes, and excludes monitors.
    pub fn unlisted_holders(&self) -> impl Iterator<Item = &Process> {
        let rows = || self.gpus.iter().flat_map(|gpu| gpu.processes.iter());
        // Allocate the set only once, because this function runs for every sample.
        let count = rows().map(Vec::len).sum();
        let mut listed = HashSet::with_capacity(count);
        listed.extend(rows().flatten().map(|row| row.pid));
        self.processes.iter().filter(move |process| {
            let holds = process.may_hold_gpu_memory() == Some(true);
            (holds || process.parked().is_some())
                && !listed.contains(&process.pid)
                && !process.is_monitor()
        })
    }

    /// Formats the GPUs whose device files the process has open as ranges, such as `0-3,6`. Returns an empty string
    /// if there are none.
    pub fn held_gpus(&self, process: &Process) -> String {
        let held = self.gpus.iter().filter(|gpu| gpu.is_open_in(process) == Some(true));
        ranges(held.map(|gpu| gpu.index))
    }

    /// Describes an unlisted holder: `holds /dev/nvidia0, not listed by NVML`. If the process list of a GPU could not
    /// be read, leaves out the second part.
    pub fn holding(&self, process: &Process) -> String {
        if let Some(mark) = process.parked() {
            return mark.describe();
        }
        let files = process.gpu_files.as_deref().unwrap_or_default();
        let mut shown: Vec<&str> = files
            .iter()
            .map(|file| &**file)
            .filter(|file| minor_number_of(file).is_some())
            .collect();
        if shown.is_empty() {
            shown = files.iter().map(|file| &**file).collect();
        }
        let names: Vec<&str> = shown.iter().map(|file| head(file, NAME_CHARS)).collect();
        let mut text = format!("holds {}", some_of(FILES_NAMED, ", ", &names));
        if self.gpus.iter().all(|gpu| gpu.processes.is_some()) {
            text.push_str(", not listed by NVML");
        }
        text
    }
}

/// Formats ascending numbers as ranges, such as `0-3,6`.
pub fn ranges(numbers: impl Iterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let texts: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

fn head(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(at, _)| &text[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::{Container, Kubernetes, Slurm};
    use crate::model::time::Time;

    #[test]
    fn a_place_is_the_most_specific_one() {
        let mut process = Process::default();
        assert_eq!(process.place(), None);
        process.systemd_unit = Some("session-3.scope".into());
        assert_eq!(process.place(), None);
        process.systemd_unit = Some("vllm.service".into());
        assert_eq!(process.place().as_deref(), Some("vllm.service"));
        let (runtime, id) = (Some("docker".into()), Some("0123456789abcdef".into()));
        process.container = Some(Container { runtime, id, ..Container::default() }.into());
        assert_eq!(process.place().as_deref(), Some("docker:0123456789ab"));
        let (job_id, step_id) = (Some("812".into()), Some("batch".into()));
        process.slurm = Some(Slurm { job_id, step_id, ..Slurm::default() }.into());
        assert_eq!(process.place().as_deref(), Some("job:812.batch"));
        let (pod_name, namespace) = (Some("x".repeat(500).into()), Some("train".into()));
        process.kubernetes =
            Some(Kubernetes { pod_name, namespace, ..Kubernetes::default() }.into());
        let place = process.place().unwrap();
        assert_eq!(place, format!("pod:train/{}", "x".repeat(NAME_CHARS)));
    }

    #[test]
    fn a_part_of_a_gpu_is_named_by_its_device_or_instances() {
        let gpu = Gpu {
            index: 1,
            mig_devices: vec![MigDevice {
                index: Some(3),
                gpu_instance_id: Some(9),
                compute_instance_id: Some(0),
                ..MigDevice::default()
            }],
            ..Gpu::default()
        };
        assert_eq!(gpu.part_name(None, None), "1");
        assert_eq!(gpu.part_name(Some(9), Some(0)), "1:3");
        assert_eq!(gpu.part_name(Some(9), None), "1:3");
        assert_eq!(gpu.part_name(Some(9), Some(1)), "1:gi9/ci1");
        assert_eq!(gpu.part_name(Some(5), None), "1:gi5");
    }

    #[test]
    fn mps_roles_follow_from_programs_and_nvml_lists() {
        let running = |executable: &str| Process {
            executable: Some(executable.into()),
            command: Some(vec!["x".into()].into()),
            ..Process::default()
        };
        let row = |kind| GpuProcess { kind, ..GpuProcess::default() };
        let mps = row(ProcessType::Mps);
        let server = running("/usr/bin/nvidia-cuda-mps-server (deleted)");
        assert_eq!(server.mps_role(Some(&mps)), Some("mps server"));
        let control = running("/usr/bin/nvidia-cuda-mps-control");
        assert_eq!(control.mps_role(None), Some("mps control"));
        let other = running("/usr/bin/python3");
        assert_eq!(other.mps_role(Some(&mps)), Some("mps client"));
        assert_eq!(other.mps_role(Some(&row(ProcessType::Compute))), None);
        let zombie = Process { comm: Some("nvidia-cuda-mps".into()), ..Process::default() };
        assert_eq!(zombie.mps_role(None), Some("mps server"));
        let liar = Process { comm: Some("nvidia-cuda-mps".into()), ..running("/usr/bin/python3") };
        assert_eq!(liar.mps_role(None), None);
    }

    #[test]
    fn consecutive_numbers_form_a_range() {
        for (numbers, shown) in [
            (&[][..], ""),
            (&[4], "4"),
            (&[0, 1, 2, 3, 6], "0-3,6"),
            (&[0, 2, u32::MAX], "0,2,4294967295"),
        ] {
            assert_eq!(ranges(numbers.iter().copied()), shown);
        }
    }

    #[test]
    fn an_unlisted_holder_is_described_by_its_files() {
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.gpus = vec![Gpu {
            index: 0,
            minor_number: Some(4),
            processes: Some(vec![GpuProcess { pid: 1, ..GpuProcess::default() }]),
            ..Gpu::default()
        }];
        let holder = |pid, files: &[&str]| Process {
            pid,
            gpu_files: Some(files.iter().map(|&file| file.into()).collect()),
            ..Process::default()
        };
        snapshot.processes = vec![
            holder(1, &["/dev/nvidia4"]),
            holder(2, &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia4"]),
            holder(3, &[]),
            Process { pid: 4, ..Process::default() },
        ];
        let pids: Vec<u32> = snapshot.unlisted_holders().map(|process| process.pid).collect();
        assert_eq!(pids, [2], "neither listed processes nor processes without open files");
        let holder = &snapshot.processes[1];
        assert_eq!(snapshot.gpus[0].is_open_in(holder), Some(true));
        let text = snapshot.holding(holder);
        assert_eq!(text, "holds /dev/nvidia4, not listed by NVML");
        snapshot.gpus[0].processes = None;
        assert_eq!(snapshot.holding(&snapshot.processes[1]), "holds /dev/nvidia4");
    }
}
