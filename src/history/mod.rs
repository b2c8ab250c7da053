//! The history of snapshots: for each process and GPU, a bounded number of points with running statistics.
//!
//! [`History::observe`] adds a snapshot and keeps the facts that rules need. For a process, these are the periods in
//! which it did not use a GPU and how completely samples cover them ([`row`]), its CPU use ([`counter`]), and when
//! its memory last changed. For a GPU, they are its power ([`LowPowerPhase`]), and the periods in which its memory
//! was full or unattributed ([`HighStretch`]).
//!
//! A few missing samples are tolerated. A longer gap ends the current periods. A suspend or a clock that was set back
//! clears the history ([`Reset`]).
//!
//! This module reads no clock and no file, and does not judge processes; [`crate::rules`] does. The history takes at
//! most 8 KiB per process and 3 KiB per process and GPU, and does not grow over time.

pub mod counter;
mod device;
pub mod growth;
pub mod memory_series;
pub mod power;
mod process;
mod row;
mod sample_time;
mod streak;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use foldhash::HashMap;

use crate::model::{Gpu, GpuProcess, Identity, Process, Snapshot, Time};
pub use device::{Device, HighStretch};
use power::SoleProcess;
pub use power::{Average, LowPowerPhase, Work};
use process::UnlistedPids;
pub use process::{Hidden, ProcessHistory, UnlistedPid};
use row::RowContext;
pub use row::{Began, RowHistory, Use};
use sample_time::{Interval, SampleTime};
pub use streak::Streak;

