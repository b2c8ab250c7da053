//! Reads one GPU: some values, such as its identity and settings, occasionally, and the others in each sample.
//!
//! `calls` makes the calls and classifies their failures. `mig` reads the MIG devices, and `utilization` reads how
//! busy each process is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;

use super::calls::{CallProgress, Calls};
use super::error::Code;
use super::ffi::{
    self, DeviceHandle, Engine, List, ProcessLists, ProcessRecord, StructLayout, Version,
};
use super::memory::{V1, V2, WholeGpuMemory, read_v1, read_v2};
use super::mig::{self, Mig};
use super::rows;
use super::utilization::{Accounting, Utilization};
use crate::model::snapshot::{Gpu, GpuProcess, Memory, MigDevice, ReadError};

/// Maximum plausible power, in milliwatts. Higher values are driver errors.
const MOST_MILLIWATTS: u32 = 10_000_000;
const MOST_CELSIUS: u32 = 200;
const MOST_MHZ: u32 = 20_000;
const MOST_FAN_PERCENT: u32 = 250;
/// Maximum plausible power, as a multiple of the power limit. A GPU exceeds its limit only briefly.
const MOST_OF_POWER_LIMIT: f64 = 3.0;

/// Interval between reads of the administrator's settings, the power limit and the fan.
const SETTINGS_EVERY: Duration = Duration::from_secs(30);
/// Delay before the first read of the values that only the page of a GPU shows.
const DETAILS_AFTER: Duration = Duration::from_millis(1500);
/// Interval between reads of the MPS list while it is empty. Few machines use MPS.
const MPS_EVERY: Duration = Duration::from_secs(10);

/// Reason why memory is unknown if no call for it is supported, as on GB10 and Jetson.
const SHARED_MEMORY: &str = "it shares the machine's memory; NVML gives no framebuffer figure";
/// Reason why memory is unknown to an unprivileged caller (nvml.h, nvmlDeviceGetMemoryInfo).
const DIVIDED_MEMORY: &str = "with MIG on, only root may read it; its MIG devices' memory is shown";
/// Reason why memory is unknown with the WDDM driver model, which WSL uses (nvml.h, nvmlProcessInfo_t).
const WINDOWS_MEMORY: &str =
    "under WSL, Windows manages the memory, and the driver does not report memory by process";
const UNREPORTED_MEMORY: &str = "the driver does not report memory by process";
/// Device file of the GPU that Windows manages. It exists only in WSL.
const WSL_DEVICE: &str = "/dev/dxg";

#[derive(Debug)]
pub(super) struct Reading {
    /// Identity and values. If the GPU is lost, `memory` and `processes` are `None`.
    pub(super) gpu: Gpu,
    pub(super) errors: Vec<ReadError>,
    /// Set if the driver is gone, so that NVML must be restarted.
    pub(super) driver_gone: Option<Code>,
    /// Whether the GPU no longer answers. Its handle must then be looked up again.
    pub(super) lost: bool,
    /// Whether the driver reports process utilization, or `None` if it was not requested or the call failed.
    pub(super) process_utilization: Option<bool>,
    pub(super) completed: Instant,
}

impl Reading {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self {
            gpu,
            errors: Vec::new(),
            driver_gone: None,
            lost: false,
            process_utilization: None,
            completed: Instant::now(),
        }
    }
}

pub(super) struct DeviceReader {
    nvml: Arc<Nvml>,
    handle: DeviceHandle,
    calls: Calls,
    facts: Gpu,
    settings_read: Option<Instant>,
    details_due: Instant,
    /// Whether the last read of a setting failed. The settings are then read in every sample, so that every snapshot
    /// contains the error.
    settings_failed: bool,
    /// Whether the driver has reported the MIG mode, or that MIG is not supported.
    mig_mode_reported: bool,
    lacks_list: bool,
    layout: StructLayout,
    lists: ProcessLists,
    mig: Mig,
    /// Whether only v1 of memory info works and v2 fails with `UNKNOWN`, as in WSL.
    only_v1_answers: bool,
    whole: WholeGpuMemory,
    mps_seen_or_due: Instant,
    utilization: Utilization,
    accounting: Accounting,
}

