//! The processes on a GPU: what the lists say of each, and what it was seen to use.

use serde::{Deserialize, Serialize};

use crate::value::Value;

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its pid; nothing asks whether it exists.
    pub pid: u32,
    #[serde(rename = "type", default)]
    pub kind: ProcessKind,
    /// Memory held; `null` is what NVML calls not available.
    pub used_bytes: Option<Value>,
    #[serde(default)]
    pub gi: Option<u32>,
    #[serde(default)]
    pub ci: Option<u32>,
    /// SM utilization in its samples, percent.
    #[serde(default)]
    pub sm: Value,
    /// What accounting has of it, where the GPU keeps accounts; absent is no account.
    #[serde(default)]
    pub account: Option<Account>,
}

impl Process {
    /// A process on the compute list that holds so many bytes.
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

    /// Gives it an account: busy for so many percent of its life, which began at this Unix time in
    /// microseconds.
    #[must_use]
    pub fn account(mut self, gpu: u32, start_us: u64) -> Self {
        self.account = Some(Account { gpu, start_us, has_ended: false });
        self
    }
}

/// What accounting has of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Account {
    /// Percent of its life in which it was busy; any number.
    pub gpu: u32,
    /// When it started, in microseconds since 1970.
    pub start_us: u64,
    /// Whether it is of an earlier process of this pid.
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

/// A utilization sample as a scene dictates it, with the stamp of the newest.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sample {
    /// Any pid.
    pub pid: u32,
    pub sm: u32,
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
