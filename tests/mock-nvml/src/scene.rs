//! The scene that the driver plays: types with serde, and builders for tests.
//!
//! Omitted keys have plausible defaults. For a value that is `null`, the driver returns `NVML_ERROR_NOT_SUPPORTED`.
//! An unknown key is an error. The documentation of the crate contains examples.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub use self::fault::Fault;
pub use self::mig::MigDevice;
pub use self::process::{Account, Growth, Process, ProcessKind, Sample};
pub use crate::value::Value;

mod fault;
mod mig;
mod platform;
mod process;

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scene {
    pub driver: Driver,
    /// Return code of `nvmlInit*`, such as 4 (no permission), 9 (driver not loaded) or 18 (version mismatch).
    pub init_error: Option<u32>,
    /// Speed of the scene's time relative to real time, 1 by default. In each process, the scene starts with the
    /// first call.
    pub speed: Option<f64>,
    /// GPUs in the order of NVML's indices.
    pub gpus: Vec<Gpu>,
    pub faults: Vec<Fault>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Driver {
    pub version: String,
    pub nvml_version: String,
    /// The newest supported CUDA version, as 1000 × major + 10 × minor.
    pub cuda_version: u32,
    /// Set if the records in the `_v3` process lists have 32 bytes instead of 24, as in drivers 535.43 to 535.86.
    pub wide_records: bool,
    /// Epoch of the timestamps of processes' utilization samples.
    pub utilization_clock: UtilizationClock,
    /// Set if the caller may query the memory and processes of a whole GPU while MIG is on. Otherwise, the driver
    /// returns `NO_PERMISSION`.
    pub privileged: bool,
    /// Functions for which the driver returns `FUNCTION_NOT_FOUND`. [`library_without`](crate::library_without) also
    /// removes the symbols.
    pub missing: Vec<String>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            version: "580.159.03".into(),
            nvml_version: "13.580.159.03".into(),
            cuda_version: 13_000,
            wide_records: false,
            utilization_clock: UtilizationClock::Unix,
            privileged: true,
            missing: names(&[
                "nvmlDeviceGetConfComputeMemSizeInfo",
                "nvmlDeviceGetRunningProcessDetailList",
            ]),
        }
    }
}

impl Driver {
    /// Returns a driver with 32-byte records in the `_v3` process lists. The driver supports the call for
    /// confidential computing, but not the detailed process list.
    pub fn r535() -> Self {
        Self {
            version: "535.54.03".into(),
            nvml_version: "12.535.54.03".into(),
            cuda_version: 12_020,
            wide_records: true,
            missing: names(&["nvmlDeviceGetRunningProcessDetailList"]),
            ..Self::default()
        }
    }

    /// Returns a driver without memory info v2 and the `_v3` process lists.
    pub fn r470() -> Self {
        Self {
            version: "470.256.02".into(),
            nvml_version: "11.470.256.02".into(),
            cuda_version: 11_040,
            missing: names(&[
                "nvmlDeviceGetConfComputeMemSizeInfo",
                "nvmlDeviceGetRunningProcessDetailList",
                "nvmlDeviceGetMemoryInfo_v2",
                "nvmlDeviceGetComputeRunningProcesses_v3",
                "nvmlDeviceGetGraphicsRunningProcesses_v3",
                "nvmlDeviceGetMPSComputeRunningProcesses_v3",
                "nvmlDeviceGetTemperatureV",
            ]),
            ..Self::default()
        }
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.into()).collect()
}

