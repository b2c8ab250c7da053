//! Compares the power that a GPU draws under one process with the power that it drew earlier under the same process.
//!
//! If a process waits forever in a kernel, the GPU stays fully utilized without moving data, and its power drops.
//! Only periods in which no other process worked are compared, because power cannot be divided among processes. A
//! process that holds memory without using the GPU does not matter.
//!
//! The settings of the rule decide what becomes a finding. The wider bounds in this module decide when a
//! [`LowPowerPhase`] begins and ends. Only the last few processes that worked alone on a GPU are kept.

use super::row::Use;
use super::sample_time::{BRIDGED_GAP_MILLISECONDS, SampleTime};
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Identity, Time};

/// Minimum utilization, in percent, of a fully utilized GPU.
pub const FULL_PERCENT: f64 = 90.0;
/// A GPU draws low power if its power is below this share of its former power.
pub const LOW_SHARE: f64 = 0.5;
/// Memory traffic, in percent, below which a process may be waiting.
pub const TRACE_OF_TRAFFIC: f64 = 3.0;
/// Share of its power limit below which a fully utilized GPU may do almost no work.
const LIGHT_SHARE: f64 = 0.375;
/// Time, in seconds, for which a process must work alone before its power is known.
pub const LEAST_WORK_SECONDS: f64 = 180.0;
const LEAST_WORK_SAMPLES: u64 = 5;
/// Minimum SM utilization, in percent, of a process that keeps a GPU fully utilized.
const LEAST_OWN_PERCENT: u32 = 50;
/// Maximum SM utilization, in percent, of a desktop that only draws windows.
pub(super) const DESKTOP_PERCENT: u32 = 10;
const MOST_USERS: usize = 8;

#[derive(Clone, PartialEq, Debug)]
pub struct Work {
    process: Identity,
    until: Time,
    covered: i64,
    pub load: Load,
}

/// Means of a GPU's values.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Load {
    pub gpu_percent: Average,
    pub power: Average,
    pub memory: Average,
    /// SM clock, in MHz.
    pub clock: Average,
}

impl Load {
    fn push(&mut self, gpu: &Gpu) {
        self.gpu_percent.push(gpu.gpu_percent.map(f64::from));
        self.power.push(gpu.power_watts);
        self.memory.push(gpu.memory_percent.map(f64::from));
        self.clock.push(gpu.sm_clock_mhz.map(f64::from));
    }

    fn add(&mut self, other: Self) {
        self.gpu_percent.add(other.gpu_percent);
        self.power.add(other.power);
        self.memory.add(other.memory);
        self.clock.add(other.clock);
    }
}

impl Work {
    fn is_known(&self) -> bool {
        self.covered as f64 / 1000.0 >= LEAST_WORK_SECONDS
            && self.load.power.count >= LEAST_WORK_SAMPLES
    }
}

/// A period in which a single process kept the GPU fully utilized while the GPU drew a fraction of its former power.
#[derive(Clone, PartialEq, Debug)]
pub struct LowPowerPhase {
    pub process: Identity,
    pub since: Time,
    pub until: Time,
    pub samples: u64,
    covered: i64,
    pub gpu_percent_min: u32,
    pub load: Load,
    /// Temperature, in degrees Celsius.
    pub temperature: Average,
    pub power_limit: Option<f64>,
}

impl LowPowerPhase {
    pub fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }

    /// Returns the share of the phase that samples cover, from 0 to 1.
    pub fn coverage(&self) -> f64 {
        match self.until - self.since {
            0 => 1.0,
            length => self.covered as f64 / length as f64,
        }
    }
}

/// Returns whether a GPU is fully utilized although it does almost no work. In that case, all of its processes wait in
/// kernels. Returns `None` if a value is unknown.
pub(super) fn is_spinning(gpu: &Gpu) -> Option<bool> {
    let (percent, traffic) = (gpu.gpu_percent?, gpu.memory_percent?);
    let is_light = gpu.power_watts? < gpu.power_limit_watts? * LIGHT_SHARE;
    let is_full = f64::from(percent) >= FULL_PERCENT && f64::from(traffic) < TRACE_OF_TRAFFIC;
    gpu.stale_seconds.is_none().then_some(is_full && is_light)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SoleProcess {
    pub(super) process: Identity,
    pub(super) sm_percent: Option<u32>,
}

/// Returns a row of the only process that may be working on a GPU, or `None` if no process or several may be.
pub(super) fn alone<'g>(gpu: &Gpu, rows: &'g [GpuProcess]) -> Option<&'g GpuProcess> {
    let may_work = |row: &&GpuProcess| match row.kind {
        ProcessType::Graphics => row.sm_percent.unwrap_or(0) > DESKTOP_PERCENT,
        _ => !matches!(Use::from_row(gpu, row), Use::NotUsed(_)),
    };
    let mut working = rows.iter().filter(may_work);
    let only = working.next()?;
    working.all(|other| other.pid == only.pid).then_some(only)
}