impl DeviceReader {
    /// Looks up the GPU, which can wake it. If that fails, returns a reading that contains only the error.
    pub(super) fn open(
        nvml: &Arc<Nvml>,
        index: u32,
        progress: Arc<CallProgress>,
    ) -> Result<Self, Box<Reading>> {
        let mig = Mig::new(index, Arc::clone(&progress));
        let mut calls = Calls::new(index, progress);
        let facts = Gpu { index, ..Gpu::default() };
        let name = "nvmlDeviceGetHandleByIndex_v2";
        let handle = match calls.raw(name, || nvml.device_by_index(index)) {
            Ok(device) => DeviceHandle::new(&device),
            Err(code) => {
                calls.report(name, code.to_string());
                return Err(Box::new(Reading {
                    errors: calls.errors,
                    driver_gone: Some(code).filter(|code| code.is_driver_gone()),
                    lost: true,
                    ..Reading::new(facts)
                }));
            }
        };
        Ok(Self {
            nvml: Arc::clone(nvml),
            handle,
            calls,
            facts,
            settings_read: None,
            details_due: Instant::now() + DETAILS_AFTER,
            settings_failed: false,
            mig_mode_reported: false,
            lacks_list: false,
            layout: ffi::process_list_layout(nvml),
            lists: ProcessLists::default(),
            mig,
            only_v1_answers: false,
            whole: WholeGpuMemory::default(),
            mps_seen_or_due: Instant::now(),
            utilization: Utilization::new(),
            accounting: Accounting::default(),
        })
    }

    pub(super) fn sample(&mut self) -> Reading {
        self.read_identity();
        self.read_settings();
        self.read_details();
        self.read_video_engines();
        let (memory, memory_unavailable) = match self.memory() {
            Ok(memory) => (self.believed(memory), None),
            Err(reason) => (None, Some(reason.into())),
        };
        let nvml = Arc::clone(&self.nvml);
        let device = self.handle.device(&nvml);
        let calls = &mut self.calls;
        const RATES: &str = "nvmlDeviceGetUtilizationRates";
        let rates = calls.value(RATES, || device.utilization_rates());
        let rates = rates.filter(|rates| {
            let max = rates.gpu.max(rates.memory);
            if max > 100 {
                calls.report(RATES, format!("the driver reports {max} percent"));
            }
            max <= 100
        });
        let power =
            calls.at_most("nvmlDeviceGetPowerUsage", MOST_MILLIWATTS, || device.power_usage());
        let temperature = calls.at_most("nvmlDeviceGetTemperature", MOST_CELSIUS, || {
            device.temperature(TemperatureSensor::Gpu)
        });
        let clock =
            calls.at_most("nvmlDeviceGetClockInfo", MOST_MHZ, || device.clock_info(Clock::SM));
        let state = calls.value("nvmlDeviceGetPerformanceState", || device.performance_state());
        let mut mig_devices = Vec::new();
        if self.facts.mig_mode == Some(true) && !self.calls.is_silent() {
            mig_devices = self.mig.sample(&nvml, &device);
        }
        let processes = self.processes(memory, &mig_devices);

        self.calls.take_errors_of(&mut self.mig.calls);
        let lost = self.calls.lost.take().is_some();
        let driver_gone = self.calls.driver_gone.take();
        let gone = lost || driver_gone.is_some();
        if gone {
            mig_devices.clear();
        }
        let unknown_rows = processes.as_deref().filter(|rows| self.lacks_processes(rows));
        let sampled = self.utilization.take_sampled().as_secs_f64();
        let is_sampled = processes.is_some() && !gone && self.utilization.supported() == Some(true);
        let limit = self.whole.limit.take().filter(|_| !gone);
        let gpu = Gpu {
            sampled_seconds: is_sampled.then(|| (sampled * 100.0).round() / 100.0),
            memory: memory.filter(|_| !gone),
            memory_unavailable: memory_unavailable.filter(|_| !gone),
            memory_limit_bytes: limit.map(|(limit, _)| limit),
            memory_limit_free_bytes: limit.map(|(_, free)| free),
            process_memory_unavailable: unknown_rows
                .filter(|_| !gone)
                .map(|_| process_memory_unavailable().into()),
            mig_devices,
            gpu_percent: rates.as_ref().map(|rates| rates.gpu),
            memory_percent: rates.as_ref().map(|rates| rates.memory),
            power_watts: power.map(watts).filter(|&drawn| {
                self.facts
                    .power_limit_watts
                    .is_none_or(|limit| drawn <= limit * MOST_OF_POWER_LIMIT)
            }),
            temperature_celsius: temperature,
            sm_clock_mhz: clock,
            performance_state: state.map(|state| state.as_c()).filter(|&state| state <= 15),
            processes: processes.filter(|_| !gone),
            ..self.facts.clone()
        };
        Reading {
            gpu,
            errors: std::mem::take(&mut self.calls.errors),
            driver_gone,
            lost,
            process_utilization: self.utilization.supported(),
            completed: Instant::now(),
        }
    }