/// The point in time from which the driver counts microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UtilizationClock {
    /// 1970, as on x86.
    #[default]
    Unix,
    /// Boot, as on a DGX Spark.
    Boot,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    pub name: String,
    /// Makes the name and the UUID invalid UTF-8.
    pub garbled: bool,
    /// UUID, such as `"GPU-…"`. The default is derived from the index.
    pub uuid: Option<String>,
    /// PCI address, such as `"00000000:17:00.0"`. The default is derived from the index.
    pub pci: Option<String>,
    /// Minor number of the GPU's device file. The default is the GPU's index.
    pub minor_number: Option<u32>,
    pub memory: Option<Memory>,
    /// NUMA node of the GPU's memory, or `null` if the memory is not part of the system's memory.
    pub numa_node: Option<u32>,
    /// Utilization in percent.
    pub utilization: Option<Utilization>,
    /// Power in milliwatts.
    pub power: Option<Value>,
    /// Power limit in milliwatts.
    pub power_limit: Option<Value>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<Value>,
    /// Frequency of all clocks in MHz.
    pub clock: Option<Value>,
    /// Performance state from 0 to 15.
    pub pstate: Option<Value>,
    /// Fan speed in percent, or `null` for a GPU without fans.
    pub fan: Option<Value>,
    pub compute_mode: Option<ComputeMode>,
    /// Set for a drained GPU. `null` if the driver does not report draining.
    pub drained: Option<bool>,
    /// `nvmlDeviceGpuRecoveryAction_t`, or `null` if the driver does not support the field.
    pub recovery_action: Option<u32>,
    /// Persistence mode, in which the driver stays loaded without clients.
    pub persistence: Option<bool>,
    /// Accounting mode, or `null` if the GPU does not support accounting.
    pub accounting: Option<bool>,
    /// MIG mode, or `null` for a GPU without MIG. While MIG is on, NVML does not support utilization.
    pub mig: Option<bool>,
    /// MIG devices, which exist only while `mig` is `true`.
    pub mig_devices: Vec<MigDevice>,
    /// Set if the driver supports utilization samples of processes.
    pub process_utilization: bool,
    pub processes: Vec<Process>,
    /// Additional utilization samples with arbitrary pids and percentages.
    pub utilization_samples: Vec<Sample>,
    /// Makes the compute list grow with each call.
    pub grow_list: Option<Growth>,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            name: "NVIDIA H200".into(),
            garbled: false,
            uuid: None,
            pci: None,
            minor_number: None,
            memory: Some(Memory::default()),
            numa_node: None,
            utilization: Some(Utilization::default()),
            power: Some(75_000.into()),
            power_limit: Some(700_000.into()),
            temperature: Some(30.into()),
            clock: Some(345.into()),
            pstate: Some(0.into()),
            fan: None,
            compute_mode: Some(ComputeMode::Default),
            drained: None,
            recovery_action: None,
            persistence: Some(true),
            accounting: Some(false),
            mig: None,
            mig_devices: Vec::new(),
            process_utilization: true,
            processes: Vec::new(),
            utilization_samples: Vec::new(),
            grow_list: None,
        }
    }
}

/// Framebuffer memory in bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    pub total: Value,
    /// Memory reserved for the driver and firmware. Memory info v1 includes it in the used memory.
    pub reserved: Value,
    /// Allocated memory. By default, the sum of the memory of all processes and `unattributed`.
    pub used: Option<Value>,
    /// Allocated memory that no listed process holds.
    pub unattributed: Value,
    /// Limit of the caller's cgroup. From R615 on, memory info v2 reports the limit in place of the GPU's memory.
    pub limit: Option<Limit>,
}

/// Limit and use of the caller's cgroup in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limit {
    /// Limit for all processes in the cgroup together.
    pub hard: Value,
    pub used: Value,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            total: (141_u64 << 30).into(),
            reserved: (614_u64 << 20).into(),
            used: None,
            unattributed: 0.into(),
            limit: None,
        }
    }
}

/// Utilization of a GPU in percent.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Utilization {
    /// Percentage of the time during which a kernel ran.
    pub gpu: Value,
    /// Percentage of the time during which memory was read or written.
    pub memory: Value,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    #[default]
    Default = 0,
    ExclusiveThread = 1,
    Prohibited = 2,
    ExclusiveProcess = 3,
}

