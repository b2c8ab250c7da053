//! What a GPU draws while one process alone uses it, and since when that has been a fraction of before.
//!
//! A process that waits for ever in a kernel keeps its GPU at full use and moves no data: the power falls
//! and the utilization does not. That is told of a process only by what the GPU drew while it was the
//! only one at work, then and now: where several share a GPU, no share of the power is known. A process
//! that merely holds memory there does not share.
//!
//! Which settings a verdict takes is the rule's business; here stand the wider bounds within which
//! a [`LowPowerPhase`] lasts. Bounded: the last few processes that were alone on the GPU.

use super::average::Average;
use super::row::Use;
use super::sample_time::{BRIDGED_GAP_MILLISECONDS, SampleTime};
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Identity, Time};

/// A GPU that is used less than this is not in full use.
pub const FULL_PERCENT: f64 = 90.0;
/// A GPU that draws this share of what it drew before, or more, is at work.
pub const LOW_SHARE: f64 = 0.5;
/// What a process drew before is known when it was seen alone at work for so long.
pub const LEAST_WORK_SECONDS: f64 = 180.0;
/// And in so many samples.
const LEAST_WORK_SAMPLES: u64 = 5;
/// A process that keeps a GPU in full use has at least this share of it.
const LEAST_OWN_PERCENT: u32 = 50;
/// A desktop that draws its windows uses no more than this, and does not share the GPU.
pub(super) const DESKTOP_PERCENT: u32 = 10;
/// Of how many processes what they drew is remembered.
const MOST_USERS: usize = 8;

/// What a GPU drew while a process was alone at work on it.
#[derive(Clone, PartialEq, Debug)]
pub struct Work {
    who: Identity,
    until: Time,
    /// How long it was seen, in milliseconds.
    covered: i64,
    /// Utilization of the GPU, percent.
    pub gpu_percent: Average,
    /// Watts.
    pub power: Average,
    /// Memory utilization of the GPU, percent.
    pub memory: Average,
    /// SM clock in MHz.
    pub clock: Average,
}

impl Work {
    /// The seconds in which it was seen.
    pub fn covered_seconds(&self) -> f64 {
        self.covered as f64 / 1000.0
    }

    /// Whether enough was seen of it to compare with.
    fn is_known(&self) -> bool {
        self.covered as f64 / 1000.0 >= LEAST_WORK_SECONDS
            && self.power.count() >= LEAST_WORK_SAMPLES
    }
}

/// A time throughout which a GPU was in full use by one process alone and drew a fraction of what it
/// drew when the same process was at work.
#[derive(Clone, PartialEq, Debug)]
pub struct LowPowerPhase {
    /// Who is alone on the GPU.
    pub who: Identity,
    /// The first sample of it.
    pub since: Time,
    /// The last one.
    pub until: Time,
    /// How many samples there are.
    pub samples: u64,
    covered: i64,
    bridged: i64,
    /// The least utilization of the GPU.
    pub gpu_percent_min: u32,
    /// Utilization of the GPU, percent.
    pub gpu_percent: Average,
    /// Watts.
    pub power: Average,
    /// Memory utilization of the GPU, percent.
    pub memory: Average,
    /// SM clock in MHz.
    pub clock: Average,
    /// Degrees.
    pub temperature: Average,
    /// The power limit in watts, as it was last told.
    pub power_limit: Option<f64>,
}

impl LowPowerPhase {
    /// From `since` to `until`.
    pub fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }

    /// The seconds that its samples cover.
    pub fn covered_seconds(&self) -> f64 {
        self.covered as f64 / 1000.0
    }

    /// The share of it that its samples cover, 0 to 1.
    pub fn coverage(&self) -> f64 {
        match self.until - self.since {
            0 => 1.0,
            length => self.covered as f64 / length as f64,
        }
    }

    /// The share of it that its samples cover, or that lies between two of them with no more missing than
    /// a few, 0 to 1.
    pub fn bridged(&self) -> f64 {
        match self.until - self.since {
            0 => 1.0,
            length => self.bridged as f64 / length as f64,
        }
    }
}

/// The process that is alone at work on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub(super) who: Identity,
    /// Its SM utilization, where the driver tells it.
    pub(super) sm_percent: Option<u32>,
}

/// The row of the only process at work on a GPU; `None` where there is none or several, or that is
/// not known.
pub(super) fn alone<'g>(gpu: &Gpu, rows: &'g [GpuProcess]) -> Option<&'g GpuProcess> {
    let may_work = |row: &&GpuProcess| match row.kind {
        ProcessType::Graphics => row.sm_percent.unwrap_or(0) > DESKTOP_PERCENT,
        _ => !matches!(Use::of(gpu, row), Use::NotUsed(_)),
    };
    let mut at_work = rows.iter().filter(may_work);
    let only = at_work.next()?;
    at_work.all(|other| other.pid == only.pid).then_some(only)
}