    /// Reads those parts of the GPU's identity that are missing. A failed read is repeated in the next sample.
    fn read_identity(&mut self) {
        let Self { nvml, handle, calls, facts, .. } = self;
        let device = handle.device(nvml);
        if facts.uuid.is_none() {
            let uuid = calls.text("nvmlDeviceGetUUID", || device.uuid());
            facts.uuid = uuid.map(Into::into);
        }
        if facts.name.is_none() {
            let name = calls.text("nvmlDeviceGetName", || device.name());
            facts.name = name.map(Into::into);
        }
        if facts.pci_bus_id.is_none() {
            let pci = calls.value("nvmlDeviceGetPciInfo_v3", || device.pci_info());
            facts.pci_bus_id = pci.map(|pci| pci.bus_id.into());
        }
        if facts.minor_number.is_none() {
            facts.minor_number = calls.value("nvmlDeviceGetMinorNumber", || device.minor_number());
        }
    }

    fn believed(&mut self, memory: Option<Memory>) -> Option<Memory> {
        let lie = rows::contradiction(memory?);
        if let Some(lie) = lie {
            self.calls.report(V2, lie);
            return None;
        }
        memory
    }

    fn read_settings(&mut self) {
        let is_due = self.settings_read.is_none_or(|read| read.elapsed() >= SETTINGS_EVERY);
        if !is_due && !self.settings_failed {
            return;
        }
        if is_due {
            self.settings_read = Some(Instant::now());
            self.mig.forget();
        }
        let Self { nvml, handle, calls, facts, .. } = self;
        let device = handle.device(nvml);
        let errors_before = calls.errors.len();
        facts.compute_mode =
            calls.value("nvmlDeviceGetComputeMode", || device.compute_mode()).map(|mode| {
                match mode {
                    ComputeMode::Default => "default",
                    ComputeMode::ExclusiveThread => "exclusive_thread",
                    ComputeMode::Prohibited => "prohibited",
                    ComputeMode::ExclusiveProcess => "exclusive_process",
                }
                .into()
            });
        facts.persistence_mode =
            calls.value("nvmlDeviceGetPersistenceMode", || device.is_in_persistent_mode());
        facts.accounting_mode =
            calls.value("nvmlDeviceGetAccountingMode", || device.is_accounting_enabled());
        // Unprivileged callers cannot read the drain state.
        facts.is_drained =
            calls.raw("nvmlDeviceQueryDrainState", || device.is_drain_enabled(None)).ok();
        facts.recovery_action =
            calls.raw("nvmlDeviceGetFieldValues", || recovery_action(&device)).ok().map(Into::into);
        let mig_errors_before = calls.errors.len();
        let mig_mode =
            calls.value("nvmlDeviceGetMigMode", || device.mig_mode()).map(|mode| mode.current == 1);
        // If the mode cannot be read, keep its last value.
        if calls.errors.len() == mig_errors_before && !calls.is_silent() {
            self.mig_mode_reported = true;
            if std::mem::replace(&mut facts.mig_mode, mig_mode) != mig_mode {
                // Calls that do not work under MIG may work now.
                calls.ask_all_again();
            }
        }
        facts.numa_node = calls.value("nvmlDeviceGetNumaNodeId", || ffi::numa_node(nvml, &device));
        facts.power_limit_watts = calls
            .at_most("nvmlDeviceGetEnforcedPowerLimit", MOST_MILLIWATTS, || {
                device.enforced_power_limit()
            })
            .map(watts);
        facts.fan_percent =
            calls.at_most("nvmlDeviceGetFanSpeed_v2", MOST_FAN_PERCENT, || device.fan_speed(0));
        // If the GPU is lost or the driver is gone, some settings were not requested.
        self.settings_failed = calls.errors.len() > errors_before || calls.is_silent();
    }