impl Scene {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn gpu(mut self, gpu: Gpu) -> Self {
        self.gpus.push(gpu);
        self
    }

    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    #[must_use]
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = driver;
        self
    }

    /// Makes `nvmlInit*` fail.
    #[must_use]
    pub fn init_error(mut self, code: u32) -> Self {
        self.init_error = Some(code);
        self
    }

    /// Reads and checks a scene.
    ///
    /// # Errors
    ///
    /// If the text is not JSON, or contains an unknown key or an invalid value.
    pub fn from_json(json: &[u8]) -> io::Result<Self> {
        let scene: Self = serde_json::from_slice(json)?;
        scene.check()?;
        Ok(scene)
    }

    /// Replaces the scene at `path` atomically. Then waits long enough for new calls to use the scene, unless another
    /// thread is reading the file at that time.
    ///
    /// # Errors
    ///
    /// If the scene is invalid, or if the directory of `path` cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        static WRITES: AtomicU64 = AtomicU64::new(0);

        self.check()?;
        let serial = WRITES.fetch_add(1, Ordering::Relaxed);
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.{serial}", std::process::id()));
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        // By default, the kernel sets the modification time with the resolution of its timer tick, so two scenes
        // could get the same time.
        file.set_modified(SystemTime::now())?;
        drop(file);
        std::fs::rename(&beside, path)?;
        std::thread::sleep(2 * crate::driver::CHECK_EVERY);
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        let reject = |message: String| Err(io::Error::new(io::ErrorKind::InvalidData, message));
        if self.gpus.len() > crate::driver::GPUS_MAX {
            return reject(format!(
                "{} gpus; the maximum is {}",
                self.gpus.len(),
                crate::driver::GPUS_MAX
            ));
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            let most = crate::driver::MIG_DEVICES_MAX;
            if let Some(mig) = gpu.mig_devices.iter().find(|mig| mig.index >= most) {
                return reject(format!(
                    "gpu {index}: MIG device index {} is not below {most}",
                    mig.index
                ));
            }
            if let Some(pci) = &gpu.pci
                && crate::pci::Address::parse(pci).is_none()
            {
                return reject(format!("gpu {index}: pci is {pci:?}; write \"00000000:17:00.0\""));
            }
            if !gpu.values().all(Value::is_ordered) {
                return reject(format!(
                    "gpu {index}: the points of a value are not in order of seconds"
                ));
            }
        }
        let exists = |name: &str| crate::abi::Function::NAMES.contains(&name);
        let faults = self.faults.iter().map(|fault| fault.function.as_str());
        let missing = self.driver.missing.iter().map(String::as_str);
        match faults.chain(missing).find(|name| *name != "*" && !exists(name)) {
            Some(name) => reject(format!("{name:?} is not a function of this driver")),
            None => Ok(()),
        }
    }
}

impl Gpu {
    /// Returns an idle GPU with 141 GiB and without processes.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Sets the total memory in bytes.
    #[must_use]
    pub fn total(mut self, bytes: impl Into<Value>) -> Self {
        self.memory.get_or_insert_default().total = bytes.into();
        self
    }

    /// Limits the memory of the caller's cgroup to `hard` bytes, of which `used` bytes are in use.
    #[must_use]
    pub fn limited(mut self, hard: impl Into<Value>, used: impl Into<Value>) -> Self {
        self.memory.get_or_insert_default().limit =
            Some(Limit { hard: hard.into(), used: used.into() });
        self
    }

    /// Sets the number of bytes that are allocated but not held by a listed process.
    #[must_use]
    pub fn unattributed(mut self, bytes: impl Into<Value>) -> Self {
        self.memory.get_or_insert_default().unattributed = bytes.into();
        self
    }

    /// Sets the utilization in percent.
    #[must_use]
    pub fn utilization(mut self, gpu: impl Into<Value>, memory: impl Into<Value>) -> Self {
        self.utilization = Some(Utilization { gpu: gpu.into(), memory: memory.into() });
        self
    }

    #[must_use]
    pub fn process(mut self, process: Process) -> Self {
        self.processes.push(process);
        self
    }

    fn values(&self) -> impl Iterator<Item = &Value> {
        let mig_memory = self.mig_devices.iter().map(|device| &device.memory);
        let memory = self.memory.iter().chain(mig_memory).flat_map(|memory| {
            [&memory.total, &memory.reserved, &memory.unattributed].into_iter().chain(&memory.used)
        });
        let utilization =
            self.utilization.iter().flat_map(|utilization| [&utilization.gpu, &utilization.memory]);
        let single = [
            &self.power,
            &self.power_limit,
            &self.temperature,
            &self.clock,
            &self.pstate,
            &self.fan,
        ];
        let of_devices = self.mig_devices.iter().flat_map(|device| &device.processes);
        let processes = self.processes.iter().chain(of_devices);
        let processes =
            processes.flat_map(|process| [&process.sm].into_iter().chain(&process.used_bytes));
        memory.chain(utilization).chain(single.into_iter().flatten()).chain(processes)
    }
}
