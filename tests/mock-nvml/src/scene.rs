//! The scene: what the driver plays, as types with serde both ways and builders for tests.
//!
//! What a scene leaves out takes a plausible default; a single value that is `null` is answered
//! with `NVML_ERROR_NOT_SUPPORTED`. A key that the scene does not know is an error. See the crate's
//! page for an example in JSON and one with the builders.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub use self::mig::MigDevice;
pub use crate::value::Value;

mod mig;
mod platform;

/// What the driver plays.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scene {
    /// The driver itself.
    pub driver: Driver,
    /// The return code of `nvmlInit*` (9 driver not loaded, 18 version mismatch, 4 no permission).
    pub init_error: Option<u32>,
    /// Unix time of the scene's second 0; else the process's first call is its start.
    pub t0: Option<f64>,
    /// The GPUs, in NVML's index order.
    pub gpus: Vec<Gpu>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// The driver itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Driver {
    /// The kernel driver's version.
    pub version: String,
    /// The library's version.
    pub nvml_version: String,
    /// The newest CUDA: 1000 × major + 10 × minor.
    pub cuda_version: u32,
    /// Bytes in a record of the `_v3` process lists: 24; 32 on the drivers 535.43 to 535.86; 16 on
    /// one that nvitop met.
    pub process_record: ProcessRecord,
    /// The clock in which process utilization samples are stamped.
    pub utilization_clock: UtilizationClock,
    /// Whether the caller may see what concerns more than one MIG device: the memory and the process
    /// lists of a whole GPU while MIG is on. Without, these answer `NO_PERMISSION`.
    pub privileged: bool,
    /// Symbols that this driver lacks: calls answer `FUNCTION_NOT_FOUND`, and
    /// [`library_without`](crate::library_without) makes a library in which they cannot be found.
    pub missing: Vec<String>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            version: "580.159.03".into(),
            nvml_version: "13.580.159.03".into(),
            cuda_version: 13_000,
            process_record: ProcessRecord::Bytes24,
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
    /// A driver of the series in which `_v3` process records were 32 bytes long. As there, the
    /// confidential computing call exists and the detailed process list does not.
    pub fn r535() -> Self {
        Self {
            version: "535.54.03".into(),
            nvml_version: "12.535.54.03".into(),
            cuda_version: 12_020,
            process_record: ProcessRecord::Bytes32,
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

/// Bytes in a record of the `_v3` process lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub enum ProcessRecord {
    /// pid, memory.
    Bytes16,
    /// pid, memory, GPU instance, compute instance.
    #[default]
    Bytes24,
    /// The same and protected memory.
    Bytes32,
}

impl From<ProcessRecord> for u32 {
    fn from(record: ProcessRecord) -> Self {
        match record {
            ProcessRecord::Bytes16 => 16,
            ProcessRecord::Bytes24 => 24,
            ProcessRecord::Bytes32 => 32,
        }
    }
}

impl TryFrom<u32> for ProcessRecord {
    type Error = String;

    fn try_from(bytes: u32) -> Result<Self, String> {
        match bytes {
            16 => Ok(Self::Bytes16),
            24 => Ok(Self::Bytes24),
            32 => Ok(Self::Bytes32),
            _ => Err(format!("process_record is {bytes}; write 16, 24 or 32")),
        }
    }
}

/// The clock in which process utilization samples are stamped, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UtilizationClock {
    /// Since 1970, as on x86.
    #[default]
    Unix,
    /// Since the machine started, as on a DGX Spark.
    Boot,
}

