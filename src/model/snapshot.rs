//! The snapshot: everything that gpumem observed at one instant.
//!
//! `gpumem ps --json` prints a snapshot, `gpumem record` writes one snapshot per line, and `--replay` reads recordings.
//! Units are part of the field names. Unknown values are absent, never 0. Strings are shared (`Arc`), because most of
//! them are the same in consecutive samples.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use foldhash::HashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::escape::escape;
pub use super::process::{Container, Jupyter, Kubernetes, LastKnown, Parent, Process, Slurm};
pub use super::reservation::Reservation;
use super::time::Time;
use crate::units::Span;

pub const SCHEMA: &str = "gpumem.snapshot/1";

/// Everything that gpumem observed at one instant: the output of `gpumem ps --json`, and each line of a recording.
/// Units are part of the field names. Unknown values are absent or `null`, never 0. Readers must ignore unknown fields.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Snapshot {
    /// Format and major version.
    #[schemars(with = "String", extend("const" = SCHEMA))]
    pub schema: Schema,
    /// Time of the sample: RFC 3339, UTC.
    pub time: Time,
    /// The machine.
    #[serde(default)]
    pub host: Host,
    /// The NVIDIA driver.
    #[serde(default)]
    pub driver: Driver,
    /// The GPUs, in the order of their NVML indices.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// The processes that NVML lists on a GPU or that have a GPU device file open. A process is listed once, even if
    /// it uses several GPUs.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// GPUs allocated to jobs and containers, according to the readable environments of their processes. Read every
    /// 30 seconds; absent if not read.
    pub reservations: Option<Arc<[Reservation]>>,
    /// Read errors of this sample; the rest of the snapshot is valid.
    #[serde(default)]
    pub errors: Vec<ReadError>,
}

impl Snapshot {
    pub fn new(time: Time) -> Self {
        Self { time, ..Self::default() }
    }

    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// Returns the process with this pid, unless the pid belongs to a process that started at another time.
    pub fn same_process(&self, pid: u32, start_ticks: u64) -> Option<&Process> {
        self.process(pid).filter(|process| process.start_ticks == Some(start_ticks))
    }

    /// Returns all entries of NVML's process lists with this pid.
    pub fn rows_of(&self, pid: u32) -> impl Iterator<Item = &GpuProcess> {
        let rows = self.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
        rows.filter(move |row| row.pid == pid)
    }
}

/// Name and major version of the format. A document with a different schema is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Schema {
    #[default]
    #[serde(rename = "gpumem.snapshot/1")]
    V1,
}

/// The machine.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Host {
    /// Hostname.
    pub hostname: Option<Arc<str>>,
    /// Boot ID (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: Option<Arc<str>>,
    /// Kernel release.
    pub kernel: Option<Arc<str>>,
    /// PID namespace of the snapshot's PIDs: `host` or `container`.
    #[schemars(with = "Option<String>")]
    pub pid_namespace: Option<PidNamespace>,
    /// Total time that the machine has been suspended since boot, in seconds (`CLOCK_BOOTTIME` minus
    /// `CLOCK_MONOTONIC`). A change between two snapshots means that the machine was suspended between them.
    pub suspended_seconds: Option<u64>,
    /// Number of processes whose file descriptors were not readable in the last full scan, and which may hold memory
    /// although NVML does not list them.
    pub unread_processes: Option<u32>,
    /// Load of the machine.
    #[serde(default)]
    pub load: Option<HostLoad>,
}

/// Load of the machine, from `/proc`.
#[skip_serializing_none]
#[derive(Clone, Copy, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct HostLoad {
    /// Share of time during which the CPUs were busy since the previous snapshot, in percent of all CPUs. Absent in a
    /// first snapshot.
    pub cpu_percent: Option<f64>,
    /// Memory, in bytes.
    pub memory_total_bytes: Option<u64>,
    /// Memory that programs can allocate without swapping, in bytes.
    pub memory_available_bytes: Option<u64>,
    /// Swap space, in bytes.
    pub swap_total_bytes: Option<u64>,
    /// Unused swap space, in bytes.
    pub swap_free_bytes: Option<u64>,
    /// Average number of processes that ran or waited to run, over the last minute.
    pub load_average: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PidNamespace {
    Host,
    /// Any other pid namespace. The pids that NVML reports may belong to a third namespace.
    #[serde(other)]
    Container,
}

