//! Finds processes that may be on a GPU whose process list is unknown.
//!
//! If a GPU's process list cannot be read, the activity on that GPU is unknown. A process may be on the GPU if it has
//! the GPU's device file open, was on the GPU before, or is in the GPU's last known list. If one member of a family may
//! be on the GPU, the whole family may depend on it. A run that lacks some of its ranks may also be on the GPU. A
//! process whose file descriptors are unreadable is not assumed to be on every GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::family::Family;
use super::{Gpu, Process, Snapshot};

impl Gpu {
    /// Returns whether the GPU's processes are unknown, because the GPU does not answer or its process list could not
    /// be read.
    pub fn is_unread(&self) -> bool {
        self.stale_seconds.is_some() || self.processes.is_none()
    }
}

impl Snapshot {
    /// Returns whether the GPU's process list is complete: the lists for all process types were read without errors.
    pub fn lists_all(&self, gpu: &Gpu) -> bool {
        let is_of_list =
            |call: &str| call.contains("RunningProcesses") && call.starts_with("nvmlDeviceGet");
        !gpu.is_unread()
            && !self
                .errors
                .iter()
                .any(|error| error.gpu == Some(gpu.index) && is_of_list(&error.call))
    }

    pub fn has_failed(&self, gpu: &Gpu, call: &str) -> bool {
        let mut errors = self.errors.iter();
        errors.any(|error| error.gpu == Some(gpu.index) && &*error.call == call)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unread {
    /// By pid, the lowest NVML index of the GPUs that the process itself may be on.
    process_gpus: BTreeMap<u32, u32>,
    /// By pid, the NVML index of a GPU that the process or another member of its family may be on.
    family_gpus: BTreeMap<u32, u32>,
}

impl Unread {
    /// Finds the processes that may be on unread GPUs. `was_on` returns whether a process was on a GPU earlier.
    pub fn new(
        snapshot: &Snapshot,
        families: &[Family],
        was_on: impl Fn(&Process, &Gpu) -> bool,
    ) -> Self {
        let mut process_gpus = BTreeMap::new();
        let unread: Vec<&Gpu> = snapshot.gpus.iter().filter(|gpu| gpu.is_unread()).collect();
        let Some(lowest) = unread.iter().map(|gpu| gpu.index).min() else {
            return Self::default();
        };
        for process in &snapshot.processes {
            let may_be_on = |gpu: &&&Gpu| {
                let mut rows = gpu.processes.iter().flatten();
                gpu.is_open_in(process) == Some(true)
                    || rows.any(|row| row.pid == process.pid)
                    || was_on(process, gpu)
            };
            let on = unread.iter().filter(may_be_on).map(|gpu| gpu.index).min();
            if let Some(index) = on {
                process_gpus.insert(process.pid, index);
            }
        }
        let mut family_gpus = process_gpus.clone();
        for family in families {
            let members = || family.members.iter();
            let processes: Vec<&Process> =
                members().filter_map(|&pid| snapshot.process(pid)).collect();
            let of_one = members().filter_map(|pid| process_gpus.get(pid).copied()).min();
            let unseen = || lacks_a_rank(&processes).then_some(lowest);
            if let Some(index) = of_one.or_else(unseen) {
                for &pid in &family.members {
                    family_gpus.entry(pid).or_insert(index);
                }
            }
        }
        Self { process_gpus, family_gpus }
    }

    pub fn may_hold(&self, pid: u32) -> bool {
        self.process_gpus.contains_key(&pid)
    }

    pub fn gpu_of(&self, pid: u32) -> Option<u32> {
        self.family_gpus.get(&pid).copied()
    }
}

/// Returns whether the launcher's environment variables name more ranks than the snapshot contains.
fn lacks_a_rank(family: &[&Process]) -> bool {
    let number = |process: &Process, name: &str| -> Option<u64> {
        process.environment.as_deref()?.get(name)?.parse().ok()
    };
    // On several machines, the snapshot contains only the local ranks, so the variables for local ranks come first.
    [("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("RANK", "WORLD_SIZE")]
        .iter()
        .find_map(|(rank, size)| {
            let size = family.iter().find_map(|process| number(process, size))?;
            let ranks: BTreeSet<u64> =
                family.iter().filter_map(|process| number(process, rank)).collect();
            Some((ranks.len() as u64) < size && !ranks.is_empty())
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::family::families;
    use crate::model::snapshot::PidNamespace;
    use crate::model::testing::environment;
    use crate::model::{GpuProcess, Time};

    fn process(pid: u32, group: u32, files: &[&str]) -> Process {
        Process {
            pid,
            start_ticks: Some(u64::from(pid)),
            uid: Some(1000),
            process_group: Some(group),
            session: Some(1),
            gpu_files: Some(files.iter().map(|&file| Arc::from(file)).collect()),
            ..Process::default()
        }
    }

    /// Returns a snapshot with two GPUs. All processes are listed on GPU 0, and the list of GPU 1 is unread.
    fn snapshot(processes: Vec<Process>) -> Snapshot {
        let rows = processes
            .iter()
            .map(|process| GpuProcess { pid: process.pid, ..GpuProcess::default() });
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.host.pid_namespace = Some(PidNamespace::Host);
        snapshot.gpus = vec![
            Gpu { processes: Some(rows.collect()), ..Gpu::default() },
            Gpu { index: 1, ..Gpu::default() },
        ];
        snapshot.processes = processes;
        snapshot
    }

    fn unread(snapshot: &Snapshot) -> Vec<u32> {
        let unread = Unread::new(snapshot, &families(snapshot), |_, _| false);
        let pids = snapshot.processes.iter().map(|process| process.pid);
        pids.filter(|&pid| unread.gpu_of(pid) == Some(1)).collect()
    }

    #[test]
    fn a_device_file_puts_a_process_and_its_family_on_a_gpu() {
        let both = ["/dev/nvidia0", "/dev/nvidia1"];
        let mut snapshot = snapshot(vec![
            process(10, 10, &["/dev/nvidia0"]),
            process(11, 10, &both),
            process(20, 20, &["/dev/nvidia0"]),
            process(30, 30, &both),
        ]);
        assert_eq!(unread(&snapshot), [10, 11, 30]);
        let unread_gpus = Unread::new(&snapshot, &families(&snapshot), |_, _| false);
        assert!(unread_gpus.may_hold(11) && !unread_gpus.may_hold(10));
        snapshot.gpus[1].processes = Some(Vec::new());
        assert_eq!(unread(&snapshot), [0; 0], "the list was read");
        snapshot.gpus[1].stale_seconds = Some(3.0);
        assert_eq!(unread(&snapshot), [10, 11, 30], "an old list is not a list");
    }

    #[test]
    fn a_process_may_still_be_on_its_last_gpu() {
        let mut snapshot = snapshot(vec![process(10, 10, &[]), process(20, 20, &[])]);
        let was_on = |process: &Process, gpu: &Gpu| process.pid == 20 && gpu.index == 1;
        let unread_by = Unread::new(&snapshot, &[], was_on);
        assert_eq!((unread_by.gpu_of(10), unread_by.gpu_of(20)), (None, Some(1)));
        snapshot.gpus[1].stale_seconds = Some(3.0);
        snapshot.gpus[1].processes = Some(vec![GpuProcess { pid: 10, ..GpuProcess::default() }]);
        assert_eq!(unread(&snapshot), [10], "the last list still shows it");
    }

    #[test]
    fn a_missing_rank_may_be_on_an_unread_gpu() {
        let rank = |pid: u32, rank: &str, size: &str| {
            let environment = environment(&[("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)]);
            Process { environment, ..process(pid, pid, &[]) }
        };
        assert_eq!(unread(&snapshot(vec![rank(10, "0", "2")])), [10]);
        assert_eq!(unread(&snapshot(vec![rank(10, "0", "1")])), [0; 0]);
        let mut second = rank(11, "1", "2");
        second.process_group = Some(10);
        assert_eq!(unread(&snapshot(vec![rank(10, "0", "2"), second])), [0; 0]);
    }

    #[test]
    fn unreadable_files_do_not_put_a_process_on_every_gpu() {
        let mut other = process(10, 10, &[]);
        other.gpu_files = None;
        assert_eq!(unread(&snapshot(vec![other])), [0; 0]);
    }
}
