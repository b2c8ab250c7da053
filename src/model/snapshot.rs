//! The snapshot: everything that gpumem saw at one instant.
//!
//! One Rust type, one JSON shape: `gpumem ps --json` prints one, `gpumem record` writes one a line,
//! and every `--replay` reads them. Units are in the names; what is not known is absent, never 0.
//! Strings are shared (`Arc`), because the next sample carries the same ones again.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_with_macros::skip_serializing_none;

use super::escape::escape;
pub use super::process::{Container, Jupyter, Kubernetes, LastKnown, Parent, Process, Slurm};
pub use super::reservation::Reservation;
use super::time::Time;

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.snapshot/1";

/// Everything that gpumem saw at one instant: what `gpumem ps --json` prints, and each line of a
/// recording. Units are in the names. What is not known is absent or `null`, never 0. A reader ignores
/// fields that it does not know.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Snapshot {
    /// Format and major version.
    pub schema: Schema,
    /// When the sample was taken: RFC 3339, UTC.
    pub time: Time,
    /// The machine.
    #[serde(default, deserialize_with = "or_default")]
    pub host: Host,
    /// The NVIDIA driver.
    #[serde(default, deserialize_with = "or_default")]
    pub driver: Driver,
    /// The GPUs, in the order of NVML's indices.
    #[serde(default, deserialize_with = "or_default")]
    pub gpus: Vec<Gpu>,
    /// Each process that NVML lists on a GPU, or that holds a GPU device file open; once, whatever the
    /// number of its GPUs.
    #[serde(default, deserialize_with = "or_default")]
    pub processes: Vec<Process>,
    /// The GPUs that jobs and containers were given, as far as the environments of their processes may be read;
    /// looked at every half minute. Absent where that was not looked at.
    pub reservations: Option<Arc<[Reservation]>>,
    /// What could not be read this time; the rest of the snapshot stands.
    #[serde(default, deserialize_with = "or_default")]
    pub errors: Vec<ReadError>,
}

impl Snapshot {
    /// An empty snapshot taken at `time`.
    pub fn new(time: Time) -> Self {
        Self {
            schema: Schema,
            time,
            host: Host::default(),
            driver: Driver::default(),
            gpus: Vec::new(),
            processes: Vec::new(),
            reservations: None,
            errors: Vec::new(),
        }
    }

    /// The process with this pid, if the snapshot has it.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid == pid)
    }
}

/// The format's name and major version; reading any other is an error that names both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Schema;

impl JsonSchema for Schema {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Schema".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> schemars::Schema {
        json_schema!({ "type": "string", "const": SCHEMA })
    }
}

impl Serialize for Schema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(SCHEMA)
    }
}

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Schema;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "the schema {SCHEMA:?}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Schema, E> {
                if text == SCHEMA {
                    Ok(Schema)
                } else {
                    Err(E::custom(format_args!("schema is {text:?}, this gpumem reads {SCHEMA:?}")))
                }
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// The machine.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Host {
    /// The host's name.
    pub hostname: Option<Arc<str>>,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<Arc<str>>,
    /// The kernel's release.
    pub kernel: Option<Arc<str>>,
    /// Whose pids these are: `host` or `container`.
    #[schemars(with = "Option<String>")]
    pub pid_namespace: Option<PidNamespace>,
    /// Seconds that the machine has been suspended since boot (`CLOCK_BOOTTIME` less
    /// `CLOCK_MONOTONIC`). A change between two snapshots means that it slept.
    pub suspended_seconds: Option<u64>,
    /// Processes whose descriptors could not be read when all were last looked through: a holder
    /// that NVML does not list may be among them. 0 means that all were seen.
    pub unread_processes: Option<u32>,
}

/// Whose pids a snapshot's pids are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PidNamespace {
    /// The initial pid namespace.
    Host,
    /// Any other: NVML's pids may be numbers of another namespace.
    #[serde(other)]
    Container,
}

/// The NVIDIA driver.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Driver {
    /// `"580.159.03"`.
    pub version: Option<Arc<str>>,
    /// `"13.580.159.03"`.
    pub nvml_version: Option<Arc<str>>,
    /// The newest CUDA that the driver supports: `"13.0"`.
    pub cuda_version: Option<Arc<str>>,
}