/// What a GPU draws.
#[derive(Clone, Debug, Default)]
pub(super) struct Draw {
    /// The latest last.
    works: Vec<Work>,
    phase: Option<LowPowerPhase>,
    /// Who was alone on it at the last sample.
    alone: Option<Identity>,
    /// When its power was last told.
    read_at: Option<Time>,
    /// Whether it was told now, or a few samples ago.
    is_read: bool,
}

impl Draw {
    /// Takes in a sample of the GPU, whose process list was read where `alone` is given.
    pub(super) fn observe(&mut self, gpu: &Gpu, alone: Option<Alone>, moment: SampleTime) {
        self.alone = alone.map(|alone| alone.who);
        self.phase.take_if(|phase| moment.time - phase.until >= BRIDGED_GAP_MILLISECONDS);
        let is_watts = |watts: &f64| watts.is_finite() && *watts >= 0.0;
        let power = gpu.power_watts.filter(is_watts);
        if power.is_some() {
            self.read_at = Some(moment.time);
        }
        self.is_read = self.read_at.is_some_and(|at| moment.time - at <= moment.allowed_gap);
        let (Some(percent), Some(power)) = (gpu.gpu_percent, power) else {
            return;
        };
        if gpu.stale_seconds.is_some() {
            return;
        }
        // The GPU as a whole says that it is over, whoever used it.
        let is_over =
            self.phase.as_ref().is_some_and(|phase| !self.is_low(phase.who, percent, power));
        if is_over && let Some(phase) = self.phase.take() {
            self.count_as_work(&phase);
        }
        let Some(alone) = alone else {
            return;
        };
        if !self.is_low(alone.who, percent, power) {
            self.remember_work(gpu, alone.who, power, moment);
        } else if alone.sm_percent.is_none_or(|sm| sm >= LEAST_OWN_PERCENT) {
            self.extend_low_power_phase(gpu, alone.who, (percent, power), moment);
        }
    }

    fn is_low(&self, who: Identity, percent: u32, power: f64) -> bool {
        f64::from(percent) >= FULL_PERCENT
            && self
                .work(who)
                .and_then(|work| work.power.mean())
                .is_some_and(|before| power < before * LOW_SHARE)
    }

    fn remember_work(&mut self, gpu: &Gpu, who: Identity, power: f64, moment: SampleTime) {
        let known = self.works.iter().position(|work| work.who == who);
        let mut work = match known {
            Some(at) => self.works.remove(at),
            None => {
                if self.works.len() == MOST_USERS {
                    self.works.remove(0);
                }
                Work {
                    who,
                    until: moment.time,
                    covered: 0,
                    gpu_percent: Average::default(),
                    power: Average::default(),
                    memory: Average::default(),
                    clock: Average::default(),
                }
            }
        };
        work.covered += moment.vouched(moment.time - work.until);
        work.until = moment.time;
        work.gpu_percent.push(gpu.gpu_percent.map(f64::from));
        work.power.push(Some(power));
        work.memory.push(gpu.memory_percent.map(f64::from));
        work.clock.push(gpu.sm_clock_mhz.map(f64::from));
        self.works.push(work);
    }

    /// A low-power phase that came to its end by itself was lighter work, which is to be expected again.
    fn count_as_work(&mut self, phase: &LowPowerPhase) {
        if let Some(work) = self.works.iter_mut().find(|work| work.who == phase.who) {
            work.gpu_percent.add(phase.gpu_percent);
            work.power.add(phase.power);
            work.memory.add(phase.memory);
            work.clock.add(phase.clock);
        }
    }

    fn extend_low_power_phase(
        &mut self,
        gpu: &Gpu,
        who: Identity,
        (percent, power): (u32, f64),
        now: SampleTime,
    ) {
        let phase = self.phase.take().filter(|phase| phase.who == who);
        let mut phase = phase.unwrap_or_else(|| LowPowerPhase {
            who,
            since: now.time,
            until: now.time,
            samples: 0,
            covered: 0,
            bridged: 0,
            gpu_percent_min: percent,
            gpu_percent: Average::default(),
            power: Average::default(),
            memory: Average::default(),
            clock: Average::default(),
            temperature: Average::default(),
            power_limit: None,
        });
        phase.covered += now.vouched(now.time - phase.until);
        phase.bridged += now.bridged(now.time - phase.until);
        phase.until = now.time;
        phase.samples += 1;
        phase.gpu_percent_min = phase.gpu_percent_min.min(percent);
        phase.gpu_percent.push(Some(percent.into()));
        phase.power.push(Some(power));
        phase.memory.push(gpu.memory_percent.map(f64::from));
        phase.clock.push(gpu.sm_clock_mhz.map(f64::from));
        phase.temperature.push(gpu.temperature_celsius.map(f64::from));
        phase.power_limit = gpu.power_limit_watts.or(phase.power_limit);
        self.phase = Some(phase);
    }

    /// What the GPU drew while the process was alone at work, where enough was seen of that.
    pub(super) fn work(&self, who: Identity) -> Option<&Work> {
        self.works.iter().find(|work| work.who == who).filter(|work| work.is_known())
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