/// The NVIDIA driver.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Driver {
    /// Driver version: `"580.159.03"`.
    pub version: Option<Arc<str>>,
    /// NVML version: `"13.580.159.03"`.
    pub nvml_version: Option<Arc<str>>,
    /// Newest CUDA version that the driver supports: `"13.0"`.
    pub cuda_version: Option<Arc<str>>,
}

/// A GPU. A lost GPU keeps its identity and has neither memory nor processes.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML index.
    pub index: u32,
    /// UUID, `"GPU-…"`; stable across reboots, unlike the index.
    pub uuid: Option<Arc<str>>,
    /// Product name.
    pub name: Option<Arc<str>>,
    /// PCI bus ID: `"00000000:17:00.0"`.
    pub pci_bus_id: Option<Arc<str>>,
    /// Device minor number: N of `/dev/nvidiaN`.
    pub minor_number: Option<u32>,
    /// NUMA node of the GPU's memory, if the memory is also system memory (`nvmlDeviceGetNumaNodeId`).
    pub numa_node: Option<u32>,
    /// Framebuffer memory.
    pub memory: Option<Memory>,
    /// Why `memory` is absent without an error: the GPU shares system memory.
    pub memory_unavailable: Option<Arc<str>>,
    /// Limit on `memory` for the cgroup that gpumem runs in, in bytes, if the driver enforces one (R615 and newer).
    /// `memory` still describes the whole GPU, but lacks `reserved_bytes`, which the driver does not report under a
    /// limit.
    pub memory_limit_bytes: Option<u64>,
    /// Memory left under `memory_limit_bytes`, in bytes.
    pub memory_limit_free_bytes: Option<u64>,
    /// Why the entries of `processes` lack `used_bytes`, or why there are no entries, without an error: under WSL,
    /// the driver does not report them.
    pub process_memory_unavailable: Option<Arc<str>>,
    /// Share of time during which a kernel was running, in percent, 0 to 100.
    pub gpu_percent: Option<u32>,
    /// Share of time during which memory was read or written, in percent, 0 to 100.
    pub memory_percent: Option<u32>,
    /// Temperature, in degrees Celsius.
    pub temperature_celsius: Option<u32>,
    /// Power draw, in watts.
    pub power_watts: Option<f64>,
    /// Enforced power limit, in watts.
    pub power_limit_watts: Option<f64>,
    /// SM clock, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Utilization of the video encoder, in percent, 0 to 100.
    pub encoder_percent: Option<u32>,
    /// Utilization of the video decoder, in percent, 0 to 100.
    pub decoder_percent: Option<u32>,
    /// Utilization of the JPEG decoder, in percent, 0 to 100. The driver does not report it for processes.
    pub jpeg_percent: Option<u32>,
    /// Utilization of the optical flow engine, in percent, 0 to 100. The driver does not report it for processes.
    pub optical_flow_percent: Option<u32>,
    /// Memory clock, in MHz. This field and the following fields, up to `fan_percent`, are read twice a minute.
    pub memory_clock_mhz: Option<u32>,
    /// NVML names of the reasons why the clocks are throttled; empty if they are not throttled.
    pub throttle_reasons: Option<Arc<[Arc<str>]>>,
    /// Uncorrected memory errors (ECC) since the driver was loaded.
    pub ecc_uncorrected_errors: Option<u64>,
    /// PCIe receive throughput of the GPU, measured over about 20 ms, in bytes per second.
    pub pcie_received_bytes_per_second: Option<u64>,
    /// PCIe transmit throughput of the GPU, measured over about 20 ms, in bytes per second.
    pub pcie_sent_bytes_per_second: Option<u64>,
    /// Fan speed, in percent.
    pub fan_percent: Option<u32>,
    /// Performance state (P-state), 0 (fastest) to 15.
    #[schemars(range(max = 15))]
    pub performance_state: Option<u32>,
    /// Compute mode: `default`, `exclusive_thread`, `prohibited`, `exclusive_process`.
    pub compute_mode: Option<Arc<str>>,
    /// Whether the GPU is drained, so that it accepts no new programs. Absent if the driver does not report this.
    pub is_drained: Option<bool>,
    /// Action that the GPU needs before programs can use it, according to the driver (R570 and newer): `none`,
    /// `gpu_reset`, `node_reboot`, `drain_p2p`, `drain_and_reset`; `other` stands for an action from a later version.
    pub recovery_action: Option<Arc<str>>,
    /// Whether persistence mode is on. It keeps the driver loaded when no program uses the GPU.
    pub persistence_mode: Option<bool>,
    /// Whether accounting mode is on. In this mode, the driver keeps statistics of processes. Absent if the GPU does
    /// not support accounting.
    pub accounting_mode: Option<bool>,
    /// Whether MIG mode is on; absent if the GPU does not support MIG.
    pub mig_mode: Option<bool>,
    /// MIG devices of the GPU.
    #[serde(default)]
    pub mig_devices: Vec<MigDevice>,
    /// Seconds since the driver last answered for this GPU; absent while the driver answers. If present, memory,
    /// power and the process list are from the last answer, and utilization is absent.
    #[schemars(range(min = 0))]
    pub stale_seconds: Option<f64>,
    /// Time since the last snapshot for which the driver has utilization samples of processes, in seconds. The driver
    /// keeps samples for about 10 s. Absent if unknown.
    #[schemars(range(min = 0))]
    pub sampled_seconds: Option<f64>,
    /// The claim on the GPU; absent if there is none, or if unknown.
    pub claim: Option<Claim>,
    /// Processes that wait to claim the GPU, in order of arrival.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<Claim>,
    /// The GPU's processes, one row per (process, GPU instance); absent if the list could not be read.
    pub processes: Option<Vec<GpuProcess>>,
}

