//! The snapshot: everything that gpumem saw at one instant.
//!
//! One Rust type, one JSON shape: `gpumem ps --json` prints one, `gpumem record` writes one a line,
//! and every `--replay` reads them. Units are in the names; what is not known is absent, never 0.
//! Strings are shared (`Arc`), because the next sample carries the same ones again.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::identity::{Identity, Start};
use super::time::Time;

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.snapshot/1";

/// Everything that was seen at one instant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Format and major version.
    pub schema: Schema,
    /// When the sample was taken (UTC).
    pub time: Time,
    /// The machine.
    #[serde(default, deserialize_with = "or_default")]
    pub host: Host,
    /// The NVIDIA driver.
    #[serde(default, deserialize_with = "or_default")]
    pub driver: Driver,
    /// The GPUs, in NVML's index order.
    #[serde(default, deserialize_with = "or_default")]
    pub gpus: Vec<Gpu>,
    /// Each process that NVML lists on a GPU, or that holds a GPU device file open; once.
    #[serde(default, deserialize_with = "or_default")]
    pub processes: Vec<Process>,
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

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "the schema {SCHEMA:?}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Schema, E> {
                if text == SCHEMA {
                    Ok(Schema)
                } else {
                    Err(E::custom(format_args!(
                        "schema is {text:?}, this gpumem reads {SCHEMA:?}"
                    )))
                }
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// The machine.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Host {
    /// The host's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Arc<str>>,
    /// `/proc/sys/kernel/random/boot_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<Arc<str>>,
    /// The kernel's release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Arc<str>>,
    /// Whose pids these are: the host's or a container's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<PidNamespace>,
    /// Seconds that the machine has been suspended since boot (`CLOCK_BOOTTIME` less
    /// `CLOCK_MONOTONIC`). A change between two snapshots means that it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_seconds: Option<u64>,
}

/// Whose pids a snapshot's pids are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PidNamespace {
    /// The initial pid namespace.
    Host,
    /// Any other: NVML's pids may be numbers of another namespace.
    #[serde(other)]
    Container,
}

/// The NVIDIA driver.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Driver {
    /// `"580.159.03"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Arc<str>>,
    /// `"13.580.159.03"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvml_version: Option<Arc<str>>,
    /// The newest CUDA that the driver supports: `"13.0"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<Arc<str>>,
}

/// One GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// `"GPU-…"`; stable over reboots, unlike the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Arc<str>>,
    /// Marketing name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// `"00000000:17:00.0"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<Arc<str>>,
    /// N of `/dev/nvidiaN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor_number: Option<u32>,
    /// Framebuffer memory.
    #[serde(
        default,
        deserialize_with = "memory",
        skip_serializing_if = "Option::is_none"
    )]
    pub memory: Option<Memory>,
    /// Share of time in which any kernel ran.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub gpu_percent: Option<u32>,
    /// Share of time in which memory was read or written.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub memory_percent: Option<u32>,
    /// Degrees.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub temperature_celsius: Option<u32>,
    /// Power drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// The enforced limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    /// SM clock.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub sm_clock_mhz: Option<u32>,
    /// Fan speed.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub fan_percent: Option<u32>,
    /// P-state, 0 (fastest) to 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub performance_state: Option<u32>,
    /// `default`, `exclusive_thread`, `prohibited`, `exclusive_process`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<Arc<str>>,
    /// Whether the driver stays loaded without clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence_mode: Option<bool>,
    /// Whether MIG is on; absent where the GPU has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_mode: Option<bool>,
    /// MIG devices.
    #[serde(default, deserialize_with = "or_default")]
    pub mig_devices: Vec<MigDevice>,
    /// Seconds since the driver last answered for this GPU; absent while it answers. Memory, power
    /// and the process list are then the last known ones; utilization is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_seconds: Option<f64>,
    /// One row per (process, GPU instance); absent where the list could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<GpuProcess>>,
}

impl Gpu {
    /// The sum of what the listed processes hold, where every one of them is known.
    pub fn process_bytes(&self) -> Option<u64> {
        self.processes
            .as_ref()?
            .iter()
            .try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
    }
}

/// A GPU's memory; `used` excludes `reserved` (NVML's memory info v2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// Held by the driver and firmware; absent where only memory info v1 exists, whose `used`
    /// includes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// Allocated.
    pub used_bytes: u64,
    /// Free.
    pub free_bytes: u64,
}