/// Maximum gap, in milliseconds, between samples of a condition, unless three usual intervals are longer.
const ALLOWED_GAP_MILLISECONDS: i64 = 60_000;
/// Gap, in milliseconds, between two snapshots after which the earlier ones are discarded.
const LONGEST_GAP_MILLISECONDS: i64 = 3_600_000;
/// Maximum number of consecutive snapshots that are ignored because they are older than the last one. If there are
/// more, the clock was set back.
const MOST_STRAYS: u32 = 2;
/// Minimum change of `suspended_seconds` that shows a suspend. Smaller changes can be rounding, because two clocks
/// are compared.
const SLEPT_SECONDS: u64 = 2;
/// Maximum number of GPUs in the history. A forged recording can contain more.
const MOST_DEVICES: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reset {
    Slept,
    OtherBoot,
    /// Several consecutive snapshots were older than the last one accepted.
    ClockWentBack,
    /// There was no snapshot for an hour or more.
    Gap,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resets {
    pub slept: u32,
    pub other_boot: u32,
    pub clock_went_back: u32,
    pub gap: u32,
    /// The last reset, and the time of the snapshot that caused it.
    pub last: Option<(Reset, Time)>,
    /// Number of snapshots that were ignored because they were older than the last one. They do not clear the history.
    pub strays: u32,
}

impl Resets {
    fn count(&mut self, reset: Reset, time: Time) {
        let counter = match reset {
            Reset::Slept => &mut self.slept,
            Reset::OtherBoot => &mut self.other_boot,
            Reset::ClockWentBack => &mut self.clock_went_back,
            Reset::Gap => &mut self.gap,
        };
        *counter = counter.saturating_add(1);
        self.last = Some((reset, time));
    }
}

/// The position of a row in the last snapshot. The process of the row is uncertain.
#[derive(Clone, Copy, Debug)]
struct UnresolvedRow {
    gpu: usize,
    row: usize,
    process: Option<usize>,
}

#[derive(Debug, Default)]
pub struct History {
    hostname: Option<Arc<str>>,
    boot_id: Option<Arc<str>>,
    suspended_seconds: Option<u64>,
    first: Option<Time>,
    last: Option<Time>,
    /// Number of consecutive snapshots that were older than the last one accepted.
    strays: u32,
    interval: Interval,
    resets: Resets,
    devices: Vec<Device>,
    /// Histories of processes by pid. The identity must be compared, because the pid may have been reused.
    // The values are boxed, because a hash map allocates more entries than it uses.
    processes: HashMap<u32, Box<ProcessHistory>>,
    unresolved_rows: Vec<UnresolvedRow>,
    unlisted: UnlistedPids,
}

impl History {
    /// Adds the next snapshot. Returns false if the snapshot is ignored because its time is the same as that of the
    /// last one, or earlier.
    pub fn observe(&mut self, snapshot: &Snapshot) -> bool {
        if !self.is_other_boot(snapshot) {
            if self.last == Some(snapshot.time) {
                return false;
            }
            if self.last.is_some_and(|last| snapshot.time < last) && self.strays < MOST_STRAYS {
                self.strays += 1;
                self.resets.strays = self.resets.strays.saturating_add(1);
                return false;
            }
        }
        self.strays = 0;
        if let Some(reset) = self.reset_by(snapshot) {
            self.forget();
            self.resets.count(reset, snapshot.time);
        }
        self.remember_host(snapshot);
        let previous = self.last.replace(snapshot.time);
        self.first.get_or_insert(snapshot.time);
        if let Some(previous) = previous {
            self.interval.push(snapshot.time - previous);
        }
        let interval = self.interval.milliseconds();
        let sample = SampleTime {
            time: snapshot.time,
            interval,
            allowed_gap: ALLOWED_GAP_MILLISECONDS.max(interval.saturating_mul(3)),
        };
        self.observe_processes(snapshot, sample);
        self.observe_rows(snapshot, sample, previous);
        self.observe_unused(snapshot, sample);
        self.observe_hidden(snapshot, sample);
        self.observe_what_is_missing(sample);
        true
    }

    fn is_other_boot(&self, snapshot: &Snapshot) -> bool {
        let differs = |before: &Option<Arc<str>>, now: &Option<Arc<str>>| {
            before.as_ref().zip(now.as_ref()).is_some_and(|(before, now)| before != now)
        };
        differs(&self.boot_id, &snapshot.host.boot_id)
            || differs(&self.hostname, &snapshot.host.hostname)
    }

    fn reset_by(&self, snapshot: &Snapshot) -> Option<Reset> {
        let last = self.last?;
        let slept = self
            .suspended_seconds
            .zip(snapshot.host.suspended_seconds)
            .is_some_and(|(before, now)| before.abs_diff(now) >= SLEPT_SECONDS);
        if self.is_other_boot(snapshot) {
            Some(Reset::OtherBoot)
        } else if snapshot.time < last {
            Some(Reset::ClockWentBack)
        } else if slept {
            Some(Reset::Slept)
        } else if snapshot.time - last >= LONGEST_GAP_MILLISECONDS {
            Some(Reset::Gap)
        } else {
            None
        }
    }

    fn forget(&mut self) {
        *self = Self { resets: self.resets, ..Self::default() };
    }

    fn remember_host(&mut self, snapshot: &Snapshot) {
        let host = &snapshot.host;
        for (kept, now) in
            [(&mut self.hostname, &host.hostname), (&mut self.boot_id, &host.boot_id)]
        {
            if kept.is_none() {
                kept.clone_from(now);
            }
        }
        self.suspended_seconds = host.suspended_seconds.or(self.suspended_seconds);
    }

    fn observe_processes(&mut self, snapshot: &Snapshot, sample: SampleTime) {
        for process in &snapshot.processes {
            let identity = process.identity();
            if !identity.is_certain() {
                continue;
            }
            let history = self
                .processes
                .entry(process.pid)
                .or_insert_with(|| Box::new(ProcessHistory::new(identity, sample.time)));
            if history.identity() != identity {
                **history = ProcessHistory::new(identity, sample.time);
            }
            history.observe(process, sample);
        }
    }

    fn observe_rows(&mut self, snapshot: &Snapshot, sample: SampleTime, previous: Option<Time>) {
        self.unresolved_rows.clear();
        // The map is built only if it is needed, because the process of nearly every row is certain.
        let mut indices: Option<HashMap<u32, usize>> = None;
        for (gpu_index, gpu) in snapshot.gpus.iter().enumerate() {
            let Some(device) = self.remember_device(gpu, gpu_index) else {
                continue;
            };
            // Skip the rows of a GPU that does not answer, because they are stale.
            let Some(rows) = gpu.processes.as_ref().filter(|_| gpu.stale_seconds.is_none()) else {
                self.devices[device].observe(gpu, sample, false, None);
                continue;
            };
            // If the previous list was read, a row that is new has just appeared. Otherwise, it can be older.
            let was_listed = previous.is_some() && self.devices[device].listed_at() == previous;
            let alone = power::alone(gpu, rows).and_then(|row| {
                let process = self.processes.get(&row.pid)?;
                (process.last_seen() == sample.time).then(|| SoleProcess {
                    process: process.identity(),
                    sm_percent: row.sm_percent,
                })
            });
            self.devices[device].observe(gpu, sample, true, alone);
            let is_unexplained = self.devices[device].is_unexplained(gpu, rows, sample.time);
            let shown = RowContext { device, was_listed, is_unexplained };
            for (row_index, row) in rows.iter().enumerate() {
                let history = self.processes.get_mut(&row.pid);
                if let Some(process) = history.filter(|history| history.last_seen() == sample.time)
                {
                    process.observe_row(shown, gpu, row, sample);
                    continue;
                }
                let indices = indices.get_or_insert_with(|| indices_by_pid(snapshot));
                let process = indices.get(&row.pid).copied();
                let entry = process.map(|index| &snapshot.processes[index]);
                self.unlisted.observe(device, row.pid, entry, sample, was_listed);
                self.unresolved_rows.push(UnresolvedRow {
                    gpu: gpu_index,
                    row: row_index,
                    process,
                });
            }
        }
    }

    /// Records which GPUs are unused. If no job or container has an allocation, records that this is unknown.
    fn observe_unused(&mut self, snapshot: &Snapshot, sample: SampleTime) {
        let reservations = snapshot.reservations.as_deref().unwrap_or_default();
        if reservations.is_empty() {
            for device in &mut self.devices {
                device.observe_unused(None, sample);
            }
            return;
        }
        for gpu in &snapshot.gpus {
            if let Some(device) = self.devices.iter_mut().find(|device| device.is_for(gpu)) {
                device.observe_unused(snapshot.is_unused(gpu), sample);
            }
        }
    }

    /// Finds GPUs on which an abandoned process may hold memory although they do not list it.
    fn observe_hidden(&mut self, snapshot: &Snapshot, sample: SampleTime) {
        // Whether the GPUs' memory is unexplained, by index of the GPU in the snapshot. This is computed only if a
        // process is abandoned.
        let mut unexplained: Option<Vec<Option<bool>>> = None;
        for process in &snapshot.processes {
            let Some(history) = self.processes.get_mut(&process.pid).filter(|history| {
                history.abandoned().is_some() && history.identity() == process.identity()
            }) else {
                continue;
            };
            let unexplained = unexplained.get_or_insert_with(|| {
                // If a list could not be read completely, the process may be on it.
                let of_gpu = |gpu: &Gpu| {
                    let is_whole = snapshot.lists_all(gpu);
                    process::is_unexplained(gpu).filter(|_| is_whole)
                };
                snapshot.gpus.iter().map(of_gpu).collect()
            });
            for (gpu_index, gpu) in snapshot.gpus.iter().enumerate() {
                let Some(device) = self.devices.iter().position(|device| device.is_for(gpu)) else {
                    continue;
                };
                let is_listed = history.rows().iter().any(|row| row.device() == device);
                let holds_file = gpu.may_be_held_by(process);
                if is_listed || holds_file == Some(false) {
                    history.observe_hidden(device, gpu, Some(false), sample);
                    continue;
                }
                // A surviving worker holds the memory that is listed under the pid of its dead group leader.
                let leader_is_listed = self.unresolved_rows.iter().any(|unresolved| {
                    let rows = snapshot.gpus[unresolved.gpu].processes.as_deref();
                    let row = rows.and_then(|rows| rows.get(unresolved.row));
                    unresolved.gpu == gpu_index && row.map(|row| row.pid) == process.process_group
                });
                let is_unexplained =
                    if leader_is_listed { Some(true) } else { unexplained[gpu_index] };
                let holds = holds_file.and(is_unexplained);
                history.observe_hidden(device, gpu, holds, sample);
            }
        }
    }

    /// Returns the position of a GPU in `devices`, which is usually its index in the snapshot. Adds a GPU that is new.
    fn remember_device(&mut self, gpu: &Gpu, likely_index: usize) -> Option<usize> {
        if self.devices.get(likely_index).is_some_and(|device| device.is_for(gpu)) {
            return Some(likely_index);
        }
        if let Some(found) = self.devices.iter().position(|device| device.is_for(gpu)) {
            return Some(found);
        }
        if self.devices.len() >= MOST_DEVICES {
            return None;
        }
        self.devices.push(Device::new(gpu));
        Some(self.devices.len() - 1)
    }

    fn observe_what_is_missing(&mut self, sample: SampleTime) {
        let devices = &self.devices;
        let is_listed = |device: usize| devices[device].listed_at() == Some(sample.time);
        self.processes.retain(|_, process| process.observe_what_is_missing(sample, is_listed));
        let processes = &self.processes;
        self.unlisted.forget(sample, |pid| {
            processes.get(&pid).is_some_and(|process| process.last_seen() == sample.time)
        });
    }

    /// Returns the history of a process, or `None` if the process was never observed or disappeared a while ago.
    pub fn process(&self, identity: Identity) -> Option<&ProcessHistory> {
        self.processes
            .get(&identity.pid)
            .map(|process| &**process)
            .filter(|process| process.identity() == identity)
    }

    pub fn device(&self, gpu: &Gpu) -> Option<&Device> {
        self.devices.iter().find(|device| device.is_for(gpu))
    }

    /// Returns the rows whose process is uncertain: /proc does not list the pid, or the process in /proc may be a
    /// different one. Also returns the snapshot's entry for the process, if any. `snapshot` must be the last one
    /// observed.
    pub fn unresolved_rows<'s>(
        &self,
        snapshot: &'s Snapshot,
    ) -> impl Iterator<Item = (&'s Gpu, &'s GpuProcess, Option<&'s Process>)> {
        self.unresolved_rows.iter().filter_map(|unresolved| {
            let gpu = snapshot.gpus.get(unresolved.gpu)?;
            let row = gpu.processes.as_ref()?.get(unresolved.row)?;
            let process = unresolved.process.and_then(|index| snapshot.processes.get(index));
            Some((gpu, row, process))
        })
    }

    /// Returns the facts about a pid that a GPU lists although no living process has it. Returns `None` if a living
    /// process may have the pid.
    pub fn unlisted_pid(&self, gpu: &Gpu, pid: u32) -> Option<&UnlistedPid> {
        let device = self.devices.iter().position(|device| device.is_for(gpu))?;
        self.unlisted.get(device, pid)
    }

    /// Returns whether a process that is missing from the last snapshot may still exist, because one of its GPUs did
    /// not answer.
    pub fn may_be_hidden(&self, identity: Identity) -> bool {
        self.process(identity).is_some_and(|process| {
            Some(process.last_seen()) != self.last
                && process
                    .rows()
                    .iter()
                    .any(|row| self.devices[row.device()].listed_at() != self.last)
        })
    }

    /// Returns whether the history contains the process on this GPU, because the GPU lists it or listed it recently.
    pub fn was_on(&self, identity: Identity, gpu: &Gpu) -> bool {
        let device = self.devices.iter().position(|device| device.is_for(gpu));
        let rows = self.process(identity).map_or(&[][..], ProcessHistory::rows);
        device.is_some_and(|device| rows.iter().any(|row| row.device() == device))
    }

    pub fn has_low_power_phase(&self) -> bool {
        self.devices.iter().any(|device| device.low_power_phase().is_some())
    }

    pub fn device_of(&self, row: &RowHistory) -> &Device {
        &self.devices[row.device()]
    }

    /// Returns the GPU on which a process may be hidden. `snapshot` must be the last one observed.
    pub fn hidden_gpu<'s>(&self, hidden: &Hidden, snapshot: &'s Snapshot) -> Option<&'s Gpu> {
        let device = &self.devices[hidden.device()];
        snapshot.gpus.iter().find(|gpu| device.is_for(gpu))
    }

    pub fn gpu_index(&self, row: &RowHistory) -> u32 {
        self.devices[row.device()].index()
    }

    pub fn gpu_uuid(&self, row: &RowHistory) -> Option<&Arc<str>> {
        self.devices[row.device()].uuid()
    }

    /// Returns whether the process list of the row's GPU was read in the last snapshot.
    pub fn is_listed(&self, row: &RowHistory) -> bool {
        self.devices[row.device()].listed_at() == self.last
    }

    /// Returns the rows of a process on the GPU with this NVML index. Under MIG, there can be several.
    fn rows_on(&self, identity: Identity, gpu: u32) -> impl Iterator<Item = &RowHistory> {
        self.process(identity)
            .map_or(&[][..], ProcessHistory::rows)
            .iter()
            .filter(move |row| self.devices[row.device()].index() == gpu)
    }

    /// Returns the time since which a process has certainly not used the GPU with this NVML index. Returns `None` if it
    /// uses the GPU, or if that is unknown.
    pub fn idle_since(&self, identity: Identity, gpu: u32) -> Option<Time> {
        self.rows_on(identity, gpu)
            .map(|row| row.run().map(|run| run.since))
            .try_fold(None, |latest, since| since.map(|since| latest.max(Some(since))))
            .flatten()
    }

    /// Returns the time of the first snapshot since the last reset.
    pub fn first_time(&self) -> Option<Time> {
        self.first
    }

    pub fn last_time(&self) -> Option<Time> {
        self.last
    }

    /// Returns the seconds from the first snapshot to the last, or 0 if there are none.
    pub fn span_seconds(&self) -> f64 {
        self.first.zip(self.last).map_or(0.0, |(first, last)| last.seconds_since(first))
    }

    /// Returns the usual number of seconds between two snapshots, or `None` before the second snapshot.
    pub fn interval_seconds(&self) -> Option<f64> {
        match self.interval.milliseconds() {
            0 => None,
            milliseconds => Some(milliseconds as f64 / 1000.0),
        }
    }

    pub fn resets(&self) -> Resets {
        self.resets
    }
}

fn indices_by_pid(snapshot: &Snapshot) -> HashMap<u32, usize> {
    let processes = snapshot.processes.iter().enumerate();
    // If several processes have the same pid, use the first, as `Snapshot::process` does.
    processes.rev().map(|(index, process)| (process.pid, index)).collect()
}

#[cfg(test)]
mod tests;
