//! Reads the MIG devices of one GPU: their handles, identity, memory and processes.
//!
//! While MIG is enabled, only privileged callers can read the memory and the process lists of the whole GPU. A caller
//! with access to a MIG device can read the device's memory and process lists (nvml.h, notes on these calls). Handles
//! are looked up once, and again after a handle fails or the GPU's settings are read: destroying an instance makes its
//! handle invalid, and the driver can reuse the handle for another instance. On a GPU without MIG, this module makes no
//! calls.
//!
//! `device` adds the results to the GPU's, and `calls` makes the calls.

use std::sync::Arc;

use nvml_wrapper::{Device, Nvml};

use super::calls::{CallProgress, Calls};
use super::error::Code;
use super::ffi::{self, DeviceHandle, List, ProcessLists, ProcessRecord, StructLayout};
use super::memory::{V2, read_v1, read_v2};
use super::rows;
use crate::model::snapshot::{GpuProcess, Memory, MigDevice};

/// Maximum number of MIG devices. No GPU has more.
const MOST_DEVICES: u32 = 64;

pub(super) struct Mig {
    /// Calls for the MIG devices. They are separate from those for the GPU, which can support calls that its MIG
    /// devices do not.
    pub(super) calls: Calls,
    devices: Vec<MigHandle>,
    is_known: bool,
}

struct MigHandle {
    handle: DeviceHandle,
    facts: MigDevice,
}

impl Mig {
    pub(super) fn new(gpu: u32, progress: Arc<CallProgress>) -> Self {
        Self { calls: Calls::new(gpu, progress), devices: Vec::new(), is_known: false }
    }

    /// Makes the next use look up the handles again.
    pub(super) fn forget(&mut self) {
        self.is_known = false;
    }

    /// Reads the MIG devices and their memory. If a handle fails, looks up all handles again, because the GPU may
    /// have been partitioned differently.
    pub(super) fn sample(&mut self, nvml: &Nvml, gpu: &Device<'_>) -> Vec<MigDevice> {
        let was_known = self.is_known;
        self.look_up(nvml, gpu);
        let mut read = self.memories(nvml);
        if was_known && read.iter().any(Result::is_err) && self.calls.driver_gone.is_none() {
            self.forget();
            self.look_up(nvml, gpu);
            read = self.memories(nvml);
        }
        let mut devices = Vec::with_capacity(read.len());
        for (memory, handle) in read.into_iter().zip(&self.devices) {
            let memory = memory.map(Some).unwrap_or_else(|code| {
                self.is_known = false;
                if code.is_unsupported() {
                    self.calls.report(V2, code.to_string());
                }
                self.calls.failed(V2, code);
                None
            });
            let lie = memory.and_then(rows::contradiction);
            let memory = memory.filter(|_| lie.is_none());
            if let Some(lie) = lie {
                self.calls.report(V2, lie);
            }
            devices.push(MigDevice { memory, ..handle.facts.clone() });
        }
        devices
    }

    fn look_up(&mut self, nvml: &Nvml, gpu: &Device<'_>) {
        const COUNT: &str = "nvmlDeviceGetMaxMigDeviceCount";
        const BY_INDEX: &str = "nvmlDeviceGetMigDeviceHandleByIndex";
        if std::mem::replace(&mut self.is_known, true) {
            return;
        }
        self.devices.clear();
        let calls = &mut self.calls;
        // If MIG is enabled but these calls are not supported, MIG devices cannot be found, which is an error.
        let Some(count) = calls.record(COUNT, || gpu.mig_device_count()) else {
            self.is_known = false;
            return;
        };
        let errors_before = calls.errors.len();
        let (mut refused, mut failure) = (None, None);
        for index in 0..count.min(MOST_DEVICES) {
            match calls.raw(BY_INDEX, || gpu.mig_device_by_index(index)) {
                Ok(device) => {
                    let facts = facts(calls, nvml, &device, index);
                    let handle = DeviceHandle::new(&device);
                    self.devices.push(MigHandle { handle, facts });
                }
                // No device has this index, or it belongs to another user.
                Err(Code::NOT_FOUND) => {}
                Err(Code::NO_PERMISSION) => refused = Some(Code::NO_PERMISSION),
                Err(code) => failure = Some(code),
            }
        }
        if let Some(code) = failure.or(refused.filter(|_| self.devices.is_empty())) {
            if code.is_unsupported() {
                calls.report(BY_INDEX, code.to_string());
            }
            calls.failed(BY_INDEX, code);
        }
        // After a failure, every sample tries again and reports the error.
        self.is_known &= calls.errors.len() == errors_before;
    }

    fn memories(&self, nvml: &Nvml) -> Vec<Result<Memory, Code>> {
        let read = |handle: &MigHandle| {
            let device = &handle.handle.device(nvml);
            match read_v2(&self.calls, device) {
                Err(code) if code.is_unsupported() => read_v1(&self.calls, nvml, device),
                memory => memory,
            }
        };
        self.devices.iter().map(read).collect()
    }

