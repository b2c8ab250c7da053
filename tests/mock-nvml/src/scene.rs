//! The scene that the driver plays: types with serde and with builders for tests.
//!
//! Omitted keys have plausible defaults. A value that is `null` is answered with `NVML_ERROR_NOT_SUPPORTED`. An
//! unknown key is an error. The crate's documentation has examples in JSON and with the builders.

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
    /// The return code of `nvmlInit*` (9: driver not loaded, 18: version mismatch, 4: no permission).
    pub init_error: Option<u32>,
    /// Seconds of the scene per second of real time, from the process's first call; 1 if absent.
    pub speed: Option<f64>,
    /// The GPUs, in NVML's index order.
    pub gpus: Vec<Gpu>,
    pub faults: Vec<Fault>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Driver {
    pub version: String,
    pub nvml_version: String,
    /// The newest supported CUDA version: 1000 × major + 10 × minor.
    pub cuda_version: u32,
    /// Whether records of the `_v3` process lists have 32 bytes instead of 24, as in drivers 535.43 to 535.86.
    pub wide_records: bool,
    /// The clock of process utilization samples.
    pub utilization_clock: UtilizationClock,
    /// Whether the caller can query the memory and the process lists of a whole GPU while MIG is on; otherwise these
    /// return `NO_PERMISSION`.
    pub privileged: bool,
    /// Functions that this driver lacks: calls return `FUNCTION_NOT_FOUND`.
    /// [`library_without`](crate::library_without) makes a library without the symbols.
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
    /// A driver of the series with `_v3` process records of 32 bytes. It has the confidential computing call, but not
    /// the detailed process list.
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

    /// A driver without memory info v2 and without the `_v3` process lists.
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

/// The clock of process utilization samples, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UtilizationClock {
    /// Since 1970, as on x86.
    #[default]
    Unix,
    /// Since boot, as on a DGX Spark.
    Boot,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    pub name: String,
    /// Whether its name and UUID are invalid UTF-8.
    pub garbled: bool,
    /// `"GPU-…"`; derived from the index if absent.
    pub uuid: Option<String>,
    /// `"00000000:17:00.0"`; derived from the index if absent.
    pub pci: Option<String>,
    pub memory: Option<Memory>,
    /// The NUMA node of its memory; `null` if its memory is not system memory.
    pub numa_node: Option<u32>,
    /// Share of time in which any kernel ran, and in which memory was read or written; percent.
    pub utilization: Option<Utilization>,
    /// Power draw, in milliwatts.
    pub power: Option<Value>,
    /// Power limit, in milliwatts.
    pub power_limit: Option<Value>,
    /// Degrees Celsius.
    pub temperature: Option<Value>,
    /// All clocks, in MHz.
    pub clock: Option<Value>,
    /// P-state, 0 to 15.
    pub pstate: Option<Value>,
    /// Fan speed, in percent; `null` for a GPU without fans.
    pub fan: Option<Value>,
    pub compute_mode: Option<ComputeMode>,
    /// Whether it is drained; `null` for a driver that does not report it.
    pub drained: Option<bool>,
    /// `nvmlDeviceGpuRecoveryAction_t`; `null` for a driver without the field.
    pub recovery_action: Option<u32>,
    /// Whether the driver stays loaded without clients.
    pub persistence: Option<bool>,
    /// Whether accounting is on; `null` for a GPU that does not support it.
    pub accounting: Option<bool>,
    /// Whether MIG is on; `null` for a GPU without MIG. While it is on, utilization is not supported.
    pub mig: Option<bool>,
    /// Its MIG devices, which exist only while `mig` is on.
    pub mig_devices: Vec<MigDevice>,
    /// Whether the driver has utilization samples of processes.
    pub process_utilization: bool,
    pub processes: Vec<Process>,
    /// Additional utilization samples, with any pids and percentages.
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

/// Framebuffer memory, in bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    pub total: Value,
    /// Held by driver and firmware; memory info v1 reports it as used.
    pub reserved: Value,
    /// Allocated memory; if absent, the sum of the processes' memory and `unattributed`.
    pub used: Option<Value>,
    /// Allocated memory that no listed process holds.
    pub unattributed: Value,
    /// The limit of the caller's cgroup. From R615, memory info v2 reports it instead of the GPU's memory.
    pub limit: Option<Limit>,
}

/// The limit of the caller's cgroup, in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limit {
    /// Limit for all of its processes together.
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

/// Utilization of a GPU, in percent.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Utilization {
    /// Share of time in which any kernel ran.
    pub gpu: Value,
    /// Share of time in which memory was read or written.
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

    /// Reads a scene and checks it.
    ///
    /// # Errors
    ///
    /// If the text is not JSON, has an unknown key, or has an invalid value.
    pub fn from_json(json: &[u8]) -> io::Result<Self> {
        let scene: Self = serde_json::from_slice(json)?;
        scene.check()?;
        Ok(scene)
    }

    /// Replaces the scene at `path` atomically, so that a driver never reads half of it. Then waits until new calls
    /// use it, except a call during which another thread is still reading it.
    ///
    /// # Errors
    ///
    /// If the folder of `path` cannot be written, or the scene is invalid.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        static WRITES: AtomicU64 = AtomicU64::new(0);

        self.check()?;
        let serial = WRITES.fetch_add(1, Ordering::Relaxed);
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.{serial}", std::process::id()));
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        // The kernel's file times have the resolution of its tick, so two scenes could have the same time.
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
    /// A GPU with this name, 141 GiB, idle, without processes.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Sets the total memory, in bytes.
    #[must_use]
    pub fn total(mut self, bytes: impl Into<Value>) -> Self {
        self.memory.get_or_insert_default().total = bytes.into();
        self
    }

    /// Limits the memory of the caller's cgroup, which holds `used` bytes, to `hard` bytes.
    #[must_use]
    pub fn limited(mut self, hard: impl Into<Value>, used: impl Into<Value>) -> Self {
        self.memory.get_or_insert_default().limit =
            Some(Limit { hard: hard.into(), used: used.into() });
        self
    }

    /// Sets the memory that no listed process holds, in bytes.
    #[must_use]
    pub fn unattributed(mut self, bytes: impl Into<Value>) -> Self {
        self.memory.get_or_insert_default().unattributed = bytes.into();
        self
    }

    /// Sets the utilization, in percent.
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