    /// Reads the values that only the page of a GPU shows. Failures are not reported, because nothing else depends on
    /// these values. The first sample skips them, because the driver takes 20 ms to measure the PCIe throughput in
    /// each direction.
    fn read_details(&mut self) {
        fn read_optional<T, E: Into<Code>>(
            calls: &Calls,
            name: &'static str,
            call: impl FnOnce() -> Result<T, E>,
        ) -> Option<T> {
            calls.raw(name, call).ok()
        }
        if Instant::now() < self.details_due {
            return;
        }
        self.details_due = Instant::now() + SETTINGS_EVERY;
        let Self { nvml, handle, calls, facts, .. } = self;
        let device = handle.device(nvml);
        facts.memory_clock_mhz =
            read_optional(calls, "nvmlDeviceGetClockInfo", || device.clock_info(Clock::Memory))
                .filter(|clock| *clock <= MOST_MHZ);
        let reasons = read_optional(calls, "nvmlDeviceGetCurrentClocksThrottleReasons", || {
            device.current_throttle_reasons()
        });
        facts.throttle_reasons = reasons.map(|reasons| {
            let names = reasons.iter_names().map(|(name, _)| name.to_lowercase().replace('_', " "));
            names.map(Into::into).collect()
        });
        facts.ecc_uncorrected_errors = read_optional(calls, "nvmlDeviceGetTotalEccErrors", || {
            device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
        });
        let pcie = |counter| {
            let rate = read_optional(calls, "nvmlDeviceGetPcieThroughput", || {
                device.pcie_throughput(counter)
            });
            // NVML reports kilobytes per second.
            rate.map(|rate| u64::from(rate) * 1000)
        };
        facts.pcie_received_bytes_per_second = pcie(PcieUtilCounter::Receive);
        facts.pcie_sent_bytes_per_second = pcie(PcieUtilCounter::Send);
    }

    /// Reads how busy the video engines are. If that fails, the values are unknown, and no error is reported.
    fn read_video_engines(&mut self) {
        let Self { nvml, handle, calls, facts, .. } = self;
        let device = handle.device(nvml);
        let mut percent = |name, call: &dyn Fn() -> Result<u32, Code>| {
            let answer = calls.raw(name, call);
            if let Err(code) = answer
                && code.is_unsupported()
            {
                calls.failed(name, code);
            }
            answer.ok().filter(|percent| *percent <= 100)
        };
        facts.encoder_percent = percent("nvmlDeviceGetEncoderUtilization", &|| {
            Ok(device.encoder_utilization()?.utilization)
        });
        facts.decoder_percent = percent("nvmlDeviceGetDecoderUtilization", &|| {
            Ok(device.decoder_utilization()?.utilization)
        });
        facts.jpeg_percent = percent("nvmlDeviceGetJpgUtilization", &|| {
            ffi::engine_percent(nvml, &device, Engine::Jpeg)
        });
        facts.optical_flow_percent = percent("nvmlDeviceGetOfaUtilization", &|| {
            ffi::engine_percent(nvml, &device, Engine::OpticalFlow)
        });
    }