/// A claim on a GPU (`gpumem run --claim`), a run that waits for it, or another program's lock, which prevents claims.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Claim {
    /// PID of the process; absent if unknown, for example in another container.
    pub pid: Option<u32>,
    /// User ID of the process.
    pub uid: Option<u32>,
    /// User name of the process.
    pub user: Option<Arc<str>>,
    /// Name of the process's program, unless it is gpumem: a program that inherited a claim, or that took the lock.
    pub program: Option<Arc<str>>,
    /// For how long the process has waited, in seconds; absent unless it waits.
    #[schemars(range(min = 0))]
    pub waiting_seconds: Option<f64>,
}

impl fmt::Display for Claim {
    /// Writes `claimed by ann (4242)`, `locked by ann's flock (4242)` or `first in line: ann (4242) for 5m`. Names are
    /// escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.waiting_seconds, &self.program) {
            (Some(_), _) => "first in line: ",
            (None, Some(_)) => "locked by ",
            (None, None) => "claimed by ",
        })?;
        match (&self.user, self.uid) {
            (Some(user), _) => write!(f, "{}", escape(user))?,
            (None, Some(uid)) => write!(f, "uid {uid}")?,
            (None, None) => f.write_str("an unknown process")?,
        }
        if let Some(program) = &self.program {
            write!(f, "'s {}", escape(program))?;
        }
        if let Some(pid) = self.pid {
            write!(f, " ({pid})")?;
        }
        let waiting = self.waiting_seconds.map(Span::from_seconds);
        waiting.map_or(Ok(()), |waiting| write!(f, " for {waiting}"))
    }
}

impl Gpu {
    /// Describes the claim and the queue of claimers. Returns `None` if there are none.
    pub fn claim_text(&self) -> Option<String> {
        let mut texts: Vec<String> =
            self.claim.iter().chain(self.queue.first()).map(ToString::to_string).collect();
        texts.extend((self.queue.len() > 1).then(|| format!("{} in line", self.queue.len())));
        (!texts.is_empty()).then(|| texts.join(", "))
    }

    /// Returns the total memory of the listed processes, or `None` if the process list or the memory of a process is
    /// unknown.
    pub fn process_bytes(&self) -> Option<u64> {
        self.processes
            .as_ref()?
            .iter()
            .try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
    }

