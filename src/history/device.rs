//! A GPU over time: its power, how full it is, and how much memory no process accounts for.

use std::sync::Arc;

use super::SampleTime;
use super::high_stretch::{Floors, HighStretch};
use super::power::{Alone, LowPowerPhase, PowerHistory, Work};
use super::row;
use super::streak::{Clause, Streak};
use crate::model::{Gpu, GpuProcess, Identity, Time};

/// How close snapshots may be and still have process samples. The driver takes some seven of them a second,
/// each for one process, so closer snapshots may see the GPU used and no process's sample.
const EXPLAINED_MILLISECONDS: i64 = 2_000;

#[derive(Clone, Debug)]
pub struct Device {
    uuid: Option<Arc<str>>,
    index: u32,
    listed_at: Option<Time>,
    /// Its total memory, as last reported; 0 before that.
    total_bytes: u64,
    power: PowerHistory,
    /// When a sample last showed one of its processes using it.
    used_at: Option<Time>,
    unused: Clause,
    /// Memory in use that no listed process holds.
    unattributed: Floors,
    /// How full it is: the maximum of u64 less its free bytes.
    filled: Floors,
}

impl Device {
    pub(super) fn new(gpu: &Gpu) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            listed_at: None,
            total_bytes: 0,
            power: PowerHistory::default(),
            used_at: None,
            unused: Clause::default(),
            unattributed: Floors::default(),
            filled: Floors::default(),
        }
    }

    /// Matches by UUID; by index, which a reboot may change, only if there is no UUID.
    pub(super) fn is(&self, gpu: &Gpu) -> bool {
        match (&self.uuid, &gpu.uuid) {
            (Some(mine), Some(other)) => mine == other,
            (None, None) => self.index == gpu.index,
            _ => false,
        }
    }

    /// Takes in a snapshot of the GPU. `is_listed`: it answered and its processes are known; `alone`: the only
    /// process at work.
    pub(super) fn observe(
        &mut self,
        gpu: &Gpu,
        moment: SampleTime,
        is_listed: bool,
        alone: Option<Alone>,
    ) {
        self.index = gpu.index;
        if is_listed {
            self.listed_at = Some(moment.time);
        }
        self.power.observe(gpu, alone, moment);
        // The figures of a GPU that does not answer are old.
        let memory = gpu.memory.filter(|_| gpu.stale_seconds.is_none());
        self.total_bytes = memory.map_or(self.total_bytes, |memory| memory.total_bytes);
        // Memory shared by processes is counted twice, so the difference is at least 0.
        let unattributed = memory
            .zip(gpu.process_bytes())
            .map(|(memory, listed)| memory.used_bytes.saturating_sub(listed));
        self.unattributed.observe(unattributed, moment);
        let filled = memory.map(|memory| u64::MAX - memory.free_bytes);
        self.filled.observe(filled, moment);
    }

    /// Whether it was used, and no process's sample explains that for longer than the next sample takes to
    /// come.
    pub(super) fn is_unexplained(&mut self, gpu: &Gpu, rows: &[GpuProcess], time: Time) -> bool {
        if row::is_used(gpu, rows) {
            self.used_at = Some(time);
            return false;
        }
        let is_recent = |at: Time| time - at <= EXPLAINED_MILLISECONDS;
        row::is_unexplained(gpu, rows) && !self.used_at.is_some_and(is_recent)
    }

    /// Takes in whether it is unused; `None` if unknown.
    pub(super) fn observe_unused(&mut self, is_unused: Option<bool>, moment: SampleTime) {
        self.unused.observe(is_unused, moment);
    }

    /// Since when it has been unused, while some process was given a GPU.
    pub fn unused(&self) -> Option<&Streak> {
        self.unused.streak()
    }

    pub fn uuid(&self) -> Option<&Arc<str>> {
        self.uuid.as_ref()
    }

    /// NVML's index, as last seen.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// When its process list was last read.
    pub fn listed_at(&self) -> Option<Time> {
        self.listed_at
    }

    /// Its total memory, as last reported; `None` before that.
    pub fn total_bytes(&self) -> Option<u64> {
        (self.total_bytes > 0).then_some(self.total_bytes)
    }

    /// Since when at least this much memory has been in use that no listed process holds.
    pub fn unattributed(&self, least_bytes: u64) -> Option<HighStretch> {
        self.unattributed.at_least(least_bytes)
    }

    /// Since when less than this has been free.
    pub fn fuller_than(&self, free_bytes: u64) -> Option<HighStretch> {
        let most_free = free_bytes.checked_sub(1)?;
        self.filled.at_least(u64::MAX - most_free)
    }

    /// The current low-power phase, if any.
    pub fn low_power_phase(&self) -> Option<&LowPowerPhase> {
        self.power.low_power_phase()
    }

    /// What it drew while this process worked alone, if enough was observed.
    pub fn work(&self, who: Identity) -> Option<&Work> {
        self.power.work(who)
    }

    /// Whether its power is known; a few samples without it are bridged.
    pub fn is_power_known(&self) -> bool {
        self.power.is_read()
    }

    /// The process that worked alone at the last snapshot.
    pub fn alone(&self) -> Option<Identity> {
        self.power.alone()
    }
}

#[cfg(test)]
mod tests;