/// A MIG device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MigDevice {
    /// GPU instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance_id: Option<u32>,
    /// Compute instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance_id: Option<u32>,
    /// `"MIG-…"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Arc<str>>,
    /// `"1g.10gb"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Arc<str>>,
    /// The GPU instance's memory.
    #[serde(
        default,
        deserialize_with = "memory",
        skip_serializing_if = "Option::is_none"
    )]
    pub memory: Option<Memory>,
}

/// Which of NVML's process lists a process was on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
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

/// A process's share of one GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GpuProcess {
    /// As NVML gives it: a hint, not a proof.
    pub pid: u32,
    /// Which process lists it was on.
    #[serde(rename = "type", default, deserialize_with = "or_default")]
    pub kind: ProcessType,
    /// Memory held; absent where NVML says not available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// The highest sample since the last snapshot; 0 where the driver supports process utilization
    /// and had none for this process; absent where it does not.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub sm_percent: Option<u32>,
    /// As `sm_percent`, of memory traffic.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub memory_percent: Option<u32>,
    /// As `sm_percent`, of the encoder.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub encoder_percent: Option<u32>,
    /// As `sm_percent`, of the decoder.
    #[serde(
        default,
        deserialize_with = "whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub decoder_percent: Option<u32>,
    /// Under MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance_id: Option<u32>,
    /// Under MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance_id: Option<u32>,
}

/// A process, as Linux knows it. Without `start_ticks` and `start_time`, /proc does not know it (or
/// what it knows was not believed), and it is never a target of any action.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ticks: Option<u64>,
    /// The same for people; moves when the clock is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Why the process behind this pid could not be told, in words; absent where it could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unresolved: Option<Arc<str>>,
    /// Parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ppid: Option<u32>,
    /// Process group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_group: Option<u32>,
    /// Session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u32>,
    /// The parent is pid 1 of the namespace or a child subreaper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_is_reaper: Option<bool>,
    /// A process with the process group's number exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_leader_alive: Option<bool>,
    /// A process with the session's number exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_leader_alive: Option<bool>,
    /// R S D T t Z X I, as in /proc; absent when the pid is not in /proc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// Real user id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Arc<str>>,
    /// The kernel's short name (`/proc/PID/stat`, field 2); all there is for a process without argv.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<Arc<str>>,
    /// argv; bounded in length, the last one ends with `…` where it was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Arc<[Arc<str>]>>,
    /// `/proc/PID/exe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<Arc<str>>,
    /// Since the last snapshot; one core is 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// In total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// Resident host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// Threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Controlling terminal, `"pts/3"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Arc<str>>,
    /// Has a listening socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listening: Option<bool>,
    /// GPU device files held open; absent where its descriptors may not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_files: Option<Arc<[Arc<str>]>>,
    /// `pytorch`, `tensorflow`, `jax` …, from the libraries mapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<Arc<str>>,
    /// The container it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<Container>>,
    /// The Kubernetes pod it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Arc<Kubernetes>>,
    /// The Slurm job it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<Arc<Slurm>>,
    /// The systemd unit it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub systemd_unit: Option<Arc<str>>,
    /// The Jupyter kernel it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jupyter: Option<Arc<Jupyter>>,
}

impl Process {
    /// Who this is, within its boot.
    pub fn identity(&self) -> Identity {
        let start = match (self.start_ticks, self.start_time) {
            (Some(ticks), _) => Start::Ticks(ticks),
            (None, Some(time)) => Start::Time(time),
            (None, None) => Start::Unknown,
        };
        Identity {
            pid: self.pid,
            start,
        }
    }
}

/// A container, as its cgroup names it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Container {
    /// `docker`, `containerd`, `cri-o`, `podman` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Arc<str>>,
    /// 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
}

/// A Kubernetes pod, as its cgroup names it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Kubernetes {
    /// The pod's uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<Arc<str>>,
    /// Quality-of-service class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<Arc<str>>,
}

/// A Slurm job and step; text, because newer Slurm's ids are not numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Slurm {
    /// The job.
    #[serde(
        default,
        deserialize_with = "text_or_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub job_id: Option<Arc<str>>,
    /// The step.
    #[serde(
        default,
        deserialize_with = "text_or_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub step_id: Option<Arc<str>>,
}

/// A Jupyter kernel and what its server says of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Jupyter {
    /// The kernel's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_id: Option<Arc<str>>,
    /// Its connection file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_file: Option<Arc<str>>,
    /// Its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_url: Option<Arc<str>>,
    /// The notebook, relative to the server's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notebook_path: Option<Arc<str>>,
    /// `idle`, `busy` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_state: Option<Arc<str>>,
    /// The server's last activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Time>,
    /// Open connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
}

