//! A GPU over time: what it draws, how full it is, and how much of that no process accounts for.

use std::sync::Arc;

use super::SampleTime;
use super::high_stretch::{Floors, HighStretch};
use super::power::{Alone, Draw, LowPowerPhase, Work};
use super::row;
use super::streak::{Clause, Streak};
use crate::model::{Gpu, GpuProcess, Identity, Time};

/// The driver takes some seven samples of processes a second, each of one of them: snapshots that are
/// closer together than this may see use of the GPU and no process's sample.
const EXPLAINED_MILLISECONDS: i64 = 2_000;

/// A GPU that has been seen.
#[derive(Clone, Debug)]
pub struct Device {
    uuid: Option<Arc<str>>,
    index: u32,
    /// When its process list was last read.
    listed_at: Option<Time>,
    /// All of its memory, as it was last told; 0 before it was.
    total_bytes: u64,
    draw: Draw,
    /// When a sample last said of one of its processes that it used it.
    used_at: Option<Time>,
    /// It is unused.
    unused: Clause,
    /// Memory in use that no listed process holds.
    unattributed: Floors,
    /// How far from free its memory is: the highest number there is, less what is free.
    filled: Floors,
}

impl Device {
    pub(super) fn new(gpu: &Gpu) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            listed_at: None,
            total_bytes: 0,
            draw: Draw::default(),
            used_at: None,
            unused: Clause::default(),
            unattributed: Floors::default(),
            filled: Floors::default(),
        }
    }

    /// By uuid; the index, which a reboot may deal out anew, only where there is none.
    pub(super) fn is(&self, gpu: &Gpu) -> bool {
        match (&self.uuid, &gpu.uuid) {
            (Some(mine), Some(other)) => mine == other,
            (None, None) => self.index == gpu.index,
            _ => false,
        }
    }

    /// Takes in what a snapshot says of the GPU; `is_listed` where it answered and its processes are
    /// known, `alone` where one of them was alone at work.
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
        self.draw.observe(gpu, alone, moment);
        // What a GPU that does not answer had in use is no news.
        let memory = gpu.memory.filter(|_| gpu.stale_seconds.is_none());
        self.total_bytes = memory.map_or(self.total_bytes, |memory| memory.total_bytes);
        // Memory that several processes share is counted twice: never less than nothing.
        let unattributed = memory
            .zip(gpu.process_bytes())
            .map(|(memory, listed)| memory.used_bytes.saturating_sub(listed));
        self.unattributed.observe(unattributed, moment);
        let filled = memory.map(|memory| u64::MAX - memory.free_bytes);
        self.filled.observe(filled, moment);
    }

    /// Whether it was used, and its processes' samples have put that down to none of them for longer than
    /// it takes the next sample to come.
    pub(super) fn is_unexplained(&mut self, gpu: &Gpu, rows: &[GpuProcess], time: Time) -> bool {
        if row::is_used(gpu, rows) {
            self.used_at = Some(time);
            return false;
        }
        let is_recent = |at: Time| time - at <= EXPLAINED_MILLISECONDS;
        row::is_unexplained(gpu, rows) && !self.used_at.is_some_and(is_recent)
    }

    /// Takes in whether it is unused; `None` where that is not known.
    pub(super) fn observe_unused(&mut self, is_unused: Option<bool>, moment: SampleTime) {
        self.unused.observe(is_unused, moment);
    }

    /// Since when it has been unused, as long as a process was given a GPU.
    pub fn unused(&self) -> Option<&Streak> {
        self.unused.streak()
    }

    /// `"GPU-…"`.
    pub fn uuid(&self) -> Option<&Arc<str>> {
        self.uuid.as_ref()
    }

    /// NVML's index, as it was last.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// When its process list was last read.
    pub fn listed_at(&self) -> Option<Time> {
        self.listed_at
    }

    /// All of its memory, as it was last told; `None` before it was.
    pub fn total_bytes(&self) -> Option<u64> {
        (self.total_bytes > 0).then_some(self.total_bytes)
    }

    /// Since when at least so much memory has been in use that no listed process holds.
    pub fn unattributed(&self, least_bytes: u64) -> Option<HighStretch> {
        self.unattributed.at_least(least_bytes)
    }

    /// Since when less than this has been free.
    pub fn fuller_than(&self, free_bytes: u64) -> Option<HighStretch> {
        let most_free = free_bytes.checked_sub(1)?;
        self.filled.at_least(u64::MAX - most_free)
    }

    /// The time of full use at a fraction of the power, where there is one.
    pub fn low_power_phase(&self) -> Option<&LowPowerPhase> {
        self.draw.low_power_phase()
    }

    /// What it drew while a process was alone at work, where enough was seen of that.
    pub fn work(&self, who: Identity) -> Option<&Work> {
        self.draw.work(who)
    }

    /// Whether its power is known: a few samples without it change nothing.
    pub fn is_power_known(&self) -> bool {
        self.draw.is_read()
    }

    /// Who was alone at work on it at the last snapshot.
    pub fn alone(&self) -> Option<Identity> {
        self.draw.alone()
    }
}

#[cfg(test)]
mod tests;
