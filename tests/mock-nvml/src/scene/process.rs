//! The processes on a GPU: their list entries and their utilization.

use serde::{Deserialize, Serialize};

use crate::value::Value;

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its pid, which need not exist.
    pub pid: u32,
    #[serde(rename = "type", default)]
    pub kind: ProcessKind,
    /// Memory held; `null` means "not available" in NVML.
    pub used_bytes: Option<Value>,
    #[serde(default)]
    pub gi: Option<u32>,
    #[serde(default)]
    pub ci: Option<u32>,
    /// SM utilization in its samples, in percent.
    #[serde(default)]
    pub sm: Value,
    /// Its accounting record, if accounting is on.
    #[serde(default)]
    pub account: Option<Account>,
}

impl Process {
    /// A process on the compute list that holds `used_bytes`.
    pub fn compute(pid: u32, used_bytes: impl Into<Value>) -> Self {
        Self { pid, used_bytes: Some(used_bytes.into()), ..Self::default() }
    }

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

    /// Adds an accounting record: busy for `gpu` percent of its lifetime, since `start_us` (Unix time).
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
    /// Share of its lifetime in which it was busy, in percent; any number.
    pub gpu: u32,
    /// When it started, in microseconds since 1970.
    pub start_us: u64,
    /// Whether it belongs to an earlier process with this pid.
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

/// A utilization sample that the scene specifies, with the time of the newest sample.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sample {
    /// Any pid.
    pub pid: u32,
    pub sm: u32,
}

/// Makes the compute list grow: call n lists `entries` × n additional processes, until n reaches `calls`. A scene
/// that is read again starts over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// Number of processes that each call adds. They hold 1 MiB each and have pids from 4,180,000.
    pub entries: u32,
    /// Number of calls after which the list stops growing.
    pub calls: u32,
}