    /// Reads a process list of all MIG devices. Returns `None` if it could not be read for all of them. If a handle
    /// fails, looks up all handles again.
    pub(super) fn list(
        &mut self,
        nvml: &Nvml,
        gpu: &Device<'_>,
        lists: &mut ProcessLists,
        (name, list): (&'static str, List),
        layout: StructLayout,
    ) -> Option<Vec<ProcessRecord>> {
        let mut read = self.records(nvml, lists, (name, list), layout);
        if read.is_err() && self.is_known {
            self.forget();
            self.look_up(nvml, gpu);
            read = self.records(nvml, lists, (name, list), layout);
        }
        match read {
            Ok(records) => records.filter(|_| self.is_known),
            Err(code) => {
                self.calls.failed(name, code);
                self.forget();
                None
            }
        }
    }

    /// Reads a process list of all MIG devices with the handles that are known. Returns `Ok(None)` if the driver
    /// cannot list the compute processes of a MIG device.
    fn records(
        &mut self,
        nvml: &Nvml,
        lists: &mut ProcessLists,
        (name, list): (&'static str, List),
        layout: StructLayout,
    ) -> Result<Option<Vec<ProcessRecord>>, Code> {
        let mut all = Vec::new();
        for MigHandle { handle, facts } in &self.devices {
            let device = &handle.device(nvml);
            let calls = &mut self.calls;
            match calls.raw(name, || lists.read(nvml, device, list, layout)) {
                Ok(records) => all.extend(records.into_iter().map(|record| ProcessRecord {
                    gpu_instance_id: record.gpu_instance_id.or(facts.gpu_instance_id),
                    compute_instance_id: record.compute_instance_id.or(facts.compute_instance_id),
                    ..record
                })),
                Err(code) if code.is_unsupported() => {
                    calls.failed(name, code);
                    if list == List::Compute {
                        return Ok(None);
                    }
                }
                Err(code) => return Err(code),
            }
        }
        Ok(Some(all))
    }
}

fn facts(calls: &mut Calls, nvml: &Nvml, device: &Device<'_>, index: u32) -> MigDevice {
    let name = calls.value("nvmlDeviceGetName", || device.name());
    MigDevice {
        index: Some(index),
        gpu_instance_id: calls
            .record("nvmlDeviceGetGpuInstanceId", || ffi::gpu_instance_id(nvml, device)),
        compute_instance_id: calls
            .record("nvmlDeviceGetComputeInstanceId", || ffi::compute_instance_id(nvml, device)),
        uuid: calls.text("nvmlDeviceGetUUID", || device.uuid()).map(Into::into),
        profile: name.as_deref().and_then(profile_in).map(Into::into),
        memory: None,
    }
}

/// Returns the profile, which is at the end of a MIG device's name, as in `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
fn profile_in(name: &str) -> Option<&str> {
    let (_, profile) = name.rsplit_once(" MIG ")?;
    Some(profile.trim()).filter(|profile| !profile.is_empty())
}

/// Merges the list of the GPU with those of its MIG devices. A process is listed once per instance, with the larger
/// memory value. If a MIG device lists the process, a row of the GPU without an instance is ignored.
pub(super) fn join(
    whole: Vec<ProcessRecord>,
    of_devices: Vec<ProcessRecord>,
) -> Vec<ProcessRecord> {
    let mut joined: Vec<ProcessRecord> = Vec::with_capacity(whole.len().max(of_devices.len()));
    let key =
        |record: &ProcessRecord| (record.pid, record.gpu_instance_id, record.compute_instance_id);
    let has_no_instance = |record: &ProcessRecord| {
        record.gpu_instance_id.is_none() && record.compute_instance_id.is_none()
    };
    for record in of_devices.into_iter().chain(whole) {
        if let Some(row) = joined.iter_mut().find(|row| key(row) == key(&record)) {
            row.used_bytes = row.used_bytes.max(record.used_bytes);
        } else if !has_no_instance(&record) || !joined.iter().any(|row| row.pid == record.pid) {
            joined.push(record);
        }
    }
    joined
}

/// Returns an error if a process is listed on a GPU instance for which there is no visible MIG device.
pub(super) fn unseen_instance(rows: &[GpuProcess], devices: &[MigDevice]) -> Option<String> {
    let is_seen = |id: u32| {
        devices.iter().any(|device| device.gpu_instance_id.is_none_or(|visible| visible == id))
    };
    let mut ids = rows.iter().filter_map(|row| row.gpu_instance_id);
    let id = ids.find(|&id| !is_seen(id))?;
    Some(format!(
        "processes are listed on GPU instance {id}, but the driver reports no MIG device for it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pid: u32, used_bytes: u64, instance: Option<(u32, u32)>) -> ProcessRecord {
        ProcessRecord {
            pid,
            used_bytes: Some(used_bytes),
            gpu_instance_id: instance.map(|(gpu, _)| gpu),
            compute_instance_id: instance.map(|(_, compute)| compute),
        }
    }

    #[test]
    fn a_process_in_both_lists_appears_once_per_instance() {
        let (first, second) = (Some((7, 0)), Some((9, 0)));
        let joined = join(
            vec![record(1, 6, first), record(2, 9, None), record(3, 1, None)],
            vec![record(1, 5, first), record(1, 8, second), record(2, 4, second)],
        );
        let expected =
            [record(1, 6, first), record(1, 8, second), record(2, 4, second), record(3, 1, None)];
        assert_eq!(joined, expected);
    }

    #[test]
    fn a_profile_is_at_the_end_of_the_name() {
        for (name, profile) in [
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", Some("1g.10gb")),
            ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", Some("1c.3g.20gb")),
            ("NVIDIA H100", None),
            ("NVIDIA H100 MIG ", None),
        ] {
            assert_eq!(profile_in(name), profile, "{name}");
        }
    }
}