/// One GPU. A lost one keeps its identity and has neither memory nor processes.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// `"GPU-…"`; stable over reboots, unlike the index.
    pub uuid: Option<Arc<str>>,
    /// Marketing name.
    pub name: Option<Arc<str>>,
    /// `"00000000:17:00.0"`.
    pub pci_bus_id: Option<Arc<str>>,
    /// N of `/dev/nvidiaN`.
    pub minor_number: Option<u32>,
    /// The NUMA node that its memory is, where it is the system's, too (`nvmlDeviceGetNumaNodeId`).
    pub numa_node: Option<u32>,
    /// Framebuffer memory.
    #[serde(default, deserialize_with = "memory")]
    pub memory: Option<Memory>,
    /// Why there is no `memory`, where that is no failure: the GPU shares the machine's memory.
    pub memory_unavailable: Option<Arc<str>>,
    /// What the cgroup that gpumem runs in may take of `memory`, where the driver limits that (R615 and
    /// newer). `memory` is the GPU's own, whose `reserved_bytes` that driver then does not tell.
    pub memory_limit_bytes: Option<u64>,
    /// What that limit leaves.
    pub memory_limit_free_bytes: Option<u64>,
    /// Why the rows of `processes` have no `used_bytes`, or why there are none, where that is no
    /// failure: under WSL the driver does not tell.
    pub process_memory_unavailable: Option<Arc<str>>,
    /// Share of time in which any kernel ran. Percent, 0 to 100.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub gpu_percent: Option<u32>,
    /// Share of time in which memory was read or written. Percent, 0 to 100.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub memory_percent: Option<u32>,
    /// Degrees Celsius.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>")]
    pub temperature_celsius: Option<u32>,
    /// Power drawn, in watts.
    pub power_watts: Option<f64>,
    /// The enforced power limit, in watts.
    pub power_limit_watts: Option<f64>,
    /// SM clock, in MHz.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub sm_clock_mhz: Option<u32>,
    /// Memory clock, in MHz. This and what follows, up to the fan, is read twice a minute.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub memory_clock_mhz: Option<u32>,
    /// What holds the clocks down, as NVML names it; empty where nothing does.
    #[serde(default)]
    pub throttle_reasons: Option<Arc<[Arc<str>]>>,
    /// Use of the video encoder. Percent.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub encoder_percent: Option<u32>,
    /// Use of the video decoder. Percent.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub decoder_percent: Option<u32>,
    /// Memory errors that could not be corrected, since the driver was loaded.
    #[serde(default)]
    pub ecc_uncorrected_errors: Option<u64>,
    /// What the GPU received over PCIe in some 20 ms, as bytes a second.
    #[serde(default)]
    pub pcie_received_bytes_per_second: Option<u64>,
    /// What it sent.
    #[serde(default)]
    pub pcie_sent_bytes_per_second: Option<u64>,
    /// Fan speed. Percent.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub fan_percent: Option<u32>,
    /// P-state, 0 (fastest) to 15.
    #[schemars(range(max = 15))]
    pub performance_state: Option<u32>,
    /// `default`, `exclusive_thread`, `prohibited`, `exclusive_process`.
    pub compute_mode: Option<Arc<str>>,
    /// Whether the driver stays loaded without clients.
    pub persistence_mode: Option<bool>,
    /// Whether the driver keeps accounts of processes; absent where it cannot.
    #[serde(default)]
    pub accounting_mode: Option<bool>,
    /// Whether MIG is on; absent where the GPU has none.
    pub mig_mode: Option<bool>,
    /// Its MIG devices.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<Vec<MigDevice>>")]
    pub mig_devices: Vec<MigDevice>,
    /// Seconds since the driver last answered for this GPU; absent while it answers. Memory, power
    /// and the process list are then the last known ones; utilization is absent.
    #[schemars(range(min = 0))]
    pub stale_seconds: Option<f64>,
    /// For how many of the seconds since the last snapshot the driver's samples of its processes were read,
    /// which keeps some 10 s of them; absent where that is not known.
    #[schemars(range(min = 0))]
    pub sampled_seconds: Option<f64>,
    /// Who has claimed it; absent where nobody has, or that is not known.
    #[serde(default)]
    pub claim: Option<Claim>,
    /// One row per (process, GPU instance); absent where the list could not be read.
    pub processes: Option<Vec<GpuProcess>>,
}

/// A claim on a GPU (`gpumem run --claim`), which other such runs respect.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Claim {
    /// The gpumem that claimed it; absent where that has ended, and only its command goes on.
    pub pid: Option<u32>,
    /// Its user id.
    pub uid: Option<u32>,
    /// That user's name.
    pub user: Option<Arc<str>>,
}

impl fmt::Display for Claim {
    /// `claimed by ann (4242)`, escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("claimed")?;
        match (&self.user, self.uid) {
            (Some(user), _) => write!(f, " by {}", escape(user))?,
            (None, Some(uid)) => write!(f, " by uid {uid}")?,
            (None, None) => {}
        }
        self.pid.map_or(Ok(()), |pid| write!(f, " ({pid})"))
    }
}