/// Something that could not be read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadError {
    /// The GPU it was of; absent for the whole driver or host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The call or file.
    pub call: Arc<str>,
    /// What went wrong.
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
    struct Told {
        total_bytes: Option<u64>,
        reserved_bytes: Option<u64>,
        used_bytes: Option<u64>,
        free_bytes: Option<u64>,
    }
    let told: Option<Told> = Option::deserialize(deserializer)?;
    Ok(told.and_then(|told| {
        let total = told.total_bytes?;
        let reserved = told.reserved_bytes.unwrap_or_default();
        let rest = |known: u64| total.saturating_sub(reserved).saturating_sub(known);
        Some(Memory {
            total_bytes: total,
            reserved_bytes: told.reserved_bytes,
            used_bytes: told.used_bytes.or(told.free_bytes.map(rest))?,
            free_bytes: told.free_bytes.or(told.used_bytes.map(rest))?,
        })
    }))
}

/// Whole numbers that another writer may have given a fraction.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    struct Visitor;
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Option<u32>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a number")
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Option<u32>, E> {
            u32::try_from(number)
                .map(Some)
                .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Option<u32>, E> {
            u32::try_from(number)
                .map(Some)
                .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Option<u32>, E> {
            if (0.0..=f64::from(u32::MAX)).contains(&number) {
                // Rounded up: 0.4 % of use is use, and must not read as an observed 0.
                Ok(Some(number.ceil() as u32))
            } else {
                Err(E::invalid_value(de::Unexpected::Float(number), &self))
            }
        }

        fn visit_none<E: de::Error>(self) -> Result<Option<u32>, E> {
            Ok(None)
        }

        fn visit_unit<E: de::Error>(self) -> Result<Option<u32>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(
            self,
            deserializer: D,
        ) -> Result<Option<u32>, D::Error> {
            deserializer.deserialize_any(self)
        }
    }
    deserializer.deserialize_option(Visitor)
}

/// Identifiers that older writers gave as numbers.
fn text_or_number<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Arc<str>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(Arc<str>),
        Number(u64),
    }
    Ok(
        Option::<Either>::deserialize(deserializer)?.map(|either| match either {
            Either::Text(text) => text,
            Either::Number(number) => number.to_string().into(),
        }),
    )
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
        assert_eq!(
            gpu,
            Gpu {
                index: 3,
                ..Gpu::default()
            }
        );
        assert_eq!(
            serde_json::to_string(&gpu).unwrap(),
            r#"{"index":3,"mig_devices":[]}"#
        );
    }

    #[test]
    fn a_fraction_of_use_is_not_zero() {
        let row: GpuProcess =
            serde_json::from_str(r#"{"pid":1,"type":"compute","sm_percent":0.4}"#).unwrap();
        assert_eq!(row.sm_percent, Some(1));
        assert!(serde_json::from_str::<GpuProcess>(r#"{"pid":1,"sm_percent":-1}"#).is_err());
    }

    #[test]
    fn another_major_version_is_refused_naming_both() {
        let error = serde_json::from_str::<Snapshot>(
            r#"{"schema":"gpumem.snapshot/2","time":"2025-12-04T08:15:38Z"}"#,
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("gpumem.snapshot/2") && error.contains("gpumem.snapshot/1"),
            "{error}"
        );
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
    fn the_sum_of_processes_is_unknown_where_one_is() {
        let row = |pid, used_bytes| GpuProcess {
            pid,
            used_bytes,
            ..GpuProcess::default()
        };
        let mut gpu = Gpu {
            processes: Some(vec![row(1, Some(5)), row(2, Some(7))]),
            ..Gpu::default()
        };
        assert_eq!(gpu.process_bytes(), Some(12));
        gpu.processes = Some(vec![row(1, Some(5)), row(2, None)]);
        assert_eq!(gpu.process_bytes(), None);
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
        assert_eq!(
            gpu.processes.as_ref().unwrap()[0].kind,
            ProcessType::Compute
        );
        assert_eq!(snapshot.gpus[1].memory, None);
        let gpus = text.replace(r#""gpus":[{"index":0"#, r#""more":[{"index":0"#);
        let snapshot: Snapshot =
            serde_json::from_str(&gpus.replace("\"more\"", "\"gpus\":null,\"more\"")).unwrap();
        assert_eq!(snapshot.gpus, []);
    }
}