    fn lacks_processes(&self, rows: &[GpuProcess]) -> bool {
        (self.only_v1_answers || !rows.is_empty())
            && rows.iter().all(|row| row.used_bytes.is_none())
    }

    /// Reads memory info v2, or v1 if v2 is missing or fails with `UNKNOWN`, as in WSL. Returns the reason as an error
    /// if NVML does not provide the values for this GPU or this user. Returns `Ok(None)` after any other failure.
    fn memory(&mut self) -> Result<Option<Memory>, &'static str> {
        let Self { nvml, handle, calls, facts, only_v1_answers, whole, .. } = self;
        let device = &handle.device(nvml);
        let failure = match read_v2(calls, device) {
            Ok(reported) => {
                *only_v1_answers = false;
                let memory = whole.read(reported, || read_v1(calls, nvml, device));
                return Ok(memory.map_err(|code| calls.failed(V1, code)).ok());
            }
            Err(Code::NO_PERMISSION) if facts.mig_mode == Some(true) => return Err(DIVIDED_MEMORY),
            Err(code) => code,
        };
        if !failure.is_unsupported() && failure != Code::UNKNOWN {
            calls.failed(V2, failure);
            return Ok(None);
        }
        match read_v1(calls, nvml, device) {
            Ok(memory) => {
                *only_v1_answers |= failure == Code::UNKNOWN;
                calls.failed(V2, Code::NOT_SUPPORTED);
                Ok(Some(memory))
            }
            Err(Code::NO_PERMISSION) if facts.mig_mode == Some(true) => Err(DIVIDED_MEMORY),
            Err(code) if failure.is_unsupported() && code.is_unsupported() => {
                calls.failed(V2, failure);
                calls.failed(V1, code);
                Err(SHARED_MEMORY)
            }
            Err(code) => {
                if failure == Code::UNKNOWN && code == Code::UNKNOWN {
                    // Both versions fail with `UNKNOWN`, so the GPU is probably lost.
                    calls.failed(V2, code);
                    calls.lost = Some(code);
                } else {
                    calls.failed(V2, failure);
                    calls.failed(V1, code);
                }
                Ok(None)
            }
        }
    }

    fn processes(
        &mut self,
        memory: Option<Memory>,
        mig_devices: &[MigDevice],
    ) -> Option<Vec<GpuProcess>> {
        self.lacks_list = false;
        let compute = self.list(List::Compute)?;
        let graphics = self.list(List::Graphics)?;
        let now = Instant::now();
        let mut mps = Vec::new();
        if now >= self.mps_seen_or_due {
            mps = self.list(List::Mps)?;
            if mps.is_empty() && !self.lacks_list {
                self.mps_seen_or_due = now + MPS_EVERY;
            }
        }
        let (mut rows, mut lies) = rows::merge(&compute, &graphics, &mps);
        lies.extend(rows::bound(&mut rows, memory));
        lies.extend(mig::unseen_instance(&rows, mig_devices));
        for lie in lies {
            self.calls.report(self.list_name(List::Compute), lie);
        }
        self.gather_utilization();
        // NVML has no utilization samples under MIG (nvml.h), so a missing sample proves nothing.
        let may_be_divided = !self.mig_mode_reported || self.facts.mig_mode == Some(true);
        self.utilization.fill(&mut rows, may_be_divided);
        let is_accounting = self.facts.accounting_mode == Some(true);
        let device = self.handle.device(&self.nvml);
        self.accounting.fill(&mut rows, &device, is_accounting, &mut self.calls);
        Some(rows)
    }

    /// Reads the utilization samples since the last call, before the driver's ring buffer overwrites them.
    pub(super) fn gather_utilization(&mut self) {
        let device = self.handle.device(&self.nvml);
        self.utilization.read_samples(&self.nvml, &device, &mut self.calls);
    }

    fn list_name(&self, list: List) -> &'static str {
        match (list, self.layout.version) {
            (List::Compute, Version::V3) => "nvmlDeviceGetComputeRunningProcesses_v3",
            (List::Compute, Version::V2) => "nvmlDeviceGetComputeRunningProcesses_v2",
            (List::Compute, Version::V1) => "nvmlDeviceGetComputeRunningProcesses",
            (List::Graphics, Version::V3) => "nvmlDeviceGetGraphicsRunningProcesses_v3",
            (List::Graphics, Version::V2) => "nvmlDeviceGetGraphicsRunningProcesses_v2",
            (List::Graphics, Version::V1) => "nvmlDeviceGetGraphicsRunningProcesses",
            (List::Mps, Version::V3) => "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            (List::Mps, Version::V2) => "nvmlDeviceGetMPSComputeRunningProcesses_v2",
            (List::Mps, Version::V1) => "nvmlDeviceGetMPSComputeRunningProcesses",
        }
    }

    /// Reads a process list. Returns an empty list if the GPU or driver does not support it, and `None` if the call
    /// failed. An unsupported list of compute processes is a failure, because gpumem depends on this list.
    fn list(&mut self, list: List) -> Option<Vec<ProcessRecord>> {
        let name = self.list_name(list);
        let of_devices = if self.facts.mig_mode == Some(true) && !self.calls.is_silent() {
            let call = (name, list);
            let device = self.handle.device(&self.nvml);
            self.mig.list(&self.nvml, &device, &mut self.lists, call, self.layout)
        } else {
            None
        };
        let Self { nvml, handle, calls, lists, layout, .. } = self;
        let device = &handle.device(nvml);
        let answer = calls.raw(name, || lists.read(nvml, device, list, *layout));
        if let Some(of_devices) = of_devices {
            return match answer {
                Ok(whole) => Some(mig::join(whole, of_devices)),
                Err(code) => {
                    // Only privileged callers can read the list of the whole GPU. Others use the lists of its MIG
                    // devices.
                    let is_refused = code == Code::NO_PERMISSION || code.is_unsupported();
                    calls.failed(name, if is_refused { Code::NOT_SUPPORTED } else { code });
                    is_refused.then_some(of_devices)
                }
            };
        }
        match answer {
            Err(code) if code.is_unsupported() && list != List::Compute => {
                // Report this in every sample, because a process that holds memory may be missing from all lists.
                calls.failed(name, code);
                calls.report(
                    name,
                    format!("this driver does not list all of this GPU's processes ({code})"),
                );
                self.lacks_list = true;
                Some(Vec::new())
            }
            Err(code) if code.is_unsupported() => {
                // Report this in every sample, because it is unknown which processes hold the memory.
                calls.report(
                    name,
                    format!("this driver does not list this GPU's processes ({code})"),
                );
                None
            }
            answer => calls.judge(name, answer),
        }
    }
}

fn process_memory_unavailable() -> &'static str {
    if std::path::Path::new(WSL_DEVICE).exists() { WINDOWS_MEMORY } else { UNREPORTED_MEMORY }
}

/// Returns what must be done before programs can use the GPU again (nvml.h, nvmlDeviceGpuRecoveryAction_t).
fn recovery_action(device: &nvml_wrapper::Device<'_>) -> Result<&'static str, NvmlError> {
    let values = device.field_values_for(&[FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)])?;
    let sample = values.into_iter().next().ok_or(NvmlError::NotSupported)??;
    Ok(match sample.value? {
        SampleValue::U32(0) | SampleValue::U64(0) => "none",
        SampleValue::U32(1) | SampleValue::U64(1) => "gpu_reset",
        SampleValue::U32(2) | SampleValue::U64(2) => "node_reboot",
        SampleValue::U32(3) | SampleValue::U64(3) => "drain_p2p",
        SampleValue::U32(4) | SampleValue::U64(4) => "drain_and_reset",
        _ => "other",
    })
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}