impl Gpu {
    /// The sum of what the listed processes hold, where every one of them is known.
    pub fn process_bytes(&self) -> Option<u64> {
        self.processes
            .as_ref()?
            .iter()
            .try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
    }

    /// What can be taken of it: the smaller of what is free and of what this cgroup's limit leaves.
    pub fn free_bytes(&self) -> Option<u64> {
        Some(self.memory?.free_bytes.min(self.memory_limit_free_bytes.unwrap_or(u64::MAX)))
    }
}

/// Framebuffer memory, in bytes; of a MIG device, its GPU instance's. Used excludes reserved (NVML's
/// memory info v2).
#[skip_serializing_none]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// Held by driver and firmware; absent where the driver is too old to report it separately, and
    /// then used_bytes includes it.
    pub reserved_bytes: Option<u64>,
    /// Allocated.
    pub used_bytes: u64,
    /// Free.
    pub free_bytes: u64,
}

/// A MIG device.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct MigDevice {
    /// Its number on its GPU, as `CUDA_VISIBLE_DEVICES` and `nvidia-smi -L` count.
    pub index: Option<u32>,
    /// GPU instance.
    pub gpu_instance_id: Option<u32>,
    /// Compute instance.
    pub compute_instance_id: Option<u32>,
    /// `"MIG-…"`.
    pub uuid: Option<Arc<str>>,
    /// `"1g.10gb"`.
    pub profile: Option<Arc<str>>,
    /// The GPU instance's memory.
    #[serde(default, deserialize_with = "memory")]
    pub memory: Option<Memory>,
}

/// Which of NVML's process lists a process was on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub enum ProcessType {
    /// A CUDA context.
    #[default]
    #[serde(rename = "compute")]
    Compute,
    /// A graphics context.
    #[serde(rename = "graphics")]
    Graphics,
    /// Both.
    #[serde(rename = "compute+graphics")]
    ComputeGraphics,
    /// A client of the Multi-Process Service.
    #[serde(rename = "mps")]
    Mps,
    /// A type of a later version.
    #[serde(other, rename = "other")]
    Other,
}

impl ProcessType {
    /// As nvidia-smi writes it; `M` is a client of MPS, `?` a type of a later version.
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

/// A process's share of one GPU.
#[skip_serializing_none]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct GpuProcess {
    /// As NVML gives it: a hint, not a proof.
    pub pid: u32,
    /// Which of the process lists of NVML it was on: `compute`, `graphics`, `compute+graphics` or `mps`;
    /// `other` is one that gpumem did not know.
    #[serde(rename = "type", default, deserialize_with = "or_default")]
    #[schemars(with = "String")]
    pub kind: ProcessType,
    /// Memory held; absent where NVML reports it as not available.
    pub used_bytes: Option<u64>,
    /// Use of the SMs: the highest sample since the last snapshot. 0 where the driver reports the
    /// use of processes and had no sample of this one; absent where it does not. Percent, 0 to 100.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub sm_percent: Option<u32>,
    /// As sm_percent, of memory traffic. Percent, 0 to 100.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub memory_percent: Option<u32>,
    /// As sm_percent, of the encoder. Percent, 0 to 100.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub encoder_percent: Option<u32>,
    /// As sm_percent, of the decoder. Percent, 0 to 100.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub decoder_percent: Option<u32>,
    /// Share of the time since lifetime_since in which the process had a kernel running on the GPU, by the
    /// driver's accounting, which rounds it; looked up once a minute. Absent where accounting is off, or knows
    /// nothing of the process. Percent, 0 to 100.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub lifetime_percent: Option<u32>,
    /// When the process started, by the driver's accounting.
    #[serde(default)]
    pub lifetime_since: Option<Time>,
    /// GPU instance, under MIG.
    pub gpu_instance_id: Option<u32>,
    /// Compute instance, under MIG.
    pub compute_instance_id: Option<u32>,
}

impl GpuProcess {
    /// What the driver's accounting has of this process: how busy it was, in percent, and since when. A life
    /// that began before the process did is that of an earlier one with its pid.
    pub fn lifetime_of(&self, process: &Process) -> Option<(u32, Time)> {
        // A process's start is counted from boot: a clock that was set since then moves it.
        const SLACK_SECONDS: f64 = 60.0;
        let (percent, since) = self.lifetime_percent.zip(self.lifetime_since)?;
        let is_its = process.start_time?.seconds_since(since) <= SLACK_SECONDS;
        is_its.then_some((percent, since))
    }
}

