//! Processes on a GPU: their rows in the process lists, and their utilization.

use serde::{Deserialize, Serialize};

use crate::value::Value;

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Pid, not necessarily of a real process.
    pub pid: u32,
    #[serde(rename = "type", default)]
    pub kind: ProcessKind,
    /// Memory in bytes. For `null`, NVML reports "not available".
    pub used_bytes: Option<Value>,
    #[serde(default)]
    pub gi: Option<u32>,
    #[serde(default)]
    pub ci: Option<u32>,
    /// SM utilization in percent.
    #[serde(default)]
    pub sm: Value,
    /// Accounting record, which NVML reports only while accounting mode is on.
    #[serde(default)]
    pub account: Option<Account>,
}

impl Process {
    /// Returns a process on the compute list.
    pub fn compute(pid: u32, used_bytes: impl Into<Value>) -> Self {
        Self { pid, used_bytes: Some(used_bytes.into()), ..Self::default() }
    }

    #[must_use]
    pub fn kind(mut self, kind: ProcessKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the SM utilization in percent.
    #[must_use]
    pub fn sm(mut self, percent: impl Into<Value>) -> Self {
        self.sm = percent.into();
        self
    }

    /// Adds the accounting record of a process that started at `start_us` (microseconds since 1970) and kept the GPU
    /// busy for `gpu` percent of its lifetime.
    #[must_use]
    pub fn account(mut self, gpu: u32, start_us: u64) -> Self {
        self.account = Some(Account { gpu, start_us, has_ended: false });
        self
    }
}

/// The accounting record of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Account {
    /// Percentage of the process's lifetime during which the GPU was busy. A value above 100 simulates a faulty driver.
    pub gpu: u32,
    /// Start time in microseconds since 1970.
    pub start_us: u64,
    /// Set if the process has exited. A later process can have the same pid.
    pub has_ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ProcessKind {
    #[default]
    #[serde(rename = "compute")]
    Compute,
    #[serde(rename = "graphics")]
    Graphics,
    #[serde(rename = "compute+graphics")]
    ComputeGraphics,
    #[serde(rename = "mps")]
    Mps,
}

/// An additional utilization sample. Its time is the driver's most recent sampling time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sample {
    /// Pid, which need not be in a process list.
    pub pid: u32,
    pub sm: u32,
}

/// Makes the compute list grow. Until call number `calls`, each call adds `entries` processes. Reading the scene
/// again resets the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// Number of processes that each call adds. These processes hold 1 MiB each, and their pids start at 4,180,000.
    pub entries: u32,
    /// Number of calls after which the list stops growing.
    pub calls: u32,
}
