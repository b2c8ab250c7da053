//! Devices that a CUDA program can use: whole GPUs, and the MIG devices of partitioned GPUs.

use std::sync::Arc;

use super::field::{Needle, is_called};
use super::snapshot::{Gpu, GpuProcess, MigDevice, ProcessType};

pub type DeviceKey = (u32, Option<(Option<u32>, Option<Arc<str>>)>);

#[derive(Clone, Copy, Debug)]
pub struct ComputeDevice<'a> {
    pub gpu: &'a Gpu,
    /// The MIG device, or `None` if the device is a whole GPU.
    pub mig: Option<&'a MigDevice>,
}

impl PartialEq for ComputeDevice<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<'a> ComputeDevice<'a> {
    pub fn key(&self) -> DeviceKey {
        (self.gpu.index, self.mig.map(|mig| (mig.index, mig.uuid.clone())))
    }

    /// Returns the MIG devices of a partitioned GPU. For any other GPU, returns the GPU itself. CUDA programs cannot
    /// use a partitioned GPU as a whole.
    pub fn all_of(gpu: &'a Gpu) -> impl Iterator<Item = Self> {
        let is_partitioned = gpu.mig_mode == Some(true) || !gpu.mig_devices.is_empty();
        let whole = (!is_partitioned).then_some(Self { gpu, mig: None });
        let parts = gpu.mig_devices.iter().map(move |mig| Self { gpu, mig: Some(mig) });
        whole.into_iter().chain(parts)
    }