    /// Returns how much memory can be allocated: the free memory of the GPU or, if lower, the memory left under the
    /// limit of gpumem's own cgroup.
    pub fn free_bytes(&self) -> Option<u64> {
        Some(self.memory?.free_bytes.min(self.memory_limit_free_bytes.unwrap_or(u64::MAX)))
    }
}

/// Framebuffer memory, in bytes; for a MIG device, the memory of its GPU instance. Used memory excludes reserved
/// memory (NVML's memory info v2).
#[skip_serializing_none]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Memory {
    /// Total memory.
    pub total_bytes: u64,
    /// Memory reserved by the driver and firmware; absent if the driver does not report it separately and used_bytes
    /// includes it.
    pub reserved_bytes: Option<u64>,
    /// Allocated memory.
    pub used_bytes: u64,
    /// Free memory.
    pub free_bytes: u64,
}

/// A MIG device.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct MigDevice {
    /// Index of the MIG device on its GPU, as in `CUDA_VISIBLE_DEVICES` and `nvidia-smi -L`.
    pub index: Option<u32>,
    /// GPU instance ID.
    pub gpu_instance_id: Option<u32>,
    /// Compute instance ID.
    pub compute_instance_id: Option<u32>,
    /// UUID: `"MIG-…"`.
    pub uuid: Option<Arc<str>>,
    /// MIG profile: `"1g.10gb"`.
    pub profile: Option<Arc<str>>,
    /// Memory of the GPU instance.
    pub memory: Option<Memory>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub enum ProcessType {
    #[default]
    #[serde(rename = "compute")]
    Compute,
    #[serde(rename = "graphics")]
    Graphics,
    #[serde(rename = "compute+graphics")]
    ComputeGraphics,
    /// A client of the Multi-Process Service.
    #[serde(rename = "mps")]
    Mps,
    #[serde(other, rename = "other")]
    Other,
}

impl ProcessType {
    /// Returns the letters that nvidia-smi prints (`C`, `G` or `C+G`), `M` for an MPS client, or `?` for a type that
    /// this version does not know.
    pub fn letters(self) -> &'static str {
        match self {
            Self::Compute => "C",
            Self::Graphics => "G",
            Self::ComputeGraphics => "C+G",
            Self::Mps => "M",
            Self::Other => "?",
        }
    }
}

/// A process's use of one GPU.
#[skip_serializing_none]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct GpuProcess {
    /// PID as reported by NVML: a hint, not proof of identity.
    pub pid: u32,
    /// NVML process list that contains the process: `compute`, `graphics`, `compute+graphics` or `mps`; `other`
    /// stands for a type from a later version.
    #[serde(rename = "type", default)]
    #[schemars(with = "String")]
    pub kind: ProcessType,
    /// GPU memory that the process holds, in bytes; absent if NVML does not report the amount.
    pub used_bytes: Option<u64>,
    /// SM utilization: the highest sample since the last snapshot, in percent, 0 to 100. 0 if the driver reports
    /// utilization by process but has no sample for this process; absent if the driver does not report it.
    pub sm_percent: Option<u32>,
    /// Utilization of memory bandwidth, measured like sm_percent, in percent, 0 to 100.
    pub memory_percent: Option<u32>,
    /// Utilization of the video encoder, measured like sm_percent, in percent, 0 to 100.
    pub encoder_percent: Option<u32>,
    /// Utilization of the video decoder, measured like sm_percent, in percent, 0 to 100.
    pub decoder_percent: Option<u32>,
    /// Share of the time since `lifetime_since` during which a kernel of the process was running on the GPU, in
    /// percent, 0 to 100, as rounded by the driver's accounting. Read once a minute; absent if accounting is off or
    /// has no record of the process.
    pub lifetime_percent: Option<u32>,
    /// Start time of the process, according to the driver's accounting.
    pub lifetime_since: Option<Time>,
    /// GPU instance ID, under MIG.
    pub gpu_instance_id: Option<u32>,
    /// Compute instance ID, under MIG.
    pub compute_instance_id: Option<u32>,
}