/// Something that could not be read; the rest is valid.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ReadError {
    /// The GPU it was of, by NVML's index; absent for the whole driver or host.
    pub gpu: Option<u32>,
    /// The call, file or option.
    pub call: Arc<str>,
    /// What went wrong, in words.
    pub error: Arc<str>,
}

/// `null` is the same as absent.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// What is lacking of a GPU's memory is worked out of the rest, or all of it is unknown.
fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Memory>, D::Error> {
    #[derive(Deserialize)]
    struct SnapshotOrFinding {
        total_bytes: Option<u64>,
        reserved_bytes: Option<u64>,
        used_bytes: Option<u64>,
        free_bytes: Option<u64>,
    }
    let read: Option<SnapshotOrFinding> = Option::deserialize(deserializer)?;
    Ok(read.and_then(|read| {
        let total = read.total_bytes?;
        let reserved = read.reserved_bytes.unwrap_or_default();
        let rest = |known: u64| total.saturating_sub(reserved).saturating_sub(known);
        Some(Memory {
            total_bytes: total,
            reserved_bytes: read.reserved_bytes,
            used_bytes: read.used_bytes.or(read.free_bytes.map(rest))?,
            free_bytes: read.free_bytes.or(read.used_bytes.map(rest))?,
        })
    }))
}

/// Whole numbers that another writer may have given a fraction.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number: Option<f64> = Option::deserialize(deserializer)?;
    let Some(number) = number else {
        return Ok(None);
    };
    if !(0.0..=f64::from(u32::MAX)).contains(&number) {
        let number = de::Unexpected::Float(number);
        return Err(de::Error::invalid_value(number, &"a number"));
    }
    // Rounded up: 0.4 % of use is use, and must not read as an observed 0.
    Ok(Some(number.ceil() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_absent_and_null_reads_alike() {
        let gpu: Gpu = serde_json::from_str(
            r#"{"index":3,"gpu_percent":null,"processes":null,"later":{"x":1}}"#,
        )
        .unwrap();
        assert_eq!(gpu, Gpu { index: 3, ..Gpu::default() });
        assert_eq!(serde_json::to_string(&gpu).unwrap(), r#"{"index":3,"mig_devices":[]}"#);
    }

    #[test]
    fn a_fraction_of_use_is_not_zero() {
        let row: GpuProcess =
            serde_json::from_str(r#"{"pid":1,"type":"compute","sm_percent":0.4}"#).unwrap();
        assert_eq!(row.sm_percent, Some(1));
        assert!(serde_json::from_str::<GpuProcess>(r#"{"pid":1,"sm_percent":-1}"#).is_err());
    }

    #[test]
    fn what_a_later_version_adds_is_read_as_other() {
        let row: GpuProcess = serde_json::from_str(r#"{"pid":1,"type":"optical"}"#).unwrap();
        assert_eq!(row.kind, ProcessType::Other);
        let slurm: Slurm = serde_json::from_str(r#"{"job_id":12,"step_id":"batch"}"#).unwrap();
        assert_eq!(
            (slurm.job_id.as_deref(), slurm.step_id.as_deref()),
            (Some("12"), Some("batch"))
        );
    }

    #[test]
    fn an_account_is_of_the_process_that_began_no_later() {
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
    fn null_is_the_same_as_absent() {
        let text = r#"{"schema":"gpumem.snapshot/1","time":"2026-11-20T13:35:00Z","host":null,
            "driver":null,"processes":null,"errors":null,"gpus":[{"index":0,"mig_devices":null,
            "memory":{"total_bytes":100,"reserved_bytes":10,"used_bytes":null,"free_bytes":60},
            "processes":[{"pid":7,"type":null,"used_bytes":null}]},{"index":1,
            "memory":{"total_bytes":null,"used_bytes":5}}]}"#;
        let snapshot: Snapshot = serde_json::from_str(text).unwrap();
        assert_eq!(snapshot.host, Host::default());
        let gpu = &snapshot.gpus[0];
        assert_eq!(gpu.memory.as_ref().unwrap().used_bytes, 30);
        assert_eq!(gpu.processes.as_ref().unwrap()[0].kind, ProcessType::Compute);
        assert_eq!(snapshot.gpus[1].memory, None);
        let gpus = text.replace(r#""gpus":[{"index":0"#, r#""more":[{"index":0"#);
        let snapshot: Snapshot =
            serde_json::from_str(&gpus.replace("\"more\"", "\"gpus\":null,\"more\"")).unwrap();
        assert_eq!(snapshot.gpus, []);
    }
}