/// One GPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// Marketing name.
    pub name: String,
    /// `"GPU-…"`; made from the index where absent.
    pub uuid: Option<String>,
    /// `"00000000:17:00.0"`; made from the index where absent.
    pub pci: Option<String>,
    /// N of `/dev/nvidiaN`; the index where absent.
    pub minor: Option<u32>,
    /// Board serial number.
    pub serial: Option<String>,
    /// Board part number.
    pub board_part_number: Option<String>,
    /// NVML's brand number.
    pub brand: Option<u32>,
    /// NVML's architecture number (9 is Hopper).
    pub architecture: Option<u32>,
    /// CUDA compute capability.
    pub cuda_capability: Option<(i32, i32)>,
    /// Framebuffer memory.
    pub memory: Option<Memory>,
    /// Whether memory info v2 is supported; v1 still is.
    pub memory_v2: bool,
    /// Share of time in which any kernel ran, and in which memory was read or written; percent.
    pub utilization: Option<Utilization>,
    /// Encoder utilization, percent.
    pub encoder: Option<Value>,
    /// Decoder utilization, percent.
    pub decoder: Option<Value>,
    /// Power drawn, milliwatts.
    pub power: Option<Value>,
    /// Power limit, milliwatts.
    pub power_limit: Option<Value>,
    /// Degrees Celsius.
    pub temperature: Option<Value>,
    /// Degrees Celsius at which the GPU slows down; it shuts down five above.
    pub temperature_threshold: Option<Value>,
    /// Clocks now, MHz.
    pub clocks: Clocks,
    /// The highest clocks, MHz.
    pub max_clocks: Clocks,
    /// P-state, 0 to 15.
    pub pstate: Option<Value>,
    /// Fan speed, percent; `null` is a GPU without fans.
    pub fan: Option<Value>,
    /// Who may open a context.
    pub compute_mode: Option<ComputeMode>,
    /// Whether the driver stays loaded without clients.
    pub persistence: Option<bool>,
    /// Whether MIG is on; `null` is a GPU without. While it is on, utilization is not supported.
    pub mig: Option<bool>,
    /// Its MIG devices; there while `mig` is on.
    pub mig_devices: Vec<MigDevice>,
    /// Whether a screen is attached and in use.
    pub display: Option<bool>,
    /// Whether ECC is on.
    pub ecc: Option<bool>,
    /// ECC errors counted.
    pub ecc_errors: Option<Value>,
    /// The PCIe link.
    pub pcie: Option<Pcie>,
    /// Bytes of BAR1 in use, of 256 MiB.
    pub bar1_used: Option<Value>,
    /// Whether the driver gives utilization samples per process.
    pub process_utilization: bool,
    /// Who holds memory.
    pub processes: Vec<Process>,
    /// Further utilization samples, of any pid and with any percentages.
    pub utilization_samples: Vec<Sample>,
    /// Makes the compute list grow from call to call.
    pub grow_list: Option<Growth>,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            name: "NVIDIA H200".into(),
            uuid: None,
            pci: None,
            minor: None,
            serial: Some("1650224012345".into()),
            board_part_number: Some("692-2G520-0280-501".into()),
            brand: Some(14),
            architecture: Some(9),
            cuda_capability: Some((9, 0)),
            memory: Some(Memory::default()),
            memory_v2: true,
            utilization: Some(Utilization::default()),
            encoder: Some(0.into()),
            decoder: Some(0.into()),
            power: Some(75_000.into()),
            power_limit: Some(700_000.into()),
            temperature: Some(30.into()),
            temperature_threshold: Some(87.into()),
            clocks: Clocks::all(345),
            max_clocks: Clocks::all(1980),
            pstate: Some(0.into()),
            fan: None,
            compute_mode: Some(ComputeMode::Default),
            persistence: Some(true),
            mig: None,
            mig_devices: Vec::new(),
            display: Some(false),
            ecc: Some(true),
            ecc_errors: Some(0.into()),
            pcie: Some(Pcie::default()),
            bar1_used: Some((1 << 20).into()),
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
    /// All of it.
    pub total: Value,
    /// Held by driver and firmware; memory info v1 counts it as used.
    pub reserved: Value,
    /// Allocated; where absent, what the processes hold and `unattributed`.
    pub used: Option<Value>,
    /// Allocated by nobody who is on a list.
    pub unattributed: Value,
    /// Free; where absent, what is left.
    pub free: Option<Value>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            total: (141_u64 << 30).into(),
            reserved: (614_u64 << 20).into(),
            used: None,
            unattributed: 0.into(),
            free: None,
        }
    }
}

/// Utilization of a GPU, percent.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Utilization {
    /// Share of time in which any kernel ran.
    pub gpu: Value,
    /// Share of time in which memory was read or written.
    pub memory: Value,
}

/// Clocks in MHz.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clocks {
    /// Graphics.
    pub graphics: Option<Value>,
    /// Streaming multiprocessors.
    pub sm: Option<Value>,
    /// Memory.
    pub memory: Option<Value>,
    /// Video encoder and decoder.
    pub video: Option<Value>,
}

impl Clocks {
    /// All clocks at the same frequency.
    pub fn all(mhz: u32) -> Self {
        Self {
            graphics: Some(mhz.into()),
            sm: Some(mhz.into()),
            memory: Some(mhz.into()),
            video: Some(mhz.into()),
        }
    }
}

/// Who may open a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number of processes.
    #[default]
    Default = 0,
    /// One thread.
    ExclusiveThread = 1,
    /// Nobody.
    Prohibited = 2,
    /// One process.
    ExclusiveProcess = 3,
}

/// The PCIe link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pcie {
    /// Generation, now and at most.
    pub generation: u32,
    /// Lanes, now and at most.
    pub width: u32,
    /// KB/s in each direction.
    pub throughput: Value,
}

impl Default for Pcie {
    fn default() -> Self {
        Self {
            generation: 5,
            width: 16,
            throughput: 0.into(),
        }
    }
}

