//! MIG devices, into which a GPU is partitioned while MIG is on.

use serde::{Deserialize, Serialize};

use super::{Gpu, Memory, Process, Value};

/// A MIG device, which is a compute instance in a GPU instance.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MigDevice {
    /// Index on the GPU. Indices can have gaps.
    pub index: u32,
    /// UUID, such as `"MIG-…"`. The default is derived from the indices.
    pub uuid: Option<String>,
    /// Profile, such as `"1g.10gb"`, or `"1c.2g.20gb"` for a part of a GPU instance.
    pub profile: String,
    /// Name. The default consists of the GPU's name and the profile.
    pub name: Option<String>,
    pub gpu_instance_id: u32,
    pub compute_instance_id: u32,
    pub memory: Memory,
    /// Processes that hold memory of this MIG device. The lists of the whole GPU also contain these processes.
    pub processes: Vec<Process>,
}

impl MigDevice {
    /// Returns a MIG device in its own GPU instance, with `total` bytes of memory.
    pub fn new(index: u32, profile: impl Into<String>, total: impl Into<Value>) -> Self {
        Self {
            index,
            profile: profile.into(),
            gpu_instance_id: 7 + index,
            memory: Memory {
                total: total.into(),
                reserved: (40_u64 << 20).into(),
                ..Memory::default()
            },
            ..Self::default()
        }
    }

    #[must_use]
    pub fn process(mut self, process: Process) -> Self {
        self.processes.push(Process {
            gi: Some(self.gpu_instance_id),
            ci: Some(self.compute_instance_id),
            ..process
        });
        self
    }
}

impl Gpu {
    /// Turns MIG on, and adds a MIG device.
    #[must_use]
    pub fn mig_device(mut self, device: MigDevice) -> Self {
        self.mig = Some(true);
        self.mig_devices.push(device);
        self
    }

    /// Returns the MIG device with the given index, if MIG is on.
    pub(crate) fn mig_device_at(&self, index: u32) -> Option<&MigDevice> {
        let is_on = self.mig == Some(true);
        let found = self.mig_devices.iter().find(|mig| mig.index == index);
        found.filter(|_| is_on)
    }

    /// Returns all processes, including the processes of MIG devices if MIG is on.
    pub(crate) fn all_processes(&self) -> impl Iterator<Item = &Process> {
        let devices = self.mig_devices.iter().filter(|_| self.mig == Some(true));
        let of_devices = devices.flat_map(|device| &device.processes);
        self.processes.iter().chain(of_devices)
    }
}