#[derive(Clone, Debug, Default)]
pub(super) struct PowerHistory {
    works: Vec<Work>,
    phase: Option<LowPowerPhase>,
    alone: Option<Identity>,
    read_at: Option<Time>,
    /// Whether the power was reported in this sample or shortly before.
    is_read: bool,
}

impl PowerHistory {
    /// Adds a sample of the GPU. `alone` is the process that works on the GPU alone, or `None` if there is no such
    /// process or it is unknown.
    pub(super) fn observe(&mut self, gpu: &Gpu, alone: Option<SoleProcess>, sample: SampleTime) {
        self.alone = alone.map(|alone| alone.process);
        self.phase.take_if(|phase| sample.time - phase.until >= BRIDGED_GAP_MILLISECONDS);
        let is_watts = |watts: &f64| watts.is_finite() && *watts >= 0.0;
        let power = gpu.power_watts.filter(is_watts);
        if power.is_some() {
            self.read_at = Some(sample.time);
        }
        self.is_read =
            self.read_at.is_some_and(|read_at| sample.time - read_at <= sample.allowed_gap);
        let (Some(percent), Some(power)) = (gpu.gpu_percent, power) else {
            return;
        };
        if gpu.stale_seconds.is_some() {
            return;
        }
        // Lower utilization or higher power ends the phase, whichever process caused it.
        let is_over =
            self.phase.as_ref().is_some_and(|phase| !self.is_low(phase.process, percent, power));
        if is_over && let Some(phase) = self.phase.take() {
            self.count_as_work(&phase);
        }
        let Some(alone) = alone else {
            return;
        };
        if !self.is_low(alone.process, percent, power) {
            self.remember_work(gpu, alone.process, sample);
        } else if alone.sm_percent.is_none_or(|sm| sm >= LEAST_OWN_PERCENT) {
            self.extend_low_power_phase(gpu, alone.process, percent, sample);
        }
    }

    fn is_low(&self, process: Identity, percent: u32, power: f64) -> bool {
        f64::from(percent) >= FULL_PERCENT
            && self
                .work(process)
                .and_then(|work| work.load.power.mean())
                .is_some_and(|before| power < before * LOW_SHARE)
    }

    fn remember_work(&mut self, gpu: &Gpu, process: Identity, sample: SampleTime) {
        let index = self.works.iter().position(|work| work.process == process);
        let mut work = match index {
            Some(index) => self.works.remove(index),
            None => {
                if self.works.len() == MOST_USERS {
                    self.works.remove(0);
                }
                Work { process, until: sample.time, covered: 0, load: Load::default() }
            }
        };
        work.covered += sample.vouched(sample.time - work.until);
        work.until = sample.time;
        work.load.push(gpu);
        self.works.push(work);
    }

    /// Counts a finished low-power phase as part of the normal work of the process: the work was only lighter.
    fn count_as_work(&mut self, phase: &LowPowerPhase) {
        if let Some(work) = self.works.iter_mut().find(|work| work.process == phase.process) {
            work.load.add(phase.load);
        }
    }

    fn extend_low_power_phase(
        &mut self,
        gpu: &Gpu,
        process: Identity,
        percent: u32,
        now: SampleTime,
    ) {
        let phase = self.phase.take().filter(|phase| phase.process == process);
        let mut phase = phase.unwrap_or_else(|| LowPowerPhase {
            process,
            since: now.time,
            until: now.time,
            samples: 0,
            covered: 0,
            gpu_percent_min: percent,
            load: Load::default(),
            temperature: Average::default(),
            power_limit: None,
        });
        phase.covered += now.vouched(now.time - phase.until);
        phase.until = now.time;
        phase.samples += 1;
        phase.gpu_percent_min = phase.gpu_percent_min.min(percent);
        phase.load.push(gpu);
        phase.temperature.push(gpu.temperature_celsius.map(f64::from));
        phase.power_limit = gpu.power_limit_watts.or(phase.power_limit);
        self.phase = Some(phase);
    }

    /// Returns the values of the GPU while the process worked alone, or `None` if the process was not observed for
    /// long enough.
    pub(super) fn work(&self, process: Identity) -> Option<&Work> {
        self.works.iter().find(|work| work.process == process).filter(|work| work.is_known())
    }

    pub(super) fn low_power_phase(&self) -> Option<&LowPowerPhase> {
        self.phase.as_ref()
    }

    pub(super) fn is_read(&self) -> bool {
        self.is_read
    }

    pub(super) fn alone(&self) -> Option<Identity> {
        self.alone
    }
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Average {
    sum: f64,
    count: u64,
}

impl Average {
    pub(super) fn push(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }

    /// Returns the mean, or `None` if there are no values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}