impl GpuProcess {
    /// Returns the utilization of the process in percent, according to the driver's accounting, and the time when the
    /// accounting began. Returns `None` if a value is unknown. If the accounting began long before the process, also
    /// returns `None`, because the record is about an earlier process with the same pid.
    pub fn lifetime_of(&self, process: &Process) -> Option<(u32, Time)> {
        // The start time is computed from the boot time, so it shifts when the clock is set.
        const SLACK_SECONDS: f64 = 60.0;
        let (percent, since) = self.lifetime_percent.zip(self.lifetime_since)?;
        let is_its = process.start_time?.seconds_since(since) <= SLACK_SECONDS;
        is_its.then_some((percent, since))
    }
}

/// A read error; everything else in the document is valid.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ReadError {
    /// NVML index of the GPU that could not be read; absent if the error is not about a GPU.
    pub gpu: Option<u32>,
    /// The call, file or option that failed.
    pub call: Arc<str>,
    /// The error message.
    pub error: Arc<str>,
}

impl ReadError {
    /// Creates an error that is not about a GPU.
    pub fn new(call: &str, error: &str) -> Self {
        Self { gpu: None, call: call.into(), error: error.into() }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(gpu) = self.gpu {
            write!(f, "GPU {gpu}: ")?;
        }
        write!(f, "{}: {}", self.call, self.error)
    }
}

/// Index of a snapshot's processes by pid, built when it is first used.
#[derive(Debug)]
pub struct ProcessesByPid<'a> {
    snapshot: &'a Snapshot,
    all: OnceCell<HashMap<u32, &'a Process>>,
}

impl<'a> ProcessesByPid<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, all: OnceCell::new() }
    }

    /// Returns the process with a pid, as [`Snapshot::process`] does, but uses the index. If several processes have
    /// the same pid, returns the first.
    pub fn get(&self, pid: u32) -> Option<&'a Process> {
        let all = self.all.get_or_init(|| {
            let listed = self.snapshot.processes.iter().rev();
            listed.map(|process| (process.pid, process)).collect()
        });
        all.get(&pid).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Time;

    #[test]
    fn unknown_values_are_absent_and_unknown_variants_other() {
        let gpu: Gpu = serde_json::from_str(
            r#"{"index":3,"gpu_percent":null,"later":{"x":1},"processes":[{"pid":1,"type":"optical"}]}"#,
        )
        .unwrap();
        let row = GpuProcess { pid: 1, kind: ProcessType::Other, ..GpuProcess::default() };
        assert_eq!(gpu, Gpu { index: 3, processes: Some(vec![row]), ..Gpu::default() });
        let text = r#"{"index":3,"mig_devices":[],"processes":[{"pid":1,"type":"other"}]}"#;
        assert_eq!(serde_json::to_string(&gpu).unwrap(), text);
    }

    #[test]
    fn an_older_account_belongs_to_another_process() {
        let at = |seconds: i64| Time::from_unix_milliseconds(seconds * 1000);
        let row = |since| GpuProcess {
            lifetime_percent: Some(3),
            lifetime_since: since,
            ..GpuProcess::default()
        };
        let process = |start_time| Process { start_time, ..Process::default() };
        let started = process(Some(at(1_000)));
        for since in [at(1_000), at(970), at(90_000)] {
            let found = row(Some(since)).lifetime_of(&started);
            assert_eq!(found, Some((3, since)));
        }
        assert_eq!(row(Some(at(900))).lifetime_of(&started), None, "recycled");
        assert_eq!(row(Some(at(1_000))).lifetime_of(&process(None)), None);
        assert_eq!(row(None).lifetime_of(&started), None);
    }

    #[test]
    fn the_index_finds_the_same_process_as_a_scan() {
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.processes = [7, 3, 9, 3]
            .into_iter()
            .zip(1..)
            .map(|(pid, start_ticks)| Process {
                pid,
                start_ticks: Some(start_ticks),
                ..Process::default()
            })
            .collect();
        let processes = ProcessesByPid::new(&snapshot);
        for pid in 0..12 {
            let found = processes.get(pid).map(std::ptr::from_ref);
            let plain = snapshot.process(pid).map(std::ptr::from_ref);
            assert_eq!(found, plain, "{pid}");
        }
    }
}