/// A process on a GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its pid; nothing asks whether it exists.
    pub pid: u32,
    /// Which lists name it.
    #[serde(rename = "type", default)]
    pub kind: ProcessKind,
    /// Memory held; `null` is what NVML calls not available.
    pub used_bytes: Option<Value>,
    /// GPU instance, under MIG.
    #[serde(default)]
    pub gi: Option<u32>,
    /// Compute instance, under MIG.
    #[serde(default)]
    pub ci: Option<u32>,
    /// SM utilization in its samples, percent.
    #[serde(default)]
    pub sm: Value,
    /// Memory utilization in its samples, percent.
    #[serde(default)]
    pub memory_util: Value,
    /// Encoder utilization in its samples, percent.
    #[serde(default)]
    pub encoder: Value,
    /// Decoder utilization in its samples, percent.
    #[serde(default)]
    pub decoder: Value,
    /// The second of the scene from which it is there.
    #[serde(default)]
    pub from: Option<f64>,
    /// The second of the scene at which it is gone.
    #[serde(default)]
    pub until: Option<f64>,
}

/// Which lists name a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ProcessKind {
    /// The compute list.
    #[default]
    #[serde(rename = "compute")]
    Compute,
    /// The graphics list.
    #[serde(rename = "graphics")]
    Graphics,
    /// Both of them.
    #[serde(rename = "compute+graphics")]
    ComputeGraphics,
    /// The list of MPS clients.
    #[serde(rename = "mps")]
    Mps,
}

/// A utilization sample as a scene dictates it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sample {
    /// Any pid.
    pub pid: u32,
    /// The stamp, in microseconds, given at every call whatever the caller has seen; where absent,
    /// that of the newest sample.
    pub timestamp: Option<u64>,
    /// Any number.
    pub sm: u32,
    /// Any number.
    pub memory: u32,
    /// Any number.
    pub encoder: u32,
    /// Any number.
    pub decoder: u32,
}

/// Makes the compute list grow from call to call: call n names `entries` × n strangers more, until
/// n reaches `calls`. A scene that is read again starts over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// Strangers that each call adds. They hold 1 MiB each and have pids from 4,180,000.
    pub entries: u32,
    /// Calls after which the list grows no more.
    pub calls: u32,
}

/// What goes wrong. The faults that match a call are met in order, each with its delay, until one
/// with an error or a hang decides.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// A symbol's exact name; `"*"` is every function that takes a device.
    pub function: String,
    /// The GPU's index; absent means any, and functions without a GPU too.
    pub gpu: Option<u32>,
    /// The return code; absent or 0 lets the call go on after its delay.
    pub error: Option<u32>,
    /// Milliseconds before it answers.
    pub delay_ms: u64,
    /// Never answers.
    pub hang: bool,
    /// Matching calls that pass before the fault sets in.
    pub after_calls: u64,
    /// Calls that it strikes; absent means all.
    pub times: Option<u64>,
}

impl Scene {
    /// A scene without GPUs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a GPU.
    #[must_use]
    pub fn gpu(mut self, gpu: Gpu) -> Self {
        self.gpus.push(gpu);
        self
    }

    /// Adds a fault.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Sets the driver.
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
    /// Where it is no JSON, has a key that scenes do not know, or a value that makes no sense.
    pub fn from_json(json: &[u8]) -> io::Result<Self> {
        let scene: Self = serde_json::from_slice(json)?;
        scene.check()?;
        Ok(scene)
    }

    /// Replaces the scene at `path` in one step (a driver that plays it never sees half of it) and
    /// waits until calls that start from now on play it (but for one that comes while another
    /// thread is still reading it).
    ///
    /// # Errors
    ///
    /// Where the folder of `path` cannot be written, or the scene makes no sense.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        static WRITES: AtomicU64 = AtomicU64::new(0);

        self.check()?;
        let serial = WRITES.fetch_add(1, Ordering::Relaxed);
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.{serial}", std::process::id()));
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        // The kernel stamps files by its tick, so that two scenes of one tick could look alike.
        file.set_modified(SystemTime::now())?;
        drop(file);
        std::fs::rename(&beside, path)?;
        std::thread::sleep(2 * crate::driver::LOOK_EVERY);
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if self.gpus.len() > crate::driver::GPUS_MAX {
            return refuse(format!("{} gpus are too many", self.gpus.len()));
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            let most = crate::driver::MIG_DEVICES_MAX;
            if let Some(mig) = gpu.mig_devices.iter().find(|mig| mig.index >= most) {
                return refuse(format!(
                    "gpu {index}: a MIG device's index is {}",
                    mig.index
                ));
            }
            if let Some(pci) = &gpu.pci
                && crate::pci::Address::parse(pci).is_none()
            {
                return refuse(format!(
                    "gpu {index}: pci is {pci:?}; write \"00000000:17:00.0\""
                ));
            }
            if !gpu.values().all(Value::is_ordered) {
                return refuse(format!("gpu {index}: a value's points are not by second"));
            }
        }
        let known = |name: &str| crate::abi::Function::NAMES.contains(&name);
        let faults = self.faults.iter().map(|fault| fault.function.as_str());
        let missing = self.driver.missing.iter().map(String::as_str);
        match faults
            .chain(missing)
            .find(|name| *name != "*" && !known(name))
        {
            Some(name) => refuse(format!("{name:?} is no function of this driver")),
            None => Ok(()),
        }
    }
}