    /// Returns the UUID as `CUDA_VISIBLE_DEVICES` accepts it: `GPU-…` or `MIG-…`.
    pub fn uuid(&self) -> Option<&'a Arc<str>> {
        self.mig.map_or(self.gpu.uuid.as_ref(), |mig| mig.uuid.as_ref())
    }

    pub fn name(&self) -> String {
        match self.mig {
            None => format!("GPU {}", self.gpu.index),
            Some(mig) => format!("MIG device {}", mig.name_on(self.gpu.index)),
        }
    }

    /// Returns the total memory of the GPU or, for a MIG device, of its GPU instance, in bytes.
    pub fn total_bytes(&self) -> Option<u64> {
        self.mig.map_or(self.gpu.memory, |mig| mig.memory).map(|memory| memory.total_bytes)
    }

    /// Returns how much memory can be allocated, in bytes, or `None` if the amount is unknown or the GPU does not
    /// answer.
    pub fn free_bytes(&self) -> Option<u64> {
        let free = match self.mig {
            None => self.gpu.free_bytes(),
            Some(mig) => mig.memory.map(|memory| memory.free_bytes),
        };
        free.filter(|_| self.gpu.stale_seconds.is_none())
    }

    /// Returns the device's rows in the process list, or `None` if the list was not read.
    pub fn processes(&self) -> Option<impl Iterator<Item = &'a GpuProcess>> {
        let mig = self.mig;
        let is_here = move |row: &&GpuProcess| {
            mig.is_none_or(|mig| {
                row.gpu_instance_id == mig.gpu_instance_id
                    && (row.compute_instance_id.is_none()
                        || row.compute_instance_id == mig.compute_instance_id)
            })
        };
        Some(self.gpu.processes.as_ref()?.iter().filter(is_here))
    }

    /// Returns whether `typed` names this device. The name is the UUID, a name of the form GPU:DEVICE (`0:3`), or the
    /// index, model name or UUID of the GPU. A part of a model name or a prefix of a UUID is enough.
    pub fn is_called(&self, typed: &str) -> bool {
        let needle = Needle::new(typed);
        let is_part = |mig: &MigDevice| {
            let uuid = mig.uuid.as_deref();
            uuid.is_some_and(|uuid| needle.is_uuid() && needle.is_uuid_of(uuid, false))
                || needle.equals(&mig.name_on(self.gpu.index))
        };
        is_called(self.gpu, &needle, false, true) || self.mig.is_some_and(is_part)
    }

    /// Returns why a new program cannot use the device even if enough memory is free. Ignores claims.
    pub fn refusal(&self) -> Option<String> {
        let gpu = self.gpu;
        if gpu.is_drained == Some(true) {
            return Some("drained".to_owned());
        }
        if let Some(action) = gpu.recovery_action.as_deref().filter(|&action| action != "none") {
            return Some(format!("needs recovery ({action})"));
        }
        match gpu.compute_mode.as_deref() {
            Some("prohibited") => Some("compute mode: prohibited".to_owned()),
            Some(mode) if mode.starts_with("exclusive") => {
                let Some(mut rows) = self.processes() else {
                    return Some("compute mode: exclusive; its processes are unknown".to_owned());
                };
                let holder = rows.find(|row| row.kind != ProcessType::Graphics)?;
                Some(format!("compute mode: exclusive; in use by {}", holder.pid))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::Memory;

    fn mig(index: u32, free_bytes: u64) -> MigDevice {
        MigDevice {
            index: Some(index),
            gpu_instance_id: Some(index + 7),
            compute_instance_id: Some(0),
            uuid: Some(format!("MIG-{index}a").into()),
            memory: Some(Memory { total_bytes: 10, free_bytes, ..Memory::default() }),
            ..MigDevice::default()
        }
    }

    #[test]
    fn a_partitioned_gpu_is_listed_as_its_mig_devices() {
        let mut gpu = Gpu {
            index: 3,
            uuid: Some("GPU-b".into()),
            memory: Some(Memory { total_bytes: 80, free_bytes: 60, ..Memory::default() }),
            mig_mode: Some(false),
            ..Gpu::default()
        };
        let names = |gpu: &Gpu| -> Vec<(String, Option<u64>)> {
            ComputeDevice::all_of(gpu).map(|device| (device.name(), device.free_bytes())).collect()
        };
        assert_eq!(names(&gpu), [("GPU 3".to_owned(), Some(60))]);
        gpu.mig_mode = Some(true);
        assert_eq!(names(&gpu), [], "no MIG device is visible");
        gpu.mig_devices = vec![mig(0, 1), mig(1, 9)];
        gpu.processes =
            Some(vec![GpuProcess { gpu_instance_id: Some(8), ..GpuProcess::default() }]);
        assert_eq!(
            names(&gpu),
            [("MIG device 3:0".to_owned(), Some(1)), ("MIG device 3:1".to_owned(), Some(9))]
        );
        let [first, second] = [0, 1].map(|index| ComputeDevice::all_of(&gpu).nth(index).unwrap());
        let held = |device: ComputeDevice<'_>| device.processes().unwrap().count();
        assert_eq!((held(first), held(second), second.total_bytes()), (0, 1, Some(10)));
        for (typed, is_first, is_second) in [
            ("3", true, true),
            ("GPU-b", true, true),
            ("MIG-1a", false, true),
            ("3:0", true, false),
            ("MIG-2", false, false),
            ("1", false, false),
        ] {
            let called = (first.is_called(typed), second.is_called(typed));
            assert_eq!(called, (is_first, is_second), "{typed}");
        }
        gpu.stale_seconds = Some(9.0);
        assert!(names(&gpu).iter().all(|(_, free)| free.is_none()));
    }

    #[test]
    fn a_compute_mode_or_failure_makes_a_gpu_unusable() {
        let row = |kind| Some(vec![GpuProcess { pid: 9, kind, ..GpuProcess::default() }]);
        let gpu = |mode: &str, processes| Gpu {
            compute_mode: Some(mode.into()),
            processes,
            ..Gpu::default()
        };
        let refused = |gpu: &Gpu| ComputeDevice { gpu, mig: None }.refusal();
        for (mode, processes, is_refused) in [
            ("default", row(ProcessType::Compute), false),
            ("default", None, false),
            ("exclusive_process", Some(Vec::new()), false),
            ("exclusive_process", row(ProcessType::Graphics), false),
            ("exclusive_process", row(ProcessType::ComputeGraphics), true),
            ("exclusive_process", row(ProcessType::Other), true),
            ("exclusive_process", None, true),
            ("exclusive_thread", row(ProcessType::Compute), true),
            ("prohibited", Some(Vec::new()), true),
        ] {
            let gpu = gpu(mode, processes);
            assert_eq!(refused(&gpu).is_some(), is_refused, "{gpu:?}");
        }
        let recovery =
            |action: &str| Gpu { recovery_action: Some(action.into()), ..Gpu::default() };
        assert!(refused(&recovery("none")).is_none() && refused(&recovery("gpu_reset")).is_some());
        let drained = |is_drained| Gpu { is_drained: Some(is_drained), ..Gpu::default() };
        assert!(refused(&drained(false)).is_none() && refused(&drained(true)).is_some());
    }
}