impl Gpu {
    /// A GPU with this name, 141 GiB, idle, without processes.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Sets the total memory, in bytes.
    #[must_use]
    pub fn total(mut self, bytes: impl Into<Value>) -> Self {
        self.memory.get_or_insert_default().total = bytes.into();
        self
    }

    /// Sets the memory that nobody on a list holds, in bytes.
    #[must_use]
    pub fn unattributed(mut self, bytes: impl Into<Value>) -> Self {
        self.memory.get_or_insert_default().unattributed = bytes.into();
        self
    }

    /// Sets the utilization, in percent.
    #[must_use]
    pub fn utilization(mut self, gpu: impl Into<Value>, memory: impl Into<Value>) -> Self {
        self.utilization = Some(Utilization {
            gpu: gpu.into(),
            memory: memory.into(),
        });
        self
    }

    /// Adds a process.
    #[must_use]
    pub fn process(mut self, process: Process) -> Self {
        self.processes.push(process);
        self
    }

    /// Every value that may change.
    fn values(&self) -> impl Iterator<Item = &Value> {
        let mig_memory = self.mig_devices.iter().map(|device| &device.memory);
        let memory = self.memory.iter().chain(mig_memory).flat_map(|memory| {
            [&memory.total, &memory.reserved, &memory.unattributed]
                .into_iter()
                .chain(&memory.used)
                .chain(&memory.free)
        });
        let utilization = self
            .utilization
            .iter()
            .flat_map(|utilization| [&utilization.gpu, &utilization.memory]);
        let clocks = [&self.clocks, &self.max_clocks]
            .into_iter()
            .flat_map(|clocks| [&clocks.graphics, &clocks.sm, &clocks.memory, &clocks.video]);
        let single = [
            &self.encoder,
            &self.decoder,
            &self.power,
            &self.power_limit,
            &self.temperature,
            &self.temperature_threshold,
            &self.pstate,
            &self.fan,
            &self.ecc_errors,
            &self.bar1_used,
        ];
        let of_devices = self.mig_devices.iter().flat_map(|device| &device.processes);
        let processes = self.processes.iter().chain(of_devices).flat_map(|process| {
            [
                &process.sm,
                &process.memory_util,
                &process.encoder,
                &process.decoder,
            ]
            .into_iter()
            .chain(&process.used_bytes)
        });
        memory
            .chain(utilization)
            .chain(clocks.chain(single).flatten())
            .chain(self.pcie.iter().map(|pcie| &pcie.throughput))
            .chain(processes)
    }
}

impl Process {
    /// A process on the compute list that holds so many bytes.
    pub fn compute(pid: u32, used_bytes: impl Into<Value>) -> Self {
        Self {
            pid,
            used_bytes: Some(used_bytes.into()),
            ..Self::default()
        }
    }

    /// Puts it on other lists.
    #[must_use]
    pub fn kind(mut self, kind: ProcessKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the SM utilization of its samples, in percent.
    #[must_use]
    pub fn sm(mut self, percent: impl Into<Value>) -> Self {
        self.sm = percent.into();
        self
    }

    /// Lets it come and go at seconds of the scene.
    #[must_use]
    pub fn between(mut self, from: f64, until: f64) -> Self {
        (self.from, self.until) = (Some(from), Some(until));
        self
    }

    /// Whether it is there at a second of the scene.
    pub(crate) fn is_there(&self, second: f64) -> bool {
        self.from.is_none_or(|from| from <= second) && self.until.is_none_or(|until| second < until)
    }
}

impl Fault {
    /// A function that fails on every GPU.
    pub fn error(function: impl Into<String>, code: u32) -> Self {
        Self {
            function: function.into(),
            error: Some(code),
            ..Self::default()
        }
    }

    /// A function that answers late.
    pub fn delay(function: impl Into<String>, delay_ms: u64) -> Self {
        Self {
            function: function.into(),
            delay_ms,
            ..Self::default()
        }
    }

    /// A function that never answers.
    pub fn hang(function: impl Into<String>) -> Self {
        Self {
            function: function.into(),
            hang: true,
            ..Self::default()
        }
    }

    /// On this GPU only.
    #[must_use]
    pub fn on(mut self, gpu: u32) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// Only after so many calls.
    #[must_use]
    pub fn after(mut self, calls: u64) -> Self {
        self.after_calls = calls;
        self
    }

    /// Only so many times.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }
}
